"""Summarise any text: `python pipeline/summarize.py --checkpoint DIR FILE...` (- reads stdin).

The whole text is read, however long, unless --source_length says otherwise. Summaries go to
standard output, what was read, the progress, time and memory to standard error. Exit status 2: a
text could not be summarised; all others were.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import os
from dataclasses import asdict

import torch

from pipeline.benchmarking.meter import device_name
from pipeline.command_line import Parser, described
from pipeline.evaluation.command_line import (
    add_strategy_options,
    exit_on_user_error,
    gibibytes,
    source_length,
    take_strategy,
)
from pipeline.evaluation.decode import PRECISIONS, load
from pipeline.evaluation.summarizer import Record, Summarizer
from pipeline.evaluation.texts import text_files
from pipeline.files import replace_json
from pipeline.model import Locost
from pipeline.tokenizer import Tokenizer


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an option that cannot be."""
    parser = Parser(prog="summarize.py", description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="kept checkpoint (RUN/best) or model folder"
    )
    parser.add_argument(
        "--source_length",
        type=source_length,
        default=0,
        help="longest source, in tokens with EOS; 0: the whole text (default)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="type of the matrix products (default fp32)",
    )
    parser.add_argument(
        "--max_memory",
        type=gibibytes,
        help="most GiB to hold at any time, the program and its model included; on a GPU, of its "
        "memory (default: all that is available, half of it for cross-attention's cache)",
    )
    parser.add_argument(
        "--encoding",
        type=text_encoding,
        help="encoding of all texts (default: by byte order mark, UTF-8, what a Gutenberg header "
        "says, cp1252; the one taken is shown)",
    )
    parser.add_argument(
        "--strip_gutenberg",
        action="store_true",
        help="leave out Project Gutenberg's header and footer",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write summaries and figures to this file"
    )
    add_strategy_options(parser)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="text; a folder: its .txt files; - standard input"
    )
    return parser.parse_args(arguments)


def text_encoding(name: str) -> str:
    """A name by which Python knows an encoding of text."""
    try:
        "".encode(name)
    except LookupError:
        raise argparse.ArgumentTypeError(f"{name!r}: expected one such as cp1251") from None
    return name


def run(options: argparse.Namespace) -> bool:
    """Print the summary of each text, after its name where there are several; whether all have one.

    A text that cannot be summarised is a line of its own, and the others go on. Raises ValueError
    or OSError for settings by which none can be.
    """
    strategy = take_strategy(vars(options))
    if options.json is not None:
        check_file(options.json)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load(options.checkpoint, device)
    if not isinstance(model, Locost) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"{options.checkpoint} is a baseline; summarize.py plans the memory of LOCOST alone, "
            "evaluate.py generates with both"
        )
    summarizer = Summarizer(
        model, tokenizer, device, strategy, options.precision, options.source_length,
        options.max_memory, options.encoding, options.strip_gutenberg,
    )  # fmt: skip
    names = [name for given in options.files for name in text_files(given)]
    records: list[Record] = []
    for name in names:
        try:
            record = summarizer.summarize(name)
        except (ValueError, OSError) as error:
            record = {"file": name, "error": described(error)}
            print(f"error: {record['error']}", file=sys.stderr, flush=True)
        else:
            shown = record["summary"]
            print(f"{name}\n{shown}\n" if len(names) > 1 else shown, flush=True)
        records.append(record)
        if options.json is not None:  # what is done stays, whatever comes
            settings = {
                "checkpoint": str(options.checkpoint), "device": device_name(device),
                "precision": options.precision, "strategy": asdict(strategy),
            }  # fmt: skip
            replace_json(options.json, {**settings, "texts": records})
    return all("summary" in record for record in records)


def check_file(path: Path) -> None:
    """Raises ValueError unless the file can be written."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--json {path}: cannot be written; give a file in a folder that exists")


def main(arguments: list[str] | None = None) -> None:
    """Exits with status 2, after a line each, on texts or a checkpoint that cannot be read."""
    options = parse(arguments)
    with exit_on_user_error():
        done = run(options)
    if not done:
        sys.exit(2)


if __name__ == "__main__":
    main()
