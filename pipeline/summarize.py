"""Summarise any text: `python pipeline/summarize.py --checkpoint DIR FILE...` (- reads stdin).

The whole text is read, however long, unless --source_length says otherwise.
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse

import torch

from pipeline.command_line import Parser
from pipeline.evaluation.command_line import (
    add_strategy_options,
    exit_on_user_error,
    source_length,
    take_strategy,
)
from pipeline.evaluation.decode import PRECISIONS, encode_source, generate_batch, load
from pipeline.progress import Progress


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
    add_strategy_options(parser)
    parser.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; - is standard input")
    return parser.parse_args(arguments)


def read_text(name: str) -> str:
    """The text of a file, or of standard input for `-`.

    Raises ValueError when it is not UTF-8 text or there is nothing in it, OSError when it cannot
    be read.
    """
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    shown = "standard input" if name == "-" else name
    if b"\0" in content:
        raise ValueError(f"{shown} is binary, expected plain text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{shown} is not UTF-8 (byte {error.start}); convert it, e.g. with "
            "`iconv -f latin1 -t utf-8`"
        ) from None
    if not text.strip():
        raise ValueError(f"{shown} is empty, expected a text to summarise")
    return text


def summarize(options: argparse.Namespace) -> None:
    """Print the summary of each file, after its name where there are several."""
    strategy = take_strategy(vars(options))
    texts = [read_text(name) for name in options.files]  # all are readable before any work begins
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = load(options.checkpoint, device)
    bar = Progress("Summaries", len(texts), "documents")
    for name, text in zip(options.files, texts, strict=True):
        source = encode_source(tokenizer, text, options.source_length)
        (summary,) = generate_batch(model, tokenizer, [source], strategy, options.precision, device)
        bar.update()
        print(f"{name}\n{summary}\n" if len(texts) > 1 else summary, flush=True)
    bar.close()


def main(arguments: list[str] | None = None) -> None:
    """Exits with status 2, after one line, on a text or a checkpoint that cannot be read."""
    options = parse(arguments)
    with exit_on_user_error():
        summarize(options)


if __name__ == "__main__":
    main()
