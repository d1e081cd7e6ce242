"""A tiny model beside the tiny tokenizer."""

from pathlib import Path

import pytest
import torch

from pipeline.model import Locost, LocostConfig, save_model
from pipeline.tokenizer import Tokenizer


def make_model(folder: Path, tokenizer_path: Path, seed: int) -> Path:
    """A kept checkpoint's shape, of random weights large enough that sources change summaries."""
    torch.manual_seed(seed)
    config = LocostConfig(
        vocab_size=Tokenizer(tokenizer_path).vocab_size,
        d_model=16,
        state_dim=4,
        d_ff=32,
        encoder_layers=2,
        decoder_layers=2,
        num_heads=2,
        head_dim=8,
    )
    model = Locost(config)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(3)
    save_model(model, folder / "model", tokenizer=tokenizer_path)
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tokenizer_path) -> Path:
    """A kept checkpoint: model/ with config, weights and tokenizer."""
    return make_model(tmp_path_factory.mktemp("run") / "best", tokenizer_path, seed=0)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory, tokenizer_path) -> Path:
    """The same with other weights."""
    return make_model(tmp_path_factory.mktemp("run") / "other", tokenizer_path, seed=5)
