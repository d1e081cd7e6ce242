"""Pictures of the state-space layers while they learn: time scales and kernels."""

from collections.abc import Iterator

import deepspeed
import torch
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from pipeline.model import Locost
from pipeline.model.ssm import BidirectionalSSM, modes

SHOWN_LAGS = 256  # tokens of a kernel that are drawn
DIRECTIONS = ("forward", "backward")


class Portraits:
    """Histograms of every layer's time scales and a figure of its kernels, as TensorBoard events.

    Every process calls `draw`, since ZeRO stage 3 gathers the parameters; one with `events` writes.
    """

    def __init__(self, events: SummaryWriter | None, partitioned: bool) -> None:
        self._events, self._partitioned = events, partitioned

    def draw(self, model: Locost, step: int) -> None:
        """Record the layers as they are after `step` updates."""
        layers = [block.ssm for block in model.encoder.blocks]
        parameters = [x for layer in layers for x in layer.parameters(recurse=False)]
        with deepspeed.zero.GatheredParameters(parameters, enabled=self._partitioned):
            if self._events is None:
                return
            for number, layer in enumerate(layers):
                scales = time_scales(layer).log10()
                self._events.add_histogram(f"time_scales_log10/layer{number:02d}", scales, step)
            self._events.add_figure("kernels", kernel_figure(layers), step)


@torch.no_grad()
def time_scales(layer: BidirectionalSSM) -> torch.Tensor:
    """Tokens after which each mode has decayed to 1/e: 1 / |Re z|, flat.

    z are the log-multipliers Lambda Delta a token (paper, section 3.1).
    """
    *dynamics, _ = layer.kernel_parameters()
    return 1 / modes(*dynamics, hold=layer.hold)[1].real.abs().flatten()


def kernel_figure(layers: list[BidirectionalSSM]) -> Figure:
    """The first channel's kernel of every layer, by direction (the paper's figure 6)."""
    rows, columns = -(-len(layers) // 4), min(len(layers), 4)
    figure = Figure(figsize=(3 * columns, 1.8 * rows))
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for number, (axes, kernels) in enumerate(zip(grid, _first_channels(layers), strict=False)):
        for kernel, direction in zip(kernels, DIRECTIONS, strict=False):
            axes.plot(kernel, linewidth=0.8, label=direction)
        axes.set_title(f"layer {number}", fontsize=8)
        axes.tick_params(labelsize=6)
    figure.legend(DIRECTIONS, loc="upper right", fontsize=7)
    figure.tight_layout()
    return figure


def _first_channels(layers: list[BidirectionalSSM]) -> Iterator[list[list[float]]]:
    for layer in layers:
        yield layer.kernels(SHOWN_LAGS)[:, 0].cpu().tolist()
