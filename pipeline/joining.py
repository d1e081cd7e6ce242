"""How the processes of a run find each other, and say which of them did not come."""

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pipeline.launch import STEP, expand_hosts, host_name

POLL = 0.1  # seconds
GRACE = 30.0  # seconds more that the others wait for what rank 0 says
# Saves and evaluations may keep one rank busy for long; the others must not give it up.
TIMEOUT = timedelta(hours=2)


class JoinFailed(TimeoutError):
    """Not all processes came together; the message is one line that says which."""


def join(
    rank: int, size: int, address: str, port: int, place: Any, timeout: float
) -> tuple[dist.Store, list[Any]]:
    """The store that all `size` processes share, and what each gave as its `place` (JSON types).

    Rank 0 keeps the store at `address`:`port`. Raises JoinFailed where one is not there `timeout`
    seconds after rank 0, or where rank 0 is not.
    """
    # Under torchrun its agent keeps the store.
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _keep(port, size) if keeps else _reach(rank, address, port, size, timeout)
    # Should another job hold that port, its processes and these ones do not mix.
    name = ".".join(os.environ.get(f"SLURM_{part}", "0") for part in STEP)
    shared = dist.PrefixStore(f"run {name}", store)
    shared.set(f"place/{rank}", json.dumps([host_name(), place]))
    if rank == 0:
        hosts, places = _gather(shared, size, timeout)
        failed = missing(hosts, size, _nodes(), timeout) if len(hosts) < size else None
        shared.set("verdict", json.dumps([failed, places]))
        if failed:
            time.sleep(1)  # the others read it from this process
            raise JoinFailed(failed)
        return shared, places
    try:
        deadline = time.monotonic() + timeout + GRACE
        while not shared.check(["verdict"]):
            if time.monotonic() > deadline:
                raise JoinFailed(
                    f"rank {rank} on {host_name()}: rank 0 of this run does not speak at "
                    f"{address}:{port}; is another job there? export another MASTER_PORT"
                )
            time.sleep(POLL)
        failed, places = json.loads(shared.get("verdict"))
    except dist.DistError:
        raise JoinFailed(
            f"rank {rank} on {host_name()}: rank 0 at {address}:{port} ended before all processes "
            "were there"
        ) from None
    if failed:
        raise JoinFailed(failed)
    return shared, places


def missing(hosts: Mapping[int, str], size: int, nodes: Sequence[str], timeout: float) -> str:
    """The line on ranks that are not among `hosts` (by rank), and on `nodes` without any."""
    absent = [rank for rank in range(size) if rank not in hosts]
    there = ", ".join(
        f"{host} ({_ranks([rank for rank in hosts if hosts[rank] == host])})"
        for host in dict.fromkeys(hosts.values())
    )
    empty = [node for node in nodes if node not in hosts.values()]
    return (
        f"{_ranks(absent)} of {size} did not come within {timeout:g} s"
        + (f"; none came from {', '.join(empty)}" if empty else "")
        + f"; there are {there}; see the logs of the absent, or leave their node out"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _nodes() -> list[str]:
    nodelist = os.environ.get("SLURM_STEP_NODELIST")
    return expand_hosts(nodelist) if nodelist else []


def _keep(port: int, size: int) -> dist.Store:
    try:
        return dist.TCPStore("localhost", port, size, True, TIMEOUT, wait_for_workers=False)
    except dist.DistNetworkError as error:
        taken = "is taken" if "EADDRINUSE" in str(error) else f"cannot be used ({error})"
        raise JoinFailed(
            f"rank 0 on {host_name()}: port {port} {taken}; export another MASTER_PORT"
        ) from None


def _reach(rank: int, address: str, port: int, size: int, timeout: float) -> dist.Store:
    deadline = time.monotonic() + timeout
    while True:  # torch's own wait is as long, but fills the log
        try:
            socket.create_connection((address, port), timeout=5).close()
            return dist.TCPStore(address, port, size, False, TIMEOUT, wait_for_workers=False)
        except (OSError, dist.DistError) as error:
            if time.monotonic() > deadline:
                raise JoinFailed(
                    f"rank {rank} on {host_name()}: rank 0 was not reached at {address}:{port} "
                    f"within {timeout:g} s ({str(error).splitlines()[0]}); see rank 0's log, and "
                    "that its host has this name and port on all nodes"
                ) from None
            time.sleep(POLL)


def _gather(shared: dist.Store, size: int, timeout: float) -> tuple[dict[int, str], list[Any]]:
    """Hosts by rank and places in rank order, of those that are there in time."""
    deadline = time.monotonic() + timeout
    absent = set(range(size))
    while True:
        absent -= {rank for rank in absent if shared.check([f"place/{rank}"])}
        if not absent or time.monotonic() > deadline:
            break
        time.sleep(POLL)
    came = {r: json.loads(shared.get(f"place/{r}")) for r in range(size) if r not in absent}
    return {rank: host for rank, (host, _) in came.items()}, [place for _, place in came.values()]
