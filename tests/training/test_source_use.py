"""What validation says of the use of the source, against each sample taken alone."""

import pytest
import torch
from trainer_runs import metrics

from pipeline.model import load_model
from pipeline.shards import Dataset


@pytest.mark.slow
def test_source_use_is_the_loss_by_other_sources_less_the_true_one(
    trainer, validation_folder, tmp_path
):
    options = ("--train.validation_source_use", "true", "--train.precision", "fp32")
    status, text = trainer.run(tmp_path / "run", *options, "--train.max_steps", "4")
    assert status == 0, text
    [line] = [line for line in metrics(tmp_path / "run") if "validation_loss" in line]
    dataset = Dataset(validation_folder)
    model = load_model(tmp_path / "run" / "last" / "model").eval()
    count = len(dataset)
    sums = [0.0, 0.0]
    tokens = 0
    for index in range(count):
        for which, source in enumerate((index, (index + count // 2) % count)):
            given, labels = (  # without padding
                torch.from_numpy(ids.astype("int64"))[None]
                for ids in (dataset[source].source, dataset[index].target)
            )
            with torch.no_grad():
                output = model(given, labels=labels, loss_reduction="sum")
            sums[which] += float(output.loss)
        tokens += labels.numel()
    assert line["validation_loss"] == pytest.approx(sums[0] / tokens, abs=1e-5)
    assert line["validation_source_use"] == pytest.approx((sums[1] - sums[0]) / tokens, abs=1e-5)
    assert abs(line["validation_source_use"]) > 1e-4  # the sources were exchanged


@pytest.mark.slow
def test_one_sample_has_no_other_source(trainer, tmp_path):
    options = ("--train.validation_source_use", "true", "--train.validation_samples", "1")
    status, text = trainer.run(tmp_path / "run", *options)
    assert status == 2
    assert "--train.validation_source_use exchanges sources" in text
    assert "Traceback" not in text
