"""The one typed configuration of a training run.

A recipe (YAML) fills these dataclasses, the command line overrides single fields
(`--train.max_steps 100`), and the run folder keeps the result (`config.yaml`).
"""

from pipeline.config.fields import DataConfig, RunConfig, TrainConfig, seconds
from pipeline.config.parsing import DEFAULT_RECIPE, Check, build_parser, parse

__all__ = [
    "DEFAULT_RECIPE", "Check", "DataConfig", "RunConfig", "TrainConfig", "build_parser", "parse",
    "seconds",
]  # fmt: skip
