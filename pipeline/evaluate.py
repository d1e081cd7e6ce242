"""Score a checkpoint: `python pipeline/evaluate.py --checkpoint DIR --data DIR --output DIR`.

Under `deepspeed pipeline/evaluate.py ...` (installed: `deepspeed --module pipeline.evaluate ...`)
the processes share the work; with `--sequence_parallel_size P` each P of them share each document.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.common.command_line import (
    RESUME_LATER,
    Parser,
    Stopped,
    add_checks,
    count_from,
    exit_on_user_error,
    program,
    raise_on_stop_signals,
    source_length,
)
from pipeline.distributed import world as distributed
from pipeline.distributed.launcher_environment import place_from_environment
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions, prepare
from pipeline.evaluation.results import SUBMISSION
from pipeline.evaluation.systems import DEFAULT_SYSTEMS, SYSTEMS
from pipeline.inference.decode import PRECISIONS
from pipeline.inference.options import (
    add_sharing_option,
    add_strategy_options,
    take_strategy,
)
from pipeline.reporting.evaluation_reader import letters_line, verdicts
from pipeline.reporting.source_use import (
    FIGURE,
    MEANING,
    documents_line,
    end_verdict,
    plot_rises,
    rises_table,
)
from pipeline.reporting.tables import ROUGE_COLUMNS, rouge_table
from pipeline.scoring.rouge import MEAN_COLUMNS, SCROLLS_TYPES
from pipeline.scoring.source_use import BY_POSITION


def parse(arguments: Sequence[str] | None) -> tuple[EvaluationOptions, str]:
    """The options, and what to check instead of evaluating: `dry_run`, `check_arguments`, nothing.

    Exits with status 2 on an invalid option.

    Raises ValueError for generation options that do not go together.
    """
    parser = Parser(prog=program("evaluate.py"), description=__doc__)
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="kept checkpoint (RUN/best) or model folder"
    )
    parser.add_argument("--data", type=Path, required=True, help="test set, a dataset folder")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="folder for predictions and results.json; an interrupted evaluation is resumed",
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        help="model; lead: the document's first sentences; lead_words: its first words, as many as "
        "the mean reference has; permuted: the model given another document (default: "
        f"{' '.join(DEFAULT_SYSTEMS)})",
    )
    parser.add_argument(
        "--batch_size",
        type=count_from(1),
        default=8,
        help="documents per generated batch (default 8)",
    )
    parser.add_argument(
        "--limit",
        type=count_from(0),
        default=0,
        help="evaluate the first documents only; 0: all (default)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="bf16",
        help="type of the matrix products (default bf16)",
    )
    parser.add_argument(
        "--source_length",
        type=source_length,
        help="maximum source length in tokens with EOS; 0: the whole text (default: the dataset's)",
    )
    parser.add_argument(
        "--lead_sentences",
        type=count_from(1),
        default=3,
        help="sentences of the lead baseline (default 3)",
    )
    parser.add_argument(
        "--stemmer", action="store_true", help="apply the Porter stemmer in ROUGE (default: no)"
    )
    parser.add_argument(
        "--source_use_by_position",
        action="store_true",
        help="also measure how far the model reads: the rise of the loss when each tenth of the "
        "source is exchanged for that of another document",
    )
    parser.add_argument(
        "--scrolls_submission",
        action="store_true",
        help="also summarise documents without a reference, and write scrolls_submission.json (id "
        "to summary) for a hidden test set; model only, unless --systems is given",
    )
    add_checks(parser)
    add_sharing_option(parser)
    add_strategy_options(parser)
    values = vars(parser.parse_args(arguments))
    del values["local_rank"]
    checks = [name for name in ("dry_run", "check_arguments") if values.pop(name)]
    strategy = take_strategy(values)
    every = ("model",) if values["scrolls_submission"] else DEFAULT_SYSTEMS
    systems = tuple(values.pop("systems") or every)
    options = EvaluationOptions(**values, systems=systems, strategy=strategy)
    return options, checks[0] if checks else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate and print the table.

    Exit status: 0; 2 for input that cannot be evaluated; 85 when a signal stopped it, for the same
    command to resume.
    """
    with exit_on_user_error():
        is_main = place_from_environment(os.environ)[0] == 0
        options, check = parse(arguments)
        if check:  # needs no other process
            if is_main:
                known = prepare(options).describe() if check == "dry_run" else "valid arguments"
                print(f"ready: {known}")
            return 0
        world = distributed.start()
    raise_on_stop_signals()
    try:
        with exit_on_user_error(speaks=is_main):  # on all processes alike
            results, worked = evaluate(options, world)
    except Stopped as stop:
        sys.stdout.flush()
        print(
            f"stopped: {stop} (rank {world.rank}); the finished summaries are kept, the same "
            "command resumes",
            file=sys.stderr,
            flush=True,
        )
        os._exit(RESUME_LATER)  # without waiting for the other processes
    finally:
        distributed.stop()
    if not is_main:
        return 0
    if not worked:
        print(f"{options.output} is complete, nothing to do")
    print("\n".join(summary(results)))
    if options.source_use_by_position:
        print(f"{write_figure(results, options.output)} written")
    for line in warnings(results):
        print(line, file=sys.stderr)
    if options.scrolls_submission:
        print(f"{options.output / SUBMISSION} written")
    return 0


