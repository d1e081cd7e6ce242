"""Where the project's own files lie, and the names under which a user finds them anywhere."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds pipeline/ and preprocessing/: the repository, or site-packages."""
RECIPES = ROOT / "pipeline" / "recipes"
DEEPSPEED_CONFIGS = ROOT / "pipeline" / "ds_configs"


def recipe(name: str) -> Path:
    """The file of `--config name`. Raises ValueError if there is none."""
    return _found(name, RECIPES, "--config")


def deepspeed_config(name: str) -> Path:
    """The file of `--deepspeed_config name`. Raises ValueError if there is none."""
    return _found(name, DEEPSPEED_CONFIGS, "--deepspeed_config")


def _found(name: str, shipped: Path, option: str) -> Path:
    """The file at the path `name`, or at that path from ROOT, or the one of that name in `shipped`.

    So `ds_configs/zero1.json` and `zero1.json` are found from any folder, installed or not.
    """
    path = Path(name)
    candidates = [path, ROOT / path]
    if str(path.parent) in (".", shipped.name):
        candidates.append(shipped / path.name)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(file.name for file in shipped.iterdir()))
    raise ValueError(f"{option} {name}: no such file; give a path, or one of {known}")
