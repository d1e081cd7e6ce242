"""What watches a run: metrics as JSON lines and TensorBoard events, a progress bar, validation."""

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from pipeline.config import RunConfig
from pipeline.data.batches import truncate, validation_batches
from pipeline.distributed import World
from pipeline.evaluation.decode import generate_summaries
from pipeline.evaluation.rouge import mean_rouge, score
from pipeline.files import replace_text
from pipeline.huggingface_tokenizer import open_tokenizer
from pipeline.model.generation import DecodingStrategy
from pipeline.models import Model
from pipeline.progress import Progress
from pipeline.shards import Dataset
from pipeline.training.heartbeat import Heartbeat

VALIDATION_BATCH = 16  # samples a forward pass


class Metrics:
    """Rank 0's record of the run: metrics.jsonl and tensorboard/, cut back to `step` on resume.

    What cannot be written, on a full disk, becomes the `problem`, at which the run is to stop:
    `flush` raises it. Only making a Metrics, `flush` and `close` raise OSError.
    """

    def __init__(self, run: Path, step: int, max_steps: int, config: RunConfig) -> None:
        path = run / "metrics.jsonl"
        if path.exists():  # lines beyond the checkpoint describe steps that will be taken again
            replace_text(path, "".join(_lines_until(path, step)))
        self.file = path.open("a", encoding="utf-8")
        threading.excepthook = _quiet  # its thread's errors come back at the next call
        self.events = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self.problem: str | None = None
        self.heartbeat = Heartbeat(run, max_steps)
        if step == 0:
            self.describe("config", f"```\n{config.to_yaml()}```")
        self.progress = Progress("Training", max_steps, "steps", initial=step)

    def describe(self, name: str, text: str) -> None:
        """A text beside the curves."""
        with self.recording():
            self.events.add_text(name, text, 0)

    def step(self, step: int, values: dict[str, float]) -> None:
        """Record one update."""
        with self.recording():
            self._write(step, values)
        self.heartbeat.beat(step, values["loss"], values["seconds"])
        self.progress.update(1, f"loss {values['loss']:.3f}, lr {values['lr']:.2e}")

    def validation(self, step: int, values: dict[str, float], summaries: list[str]) -> None:
        """Record one validation, with a few generated summaries."""
        with self.recording():
            self._write(step, {f"validation_{name}": value for name, value in values.items()})
            if summaries:
                self.events.add_text("summaries", "\n\n---\n\n".join(summaries), step)
        print(
            f"validation after {step} steps: "
            + ", ".join(f"{name} {value:.4f}" for name, value in values.items()),
            flush=True,
        )

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What cannot be written inside becomes the `problem`."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or str(error)

    def flush(self) -> None:
        """Bring everything recorded so far to disk (before a checkpoint names it done)."""
        self.heartbeat.write()
        if self.problem:
            raise OSError(self.problem)
        self.file.flush()
        self.events.flush()

    def close(self) -> None:
        """Close the files."""
        self.progress.close()
        self.file.close()
        self.events.close()

    def _write(self, step: int, values: dict[str, float]) -> None:
        # JSON has no NaN; a curve has a gap there.
        known = {k: value if math.isfinite(value) else None for k, value in values.items()}
        self.file.write(json.dumps({"step": step, **known}) + "\n")
        for name, value in known.items():
            if value is not None:
                self.events.add_scalar(name.replace("validation_", "validation/"), value, step)


def _quiet(arguments: threading.ExceptHookArgs) -> None:
    """No traceback of a thread that could not write."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)


def _lines_until(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except ValueError:
            continue  # a torn write of the run that was stopped
    return kept


class Validation:
    """Loss, on request the use of the source and Mean ROUGE, on a fixed part of a dataset."""

    def __init__(self, dataset: Dataset, config: RunConfig, world: World) -> None:
        count = config.train.validation_samples or len(dataset)
        hidden = dataset.manifest["counts"].get("without_references", 0)
        if config.train.validation_rouge and hidden == len(dataset):
            raise ValueError(
                f"{dataset.path} holds no references, which --train.validation_rouge needs; give a "
                "split that has them"
            )
        self.dataset, self.config, self.world = dataset, config, world
        self.tokenizer = open_tokenizer(dataset.tokenizer_path)
        used = min(count, len(dataset))
        self.indices = range(used)
        self.other_sources: dict[int, int] = {}
        if config.train.validation_source_use:
            if used < 2:
                raise ValueError(
                    f"--train.validation_source_use exchanges sources, and {dataset.path} gives "
                    f"validation {used} sample; give it more, or leave it out"
                )
            # Half the set away: neighbours may be of one text.
            self.other_sources = {i: (i + used // 2) % used for i in self.indices}

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")  # its lengths are too many to compile for
    def run(self, model: Model) -> tuple[dict[str, float], list[str]]:
        """Scores over all processes (losses per target token, ROUGE as fractions), and samples."""
        mine = self.indices[self.world.rank :: self.world.size]
        was_training = model.training
        model.eval()
        values = {"loss": self._loss(model, mine)}
        if self.other_sources:
            values["source_use"] = self._loss(model, mine, self.other_sources) - values["loss"]
        summaries: list[str] = []
        if self.config.train.validation_rouge:
            rouge, summaries = self._rouge(model, mine)
            values |= rouge
        model.train(was_training)
        return values, summaries

    def _loss(
        self, model: Model, indices: Sequence[int], sources: Mapping[int, int] | None = None
    ) -> float:
        data, device = self.config.data, self.world.device
        total, tokens = 0.0, 0
        bf16 = self.config.train.precision == "bf16"
        for _, batch in validation_batches(
            self.dataset, indices, VALIDATION_BATCH, data.source_length, data.target_length, sources
        ):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model(
                    batch.input_ids.to(device),
                    batch.attention_mask.to(device),
                    batch.labels.to(device),
                    loss_reduction="sum",
                )
            total += float(output.loss)
            tokens += int((batch.labels >= 0).sum())
        total, count = self.world.sum(total, tokens)
        return total / max(count, 1.0)

    def _rouge(self, model: Model, indices: Sequence[int]) -> tuple[dict[str, float], list[str]]:
        samples = [self.dataset[i] for i in indices]
        samples = [sample for sample in samples if sample.metadata["references"]]
        predictions = generate_summaries(
            model,
            self.tokenizer,
            [truncate(sample.source, self.config.data.source_length) for sample in samples],
            DecodingStrategy(max_new_tokens=self.config.train.max_new_tokens),
            batch_size=VALIDATION_BATCH,
            precision=self.config.train.precision,
            device=self.world.device,
        )
        scores = [
            score(prediction, sample.metadata["references"])
            for prediction, sample in zip(predictions, samples, strict=True)
        ]
        names = ("rouge1", "rouge2", "rougeLsum")
        *sums, scored = self.world.sum(
            *(sum(one[name] for one in scores) for name in names), len(scores)
        )
        values = {name: total / max(scored, 1.0) for name, total in zip(names, sums, strict=True)}
        values["mean_rouge"] = mean_rouge(values)
        shown = [
            f"**{prediction}**\n\n{sample.metadata['references'][0]}"
            for prediction, sample in zip(predictions[:4], samples[:4], strict=True)
        ]
        return values, shown
