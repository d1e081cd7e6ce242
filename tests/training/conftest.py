"""Fixtures of the trainer's tests."""

from trainer_runs import trainer, unbroken

__all__ = ["trainer", "unbroken"]
