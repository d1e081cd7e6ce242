"""Train or import a tokenizer: `python -m preprocessing.tokenizer train|import ...`."""

if not __package__:
    import _start  # noqa: F401
from pathlib import Path

from pipeline.common.command_line import Parser, count_from
from pipeline.common.files import replace_bytes
from pipeline.tokenizer import SENTINELS, Tokenizer
from preprocessing.dataset.tokenizer_training import train
from preprocessing.jobs.options import HelpFormatter, run_command
from preprocessing.readers.inputs import find_inputs

NEWLINES = "newlines and runs of spaces become one space; datasets record sentence ends separately"
OTHERWISE = (
    "its normaliser keeps newlines and runs of spaces, which T5's joins into one space: texts that "
    "differ in spaces alone have different ids"
)


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    if options.command == "train":
        inputs = find_inputs(options.input)
        model = train(inputs, options.vocab_size, options.max_sentences)
    else:
        model = Tokenizer(options.input).path.read_bytes()
    output = Path(options.output)
    _write(output, model)
    tokenizer = Tokenizer(output)
    spaces = NEWLINES if tokenizer.joins_whitespace else OTHERWISE
    own = " (the model's own sentinels)" if tokenizer.has_sentinels else ""
    print(f"{output}: {tokenizer.vocab_size} ids{own}, sha256 {tokenizer.sha256}; {spaces}")


def _write(output: Path, model: bytes) -> None:
    """Raises ValueError where the file holds another model: datasets may depend on it."""
    if output.exists() and output.read_bytes() != model:
        raise ValueError(
            f"{output} already exists and is not this model; choose another --output or delete it"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(output, model)


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.tokenizer",
        description="Train or import a SentencePiece model with T5's ids (0 padding, 1 end, 2 "
        f"unknown, {SENTINELS} sentinels at the top) and T5's normaliser: {NEWLINES}.",
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
        type=count_from(1),
        default=32000,
        help=f"pieces to learn; {SENTINELS} sentinel ids are added",
    )
    trainer.add_argument(
        "--max_sentences",
        type=count_from(1),
        default=200_000,
        help="lines to learn from, sampled from all with a fixed seed",
    )
    importer = commands.add_parser(
        "import", help="check a model made elsewhere, such as T5's spiece.model, and copy it"
    )
    importer.add_argument("--input", required=True, help="a SentencePiece model")
    for command in (trainer, importer):
        command.add_argument("--output", required=True, help="the model file to write")
    return parser


if __name__ == "__main__":
    run_command(main)
