"""ROUGE beside the generation: processes of their own score what was written while more is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from pipeline.distributed import World
from pipeline.evaluation import rouge
from pipeline.evaluation.predictions import Record
from pipeline.evaluation.rouge import Scores
from pipeline.launch import host_name

WORKER = Path(__file__).with_name("rouge_worker.py")
MOST_WORKERS = 4
IN_FLIGHT = 64  # records that may wait for their scores before writing more waits for them


class Scoring:
    """Scores records on `workers` processes; `waited` are the seconds the caller waited for them.

    A context: leaving it ends the processes, whatever is not scored.
    """

    def __init__(self, workers: int, use_stemmer: bool) -> None:
        self.workers, self.waited = workers, 0.0
        self._processes = [_start(use_stemmer) for _ in range(workers)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(workers)  # each waits for one process
        self._futures: list[Future[Record]] = []

    def __enter__(self) -> "Scoring":
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
        """Begin to score the records that have references."""
        for record in records:
            if record["references"]:
                self._futures.append(self._threads.submit(self._score, record))

    def take(self, leave: int = IN_FLIGHT) -> list[Record]:
        """The scores that are there, {index, scores, best}, waiting until at most `leave` are not.

        Raises RuntimeError where a process broke.
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
        process = self._idle.pop()  # there are as many as threads
        pairs = _ask(process, record["prediction"], record["references"])
        self._idle.append(process)
        return {"index": record["index"], "scores": rouge.mean(pairs), "best": rouge.best(pairs)}


def workers_here(world: World) -> int:
    """How many processes may score for this one: of the cores it shares, all but its own.

    A collective.
    """
    here = [host_name(), sorted(os.sched_getaffinity(0))]
    cores = len(here[1]) // world.gather(here).count(here)
    return max(1, min(MOST_WORKERS, cores - 1))


def _start(use_stemmer: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(int(use_stemmer))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for the caller, which ends these
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
            f"the process that scores ended with status {process.wait()}; what was written is "
            "kept, run again to go on"
        ) from None
