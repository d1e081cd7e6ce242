"""Have a large language model rate the summaries of a finished evaluation, from 1 to 5.

The server must speak the OpenAI chat API; set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL.
`python pipeline/judge.py --evaluation DIR --price_input P --price_output P --dry_run`
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.common.command_line import Parser, add_checks, count_from, exit_on_user_error
from pipeline.scoring.chat_client import Pace, endpoint_from_environment
from pipeline.scoring.finished_evaluation import read_finished
from pipeline.scoring.judge import PROMPT, REQUEST, Judge, JudgeSettings, Prices, read_prompt


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an invalid option."""
    parser = Parser(prog="judge.py", description=__doc__)

    def add(name: str, kind: Any, text: str, default: Any = None, required: bool = False) -> None:
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(
            f"--{name}", type=kind, default=default, required=required, help=text + shown
        )

    add(
        "evaluation", Path, "output folder of evaluate.py; ratings are written there", required=True
    )
    add("system", str, "system whose summaries are rated", "model")
    add("data", Path, "test set (default: the one that evaluate.py read)")
    add("samples", count_from(1), "examples, sampled at random", JudgeSettings.samples)
    add("seed", count_from(0), "seed of the sample", JudgeSettings.seed)
    parser.add_argument(
        "--prompt", type=Path, default=PROMPT, help="prompt file with {document} and {summary}"
    )
    add("document_words", count_from(0), "words of a document shown; 0: all", 0)
    add("request", json_object, "further fields of a request, as JSON", json.dumps(REQUEST))
    add("price_input", amount, "price per million input tokens; 0: own server", required=True)
    add("price_output", amount, "price per million output tokens", required=True)
    add("max_cost", amount, "total budget", 0.0)
    add("concurrency", count_from(1), "concurrent requests", Pace.concurrency)
    add("per_minute", count_from(0), "requests per minute; 0: no limit", Pace.per_minute)
    add("timeout", count_from(1), "timeout of a request in seconds", round(Pace.timeout_s))
    add("tries", count_from(1), "attempts per request, with exponential backoff", Pace.tries)
    add_checks(parser)  # a dry run prints the estimated cost without sending a request
    return parser.parse_args(arguments)


def amount(text: str) -> float:
    """A price or a budget, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected an amount, 0 or more")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object of request fields that does not set the question itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or {"model", "messages", "stream", "n"} & set(value):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a JSON object without model, messages, stream and n"
        )
    return value


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Judge and print. Exit status: 0; 2 for a user error, 130 interrupted, with replies kept."""
    options = parse(arguments)
    if options.check_arguments:
        endpoint_from_environment()
        read_prompt(options.prompt)
        print("ready: valid arguments")
        return 0
    finished = read_finished(options.evaluation, options.system)
    judge = Judge(
        finished,
        finished.documents(options.data),
        endpoint_from_environment(),
        JudgeSettings(
            samples=options.samples,
            seed=options.seed,
            prompt=options.prompt,
            document_words=options.document_words,
            request=options.request,
        ),
        Prices(options.price_input, options.price_output, options.max_cost),
    )
    for remark in finished.remarks():
        print(remark)
    pace = Pace(options.concurrency, options.per_minute, options.timeout, options.tries)
    with judge.replies() as store:
        print(judge.cost_line(store.records), flush=True)
        if options.dry_run:
            return 0
        try:
            result = judge.run(store, pace)
        except KeyboardInterrupt:
            print(f"stopped; {len(store.records)} replies are kept", file=sys.stderr)
            return 130
    print(described(result))
    return 0


def described(result: dict[str, Any]) -> str:
    """A result in a few lines."""
    lines = [f"{result['column']}, {result['examples']} of {result['asked']} rated"]
    for name, score in result["scores"].items():
        lines.append(f"{name}: {score['value']:.2f} ({score['low']:.2f} to {score['high']:.2f})")
    for kind in ("malformed", "refused", "rejected"):
        if result[kind]:
            lines.append(f"{result[kind]} {kind}")
    if result["truncated"]["documents"]:
        words, share = result["truncated"]["limit"], result["truncated"]["documents"]
        lines.append(f"{share:.1%} of documents cut at {words} words")
    lines.append(f"cost {result['cost']:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
