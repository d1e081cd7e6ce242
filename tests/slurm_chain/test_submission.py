"""Settings, the graph of stages, which are complete or stale, and which jobs are missing."""

import os
from pathlib import Path

import pytest

from pipeline.slurm_chain.chain_settings import ChainSettings, read_settings
from pipeline.slurm_chain.slurm_commands import SlurmJob, parse_id, parse_queue
from pipeline.slurm_chain.stage_graph import completion_times, stage_graph, stale_stages
from pipeline.slurm_chain.submission import plan_stages

ROOT = Path(__file__).resolve().parents[2]


FEWEST = {"EXTRAPOLATE": " ", "SYSTEMS_ARGUMENTS": " ", "KERNELS_ARGUMENTS": " "}
"""Settings that leave out what the paper adds to a fine-tuning and an evaluation of each set."""


def settings_of(**changes: str) -> ChainSettings:
    """Those of slurm/settings.sh, with changes in the environment."""
    environment = {"PATH": os.environ["PATH"], "SETS": "arxiv pubmed", **FEWEST, **changes}
    return read_settings(ROOT, environment)


@pytest.fixture
def settings(tmp_path: Path) -> ChainSettings:
    return settings_of(SHARDS=f"{tmp_path}/shards", RUNS=f"{tmp_path}/runs")


def mark(settings: ChainSettings, *names: str) -> None:
    """Write the markers of stages, each newer than those before it."""
    for number, stage in enumerate(stage_graph(settings)):
        for marker in stage.markers if stage.name in names else ():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text("{}")
            os.utime(marker, (1e9 + number, 1e9 + number))


def job_of(settings: ChainSettings, name: str, number: int, state: str) -> SlurmJob:
    stage = next(stage for stage in stage_graph(settings) if stage.name == name)
    comment = stage.comment(settings)
    return SlurmJob(number, state, name=stage.job_name(settings), comment=comment)


def planned(settings: ChainSettings, *jobs: SlurmJob):
    """The plans by stage, with these jobs in the queue."""
    plans = plan_stages(settings, stage_graph(settings), list(jobs))
    return {plan.stage.name: plan for plan in plans}


def stale(settings: ChainSettings) -> dict[str, str]:
    stages = stage_graph(settings)
    return stale_stages(stages, completion_times(stages))


def test_each_stage_comes_after_those_it_needs(settings):
    stages = stage_graph(settings)
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
    c4, arxiv = stages[:2]
    assert (c4.parallel, c4.arguments, c4.job_name(settings)) == (
        4,
        ("pretrain",),
        "locost-preprocess-c4",
    )
    assert (arxiv.parallel, arxiv.arguments) == (1, ("arxiv",))
    assert c4.log(settings, "7") == settings.runs / "logs" / "locost-preprocess-c4-7.log"
    assert stages[-1].comment(settings) == f"locost:{settings.runs}:report"
    whole = {stage.name: stage for stage in stage_graph(settings_of(SETS="booksum_book_whole"))}
    assert whole["finetune-booksum_book_whole"].arguments == ("booksum_book_whole",)


@pytest.mark.parametrize(
    "name, value",
    [
        ("SETS", "arxiv arxiv"),
        ("SETS", "../arxiv"),
        ("SETS", "c4"),
        ("JOB_PREFIX", "a b"),
        ("PREPROCESS_JOBS", "0"),
        ("FINETUNE_NODES", "two"),
        ("GPUS_PER_NODE", "0"),
        ("LINKS", "-1"),
        ("REQUEUE", "yes"),
        ("CPU", "true"),
        ("FINETUNE_FLAGS", "--comment='open"),
    ],
)
def test_a_wrong_setting_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} is '{value}', expected"):
        settings_of(**{name: value})


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"PRETRAIN_FLAGS": "--job-name=x"},
            "JOB_FLAGS or PRETRAIN_FLAGS has --job-name=x.*set JOB_PREFIX",
        ),
        ({"REPORT_FLAGS": "-Jx"}, "has -Jx, which chain.sh sets itself"),
        ({"JOB_FLAGS": "--comment x"}, "has --comment, which"),
        ({"PREPROCESS_FLAGS": "--array=1-4"}, "has --array=1-4"),
        ({"FINETUNE_FLAGS": "-N 2"}, "leave it out and set FINETUNE_NODES"),
        ({"EVALUATE_FLAGS": "--ntasks-per-node=8"}, "leave it out and set GPUS_PER_NODE"),
    ],
)
def test_options_that_the_chain_sets_itself_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        settings_of(**changes)


