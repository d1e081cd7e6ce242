"""The training loop, from a configuration to a finished run folder."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import deepspeed
import deepspeed.ops
import numpy as np
import torch

from pipeline.config import RunConfig, TrainConfig
from pipeline.data.batches import Batches, MicroBatch
from pipeline.data.mixture import Mixture
from pipeline.data.order import GlobalOrder
from pipeline.data.prefetch import Prefetched
from pipeline.data.read_ahead import ReadAhead
from pipeline.deepspeed_config import deepspeed_settings
from pipeline.distributed import World
from pipeline.files import replace_json, replace_text
from pipeline.model import Locost
from pipeline.model.config import INITIALISATION
from pipeline.models import Model
from pipeline.shards import Dataset
from pipeline.training.callbacks import Metrics, Validation
from pipeline.training.checkpoint import Checkpoints, assert_exact_parameters
from pipeline.training.health import UNWANTED, Health, RunFailed, Verdict, sample_names
from pipeline.training.links import check_links
from pipeline.training.meters import Costs, reset_peak_memory
from pipeline.training.optimizer import parameter_groups
from pipeline.training.portraits import Portraits
from pipeline.training.schedule import learning_rate, steps_of
from pipeline.training.signals import CONTINUE_LATER, StopRequest
from pipeline.training.starting import starting_model, weights_sha256
from pipeline.training.startup import (
    check_readable,
    check_room,
    check_same_weights,
    longest_shapes,
    rehearse,
)
from pipeline.training.watchdog import Watchdog

COMPILED_LENGTHS = 256  # compiled blocks see lengths that are multiples of this
FINISHED = "FINISHED"  # marker in the run folder, written last
T = TypeVar("T")

# Otherwise DeepSpeed compiles a shared-memory extension when the processes join; gloo serves.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@dataclass(frozen=True)
class Prepared:
    """What a run needs, checked before anything is written."""

    settings: dict[str, Any]
    train: Mixture
    validation: Validation | None
    order: GlobalOrder
    model: Model
    checkpoints: Checkpoints


def prepare(config: RunConfig, world: World) -> Prepared:
    """Open the data, build the model, and check that all of it fits together; a collective.

    Raises ValueError on all processes, naming the field, its value and the remedy, and the process
    where it is not wrong on all of them; so it does when the run folder is another process's, or
    holds another run.
    """
    parts, problems = world.attempt(lambda: assemble(config, world), ValueError, OSError)
    if parts is None or problems:
        raise ValueError(problems[0])
    settings, train, validation, order, model = parts
    tokenizer, run, keep = train.tokenizer, Path(config.output), config.train.keep_checkpoints
    architecture = vars(model.config).copy()
    dropout = architecture.pop("dropout")  # may be another from one step to the next
    # Told, not refused: a checkpoint replaces initial weights. Older ones name the first of them.
    drawn = INITIALISATION & architecture.keys() - {"ssm_initialisation"}
    initialisation = {name: architecture.pop(name) for name in sorted(drawn)}
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
            "init_from": config.init_from and weights_sha256(config.init_from),
        },
        settings={
            "processes": world.size,
            "zero_stage": settings["zero_optimization"]["stage"],
            "model.dropout": dropout,
            "model": initialisation,
            "data": vars(config.data),
            "train": vars(config.train),
        },
        keep=keep,
    )
    if not checkpoints.steps_done:  # those kept, the best, and the one being written
        _, problems = world.attempt(lambda: check_room(run, model, keep + 2), ValueError, OSError)
        if problems:
            raise ValueError(problems[0])
    return Prepared(settings, train, validation, order, model, checkpoints)


def assemble(
    config: RunConfig, world: World
) -> tuple[dict[str, Any], Mixture, Validation | None, GlobalOrder, Model]:
    """Each process's own part of `prepare`: DeepSpeed's settings, the data, their order, a model.

    ValueError or OSError where a setting or a file is wrong.
    """
    settings = deepspeed_settings(config, world.size)
    if config.train.validation_rouge and settings["zero_optimization"]["stage"] == 3:
        raise ValueError(
            "train.validation_rouge generates summaries of different lengths on each process, "
            "which ZeRO stage 3 cannot; use ds_configs/zero2.json or --train.validation_rouge false"
        )
    train = Mixture(config.data)
    held_out = Dataset(config.data.validation) if config.data.validation else None
    datasets = [*train.datasets, *([held_out] if held_out else [])]
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
    validation = Validation(held_out, config, world) if held_out else None
    order = train.order(config.train.batch_size, config.train.seed)
    model = starting_model(config, train, held_out, world)
    return settings, train, validation, order, model


def initialise(config: RunConfig, prepared: Prepared) -> deepspeed.DeepSpeedEngine:
    """The DeepSpeed engine around the model, with torch's AdamW."""
    prepared.model.recompute_activations(config.train.recompute_activations)
    if config.train.compile:
        assert isinstance(prepared.model, Locost)  # the configuration refuses it for others
        prepared.model.compile_blocks(dynamic=False)
    optimizer = torch.optim.AdamW(
        parameter_groups(prepared.model, config.train),
        lr=config.train.peak_lr,
        betas=config.train.betas,
    )
    engine, *_ = deepspeed.initialize(
        model=prepared.model, optimizer=optimizer, config=prepared.settings
    )
    assert_exact_parameters(engine.module)
    return engine


