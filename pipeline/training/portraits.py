"""Pictures of the state-space layers while they learn: time scales and kernels."""

import deepspeed
import torch
from torch.utils.tensorboard import SummaryWriter

from pipeline.evaluation.kernel_figures import figures
from pipeline.evaluation.kernels import examine
from pipeline.model.ssm import BidirectionalSSM

SHOWN_LAGS = 2048  # tokens of a kernel that are drawn
SHOWN_DIMENSIONS = (0,)
DOTS_PER_INCH = 60  # noise does not compress: at 100 a step's pictures would take over 2 MB


class Portraits:
    """Histograms of every layer's time scales and figures of its kernels, as TensorBoard events.

    Every process calls `draw`, since ZeRO stage 3 gathers the parameters; one with `events` writes.
    """

    def __init__(self, events: SummaryWriter | None, partitioned: bool) -> None:
        self._events, self._partitioned = events, partitioned

    def draw(self, model: torch.nn.Module, step: int) -> None:
        """Record the layers, if it has any, as they are after `step` updates."""
        layers = [layer for layer in model.modules() if isinstance(layer, BidirectionalSSM)]
        parameters = [x for layer in layers for x in layer.parameters(recurse=False)]
        with deepspeed.zero.GatheredParameters(parameters, enabled=self._partitioned):
            if self._events is None or not layers:
                return
            found = [examine(layer, SHOWN_LAGS) for layer in layers]
        if not all(layer.is_finite() for layer in found):
            return  # told elsewhere; no picture may stop a run
        for number, layer in enumerate(found):
            scales = layer.time_scales.log10()
            self._events.add_histogram(f"time_scales_log10/layer{number:02d}", scales, step)
        for name, figure in figures(found, SHOWN_DIMENSIONS):
            figure.set_dpi(DOTS_PER_INCH)
            self._events.add_figure(f"kernels/{name}", figure, step)
