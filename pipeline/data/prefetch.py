"""Batches prepared in the background while the model computes."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pipeline.data.batches import Batches, StepBatch
from pipeline.data.shard_cache import ShardCache

STEPS_AHEAD = 2  # batches kept ready, in addition to the one in use
READS = 16
"""Reads of a process that are outstanding at once. A file system that takes 30 ms for each would
need half a second for 16 samples one after another, longer than a step of the base model."""


class Prefetched:
    """`Batches.step` computed by a thread, at most STEPS_AHEAD steps ahead, with `reads` at once.

    It keeps no state that a resumed run would need. An error in preparing a step is raised by
    that step. `shard_cache` advances with every step that is prepared; `pin` puts the tensors in
    page-locked memory. A context manager: leaving it stops all threads.
    """

    def __init__(
        self,
        batches: Batches,
        shard_cache: ShardCache | None = None,
        pin: bool = False,
        reads: int = READS,
    ) -> None:
        self._readers = ThreadPoolExecutor(reads, thread_name_prefix="reads")
        self.batches = replace(batches, each=self._readers.map)
        self.shard_cache, self.pin = shard_cache, pin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._ready: dict[int, Future[StepBatch]] = {}

    def step(self, step: int) -> StepBatch:
        """This process's share of global batch `step`; starts preparing the next ones."""
        wanted = range(step, step + STEPS_AHEAD + 1)
        for number in self._ready.keys() - set(wanted):
            self._ready.pop(number).cancel()
        for number in wanted:
            if number not in self._ready:
                self._ready[number] = self._thread.submit(self._prepare, number)
        return self._ready.pop(step).result()

    def close(self) -> None:
        """Stop the threads; the step in preparation is finished or dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._readers.shutdown()
        if self.shard_cache:
            self.shard_cache.close()

    def __enter__(self) -> "Prefetched":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, step: int) -> StepBatch:
        if self.shard_cache:
            self.shard_cache.advance(step)
        batch = self.batches.step(step)
        if self.pin:
            batch = replace(batch, micro_batches=[one.pinned() for one in batch.micro_batches])
        return batch
