"""Memory and bytes sent by the processes that share a source, against the formulas of estimates.

Forward and backward of one micro-batch of one document, in fp32 on CPUs, by real processes over
gloo. Memory is above the built model, without an optimizer.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from pipeline.common.units import GIB
from pipeline.config import parse
from pipeline.distributed.device import Peak
from pipeline.distributed.sequence_parallel import ConnectedGroup, sequence_group
from pipeline.distributed.world import World
from pipeline.estimation.activations import ActivationMemory, PaddedShape
from pipeline.estimation.memory import highest, memory_by_moment, peak_bytes
from pipeline.estimation.sequence_exchange import sequence_bytes
from pipeline.model import Locost, LocostConfig
from pipeline.model.memory import available_memory
from pipeline.model.parameter_counts import FP32, ParameterCounts
from pipeline.model.sequence import check_sequence
from pipeline.training.sharding import Sharding

PROGRAM = Path(__file__).resolve().parents[1] / "benchmark.py"
WARM_UP = 64
"""Source positions of a first pass, which loads libraries and connects the processes."""
RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""The C library keeps no freed blocks, which would count as memory in use."""
Row = dict[str, Any]


def measure(
    recipe: str, lengths: Sequence[int], processes: Sequence[int], tokens: int, vocab_size: int,
    recompute: bool,
) -> dict[str, Any]:  # fmt: skip
    """A row for each length and number of processes.

    Raises ValueError for sizes that cannot be measured, RuntimeError where a process failed.
    """
    settings, _ = parse(["--config", recipe, "--data.train", "unread"])
    config = settings.architecture(vocab_size)
    if not isinstance(config, LocostConfig):
        raise ValueError(f"--config {recipe} is of a baseline, which cannot share documents")
    cases = [(PaddedShape(1, length, tokens), size) for length in lengths for size in processes]
    free = available_memory(torch.device("cpu"))
    for batch, size in cases:
        check_sequence(config, size)
        needed = size * peak_bytes(passes(config, recompute, batch, size))
        if needed > free:
            raise ValueError(
                f"{batch.source:,} tokens over {size} processes need {needed / GIB:.1f} GiB of the "
                f"{free / GIB:.1f} that are free; give shorter --lengths, or a smaller --config"
            )
    rows = []
    for batch, size in cases:
        expected = passes(config, recompute, batch, size)
        rows.append({
            "length": batch.source,
            "processes": size,
            **together(config, recompute, batch, size),
            "expected_peak": peak_bytes(expected),
            "expected_moment": highest(expected),
            "expected_sent": sequence_bytes(config, FP32, recompute, batch, size),
        })  # fmt: skip
    return {"model": asdict(config), "tokens": tokens, "recompute": recompute, "rows": rows}


def passes(
    config: LocostConfig, recompute: bool, batch: PaddedShape, processes: int
) -> dict[str, dict[str, int]]:
    """Estimated bytes by part, at each moment of forward and backward; the parameters' gradients
    are named buckets."""
    parameters = ParameterCounts.of(config)
    plain = Sharding(
        stage=1, processes=1, offload=False, bucket=parameters.total, buffers=1, live=0
    )
    activations = ActivationMemory(config, FP32, False, recompute, processes)
    moments = memory_by_moment(parameters, plain, activations, batch, accumulation=1)
    return {
        moment: {
            part: held for part, held in parts.items() if part not in ("weights", "optimizer state")
        }
        for moment, parts in moments.items()
        if moment not in ("reduction", "update")
    }


def together(config: LocostConfig, recompute: bool, batch: PaddedShape, size: int) -> Row:
    """What `size` processes measure, one number for each: peak memory and bytes sent."""
    case = {"model": asdict(config), "recompute": recompute, "batch": asdict(batch)}
    with TemporaryDirectory() as folder:
        place = {"size": size, "meeting": f"{folder}/meeting"}
        requests = [json.dumps({**case, **place, "rank": rank}) for rank in range(size)]
        started = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "sequence-process", request],
                env={**os.environ, **RETURN_FREED, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for request in requests
        ]  # fmt: skip
        try:
            printed = [process.communicate() for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
    for process, (_, errors) in zip(started, printed, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process ended with status {process.returncode}:\n{errors}")
    found = [json.loads(output.splitlines()[-1]) for output, _ in printed]
    return {name: [one[name] for one in found] for name in ("peak", "sent")}


def measure_here(request: str) -> dict[str, int]:
    """In one of the processes of `together`: its bytes of peak memory, and those that it sent."""
    case = json.loads(request)
    batch, rank, size = PaddedShape(**case["batch"]), case["rank"], case["size"]
    cpu = torch.device("cpu")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{case['meeting']}", rank=rank, world_size=size
    )
    group = sequence_group(World(rank, size, rank, cpu).in_sequences(size))
    torch.manual_seed(0)
    model = Locost(LocostConfig(**case["model"])).train()
    model.recompute_activations(case["recompute"])
    model.use_sequence(group)

    def update(source: torch.Tensor, labels: torch.Tensor) -> None:
        mask = torch.ones_like(source)
        loss = model(source, mask, labels, loss_reduction="sum", loss_only=True, check=False).loss
        loss.backward()

    vocab_size = model.config.vocab_size
    source = torch.randint(3, vocab_size, (batch.samples, batch.source))
    labels = torch.randint(3, vocab_size, (batch.samples, batch.target))
    update(source[:, :WARM_UP], labels)
    model.zero_grad()
    before = bytes_sent(group)
    dist.barrier()
    peak = Peak(cpu)
    update(source, labels)
    result = {"peak": peak.bytes(), "sent": bytes_sent(group) - before}
    dist.barrier()
    dist.destroy_process_group()
    return result


def bytes_sent(group: object) -> int:
    """To other processes so far."""
    return group.bytes_sent if isinstance(group, ConnectedGroup) else 0


def as_text(found: dict[str, Any]) -> Iterator[str]:
    """The table: of each row the process with most."""
    columns = ("tokens", "P", "peak MiB", "formula", "ratio", "sent MB", "formula", "highest at")
    yield "".join(f"{name:>12}" for name in columns)
    for row in found["rows"]:
        peak, expected = max(row["peak"]), row["expected_peak"]
        cells = (
            f"{row['length']:,}", row["processes"], f"{peak / 2**20:,.1f}",
            f"{expected / 2**20:,.1f}", f"{peak / expected:.2f}", f"{max(row['sent']) / 1e6:,.3f}",
            f"{row['expected_sent'] / 1e6:,.3f}", row["expected_moment"],
        )  # fmt: skip
        yield "".join(f"{cell:>12}" for cell in cells)
