"""A finished job's manifest, made from the markers of its items, and its closing line."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.common.command_line import shown
from pipeline.common.files import when_visible
from pipeline.common.stores import Location
from pipeline.manifest import FORMAT_VERSION, unknown_share
from preprocessing.dataset.samples import UNKNOWN
from preprocessing.dataset.statistics import Statistics, length_summary
from preprocessing.jobs.job import Job
from preprocessing.readers.entries import (
    BAD_ENCODING,
    EMPTY,
    MALFORMED,
    NO_ID,
    NO_SUMMARY,
    NO_TEXT,
    NOT_JSON,
    RECODE,
)
from preprocessing.readers.splits import SHOWN

FORMAT_FAULTS = {BAD_ENCODING, NOT_JSON, MALFORMED, NO_TEXT, EMPTY, NO_ID, NO_SUMMARY}
REMEDIES = {
    BAD_ENCODING: RECODE,
    UNKNOWN: "take a tokenizer that has the script, or raise --max_unknown_share",
}


def build_manifest(job: Job) -> dict[str, Any]:
    """The manifest of a job all of whose items are made.

    Raises ValueError where the inputs hold no documents or none is kept.
    """
    statistics = Statistics()
    entries, left_out = [], {}
    documents: Counter[Location] = Counter()
    for item in range(len(job.items)):
        marker = json.loads(when_visible(job.marker(item)).read_bytes())
        entries.append(marker["shard"])
        statistics.add(marker["statistics"])
        documents[job.items[item].path] += marker["statistics"]["documents"]
        if names := marker.get("left_out"):
            left_out[shown(job.items[item].path.name)] = {
                "files": len(names),
                "first": names[:SHOWN],
            }
    _check_any_kept(job, statistics)
    empty = [shown(path.name) for path in documents if not documents[path]]
    return {
        "format_version": FORMAT_VERSION,
        "kind": job.kind,
        "name": job.name,
        "split": job.split,
        "tokenizer": {
            "file": job.tokenizer.file_name,
            "sha256": job.tokenizer.sha256,
            "vocab_size": job.tokenizer.vocab_size,
        },
        "id_dtype": job.id_dtype,
        "settings": {
            **job.settings,
            "deduplicate": False,
            **job.comparison,
            **{
                name: job.description[name]
                for name in ("input_versions", "inputs")
                if name in job.description
            },
        },
        "shards": entries,
        "counts": {
            **statistics.counts(),
            **({"expected": job.expected_samples} if job.expected_samples else {}),
        },
        "lengths": {
            side: length_summary(lengths, job.settings.get(f"{side}_length", 0))
            for side, lengths in (
                ("source", statistics.source_lengths),
                ("target", statistics.target_lengths),
            )
        },
        **({"left_out_files": left_out} if left_out else {}),
        **({"empty_inputs": {"files": len(empty), "first": empty[:SHOWN]}} if empty else {}),
    }


def _check_any_kept(job: Job, statistics: Statistics) -> None:
    if statistics.documents == 0:
        raise ValueError(f"{no_documents(job)}; check --input. {_begin_again(job)}")
    if statistics.kept == 0:
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(statistics.excluded.items()))
        faults = FORMAT_FAULTS & statistics.excluded.keys()  # and not only filters
        formats = "; docs/data.md lists the accepted formats" if faults else ""
        raise ValueError(
            f"no document could be used ({reasons}){formats}{remedies(statistics.excluded)}. "
            f"{_begin_again(job)} before the next attempt"
        )


def _begin_again(job: Job) -> str:
    """How to give up what a job made; its folder may hold other files."""
    if job.uploads:
        return f"Choose another --output and --work_dir, or remove {job.output}"
    return f"Choose another --output, or remove {job.folder()} and {job.output / job.name}-*"


def no_documents(job: Job) -> str:
    """Says that the inputs are empty."""
    return f"the {len(job.description['inputs'])} input files hold no documents"


def remedies(reasons: Iterable[str]) -> str:
    """What to do about reasons for exclusion, each after a semicolon."""
    return "".join(f"; {REMEDIES[reason]}" for reason in reasons if reason in REMEDIES)


def files_left_out(container: str, count: int, first: Sequence[str]) -> str:
    """How many files of a folder or an archive were not read, and the names of the first."""
    return f"left out of {container}: {_named(count, first)}"


def _named(count: int, first: Sequence[str]) -> str:
    more = ", ..." if count > len(first) else ""
    return f"{count:,} ({', '.join(first)}{more})"


def summary(job: Job, manifest: dict[str, Any]) -> str:
    """Samples, documents or pairs, shards, exclusions, and the paper's count where it has one."""
    counts = manifest["counts"]
    read = "pairs" if job.kind == "summarisation" else "documents"
    excluded = ", ".join(f"{reason} {count}" for reason, count in counts["excluded"].items())
    text = (
        f"{shown(job.place)}: {counts['kept']} samples from {counts['documents']} {read} "
        f"in {len(manifest['shards'])} shards" + (f"; excluded: {excluded}" if excluded else "")
    )
    if unknown := counts["unknown_characters"]:
        share = unknown_share(manifest)
        text += f"; the tokenizer lacks {share:.2%} of their characters ({unknown:,})"
    if hidden := counts.get("without_references"):
        text += f"; {hidden} have no reference and cannot be scored"
    for name, files in manifest.get("left_out_files", {}).items():
        text += f"; {files_left_out(name, files['files'], files['first'])}"
    if empty := manifest.get("empty_inputs"):
        text += f"; input files without documents: {_named(empty['files'], empty['first'])}"
    if job.expected_samples is None:
        return text
    if counts["kept"] == job.expected_samples:
        return f"{text}\n{job.expected_samples:,} samples, as in the paper's table"
    return (
        f"{text}\nthe paper's table lists {job.expected_samples:,} samples, this folder holds "
        f"{counts['kept']:,}"
    )
