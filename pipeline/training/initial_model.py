"""The model that a run starts from: random weights, or those of a folder."""

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.baselines.model import Baseline, load_baseline
from pipeline.baselines.registry import Model, baseline_of, weights_file
from pipeline.baselines.systems import BaselineConfig, Name
from pipeline.config import DataConfig, RunConfig
from pipeline.data.mixture import Mixture
from pipeline.inference.decode import model_folder
from pipeline.model import Locost, LocostConfig, folder
from pipeline.model.config import INITIALISATION
from pipeline.shards import Dataset, file_sha256
from pipeline.tokenizer import HuggingFaceTokenizer, Tokenizer, open_tokenizer
from pipeline.training.copy_initialisation import initialise_to_copy


def weights_sha256(checkpoint: str) -> str:
    """The digest of a checkpoint's weights."""
    return file_sha256(weights_file(model_folder(Path(checkpoint))))


def starting_model(config: RunConfig, train: Mixture, validation: Dataset | None) -> Model:
    """The initial model, the same on every process, with the run's dropout.

    Raises ValueError where `init_from` holds another architecture or tokenizer, or the data are
    longer than the model's positions.
    """
    torch.manual_seed(config.train.seed)
    architecture = config.architecture(train.tokenizer["vocab_size"])
    if isinstance(architecture, BaselineConfig):
        model = starting_baseline(config.init_from, architecture, train)
        if not config.init_from and config.model["cross_attention_initialisation"] == "copy":
            initialise_to_copy(model)
        for dataset in (*train.datasets, *([validation] if validation else [])):
            check_lengths(model, dataset, config.data)
        return model
    if config.init_from:
        return starting_locost(config.init_from, architecture, train.tokenizer["sha256"])
    return Locost(architecture)


def starting_locost(checkpoint: str, architecture: LocostConfig, tokenizer_sha256: str) -> Locost:
    """The model in a folder (or its model/), refused when its sizes or tokenizer are others."""
    path = model_folder(Path(checkpoint))
    if baseline := baseline_of(path):
        raise ValueError(
            f"model.init_from {checkpoint} holds {baseline}; give --model.baseline {baseline} too"
        )
    model = folder.load_model(path)
    for name, wanted in vars(architecture).items():
        found = getattr(model.config, name)
        if found != wanted and name not in {"dropout", *INITIALISATION}:
            raise ValueError(
                f"model.{name} is {wanted}, but the checkpoint {checkpoint} has {found}; "
                + (
                    "prepare the data with the checkpoint's tokenizer"
                    if name == "vocab_size"
                    else f"pass --model.{name} {found} or another --model.init_from"
                )
            )
    _check_tokenizer(checkpoint, [Tokenizer(path).path], tokenizer_sha256)
    retrained = Locost(architecture)
    retrained.load_state_dict(model.state_dict())
    return retrained


def starting_baseline(
    checkpoint: str | None, architecture: BaselineConfig, train: Mixture
) -> Baseline:
    """The baseline in a folder, or one of random weights with the ids of the data's tokenizer."""
    if checkpoint is None:
        tokenizer = open_tokenizer(train.tokenizer_path)
        pad_id = tokenizer.pad_id
        return Baseline(
            replace(architecture, pad_id=pad_id, start_id=pad_id, eos_id=tokenizer.eos_id)
        )
    path = baseline_folder(checkpoint, architecture.name)
    names = [Tokenizer.file_name, HuggingFaceTokenizer.file_name]
    if architecture.system.model_type in ("t5", "longt5"):
        names.append("spiece.model")  # theirs has the ids that Tokenizer gives them
    files = [path / name for name in names if (path / name).is_file()]
    _check_tokenizer(checkpoint, files, train.tokenizer["sha256"])
    return load_baseline(path, architecture.dropout, architecture.attention).train()


def baseline_folder(checkpoint: str, name: Name) -> Path:
    """The folder of a baseline's weights; ValueError where it is incomplete, or another's."""
    path = model_folder(Path(checkpoint))
    found = baseline_of(path)
    if found != name:
        raise ValueError(
            f"model.init_from {checkpoint} holds {found or 'no baseline'}, model.baseline is "
            f"{name}; " + (f"pass --model.baseline {found}" if found else "omit --model.baseline")
        )
    return path


def check_lengths(model: Baseline, dataset: Dataset, data: DataConfig) -> None:
    """Raise ValueError where samples, cut as `data` says, are longer than the model's positions."""
    limits = (data.source_length, data.target_length)
    for target, (side, cut) in enumerate(zip(("source", "target"), limits, strict=True)):
        if model.limits[target] is None:
            continue
        longest = max(
            (int(dataset.index(k)[f"{side}_length"].max(initial=0)))
            for k in range(len(dataset.shards))
        )
        model.check_length(min(longest, cut or longest), target=bool(target))


def _check_tokenizer(checkpoint: str, files: list[Path], wanted: str) -> None:
    found = [file_sha256(file) for file in files]
    if wanted not in found:
        raise ValueError(
            f"model.init_from {checkpoint} has the tokenizer {' and '.join(found)}, data.train "
            f"{wanted}; prepare the data with the checkpoint's tokenizer"
        )
