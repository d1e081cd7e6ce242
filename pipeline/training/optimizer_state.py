"""AdamW's moments in files independent of the number of processes and of the ZeRO stage.

Each rank writes the pieces it holds to its own safetensors file: tensor `exp_avg@4096:encoder.x` is
the first moment of parameter `encoder.x`, flattened, from element 4096. A reader collects the
elements that it needs from all the files, under any stage (1, 2, 3, offloaded) and any number of
processes; everything is fp32 and copied, so nothing is rounded.

DeepSpeed's own checkpoints (0.19.8) are pickles that hold the weights two more times and cannot be
loaded on another number of processes. Its universal format needs a conversion on disk, loses the
rates of stage 3's parameter groups, and makes partitions share one step count. This module relies
only on where DeepSpeed keeps its flat partitions; its version is pinned.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import safe_get_local_optimizer_state, safe_set_local_optimizer_state
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Share:
    """The elements of one flattened parameter whose moments this process holds."""

    zero: Any  # DeepSpeed's optimizer around AdamW
    name: str
    parameter: Any  # DeepSpeed hangs attributes on it
    start: int
    count: int

    def get(self, moment: str) -> Tensor:
        """The moment of these elements, (count,) fp32."""
        if is_partitioned(self.parameter):
            padded: Tensor = safe_get_local_optimizer_state(self.parameter, moment)
            return padded[: self.count]
        # Not safe_get_full_optimizer_state: it knows the moments of the first group only.
        place = self.parameter._hp_mapping
        flat = self.zero.single_partition_of_fp32_groups[place.param_group_index]
        state: Tensor = self.zero.optimizer.state[flat][moment]
        return state.narrow(0, place.get_hp_fragment_address().start, self.count)

    def set(self, moment: str, values: Tensor) -> None:
        """Replace the moment of these elements by `values` (count,)."""
        if is_partitioned(self.parameter):
            padding = self.parameter.ds_tensor.numel() - self.count
            padded = torch.nn.functional.pad(values, (0, padding))
            safe_set_local_optimizer_state(self.parameter, padded, moment)
        else:
            self.get(moment).copy_(values)


def is_partitioned(parameter: torch.nn.Parameter) -> bool:
    """Whether ZeRO stage 3 has partitioned the parameter; it pads partitions to equal sizes."""
    return hasattr(parameter, "ds_tensor")


def updates_applied(engine: deepspeed.DeepSpeedEngine) -> int:
    """AdamW's `step`: updates applied, without skipped ones."""
    states = engine.optimizer.optimizer.state.values()
    return max((int(state["step"]) for state in states if state), default=0)


def save_moments(engine: deepspeed.DeepSpeedEngine, path: Path, rank: int) -> None:
    """Write this process's pieces to `path`; no tensors where no update was applied yet."""
    pieces = {}
    if updates_applied(engine):
        for share in _shares(engine, rank):
            for moment in MOMENTS:
                pieces[f"{moment}@{share.start}:{share.name}"] = share.get(moment)
    path.touch()
    mode = path.stat().st_mode
    save_file(pieces, path)
    path.chmod(mode)  # as readable as any new file; safetensors would leave it to its owner


def load_moments(
    engine: deepspeed.DeepSpeedEngine, paths: list[Path], updates: int, rank: int
) -> None:
    """Fill this process's moments from the pieces in `paths`, and its count of `updates`.

    Raises ValueError naming the parameter if the pieces do not cover it.
    """
    if updates == 0:
        return
    _make_state(engine, updates)
    pieces = _Pieces(paths)
    for share in _shares(engine, rank):
        for moment in MOMENTS:
            share.set(moment, pieces.read(moment, share))


def _shares(engine: deepspeed.DeepSpeedEngine, rank: int) -> Iterator[Share]:
    """What this process holds, in the parameters' order."""
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        if is_partitioned(parameter):
            size = parameter.ds_tensor.numel()
            start = rank * size
            count = min(size, parameter.ds_numel - start)
        elif parameter._hp_mapping is not None:
            address = parameter._hp_mapping.lp_fragment_address
            start, count = address.start, address.numel
        else:
            continue
        if count > 0:
            yield Share(engine.optimizer, name, parameter, start, count)


def _make_state(engine: deepspeed.DeepSpeedEngine, updates: int) -> None:
    """Zero moments for every flat partition, as AdamW creates them at its first update."""
    zero = engine.optimizer
    flats = (
        zero.fp32_partitioned_groups_flat
        if engine.zero_optimization_stage() == 3
        else zero.single_partition_of_fp32_groups
    )
    for flat in flats:
        moments = {moment: torch.zeros_like(flat.data) for moment in MOMENTS}
        # Each needs its own count: AdamW increments it in place.
        zero.optimizer.state[flat] = {"step": torch.tensor(float(updates)), **moments}


class _Pieces:
    """The pieces in a checkpoint's files, found by moment and parameter."""

    def __init__(self, paths: list[Path]) -> None:
        self.files = [safe_open(path, "pt") for path in paths]
        self.found: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for number, file in enumerate(self.files):
            for key in file.keys():  # noqa: SIM118 (no mapping)
                place, name = key.split(":", 1)
                moment, start = place.split("@")
                self.found.setdefault((moment, name), []).append((int(start), number))

    def read(self, moment: str, share: Share) -> Tensor:
        """The moment of a share's elements, (count,), on the CPU."""
        values = torch.empty(share.count)
        filled, end = 0, share.start + share.count
        for start, number in self.found.get((moment, share.name), []):
            piece = self.files[number].get_slice(f"{moment}@{start}:{share.name}")
            first, last = max(start, share.start), min(start + piece.get_shape()[0], end)
            if first < last:
                part = piece[first - start : last - start]
                values[first - share.start : last - share.start] = part
                filled += last - first
        if filled != share.count:
            raise ValueError(
                f"the checkpoint holds {filled} of {share.count} elements of {moment} of "
                f"{share.name}; resume from another checkpoint"
            )
        return values