def test_flags_come_from_the_settings_in_their_order():
    flags = settings_of(
        JOB_FLAGS="--account=a --mem=9G", PRETRAIN_FLAGS="--time=1-0", PRETRAIN_NODES="2",
        GPUS_PER_NODE="8", GPU_FLAGS="--gres=gpu:h100:8",
    ).flags  # fmt: skip
    assert flags["report"] == ("--account=a", "--mem=9G", "--gpus-per-node=0")
    assert flags["pretrain"] == (
        "--account=a", "--mem=9G", "--time=1-0", "--gpus-per-node=0", "--gres=gpu:h100:8",
        "--nodes=2", "--ntasks-per-node=8",
    )  # fmt: skip
    cpu = settings_of(CPU="1", GPUS_PER_NODE="1").flags["evaluate"]
    assert cpu == ("--gpus-per-node=0", "--nodes=1", "--ntasks-per-node=1")
    assert settings_of(GPU_FLAGS=" ").flags["evaluate"][0] == "--gpus-per-node=0"


def test_a_settings_file_is_read_and_the_environment_overrides_it(tmp_path):
    own = tmp_path / "own settings.sh"
    text = (ROOT / "slurm" / "settings.sh").read_text()
    own.write_text(
        text.replace("RUNS:=runs", "RUNS:=/scratch/runs").replace(
            "JOB_PREFIX:=locost", "JOB_PREFIX:=x"
        )
    )
    found = settings_of(LOCOST_SETTINGS=str(own), JOB_PREFIX="y", ARXIV_FINETUNE_ARGUMENTS="--a b")
    assert (found.runs, found.name) == (Path("/scratch/runs"), "y")
    assert found.overridden == (
        "ARXIV_FINETUNE_ARGUMENTS", "EXTRAPOLATE", "JOB_PREFIX", "KERNELS_ARGUMENTS", "SETS",
        "SYSTEMS_ARGUMENTS",
    )  # fmt: skip
    own.write_text("fi\n")
    with pytest.raises(
        ValueError, match=r"own settings\.sh cannot be read by bash: .*syntax error"
    ):
        settings_of(LOCOST_SETTINGS=str(own))


def test_a_stage_is_complete_when_all_its_markers_exist_and_are_readable(settings):
    stages = stage_graph(settings)
    assert completion_times(stages) == {}
    mark(settings, "preprocess-arxiv", "preprocess-c4", "pretrain", "evaluate-arxiv")
    (settings.shards / "c4-validation" / "manifest.json").unlink()
    (settings.runs / "evaluation-arxiv" / "results.json").write_text('{"torn')
    assert completion_times(stages).keys() == {"preprocess-arxiv", "pretrain"}


def test_a_stage_is_stale_when_one_that_it_needs_was_completed_later(settings):
    names = [stage.name for stage in stage_graph(settings)]
    mark(settings, *names)
    assert stale(settings) == {}
    os.utime(settings.runs / "pretrain" / "FINISHED", (2e9, 2e9))  # made again
    assert stale(settings) == {
        "finetune-arxiv": "older than pretrain",
        "finetune-pubmed": "older than pretrain",
        "evaluate-arxiv": "finetune-arxiv is stale",
        "evaluate-pubmed": "finetune-pubmed is stale",
        "report": "evaluate-arxiv is stale",
    }
    plans = planned(settings)
    assert [name for name, plan in plans.items() if plan.submit] == ["report"]


