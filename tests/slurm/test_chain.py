"""chain.sh in a real Slurm, with scripts that stand in for the stages: they sleep and mark."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.files import hold_lock

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """\
#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --time=10
#SBATCH --signal=B:USR2@60
#SBATCH --open-mode=append
cd "$LOCOST_ROOT"
if [[ ${!#} == --dry_run ]]; then
    [[ ! -e no-inputs ]] || { echo "error: C4_TRAIN: no file" >&2; exit 2; }
    exit
fi
name=${SLURM_JOB_NAME#locost-}
task=${SLURM_ARRAY_TASK_ID:-}
echo "begin $name" >> order
while [[ -e hold-$name || -e hold-$name-$task ]]; do sleep 0.1; done
if [[ -e fail-$name || -e fail-$name-$task ]]; then echo "error: told to fail"; exit 3; fi
marked() { mkdir -p "$1"; echo '{}' > "$1/$2"; }
case $name in
    preprocess-c4)
        for split in train validation; do marked "shards/c4-$split" manifest.json; done ;;
    preprocess-*)
        for split in train validation test; do marked "shards/$1-$split" manifest.json; done ;;
    pretrain)   # the third link finishes
        mkdir -p runs/pretrain; echo >> runs/pretrain/links
        [[ $(wc -l < runs/pretrain/links) -lt 3 ]] || touch runs/pretrain/FINISHED ;;
    finetune-*) marked "runs/finetune-$1" FINISHED ;;
    evaluate-*) marked "runs/evaluation-$1" results.json ;;
    report) marked runs/report report.md ;;
