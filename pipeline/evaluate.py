"""Score a checkpoint: `python pipeline/evaluate.py --checkpoint DIR --data DIR --output DIR`.

Under `deepspeed pipeline/evaluate.py ...` the processes share the work.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline import distributed
from pipeline.command_line import Parser
from pipeline.evaluation.command_line import (
    add_strategy_options,
    count_from,
    exit_on_user_error,
    source_length,
    take_strategy,
)
from pipeline.evaluation.decode import PRECISIONS
from pipeline.evaluation.paper import MEAN
from pipeline.evaluation.rouge import SCROLLS_TYPES
from pipeline.evaluation.run import (
    DEFAULT_SYSTEMS,
    SUBMISSION,
    SYSTEMS,
    Options,
    evaluate,
    prepare,
)
from pipeline.evaluation.tables import ROUGE_COLUMNS, rouge_table, signed
from pipeline.launch import place_from_environment


def parse(arguments: list[str] | None) -> tuple[Options, bool]:
    """The options on the command line, and whether only to check; exits with status 2 on one that
    cannot be.

    Raises ValueError for generation options that do not go together.
    """
    parser = Parser(prog="evaluate.py", description=__doc__)
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="kept checkpoint (RUN/best) or model folder"
    )
    parser.add_argument("--data", type=Path, required=True, help="test set, a dataset folder")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="folder for predictions and results.json; goes on with what is there",
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        help="the model; the document's first sentences; its first words, as many as a reference "
        "has in the mean; the model given another document (default: "
        f"{' '.join(DEFAULT_SYSTEMS)})",
    )
    parser.add_argument(
        "--batch_size",
        type=count_from(1),
        default=8,
        help="documents generated together (default 8)",
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
        help="longest source, in tokens with EOS; 0: the whole text (default: as "
        "the dataset was cut)",
    )
    parser.add_argument(
        "--lead_sentences",
        type=count_from(1),
        default=3,
        help="sentences of the lead baseline (default 3)",
    )
    parser.add_argument(
        "--stemmer", action="store_true", help="ROUGE compares words by their stems (default: no)"
    )
    parser.add_argument(
        "--scrolls_submission",
        action="store_true",
        help="summarise documents without a reference too, and write scrolls_submission.json (id "
        "to summary) for a hidden test set; the model alone",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="check checkpoint, data and output, then exit"
    )
    add_strategy_options(parser)
    values = vars(parser.parse_args(arguments))
    del values["local_rank"]
    dry_run = values.pop("dry_run")
    strategy = take_strategy(values)
    every = ("model",) if values["scrolls_submission"] else DEFAULT_SYSTEMS
    systems = tuple(values.pop("systems") or every)
    options = Options(**values, systems=systems, strategy=strategy)
    return options, dry_run


def main(arguments: list[str] | None = None) -> None:
    """Evaluate and print the table; exits with status 2 on input that cannot be evaluated."""
    with exit_on_user_error():
        is_main = place_from_environment(os.environ)[0] == 0
        options, dry_run = parse(arguments)
        if dry_run:  # joins no other process: one alone finds out as much
            if is_main:
                print(f"ready: {prepare(options).describe()}")
            return
        world = distributed.start()
    try:
        with exit_on_user_error(speaks=is_main):  # on all processes alike
            results, worked = evaluate(options, world)
    finally:
        distributed.stop()
    if not is_main:
        return
    if not worked:
        print(f"{options.output} is complete, nothing to do")
    print("\n".join(summary(results)))
    if options.scrolls_submission:
        print(f"{options.output / SUBMISSION} written")


def summary(results: Mapping[str, Any]) -> Iterator[str]:
    """The table and what to know of it, in lines."""
    if results["systems"]:
        rouge, mean = results["settings"]["rouge"], results["mean"]
        stemmer = "with the stemmer" if rouge["stemmer"] else "no stemmer"
        yield f"\n{results['examples']} documents, F1 in percent ({rouge['package']}, {stemmer})\n"
        yield rouge_table(results["systems"], mean)
        third = next(name for name, column in MEAN.items() if column == mean)
        yield f"Mean ROUGE is that of ROUGE-1, ROUGE-2 and {ROUGE_COLUMNS[third]}."
    for system, best in results["best_over_references"].items():
        figures = (best[name]["value"] for name in (*SCROLLS_TYPES, "geometric_mean"))
        of_three = " / ".join(f"{figure:.2f}" for figure in figures)
        yield f"SCROLLS, best over references, {system}: ROUGE-1/2/L/geometric mean {of_three}"
    for other, difference in results["model_minus"].items():
        yield f"Mean ROUGE, model minus {other}: {signed(difference[mean])}"
    for system, count in results["predictions_without_words"].items():
        if count:
            empty = results["empty_predictions"][system]
            yield (
                f"{system}: {count} predictions without ASCII letters or digits score 0, "
                f"{empty} of them empty"
            )
    if count := results["references_without_words"]:
        yield f"{count} references without ASCII letters or digits: against them all scores are 0"
    if count := results["repeated_ids"]:
        yield f"{count} ids have several documents, which are told apart by their texts"
    if results["model_minus"].get("permuted", {}).get(results["mean"], {}).get("value", 1) <= 0:
        yield (
            "The true document scores no higher than another one: that the model reads its input "
            "does not show."
        )


if __name__ == "__main__":
    main()
