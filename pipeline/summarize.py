"""Summarise any text: `python pipeline/summarize.py --checkpoint DIR FILE...`, or piped into it.

Plain text, HTML and EPUB, read whole, however long, unless --source_length says otherwise.
Summaries go to standard output, or to files in --output_dir; encoding, progress, time and memory to
standard error. Exit status 2: at least one text could not be summarised; all others were.
Under `deepspeed --num_gpus P pipeline/summarize.py ... --sequence_parallel_size P` the P processes
share each text.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict
from pathlib import Path

import torch

from pipeline.common.command_line import (
    Parser,
    described,
    exit_on_user_error,
    gibibytes,
    program,
    shown,
    source_length,
)
from pipeline.common.files import check_folder, replace_json, replace_text
from pipeline.distributed import world as distributed
from pipeline.distributed.device import device_name
from pipeline.distributed.launcher_environment import place_from_environment
from pipeline.distributed.sequence_parallel import in_sequences, sequence_group
from pipeline.distributed.world import World
from pipeline.inference.decode import PRECISIONS, load
from pipeline.inference.options import (
    add_sharing_option,
    add_strategy_options,
    take_strategy,
)
from pipeline.inference.summarizer import Record, Summarizer
from pipeline.inference.texts import STANDARD_INPUT, SUFFIXES, text_files
from pipeline.model import Locost
from pipeline.tokenizer import Tokenizer

PROGRAM = "pipeline/summarize.py"
SKIPPED_SHOWN = 5
"""Skipped files of a folder that are named."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an invalid option."""
    parser = Parser(prog=program("summarize.py"), description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="kept checkpoint (RUN/best) or model folder"
    )
    parser.add_argument(
        "--source_length",
        type=source_length,
        default=0,
        help="maximum source length in tokens with EOS; 0: the whole text (default)",
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
        help="peak memory of a process in GiB, program and model included; on a GPU, of its memory "
        "(default: all that is available, half of it for the cross-attention cache)",
    )
    add_sharing_option(parser)
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument(
        "--encoding",
        type=text_encoding,
        help="encoding of all texts (default: detected from byte order mark, UTF-8, Gutenberg "
        "header, else cp1252; shown for each text)",
    )
    parser.add_argument(
        "--strip_gutenberg",
        action="store_true",
        help="remove Project Gutenberg's header and footer",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write summaries and figures to this file"
    )
    parser.add_argument(
        "--output_dir",
        type=Path,
        metavar="DIR",
        help="write each summary to DIR/NAME.summary.txt instead of standard output; below a given "
        "folder, NAME is the path within it",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print errors only, no progress and no figures"
    )
    add_strategy_options(parser)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="plain text, HTML or EPUB; a folder: all such files in and below it; - or none: "
        "standard input",
    )
    options = parser.parse_args(arguments)
    if not options.files:
        if sys.stdin.isatty():
            parser.error("no FILE given, and nothing is piped in")
        options.files = [STANDARD_INPUT]
    return options


def text_encoding(name: str) -> str:
    """The name of a text encoding that Python knows."""
    try:
        "".encode(name)
    except LookupError:
        raise argparse.ArgumentTypeError(f"{name!r}: expected one such as cp1251") from None
    return name


def run(options: argparse.Namespace, world: World) -> bool:
    """Print the summary of each text, after its name if there are several; False if any failed.

    A text that cannot be summarised is reported in one line and skipped. Raises ValueError or
    OSError for settings with which no text can be summarised. A collective, of which the first
    process prints and writes.
    """
    strategy = take_strategy(vars(options))
    quiet = options.quiet or not world.is_main
    if options.json is not None:
        world.from_main(lambda: check_file(options.json), ValueError, OSError)
    group = sequence_group(world)
    model, tokenizer = world.on_all(
        lambda: load(options.checkpoint, world.device, group), ValueError, OSError
    )
    if not isinstance(model, Locost) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"{options.checkpoint} is a baseline; summarize.py plans the memory of LOCOST alone, "
            "evaluate.py generates with both"
        )
    summarizer = Summarizer(
        model, tokenizer, world, strategy, options.precision, options.source_length,
        options.max_memory, options.encoding, options.strip_gutenberg,
    )  # fmt: skip
    texts, places = world.from_main(lambda: plan_texts(options), ValueError, OSError)
    records: list[Record] = []
    for name in texts:
        try:
            with redirect_stderr(io.StringIO() if quiet else sys.stderr):
                record = summarizer.summarize(name)
            if not world.is_main:
                continue
            if place := places.get(name):
                place.parent.mkdir(parents=True, exist_ok=True)
                replace_text(place, record["summary"] + "\n")
        except (ValueError, OSError) as error:
            record = {"file": name, "error": described(error)}
            if world.is_main:
                print(f"error: {record['error']}", file=sys.stderr, flush=True)
        else:
            if not places:
                title = f"{shown(name)}\n" if len(texts) > 1 else ""
                print(f"{title}{record['summary']}\n" + "\n" * bool(title), end="", flush=True)
        records.append(record)
        if options.json is not None and world.is_main:  # finished summaries survive a later failure
            settings = {
                "checkpoint": str(options.checkpoint), "device": device_name(world.device),
                "precision": options.precision, "strategy": asdict(strategy),
            }  # fmt: skip
            replace_json(options.json, {**settings, "texts": records})
    return all("summary" in record for record in records)


