"""Kernel statistics against matrix recurrences, eigenvalues and plain loops."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from pipeline.kernels import statistics as kernels
from pipeline.kernels.figures import figures, kernel_figure
from pipeline.kernels.statistics import binned, effective_lengths, examine, octaves
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.model.ssm import BidirectionalSSM
from pipeline.model.vandermonde import modes
from pipeline.plot_kernels import main

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "plot_kernels.py"
VARIANTS = [
    {},
    {"ssm_directions": "separate"},
    {"ssm_directions": "causal"},
    {"ssm_discretisation": "none"},
    {"ssm_initialisation": "paper"},
]


def some_layer(seed=0, channels=4, state_dim=5, **variant):
    torch.manual_seed(seed)
    layer = BidirectionalSSM(LocostConfig(d_model=channels, state_dim=state_dim, **variant))
    layer = layer.double()
    for name in ("inv_A_real", "A_imag", "B"):  # nothing stays where it starts
        parameter = getattr(layer, name)
        parameter.data += 0.5 * torch.randn_like(parameter)
    return layer


def state_space(layer, direction, channel):
    """Real matrices A (2N, 2N), b (2N,), c (2N,) of a token's step: the state's parts are pairs of
    real numbers, and A is the exponential of the continuous system's matrix times the step."""

    def own(parameter):  # of this direction, where it has its own
        return parameter.data[direction] if parameter.dim() > parameter_dims[parameter] else (
            parameter.data
        )  # fmt: skip

    parameter_dims = {layer.inv_A_real: 2, layer.A_imag: 2, layer.B: 3, layer.C: 3}
    real, imaginary = -own(layer.inv_A_real)[channel].exp(), own(layer.A_imag)[channel]
    system = torch.block_diag(
        *(torch.tensor([[a, -w], [w, a]]) for a, w in zip(real, imaginary, strict=True))
    )
    matrix = torch.linalg.matrix_exp(system * layer.log_dt.data[channel].exp())
    b = own(layer.B)[channel].flatten()
    if layer.hold:
        b = torch.linalg.solve(system, (matrix - torch.eye(len(matrix))) @ b)
    c = 2 * own(layer.C)[channel] * torch.tensor([1.0, -1.0])
    return matrix, b, c.flatten()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_kernels_and_radii_are_those_of_the_matrices(variant):
    layer = some_layer(**variant)
    found = examine(layer, 70)
    for direction in range(len(found.values)):
        for channel in range(4):
            matrix, state, c = state_space(layer, direction, channel)
            radius = torch.linalg.eigvals(matrix).abs().max()
            assert found.radii[direction, channel] == pytest.approx(radius.item(), rel=1e-12)
            expected = []
            for _ in range(70):
                expected.append((c @ state).item())
                state = matrix @ state
            scale = max(map(abs, expected))
            values = found.values[direction, channel].tolist()
            assert values == pytest.approx(expected, abs=2e-7 * scale)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_bound_holds_at_every_lag(variant):
    broken_as_printed = 0
    for seed in range(25):
        layer = some_layer(seed, **variant)
        found = examine(layer, 300)
        c, _ = modes(*layer.kernel_parameters()[:-1], hold=layer.hold)
        for channel in range(4):
            bound, size = found.bound(channel), found.values[:, channel].double().abs()
            assert (size <= bound * (1 + 1e-6)).all()
            powers = bound / bound[:, :1]
            outside = c[:, channel].sum(-1).abs()[:, None] * powers
            broken_as_printed += int((size > outside * (1 + 1e-6)).any())
    assert broken_as_printed > 0  # the modulus of c^T b as a whole bounds nothing


