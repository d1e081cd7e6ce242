"""Collect runs and evaluations into a page, report.md and report.html, with loss.png and rouge.png.

`paper`: what each set scored, beside the paper. `demo`: what `make demo` made.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse

from pipeline.command_line import Parser
from pipeline.evaluation import demo_report, paper_report
from pipeline.evaluation.command_line import exit_on_user_error
from pipeline.evaluation.paper import paper
from pipeline.evaluation.results import read_results
from pipeline.evaluation.runs import read_run
from pipeline.files import check_folder

Named = list[tuple[str, Path]]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on one that cannot be."""
    parser = Parser(prog="report.py", description=__doc__)
    pages = parser.add_subparsers(dest="page", required=True)
    page = pages.add_parser("paper", help="every set beside the paper, and how the runs went")
    page.add_argument("--pretrain", type=Path, help="run folder of the pre-training")
    for name, meaning in {
        "finetune": "run folders of fine-tunings",
        "evaluation": "evaluate.py's outputs",
    }.items():
        page.add_argument(
            f"--{name}",
            type=_named,
            nargs="+",
            action="extend",
            default=[],
            metavar="SET=FOLDER",
            help=f"{meaning}; the paper's sets are {', '.join(paper().sets)}",
        )
    page.add_argument("--output", type=Path, required=True, help="folder to write into")
    page.add_argument("--dry_run", action="store_true", help="check what is there, then exit")
    page = pages.add_parser("demo", help="the whole road in small; every argument is needed")
    for name, meaning in {
        "pretrain": "run folder of the pre-training",
        "finetune": "run folder of the fine-tuning that started from it",
        "scratch": "run folder of the fine-tuning that started from random weights",
        "evaluation": "evaluate.py's output for the fine-tuned model, all systems",
        "scratch_evaluation": "evaluate.py's output for the scratch model",
        "stages": "JSON list of {name, seconds, command}",
        "output": "folder to write into",
    }.items():
        page.add_argument(f"--{name}", type=Path, required=True, help=meaning)
    return parser.parse_args(arguments)


def _named(text: str) -> tuple[str, Path]:
    name, sign, folder = text.partition("=")
    if not (name and sign and folder):
        raise argparse.ArgumentTypeError(f"{text!r}: expected SET=FOLDER")
    known = name.lower().replace("-", "_")
    if name != known and known in paper().sets:
        raise argparse.ArgumentTypeError(f"{name!r}: the set is called {known}")
    return name, Path(folder)


def _by_set(option: str, named: Named) -> dict[str, Path]:
    """Raises ValueError where a set has two folders."""
    if len(dict(named)) < len(named):
        raise ValueError(f"--{option} names a set twice; give one folder a set")
    return dict(named)


def write_paper_page(options: argparse.Namespace) -> str:
    """What was done. Raises ValueError or OSError where a folder is not there or not finished."""
    if not (options.pretrain or options.finetune or options.evaluation):
        raise ValueError("nothing to report: give --pretrain, --finetune or --evaluation")
    finetune = _by_set("finetune", options.finetune)
    evaluation = _by_set("evaluation", options.evaluation)
    material = paper_report.Material(
        pretrain=read_run(options.pretrain) if options.pretrain else None,
        finetune={name: read_run(folder) for name, folder in finetune.items()},
        evaluation={name: read_results(folder, ("model",)) for name, folder in evaluation.items()},
    )
    check_folder(options.output)
    if options.dry_run:
        return f"ready: {len(material.runs)} training runs, {len(evaluation)} evaluations"
    paper_report.write_report(material, options.output)
    return written(options.output)


def write_demo_page(options: argparse.Namespace) -> str:
    """What was done. Raises ValueError or OSError where a part is not there."""
    read_evaluation = demo_report.read_evaluation
    material = demo_report.Material(
        pretrain=read_run(options.pretrain),
        finetune=read_run(options.finetune),
        scratch=read_run(options.scratch),
        evaluation=read_evaluation(options.evaluation, ("model", "lead", "permuted")),
        scratch_evaluation=read_evaluation(options.scratch_evaluation, ("model",)),
        stages=demo_report.read_stages(options.stages),
    )
    demo_report.write_report(material, options.output)
    return written(options.output)


def written(output: Path) -> str:
    """What is in the output folder now."""
    return f"{output / 'report.md'} and {output / 'report.html'} written"


def main(arguments: list[str] | None = None) -> None:
    """Write the report; exits with status 2, after one line, when a part of it is not there."""
    options = parse(arguments)
    with exit_on_user_error():
        print({"paper": write_paper_page, "demo": write_demo_page}[options.page](options))


if __name__ == "__main__":
    main()
