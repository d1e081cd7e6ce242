"""The GPU check's timing sections, after warm-up: milliseconds, rates and peak memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.benchmarking import micro_batches
from pipeline.benchmarking.gpu_candidates import CUDNN, as_in_training, cudnn_attention
from pipeline.benchmarking.gpu_rows import Row, base
from pipeline.common.gpus import peak_flops
from pipeline.common.units import GIB
from pipeline.distributed.device import (
    Peak,
    best,
    device_name,
    is_out_of_memory,
    median_seconds,
    timed,
)
from pipeline.model import Locost
from pipeline.model.flops import encoder_flops, training_flops
from pipeline.model.layers import GatedFeedForward
from pipeline.model.ssm import BidirectionalSSM
from pipeline.model.static_decoding import Mode, choose_steps, decoding_mode, gave_up

# The paper's samples/s (its GPUs are V100s and A100s).
PAPER = {4096: {"training": 3.03, "inference": 3.03}, 16384: {"training": 0.81, "inference": 1.69}}
DECODE_STEPS, SUMMARY_TOKENS = 32, 512
KERNELS_SHOWN = 12


def layer(device: torch.device, small: bool) -> Iterator[Row]:
    """The state-space layer with its projections, and the gated feed-forward; bf16 autocast."""
    config = base(small)
    torch.manual_seed(0)
    modules = {
        "ssm": BidirectionalSSM(config).to(device),
        "ff": GatedFeedForward(config).to(device),
    }
    for length in (64, 97) if small else (4096, 16384, 65536):
        for batch in (1, 2) if small else (1, 2, 4, 8):
            x = torch.randn(batch, length, config.d_model, device=device, requires_grad=True)
            row: Row = {"layer": "bf16", "L": length, "B": batch}
            for name, module in modules.items():
                forward, training = _passes(module, x, device)
                row[f"{name}_fwd_ms"] = 1000 * median_seconds(forward, device)
                peak = Peak(device)
                row[f"{name}_fwd_bwd_ms"] = 1000 * median_seconds(training, device)
                row[f"{name}_peak_gib"] = peak.bytes() / GIB
                module.zero_grad()
                x.grad = None
            yield row


def training(device: torch.device, small: bool) -> Iterator[Row]:
    """A training step of the whole model (forward and backward), bf16 autocast."""
    config, rate = base(small), peak_flops(device_name(device))
    torch.manual_seed(0)
    model = Locost(config).to(device)
    chosen = as_in_training(model, device)
    for length, target, batches in _sizes(
        small, ((4096, 512, (16, 8, 4)), (16384, 512, (4, 2, 1)))
    ):
        for batch in batches:
            step = _step(model, batch, length, target, device)
            try:
                peak = Peak(device)
                seconds = median_seconds(step, device, 2.0)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                model.zero_grad()
                yield {"training": "bf16", "L": length, "B": batch, "cross": "out of memory"}
                continue
            parts = training_flops(config, batch, length, target)
            row = {
                "training": "bf16", "L": length, "T": target, "B": batch, "ms": 1000 * seconds,
                "tokens_per_s": batch * length / seconds, "samples_per_s": batch / seconds,
                "paper_samples_per_s": PAPER.get(length, {}).get("training"),
                "peak_gib": peak.total_bytes() / GIB, "tflop": sum(parts.values()) / 1e12,
                **chosen,
            }  # fmt: skip
            if rate:
                row["mfu"] = sum(parts.values()) / seconds / rate
            model.zero_grad()
            yield row
            break  # the largest batch that fits


def real_micro_batches(device: torch.device, small: bool) -> Iterator[Row]:
    """Recorded micro-batches of C4, masked, forward and backward as the trainer runs them, bf16.

    `first_pass_ms` is a pass over shapes that the process has not seen: a library that plans each
    shape shows there. torch's attention by cuDNN, which the trainer forbids, comes last, on copies
    one token shorter.
    """
    config, rate = base(small), peak_flops(device_name(device))
    torch.manual_seed(0)
    model = Locost(config).to(device)
    chosen = as_in_training(model, device)
    lists = {number: [one.shrunk(16) if small else one for one in shapes]
             for number, shapes in micro_batches.read().items()}  # fmt: skip
    _pass(model, [lists[1][0].shrunk(2).inputs(config.vocab_size, device)])  # loads the kernels
    passes = [(number, shapes, chosen["attention"]) for number, shapes in lists.items()]
    if device.type == "cuda":
        passes.append((1, [one.shortened() for one in lists[1]], CUDNN))
    for accumulation, shapes, attention in passes:
        if attention == CUDNN:
            model.decoder.attention_backend = "sdpa"
        inputs = [one.inputs(config.vocab_size, device) for one in shapes]
        peak = Peak(device)
        with cudnn_attention() if attention == CUDNN else nullcontext():
            first = timed(partial(_pass, model, inputs), device).wall_s
            seconds = best(partial(_pass, model, inputs), device, 2, 10.0).wall_s
        samples = sum(one.samples for one in shapes)
        tokens = sum(int(one.mask.sum()) for one in inputs)
        source_fill, target_fill = micro_batches.fill(shapes)
        flops = sum(
            sum(training_flops(config, one.samples, one.source, one.target).values())
            for one in shapes
        )
        row: Row = {
            "micro-batches": f"C4, batch 256, 16 ranks, accumulation {accumulation}",
            **chosen, "attention": attention, "count": len(shapes),
            "shapes": len({(one.samples, one.source, one.target) for one in shapes}),
            "samples": samples, "first_pass_ms": 1000 * first, "pass_ms": 1000 * seconds,
            "ms": 1000 * seconds / len(shapes), "samples_per_s": samples / seconds,
            "tokens_per_s": tokens / seconds, "source_fill": source_fill,
            "target_fill": target_fill, "peak_gib": peak.total_bytes() / GIB,
            "tflop": flops / 1e12,
        }  # fmt: skip
        yield row | ({"mfu": flops / seconds / rate} if rate else {})


def _pass(model: Locost, inputs: Sequence[micro_batches.Inputs]) -> None:
    """Forward and backward of each micro-batch; gradients add up."""
    model.zero_grad()
    for one in inputs:
        with torch.autocast(one.ids.device.type, torch.bfloat16):
            output = model(*one, loss_reduction="sum", loss_only=True, check=False)
        output.loss.backward()


def inference(device: torch.device, small: bool) -> Iterator[Row]:
    """Encoding, then greedy steps; samples/s of 512-token summaries follow from both."""
    config = base(small)
    torch.manual_seed(0)
    model = Locost(config).to(device).eval()
    for length, _, batches in _sizes(small, ((4096, 0, (16,)), (16384, 0, (4,)))):
        batch = batches[0]
        ids = torch.randint(3, config.vocab_size, (batch, length), device=device)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            peak = Peak(device)
            encode = median_seconds(partial(model.encode, ids), device, 1.0)
            states = model.encode(ids)
            plain = _decoding_seconds(model, states, ids[:, :1], "plain")
            step = _decoding_seconds(model, states, ids[:, :1], "auto")  # a graph, on a GPU
        yield {
            "inference": "bf16", "L": length, "B": batch, "encode_ms": 1000 * encode,
            "plain_step_ms": 1000 * plain, "step_ms": 1000 * step,
            "tokens_per_s": batch * length / encode,
            "decoded_per_s": batch / step,
            "samples_per_s": batch / (encode + SUMMARY_TOKENS * step),
            "paper_samples_per_s": PAPER.get(length, {}).get("inference"),
            "peak_gib": peak.total_bytes() / GIB,
        }  # fmt: skip


def _decoding_seconds(
    model: Locost, states: Tensor, start: Tensor, mode: Literal["plain", "auto"]
) -> float:
    """Seconds of a greedy step from encoder states (B, L, H) and start tokens (B, 1)."""
    longest = 4 * DECODE_STEPS
    state = model.decoder.start(states, None, longest)
    with decoding_mode(mode):
        steps = choose_steps(model, state, start, longest)

    def run() -> None:
        tokens = start
        for _ in range(DECODE_STEPS):
            tokens = steps.logits(tokens).argmax(-1, keepdim=True)

    timed(run, start.device)
    return timed(run, start.device).wall_s / DECODE_STEPS


def decoding(device: torch.device, small: bool) -> Iterator[Row]:
    """A decoding step step by step and as a CUDA graph (on a CPU its fixed steps), bf16.

    A step is the difference of two calls of `generate`, divided by their difference in tokens: the
    choice of tokens and beams is in it, encoding and the graph's capture are not.
    """
    config, length = base(small), 64 if small else 4096
    torch.manual_seed(0)
    model = Locost(config).to(device).eval()
    modes: dict[str, Mode] = {
        "plain_step_ms": "plain",
        "graph_step_ms": "graph" if device.type == "cuda" else "fixed",
    }
    for batch in (1, 8):
        ids = torch.randint(3, config.vocab_size, (batch, length), device=device)
        for beams in (1, 4):
            row: Row = {"decoding": "bf16", "L": length, "B": batch, "beams": beams}
            for name, mode in modes.items():
                with decoding_mode(mode), torch.autocast(device.type, torch.bfloat16):
                    row[name] = 1000 * _generated_seconds(model, ids, beams, small)
            row["graph"] = not gave_up(model)
            yield row


def _generated_seconds(model: Locost, ids: Tensor, beams: int, small: bool) -> float:
    """Seconds of a step of `generate`, every row as long as allowed."""
    few, many = (4, 12) if small else (16, 80)

    def seconds(tokens: int) -> float:
        run = partial(
            model.generate, ids, max_new_tokens=tokens, min_new_tokens=tokens, num_beams=beams
        )
        return best(run, ids.device, 2, 4.0).wall_s

    seconds(few)  # loads the kernels
    return (seconds(many) - seconds(few)) / (many - few)


def book(device: torch.device, small: bool) -> Iterator[Row]:
    """The encoder alone over one input of 600,000 tokens, bf16 autocast."""
    config = base(small)
    torch.manual_seed(0)
    model = Locost(config).to(device).eval()
    length = 3000 if small else 600_000
    ids = torch.randint(3, config.vocab_size, (1, length), device=device)
    peak = Peak(device)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        seconds = min(timed(lambda: model.encode(ids), device).wall_s for _ in range(2))
    yield {
        "encoder": "bf16", "L": length, "B": 1, "ms": 1000 * seconds,
        "tokens_per_s": length / seconds, "peak_over_model_gib": peak.bytes() / GIB,
        "tflop": sum(encoder_flops(config, 1, length).values()) / 1e12,
    }  # fmt: skip


def profile(device: torch.device, small: bool) -> Iterator[Row]:
    """The operators and kernels that take most of a training step's device time."""
    config = base(small)
    torch.manual_seed(0)
    model = Locost(config).to(device)
    chosen = as_in_training(model, device)
    batch, length = (2, 64) if small else (8, 4096)
    step = _step(model, batch, length, 16 if small else 512, device)
    wall = median_seconds(step, device, 0.5)
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if on_gpu else []
    with torch.profiler.profile(activities=activities) as profiler:
        timed(step, device)

    def microseconds(event: Any) -> float:
        return event.self_device_time_total if on_gpu else event.self_cpu_time_total

    events = profiler.key_averages()
    kernels = [event for event in events if event.device_type != torch.autograd.DeviceType.CPU]
    operators = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]
    busy = sum(map(microseconds, kernels if on_gpu else operators))
    yield {
        "profile": "training step", "L": length, "B": batch, "ms": 1000 * wall,
        "busy_ms": busy / 1000, "launches": sum(event.count for event in kernels),
        **chosen,
    }  # fmt: skip
    for kind, group in (("operator", operators), ("kernel", kernels)):
        for event in sorted(group, key=microseconds, reverse=True)[:KERNELS_SHOWN]:
            yield {
                kind: event.key[:56], "ms": microseconds(event) / 1000, "calls": event.count,
                "share": microseconds(event) / busy,
            }  # fmt: skip


def _sizes(small: bool, full: tuple[tuple[int, int, tuple[int, ...]], ...]) -> Any:
    """Rows of (source length, target length, batch sizes to try, largest first)."""
    return ((64, 16, (2, 1)),) if small else full


def _passes(
    module: nn.Module, x: Tensor, device: torch.device
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward alone, and forward with backward, under bf16 autocast."""

    @torch.no_grad()
    def forward() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            module(x)

    def training() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            output = module(x)
        output.sum().backward()

    return forward, training


def _step(
    model: Locost, batch: int, length: int, target: int, device: torch.device
) -> Callable[[], None]:
    """Forward and backward of one batch, without optimizer."""
    ids = torch.randint(3, model.config.vocab_size, (batch, length), device=device)
    labels = torch.randint(3, model.config.vocab_size, (batch, target), device=device)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(ids, None, labels, loss_only=True, check=False).loss
        loss.backward()

    return step
