"""One measurement: module, input, run, and its time and memory. Each has its own process.

Shapes: B batch, L positions, H channels, N modes.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.baselines.model import Baseline
from pipeline.baselines.registry import Model
from pipeline.baselines.systems import ATTENTION, SYSTEMS, BaselineConfig
from pipeline.benchmarking import references
from pipeline.benchmarking.cheap_weights import repeated_draws
from pipeline.common.units import GIB
from pipeline.distributed.device import Peak, Times, best, medians, timed
from pipeline.model import Locost, LocostConfig
from pipeline.model.decoder import DecoderState
from pipeline.model.layers import GatedFeedForward
from pipeline.model.ssm import BidirectionalSSM

Mode = Literal["inference", "training"]
Memory = Literal["plain", "saving"]
Result = dict[str, Any]
ROUNDS, ENOUGH_SECONDS = 5, 10.0
SYSTEM_SECONDS = 5.0
"""Of a whole system a process repeats a pass until these are over, so a long one is made once."""
WARM_UP_LENGTH = 16
# Arrays of (H, N, L) complex numbers that the materialised reference holds at its peak.
MATERIALISED_ARRAYS = {"inference": 2, "training": 4}


Row = dict[str, Any]
"""A case's fields with its results."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement's settings; plain values, so that another process can read them as JSON."""

    subject: str
    """One of SUBJECTS; of a baseline also `NAME:eager`, with attention by plain products."""
    mode: Mode
    """Forward without gradients, or forward and backward."""
    length: int
    """L: positions of the input, or encoder states."""
    batch: int = 1
    """B."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16 is autocast."""
    device: str = "cpu"
    """A torch device."""
    threads: int = 1
    """CPU threads."""
    model: dict[str, Any] = field(default_factory=dict)
    """Fields of LocostConfig, or of a baseline's settings, other than the base model's values."""
    beams: int = 1
    """Rows decoded per document."""
    form: Literal["cached", "absorbed"] = "cached"
    """Decoding with cached cross-attention keys and values, or from the encoder states alone."""
    tokens: int = 32
    """Target positions, decoded or teacher-forced."""
    memory: Memory = "plain"
    """Whole systems: without memory savings, or with every one that the system has."""

    @property
    def config(self) -> LocostConfig:
        """Raises ValueError naming the invalid field."""
        try:
            return LocostConfig(**self.model)
        except TypeError as error:
            raise ValueError(f"model settings: {error}") from error


def needed_bytes(case: Case) -> int:
    """Bytes that the case is known to need above its module; 0 where unknown before trying."""
    if case.subject == "materialised":
        config = case.config
        elements = config.d_model * config.state_dim * case.length
        return MATERIALISED_ARRAYS[case.mode] * 8 * elements
    if case.subject == "decode" and case.form == "cached":
        config = case.config
        inner = config.num_heads * config.head_dim
        width = 2 if case.dtype == "bf16" else 4
        return 2 * config.decoder_layers * case.batch * case.length * inner * width
    return 0


def measure(case: Case) -> Result:
    """Best wall and CPU seconds, and peak memory above the built module and its input, in GiB."""
    device = torch.device(case.device)
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    return SUBJECTS[case.subject.partition(":")[0]](case, device)


def _ssm(case: Case, device: torch.device) -> Result:
    """The state-space layer with its projections."""
    module = BidirectionalSSM(case.config).to(device)
    return _measured(module, module, case, device)


def _materialised(case: Case, device: torch.device) -> Result:
    module = BidirectionalSSM(case.config).to(device)
    return _measured(lambda x: references.materialised(module, x), module, case, device)


def _row_by_row(case: Case, device: torch.device) -> Result:
    module = BidirectionalSSM(case.config).to(device)
    return _measured(lambda x: references.row_by_row(module, x), module, case, device)


def _feed_forward(case: Case, device: torch.device) -> Result:
    module = GatedFeedForward(case.config).to(device)
    return _measured(module, module, case, device)


