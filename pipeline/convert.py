"""Convert checkpoints: published code or transformers to model folder, and back.

python pipeline/convert.py import PATH --output DIR [--tokenizer MODEL] [--published_convolution]
python pipeline/convert.py export MODEL --output DIR [--format huggingface]
"""

if not __package__:
    import _start  # noqa: F401
import argparse
import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.common.command_line import Parser, exit_on_user_error
from pipeline.common.files import replace_bytes, replace_json
from pipeline.huggingface.folder import (
    MODEL_TYPE,
    PREFIX,
    TOKENIZER_CONFIG,
    code_files,
    config_files,
    model_of,
)
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.model.folder import FORMAT, read_settings, replace_file
from pipeline.model.published.names import FUSED
from pipeline.model.published.read import deduced_config, import_weights, published_config
from pipeline.model.published.write import export_config, export_weights
from pipeline.tokenizer import FILE_NAME, Tokenizer

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
SPIECE = "spiece.model"
"""What published folders call their tokenizer."""


def find_weights(path: Path) -> Path:
    """The weight file: `path` or the one in that folder. Raises ValueError if there is none."""
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
        # Not the library's own message, which advises to unpickle the file.
        raise ValueError(
            f"{path} is not a file of plain tensors ({type(error).__name__}); give the published "
            "pytorch_model.bin or a .safetensors file"
        ) from None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise ValueError(f"{path} does not hold tensors by name; give a state dict")
    return weights


def import_checkpoint(
    source: Path, output: Path, tokenizer: Path | None, published_convolution: bool
) -> None:
    """Write the model folder `output` from a published file or folder, or one for transformers.

    Without a config.json next to the weights, the sizes come from their shapes. The convolution of
    a published checkpoint is exact unless `published_convolution` is set, which gives the published
    fused one. Without a tokenizer, spiece.model next to the weights is used if it exists. Raises
    ValueError on anything that does not fit exactly, before anything is written.
    """
    refuse_to_overwrite(output)
    path = find_weights(source)
    weights, config_file = read_weights(path), path.with_name("config.json")
    settings = read_settings(config_file) if config_file.is_file() else None
    if settings and settings.get("model_type") == MODEL_TYPE:
        if published_convolution:
            raise ValueError(
                f"--published_convolution is for published checkpoints; {path.parent} is one for "
                "transformers, whose config.json says it"
            )
        model = model_of(settings, weights, str(path))
    else:
        model = published_model(settings, weights, path, published_convolution)
    if tokenizer is None and path.with_name(SPIECE).is_file():
        tokenizer = path.with_name(SPIECE)
    tokenizer_path = None if tokenizer is None else fitting_tokenizer(tokenizer, model.config)
    save_model(model, output, tokenizer=tokenizer_path)
    print(f"{output}: {parameters(model)} from {len(weights)} tensors of {path}")
    if settings and settings.get(FUSED) and not published_convolution:
        print(
            f"{FUSED} in its config.json: trained through a fused convolution, wrong unless the "
            "length is a power of two; ours is exact, --published_convolution reproduces theirs"
        )
    if tokenizer is None:
        print(
            "no tokenizer written: summarize.py and evaluate.py need one, see --tokenizer (for a "
            f"model trained with transformers, {SPIECE} of the folder it was trained from)"
        )


def published_model(
    settings: Mapping[str, Any] | None,
    weights: dict[str, Tensor],
    path: Path,
    published_convolution: bool,
) -> Locost:
    """The model of a published checkpoint; without settings, its sizes are those of the shapes."""
    if settings is None:
        config = deduced_config(weights)
        print(f"no config.json next to {path}: sizes deduced from shapes, defaults for the rest")
        print(json.dumps(asdict(config)))
    else:
        try:
            config = published_config(settings)
        except ValueError as error:
            raise ValueError(f"{path.with_name('config.json')}: {error}") from None
    config = replace(config, published_convolution=published_convolution)
    return import_weights(config, weights, str(path))


def export_checkpoint(source: Path, output: Path, huggingface: bool) -> None:
    """Write the folder `output` from a model folder or a kept checkpoint, config.json last.

    Raises ValueError, before anything is written, if `source` is not a complete model or the
    published configuration cannot express it.
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
    """Raise ValueError unless `output` does not exist or is an empty folder."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not empty; give another --output or remove it")


def fitting_tokenizer(path: Path, config: LocostConfig) -> Path:
    """The file of a tokenizer. Raises ValueError if its vocabulary size is not the model's."""
    tokenizer = Tokenizer(path)
    if tokenizer.vocab_size != config.vocab_size:
        raise ValueError(
            f"{tokenizer.path} has {tokenizer.vocab_size} ids, the checkpoint "
            f"{config.vocab_size}; give the tokenizer the checkpoint was trained with"
        )
    return tokenizer.path


def parameters(model: Locost) -> str:
    """The number of parameters, as text."""
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    parser = Parser(prog="convert.py", description="Convert checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "import",
        help="convert a checkpoint of the published code, or one that transformers saved, to a "
        "model folder",
    )
    command.add_argument(
        "path", type=Path, help="a .bin or .safetensors file, or a folder with it and config.json"
    )
    command.add_argument("--output", type=Path, required=True, help="the model folder to write")
    command.add_argument(
        "--tokenizer",
        type=Path,
        help="SentencePiece model it was trained with (default: "
        f"{SPIECE} next to the weights); copied",
    )
    command.add_argument(
        "--published_convolution",
        action="store_true",
        help="compute as the published fused convolution does, which is exact only for lengths "
        "that are powers of two; without it every length is exact",
    )
    command = commands.add_parser(
        "export",
        help="convert a model folder to a checkpoint of the published code or a folder for "
        "transformers",
    )
    command.add_argument("model", type=Path, help="a model folder, or a kept checkpoint (RUN/best)")
    command.add_argument("--output", type=Path, required=True, help="the folder to write")
    command.add_argument(
        "--format",
        choices=("published", "huggingface"),
        default="published",
        help="published: keys and settings of the published code; huggingface: a folder with the "
        "model's code, for AutoModelForSeq2SeqLM.from_pretrained(DIR, trust_remote_code=True)",
    )
    return parser.parse_args(arguments)


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 converted; 2, after one line, if the input cannot be converted."""
    options = parse(arguments)
    if options.command == "import":
        import_checkpoint(
            options.path, options.output, options.tokenizer, options.published_convolution
        )
    else:
        export_checkpoint(options.model, options.output, options.format == "huggingface")
    return 0


if __name__ == "__main__":
    sys.exit(main())
