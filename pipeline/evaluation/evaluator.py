"""Evaluate a checkpoint on a test set: prepare, predict and score what is missing, aggregate."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import torch

from pipeline.baselines.model import Baseline
from pipeline.common.files import hold_lock, replace_json
from pipeline.common.progress import Progress
from pipeline.distributed.sequence_parallel import ends_together, in_sequences, sequence_group
from pipeline.distributed.world import World
from pipeline.evaluation.examples import Example, Examples
from pipeline.evaluation.preparation import (
    SETTINGS,
    EvaluationOptions,
    PreparedEvaluation,
    prepare,
)
from pipeline.evaluation.results import SUBMISSION, environment, summarise, trained_length
from pipeline.evaluation.rouge_pool import RougePool, workers_here
from pipeline.evaluation.source_use import (
    Exchange,
    complete_losses,
    model_losses,
    plan_exchange,
)
from pipeline.evaluation.systems import (
    System,
    lead_system,
    lead_words_system,
    model_system,
    permuted_system,
)
from pipeline.inference.decode import Summary, length_batches, load
from pipeline.manifest import unknown_share
from pipeline.scoring import source_use
from pipeline.scoring.predictions import DOCUMENT_START, RESULTS, Predictions, Record, lacks_scores
from pipeline.scoring.rouge import mean_column


def evaluate(options: EvaluationOptions, world: World) -> tuple[dict[str, Any], bool]:
    """Predict and score what the output folder lacks; (results, whether anything was missing).

    A collective: every process, or group of those that share documents, takes its share of the
    batches, rank 0 joins and aggregates. Raises ValueError, on all processes, as `prepare` does,
    where another evaluation uses the folder, or for groups that the processes do not fill.
    """
    world = in_sequences(world, options.sequence_parallel_size, "pipeline/evaluate.py")
    prepared = world.on_all(lambda: prepare(options), ValueError, OSError)
    if world.is_main and prepared.without_references:
        print(f"documents: {prepared.without_references}")
    if prepared.results:
        return prepared.results, False
    exchange = world.on_all(lambda: _exchange(options, prepared), ValueError, OSError)
    lock = world.on_all(
        lambda: _lock(options.output) if world.is_main else None, ValueError, OSError
    )
    try:
        if world.is_main:
            replace_json(options.output / SETTINGS, prepared.settings)
        world.barrier()
        _predict_missing(options, prepared, world)
        if exchange:
            _measure(options, prepared, exchange, world)
        if world.is_main:
            _aggregate(options, prepared, world.device)
        world.barrier()
        return json.loads((options.output / RESULTS).read_text(encoding="utf-8")), True
    finally:
        if lock:
            lock.close()


def _exchange(options: EvaluationOptions, prepared: PreparedEvaluation) -> Exchange | None:
    """What source use by position has to measure; before hours of summaries, as it may refuse."""
    return plan_exchange(prepared.examples, options.batch_size) if prepared.measures else None


def _measure(
    options: EvaluationOptions, prepared: PreparedEvaluation, exchange: Exchange, world: World
) -> None:
    """Complete the losses from which source use by position is computed."""
    group = sequence_group(world)
    model, _ = load(options.checkpoint, world.device, group)
    if isinstance(model, Baseline):
        model.check_length(exchange.longest)
    losses = model_losses(model, options.precision, world.device)
    with ends_together(group):
        complete_losses(prepared.losses, prepared.examples, exchange, losses, world)


def _lock(output: Path) -> IO[str]:
    """Create the folder and lock it until the returned file is closed or the process ends."""
    output.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(output / ".lock")
    if lock is None:
        raise ValueError(
            f"--output {output}: another evaluation is using this folder; wait until it ends, or "
            "give another"
        )
    return lock


def _predict_missing(
    options: EvaluationOptions, prepared: PreparedEvaluation, world: World
) -> None:
    """Complete the predictions of every missing system, one system after the other."""
    examples, batches = prepared.examples, []
    if prepared.missing:
        lengths = [len(examples[index].source) for index in range(len(examples))]
        batches = length_batches(lengths, options.batch_size)
    with RougePool(workers_here(world), options.stemmer) as pool:
        for name in prepared.missing:
            system = _system(name, options, prepared, world)
            with ends_together(sequence_group(world)):
                _complete(prepared.stores[name], examples, batches, system, world, pool)


def _system(
    name: str, options: EvaluationOptions, prepared: PreparedEvaluation, world: World
) -> System:
    examples = prepared.examples
    if name == "lead":
        return lead_system(examples, options.lead_sentences)
    if name == "lead_words":
        return lead_words_system(examples)
    if name == "permuted":
        records = prepared.stores["model"].read()
        return permuted_system(
            [Summary(record["prediction"], not record.get("cut")) for record in records]
        )
    return model_system(options.checkpoint, examples, options.strategy, options.precision, world)


def _complete(
    store: Predictions,
    examples: Examples,
    batches: Sequence[list[int]],
    system: System,
    world: World,
    pool: RougePool,
) -> None:
    """Predict and score what the store lacks, each group of processes its share of the batches;
    join them."""
    before = store.read()
    done = {record["index"] for record in before}
    writes, part = world.sequence_rank == 0, world.data_rank  # the first of each group writes
    unscored = list(filter(lacks_scores, before))[part :: world.data_size]
    world.barrier()  # every process has read before one writes
    if writes:
        store.repair(part)
    share = [batch for batch in batches if not done.issuperset(batch)][part :: world.data_size]
    bar = None
    if world.is_main:
        bar = Progress(f"Summaries ({store.system})", sum(map(len, share)), "documents")
    began, waited = time.perf_counter(), pool.waited
    pool.add(unscored if writes else [])
    for batch in share:
        # The whole batch even where part of it is done: the padding, hence the rounding, stays.
        summaries = system(batch)
        if not writes:
            continue
        records = [
            _record(index, examples[index], summary)
            for index, summary in zip(batch, summaries, strict=True)
            if index not in done
        ]
        store.append(records, part)
        pool.add(records)
        store.append_scores(pool.take(), part)
        if bar:
            bar.update(len(batch))
    store.append_scores(pool.take(leave=0), part)
    seconds, waited = time.perf_counter() - began, pool.waited - waited
    world.barrier()
    if bar:
        bar.close()
        store.finish(len(examples))
        print(
            f"{store.system}: {seconds:.1f} s, {waited:.1f} s of it waiting for scores "
            f"({pool.workers} workers)"
        )
    world.barrier()


def _record(index: int, example: Example, summary: Summary) -> Record:
    """An example's record before it is scored."""
    return {
        "index": index,
        "id": example.id,
        "document": example.document[:DOCUMENT_START],
        "prediction": summary.text,
        **summary.marks(),
        "references": example.references,
    }


def _aggregate(
    options: EvaluationOptions, prepared: PreparedEvaluation, device: torch.device
) -> None:
    """Write the results over all complete systems, and the submission where it is wanted."""
    stores, losses = prepared.stores.items(), prepared.losses
    records = {name: store.read() for name, store in stores if store.complete}
    if options.scrolls_submission:
        summaries = {record["id"]: record["prediction"] for record in records["model"]}
        replace_json(options.output / SUBMISSION, summaries)
    results = {
        "checkpoint": str(options.checkpoint),
        "data": str(options.data),
        "settings": prepared.settings,
        "environment": environment(device),
        **trained_length(options.checkpoint),
        "mean": mean_column(prepared.settings["dataset"]["set"]),
        **summarise(records),
        **(source_use.summarise(losses.read()) if losses.complete else {}),
        "repeated_ids": len(prepared.examples.repeated_ids()),
        "unknown_share": unknown_share(prepared.examples.dataset.manifest),
    }
    replace_json(options.output / RESULTS, results)
