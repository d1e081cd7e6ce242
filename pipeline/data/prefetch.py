"""Batches prepared while the model works on the ones before."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pipeline.data.batches import Batches, StepBatch
from pipeline.data.read_ahead import ReadAhead

STEPS_AHEAD = 2  # batches that wait, ready, beside the one in use


class Prefetched:
    """`step` as Batches has it, from a thread that is at most STEPS_AHEAD steps ahead.

    It keeps no state that a resumed run would need. An error met in preparing a step is raised by
    that step. `read_ahead` is told of every step that is prepared; `pin` leaves the tensors in
    page-locked memory. A context manager: its end stops both threads.
    """

    def __init__(
        self, batches: Batches, read_ahead: ReadAhead | None = None, pin: bool = False
    ) -> None:
        self.batches, self.read_ahead, self.pin = batches, read_ahead, pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ready: dict[int, Future[StepBatch]] = {}

    def step(self, step: int) -> StepBatch:
        """This process's share of global batch `step`; the next ones are begun."""
        wanted = range(step, step + STEPS_AHEAD + 1)
        for number in self._ready.keys() - set(wanted):
            self._ready.pop(number).cancel()
        for number in wanted:
            if number not in self._ready:
                self._ready[number] = self._thread.submit(self._prepare, number)
        return self._ready.pop(step).result()

    def close(self) -> None:
        """Stop the threads; what they were at is finished or left."""
        self._thread.shutdown(cancel_futures=True)
        if self.read_ahead:
            self.read_ahead.close()

    def __enter__(self) -> "Prefetched":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, step: int) -> StepBatch:
        if self.read_ahead:
            self.read_ahead.advance(step)
        batch = self.batches.step(step)
        if self.pin:
            batch = replace(batch, micro_batches=[one.pinned() for one in batch.micro_batches])
        return batch
