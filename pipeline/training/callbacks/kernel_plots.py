"""Pictures of the state-space layers while they learn: time scales and kernels."""

import deepspeed
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from pipeline.kernels.statistics import examine
from pipeline.model.ssm import BidirectionalSSM
from pipeline.training.callbacks.base import Callback
from pipeline.training.callbacks.recorder import NoRecorder
from pipeline.training.state import StepResult, TrainingState

SHOWN_LAGS = 2048  # tokens of a kernel that are drawn
SHOWN_DIMENSIONS = (0,)
DOTS_PER_INCH = 60  # noise does not compress: at 100 a step's pictures would take over 2 MB


class KernelPlots(Callback):
    """Draws the layers every `picture_every` updates.

    ZeRO stage 3 gathers the parameters, so all ranks take part.
    """

    def __init__(self, recorder: NoRecorder) -> None:
        self.recorder = recorder

    def after_update(self, state: TrainingState, result: StepResult) -> None:
        every = state.config.train.picture_every
        if every and state.step % every == 0:
            partitioned = state.engine.zero_optimization_stage() == 3
            with self.recorder.recording():
                draw(state.engine.module, self.recorder.events, state.step, partitioned)


def draw(
    model: nn.Module, events: SummaryWriter | None, step: int, partitioned: bool = False
) -> None:
    """Histograms of each layer's time scales and figures of its kernels, as TensorBoard events.

    Nothing without `events`; `partitioned` parameters are gathered, which is a collective.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BidirectionalSSM)]
    parameters = [x for layer in layers for x in layer.parameters(recurse=False)]
    with deepspeed.zero.GatheredParameters(parameters, enabled=partitioned):
        if events is None or not layers:
            return
        found = [examine(layer, SHOWN_LAGS) for layer in layers]
    if not all(layer.is_finite() for layer in found):
        return  # Health reports it; no picture may stop a run
    for number, layer in enumerate(found):
        scales = layer.time_scales.log10()
        events.add_histogram(f"time_scales_log10/layer{number:02d}", scales, step)
    from pipeline.kernels.figures import figures  # Matplotlib takes as long to import as DeepSpeed

    for name, figure in figures(found, SHOWN_DIMENSIONS):
        figure.set_dpi(DOTS_PER_INCH)
        events.add_figure(f"kernels/{name}", figure, step)
