"""A dataset's report: what was read, kept and excluded, lengths and tokens, as one HTML page."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.common.html import escape, markdown_table, write_page
from pipeline.manifest import unknown_share
from preprocessing.dataset.plots import plot_counts, plot_lengths
from preprocessing.readers.entries import DUPLICATE, NEAR_DUPLICATE

FOLDER = "report"
PAGE = "report.html"
LANGUAGES = 20  # of those, the most frequent have a bar
SHOWN_INPUTS = 20


def write_report(manifest: dict[str, Any], folder: Path) -> Path:
    """Write report.html (complete in itself), report.md and their pictures; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    write_page([*_sections(manifest, folder)], folder)
    return folder / PAGE


def _sections(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    counts = manifest["counts"]
    read = "pairs" if manifest["kind"] == "summarisation" else "documents"
    yield f"# {escape(manifest['name'])}"
    shards = manifest["shards"]
    size = sum(shard["bytes"] for shard in shards)
    yield (
        f"{manifest['kind']}, split {escape(manifest['split'])}: {counts['kept']:,} samples from "
        f"{counts['documents']:,} {read}, in {len(shards):,} shards, {size / 1e6:,.1f} MB in "
        "all. All lengths are in ids of the tokenizer, end of sequence included."
    )
    yield from _documents(counts, read, folder)
    yield from _lengths(manifest, folder)
    yield from _languages(counts, folder)
    yield from _unknown(manifest, folder)
    yield from _settings(manifest)


def _documents(counts: dict[str, Any], read: str, folder: Path) -> Iterator[str]:
    yield f"## {read.capitalize()} read, kept and excluded"
    reasons = dict(sorted(counts["excluded"].items(), key=lambda pair: -pair[1]))
    plot_counts({"kept": counts["kept"], **reasons}, folder / "counts.png", frozenset(("kept",)))
    yield f"![{read} kept, and excluded by reason](counts.png)"
    total = max(counts["documents"], 1)
    duplicates = {name: reasons[name] for name in (DUPLICATE, NEAR_DUPLICATE) if name in reasons}
    if duplicates:
        found = ", ".join(f"{name} {count:,}" for name, count in duplicates.items())
        yield f"Duplicates: {found}; {sum(duplicates.values()) / total:.2%} of all {read}."
    yield _table(
        ["", read, "share"],
        [[escape(name), f"{count:,}", f"{count / total:.2%}"]
         for name, count in {"kept": counts["kept"], **reasons}.items()],
    )  # fmt: skip


def _lengths(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    yield "## Lengths and tokens"
    plot_lengths(manifest, folder / "lengths.png")
    yield "![Histograms of source and target lengths before truncation](lengths.png)"
    counts = manifest["counts"]
    columns = []
    for side in ("source", "target"):
        lengths = manifest["lengths"][side]
        limit = manifest["settings"].get(f"{side}_length", 0)
        before, after = (lengths.get(name) for name in ("tokens", "tokens_kept"))
        columns.append(
            {
                "mean": f"{lengths['mean']:,}",
                "median": f"{lengths['median']:,}",
                "90th percentile": f"{lengths['p90']:,}",
                "longest": f"{lengths['max']:,}",
                "truncated at": f"{limit:,}" if limit else "not truncated",
                "samples truncated": f"{counts[f'truncated_{side}s']:,}",
                "tokens before truncation": "not counted" if before is None else f"{before:,}",
                "tokens kept": "not counted" if after is None else f"{after:,}",
                "lost": f"{1 - after / before:.2%}" if before and after is not None else "",
            }
        )
    sources, targets = columns
    yield _table(
        ["", "sources", "targets"], [[name, sources[name], targets[name]] for name in sources]
    )


def _languages(counts: dict[str, Any], folder: Path) -> Iterator[str]:
    yield "## Languages"
    kept: dict[str, int] = counts.get("languages", {})
    other = {
        reason.removeprefix("language "): count
        for reason, count in counts["excluded"].items()
        if reason.startswith("language ")
    }
    ordered = dict(sorted({**other, **kept}.items(), key=lambda pair: -pair[1]))
    if not ordered:
        yield "Not identified: `--language` does."
        return
    shown = {name: ordered[name] for name in [*ordered][:LANGUAGES]}
    if rest := sum(ordered.values()) - sum(shown.values()):
        shown[f"{len(ordered) - len(shown)} others"] = rest
    plot_counts(shown, folder / "languages.png", frozenset(kept))
    yield "![Documents by identified language](languages.png)"
    yield (
        "By fastText's lid.176: samples in the languages that are kept, and documents excluded "
        "for theirs (`uncertain`: below `--language_threshold`)."
    )


def _unknown(manifest: dict[str, Any], folder: Path) -> Iterator[str]:
    yield "## Characters that the tokenizer lacks"
    counts = manifest["counts"]
    share = unknown_share(manifest)
    if share is None:
        yield "Not counted: the dataset was made by an earlier version."
        return
    yield (
        f"{counts['unknown_characters']:,} of the samples' {counts['characters']:,} characters "
        f"({share:.3%}) have no id of their own."
    )
    if found := counts.get("unknown_shares"):
        plot_counts(found, folder / "unknown.png", frozenset(found))
        yield "![Samples by the share of their characters that the tokenizer lacks](unknown.png)"
        yield "Samples by the share of their characters that the tokenizer lacks."


def _settings(manifest: dict[str, Any]) -> Iterator[str]:
    yield "## Settings"
    settings = dict(manifest["settings"])
    inputs = settings.pop("inputs", [])
    versions = settings.pop("input_versions", [])
    tokenizer = manifest["tokenizer"]
    rows = [["tokenizer", f"{tokenizer['vocab_size']:,} ids, sha256 {tokenizer['sha256'][:16]}"]]
    rows += [[name, escape(_value(value))] for name, value in settings.items()]
    yield _table(["setting", "value"], rows)
    yield f"## Inputs: {len(inputs):,}"
    if versions:
        added = ", then ".join(f"{number:,}" for number in versions)
        yield f"Files were added to the finished dataset: {added} inputs."
    more = len(inputs) - SHOWN_INPUTS
    lines = [f"- {escape(str(one))}" for one in inputs[:SHOWN_INPUTS]]
    yield "\n".join([*lines, *([f"- and {more:,} more, in the manifest"] if more > 0 else [])])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(header: list[str], rows: list[list[str]]) -> str:
    """All columns but the first to the right, where there are more than two."""
    return markdown_table(header, rows, "ll" if len(header) == 2 else "l" + "r" * len(header[1:]))
