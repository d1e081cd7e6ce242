"""What the preprocessing commands share: options, one-line errors, the end of a failed job."""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from pipeline.command_line import described
from preprocessing.ranks import mpi_world

USER_ERROR, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults of options that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def add_common_options(
    parser: argparse.ArgumentParser, source_length: int | None, target_length: int | None
) -> None:
    """The options of every command that makes shards, with these default lengths (in ids)."""
    parser.add_argument("--input", required=True, nargs="+", metavar="GLOB", help="input files")
    parser.add_argument(
        "--tokenizer", required=True, help="SentencePiece model, or a folder with tokenizer.model"
    )
    parser.add_argument(
        "--output", required=True, help="dataset folder to fill; its name names the shards"
    )
    parser.add_argument("--split", default="train", help="which split this is, for the manifest")
    for side, length in (("source", source_length), ("target", target_length)):
        parser.add_argument(
            f"--{side}_length",
            type=int,
            default=length,
            help=f"longest {side}, in ids with EOS; 0: never cut",
        )
    parser.add_argument(
        "--finish", action="store_true", help="only check that all is there, write the manifest"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="check inputs, tokenizer and output, then exit"
    )
    parser.add_argument(
        "--report", action="store_true", help="also draw the lengths: report.png in the output"
    )


def check_lengths(source_length: int, target_length: int) -> None:
    """Raise ValueError unless source and target hold at least one id and EOS, or 0 for no limit."""
    for name, length in (("source_length", source_length), ("target_length", target_length)):
        if length < 2 and length != 0:
            raise ValueError(f"--{name} is {length}, expected at least 2 (one id and EOS), or 0")


def run_command(main: Callable[[], None]) -> None:
    """Run a command line: what the user can put right becomes one line and exit status 2."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        main()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(described(error).split())}", file=sys.stderr, flush=True)
        status = USER_ERROR
    except KeyboardInterrupt as error:
        print(
            f"{str(error) or 'interrupted'}; the same command goes on from here",
            file=sys.stderr,
            flush=True,
        )
        status = TERMINATED if str(error) else INTERRUPTED
    except Exception:
        traceback.print_exc()
        status = FAILED
    else:
        return
    world = mpi_world() if "mpi4py.MPI" in sys.modules else None
    if world is not None and world.Get_size() > 1:
        world.Abort(status)  # the other ranks would wait for this one for ever
    sys.exit(status)


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt("terminated")  # so that claims are given back on the way out
