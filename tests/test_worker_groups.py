"""The groups of tests that share a worker."""

import subprocess
import sys
from pathlib import Path

import pytest
from worker_groups import RANKS, group

from pipeline.common.paths import ROOT

FILE = "import pytest\n@pytest.mark.parametrize('i', range(8))\ndef test_one(i):\n    pass\n"


def test_a_file_is_a_group_and_all_slurm_tests_are_one():
    assert group("tests/data/test_order.py::test_a[x::y]") == "tests/data/test_order.py"
    assert group("tests/slurm_chain/test_a.py::test_a") == "tests/slurm_chain/test_a.py"
    assert group("tests/slurm/test_chain.py::test_a") == "tests/slurm"
    assert group("tests/slurm/test_cluster.py::test_a[0]") == "tests/slurm"


def test_trainings_on_several_processes_follow_each_other():
    for file in RANKS:
        assert group(f"{file}::test_a") == "ranks"
        assert (ROOT / file).exists()


@pytest.mark.slow
def test_a_group_runs_on_one_worker(tmp_path):
    """Two files of tests/slurm and a third one, by the project's own conftest."""
    here = Path(__file__).parent
    for name in ("slurm/test_a.py", "slurm/test_b.py", "test_c.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILE)
    for name in ("conftest.py", "worker_groups.py"):
        (tmp_path / "tests" / name).write_text((here / name).read_text())
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {here.parent}\ntestpaths = tests\n"
    )
    command = "-m pytest -p no:cacheprovider -n 2 --dist loadfile -v".split()
    finished = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    workers: dict[str, set[str]] = {}
    for line in finished.stdout.splitlines():
        worker, _, rest = line.partition("] ")
        if "PASSED" in rest:
            test = rest.split("PASSED ")[1]
            workers.setdefault(group(test), set()).add(worker)
    assert {name: len(found) for name, found in workers.items()} == {
        "tests/slurm": 1, "tests/test_c.py": 1,
    }  # fmt: skip
    assert workers["tests/slurm"] != workers["tests/test_c.py"]
