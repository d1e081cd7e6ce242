"""The whole pipeline on this machine: text -> shards -> trainings -> scores -> report.

`make demo` runs it. Each stage is one of the project's own command lines
(`pipeline/stages/demo.py`). A repeated command skips completed stages and resumes the rest.
"""

if not __package__:
    import _start  # noqa: F401
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.common.command_line import Parser, count_from, exit_on_user_error
from pipeline.common.paths import ROOT
from pipeline.stages.demo import DemoStages, settings
from pipeline.stages.stage_runner import CommandStage, run_stages


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 with the report written, else that of the stage that failed."""
    parser = Parser(prog="demo.py", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="all stages with less data: under 4 minutes"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "demo", help="folder for everything (demo)"
    )
    parser.add_argument(
        "--seed",
        type=count_from(0),
        default=0,
        help="of initial weights, sample order and dropout (0)",
    )
    options = parser.parse_args(arguments)
    demo = DemoStages(options.output.resolve(), options.quick, options.seed)
    report = CommandStage("report", "Report", demo.report)
    return run_stages(demo.folder, settings(options.quick, options.seed), demo.stages(), report)


if __name__ == "__main__":
    sys.exit(main())
