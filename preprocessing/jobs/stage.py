"""A stage of a job, and what its items have in common."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.common.files import flush_to_disk, temporary_name
from preprocessing.jobs.job import Job
from preprocessing.jobs.mpi import Make, MpiWorld
from preprocessing.readers.entries import Entry, InputError, Item

ShowProgress = Callable[[int, int], None]
MakeArray = Callable[[int, ShowProgress], np.ndarray]


@dataclass(frozen=True)
class JobStage:
    """Items to make before the next stage begins; `sizes` are what they read, in bytes."""

    name: str
    folder: Path
    sizes: Sequence[int]
    is_done: Callable[[int], bool]
    make: Make


def array_stage(
    name: str, folder: Path, sizes: Sequence[int], make: MakeArray, is_over: Callable[[], bool]
) -> JobStage:
    """A stage that makes a file with an array of each item; none where `is_over()`."""
    return JobStage(
        name,
        folder,
        sizes,
        lambda item: array_file(folder, item).is_file() or is_over(),
        lambda item, progress: save(array_file(folder, item), make(item, progress)),
    )


def item_sizes(job: Job, world: MpiWorld) -> list[int]:
    """What each item reads, in bytes; only rank 0 needs it, and asks for the files' sizes."""
    return [item.size for item in job.items] if world.rank == 0 else []


def array_file(folder: Path, item: int) -> Path:
    """The file of an item of an array stage."""
    return folder / f"{item:05d}.npy"


def save(path: Path, array: np.ndarray) -> None:
    """Write an array under a temporary name, then rename."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            np.save(file, array)
            flush_to_disk(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def reported(entries: Iterable[Entry], progress: ShowProgress) -> Iterator[Entry]:
    """The entries; `progress` is called after each was used."""
    for entry in entries:
        yield entry
        progress(entry.number, entry.position)


@contextmanager
def naming(item: Item) -> Iterator[None]:
    """Name the item in an error that stops the job while its records are used."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{item}, {error}") from error
    except OSError:  # of the output
        raise
    except Exception as error:
        raise RuntimeError(f"{item}, {error or type(error).__name__}") from error
