"""The rendezvous of a run's processes, and the message that names the missing ones."""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pipeline.distributed.launcher_environment import STEP, expand_hosts, host_name

POLL = 0.1  # seconds
GRACE = 30.0  # seconds that the others wait longer for rank 0's verdict
# Saves and evaluations may keep one rank busy for long; the others must not time out.
TIMEOUT = timedelta(hours=2)


class JoinFailed(TimeoutError):
    """Not all processes joined; the message is one line that names the missing ones."""


def join(
    rank: int, size: int, address: str, port: int, place: Any, timeout: float
) -> tuple[dist.Store, list[Any]]:
    """The store that all `size` processes share, and the `place` (JSON types) that each passed.

    Rank 0 serves the store at `address`:`port`. Raises JoinFailed if a process has not joined
    `timeout` seconds after rank 0, or if rank 0 cannot be reached.
    """
    # Under torchrun its agent serves the store.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _serve(port, size) if serves else _connect(rank, address, port, size, timeout)
    # If another job uses that port, its processes and these must not mix.
    name = ".".join(os.environ.get(f"SLURM_{part}", "0") for part in STEP)
    shared = dist.PrefixStore(f"run {name}", store)
    shared.set(f"place/{rank}", json.dumps([host_name(), place]))
    if rank == 0:
        hosts, places = _gather(shared, size, timeout)
        failed = missing(hosts, size, _nodes(), timeout) if len(hosts) < size else None
        shared.set("verdict", json.dumps([failed, places]))
        if failed:
            time.sleep(1)  # the others read the verdict from this process
            raise JoinFailed(failed)
        return shared, places
    try:
        deadline = time.monotonic() + timeout + GRACE
        while not shared.check(["verdict"]):
            if time.monotonic() > deadline:
                raise JoinFailed(
                    f"rank {rank} on {host_name()}: no answer from rank 0 of this run at "
                    f"{address}:{port}; if another job uses the port, export another MASTER_PORT"
                )
            time.sleep(POLL)
        failed, places = json.loads(shared.get("verdict"))
    except dist.DistError:
        raise JoinFailed(
            f"rank {rank} on {host_name()}: rank 0 at {address}:{port} ended before all processes "
            "had joined"
        ) from None
    if failed:
        raise JoinFailed(failed)
    return shared, places


def missing(hosts: Mapping[int, str], size: int, nodes: Sequence[str], timeout: float) -> str:
    """The message on the ranks missing in `hosts` (by rank) and on the `nodes` without any rank."""
    absent = [rank for rank in range(size) if rank not in hosts]
    joined = ", ".join(
        f"{host} ({_ranks([rank for rank in hosts if hosts[rank] == host])})"
        for host in dict.fromkeys(hosts.values())
    )
    empty = [node for node in nodes if node not in hosts.values()]
    return (
        f"{_ranks(absent)} of {size} did not join within {timeout:g} s"
        + (f"; none from {', '.join(empty)}" if empty else "")
        + f"; joined: {joined}; see the logs of the missing ranks, or exclude their nodes"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _nodes() -> list[str]:
    nodelist = os.environ.get("SLURM_STEP_NODELIST")
    return expand_hosts(nodelist) if nodelist else []


def _serve(port: int, size: int) -> dist.Store:
    try:
        return dist.TCPStore("localhost", port, size, True, TIMEOUT, wait_for_workers=False)
    except dist.DistNetworkError as error:
        problem = "is in use" if "EADDRINUSE" in str(error) else f"cannot be used ({error})"
        raise JoinFailed(
            f"rank 0 on {host_name()}: port {port} {problem}; export another MASTER_PORT"
        ) from None


def _connect(rank: int, address: str, port: int, size: int, timeout: float) -> dist.Store:
    deadline = time.monotonic() + timeout
    while True:  # torch's own retries fill the log
        try:
            socket.create_connection((address, port), timeout=5).close()
            return dist.TCPStore(address, port, size, False, TIMEOUT, wait_for_workers=False)
        except (OSError, dist.DistError) as error:
            if time.monotonic() > deadline:
                raise JoinFailed(
                    f"rank {rank} on {host_name()}: rank 0 was not reached at {address}:{port} "
                    f"within {timeout:g} s ({str(error).splitlines()[0]}); see rank 0's log, and "
                    "check that this address is reachable from all nodes"
                ) from None
            time.sleep(POLL)


def _gather(shared: dist.Store, size: int, timeout: float) -> tuple[dict[int, str], list[Any]]:
    """Hosts by rank and places in rank order, of the processes that join in time."""
    deadline = time.monotonic() + timeout
    absent = set(range(size))
    while True:
        absent -= {rank for rank in absent if shared.check([f"place/{rank}"])}
        if not absent or time.monotonic() > deadline:
            break
        time.sleep(POLL)
    came = {r: json.loads(shared.get(f"place/{r}")) for r in range(size) if r not in absent}
    return {rank: host for rank, (host, _) in came.items()}, [place for _, place in came.values()]
