"""The console script `locost-preprocess`.

`locost-preprocess pretrain ARGUMENTS...` is `python -m preprocessing.pretrain ARGUMENTS...`.
"""

import sys

from pipeline.common.command_line import Parser
from preprocessing import finetune, pretrain, show, tokenizer
from preprocessing.jobs.options import run_command

COMMANDS = {
    "pretrain": (pretrain.main, "make gap-sentence pre-training shards"),
    "finetune": (finetune.main, "make fine-tuning shards from a summarisation set"),
    "tokenizer": (tokenizer.main, "train or import a tokenizer"),
    "show": (show.main, "print or verify a dataset"),
}


def main() -> None:
    """Run the command named by the first argument with the arguments after it."""
    parser = Parser(
        prog="locost-preprocess",
        description="Text to shards. `locost-preprocess COMMAND --help` explains a command.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    name = parser.parse_args(sys.argv[1:2]).command
    sys.argv[:2] = [f"preprocessing.{name}"]
    run_command(COMMANDS[name][0])
