"""A stage of a job, and what its items have in common."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from preprocessing.jobs.mpi import Make
from preprocessing.readers.entries import Entry, InputError, Item


@dataclass(frozen=True)
class JobStage:
    """Items to make before the next stage begins; `sizes` are what they read, in bytes."""

    name: str
    folder: Path
    sizes: Sequence[int]
    is_done: Callable[[int], bool]
    make: Make


def reported(entries: Iterable[Entry], progress: Callable[[int, int], None]) -> Iterator[Entry]:
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
