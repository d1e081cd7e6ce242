"""The evaluation of a checkpoint on a test set: systems, predictions, scores, one result file."""

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import torch

from pipeline.command_line import described
from pipeline.distributed import World
from pipeline.evaluation import rouge
from pipeline.evaluation.decode import (
    generate_batch,
    length_batches,
    load,
    open_checkpoint,
)
from pipeline.evaluation.examples import (
    PERMUTED_SEED,
    Example,
    Examples,
    derangement,
    lead,
    lead_words,
)
from pipeline.evaluation.paper import mean_column
from pipeline.evaluation.predictions import DOCUMENT_START, Predictions, Record, lacks_scores
from pipeline.evaluation.results import RESULTS, summarise
from pipeline.evaluation.scoring import Scoring, workers_here
from pipeline.evaluation.tables import flatten
from pipeline.files import check_folder, hold_lock, replace_json
from pipeline.huggingface_tokenizer import AnyTokenizer
from pipeline.model.generation import DecodingStrategy
from pipeline.models import weights_file
from pipeline.progress import Progress
from pipeline.shards import Dataset, file_sha256

SYSTEMS = ("model", "lead", "lead_words", "permuted")
DEFAULT_SYSTEMS = ("model", "lead", "permuted")
SUBMISSION = "scrolls_submission.json"
VERSIONS = ("torch", "numpy", "sentencepiece", "rouge-score")

