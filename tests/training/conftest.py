"""Fixtures of the trainer's tests."""

import pytest
from fault_runs import fault_runs
from trainer_runs import fork_server, trainer, unbroken

from pipeline.config import DataConfig, RunConfig, TrainConfig

__all__ = ["fault_runs", "fork_server", "trainer", "unbroken"]


@pytest.fixture
def run_config() -> RunConfig:
    """A run's configuration, nothing of it but defaults."""
    return RunConfig(
        output="run", deepspeed_config="", init_from=None, model={},
        data=DataConfig(train="shards"), train=TrainConfig(),
    )  # fmt: skip
