"""Check the nodes of a job before training: one line per node, and the faulty ones by name.

`srun ... node_check.py look FOLDER...` runs once on each node and prints the node's state;
`node_check.py judge` reads all of these lines, prints a table and exits with 1 if a node is faulty.
Slurm's scripts pipe one into the other. Both need only Python's standard library, so that they also
find a node on which the libraries hang. train.py itself tests the network between the nodes.
"""

if not __package__:
    import _start  # noqa: F401
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from pipeline.common.command_line import Parser, count_from

CLOCKS = 10.0  # largest clock difference between nodes, in seconds
ROOM = 1.0  # minimum free space of each folder, in GB


@dataclass(frozen=True)
class Node:
    """The state of a node; `clock_seconds` is its clock minus that of the judging node."""

    name: str
    gpus: list[str]
    """Name and driver of each GPU."""
    free_gb: dict[str, float]
    """By folder; -1 if it is not writable."""
    clock_seconds: float = 0.0


def look(folders: Sequence[str]) -> Node:
    """The state of this node now."""
    return Node(os.uname().nodename, gpus(), {folder: room(folder) for folder in folders})


def gpus() -> list[str]:
    """Name and driver of each GPU of this job that responds; none without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def room(folder: str) -> float:
    """Free space in GB, or -1 if the folder is missing or not writable."""
    if not os.access(folder, os.W_OK):
        return -1.0
    return shutil.disk_usage(folder).free / 1e9


def faults(nodes: Sequence[Node], wanted: Iterable[str], gpus: int) -> list[str]:
    """The faults, one line each, beginning with the node's name.

    `wanted` are the names of the job's nodes, `gpus` is the number of GPUs each must have.
    """
    answered = {node.name.partition(".")[0] for node in nodes}
    lines = [
        f"{name}: no answer within 45 s"
        for name in wanted
        if name.partition(".")[0] not in answered
    ]
    clock = sorted(node.clock_seconds for node in nodes)[len(nodes) // 2] if nodes else 0.0
    for node in nodes:
        if len(node.gpus) < gpus:
            lines.append(f"{node.name}: {len(node.gpus)} of {gpus} GPUs answer nvidia-smi")
        for folder, free in node.free_gb.items():
            if free < 0:
                lines.append(f"{node.name}: {folder} is missing or not writable")
            elif free < ROOM:
                lines.append(f"{node.name}: {folder} has {free:.1f} GB free, {ROOM:g} are needed")
        if abs(node.clock_seconds - clock) > CLOCKS:
            lines.append(
                f"{node.name}: its clock is {node.clock_seconds - clock:+.0f} s from the others'"
            )
    return lines


def mixed(nodes: Sequence[Node]) -> list[str]:
    """A line for each node whose GPUs or drivers are not those of most nodes."""
    kinds = Counter(kind for node in nodes for kind in set(node.gpus))
    if not kinds:
        return []
    usual = kinds.most_common(1)[0][0]
    return [
        f"{node.name}: {', '.join(others)} where most nodes have {usual}; every step waits for the "
        "slowest"
        for node in nodes
        if (others := sorted(set(node.gpus) - {usual}))
    ]


def described(node: Node) -> str:
    """The node in one line."""
    kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(node.gpus).items())
    folders = ", ".join(f"{folder} {free:,.0f} GB free" for folder, free in node.free_gb.items())
    return f"{node.name}: {kinds or 'no GPU'}; {folders}; clock {node.clock_seconds:+.1f} s"


def judge(lines: Iterable[str], wanted: Sequence[str], gpus: int, srun_status: int = 0) -> int:
    """Print the nodes from the JSON lines of `look`, and their faults; return the exit status.

    No node is blamed where srun, which ended with `srun_status`, could not start on any.
    """
    nodes = []
    for line in lines:
        try:
            said = json.loads(line)
            ahead = said.pop("time") - time.time()
            nodes.append(Node(**said, clock_seconds=ahead))
        except (ValueError, TypeError, KeyError):
            print(line.rstrip(), file=sys.stderr)  # other output of the step
    for node in sorted(nodes, key=lambda node: node.name):
        print(f"node {described(node)}")
    if srun_status and not nodes:
        print(
            f"error: srun could not start the check on any node (status {srun_status}); its "
            "message is above",
            file=sys.stderr,
        )
        return 1
    for line in mixed(nodes) if gpus else ():
        print(f"note: node {line}")
    wrong = faults(nodes, wanted, gpus)
    for line in wrong:
        print(f"error: node {line}", file=sys.stderr)
    if wrong:
        bad = ",".join(dict.fromkeys(line.partition(":")[0] for line in wrong))
        print(
            f"exclude nodes with `sbatch --exclude={bad}`; free space in a full shared folder; "
            "set CPU=1 for nodes without GPUs; NODE_CHECK=0 skips this check",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 if a node is faulty."""
    parser = Parser(prog="node_check.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    looking = commands.add_parser("look", help="print the state of this node as a line of JSON")
    looking.add_argument(
        "folders", nargs="*", help="folders that must be writable and have free space"
    )
    judging = commands.add_parser(
        "judge", help="read these lines, print a table, name the faulty nodes"
    )
    judging.add_argument("--nodes", required=True, help="names of all nodes, comma-separated")
    judging.add_argument(
        "--gpus", type=count_from(0), required=True, help="number of GPUs each must have"
    )
    judging.add_argument(
        "--srun_status", type=count_from(0), default=0, help="exit status of the step that looked"
    )
    options = parser.parse_args(arguments)
    if options.command == "judge":
        nodes = options.nodes.split(",")
        return judge(sys.stdin, nodes, options.gpus, options.srun_status)
    node = {k: v for k, v in asdict(look(options.folders)).items() if k != "clock_seconds"}
    print(json.dumps({**node, "time": time.time()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
