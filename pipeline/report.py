"""Collect runs, evaluations and measurements into a page, report.md and report.html, with pictures.

`paper`: the paper's nine tables and its figures with ours. `demo`: what `make demo` made.
`replica`: what replica.py made.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
from collections.abc import Callable

import numpy as np

from pipeline.command_line import Parser
from pipeline.evaluation import demo_report, paper_report, replica_report
from pipeline.evaluation.command_line import exit_on_user_error
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.material import Evaluation, Material, read_evaluation, read_measurements
from pipeline.evaluation.paper import LOCOST, paper
from pipeline.evaluation.runs import read_run
from pipeline.files import check_folder
from pipeline.shards import Dataset

Named = tuple[str, str, Path]
"""What a folder is of, which system's, and the folder."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on one that cannot be."""
    parser = Parser(prog="report.py", description=__doc__)
    pages = parser.add_subparsers(dest="page", required=True)
    page = pages.add_parser("paper", help="the paper's tables and figures, and how the runs went")
    page.add_argument("--pretrain", type=Path, help="run folder of the pre-training")
    sets, systems = ", ".join(paper().sets), ", ".join(paper().systems)
    tokens = "TOKENS[:SYSTEM]=FOLDER"
    for name, kind, form, meaning in (
        ("finetune", _of_set, "SET=FOLDER", "run folders of fine-tunings"),
        (
            "evaluation", _of_set, "SET[:SYSTEM]=FOLDER",
            f"evaluate.py's outputs; the paper's sets are {sets}, its systems {systems}",
        ),
        ("extrapolation", _of_tokens, tokens, "evaluations of arXiv read at so many tokens"),
        ("context", _of_tokens, tokens, "evaluations of BookSum-Book, trained at so many tokens"),
        ("data", _of_set, "SET=FOLDER", "shards, as many splits as there are"),
    ):  # fmt: skip
        page.add_argument(
            f"--{name}",
            type=kind,
            nargs="+",
            action="extend",
            default=[],
            metavar=form,
            help=meaning,
        )
    page.add_argument(
        "--systems", type=Path, nargs="+", default=[], help="systems.json of benchmark.py systems"
    )
    page.add_argument("--output", type=Path, required=True, help="folder to write into")
    page.add_argument("--dry_run", action="store_true", help="check what is there, then exit")
    page = pages.add_parser("demo", help="the whole road in small; every argument is needed")
    for name, meaning in {
        "pretrain": "run folder of the pre-training",
        "finetune": "run folder of the fine-tuning that started from it",
        "scratch": "run folder of the fine-tuning that started from random weights",
        "evaluation": "evaluate.py's output for the fine-tuned model and "
        f"{', '.join(demo_report.OTHERS.values())}",
        "scratch_evaluation": "evaluate.py's output for the scratch model",
        "data": "the test set that was evaluated, a dataset folder",
        "stages": "JSON list of {name, seconds, command}",
        "output": "folder to write into",
    }.items():
        page.add_argument(f"--{name}", type=Path, required=True, help=meaning)
    page = pages.add_parser("replica", help="small systems side by side; every argument is needed")
    page.add_argument("--folder", type=Path, required=True, help="what replica.py made")
    page.add_argument("--systems", nargs="+", required=True, help="names of the systems")
    page.add_argument("--seeds", type=int, nargs="+", required=True, help="their seeds")
    page.add_argument("--output", type=Path, required=True, help="folder to write into")
    return parser.parse_args(arguments)


def _named(text: str, what: str) -> Named:
    name, sign, folder = text.partition("=")
    name, colon, system = name.partition(":")
    if not (name and sign and folder) or bool(colon) != bool(system):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {what}=FOLDER")
    return name, system or LOCOST, Path(folder)


def _of_set(text: str) -> Named:
    name, system, folder = _named(text, "SET")
    known = name.lower().replace("-", "_")
    if name != known and known in paper().sets:
        raise argparse.ArgumentTypeError(f"{name!r}: the set is called {known}")
    return name, system, folder


def _of_tokens(text: str) -> Named:
    tokens, system, folder = _named(text, "TOKENS")
    if not tokens.isdecimal() or int(tokens) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected TOKENS=FOLDER, at least 2 tokens")
    return tokens, system, folder


def _folders(option: str, named: list[Named]) -> dict[str, dict[str, Path]]:
    """By set or tokens, then by system. Raises ValueError where one has two folders."""
    found: dict[str, dict[str, Path]] = {}
    for name, system, folder in named:
        if system in found.setdefault(name, {}):
            raise ValueError(f"--{option} names {name} of {system} twice; give one folder")
        found[name][system] = folder
    return found


def _of_locost(option: str, named: list[Named]) -> dict[str, Path]:
    """Raises ValueError where a system is named, or a set twice."""
    folders = _folders(option, named)
    if other := next((s for systems in folders.values() for s in systems if s != LOCOST), None):
        raise ValueError(f"--{option} takes SET=FOLDER, without a system ({other})")
    return {name: systems[LOCOST] for name, systems in folders.items()}


