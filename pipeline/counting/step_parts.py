"""To which part of a model an operator belongs.

In the forward pass by the functions that call it, innermost first: files of pipeline/model, and
classes and functions in them. In the backward pass by the part of the forward operator that made
the executed node of the graph: both have the node's sequence number.
"""

import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pipeline.common.paths import ROOT

MODEL = ROOT / "pipeline" / "model"
EMBEDDING_FILE = sys.modules[torch.nn.Embedding.__module__].__file__
ENGINE = "_engine_run_backward"
"""torch's function that runs a backward pass."""
ENCODER, DECODER = "encoder: ", "decoder: "
NORMS, FEED_FORWARD = "norms and residuals", "feed-forward"
PROJECTIONS = "encoder: projections and gate"
CONVOLUTION, KERNEL = "encoder: convolution", "encoder: kernel build"
SELF_ATTENTION, CROSS_ATTENTION = "decoder: self-attention", "decoder: cross-attention"
HEAD, CHOICE, EMBEDDING = "head and loss", "choice of tokens", "embedding"
OPTIMIZER, OTHER = "optimizer", "other"
PARTS = (
    EMBEDDING, ENCODER + NORMS, PROJECTIONS, KERNEL, CONVOLUTION, ENCODER + FEED_FORWARD,
    DECODER + NORMS, SELF_ATTENTION, CROSS_ATTENTION, DECODER + FEED_FORWARD, HEAD, CHOICE,
    OPTIMIZER, OTHER,
)  # fmt: skip
"""In the order of the table."""
BY_FILE = {
    "encoder.py": ENCODER + NORMS,
    "decoder.py": DECODER + NORMS,
    "ssm.py": CONVOLUTION,
    "long_conv.py": CONVOLUTION,
    "kernel_build.py": KERNEL,
    "vandermonde.py": KERNEL,
    "kept_kernels.py": KERNEL,
    "self_attention.py": SELF_ATTENTION,
    "packed_self_attention.py": SELF_ATTENTION,
    "cross_attention.py": CROSS_ATTENTION,
    "locost.py": HEAD,
    "generation.py": CHOICE,
    "decoding_steps.py": CHOICE,
    "static_decoding.py": CHOICE,
}
BY_NAME = {
    ("layers.py", "RMSNorm"): NORMS,
    ("layers.py", "GatedFeedForward"): FEED_FORWARD,
    ("ssm.py", "keys"): PROJECTIONS,
    ("ssm.py", "gate"): PROJECTIONS,
    ("attention.py", "RelativeBias"): SELF_ATTENTION,
    ("attention.py", "rotation"): SELF_ATTENTION,
}
"""By file, and function or class; norms and feed-forward are of the side that calls them."""
NAMED = {file for file, _ in BY_NAME}


class Parts:
    """Finds the part of each operator of a step, in the order in which they are executed."""

    def __init__(self, default: str = OTHER) -> None:
        """`default`: of operators that are not called by the model."""
        self.default = default
        self.nodes: dict[int, str] = {}
        """By sequence number of the node that a forward operator makes."""
        self.last = default

    def of_current(self) -> str:
        """The part of the operator that is being executed."""
        self.last = self._by_callers(sys._getframe(1))
        self.nodes.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.last)
        return self.last

    def _by_callers(self, frame: FrameType | None) -> str:
        found = None
        while frame is not None:
            if frame.f_code.co_name == ENGINE:  # what is found inside is a custom function's
                return self._by_node()
            name = _part(frame)
            if found is None:
                found = name
            elif name and name.startswith((ENCODER, DECODER)):  # found is of either side
                return name[: len(ENCODER)] + found
            if found and found not in (NORMS, FEED_FORWARD):
                return found
            frame = frame.f_back
        return self.default

    def _by_node(self) -> str:
        """The part of the executed node; none is where the engine adds gradients up: the last."""
        node: Any = torch._C._current_autograd_node()
        return self.last if node is None else self.nodes.get(node._sequence_nr(), self.last)


def _part(frame: FrameType) -> str | None:
    """The part that a caller stands for, if any; NORMS and FEED_FORWARD without their side."""
    code = frame.f_code
    file = _model_file(code.co_filename)
    if file is None:
        is_embedding = code.co_name == "forward" and code.co_filename == EMBEDDING_FILE
        return EMBEDDING if is_embedding else None
    names = [code.co_name]
    if file in NAMED and code.co_varnames[:1] == ("self",):
        names.append(type(frame.f_locals["self"]).__name__)
    named = (BY_NAME.get((file, name)) for name in names)
    return next((part for part in named if part), BY_FILE.get(file))


@cache
def _model_file(path: str) -> str | None:
    """The name of a file of pipeline/model."""
    return Path(path).name if Path(path).parent == MODEL else None
