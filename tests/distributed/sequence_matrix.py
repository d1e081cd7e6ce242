"""Gradients of models whose sources several processes share, against one process; rank 0 prints.

    sequence_matrix.py RANK PROCESSES MEETING_FILE

Every process computes the whole by itself too. A line of JSON a case: its name, and the largest
errors of loss and gradients, relative to the largest value of each parameter's.
"""

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from pipeline.distributed.sequence_parallel import sequence_group  # noqa: E402
from pipeline.distributed.world import World  # noqa: E402
from pipeline.model import Locost, LocostConfig  # noqa: E402
from pipeline.model.sequence import ALONE, SequenceGroup  # noqa: E402

CONFIG = LocostConfig(
    vocab_size=50, d_model=16, state_dim=4, d_ff=24, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=8, dropout=0.0,
)  # fmt: skip
VARIANTS = {
    "default": {},
    "complex": {"ssm_projections": "complex"},
    "causal": {"ssm_directions": "causal"},
    "separate": {"ssm_directions": "separate"},
    "rotary": {"positions": "rotary", "tie_embeddings": False},
}
SOURCES = {
    "whole": (24, [24, 24, 24]),
    "odd": (21, [21, 9, 13]),
    "parts of padding": (22, [3, 1, 5]),
    "one token a part": (3, [3, 2, 1]),
}
"""Padded length, and the real one of each row."""


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
    model: Locost, inputs: list[torch.Tensor], group: SequenceGroup, narrow: bool
) -> list[torch.Tensor]:
    """The loss and its gradients, as the average over processes that DeepSpeed makes."""
    model.use_sequence(group)
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        loss = model(*inputs, loss_reduction="sum", loss_only=True).loss
    loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    if group.size > 1:
        for grad in grads:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
    return [loss.detach(), *grads]


def errors(found: list[torch.Tensor], right: list[torch.Tensor]) -> list[float]:
    """Of the loss, and the largest of the gradients; inf where one is not finite."""
    of = [
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30))
        if a.isfinite().all() else torch.inf
        for a, b in zip(found, right, strict=True)
    ]  # fmt: skip
    return [of[0], max(of[1:])]


def main(world: World) -> None:
    for variant, (precision, dtype) in product(
        VARIANTS, {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}.items()
    ):
        torch.manual_seed(0)
        model = Locost(replace(CONFIG, **VARIANTS[variant])).to(dtype)
        with torch.no_grad():
            for parameter in model.decoder.parameters():
                parameter.mul_(2)  # so that attention is far from even
        for source in SOURCES if variant == "default" else ["odd"]:
            inputs, narrow = batch(source), precision == "bf16"
            right = gradients(model, inputs, ALONE, narrow)
            for size, recompute in product((2, 4), (False, True)):
                model.recompute_activations(recompute)
                found = gradients(model, inputs, sequence_group(world.in_sequences(size)), narrow)
                name = [variant, precision, source, size, recompute]
                if world.is_main:
                    print(json.dumps({"case": name, "errors": errors(found, right)}))
            model.recompute_activations(False)


if __name__ == "__main__":
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=size)
    main(World(rank, size, rank, torch.device("cpu")))
    dist.barrier()
    dist.destroy_process_group()
