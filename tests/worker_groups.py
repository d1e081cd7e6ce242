"""Which tests share a worker of pytest-xdist: `pytest -n 2 --dist loadfile`."""

from xdist.scheduler import LoadFileScheduling

LONGEST = (
    "tests/slurm",
    "ranks",
    "tests/stages/test_demo.py",
    "tests/test_readme.py",
    "tests/test_gpu_check.py",
    "tests/estimation/test_reading.py",
    "tests/test_wheel.py",
)
"""Groups that take the longest: first, so that no worker is left with one at the end."""
RANKS = {
    "tests/baselines/test_baseline_training.py",
    "tests/distributed/test_shared_reading.py",
    "tests/distributed/test_shared_sources.py",
    "tests/training/test_checkpoint_faults.py",
    "tests/training/test_health.py",
    "tests/training/test_recipes.py",
    "tests/training/test_resume.py",
    "tests/training/test_rewind.py",
    "tests/training/test_sequence_parallel.py",
    "tests/training/test_signals.py",
    "tests/training/test_stages.py",
    "tests/training/test_trainer.py",
    "tests/training/test_validation_stop.py",
}
"""Files whose processes wait for each other many times a step: several at once on few cores take
three to seven times as long as one after the other."""


def group(test: str) -> str:
    """The group of a test's id: its file, so that fixtures are made once, all of RANKS, or all of
    tests/slurm, which share one cluster and mostly wait while another worker computes."""
    file = test.partition("::")[0]
    if file.startswith("tests/slurm/"):
        return "tests/slurm"
    return "ranks" if file in RANKS else file


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
