"""Draw the convolution kernels of the encoder: `python pipeline/plot_kernels.py CHECKPOINT`.

Writes pictures, |kernel| of every layer as images of one pixel per value, and kernels.json.
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.image import imsave

from pipeline.common.command_line import Parser, add_checks, count_from, exit_on_user_error
from pipeline.common.files import check_folder, replace_bytes, replace_text
from pipeline.common.plot_style import save
from pipeline.common.progress import progress
from pipeline.kernels.figures import (
    FEWEST_LAGS,
    common_scale,
    figures,
    in_percent,
    magnitudes,
)
from pipeline.kernels.statistics import (
    DIRECTIONS,
    LONGEST,
    SHARE,
    LayerKernels,
    examine,
    in_numbers,
    octaves,
)
from pipeline.model import load_model
from pipeline.model.folder import check_model


def part_of_one(text: str) -> float:
    """A share above 0 and below 1."""
    try:
        share = float(text)
    except ValueError:
        share = 0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share such as 0.99")
    return share


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with status 2 on an invalid option."""
    parser = Parser(prog="plot_kernels.py", description=__doc__)
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="kept checkpoint or model folder"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("kernels"), help="folder to write to (kernels)"
    )
    parser.add_argument(
        "--dimensions", type=count_from(0), nargs="+", default=[0], metavar="H",
        help="channels whose kernels are drawn (0, the first)",
    )  # fmt: skip
    parser.add_argument(
        "--lags", type=count_from(FEWEST_LAGS), default=2048,
        help=f"lags drawn, at least {FEWEST_LAGS} (2048)",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=part_of_one, default=SHARE,
        help=f"share of |kernel|'s sum within the effective length ({SHARE})",
    )  # fmt: skip
    add_checks(parser)
    return parser.parse_args(arguments)


def plot(options: argparse.Namespace) -> None:
    """Write all pictures and kernels.json.

    Raises ValueError where CHECKPOINT is not a model or lacks one of the dimensions.
    """
    check_folder(options.output)
    model = load_model(model_folder(options.checkpoint))
    channels = model.config.d_model
    if beyond := [dimension for dimension in options.dimensions if dimension >= channels]:
        raise ValueError(f"--dimensions {beyond[0]}: the model has dimensions 0 to {channels - 1}")
    blocks = list(model.encoder.blocks)
    layers = [
        examine(block.ssm, options.lags, options.share)
        for block in progress(blocks, len(blocks), "Kernels", "layers")
    ]
    (options.output / "images").mkdir(parents=True, exist_ok=True)
    for name, figure in figures(layers, options.dimensions):
        save(figure, options.output / f"{name}.png")
    write_images(layers, options.output / "images")
    found = {
        "checkpoint": str(options.checkpoint),
        "share_within_effective_length": options.share,
        "longest_effective_length": LONGEST,
        "bounds_of_decay_bins": octaves(options.lags),
        "layers": [in_numbers(layer, options.dimensions) for layer in layers],
    }
    replace_text(options.output / "kernels.json", json.dumps(found) + "\n")
    print(overview(layers))
    print(f"{options.output}/kernels.json, pictures and images/ (one pixel per value) written")


def model_folder(checkpoint: Path) -> Path:
    """The model of a kept checkpoint, or the model folder itself."""
    inside = checkpoint / "model"
    return inside if inside.is_dir() else checkpoint


def write_images(layers: Sequence[LayerKernels], folder: Path) -> None:
    """|kernel| of every layer and direction, a row a channel and a column a lag."""
    scale, colours = common_scale(layers), matplotlib.colormaps["magma"]
    for number, layer in enumerate(layers):
        for direction in DIRECTIONS[: len(layer.values)]:
            content = io.BytesIO()
            pixels = colours(scale(magnitudes(layer, direction).numpy()))
            imsave(content, pixels, format="png")
            name = f"layer{number:02d}_{direction}.png"
            replace_bytes(folder / name, content.getvalue())


def overview(layers: Sequence[LayerKernels]) -> str:
    """A line a layer: spectral radii and effective lengths, median and extremes."""
    held = f"lags that hold {in_percent(layers[0].share)} of |kernel|"
    lines = [f"layer  direction  spectral radius           {held}"]
    for number, layer in enumerate(layers):
        for d, direction in enumerate(DIRECTIONS[: len(layer.values)]):
            radii = layer.radii[d].sort().values[[0, layer.radii.shape[1] // 2, -1]].tolist()
            lags = layer.lengths[d].sort().values[[0, layer.lengths.shape[1] // 2, -1]].tolist()
            lines.append(
                f"{number:5}  {direction:9}  {radii[0]:.5f} {radii[1]:.5f} {radii[2]:.5f}   "
                f"{lags[0]:,} {lags[1]:,} {lags[2]:,}"
            )
    return "\n".join(lines)


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 2, after one line, for input that cannot be drawn."""
    options = parse(arguments)
    if options.dry_run or options.check_arguments:
        check_folder(options.output)
        if options.dry_run:
            check_model(model_folder(options.checkpoint))
        print("ready: valid arguments")
        return 0
    plot(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
