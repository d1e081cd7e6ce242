"""What processes agree on, with the others' answers made up."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import World


@dataclass(frozen=True)
class WorldOfThree(World):
    """Rank 0 of three processes; what the other two answer is given."""

    others: list[Any] = field(default_factory=list)

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def rank_0(*others: Any) -> WorldOfThree:
    return WorldOfThree(0, 3, 0, torch.device("cpu"), list(others))


def test_neighbouring_ranks_form_a_group():
    world = World(5, 8, 1, torch.device("cpu")).in_sequences(4)
    assert (world.data_rank, world.data_size, world.sequence_rank) == (1, 2, 1)
    alone = world.in_sequences(1)
    assert (alone.data_rank, alone.data_size, alone.sequence_rank) == (5, 8, 0)


def missing() -> str:
    raise FileNotFoundError(2, "No such file or directory", "config.json")


def test_an_action_that_succeeds_everywhere_returns_here():
    assert rank_0(None, None).on_all(lambda: "here", ValueError) == "here"
    assert World(0, 1, 0, torch.device("cpu")).on_all(lambda: "alone", ValueError) == "alone"


def test_an_error_on_another_process_is_raised_here_with_its_place():
    others = ("rank 1 on b: ", "disk full"), None
    with pytest.raises(ValueError, match=r"^rank 1 on b: disk full$"):
        rank_0(*others).on_all(lambda: "here", ValueError)
    with pytest.raises(OSError, match=r"^run: rank 1 on b: disk full$"):
        rank_0(*others).on_all(
            lambda: "here", ValueError, failure=lambda problem: OSError(f"run: {problem}")
        )


def test_the_lines_of_several_processes_are_joined_and_equal_ones_given_once():
    line = "config.json: No such file or directory"
    some = ("rank 2 on b: ", line)
    expected = rf"^rank 0 on {host_name()}: {line}; rank 2 on b: {line}$"
    with pytest.raises(ValueError, match=expected):
        rank_0(None, some).on_all(missing, OSError)
    with pytest.raises(ValueError, match=rf"^{line}$"):  # everywhere alike: no place
        rank_0(("rank 1 on a: ", line), some).on_all(missing, OSError)


def test_an_error_of_another_type_is_not_caught():
    with pytest.raises(FileNotFoundError):
        rank_0(None, None).on_all(missing, ValueError)
