"""The complete results in the chain's folders, as arguments of `report.py paper`."""

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.common.files import read_object
from pipeline.slurm_chain.chain_settings import ChainSettings
from pipeline.slurm_chain.stage_graph import ChainStage, completion_times

FOLDER = re.compile(
    r"(?P<set>\w+)(-(?P<system>[a-z0-9-]+))?(@(?P<trained>\d+))?(\+(?P<read>\d+))?", re.ASCII
)
"""What follows `evaluation-`."""


def report_arguments(settings: ChainSettings, stages: list[ChainStage]) -> Iterator[str]:
    """One by one: all that is complete in RUNS, of this call's stages or not; then what is missing.

    Shards are given for every set that has a run.
    """
    runs = settings.runs
    yield from _if_there("--pretrain", runs / "pretrain", "FINISHED")
    sets = dict.fromkeys(("c4", *settings.sets))
    for folder in sorted(runs.glob("finetune-*")):
        name = folder.name.removeprefix("finetune-")
        if re.fullmatch(r"\w+", name, re.ASCII):  # LOCOST's, at its full length
            sets[name] = None
            yield from _if_there("--finetune", folder, "FINISHED", f"{name}=")
    for folder in sorted(runs.glob("evaluation-*")):
        if found := FOLDER.fullmatch(folder.name.removeprefix("evaluation-")):
            sets[found["set"]] = None
            system = f":{found['system']}" if found["system"] else ""
            option, name = "--evaluation", found["set"]
            if found["trained"]:
                option, name = "--context", found["trained"]
            elif found["read"]:
                option, name = "--extrapolation", found["read"]
            yield from _if_there(option, folder, "results.json", f"{name}{system}=")
    yield from _own_context(runs / "evaluation-booksum_book")
    for name in sets:
        for folder in (settings.shards / f"{name}-{split}" for split in SPLITS):
            yield from _if_there("--data", folder, "manifest.json", f"{name}=")
    if (file := runs / "systems" / "systems.json").exists():
        yield from ("--systems", str(file))
    yield from _if_there("--kernels", runs / "kernels", "kernels.json")
    complete = completion_times(stages)
    wanted = [stage.name for stage in stages if stage.result[0] not in ("", "data")]
    if missing := [name for name in wanted if name not in complete]:
        yield from ("--missing", *missing)


SPLITS = ("train", "validation", "test")


def _own_context(books: Path) -> Iterator[str]:
    """BookSum-Book's own evaluation, as the one at its training length in the sweep of contexts."""
    trained = read_object(books / "results.json").get("trained_source_length")
    if trained and not books.with_name(f"{books.name}@{trained}").exists():
        yield from ("--context", f"{trained}={books}")


def _if_there(option: str, folder: Path, marker: str, name: str = "") -> Iterator[str]:
    if (folder / marker).exists():
        yield from (option, f"{name}{folder}")
