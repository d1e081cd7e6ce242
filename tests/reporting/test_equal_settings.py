"""Measurements of other settings never meet in one table; each row says what systems differ in."""

import json
from pathlib import Path

import pytest

from pipeline.report import main
from pipeline.reporting import length_plot
from pipeline.reporting.length_plot import Curve, plot_curves
from pipeline.reporting.measurements import read_measurements
from pipeline.reporting.paper.measurement_tables import memory_multiples, over_longt5

SHARED = {"batch": 1, "dtype": "fp32", "tokens": 512, "threads": 2, "device": "cpu"}


def row(subject: str, **more: object) -> dict:
    case = {"subject": subject, "mode": "inference", "memory": "plain", "length": 16384}
    return {**case, **SHARED, "cpu_s": 4.0, "wall_s": 2.0, "peak_gib": 1.0, **more}


def write(path: Path, *rows: dict, **more: object) -> Path:
    path.write_text(json.dumps({"device": "a CPU", "torch": "2.13", "rows": list(rows), **more}))
    return path


@pytest.mark.parametrize(
    ("fields", "file", "said"),
    [
        ({"dtype": "bf16"}, {}, "dtype fp32 and of dtype bf16"),
        ({"threads": 4}, {}, "threads 2 and of threads 4"),
        ({"batch": 8}, {}, "batch 1 and of batch 8"),
        ({"tokens": 64}, {}, "tokens 512 and of tokens 64"),
        ({}, {"device": "another"}, "device a CPU and of device another"),
        ({}, {"torch": "2.14"}, "torch 2.13 and of torch 2.14"),
    ],
)
def test_two_files_of_other_settings_are_refused_in_one_line(tmp_path, capsys, fields, file, said):
    ours = write(tmp_path / "a.json", row("locost"))
    theirs = write(tmp_path / "b.json", row("longt5-tglobal", **fields), **file)
    with pytest.raises(SystemExit, match="2"):
        main(["paper", "--systems", str(ours), str(theirs), f"--output={tmp_path / 'out'}"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error
    assert f"the one in {ours}, the other in {theirs}" in error
    assert not (tmp_path / "out").exists()


def test_versions_of_the_baselines_library_are_compared_too(tmp_path):
    versions = [
        write(tmp_path / f"{v}.json", row("locost"), versions={"transformers": v}) for v in "45"
    ]
    with pytest.raises(ValueError, match="transformers 4 and of transformers 5"):
        read_measurements(versions)


def test_rows_of_other_settings_in_one_file_are_refused(tmp_path):
    path = write(tmp_path / "a.json", row("locost"), row("led", dtype="bf16"))
    with pytest.raises(ValueError, match=f"both in {path}"):
        read_measurements([path])


def test_a_cross_has_no_figure_and_may_lack_settings(tmp_path):
    case = {"subject": "t5", "mode": "inference", "length": 16384, "cross": "out of memory"}
    assert len(read_measurements([write(tmp_path / "a.json", row("locost"), case)]).rows) == 2


def test_multiples_of_a_single_system_are_empty(tmp_path):
    alone = write(tmp_path / "a.json", row("longt5-tglobal"))
    assert memory_multiples(read_measurements([alone]), "plain")["inference"] == {}
    assert over_longt5({"longt5-tglobal": {"4K": 2.0}}, ["4K"]) == {}
    beside = over_longt5({"longt5-tglobal": {"4K": 2.0}, "led": {"4K": 3.0}}, ["4K"])
    assert beside == {"longt5-tglobal": {"4K": 1.0}, "led": {"4K": 1.5}}


def test_rows_and_captions_say_kernel_precision_recomputation_and_spread(tmp_path):
    runs = {"cpu_s_min": 2.0, "cpu_s_max": 8.0, "peak_gib_min": 0.5, "peak_gib_max": 1.5}
    saving = {"mode": "training", "memory": "saving", "recomputation": True}
    path = write(
        tmp_path / "a.json",
        row("locost", kernel="FFT", **runs),
        row("locost", kernel="FFT", **saving),
        row("led:eager", kernel="eager|plain"),
    )
    main(["paper", "--systems", str(path), f"--output={tmp_path / 'out'}"])
    text = (tmp_path / "out" / "report.md").read_text()
    ours = [line for line in text.splitlines() if line.startswith("| LOCOST | ours,")]
    assert len(ours) == 4  # memory, and samples a second, plain and saving
    for line in ours:
        saved = line.startswith("| LOCOST | ours, saving")
        recomputed = "recomputed in training" if saved else "nothing recomputed"
        assert f"| FFT, fp32, {recomputed} |" in line
    assert "1.00 (0.50 to 1.50)" in text and "0.25 (0.125 to 0.5)" in text
    assert "| LED-base, eager | ours, plain |" in text
    caption = text.split("### Figure 4.")[1].split("###")[0]
    assert "fp32, batch 1, 512 target tokens, 2 threads" in caption
    assert "plain: nothing recomputed; saving: recomputed in training" in caption
    assert "LOCOST: FFT; LED-base, eager: eager" in caption


def test_crosses_lie_above_every_curve_and_inside_the_panel(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(length_plot, "save", lambda figure, path: drawn.append(figure))
    points = [(1024, 1.0), (2048, 3.0), (4096, 100.0)]
    curves = {f"{k}": Curve(points, [8192], k, dashed=False) for k in range(9)}
    plot_curves({"training": curves, "inference": curves}, tmp_path / "x.png")
    for panel in drawn[0].axes:
        low, high = panel.get_ylim()
        crosses = [line for line in panel.lines if line.get_marker() == "x"]
        heights = [line.get_ydata()[0] for line in crosses]
        assert len(set(heights)) == len(curves) and all(0 < height < 1 for height in heights)
        assert all(low * (high / low) ** height > 100 for height in heights)
        assert all(tick <= 100 * 1.5 for tick in panel.get_yticks())
