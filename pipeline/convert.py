"""Checkpoints of the published code to model folders of ours, and back; folders for transformers.

python pipeline/convert.py import PATH --output DIR [--tokenizer MODEL] [--published_convolution]
python pipeline/convert.py export MODEL --output DIR [--format huggingface]
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
import pickle
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.command_line import Parser, described
from pipeline.files import replace_bytes, replace_json
from pipeline.huggingface.folder import PREFIX, TOKENIZER_CONFIG, code_files, config_files
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.model.checkpoint_export import export_config, export_weights
from pipeline.model.checkpoint_import import deduced_config, import_weights, published_config
from pipeline.model.checkpoint_names import FUSED
from pipeline.model.folder import FORMAT, replace_file
from pipeline.tokenizer import FILE_NAME, Tokenizer

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
SPIECE = "spiece.model"
"""What published folders call their tokenizer."""


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
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
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


def read_config(path: Path) -> tuple[LocostConfig, bool] | None:
    """The configuration in a published config.json, and whether it says the weights were trained
    through the fused convolution; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(published, dict):
            raise ValueError("not a JSON object")
        return published_config(published), bool(published.get(FUSED))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def import_checkpoint(
    source: Path, output: Path, tokenizer: Path | None, published_convolution: bool
) -> None:
    """Write the model folder `output` from a published file or folder.

    Without a config.json beside the weights, the sizes come from their shapes. The convolution is
    exact unless `published_convolution` asks for the published fused one. Without a tokenizer the
    spiece.model beside the weights is taken, if there is one. Raises ValueError on anything that
    does not fit exactly, before anything is written.
    """
    refuse_to_overwrite(output)
    path = find_weights(source)
    weights = read_weights(path)
    read = read_config(path.with_name("config.json"))
    if read is None:
        config, fused = deduced_config(weights), False
        print(f"no config.json beside {path}: sizes deduced from shapes, defaults for the rest")
        print(json.dumps(asdict(config)))
    else:
        config, fused = read
    if tokenizer is None and path.with_name(SPIECE).is_file():
        tokenizer = path.with_name(SPIECE)
    tokenizer_path = None if tokenizer is None else fitting_tokenizer(tokenizer, config)
    model = import_weights(
        replace(config, published_convolution=published_convolution), weights, str(path)
    )
    save_model(model, output, tokenizer=tokenizer_path)
    print(f"{output}: {parameters(model)} from {len(weights)} tensors of {path}")
    if fused and not published_convolution:
        print(
            f"{FUSED} in its config.json: trained through a fused convolution, wrong unless the "
            "length is a power of two; ours is exact, --published_convolution reproduces theirs"
        )
    if tokenizer is None:
        print("no tokenizer in it yet: summarize and evaluate need one, see --tokenizer")


def export_checkpoint(source: Path, output: Path, huggingface: bool) -> None:
    """Write the folder `output` from a model folder or a kept checkpoint, config.json last.

    Raises ValueError if `source` is no whole model, or one that the published code has no words
    for, before anything is written.
    """
    refuse_to_overwrite(output)
    folder = source / "model" if (source / "model" / "config.json").is_file() else source
    model = load_model(folder)
    documents: dict[str, dict[str, Any]]
    if huggingface:
        weights = {PREFIX + name: tensor for name, tensor in model.state_dict().items()}
        files, documents = code_files(), config_files(model.config)
    else:
        files, documents = {}, {"config.json": export_config(model.config)}
        weights = export_weights(model)
    has_tokenizer = (folder / FILE_NAME).is_file()
    if has_tokenizer:
        files[SPIECE] = fitting_tokenizer(folder, model.config).read_bytes()
        if huggingface:
            documents = {"tokenizer_config.json": TOKENIZER_CONFIG, **documents}

    output.mkdir(parents=True, exist_ok=True)
    replace_file(output / "model.safetensors", lambda path: save_file(weights, path, FORMAT))
    for name, content in files.items():
        replace_bytes(output / name, content)
    for name, document in documents.items():
        replace_json(output / name, document)
    print(f"{output}: {parameters(model)} in {len(weights)} tensors from {folder}")
    if not has_tokenizer:
        print(f"no tokenizer in it: {folder} has no {FILE_NAME}")


def refuse_to_overwrite(output: Path) -> None:
    """Raise ValueError unless `output` is free, or an empty folder."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not empty; give another --output or remove it")


def fitting_tokenizer(path: Path, config: LocostConfig) -> Path:
    """The file of a tokenizer. Raises ValueError if it has not the model's number of ids."""
    tokenizer = Tokenizer(path)
    if tokenizer.vocab_size != config.vocab_size:
        raise ValueError(
            f"{tokenizer.path} has {tokenizer.vocab_size} ids, the checkpoint "
            f"{config.vocab_size}; give the tokenizer the checkpoint was trained with"
        )
    return tokenizer.path


def parameters(model: Locost) -> str:
    """How many parameters a model has, in words."""
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = Parser(prog="convert.py", description="Convert checkpoints.")
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
    command.add_argument(
        "--published_convolution",
        action="store_true",
        help="compute as the published fused convolution does, wrong unless the length is a power "
        "of two; without it every length is exact",
    )
    command = commands.add_parser(
        "export",
        help="a model folder becomes a checkpoint of the published code, or a folder "
        "for transformers",
    )
    command.add_argument("model", type=Path, help="a model folder, or a kept checkpoint (RUN/best)")
    command.add_argument("--output", type=Path, required=True, help="the folder to write")
    command.add_argument(
        "--format",
        choices=("published", "huggingface"),
        default="published",
        help="published: its keys and settings; huggingface: a folder with the model's code that "
        "AutoModelForSeq2SeqLM.from_pretrained(DIR, trust_remote_code=True) loads",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 converted, 2 the input cannot be converted (said in one line)."""
    options = parse(arguments)
    try:
        if options.command == "import":
            import_checkpoint(
                options.path, options.output, options.tokenizer, options.published_convolution
            )
        else:
            export_checkpoint(options.model, options.output, options.format == "huggingface")
    except (ValueError, OSError) as error:
        print(f"error: {described(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
