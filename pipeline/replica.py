"""Compare LOCOST, LongT5 and LED at a small size: search, pre-train, fine-tune, score.

`python pipeline/replica.py` runs it on two CPU cores: three systems of one size, each tuned by the
same small search, then pre-trained and fine-tuned with three seeds on the same texts in the same
order. docs/replica.md has the results. Each stage is one of the project's own command lines
(`pipeline/stages/replica.py`). A repeated command skips completed stages and resumes the rest; a
search or a seed whose result is in --results is complete.
"""

if not __package__:
    import _start  # noqa: F401
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.common.command_line import Parser, exit_on_user_error
from pipeline.common.paths import ROOT
from pipeline.stages.replica import ReplicaStages, open_results, settings
from pipeline.stages.stage_runner import CommandStage, run_stages

RESULTS = ROOT / "benchmarks" / "replica"


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 with the report written, else that of the stage that failed."""
    parser = Parser(prog="replica.py", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="all stages with less data: a few minutes"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "replica", help="folder for everything (replica)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the results by search and by seed (benchmarks/replica, which holds those "
        "of docs/replica.md; with --quick, results in the output)",
    )
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    results = options.results or (output / "results" if options.quick else RESULTS)
    wanted = settings(options.quick)
    open_results(results.resolve(), wanted)
    replica = ReplicaStages(output, results.resolve(), options.quick)
    report = CommandStage("report", "Report", replica.report)
    return run_stages(replica.folder, wanted, replica.stages(), report)


if __name__ == "__main__":
    sys.exit(main())
