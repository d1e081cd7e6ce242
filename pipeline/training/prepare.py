"""A run checked and assembled before anything is written: data, model, settings, checkpoints."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipeline.baselines.registry import Model
from pipeline.common.batch_spans import parse_spans, used_spans
from pipeline.config import Check, RunConfig
from pipeline.data.mixture import Mixture
from pipeline.data.order import GlobalOrder
from pipeline.data.stored_dataset import open_dataset
from pipeline.distributed.sequence_parallel import sequence_group
from pipeline.distributed.world import World
from pipeline.model import Locost
from pipeline.model.config import INITIALISATION
from pipeline.model.decoder import use_shared_attention
from pipeline.model.sequence import check_sequence
from pipeline.training.checkpoint import Checkpoints, read_markers
from pipeline.training.choices import set_choices
from pipeline.training.deepspeed_config import deepspeed_settings
from pipeline.training.initial_model import starting_model, weights_sha256
from pipeline.training.preflight import check_readable, check_room
from pipeline.training.validation_set import ValidationSet

CROSS_ATTENTION = "cross_attention_initialisation"
FINGERPRINT = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class PreparedRun:
    """What a run needs, checked before anything is written."""

    settings: dict[str, Any]
    train: Mixture
    validation: ValidationSet | None
    order: GlobalOrder
    model: Model
    checkpoints: Checkpoints


def prepare(config: RunConfig, world: World, check: Check | None = None) -> PreparedRun:
    """Open the data, build the model, and check that all of it fits together; a collective.

    `check`: only to be checked, for its number of processes.

    Raises ValueError on all processes, naming the field, its value and the remedy, and the process
    where it is not wrong on all of them; so it does when the run folder is another process's, or
    holds another run.
    """
    run, keep = Path(config.output), config.train.keep_checkpoints
    source, digest = world.on_all(
        lambda: initial_weights(config.init_from, run), ValueError, OSError
    )
    config = replace(config, init_from=source)
    processes = (check.processes if check else None) or world.size
    if processes == world.size:
        world = world.in_sequences(config.train.sequence_parallel_size)
    settings, train, validation, order, model = world.on_all(
        lambda: assemble(config, world, processes), ValueError, OSError
    )
    tokenizer = train.tokenizer
    architecture = vars(model.config).copy()
    dropout = architecture.pop("dropout")  # may be another from one step to the next
    # Told, not refused: a checkpoint replaces initial weights. Older ones name the first of them.
    drawn = INITIALISATION & architecture.keys() - {"ssm_initialisation"}
    initialisation = {name: architecture.pop(name) for name in sorted(drawn)}
    if config.baseline:  # whose configuration does not have it
        initialisation[CROSS_ATTENTION] = config.model[CROSS_ATTENTION]
    checkpoints = Checkpoints(
        run,
        world,
        tokenizer=train.tokenizer_path,
        identity={
            "tokenizer": tokenizer["sha256"],
            "dataset": train.fingerprint,
            "batch_size": config.train.batch_size,
            "seed": config.train.seed,
            "architecture": architecture,
            "init_from": digest,
        },
        settings={
            "processes": processes,
            "zero_stage": settings["zero_optimization"]["stage"],
            "model.dropout": dropout,
            "model": initialisation,
            "data": vars(config.data),
            "validation_set": validation.dataset.fingerprint if validation else None,
            "train": vars(config.train),
        },
        keep=keep,
        keep_every=config.train.keep_every,
    )
    skipped = config.train.skip_batches
    try:
        if config.train.resume_from:
            wanted = {"step": config.train.resume_from, "skip_batches": skipped}
            checkpoints.rewind(wanted, dry_run=check is not None)
        if not (check and config.train.resume_from):
            check_skipped(checkpoints, skipped)
        stage = settings["zero_optimization"]["stage"]
        set_choices(model, config, world, stage, keep=check is None)
        if isinstance(model, Locost) and world.sequence_size > 1:  # choices run in one process
            share_sources(model, config, world)
    except ValueError:
        checkpoints.close()
        raise
    if not checkpoints.steps_done:  # those kept, the best, and the one being written
        try:
            world.on_all(lambda: check_room(run, model, keep + 2), ValueError, OSError)
        except ValueError:
            checkpoints.close()
            raise
    return PreparedRun(settings, train, validation, order, model, checkpoints)


def share_sources(model: Locost, config: RunConfig, world: World) -> None:
    """The model of a process whose neighbours have the rest of each source; a collective."""
    model.use_sequence(sequence_group(world))
    dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    reason = use_shared_attention(model.decoder, world.device, dtype)
    if world.is_main:
        print(f"attention to shared sources: {reason}")


def assemble(
    config: RunConfig, world: World, processes: int
) -> tuple[dict[str, Any], Mixture, ValidationSet | None, GlobalOrder, Model]:
    """Each process's own part of `prepare`: DeepSpeed's settings, the data, their order, a model.

    ValueError or OSError where a setting or a file is wrong.
    """
    settings = deepspeed_settings(config, processes)
    if config.train.validation_rouge and settings["zero_optimization"]["stage"] == 3:
        raise ValueError(
            "train.validation_rouge generates summaries of different lengths on each process, "
            "which ZeRO stage 3 cannot; use ds_configs/zero2.json or --train.validation_rouge false"
        )
    begun_with = begun_versions(Path(config.output))
    train = Mixture(config.data, begun_with.train)
    held_out = (
        open_dataset(config.data.validation, config.data.stage_dir, begun_with.validation)
        if config.data.validation
        else None
    )
    datasets = [*train.datasets, *([held_out] if held_out else [])]
    if world.local_rank == 0:  # once a node
        for dataset in datasets:
            dataset.check_files()
    check_readable(datasets)
    tokenizer = train.tokenizer
    if held_out and held_out.manifest["tokenizer"]["sha256"] != tokenizer["sha256"]:
        raise ValueError(
            f"data.validation {config.data.validation} was tokenised with "
            f"{held_out.manifest['tokenizer']['sha256']}, data.train with {tokenizer['sha256']}; "
            "prepare both with one tokenizer"
        )
    validation = ValidationSet(held_out, config, world) if held_out else None
    skipped = parse_spans(config.train.skip_batches)
    order = train.order(config.train.batch_size, config.train.seed, skipped)
    model = starting_model(config, train, held_out)
    if isinstance(model, Locost):
        check_sequence(model.config, config.train.sequence_parallel_size)
    return settings, train, validation, order, model


class Versions(NamedTuple):
    """Fingerprints of datasets to which files may have been added since."""

    train: Sequence[str] = ()
    """Of data.train and data.mixture, in their order."""
    validation: str | None = None


def begun_versions(run: Path) -> Versions:
    """The versions of the datasets that a run was begun with: it keeps them."""
    markers = read_markers(run)
    if not markers:
        return Versions()
    newest = markers[max(markers)]
    return Versions(
        FINGERPRINT.findall(newest["identity"]["dataset"]), newest["settings"].get("validation_set")
    )


def initial_weights(init_from: str | None, run: Path) -> tuple[str | None, str | None]:
    """The folder of the initial weights, and their digest.

    Where it is gone and the run has begun, that is the run's own newest checkpoint, and the digest
    that it recorded. Raises ValueError or OSError where there are no such weights.
    """
    if init_from is None:
        return None, None
    markers = {} if Path(init_from).exists() else read_markers(run)
    if not markers:
        return init_from, weights_sha256(init_from)
    newest = max(markers)
    return str(newest), markers[newest]["identity"]["init_from"]


def check_skipped(checkpoints: Checkpoints, skip_batches: str) -> None:
    """Raise ValueError where the updates so far skipped other batches than these settings would."""
    if checkpoints.marker is None:
        return
    done = checkpoints.steps_done
    recorded = checkpoints.marker["settings"].get("train.skip_batches", "")
    if used_spans(done, parse_spans(recorded)) != used_spans(done, parse_spans(skip_batches)):
        raise ValueError(
            f"train.skip_batches is {skip_batches!r}, but the {done} updates so far were made with "
            f"{recorded!r}; give the same spans up to there, or go back before the change with "
            "--train.resume_from"
        )
