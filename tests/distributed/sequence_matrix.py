"""Gradients of models whose sources several processes share, against one process in float64.

    sequence_matrix.py OUTPUT

Four processes, each of which computes the whole by itself too. OUTPUT gets a JSON object a case.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path[:1] = [str(Path(__file__).resolve().parents[level]) for level in (2, 1)]

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.sequence.layer import _SeqAllToAll  # noqa: E402
from ranks import fork_ranks  # noqa: E402

from pipeline.distributed import world as distributed  # noqa: E402
from pipeline.distributed.sequence_parallel import sequence_group  # noqa: E402
from pipeline.distributed.world import World  # noqa: E402
from pipeline.model import Locost, LocostConfig  # noqa: E402
from pipeline.model.sequence import ALONE, SequenceGroup, swap, unswap  # noqa: E402

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled

PROCESSES = 4
CONFIG = LocostConfig(
    vocab_size=50, d_model=16, state_dim=4, d_ff=24, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=8, dropout=0.0,
)  # fmt: skip
SOURCES = {
    "whole": (24, [24, 24, 24]),
    "odd": (21, [21, 9, 13]),
    "parts of padding": (22, [3, 1, 5]),
    "one token a part": (3, [3, 2, 1]),
}
"""Padded length, and the real one of each row."""
CASES: list[dict[str, Any]] = [
    *({"source": source} for source in SOURCES),
    {"source": "odd", "recompute": True},
    {"source": "odd", "pairs": True},
    *({"source": "odd", "model": more} for more in (
        {"ssm_projections": "complex"},
        {"ssm_directions": "causal"},
        {"ssm_directions": "separate"},
        {"ssm_discretisation": "zero_order_hold", "ssm_initialisation": "paper"},
        {"positions": "rotary", "tie_embeddings": False},
        {"cross_attention_initialisation": "copy"},
    )),
]  # fmt: skip
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.float32}
ROUNDED = ({"source": "odd"}, {"source": "odd", "recompute": True}, {"source": "parts of padding"})
"""Cases of all precisions; of the others float64 shows every mistake."""
Gradients = list[torch.Tensor]


def batch(source: str) -> list[torch.Tensor]:
    """Ids, mask and labels."""
    length, real = SOURCES[source]
    generator = torch.Generator().manual_seed(0)
    ids, labels = (
        torch.randint(1, CONFIG.vocab_size, (len(real), size), generator=generator)
        for size in (length, 6)
    )
    mask = (torch.arange(length) < torch.tensor(real)[:, None]).long()
    labels[0, 4:] = -100
    return [ids * mask, mask, labels]


def gradients(
    model: Locost, inputs: list[torch.Tensor], group: SequenceGroup, bf16: bool = False
) -> Gradients:
    """The loss and its gradients, as the average over all processes that DeepSpeed makes."""
    model.use_sequence(group)
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(*inputs, loss_reduction="sum", loss_only=True).loss
    loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    if group.size > 1:
        together = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(together)
        parts = (together / PROCESSES).split([grad.numel() for grad in grads])
        grads = [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)]
    return [loss.detach(), *grads]


def error(found: Gradients, right: Gradients) -> float:
    """The largest, relative to the largest value of each; inf where one is not finite."""
    return max(
        float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30))
        if a.isfinite().all() else torch.inf
        for a, b in zip(found, right, strict=True)
    )  # fmt: skip


def exactness(world: World) -> Iterator[dict[str, Any]]:
    """Each case in each precision: the errors of one process, and of groups of 2 and 4."""
    for case in CASES:
        torch.manual_seed(0)
        model = Locost(replace(CONFIG, **case.get("model", {})))
        model.recompute_activations(case.get("recompute", False))
        for layer in model.encoder.blocks:
            layer.ssm.transform = "pairs" if case.get("pairs") else "rows"
        inputs = batch(case["source"])
        right = gradients(deepcopy(model).double(), inputs, ALONE)
        for precision, dtype in PRECISIONS.items():
            if precision != "float64" and case not in ROUNDED:
                continue
            compute = partial(gradients, model.to(dtype), inputs, bf16=precision == "bfloat16")
            yield {
                "case": case,
                "precision": precision,
                "alone": error(compute(ALONE), right),
                "shared": [
                    error(compute(sequence_group(world.in_sequences(size))), right)
                    for size in (2, 4)
                ],
            }
            model.use_sequence(ALONE)


def dropout(world: World) -> Iterator[dict[str, Any]]:
    """Losses and a digest of the gradients with dropout, on every process, three times each: twice
    from one seed and once from another; with and without recomputation."""
    model = Locost(replace(CONFIG, dropout=0.3))
    inputs, group = batch("odd"), sequence_group(world.in_sequences(2))
    for recompute in (False, True):
        model.recompute_activations(recompute)
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(10 * seed + world.in_sequences(2).data_rank)
            loss, *grads = gradients(model, inputs, group)
            runs.append([loss.item(), sum(float(grad.double().abs().sum()) for grad in grads)])
        yield {"recompute": recompute, "runs_by_rank": world.gather(runs)}


def traffic(world: World) -> Iterator[dict[str, Any]]:
    """Bytes sent by a rank in forward and backward, without and with recomputation."""
    ids, mask, labels = batch("odd")
    for size in (2, 4):
        group = sequence_group(world.in_sequences(size))
        for recompute in (False, True):
            model = Locost(CONFIG)
            model.recompute_activations(recompute)
            before = group.bytes_sent
            gradients(model, [ids, mask, labels], group)
            yield {"size": size, "recompute": recompute, "bytes": group.bytes_sent - before}


def compiled(world: World) -> Iterator[dict[str, Any]]:
    """The error of compiled blocks, without the code generator, which takes minutes; recomputed."""
    torch.manual_seed(0)
    model = Locost(CONFIG)
    inputs = batch("odd")
    right = gradients(deepcopy(model).double(), inputs, ALONE)
    model.compile_blocks(backend="aot_eager", dynamic=True)
    for recompute in (False, True):
        model.recompute_activations(recompute)
        found = gradients(model, inputs, sequence_group(world.in_sequences(2)))
        yield {"recompute": recompute, "error": error(found, right)}


def deepspeed_exchange(world: World) -> Iterator[dict[str, Any]]:
    """Whether DeepSpeed's own exchange gives the same bits, forward and backward."""
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    group = sequence_group(world.in_sequences(4))
    x = torch.randn(3, 8, 5, requires_grad=True)
    for ours, scatter, gather in ((swap, 1, 2), (unswap, 2, 1)):
        own = ours(x, group)
        parts = x[:, :, None] if scatter == 1 else x.unflatten(2, (4, -1))
        theirs = _SeqAllToAll.apply(group.group, parts, scatter, gather, 0).flatten(2)
        direction = torch.randn(own.shape)
        grads = [torch.autograd.grad(y, x, direction)[0] for y in (own, theirs)]
        yield {"same": torch.equal(own, theirs) and torch.equal(*grads)}
        x = own.detach().requires_grad_()


PARTS: dict[str, Callable[[World], Iterator[dict[str, Any]]]] = {
    "exactness": exactness,
    "dropout": dropout,
    "traffic": traffic,
    "compiled": compiled,
    "deepspeed": deepspeed_exchange,
}


def main(output: Path) -> None:
    world = distributed.start()
    found = {name: list(part(world)) for name, part in PARTS.items()}
    if world.is_main:
        output.write_text(json.dumps(found))
    distributed.stop()


if __name__ == "__main__":
    sys.exit(fork_ranks(PROCESSES, partial(main, Path(sys.argv[1]))))
