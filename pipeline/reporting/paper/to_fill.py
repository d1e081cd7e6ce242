"""What the page's tables and figures lack, and the commands that would fill them."""

from collections.abc import Collection, Iterator

from pipeline.reporting.paper.feeds import Result, command, feeds
from pipeline.reporting.paper.inputs import PaperInputs
from pipeline.reporting.paper.published import LOCOST, paper


def to_fill(part: str, inputs: PaperInputs) -> Iterator[str]:
    """The commands for what a table or figure, such as "table 2", lacks; nothing if it is whole."""
    lacking = [
        (result, system) for result, system in missing(inputs) if takes(part, result, system)
    ]
    again = [system for (kind, _), system in lacking if kind == "systems" and inputs.measurements]
    if again:
        lacking = [(result, system) for result, system in lacking if result[0] != "systems"]
    commands = []
    if lacking:
        sets = [name for (_, name), _ in lacking if name in paper().sets]
        baselines = [
            system
            for (kind, _), system in lacking
            if kind != "systems" and system not in ("", LOCOST)
        ]
        commands.append(command([kind for (kind, _), _ in lacking], sets, baselines))
    if again:
        commands.append(f"sbatch slurm/measure.sh systems --systems {' '.join(again)}")
    if commands:
        shown = ", ".join(f"`{one}`" for one in commands)
        yield f"To fill what is missing: {shown} (docs/slurm.md)."


def takes(part: str, result: Result, system: str) -> bool:
    """Whether a part has a place for this result of this system."""
    of_part: dict[str, Collection[str]] = {
        "table 1": paper().complexity,
        "table 4": paper().throughput,
        "figure 4": paper().throughput,
        "table 3": paper().scrolls,
        "figure 1": paper().scrolls,
        "table 6": paper().extrapolation,
    }
    return part in feeds(result) and (not system or system in of_part.get(part, (system,)))


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
        if not inputs.extrapolation.get(system):
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
    for system in dict.fromkeys((*paper().throughput, *paper().scrolls, *paper().complexity)):
        if system != "transformer" and not _is_measured(inputs, system):
            yield ("systems", ""), system


def _is_measured(inputs: PaperInputs, system: str) -> bool:
    """Whether its time and memory are known at the lengths that the tables and exponents need."""
    rows = inputs.measurements.rows if inputs.measurements else []
    lengths = {row["length"] for row in rows if row["subject"] == system}
    return lengths >= {4096, 16384} and len(lengths) > 2
