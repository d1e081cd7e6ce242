"""The graph, its state and its cost, as --dry_run prints them."""

from collections.abc import Iterable, Iterator

from pipeline.chaining.plan import Step
from pipeline.chaining.settings import Settings
from pipeline.chaining.text import clock, table

HEAD = (
    "stage", "needs", "nodes x GPUs", "limit", "jobs", "node-hours", "GPU-hours", "state",
)  # fmt: skip


def overview(settings: Settings, steps: list[Step]) -> Iterator[str]:
    """The lines: a table of the stages, then the sums."""
    yield table(HEAD, (_row(settings, step) for step in steps))
    yield ""
    nodes, gpus = total(s.node_hours for s in steps), total(s.gpu_hours for s in steps)
    if nodes is None or gpus is None:
        yield "node-hours, GPU-hours and cost: not known, for a stage has no time limit"
        return
    cost = "cost not known: set GPU_HOUR_COST"
    if settings.gpu_hour_cost:
        price = f"{settings.gpu_hour_cost:g} {settings.currency}".rstrip()
        cost = f"{gpus * settings.gpu_hour_cost:,.2f} {settings.currency} at {price} a GPU-hour"
    yield f"at most {nodes:,.1f} node-hours, {gpus:,.1f} GPU-hours; {cost}"
    yield (
        "(Upper bounds, of stages that are not complete: every job to its time limit; the "
        f"pre-training by PRETRAIN_HOURS={settings.pretrain_hours:g}.)"
    )


def total(hours: Iterable[float | None]) -> float | None:
    """The sum; None where a part is not known."""
    parts = list(hours)
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _row(settings: Settings, step: Step) -> tuple[str, ...]:
    request = step.request
    return (
        step.stage.name,
        _needs(step.stage.needs),
        f"{request.nodes} x {request.gpus}",
        clock(request.minutes),
        _jobs(settings, step),
        _hours(step.node_hours),
        _hours(step.gpu_hours),
        _state(step),
    )


def _needs(names: tuple[str, ...]) -> str:
    if len(names) > 2:
        return f"{names[0].partition('-')[0]}-* ({len(names)})"
    return ", ".join(names) or "-"


def _jobs(settings: Settings, step: Step) -> str:
    if step.stage.array > 1:
        return f"array of {step.stage.array}"
    if step.runs == 1 or step.complete:
        return "1"
    return f"1, run {step.runs} times" if settings.requeue else f"{step.runs} links"


def _state(step: Step) -> str:
    if step.complete:
        return "complete"
    kept = "in the queue as job " + " ".join(str(job.id) for job in step.kept)
    submit = "to be submitted" + (" anew" if step.replaced else "")
    if step.kept and step.lacking:
        return f"{kept}; {step.lacking} more to be submitted"
    return kept if step.kept else submit


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:,.1f}"
