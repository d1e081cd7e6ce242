"""Fixtures of the trainer's tests."""

from fault_runs import fault_runs
from trainer_runs import trainer, unbroken

__all__ = ["fault_runs", "trainer", "unbroken"]