esac
echo "end $name" >> order
"""


class Chain:
    """A repository of stand-ins and its chain.sh."""

    def __init__(self, cluster, root: Path, **settings: str) -> None:
        self.cluster, self.root = cluster, root
        self.environment = {
            **cluster.environment,
            "LOCOST_ROOT": str(root),
            "PYTHON": sys.executable,
            "SETS": "arxiv pubmed",
            "PREPROCESS_JOBS": "2",
            "PRETRAIN_HOURS": "0.4",  # 24 minutes in jobs of 10, told to stop 1 before: 3 links
            "REQUEUE": "0",
            **settings,
        }
        (root / "slurm").mkdir(parents=True)
        for kind in ("preprocess", "pretrain", "finetune", "evaluate", "report"):
            (root / "slurm" / f"{kind}.sh").write_text(STAND_IN)

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
        """Run it; the ids of the jobs it submitted, by stage."""
        done = self(**settings)
        assert done.returncode == 0, done.stderr
        return submitted(done.stdout)

    def status(self) -> tuple[int, dict[str, str], str]:
        """(exit status, each stage's line, all that was printed)."""
        done = self("status")
        assert not done.stderr
        lines = done.stdout.partition("\n\n")[0].splitlines()
        return done.returncode, {line.split()[0]: line for line in lines[1:]}, done.stdout

    def noted(self) -> dict[str, list[int]]:
        """The ids in chain.json, by stage."""
        content = json.loads((self.root / "runs" / "chain.json").read_text())
        return {name: [entry["job"] for entry in entries] for name, entries in content.items()}

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
        deadline = time.monotonic() + 30
        while line not in self.order():
            assert time.monotonic() < deadline, self.status()[2]
            time.sleep(0.1)


def submitted(text: str) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, job = line.partition(": job ")
        if job and "waited in vain" not in job:
            ids.setdefault(name, []).append(job.split(",")[0])
    return ids


@pytest.fixture
def chain(cluster, tmp_path):
    chain = Chain(cluster, tmp_path / "repository")
    yield chain
    for hold in chain.root.glob("hold-*"):
        hold.unlink()
    if (chain.root / "runs" / "chain.json").exists():
        jobs = [str(job) for ids in chain.noted().values() for job in ids]
        cluster.run("scancel", *jobs, check=False)


def test_the_whole_graph_runs_in_order_and_again_only_what_is_missing(chain):
    plan = chain("--dry_run")
    assert plan.returncode == 0 and not plan.stderr
    rows = {line.split()[0]: line for line in plan.stdout.splitlines() if line}
    assert "array of 2" in rows["preprocess-c4"] and "3 links" in rows["pretrain"]
    assert plan.stdout.count("to be submitted") == 9
    assert not (chain.root / "runs").exists() and not chain.order()

    hold = chain.hold("pretrain")
    jobs = chain.submit()
    assert {name: len(ids) for name, ids in jobs.items() if len(ids) > 1} == {"pretrain": 3}
    assert {name: list(map(str, ids)) for name, ids in chain.noted().items()} == jobs

    chain.wait_for("begin pretrain")
    status, rows, _ = chain.status()
    assert status == 0
    assert " 1 running " in rows["pretrain"] and "2 pending (Dependency)" in rows["pretrain"]
    assert rows["pretrain"].split()[1:4] == jobs["pretrain"]
    assert rows["preprocess-c4"].endswith("complete")
    assert "pending (Dependency)" in rows["report"]
    assert chain.submit() == {}  # all is under way
    assert "in the queue as job" in chain("--dry_run").stdout

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
    assert (chain.root / "runs" / "logs" / f"locost-pretrain-{jobs['pretrain'][2]}.log").is_file()

    (chain.root / "runs" / "evaluation-arxiv" / "results.json").unlink()
    again = chain.submit()
    assert list(again) == ["evaluate-arxiv", "report"]
    chain.cluster.wait(again["report"][0], "COMPLETED")
    assert chain.status()[0] == 0


def test_a_failing_link_cancels_all_that_would_follow_and_is_shown(chain):
    fail = chain.root / "fail-pretrain"
    fail.touch()
    jobs = chain.submit()
    chain.cluster.wait(jobs["report"][0], "CANCELLED")
    states = {
        job: chain.cluster.job(job)["JobState"]
        for name in ("pretrain", "finetune-arxiv", "finetune-pubmed", "evaluate-arxiv")
        for job in jobs[name]
    }
    assert list(states.values()) == ["FAILED", *["CANCELLED"] * 5]
    status, rows, text = chain.status()
    assert status == 1
    assert rows["pretrain"].split()[1:3] == [jobs["pretrain"][0], "failed"]
    assert rows["report"].endswith("cancelled (what it needs failed)")
    log = chain.root / "runs" / "logs" / f"locost-pretrain-{jobs['pretrain'][0]}.log"
    assert text.endswith(f"{log} ends:\n    error: told to fail\n")

    fail.unlink()
    again = chain.submit()
    assert set(jobs) - set(again) == {"preprocess-c4", "preprocess-arxiv", "preprocess-pubmed"}
    chain.cluster.wait(again["report"][0], "COMPLETED")
    assert chain.status()[0] == 0


def test_nothing_is_submitted_twice_however_chain_sh_was_stopped(chain, tmp_path):
    """Jobs that were submitted but not noted, a lost record, two chain.sh at once."""
    chain.hold("preprocess-c4")
    sbatch = shutil.which("sbatch", path=chain.environment["PATH"])
    shim = tmp_path / "bin" / "sbatch"
    shim.parent.mkdir()
    shim.write_text(f"""\
#!/usr/bin/env bash
{sbatch} "$@" > {tmp_path}/printed || exit
case "$*" in
    *--parsable*locost-finetune-arxiv*) ;;
    *--parsable*locost-finetune-pubmed*) kill -KILL $PPID; read < {tmp_path}/go ;;
    *) cat {tmp_path}/printed ;;
esac
""")
    shim.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    path = f"{shim.parent}:{chain.environment['PATH']}"
    silent = chain(PATH=path)
    assert silent.returncode == 2 and silent.stderr.count("\n") == 1
    assert silent.stderr.startswith("error: finetune-arxiv: sbatch printed no job id, but: nothing")
    assert "6 jobs were submitted before and are noted in" in silent.stderr
    before = chain.noted()
    assert "finetune-arxiv" not in before

    killed = subprocess.Popen(**chain.command(PATH=path))
    assert killed.wait() == -signal.SIGKILL
    again = chain()  # its sbatch is still at work
    assert again.returncode == 2 and again.stderr.startswith("error: another chain.sh")
    (tmp_path / "go").write_text("\n")
    killed.communicate()
    while hold_lock(chain.root / "runs" / ".chain.lock") is None:  # until that sbatch has ended
        time.sleep(0.05)
    assert len(chain.noted()["finetune-arxiv"]) == 1
    assert list(chain.submit()) == ["evaluate-arxiv", "evaluate-pubmed", "report"]
    noted = chain.noted()
    assert len(noted["finetune-pubmed"]) == 1 and before.items() <= noted.items()
    dependency = chain.cluster.job(str(noted["evaluate-pubmed"][0]))["Dependency"]
    assert dependency.startswith(f"afterok:{noted['finetune-pubmed'][0]}(")

    (chain.root / "runs" / "chain.json").unlink()
    both = [subprocess.Popen(**chain.command()) for _ in range(2)]
    for process in both:
        output, error = process.communicate()
        assert submitted(output) == {}
        assert process.returncode == 0 or error.startswith("error: another chain.sh")
    assert any(process.returncode == 0 for process in both)
    assert chain.noted() == noted


def test_a_hopeless_chain_is_refused_before_anything_is_queued(chain):
    (chain.root / "no-inputs").touch()
    for arguments in (["--dry_run"], []):
        refused = chain(*arguments)
        assert refused.returncode == 2
        assert refused.stderr.splitlines() == [
            f"error: preprocess-{name}: C4_TRAIN: no file" for name in ("c4", "arxiv", "pubmed")
        ]
    (chain.root / "no-inputs").unlink()
    refused = chain(EVALUATE_FLAGS="--partition=none")
    assert refused.returncode == 2
    assert "error: evaluate-arxiv: sbatch: invalid partition specified: none" in refused.stderr
    refused = chain(PRETRAIN_FLAGS="--time=1")
    assert refused.returncode == 2 and "leaves no time to work" in refused.stderr
    assert chain("status", "--dry_run").returncode == 2
    assert not (chain.root / "runs" / "chain.json").exists()
    far = chain("--dry_run", FINETUNE_FLAGS="--nodes=9")  # also said while nodes are down
    assert far.returncode == 0 and far.stderr.startswith("note: finetune-arxiv: sbatch: ")


def test_a_job_that_the_controller_forgot_is_judged_by_its_markers_and_never_waited_for(chain):
    forgotten = {"log": str(chain.root / "runs/logs/x-%j.log"), "submitted": "a month ago"}
    chain.write("runs/chain.json", {
        "pretrain": [{"job": 4_000_000, **forgotten}],
        "finetune-arxiv": [{"job": 4_000_001, **forgotten}],
    })  # fmt: skip
    for name in ("c4-train", "c4-validation"):
        chain.write(f"shards/{name}/manifest.json", {})
    chain.write("runs/finetune-arxiv/FINISHED", {})
    chain.hold("pretrain")
    status, rows, _ = chain.status()
    assert status == 1
    assert rows["pretrain"].endswith("not known any more (gone from the queue, not complete)")
    assert rows["finetune-arxiv"].endswith("complete")

    jobs = chain.submit()
    assert "finetune-arxiv" not in jobs
    assert "Dependency" in chain.cluster.job(jobs["finetune-pubmed"][0])["Reason"]
    assert chain.cluster.wait(jobs["evaluate-arxiv"][0]) == "COMPLETED"  # waits for nothing
    noted = [job for ids in chain.noted().values() for job in ids if job < 4_000_000]
    fields = [chain.cluster.job(str(job))["Dependency"] for job in noted]
    assert not any("400000" in field for field in fields)


def test_the_living_tasks_of_an_array_stand_in_for_a_lost_one(chain):
    (chain.root / "fail-preprocess-c4-2").touch()
    hold = chain.hold("preprocess-c4-1")
    first = chain.submit()
    array = first["preprocess-c4"][0]
    chain.cluster.wait(f"{array}_2", "FAILED")
    # Slurm ends what waits for an array only after all its tasks.
    assert chain.cluster.job(first["report"][0])["JobState"] == "PENDING"
    status, rows, text = chain.status()
    assert status == 1
    assert "1 running" in rows["preprocess-c4"] and "1 failed" in rows["preprocess-c4"]
    assert f"locost-preprocess-c4-{array}_2.log ends:\n    error: told to fail" in text

    again = chain.submit()
    assert "preprocess-c4" not in again and len(again["pretrain"]) == 3
    assert chain.cluster.wait(first["report"][0]) == "CANCELLED"
    assert chain.submit() == {}
    dependency = chain.cluster.job(again["pretrain"][0])["Dependency"]
    assert dependency.startswith(f"afterok:{array}_1")
    hold.unlink()
    chain.cluster.wait(again["report"][0], "COMPLETED")


def test_a_job_that_waits_for_one_submitted_anew_is_submitted_anew(chain):
    """The accident: a pre-training cancelled by hand where Slurm keeps what waits for it."""
    holds = [chain.hold("preprocess-c4"), chain.hold("preprocess-arxiv")]
    jobs = chain.submit()
    chain.cluster.run("scontrol", "update", f"jobid={jobs['finetune-arxiv'][0]}",
                      f"dependency=afterok:{jobs['preprocess-arxiv'][0]}")  # fmt: skip
    chain.cluster.run("scancel", *jobs["pretrain"])
    chain.cluster.wait(jobs["finetune-pubmed"][0], "CANCELLED")
    again = chain()
    assert f"finetune-arxiv: job {jobs['finetune-arxiv'][0]} waited in vain" in again.stdout
    assert chain.cluster.wait(jobs["finetune-arxiv"][0]) == "CANCELLED"
    new = submitted(again.stdout)
    assert {"pretrain", "finetune-arxiv", "report"} <= set(new)
    for hold in holds:
        hold.unlink()
    chain.cluster.wait(new["report"][0], "COMPLETED")
