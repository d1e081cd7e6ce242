"""Two updates of every recipe, with the configurations in turn, tiny, in one process group.

    deepspeed recipe_matrix.py OUTPUT train.py's arguments...

Each leaves a run folder OUTPUT/<recipe>-<configuration>.
"""

import sys
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402 (the root first)
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

RECIPES = sorted(path.stem for path in (ROOT / "pipeline" / "recipes").glob("*.yaml"))
CONFIGURATIONS = sorted(path.stem for path in (ROOT / "ds_configs").glob("*.json"))
# Stage 3 comes last: DeepSpeed then replaces torch's linear function for good.
CASES = sorted(zip(RECIPES, cycle(CONFIGURATIONS), strict=False), key=lambda case: case[1])


def main(output: Path, arguments: list[str]) -> None:
    """Train all cases, one after the other."""
    world = distributed.start()
    for recipe, configuration in CASES:
        words = ["--config", str(ROOT / "pipeline" / "recipes" / f"{recipe}.yaml"), *arguments]
        words += ["--deepspeed_config", f"ds_configs/{configuration}.json"]
        if configuration == "zero3":  # does not generate
            words += ["--train.validation_rouge", "false"]
        config, _ = parse([*words, "--output", str(output / f"{recipe}-{configuration}")])
        shared = min(config.train.sequence_parallel_size, world.size)  # all of these, at most
        words += ["--train.sequence_parallel_size", str(shared)]
        # The recipe's own accumulation, at the smallest batch that has it.
        batch = str(world.size // shared * (config.train.accumulation or 2))  # 0: to be chosen
        config, _ = parse([*words, "--train.batch_size", batch, "--output", config.output])
        assert train(config, prepare(config, world), world) == 0
    distributed.stop()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(Path(words[0]), words[1:])
