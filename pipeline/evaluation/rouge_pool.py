"""ROUGE in worker processes, which score finished summaries while others are generated."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from pipeline.common.paths import ROOT
from pipeline.distributed.launcher_environment import host_name
from pipeline.distributed.world import World
from pipeline.scoring import rouge
from pipeline.scoring.predictions import Record
from pipeline.scoring.rouge import Scores

WORKER = "pipeline.scoring.rouge_worker"
MOST_WORKERS = 4
IN_FLIGHT = 64  # records that may lack scores before generation waits for them


class RougePool:
    """Scores records in `workers` processes; `waited`: seconds that the caller waited for scores.

    A context manager: leaving it ends the processes.
    """

    def __init__(self, workers: int, use_stemmer: bool) -> None:
        self.workers, self.waited = workers, 0.0
        self._processes = [_start(use_stemmer) for _ in range(workers)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(max(1, workers))  # one per process
        self._futures: list[Future[Record]] = []

    def __enter__(self) -> "RougePool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=kind is None, cancel_futures=True)
        for process in self._processes:
            process.kill()
            process.wait()

    def add(self, records: Sequence[Record]) -> None:
        """Start scoring the records that have references."""
        for record in records:
            if record["references"]:
                self._futures.append(self._threads.submit(self._score, record))

    def take(self, leave: int = IN_FLIGHT) -> list[Record]:
        """Finished scores, {index, scores, best}; waits until at most `leave` are pending.

        Raises RuntimeError where a worker died.
        """
        began = time.perf_counter()
        pending = [future for future in self._futures if not future.done()]
        for future in pending[: max(0, len(pending) - leave)]:
            future.exception()
        self.waited += time.perf_counter() - began
        futures, self._futures = self._futures, []
        done: list[Future[Record]] = []
        for future in futures:
            (done if future.done() else self._futures).append(future)
        return [future.result() for future in done]

    def _score(self, record: Record) -> Record:
        process = self._idle.pop()  # as many as threads
        pairs = _ask(process, record["prediction"], record["references"])
        self._idle.append(process)
        return {"index": record["index"], "scores": rouge.mean(pairs), "best": rouge.best(pairs)}


def workers_here(world: World) -> int:
    """The number of workers for this process: its share of the cores minus one, within limits.

    None where another process of its group has the summaries scored. A collective.
    """
    here = [host_name(), sorted(os.sched_getaffinity(0))]
    cores = len(here[1]) // world.gather(here).count(here) * world.sequence_size
    return 0 if world.sequence_rank else max(1, min(MOST_WORKERS, cores - world.sequence_size))


def _start(use_stemmer: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER, str(int(use_stemmer))],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C goes to the caller, which ends them
    )


def _ask(
    process: subprocess.Popen[str], prediction: str, references: Sequence[str]
) -> list[Scores]:
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps([prediction, references]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())
    except (BrokenPipeError, json.JSONDecodeError):
        raise RuntimeError(
            f"a ROUGE worker ended with status {process.wait()}; predictions so far are kept, "
            "run again to resume"
        ) from None