def summary(results: Mapping[str, Any]) -> Iterator[str]:
    """The table and remarks on it, in lines."""
    if results["systems"]:
        rouge, mean = results["settings"]["rouge"], results["mean"]
        stemmer = "with the stemmer" if rouge["stemmer"] else "no stemmer"
        yield (
            f"\n{results['examples']} documents, F1 in percent with 95 % intervals "
            f"({rouge['package']}, {stemmer})\n"
        )
        yield rouge_table(results["systems"], mean)
        third = next(name for name, column in MEAN_COLUMNS.items() if column == mean)
        yield f"Mean ROUGE is the mean of ROUGE-1, ROUGE-2 and {ROUGE_COLUMNS[third]}."
        yield from filter(None, [letters_line(results)])
        yield from verdicts(results, mean)
    if found := results.get(BY_POSITION):  # absent unless it was asked for
        yield f"\n{MEANING}\n"
        yield rises_table({"model": found})
        yield f"{end_verdict(found)} {documents_line(results)}"
    for system, best in results["best_over_references"].items():
        figures = (best[name]["value"] for name in (*SCROLLS_TYPES, "geometric_mean"))
        of_three = " / ".join(f"{figure:.2f}" for figure in figures)
        yield f"SCROLLS, best over references, {system}: ROUGE-1/2/L/geometric mean {of_three}"
    for system, count in results["predictions_without_words"].items():
        if count:
            empty = results["empty_predictions"][system]
            yield (
                f"{system}: {count} predictions without ASCII letters or digits score 0, "
                f"{empty} of them empty"
            )
    if count := results["references_without_words"]:
        yield f"{count} references without ASCII letters or digits: all scores against them are 0"
    if share := results.get("unknown_share"):  # absent in results of earlier versions
        yield f"Characters that the tokenizer lacks, which the model cannot read: {share:.2%}."
    if count := results["repeated_ids"]:
        yield f"{count} ids have several documents, distinguished by their texts"


def write_figure(results: Mapping[str, Any], output: Path) -> Path:
    """Draw source use by position; the picture's path."""
    path = output / FIGURE
    plot_rises({results["settings"]["dataset"]["name"]: {"model": results[BY_POSITION]}}, path)
    return path


def warnings(results: Mapping[str, Any]) -> Iterator[str]:
    """Lines on the model's summaries that are empty or were cut; marked in its predictions."""
    empty = results["empty_predictions"].get("model", 0)
    cut = results.get("cut_predictions", {}).get("model", 0)
    tokens = results["settings"]["decoding"]["max_new_tokens"]
    if empty:
        yield f"model: {empty} summaries are empty; --min_new_tokens demands a text"
    if cut:
        yield (
            f"model: {cut} summaries are cut at {tokens:,} tokens, before the model ended them; a "
            "larger --max_new_tokens lets them go on"
        )


if __name__ == "__main__":
    sys.exit(main())
