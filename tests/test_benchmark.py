"""Benchmarks run, and compare what they claim to; times are not asserted."""

import json
import math
from dataclasses import asdict

import matplotlib.image
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline import benchmark
from pipeline.benchmarking import references, sweep
from pipeline.benchmarking.cases import Case, measure
from pipeline.benchmarking.sweep_plot import curves
from pipeline.common.paths import ROOT
from pipeline.common.power_law import fit_exponent
from pipeline.distributed.device import Peak, peak_memory_gib, reset_peak_memory
from pipeline.model import Locost, LocostConfig, flops
from pipeline.model.ssm import BidirectionalSSM
from pipeline.reporting.length_plot import Curve

RECIPE = str(ROOT / "pipeline" / "recipes" / "demo_pretrain.yaml")
TINY = {"vocab_size": 40, "d_model": 16, "state_dim": 4, "d_ff": 24, "encoder_layers": 1,
        "decoder_layers": 1, "num_heads": 2, "head_dim": 8}  # fmt: skip


def error(ours, reference):
    """Largest difference, relative to the largest reference value."""
    return ((ours - reference).abs().max() / reference.abs().max()).item()


@pytest.mark.parametrize(
    ("bf16", "fp32", "chosen"), [(1.0, 1.5, "bf16"), (1.05, 1.0, "bf16"), (2.5, 1.0, "fp32")]
)
def test_bf16_unless_fp32_is_clearly_faster(bf16, fp32, chosen):
    assert benchmark.faster({"bf16": bf16, "fp32": fp32}) == chosen


def test_both_precisions_are_timed_and_written(tmp_path, capsys):
    output = tmp_path / "precision.json"
    arguments = ["precision", "--config", RECIPE, "--samples", "1", "--output", str(output)]
    assert benchmark.main(arguments) == 0
    written = json.loads(output.read_text())
    assert written["faster"] == benchmark.faster(written["seconds"])
    assert f"{written['faster']} is the faster" in capsys.readouterr().out


def test_a_missing_recipe_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["precision", "--config", "nowhere.yaml"])
    assert capsys.readouterr().err.startswith("error: nowhere.yaml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("layer --lengths 1024,0", "--lengths: '0': expected an integer of at least 1"),
        ("layer --config README.md", "README.md is not a recipe"),
        ("encoder --device abacus", "--device abacus: no such device"),
        ("decode --forms folded", "'folded': give cached, absorbed or"),
        ("gpu", "--output"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    try:
        status = benchmark.main(arguments.split())
    except SystemExit as end:  # argparse ends the program itself
        status = end.code
    assert status == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("reference", [references.materialised, references.row_by_row])
def test_references_compute_the_layer(reference):
    torch.manual_seed(0)
    layer = BidirectionalSSM(LocostConfig(d_model=5, state_dim=7)).double()
    x, weights = torch.randn(2, 2, 23, 5, dtype=torch.float64).unbind()
    mask = (torch.arange(23) < torch.tensor([[23], [9]])).long()

    def results(function):
        layer.zero_grad()
        output = function(x, mask)
        (output * weights).sum().backward()
        return [output, *(parameter.grad for parameter in layer.parameters())]

    expected = results(layer)
    ours = results(lambda x, mask: reference(layer, x, mask))
    assert all(error(a, b) < 1e-9 for a, b in zip(ours, expected, strict=True))


def test_direct_kernels_are_the_layers():
    torch.manual_seed(0)
    layer = BidirectionalSSM(LocostConfig(d_model=3, state_dim=6)).double()
    assert error(references.direct_kernels(layer, 70, chunk=32), layer.kernels(70)) < 1e-12


def test_references_refuse_another_layer():
    layer = BidirectionalSSM(LocostConfig(d_model=4, state_dim=3, ssm_directions="causal"))
    with pytest.raises(ValueError, match="leave the ssm_ settings"):
        references.materialised(layer, torch.randn(1, 8, 4))


@pytest.mark.parametrize(
    ("subject", "mode", "fields"),
    [
        ("ssm", "training", {}),
        ("feed-forward", "inference", {"dtype": "bf16"}),
        ("kernel", "inference", {}),
        ("materialised", "training", {}),
        ("row by row", "inference", {}),
        ("ratio", "training", {}),
        ("encoder", "training", {"dtype": "bf16"}),
        ("encoder", "inference", {}),
        ("decode", "inference", {"form": "cached", "beams": 2, "tokens": 3}),
        ("decode", "inference", {"form": "absorbed", "dtype": "bf16", "tokens": 3}),
    ],
)
def test_every_subject_is_measured(subject, mode, fields):
    result = measure(Case(subject=subject, mode=mode, length=40, model=TINY, **fields))
    assert result["wall_s"] > 0
    assert result["cpu_s"] > 0
    assert math.isfinite(result.get("tokens_per_s", 1.0))
    assert result.get("cpu_ratio", 1.0) > 0


def test_peak_is_what_was_held_and_freed_since():
    before = torch.ones(20_000_000)  # 80 MB, not counted
    peak = Peak(torch.device("cpu"))
    torch.ones(30_000_000)  # 120 MB, freed at once
    assert 110e6 < peak.bytes() < 140e6
    assert peak.total_bytes() - peak.bytes() > before.nbytes


def test_the_peak_of_the_process_never_falls_on_a_cpu():
    cpu = torch.device("cpu")
    torch.ones(100_000_000)  # 0.37 GiB, freed at once
    peak = peak_memory_gib(cpu)
    assert 0.37 < peak < 200
    reset_peak_memory(cpu)  # counts GPUs only
    assert peak_memory_gib(cpu) >= peak


def test_flops_are_those_of_torchs_counter():
    """The matrix products of a forward pass; the counter does not know the kernel and the FFT."""
    config = LocostConfig(**{**TINY, "encoder_layers": 2, "decoder_layers": 3})
    batch, source, target = 2, 24, 10
    ids = torch.randint(3, 40, (batch, source))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        Locost(config)(ids, None, ids[:, :target])
    counted = counter.get_flop_counts()["Global"]
    parts = flops.training_flops(config, batch, source, target)
    products = sum(count for part, count in parts.items() if part not in ("kernel", "FFT")) / 3
    linears = sum(
        count
        for operator, count in counted.items()
        if str(operator) in ("aten.mm", "aten.addmm", "aten.baddbmm")
    )
    scores = 3 * 4 * batch * target * (target / 2 + source) * 16  # q k^T and p v, half if causal
    assert products == linears + scores


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7])
def test_the_exponent_of_a_power_law(power):
    lengths = [1024, 4096, 8192]
    values = [3.0 * length**power for length in lengths]
    assert fit_exponent(lengths, values) == pytest.approx(power)


