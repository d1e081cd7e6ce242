"""The GPU check's candidates: of each choice that the model makes at run time, all are timed and
checked, also those that would not be chosen.

A candidate that raises, or is too far from float64, is dropped by the trainer, which falls back to
the reference; so it fails the check only where it is the reference.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, cast, get_args

import torch

from pipeline.benchmarking.gpu_rows import Row, base, first_line
from pipeline.model import Locost, attention_choice, block_choice, convolution_choice
from pipeline.model.attention_backends import Backend
from pipeline.model.block_choice import Blocks
from pipeline.model.choosing import fastest
from pipeline.model.kernel_build import KernelBuild, triton_obstacle
from pipeline.model.ssm import Transform, ssm_layers

CUDNN = "sdpa by cuDNN"
"""Timed, but never chosen: not deterministic, and it plans every shape."""


class Candidate(NamedTuple):
    """One way to compute something."""

    name: str
    obstacle: str | None
    """Why it cannot run on this device."""
    run: Callable[[], Row]
    """Its time `ms`, its `error` and the `tolerance` of that; raises as its test does."""


Choice = Callable[[torch.device, bool], list[Candidate]]
"""The candidates on a device, the reference first; at toy sizes where the flag is set."""


_times: dict[tuple[str, torch.device], dict[str, float]] = {}
"""Milliseconds of the candidates that were measured, by choice and device."""


def rows(choice: str, device: torch.device, small: bool) -> Iterator[Row]:
    """A row for each candidate of a choice."""
    times = _times[choice, device] = {}
    for number, candidate in enumerate(CANDIDATES[choice](device, small)):
        found = _result(candidate, number == 0)
        if "ms" in found and found["passed"]:
            times[candidate.name] = found["ms"]
        yield {"choice": choice, "candidate": candidate.name, **found}


def as_in_training(model: Locost, device: torch.device) -> dict[str, str]:
    """Set a model to the candidates that the trainer would choose by the times of `rows`, and name
    them; to the references where there are none."""
    attention = fastest_of("attention", "sdpa", device)
    build, transform = (
        fastest_of("kernel build", "torch", device), fastest_of("FFT", "rows", device)
    )  # fmt: skip
    compiled = fastest_of("blocks", "eager", device)
    model.decoder.attention_backend = cast(Backend, attention)
    for layer in ssm_layers(model):
        layer.kernel_build = cast(KernelBuild, build)
        layer.transform = cast(Transform, transform)
    if compiled == "compiled":
        model.compile_blocks(dynamic=True)
    return {"attention": attention, "kernel_build": build, "fft": transform, "blocks": compiled}


def fastest_of(choice: str, reference: str, device: torch.device) -> str:
    """The candidate that would be chosen, of those that may be."""
    times = {n: ms for n, ms in _times.get((choice, device), {}).items() if n != CUDNN}
    return fastest(times, reference) if reference in times else reference


def _result(candidate: Candidate, is_reference: bool) -> Row:
    if candidate.obstacle:
        return {"not run": candidate.obstacle}
    try:
        found = candidate.run()
    except Exception as error:  # whatever a kernel on unknown hardware raises
        fallback = None if is_reference else "the trainer falls back to the reference"
        return {"raised": first_line(error), "passed": not is_reference, "so": fallback}
    return {**found, "passed": found["error"] <= found["tolerance"]}


def of(
    name: str,
    test: Callable[[], float],
    trial: Callable[[], float],
    tolerance: float,
    obstacle: str | None = None,
) -> Candidate:
    """A candidate by the test and the trial of the model's own choice.

    The test gives the error, and raises where that is too large. `took_s`: both, with what they
    compile, plan and tune.
    """

    def run() -> Row:
        began = time.monotonic()
        found: Row = {"error": test(), "tolerance": tolerance, "ms": trial()}
        return {**found, "took_s": time.monotonic() - began}

    return Candidate(name, obstacle, run)


def attention(device: torch.device, small: bool) -> list[Candidate]:
    """Backends of the decoder's attention: cross-attention over masked sources, forward and
    backward, each pass with lengths that no earlier one had."""
    on_gpu, config = device.type == "cuda", base(small)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    missing = attention_choice.obstacles(device, dtype, config.dropout)
    tolerance = attention_choice.TOLERANCES[dtype]

    def test(backend: Backend) -> float:
        return attention_choice.tested(backend, device, dtype, config.head_dim)

    def trial(backend: Backend) -> float:
        return attention_choice.trial(backend, device, dtype, config)

    def by_cudnn(measure: Callable[[Backend], float]) -> float:
        with cudnn_attention():
            return measure("sdpa")

    backends: tuple[Backend, ...] = get_args(Backend)
    needs = None if on_gpu else "cuDNN computes attention on a GPU only"
    return reference_first("sdpa", [
        *(of(one, partial(test, one), partial(trial, one), tolerance, missing.get(one))
          for one in backends),
        of(CUDNN, partial(by_cudnn, test), partial(by_cudnn, trial), tolerance, needs),
    ])  # fmt: skip


@contextmanager
def cudnn_attention() -> Iterator[None]:
    """torch's attention may take cuDNN's kernels inside, which the trainer forbids."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def kernel_builds(device: torch.device, small: bool) -> list[Candidate]:
    """Computing the kernels of a layer: its convolutions, forward and backward, fp32."""
    config, missing = base(small), {"triton": triton_obstacle(device, torch.float32)}
    builds: tuple[KernelBuild, ...] = get_args(KernelBuild)
    return reference_first("torch", [
        of(
            build, partial(convolution_choice.tested, config, device, build),
            partial(convolution_choice.trial, config, device, build),
            convolution_choice.TOLERANCE, missing.get(build),
        )
        for build in builds
    ])  # fmt: skip


def transforms(device: torch.device, small: bool) -> list[Candidate]:
    """Convolving rows one by one, or two in a complex FFT: forward and backward, fp32, with kernels
    built by torch."""
    config = base(small)
    listed: tuple[Transform, ...] = get_args(Transform)
    return reference_first("rows", [
        of(
            transform, partial(convolution_choice.tested, config, device, "torch", transform),
            partial(convolution_choice.trial, config, device, "torch", transform),
            convolution_choice.TOLERANCE,
        )
        for transform in listed
    ])  # fmt: skip


def blocks(device: torch.device, small: bool) -> list[Candidate]:
    """One block of each side, as it is and compiled: forward and backward, masked, bf16."""
    model, dtype = Locost(base(small)), torch.bfloat16
    slow = None if device.type == "cuda" else "compiling takes minutes on a CPU"
    candidates: tuple[Blocks, ...] = get_args(Blocks)
    return reference_first("eager", [
        of(
            one, partial(block_choice.tested, one, model, device, dtype),
            partial(block_choice.trial, one, model, device, dtype),
            block_choice.TOLERANCES[dtype], slow if one == "compiled" else None,
        )
        for one in candidates
    ])  # fmt: skip


def reference_first(name: str, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, that of the name first."""
    return sorted(candidates, key=lambda one: one.name != name)


CANDIDATES: dict[str, Choice] = {
    "attention": attention,
    "kernel build": kernel_builds,
    "FFT": transforms,
    "blocks": blocks,
}
"""By choice: a new one, or a new candidate of one, is a line here or in its function."""