def plan_texts(options: argparse.Namespace) -> tuple[list[str], dict[str, Path]]:
    """The names of the texts, and of each the file of its summary where there are such files."""
    texts = find_texts(options.files, options.quiet)
    places = summary_files(options.output_dir, texts) if options.output_dir else {}
    for name in earlier_summaries(options.files, texts, places):
        del texts[name]
    return list(texts), places


def find_texts(given: Sequence[str], quiet: bool) -> dict[str, Path]:
    """{name: its path below the given folder, or its file name}; says which files are skipped."""
    texts = {}
    for one in given:
        names, skipped = text_files(one)
        if skipped and not quiet:
            some = ", ".join(shown(Path(name).name) for name in skipped[:SKIPPED_SHOWN])
            more = ", ..." if len(skipped) > SKIPPED_SHOWN else ""
            kinds = ", ".join(SUFFIXES)
            print(
                f"{shown(one)}: {len(skipped)} files skipped, which are not {kinds}: {some}{more}",
                file=sys.stderr,
            )
        for name in names:
            inside = name != one
            texts[name] = Path(name).relative_to(one) if inside else Path(Path(name).name)
    return texts


def summary_files(folder: Path, texts: Mapping[str, Path]) -> dict[str, Path]:
    """{name of a text: the file of its summary}; ValueError where two would be the same file."""
    check_folder(folder, "--output_dir")
    places: dict[Path, str] = {}
    for name, path in texts.items():
        path = Path("stdin") if name == STANDARD_INPUT else path
        place = folder / path.with_name(f"{path.name}.summary.txt")
        if place in places:
            raise ValueError(
                f"--output_dir {folder}: {shown(places[place])} and {shown(name)} would both "
                f"be summarised to {shown(place.name)}; run them apart, or give their folder"
            )
        places[place] = name
    return {name: place for place, name in places.items()}


def earlier_summaries(
    given: Sequence[str], texts: Mapping[str, Path], places: Mapping[str, Path]
) -> list[str]:
    """The texts of given folders that are files of other texts' summaries: of an earlier run.

    Raises ValueError where such a file was itself given: it would be overwritten.
    """
    owners = {place.resolve(): name for name, place in places.items()}
    found = []
    for name in texts:
        if name == STANDARD_INPUT or (owner := owners.get(Path(name).resolve())) is None:
            continue
        if name in given:
            raise ValueError(
                f"{shown(name)} would be overwritten by the summary of {shown(owner)}; leave it "
                "out, or choose another --output_dir"
            )
        found.append(name)
    return found


def check_file(path: Path) -> None:
    """Raise ValueError unless the file can be written, and is absent or of an earlier run."""
    special = path.exists() and not path.is_file()
    if special or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--json {path}: cannot be written; give a file in a folder that exists")
    if path.exists() and not _has_results(path):
        raise ValueError(
            f"--json {shown(path)}: holds something else than this command's results; give a name "
            "that is free (the option takes the file that is written, texts come after it)"
        )


def _has_results(path: Path) -> bool:
    """Whether a file is empty or what `--json` writes."""
    content = path.read_bytes()
    try:
        value = json.loads(content or '{"texts": []}')
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "texts" in value


def start(size: int) -> World:
    """This process alone, or with `size` above 1 the processes that share the texts.

    Raises ValueError unless their launcher started as many.
    """
    if size == 1:
        return World(0, 1, 0, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    rank, processes, local_rank = place_from_environment(os.environ)
    in_sequences(
        World(rank, processes, local_rank, torch.device("cpu")), size, PROGRAM, several=False
    )
    return distributed.start().in_sequences(size)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2, after one line each, for texts or a checkpoint that cannot be read."""
    with exit_on_user_error():
        options = parse(arguments)
        size = options.sequence_parallel_size
        speaks = size == 1 or place_from_environment(os.environ)[0] == 0
    with exit_on_user_error(speaks=speaks):
        done = run(options, start(size))
        distributed.stop()  # not where one fails: the others might wait elsewhere
    return 0 if done else 2


if __name__ == "__main__":
    sys.exit(main())
