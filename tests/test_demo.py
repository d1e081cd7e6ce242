"""`make demo ARGS=--quick`: the whole road, unbroken and killed at several stages."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipeline.shards import Dataset

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
ROWS = ("pre-trained", "not pre-trained", "lead", "lead words", "permuted")


def demo(output: Path) -> list[str]:
    return [sys.executable, str(ROOT / "pipeline" / "demo.py"), "--quick", "--output", str(output)]


def table(report: str) -> dict[str, list[float]]:
    """{system: its five scores} of the report's one table of scores."""
    assert report.count("| system | ROUGE-1 ") == 1
    rows = re.findall(r"^\| ([\w-]+(?: [\w-]+)?) \|((?: *[\d.]+[^|]*\|){5})", report, re.M)
    return {name: [float(x) for x in re.findall(r"[\d.]+", cells)][:5] for name, cells in rows}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "demo"
    finished = subprocess.run(demo(folder), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


def test_the_report_has_the_five_systems_and_no_path_of_this_machine(unbroken):
    report = (unbroken / "report.md").read_text()
    scores = table(report)
    assert set(ROWS) <= scores.keys()
    assert all(0 <= value <= 100 for name in ROWS for value in scores[name])
    html = (unbroken / "report.html").read_text()
    assert html.count("data:image/png;base64,") >= 2
    for text in (report, html):
        assert str(unbroken.parent) not in text and str(ROOT) not in text
    assert len(re.findall(r"^\*\*Reference|Reference:", report, re.M)) >= 10


@pytest.mark.parametrize("run", ["pretrain", "finetune", "scratch"])
def test_losses_fall_and_tensorboard_has_them(unbroken, run):
    lines = [json.loads(line) for line in (unbroken / run / "metrics.jsonl").open()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert sum(losses[-10:]) < sum(losses[:10])
    events = EventAccumulator(str(unbroken / run / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("loss")) == len(losses)


def test_no_package_stands_in_two_splits(unbroken):
    packages = {
        split: {
            sample.metadata["id"].split(".")[0]
            for sample in map(Dataset(unbroken / "shards" / split).__getitem__, range(limit))
        }
        for split in ("train", "validation", "test")
        for limit in [len(Dataset(unbroken / "shards" / split))]
    }
    assert not packages["train"] & packages["test"]
    assert not packages["train"] & packages["validation"]
    assert not packages["validation"] & packages["test"]
    pretraining = Dataset(unbroken / "shards" / "pretrain")
    read = {
        pretraining[i].metadata["url"].split("/")[3].split(".")[0] for i in range(len(pretraining))
    }
    assert not read & (packages["test"] | packages["validation"])


def test_summarize_reads_any_text(unbroken):
    command = [
        sys.executable, str(ROOT / "pipeline" / "summarize.py"), "--checkpoint",
        str(unbroken / "finetune" / "best"), "--max_new_tokens", "12", str(ROOT / "README.md"),
    ]  # fmt: skip
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()


def test_run_again_it_skips_everything(unbroken):
    before = (unbroken / "report.md").read_bytes()
    finished = subprocess.run(demo(unbroken), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    stages = len(list((unbroken / "stages").iterdir()))
    assert finished.stdout.count("complete, skipped") == stages - 1  # the report is written again
    assert (unbroken / "report.md").read_bytes() == before


def test_killed_at_several_stages_it_ends_in_the_same_report(unbroken, tmp_path):
    folder = tmp_path / "demo"
    # Which precision was faster is measured, and may come out otherwise on a busy machine.
    for name in ("precision.json", "stages/precision.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(unbroken / name, folder / name)
    # by SIGKILL of everything, as a power cut; by SIGTERM; by SIGKILL of this program alone, which
    # leaves its training running
    moments = [
        (folder / "text", signal.SIGKILL, True),
        (folder / "shards" / "pretrain" / ".items", signal.SIGTERM, False),
        (folder / "pretrain" / "metrics.jsonl", signal.SIGKILL, False),
        (folder / "finetune" / "metrics.jsonl", signal.SIGTERM, False),
        (folder / "evaluation" / "finetune" / "settings.json", signal.SIGKILL, True),
    ]
    for path, number, everything in moments:
        process = subprocess.Popen(
            demo(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline = time.monotonic() + 300
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert path.exists(), process.communicate()[0]
        time.sleep(1)
        if everything:
            kill_tree(process.pid, number)
        else:
            process.send_signal(number)
        process.wait()
        process.stdout.close()
        assert not (folder / "report.md").exists()
    finished = subprocess.run(demo(folder), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert without_times(folder) == without_times(unbroken)


def kill_tree(pid: int, number: int) -> None:
    """Signal a process and all that descends from it."""
    children = subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in children.splitlines()[1:]]
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        waiting += [child for child, its in pairs if its == parent]
        try:
            os.kill(parent, number)
        except ProcessLookupError:
            continue


def without_times(folder: Path) -> str:
    """The report up to the times of the stages, which a clock decides."""
    report = (folder / "report.md").read_text()
    heading = re.search(r"^## .*[Tt]ime", report, re.M)
    assert heading
    return report[: heading.start()]
