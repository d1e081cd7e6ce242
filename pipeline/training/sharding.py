"""What DeepSpeed holds of a model's states in each process, and what must stay free."""

from dataclasses import dataclass
from typing import Any

from pipeline.model.parameter_counts import FP32

# DeepSpeed's defaults, in elements.
REDUCE_BUCKET = 500_000_000
LIVE_PARAMETERS = 1_000_000_000
MARGIN = 0.1
"""Share of the memory that is left to the driver, the network and fragmentation."""


@dataclass(frozen=True)
class Sharding:
    """How DeepSpeed shards the states: ZeRO stages 1 to 3 over a number of processes."""

    stage: int
    processes: int
    offload: bool
    """Master weights and AdamW's moments are in host memory."""
    bucket: int
    """Gradients reduced together, in elements."""
    buffers: int
    """Buckets allocated at once."""
    live: int
    """Stage 3: most parameters gathered at one time."""

    @classmethod
    def of(cls, settings: dict[str, Any], processes: int) -> "Sharding":
        """From the filled-in DeepSpeed settings."""
        zero = settings["zero_optimization"]
        bf16 = settings["torch_autocast"]["enabled"]
        types = 2 if bf16 and settings["torch_autocast"]["lower_precision_safe_modules"] else 1
        stage = zero["stage"]
        return cls(
            stage,
            processes,
            zero.get("offload_optimizer", {}).get("device", "none") != "none",
            int(zero.get("reduce_bucket_size", REDUCE_BUCKET)),
            types * (2 if stage < 3 and zero.get("overlap_comm") else 1),
            int(zero.get("stage3_max_live_parameters", LIVE_PARAMETERS)),
        )

    def part(self, parameters: int) -> int:
        """Bytes of one process's share, in fp32."""
        return FP32 * -(-parameters // self.processes)

    def optimizer(self, parameters: int, on_gpu: bool) -> int:
        """Bytes on the device: master weights and AdamW's two moments."""
        return 0 if self.offload and on_gpu else 3 * self.part(parameters)

    def buckets(self, gradients: int, on_gpu: bool) -> int:
        """Bytes of the buckets once that many gradients came; a CPU has only what is touched."""
        allocated = FP32 * self.bucket * self.buffers
        return allocated if on_gpu else min(FP32 * gradients, allocated)
