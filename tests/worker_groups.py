"""Which tests share a worker of pytest-xdist: `pytest -n 2 --dist loadfile`."""

from xdist.scheduler import LoadFileScheduling

LONGEST = (
    "tests/slurm",
    "tests/training/test_resume.py",
    "fault_runs",
    "tests/stages/test_demo.py",
    "tests/baselines/test_baseline_training.py",
    "tests/test_wheel.py",
    "tests/test_gpu_check.py",
    "tests/training/test_stages.py",
    "tests/test_readme.py",
    "tests/training/test_checkpoint_faults.py",
    "tests/training/test_trainer.py",
    "tests/training/test_learning.py",
    "tests/training/test_sequence_parallel.py",
)
"""Groups that take a minute or more: first, so that no worker is left with one at the end."""
FAULT_RUNS = ("tests/training/test_health.py", "tests/training/test_signals.py")


def group(test: str) -> str:
    """The group of a test's id: its file, so that fixtures are made once, or all of tests/slurm.

    The Slurm tests share one cluster, and mostly wait while another worker computes; two files of
    the trainer's tests share one launch of a minute.
    """
    file = test.partition("::")[0]
    if file.startswith("tests/slurm/"):
        return "tests/slurm"
    return "fault_runs" if file in FAULT_RUNS else file


def rank(test: str) -> int:
    """The place of a test's group among those that go first; the others follow."""
    name = group(test)
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


class GroupScheduling(LoadFileScheduling):
    """Sends a group as a whole to one worker, in the order of `rank`.

    The marker `xdist_group` would do, but xdist 3.8 ignores it under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
