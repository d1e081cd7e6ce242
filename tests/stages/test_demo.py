"""`make demo ARGS=--quick`: all stages, stopped once in the middle of a training and resumed.

Interruptions of every stage are in test_stage_runner.py, on stand-ins.
"""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.shards import Dataset

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ROWS = ("pre-trained", "not pre-trained", "lead", "lead words", "permuted")


def demo(output: Path) -> list[str]:
    return [sys.executable, str(ROOT / "pipeline" / "demo.py"), "--quick", "--output", str(output)]


def table(report: str) -> dict[str, list[float]]:
    """{system: its five scores} of the report's one table of scores."""
    assert report.count("| system | ROUGE-1 ") == 1
    rows = re.findall(r"^\| ([\w-]+(?: [\w-]+)?) \|((?: *[\d.]+[^|]*\|){5})", report, re.M)
    return {name: [float(x) for x in re.findall(r"[\d.]+", cells)][:5] for name, cells in rows}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a demo that was ended by SIGTERM while it pre-trained, and run again."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    first = subprocess.Popen(demo(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    metrics = folder / "pretrain" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size) and first.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.terminate()
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 128 + signal.SIGTERM, output.decode()
    assert not (folder / "stages" / "pretrain.json").exists()
    second = subprocess.run(demo(folder), capture_output=True, text=True)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "complete, skipped" in second.stdout
    return folder


def test_the_report_has_the_five_systems_and_no_path_of_this_machine(finished):
    report = (finished / "report.md").read_text()
    scores = table(report)
    assert set(ROWS) <= scores.keys()
    assert all(0 <= value <= 100 for name in ROWS for value in scores[name])
    html = (finished / "report.html").read_text()
    assert html.count("data:image/png;base64,") >= 2
    for text in (report, html):
        assert str(finished.parent) not in text and str(ROOT) not in text
    assert len(re.findall(r"^\*\*Reference|Reference:", report, re.M)) >= 10


@pytest.mark.parametrize("run", ["pretrain", "finetune", "scratch"])
def test_losses_fall_and_tensorboard_has_them(finished, run):
    lines = [json.loads(line) for line in (finished / run / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 26))
    assert sum(losses[-10:]) < sum(losses[:10])
    events = EventAccumulator(str(finished / run / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("loss")) == len(losses)


def test_no_package_is_in_two_splits(finished):
    packages = {
        split: {
            sample.metadata["id"].split(".")[0]
            for sample in map(Dataset(finished / "shards" / split).__getitem__, range(limit))
        }
        for split in ("train", "validation", "test")
        for limit in [len(Dataset(finished / "shards" / split))]
    }
    assert not packages["train"] & packages["test"]
    assert not packages["train"] & packages["validation"]
    assert not packages["validation"] & packages["test"]
    pretraining = Dataset(finished / "shards" / "pretrain")
    read = {
        pretraining[i].metadata["url"].split("/")[3].split(".")[0] for i in range(len(pretraining))
    }
    assert not read & (packages["test"] | packages["validation"])


def test_summarize_reads_any_text(finished):
    command = [
        sys.executable, str(ROOT / "pipeline" / "summarize.py"), "--checkpoint",
        str(finished / "finetune" / "best"), "--max_new_tokens", "12", str(ROOT / "README.md"),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_a_finished_demo_skips_every_stage(finished):
    before = (finished / "report.md").read_bytes()
    result = subprocess.run(demo(finished), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    stages = len(list((finished / "stages").iterdir()))
    assert result.stdout.count("complete, skipped") == stages - 1  # not the report
    assert (finished / "report.md").read_bytes() == before