def test_the_report_alone_is_made_again_when_something_is_missing(settings):
    mark(settings, *(stage.name for stage in stage_graph(settings)))
    (settings.runs / "evaluation-pubmed" / "results.json").unlink()
    assert stale(settings) == {"report": "without evaluate-pubmed"}
    plans = planned(settings)
    assert [name for name, plan in plans.items() if plan.submit] == ["evaluate-pubmed", "report"]


def test_stages_that_can_resume_have_links_where_jobs_are_not_requeued(settings, tmp_path):
    linked = settings_of(REQUEUE="0", LINKS="3")
    assert {stage.links(linked) for stage in stage_graph(linked) if not stage.summary} == {3}
    assert stage_graph(linked)[-1].links(linked) == 1
    assert {stage.links(settings) for stage in stage_graph(settings)} == {1}


def test_complete_and_queued_stages_are_kept(settings):
    mark(settings, "preprocess-c4")
    plans = planned(
        settings,
        job_of(settings, "pretrain", 7, "RUNNING"),
        job_of(settings, "pretrain", 8, "PENDING"),
        job_of(settings, "finetune-arxiv", 9, "PENDING"),
        job_of(settings, "finetune-pubmed", 10, "CANCELLED"),
        job_of(settings, "evaluate-arxiv", 11, "RUNNING"),
        SlurmJob(12, "RUNNING", name="locost-evaluate-pubmed", comment="locost:/other:evaluate"),
    )
    assert plans["preprocess-c4"].complete
    assert [job.id for job in plans["pretrain"].queued] == [7, 8]
    assert [name for name, plan in plans.items() if plan.submit] == [
        "preprocess-arxiv", "preprocess-pubmed", "finetune-arxiv", "finetune-pubmed",
        "evaluate-arxiv", "evaluate-pubmed", "report",
    ]  # fmt: skip
    # It waits for shards that no job makes; one that runs may refuse, so another comes after it.
    assert [job.id for job in plans["finetune-arxiv"].replaced] == [9]
    assert [job.id for job in plans["evaluate-arxiv"].queued] == [11]


def test_where_a_site_rewrites_comments_jobs_are_known_by_their_logs(settings):
    job = SlurmJob(5, "RUNNING", name="locost-pretrain", comment="project 17")
    assert planned(settings, job)["pretrain"].queued == ()  # another chain's, or the user's own
    log = settings.runs / "logs" / "locost-pretrain-5.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert planned(settings, job)["pretrain"].queued == (job,)
    stranger = SlurmJob(5, "RUNNING", name="interactive")  # some clusters reuse ids
    assert planned(settings, stranger)["pretrain"].queued == ()


def test_an_ambiguous_job_id_is_refused():
    assert parse_id("12\n") == 12
    assert parse_id("12;cluster\n") == 12
    assert parse_id("Welcome to the cluster\n12\nbudget: 7 h\n") == 12
    for text in ("", "Submitted batch job", "12\n13\n", "12 13", "-12", "12_1"):
        with pytest.raises(ValueError, match="sbatch printed no job id"):
            parse_id(text)


def test_the_queue_is_read_as_squeue_prints_it():
    jobs = parse_queue(
        "CLUSTER: box\n"
        "37|PENDING|Dependency|N/A||locost-pretrain|locost:/a|b:pretrain\n"
        "36|RUNNING|None|2026-11-28T10:50:48|n1|locost-pretrain|locost:/runs:pretrain\n"
        "35|CANCELLED by 1000|None|2026-11-28T10:50:48|n1|locost-pretrain|(null)\n"
        "33_1|COMPLETED|None|2026-11-28T10:50:46|n[1-2]|an array|(null)\n"
        "38+0|RUNNING|None|N/A||other|(null)\n"
    )
    assert [job.id for job in jobs] == [35, 36, 37]
    assert jobs[2].comment == "locost:/a|b:pretrain"
    assert [(job.alive, job.pending) for job in jobs] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    assert jobs[1].start is not None and jobs[2].start is None
