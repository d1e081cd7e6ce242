"""The rendezvous of processes, here threads, with and without missing ones."""

import socket
import threading
import time
from functools import partial

import pytest

from pipeline import train
from pipeline.distributed import world as distributed
from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.rendezvous import JoinFailed, join, missing
from pipeline.distributed.world import free_port


def join_all(ranks: list[int], size: int, timeout: float) -> dict[int, object]:
    """What `join` returned or raised in each of the `ranks` that join."""
    port, results = free_port(), {}

    def one(rank: int) -> None:
        try:
            results[rank] = join(rank, size, "localhost", port, f"place {rank}", timeout)
        except JoinFailed as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    return results


def test_all_ranks_know_the_places_of_all():
    results = join_all([2, 0, 1], 3, 20)
    for rank in range(3):
        store, places = results[rank]
        assert places == ["place 0", "place 1", "place 2"]
        store.set(f"set by {rank}", "yes")
        assert all(results[other][0].check([f"set by {rank}"]) for other in range(3))


def test_missing_ranks_are_named_by_the_others():
    results = join_all([0, 2], 4, 1)
    line = (
        f"ranks 1, 3 of 4 did not join within 1 s; joined: {host_name()} (ranks 0, 2); see the "
        "logs of the missing ranks, or exclude their nodes"
    )
    assert results == {0: line, 2: line}


def test_without_rank_0_the_others_say_so():
    (line,) = join_all([1], 2, 1).values()
    assert f"rank 1 on {host_name()}: rank 0 was not reached at localhost:" in line
    assert "within 1 s (" in line and "refused" in line


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(JoinFailed, match=rf"port {port} is in use; export another MASTER_PORT"):
            join(0, 2, "localhost", port, "", 1)


def test_nodes_without_a_process_are_named():
    line = missing({0: "n1", 1: "n1", 4: "n3"}, 8, ["n1", "n2", "n3", "n4"], 300)
    assert line.startswith("ranks 2, 3, 5, 6, 7 of 8 did not join within 300 s; none from n2, n4;")
    assert "joined: n1 (ranks 0, 1), n3 (rank 4);" in line


def test_the_trainer_ends_with_70_and_one_line(monkeypatch, capsys):
    environment = {
        "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    distributed.stop()  # a process group that an earlier test may have left
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "start", partial(distributed.start, timeout=1))
    assert train.main(["--data.train", "shards"]) == 70
    said = capsys.readouterr().err
    assert said.startswith("error: rank 1 of 2 did not join within 1 s; ") and said.count("\n") == 1
