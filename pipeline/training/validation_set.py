"""What a run is validated on, and the scores of a model there."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch

from pipeline.baselines.registry import Model
from pipeline.config import RunConfig
from pipeline.data.batches import validation_batches
from pipeline.data.collate import truncate
from pipeline.distributed.sequence_parallel import sequence_group
from pipeline.distributed.world import World
from pipeline.inference.decode import generate_summaries
from pipeline.model.generation import DecodingStrategy
from pipeline.scoring.rouge import count_letters, mean_rouge, score
from pipeline.shards import Dataset
from pipeline.tokenizer import open_tokenizer
from pipeline.training.preflight import length_limits

REHEARSED_TOKENS = 8  # generated in a rehearsal


class ValidationStopped(Exception):
    """A rank asked the run to stop; raised on all ranks, within one batch of the request."""


class StopRequests(Protocol):
    """Where validation learns that it should stop; StopRequest is one."""

    def wants_stop(self) -> bool:
        """Whether this rank asks the run to stop."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """A context that a stop signal leaves at once."""
        ...


class ValidationSet:
    """A fixed part of a dataset: its loss, on request the use of the source and Mean ROUGE."""

    def __init__(self, dataset: Dataset, config: RunConfig, world: World) -> None:
        if not len(dataset):
            raise ValueError(
                f"data.validation {dataset.path} holds no samples; see counts.excluded in its "
                "manifest for why and prepare it again, or leave --data.validation out"
            )
        count = config.train.validation_samples or len(dataset)
        hidden = dataset.manifest["counts"].get("without_references", 0)
        if config.train.validation_rouge and hidden == len(dataset):
            raise ValueError(
                f"{dataset.path} holds no references, which --train.validation_rouge needs; give a "
                "split that has them"
            )
        self.dataset, self.config, self.world = dataset, config, world
        self.tokenizer = open_tokenizer(dataset.tokenizer_path)
        self.batch_size = config.train.validation_batch_size
        used = min(count, len(dataset))
        self.mine = range(used)[world.data_rank :: world.data_size]
        self.batches = -(-used // (world.data_size * self.batch_size))
        """Of the rank that has most; the others fill up with batches that do not count."""
        self.other_sources: dict[int, int] = {}
        if config.train.validation_source_use:
            if used < 2:
                raise ValueError(
                    f"--train.validation_source_use exchanges sources, and {dataset.path} gives "
                    f"validation {used} sample; give it more, or leave it out"
                )
            # Half the set away: neighbours may be of one text.
            self.other_sources = {i: (i + used // 2) % used for i in range(used)}

    def run(self, model: Model, stop: StopRequests) -> tuple[dict[str, float], list[str]]:
        """Scores over all processes (losses per target token, ROUGE as fractions), and samples.

        A collective. Raises ValidationStopped on all processes when one of them wants to stop.
        """
        return self._scores(model, stop, self.mine, self.batches, self.config.train.max_new_tokens)

    def rehearse(self, model: Model, stop: StopRequests) -> None:
        """Run on the longest batch of each process, so that what would fail fails now."""
        _, rows = self.dataset.rows(np.array(self.mine, np.int64))
        longest = np.argsort(rows["source_length"], kind="stable")[-self.batch_size :]
        indices = [self.mine[int(place)] for place in longest]
        tokens = min(REHEARSED_TOKENS, self.config.train.max_new_tokens)
        self._scores(model, stop, indices, 1, tokens)

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")  # not worth compiling blocks without gradients
    def _scores(
        self, model: Model, stop: StopRequests, indices: Sequence[int], batches: int, tokens: int
    ) -> tuple[dict[str, float], list[str]]:
        was_training = model.training
        model.eval()
        try:
            values = {"loss": self._loss(model, stop, indices, batches)}
            if self.other_sources:
                exchanged = self._loss(model, stop, indices, batches, self.other_sources)
                values["source_use"] = exchanged - values["loss"]
            summaries: list[str] = []
            if self.config.train.validation_rouge:
                rouge, summaries = self._rouge(model, stop, indices, tokens)
                values |= rouge
        finally:
            model.train(was_training)
        return values, summaries

    def _loss(
        self,
        model: Model,
        stop: StopRequests,
        indices: Sequence[int],
        batches: int,
        sources: Mapping[int, int] | None = None,
    ) -> float:
        """Mean loss; every rank runs `batches` batches, because ZeRO stage 3 gathers in each."""
        device, lengths = self.world.device, length_limits(self.config.data, model)
        own = validation_batches(self.dataset, indices, self.batch_size, *lengths, sources)
        total, tokens = 0.0, 0
        bf16 = self.config.train.precision == "bf16"
        for _ in range(batches):
            self._check(stop.wants_stop())
            found = next(own, None)
            counts = found is not None
            _, batch = found or next(validation_batches(self.dataset, [0], 1, *lengths))
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model(
                    batch.input_ids.to(device),
                    batch.attention_mask.to(device),
                    batch.labels.to(device),
                    loss_reduction="sum",
                    loss_only=True,
                )
            if counts:
                total += float(output.loss)
                tokens += int((batch.labels >= 0).sum())
        total, count = self.world.sum(total, tokens)
        return total / max(count, 1.0)

    def _check(self, stopping: bool) -> None:
        """Raise ValidationStopped on all ranks where one is stopping; a collective."""
        if self.world.any(stopping):
            raise ValidationStopped

    def _group_stops(self, stop: StopRequests) -> bool:
        """Whether one of the processes that share documents wants to stop; a collective of them."""
        wants = torch.tensor(int(stop.wants_stop()), device=self.world.device)
        return bool(sequence_group(self.world).stack(wants).any())

    def _rouge(
        self, model: Model, stop: StopRequests, indices: Sequence[int], tokens: int
    ) -> tuple[dict[str, float], list[str]]:
        samples = [self.dataset[i] for i in indices]
        samples = [sample for sample in samples if sample.metadata["references"]]
        predictions: list[str] = []
        # A signal ends it at once, where no other process waits for this one; else the next batch.
        shared = self.world.sequence_size > 1
        with nullcontext() if shared else stop.interruptible():
            predictions = generate_summaries(
                model,
                self.tokenizer,
                [truncate(sample.source, self.config.data.source_length) for sample in samples],
                DecodingStrategy(max_new_tokens=tokens),
                batch_size=self.batch_size,
                precision=self.config.train.precision,
                device=self.world.device,
                stopped=lambda: shared and self._group_stops(stop),
            )
        self._check(stop.wants_stop())
        scores = [
            score(prediction, sample.metadata["references"])
            for prediction, sample in zip(predictions, samples, strict=True)
        ]
        names = ("rouge1", "rouge2", "rougeLsum")
        letters = [
            count_letters(text) for sample in samples for text in sample.metadata["references"]
        ]
        *sums, scored, written, dropped = self.world.sum(
            *(sum(one[name] for one in scores) for name in names),
            len(scores),
            *(sum(counts) for counts in zip((0, 0), *letters, strict=True)),
        )
        values = {name: total / max(scored, 1.0) for name, total in zip(names, sums, strict=True)}
        values["mean_rouge"] = mean_rouge(values)
        values["letters_dropped"] = dropped / max(written, 1.0)
        shown = [
            f"**{prediction}**\n\n{sample.metadata['references'][0]}"
            for prediction, sample in zip(predictions[:4], samples[:4], strict=True)
        ]
        return values, shown