def _sweep(
    option: str, named: list[Named], read: Callable[[Path, int], Evaluation]
) -> dict[str, dict[int, Evaluation]]:
    """By system, then by tokens."""
    found: dict[str, dict[int, Evaluation]] = {}
    for tokens, systems in _folders(option, named).items():
        for system, folder in systems.items():
            found.setdefault(system, {})[int(tokens)] = read(folder, int(tokens))
    return found


def _read_at(folder: Path, tokens: int) -> Evaluation:
    """An evaluation of arXiv that read at most so many tokens; ValueError on another."""
    found = read_evaluation(folder, "arxiv")
    source = found.results["settings"]["decoding"].get("source_length")
    if isinstance(source, int) and source != tokens:
        raise ValueError(f"{folder} read {source} tokens, not {tokens}")
    return found


def write_paper_page(options: argparse.Namespace) -> str:
    """What was done. Raises ValueError or OSError where a folder is not there or not finished."""
    material = read_material(options)
    evaluations = len(list(material.labelled()))
    if not (material.runs or evaluations or material.measurements or material.manifests):
        raise ValueError(
            "nothing to report: give --pretrain, --finetune, --evaluation, --extrapolation, "
            "--context, --systems or --data"
        )
    check_folder(options.output)
    if options.dry_run:
        return f"ready: {len(material.runs)} training runs, {evaluations} evaluations"
    paper_report.write_report(material, options.output)
    return written(options.output)


def read_material(options: argparse.Namespace) -> Material:
    """All that was named. Raises ValueError or OSError where a folder is not there or not whole."""
    manifests: dict[str, list[dict]] = {}
    for name, _, folder in options.data:
        manifests.setdefault(name, []).append(Dataset(folder).manifest)
    return Material(
        pretrain=read_run(options.pretrain) if options.pretrain else None,
        finetune={
            name: read_run(folder)
            for name, folder in _of_locost("finetune", options.finetune).items()
        },
        evaluations={
            name: {system: read_evaluation(folder, name) for system, folder in systems.items()}
            for name, systems in _folders("evaluation", options.evaluation).items()
        },
        extrapolation=_sweep("extrapolation", options.extrapolation, _read_at),
        contexts=_sweep(
            "context", options.context, lambda folder, _: read_evaluation(folder, "booksum_book")
        ),
        measurements=read_measurements(options.systems) if options.systems else None,
        manifests=manifests,
    )


def write_demo_page(options: argparse.Namespace) -> str:
    """What was done. Raises ValueError or OSError where a part is not there."""
    read_evaluation = demo_report.read_evaluation
    evaluation = read_evaluation(options.evaluation, demo_report.SYSTEMS)
    material = demo_report.Material(
        pretrain=read_run(options.pretrain),
        finetune=read_run(options.finetune),
        scratch=read_run(options.scratch),
        evaluation=evaluation,
        scratch_evaluation=read_evaluation(options.scratch_evaluation, ("model",)),
        documents=demo_report.read_documents(options.data, evaluation),
        stages=demo_report.read_stages(options.stages),
    )
    demo_report.write_report(material, options.output)
    return written(options.output)


def write_replica_page(options: argparse.Namespace) -> str:
    """What was done. Raises ValueError or OSError where a part is not there."""
    folder = options.folder
    runs = {(s, seed): folder / f"{s}-{seed}" for s in options.systems for seed in options.seeds}
    read_scores = replica_report.read_scores
    lead = read_scores(next(iter(runs.values())) / "evaluation", replica_report.LEAD)
    whole = Examples(Dataset(folder / "shards" / "test"), source_length=0, limit=len(lead))
    material = replica_report.Material(
        scores={
            system: {
                name: [read_scores(runs[system, seed] / "evaluation", name)
                       for seed in options.seeds]
                for name in ("model", replica_report.PERMUTED)
            }
            for system in options.systems
        },
        lead=lead,
        lengths=np.array([len(whole[index].source) for index in range(len(whole))]),
        runs={
            **{f"{s}, pre-training": read_run(folder / f"{s}-pretrain") for s in options.systems},
            **{f"{s}, seed {seed}": read_run(run / "finetune") for (s, seed), run in runs.items()},
        },
        measurements=read_measurements([folder / "measurements" / "systems.json"]),
        stages=demo_report.read_stages(folder / "stages.json"),
    )  # fmt: skip
    replica_report.write_report(material, options.output)
    return written(options.output)


def written(output: Path) -> str:
    """What is in the output folder now."""
    return f"{output / 'report.md'} and {output / 'report.html'} written"


def main(arguments: list[str] | None = None) -> None:
    """Write the report; exits with status 2, after one line, when a part of it is not there."""
    options = parse(arguments)
    with exit_on_user_error():
        pages = {
            "paper": write_paper_page,
            "demo": write_demo_page,
            "replica": write_replica_page,
        }
        print(pages[options.page](options))


if __name__ == "__main__":
    main()
