"""Score a checkpoint: `python pipeline/evaluate.py --checkpoint DIR --data DIR --output DIR`.

Under `deepspeed pipeline/evaluate.py ...` the processes share the work.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import os

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
from pipeline.evaluation.run import SYSTEMS, Options, evaluate, prepare
from pipeline.evaluation.tables import rouge_table, signed
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
        default=list(SYSTEMS),
        help="the model; the document's first sentences; the model given another "
        "document (default: all)",
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
        "--dry_run", action="store_true", help="check checkpoint, data and output, then exit"
    )
    add_strategy_options(parser)
    values = vars(parser.parse_args(arguments))
    del values["local_rank"]
    dry_run = values.pop("dry_run")
    strategy = take_strategy(values)
    options = Options(**{**values, "systems": tuple(values["systems"]), "strategy": strategy})
    return options, dry_run


def main(arguments: list[str] | None = None) -> None:
    """Evaluate and print the table; exits with status 2 on input that cannot be evaluated."""
    with exit_on_user_error():
        options, dry_run = parse(arguments)
        if dry_run:  # joins no other process: one alone finds out as much
            if place_from_environment(os.environ)[0] == 0:
                print(f"ready: {prepare(options).describe()}")
            return
        try:
            world = distributed.start()
            results, worked = evaluate(options, world)
        finally:
            distributed.stop()
    if not world.is_main:
        return
    if not worked:
        print(f"{options.output} is complete, nothing to do")
    print(f"\n{results['examples']} documents, F1 in percent\n\n{rouge_table(results['systems'])}")
    for other, difference in results["model_minus"].items():
        print(f"Mean ROUGE, model minus {other}: {signed(difference['mean_rouge'])}")
    for system, count in results["predictions_without_words"].items():
        if count:
            print(f"{system}: {count} predictions without ASCII letters or digits score 0")
    if results["model_minus"].get("permuted", {}).get("mean_rouge", {}).get("value", 1) <= 0:
        print("The true document scores no higher than another one: the model ignores its input.")


if __name__ == "__main__":
    main()
