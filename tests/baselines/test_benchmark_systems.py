"""The comparison of whole systems: cases measured, cases skipped, ratios and targets."""

import json
import sys
from dataclasses import asdict

import matplotlib.image
import pytest
from small_systems import HERE, SMALL

from pipeline import benchmark
from pipeline.benchmarking import systems
from pipeline.benchmarking.cases import Case, measure
from pipeline.model import Locost, LocostConfig
from pipeline.model.encoder import Encoder

LOCOST = {
    "vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 1,
    "decoder_layers": 1, "num_heads": 2, "head_dim": 8,
}  # fmt: skip
SIZES = {"locost": LOCOST, **{name: {**SMALL[name], "vocab_size": 96} for name in HERE}}


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
    return {**asdict(Case(subject=system, mode=mode, memory=memory, length=length)), **result}


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


def test_ratios_longest_and_targets_by_hand():
    rows = [
        row("locost", "training", "plain", 4096, cpu_s=10.0, peak_gib=4.0),
        row("locost", "training", "plain", 16384, cpu_s=50.0, peak_gib=15.0),
        row("longt5-tglobal", "training", "plain", 4096, cpu_s=12.0, peak_gib=10.0),
        row("longt5-tglobal", "training", "plain", 16384, cross="out of memory"),
        row("led", "training", "plain", 16384, cpu_s=40.0, peak_gib=20.0),
        row("led", "training", "saving", 16384, cpu_s=40.0, peak_gib=20.0),
    ]
    first, second = systems.ratios(rows, "cpu_s")
    assert (first["system"], first["memory_ratio"], first["throughput_ratio"]) == (
        "longt5-tglobal", 0.4, 1.2,
    )  # fmt: skip
    assert (second["system"], second["memory_ratio"], second["throughput_ratio"]) == (
        "led", 0.75, 0.8,
    )  # fmt: skip
    found = {
        (target.figure, target.system, target.length): value
        for target, _, value in systems.targets([first, second])
    }
    assert found == {
        ("memory", "longt5-tglobal", 4096): 0.4,
        ("memory", "led", 16384): 0.75,
        ("throughput", "longt5-tglobal", 4096): 1.2,
    }
    assert systems.longest(rows)["longt5-tglobal, training, plain"] == {
        "fits": 4096,
        "fails": 16384,
    }
    assert systems.longest(rows)["locost, training, plain"] == {"fits": 16384, "fails": None}


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


def test_the_command_writes_json_and_the_figure(tmp_path, capsys, monkeypatch):
    def measure_in_this_process(case, limit_s, memory_bytes):
        return {**asdict(case), **measure(case)}

    monkeypatch.setattr(systems, "measure_apart", measure_in_this_process)
    arguments = ["systems", "--lengths", "40", "--tokens", "6", "--mode", "training"]
    arguments += ["--systems", "locost", "longt5-tglobal", "--settings", json.dumps(SIZES)]
    assert benchmark.main([*arguments, "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "systems.json").read_text())
    assert len(written["rows"]) == 4 and len(written["ratios"]) == 2
    assert written["longest"]["locost, training, saving"] == {"fits": 40, "fails": None}
    printed = capsys.readouterr().out
    assert "weights, not counted in the peak: locost 0.00 GiB, longt5" in printed
    picture = matplotlib.image.imread(tmp_path / "systems.png")
    assert picture.std() > 0.01  # not blank


@pytest.mark.slow
def test_out_of_memory_is_marked_and_not_tried_again(tmp_path):
    """In two new processes; the other rows follow from their results."""
    arguments = ["systems", "--systems", "t5", "--lengths", "40", "6000", "9000", "--tokens", "6"]
    arguments += ["--mode", "inference", "--settings", json.dumps(SIZES), "--memory_limit", "0.3"]
    assert benchmark.main([*arguments, "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "systems.json").read_text())["rows"]
    assert [row["memory"] for row in rows] == ["plain"] * 3 + ["saving"] * 3
    crosses = [row.get("cross") for row in rows]
    assert "peak_gib" in rows[0] and crosses[:3] == [
        None, "out of memory (more than 0.3 GiB)", "out of memory (more than 0.3 GiB) (at 6000)",
    ]  # fmt: skip
    assert crosses[3:] == crosses[:3]


def test_plain_is_without_blocks_of_tokens(monkeypatch):
    sizes: list[int] = []
    monkeypatch.setattr(Encoder, "use_token_blocks", lambda self, size: sizes.append(size))
    for memory in ("plain", "saving"):
        measure(
            Case(subject="locost", mode="inference", length=32, tokens=4, model=LOCOST,
                 memory=memory)
        )  # fmt: skip
    assert sizes == [sys.maxsize]
