"""The command that imports published checkpoints."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.convert import main
from pipeline.model import load_model
from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests/fixtures/locost_tiny"
GOLDEN = load_file(TINY / "golden.safetensors")


def run(*arguments):
    """The exit status."""
    try:
        return main(["import", *map(str, arguments)])
    except SystemExit as end:
        return end.code


def check(folder):
    """The folder holds the golden model."""
    inputs = (GOLDEN["input_ids"], GOLDEN["attention_mask"], GOLDEN["labels"])
    logits = load_model(folder)(*inputs).logits
    assert torch.allclose(logits.double(), GOLDEN["f64.logits"], atol=2e-5, rtol=0)


def test_folder(tmp_path, capsys):
    assert run(TINY, "--output", tmp_path / "out") == 0
    assert "54,080 parameters from 69 tensors" in capsys.readouterr().out
    check(tmp_path / "out")


def test_bin_file_with_its_configuration(tmp_path):
    torch.save(load_file(TINY / "model.safetensors"), tmp_path / "pytorch_model.bin")
    shutil.copy(TINY / "config.json", tmp_path)
    assert run(tmp_path / "pytorch_model.bin", "--output", tmp_path / "out") == 0
    check(tmp_path / "out")


def test_bare_file(tmp_path, capsys):
    shutil.copy(TINY / "model.safetensors", tmp_path / "any.safetensors")
    assert run(tmp_path / "any.safetensors", "--output", tmp_path / "out") == 0
    assert "sizes deduced from shapes" in capsys.readouterr().out
    check(tmp_path / "out")


def test_tokenizer_goes_along_if_it_fits(tmp_path, tokenizer_path, capsys):
    assert run(TINY, "--output", tmp_path / "out", "--tokenizer", tokenizer_path) == 2
    assert "164 ids, the checkpoint 64" in capsys.readouterr().err
    weights = load_file(TINY / "model.safetensors")
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = torch.zeros(164, 32)
    save_file(weights, tmp_path / "wide.safetensors")
    arguments = (tmp_path / "wide.safetensors", "--output", tmp_path / "out")
    assert run(*arguments, "--tokenizer", tokenizer_path) == 0
    assert Tokenizer(tmp_path / "out").vocab_size == load_model(tmp_path / "out").config.vocab_size


def refused(capsys, tmp_path, path, message):
    assert run(path, "--output", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not (tmp_path / "out").exists()


def test_files_that_are_not_checkpoints(tmp_path, capsys):
    refused(capsys, tmp_path, tmp_path / "absent", "no weights at")
    refused(capsys, tmp_path, tmp_path, "model.safetensors or pytorch_model.bin")
    for name in ("a.bin", "a.safetensors"):
        for content in (b"", b"nonsense", b"PK\x03\x04 cut"):
            (tmp_path / name).write_bytes(content)
            refused(capsys, tmp_path, tmp_path / name, "is not a file of plain tensors")
    torch.save([1, 2], tmp_path / "a.bin")
    refused(capsys, tmp_path, tmp_path / "a.bin", "does not hold tensors by name")
    whole = (TINY / "model.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:-100])
    refused(capsys, tmp_path, tmp_path / "a.safetensors", "is not a file of plain tensors")
    save_file({"x": torch.zeros(2)}, tmp_path / "a.safetensors")
    refused(capsys, tmp_path, tmp_path / "a.safetensors", "missing shared.weight")


def test_truncated_files_are_named(tmp_path, capsys):
    torch.save(load_file(TINY / "model.safetensors"), tmp_path / "whole.bin")
    whole = (tmp_path / "whole.bin").read_bytes()
    for length in (100, 5000, len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut.bin").write_bytes(whole[:length])
        refused(capsys, tmp_path, tmp_path / "cut.bin", "cut.bin is not a file of plain tensors")


def test_pickled_code_is_never_run(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"shared.weight": Trap()}, tmp_path / "trap.bin")
    refused(capsys, tmp_path, tmp_path / "trap.bin", "is not a file of plain tensors")
    assert not (tmp_path / "sprung").exists()


def test_configuration_that_is_not_one(tmp_path, capsys):
    shutil.copy(TINY / "model.safetensors", tmp_path)
    for text, message in (
        ("{", "config.json: "),
        ("[]", "not a JSON object"),
        ("[" * 10**5, "config.json: not JSON"),
        ('{"d_model": 32}', "it lacks vocab_size"),
    ):
        (tmp_path / "config.json").write_text(text)
        refused(capsys, tmp_path, tmp_path, message)
    config = json.loads((TINY / "config.json").read_text())
    for changed, message in (
        ({"num_layers": 10**6}, "num_layers=1000000 is impossible: give at most 1000"),
        ({"num_layers": 99}, "missing encoder.blocks.2."),
        ({"d_model": 10**30}, "is impossible: give at most 2147483647"),
        ({"d_model": 10**9}, "d_model=1000000000, and the 66 tensors have"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon=inf is impossible"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        refused(capsys, tmp_path, tmp_path, message)
    (tmp_path / "config.json").write_text(json.dumps({**config, "d_ff": 65}))
    refused(capsys, tmp_path, tmp_path, "wi_0.weight is (64, 32), expected (65, 32)")


def test_weights_of_other_types_and_shapes(tmp_path, capsys):
    weights = load_file(TINY / "model.safetensors")
    bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    for changed, message in (
        ({"encoder.final_layer_norm.weight": torch.ones(32).long()}, "not floating point: encoder"),
        ({bias: torch.zeros(32, 0)}, "a matrix has another shape, or is empty"),
        ({bias: torch.zeros(())}, "a matrix has another shape, or is empty"),
        ({"encoder.block.999999999.x": torch.zeros(1)}, "encoder_layers=1000000000, and the "),
    ):
        for name in ("any.safetensors", "any.bin"):
            save = save_file if name.endswith("s") else torch.save
            save({**weights, **changed}, tmp_path / name)
            refused(capsys, tmp_path, tmp_path / name, message)


def test_existing_output_is_kept(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    assert run(TINY, "--output", tmp_path / "out") == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [["pipeline/convert.py"], ["-m", "pipeline.convert"]])
def test_by_path_and_as_module(tmp_path, program):
    by_path = program[0] != "-m"
    command = [str(ROOT / program[0])] if by_path else program
    done = subprocess.run(
        [sys.executable, *command, "import", str(TINY), "--output", str(tmp_path / "out")],
        cwd=tmp_path if by_path else ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out")
