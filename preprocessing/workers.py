"""The processes of a preprocessing run: ranks, work items, completion markers, the manifest.

One input file is one item and one shard, numbered by its place among the inputs, so the output
does not depend on the number of ranks. An item's marker is written after its shard; a restart does
the items that have none. The manifest is made from the markers, last.
"""

import argparse
import hashlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import shards
from pipeline.files import replace_bytes, replace_json
from pipeline.progress import Progress
from pipeline.shards import Sample
from pipeline.tokenizer import EOS_ID, FILE_NAME, Tokenizer
from preprocessing.corpora import EMPTY

ITEMS = ".items"
USER_ERROR = 2


class Ranks:
    """This process's place among all; alone, rank 0 of 1, and mpi4py is not loaded.

    Raises ValueError where several tasks were started but do not see each other through MPI, as
    each would then do everything.
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._world: Any = None
        names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]  # as mpirun says it
        if "SLURM_STEP_ID" in os.environ:
            names.append("SLURM_NTASKS")
        started = max(int(os.environ.get(name, 1)) for name in names)
        if started == 1:
            return
        world = _mpi_world()
        if world is not None:
            self._world, self.rank, self.size = world, world.Get_rank(), world.Get_size()
        if self.size == 1:
            raise ValueError(
                f"{started} tasks were started, but MPI joins only 1; start them with "
                f"`mpirun --bind-to none -n {started} python -m preprocessing...` inside the job"
            )

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self._world is not None:
            self._world.Barrier()

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return value if self._world is None else self._world.bcast(value)


def add_common_options(
    parser: argparse.ArgumentParser, source_length: int, target_length: int
) -> None:
    """The options of every command that makes shards, with these default lengths (in ids)."""
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="GLOB", help="input files; one makes one shard"
    )
    parser.add_argument(
        "--tokenizer", required=True, help="SentencePiece model, or a folder with tokenizer.model"
    )
    parser.add_argument(
        "--output", required=True, help="dataset folder to fill; its name names the shards"
    )
    parser.add_argument("--split", default="train", help="which split this is, for the manifest")
    parser.add_argument(
        "--source_length", type=int, default=source_length, help="longest source, in ids with EOS"
    )
    parser.add_argument(
        "--target_length", type=int, default=target_length, help="longest target, in ids with EOS"
    )


def check_lengths(options: argparse.Namespace) -> None:
    """Raise ValueError unless source and target hold at least one id and EOS."""
    for name in ("source_length", "target_length"):
        if getattr(options, name) < 2:
            raise ValueError(
                f"--{name} is {getattr(options, name)}, expected at least 2: one id and EOS"
            )


def run_command(main: Callable[[], None]) -> None:
    """Run a command line: what the user can put right becomes one line and exit status 2."""
    try:
        main()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        status = USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr, flush=True)
        status = 130
    except Exception:
        traceback.print_exc()
        status = 1
    else:
        return
    world = _mpi_world() if "mpi4py.MPI" in sys.modules else None
    if world is not None and world.Get_size() > 1:
        world.Abort(status)  # the other ranks would wait for this one for ever
    sys.exit(status)


def _mpi_world() -> Any:
    """mpi4py's COMM_WORLD, or None without a working MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD


@dataclass
class Statistics:
    """Counts of one item, or of many added up. Lengths are in ids, EOS included, untruncated."""

    documents: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    truncated_sources: int = 0
    truncated_targets: int = 0
    source_lengths: Counter[int] = field(default_factory=Counter)
    target_lengths: Counter[int] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the keys of counters are sorted."""
        return {
            name: {str(key): value[key] for key in sorted(value)}
            if isinstance(value, Counter)
            else value
            for name, value in vars(self).items()
        }

    def add(self, stored: dict[str, Any]) -> None:
        """Add what `to_json` gave for another item."""
        self.documents += stored["documents"]
        self.excluded.update(stored["excluded"])
        self.truncated_sources += stored["truncated_sources"]
        self.truncated_targets += stored["truncated_targets"]
        for mine, name in (
            (self.source_lengths, "source_lengths"),
            (self.target_lengths, "target_lengths"),
        ):
            mine.update({int(length): count for length, count in stored[name].items()})

    @property
    def kept(self) -> int:
        """Documents that became samples."""
        return self.source_lengths.total()


@dataclass(frozen=True)
class Job:
    """What a run makes: a dataset of `kind` in `output`, one shard from each input.

    `settings` is everything the output depends on beside the inputs and the tokenizer. `samples`
    turns an input into (line number, sample) pairs and counts into the Statistics it is given.
    """

    output: Path
    kind: str
    split: str
    tokenizer: Tokenizer
    settings: dict[str, Any]
    inputs: list[Path]
    samples: Callable[[Path, Statistics], Iterator[tuple[int, Sample]]]

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
            "inputs": [f"{path.name}, {path.stat().st_size} bytes" for path in self.inputs],
        }

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the description."""
        return hashlib.sha256(json.dumps(self.description).encode()).hexdigest()


def run(prepare: Callable[[], Job]) -> None:
    """Make the dataset `prepare` describes, or what is missing of it, on all ranks.

    Raises ValueError on bad input, on a folder that holds results of other settings, and where no
    document is kept.
    """
    ranks = Ranks()
    missing: list[int] = []
    if ranks.rank == 0:  # it looks at everything first, so that a fault is reported once
        job = prepare()
        missing = _claim(job)
    missing = ranks.broadcast(missing)
    if ranks.rank:
        job = prepare()
    mine = missing[ranks.rank :: ranks.size]
    bar = None
    if ranks.rank == 0:
        share = f", rank 0 of {ranks.size}" if ranks.size > 1 else ""
        bar = Progress(f"{job.name}{share}", None, "documents")
    for position, item in enumerate(mine, start=1):
        _make(job, item, bar, f"file {position} of {len(mine)}")
    if bar is not None:
        bar.close()
    ranks.barrier()
    if ranks.rank == 0:
        _finish(job)