Predict = Callable[[list[int]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to evaluate and how; `source_length` None keeps the ids the dataset holds."""

    checkpoint: Path
    data: Path
    output: Path
    systems: tuple[str, ...] = DEFAULT_SYSTEMS
    strategy: DecodingStrategy = field(default_factory=DecodingStrategy)
    batch_size: int = 8
    limit: int = 0
    precision: str = "bf16"
    source_length: int | None = None
    lead_sentences: int = 3
    stemmer: bool = False
    scrolls_submission: bool = False
    """Summarise documents without a reference too, and write all summaries by id."""


@dataclass(frozen=True)
class Prepared:
    """An evaluation that nothing known beforehand stands against; `results` if it is complete."""

    examples: Examples
    settings: dict[str, Any]
    donors: list[int]
    results: dict[str, Any] | None
    stores: dict[str, Predictions]
    missing: list[str]
    """Systems of which predictions are still to be made."""
    submission: bool

    def describe(self) -> str:
        """What there is and what is to be done, in one line."""
        dataset, without = self.settings["dataset"], self.without_references
        missing = ", ".join(self.missing) or "the results"
        to_do = "complete, nothing to do" if self.results else f"to do: {missing}"
        what = f" ({without})" if without else ""
        return f"{len(self.examples)} documents of {dataset['name']}{what}, {to_do}"

    @property
    def without_references(self) -> str:
        """What becomes of the documents without a reference, nothing where there are none."""
        count = self.examples.without_references
        done = "summarised, not scored" if self.submission else "left out"
        return f"{count} without a reference {done}" if count else ""


def prepare(options: Options) -> Prepared:
    """Check all that can be checked without a summary; reads much, writes nothing.

    Raises ValueError when the checkpoint or the data cannot be evaluated, their tokenizers differ,
    or the output folder cannot be used or holds an evaluation of other settings or damaged files.
    """
    if "permuted" in options.systems and "model" not in options.systems:
        raise ValueError("permuted reuses the model's summaries; add model to --systems")
    if options.scrolls_submission and options.systems != ("model",):
        raise ValueError("--scrolls_submission is for the model alone; give --systems model")
    dataset = Dataset(options.data)
    folder, tokenizer = open_checkpoint(options.checkpoint)
    _same_tokenizer(tokenizer, dataset)
    check_folder(options.output)
    examples = Examples(
        dataset, options.source_length, options.limit, hidden=options.scrolls_submission
    )
    if options.scrolls_submission and (twice := examples.repeated_ids()):
        raise ValueError(
            f"{dataset.path}: {len(twice)} ids, among them {twice[0]!r}, have several documents, a "
            "submission has one summary an id; give each document its own"
        )
    settings = _settings(options, folder, dataset, len(examples))
    _same_settings(options.output / "settings.json", settings)
    donors = derangement(len(examples)) if "permuted" in options.systems else []
    stores = {system: Predictions(options.output, system) for system in SYSTEMS}
    for store in stores.values():
        if store.complete:
            store.check_whole(len(examples))
    missing = [name for name in SYSTEMS if name in options.systems and not stores[name].complete]
    results = None if missing else _complete_results(options)
    return Prepared(
        examples, settings, donors, results, stores, missing, options.scrolls_submission
    )


def evaluate(options: Options, world: World) -> tuple[dict[str, Any], bool]:
    """Predict and score what is missing in the output folder; (results, whether any was missing).

    Every process calls it and takes its share of the batches; rank 0 joins and aggregates. Raises
    ValueError, on all processes, as `prepare` does on one, or where another evaluation works in the
    output folder.
    """
    prepared = _on_all(world, lambda: prepare(options))
    if world.is_main and prepared.without_references:
        print(f"documents: {prepared.without_references}")
    if prepared.results:
        return prepared.results, False
    lock = _on_all(world, lambda: _claim(options.output) if world.is_main else None)
    try:
        return _evaluate(options, prepared, world), True
    finally:
        if lock:
            lock.close()


def _evaluate(options: Options, prepared: Prepared, world: World) -> dict[str, Any]:
    """`evaluate` in a folder that is this evaluation's."""
    examples, settings, stores = prepared.examples, prepared.settings, prepared.stores
    if world.is_main:
        replace_json(options.output / "settings.json", settings)
    world.barrier()

    missing, batches = prepared.missing, []
    if missing:
        lengths = [len(examples[index].source) for index in range(len(examples))]
        batches = length_batches(lengths, options.batch_size)
    with Scoring(workers_here(world), options.stemmer) as scoring:
        for system in missing:
            predict = _predictor(
                system, options, examples, stores["model"], prepared.donors, world.device
            )
            _fill(stores[system], examples, batches, predict, world, scoring)
    if world.is_main:
        records = {name: store.read() for name, store in stores.items() if store.complete}
        found = {
            "checkpoint": str(options.checkpoint),
            "data": str(options.data),
            "settings": settings,
            "environment": _environment(world.device),
            "mean": mean_column(settings["dataset"]["set"]),
            **summarise(records),
            "repeated_ids": len(examples.repeated_ids()),
        }
        if options.scrolls_submission:
            written = {record["id"]: record["prediction"] for record in records["model"]}
            replace_json(options.output / SUBMISSION, written)
        replace_json(options.output / RESULTS, found)
    world.barrier()
    return json.loads((options.output / RESULTS).read_text(encoding="utf-8"))


T = TypeVar("T")


def _on_all(world: World, action: Callable[[], T]) -> T:
    """What `action` returns here. Raises ValueError on all processes where it fails on one."""

    def described_action() -> T:
        try:
            return action()
        except OSError as error:
            raise ValueError(described(error)) from None

    result, problems = world.attempt(described_action, ValueError)
    if problems:
        raise ValueError("; ".join(dict.fromkeys(problems)))
    return cast(T, result)


def _claim(output: Path) -> IO[str]:
    """Create the folder and lock it while this process lives, or until the lock is closed."""
    output.mkdir(parents=True, exist_ok=True)
    lock = hold_lock(output / ".lock")
    if lock is None:
        raise ValueError(
            f"--output {output}: another evaluation works in this folder; wait for it to end, or "
            "give another"
        )
    return lock


def _environment(device: torch.device) -> dict[str, str]:
    """What the numbers may depend on beside the settings."""
    versions = {package: version(package) for package in VERSIONS}
    return {"python": platform.python_version(), **versions, "device": device.type}


def _complete_results(options: Options) -> dict[str, Any] | None:
    """The results that lie in the output folder, if all systems asked for are among them."""
    path = options.output / RESULTS
    if not path.is_file():
        return None
    results = json.loads(path.read_text(encoding="utf-8"))
    scored = results["examples"] == 0 or results["systems"].keys() >= set(options.systems)
    written = not options.scrolls_submission or (options.output / SUBMISSION).is_file()
    return results if scored and written else None


def _predictor(
    system: str,
    options: Options,
    examples: Examples,
    model_predictions: Predictions,
    donors: Sequence[int],
    device: torch.device,
) -> Predict:
    """The system as a function from the indices of a batch to their summaries."""
    if system == "lead":
        return lambda batch: [lead(examples[i].document, options.lead_sentences) for i in batch]
    if system == "lead_words":
        words = examples.mean_reference_words()
        return lambda batch: [lead_words(examples[i].document, words) for i in batch]
    if system == "permuted":
        # A summary is a function of the source, or a sample of one: what the model says of another
        # document is already known.
        summaries = [record["prediction"] for record in model_predictions.read()]
        return lambda batch: [summaries[donors[i]] for i in batch]
    model, tokenizer = load(options.checkpoint, device)
    return lambda batch: generate_batch(
        model,
        tokenizer,
        [examples[i].source for i in batch],
        options.strategy,
        options.precision,
        device,
    )


def _fill(
    store: Predictions,
    examples: Examples,
    batches: Sequence[list[int]],
    predict: Predict,
    world: World,
    scoring: Scoring,
) -> None:
    """Predict and score the batches that lack an example, this process its share of them."""
    before = store.read()
    done = {record["index"] for record in before}
    unscored = list(filter(lacks_scores, before))[world.rank :: world.size]
    world.barrier()  # every process has read before one writes
    store.repair(world.rank)
    share = [batch for batch in batches if not done.issuperset(batch)][world.rank :: world.size]
    bar = None
    if world.is_main:
        bar = Progress(f"Summaries ({store.system})", sum(map(len, share)), "documents")
    began, waited = time.perf_counter(), scoring.waited
    scoring.add(unscored)
    for batch in share:
        # The whole batch even where a part is done: its padding, hence its rounding, stays.
        summaries = predict(batch)
        records = [
            _record(index, examples[index], text)
            for index, text in zip(batch, summaries, strict=True)
            if index not in done
        ]
        store.append(records, world.rank)
        scoring.add(records)
        store.append_scores(scoring.take(), world.rank)
        if bar:
            bar.update(len(batch))
    store.append_scores(scoring.take(leave=0), world.rank)
    seconds, waited = time.perf_counter() - began, scoring.waited - waited
    world.barrier()
    if bar:
        bar.close()
        store.finish(len(examples))
        print(
            f"{store.system}: {seconds:.1f} s, of which {waited:.1f} s waited for scores "
            f"({scoring.workers} at a time)"
        )
    world.barrier()


def _record(index: int, example: Example, prediction: str) -> Record:
    """An example before it is scored."""
    return {
        "index": index,
        "id": example.id,
        "document": example.document[:DOCUMENT_START],
        "prediction": prediction,
        "references": example.references,
    }


def _settings(options: Options, folder: Path, dataset: Dataset, count: int) -> dict[str, Any]:
    """What decides the numbers; an output folder holds the results of one such choice."""
    made = dataset.manifest["settings"]
    length = options.source_length
    if length is None:
        length = made.get("source_length")
    return {
        "weights_sha256": file_sha256(weights_file(folder)),
        "tokenizer_sha256": dataset.manifest["tokenizer"]["sha256"],
        "dataset": {
            "name": dataset.manifest["name"],
            "set": made.get("dataset", "").replace("-", "_"),
            "split": dataset.manifest["split"],
            "fingerprint": dataset.fingerprint,
            "examples": count,
        },
        "decoding": {
            "method": options.strategy.method,
            **asdict(options.strategy),
            "source_length": "as in the dataset" if length is None else length or "whole text",
            "batch_size": options.batch_size,
            "precision": options.precision,
        },
        "lead_sentences": options.lead_sentences,
        "permuted_seed": PERMUTED_SEED,
        "rouge": rouge.recipe(options.stemmer),
    }


def _same_tokenizer(tokenizer: AnyTokenizer, dataset: Dataset) -> None:
    ours, theirs = tokenizer.sha256, dataset.manifest["tokenizer"]["sha256"]
    if ours != theirs:
        raise ValueError(
            f"{tokenizer.path} (sha256 {ours}) is not the tokenizer of {dataset.path} (sha256 "
            f"{theirs}); preprocess the set again with it"
        )


def _same_settings(path: Path, settings: dict[str, Any]) -> None:
    if not path.is_file():
        return
    found, wanted = flatten(json.loads(path.read_text(encoding="utf-8"))), flatten(settings)
    differences = [
        f"{name} was {found.get(name)}, now {wanted.get(name)}"
        for name in {**found, **wanted}
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path.parent} holds an evaluation of other settings ({'; '.join(differences)}); "
            "give the same settings to go on with it, or another --output"
        )
