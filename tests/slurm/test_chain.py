"""chain.sh in a real Slurm, with stand-ins for the job scripts, which only write the markers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pipeline.common.files import hold_lock
from pipeline.slurm_chain.slurm_commands import SlurmJob, cancel

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """\
#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=10
#SBATCH --open-mode=append
cd "$LOCOST_ROOT"
kind=$(sed -n 's/^# kind: //p' "$0") what=${1:-}
case $kind in
    preprocess) what=${what/#pretrain/c4} name=preprocess-$what
        markers=(shards/$what-{train,validation,test}/manifest.json) needs=() ;;
    pretrain) name=pretrain markers=(runs/pretrain/FINISHED)
        needs=(shards/c4-train/manifest.json) ;;
    finetune) name=finetune-$what markers=(runs/finetune-$what/FINISHED)
        needs=(runs/pretrain/FINISHED shards/$what-train/manifest.json) ;;
    evaluate) name=evaluate-$what markers=(runs/evaluation-$what/results.json)
        needs=(runs/finetune-$what/FINISHED) ;;
    report) name=report markers=(runs/report/report.md) needs=() ;;
esac
if [[ ${!#} == --* ]]; then
    echo "$name ${!#}" >> checks
    [[ ! -e refuse-$name ]] || { echo "error: no inputs" >&2; exit 2; }
    exit
fi
[[ $kind == report || ! -e ${markers[0]} ]] || exit 0
for need in "${needs[@]}"; do
    [[ -e $need ]] || { echo "error: $need is missing"; exit 2; }
done
echo "begin $name" >> order
while [[ -e hold-$name || -e hold-$name-$SLURM_JOB_ID ]]; do sleep 0.1; done
if [[ -e fail-$name ]] && rm fail-$name; then echo "error: fails as requested"; exit 3; fi
if [[ $name == pretrain ]]; then    # the second link finishes
    mkdir -p runs/pretrain; echo >> runs/pretrain/links
    (($(wc -l < runs/pretrain/links) > 1)) || exit 0
fi
for marker in "${markers[@]}"; do mkdir -p "$(dirname "$marker")"; echo '{}' > "$marker"; done
echo "end $name" >> order
"""


class Chain:
    """A repository of stand-in scripts, and chain.sh on it."""

    def __init__(self, cluster, root: Path, **settings: str) -> None:
        self.cluster, self.root = cluster, root
        self.environment = {
            **cluster.environment,
            "LOCOST_ROOT": str(root),
            "PYTHON": sys.executable,
            "SETS": "arxiv pubmed",
            "SHARDS": "shards",
            "RUNS": "runs",
            "PREPROCESS_JOBS": "2",
            "REQUEUE": "0",
            "LINKS": "2",
            **dict.fromkeys(("EXTRAPOLATE", "SYSTEMS_ARGUMENTS", "KERNELS_ARGUMENTS"), " "),
            **settings,
        }
        (root / "slurm").mkdir(parents=True)
        shutil.copy(ROOT / "slurm" / "settings.sh", root / "slurm")
        for kind in ("preprocess", "pretrain", "finetune", "evaluate", "report"):
            (root / "slurm" / f"{kind}.sh").write_text(STAND_IN + f"# kind: {kind}\n")

    def command(self, *arguments: str, **settings: str) -> dict:
        """Arguments of subprocess for a chain.sh, started from another folder."""
        return dict(  # noqa: C408  (names of subprocess's own)
            args=["bash", str(ROOT / "slurm" / "chain.sh"), *arguments],
            env={**self.environment, **settings}, cwd=self.root.parent, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(**self.command(*arguments, **settings))

    def submit(self, **settings: str) -> dict[str, list[str]]:
        """Run it; returns the ids of the submitted jobs, by stage."""
        done = self(**settings)
        assert done.returncode == 0, done.stderr
        return submitted(done.stdout)

    def status(self) -> tuple[int, dict[str, str], str]:
        """(exit status, each stage's row, the whole output)."""
        done = self("status")
        assert not done.stderr
        lines = done.stdout.partition("\n\n")[0].splitlines()
        return done.returncode, {line.split()[0]: line for line in lines[1:]}, done.stdout

    def write(self, name: str, content: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def hold(self, name: str) -> Path:
        """Keep a stage from ending until the returned file is deleted."""
        path = self.root / f"hold-{name}"
        path.touch()
        return path

    def order(self) -> list[str]:
        path = self.root / "order"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 300
        while line not in self.order():
            assert time.monotonic() < deadline, self.status()[2]
            time.sleep(0.1)


def submitted(text: str) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, job = line.partition(": job ")
        if job and not job.endswith("cancelled"):
            ids.setdefault(name, []).append(job.split(",")[0])
    return ids


@pytest.fixture
def chain(cluster, tmp_path):
    chain = Chain(cluster, tmp_path / "repository")
    yield chain
    for hold in chain.root.glob("hold-*"):
        hold.unlink()
    chain("cancel")


def test_the_graph_runs_in_order_and_a_repeated_call_submits_only_missing_jobs(chain):
    plan = chain("--dry_run")
    assert plan.returncode == 0 and not plan.stderr
    rows = {line.split()[0]: line for line in plan.stdout.splitlines() if line}
    assert "2 at once, 2 links" in rows["preprocess-c4"] and "2 links" in rows["pretrain"]
    assert plan.stdout.count("to submit") == 9
    assert "processors on nodes n" in rows["pretrain"]
    assert not (chain.root / "runs").exists() and not chain.order()

    hold = chain.hold("pretrain")
    jobs = chain.submit()
    assert {name: len(ids) for name, ids in jobs.items()} == {
        "preprocess-c4": 4, "preprocess-arxiv": 2, "preprocess-pubmed": 2, "pretrain": 2,
        "finetune-arxiv": 2, "finetune-pubmed": 2, "evaluate-arxiv": 2, "evaluate-pubmed": 2,
        "report": 1,
    }  # fmt: skip
    chain.wait_for("begin pretrain")
    status, rows, _ = chain.status()
    assert status == 0
    assert " 1 running " in rows["pretrain"] and "1 pending (Dependency)" in rows["pretrain"]
    assert rows["pretrain"].split()[1:3] == jobs["pretrain"]
    assert rows["preprocess-c4"].endswith("complete")
    assert "pending (Dependency)" in rows["report"]
    assert chain.submit() == {}  # all jobs are in the queue
    again = chain("--dry_run")
    assert "in the queue as job" in again.stdout
    assert "LINKS, PREPROCESS_JOBS, PYTHON, REQUEUE, RUNS, SETS, SHARDS, SYSTEMS" in again.stderr
    assert "do not reach the 11 jobs in the queue" in again.stderr

    hold.unlink()
    chain.cluster.wait(jobs["report"][0], "COMPLETED")
    lines = chain.order()
    for name, needs in {
        "pretrain": ["preprocess-c4"],
        "finetune-arxiv": ["pretrain", "preprocess-arxiv"],
        "evaluate-pubmed": ["finetune-pubmed"],
        "report": ["evaluate-arxiv", "evaluate-pubmed"],
    }.items():
        ends = [i for i, line in enumerate(lines) if line in {f"end {need}" for need in needs}]
        assert max(ends) < lines.index(f"begin {name}"), lines
    status, rows, _ = chain.status()
    assert status == 0 and all(row.endswith("complete") for row in rows.values())
    assert (chain.root / "runs" / "logs" / f"locost-pretrain-{jobs['pretrain'][1]}.log").is_file()

    (chain.root / "runs" / "evaluation-arxiv" / "results.json").unlink()
    again = chain.submit()
    assert list(again) == ["evaluate-arxiv", "report"]
    chain.cluster.wait(again["report"][0], "COMPLETED")
    assert chain.status()[0] == 0


def test_behind_a_failed_stage_each_job_refuses_and_the_report_comes(chain):
    chain.environment["LINKS"] = "1"
    (chain.root / "runs" / "pretrain").mkdir(parents=True)
    (chain.root / "runs" / "pretrain" / "links").write_text("\n")
    (chain.root / "fail-pretrain").touch()
    jobs = chain.submit()
    chain.cluster.wait(jobs["report"][0], "COMPLETED")
    names = ("pretrain", "finetune-arxiv", "finetune-pubmed", "evaluate-arxiv")
    states = [chain.cluster.job(jobs[name][0])["JobState"] for name in names]
    assert states == ["FAILED"] * 4
    assert "begin finetune-arxiv" not in chain.order()
    status, rows, text = chain.status()
    assert status == 1
    assert rows["pretrain"].split()[1:3] == [jobs["pretrain"][0], "failed"]
    assert rows["report"].endswith("stale: without evaluate-arxiv")
    logs = chain.root / "runs" / "logs"
    for name, said in {
        "pretrain": "fails as requested",
        "evaluate-pubmed": "runs/finetune-pubmed/FINISHED is missing",
    }.items():
        log = logs / f"locost-{name}-{jobs[name][0]}.log"
        assert f"{log} ends:\n    error: {said}" in text

    again = chain.submit()
    assert set(jobs) - set(again) == {"preprocess-c4", "preprocess-arxiv", "preprocess-pubmed"}
    chain.cluster.wait(again["report"][0], "COMPLETED")
    status, rows, _ = chain.status()
    assert status == 0 and rows["report"].endswith("complete")


def test_one_of_parallel_jobs_may_fail_where_the_others_complete_the_stage(chain):
    hold = chain.hold("preprocess-c4")
    jobs = chain.submit()
    chain.cluster.run("scancel", jobs["preprocess-c4"][0])
    hold.unlink()
    chain.cluster.wait(jobs["report"][0], "COMPLETED")
    assert chain.status()[0] == 0


def test_no_job_is_submitted_twice_however_chain_sh_was_stopped(chain, tmp_path):
    """Jobs that were submitted but not recorded, two chain.sh at once."""
    chain.environment["LINKS"] = "1"
    chain.hold("preprocess-c4")
    sbatch = shutil.which("sbatch", path=chain.environment["PATH"])
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    shim.write_text(f"""\
#!/usr/bin/env bash
{sbatch} "$@" > {tmp_path}/printed || exit
case "$*" in
    *locost-finetune-arxiv*--parsable*) ;;
    *locost-finetune-pubmed*--parsable*) kill -KILL $PPID; read < {tmp_path}/go ;;
    *) cat {tmp_path}/printed ;;
esac
""")
    shim.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    path = f"{shim.parent}:{chain.environment['PATH']}"
    silent = chain(PATH=path)
    assert silent.returncode == 2 and silent.stderr.count("\n") == 1
    assert silent.stderr.startswith("error: finetune-arxiv: sbatch printed no job id, but: nothing")
    assert "5 jobs were submitted before it" in silent.stderr

    killed = subprocess.Popen(**chain.command(PATH=path))
    assert killed.wait() == -signal.SIGKILL
    again = chain()  # its sbatch is still at work
    assert again.returncode == 2 and again.stderr.startswith("error: another chain.sh")
    (tmp_path / "go").write_text("\n")
    killed.communicate()
    while hold_lock(chain.root / "runs" / ".chain.lock") is None:  # until that sbatch has ended
        time.sleep(0.05)
    jobs = chain.submit()
    assert list(jobs) == ["evaluate-arxiv", "evaluate-pubmed", "report"]
    both = [subprocess.Popen(**chain.command()) for _ in range(2)]
    for process in both:
        output, error = process.communicate()
        assert submitted(output) == {}
        assert process.returncode == 0 or error.startswith("error: another chain.sh")
    assert any(process.returncode == 0 for process in both)
    queued = chain.cluster.run("squeue", "--noheader", "--format=%j").stdout.split()
    assert Counter(queued) == {**dict.fromkeys(queued, 1), "locost-preprocess-c4": 2}


def test_a_chain_that_cannot_run_is_refused_before_any_submission(chain):
    for name in ("preprocess-c4", "finetune-arxiv", "evaluate-pubmed"):
        (chain.root / f"refuse-{name}").touch()
    for arguments in (["--dry_run"], []):
        refused = chain(*arguments)
        assert refused.returncode == 2
        assert refused.stderr.splitlines() == [
            f"error: {name}: no inputs" for name in
            ("preprocess-c4", "finetune-arxiv", "evaluate-pubmed")
        ]  # fmt: skip
    checks = set((chain.root / "checks").read_text().splitlines())
    assert {"preprocess-c4 --dry_run", "report --check_arguments"} < checks  # what each can check
    assert {"pretrain --check_arguments", "finetune-pubmed --check_arguments"} < checks
    for refusal in chain.root.glob("refuse-*"):
        refusal.unlink()
    refused = chain(EVALUATE_FLAGS="--partition=none")
    assert refused.returncode == 2
    assert "error: evaluate-arxiv: sbatch: invalid partition specified: none" in refused.stderr
    assert chain(PRETRAIN_FLAGS="--comment=mine").returncode == 2
    assert chain("status", "--dry_run").returncode == 2
    assert not (chain.root / "runs" / "logs").exists()
    far = chain("--dry_run", FINETUNE_NODES="9")  # also printed while nodes are down
    assert far.returncode == 0 and far.stderr.startswith("note: finetune-arxiv: sbatch: ")


def test_a_job_that_waits_for_an_ended_one_is_submitted_again(chain):
    """The user cancelled the pre-training, and shards that the next stage needs are being made."""
    chain.environment["LINKS"] = "1"
    holds = [chain.hold("preprocess-c4"), chain.hold("preprocess-arxiv")]
    jobs = chain.submit()
    chain.cluster.run("scancel", *jobs["pretrain"])
    chain.cluster.wait(jobs["finetune-pubmed"][0], "FAILED")  # refused: no pre-training
    again = chain()
    old = jobs["finetune-arxiv"][0]
    assert f"finetune-arxiv: {old} is submitted again, cancelled" in again.stdout
    assert chain.cluster.wait(old) == "CANCELLED"
    new = submitted(again.stdout)
    assert set(new) == set(jobs) - {"preprocess-c4", "preprocess-arxiv", "preprocess-pubmed"}
    for hold in holds:
        hold.unlink()
    chain.cluster.wait(new["report"][0], "COMPLETED")
    chain.submit()  # the pre-training's second link


def test_the_whole_chain_is_cancelled(chain):
    chain.hold("preprocess-c4")
    jobs = chain.submit()
    other = chain.cluster.submit("--wrap=sleep 60", "--output=/dev/null")
    cancelled = chain("cancel")
    assert cancelled.returncode == 0 and "evaluate-arxiv: job " in cancelled.stdout
    for ids in jobs.values():
        for job in ids:
            assert chain.cluster.wait(job) in ("CANCELLED", "COMPLETED")
    assert chain.cluster.job(other)["JobState"] in ("RUNNING", "PENDING")
    chain.cluster.run("scancel", other)
    assert "0 jobs cancelled" in chain("cancel").stdout


def test_a_controller_that_is_away_for_a_while_loses_nothing(chain):
    chain.hold("preprocess-c4")
    chain.cluster.stop_controller()
    process = subprocess.Popen(**chain.command())
    time.sleep(3)
    assert process.poll() is None  # it waits
    chain.cluster.start_controller()
    output, error = process.communicate()
    assert process.returncode == 0, error
    jobs = submitted(output)
    assert len(jobs) == 9
    queued = chain.cluster.run("squeue", "--noheader", "--format=%i").stdout.split()
    assert {job for ids in jobs.values() for job in ids} <= set(queued)


def test_a_job_that_slurm_has_forgotten_is_cancelled_already(cluster, monkeypatch):
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    cancel(SlurmJob(4_000_000, "PENDING"))
