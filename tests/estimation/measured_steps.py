"""Updates by the trainer's engine: peak bytes over those held before the model was built.

    python measured_steps.py '[[SAMPLES, SOURCE, TARGET, VOCABULARY, train.py's arguments], ...]'

One line for each, all in one process, since a launch takes longer. Run it with
MALLOC_MMAP_THRESHOLD_ set: otherwise the C library keeps freed blocks, up to a fifth more than is
held.
"""

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402 (the root first)

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402
from pipeline.distributed.device import Peak  # noqa: E402
from pipeline.model import Locost  # noqa: E402
from pipeline.training.deepspeed_config import deepspeed_settings  # noqa: E402
from pipeline.training.engine import make_engine  # noqa: E402

WARM_UP = (
    "--model.d_model 16 --model.d_ff 32 --model.state_dim 4 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.num_heads 2 --model.head_dim 8"
).split()


def updates(arguments: list[str], samples: int, source: int, target: int, vocabulary: int) -> None:
    """Build the engine, update twice, free everything."""
    config, _ = parse(arguments)
    torch.manual_seed(0)
    prepared: Any = SimpleNamespace(
        model=Locost(config.architecture(vocabulary)), settings=deepspeed_settings(config, 1)
    )
    engine = make_engine(config, prepared)
    del prepared
    for _ in range(2 * config.train.accumulation):
        ids = torch.randint(3, vocabulary, (samples, source))
        labels = torch.randint(3, vocabulary, (samples, target))
        output = engine(
            ids, torch.ones_like(ids), labels, loss_reduction="sum", loss_only=True, check=False
        )
        engine.backward(output.loss / labels.numel())
        engine.step()
        del output
    engine.destroy()


def main(cases: list[list[Any]]) -> None:
    distributed.start()
    torch.set_num_threads(1)
    for samples, source, target, vocabulary, arguments in cases:
        words = arguments.split()
        updates([*words, *WARM_UP], samples, 64, 32, 50)  # load what the very first use loads
        gc.collect()
        peak = Peak(torch.device("cpu"))
        updates(words, samples, source, target, vocabulary)
        print("peak", peak.bytes())
        gc.collect()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
