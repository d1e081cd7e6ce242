"""Launches, bytes and operations of a training step and of a decoding step, and bounds of time.

The real model runs on a fake card: the counts are exact for the code and the shape, no time is
measured. A part takes at least as long as the card needs for its operators, one after another, and
about as long as the host needs to launch them.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking.fake_card import FakeCard, autocast, empty, registered, to_card
from pipeline.benchmarking.operator_work import Work, work_of
from pipeline.benchmarking.step_parts import OPTIMIZER, OTHER, PARTS, Parts
from pipeline.common.gpus import GPUS, Gpu
from pipeline.config import DEFAULT_RECIPE, RunConfig, TrainConfig, parse
from pipeline.model import Locost, LocostConfig
from pipeline.model.ssm import ssm_layers
from pipeline.training.optimizer import parameter_groups

Sizes = tuple[int, ...]
UNREAD = "(not read)"
"""Stands for the folders that a run's settings require."""
WIDTH = 32
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "launches": ("{:,}", lambda row: row["launches"]),
    "GB": ("{:.2f}", lambda row: row["bytes"] / 1e9),
    "TFLOP": ("{:.3f}", lambda row: (row["flops"] + row["flops32"]) / 1e12),
    "card, ms": ("{:.2f}", lambda row: row["card_ms"]),
    "host, ms": ("{:.1f}", lambda row: row["host_ms"]),
    "bound, ms": ("{:.1f}", lambda row: row["bound_ms"]),
}
DECODED = 4
"""The step of decoding that is counted."""


@dataclass
class Counts:
    """The operators of a step: how often each part ran one of a kind, and one's work."""

    operators: Counter[tuple[str, str, Work]] = field(default_factory=Counter)

    def by_part(self) -> dict[str, Work]:
        """The sum of each part that did something."""
        sums = dict.fromkeys(PARTS, Work())
        for (part, _, work), times in self.operators.items():
            sums[part] += work.times(times)
        return {part: work for part, work in sums.items() if any(work)}

    def total(self) -> Work:
        """The sum of all operators."""
        works = (work.times(times) for (_, _, work), times in self.operators.items())
        return reduce(Work.__add__, works, Work())

    def card_seconds(self, gpu: Gpu, part: str | None = None) -> float:
        """Least time of the operators, of a part or of all, one after another on a card."""
        return sum(
            times * card_seconds(work, gpu)
            for (of, _, work), times in self.operators.items()
            if part in (None, of)
        )

    def plus(self, others: "Counts") -> "Counts":
        """Both."""
        return Counts(self.operators + others.operators)

    def without(self, others: "Counts") -> "Counts":
        """These less the others."""
        left = Counter(self.operators)
        left.subtract(others.operators)
        return Counts(Counter({key: times for key, times in left.items() if times}))


def card_seconds(work: Work, gpu: Gpu) -> float:
    """Least time of one operator: of its bytes or of its operations, whichever takes longer."""
    return max(work.bytes / gpu.bandwidth, work.flops / gpu.flops + work.flops32 / gpu.flops32)


