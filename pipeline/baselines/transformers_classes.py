"""The classes of each system, from transformers or, for LSG, from lsg-converter."""

import warnings
from types import ModuleType
from typing import Any

from pipeline.baselines.systems import SYSTEMS, Name

LEGACY = "transformers 4.37.2 and lsg-converter 0.1.9"


def classes(name: Name) -> tuple[Any, Any]:
    """The configuration class and the network class of a system.

    Raises ValueError if the packages for them are not installed.
    """
    if SYSTEMS[name].legacy:
        lsg = _lsg()
        return lsg.LSGBartConfig, lsg.LSGBartForConditionalGeneration
    package = transformers()
    settings = package.CONFIG_MAPPING[SYSTEMS[name].model_type]
    return settings, package.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[settings]


def transformers() -> ModuleType:
    """The package, with its logging off. Raises ValueError if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "baselines need transformers: `pip install -r requirements-extras.txt`"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _lsg() -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations
            from lsg_converter.bart import modeling_lsg_bart
    except Exception:  # other versions of transformers break it in various ways
        raise ValueError(
            f"lsg needs {LEGACY}, which this Python lacks: run `make legacy` once, then run this "
            "with .venv-legacy/bin/python"
        ) from None
    # Its encoder uses reentrant gradient checkpointing, which torch would warn about.
    warnings.filterwarnings("ignore", "torch.utils.checkpoint: the use_reentrant parameter")
    return modeling_lsg_bart
