"""The speed of the network between the processes of a run, measured before its first step."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist

from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import RunFailed, World

SUMMED = {"cuda": 2**26, "cpu": 2**24}  # bytes
SENT = 2**23
REPEATS = 3  # after one that makes the connections; the fastest counts
FEWEST = 3  # links, before one can be slower than the others
SLOW = 10  # times slower than the median


@dataclass(frozen=True)
class Link:
    """From the first process of one host to that of another."""

    source: str
    target: str
    gigabytes_per_second: float

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} {self.gigabytes_per_second:.3g} GB/s"


def check_links(world: World) -> None:
    """Print the speed of an all-reduce and of a ring of links between the hosts; a collective.

    RunFailed, on all processes, names links that are far slower than the others.
    """
    if world.size == 1:
        return
    hosts = world.gather(host_name())
    summed, links = all_reduce_speed(world), ring(world, hosts)
    if slow_links(links):  # or was it busy just then?
        links = ring(world, hosts)
    if world.is_main:
        processes = ", ".join(f"{host} ({count})" for host, count in Counter(hosts).items())
        between = f"; {', '.join(map(str, links))}" if links else ""
        print(
            f"{world.size} processes on {processes}: all-reduce of "
            f"{SUMMED[world.device.type] >> 20} MiB "
            f"{summed:.3g} GB/s{between}",
            flush=True,
        )
    if slow := slow_links(links):
        raise RunFailed(
            f"slow links: {', '.join(map(str, slow))}, where the median is "
            f"{_median(links):.3g} GB/s; exclude the node or fix its network "
            "(--train.startup_check false skips this check)"
        )


def slow_links(links: Sequence[Link]) -> list[Link]:
    """Those slower than a tenth of the median; with fewer than 3 links none is."""
    if len(links) < FEWEST:
        return []
    return [link for link in links if link.gigabytes_per_second < _median(links) / SLOW]


def all_reduce_speed(world: World) -> float:
    """GB/s: the bytes of an fp32 tensor over the seconds in which it is summed over all."""
    size = SUMMED[world.device.type]
    numbers = torch.zeros(size // 4, device=world.device)
    return size / 1e9 / _fastest(world, partial(dist.all_reduce, numbers))


def ring(world: World, hosts: Sequence[str]) -> list[Link]:
    """The link from every host to the next and from the last to the first, one after the other.

    `hosts` are those of all ranks; none with one host. The receiver takes the time.
    """
    first = {host: hosts.index(host) for host in hosts}
    names = list(first)
    if len(names) == 1:
        return []
    numbers = torch.zeros(SENT // 4, device=world.device)
    measured = {}
    for source, target in pairwise([*names, names[0]]):
        if world.rank == first[source]:
            _fastest(world, partial(dist.send, numbers, first[target]))
        elif world.rank == first[target]:
            seconds = _fastest(world, partial(dist.recv, numbers, first[source]))
            measured[source, target] = SENT / 1e9 / seconds
    speeds = {pair: speed for part in world.gather(measured) for pair, speed in part.items()}
    return [Link(*pair, speeds[pair]) for pair in pairwise([*names, names[0]])]


def _median(links: Sequence[Link]) -> float:
    return median(link.gigabytes_per_second for link in links)


def _fastest(world: World, action: Callable[[], object]) -> float:
    """Seconds of the fastest of a few, after a first one."""
    times = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        action()
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times[1:])
