"""The comparison of whole systems: what a case measures, cases skipped, the command."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch
from small_systems import HERE, SMALL

from pipeline import benchmark
from pipeline.benchmarking import systems
from pipeline.benchmarking.cases import Case, measure
from pipeline.benchmarking.cheap_weights import DRAWN, repeated_draws
from pipeline.model import Locost, LocostConfig
from pipeline.model.encoder import Encoder

LOCOST = {
    "vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 1,
    "decoder_layers": 1, "num_heads": 2, "head_dim": 8,
}  # fmt: skip
SIZES = {"locost": LOCOST, **{name: {**SMALL[name], "vocab_size": 96} for name in HERE}}


@pytest.mark.slow
@pytest.mark.parametrize("system", SIZES)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_system_is_measured(system, mode):
    for memory in ("plain", "saving"):
        case = Case(
            subject=system, mode=mode, memory=memory, length=40, tokens=6, model=SIZES[system]
        )
        found = measure(case)
        assert found["wall_s"] > 0 and found["peak_gib"] >= 0
    if system == "locost":
        weights = Locost(LocostConfig(**LOCOST)).parameters()
        assert found["weights_gib"] * 2**30 == sum(tensor.nbytes for tensor in weights)


def test_positions_reach_the_length():
    for system in ("led", "bart", "pegasus", "bigbird"):
        settings = {**SIZES[system], "max_position_embeddings": 16}
        if system == "led":
            settings = {**SIZES[system], "max_encoder_position_embeddings": 16}
        case = Case(subject=system, mode="inference", length=1100, tokens=20, model=settings)
        assert measure(case)["wall_s"] > 0


def row(system, mode, memory, length, **result):
    case = asdict(Case(subject=system, mode=mode, memory=memory, length=length))
    return {**case, "runs": [], **result}


def test_a_system_that_ran_out_is_not_tried_at_longer_lengths():
    case = Case(subject="t5", mode="training", memory="plain", length=64)
    fits = row("t5", "training", "plain", 16, cpu_s=1.0, peak_gib=1.0)
    failed = row("t5", "training", "plain", 32, cross="out of memory (more than 3 GiB)")
    assert systems.known(case, [fits]) is None
    found = systems.known(case, [fits, failed])
    assert found["cross"] == "out of memory (more than 3 GiB) (at 32)"
    longer = Case(subject="t5", mode="training", memory="plain", length=128)
    assert systems.known(longer, [failed, found])["cross"] == found["cross"]
    for other in ({"memory": "saving"}, {"mode": "inference"}, {"subject": "led"}, {"length": 8}):
        assert systems.known(Case(**{**asdict(case), **other}), [failed]) is None


def test_inference_without_anything_to_save_is_run_once():
    before = [row(name, "inference", "plain", 2**15, cpu_s=3.0) for name in ("led", "locost")]
    saving = {"mode": "inference", "memory": "saving"}
    found = systems.known(Case(subject="led", length=2**15, **saving), before)
    assert (found["memory"], found["as"], found["cpu_s"]) == ("saving", "plain", 3.0)
    assert systems.known(Case(subject="locost", length=2**15, **saving), before) is None
    assert systems.known(Case(subject="led", length=2**14, **saving), before) is None


def test_eager_is_the_other_kernel_of_the_same_model():
    case = Case(subject="bart", mode="inference", length=16, tokens=4, model=SIZES["bart"])
    fast, eager = (measure(replace(case, subject=name)) for name in ("bart", "bart:eager"))
    assert "sdpa" in fast["kernel"] and "sdpa" not in eager["kernel"]
    assert fast["weights_gib"] == eager["weights_gib"]


def test_repeated_draws_keep_their_law_and_other_weights_their_own():
    torch.manual_seed(0)
    with repeated_draws():
        weights = torch.empty(3, DRAWN).normal_(2.0, 0.5)
        uniform = torch.empty(DRAWN + 1).uniform_(-1, 1)
        small = torch.empty(8).normal_()
    assert torch.equal(weights[0], weights[2]) and uniform[0] == uniform[-1]
    assert abs(weights.mean() - 2) < 0.01 and abs(weights.std() - 0.5) < 0.01
    assert -1 < uniform.min() < -0.99 and 0.99 < uniform.max() < 1
    assert small.unique().numel() == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--systems", "gpt"], "invalid choice: 'gpt'"),
        (["--lengths", "1024", "0"], "'0': expected an integer of at least 1"),
        (["--settings", "{"], "not JSON"),
        (["--settings", '{"gpt": {}}'], "give settings by system, locost, longt5-tglobal"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        benchmark.main(["systems", *arguments])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and said in message and message.count("\n") == 1


@pytest.mark.slow
def test_out_of_memory_is_marked_and_not_tried_again(tmp_path):
    """In two new processes; the other rows follow from their results. T5's scores fit in parts."""
    arguments = ["systems", "--systems", "t5:eager", "--lengths", "40", "6000", "9000"]
    arguments += [
        "--tokens",
        "6",
        "--mode",
        "inference",
        "--settings",
        json.dumps(SIZES),
        "--memory_limit",
        "0.3",
    ]
    assert benchmark.main([*arguments, "--rounds", "1", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "systems.json").read_text())["rows"]
    assert [(row["length"], row["memory"]) for row in rows] == [
        (length, memory) for length in (40, 6000, 9000) for memory in ("plain", "saving")
    ]
    crosses = [row.get("cross") for row in rows[::2]]
    assert "peak_gib" in rows[0] and crosses == [
        None, "out of memory (more than 0.3 GiB)", "out of memory (more than 0.3 GiB) (at 6,000)",
    ]  # fmt: skip
    assert [row.get("cross") for row in rows[1::2]] == crosses


def test_plain_is_without_blocks_of_tokens(monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(Encoder, "use_token_blocks", lambda self, size: sizes.append(size))
    for memory in ("plain", "saving"):
        measure(
            Case(subject="locost", mode="inference", length=32, tokens=4, model=LOCOST,
                 memory=memory)
        )  # fmt: skip
    assert sizes == [sys.maxsize]
