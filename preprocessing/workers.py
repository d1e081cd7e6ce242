"""A preprocessing job: work items, completion markers, the manifest.

One input file, or one block of a large one, is one item and one shard, numbered by its place among
all, so the output does not depend on the number of ranks or jobs. An item's marker, which holds its
statistics, is written after its shard; a restart does the items that have none. The manifest is
made from the markers, last. Every stage hands out its items in the same way, so several jobs may
fill one folder; each ends when the folder is complete.
"""

import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import shards
from pipeline.files import check_folder, create_json, replace_bytes, replace_json, when_visible
from pipeline.huggingface_tokenizer import AnyTokenizer
from pipeline.shards import Sample
from preprocessing import duplicates
from preprocessing.board import Board
from preprocessing.claims import Claims
from preprocessing.corpora import DUPLICATE, Entry, Item, Reader, describe_input
from preprocessing.ranks import Make, Ranks, follow, lead
from preprocessing.statistics import Statistics, length_summary

ITEMS = ".items"
SETTINGS = "settings.json"
REPORT = "report.png"


@dataclass(frozen=True)
class Job:
    """What a run makes: a dataset of `kind` in `output`, one shard from each item.

    `settings` is everything the output depends on beside the inputs and the tokenizer. `read` gives
    the entries of an item; `samples` turns them into (key, sample) pairs, keys unique in the item,
    and counts into the Statistics it is given. `expected_samples` is the paper's count, if it has
    one.
    """

    output: Path
    kind: str
    split: str
    tokenizer: AnyTokenizer
    settings: dict[str, Any]
    items: Sequence[Item]
    read: Reader
    samples: Callable[[Iterable[Entry], Statistics], Iterator[tuple[str, Sample]]]
    deduplicate: bool = False
    expected_samples: int | None = None

    @property
    def name(self) -> str:
        """The dataset's name: that of its folder."""
        return self.output.resolve().name

    @property
    def id_dtype(self) -> str:
        """The narrowest id type that holds the tokenizer's vocabulary."""
        return shards.id_dtype_for(self.tokenizer.vocab_size)

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that decides the output's bytes; a folder holds the results of one description."""
        return {
            "format_version": shards.FORMAT_VERSION,
            "kind": self.kind,
            "name": self.name,
            "split": self.split,
            "tokenizer": self.tokenizer.sha256,
            **self.settings,
            **({"deduplicate": True} if self.deduplicate else {}),
            "inputs": list(self.inputs.values()),
        }

    @cached_property
    def inputs(self) -> dict[Path, str]:
        """What tells each input file from another."""
        return {path: describe_input(path) for path in dict.fromkeys(i.path for i in self.items)}

    @cached_property
    def fingerprints(self) -> list[str]:
        """Of each item, a digest of all that decides its shard: not the other inputs, unless their
        texts are compared with its own."""
        settings = {**self.description}
        if not self.deduplicate:
            del settings["inputs"]
        return [
            hashlib.sha256(
                json.dumps([settings, number, self.inputs[item.path], item.start]).encode()
            ).hexdigest()
            for number, item in enumerate(self.items)
        ]

    def folder(self, name: str = "") -> Path:
        """Where a stage keeps its markers and claims."""
        return self.output / ITEMS / name


@dataclass(frozen=True)
class Stage:
    """Items to make, all before the next stage begins; `sizes` are what they read, in bytes."""

    name: str
    folder: Path
    sizes: Sequence[int]
    is_done: Callable[[int], bool]
    make: Make


def run(prepare: Callable[[], Job], finish_only: bool = False, report: bool = False) -> None:
    """Make the dataset `prepare` describes, or what is missing of it, on all ranks.

    `finish_only` makes no shard: it checks that all are there and writes the manifest. `report`
    draws the manifest's lengths as a picture. Raises ValueError on bad input, on a folder that
    holds results of other settings, and where no document is kept.
    """
    ranks = Ranks()
    if ranks.rank == 0:  # it looks at everything first, so that a fault is reported once
        job = prepare()
        _open_folder(job)
        if finish_only:
            check_complete(job)
    ranks.broadcast(None)
    if ranks.rank:
        job = prepare()
    for stage in _stages(job, ranks):
        stage.folder.mkdir(parents=True, exist_ok=True)
        if ranks.rank:
            follow(ranks, stage.make)
            continue
        title = f"{job.name}, {stage.name}"
        with (
            Claims(stage.folder, len(stage.sizes), stage.is_done) as claims,
            Board(title, stage.sizes, claims) as board,
        ):
            lead(ranks, claims, stage.make, board.show)
    if ranks.rank == 0:
        manifest = shards.Dataset(job.output).manifest
        if report:
            from preprocessing.figures import save_report  # matplotlib, which takes a second

            save_report(manifest, job.output / REPORT)
        print(_summary(job, manifest))


