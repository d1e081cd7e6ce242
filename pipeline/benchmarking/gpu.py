"""The check of a GPU: sections in order of importance, each a generator of rows.

Rows are printed as they come and saved after each section, so that a run cut short still tells
what it found. Needs torch, numpy and safetensors only, and no network.
"""

import gc
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pipeline.benchmarking import checks, timings
from pipeline.benchmarking.meter import device_name
from pipeline.benchmarking.rows import Row, as_line
from pipeline.files import replace_json

Section = Callable[[torch.device, bool], Iterator[Row]]
SECTIONS: dict[str, Section] = {
    "check: layer": checks.layer,
    "check: kernel": checks.kernel,
    "check: golden": checks.golden,
    "check: cross-attention": checks.cross_attention,
    "check: base model": checks.base_model_step,
    "time: layer": timings.layer,
    "time: training": timings.training,
    "time: inference": timings.inference,
    "time: profile": timings.profile,
    "time: convolution": timings.long_convolution,
    "time: book": timings.book,
}
RESULTS = "gpu_check.json"


def gpu_check(device: torch.device, output: Path, small: bool, budget_s: float) -> int:
    """Run the sections; the exit status: 1 where a check failed or a section broke, else 0.

    Once `budget_s` seconds are spent what is left is skipped, and said to be. `small` is the same
    at toy sizes, which any CPU does in seconds. Results go to gpu_check.json in `output`.
    """
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results: dict[str, Any] = {
        "device": device_name(device), "torch": torch.__version__, "small": small,
        "sections": {}, "failures": [], "skipped": [],
    }  # fmt: skip
    print(f"{results['device']}, torch {torch.__version__}", flush=True)
    for name, section in SECTIONS.items():
        spent = time.monotonic() - began
        if spent > budget_s:
            results["skipped"].append(name)
            print(f"-- {name}: skipped, {spent:.0f} of {budget_s:.0f} s are spent", flush=True)
            continue
        print(f"-- {name} ({spent:.0f} s)", flush=True)
        rows = results["sections"][name] = []
        try:
            for row in section(device, small):
                rows.append(row)
                print(f"  {as_line(row)}", flush=True)
                if not row.get("passed", True):
                    results["failures"].append(f"{name}: {as_line(row)}")
                if time.monotonic() - began > budget_s:
                    print(f"  cut here: {budget_s:.0f} s are spent")
                    results["skipped"].append(f"the rest of {name}")
                    break
        except Exception as error:  # the other sections still tell something
            results["failures"].append(f"{name}: {type(error).__name__}: {error}")
            traceback.print_exc()
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        replace_json(output / RESULTS, results)
    results["seconds"] = time.monotonic() - began
    replace_json(output / RESULTS, results)
    for failure in results["failures"]:
        print(f"FAILED {failure}")
    print(f"{len(results['failures'])} failures, {results['seconds']:.0f} s: {output / RESULTS}")
    return 1 if results["failures"] else 0
