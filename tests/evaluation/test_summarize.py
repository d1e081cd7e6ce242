"""summarize.py on files, standard input and whole books."""

import gc
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.inference.decode import load
from pipeline.model import long_conv, ssm
from pipeline.model.decoding_steps import PlainSteps
from pipeline.summarize import main
from pipeline.tokenizer import Tokenizer

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "summarize.py"
TEXT = "The river runs past an old stone mill.\nThree children watch grey herons fish.\n"


@pytest.fixture
def call(checkpoint, capsys):
    """Run the command line in this process: (status, standard output, standard error)."""
    gc.freeze()  # each summary collects garbage: not among the objects of all imports

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(["--checkpoint", str(checkpoint), "--max_new_tokens", "8", *arguments])
        except SystemExit as end:
            status = end.code
        output = capsys.readouterr()
        return status, output.out, output.err

    yield run
    gc.unfreeze()


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
        {"num_beams": 3, "early_stopping": False},
        {"num_beams": 3, "early_stopping": "never"},
        {"top_p": 0.95, "temperature": 1.5, "seed": 3, "min_new_tokens": 8},
    ],
)
def test_the_options_set_the_strategy(call, checkpoint, tmp_path, chosen):
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


def test_unreadable_texts_are_one_line_each_and_the_others_are_summarised(call, tmp_path):
    good, last = tmp_path / "good.txt", tmp_path / "last.txt"
    good.write_text(TEXT)
    last.write_text(TEXT)
    messages = {"absent": "No such file"}
    for name, content, message in (
        ("empty", b"", "is empty"),
        ("blank", b" \n\t\n", "is empty"),
        ("binary", b"abc\0def", "is binary"),
        ("russian", "ёж в тумане".encode("cp1251"), "is not UTF-8 (byte 0)"),
    ):
        (tmp_path / f"{name}.txt").write_bytes(content)
        messages[name] = message
    bad = [str(tmp_path / f"{name}.txt") for name in messages]
    alone = call(str(good))[1]
    status, output, error = call(str(good), *bad, str(last))
    assert status == 2
    assert output == f"{good}\n{alone}\n{last}\n{alone}\n"
    errors = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(bad)
    for line, path, message in zip(errors, bad, messages.values(), strict=True):
        assert path in line and message in line


def test_a_folder_gives_its_texts_and_names_what_it_skips(call, tmp_path):
    (tmp_path / "part").mkdir()
    for name in ("b.txt", "a.TXT", "part/c.html", ".hidden.txt", "notes.md", "part/d.pdf"):
        (tmp_path / name).write_text(TEXT)
    status, output, error = call(str(tmp_path))
    assert status == 0
    assert re.findall(r".*/(\S+)", output) == ["a.TXT", "b.txt", "c.html"]
    assert (
        f"{tmp_path}: 2 files skipped, which are not " in error and ": notes.md, d.pdf\n" in error
    )
    (tmp_path / "empty").mkdir()
    status, _, error = call(str(tmp_path / "empty"))
    assert status == 2 and error.splitlines()[-1].startswith("error: ") and "no texts" in error


def test_summaries_go_to_files_of_the_same_names(call, tmp_path):
    books, output = tmp_path / "books", tmp_path / "new" / "output"
    (books / "part").mkdir(parents=True)
    for name in ("a.txt", "part/a.txt"):
        (books / name).write_text(TEXT)
    alone = call(str(books / "a.txt"))[1]
    status, printed, _ = call("--output_dir", str(output), str(books))
    assert (status, printed) == (0, "")
    for name in ("a.txt.summary.txt", "part/a.txt.summary.txt"):
        assert (output / name).read_text() == alone
    status, _, error = call(
        "--output_dir", str(output), str(books / "a.txt"), str(books / "part/a.txt")
    )
    assert status == 2 and "would both be summarised to a.txt.summary.txt" in error
    status, _, error = call("--output_dir", str(books / "a.txt"), str(books))
    assert status == 2 and "is a file; give a folder" in error


