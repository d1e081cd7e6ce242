"""BERTScore and BLANC of a finished evaluation, with a model from a local folder.

`python pipeline/metrics.py bert_score --evaluation DIR --model FOLDER --layer N`
`python pipeline/metrics.py blanc --evaluation DIR --model FOLDER`
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.common.command_line import Parser, add_checks, count_from, exit_on_user_error
from pipeline.scoring.blanc import PYTHON, VARIANTS, Variant, blanc, blanc_model, check_python
from pipeline.scoring.finished_evaluation import read_finished


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an invalid option."""
    parser = Parser(prog="metrics.py", description=__doc__)
    commands = parser.add_subparsers(dest="metric", required=True)

    def command(name: str, text: str, batch_size: int) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument(
            "--evaluation",
            type=Path,
            required=True,
            help="output folder of evaluate.py; results are written there",
        )
        one.add_argument("--system", default="model", help="system to score (default model)")
        one.add_argument("--model", type=Path, required=True, help="model folder for transformers")
        one.add_argument(
            "--batch_size",
            type=count_from(1),
            default=batch_size,
            help=f"texts per batch (default {batch_size})",
        )
        add_checks(one)
        return one

    one = command("bert_score", "summaries against references, by token similarity", 64)
    one.add_argument(
        "--layer",
        type=count_from(0),
        required=True,
        help="layer of the embeddings: roberta-large 17, ...",
    )
    one.add_argument(
        "--baseline", type=Path, help="rescale with this baseline file of the package (LAYER,P,R,F)"
    )
    one = command("blanc", "summaries against documents, by masked-token prediction", 8)
    one.add_argument(
        "--variant", choices=VARIANTS, default=Variant.variant, help="which BLANC (default help)"
    )
    one.add_argument(
        "--gap",
        type=count_from(1),
        default=Variant.gap,
        help="mask every N-th token (default 2, as its authors advise; their paper: 6)",
    )
    one.add_argument("--data", type=Path, help="test set (default: the one that evaluate.py read)")
    one.add_argument(
        "--python",
        type=Path,
        default=PYTHON,
        help="Python that has BLANC (default: that of `make legacy`)",
    )
    return parser.parse_args(arguments)


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Score and print. Exit status: 0; 2 for input that cannot be scored."""
    options = parse(arguments)
    if options.check_arguments:
        check_model(options)
        print("ready: valid arguments")
        return 0
    finished = read_finished(options.evaluation, options.system)
    if options.dry_run:
        check_model(options)
        print(f"ready: {len(finished.summaries):,} summaries")
        return 0
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
    else:  # imported late: needs packages that BLANC does not
        from pipeline.scoring.bert_score import BertScorer, bert_score, read_baseline

        baseline = options.baseline and read_baseline(options.baseline, options.layer)
        scorer = BertScorer(options.model, options.layer, options.batch_size)
        result = bert_score(finished, scorer, baseline)
    print(described(result))
    return 0


def check_model(options: argparse.Namespace) -> None:
    """Raise ValueError where the metric cannot use the model."""
    if options.metric == "blanc":
        check_python(options.python)
        blanc_model(options.model, options.variant)
    else:
        from pipeline.scoring.bert_score import BertScorer, read_baseline

        if options.baseline:
            read_baseline(options.baseline, options.layer)
        BertScorer(options.model, options.layer)


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
    sys.exit(main())
