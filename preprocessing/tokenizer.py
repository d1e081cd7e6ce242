"""Make a tokenizer: `python -m preprocessing.tokenizer train|import --output M.model ...`."""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import io
import random
from collections.abc import Iterator, Sequence

import sentencepiece

from pipeline.command_line import Parser
from pipeline.files import replace_bytes
from pipeline.progress import progress
from pipeline.tokenizer import EOS_ID, PAD_ID, SENTINELS, UNK_ID, Tokenizer
from preprocessing.command_line import HelpFormatter, run_command
from preprocessing.corpora import Item, find_inputs, read_c4

SEED = 0
THREADS = 2  # a fixed number: sums over another number of threads round otherwise
NEWLINES = "newlines and runs of spaces become one space; a dataset keeps sentence ends beside ids"
LONGEST = 4192  # bytes of a line that SentencePiece reads; longer lines are cut to it


def train(inputs: Sequence[Path], vocab_size: int, max_sentences: int) -> bytes:
    """A unigram model of `vocab_size` pieces, T5's ids and normalisation, as the file's bytes.

    It learns from at most `max_sentences` lines of the inputs (C4's format), drawn with a fixed
    seed, so the same inputs give the same bytes. Raises ValueError if there is too little text.
    """
    if max_sentences < 1:
        raise ValueError(f"--max_sentences is {max_sentences}, expected lines, at least 1")
    lines = sample_lines(inputs, max_sentences)
    if not lines:
        raise ValueError(f"the {len(inputs)} input files hold no text to train a tokenizer on")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=progress(lines, len(lines), "Tokenizer, text read", "lines"),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            normalization_rule_name="nmt_nfkc",
            byte_fallback=False,
            max_sentence_length=LONGEST,
            num_threads=THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"cannot train {vocab_size} pieces on {len(lines)} lines: {error}; "
            "give more text or a smaller --vocab_size"
        ) from None
    return model.getvalue()


def sample_lines(inputs: Sequence[Path], count: int) -> list[str]:
    """At most `count` lines of the texts, uniformly, in their order, whatever their number.

    Reservoir sampling: one pass, `count` lines in memory.
    """
    draw = random.Random(SEED)
    kept: list[tuple[int, str]] = []
    for position, line in enumerate(_lines(inputs)):
        if len(kept) < count:
            kept.append((position, line))
        elif (slot := draw.randrange(position + 1)) < count:
            kept[slot] = (position, line)
    return [line for _, line in sorted(kept)]


def _lines(inputs: Sequence[Path]) -> Iterator[str]:
    for path in inputs:
        for _, record, _ in read_c4(Item(path)):
            if isinstance(record, str):
                continue
            for line in record["text"].split("\n"):
                if line.strip():
                    yield line.encode()[:LONGEST].decode(errors="ignore")


def write(output: Path, model: bytes) -> None:
    """Write a model's file. Raises ValueError where another one is there: datasets depend on it."""
    if output.exists() and output.read_bytes() != model:
        raise ValueError(
            f"{output} already holds something else; choose another --output or delete it"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(output, model)


def main() -> None:
    """The command line."""
    parser = Parser(
        prog="preprocessing.tokenizer",
        description="Train or import a SentencePiece model with T5's ids (0 padding, 1 end, 2 "
        f"unknown, {SENTINELS} sentinels from the top) and T5's normaliser: {NEWLINES}.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trainer = commands.add_parser(
        "train",
        help="train a unigram model on files in C4's format",
        description=f"Train a unigram model. As in T5's, {NEWLINES}.",
        formatter_class=HelpFormatter,
    )
    trainer.add_argument(
        "--input", required=True, nargs="+", metavar="GLOB", help="files in C4's format"
    )
    trainer.add_argument(
        "--vocab_size",
        type=int,
        default=32000,
        help=f"pieces to learn; {SENTINELS} sentinel ids come on top",
    )
    trainer.add_argument(
        "--max_sentences",
        type=int,
        default=200_000,
        help="lines to learn from, drawn with a fixed seed from all",
    )
    importer = commands.add_parser(
        "import", help="check a model made elsewhere, such as T5's spiece.model, and copy it"
    )
    importer.add_argument("--input", required=True, help="a SentencePiece model")
    for command in (trainer, importer):
        command.add_argument("--output", required=True, help="the model file to write")
    options = parser.parse_args()

    if options.command == "train":
        inputs = find_inputs(options.input)
        model = train(inputs, options.vocab_size, options.max_sentences)
    else:
        model = Tokenizer(options.input).path.read_bytes()
    output = Path(options.output)
    write(output, model)
    tokenizer = Tokenizer(output)
    print(f"{output}: {tokenizer.vocab_size} ids, sha256 {tokenizer.sha256}; {NEWLINES}")


if __name__ == "__main__":
    run_command(main)
