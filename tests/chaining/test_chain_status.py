"""The lines of `chain.sh status`, from the queue's records and what programs leave on disk."""

import json
import os
from pathlib import Path

import pytest

from pipeline.chaining import slurm
from pipeline.chaining.reached import reached, share_left
from pipeline.chaining.record import Record
from pipeline.chaining.settings import Settings
from pipeline.chaining.slurm import Job, Task, parse_queue
from pipeline.chaining.stages import Stage, graph
from pipeline.chaining.status import describe, report, standings, tail
from pipeline.chaining.text import clock, duration, table

NOW = 1_800_000_000.0
ENVIRONMENT = {
    "SHARDS": "shards",
    "RUNS": "runs",
    "SETS": "arxiv",
    "PREPROCESS_JOBS": "3",
    "PRETRAIN_HOURS": "10",
    "REQUEUE": "1",
    "MAX_REQUEUES": "5",
    "GPU_HOUR_COST": "0",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.of({**ENVIRONMENT, "LOCOST_ROOT": str(tmp_path)})


def stage(settings: Settings, name: str) -> Stage:
    return next(stage for stage in graph(settings) if stage.name == name)


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def heartbeat(settings: Settings, **changes: object) -> None:
    beat = {"step": 250, "max_steps": 1000, "loss": 3.25, "time": NOW - 4, "seconds_per_step": 2.0}
    write(settings.runs / "pretrain" / "heartbeat.json", {**beat, "job": "36", **changes})


def test_a_training_tells_step_loss_time_left_and_its_last_sign_of_life(settings):
    pretrain = stage(settings, "pretrain")
    assert reached(pretrain, None, NOW).text == ""
    assert reached(pretrain, NOW - 20, NOW).text == "starting"
    assert reached(pretrain, NOW - 720, NOW).text == "NO SIGN OF LIFE for 12 min"
    assert share_left(settings) == 1.0
    heartbeat(settings)
    running = reached(pretrain, NOW - 600, NOW)
    assert running.text == "step 250 of 1,000, loss 3.25, last sign of life 4 s ago"
    assert running.seconds_left == 1500
    assert share_left(settings) == 0.75
    waiting = reached(pretrain, None, NOW)
    assert (waiting.text, waiting.seconds_left) == ("step 250 of 1,000, loss 3.25", None)
    again = reached(pretrain, NOW - 1, NOW)  # requeued: the sign is of the run before
    assert again.text == "step 250 of 1,000, loss 3.25, starting"
    heartbeat(settings, time=NOW - 660)
    silent = reached(pretrain, NOW - 6000, NOW).text
    assert silent == "step 250 of 1,000, loss 3.25, NO SIGN OF LIFE for 11 min"
    heartbeat(settings, loss=float("nan"), seconds_per_step=None)
    assert reached(pretrain, NOW - 600, NOW).text.startswith("step 250 of 1,000, last sign")


def test_preprocessing_tells_the_items_of_the_first_folder_that_is_not_complete(settings):
    c4 = stage(settings, "preprocess-c4")
    items = settings.shards / "c4-train" / ".items"
    inputs = [f"c4-train.{i:05d}-of-00008.json.gz, 1000 bytes, abc" for i in range(8)]
    write(items / "settings.json", {"inputs": inputs})
    for i in range(4):  # two of a job before
        path = write(items / f"{i:05d}.json", {})
        os.utime(path, (NOW - 1000 + 300 * i,) * 2)
    (items / "00004.claim-0").touch()
    found = reached(c4, NOW - 500, NOW)
    assert (found.text, found.seconds_left) == ("c4-train: 4 of 8 items", 1000)
    write(settings.shards / "c4-train" / "manifest.json", {})
    write(settings.shards / "c4-validation" / ".items" / "settings.json", {"inputs": ["a.json, 1"]})
    assert reached(c4, NOW - 500, NOW).text == "c4-validation: 0 items"


def test_an_evaluation_tells_the_summaries(settings):
    evaluate = stage(settings, "evaluate-arxiv")
    folder = settings.runs / "evaluation-arxiv"
    assert reached(evaluate, NOW - 10, NOW).text == ""
    write(folder / "settings.json", {"dataset": {"examples": 100}})
    for rank in range(4):
        (folder / f"predictions-model.part-{rank}.jsonl").write_text("{}\n" * 5 + '{"torn')
    found = reached(evaluate, NOW - 100, NOW)
    assert (found.text, found.seconds_left) == ("20 of 100 summaries", 400)
    (folder / "predictions-model.jsonl").touch()
    assert reached(evaluate, NOW - 100, NOW).text == "100 of 100 summaries"


def test_states_in_words():
    assert describe([Task("RUNNING", start=NOW - 7500)], NOW) == "running 2 h 05 min"
    assert describe([Task("PENDING", "Priority")], NOW) == "pending (Priority)"
    assert describe([Task("PENDING", "Dependency")] * 2, NOW) == "2 pending (Dependency)"
    assert describe([Task("TIMEOUT", "TimeLimit")], NOW) == "timeout (TimeLimit)"
    assert describe([Task("OUT_OF_MEMORY")], NOW) == "out of memory"
    assert describe([Task("COMPLETED")], NOW) == "ended without completing"
    cancelled = Task("CANCELLED", "DependencyNeverSatisfied")
    assert describe([cancelled], NOW) == "cancelled (what it needs failed)"
    array = [Task("COMPLETED"), Task("RUNNING", start=NOW - 60), Task("FAILED", "NonZeroExitCode")]
    assert describe(array, NOW) == "1 completed, 1 running 60 s, 1 failed (NonZeroExitCode)"


def test_every_stage_has_its_line_and_a_failed_one_the_end_of_its_log(settings, monkeypatch):
    monkeypatch.setattr(slurm, "account", lambda jobs: {})
    record, stages = Record(settings), graph(settings)
    for number, one in enumerate(stages, 30):
        record.add(one, number)
    for name in ("c4-train", "c4-validation"):
        write(settings.shards / name / "manifest.json", {})
    lines = [
        "31_1|RUNNING|None|N/A|n4|locost-preprocess-arxiv||",
        "32|FAILED|NonZeroExitCode|N/A|n[1-4]|locost-pretrain||",
        "33|CANCELLED|DependencyNeverSatisfied|N/A||locost-finetune-arxiv||",
        "34|PENDING|Dependency|N/A||locost-evaluate-arxiv||",
    ]
    heartbeat(settings)
    log = settings.runs / "logs" / "locost-pretrain-32.log"
    log.parent.mkdir()
    log.write_text("".join(f"line {i}\n" for i in range(30)) + "step 1\rstep 2\x1b[0m\n\n")
    found = standings(stages, record, parse_queue("\n".join(lines)), NOW)
    assert [standing.failed for standing in found] == [False, False, True, True, False, True]
    text = "\n".join(report(found)).splitlines()
    rows = [" ".join(line.split()) for line in text[:7]]
    assert rows == [
        "stage job state reached left where",
        "preprocess-c4 30 complete",
        "preprocess-arxiv 31 running n4",
        "pretrain 32 failed (NonZeroExitCode) step 250 of 1,000, loss 3.25",
        "finetune-arxiv 33 cancelled (what it needs failed)",
        "evaluate-arxiv 34 pending (Dependency)",
        "report 35 not known any more (gone from the queue, not complete)",
    ]
    assert text[7:9] == ["", f"pretrain failed (NonZeroExitCode); {log} ends:"]
    assert text[9:] == [f"    line {i}" for i in range(16, 30)] + ["    step 2 [0m"]


def test_of_links_the_one_that_failed_is_shown_not_those_cancelled_after_it(settings):
    record, stages = Record(settings), graph(settings)
    for name in ("c4-train", "c4-validation"):
        write(settings.shards / name / "manifest.json", {})
    pretrain = stage(settings, "pretrain")
    in_vain = [Task("CANCELLED", "DependencyNeverSatisfied")]
    jobs = [[Task("COMPLETED")], [Task("NODE_FAIL")], in_vain, in_vain]
    queue = {}
    for number, tasks in enumerate(jobs, 50):
        record.add(pretrain, number)
        queue[number] = Job(number, "locost-pretrain", "", tasks)
    standing = next(s for s in standings(stages, record, queue, NOW) if s.stage == pretrain)
    assert (standing.jobs, standing.state) == ((51,), "node fail")


def test_the_accounting_speaks_where_the_queue_forgot(settings, monkeypatch):
    record, stages = Record(settings), graph(settings)
    for name, number in (("pretrain", 32), ("finetune-arxiv", 33)):
        record.add(stage(settings, name), number)
    answer = "32|CANCELLED by 1000|None|2026-11-28T10:50:48|n1|locost-pretrain||\n"
    monkeypatch.setattr(slurm, "_call", lambda *command: answer)
    found = {s.stage.name: s.state for s in standings(stages, record, {}, NOW)}
    assert found["pretrain"] == "cancelled"
    assert found["finetune-arxiv"].startswith("not known any more")
    assert found["report"] == "not submitted"

    def refuse(*command: str) -> str:
        raise ValueError("sacct: Slurm accounting storage is disabled")

    monkeypatch.setattr(slurm, "_call", refuse)
    found = {s.stage.name: s.state for s in standings(stages, record, {}, NOW)}
    assert found["pretrain"].startswith("not known any more")


def test_text(tmp_path):
    assert [duration(s) for s in (-3, 4.4, 89, 90, 5399, 5400, 172_799, 187_200)] == [
        "0 s", "4 s", "89 s", "2 min", "1 h 30 min", "1 h 30 min", "2 d 0 h",
        "2 d 4 h",
    ]  # fmt: skip
    assert [clock(m) for m in (0.5, 90, 1200, 3600, None)] == [
        "00:00:30", "01:30:00", "20:00:00", "2-12:00:00", "none",
    ]  # fmt: skip
    assert table(("a", "b"), [("long", "1"), ("x", "22")]) == "a     b\nlong  1\nx     22"
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 100_000 + b"\nend\r\n")
    assert tail(log)[-1] == "end"
    assert len(tail(log)) == 2
