"""What would end a preprocessing job, found out in seconds, without writing anything."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from pipeline.files import check_folder
from pipeline.shards import encode_sample
from preprocessing.corpora import Entry, Item
from preprocessing.ranks import Ranks
from preprocessing.statistics import Statistics
from preprocessing.workers import Job, check_complete, check_output, missing

HEAD = 200  # entries of an input that are looked at, at most
HEAD_BYTES = 2**22  # of the input from which samples are made
TAR_BLOCK = 512


def check(prepare: Callable[[], Job], finish_only: bool = False) -> None:
    """Check the job `prepare` describes as far as that needs no work; prints one line.

    Raises ValueError on bad input or output, as `workers.run` does, on an input of which no entry
    at its beginning can be used, and on a disk without room for half of what is expected.
    """
    if Ranks().rank:
        return
    job = prepare()
    check_output(job)
    if finish_only:
        check_complete(job)
    left = missing(job)
    for item in {job.items[i].path: job.items[i] for i in reversed(left)}.values():
        _check_head(job, item)
    free, room = shutil.disk_usage(check_folder(job.output)).free, ""
    if left and (needed := _expected_bytes(job, left)):
        room = f" (about {_size(needed)})"
        if free < needed / 2:
            raise ValueError(
                f"--output {job.output}: {_size(free)} are free, about {_size(needed)} are needed; "
                "make room or choose another"
            )
    print(
        f"ready: {job.name}, inputs: {len(job.inputs):,} "
        f"({_size(sum(item.size for item in job.items))}), shards to make: {len(left):,} of "
        f"{len(job.items):,}{room}, free: {_size(free)}"
    )


def _check_head(job: Job, item: Item) -> None:
    """Raise ValueError where the item has entries and none of the first ones can be used."""
    reasons: Counter[str] = Counter()
    for entry in islice(job.read(item), HEAD):
        if not isinstance(entry.record, str):
            return
        reasons[entry.record] += 1
    if reasons:
        found = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise ValueError(
            f"{item}: none of its first {reasons.total()} records can be used ({found}); see "
            "docs/data.md for the forms that are read"
        )


def _expected_bytes(job: Job, left: list[int]) -> float | None:
    """Bytes of the shards still to make, judged by samples of the first item's beginning.

    None where its reader does not tell how far it has read, or reads all of it at once.
    """
    item, position = job.items[left[0]], 0

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
    for _, sample in job.samples(head(), Statistics()):
        payload = len(encode_sample(sample, job.id_dtype))
        written += TAR_BLOCK + -(-payload // TAR_BLOCK) * TAR_BLOCK
    return written / position * sum(job.items[i].size for i in left) if position else None


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
