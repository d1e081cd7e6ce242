"""The graph of stages, what is complete, and what is to be submitted."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.chaining.overview import overview
from pipeline.chaining.plan import plan
from pipeline.chaining.record import Record, log_files
from pipeline.chaining.resources import Request
from pipeline.chaining.settings import KINDS, Settings
from pipeline.chaining.slurm import Job, Task
from pipeline.chaining.stages import completed, graph

ENVIRONMENT = {
    "SHARDS": "shards",
    "RUNS": "runs",
    "SETS": "arxiv pubmed",
    "PREPROCESS_JOBS": "4",
    "PRETRAIN_HOURS": "140",
    "REQUEUE": "0",
    "MAX_REQUEUES": "50",
    "GPU_HOUR_COST": "0",
    "CURRENCY": "EUR",
}
REQUESTS = dict.fromkeys(KINDS, Request(nodes=1, gpus=4, minutes=600.0))
REQUESTS["preprocess"] = Request(nodes=1, gpus=0, minutes=600.0)
REQUESTS["pretrain"] = Request(nodes=4, gpus=4, minutes=1200.0, warning=5.0)


def settings_of(folder: Path, **changes: str) -> Settings:
    return Settings.of({**ENVIRONMENT, "LOCOST_ROOT": str(folder), **changes})


def mark(settings: Settings, *names: str) -> None:
    """Write the markers of stages, each later than those before it."""
    for number, stage in enumerate(graph(settings)):
        for marker in stage.markers if stage.name in names else ():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text("{}")
            os.utime(marker, (1e9 + number, 1e9 + number))


def planned(settings: Settings, *jobs: Job, record: Record | None = None, left: float = 1.0):
    """The steps by name, with these jobs in the queue."""
    queue = {job.id: job for job in jobs}
    steps = plan(settings, graph(settings), REQUESTS, record or Record(settings), queue, left)
    return {step.stage.name: step for step in steps}


def job_of(settings: Settings, name: str, number: int, *states: str, reason: str = "") -> Job:
    stage = next(stage for stage in graph(settings) if stage.name == name)
    indices = range(1, len(states) + 1) if stage.array else [None]
    tasks = [Task(state, reason, index=i) for state, i in zip(states, indices, strict=True)]
    return Job(number, stage.job_name, stage.comment(settings), tasks)


def test_the_whole_road_each_stage_after_those_it_needs(tmp_path):
    settings = settings_of(tmp_path)
    stages = graph(settings)
    assert {stage.name: stage.needs for stage in stages} == {
        "preprocess-c4": (),
        "preprocess-arxiv": (),
        "preprocess-pubmed": (),
        "pretrain": ("preprocess-c4",),
        "finetune-arxiv": ("pretrain", "preprocess-arxiv"),
        "finetune-pubmed": ("pretrain", "preprocess-pubmed"),
        "evaluate-arxiv": ("finetune-arxiv",),
        "evaluate-pubmed": ("finetune-pubmed",),
        "report": ("evaluate-arxiv", "evaluate-pubmed"),
    }
    names = [stage.name for stage in stages]
    assert all(names.index(need) < names.index(s.name) for s in stages for need in s.needs)
    c4, arxiv = stages[:2]
    assert (c4.array, c4.argument, c4.job_name) == (4, "pretrain", "locost-preprocess-c4")
    assert (arxiv.array, arxiv.argument) == (1, "arxiv")
    assert c4.log(settings) == f"{tmp_path}/runs/logs/locost-preprocess-c4-%A_%a.log"
    assert stages[-1].comment(settings) == f"locost:{tmp_path}/runs:report"


@pytest.mark.parametrize(
    "name, value",
    [
        ("LOCOST_ROOT", "relative"),
        ("RUNS", ""),
        ("SETS", ""),
        ("SETS", "arxiv arxiv"),
        ("SETS", "../arxiv"),
        ("SETS", "c4"),
        ("PREPROCESS_JOBS", "0"),
        ("PRETRAIN_HOURS", "0"),
        ("PRETRAIN_HOURS", "nan"),
        ("REQUEUE", "yes"),
        ("MAX_REQUEUES", "-1"),
        ("GPU_HOUR_COST", "2 EUR"),
        ("FINETUNE_FLAGS", "--comment='open"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"^{name} is '"):
        settings_of(tmp_path, **{name: value})


def test_a_stage_is_complete_when_all_its_markers_are_there_and_whole(tmp_path):
    settings = settings_of(tmp_path)
    stages = graph(settings)
    assert completed(stages) == set()
    mark(settings, "preprocess-arxiv", "preprocess-c4", "pretrain", "evaluate-arxiv")
    (settings.shards / "c4-validation" / "manifest.json").unlink()
    (settings.runs / "evaluation-arxiv" / "results.json").write_text('{"torn')
    assert completed(stages) == {"preprocess-arxiv", "pretrain"}


def test_the_report_is_complete_only_after_what_it_sums_up(tmp_path):
    settings = settings_of(tmp_path)
    names = [stage.name for stage in graph(settings)]
    mark(settings, *names)
    assert completed(graph(settings)) == set(names)
    results = settings.runs / "evaluation-pubmed" / "results.json"
    os.utime(results, (2e9, 2e9))  # scored again since
    assert completed(graph(settings)) == {*names} - {"report"}
    results.unlink()
    assert completed(graph(settings)) == {*names} - {"report", "evaluate-pubmed"}


def test_all_is_submitted_at_first_in_as_many_links_as_the_limit_needs(tmp_path):
    steps = planned(settings_of(tmp_path))
    # 140 h in jobs of 20 h that are told to stop 5 minutes before: 7.03 of them.
    assert {name: step.lacking for name, step in steps.items() if step.lacking != 1} == {
        "pretrain": 8
    }
    assert planned(settings_of(tmp_path, REQUEUE="1"))["pretrain"].lacking == 1
    assert planned(settings_of(tmp_path), left=0.5)["pretrain"].lacking == 4


def test_the_first_complete_and_queued_stages_are_kept(tmp_path):
    settings = settings_of(tmp_path, PRETRAIN_HOURS="39")
    mark(settings, "preprocess-c4")
    steps = planned(
        settings,
        job_of(settings, "pretrain", 7, "RUNNING"),
        job_of(settings, "pretrain", 8, "PENDING"),
        job_of(settings, "finetune-arxiv", 9, "PENDING"),
        job_of(settings, "finetune-pubmed", 10, "CANCELLED"),
        Job(11, "locost-finetune-pubmed", "locost:/other/runs:finetune-pubmed", [Task("RUNNING")]),
    )
    assert steps["preprocess-c4"].complete
    assert [job.id for job in steps["pretrain"].kept] == [7, 8]
    assert [name for name, step in steps.items() if step.lacking] == [
        "preprocess-arxiv", "preprocess-pubmed", "finetune-arxiv", "finetune-pubmed",
        "evaluate-arxiv", "evaluate-pubmed", "report",
    ]  # fmt: skip
    # It waits, among others, for shards that nobody makes.
    assert [job.id for job in steps["finetune-arxiv"].replaced] == [9]


def test_a_slower_pre_training_gets_another_link_and_its_heirs_wait_for_that_one(tmp_path):
    settings = settings_of(tmp_path, PRETRAIN_HOURS="39")
    mark(settings, "preprocess-c4", "preprocess-arxiv", "preprocess-pubmed")
    jobs = [
        job_of(settings, "pretrain", 8, "RUNNING"),
        job_of(settings, "finetune-arxiv", 9, "PENDING"),
        job_of(settings, "finetune-pubmed", 10, "RUNNING"),
    ]
    on_time, late = (planned(settings, *jobs, left=left) for left in (0.4, 0.6))
    assert (on_time["pretrain"].lacking, on_time["finetune-arxiv"].lacking) == (0, 0)
    assert (late["pretrain"].lacking, late["finetune-arxiv"].lacking) == (1, 1)
    assert [job.id for job in late["finetune-arxiv"].replaced] == [9]
    assert [job.id for job in late["finetune-pubmed"].kept] == [10]  # never one that runs


def test_links_behind_a_failed_one_are_submitted_anew_while_slurm_still_keeps_them(tmp_path):
    settings = settings_of(tmp_path, PRETRAIN_HOURS="59")
    mark(settings, "preprocess-c4")
    waiting = [
        replace(job_of(settings, "pretrain", number, "PENDING"), dependency=f"afterok:{number - 1}")
        for number in (8, 9)
    ]
    step = planned(settings, job_of(settings, "pretrain", 7, "FAILED"), *waiting)["pretrain"]
    assert ([job.id for job in step.replaced], step.kept, step.lacking) == ([8, 9], (), 3)
    step = planned(settings, job_of(settings, "pretrain", 7, "RUNNING"), *waiting)["pretrain"]
    assert ([job.id for job in step.kept], step.lacking) == ([7, 8, 9], 0)


def test_a_noted_id_that_is_another_job_now_counts_for_nothing(tmp_path):
    settings = settings_of(tmp_path)
    record = Record(settings)
    pretrain = next(stage for stage in graph(settings) if stage.name == "pretrain")
    record.add(pretrain, 5)
    stranger = Job(5, "interactive", "", [Task("RUNNING")])
    assert planned(settings, stranger, record=record)["pretrain"].kept == ()
    ours = Job(5, "locost-pretrain", "", [Task("RUNNING")])  # sites may rewrite comments
    assert planned(settings, ours, record=record)["pretrain"].kept == (ours,)


def test_limits_that_cannot_do_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"pretrain takes 8 runs .* MAX_REQUEUES=6 allows 7"):
        planned(settings_of(tmp_path, REQUEUE="1", MAX_REQUEUES="6"))
    short = {**REQUESTS, "pretrain": Request(4, 4, minutes=5.0, warning=5.0)}
    settings = settings_of(tmp_path)
    with pytest.raises(ValueError, match="pretrain has a time limit of 5 min and is told to stop"):
        plan(settings, graph(settings), short, Record(settings), {}, 1.0)


def test_an_array_that_lost_tasks_is_awaited_by_the_others(tmp_path):
    settings = settings_of(tmp_path)
    array = job_of(settings, "preprocess-c4", 30, "FAILED", "RUNNING", "COMPLETED", "PENDING")
    assert array.awaited() == ["30_2", "30_4"]
    assert job_of(settings, "preprocess-c4", 30, *["COMPLETED"] * 4).awaited() == ["30"]
    with pytest.raises(ValueError, match=r"job 31 \(locost-pretrain\) has already ended badly"):
        job_of(settings, "pretrain", 31, "TIMEOUT").awaited()


def test_the_record_is_on_disk_after_each_job_and_reads_back(tmp_path):
    settings = settings_of(tmp_path)
    stages = {stage.name: stage for stage in graph(settings)}
    record = Record(settings)
    record.add(stages["preprocess-c4"], 12)
    record.add(stages["pretrain"], 13)
    record.add(stages["pretrain"], 14)
    again = Record(settings)
    assert [entry.job for entry in again.of(stages["pretrain"])] == [13, 14]
    again.adopt(list(stages.values()), {15: job_of(settings, "pretrain", 15, "PENDING")})
    assert [entry.job for entry in Record(settings).of(stages["pretrain"])] == [13, 14, 15]

    logs = settings.runs / "logs"
    logs.mkdir()
    for name in ("preprocess-c4-12_1", "preprocess-c4-12_2", "pretrain-13"):
        (logs / f"locost-{name}.log").touch()
    (array,), (plain, *_) = again.of(stages["preprocess-c4"]), again.of(stages["pretrain"])
    assert [path.name for path in log_files(array, 2)] == ["locost-preprocess-c4-12_2.log"]
    assert len(log_files(array, None)) == 2
    assert log_files(plain, None) == [logs / "locost-pretrain-13.log"]

    (settings.runs / "chain.json").write_text(json.dumps({"pretrain": [{"job": 1}]}))
    with pytest.raises(ValueError, match=r"chain\.json is damaged"):
        Record(settings)


def test_the_cost_is_that_of_every_limit_to_its_end(tmp_path):
    settings = settings_of(tmp_path, GPU_HOUR_COST="2", SETS="arxiv")
    lines = list(overview(settings, list(planned(settings).values())))
    # Nodes: 4 x 10 + 10 + 8 x 4 x 20 + 3 x 10; GPUs: 4 of each node from the pre-training on.
    assert "at most 720.0 node-hours, 2,680.0 GPU-hours; 5,360.00 EUR at 2 EUR a GPU-hour" in lines
    rows = {row.split()[0]: " ".join(row.split()) for row in lines[0].splitlines()}
    assert rows["pretrain"] == (
        "pretrain preprocess-c4 4 x 4 20:00:00 8 links 640.0 2,560.0 to be submitted"
    )
    mark(settings, "preprocess-c4", "preprocess-arxiv", "pretrain")
    queued = planned(settings, job_of(settings, "finetune-arxiv", 40, "PENDING"))
    lines = list(overview(settings, list(queued.values())))
    assert any("30.0 node-hours, 120.0 GPU-hours" in line for line in lines)
    rows = {row.split()[0]: " ".join(row.split()) for row in lines[0].splitlines()}
    assert rows["finetune-arxiv"].endswith("in the queue as job 40")
    assert rows["pretrain"].endswith("0.0 0.0 complete")
    free = overview(settings_of(tmp_path), list(queued.values()))
    assert any("cost not known: set GPU_HOUR_COST" in line for line in free)
