"""The wheel, installed alone: what a user has without the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from pipeline.model import Locost, LocostConfig, save_model
from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("locost-train", "locost-evaluate", "locost-summarize", "locost-preprocess")
SUBCOMMANDS = ("pretrain", "finetune", "tokenizer", "show")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for path in (*ROOT.glob("requirements*.txt"), ROOT / "pyproject.toml", ROOT / "README.md"):
        shutil.copy(path, copy)
    for name in ("pipeline", "preprocessing", "ds_configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    call(sys.executable, "-m", "pip", "wheel", copy, "--no-deps", "--no-build-isolation",
         "--wheel-dir", folder, cwd=folder)  # fmt: skip
    (built,) = folder.glob("locost-*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(tmp_path_factory, wheel) -> Path:
    """The bin folder of an environment with the wheel, and this environment's other packages."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=folder)
    inside = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    # Added as plain folders: an editable installation of the repository there has no effect.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(inside.strip(), "packages.pth").write_text("\n".join(sorted(paths)) + "\n")
    return folder / "bin"


def call(*words: object, cwd: Path) -> str:
    """What a command prints; it must end with status 0."""
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_it_holds_the_files_that_are_not_python(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder, name in ((ROOT, "ds_configs"), (ROOT / "pipeline", "recipes")):
        for file in (folder / name).iterdir():
            assert f"pipeline/{name}/{file.name}" in held
    for room in ("pipeline", "preprocessing"):
        for file in (ROOT / room).rglob("*"):
            if file.suffix in (".py", ".txt", ".yaml"):
                assert str(file.relative_to(ROOT)) in held
    assert not [name for name in held if name.startswith("tests/")]


def test_nothing_comes_from_the_repository(scripts, tmp_path):
    found = call(
        scripts / "python", "-c", "import pipeline; print(pipeline.__file__)", cwd=tmp_path
    )
    assert Path(found.strip()).is_relative_to(scripts.parent)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_explains_itself_under_its_name(name, scripts, tmp_path):
    printed = call(scripts / name, "--help", cwd=tmp_path)
    assert printed.startswith(f"usage: {name}")
    if name == "locost-preprocess":
        for command in SUBCOMMANDS:
            assert command in printed
            assert "usage: " in call(scripts / name, command, "--help", cwd=tmp_path)


def test_a_text_is_summarised(scripts, tokenizer_path, tmp_path):
    config = LocostConfig(
        vocab_size=Tokenizer(tokenizer_path).vocab_size, d_model=16, d_ff=32, state_dim=4,
        encoder_layers=1, decoder_layers=1, num_heads=2, head_dim=8,
    )  # fmt: skip
    save_model(Locost(config), tmp_path / "model", tokenizer=tokenizer_path)
    (tmp_path / "text.txt").write_text("The river runs past an old stone mill.")
    words = ("--checkpoint", "model", "--max_new_tokens", "4", "--json", "out.json", "text.txt")
    call(scripts / "locost-summarize", *words, cwd=tmp_path)
    assert (tmp_path / "out.json").is_file()


def test_a_training_starts_from_a_recipe_and_a_configuration_by_name(
    scripts, dataset_folder, tmp_path
):
    call(
        scripts / "locost-train", "--config", "debug.yaml", "--deepspeed_config", "zero2.json",
        "--data.train", dataset_folder, "--train.max_steps", "2", "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_user_s_error_is_one_line_and_status_2(scripts, tmp_path):
    words = [scripts / "locost-train", "--config", "debug.yaml", "--data.train", "nowhere"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