def test_growth_is_given_with_its_law():
    lengths = [1024, 4096, 16384]
    rows = [
        {"subject": "kernel", "mode": "inference", "length": length, "peak_gib": length**0.5}
        for length in lengths
    ]
    rows += [{"subject": "ssm", "mode": "training", "length": 1024, "cpu_s": 1.0}]  # too few
    found = sweep.growth(rows, "cpu_s")
    assert list(found) == ["memory of the kernel"]
    assert found["memory of the kernel"] == pytest.approx({"measured": 0.5, "law": 0.5})


def test_a_curve_has_the_points_and_crosses_of_its_case_and_mode():
    case = {"subject": "ssm", "mode": "training", "batch": 1, "memory": "plain"}
    rows = [
        {**case, "length": 1024, "peak_gib": 0.5},
        {**case, "length": 2048, "cross": "out of memory"},
        {**case, "length": 1024, "peak_gib": 0.1, "mode": "inference"},
        {**case, "length": 1024, "peak_gib": 2.0, "subject": "feed-forward", "batch": 4},
        {**case, "length": 4096, "cpu_s": 1.0},  # another field
    ]
    assert curves(rows, "peak_gib") == {
        "ssm, training": Curve([(1024, 0.5)], [2048], 0, dashed=False),
        "ssm, inference": Curve([(1024, 0.1)], [], 0, dashed=True),
        "feed-forward B 4, training": Curve([(1024, 2.0)], [], 1, dashed=False),
    }


def test_what_cannot_fit_is_refused_before_it_is_tried():
    case = Case(subject="materialised", mode="training", length=4096)
    row = sweep.measure_apart(case, limit_s=1.0, memory_bytes=8 * 1024**3)
    assert row["cross"] == "does not fit (needs 24.0 GiB of 8.0)"
    assert sweep.as_table_line(row).endswith("× does not fit (needs 24.0 GiB of 8.0)")
    case = Case(subject="decode", mode="inference", length=600_000, form="cached", dtype="bf16")
    row = sweep.measure_apart(case, limit_s=1.0, memory_bytes=20 * 1024**3)
    assert "needs 20.6 GiB" in row["cross"]


@pytest.mark.slow
def test_out_of_memory_and_out_of_time_are_crosses():
    case = Case(subject="feed-forward", mode="training", length=200_000, model=TINY)
    assert "out of memory" in sweep.measure_apart(case, 100.0, 20 * 1024**2)["cross"]
    assert sweep.measure_apart(case, 0.01, 1024**3)["cross"] == "over 0.01 s"


@pytest.mark.slow
def test_an_invalid_case_raises_in_the_caller():
    case = Case(subject="ssm", mode="training", length=8, model={"d_modell": 3})
    with pytest.raises(ValueError, match="d_modell"):
        sweep.measure_apart(case, 100.0, 1024**3)


def measure_in_this_process(case, limit_s, memory_bytes):
    """`measure_apart` without the seconds that a new process takes to start."""
    return {**asdict(case), **measure(case)}


@pytest.mark.parametrize(
    "arguments",
    [
        "layer --lengths 32 --mode training",
        "encoder --lengths 32 --layers 1",
        pytest.param("decode --lengths 32 --beams 2 --tokens 2", marks=pytest.mark.slow),
    ],
)
def test_sweeps_write_json_and_png(arguments, tmp_path, capsys, monkeypatch):
    """`decode` in new processes, as users run it."""
    command = arguments.split()[0]
    if command != "decode":
        monkeypatch.setattr(sweep, "measure_apart", measure_in_this_process)
    assert benchmark.main([*arguments.split(), "--config", RECIPE, "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / f"{command}.json").read_text())
    rows = written["rows"]
    assert len(rows) == {"layer": 6, "encoder": 2, "decode": 2}[command]
    assert all(row["wall_s"] > 0 and row["model"]["d_model"] == 128 for row in rows)
    picture = matplotlib.image.imread(tmp_path / f"{command}.png")
    assert picture.shape[2] == 4
    assert picture.std() > 0.01  # not blank
    assert len(capsys.readouterr().out.splitlines()) >= len(rows) + 2