def _kernel(case: Case, device: torch.device) -> Result:
    """The kernel of all channels at once; the peak is without the result."""
    module = BidirectionalSSM(case.config).to(device)
    module.kernels(WARM_UP_LENGTH)
    peak = Peak(device)
    times = best(lambda: module.kernels(case.length), device, ROUNDS, ENOUGH_SECONDS)
    result_bytes = 4 * module.C.shape[0] * case.config.d_model * case.length
    return {
        "wall_s": times.wall_s,
        "cpu_s": times.cpu_s,
        "peak_gib": (peak.bytes() - result_bytes) / GIB,
        "result_gib": result_bytes / GIB,
    }


def _ratio(case: Case, device: torch.device) -> Result:
    """The state-space layer at B 1 over the feed-forward at B 4, forward and backward.

    Interleaved in one process, the best of five rounds each.
    """
    runs: dict[str, Callable[[], object]] = {}
    for name, kind, batch in (("ssm", BidirectionalSSM, 1), ("ff", GatedFeedForward, 4)):
        module = kind(case.config).to(device)
        runs[name] = _pass(module, _input(case, device, batch), case, device)
    times = {name: [timed(run, device)] for name, run in runs.items()}
    for _ in range(ROUNDS - 1):
        for name, run in runs.items():
            times[name].append(timed(run, device))
    wall = {name: min(one.wall_s for one in some) for name, some in times.items()}
    cpu = {name: min(one.cpu_s for one in some) for name, some in times.items()}
    return {
        "wall_s": wall["ssm"],
        "cpu_s": cpu["ssm"],
        "ff_wall_s": wall["ff"],
        "ff_cpu_s": cpu["ff"],
        "wall_ratio": wall["ssm"] / wall["ff"],
        "cpu_ratio": cpu["ssm"] / cpu["ff"],
    }


def _encoder(case: Case, device: torch.device) -> Result:
    """Embedding and the whole encoder, on a first document: no kernels are kept."""
    config = case.config
    model = Locost(config).to(device).train(case.mode == "training")
    model.encoder.keep_kernels(False)
    ids = torch.randint(3, config.vocab_size, (case.batch, case.length), device=device)
    result = _run_measured(_pass(model.encode, ids, case, device), device, model)
    return result | {"tokens_per_s": case.batch * case.length / result["wall_s"]}


def _decode(case: Case, device: torch.device) -> Result:
    """Greedy decoding over random encoder states, which are made before."""
    config = case.config
    model = Locost(config).to(device).eval()
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
    states = torch.randn(case.batch, case.length, config.d_model, device=device, dtype=dtype)
    decoder, budget = model.decoder, sys.maxsize if case.form == "cached" else 0
    rows = case.batch * case.beams
    tokens = torch.full((rows, 1), config.start_id, device=device)

    def start(length: int) -> None:
        state[:] = [decoder.start(states[:, :length], None, case.tokens, case.beams, budget)]

    def steps() -> None:
        nonlocal tokens
        for _ in range(case.tokens):
            x = decoder.step(model.embedding(tokens), state[0])
            tokens = model.project(x[:, -1]).argmax(-1, keepdim=True)

    state: list[DecoderState] = []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, case.dtype == "bf16"):
        start(WARM_UP_LENGTH)
        steps()
        state.clear()
        peak = Peak(device)
        begin = timed(lambda: start(case.length), device)
        times = timed(steps, device)
    return {
        "wall_s": times.wall_s,
        "cpu_s": times.cpu_s,
        "start_s": begin.wall_s,
        "tokens_per_s": rows * case.tokens / times.wall_s,
        "peak_gib": peak.bytes() / GIB,
        "source_gib": (needed_bytes(case) or states.nbytes) / GIB,
        "total_gib": peak.total_bytes() / GIB,
    }


