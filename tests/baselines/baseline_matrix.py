"""Trains every baseline, and one again from its checkpoint, in one process group.

    deepspeed baseline_matrix.py OUTPUT CASES

CASES is a JSON list of (run's name, train.py's arguments, steps). Each leaves OUTPUT/<name>.
"""

import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline import distributed  # noqa: E402 (the root first)
from pipeline.config import parse  # noqa: E402
from pipeline.training import trainer  # noqa: E402

STOP, END = 2, 4


def main(output: Path, cases: list[tuple[str, list[str]]]) -> None:
    world = distributed.start()

    def train(name: str, words: list[str], steps: int) -> None:
        words = [*words, "--output", str(output / name), "--train.max_steps", str(steps)]
        config, _ = parse(words)
        assert trainer.train(config, trainer.prepare(config, world), world) == 0

    for name, words in cases:
        train(name, words, END)
        train(f"{name}-again", words, STOP)
        train(f"{name}-again", words, END)
    distributed.stop()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(Path(words[0]), json.loads(words[1]))
