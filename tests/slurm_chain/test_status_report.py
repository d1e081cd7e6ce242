"""The lines of `chain.sh status`, from the queue and the files that programs write."""

import json
import os
from pathlib import Path

import pytest

from pipeline.slurm_chain import slurm_commands
from pipeline.slurm_chain.chain_settings import ChainSettings, read_settings
from pipeline.slurm_chain.formatting import duration, table
from pipeline.slurm_chain.slurm_commands import SlurmJob, parse_queue
from pipeline.slurm_chain.stage_graph import ChainStage, stage_graph
from pipeline.slurm_chain.stage_progress import stage_progress
from pipeline.slurm_chain.status_report import describe, stage_statuses, status_lines, tail

NOW = 1_800_000_000.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> ChainSettings:
    environment = {
        "PATH": os.environ["PATH"], "SETS": "arxiv", "SHARDS": f"{tmp_path}/shards",
        "RUNS": f"{tmp_path}/runs", "EXTRAPOLATE": " ", "SYSTEMS_ARGUMENTS": " ",
        "KERNELS_ARGUMENTS": " ",
    }  # fmt: skip
    return read_settings(ROOT, environment)


def stage(settings: ChainSettings, name: str) -> ChainStage:
    return next(stage for stage in stage_graph(settings) if stage.name == name)


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def heartbeat(settings: ChainSettings, **changes: object) -> None:
    beat = {"step": 250, "max_steps": 1000, "loss": 3.25, "time": NOW - 4, "seconds_per_step": 2.0}
    write(settings.runs / "pretrain" / "heartbeat.json", {**beat, "job": "36", **changes})


def test_a_training_shows_step_loss_time_left_and_last_heartbeat(settings):
    pretrain = stage(settings, "pretrain")
    assert stage_progress(pretrain, None, NOW).text == ""
    assert stage_progress(pretrain, NOW - 20, NOW).text == "starting"
    assert stage_progress(pretrain, NOW - 720, NOW).text == "NO HEARTBEAT for 12 min"
    heartbeat(settings)
    running = stage_progress(pretrain, NOW - 600, NOW)
    assert running.text == "step 250 of 1,000, loss 3.25, last heartbeat 4 s ago"
    assert running.seconds_left == 1500
    waiting = stage_progress(pretrain, None, NOW)
    assert (waiting.text, waiting.seconds_left) == ("step 250 of 1,000, loss 3.25", None)
    again = stage_progress(pretrain, NOW - 1, NOW)  # requeued: an older heartbeat
    assert again.text == "step 250 of 1,000, loss 3.25, starting"
    heartbeat(settings, time=NOW - 660)
    silent = stage_progress(pretrain, NOW - 6000, NOW).text
    assert silent == "step 250 of 1,000, loss 3.25, NO HEARTBEAT for 11 min"
    heartbeat(settings, loss=float("nan"), seconds_per_step=None)
    assert stage_progress(pretrain, NOW - 600, NOW).text.startswith(
        "step 250 of 1,000, last heartbeat"
    )


def test_preprocessing_shows_the_items_of_the_first_incomplete_folder(settings):
    c4 = stage(settings, "preprocess-c4")
    items = settings.shards / "c4-train" / ".items"
    inputs = [f"c4-train.{i:05d}-of-00008.json.gz, 1000 bytes, abc" for i in range(8)]
    write(items / "settings.json", {"inputs": inputs})
    for i in range(4):  # two by an earlier job
        path = write(items / f"{i:05d}.json", {})
        os.utime(path, (NOW - 1000 + 300 * i,) * 2)
    (items / "00004.claim-0").touch()
    found = stage_progress(c4, NOW - 500, NOW)
    assert (found.text, found.seconds_left) == ("c4-train: 4 of 8 items", 1000)
    write(settings.shards / "c4-train" / "manifest.json", {})
    write(settings.shards / "c4-validation" / ".items" / "settings.json", {"inputs": ["a.json, 1"]})
    assert stage_progress(c4, NOW - 500, NOW).text == "c4-validation: 0 items"


def test_an_evaluation_shows_the_number_of_summaries(settings):
    evaluate = stage(settings, "evaluate-arxiv")
    folder = settings.runs / "evaluation-arxiv"
    assert stage_progress(evaluate, NOW - 10, NOW).text == ""
    write(folder / "settings.json", {"dataset": {"examples": 100}})
    for rank in range(4):
        (folder / f"predictions-model.part-{rank}.jsonl").write_text("{}\n" * 5 + '{"torn')
    found = stage_progress(evaluate, NOW - 100, NOW)
    assert (found.text, found.seconds_left) == ("20 of 100 summaries", 400)
    (folder / "predictions-model.jsonl").touch()
    assert stage_progress(evaluate, NOW - 100, NOW).text == "100 of 100 summaries"


def job(state: str, reason: str = "", start: float | None = None) -> SlurmJob:
    return SlurmJob(1, state, reason, start)


