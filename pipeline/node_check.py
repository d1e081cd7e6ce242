"""What a training's nodes are like, before it starts: a line a node, and the bad ones by name.

`srun ... node_check.py look FOLDER...` runs once on each node and prints what it finds there;
`node_check.py judge` reads all of that, prints it as a table and ends with 1 where a node is wrong.
Slurm's scripts pipe the one into the other. Neither needs more than Python: a node on which the
libraries hang is to be found too. The network between the nodes is tried by train.py itself.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

CLOCKS = 10.0  # seconds that a node's clock may differ from the others'
ROOM = 1.0  # GB that must be free in each folder


@dataclass(frozen=True)
class Node:
    """What one node said; `clock_seconds` is how far it is ahead of the node that judges."""

    name: str
    gpus: list[str]
    """Name and driver of each GPU."""
    free_gb: dict[str, float]
    """By folder; -1 where it cannot be written to."""
    clock_seconds: float = 0.0


def look(folders: Sequence[str]) -> Node:
    """This node, as it is now."""
    return Node(os.uname().nodename, gpus(), {folder: room(folder) for folder in folders})


def gpus() -> list[str]:
    """Name and driver of each GPU of this job that answers; none where NVIDIA's tool is absent."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def room(folder: str) -> float:
    """Free space in GB, or -1 where this process may not write or the folder is not there."""
    if not os.access(folder, os.W_OK):
        return -1.0
    return shutil.disk_usage(folder).free / 1e9


def faults(nodes: Sequence[Node], wanted: Iterable[str], gpus: int) -> list[str]:
    """What is wrong, one line each, beginning with the node's name.

    `wanted` are the names of the job's nodes, `gpus` is how many each must have.
    """
    answered = {node.name.partition(".")[0] for node in nodes}
    lines = [
        f"{name}: no answer within 45 s"
        for name in wanted
        if name.partition(".")[0] not in answered
    ]
    kinds = Counter(kind for node in nodes for kind in set(node.gpus))
    usual = kinds.most_common(1)[0][0] if kinds else ""
    clock = sorted(node.clock_seconds for node in nodes)[len(nodes) // 2] if nodes else 0.0
    for node in nodes:
        if len(node.gpus) < gpus:
            lines.append(f"{node.name}: {len(node.gpus)} of {gpus} GPUs answer nvidia-smi")
        others = sorted(set(node.gpus) - {usual})
        if gpus and others:
            lines.append(f"{node.name}: {', '.join(others)} where most nodes have {usual}")
        for folder, free in node.free_gb.items():
            if free < 0:
                lines.append(f"{node.name}: {folder} is not there or cannot be written to")
            elif free < ROOM:
                lines.append(f"{node.name}: {folder} has {free:.1f} GB free, {ROOM:g} are needed")
        if abs(node.clock_seconds - clock) > CLOCKS:
            lines.append(
                f"{node.name}: its clock is {node.clock_seconds - clock:+.0f} s from the others'"
            )
    return lines


def described(node: Node) -> str:
    """The node in one line."""
    kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(node.gpus).items())
    folders = ", ".join(f"{folder} {free:,.0f} GB free" for folder, free in node.free_gb.items())
    return f"{node.name}: {kinds or 'no GPU'}; {folders}; clock {node.clock_seconds:+.1f} s"


def judge(lines: Iterable[str], wanted: Sequence[str], gpus: int) -> int:
    """Print the nodes that `look` described in JSON lines, and what is wrong; the exit status."""
    nodes = []
    for line in lines:
        try:
            said = json.loads(line)
            ahead = said.pop("time") - time.time()
            nodes.append(Node(**said, clock_seconds=ahead))
        except (ValueError, TypeError, KeyError):
            print(line.rstrip(), file=sys.stderr)  # not ours: what else the step had to say
    for node in sorted(nodes, key=lambda node: node.name):
        print(f"node {described(node)}")
    wrong = faults(nodes, wanted, gpus)
    for line in wrong:
        print(f"error: node {line}", file=sys.stderr)
    if wrong:
        bad = ",".join(dict.fromkeys(line.partition(":")[0] for line in wrong))
        print(
            f"leave nodes out with `sbatch --exclude={bad}`; make room where a shared folder is "
            "full; CPU=1 is for nodes without GPUs; NODE_CHECK=0 leaves this check out",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 1 where a node is wrong."""
    parser = argparse.ArgumentParser(prog="node_check.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    looking = commands.add_parser("look", help="say what this node is like, as a line of JSON")
    looking.add_argument("folders", nargs="*", help="must be writable, with room")
    judging = commands.add_parser("judge", help="read such lines, print them, name the bad nodes")
    judging.add_argument("--nodes", required=True, help="names of all nodes, with commas")
    judging.add_argument("--gpus", type=int, required=True, help="how many each must have")
    options = parser.parse_args(arguments)
    if options.command == "judge":
        return judge(sys.stdin, options.nodes.split(","), options.gpus)
    node = {k: v for k, v in asdict(look(options.folders)).items() if k != "clock_seconds"}
    print(json.dumps({**node, "time": time.time()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
