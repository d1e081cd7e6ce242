"""The choice of how the encoder's layers compute their kernels, and convolve with them in training.

Shapes: B rows, L positions.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import get_args

import torch
from torch import Tensor

from .choosing import TRIAL_RUNS, Candidates, choose, elapsed, relative_error, within
from .config import LocostConfig
from .kernel_build import KernelBuild, triton_obstacle
from .ssm import KERNEL_PARAMETERS, BidirectionalSSM, Transform

TOLERANCE = 1e-5
"""Largest error of results and gradients in float32, relative to the largest value of each."""
TESTED = ((3, 300), (2, 4100))
"""Rows and positions of the test, for a layer of TESTED_CHANNELS."""
TESTED_CHANNELS = 4
TRIAL_SHAPES = ((8, 448), (8, 1792), (4, 4096))
"""Rows and positions of a trial's passes: short to long documents."""


def choose_kernel_build(
    name: str, device: torch.device, config: LocostConfig
) -> tuple[KernelBuild, str]:
    """How kernels are computed on the device, tested there, and why, in one line; see `choose`."""
    triton = triton_obstacle(device, torch.float32)
    return choose(
        name,
        Candidates[KernelBuild](
            what="kernel build",
            option="--train.kernel_build",
            names=get_args(KernelBuild),
            reference="torch",
            test=lambda build: tested(config, device, build),
            trial=lambda build: trial(config, device, build),
            obstacles={"triton": triton} if triton else {},
            where=f" on {device}",
        ),
    )


def choose_transform(
    name: str, device: torch.device, config: LocostConfig, build: KernelBuild
) -> tuple[Transform, str]:
    """How training batches are convolved on the device, with kernels of that build; see
    `choose`."""
    slow = "on a CPU a complex FFT takes longer than two real ones"
    return choose(
        name,
        Candidates[Transform](
            what="FFT",
            option="--train.fft",
            names=get_args(Transform),
            reference="rows",
            test=lambda transform: tested(config, device, build, transform),
            trial=lambda transform: trial(config, device, build, transform),
            obstacles={},
            untried={"pairs": slow} if device.type == "cpu" else {},
            test_reference=False,  # the kernel build was, with it
            where=f" on {device}",
        ),
    )


def tested(
    config: LocostConfig, device: torch.device, build: KernelBuild, transform: Transform = "rows"
) -> float:
    """The largest relative error of a layer's results and gradients, against float64.

    Raises ValueError if it is too large.
    """
    layer = random_layer(replace(config, d_model=TESTED_CHANNELS), device)
    exact = random_layer(replace(config, d_model=TESTED_CHANNELS), device).double()
    layer.kernel_build, layer.transform = build, transform
    errors = []
    for rows, length in TESTED:
        generator = torch.Generator().manual_seed(length)
        inputs = torch.randn(2, rows, TESTED_CHANNELS, length, generator=generator).to(device)
        ours, right = (with_gradients(one, *inputs.to(one.D.dtype)) for one in (layer, exact))
        errors.append(relative_error(ours, right))
    return within(max(errors), TOLERANCE)


def with_gradients(layer: BidirectionalSSM, keys: Tensor, direction: Tensor) -> list[Tensor]:
    """The convolution of keys (B, H, L), and gradients of its product with `direction`."""
    with torch.enable_grad(), torch.autocast(keys.device.type, enabled=False):
        leaves = [keys.requires_grad_(), *(getattr(layer, name) for name in KERNEL_PARAMETERS)]
        z = layer.convolution(keys.repeat(1, layer.parts, 1))
        z = z.unflatten(1, (layer.parts, -1)).sum(1)
        return [z.detach(), *torch.autograd.grad(z, leaves, direction)]


def trial(
    config: LocostConfig, device: torch.device, build: KernelBuild, transform: Transform = "rows"
) -> float:
    """Milliseconds of a layer's convolutions of TRIAL_SHAPES, forward and backward: the median of
    TRIAL_RUNS, after one that loads the kernels."""
    layer = random_layer(config, device)
    layer.kernel_build, layer.transform = build, transform
    passes: list[Callable[[], object]] = []
    for rows, length in TRIAL_SHAPES:
        keys = layer.D.new_zeros(rows, config.d_model, length)
        passes.append(partial(with_gradients, layer, keys, torch.ones_like(keys)))
    times = [elapsed(passes, device) for _ in range(1 + TRIAL_RUNS)]
    return median(times[1:])


def random_layer(config: LocostConfig, device: torch.device) -> BidirectionalSSM:
    """A layer of random weights, the same each time; leaves the random state as it was."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return BidirectionalSSM(config).to(device).train()
