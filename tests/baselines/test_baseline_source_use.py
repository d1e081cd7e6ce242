"""Source use by position of baselines: T5, and BART, whose sources begin with <s>."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is an extra")

from small_systems import SMALL

from pipeline.baselines.model import Baseline
from pipeline.baselines.registry import load_model, save_model
from pipeline.baselines.systems import BaselineConfig
from pipeline.distributed.world import World
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.evaluation.source_use import exchanged, plan_exchange
from pipeline.scoring.source_use import Losses, rises
from pipeline.shards import Dataset

ALONE = World(0, 1, 0, torch.device("cpu"))
IDS = {"t5": {}, "bart": {"pad_id": 1, "start_id": 1, "eos_id": 2}}
POSITIONS = {"t5": {}, "bart": {"max_position_embeddings": 128}}


@pytest.mark.parametrize(("name", "kind"), [("t5", "ours"), ("bart", "byte pairs")])
def test_a_baselines_losses_are_those_of_each_document_alone(data, name, kind, tmp_path):
    dataset = Dataset(data[kind].validation)
    vocab_size = dataset.manifest["tokenizer"]["vocab_size"]
    settings = SMALL[name] | POSITIONS[name]
    torch.manual_seed(0)
    config = BaselineConfig(name=name, vocab_size=vocab_size, settings=settings, **IDS[name])
    save_model(Baseline(config), tmp_path / "model", dataset.tokenizer_path)
    options = EvaluationOptions(
        checkpoint=tmp_path / "model",
        data=data[kind].validation,
        output=tmp_path / "out",
        systems=("lead",),
        batch_size=4,
        precision="fp32",
        source_length=120,
        source_use_by_position=True,
    )
    results, _ = evaluate(options, ALONE)
    counts = {"measured": 10, "too_short": 0, "without_reference": 0}
    assert results["source_use_documents"] == counts
    records = Losses(tmp_path / "out", "model").read()
    assert results["source_use_by_position"] == rises(records)
    examples = Examples(dataset, 120)
    exchange = plan_exchange(examples, 4)
    assert exchange.prefix == (1 if name == "bart" else 0)
    model = load_model(tmp_path / "model").double()
    for record in records[::3]:
        example = examples[record["index"]]
        other = examples[exchange.partners[record["index"]]].source
        labels = torch.from_numpy(example.target.astype("int64"))[None]
        changed = [exchanged(example.source, other, part, exchange.prefix) for part in range(10)]
        for loss, source in zip(record["losses"], [example.source, *changed], strict=True):
            assert source[0] == example.source[0] or not exchange.prefix
            ids = torch.from_numpy(source.astype("int64"))[None]
            with torch.no_grad():
                expected = model(ids, None, labels, loss_reduction="sum")[0].item()
            assert loss == pytest.approx(expected, rel=1e-5)


def test_sources_beyond_its_positions_are_refused(data, tmp_path):
    """Not cut, which would leave the last tenth without effect."""
    dataset = Dataset(data["byte pairs"].validation)
    vocab_size = dataset.manifest["tokenizer"]["vocab_size"]
    settings = SMALL["bart"] | {"max_position_embeddings": 16}
    config = BaselineConfig(name="bart", vocab_size=vocab_size, settings=settings, **IDS["bart"])
    save_model(Baseline(config), tmp_path / "model", dataset.tokenizer_path)
    options = EvaluationOptions(
        checkpoint=tmp_path / "model",
        data=data["byte pairs"].validation,
        output=tmp_path / "out",
        systems=("lead",),
        source_use_by_position=True,
    )
    with pytest.raises(ValueError, match="bart has positions for sources of 16 tokens"):
        evaluate(options, ALONE)
