"""The stages of a job that find duplicates: keys of each item, sorted in runs, compared in parts.

Each stage writes one file per item, run or part, which is also its marker.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pipeline.common.files import when_visible
from preprocessing.jobs import duplicates
from preprocessing.jobs.duplicates import DuplicateKeys, KeyPlan
from preprocessing.jobs.job import DUPLICATE_FOLDERS, Job
from preprocessing.jobs.mpi import MpiWorld
from preprocessing.jobs.stage import (
    JobStage,
    MakeArray,
    ShowProgress,
    array_file,
    array_stage,
    item_sizes,
    naming,
    reported,
)
from preprocessing.readers.entries import Entry

KEY_BYTES = 16


def duplicate_stages(job: Job, world: MpiWorld) -> Iterator[JobStage]:
    """The stages, in their order; the last one's file says what does not stay.

    Per key, of which a document has one to be compared as a whole and one for each band, the
    working files take 32 bytes.
    """
    keys, runs, pairs, found = map(job.folder, DUPLICATE_FOLDERS)
    chosen = DuplicateKeys(job.deduplicate, job.near_duplicates)

    def stage(name: str, folder: Path, sizes: list[int], make: MakeArray) -> JobStage:
        return array_stage(name, folder, sizes, make, lambda: job.is_complete)

    def keys_of(item: int, progress: ShowProgress) -> np.ndarray:
        with naming(job.items[item]):
            entries = reported(job.read(job.items[item]), progress)
            return chosen.of(item, job.screened(entries))

    yield stage("looking for duplicates", keys, item_sizes(job, world), keys_of)
    plan = world.broadcast(_plan(job, keys) if world.rank == 0 else None)
    if plan is None:
        return

    def run_of(run: int, progress: ShowProgress) -> np.ndarray:
        items = range(*plan.runs[run])
        return duplicates.sorted_run([_load(keys, item, progress) for item in items])

    def pairs_of(part: int, progress: ShowProgress) -> np.ndarray:
        slices = []
        for run in range(len(plan.runs)):
            slices.append(duplicates.part_of(_mapped(runs, run), part, plan.parts))
            progress(0, 0)
        return duplicates.find_pairs(slices)

    def found_in_all(_: int, progress: ShowProgress) -> np.ndarray:
        return duplicates.find_duplicates(plan.parts, lambda part: _load(pairs, part, progress))

    share = KEY_BYTES * sum(plan.rows) // plan.parts
    yield stage("sorting", runs, [KEY_BYTES * rows for rows in plan.rows], run_of)
    yield stage("comparing", pairs, [share] * plan.parts, pairs_of)
    yield stage("joining", found, [0], found_in_all)


def without_duplicates(job: Job, item: int, entries: Iterable[Entry]) -> Iterator[Entry]:
    """An item's entries, with the reason in place of the record of one that does not stay."""
    reasons = duplicates.reasons(_mapped(job.folder(DUPLICATE_FOLDERS[-1]), 0), item)
    for entry in entries:
        reason = reasons.get(entry.number)
        yield entry._replace(record=reason) if reason else entry


def _plan(job: Job, keys: Path) -> KeyPlan | None:
    """None where another job has finished everything in the meantime."""
    try:
        return KeyPlan.of([_mapped(keys, item).shape[1] for item in range(len(job.items))])
    except FileNotFoundError:
        if job.is_complete:
            return None
        raise


def _load(folder: Path, number: int, progress: ShowProgress) -> np.ndarray:
    """A file's array; reports progress, in which rank 0 serves the others."""
    progress(0, 0)
    return np.load(when_visible(array_file(folder, number)))


def _mapped(folder: Path, number: int) -> np.ndarray:
    return np.load(when_visible(array_file(folder, number)), mmap_mode="r")
