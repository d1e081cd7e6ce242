"""The GPU check's correctness sections: the model's parts against plain float64 references.

A check yields rows, each with an `error`, its `tolerance` and whether it `passed`. Errors are the
largest difference, relative to the largest reference value.
"""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pipeline.benchmarking import references
from pipeline.benchmarking.gpu_rows import Row, base
from pipeline.model import Locost, LocostConfig
from pipeline.model.attention import Attention
from pipeline.model.attention_backends import Backend
from pipeline.model.attention_choice import obstacles
from pipeline.model.cross_attention import whole_source
from pipeline.model.published.read import import_weights, our_name, published_config
from pipeline.model.ssm import BidirectionalSSM
from pipeline.model.static_decoding import Mode, decoding_mode, gave_up

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "locost_tiny"
LENGTHS = (1, 2, 3, 97, 4095, 4096, 4097)
# Of values and gradients; bf16 is the whole layer under autocast, with rounded weights and input.
TOLERANCES = {"fp32": (1e-5, 1e-4), "bf16": (2e-2, 5e-2)}

BACKENDS: tuple[tuple[Backend, str], ...] = (
    ("sdpa", "fp32"), ("sdpa", "bf16"), ("varlen", "bf16"), ("flash", "bf16"),
)  # fmt: skip


