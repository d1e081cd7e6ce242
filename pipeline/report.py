"""Make report.md, report.html and their pictures from runs, evaluations and measurements.

`paper`: the paper's nine tables and its figures, with ours. `demo`: the results of `make demo`.
`replica`: the results of replica.py, which `replica-result` reads from its trainings.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.common.command_line import Parser, count_from, exit_on_user_error
from pipeline.common.files import check_folder, replace_json, replace_text
from pipeline.common.html import refreshed
from pipeline.evaluation.results import TRAINED
from pipeline.reporting import demo as demo_report
from pipeline.reporting import replica as replica_report
from pipeline.reporting.measurements import read_measurements
from pipeline.reporting.paper import report as paper_report
from pipeline.reporting.paper.inputs import (
    PaperInputs,
    SetEvaluation,
    arxiv_sweeps,
    check_manifest,
    check_one_model,
    check_own_models,
    read_set_evaluation,
)
from pipeline.reporting.paper.kernels import read_kernels
from pipeline.reporting.paper.published import LOCOST, paper
from pipeline.reporting.replica_results import read_replica, search_result, seed_result
from pipeline.reporting.run_reader import read_run
from pipeline.reporting.stage_times import read_stages
from pipeline.shards import Dataset

Named = tuple[str, str, Path]
"""A set or a number of tokens, a system, and the folder."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an invalid one."""
    parser = Parser(prog="report.py", description=__doc__)
    pages = parser.add_subparsers(dest="page", required=True)
    page = pages.add_parser(
        "paper", help="the paper's tables and figures with ours, losses and cost"
    )
    page.add_argument("--pretrain", type=Path, help="run folder of the pre-training")
    sets, systems = ", ".join(paper().sets), ", ".join(paper().systems)
    tokens = "TOKENS[:SYSTEM]=FOLDER"
    for name, kind, form, meaning in (
        ("finetune", _of_set, "SET=FOLDER", "run folders of fine-tunings"),
        (
            "evaluation", _of_set, "SET[:SYSTEM]=FOLDER",
            f"evaluate.py's outputs; the paper's sets are {sets}, its systems {systems}",
        ),
        ("extrapolation", _of_tokens, tokens, "evaluations of arXiv that read TOKENS"),
        ("context", _of_tokens, tokens, "evaluations of BookSum-Book, trained at TOKENS"),
        ("data", _of_set, "SET=FOLDER", "dataset folders, any number of splits"),
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
    page.add_argument(
        "--kernels", type=Path, help="plot_kernels.py's output for the pre-trained model"
    )
    page.add_argument(
        "--missing",
        nargs="+",
        default=[],
        metavar="STAGE",
        help="what the page must say is missing; then it may have no results at all",
    )
    page.add_argument("--output", type=Path, required=True, help="folder to write into")
    page.add_argument("--dry_run", action="store_true", help="check the inputs, then exit")
    page = pages.add_parser("demo", help="the demo's report; every argument is required")
    for name, meaning in {
        "pretrain": "run folder of the pre-training",
        "finetune": "run folder of the fine-tuning that started from it",
        "scratch": "run folder of the fine-tuning that started from random weights",
        "evaluation": "evaluate.py's output for the fine-tuned model, with the systems "
        f"{', '.join(demo_report.OTHERS.values())}",
        "scratch_evaluation": "evaluate.py's output for the scratch model",
        "data": "dataset folder of the test set that was evaluated",
        "stages": "JSON list of {name, seconds, command}",
        "output": "folder to write into",
    }.items():
        page.add_argument(f"--{name}", type=Path, required=True, help=meaning)
    page = pages.add_parser("replica", help="the replica's report")
    page.add_argument("--results", type=Path, required=True, help="replica.py's folder of results")
    where = page.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", type=Path, help="folder to write the report into")
    where.add_argument("--refresh", type=Path, metavar="PAGE", help="or: a Markdown page's part")
    page = pages.add_parser("replica-result", help="a search or a seed of the replica as one file")
    page.add_argument("--folder", type=Path, required=True, help="replica.py's output folder")
    page.add_argument("--system", required=True, help="name of the system")
    which = page.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=count_from(0), help="the seed")
    which.add_argument("--search", action="store_true", help="the search")
    page.add_argument("--output", type=Path, required=True, help="JSON file to write")
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
    """Folders by set or tokens, then by system; ValueError where one has two folders."""
    found: dict[str, dict[str, Path]] = {}
    for name, system, folder in named:
        if system in found.setdefault(name, {}):
            raise ValueError(f"--{option} names {name} of {system} twice; give one folder")
        found[name][system] = folder
    return found


def _of_locost(option: str, named: list[Named]) -> dict[str, Path]:
    """LOCOST's folders by set; ValueError where a system is named, or a set twice."""
    folders = _folders(option, named)
    if other := next((s for systems in folders.values() for s in systems if s != LOCOST), None):
        raise ValueError(f"--{option} takes SET=FOLDER, without a system ({other})")
    return {name: systems[LOCOST] for name, systems in folders.items()}


def _sweep(
    option: str, named: list[Named], read: Callable[[Path, int], SetEvaluation]
) -> dict[str, dict[int, SetEvaluation]]:
    """Evaluations by system, then by tokens."""
    found: dict[str, dict[int, SetEvaluation]] = {}
    for tokens, systems in _folders(option, named).items():
        for system, folder in systems.items():
            found.setdefault(system, {})[int(tokens)] = read(folder, int(tokens))
    return found


