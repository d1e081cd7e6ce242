"""Look at a dataset or one of its shards: `python -m preprocessing.show DIR|SHARD [--sample K]`."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np

from pipeline.command_line import Parser
from pipeline.shards import Dataset, Sample
from pipeline.tokenizer import Tokenizer
from preprocessing.command_line import USER_ERROR, run_command
from preprocessing.verify import faults

BAR = 50  # characters of a histogram's longest bar
HIDDEN = ("source_text", "references", "source_sentence_ends", "target_sentence_ends")

Decode = Callable[[Iterable[int]], str]


def open_part(path: Path) -> tuple[Dataset, range]:
    """A dataset folder and all its shards' numbers, or the folder of a shard and that one's.

    Raises ValueError as Dataset does, and where the folder's manifest does not name the shard.
    """
    if path.is_dir() or not (path.is_file() or path.suffix == ".tar"):
        dataset = Dataset(path)
        return dataset, range(len(dataset.shards))
    dataset = Dataset(path.parent)
    names = [f"{shard.name}.tar" for shard in dataset.shards]
    if path.name not in names:
        raise ValueError(f"{path} is no shard of its folder; its manifest names {_few(names)}")
    shard = names.index(path.name)
    return dataset, range(shard, shard + 1)


def manifest_table(dataset: Dataset) -> Iterator[str]:
    """The manifest as lines of name and value; lengths are in ids, EOS included, untruncated."""
    manifest = dataset.manifest
    tokenizer, counts = manifest["tokenizer"], manifest["counts"]
    rows: dict[str, object] = {
        "name": f"{manifest['name']} ({manifest['kind']}, {manifest['split']})",
        "tokenizer": f"{tokenizer['vocab_size']} ids, sha256 {tokenizer['sha256']}",
        "samples": f"{len(dataset)} in {len(dataset.shards)} shards, "
        f"{sum(shard.bytes for shard in dataset.shards)} bytes, ids {dataset.id_dtype}",
        **{f"settings: {name}": value for name, value in manifest["settings"].items()},
        "documents": counts.get("documents"),
        "kept": counts.get("kept"),
        **{f"excluded: {reason}": number for reason, number in counts.get("excluded", {}).items()},
    }
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
    """Bars of the lengths (ids, EOS included, before any cut) that occur."""
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
            # Whatever there is shows: at least one mark.
            yield f"{span:>17} {number:>12} {'#' * -(-number * BAR // most)}".rstrip()


def sample_text(dataset: Dataset, index: int, shards: range | None = None) -> Iterator[str]:
    """Sample `index` of the shards (None: of all) as text, one sentence a line.

    Gap sentences stand at their places in the document, marked by `>`; where the source's sentence
    ends are not recorded, source and target come one after the other. Raises ValueError where
    there is no such sample.
    """
    shards = range(len(dataset.shards)) if shards is None else shards
    first = sum(shard.samples for shard in dataset.shards[: shards.start])
    samples = sum(shard.samples for shard in dataset.shards[shards.start : shards.stop])
    if not 0 <= index < samples:
        raise ValueError(f"--sample is {index}, {dataset.path} has samples 0 to {samples - 1}")
    decode = _decoder(dataset)
    sample = dataset[first + index]
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


def document_lines(sample: Sample, decode: Decode, masked: bool) -> Iterator[str]:
    """A pre-training sample's document: `> ` before each gap sentence, also one cut off.

    `masked`: the source holds a mask token, or the sentence itself, where a gap sentence was.
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


def main() -> None:
    """The command line."""
    parser = Parser(
        prog="preprocessing.show",
        description="Print a dataset's manifest and lengths, or one sample; or check all of it.",
    )
    parser.add_argument("dataset", type=Path, help="dataset folder, or one .tar in it")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--sample", type=int, metavar="K", help="print sample K, from 0, of the folder or the .tar"
    )
    choice.add_argument(
        "--verify", action="store_true", help="read everything: checksums, indexes, every sample"
    )
    options = parser.parse_args()
    dataset, shards = open_part(options.dataset)
    if options.verify:
        _verify(dataset, shards)
        return
    try:
        if options.sample is None:
            lines = (*manifest_table(dataset), *histograms(dataset.manifest))
        else:
            lines = (*sample_text(dataset, options.sample, shards),)
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _verify(dataset: Dataset, shards: range) -> None:
    found = list(faults(dataset, shards))
    for fault in found:
        print(f"error: {fault}", file=sys.stderr)
    if found:
        sys.exit(USER_ERROR)
    samples = sum(dataset.shards[shard].samples for shard in shards)
    print(
        f"{dataset.path}: {samples} samples in {len(shards)} shards, every checksum, index row "
        "and sample is as it should be"
    )


def _decoder(dataset: Dataset) -> Decode:
    """Ids to text, by the tokenizer in the folder."""
    if dataset.tokenizer_path.suffix != ".json":
        return Tokenizer(dataset.tokenizer_path).decode
    try:
        from tokenizers import Tokenizer as JsonTokenizer  # comes with transformers, an extra
    except ImportError:
        raise ValueError(
            f"{dataset.tokenizer_path} is a Hugging Face tokenizer, which needs transformers: "
            "`pip install -r requirements-extras.txt`"
        ) from None
    tokenizer = JsonTokenizer.from_file(str(dataset.tokenizer_path))
    return lambda ids: tokenizer.decode([int(i) for i in ids])


def _pieces(ids: np.ndarray, ends: Sequence[int]) -> Iterator[np.ndarray]:
    return (ids[start:end] for start, end in pairwise([0, *ends]))


def _few(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (" ..." if len(names) > 3 else "")


if __name__ == "__main__":
    run_command(main)
