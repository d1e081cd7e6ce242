"""Every baseline through the trainer and the evaluation, like LOCOST."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small_systems import BART, HERE, SMALL

from pipeline.baselines.model import Baseline
from pipeline.baselines.registry import load_model
from pipeline.baselines.systems import BaselineConfig
from pipeline.data.collate import collate
from pipeline.data.order import GlobalOrder
from pipeline.distributed.world import World, free_port
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.model.generation import DecodingStrategy
from pipeline.shards import Dataset
from pipeline.training.callbacks.health import sample_names

pytestmark = pytest.mark.slow

ALONE = World(0, 1, 0, torch.device("cpu"))
MATRIX = Path(__file__).with_name("baseline_matrix.py")
# (tokenizer, DeepSpeed configuration); stage 3 comes last: DeepSpeed then replaces torch's linear
# function for good.
CASES = {
    "longt5-tglobal": ("ours", "zero1"),
    "longt5-local": ("byte pairs", "zero2"),
    "led": ("byte pairs", "zero1"),
    "bigbird": ("many words", "zero2"),
    "bart": ("byte pairs", "zero2_offload"),
    "pegasus": ("many words", "zero1"),
    "t5": ("ours", "zero3"),
}
TINY_LOCOST = {
    "d_model": 16, "d_ff": 32, "state_dim": 4, "encoder_layers": 1, "decoder_layers": 1,
    "num_heads": 2, "head_dim": 8,
}  # fmt: skip


def words(data, zero, **model):
    return [
        *(word for name, value in model.items() for word in (f"--model.{name}", str(value))),
        *("--deepspeed_config", f"ds_configs/{zero}.json"),
        *("--data.train", str(data.train), "--data.validation", str(data.validation)),
        *("--train.batch_size", "8", "--train.accumulation", "2", "--train.precision", "fp32"),
        *("--train.schedule", "constant", "--train.peak_lr", "0.003", "--train.warmup_steps", "2"),
        *("--train.checkpoint_every", "2", "--train.validate_every", "2"),
        *("--train.max_new_tokens", "6", "--train.picture_every", "2"),
        *("--train.validation_rouge", "false" if zero == "zero3" else "true"),
    ]


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> Path:
    """Runs of each system with dropout, unbroken and resumed, one without, and LOCOST's."""
    output = tmp_path_factory.mktemp("runs")
    plain = {"baseline": "bart", "baseline_settings": json.dumps(BART)}
    cases = [
        ("locost", words(data["ours"], "zero1", **TINY_LOCOST), False),
        ("bart-plain", words(data["byte pairs"], "zero1", **plain), False),
    ]
    for name, (kind, zero) in CASES.items():
        settings = json.dumps(SMALL[name])
        model = {"baseline": name, "baseline_settings": settings, "dropout": 0.1}
        cases.append((name, words(data[kind], zero, **model), True))
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "-q", "--num_accelerators", "2"]
    command = [*launcher, "--master_port", str(free_port()), str(MATRIX), str(output)]
    result = subprocess.run(
        [*command, json.dumps(cases)], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return output


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_all_systems_are_there():
    assert CASES.keys() == set(HERE)


@pytest.mark.parametrize("name", CASES)
def test_a_run_leaves_what_locosts_leaves(runs, name):
    steps = [line for line in lines(runs / name) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    first, second, third, last = (line["loss"] for line in steps)
    assert third + last < first + second
    assert all(line["skipped_updates"] == 0 for line in steps)
    expected = [line.keys() - {"tflops_per_process"} for line in lines(runs / "locost")]
    if name != "t5":  # stage 3 does not generate
        assert [line.keys() for line in lines(runs / name)] == expected
    config = yaml.safe_load((runs / name / "config.yaml").read_text())
    assert config["model"] == {
        "init_from": None, "baseline": name, "baseline_settings": SMALL[name], "dropout": 0.1,
        "cross_attention_initialisation": "code",
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_equals_the_unbroken_one(runs, name):
    whole, again = (
        load_file(runs / run / "last" / "model" / "model.safetensors")
        for run in (name, f"{name}-again")
    )
    assert all(torch.equal(whole[key], again[key]) for key in whole)
    losses = [
        [line["loss"] for line in lines(runs / run) if "loss" in line]
        for run in (name, f"{name}-again")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["longt5-tglobal", "led", "pegasus"])
def test_the_samples_are_those_of_locosts_run(runs, data, name):
    """A skipped update's file names the samples of its step; here those of every step."""
    kind, _ = CASES[name]
    drawn = []
    for dataset in (Dataset(data["ours"].train), Dataset(data[kind].train)):
        order = GlobalOrder([[shard.samples for shard in dataset.shards]], 8, seed=0)
        steps = [sample_names([dataset], order.samples(step)) for step in range(4)]
        drawn.append([[sample["id"] for sample in step] for step in steps])
    assert drawn[0] == drawn[1]
    for ours, theirs in zip(lines(runs / "locost"), lines(runs / name), strict=True):
        if "source_tokens" in ours and kind == "ours":
            assert ours["source_tokens"] == theirs["source_tokens"]
            assert ours["target_tokens"] == theirs["target_tokens"]


def test_losses_equal_a_plain_loop_over_transformers_own_loss(runs, data):
    """fp32, two processes, two micro-batches, ZeRO-1 against torch and transformers alone."""
    dataset = Dataset(data["byte pairs"].train)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], 8, 0)
    torch.manual_seed(0)
    vocab_size = dataset.manifest["tokenizer"]["vocab_size"]
    ids = {"pad_id": 1, "start_id": 1, "eos_id": 2}
    config = BaselineConfig(name="bart", vocab_size=vocab_size, settings=BART, **ids)
    network = Baseline(config).train().network
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003, weight_decay=0.0)
    for step, line in enumerate(line for line in lines(runs / "bart-plain") if "loss" in line):
        batch = collate([dataset[ref.sample] for ref in order.samples(step)], 0, 0)
        loss = network(batch.input_ids, batch.attention_mask, labels=batch.labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_evaluation_is_the_same_code(runs, data, name, tmp_path):
    kind, _ = CASES[name]
    options = EvaluationOptions(
        checkpoint=runs / name / "last",
        data=data[kind].validation,
        output=tmp_path / "out",
        strategy=DecodingStrategy(max_new_tokens=6),
        batch_size=4,
        precision="fp32",
        source_length=24,
        source_use_by_position=True,
    )
    results, worked = evaluate(options, ALONE)
    assert worked and results["examples"] == 10
    assert results["systems"].keys() == {"model", "lead", "permuted"}
    model = load_model(runs / name / "last" / "model")
    assert model.config.name == name
    counts = {"measured": 10, "too_short": 0, "without_reference": 0}
    assert results["source_use_documents"] == counts
    # Any: at this size a tenth changes the loss of PEGASUS by less than fp32 resolves.
    assert any(one["rise"] for one in results["source_use_by_position"])
    if kind != "ours":
        with pytest.raises(ValueError, match="preprocess the dataset again"):
            evaluate(EvaluationOptions(**{**vars(options), "data": data["ours"].validation}), ALONE)
