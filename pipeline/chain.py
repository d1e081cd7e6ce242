"""The whole paper as a chain of Slurm jobs; slurm/chain.sh runs it with the settings."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import os
import time

from pipeline.chaining import slurm
from pipeline.chaining.overview import overview
from pipeline.chaining.plan import Step, plan
from pipeline.chaining.reached import share_left
from pipeline.chaining.record import Record
from pipeline.chaining.resources import Request
from pipeline.chaining.settings import KINDS, Settings
from pipeline.chaining.stages import Stage, graph
from pipeline.chaining.status import report, standings
from pipeline.chaining.submit import cancel_replaced, faults, submit
from pipeline.command_line import Parser, described
from pipeline.files import hold_lock


def build_parser() -> Parser:
    """The command line."""
    parser = Parser(
        prog="chain.sh",
        description="Submit what is missing of the whole run: preprocessing, pre-training, "
        "fine-tunings, evaluations, report; each job starts when those it needs have ended well. "
        "Run again it goes on where it stopped. Settings: slurm/settings.sh.",
    )
    parser.add_argument(
        "command", nargs="?", choices=("status",),
        help="show where every stage stands, and the end of the log of one that failed",
    )  # fmt: skip
    parser.add_argument(
        "--dry_run", action="store_true",
        help="print the graph and its cost, check the inputs that are there, submit nothing",
    )  # fmt: skip
    return parser


def main(arguments: list[str]) -> int:
    """Exit status: 0; 1 where `status` found a stage that failed; 2 where something is wrong."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command and options.dry_run:
        parser.error("--dry_run does not go with status, which submits nothing")
    try:
        settings = Settings.of(os.environ)
        stages = graph(settings)
        if options.command == "status":
            return show_status(settings, stages)
        if options.dry_run:
            return show_plan(settings, stages)
        return submit_missing(settings, stages)
    except (OSError, ValueError) as error:
        print(f"error: {described(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was submitted is noted, the same command goes on", file=sys.stderr)
        return 130


def show_status(settings: Settings, stages: list[Stage]) -> int:
    """Print where every stage stands; 1 if one failed."""
    found = standings(stages, Record(settings), slurm.queue(), time.time())
    print("\n".join(report(found)))
    return int(any(standing.failed for standing in found))


def show_plan(settings: Settings, stages: list[Stage]) -> int:
    """Print the graph and its cost, then what is wrong with it."""
    steps = steps_now(settings, stages, Record(settings))
    print(f"repository {settings.root}, runs in {settings.runs}, shards in {settings.shards}\n")
    print("\n".join(overview(settings, steps)), flush=True)
    return refuse(settings, steps)


def submit_missing(settings: Settings, stages: list[Stage]) -> int:
    """Submit what is missing, one chain.sh at a time."""
    settings.runs.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(settings.runs / ".chain.lock")
    if lock is None:
        raise ValueError(f"another chain.sh is submitting to {settings.runs}; wait for its end")
    os.set_inheritable(lock.fileno(), True)  # an sbatch that outlives us holds it until it ends
    record = Record(settings)
    record.adopt(stages, slurm.queue())
    steps = steps_now(settings, stages, record)
    if refuse(settings, steps):
        return 2
    for line in cancel_replaced(steps):
        print(line, flush=True)
    jobs = 0
    try:
        for line in submit(settings, steps, record, os.environ):
            print(line, flush=True)
            jobs += 1
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{described(error)}; {jobs} jobs were submitted before and are noted in "
            f"{record.path}; the same command goes on"
        ) from None
    kept = sum(len(step.kept) for step in steps)
    complete = sum(step.complete for step in steps)
    print(f"{jobs} jobs submitted, {kept} were in the queue, {complete} stages of {len(steps)} are "
          "complete; chain.sh status shows where they stand")  # fmt: skip
    return 0


def steps_now(settings: Settings, stages: list[Stage], record: Record) -> list[Step]:
    """The plan as folders, record and queue say now."""
    requests = {kind: request_of(settings, stages, kind) for kind in KINDS}
    return plan(settings, stages, requests, record, slurm.queue(), share_left(settings))


def request_of(settings: Settings, stages: list[Stage], kind: str) -> Request:
    """What the jobs of a kind ask for. Raises ValueError that names the script."""
    script = next(stage.script(settings) for stage in stages if stage.kind == kind)
    try:
        return Request.of(script.read_text(encoding="utf-8"), os.environ, settings.flags[kind])
    except ValueError as error:
        raise ValueError(f"{script}, SBATCH_* and {kind.upper()}_FLAGS: {error}") from None


def refuse(settings: Settings, steps: list[Step]) -> int:
    """Print what is wrong with what would be submitted; 2 if that makes the chain hopeless."""
    found = faults(settings, steps, os.environ)
    for fault in found:
        kind = "note" if fault.passing else "error"
        print(f"{kind}: {fault.stage.name}: {fault.text}", file=sys.stderr)
    return 0 if all(fault.passing for fault in found) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
