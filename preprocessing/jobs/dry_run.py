"""Dry runs: find within seconds, without writing anything, what would make a job fail."""

import shutil
from collections.abc import Callable, Iterator
from itertools import islice

from pipeline.common.command_line import shown
from pipeline.common.files import check_folder
from pipeline.shards import encode_sample
from preprocessing.dataset.gap_sentence_samples import SHORT_SOURCE, TOO_FEW_SENTENCES
from preprocessing.dataset.statistics import Statistics
from preprocessing.jobs.job import Job, check_complete, check_output
from preprocessing.jobs.manifest import files_left_out, no_documents, remedies
from preprocessing.jobs.mpi import MpiWorld
from preprocessing.readers.entries import Entry, Item
from preprocessing.readers.inputs import Listing
from preprocessing.readers.splits import SHOWN

HEAD = 200  # entries of an input that are checked, at most
HEAD_BYTES = 2**22  # of the input from which the size of the shards is estimated
TAR_BLOCK = 512
BY_SETTINGS = {TOO_FEW_SENTENCES, SHORT_SOURCE}
"""Exclusions that are no fault of the data: the later records may be kept."""


def check(prepare: Callable[[Listing | None], Job], finish_only: bool = False) -> None:
    """Check the job that `prepare` describes; prints one line.

    Raises ValueError on bad input or output, as `run` does, on an input none of whose first entries
    can be used, and on a disk with less free space than half of the expected size.
    """
    if MpiWorld().rank:
        return
    job = prepare(None)
    check_output(job)
    if finish_only:
        check_complete(job)
    if job.evaluation_texts:
        job.evaluation_texts.check()
    missing = job.missing()
    firsts = {job.items[i].path: job.items[i] for i in reversed(missing)}.values()
    filled = [_check_head(job, item) for item in firsts]
    if len(missing) == len(job.items) and not any(filled):
        raise ValueError(f"{no_documents(job)}; check --input")
    free, expected = shutil.disk_usage(check_folder(job.output)).free, ""
    if missing and (needed := _expected_bytes(job, missing)):
        expected = f" (about {_size(needed)})"
        if job.destination is None and free < needed / 2:
            raise ValueError(
                f"--output {job.output}: {_size(free)} are free, about {_size(needed)} are needed; "
                "free some space or choose another"
            )
    for item in job.items:
        if names := job.left_out(item):
            first = [shown(name) for name in names[:SHOWN]]
            print(files_left_out(shown(item.path.name), len(names), first))
    print(
        f"ready: {job.name}, inputs: {len(job.inputs):,} "
        f"({_size(sum(item.size for item in job.items))}), shards to make: {len(missing):,} of "
        f"{len(job.items):,}{expected}, free: {_size(free)}"
    )


def _check_head(job: Job, item: Item) -> bool:
    """Whether the item has entries.

    Raises ValueError where none of the first HEAD gives a sample, for reasons in the data.
    """
    statistics = Statistics()
    for entry in islice(job.read(item), HEAD):
        if any(job.samples([entry], statistics)) or statistics.excluded.keys() & BY_SETTINGS:
            return True
    reasons = statistics.excluded
    if reasons:
        raise ValueError(
            f"{item}: none of its first {reasons.total()} records can be used "
            f"({_counted(statistics)}); see docs/data.md for the accepted formats"
            f"{remedies(reasons)}"
        )
    return False


def _expected_bytes(job: Job, missing: list[int]) -> float | None:
    """Bytes of the missing shards, extrapolated from the beginning of the first missing item.

    None where its reader does not report its position, or reads everything at once. Prints a line
    where a filter excludes all of that beginning.
    """
    item, position, statistics = job.items[missing[0]], 0, Statistics()

    def head() -> Iterator[Entry]:
        nonlocal position
        for entry in job.read(item):
            position = entry.position
            yield entry
            if entry.number >= HEAD or position > HEAD_BYTES:
                position = position if position < item.size else 0
                return
        position = item.size

    written = 0
    for _, sample in job.samples(job.screened(head()), statistics):
        payload = len(encode_sample(sample, job.id_dtype))
        written += TAR_BLOCK + -(-payload // TAR_BLOCK) * TAR_BLOCK
    if statistics.documents and not written:
        count, found = statistics.documents, _counted(statistics)
        print(f"{item}: none of its first {count} records is kept ({found})")
    return written / position * sum(job.items[i].size for i in missing) if position else None


def _counted(statistics: Statistics) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in statistics.excluded.most_common())


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
