"""Trains every baseline, and once more with a resumption, in one process group.

    deepspeed baseline_matrix.py OUTPUT CASES

CASES is a JSON list of (run's name, train.py's arguments, whether to resume). Each leaves
OUTPUT/<name>, and a resumed one OUTPUT/<name>-again.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402 (the root first)
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

STOP, END = 2, 4


def main(output: Path, cases: list[tuple[str, list[str], bool]]) -> None:
    world = distributed.start()

    def run(name: str, words: list[str], steps: int) -> None:
        words = [*words, "--output", str(output / name), "--train.max_steps", str(steps)]
        config, _ = parse(words)
        assert train(config, prepare(config, world), world) == 0

    for name, words, resume in cases:
        run(name, words, END)
        if resume:
            run(f"{name}-again", words, STOP)
            run(f"{name}-again", words, END)
    distributed.stop()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(Path(words[0]), json.loads(words[1]))