def layer(device: torch.device, small: bool) -> Iterator[Row]:
    """BidirectionalSSM, masked, forward and the gradient of its input and every parameter."""
    config = LocostConfig(d_model=16, state_dim=16) if small else LocostConfig(d_model=64)
    torch.manual_seed(0)
    module = BidirectionalSSM(config).to(device)
    exact = _copy(module, config).double()
    for length in LENGTHS[:5] if small else LENGTHS:
        x, weights = torch.randn(2, 2, length, config.d_model, device=device).unbind()
        ends = torch.tensor([[length], [1 + length // 2]], device=device)
        mask = (torch.arange(length, device=device) < ends).long()
        expected = _results(
            partial(references.materialised, exact, mask=mask), exact, x.double(), weights.double()
        )
        for precision in TOLERANCES:
            ours = _results(partial(module, mask=mask), module, x, weights, precision)
            yield from _compared({"check": "layer", "L": length}, precision, ours, expected)


def kernel(device: torch.device, small: bool) -> Iterator[Row]:
    """The float32 kernel against the direct sum over modes in float64, at 4,096 and 600K lags."""
    config = LocostConfig(d_model=4, state_dim=32 if small else 256)
    torch.manual_seed(0)
    module = BidirectionalSSM(config).to(device)
    for length, tolerance in ((4096, 1e-5), (20_000 if small else 600_000, 2e-5)):
        expected = references.direct_kernels(module, length)
        yield _row(
            {"check": "kernel", "L": length}, "fp32", module.kernels(length), expected, tolerance
        )


def golden(device: torch.device, small: bool) -> Iterator[Row]:
    """The published code's numbers for its tiny model, in float32 on the device."""
    numbers = {name: tensor.to(device) for name, tensor in _fixture("golden").items()}
    settings = json.loads((GOLDEN / "config.json").read_text())
    model = import_weights(published_config(settings), _fixture("model")).to(device).eval()
    ids, mask, labels = (numbers[name] for name in ("input_ids", "attention_mask", "labels"))
    output = model(ids, mask, labels)
    output.loss.backward()
    for name, ours, number in (
        ("states", output.encoder_states, numbers["f64.encoder_last_hidden_state"]),
        ("logits", output.logits, numbers["f64.logits"]),
        ("loss", output.loss, numbers["f64.loss"].squeeze()),
    ):
        yield _row({"check": f"golden {name}"}, "fp32", ours, number, 1e-4)
    expected = {our_name(name): value.to(device) for name, value in _fixture("gradients").items()}
    yield _worst({"check": "golden gradients"}, "fp32", gradients(model), expected, 1e-3)
    chosen = model.generate(ids, mask, max_new_tokens=20)
    same = torch.equal(chosen, numbers["generate_greedy_20"])
    yield {"check": "golden greedy ids", "precision": "fp32", "passed": same}


def decoding_graph(device: torch.device, small: bool) -> Iterator[Row]:
    """Tokens of fixed steps, a CUDA graph on a GPU, against plain ones, in fp32."""
    config = LocostConfig(
        d_model=64, state_dim=16, d_ff=128, encoder_layers=2, decoder_layers=2, num_heads=2,
        head_dim=32, vocab_size=500,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Locost(config).to(device).eval()
    ids = torch.randint(3, config.vocab_size, (3, 50), device=device)
    fixed: Mode = "graph" if device.type == "cuda" else "fixed"
    for strategy in ({}, {"num_beams": 4}, {"top_p": 0.9}, {"no_repeat_ngram_size": 2}):
        tokens = []
        for mode in ("plain", fixed):
            with decoding_mode(mode):
                tokens.append(model.generate(ids, max_new_tokens=40, **strategy))
        same = torch.equal(*tokens) and not gave_up(model)
        name = ", ".join(f"{k} {v}" for k, v in strategy.items()) or "greedy"
        yield {"check": "decoding graph", "strategy": name, "mode": fixed, "passed": same}


def cross_attention(device: torch.device, small: bool) -> Iterator[Row]:
    """Cross-attention over padded states, forward and every gradient."""
    config = base(small)
    target, source = (5, 70) if small else (64, 4096)
    torch.manual_seed(0)
    module = Attention(config).to(device)
    exact = _copy(module, config).double()
    states = torch.randn(2, source, config.d_model, device=device)
    x, weights = torch.randn(2, 2, target, config.d_model, device=device).unbind()
    mask = torch.ones(2, source, dtype=torch.long, device=device)
    mask[1, source // 2 :] = 0
    expected = _results(
        lambda x: references.attention(exact, x, states.double(), mask),
        exact, x.double(), weights.double(),
    )  # fmt: skip
    missing = obstacles(device, torch.bfloat16, dropout=0.0)
    for backend, precision in BACKENDS:
        labels = {"check": "cross-attention", "backend": backend}
        if obstacle := missing.get(backend):
            yield {**labels, "precision": precision, "not run": obstacle}
            continue

        def ours(x: Tensor, backend: Backend = backend) -> Tensor:
            return whole_source(states, mask, backend).attend(module, x)

        results = _results(ours, module, x, weights, precision)
        yield from _compared(labels, precision, results, expected)


def base_model_step(device: torch.device, small: bool) -> Iterator[Row]:
    """A bf16 training step of the base model has a finite loss and finite gradients."""
    config = base(small)
    torch.manual_seed(0)
    model = Locost(config).to(device)
    ids = torch.randint(3, config.vocab_size, (1, 61 if small else 4001), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(ids, None, ids[:, :33]).loss
    loss.backward()
    broken = [name for name, grad in gradients(model).items() if not grad.isfinite().all()]
    yield {
        "check": "base model gradients finite", "precision": "bf16", "loss": loss.item(),
        "passed": bool(loss.isfinite()) and not broken, "broken": ", ".join(broken) or None,
    }  # fmt: skip


def _results(
    run: Callable[[Tensor], Tensor],
    module: nn.Module,
    x: Tensor,
    weights: Tensor,
    precision: str = "fp32",
) -> dict[str, Tensor]:
    """The output of `run(x)`, and the gradients of its weighted sum, by name."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
        output = run(x)
    (output.to(weights.dtype) * weights).sum().backward()
    grads = {f"grad {name}": grad for name, grad in gradients(module).items()}
    return {"output": output.detach(), "grad input": _gradient(x), **grads}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter, by name."""
    return {name: _gradient(parameter) for name, parameter in module.named_parameters()}


def _gradient(tensor: Tensor) -> Tensor:
    """The gradient; NaN, which fails every check, where backward left none."""
    return torch.full_like(tensor, torch.nan) if tensor.grad is None else tensor.grad


def _compared(
    labels: Row, precision: str, ours: dict[str, Tensor], expected: dict[str, Tensor]
) -> Iterator[Row]:
    of_values, of_gradients = TOLERANCES[precision]
    output, expected_output = ours.pop("output"), expected["output"]
    yield _row({**labels, "of": "output"}, precision, output, expected_output, of_values)
    gradients = {name: value for name, value in expected.items() if name != "output"}
    yield _worst(labels, precision, ours, gradients, of_gradients)


def _row(labels: Row, precision: str, ours: Tensor, expected: Tensor, tolerance: float) -> Row:
    error = _error(ours, expected, expected.abs().max().item())
    result = {"error": error, "tolerance": tolerance, "passed": error <= tolerance}
    return {**labels, "precision": precision, **result}


def _worst(
    labels: Row,
    precision: str,
    ours: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float,
) -> Row:
    """The row of the gradient with the largest error."""
    name, error = largest_error(ours, expected)
    result = {"error": error, "tolerance": tolerance, "passed": error <= tolerance}
    return {**labels, "of": name, "precision": precision, **result}


def largest_error(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[str, float]:
    """The gradient with the largest error, and that error.

    A gradient that is zero in exact arithmetic (a key's bias under softmax, for example) is
    compared on the scale of the others. Raises ValueError where names or shapes differ.
    """
    if ours.keys() != expected.keys():
        raise ValueError(f"gradients of {sorted(ours)}, expected {sorted(expected)}")
    floor = 1e-6 * max(value.abs().max().item() for value in expected.values())
    errors = {
        name: _error(ours[name], value, max(floor, value.abs().max().item()))
        for name, value in expected.items()
    }
    name = max(errors, key=lambda name: (math.isnan(errors[name]), errors[name]))
    return name, errors[name]


def _error(ours: Tensor, expected: Tensor, scale: float) -> float:
    if ours.shape != expected.shape:
        raise ValueError(f"shape {tuple(ours.shape)}, expected {tuple(expected.shape)}")
    difference = (ours.detach().double() - expected.detach().double()).abs().max().item()
    return difference / scale if scale else difference


def _copy(module: Any, config: LocostConfig) -> Any:
    copy = type(module)(config).to(next(module.parameters()).device)
    copy.load_state_dict(module.state_dict())
    return copy


def _fixture(name: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{name}.safetensors")
