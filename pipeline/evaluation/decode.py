"""From source ids to summaries: batches of similar length, decoding, text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from pipeline.huggingface_tokenizer import AnyTokenizer, HuggingFaceTokenizer, open_tokenizer
from pipeline.model import LocostConfig
from pipeline.model.decoder import DecoderState
from pipeline.model.generation import DecodingStrategy
from pipeline.models import Model, check_model, load_model, weights_file
from pipeline.tokenizer import Tokenizer

PRECISIONS = ("bf16", "fp32")
OTHER_TOKENIZERS = (HuggingFaceTokenizer.file_name,)


def model_folder(checkpoint: Path) -> Path:
    """The model's folder: `checkpoint` itself, or the `model/` inside a kept checkpoint.

    Raises ValueError when neither holds a model.
    """
    for folder in (checkpoint / "model", checkpoint):
        if (folder / "config.json").is_file():
            needed = ((weights_file(folder).name,), (Tokenizer.file_name, *OTHER_TOKENIZERS))
            missing = [
                names[0] for names in needed if not any((folder / name).is_file() for name in names)
            ]
            if missing:
                raise ValueError(
                    f"{folder} lacks {' and '.join(missing)}; give a model folder, to which an "
                    "import adds a tokenizer by --tokenizer"
                )
            return folder
    raise ValueError(
        f"{checkpoint} is no model: no config.json there or in its model/ folder; "
        "give a kept checkpoint (RUN/best) or a model folder"
    )


def open_checkpoint(checkpoint: Path) -> tuple[Path, AnyTokenizer]:
    """The model's folder and tokenizer, the weights not read, only their names and shapes.

    Raises ValueError when the folder holds no model, or one that its tokenizer does not fit.
    """
    folder = model_folder(checkpoint)
    config, tokenizer = check_model(folder), open_tokenizer(folder)
    # Some baselines have more entries than ids, for a rounder number.
    fits = tokenizer.vocab_size <= config.vocab_size
    if not fits or (isinstance(config, LocostConfig) and tokenizer.vocab_size < config.vocab_size):
        raise ValueError(
            f"{tokenizer.path} has {tokenizer.vocab_size} ids, the model beside it "
            f"{config.vocab_size}; put back the tokenizer it was trained with"
        )
    return folder, tokenizer


def load(checkpoint: Path, device: torch.device) -> tuple[Model, AnyTokenizer]:
    """The model, in evaluation mode on the device, and the tokenizer that lies beside it."""
    folder, tokenizer = open_checkpoint(checkpoint)
    return load_model(folder).to(device).eval(), tokenizer


def encode_source(tokenizer: AnyTokenizer, text: str, length: int = 0) -> np.ndarray:
    """Ids (L,) of a document, ending with EOS, at most `length` of them; 0: the whole text."""
    ids = [*tokenizer.prefix_ids, *tokenizer.encode(text)]
    kept = ids[: length - 1] if length else ids
    return np.array([*kept, tokenizer.eos_id], dtype=np.int64)


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first: what does not fit fails at once.

    A function of the lengths and the batch size alone, so that an example is always padded, and
    rounded, alike, whoever generates it and after whatever interruption.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def generate_batch(
    model: Model,
    tokenizer: AnyTokenizer,
    sources: Sequence[np.ndarray],
    strategy: DecodingStrategy,
    precision: str,
    device: torch.device,
    started: Callable[[DecoderState], None] | None = None,
) -> list[str]:
    """Summaries of one padded batch of sources, each (L,) ids ending with EOS.

    `started` is told the state that LOCOST's decoding begins from, once the sources are encoded.
    """
    input_ids = torch.full((len(sources), max(map(len, sources))), tokenizer.pad_id)
    mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    for row, source in enumerate(sources):
        input_ids[row, : len(source)] = torch.from_numpy(np.asarray(source, dtype=np.int64))
        mask[row, : len(source)] = True
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        outputs = model.generate(
            input_ids.to(device),
            attention_mask=None if mask.all() else mask.to(device),
            started=started,
            **asdict(strategy),
        )
    return [tokenizer.decode(_until_end(row, tokenizer.eos_id)) for row in outputs.tolist()]


def generate_summaries(
    model: Model,
    tokenizer: AnyTokenizer,
    sources: Sequence[np.ndarray],
    strategy: DecodingStrategy,
    batch_size: int,
    precision: str,
    device: torch.device,
) -> list[str]:
    """Summaries of the sources, in their order; each source is (L,) ids ending with EOS.

    Works on the given model alone and asks no other process: each rank may give its own share.
    """
    summaries = [""] * len(sources)
    for batch in length_batches([len(source) for source in sources], batch_size):
        texts = generate_batch(
            model, tokenizer, [sources[i] for i in batch], strategy, precision, device
        )
        for index, text in zip(batch, texts, strict=True):
            summaries[index] = text
    return summaries


def _until_end(ids: list[int], eos_id: int) -> list[int]:
    """Without the start token (some start from EOS), up to the first EOS."""
    new = ids[1:]
    return new[: new.index(eos_id)] if eos_id in new else new
