"""Launches, bytes and operations of a training step and of a decoding step, and bounds of time.

The real model runs on a fake card: the counts are exact for the code and the shape, no time is
measured. A part takes at least as long as the card needs for its operators, one after another, and
about as long as the host needs to launch them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.common.gpus import GPUS, Gpu
from pipeline.config import DEFAULT_RECIPE, RunConfig, parse
from pipeline.counting.graph_steps import graph_step
from pipeline.counting.operator_work import Work
from pipeline.counting.steps import Counts, decoding_step, training_step
from pipeline.model import LocostConfig

Sizes = tuple[int, ...]
UNREAD = "(not read)"
"""Stands for the folders that a run's settings require."""
BEAMS = (1, 4)
"""Of the decoding steps under a CUDA graph."""
WIDTH = 32
COLUMNS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "launches": ("{:,}", lambda row: row["launches"]),
    "GB": ("{:.2f}", lambda row: row["bytes"] / 1e9),
    "TFLOP": ("{:.3f}", lambda row: (row["flops"] + row["flops32"]) / 1e12),
    "card, ms": ("{:.2f}", lambda row: row["card_ms"]),
    "host, ms": ("{:.1f}", lambda row: row["host_ms"]),
    "bound, ms": ("{:.1f}", lambda row: row["bound_ms"]),
}


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
    graph_steps = []
    for batch, source in decoded:
        for beams in BEAMS:
            step = graph_step(model, batch, source, beams, bf16)
            graph_steps.append({
                "batch": batch, "source": source, "beams": beams,
                "inside": _row(step.inside.total(), step.inside.card_seconds(gpu), 0.0),
                "outside": _row(
                    step.outside.total(), step.outside.card_seconds(gpu), launch_seconds
                ),
            })  # fmt: skip
    return {
        "command": "launches", "recipe": Path(recipe or DEFAULT_RECIPE).stem, "card": gpu.name,
        "precision": config.train.precision, "torch": torch.__version__.partition("+")[0],
        "bandwidth": gpu.bandwidth, "flops": gpu.flops, "flops32": gpu.flops32,
        "host_seconds_a_launch": launch_seconds, "steps": steps,
        "graph_steps": graph_steps,
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
    for step in found["graph_steps"]:
        inside, outside = step["inside"], step["outside"]
        yield ""
        yield (
            f"decoding step by a CUDA graph: batch {step['batch']:,}, source {step['source']:,}, "
            f"beams {step['beams']}"
        )
        yield (
            f"in the graph, which the host launches once: {inside['launches']:,} operators, "
            f"{inside['bytes'] / 1e9:.2f} GB, {inside['card_ms']:.2f} ms"
        )
        yield (
            f"outside its replay: {outside['launches']:,} launches, {outside['card_ms']:.2f} ms, "
            f"{outside['host_ms']:.2f} ms of the host, which waits for the card every eighth step"
        )