def count(run: Callable[[], object], part: str = OTHER) -> Counts:
    """The operators of a function that works on a fake card's tensors; `part`: of those that are
    not the model's."""
    counts, parts = Counts(), Parts(part)

    def record(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        work, part = work_of(func, args, kwargs, result), parts.of_current()
        if any(work):
            counts.operators[part, func.overloadpacket.__name__, work] += 1

    with registered(), FakeCard(record):
        run()
    return counts


def model_on_card(config: LocostConfig) -> Locost:
    """The model without weights, as it runs on a card with Triton."""
    with torch.device("meta"):
        model = Locost(config)
    to_card(model)
    for layer in ssm_layers(model):
        layer.kernel_build, layer.transform = "triton", "pairs"
    return model


def training_step(
    config: LocostConfig, train: TrainConfig, batch: int, source: int, target: int
) -> Counts:
    """Forward and backward of one micro-batch as the trainer runs them, and AdamW's step.

    Not counted are DeepSpeed's own operators: reduction and clipping of gradients, and its
    flattened copies of parameters, over which it runs AdamW on fewer, larger tensors; nor the
    second projection of a loss in several chunks, since the fake card cannot recompute.
    """
    model = model_on_card(config).train()
    model.loss_chunk = batch * target
    ids, mask = (empty((batch, source), torch.long) for _ in range(2))
    labels = empty((batch, target), torch.long)

    def run() -> None:
        with autocast(train.precision == "bf16"):
            loss = model(ids, mask, labels, loss_reduction="sum", loss_only=True, check=False).loss
        loss.backward()

    optimizer = torch.optim.AdamW(
        parameter_groups(model, train), lr=train.peak_lr, betas=train.betas,
        fused=True,  # as make_engine on a card
    )  # fmt: skip
    micro_batch = count(run)
    count(optimizer.step)  # makes its state
    return micro_batch.plus(count(optimizer.step, OPTIMIZER))


def decoding_step(config: LocostConfig, batch: int, source: int, bf16: bool = True) -> Counts:
    """One step of greedy decoding, the fourth, over cached keys and values of the source."""
    model = model_on_card(config).eval()
    ids, mask = (empty((batch, source), torch.long) for _ in range(2))

    def run(tokens: int) -> None:
        with autocast(bf16):
            model.generate(ids, mask, max_new_tokens=tokens, memory_budget=sys.maxsize)

    count(partial(run, 1))  # keeps the convolution kernels
    return count(partial(run, DECODED)).without(count(partial(run, DECODED - 1)))


def measure(
    recipe: str | None,
    trained: Sequence[Sizes],
    decoded: Sequence[Sizes],
    card: str,
    launch_seconds: float,
) -> dict[str, Any]:
    """The figures of training steps (B, L, T) and of decoding steps (B, L), JSON types.

    Raises ValueError for sizes of another number, and for the recipe of a baseline.
    """
    for sizes, names in [*((x, "BxLxT") for x in trained), *((x, "BxL") for x in decoded)]:
        if len(sizes) != len(names.split("x")):
            option = "--shapes" if names == "BxLxT" else "--decode"
            raise ValueError(f"{option} {'x'.join(map(str, sizes))}: give sizes as {names}")
    config, model = configuration(recipe or DEFAULT_RECIPE)
    gpu, bf16 = GPUS[card], config.train.precision == "bf16"
    steps: list[dict[str, Any]] = []
    for batch, source, target in trained:
        counts = training_step(model, config.train, batch, source, target)
        shape = {"batch": batch, "source": source, "target": target}
        steps.append({"step": "training", **shape, **figures(counts, gpu, launch_seconds)})
    for batch, source in decoded:
        counts = decoding_step(model, batch, source, bf16)
        shape = {"batch": batch, "source": source}
        steps.append({"step": "decoding", **shape, **figures(counts, gpu, launch_seconds)})
    return {
        "command": "launches", "recipe": Path(recipe or DEFAULT_RECIPE).stem, "card": gpu.name,
        "precision": config.train.precision, "torch": torch.__version__.partition("+")[0],
        "bandwidth": gpu.bandwidth, "flops": gpu.flops, "flops32": gpu.flops32,
        "host_seconds_a_launch": launch_seconds, "steps": steps,
    }  # fmt: skip


def configuration(recipe: str) -> tuple[RunConfig, LocostConfig]:
    """A run's settings and its model's, with T5's vocabulary.

    Raises ValueError for a baseline, and for recomputed activations.
    """
    unread = ["--data.train", UNREAD, "--data.validation", UNREAD]
    config, _ = parse(["--config", recipe, *unread])
    model = config.architecture(LocostConfig.vocab_size)
    if not isinstance(model, LocostConfig):
        raise ValueError(f"{recipe} trains {model.name}: only LOCOST's operators are counted")
    if config.train.recompute_activations:  # where torch sees no card, it cannot restore autocast
        raise ValueError(
            f"{recipe} sets train.recompute_activations, which cannot be counted; remove it"
        )
    return config, model


def figures(counts: Counts, gpu: Gpu, launch_seconds: float) -> dict[str, Any]:
    """Figures of all parts and their sum, and how often each operator is called; JSON types."""
    parts = {
        part: _row(work, counts.card_seconds(gpu, part), launch_seconds)
        for part, work in counts.by_part().items()
    }
    calls: Counter[str] = Counter()
    for (_, name, _), times in counts.operators.items():
        calls[name] += times
    total = _row(counts.total(), counts.card_seconds(gpu), launch_seconds)
    return {"parts": parts, "total": total, "calls": dict(calls.most_common())}


def _row(work: Work, seconds: float, launch_seconds: float) -> dict[str, Any]:
    card, host = 1000 * seconds, 1000 * work.launches * launch_seconds
    return {**work._asdict(), "card_ms": card, "host_ms": host, "bound_ms": max(card, host)}


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """A table for each step."""
    yield (
        f"{found['recipe']} in {found['precision']} on one {found['card']}; "
        f"a launch is taken to cost the host {1e6 * found['host_seconds_a_launch']:.3g} us"
    )
    for step in found["steps"]:
        sizes = (f"{key} {step[key]:,}" for key in ("batch", "source", "target") if key in step)
        yield ""
        yield f"{step['step']} step: {', '.join(sizes)}"
        yield "".join((f"{'':{WIDTH}}", *(f"{name:>10}" for name in COLUMNS)))
        for name, row in [*step["parts"].items(), ("total", step["total"])]:
            cells = (form.format(figure(row)) for form, figure in COLUMNS.values())
            yield "".join((f"{name:{WIDTH}}", *(f"{cell:>10}" for cell in cells)))
        yield f"the host waits for the card: {step['total']['syncs']}"
