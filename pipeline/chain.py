"""Run all of the paper as a chain of Slurm jobs; slurm/chain.sh calls it."""

if not __package__:
    import _start  # noqa: F401
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.common.command_line import INTERRUPTED, Parser, described, exit_on_user_error
from pipeline.common.files import hold_lock
from pipeline.reporting.paper.feeds import feeds, in_words
from pipeline.slurm_chain import slurm_commands
from pipeline.slurm_chain.chain_settings import ChainSettings, read_settings
from pipeline.slurm_chain.results import report_arguments
from pipeline.slurm_chain.stage_graph import ChainStage, stage_graph
from pipeline.slurm_chain.status_report import plan_lines, stage_statuses, status_lines
from pipeline.slurm_chain.submission import PlannedStage, Submitter, cancel_jobs, plan_stages


def build_parser() -> Parser:
    """The command line."""
    parser = Parser(
        prog="chain.sh",
        description="Submit the missing jobs of the whole paper: preprocessing, pre-training, "
        "fine-tunings and evaluations, other metrics, measurements, report. Each job starts when "
        "those it depends on have ended, and works if they have completed their stages. A "
        "repeated call resumes where the last one stopped. Settings: slurm/settings.sh.",
    )
    parser.add_argument(
        "command", nargs="?", choices=("status", "cancel", "results"),
        help="status: show the state of every stage, and the end of the log of each failed one; "
        "cancel: cancel all jobs of the chain; results: print the arguments with which report.sh "
        "calls report.py",
    )  # fmt: skip
    parser.add_argument(
        "--dry_run", action="store_true",
        help="print the stages, the tables and figures that each feeds, and when their jobs would "
        "start, check every stage, submit nothing",
    )  # fmt: skip
    return parser


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if `status` found a failed stage; 2 if a setting or input is wrong."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command and options.dry_run:
        parser.error(f"--dry_run cannot be combined with {options.command}")
    settings = read_settings(Path(os.environ["LOCOST_ROOT"]), os.environ)
    stages = stage_graph(settings)
    if options.command == "status":
        return show_status(settings, stages)
    if options.command == "cancel":
        return cancel(settings, stages)
    if options.command == "results":
        print("\n".join(report_arguments(settings, stages)))
        return 0
    try:
        return submit(settings, stages, options.dry_run)
    except KeyboardInterrupt:
        print("interrupted; run the same command to submit the rest", file=sys.stderr)
        return INTERRUPTED


def show_status(settings: ChainSettings, stages: list[ChainStage]) -> int:
    """Print the state of every stage; 1 if one failed."""
    statuses = stage_statuses(settings, stages, slurm_commands.queue(), time.time())
    print("\n".join(status_lines(statuses)))
    return int(any(status.failed for status in statuses))


def cancel(settings: ChainSettings, stages: list[ChainStage]) -> int:
    """Cancel all jobs of the chain."""
    lines = list(cancel_jobs(settings, stages, slurm_commands.queue()))
    print("\n".join([*lines, f"{len(lines)} jobs cancelled; chain.sh resumes what is saved"]))
    return 0


def submit(settings: ChainSettings, stages: list[ChainStage], dry_run: bool) -> int:
    """Check, then submit the missing jobs, one chain.sh at a time; or only show and check them."""
    if not dry_run:
        settings.runs.mkdir(parents=True, exist_ok=True)
        lock = hold_lock(settings.runs / ".chain.lock")
        if lock is None:
            raise ValueError(
                f"another chain.sh is submitting to {settings.runs}; wait until it has ended"
            )
        os.set_inheritable(lock.fileno(), True)  # an sbatch that outlives this process keeps it
    planned = plan_stages(settings, stages, slurm_commands.queue())
    submitter = Submitter(settings, os.environ, commit(settings), f"{time.time():.0f}")
    checks = submitter.check(planned)
    if dry_run:
        print("\n".join(plan_lines(settings, planned, checks.starts, fed(stages))), flush=True)
    for note in [*checks.notes, *notes(settings, planned)]:
        print(f"note: {note}", file=sys.stderr)
    for error in checks.errors:
        print(f"error: {error}", file=sys.stderr)
    if checks.errors:
        return 2
    return 0 if dry_run else submit_checked(settings, planned, submitter)


def fed(stages: list[ChainStage]) -> dict[str, str]:
    """By stage, the report's tables and figures that need it, itself or by a later stage."""
    parts = {stage.name: set(feeds(stage.result)) for stage in stages}
    for stage in reversed(stages):
        for need in () if stage.summary else stage.needs:
            parts[need] |= parts[stage.name]
    return {name: in_words(found) for name, found in parts.items()}


def notes(settings: ChainSettings, planned: list[PlannedStage]) -> Iterator[str]:
    """What this call does not change: stale results, jobs in the queue."""
    for one in planned:
        if one.complete and one.stale:
            yield (
                f"{one.stage.name} is stale ({one.stale}) and kept; delete its folder to repeat it"
            )
    queued = sum(len(one.queued) for one in planned)
    if queued and settings.overridden:
        yield (
            f"{', '.join(settings.overridden)} of this call do not reach the {queued} jobs in the "
            "queue; `chain.sh cancel` first, or set them in slurm/settings.sh"
        )


def submit_checked(
    settings: ChainSettings, planned: list[PlannedStage], submitter: Submitter
) -> int:
    """Submit the missing jobs, replacing those that wait for a job that has ended."""
    for one in planned:
        for job in one.replaced:
            slurm_commands.cancel(job, "--state=PENDING")
            print(f"{one.stage.name}: {job.id} is submitted again, cancelled", flush=True)
    jobs = 0
    try:
        for line in submitter.submit(planned):
            print(line, flush=True)
            jobs += 1
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{described(error)}; {jobs} jobs were submitted before it; run the same command to "
            "submit the rest"
        ) from None
    queued = sum(len(one.queued) for one in planned)
    complete = sum(one.complete for one in planned)
    print(f"{jobs} jobs submitted, {queued} were in the queue, {complete} of {len(planned)} stages "
          "are complete; chain.sh status shows the progress")  # fmt: skip
    return 0


def commit(settings: ChainSettings) -> str:
    """The commit of the code, as the job scripts name it; empty without git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=settings.root, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
