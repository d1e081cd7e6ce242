"""Turn a checkpoint of the published code into a model folder.

python pipeline/convert.py import PATH --output DIR [--tokenizer MODEL]
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
import pickle
from dataclasses import asdict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pipeline.model import LocostConfig, save_model
from pipeline.model.checkpoint_import import deduced_config, import_weights, published_config
from pipeline.tokenizer import Tokenizer

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def find_weights(path: Path) -> Path:
    """The weights' file itself, or the one in a folder. Raises ValueError if there is none."""
    candidates = [path / name for name in WEIGHT_FILES] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ValueError(
        f"no weights at {path}; give a .bin or .safetensors file, or a folder that holds "
        f"{' or '.join(WEIGHT_FILES)}"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from safetensors or from torch's own format without executing any of it.

    Raises ValueError if the file is neither.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        # Not the library's own words: they advise to unpickle whatever the file holds.
        raise ValueError(
            f"{path} is not a file of plain tensors ({type(error).__name__}); give the published "
            "pytorch_model.bin or a .safetensors file"
        ) from None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise ValueError(f"{path} does not hold tensors by name; give a state dict")
    return weights


def read_config(path: Path) -> LocostConfig | None:
    """The configuration in a published config.json; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(published, dict):
            raise ValueError("not a JSON object")
        return published_config(published)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def import_checkpoint(source: Path, output: Path, tokenizer: Path | None) -> None:
    """Write the model folder `output` from a published file or folder.

    Without a config.json beside the weights, the sizes come from their shapes. Raises ValueError
    on anything that does not fit exactly, before anything is written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not empty; give another --output or remove it")
    path = find_weights(source)
    weights = read_weights(path)
    config = read_config(path.with_name("config.json"))
    if config is None:
        config = deduced_config(weights)
        print(f"no config.json beside {path}: sizes deduced from shapes, defaults for the rest")
        print(json.dumps(asdict(config)))
    if tokenizer is not None:
        tokenizer_file = Tokenizer(tokenizer)
        if tokenizer_file.vocab_size != config.vocab_size:
            raise ValueError(
                f"{tokenizer_file.path} has {tokenizer_file.vocab_size} ids, the checkpoint "
                f"{config.vocab_size}; give the tokenizer the checkpoint was trained with"
            )
        tokenizer = tokenizer_file.path
    model = import_weights(config, weights, str(path))
    save_model(model, output, tokenizer=tokenizer)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{output}: {count:,} parameters from {len(weights)} tensors of {path}")
    if tokenizer is None:
        print("no tokenizer in it yet: summarize and evaluate need one, see --tokenizer")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(prog="convert.py", description="Convert checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "import", help="a checkpoint of the published code becomes a model folder"
    )
    command.add_argument(
        "path", type=Path, help="a .bin or .safetensors file, or a folder with it and config.json"
    )
    command.add_argument("--output", type=Path, required=True, help="the model folder to write")
    command.add_argument(
        "--tokenizer", type=Path, help="the SentencePiece model it was trained with; copied"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 converted, 2 the input cannot be converted (said in one line)."""
    options = parse(arguments)
    try:
        import_checkpoint(options.path, options.output, options.tokenizer)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
