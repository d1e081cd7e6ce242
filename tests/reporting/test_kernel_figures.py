"""The paper's figures of kernels on its page, from a real folder of plot_kernels.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imsave

from pipeline import plot_kernels
from pipeline.model import Locost, LocostConfig, save_model
from pipeline.report import main
from pipeline.reporting.paper import kernels as kernel_pictures
from pipeline.reporting.paper.kernels import KernelPictures, draw_kernels, read_kernels


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    config = LocostConfig(vocab_size=64, d_model=4, d_ff=8, state_dim=4, encoder_layers=2,
                          decoder_layers=1, num_heads=2, head_dim=2)  # fmt: skip
    model = tmp_path_factory.mktemp("model") / "model"
    save_model(Locost(config), model)
    output = tmp_path_factory.mktemp("drawn") / "kernels"
    with pytest.MonkeyPatch.context() as patch:  # pictures of one pixel take no time
        patch.setattr(plot_kernels, "save", lambda figure, path: imsave(path, [[0.0]]))
        plot_kernels.main([str(model), "--lags", "64", "--output", str(output)])
    return output


def test_the_page_has_the_papers_seven_figures(folder, tmp_path):
    main(["paper", "--kernels", str(folder), f"--output={tmp_path}"])
    text = (tmp_path / "report.md").read_text()
    figures = text.split("## The paper's figures")[1].split("\n## ")[0]
    found = figures.split("### Figure ")[1:]
    assert [one[:2] for one in found] == [f"{k}." for k in range(1, 8)]
    for number in (3, 6, 7):
        assert "![" in found[number - 1]
    for name in ("kernels_0", "magnitudes_forward", "magnitudes_backward"):
        assert (tmp_path / f"{name}.png").read_bytes() == (folder / f"{name}.png").read_bytes()
    assert (tmp_path / "report.html").read_text().count("data:image/png") == 6


def test_a_panel_has_the_kernels_and_their_means_in_bins(folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(kernel_pictures, "save", lambda figure, path: drawn.append(figure))
    kernels = read_kernels(folder)
    assert kernels.shown == [0, 1]
    assert KernelPictures(folder, kernels.layers * 6, []).shown == [0, 4, 7, 11]
    draw_kernels(kernels, tmp_path)
    numbers = json.loads((folder / "kernels.json").read_text())["layers"]
    for panel, number in zip(drawn[0].axes, kernels.shown, strict=True):
        forward = next(line for line in panel.lines if line.get_label() == "forward")
        kernel = numbers[number]["forward"]["kernel"]["0"][: len(forward.get_ydata())]
        np.testing.assert_array_equal(forward.get_ydata(), kernel)
        assert forward.get_xdata()[-1] == 1 - len(kernel)  # tokens before lie to the left
        means = panel.patches[0].get_data().values
        first = np.abs(kernel[: round(len(kernel) / 16)]).mean()
        assert means[0] == pytest.approx(first)


def test_another_folder_is_refused_with_the_command(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["paper", "--kernels", str(tmp_path), f"--output={tmp_path / 'out'}"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "plot_kernels.py CHECKPOINT --dimensions 0" in error
