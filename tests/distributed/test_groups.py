"""What the processes that share documents do where one of them fails, or has what all need."""

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pipeline.distributed.sequence_parallel import ends_together, in_sequences
from pipeline.distributed.world import World
from pipeline.model.sequence import Unconnected

CPU = torch.device("cpu")


def end_of(error: Exception, size: int) -> tuple[int, str]:
    """The status and standard error of a process where work shared by `size` of them fails."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(send, 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        try:
            with ends_together(Unconnected(size)):
                raise error
        finally:  # whatever did not end it: no child may go on with the tests
            os._exit(7)
    os.close(send)
    with os.fdopen(receive) as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def test_a_process_that_fails_ends_and_says_why():
    status, said = end_of(RuntimeError("at a loss"), 2)
    assert status == 1 and "Traceback" in said and "RuntimeError: at a loss" in said
    assert end_of(OSError(28, "No space left", "out/x"), 2) == (1, "error: out/x: No space left\n")
    assert end_of(torch.OutOfMemoryError("out of memory"), 2) == (1, "error: out of memory\n")


def test_what_all_meet_or_one_process_alone_is_raised():
    assert end_of(ValueError("not finite"), 2) == (7, "")
    assert end_of(RuntimeError("at a loss"), 1) == (7, "")


@dataclass(frozen=True)
class Told(World):
    """Rank 0 or 1 of two; `said` is what rank 0 tells the other."""

    said: list[Any] = field(default_factory=list)

    def broadcast(self, value: Any) -> Any:
        if self.is_main:
            self.said.append(value)
        return self.said[-1]


def test_the_first_process_reads_for_all():
    said: list[Any] = []
    first, second = (Told(rank, 2, rank, CPU, said=said) for rank in (0, 1))
    assert first.from_main(lambda: "text", OSError) == "text"
    assert second.from_main(lambda: pytest.fail("reads too"), OSError) == "text"

    def missing() -> str:
        raise FileNotFoundError(2, "No such file or directory", "book.txt")

    for world in (first, second):
        with pytest.raises(ValueError, match=r"^book.txt: No such file or directory$"):
            world.from_main(missing, OSError)
    with pytest.raises(FileNotFoundError):
        World(0, 1, 0, CPU).from_main(missing, OSError)


@pytest.mark.parametrize(
    ("processes", "size", "several", "fits"),
    [(4, 2, True, True), (4, 2, False, False), (2, 2, False, True), (3, 2, True, False),
     (1, 1, False, True), (3, 1, False, True)],
)  # fmt: skip
def test_groups_are_full(processes, size, several, fits):
    world = World(0, processes, 0, CPU)
    if fits:
        assert in_sequences(world, size, "program", several) == world.in_sequences(size)
        return
    with pytest.raises(ValueError, match=rf"there are {processes}; start them with `deepspeed"):
        in_sequences(world, size, "program", several)
