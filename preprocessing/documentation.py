"""A corpus that every machine has: the documentation of Python and of the required packages.

`python -m preprocessing.documentation --output DIR` writes docstrings as pre-training text in C4's
format, and a summarisation set, from source files read with `ast` (nothing is imported). By PEP 257
a docstring's first paragraph is its summary. The document to summarise is the rest of a function's
source as words; with `--whole`, that of a whole module or class, and its summary is the prose that
the docstring begins with. Packages of the validation and test splits are left out of the
pre-training text.
"""

if not __package__:
    import _start  # noqa: F401
from pathlib import Path

from pipeline.common.command_line import Parser, count_from
from pipeline.common.files import replace_bytes, replace_json
from pipeline.common.paths import ROOT
from preprocessing.dataset.documentation_corpus import build
from preprocessing.jobs.options import HelpFormatter, run_command

REQUIREMENTS = ROOT / "requirements.txt"


def main() -> None:
    """Run the command line."""
    options = _parser().parse_args()
    files, counts = build(
        REQUIREMENTS, options.limit_files, options.whole, options.passage_characters
    )
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        replace_bytes(output / name, content)
    replace_json(output / "report.json", counts)
    print("\n".join(f"{name}: {count}" for name, count in counts.items()))


def _parser() -> Parser:
    parser = Parser(
        prog="preprocessing.documentation",
        description="Write the documentation on this machine as pre-training text "
        "(documentation-*.json.gz, C4's format) and as a summarisation set of its functions "
        "(summaries-*.jsonl).",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--output", required=True, help="folder to write to")
    parser.add_argument(
        "--limit_files",
        type=count_from(1),
        help="read only this many source files, sampled with a fixed seed; default: all",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="pairs of whole modules and classes, of 3,000 to 64,000 characters, with summaries of "
        "15 to 100 words; the training split has functions and shorter ones of the same form too; "
        "default: functions with their first paragraphs",
    )
    parser.add_argument(
        "--passage_characters",
        type=count_from(1),
        help="cut pre-training texts at line ends into passages of at least this many characters, "
        "so that a short --source_length sees all of them; default: uncut",
    )
    return parser


if __name__ == "__main__":
    run_command(main)