def _read_at(folder: Path, tokens: int) -> SetEvaluation:
    """An evaluation of arXiv that read `tokens` source tokens; ValueError on another number."""
    found = read_set_evaluation(folder, "arxiv")
    source = found.results["settings"]["decoding"].get("source_length", tokens)
    if source != tokens:
        read = f"{source} tokens" if isinstance(source, int) else f"its sources {source}"
        raise ValueError(
            f"{folder} read {read}, not {tokens}; evaluate with --source_length {tokens}"
        )
    return found


def _trained_at(folder: Path, tokens: int) -> SetEvaluation:
    """An evaluation of BookSum-Book by a model trained on `tokens` source tokens.

    ValueError where it records another number, which earlier versions do not.
    """
    found = read_set_evaluation(folder, "booksum_book")
    trained = found.results.get(TRAINED) or tokens
    if trained != tokens:
        raise ValueError(
            f"{folder} is of a model trained on {trained} tokens, not on {tokens}; give it as "
            f"--context {trained}={folder}"
        )
    return found


def write_paper_page(options: argparse.Namespace) -> str:
    """The message to print. Raises ValueError or OSError where an input is missing or partial."""
    inputs = read_paper_inputs(options)
    evaluations = len(list(inputs.labelled()))
    given = inputs.runs or evaluations or inputs.measurements or inputs.manifests or inputs.kernels
    if not (given or inputs.missing):
        raise ValueError(
            "nothing to report: give --pretrain, --finetune, --evaluation, --extrapolation, "
            "--context, --systems, --kernels or --data"
        )
    check_folder(options.output)
    if options.dry_run:
        return f"ready: {len(inputs.runs)} training runs, {evaluations} evaluations"
    paper_report.write_report(inputs, options.output)
    missing = f"; missing: {', '.join(inputs.missing)}" if inputs.missing else ""
    return written(options.output) + missing


def read_paper_inputs(options: argparse.Namespace) -> PaperInputs:
    """All inputs named. Raises ValueError or OSError where one is missing, incomplete or of another
    set than its column."""
    manifests: dict[str, list[dict]] = {}
    for name, _, folder in options.data:
        manifest = Dataset(folder).manifest
        check_manifest(folder, name, manifest)
        manifests.setdefault(name, []).append(manifest)
    inputs = PaperInputs(
        pretrain=read_run(options.pretrain) if options.pretrain else None,
        finetune={
            name: read_run(folder)
            for name, folder in _of_locost("finetune", options.finetune).items()
        },
        evaluations={
            name: {system: read_set_evaluation(folder, name) for system, folder in systems.items()}
            for name, systems in _folders("evaluation", options.evaluation).items()
        },
        extrapolation=_sweep("extrapolation", options.extrapolation, _read_at),
        contexts=_sweep("context", options.context, _trained_at),
        measurements=read_measurements(options.systems) if options.systems else None,
        manifests=manifests,
        kernels=read_kernels(options.kernels) if options.kernels else None,
        missing=options.missing,
    )
    for system, read in arxiv_sweeps(inputs).items():
        check_one_model(read, system)
    for system, trained in inputs.contexts.items():
        check_own_models(trained, system)
    return inputs


def write_demo_page(options: argparse.Namespace) -> str:
    """The message to print. Raises ValueError or OSError where an input is missing."""
    read_evaluation = demo_report.read_model_evaluation
    evaluation = read_evaluation(options.evaluation, demo_report.SYSTEMS)
    inputs = demo_report.DemoInputs(
        pretrain=read_run(options.pretrain),
        finetune=read_run(options.finetune),
        scratch=read_run(options.scratch),
        evaluation=evaluation,
        scratch_evaluation=read_evaluation(options.scratch_evaluation, ("model",)),
        documents=demo_report.read_documents(options.data, evaluation),
        stages=read_stages(options.stages),
    )
    demo_report.write_report(inputs, options.output)
    return written(options.output)


def write_replica_page(options: argparse.Namespace) -> str:
    """The message to print. Raises ValueError or OSError where there are no results."""
    results = read_replica(options.results)
    if options.refresh:
        page = options.refresh.read_text(encoding="utf-8")
        text = replica_report.page_lines(results)
        replace_text(options.refresh, refreshed(page, "replica", text))
        return f"{options.refresh}, from {options.results}"
    replica_report.write_report(results, options.output)
    return written(options.output)


def write_replica_result(options: argparse.Namespace) -> str:
    """The message to print. Raises ValueError or OSError where a part is missing."""
    if options.search:
        found = search_result(options.folder, options.system)
    else:
        found = seed_result(options.folder, options.system, options.seed)
    replace_json(options.output, found)
    return f"{options.output} written"


def written(output: Path) -> str:
    """The message that names the files written."""
    return f"{output / 'report.md'} and {output / 'report.html'} written"


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report. Exit status: 0; 2, after one line, when a part of it is missing."""
    options = parse(arguments)
    pages = {
        "paper": write_paper_page, "demo": write_demo_page, "replica": write_replica_page,
        "replica-result": write_replica_result,
    }  # fmt: skip
    print(pages[options.page](options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
