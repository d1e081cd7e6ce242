"""LOCOST: configuration, model, and its folder on disk. Imports torch and safetensors only."""

from .config import LocostConfig
from .folder import check_model, load_model, save_model
from .locost import Locost, LocostOutput, ssm_parameter_names

__all__ = [
    "Locost",
    "LocostConfig",
    "LocostOutput",
    "check_model",
    "load_model",
    "save_model",
    "ssm_parameter_names",
]
