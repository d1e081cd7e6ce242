"""The GPU check's candidates: of each choice that the model makes at run time, all are timed and
checked, also those that would not be chosen.

A candidate that raises is dropped by the trainer, which falls back to the reference; so it fails
the check only where it is the reference. One that computes something else fails it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.benchmarking.gpu_correctness import gradients, largest_error
from pipeline.benchmarking.gpu_rows import Row, base, first_line
from pipeline.distributed.device import median_seconds, timed
from pipeline.model import Locost
from pipeline.model.attention_backends import Backend
from pipeline.model.attention_choice import TOLERANCES, obstacles, self_test, trial

OF_MODEL = 0.2
"""Tolerance of gradients through two blocks of each side in bf16; of one layer it is 5e-2."""


class Candidate(NamedTuple):
    """One way to compute something."""

    name: str
    obstacle: str | None
    """Why it cannot run on this device."""
    run: Callable[[], Row]
    """Its time `ms`, its `error` and the `tolerance` of that."""


Choice = Callable[[torch.device, bool], list[Candidate]]
"""The candidates on a device, the reference first; at toy sizes where the flag is set."""


def rows(choice: str, device: torch.device, small: bool) -> Iterator[Row]:
    """A row for each candidate of a choice."""
    for number, candidate in enumerate(CANDIDATES[choice](device, small)):
        yield {"choice": choice, "candidate": candidate.name, **_result(candidate, number == 0)}


def _result(candidate: Candidate, is_reference: bool) -> Row:
    if candidate.obstacle:
        return {"not run": candidate.obstacle}
    try:
        found = candidate.run()
    except Exception as error:  # whatever a kernel on unknown hardware raises
        fallback = None if is_reference else "the trainer falls back to the reference"
        return {"raised": first_line(error), "passed": not is_reference, "so": fallback}
    return {**found, "passed": found["error"] <= found["tolerance"]}


def of_tensors(
    name: str,
    compute: Callable[[], dict[str, Tensor]],
    exact: Callable[[], dict[str, Tensor]],
    device: torch.device,
    tolerance: float,
    obstacle: str | None = None,
) -> Candidate:
    """A candidate whose results, by name, are compared with exact ones, relative to the largest.

    `first_s` is its first call, with what it compiles, plans or tunes.
    """

    def run() -> Row:
        first = timed(compute, device).wall_s
        _, error = largest_error(compute(), exact())
        milliseconds = 1000 * median_seconds(compute, device)
        return {"ms": milliseconds, "first_s": first, "error": error, "tolerance": tolerance}

    return Candidate(name, obstacle, run)


def attention(device: torch.device, small: bool) -> list[Candidate]:
    """Backends of the decoder's attention: cross-attention over masked sources, forward and
    backward, each pass with lengths that no earlier one had."""
    on_gpu, config = device.type == "cuda", base(small)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    missing = obstacles(device, dtype, config.dropout)

    def run(backend: Backend) -> Row:
        error = self_test(backend, device, dtype, config.head_dim)
        milliseconds = trial(backend, device, dtype, config)
        return {"ms": milliseconds, "error": error, "tolerance": TOLERANCES[dtype]}

    def by_cudnn() -> Row:
        with cudnn_attention():
            return run("sdpa")

    backends: tuple[Backend, ...] = ("sdpa", "varlen", "flash")
    listed = [Candidate(one, missing.get(one), partial(run, one)) for one in backends]
    needs = None if on_gpu else "cuDNN computes attention on a GPU only"
    return [*listed, Candidate("sdpa by cuDNN", needs, by_cudnn)]


@contextmanager
def cudnn_attention() -> Iterator[None]:
    """torch's attention may take cuDNN's kernels inside, which the trainer forbids."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def blocks(device: torch.device, small: bool) -> list[Candidate]:
    """Blocks as they are and compiled: two of each side, forward and backward, bf16 autocast."""
    shape = (2, 48, 9) if small else (4, 4096, 512)
    config = replace(base(small), encoder_layers=2, decoder_layers=2)
    torch.manual_seed(0)
    plain, compiled, exact = (Locost(config).to(device) for _ in range(3))
    for copy in (compiled, exact):
        copy.load_state_dict(plain.state_dict())
    exact.double()
    # On a CPU without the code generator, which takes minutes there.
    compiled.compile_blocks(
        dynamic=False, backend="inductor" if device.type == "cuda" else "aot_eager"
    )
    ids, labels = (
        torch.randint(3, config.vocab_size, (shape[0], length), device=device)
        for length in shape[1:]
    )

    def step(model: Locost, bf16: bool = True) -> dict[str, Tensor]:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = model(ids, None, labels, loss_only=True, check=False).loss
        loss.backward()
        return gradients(model)

    candidate = partial(
        of_tensors, exact=partial(step, exact, bf16=False), device=device, tolerance=OF_MODEL
    )
    return [
        candidate("as they are", partial(step, plain)),
        candidate("compiled", partial(step, compiled)),
    ]


CANDIDATES: dict[str, Choice] = {"attention": attention, "blocks": blocks}
"""By choice: a new one, or a new candidate of one, is a line here or in its function."""
