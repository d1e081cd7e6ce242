"""Compare LOCOST, LongT5 and LED at a small size: pre-train, fine-tune on long documents, score.

`python pipeline/replica.py` runs it on two CPU cores: three systems of one size, each pre-trained
once and fine-tuned with three seeds, on the same texts in the same order by the same recipes.
docs/replica.md has the results. Each stage is one of the project's own command lines
(`pipeline/stages/replica.py`). A repeated command skips completed stages and resumes the rest.
"""

if not __package__:
    import _start  # noqa: F401
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.common.command_line import Parser, exit_on_user_error
from pipeline.common.paths import ROOT
from pipeline.stages.replica import ReplicaStages, settings
from pipeline.stages.stage_runner import CommandStage, run_stages


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
    options = parser.parse_args(arguments)
    replica = ReplicaStages(options.output.resolve(), options.quick)
    report = CommandStage("report", "Report", replica.report)
    return run_stages(replica.folder, settings(options.quick), replica.stages(), report)


if __name__ == "__main__":
    sys.exit(main())
