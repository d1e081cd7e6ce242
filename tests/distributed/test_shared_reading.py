"""evaluate.py, summarize.py and validation where processes share documents, against one process."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import shared_reading
import torch

from pipeline import evaluate, summarize
from pipeline.distributed.world import World, free_port
from pipeline.evaluation.evaluator import evaluate as evaluated
from pipeline.inference.decode import load
from pipeline.model.sequence import Unconnected
from pipeline.scoring.predictions import Predictions
from pipeline.scoring.source_use import Losses

SCRIPT = Path(__file__).with_name("shared_reading.py")
SUMMARIZE = Path(__file__).resolve().parents[2] / "pipeline" / "summarize.py"
LAUNCHES = {"one group": (2, 2), "two groups": (4, 2), "a group of four": (4, 4)}
"""Processes, and those of a group."""
FEWER = ("cached", "absorbed beams", "three tokens")
"""Evaluations where there are four processes."""
EVALUATIONS = {
    "cached": ["--source_use_by_position", "--systems", "model", "lead", "permuted"],
    "absorbed": ["--memory_budget=0"],
    "beams": ["--num_beams=3", "--length_penalty=0.5", "--no_repeat_ngram_size=2"],
    "absorbed beams": ["--num_beams=3", "--memory_budget=0", "--early_stopping=false"],
    "sampling": ["--top_p=0.9", "--temperature=1.5", "--seed=3"],
    "three tokens": ["--source_length=3", "--min_new_tokens=4"],
}
SUMMARIES = {
    "whole": [],
    "small": ["--max_memory=1000", "--memory_budget=0", "--num_beams=2"],
    "too small": ["--max_memory=0.001"],
}
ALONE = World(0, 1, 0, torch.device("cpu"))
TEXT = "The river runs past an old stone mill.\nThree children watch grey herons fish.\n"


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[str]:
    """Of which the second does not exist."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "one.txt").write_text(TEXT * 9)
    (folder / "two.txt").write_text(TEXT[::-1])
    return [str(folder / name) for name in ("one.txt", "absent.txt", "two.txt")]


@pytest.fixture(scope="module")
def words(checkpoint, dataset_folder, validation_folder, texts):
    """`words(command, name, output)`: a case's arguments."""
    small = ["--max_new_tokens=10", "--precision=fp32", f"--checkpoint={checkpoint}"]

    def of(command: str, name: str, output: Path) -> list:
        if command == "evaluate":
            limits = ["--limit=9", "--batch_size=2", "--systems", "model"]
            given = [*small, f"--data={dataset_folder}", f"--output={output}", *limits]
            return [*given, *EVALUATIONS[name]]
        if command == "summarize":
            return [*small, f"--json={output}.json", *SUMMARIES[name], *texts]
        data = ["--data.train=x", f"--data.validation={validation_folder}"]
        options = ["--train.validation_rouge=true", "--train.validation_batch_size=2"]
        tiny = ["--train.max_new_tokens=40", "--train.precision=fp32"]
        return [str(checkpoint), 5 * (name == "stopped"), *data, *options, *tiny]

    return of


def cases(words, folder: Path, processes: int, size: int) -> list[dict]:
    """Those of a launch: all, where there are two processes."""
    names = [("evaluate", name) for name in (EVALUATIONS if processes == 2 else FEWER)]
    if processes == 2:
        names += [("summarize", name) for name in SUMMARIES]
    names += [("validate", "validated"), ("validate", "stopped")]
    found = []
    for command, name in names:
        output = folder / name
        more = [f"--sequence_parallel_size={size}"]
        if command == "validate":
            more = [f"--train.sequence_parallel_size={size}"]
        arguments = [*words(command, name, output), *more]
        if command == "summarize":  # files come last
            arguments = [*more, *words(command, name, output)]
        found.append({"command": command, "arguments": arguments, "output": str(output)})
    return found


@pytest.fixture(scope="module", params=LAUNCHES)
def shared(request, words, tmp_path_factory) -> tuple[Path, int]:
    """The folder of a launch's outputs, and the number of its processes."""
    processes, size = LAUNCHES[request.param]
    folder = tmp_path_factory.mktemp("shared")
    asked = {"processes": processes, "size": size}
    file = folder / "cases.json"
    file.write_text(json.dumps({**asked, "cases": cases(words, folder, processes, size)}))
    done = subprocess.run(
        [sys.executable, SCRIPT, file], capture_output=True, text=True, timeout=500,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stderr").write_text(done.stderr)
    return folder, processes


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory) -> Path:
    """The same evaluations by one process."""
    folder = tmp_path_factory.mktemp("whole")
    for name in EVALUATIONS:
        evaluated(evaluate.parse(words("evaluate", name, folder / name))[0], ALONE)
    return folder


