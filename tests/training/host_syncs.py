"""Counts how often the host would wait for a card, on a CPU; as a program, in an update.

    python host_syncs.py

prints as JSON the operators of two updates of the trainer's engine by the file that calls them, the
second of 4 micro-batches instead of 2.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402 (the root first)
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pipeline.counting.operator_work import SYNCS  # noqa: E402

COPIES = {torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy}
"""They read a tensor whole; on a CPU without an operator of their own."""
CALLERS = ("pipeline", "deepspeed")
SETTINGS = (
    "--model.d_model 16 --model.d_ff 32 --model.state_dim 4 --model.encoder_layers 2 "
    "--model.decoder_layers 2 --model.num_heads 2 --model.head_dim 8 --train.batch_size 8 "
    "--data.train unread --data.validation unread --output unread"
).split()
MICRO_BATCHES = (2, 4)


class HostSyncs(TorchDispatchMode):
    """Inside, counts what makes the host wait, by operator and the file that calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.copies = Copies(self.add)

    def __enter__(self) -> "HostSyncs":
        self.copies.__enter__()
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self.copies.__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in SYNCS:
            self.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def add(self, name: str) -> None:
        """Count one, by its innermost caller in this project or in DeepSpeed."""
        frame = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if any(caller in path.parts for caller in CALLERS):
                break
            frame = frame.f_back
        self.counts[name, "elsewhere" if frame is None else path.name] += 1


class Copies(TorchFunctionMode):
    """Inside, calls `add` for each of COPIES."""

    def __init__(self, add: Any) -> None:
        super().__init__()
        self.add = add

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in COPIES:
            self.add(func.__name__)
        return func(*args, **(kwargs or {}))


def updates() -> list[dict[str, int]]:
    """The counts of an update of each number of micro-batches."""
    from pipeline.config import parse
    from pipeline.data.collate import MicroBatch
    from pipeline.distributed import world as distributed
    from pipeline.model import Locost
    from pipeline.training.deepspeed_config import deepspeed_settings
    from pipeline.training.engine import make_engine
    from pipeline.training.state import Verdict
    from pipeline.training.step import update

    world, found = distributed.start(), []
    for count in MICRO_BATCHES:
        config, _ = parse([*SETTINGS, "--train.accumulation", str(count)])
        prepared: Any = SimpleNamespace(
            model=Locost(config.architecture(50)), settings=deepspeed_settings(config, 1)
        )
        engine = make_engine(config, prepared)
        ids = torch.randint(3, 50, (2, 24))
        batches = [MicroBatch(ids, torch.ones_like(ids), ids[:, :12])] * count
        for _ in range(2):  # the first one also makes the optimizer's state
            with HostSyncs() as syncs:
                update(
                    engine, batches, 24 * count, world,
                    lambda share: Verdict(share, share, wanted=True, stopping=False),
                    lambda _: None,
                )  # fmt: skip
        found.append({f"{name} {file}": times for (name, file), times in syncs.counts.items()})
        engine.destroy()
    return found


if __name__ == "__main__":
    print("counts", json.dumps(updates()))