def test_states_in_words():
    assert describe([job("RUNNING", start=NOW - 7500)], NOW) == "running 2 h 05 min"
    assert describe([job("PENDING", "Priority")], NOW) == "pending (Priority)"
    assert describe([job("PENDING", "Dependency")] * 2, NOW) == "2 pending (Dependency)"
    assert describe([job("TIMEOUT", "TimeLimit")], NOW) == "timeout (TimeLimit)"
    assert describe([job("OUT_OF_MEMORY")], NOW) == "out of memory"
    resumed = "ended, not complete: chain.sh resumes it"
    assert describe([job("COMPLETED")], NOW) == describe([job("ENDED")], NOW) == resumed
    several = [job("RUNNING", start=NOW - 60), job("FAILED", "NonZeroExitCode")]
    assert describe(several, NOW) == "1 running 60 s, 1 failed (NonZeroExitCode)"


def write_log(settings: ChainSettings, name: str, text: str = "") -> Path:
    log = settings.runs / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def test_every_stage_has_a_row_and_a_failed_one_the_end_of_its_log(settings, monkeypatch):
    monkeypatch.setattr(slurm_commands, "accounted_jobs", lambda jobs: {})
    for name in ("c4-train", "c4-validation"):
        write(settings.shards / name / "manifest.json", {})
    lines = [
        f"31|RUNNING|None|N/A|n4|locost-preprocess-arxiv|locost:{settings.runs}:preprocess-arxiv",
        f"32|FAILED|NonZeroExitCode|N/A|n[1-4]|locost-pretrain|locost:{settings.runs}:pretrain",
        f"33|PENDING|Dependency|N/A||locost-finetune-arxiv|locost:{settings.runs}:finetune-arxiv",
    ]
    heartbeat(settings)
    text = "".join(f"line {i}\n" for i in range(30)) + "step 1\rstep 2\x1b[0m\n\n"
    log = write_log(settings, "locost-pretrain-32.log", text)
    forgotten = write_log(settings, "locost-report-35.log", "error: no space\n")
    write_log(settings, "locost-report-extra-36.log")  # not a log of this stage
    found = stage_statuses(settings, stage_graph(settings), parse_queue("\n".join(lines)), NOW)
    assert [status.failed for status in found] == [False, False, True, False, False, True]
    text = "\n".join(status_lines(found)).splitlines()
    rows = [" ".join(line.split()) for line in text[:7]]
    assert rows == [
        "stage jobs state progress left nodes",
        "preprocess-c4 complete",
        "preprocess-arxiv 31 running n4",
        "pretrain 32 failed (NonZeroExitCode) step 250 of 1,000, loss 3.25",
        "finetune-arxiv 33 pending (Dependency)",
        "evaluate-arxiv not submitted",
        "report 35 ended, not complete: chain.sh resumes it",
    ]
    assert text[7:9] == ["", f"pretrain failed (NonZeroExitCode); {log} ends:"]
    assert text[9:24] == [f"    line {i}" for i in range(16, 30)] + ["    step 2 [0m"]
    assert text[25:] == [
        f"report ended, not complete: chain.sh resumes it; {forgotten} ends:",
        "    error: no space",
    ]


def test_a_stale_stage_says_why_and_how_to_repeat_it(settings):
    for number, one in enumerate(reversed(stage_graph(settings))):  # the report first
        for marker in one.markers:
            write(marker, {})
            os.utime(marker, (1e9 + number,) * 2)
    found = stage_statuses(settings, stage_graph(settings), [], NOW)
    states = {status.stage.name: status.state for status in found}
    assert states["pretrain"] == "stale: older than preprocess-c4"
    assert states["evaluate-arxiv"] == "stale: finetune-arxiv is stale"
    assert not any(status.failed for status in found)
    assert "delete its folder and run chain.sh" in "\n".join(status_lines(found))


def test_jobs_gone_from_the_queue_are_looked_up_in_the_accounting(settings, monkeypatch):
    write_log(settings, "locost-pretrain-32.log")
    write_log(settings, "locost-finetune-arxiv-33.log")
    answer = "32|CANCELLED by 1000|None|2026-11-28T10:50:48|n1|locost-pretrain|\n"
    monkeypatch.setattr(slurm_commands, "_call", lambda *command: answer)
    found = {s.stage.name: s.state
             for s in stage_statuses(settings, stage_graph(settings), [], NOW)}  # fmt: skip
    assert found["pretrain"] == "cancelled"
    assert found["finetune-arxiv"].startswith("ended, not complete")
    assert found["report"] == "not submitted"

    def refuse(*command: str) -> str:
        raise ValueError("sacct: Slurm accounting storage is disabled")

    monkeypatch.setattr(slurm_commands, "_call", refuse)
    found = {s.stage.name: s.state
             for s in stage_statuses(settings, stage_graph(settings), [], NOW)}  # fmt: skip
    assert found["pretrain"].startswith("ended, not complete")


def test_durations_and_tables(tmp_path):
    assert [duration(s) for s in (-3, 4.4, 89, 90, 5399, 5400, 172_799, 187_200)] == [
        "0 s", "4 s", "89 s", "2 min", "1 h 30 min", "1 h 30 min", "2 d 0 h",
        "2 d 4 h",
    ]  # fmt: skip
    assert table(("a", "b"), [("long", "1"), ("x", "22")]) == "a     b\nlong  1\nx     22"
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 100_000 + b"\nend\r\n")
    assert tail(log)[-1] == "end"
    assert len(tail(log)) == 2