def train(config: RunConfig, prepared: Prepared, world: World) -> int:
    """Train to `max_steps`, or to where validation gets no better (`early_stopping`).

    0 when finished, 85 when stopped by a signal and to be continued.
    """
    config = in_steps(config, len(prepared.train))
    run, settings, done = Path(config.output), config.train, prepared.checkpoints.steps_done
    marker = run / FINISHED
    if marker.exists():
        ended = done >= settings.max_steps or gave_up(settings, json.loads(marker.read_text()))
        if ended:
            if world.is_main:
                print(f"{run} is finished after {done} steps; nothing to do")
            return 0

    with (
        closing(prepared.checkpoints),
        Watchdog(settings.hang_timeout, run, world.rank) as watchdog,
        prefetched(config, prepared, world) as batches,
    ):
        return take_steps(config, prepared, world, watchdog, batches)


def prefetched(config: RunConfig, prepared: Prepared, world: World) -> Prefetched:
    """This process's batches, prepared ahead; one process of each node reads shards ahead."""
    datasets, order = prepared.train.datasets, prepared.order
    batches = Batches(
        datasets, order, world.rank, world.size, config.train.accumulation,
        config.data.source_length, config.data.target_length,
        COMPILED_LENGTHS if config.train.compile else 1,
    )  # fmt: skip
    read_ahead = ReadAhead(datasets, order) if world.local_rank == 0 else None
    return Prefetched(batches, read_ahead, pin=world.device.type == "cuda")


def take_steps(
    config: RunConfig, prepared: Prepared, world: World, watchdog: Watchdog, batches: Prefetched
) -> int:
    """From the newest checkpoint on, as `train`, with a watchdog to be told of all that moves."""
    run, settings, checkpoints = Path(config.output), config.train, prepared.checkpoints
    stop = StopRequest(run, world.rank, settings.stop_after)
    if settings.startup_check:
        watchdog.beat("the check of the links")
        check_links(world)
    checkpoints.load_weights(prepared.model)
    check_same_weights(prepared.model, world)  # DeepSpeed would mend them without a word
    engine = initialise(config, prepared)
    engine.module.encoder.register_forward_hook(lambda *_: watchdog.beat())
    start, progress = checkpoints.resume(engine)
    health = Health(
        settings, run, world,
        lambda step: sample_names(prepared.train.datasets, prepared.order.samples(step)),
        progress.pop("health", None),
    )  # fmt: skip
    validation = prepared.validation
    metrics = together(world, run, lambda: record(run, start, config) if world.is_main else None)
    costs = Costs(settings, prepared.model.config, world, progress.pop("joules", 0.0))
    portraits = Portraits(
        metrics.events if metrics else None, engine.zero_optimization_stage() == 3
    )
    if metrics:
        metrics.describe("figures", costs.describe())

    if settings.startup_check:
        watchdog.beat("the start-up check")
        check_same_weights(engine.module, world)  # as loaded
        shapes = longest_shapes(batches.batches, range(start, settings.max_steps), world)
        rehearse(
            engine, shapes, settings.accumulation, world,
            lambda micro_batches: update(
                engine, micro_batches, 1, world, lambda _: UNWANTED, lambda _: None
            ),
        )  # fmt: skip
        reset_peak_memory(world.device)

    def is_stopping() -> bool:
        return stop.reason is not None or (metrics is not None and metrics.problem is not None)

    done, saving = start, 0.0
    for step in range(start, settings.max_steps):
        done = step + 1
        watchdog.beat(f"the data of step {done}")
        costs.clock.start()
        lr = learning_rate(step, settings)
        for group in engine.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * lr
        seed_dropout(settings.seed, step, world.rank)
        batch = batches.step(step)
        costs.clock.lap("data")
        watchdog.beat(f"the update of step {done}")
        verdict = update(
            engine, batch.micro_batches, batch.target_tokens, world,
            lambda share: health.judge(share, is_stopping()), costs.clock.lap,
        )  # fmt: skip
        norm = engine.get_global_grad_norm()
        judged = health.record(step, verdict, engine.was_step_applied(), norm)
        spent = costs.of(batch)
        if metrics:
            metrics.step(done, {
                "loss": verdict.loss,
                "lr": lr,
                "gradient_norm": float(norm),
                **judged,
                "source_tokens": batch.source_tokens,
                "target_tokens": batch.target_tokens,
                "source_fill": batch.source_fill,
                "target_fill": batch.target_fill,
                **spent,
                "processes": world.size,
                "checkpoint_seconds": saving,  # of the save before this step
            })  # fmt: skip
        if settings.picture_every and done % settings.picture_every == 0:
            with metrics.recording() if metrics else nullcontext():
                portraits.draw(engine.module, done)

        last = done == settings.max_steps
        improved = False
        watchdog.beat(f"the validation of step {done}")
        if validation and (last or done % settings.validate_every == 0):
            scores, summaries = validation.run(engine.module)
            if metrics:
                metrics.validation(done, scores, summaries)
            quality = scores.get("mean_rouge", -scores["loss"])
            best = progress["best"]["quality"] if "best" in progress else -math.inf
            improved = math.isfinite(quality) and quality > best
            progress["validations_since_best"] = 0 if improved else since_best(progress) + 1
            if improved:
                progress["best"] = {"step": done, "quality": quality}
            last = last or gave_up(settings, progress)
        saving = 0.0
        if last or verdict.stopping or improved or done % settings.checkpoint_every == 0:
            together(world, run, metrics.flush if metrics else nothing)
            watchdog.beat(f"the checkpoint of step {done}")
            saving = checkpoints.save(
                engine, done, {**progress, "health": health.state(), "joules": costs.joules}
            )
        if verdict.stopping:
            stop.honoured(done)
            if not last:
                return CONTINUE_LATER
        if last:
            break

    def finish() -> None:
        if metrics:
            metrics.close()
            replace_json(run / FINISHED, {"steps": done, **progress})

    together(world, run, finish)
    return 0


