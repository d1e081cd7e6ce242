"""The command that exports models."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.convert import main
from pipeline.huggingface.folder import code_files
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests/fixtures/locost_tiny"
SIZES = {"d_model": 16, "state_dim": 4, "d_ff": 24, "num_heads": 2, "head_dim": 8}
SIZES |= {"encoder_layers": 1, "decoder_layers": 1}


def run(*arguments):
    """The exit status."""
    try:
        return main(list(map(str, arguments)))
    except SystemExit as end:
        return end.code


@pytest.fixture
def checkpoint(tmp_path, tokenizer_path):
    """A kept checkpoint: model/ with its tokenizer."""
    config = LocostConfig(vocab_size=Tokenizer(tokenizer_path).vocab_size, **SIZES)
    save_model(Locost(config), tmp_path / "best" / "model", tokenizer=tokenizer_path)
    return tmp_path / "best"


def test_there_and_back(checkpoint, tmp_path, capsys):
    assert run("export", checkpoint, "--output", tmp_path / "out") == 0
    assert "parameters in 38 tensors" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["config.json", "model.safetensors", "spiece.model"]
    arguments = ("--output", tmp_path / "back")  # the tokenizer beside the weights goes along
    assert run("import", tmp_path / "out", *arguments) == 0
    for name in ("config.json", "model.safetensors", "tokenizer.model"):
        before = (checkpoint / "model" / name).read_bytes()
        assert (tmp_path / "back" / name).read_bytes() == before


def test_published_and_back(tmp_path):
    assert run("import", TINY, "--output", tmp_path / "ours") == 0
    assert run("export", tmp_path / "ours", "--output", tmp_path / "out") == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", TINY))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = (json.loads((p / "config.json").read_text()) for p in (tmp_path / "out", TINY))
    assert theirs.items() <= ours.items()


def test_the_fused_convolution(tmp_path, capsys):
    """The published setting alone changes nothing; the option does, and export says it again."""
    config = json.loads((TINY / "config.json").read_text())
    source = tmp_path / "published"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({**config, "use_fast_fft_conv": True}))
    (source / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes())
    assert run("import", source, "--output", tmp_path / "exact") == 0
    assert "--published_convolution reproduces" in capsys.readouterr().out
    assert not load_model(tmp_path / "exact").config.published_convolution
    arguments = ("--output", tmp_path / "fused", "--published_convolution")
    assert run("import", source, *arguments) == 0
    assert "reproduces" not in capsys.readouterr().out
    assert load_model(tmp_path / "fused").config.published_convolution
    for name in ("exact", "fused"):
        assert run("export", tmp_path / name, "--output", tmp_path / f"{name}-out") == 0
        exported = json.loads((tmp_path / f"{name}-out" / "config.json").read_text())
        assert exported["use_fast_fft_conv"] == (name == "fused")


def test_a_model_without_a_tokenizer(tmp_path, capsys):
    save_model(Locost(LocostConfig(vocab_size=40, **SIZES)), tmp_path / "model")
    for form in ("published", "huggingface"):
        out = tmp_path / form
        assert run("export", tmp_path / "model", "--output", out, "--format", form) == 0
        assert "no tokenizer in it: " in capsys.readouterr().out
        assert not [path for path in out.iterdir() if "spiece" in path.name]
        assert not (out / "tokenizer_config.json").exists()


def refused(capsys, tmp_path, message, *arguments):
    assert run("export", *arguments, "--output", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not (tmp_path / "out").exists()


def test_what_is_no_whole_model(checkpoint, tmp_path, capsys):
    refused(capsys, tmp_path, "no config.json; give a model folder", tmp_path / "absent")
    refused(capsys, tmp_path, "convert.py import", TINY)
    model = checkpoint / "model"
    weights = load_file(model / "model.safetensors")
    kept = weights.pop("encoder.norm.weight")
    save_file({**weights, "extra": kept}, model / "model.safetensors")
    refused(capsys, tmp_path, "missing encoder.norm.weight; surplus extra", checkpoint)
    (model / "model.safetensors").write_bytes(b"cut")
    refused(capsys, tmp_path, "not a safetensors file", checkpoint)


def test_a_foreign_tokenizer(tmp_path, tokenizer_path, capsys):
    config = LocostConfig(vocab_size=40, **SIZES)
    save_model(Locost(config), tmp_path / "model", tokenizer=tokenizer_path)
    refused(capsys, tmp_path, "has 164 ids, the checkpoint 40", tmp_path / "model")


def test_a_variant_without_published_words(tmp_path, capsys):
    config = LocostConfig(vocab_size=40, relative_buckets=16, positions="rotary", **SIZES)
    save_model(Locost(config), tmp_path / "model")
    message = "positions='rotary' cannot be expressed in the published configuration"
    refused(capsys, tmp_path, message, tmp_path / "model")
    arguments = ("--output", tmp_path / "out", "--format", "huggingface")
    assert run("export", tmp_path / "model", *arguments) == 0
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert asdict(config).items() <= exported.items()


def test_how_weights_were_drawn_needs_no_word(tmp_path):
    drawn = {"ssm_dt_max": 0.5, "cross_attention_initialisation": "copy"}
    config = LocostConfig(vocab_size=40, **drawn, **SIZES)
    model = Locost(config)
    save_model(model, tmp_path / "model")
    assert run("export", tmp_path / "model", "--output", tmp_path / "out") == 0
    assert run("import", tmp_path / "out", "--output", tmp_path / "back") == 0
    found = load_model(tmp_path / "back").state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_existing_output_is_kept(checkpoint, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    assert run("export", checkpoint, "--output", tmp_path / "out") == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_code_of_the_folder_for_transformers():
    """It is whole, and transformers' own reading of it finds all that it needs, and no more."""
    files = code_files()
    assert {"modeling_locost.py", "configuration_locost.py", "locost.py", "ssm.py"} <= files.keys()
    assert not files.keys() & {"__init__.py", "folder.py", "checkpoint_import.py"}
    assert not any("triton" in name for name in files)  # nothing there needs it
    for name, content in files.items():
        relative = []
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, f"{name}: {node.module}"
                relative.append(f"{node.module}.py")
        assert set(relative) <= files.keys(), name
        # The library looks for `from .module import` with this expression, not in the syntax.
        found = re.findall(r"^\s*from\s+\.(\S+)\s+import", content.decode(), re.M)
        assert {f"{module}.py" for module in found} == set(relative), name
        assert packages(ast.parse(content)) <= {"torch", "transformers"}, name


def packages(node):
    """Packages imported, but for those in a `try`, whose absence the library allows."""
    found = set()
    if isinstance(node, ast.Import):
        found = {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        found = {node.module.partition(".")[0]}
    for child in ast.iter_child_nodes(node):
        found |= set() if isinstance(child, ast.Try) else packages(child)
    return found - sys.stdlib_module_names


@pytest.mark.slow
@pytest.mark.parametrize("program", [["pipeline/convert.py"], ["-m", "pipeline.convert"]])
def test_by_path_and_as_module(checkpoint, tmp_path, program):
    by_path = program[0] != "-m"
    command = [str(ROOT / program[0])] if by_path else program
    done = subprocess.run(
        [sys.executable, *command, "export", str(checkpoint), "--output", str(tmp_path / "out")],
        cwd=tmp_path if by_path else ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "config.json").is_file()
