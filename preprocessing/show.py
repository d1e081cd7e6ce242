"""Look at a dataset: `python -m preprocessing.show DIR [--sample K]`."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
from collections.abc import Iterator

from pipeline.shards import Dataset
from pipeline.tokenizer import Tokenizer
from preprocessing.command_line import run_command


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
        **{f"excluded: {reason}": count for reason, count in counts.get("excluded", {}).items()},
    }
    for side in ("source", "target"):
        lengths = manifest["lengths"].get(side, {})
        rows[f"{side} ids"] = ", ".join(f"{name} {value}" for name, value in lengths.items())
        rows[f"{side}s truncated"] = counts.get(f"truncated_{side}s")
    inputs = rows.pop("settings: inputs", [])
    width = max(map(len, rows))
    for name, value in rows.items():
        yield f"{name:<{width}}  {value}"
    if isinstance(inputs, list):
        yield f"{'inputs':<{width}}  {len(inputs)}: {'; '.join(inputs[:3])}" + (
            " ..." if len(inputs) > 3 else ""
        )


def sample_text(dataset: Dataset, index: int) -> Iterator[str]:
    """Sample `index` as text: its metadata, source and target, one target sentence a line."""
    if not 0 <= index < len(dataset):
        raise ValueError(f"--sample is {index}, {dataset.path} has samples 0 to {len(dataset) - 1}")
    tokenizer = Tokenizer(dataset.tokenizer_path)
    sample = dataset[index]
    for name, value in sample.metadata.items():
        if name not in ("source_text", "references", "target_sentence_ends"):
            yield f"{name}: {value}"
    yield f"\nsource ({len(sample.source)} ids):\n{tokenizer.decode(sample.source)}"
    yield f"\ntarget ({len(sample.target)} ids):"
    start = 0
    for end in sample.metadata["target_sentence_ends"]:
        yield tokenizer.decode(sample.target[start:end])
        start = end
    for number, reference in enumerate(sample.metadata.get("references", [])):
        yield f"\nreference {number}, untruncated:\n{reference}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Print a dataset's manifest, or one sample.")
    parser.add_argument("dataset", help="dataset folder")
    parser.add_argument("--sample", type=int, metavar="K", help="print sample K, from 0, as text")
    options = parser.parse_args()
    dataset = Dataset(options.dataset)
    lines = (
        manifest_table(dataset) if options.sample is None else sample_text(dataset, options.sample)
    )
    for line in lines:
        print(line)


if __name__ == "__main__":
    run_command(main)