def test_quiet_prints_the_summary_and_errors_alone(call, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.pdf").write_text(TEXT)
    alone = call(str(tmp_path / "a.txt"))[1]
    assert call("--quiet", str(tmp_path)) == (0, alone, "")
    status, output, error = call("--quiet", str(tmp_path / "a.txt"), str(tmp_path / "absent"))
    assert status == 2 and alone in output and len(error.splitlines()) == 1


def test_a_text_is_piped_in_without_a_file_argument(call, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT)
    alone = call(str(tmp_path / "a.txt"))[1]
    piped = SimpleNamespace(buffer=io.BytesIO(TEXT.encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", piped)
    assert call()[:2] == (0, alone)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    status, _, error = call()
    assert status == 2 and "no FILE given" in error


def test_a_name_that_is_not_utf_8_is_shown_with_escapes(call, tmp_path):
    books, results = tmp_path / "books", tmp_path / "results.json"
    books.mkdir()
    names = [b"a.txt", b"caf\xe9.txt", b"z.txt"]
    for name in names:
        (books / os.fsdecode(name)).write_text(TEXT)
    status, output, error = call("--json", str(results), str(books))
    assert status == 0
    assert f"{books}/caf\\xe9.txt\n" in output and f"{books}/caf\\xe9.txt: " in error
    records = json.loads(results.read_text())["texts"]
    assert [os.fsencode(Path(one["file"]).name) for one in records] == names
    assert all(one["summary"] for one in records)


def test_figures_on_standard_error_and_in_json(call, checkpoint, tmp_path):
    file, bad, results = tmp_path / "text.txt", tmp_path / "bad.txt", tmp_path / "results.json"
    body = "Ünsere Mühle. " + TEXT * 20
    file.write_bytes(body.encode("cp1252"))
    status, output, error = call("--json", str(results), str(file), str(bad))
    assert status == 2
    found = json.loads(results.read_text())
    assert found["strategy"]["max_new_tokens"] == 8 and found["precision"] == "fp32"
    record, failed = found["texts"]
    assert failed == {"file": str(bad), "error": f"{bad}: No such file or directory"}
    tokenizer = Tokenizer(checkpoint / "model")
    ids = tokenizer.encode(body)
    assert record["tokens"] == len(ids) + 1
    assert record["unknown_tokens"] == ids.count(2) > 0
    assert (record["characters"], record["unknown_characters"]) == (len(body), 2)  # Ü, ü
    assert output == f"{file}\n{record['summary']}\n\n"
    assert 1 <= record["steps"] <= 8
    assert 0 < record["peak_gib"] <= record["expected_gib"]
    assert record["seconds"] > 0 and record["cpu_seconds"] > 0
    states = 2 * 2 * 2 * 8 * len(ids) * 4 / 2**30  # layers, keys and values, heads of 8, fp32
    assert record["cross_attention"] == f"cross-attention: cached keys and values, {states:.2f} GiB"
    assert "cp1252 assumed (not UTF-8 at byte 0" in error
    assert f"{record['tokens']:,} tokens read, {record['steps']} written" in error
    assert f"peak {record['peak_gib']:.2f} GiB" in error and record["cross_attention"] in error
    assert "2/2 blocks" in error and "tokens/s" in error


def test_a_run_of_unknown_characters_is_reported_by_its_length(call, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT + "川" * len(TEXT) + TEXT)
    assert "; 33% of the characters unknown to the tokenizer, unread" in call(str(file))[2]
    file.write_text(TEXT * 100 + "川")
    assert "characters unknown" not in call(str(file))[2]


def test_an_empty_summary_and_a_cut_one_are_said_and_marked(call, tmp_path, monkeypatch):
    """The model's end token at once, or never."""
    file, results = tmp_path / "text.txt", tmp_path / "results.json"
    file.write_text(TEXT)
    logits_of = PlainSteps.logits

    def marks(logit: float) -> tuple[bool, bool, str]:
        def biased(*arguments):
            logits = logits_of(*arguments)
            logits[:, 1] = logit
            return logits

        monkeypatch.setattr(PlainSteps, "logits", biased)
        status, output, error = call("--json", str(results), str(file))
        (record,) = json.loads(results.read_text())["texts"]
        assert status == 0 and output == record["summary"] + "\n"
        return record["empty"], record["cut"], error

    *found, said = marks(1e9)
    assert found == [True, False]
    assert f"{file}: " in said and "the summary is empty: " in said and "cut at" not in said
    *found, said = marks(-1e9)
    assert found == [False, True]
    assert "the summary is cut at 8 tokens, before the model ended it" in said
    assert "--max_new_tokens" in said and "is empty" not in said


def test_kernels_are_kept_from_text_to_text(call, tmp_path):
    files = [tmp_path / f"{name}.txt" for name in "abc"]
    for file, times in zip(files, (30, 40, 20), strict=True):
        file.write_text(TEXT * times)
    names, results = list(map(str, files)), tmp_path / "results.json"
    together = call("--json", str(results), *names)[1]
    for record in json.loads(results.read_text())["texts"]:
        assert record["peak_gib"] <= record["expected_gib"]
    assert together == "".join(f"{name}\n{call(name)[1]}\n" for name in names)


def test_an_unwritable_json_file_is_refused_first(call, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    for target in (tmp_path, tmp_path / "absent" / "results.json"):
        status, output, error = call("--json", str(target), str(file))
        assert (status, output) == (2, "")
        assert error.startswith("error: --json") and error.count("\n") == 1


def test_gutenbergs_frame_is_removed_on_request(call, tmp_path):
    framed, plain = tmp_path / "framed.txt", tmp_path / "plain.txt"
    plain.write_text(TEXT)
    mark = "*** {} OF THE PROJECT GUTENBERG EBOOK MILLS ***\n"
    framed.write_text(f"Title: Mills\n{mark.format('START')}{TEXT}{mark.format('END')}License.\n")
    assert call("--strip_gutenberg", str(framed))[1] == call(str(plain))[1]
    assert "Gutenberg header and footer removed" in call("--strip_gutenberg", str(framed))[2]
    assert call(str(framed))[1] != call(str(plain))[1]


def test_the_given_encoding_is_used(call, tmp_path):
    file, plain = tmp_path / "text.txt", tmp_path / "plain.txt"
    plain.write_text("мельница " + TEXT)
    file.write_bytes(("мельница " + TEXT).encode("koi8-r"))
    assert call("--encoding", "koi8-r", str(file))[1] == call(str(plain))[1]
    for name in ("absent", "hex", "base64"):
        status, _, error = call("--encoding", name, str(file))
        assert status == 2 and name in error and error.count("\n") == 1


def test_max_memory_chooses_how_without_changing_the_summary(call, tmp_path):
    file, results = tmp_path / "text.txt", tmp_path / "results.json"
    file.write_text(TEXT * 1200)  # over 16,384 tokens

    def record(*options: str) -> dict:
        status, _, error = call("--json", str(results), *options, str(file))
        assert status == 0, error
        (found,) = json.loads(results.read_text())["texts"]
        return found

    roomy = record()
    assert roomy["token_block"] == 16384 and "cached" in roomy["cross_attention"]
    absorbed = record("--memory_budget", "0")
    assert "absorbed" in absorbed["cross_attention"]
    minimum = float(
        re.search(r"need at least ([\d.]+) GiB", call("--max_memory", "0.01", str(file))[2])[1]
    )
    tight = record("--max_memory", str(minimum + 0.01))
    assert tight["expected_gib"] <= minimum + 0.01
    assert absorbed["summary"] == roomy["summary"] == tight["summary"]


def test_what_cannot_fit_is_refused_with_the_memory_it_needs(call, tmp_path):
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    long.write_text(TEXT * 3000)
    short.write_text(TEXT)
    held = call("--max_memory", "0.01", str(short))[2]
    minimum = float(re.search(r"need at least ([\d.]+) GiB", held)[1])
    status, output, error = call("--max_memory", str(minimum + 0.03), str(long), str(short))
    assert status == 2
    assert output.startswith(f"{short}\n")
    (line,) = (line for line in error.splitlines() if line.startswith("error: "))
    assert "long.txt" in line and "need at least" in line and "--source_length" in line


def test_out_of_memory_loses_no_other_summary(call, tmp_path, monkeypatch):
    long, short = tmp_path / "long.txt", tmp_path / "short.txt"
    long.write_text(TEXT * 9)
    short.write_text(TEXT)
    convolve = long_conv.convolve

    def allocate(u, *rest):
        if u.shape[-1] > 100:
            torch.empty(2**52)
        return convolve(u, *rest)

    monkeypatch.setitem(ssm.TRANSFORMS, "rows", long_conv.ROWS._replace(convolve=allocate))
    status, output, error = call(str(long), str(short))
    assert status == 2
    assert output.startswith(f"{short}\n")
    (line,) = (line for line in error.splitlines() if line.startswith("error: "))
    assert "long.txt" in line and "memory" in line


def test_a_folder_without_a_model_is_one_line_and_status_2(call, tmp_path):
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
def test_an_invalid_strategy_is_one_line_and_status_2(call, options, message):
    status, output, error = call(*options.split(), "absent.txt")
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    "option",
    ["--early_stopping=maybe", "--memory_budget=inf", "--memory_budget=nan", "--num_beams=x"],
)
def test_an_invalid_number_is_status_2(call, option):
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