def record(run: Path, step: int, config: RunConfig) -> Metrics:
    """The run folder's record from after `step` on, and its configuration."""
    replace_text(run / "config.yaml", config.to_yaml())
    return Metrics(run, step, config.train.max_steps, config)


def nothing() -> None:
    """What the processes do that have nothing to write."""


def together(world: World, run: Path, action: Callable[[], T]) -> T:
    """What `action` returns; RunFailed on all processes where one of them could not write."""
    result, problems = world.attempt(action, OSError)
    if problems:
        raise RunFailed(
            f"{run} cannot be written: {problems[0]}; the checkpoints are whole, make room or mend "
            "the folder and start the same command again"
        )
    return cast(T, result)


def in_steps(config: RunConfig, samples: int) -> RunConfig:
    """The same run with `max_steps` as `max_epochs` over so many samples has it."""
    return replace(config, train=replace(config.train, max_steps=steps_of(config.train, samples)))


def update(
    engine: deepspeed.DeepSpeedEngine,
    micro_batches: Sequence[MicroBatch],
    target_tokens: int,
    world: World,
    judge: Callable[[float], Verdict],
    lap: Callable[[str], None],
) -> Verdict:
    """One update of the weights, or none where `judge` does not want it, from this process's part.

    Each loss is the sum over target tokens divided by the whole batch's `target_tokens`, so that
    the gradient does not depend on how the batch is cut. DeepSpeed averages over processes and
    micro-batches: the factor undoes that. Before the last backward pass `judge` is given this
    process's share of the loss; without its consent the gradient becomes NaN, which makes
    DeepSpeed leave out the update. `lap` is told of every part that is done, for its time.
    """
    total = 0.0
    scale = world.size * len(micro_batches) / target_tokens
    for number, micro_batch in enumerate(micro_batches, start=1):
        output = engine(
            micro_batch.input_ids.to(world.device, non_blocking=True),
            micro_batch.attention_mask.to(world.device, non_blocking=True),
            micro_batch.labels.to(world.device, non_blocking=True),
            loss_reduction="sum",
        )
        loss = output.loss
        del output  # its logits would live through the next forward pass
        total += loss.item()
        if number == len(micro_batches):
            verdict = judge(total / target_tokens)
            scale = scale if verdict.wanted else math.nan
        lap("forward")
        engine.backward(loss * scale)
        lap("backward")
        engine.step()
        lap("optimizer")
    return verdict


def since_best(progress: dict[str, Any]) -> int:
    """Validations since the best one."""
    return progress.get("validations_since_best", 0)


def gave_up(settings: TrainConfig, progress: dict[str, Any]) -> bool:
    """Whether so many validations brought nothing better that the run ends early."""
    return 0 < settings.early_stopping <= since_best(progress)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, rank), so that a resumed run repeats it."""
    state = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(state) >> 1)
