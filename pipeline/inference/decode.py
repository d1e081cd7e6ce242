"""From source ids to summaries: batches of similar length, decoding, text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from pipeline.baselines.registry import Model, check_model, load_model, weights_file
from pipeline.distributed.sequence_parallel import OPTION
from pipeline.model import Locost, LocostConfig
from pipeline.model.decoder import DecoderState
from pipeline.model.generation import DecodingStrategy
from pipeline.model.sequence import ALONE, SequenceGroup, check_sequence
from pipeline.tokenizer import AnyTokenizer, HuggingFaceTokenizer, Tokenizer, open_tokenizer

PRECISIONS = ("bf16", "fp32")
OTHER_TOKENIZERS = (HuggingFaceTokenizer.file_name,)


@dataclass(frozen=True)
class Summary:
    """A generated text."""

    text: str
    ended: bool = True
    """Whether the model ended it; if not, it was cut at max_new_tokens."""

    def marks(self) -> dict[str, bool]:
        """What is wrong with it, for records."""
        return {"empty": not self.text.strip(), "cut": not self.ended}


def model_folder(checkpoint: Path) -> Path:
    """The model's folder: `checkpoint` itself, or `model/` inside a kept checkpoint.

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
                    f"{folder} lacks {' and '.join(missing)}; give a complete model folder "
                    "(convert.py import adds a tokenizer with --tokenizer)"
                )
            return folder
    kept = [str(path) for name in ("best", "last") if (path := checkpoint / name).exists()]
    expected = f"give {kept[0]}" if kept else "give a kept checkpoint (RUN/best) or a model folder"
    raise ValueError(
        f"{checkpoint} is not a model: no config.json there or in its model/ folder; {expected}"
    )


def open_checkpoint(checkpoint: Path) -> tuple[Path, AnyTokenizer]:
    """The model's folder and tokenizer; of the weights only names and shapes are read.

    Raises ValueError when the folder holds no model, or one that does not match its tokenizer.
    """
    folder = model_folder(checkpoint)
    config, tokenizer = check_model(folder), open_tokenizer(folder)
    # Some baselines pad their vocabulary.
    fits = tokenizer.vocab_size <= config.vocab_size
    if not fits or (isinstance(config, LocostConfig) and tokenizer.vocab_size < config.vocab_size):
        raise ValueError(
            f"{tokenizer.path} has {tokenizer.vocab_size} ids, the model next to it "
            f"{config.vocab_size}; restore the tokenizer it was trained with"
        )
    return folder, tokenizer


def check_sharing(folder: Path, size: int) -> None:
    """Raise ValueError for a model folder whose sources `size` processes cannot share."""
    if size == 1:
        return
    config = check_model(folder)
    if not isinstance(config, LocostConfig):
        raise ValueError(f"{OPTION} {size} is for LOCOST, and {folder} is a baseline; leave it out")
    check_sequence(config, size, OPTION)


def load(
    checkpoint: Path, device: torch.device, group: SequenceGroup = ALONE
) -> tuple[Model, AnyTokenizer]:
    """The model, in evaluation mode on the device, and its tokenizer; `group` shares its sources.

    Raises ValueError where it cannot.
    """
    folder, tokenizer = open_checkpoint(checkpoint)
    check_sharing(folder, group.size)
    model = load_model(folder).to(device).eval()
    if isinstance(model, Locost):
        model.use_sequence(group)
    return model, tokenizer


def encode_source(tokenizer: AnyTokenizer, text: str, length: int = 0) -> np.ndarray:
    """Ids (L,) of a document, ending with EOS, at most `length` of them; 0: no limit."""
    ids = [*tokenizer.prefix_ids, *tokenizer.encode(text)]
    kept = ids[: length - 1] if length else ids
    return np.array([*kept, tokenizer.eos_id], dtype=np.int64)


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first, so that out of memory shows at once.

    A function of the lengths and the batch size alone, so that an example's padding, hence its
    rounding, is the same on any rank and after any interruption.
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
) -> list[Summary]:
    """Summaries of one padded batch of sources, each (L,) ids ending with EOS.

    `started` receives the initial state of LOCOST's decoding, once the sources are encoded.
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
    return [_summary(tokenizer, row[1:]) for row in outputs.tolist()]


def generate_summaries(
    model: Model,
    tokenizer: AnyTokenizer,
    sources: Sequence[np.ndarray],
    strategy: DecodingStrategy,
    batch_size: int,
    precision: str,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Summaries of the sources, in their order; each source is (L,) ids ending with EOS.

    No collective: each rank may pass its own share, or each group of a model whose sources are
    shared. `stopped` is asked before each batch whether to leave the rest empty.
    """
    summaries = [""] * len(sources)
    for batch in length_batches([len(source) for source in sources], batch_size):
        if stopped():
            break
        made = generate_batch(
            model, tokenizer, [sources[i] for i in batch], strategy, precision, device
        )
        for index, summary in zip(batch, made, strict=True):
            summaries[index] = summary.text
    return summaries


def _summary(tokenizer: AnyTokenizer, new: list[int]) -> Summary:
    """The text of the ids after the start token (EOS in some models), up to the first EOS."""
    ended = tokenizer.eos_id in new
    return Summary(tokenizer.decode(new[: new.index(tokenizer.eos_id)] if ended else new), ended)
