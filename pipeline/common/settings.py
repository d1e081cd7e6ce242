"""Nested settings as flat names, and the differences between two settings."""

from collections.abc import Mapping
from typing import Any


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with names joined by dots: {"train.seed": 0, ...}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase per setting that differs, by dotted name: `train.seed was 0, now 1`."""
    old, new = flatten(was), flatten(now)
    return [
        f"{name} was {old.get(name)}, now {new.get(name)}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
