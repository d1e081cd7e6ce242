"""Shared by the preprocessing commands: options, one-line errors, exit statuses."""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pipeline.common.command_line import described, escape_unprintable
from pipeline.common.stores import check_writable, is_url, store_path
from preprocessing.dataset.samples import MAX_UNKNOWN_SHARE
from preprocessing.jobs.mpi import comm_world

USER_ERROR, FAILED, INTERRUPTED, TERMINATED = 2, 1, 130, 143


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults of options that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def not_empty(text: str) -> str:
    """An option's value, as the `type` of an argument; an unset variable of a shell gives none."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a value")
    return text


def local_path(text: str) -> str:
    """A path that cannot be on a store, as the `type` of an argument."""
    if is_url(not_empty(text)):
        raise argparse.ArgumentTypeError(f"{text} is on a store; give a local or shared path")
    return text


def add_common_options(
    parser: argparse.ArgumentParser, source_length: int | None, target_length: int | None
) -> None:
    """Add the options of a command that makes shards; default lengths are in ids."""
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="GLOB",
        help="input files, also on a store (s3://, gs://, hf://) or https://",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        type=local_path,
        help="SentencePiece model, or a folder with tokenizer.model",
    )
    add_output_options(parser)
    parser.add_argument(
        "--split", type=not_empty, default="train", help="name of the split, for the manifest"
    )
    for side, length in (("source", source_length), ("target", target_length)):
        parser.add_argument(
            f"--{side}_length",
            type=int,
            default=length,
            help=f"maximum {side} length in ids, EOS included; 0: no limit",
        )
    parser.add_argument(
        "--max_unknown_share",
        type=float,
        default=MAX_UNKNOWN_SHARE,
        help="exclude texts of which the tokenizer lacks a larger share of the characters; 1: none",
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="only check that all shards exist and write the manifest",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="check inputs, tokenizer and output, write nothing"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="also write a page, report/report.html in the output, on a store report.html beside "
        "the manifest: what was kept and excluded, lengths, tokens, languages",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add --output and --work_dir."""
    parser.add_argument(
        "--output",
        required=True,
        type=not_empty,
        help="dataset folder to fill, also s3://, gs:// or hf://; its name is the shards' prefix",
    )
    parser.add_argument(
        "--work_dir",
        type=local_path,
        metavar="DIR",
        help="for an output on a store: the job's own folder, which all its nodes share, for its "
        "record and the shards that are not uploaded yet",
    )


def output_from(options: argparse.Namespace) -> dict[str, Any]:
    """A Job's `output` and `destination`. Raises ValueError unless they fit each other."""
    if not is_url(options.output):
        if options.work_dir is not None:
            raise ValueError("--work_dir is for an --output on a store, as s3://; omit it")
        return {"output": Path(options.output)}
    destination = store_path(options.output)
    check_writable(destination)
    if options.work_dir is None:
        raise ValueError(
            f"--output {destination} needs --work_dir DIR, a folder that all nodes of the job "
            "share, for its record and the shards that are not uploaded yet"
        )
    return {"output": Path(options.work_dir), "destination": destination}


def run_command(main: Callable[[], None]) -> None:
    """Run a command's main: an error that the user can fix becomes one line and exit status 2."""
    signal.signal(signal.SIGTERM, _terminated)
    escape_unprintable()  # no output stops a job
    try:
        main()
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(described(error).split())}", file=sys.stderr, flush=True)
        status = USER_ERROR
    except KeyboardInterrupt as error:
        print(
            f"{str(error) or 'interrupted'}; the same command resumes from here",
            file=sys.stderr,
            flush=True,
        )
        status = TERMINATED if str(error) else INTERRUPTED
    except Exception:
        traceback.print_exc()
        status = FAILED
    else:
        return
    world = comm_world() if "mpi4py.MPI" in sys.modules else None
    if world is not None and world.Get_size() > 1:
        world.Abort(status)  # the other ranks would wait for this one forever
    sys.exit(status)


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt("terminated")  # an exception, so that leases are released
