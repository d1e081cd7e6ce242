"""Have a large language model rate the summaries of a finished evaluation, from 1 to 5.

The server speaks OpenAI's chat protocol; OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL name it.
`python pipeline/judge.py --evaluation DIR --price_input P --price_output P --dry_run`
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
from typing import Any

from pipeline.command_line import Parser
from pipeline.evaluation.asking import Pace, server_from_environment
from pipeline.evaluation.command_line import count_from, exit_on_user_error
from pipeline.evaluation.finished import read_finished
from pipeline.evaluation.judge import PROMPT, REQUEST, Judge, Prices, Settings


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on one that cannot be."""
    parser = Parser(prog="judge.py", description=__doc__)

    def add(name: str, kind: Any, text: str, default: Any = None, required: bool = False) -> None:
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(
            f"--{name}", type=kind, default=default, required=required, help=text + shown
        )

    add("evaluation", Path, "evaluate.py's output; the ratings go there", required=True)
    add("system", str, "whose summaries", "model")
    add("data", Path, "the test set (default: where evaluate.py found it)")
    add("samples", count_from(1), "examples drawn at random", Settings.samples)
    add("seed", count_from(0), "seed of the draw", Settings.seed)
    parser.add_argument(
        "--prompt", type=Path, default=PROMPT, help="file with {document}, {summary}"
    )
    add("document_words", count_from(0), "words of a document shown; 0: all", 0)
    add("request", json_object, "what else a request says, as JSON", json.dumps(REQUEST))
    add("price_input", amount, "of a million tokens read; 0: own server", required=True)
    add("price_output", amount, "of a million tokens written", required=True)
    add("max_cost", amount, "what may be spent in all", 0.0)
    add("concurrency", count_from(1), "questions at once", Pace.concurrency)
    add("per_minute", count_from(0), "questions a minute; 0: as they come", Pace.per_minute)
    add("timeout", count_from(1), "seconds to wait for an answer", round(Pace.timeout_s))
    add("tries", count_from(1), "how often a question is put, ever slower", Pace.tries)
    parser.add_argument(
        "--dry_run", action="store_true", help="print what it would cost, ask nothing, then exit"
    )
    return parser.parse_args(arguments)


def amount(text: str) -> float:
    """A price or a sum, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected an amount, 0 or more")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object that leaves the question itself alone."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or {"model", "messages", "stream", "n"} & set(value):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a JSON object without model, messages, stream and n"
        )
    return value


def main(arguments: list[str] | None = None) -> None:
    """Judge and print; exits with status 2 when something is wrong, replies so far being kept."""
    with exit_on_user_error():
        options = parse(arguments)
        finished = read_finished(options.evaluation, options.system)
        judge = Judge(
            finished,
            finished.documents(options.data),
            server_from_environment(),
            Settings(
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
                return
            try:
                result = judge.run(store, pace)
            except KeyboardInterrupt:
                print(f"stopped; {len(store.records)} replies are kept", file=sys.stderr)
                sys.exit(130)
    print(described(result))


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
    main()
