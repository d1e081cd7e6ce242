"""Pictures of the state-space layers: time scales by hand, events read back by TensorBoard."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from pipeline.model import Locost, LocostConfig
from pipeline.training.portraits import Portraits, time_scales

CONFIG = LocostConfig(
    vocab_size=20, d_model=4, state_dim=3, d_ff=8, encoder_layers=2, decoder_layers=1,
    num_heads=2, head_dim=2,
)  # fmt: skip


def test_a_time_scale_is_where_a_mode_has_decayed_to_1_over_e():
    layer = Locost(CONFIG).encoder.blocks[0].ssm
    with torch.no_grad():
        layer.inv_A_real.fill_(0.0)  # Re lambda = -1
        layer.log_dt.fill_(torch.log(torch.tensor(0.01)))
    assert time_scales(layer).tolist() == pytest.approx([100.0] * time_scales(layer).numel())


def test_tensorboard_reads_them_back(tmp_path):
    model = Locost(CONFIG)
    with SummaryWriter(str(tmp_path)) as events:
        Portraits(events, partitioned=False).draw(model, 7)
        Portraits(None, partitioned=False).draw(model, 7)  # another rank
    found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "images": 0})
    found.Reload()
    assert found.Tags()["histograms"] == [f"time_scales_log10/layer{k:02d}" for k in range(2)]
    assert found.Tags()["images"] == ["kernels"]
    (histogram,) = found.Histograms("time_scales_log10/layer00")
    assert histogram.step == 7
    scales = time_scales(model.encoder.blocks[0].ssm).log10()
    assert histogram.histogram_value.num == scales.numel()
    assert histogram.histogram_value.min == pytest.approx(float(scales.min()))
