"""The choice whether blocks are compiled for training: a test of compiled ones, and a trial.

Shapes: B rows, L source and T target positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Literal, get_args

import torch
from torch import Tensor

from .choosing import TRIAL_RUNS, Candidates, choose, elapsed, relative_error, type_name, within
from .config import LocostConfig
from .locost import Locost
from .ssm import ssm_layers

Blocks = Literal["eager", "compiled"]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
"""Largest error of results and gradients by the type of matrix products, relative to the largest
value of each."""
TESTED = (3, 70, 20)
"""B, L and T of the test."""
VOCABULARY = 64
"""Ids of the test and the trial, beside the special ones: neither is of embeddings."""
TRIAL_SHAPES = ((8, 448, 128), (8, 1792, 256), (4, 4096, 512))
"""B, L and T of a trial's passes: short to long documents."""


def choose_blocks(
    name: str, model: Locost, device: torch.device, dtype: torch.dtype, obstacle: str | None = None
) -> tuple[Blocks, str]:
    """Whether the model's blocks are compiled, tested on the device with products in `dtype`, and
    why, in one line; see `choose`.

    The model's attention and convolutions are used as they are set. `obstacle`: why none can be.
    """
    slow = "compiling takes minutes on a CPU"
    return choose(
        name,
        Candidates[Blocks](
            what="blocks",
            option="--train.blocks",
            names=get_args(Blocks),
            reference="eager",
            test=partial(tested, model=model, device=device, dtype=dtype),
            trial=partial(trial, model=model, device=device, dtype=dtype),
            obstacles={"compiled": obstacle} if obstacle else {},
            untried={"compiled": slow} if device.type == "cpu" else {},
            test_reference=False,
            where=f" in {type_name(dtype)} on {device}",
        ),
    )


def tested(blocks: Blocks, model: Locost, device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative error of the states and of gradients, against float64.

    Raises ValueError if it is too large.
    """
    exact = few_layers(model, device).double()
    ours = few_layers(model, device)
    if blocks == "compiled":
        ours.compile_blocks(dynamic=True)
    found = with_gradients(ours, dtype, *random_batch(ours.config, device, TESTED))
    right = with_gradients(exact, torch.float64, *random_batch(ours.config, device, TESTED))
    return within(relative_error(found, right), TOLERANCES[dtype])


def with_gradients(
    model: Locost, dtype: torch.dtype, ids: Tensor, mask: Tensor, labels: Tensor
) -> Sequence[Tensor]:
    """The loss and its gradients by the parameters of the blocks' feed-forward layers."""
    narrow = dtype == torch.bfloat16
    with torch.enable_grad(), torch.autocast(ids.device.type, torch.bfloat16, enabled=narrow):
        loss = model(ids, mask, labels, loss_only=True, check=False).loss
    leaves = [p for name, p in model.named_parameters() if "feed_forward.w" in name]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def trial(blocks: Blocks, model: Locost, device: torch.device, dtype: torch.dtype) -> float:
    """Milliseconds of forward and backward passes of TRIAL_SHAPES through one block of each kind:
    the median of TRIAL_RUNS, after two that compile and load the kernels."""
    ours = few_layers(model, device)
    if blocks == "compiled":
        ours.compile_blocks(dynamic=True)
    passes: list[Callable[[], object]] = [
        partial(with_gradients, ours, dtype, *random_batch(ours.config, device, shape))
        for shape in TRIAL_SHAPES
    ]
    times = [elapsed(passes, device) for _ in range(2 + TRIAL_RUNS)]
    return median(times[2:])


def few_layers(model: Locost, device: torch.device) -> Locost:
    """A model with one block of each kind, otherwise of the model's sizes and settings, with random
    weights, the same each time; leaves the random state as it was."""
    special = max(model.config.pad_id, model.config.eos_id, model.config.start_id)
    vocabulary = min(model.config.vocab_size, special + VOCABULARY)
    config = replace(
        model.config, encoder_layers=1, decoder_layers=1, dropout=0.0, vocab_size=vocabulary
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        few = Locost(config).to(device).train()
    few.decoder.attention_backend = model.decoder.attention_backend
    for layer, like in zip(ssm_layers(few), ssm_layers(model), strict=False):
        layer.kernel_build, layer.transform = like.kernel_build, like.transform
    return few


def random_batch(
    config: LocostConfig, device: torch.device, shape: tuple[int, int, int]
) -> list[Tensor]:
    """Ids, their mask and labels of B rows of L / B to L real positions, the same each time."""
    rows, source, target = shape
    generator = torch.Generator().manual_seed(0)
    ends = torch.arange(1, rows + 1) * source // rows
    mask = (torch.arange(source) < ends[:, None]).long()
    ids, labels = (
        torch.randint(config.vocab_size, (rows, length), generator=generator)
        for length in (source, target)
    )
    return [x.to(device) for x in (ids * mask, mask, labels)]
