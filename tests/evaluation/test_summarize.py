import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.evaluation.decode import load
from pipeline.summarize import main

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "summarize.py"
TEXT = "The river runs past an old stone mill.\nThree children watch grey herons fish.\n"


@pytest.fixture
def call(checkpoint, capsys):
    """Run the command line in this process: (status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = 0
        try:
            main(["--checkpoint", str(checkpoint), "--max_new_tokens", "8", *arguments])
        except SystemExit as end:
            status = end.code
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def test_prints_what_the_model_generates_from_the_whole_text(call, checkpoint, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT * 40)
    model, tokenizer = load(checkpoint, torch.device("cpu"))
    ids = [*tokenizer.encode(TEXT * 40), 1]

    def by_hand(ids: list[int]) -> str:
        output = model.generate(torch.tensor([ids]), max_new_tokens=8)[0].tolist()
        return tokenizer.decode(output)

    assert call(str(file))[:2] == (0, by_hand(ids) + "\n")
    assert call("--source_length", "20", str(file))[1] == by_hand([*ids[:19], 1]) + "\n"
    assert by_hand(ids) != by_hand([*ids[:19], 1])


@pytest.mark.parametrize(
    "chosen",
    [
        {"num_beams": 3, "length_penalty": 0.5, "no_repeat_ngram_size": 2},
        {"top_p": 0.95, "temperature": 1.5, "seed": 3, "min_new_tokens": 8},
    ],
)
def test_the_strategy_is_the_one_of_the_options(call, checkpoint, tmp_path, chosen):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    model, tokenizer = load(checkpoint, torch.device("cpu"))
    source = torch.tensor([[*tokenizer.encode(TEXT), 1]])
    expected = model.generate(source, max_new_tokens=8, **chosen)[0].tolist()
    options = [f"--{name}={value}" for name, value in chosen.items()]
    assert call(*options, str(file))[:2] == (0, tokenizer.decode(expected) + "\n")
    assert call(str(file))[1] != tokenizer.decode(expected) + "\n"


def test_several_files_are_named_and_a_dash_is_standard_input(call, tmp_path, monkeypatch):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(TEXT)
    two.write_text("\ufeff" + TEXT[::-1])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXT.encode())))
    alone = call(str(one))[1]
    status, output, _ = call(str(one), "-", str(two))
    assert status == 0
    assert output.startswith(f"{one}\n{alone}\n-\n{alone}\n{two}\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"abc\0def", "is binary"),
        ("café".encode("latin1"), "is not UTF-8 (byte 3)"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_status_2(call, tmp_path, content, message):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(TEXT)
    if content is not None:
        bad.write_bytes(content)
    status, output, error = call(str(good), str(bad))
    assert status == 2
    assert output == ""
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error and "bad.txt" in error


def test_a_checkpoint_that_is_none_is_one_line_and_status_2(call, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    status, _, error = call("--checkpoint", str(tmp_path), str(file))
    assert status == 2
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max_new_tokens=0", "max_new_tokens=0"),
        ("--num_beams=2 --top_p=0.5", "num_beams"),
        ("--temperature=0.5", "top_p"),
        ("--min_new_tokens=9", "max_new_tokens=8"),
        ("--memory_budget=-0.5", "memory_budget: '-0.5': expected a number of GiB, 0 or more"),
    ],
)
def test_a_strategy_that_cannot_be_is_one_line_and_status_2(call, options, message):
    status, output, error = call(*options.split(), "absent.txt")
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize("option", ["--memory_budget=inf", "--memory_budget=nan", "--num_beams=x"])
def test_a_number_that_is_none_is_status_2(call, option):
    status, _, error = call(option, "absent.txt")
    assert status == 2
    assert option.split("=")[1] in error


@pytest.mark.slow
def test_runs_by_path_from_any_folder(checkpoint, tmp_path):
    done = subprocess.run(
        [sys.executable, str(CLI), "--checkpoint", str(checkpoint), "--max_new_tokens", "4", "-"],
        cwd=tmp_path,
        input=TEXT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