def _system(case: Case, device: torch.device) -> Result:
    """A whole model, LOCOST or a baseline: from source and teacher-forced target to the loss."""
    with repeated_draws():
        model = _built(case)
    model = model.to(device).train(case.mode == "training")
    recomputes = case.memory == "saving" and case.mode == "training"
    if recomputes:
        model.recompute_activations()
    keeps_kernels = isinstance(model, Locost) and (case.mode, case.memory) == ("inference", "plain")
    if isinstance(model, Locost):
        model.encoder.keep_kernels(keeps_kernels)
        if case.memory == "plain":
            model.encoder.use_token_blocks(sys.maxsize)
    size = model.config.vocab_size
    source = torch.randint(3, size, (case.batch, case.length), device=device)
    labels = torch.randint(3, size, (case.batch, case.tokens), device=device)

    def loss(source: Tensor) -> Tensor:
        warms_up = source.shape[1] < case.length
        found = model(source, None, labels[:, :WARM_UP_LENGTH] if warms_up else labels).loss
        assert found is not None
        return found

    one_pass = _pass(loss, source, case, device)

    def step() -> None:
        model.zero_grad()  # the gradients are part of every pass's peak
        one_pass()

    def time(run: Callable[[], object]) -> Times:
        if keeps_kernels:  # from the document before: they count in the peak
            run()
        return medians(run, device, ROUNDS, SYSTEM_SECONDS)

    measured = _run_measured(step, device, model, time)
    kernels = model.attention_kernels()
    return {
        **measured,
        "tokens_per_s": case.batch * case.length / measured["wall_s"],
        "weights_gib": sum(parameter.nbytes for parameter in model.parameters()) / GIB,
        "kernel": "; ".join(f"{part} {words}" for part, words in kernels.items()),
        "recomputation": recomputes,
    }


def _built(case: Case) -> Model:
    """The system at its base size with the case's settings, without dropout.

    Its position embeddings are extended to the case's lengths.
    """
    if case.subject == "locost":
        return Locost(case.config)
    wanted, _, attention = case.subject.partition(":")
    name = next(name for name in SYSTEMS if name == wanted)
    system = SYSTEMS[name]
    settings = {**system.base, **case.model}
    for setting, length in zip(system.positions, (case.length, case.tokens), strict=True):
        if setting:  # LED's windows must be whole
            settings[setting] = max(settings[setting], -(-length // 1024) * 1024)
    vocab_size = settings.pop("vocab_size", system.vocab_size)
    choice = next((choice for choice in ATTENTION if choice == attention), ATTENTION[0])
    return Baseline(
        BaselineConfig(name=name, vocab_size=vocab_size, settings=settings, attention=choice)
    )


SUBJECTS: dict[str, Callable[[Case, torch.device], Result]] = {
    **dict.fromkeys(("locost", *SYSTEMS), _system),
    "ssm": _ssm,
    "materialised": _materialised,
    "row by row": _row_by_row,
    "feed-forward": _feed_forward,
    "kernel": _kernel,
    "ratio": _ratio,
    "encoder": _encoder,
    "decode": _decode,
}


def _measured(
    layer: Callable[[Tensor], Tensor], module: nn.Module, case: Case, device: torch.device
) -> Result:
    x = _input(case, device, case.batch)
    return _run_measured(_pass(layer, x, case, device), device, module)


def _input(case: Case, device: torch.device, batch: int) -> Tensor:
    shape = (batch, case.length, case.config.d_model)
    return torch.randn(shape, device=device, requires_grad=case.mode == "training")


def _pass(
    layer: Callable[[Tensor], Tensor], x: Tensor, case: Case, device: torch.device
) -> Callable[[], object]:
    """Forward, with backward in training; warmed up on a few positions, which take little memory.

    The warm-up loads libraries, which is not part of the measured work.
    """

    def run(x: Tensor = x) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.dtype == "bf16"):
            output = layer(x)
        if case.mode == "training":
            output.sum().backward()

    if case.mode == "inference":
        run = torch.no_grad()(run)
    run(x[:, :WARM_UP_LENGTH])
    return run


def _run_measured(
    run: Callable[[], object],
    device: torch.device,
    module: nn.Module,
    time: Callable[[Callable[[], object]], Times] | None = None,
) -> Result:
    """Times, by default the best of several runs, and the peak above the module."""
    module.zero_grad()
    peak = Peak(device)
    times = time(run) if time else best(run, device, ROUNDS, ENOUGH_SECONDS)
    return {
        "wall_s": times.wall_s,
        "cpu_s": times.cpu_s,
        "peak_gib": peak.bytes() / GIB,
        "total_gib": peak.total_bytes() / GIB,
    }


def label(row: Row) -> str:
    """The row's subject in words, as in the table and the figure."""
    if row["subject"] == "decode":
        return f"{row['form']}, {row['beams']} beam{'s' if row['beams'] > 1 else ''}"
    if row["memory"] == "saving":
        return f"{row['subject']}, saving"
    return row["subject"] if row["batch"] == 1 else f"{row['subject']} B {row['batch']}"
