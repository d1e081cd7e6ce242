"""The cases of the sweeps over lengths, from the options of each command."""

import argparse
from collections.abc import Iterator
from typing import Any

import yaml

from pipeline.benchmarking.cases import Case, Mode

RATIO_LENGTH = 4096


def layer_cases(options: argparse.Namespace) -> Iterator[Case]:
    """The state-space layer and its kernel, the feed-forward and the slow references.

    The references stop at `reference_length`, the ratio to the feed-forward at 4,096.
    """
    common = _common(options)
    for length in options.lengths:
        yield Case(subject="kernel", mode="inference", length=length, **common)
    for subject, longest, batch in (
        ("ssm", None, options.batch),
        ("feed-forward", None, 4 * options.batch),
        ("materialised", options.reference_length, options.batch),
        ("row by row", options.reference_length, options.batch),
    ):
        for mode in _modes(options):
            for length in _until(options.lengths, longest):
                yield Case(subject=subject, mode=mode, length=length, batch=batch, **common)
    if "training" in _modes(options):
        for length in _until(options.lengths, RATIO_LENGTH):
            yield Case(subject="ratio", mode="training", length=length, **common)


def encoder_cases(options: argparse.Namespace) -> Iterator[Case]:
    """The whole encoder with its embedding."""
    common = _common(options)
    common["model"] |= {"decoder_layers": 1}  # unused
    if options.layers is not None:
        common["model"] |= {"encoder_layers": options.layers}
    for mode in _modes(options):
        for length in options.lengths:
            yield Case(subject="encoder", mode=mode, length=length, batch=options.batch, **common)


def decode_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Greedy decoding over random encoder states, in each form of cross-attention."""
    common = _common(options)
    common["model"] |= {"encoder_layers": 1}  # unused
    for form in options.forms:
        for beams in options.beams:
            for length in options.lengths:
                yield Case(
                    subject="decode", mode="inference", length=length, batch=options.batch,
                    form=form, beams=beams, tokens=options.tokens, **common,
                )  # fmt: skip


def _common(options: argparse.Namespace) -> dict[str, Any]:
    """Settings that all cases share; the model's sizes are the recipe's or the base model's."""
    sizes: dict[str, Any] = {}
    if options.config is not None:
        try:
            sizes = dict(yaml.safe_load(options.config.read_text(encoding="utf-8"))["model"])
        except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise ValueError(
                f"{options.config} is not a recipe ({type(error).__name__}: {error}); give one "
                "with a model section"
            ) from error
    shared = {name: getattr(options, name) for name in ("dtype", "device", "threads")}
    return {**shared, "model": sizes}


def _modes(options: argparse.Namespace) -> tuple[Mode, ...]:
    return ("inference", "training") if options.mode == "both" else (options.mode,)


def _until(lengths: list[int], longest: int | None) -> list[int]:
    return [length for length in lengths if longest is None or length <= longest]