def _stages(job: Job, ranks: Ranks) -> Iterator[Stage]:
    """The stages that a job goes through; the choice is rank 0's."""
    sizes = [item.size for item in job.items]
    if ranks.broadcast(ranks.rank == 0 and job.deduplicate and bool(missing(job))):
        folder = job.folder("hashes")
        yield Stage(
            "looking for duplicates",
            folder,
            sizes,
            lambda item: _array(folder, item).is_file() or _is_finished(job),
            lambda item, progress: duplicates.save(
                _array(folder, item),
                duplicates.hashes(_watched(job.read(job.items[item]), progress)),
            ),
        )
        marker = job.folder("duplicates") / "found.json"
        yield Stage(
            "comparing",
            marker.parent,
            [0],
            lambda _: marker.is_file() or _is_finished(job),
            lambda *_: _find_duplicates(job, marker),
        )
    yield Stage(
        "samples",
        job.folder(),
        sizes,
        lambda item: _is_done(job, item),
        lambda item, progress: _make(job, item, progress),
    )
    yield Stage(
        "manifest",
        job.folder("manifest"),
        [0],
        lambda _: _is_finished(job),
        lambda *_: _finish(job),
    )


def check_output(job: Job) -> None:
    """Raise ValueError unless the output folder can be made, or what it holds is this job's."""
    check_folder(job.output)
    path = job.folder() / SETTINGS
    if not path.is_file():
        if (job.output / shards.MANIFEST).exists():
            raise ValueError(f"{job.output} already holds a dataset; choose another --output")
        return
    before = json.loads(path.read_bytes())
    differences = _differences(before, job.description)
    if differences and not _only_unused_inputs(job, before, differences):
        shown = "; ".join(list(differences.values())[:5])
        raise ValueError(
            f"{job.output} holds results of other settings: {shown}; "
            "choose another --output or delete it"
        )


def _open_folder(job: Job) -> None:
    """Make the output folder, or go on with what it holds."""
    check_output(job)
    path = job.folder() / SETTINGS
    path.parent.mkdir(parents=True, exist_ok=True)
    if not create_json(path, job.description):
        check_output(job)  # another job's, perhaps, that began just now
        if _differences(json.loads(path.read_bytes()), job.description):
            replace_json(path, job.description)
    if _is_finished(job) and missing(job):  # a shard was lost since: no longer complete
        (job.output / shards.MANIFEST).unlink()


def _differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """What two descriptions disagree on, input by input: {name: how}."""
    flat = [
        {**description, **{f"input {i}": text for i, text in enumerate(description["inputs"])}}
        for description in (before, now)
    ]
    return {
        name: f"{name} was {flat[0].get(name, 'not set')}, is {flat[1].get(name, 'not set')}"
        for name in {**flat[0], **flat[1]}
        if name != "inputs" and flat[0].get(name) != flat[1].get(name)
    }


def _only_unused_inputs(job: Job, before: dict[str, Any], names: Iterable[str]) -> bool:
    """Whether only inputs differ of which nothing was made yet, under the names they had: such as
    a damaged file that was fetched again."""
    if job.deduplicate or len(before["inputs"]) != len(job.inputs):
        return False
    made = {item.path for i, item in enumerate(job.items) if _marker(job, i).is_file()}
    for number, (path, old) in enumerate(zip(job.inputs, before["inputs"], strict=True)):
        if f"input {number}" in names and (path in made or old.split(", ")[0] != path.name):
            return False
    return all(name.startswith("input ") for name in names)


def check_complete(job: Job) -> None:
    """Raise ValueError unless every item is made."""
    if left := missing(job):
        raise ValueError(
            f"{len(left)} of {len(job.items)} items are not made yet, the first from "
            f"{job.items[left[0]]}; the same command without --finish makes them"
        )


def _watched(entries: Iterable[Entry], progress: Callable[[int, int], None]) -> Iterator[Entry]:
    """The entries; after each was used, `progress` is told."""
    for entry in entries:
        yield entry
        progress(entry.number, entry.position)


def _find_duplicates(job: Job, marker: Path) -> None:
    """Write every item's repeated entries, then the marker."""
    count = len(job.items)
    paths = [_array(job.folder("hashes"), item) for item in range(count)]
    rows = [np.load(when_visible(path), mmap_mode="r") for path in paths]
    for item, numbers in enumerate(duplicates.find_duplicates(rows)):
        duplicates.save(_array(marker.parent, item), numbers)
    replace_json(marker, {"items": count})


