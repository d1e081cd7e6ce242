"""The GPU check: sections in order of importance, each a generator of rows.

Rows are printed as they come and saved after each section, so that a run cut short keeps its
results. Needs torch, numpy, safetensors, PyYAML and tqdm only, and no network; where a
section needs more, a row says what is missing.
"""

import gc
import math
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking import (
    gpu_candidates,
    gpu_convolution,
    gpu_correctness,
    gpu_network,
    gpu_predictions,
    gpu_timings,
    gpu_training,
)
from pipeline.benchmarking.gpu_rows import Row, as_line
from pipeline.common.files import replace_json
from pipeline.distributed.device import device_name

Section = Callable[[torch.device, bool], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "check: layer": gpu_correctness.layer,
    "check: kernel": gpu_correctness.kernel,
    "check: golden": gpu_correctness.golden,
    "check: decoding graph": gpu_correctness.decoding_graph,
    "check: cross-attention": gpu_correctness.cross_attention,
    "check: base model": gpu_correctness.base_model_step,
    "check: training": gpu_training.training,
    "check: network": gpu_network.network,
    **{
        f"candidates: {choice}": partial(gpu_candidates.rows, choice)
        for choice in gpu_candidates.CANDIDATES
    },
    "time: training": gpu_timings.training,
    "time: real micro-batches": gpu_timings.real_micro_batches,
    "time: inference": gpu_timings.inference,
    "time: decoding": gpu_timings.decoding,
    "time: layer": gpu_timings.layer,
    "time: convolution": gpu_convolution.long_convolution,
    "time: profile": gpu_timings.profile,
    "time: book": gpu_timings.book,
}
# Candidates come before the timings, which take those that the trainer would choose.
LIMITS = {"check: training": 240.0}
"""Seconds of a section after which its remaining rows are skipped, where not TIMING_LIMIT."""
CHECK_LIMIT, TIMING_LIMIT = 100.0, 45.0
"""The same for other checks and for all else: one slow section does not cost the later ones."""
RESULTS = "gpu_check.json"


def gpu_check(device: torch.device, output: Path, small: bool, budget_s: float) -> int:
    """Run the sections; the exit status is 1 where a check failed or a section raised, else 0.

    After `budget_s` seconds the remaining sections are skipped and listed as skipped, as are the
    remaining rows of a section beyond its own limit. `small` runs toy sizes, for a CPU. Results go
    to gpu_check.json in `output`.
    """
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results: dict[str, Any] = {
        "device": device_name(device), "torch": torch.__version__, "small": small,
        "sections": {}, "failures": [], "skipped": [],
    }  # fmt: skip
    print(f"{results['device']}, torch {torch.__version__}", flush=True)
    if device.type == "cuda":  # as the trainer sets it
        torch.backends.cuda.enable_cudnn_sdp(False)
    for name, section in SECTIONS.items():
        spent = time.monotonic() - began
        if spent > budget_s:
            results["skipped"].append(name)
            print(f"-- {name}: skipped after {spent:.0f} s (--budget_s {budget_s:.0f})", flush=True)
            continue
        print(f"-- {name} ({spent:.0f} s)", flush=True)
        rows = results["sections"][name] = []
        until = min(budget_s, spent + limit_of(name, small))
        try:
            for row in section(device, small):
                rows.append(row)
                print(f"  {as_line(row)}", flush=True)
                if not row.get("passed", True):
                    results["failures"].append(f"{name}: {as_line(row)}")
                if time.monotonic() - began > until:
                    print(f"  stopped here, {until - spent:.0f} s after it began", flush=True)
                    results["skipped"].append(f"the rest of {name}")
                    break
        except Exception as error:  # the other sections still run
            results["failures"].append(f"{name}: {type(error).__name__}: {error}")
            traceback.print_exc()
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        replace_json(output / RESULTS, results)
    results["seconds"] = time.monotonic() - began
    replace_json(output / RESULTS, results)
    if not small:
        earlier = gpu_predictions.read_record(gpu_predictions.EARLIER)
        print("\n".join(gpu_predictions.table(earlier, results)))
    for failure in results["failures"]:
        print(f"FAILED {failure}")
    print(f"{len(results['failures'])} failures, {results['seconds']:.0f} s: {output / RESULTS}")
    return 1 if results["failures"] else 0


def limit_of(section: str, small: bool) -> float:
    """Seconds after which a section gives way to the next; at toy sizes none does."""
    if small:
        return math.inf
    return LIMITS.get(section, CHECK_LIMIT if section.startswith("check") else TIMING_LIMIT)
