"""Pictures of the state-space layers, read back by TensorBoard."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from pipeline.kernels.statistics import examine
from pipeline.model import Locost, LocostConfig
from pipeline.training.callbacks.kernel_plots import draw

CONFIG = LocostConfig(
    vocab_size=20, d_model=4, state_dim=3, d_ff=8, encoder_layers=2, decoder_layers=1,
    num_heads=2, head_dim=2,
)  # fmt: skip


@pytest.mark.slow
def test_tensorboard_reads_them_back(tmp_path):
    model = Locost(CONFIG)
    with SummaryWriter(str(tmp_path)) as events:
        draw(model, events, 7)
        draw(model, None, 7)  # another rank
    found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "images": 0})
    found.Reload()
    assert found.Tags()["histograms"] == [f"time_scales_log10/layer{k:02d}" for k in range(2)]
    assert sorted(found.Tags()["images"]) == [
        "kernels/bounds_0", "kernels/decay", "kernels/kernels_0", "kernels/magnitudes_backward",
        "kernels/magnitudes_forward", "kernels/radii_and_lengths",
    ]  # fmt: skip
    (histogram,) = found.Histograms("time_scales_log10/layer00")
    assert histogram.step == 7
    scales = examine(model.encoder.blocks[0].ssm, 40).time_scales.log10()
    assert histogram.histogram_value.num == scales.numel()
    assert histogram.histogram_value.min == pytest.approx(float(scales.min()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Data has no positive values")
@pytest.mark.parametrize("value", [float("nan"), 800.0, 0.0])
def test_no_weights_stop_a_run(tmp_path, value):
    model = Locost(CONFIG)
    ssm = model.encoder.blocks[0].ssm
    (ssm.inv_A_real if value else ssm.C).data.fill_(value)  # no decay, too much of it, no kernel
    with SummaryWriter(str(tmp_path)) as events:
        draw(model, events, 1)