def _without_duplicates(job: Job, item: int, entries: Iterable[Entry]) -> Iterator[Entry]:
    path = when_visible(_array(job.folder("duplicates"), item))
    repeated = set(np.load(path).tolist())
    for entry in entries:
        yield entry._replace(record=DUPLICATE) if entry.number in repeated else entry


def _make(job: Job, item: int, progress: Callable[[int, int], None]) -> None:
    """Write one item's shard, then its marker."""
    statistics = Statistics()
    entries: Iterator[Entry] = _watched(job.read(job.items[item]), progress)
    if job.deduplicate:
        entries = _without_duplicates(job, item, entries)
    keyed = ((f"{item:05d}-{key}", sample) for key, sample in job.samples(entries, statistics))
    with few_collections():
        entry = shards.write_shard(job.output / f"{job.name}-{item:05d}-00000", keyed, job.id_dtype)
    marker = {
        "fingerprint": job.fingerprints[item],
        "shard": entry,
        "statistics": statistics.to_json(),
    }
    replace_json(_marker(job, item), marker)


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for reference cycles rarely: samples are many objects that form none, and
    looking at them after every 700 costs 8 % of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _marker(job: Job, item: int) -> Path:
    return job.folder() / f"{item:05d}.json"


def _array(folder: Path, item: int) -> Path:
    return folder / f"{item:05d}.npy"


def _is_done(job: Job, item: int) -> bool:
    path = _marker(job, item)
    if not path.is_file():
        return False
    marker = json.loads(path.read_bytes())
    if marker["fingerprint"] != job.fingerprints[item]:
        raise ValueError(f"{path} belongs to other settings; choose another --output")
    shard = marker["shard"]
    tar, index = (job.output / f"{shard['name']}{suffix}" for suffix in (".tar", ".npy"))
    return tar.is_file() and index.is_file() and tar.stat().st_size == shard["bytes"]


def missing(job: Job) -> list[int]:
    """The items that are not made yet."""
    return [item for item in range(len(job.items)) if not _is_done(job, item)]


def _is_finished(job: Job) -> bool:
    return (job.output / shards.MANIFEST).is_file()


def _finish(job: Job) -> None:
    """Write the manifest from every item's marker, when nothing else is left in the folder."""
    statistics = Statistics()
    entries = []
    for item in range(len(job.items)):
        marker = json.loads(when_visible(_marker(job, item)).read_bytes())
        entries.append(marker["shard"])
        statistics.add(marker["statistics"])
    if statistics.documents == 0:
        files = len(job.description["inputs"])
        raise ValueError(f"{files} input files hold no documents at all")
    if statistics.kept == 0:
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(statistics.excluded.items()))
        raise ValueError(
            f"no document could be used ({reasons}); see docs/data.md for the forms that are read, "
            f"then delete {job.output} or choose another --output"
        )
    _sweep(job)
    replace_bytes(job.output / job.tokenizer.file_name, job.tokenizer.path.read_bytes())
    manifest = {
        "format_version": shards.FORMAT_VERSION,
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
            "deduplicate": job.deduplicate,
            "inputs": job.description["inputs"],
        },
        "shards": entries,
        "counts": {
            **statistics.counts(),
            **({"expected": job.expected_samples} if job.expected_samples else {}),
        },
        "lengths": {
            "source": length_summary(statistics.source_lengths),
            "target": length_summary(statistics.target_lengths),
        },
    }
    shards.write_manifest(job.output, manifest)


def _sweep(job: Job) -> None:
    """Remove what killed processes left, and what only the making needed."""
    for pattern in (".*.tmp", f"{ITEMS}/.*.tmp", f"{ITEMS}/*.claim-*"):
        for leftover in job.output.glob(pattern):
            leftover.unlink(missing_ok=True)
    for name in ("hashes", "duplicates"):
        shutil.rmtree(job.folder(name), ignore_errors=True)


def _summary(job: Job, manifest: dict[str, Any]) -> str:
    """What became of the documents, in a line or two."""
    counts = manifest["counts"]
    excluded = ", ".join(f"{reason} {count}" for reason, count in counts["excluded"].items())
    text = (
        f"{job.output}: {counts['kept']} samples of {counts['documents']} documents "
        f"in {len(manifest['shards'])} shards" + (f"; left out: {excluded}" if excluded else "")
    )
    if hidden := counts.get("without_references"):
        text += f"; {hidden} have no reference and cannot be scored"
    if job.expected_samples is None:
        return text
    if counts["kept"] == job.expected_samples:
        return f"{text}\n{job.expected_samples:,} samples, as in the paper's table"
    return (
        f"{text}\nthe paper's table counts {job.expected_samples:,} samples, this folder holds "
        f"{counts['kept']:,}"
    )