@pytest.mark.slow
def test_evaluations_are_those_of_one_process(shared, whole):
    folder, processes = shared
    texts = set()
    for name in EVALUATIONS if processes == 2 else FEWER:
        ours, theirs = (Predictions(root / name, "model") for root in (folder, whole))
        assert ours.path.read_bytes() == theirs.path.read_bytes(), name
        texts |= {record["prediction"] for record in theirs.read()}
        found, expected = (
            json.loads((root / name / "results.json").read_text()) for root in (folder, whole)
        )
        assert found["systems"] == expected["systems"]
        assert not list((folder / name).glob("*.part-*"))
    assert len(texts) > 10
    for name in ("lead", "permuted"):
        ours, theirs = (Predictions(root / "cached", name) for root in (folder, whole))
        assert ours.path.read_bytes() == theirs.path.read_bytes()
    ours, theirs = (Losses(root / "cached", "model").read() for root in (folder, whole))
    assert len(ours) == 9
    for found, expected in zip(ours, theirs, strict=True):
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)


@pytest.mark.slow
def test_validation_writes_and_scores_as_one_process(shared, words):
    folder, processes = shared
    found = [json.loads((folder / f"validated.{rank}").read_text()) for rank in range(processes)]
    assert all(values == found[0][0] for values, _ in found)
    with redirect_stdout(StringIO()) as printed:
        shared_reading.validate(ALONE, *words("validate", "validated", folder))
    expected, samples = json.loads(printed.getvalue())
    assert found[0][0] == pytest.approx(expected, rel=1e-5)
    assert len(samples) == 4 and set(samples) <= {text for _, shown in found for text in shown}


@pytest.mark.slow
def test_one_process_stops_validation_on_all(shared):
    folder, processes = shared
    ends = {(folder / f"stopped.{rank}").read_text() for rank in range(processes)}
    assert ends == {"ValidationStopped: \n"}


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["one group"], indirect=True)
def test_summaries_are_those_of_one_process(shared, words, texts, capfd):
    folder, _ = shared
    for name in SUMMARIES:
        arguments = words("summarize", name, folder / f"alone {name}")
        status = 0 if summarize.run(summarize.parse(arguments), ALONE) else 2
        printed, said = capfd.readouterr()
        assert (folder / f"{name}.0").read_text() == f"{printed}status {status}\n"
        assert (folder / f"{name}.1").read_text() == f"status {status}\n"
        ours, theirs = (
            json.loads((folder / f"{one}{name}.json").read_text())["texts"]
            for one in ("", "alone ")
        )
        assert [one["file"] for one in ours] == texts
        for found, expected in zip(ours, theirs, strict=True):
            assert found.get("summary") == expected.get("summary")
            assert ("error" in found) == ("error" in expected)
        assert said.count("error: ") == (3 if name == "too small" else 1)
    lines = (folder / "stderr").read_text()
    assert lines.count("absent.txt: No such file") == len(SUMMARIES)  # said by one process
    assert "GiB a process expected" in lines
    assert "rank 1" in lines or lines.count("tokens need at least") >= 2


@pytest.mark.slow
def test_the_launcher_starts_what_shares_a_text(checkpoint, texts, capfd):
    common = ["--max_new_tokens=10", f"--checkpoint={checkpoint}", texts[0]]
    assert summarize.main(common) == 0
    expected = capfd.readouterr().out
    launch = [sys.executable, "-m", "deepspeed.launcher.runner", "-q", "--num_accelerators", "2"]
    launch += ["--master_port", str(free_port())]
    done = subprocess.run(
        [*launch, str(SUMMARIZE), "--sequence_parallel_size=2", "--quiet", *common],
        capture_output=True, text=True, timeout=300, env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("error")]


def test_too_few_processes_are_refused_naming_the_command(checkpoint, texts, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        summarize.main(["--checkpoint", str(checkpoint), "--sequence_parallel_size", "2", texts[0]])
    assert capsys.readouterr().err == (
        "error: --sequence_parallel_size 2 takes 2 processes, and there is 1; start them with "
        "`deepspeed --num_gpus 2 pipeline/summarize.py ... --sequence_parallel_size 2`\n"
    )
    paths = [f"--checkpoint={checkpoint}", "--data=x", f"--output={tmp_path}"]
    options, _ = evaluate.parse([*paths, "--sequence_parallel_size=2"])
    three = World(0, 3, 0, ALONE.device)
    with pytest.raises(
        ValueError, match=r"takes a multiple of 2 processes, and there are 3; start"
    ):
        evaluated(options, three)


def test_a_model_whose_channels_do_not_divide_is_refused(checkpoint):
    with pytest.raises(ValueError, match=r"^--sequence_parallel_size 3 does not divide"):
        load(checkpoint, ALONE.device, Unconnected(3))
