"""Collect runs and evaluations into report.md and report.html, with loss.png and rouge.png."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse

from pipeline.command_line import Parser
from pipeline.evaluation.command_line import exit_on_user_error
from pipeline.evaluation.report import (
    Material,
    read_evaluation,
    read_run,
    read_stages,
    write_report,
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; every argument is a path and is needed."""
    parser = Parser(prog="report.py", description=__doc__)
    for name, meaning in {
        "pretrain": "run folder of the pre-training",
        "finetune": "run folder of the fine-tuning that started from it",
        "scratch": "run folder of the fine-tuning that started from random weights",
        "evaluation": "evaluate.py's output for the fine-tuned model, all systems",
        "scratch_evaluation": "evaluate.py's output for the scratch model",
        "stages": "JSON list of {name, seconds, command}",
        "output": "folder to write into",
    }.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=meaning)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Write the report; exits with status 2, after one line, when a part of it is not there."""
    options = parse(arguments)
    with exit_on_user_error():
        material = Material(
            pretrain=read_run(options.pretrain),
            finetune=read_run(options.finetune),
            scratch=read_run(options.scratch),
            evaluation=read_evaluation(options.evaluation, ("model", "lead", "permuted")),
            scratch_evaluation=read_evaluation(options.scratch_evaluation, ("model",)),
            stages=read_stages(options.stages),
        )
        write_report(material, options.output)
    print(f"{options.output / 'report.md'} and {options.output / 'report.html'} written")


if __name__ == "__main__":
    main()
