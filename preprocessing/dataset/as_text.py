"""A dataset as text: its manifest, its length histograms, one of its samples."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.common.progress import progress
from pipeline.manifest import unknown_share
from pipeline.shards import Dataset, Sample
from pipeline.tokenizer import open_tokenizer

BAR = 50  # characters of a histogram's longest bar
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Also those that reorder what follows; not newline and tab."""
HIDDEN = ("source_text", "references", "source_sentence_ends", "target_sentence_ends")

Decode = Callable[[Iterable[int]], str]


def open_part(path: Path) -> tuple[Dataset, range]:
    """The dataset and shard numbers of a path: all shards of a folder, or the one of a .tar.

    Raises ValueError as Dataset does, and where the folder's manifest does not name the shard.
    """
    if path.is_dir() or not (path.is_file() or path.suffix == ".tar"):
        dataset = Dataset(path)
        return dataset, range(len(dataset.shards))
    dataset = Dataset(path.parent)
    names = [f"{shard.name}.tar" for shard in dataset.shards]
    if path.name not in names:
        raise ValueError(f"{path} is not in its folder's manifest, which names {_few(names)}")
    shard = names.index(path.name)
    return dataset, range(shard, shard + 1)


def manifest_table(dataset: Dataset) -> Iterator[str]:
    """The manifest as lines of name and value; lengths in ids, EOS included, before truncation."""
    manifest = dataset.manifest
    tokenizer, counts = manifest["tokenizer"], manifest["counts"]
    rows: dict[str, object] = {
        "name": f"{manifest['name']} ({manifest['kind']}, {manifest['split']})",
        "tokenizer": f"{tokenizer['vocab_size']} ids, sha256 {tokenizer['sha256']}",
        "samples": f"{len(dataset)} in {len(dataset.shards)} shards, "
        f"{sum(shard.bytes for shard in dataset.shards)} bytes, ids {dataset.id_dtype}",
        **{f"settings: {name}": value for name, value in manifest["settings"].items()},
        "pairs" if manifest["kind"] == "summarisation" else "documents": counts.get("documents"),
        "kept": counts.get("kept"),
        **{f"excluded: {reason}": number for reason, number in counts.get("excluded", {}).items()},
    }
    if (share := unknown_share(manifest)) is not None:
        rows["unknown"] = f"{counts['unknown_characters']} characters, {share:.2%}"
    for side in ("source", "target"):
        lengths = manifest["lengths"].get(side, {})
        rows[f"{side} ids"] = ", ".join(
            f"{name} {value}" for name, value in lengths.items() if name != "histogram"
        )
        rows[f"{side}s truncated"] = counts.get(f"truncated_{side}s")
    inputs = rows.pop("settings: inputs", [])
    if isinstance(inputs, list):
        rows["inputs"] = f"{len(inputs)}: {_few(inputs)}"
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:<{width}}  {value}"


def histograms(manifest: dict[str, Any]) -> Iterator[str]:
    """Histograms of the lengths (ids, EOS included, before truncation) as bars."""
    for side, lengths in manifest["lengths"].items():
        histogram = lengths.get("histogram")
        if histogram is None:
            continue
        rows = list(zip(pairwise([0, *histogram["edges"]]), histogram["counts"], strict=True))
        filled = [i for i, (_, number) in enumerate(rows) if number]
        most = max(histogram["counts"])
        yield f"\n{side} ids"
        for (below, edge), number in rows[filled[0] : filled[-1] + 1]:
            span = f"{below + 1}-{edge}" if below + 1 < edge else f"{edge}"
            # Rounded up: a bin that is not empty has at least one mark.
            yield f"{span:>17} {number:>12} {'#' * -(-number * BAR // most)}".rstrip()


def sample_text(dataset: Dataset, index: int, shards: range | None = None) -> Iterator[str]:
    """Sample `index` of the shards (None: all shards) as text, one sentence per line.

    Gap sentences are shown in their original positions, marked by `>`; where the source's sentence
    ends are not recorded, the source is shown first, then the target. Raises ValueError where there
    is no such sample.
    """
    shards = range(len(dataset.shards)) if shards is None else shards
    first = sum(shard.samples for shard in dataset.shards[: shards.start])
    samples = sum(shard.samples for shard in dataset.shards[shards.start : shards.stop])
    if not 0 <= index < samples:
        raise ValueError(f"--sample is {index}, but {dataset.path} has samples 0 to {samples - 1}")
    decode = partial(open_tokenizer(dataset.tokenizer_path).decode, show_unknown=True)
    sample = dataset[first + index]
    yield f"sample {index}"
    for name, value in sample.metadata.items():
        if name not in HIDDEN:
            yield f"{name}: {value}"
    settings = dataset.manifest["settings"]
    sizes = {
        side: f"{len(ids)} ids" + (", cut" if len(ids) == settings.get(f"{side}_length") else "")
        for side, ids in (("source", sample.source), ("target", sample.target))
    }
    if "gap_sentences" in sample.metadata and "source_sentence_ends" in sample.metadata:
        yield f"\nsource ({sizes['source']}), and target ({sizes['target']}) marked by >:"
        yield from document_lines(sample, decode, masked=bool(settings.get("mask_share")))
    else:
        yield f"\nsource ({sizes['source']}):\n{decode(sample.source)}"
        yield f"\ntarget ({sizes['target']}):"
        yield from map(decode, _pieces(sample.target, sample.metadata["target_sentence_ends"]))
    for number, reference in enumerate(sample.metadata.get("references", [])):
        yield f"\nreference {number}, untruncated:\n{reference}"
    if text := sample.metadata.get("source_text"):
        yield f"\nsource text, untruncated:\n{text}"


def document_lines(sample: Sample, decode: Decode, masked: bool) -> Iterator[str]:
    """A pre-training sample's document, with `> ` before each gap sentence, even a truncated one.

    `masked`: the source holds a mask token, or the sentence itself, in place of a gap sentence.
    """
    gaps = sample.metadata["gap_sentences"]
    chosen = set(gaps)
    source = _pieces(sample.source, sample.metadata["source_sentence_ends"])
    numbers = (i for i in count() if masked or i not in chosen)
    lines = {i: f"  {decode(ids)}" for i, ids in zip(numbers, source, strict=False)}
    target = map(decode, _pieces(sample.target, sample.metadata["target_sentence_ends"]))
    for i in gaps:
        lines[i] = f"> {next(target, '(cut off)')}"
    for i in sorted(lines):
        yield lines[i]


def find_sample(dataset: Dataset, wanted: str, shards: range) -> int:
    """The number, within the shards, of the first sample with this id or URL.

    Reads every sample before it. Raises ValueError where there is none.
    """
    first = sum(shard.samples for shard in dataset.shards[: shards.start])
    count = sum(dataset.shards[shard].samples for shard in shards)
    for number in progress(range(count), count, f"{dataset.path}, searched", "samples"):
        metadata = dataset[first + number].metadata
        if wanted in (metadata.get("id"), metadata.get("url")):
            return number
    raise ValueError(f"--find {wanted!r}: none of the {count} samples has this id or url")


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, as escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _pieces(ids: np.ndarray, ends: Sequence[int]) -> Iterator[np.ndarray]:
    return (ids[start:end] for start, end in pairwise([0, *ends]))


def _few(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (" ..." if len(names) > 3 else "")
