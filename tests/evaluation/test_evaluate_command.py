"""evaluate.py: its options, its dry run, its output, and true launches."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from finished_evaluation import ALONE, contents, lines

from pipeline.distributed import world as distributed
from pipeline.evaluate import main, parse
from pipeline.evaluation import systems
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.model.generation import DecodingStrategy

CLI = Path(__file__).resolve().parents[2] / "pipeline" / "evaluate.py"
FILES = ("predictions-lead.jsonl", "predictions-model.jsonl", "predictions-permuted.jsonl")


def test_lead_words_is_evaluated_on_request():
    paths = ["--checkpoint=a", "--data=b", "--output=c"]
    assert parse(paths)[0].systems == ("model", "lead", "permuted")
    assert parse([*paths, "--systems", "lead_words"])[0].systems == ("lead_words",)


def test_the_options_of_generation_make_the_strategy():
    paths = ["--checkpoint=a", "--data=b", "--output=c"]
    assert parse(paths)[0].strategy == DecodingStrategy()
    chosen = "--num_beams=4 --length_penalty=2 --memory_budget=1.5 --min_new_tokens=3"
    assert parse([*paths, *chosen.split()])[0].strategy == DecodingStrategy(
        num_beams=4, length_penalty=2.0, memory_budget=3 * 2**29, min_new_tokens=3
    )


def test_arguments_are_checked_without_files(capsys):
    assert main(["--checkpoint=a", "--data=b", "--output=c", "--check_arguments"]) == 0
    assert capsys.readouterr().out == "ready: valid arguments\n"


def test_an_invalid_strategy_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--checkpoint=a", "--data=b", "--output=c", "--seed=3"])
    error = capsys.readouterr().err
    assert error.startswith("error: seed=3") and error.count("\n") == 1


def command(options: EvaluationOptions) -> list[str]:
    return [
        f"--checkpoint={options.checkpoint}",
        f"--data={options.data}",
        f"--output={options.output}",
        "--max_new_tokens=10",
        "--batch_size=4",
        "--precision=fp32",
        "--lead_sentences=1",
    ]


@pytest.fixture
def call(options, capsys, monkeypatch):
    """`call(*more)`: the command as one process of this test, (status, output, error)."""
    monkeypatch.setattr(distributed, "start", lambda: ALONE)

    def run(*more: str) -> tuple[int, str, str]:
        status = 0
        try:
            main([*command(options), *more])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def dry_run(call, monkeypatch):
    """`call` with --dry_run, which must not predict anything."""
    monkeypatch.setattr(systems, "load", None)
    monkeypatch.setattr(systems, "generate_batch", None)
    return lambda *more: call("--dry_run", *more)


def test_the_table_is_printed_and_again_when_there_is_nothing_to_do(call):
    status, output, _ = call("--systems", "model", "lead")
    assert status == 0
    header, _, model, lead = output[output.index("| system") :].splitlines()[:4]
    assert header == "| system | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | Mean ROUGE |"
    assert model.startswith("| model |") and lead.startswith("| lead | 100.00 (")
    assert "The model is beaten by the document's first sentence: Mean ROUGE -" in output
    status, output, error = call("--systems", "lead")
    assert status == 0 and "nothing to do" in output and lead in output
    empty, cut = error.splitlines()
    assert re.fullmatch(r"model: \d+ summaries are empty; --min_new_tokens .*", empty)
    assert re.fullmatch(r"model: \d+ summaries are cut at 10 tokens, .* --max_new_tokens .*", cut)
    status, output, error = call("--max_new_tokens", "3")  # resumed with other settings
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_dry_run_reports_the_remaining_work_and_writes_nothing(dry_run, options, finished):
    to_do = "ready: 26 documents of tiny, to do: {}\n"
    assert dry_run() == (0, to_do.format("model, lead, permuted"), "")
    assert dry_run("--systems", "lead", "--limit=3")[1].startswith("ready: 3 documents of tiny")
    assert not options.output.exists()
    shutil.copytree(finished, options.output)
    assert dry_run()[1] == "ready: 26 documents of tiny, complete, nothing to do\n"
    (options.output / "results.json").unlink()
    assert dry_run()[1] == to_do.format("the results")
    (options.output / "predictions-lead.jsonl").unlink()
    before = contents(options.output)
    assert dry_run() == (0, to_do.format("lead"), "")
    assert contents(options.output) == before


def test_a_dry_run_joins_no_other_process(dry_run, monkeypatch):
    for name, value in (("PROCID", 0), ("NTASKS", 4), ("LOCALID", 0)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert dry_run()[0] == 0
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1)):
        monkeypatch.setenv(name, str(value))
    assert dry_run() == (0, "", "")  # only the launcher's first process prints


def damage_weights(folder: Path, change: str) -> None:
    path = folder / "model" / "model.safetensors"
    if change == "cut short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        config = folder / "model" / "config.json"
        config.write_text(config.read_text().replace('"d_ff": 32', '"d_ff": 48'))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("cut short", "not a safetensors file"),
        ("of another size", "not the weights of this configuration"),
    ],
)
def test_a_dry_run_checks_the_weights(dry_run, options, checkpoint, tmp_path, change, named):
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "damaged"))
    damage_weights(damaged, change)
    status, output, error = dry_run(f"--checkpoint={damaged}")
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1 and named in error
    assert not options.output.exists()


def test_what_prevents_an_evaluation_is_one_line(dry_run, options, finished, tmp_path):
    (tmp_path / "file").write_text("")
    shutil.copytree(finished, options.output)
    for named, *more in (
        ("no dataset folder", f"--data={tmp_path / 'absent'}"),
        ("is not a model", f"--checkpoint={tmp_path / 'absent'}"),
        ("other settings (decoding.max_new_tokens was 10, now 9)", "--max_new_tokens=9"),
        ("file is a file", f"--output={tmp_path / 'file'}"),
        ("file is a file", f"--output={tmp_path / 'file' / 'folder'}"),
        ("add model to --systems", "--systems", "permuted"),
    ):
        status, output, error = dry_run(*more)
        assert (status, output) == (2, "")
        assert error.startswith("error: ") and error.count("\n") == 1 and named in error
    (options.output / "results.json").unlink()
    predictions = options.output / "predictions-model.jsonl"
    predictions.write_text(predictions.read_text()[:-500])
    assert "is damaged" in dry_run()[2]


@pytest.mark.slow
def test_two_processes_write_the_same_files_as_one(options, finished, tmp_path):
    launch = [
        *(sys.executable, "-m", "deepspeed.launcher.runner"),
        *("-q", "--num_accelerators", "2", str(CLI)),
    ]
    done = subprocess.run(
        [*launch, *command(options)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("| lead | 100.00 (") == 1
    expected, found = contents(finished), contents(options.output)
    assert found.keys() == expected.keys()
    for name in FILES:
        assert found[name] == expected[name]


KILLED_AT_THE_FOURTH_BATCH = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
number = int(sys.argv.pop(1))
from pipeline import evaluate
from pipeline.evaluation import systems
generate, calls = systems.generate_batch, []
def killing(*arguments):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), number)
    return generate(*arguments)
systems.generate_batch = killing
evaluate.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, status, said",
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGUSR2, 85, "stopped: SIGUSR2 (rank 0); the finished summaries are kept"),
        (signal.SIGTERM, 85, "stopped: SIGTERM (rank 0)"),
    ],
)
def test_a_stopped_evaluation_keeps_its_batches_and_resumes_to_the_same_files(
    options, finished, number, status, said
):
    program = [sys.executable, "-c", KILLED_AT_THE_FOURTH_BATCH, str(CLI.parents[1])]
    words = [*program, str(int(number)), *command(options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == status and said in done.stderr
    assert len(lines(options.output / "predictions-model.part-0.jsonl")) == 12
    assert not (options.output / "results.json").exists()
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)


@pytest.mark.slow
def test_an_error_of_a_launch_by_path_is_one_line_and_status_2(options, tmp_path):
    arguments = [sys.executable, str(CLI), *command(options), f"--data={tmp_path / 'absent'}"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "absent" in done.stderr
    assert done.stderr.count("\n") == 1
