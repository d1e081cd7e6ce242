"""BERTScore and BLANC of a finished evaluation, with a model from a local folder.

`python pipeline/metrics.py bert_score --evaluation DIR --model FOLDER --layer N`
`python pipeline/metrics.py blanc --evaluation DIR --model FOLDER`
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
from typing import Any

from pipeline.command_line import Parser
from pipeline.evaluation.blanc import PYTHON, VARIANTS, Variant, blanc
from pipeline.evaluation.command_line import count_from, exit_on_user_error
from pipeline.evaluation.finished import read_finished


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on one that cannot be."""
    parser = Parser(prog="metrics.py", description=__doc__)
    commands = parser.add_subparsers(dest="metric", required=True)

    def command(name: str, text: str, batch_size: int) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument(
            "--evaluation", type=Path, required=True, help="evaluate.py's output; results go there"
        )
        one.add_argument("--system", default="model", help="whose summaries (default model)")
        one.add_argument("--model", type=Path, required=True, help="model folder of transformers")
        one.add_argument(
            "--batch_size",
            type=count_from(1),
            default=batch_size,
            help=f"texts read together (default {batch_size})",
        )
        return one

    one = command("bert_score", "summaries against references, by similar tokens", 64)
    one.add_argument(
        "--layer", type=count_from(0), required=True, help="whose output: roberta-large 17, ..."
    )
    one.add_argument(
        "--baseline", type=Path, help="rescale by this file LAYER,P,R,F of the package"
    )
    one = command("blanc", "summaries against documents, by masked tokens guessed", 8)
    one.add_argument(
        "--variant", choices=VARIANTS, default=Variant.variant, help="which BLANC (default help)"
    )
    one.add_argument(
        "--gap",
        type=count_from(1),
        default=Variant.gap,
        help="every so many tokens one is masked (default 2, its authors' advice; their paper: 6)",
    )
    one.add_argument("--data", type=Path, help="the test set (default: where evaluate.py found it)")
    one.add_argument(
        "--python", type=Path, default=PYTHON, help="BLANC's interpreter (default: `make legacy`'s)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Score and print; exits with status 2 on input that cannot be scored."""
    with exit_on_user_error():
        options = parse(arguments)
        finished = read_finished(options.evaluation, options.system)
        for remark in finished.remarks():
            print(remark)
        if options.metric == "blanc":
            result = blanc(
                finished,
                finished.documents(options.data),
                options.model,
                Variant(variant=options.variant, gap=options.gap),
                options.python,
                options.batch_size,
            )
        else:  # imported late: it needs packages that BLANC does without
            from pipeline.evaluation.bert_score import Scorer, bert_score, read_baseline

            baseline = options.baseline and read_baseline(options.baseline, options.layer)
            scorer = Scorer(options.model, options.layer, options.batch_size)
            result = bert_score(finished, scorer, baseline)
        print(described(result))


def described(result: dict[str, Any]) -> str:
    """A result in a few lines."""
    lines = [f"{result['column']}, {result['examples']} documents"]
    for name, score in result["scores"].items():
        lines.append(f"{name}: {score['value']:.2f} ({score['low']:.2f} to {score['high']:.2f})")
    limit = result["truncated"]["limit"]
    for what, share in result["truncated"].items():
        if what != "limit" and share:
            lines.append(f"{share:.1%} of {what.replace('_', ' ')} cut at {limit} tokens")
    if result.get("not_scored"):
        first = result["not_scored"][0]
        lines.append(f"{len(result['not_scored'])} not scored; {first['id']}: {first['error']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