def _claim(job: Job) -> list[int]:
    """Make the output folder, or make sure that what it holds is this job's; the missing items."""
    path = job.output / ITEMS / "settings.json"
    if path.is_file():
        differences = _differences(json.loads(path.read_bytes()), job.description)
        if differences:
            raise ValueError(
                f"{job.output} holds results of other settings: {'; '.join(differences[:5])}; "
                "choose another --output or delete it"
            )
    elif (job.output / shards.MANIFEST).exists():
        raise ValueError(f"{job.output} already holds a dataset; choose another --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, job.description)
    return [item for item in range(len(job.inputs)) if not _is_done(job, item)]


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What two descriptions disagree on, input by input."""
    flat = [
        {**description, **{f"input {i}": text for i, text in enumerate(description["inputs"])}}
        for description in (before, now)
    ]
    return [
        f"{name} was {flat[0].get(name)}, is {flat[1].get(name)}"
        for name in {**flat[0], **flat[1]}
        if name != "inputs" and flat[0].get(name) != flat[1].get(name)
    ]


def _make(job: Job, item: int, bar: Progress | None, note: str) -> None:
    """Write one item's shard, then its marker."""
    statistics = Statistics()

    def keyed() -> Iterator[tuple[str, Sample]]:
        shown = 0
        for line, sample in job.samples(job.inputs[item], statistics):
            yield f"{item:05d}-{line:08d}", sample
            if bar is not None:
                bar.update(statistics.documents - shown, note)
                shown = statistics.documents
        if bar is not None:
            bar.update(statistics.documents - shown, note)

    entry = shards.write_shard(job.output / f"{job.name}-{item:05d}-00000", keyed(), job.id_dtype)
    marker = {
        "description": job.fingerprint,
        "shard": entry,
        "statistics": statistics.to_json(),
    }
    replace_json(_marker(job, item), marker)


def _marker(job: Job, item: int) -> Path:
    return job.output / ITEMS / f"{item:05d}.json"


def _is_done(job: Job, item: int) -> bool:
    path = _marker(job, item)
    if not path.is_file():
        return False
    marker = json.loads(path.read_bytes())
    if marker["description"] != job.fingerprint:
        raise ValueError(f"{path} belongs to other settings; choose another --output")
    shard = marker["shard"]
    tar, index = (job.output / f"{shard['name']}{suffix}" for suffix in (".tar", ".npy"))
    return tar.is_file() and index.is_file() and tar.stat().st_size == shard["bytes"]


def _finish(job: Job) -> None:
    """Write the manifest from every item's marker."""
    statistics = Statistics()
    entries = []
    for item in range(len(job.inputs)):
        marker = json.loads(_marker(job, item).read_bytes())
        entries.append(marker["shard"])
        statistics.add(marker["statistics"])
    if statistics.documents == 0:
        raise ValueError(f"the {len(job.inputs)} input files hold no documents at all")
    counts: dict[str, Any] = {
        "documents": statistics.documents,
        "kept": statistics.kept,
        "excluded": dict(sorted(statistics.excluded.items())),
        "truncated_sources": statistics.truncated_sources,
        "truncated_targets": statistics.truncated_targets,
    }
    if statistics.kept == 0:
        raise ValueError(f"no document could be used: {counts['excluded']}")
    for leftover in job.output.rglob(".*.tmp"):  # of runs that were killed
        leftover.unlink(missing_ok=True)
    replace_bytes(job.output / FILE_NAME, job.tokenizer.path.read_bytes())
    manifest = {
        "format_version": shards.FORMAT_VERSION,
        "kind": job.kind,
        "name": job.name,
        "split": job.split,
        "tokenizer": {
            "file": FILE_NAME,
            "sha256": job.tokenizer.sha256,
            "vocab_size": job.tokenizer.vocab_size,
        },
        "id_dtype": job.id_dtype,
        "settings": {**job.settings, "inputs": job.description["inputs"]},
        "shards": entries,
        "counts": counts,
        "lengths": {
            "source": length_summary(statistics.source_lengths),
            "target": length_summary(statistics.target_lengths),
        },
    }
    shards.write_manifest(job.output, manifest)
    excluded = ", ".join(f"{reason} {count}" for reason, count in counts["excluded"].items())
    print(
        f"{job.output}: {statistics.kept} samples of {statistics.documents} documents "
        f"in {len(entries)} shards" + (f"; left out: {excluded}" if excluded else "")
    )


def length_summary(lengths: Counter[int]) -> dict[str, float]:
    """Mean, median, 90th percentile and maximum of {length: how often}, in ids."""
    values = np.array(sorted(lengths))
    counts = np.array([lengths[int(value)] for value in values])
    ends = counts.cumsum()

    def quantile(share: float) -> int:
        return int(values[np.searchsorted(ends, share * ends[-1])])

    return {
        "mean": round(float((values * counts).sum() / ends[-1]), 2),
        "median": quantile(0.5),
        "p90": quantile(0.9),
        "max": int(values[-1]),
    }


def make_sample(
    source: list[list[int]],
    target: list[list[int]],
    metadata: dict[str, Any],
    source_length: int,
    target_length: int,
    statistics: Statistics,
) -> Sample | None:
    """Join sentences (each a list of ids), cut to the lengths (in ids) less one, and end in EOS.

    Counts into `statistics`; returns None, counted as empty, if either side has no ids at all.
    """
    joined = [[i for ids in sentences for i in ids] for sentences in (source, target)]
    if not all(joined):
        statistics.excluded[EMPTY] += 1
        return None
    statistics.source_lengths[len(joined[0]) + 1] += 1
    statistics.target_lengths[len(joined[1]) + 1] += 1
    statistics.truncated_sources += len(joined[0]) >= source_length
    statistics.truncated_targets += len(joined[1]) >= target_length
    ends = np.minimum(np.cumsum([len(ids) for ids in target]), target_length - 1)
    return Sample(
        np.array([*joined[0][: source_length - 1], EOS_ID]),
        np.array([*joined[1][: target_length - 1], EOS_ID]),
        {**metadata, "target_sentence_ends": sorted({int(end) for end in ends if end})},
    )
