"""Rows of the GPU check, and the model sizes of its full and small runs."""

from typing import Any

from pipeline.model import LocostConfig

Row = dict[str, Any]
SMALL = LocostConfig(
    vocab_size=64, d_model=32, state_dim=8, d_ff=48, encoder_layers=2, decoder_layers=2,
    num_heads=4, head_dim=8,
)  # fmt: skip


def base(small: bool) -> LocostConfig:
    """The paper's base model, or a toy one for CPUs."""
    return SMALL if small else LocostConfig()


def first_line(error: BaseException) -> str:
    """What an error says first, or its type."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def as_line(row: Row) -> str:
    """A row as `name value` pairs."""
    return "  ".join(f"{name} {_short(value)}" for name, value in row.items() if value is not None)


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
