"""What the page's tables and figures lack, and the commands that would fill them."""

from collections.abc import Iterator

from pipeline.reporting.paper.feeds import Result, command, feeds
from pipeline.reporting.paper.inputs import PaperInputs
from pipeline.reporting.paper.published import LOCOST, paper


def to_fill(part: str, inputs: PaperInputs) -> Iterator[str]:
    """The command for what a table or figure, such as "table 2", lacks; nothing if it is whole."""
    lacking = [
        (result, system)
        for result, system in missing(inputs)
        if part in feeds(result) and (part != "table 6" or system in paper().extrapolation)
    ]
    if not lacking:
        return
    sets = [name for (_, name), _ in lacking if name in paper().sets]
    systems = [system for _, system in lacking if system not in ("", LOCOST)]
    made = [kind for (kind, _), _ in lacking if kind != "systems" or not inputs.measurements]
    commands = [command(made, sets, systems)] if made else []
    if inputs.measurements and (more := _not_measured(inputs)):
        commands.append(f"sbatch slurm/measure.sh systems --systems {' '.join(more)}")
    yield f"To fill what is missing: {', '.join(f'`{one}`' for one in commands)} (docs/slurm.md)."


def missing(inputs: PaperInputs) -> Iterator[tuple[Result, str]]:
    """The results behind the paper's figures that were not given, and of which system."""
    for name, theirs in paper().sets.items():
        for system, row in theirs.rows.items():
            one = inputs.evaluations.get(name, {}).get(system)
            if one is None:
                yield ("evaluation", name), system
            found = {metric["metric"] for metric in one.metrics} if one else set()
            wanted = {"bert_score": row.bert_score, "blanc": row.blanc}
            wanted["judge"] = system in paper().judge if name == "pubmed" else None
            for metric, value in wanted.items():
                if value and metric not in found:
                    yield (metric, name), system
        if name not in inputs.manifests:
            yield ("data", name), ""
    for system in paper().extrapolation:
        if not any(tokens > 4096 for tokens in inputs.extrapolation.get(system, {})):
            yield ("extrapolation", "arxiv"), system
    if len(inputs.contexts.get(LOCOST, {})) < 2:
        yield ("context", "booksum_book"), LOCOST
    for kind, given in {
        "pretrain": inputs.pretrain,
        "finetune": inputs.finetune,
        "kernels": inputs.kernels,
    }.items():
        if not given:
            yield (kind, ""), ""
    if "c4" not in inputs.manifests:
        yield ("data", "c4"), ""
    if _not_measured(inputs):
        yield ("systems", ""), ""


def _not_measured(inputs: PaperInputs) -> list[str]:
    """Systems of the paper's tables of time and memory that were not measured."""
    wanted = dict.fromkeys((*paper().throughput, *paper().scrolls, *paper().complexity))
    measured = inputs.measurements.systems if inputs.measurements else []
    return [system for system in wanted if system not in (*measured, "transformer")]