def test_a_single_mode_meets_its_bound():
    layer = some_layer(state_dim=1)
    layer.A_imag.data.zero_()
    found = examine(layer, 50)
    real = modes(*layer.kernel_parameters()[:-1])[0].real[:, 2]
    assert (
        (found.values[:, 2].double() / found.bound(2))
        .abs()
        .allclose((real.abs() / found.weights[:, 2, None]).expand(-1, 50), rtol=1e-5)
    )


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("elements", [1, 2**23])
def test_effective_lengths_by_adding_up(share, elements, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", elements)  # each channel alone; all together
    layer = some_layer(3)
    layer.log_dt.data = torch.tensor([0.01, 0.1, 0.5, 2.0], dtype=torch.float64).log()
    c, z = modes(*layer.kernel_parameters()[:-1])
    lengths = effective_lengths(c, z, share)
    lags = torch.arange(20_000)
    for direction in range(2):
        for channel in range(4):
            powers = torch.exp(z[0, channel, :, None] * lags)
            sizes = (c[direction, channel] @ powers).real.abs().tolist()
            total, held, count = math.fsum(sizes), 0.0, 0
            while held < share * total:
                held += sizes[count]
                count += 1
            assert abs(lengths[direction, channel].item() - count) <= 1  # float32 at the border
    assert lengths.max() > 40 > lengths.min()


def test_a_kernel_that_does_not_decay_has_the_longest_length(monkeypatch):
    monkeypatch.setattr(kernels, "LONGEST", 500)
    layer = some_layer()
    layer.log_dt.data = torch.tensor([0.7, -12.0, 0.7, 0.7], dtype=torch.float64)
    c, z = modes(*layer.kernel_parameters()[:-1])
    lengths = effective_lengths(c, z, 0.99)
    assert (lengths[:, 1] == 500).all()
    assert lengths.min() < 500


def test_a_time_scale_is_where_a_mode_has_decayed_to_1_over_e():
    layer = some_layer()
    layer.inv_A_real.data.fill_(0.0)  # Re lambda = -1
    layer.log_dt.data.fill_(math.log(0.01))
    found = examine(layer, 40)
    assert found.time_scales.tolist() == pytest.approx([100.0] * 20)
    assert found.radii.flatten().tolist() == pytest.approx([math.exp(-0.01)] * 8)


def test_bins_by_hand():
    values = torch.tensor([[1.0, -3.0, 2.0, -2.0, 5.0, 0.0, 1.0]])
    assert octaves(7) == [0, 1, 2, 4, 7]
    assert octaves(8) == [0, 1, 2, 4, 8]
    assert octaves(1) == [0, 1]
    assert binned(values, octaves(7)).tolist() == [[1.0, 3.0, 2.0, 2.0]]
    assert binned(values, [0, 3]).tolist() == [[2.0]]


@pytest.mark.parametrize("directions", ["shared", "causal"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_picture_of_any_number_of_layers(count, directions):
    layers = [examine(some_layer(k, ssm_directions=directions), 40) for k in range(count)]
    names = [name for name, figure in figures(layers, [0, 3]) if figure.axes]
    sides = ["forward"] if directions == "causal" else ["forward", "backward"]
    assert names == [
        "kernels_0", "bounds_0", "kernels_3", "bounds_3", "decay", "radii_and_lengths",
        *(f"magnitudes_{side}" for side in sides),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "directions"), [(1, "shared"), (1, "causal"), (2, "shared"), (5, "shared")]
)
def test_no_words_are_clipped_or_meet(count, directions):
    layers = [examine(some_layer(k, ssm_directions=directions), 64) for k in range(count)]
    for layer in layers:
        layer.lengths.fill_(kernels.LONGEST)  # the longest words
    for name, figure in figures(layers, [0]):
        FigureCanvasAgg(figure).draw()
        titles = [artist for axes in figure.axes for artist in (axes.title, axes._left_title)]
        titles = [artist for artist in titles if artist.get_text()]
        labels = [label for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)]
        others = [*figure.legends, *figure.texts, *(x for x in labels if x.get_text())]
        for artist in (*titles, *others):
            inside = figure.bbox.padded(1).extents
            left, bottom, right, top = artist.get_window_extent().extents
            assert inside[0] <= left and inside[1] <= bottom, (name, artist)
            assert right <= inside[2] and top <= inside[3], (name, artist)
        for rank, title in enumerate(titles):
            earlier = [other.get_window_extent() for other in titles[:rank]]
            assert not title.get_window_extent().count_overlaps(earlier), name


def test_the_kernel_is_what_is_drawn():
    layers = [examine(some_layer(k), 40) for k in range(2)]
    lines = {line.get_label(): line for line in kernel_figure(layers, 3).axes[1].lines}
    for d, (name, sign) in enumerate((("forward", -1), ("backward", 1))):
        places, values = lines[f"{name} kernel"].get_data()
        assert places.tolist() == [sign * lag for lag in range(len(places))]
        assert values.tolist() == layers[1].values[d, 3, : len(places)].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A kept checkpoint without a tokenizer, which the pictures do not need."""
    torch.manual_seed(0)
    config = LocostConfig(
        vocab_size=20, d_model=6, state_dim=3, d_ff=8, encoder_layers=2, decoder_layers=1,
        num_heads=2, head_dim=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("run") / "best"
    save_model(Locost(config), folder / "model")
    return folder


def test_the_command_leaves_pictures_images_and_numbers(folder, tmp_path, capsys):
    main([str(folder), "--output", str(tmp_path), "--dimensions", "0", "5", "--lags", "64"])
    names = {"kernels_0", "bounds_0", "kernels_5", "bounds_5", "decay", "radii_and_lengths"}
    names |= {"magnitudes_forward", "magnitudes_backward"}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    found = json.loads((tmp_path / "kernels.json").read_text())
    assert found["bounds_of_decay_bins"] == [0, 1, 2, 4, 8, 16, 32, 64]
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + 4 + 1
    layer = found["layers"][1]["backward"]
    assert sorted(layer["kernel"]) == ["0", "5"]
    assert len(layer["kernel"]["5"]) == 64
    for name in ("spectral_radius", "bound_at_lag_0", "effective_length"):
        assert len(layer[name]) == 6
    assert f"{max(layer['spectral_radius']):.5f}" in table[4]
    assert f" {max(layer['effective_length']):,}" in table[4]

    images = sorted((tmp_path / "images").iterdir())
    assert [path.stem for path in images] == [
        "layer00_backward", "layer00_forward", "layer01_backward", "layer01_forward",
    ]  # fmt: skip
    pixels = {path.stem: imread(path) for path in images}
    assert {image.shape for image in pixels.values()} == {(6, 64, 4)}  # a pixel a value
    sizes = [
        examine(block.ssm, 64).values.abs() for block in load_model(folder / "model").encoder.blocks
    ]
    top = max(size.max() for size in sizes)
    row = 1 + (sizes[1][1, 5] / top).log10() / 5  # 1 at the top, 0 from five powers of ten below
    expected = colormaps["magma"](row.clamp(0, 1).numpy())
    assert np.abs(pixels["layer01_backward"][5] - expected).max() < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dimensions 6", "--dimensions 6: the model has dimensions 0 to 5"),
        ("--dimensions -1", "--dimensions: '-1'"),
        ("--share 1", "--share: '1'"),
        ("--share much", "--share: 'much'"),
        ("--lags 3", "--lags: '3'"),
    ],
)
def test_invalid_options_are_one_line_and_status_2(folder, tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as end:
        main([str(folder), "--output", str(tmp_path / "out"), *options.split(" ", 1)])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_model_is_one_line_and_status_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path), "--output", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1 and "config.json" in error


@pytest.mark.slow
def test_runs_by_path_from_any_folder_into_kernels(folder, tmp_path):
    done = subprocess.run(
        [sys.executable, str(CLI), str(folder), "--lags", "32"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernels" / "kernels.json").is_file()
