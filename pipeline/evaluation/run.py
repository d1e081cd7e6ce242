"""The evaluation of a checkpoint on a test set: systems, predictions, scores, one result file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.distributed import World
from pipeline.evaluation import rouge
from pipeline.evaluation.decode import (
    encode_source,
    generate_batch,
    length_batches,
    load,
    open_checkpoint,
)
from pipeline.evaluation.predictions import DOCUMENT_START, Predictions, Record
from pipeline.evaluation.results import RESULTS
from pipeline.evaluation.tables import flatten
from pipeline.files import check_folder, replace_json
from pipeline.huggingface_tokenizer import AnyTokenizer, open_tokenizer
from pipeline.model.generation import DecodingStrategy
from pipeline.models import weights_file
from pipeline.progress import Progress
from pipeline.shards import Dataset, file_sha256
from preprocessing.sentences import split_sentences

SYSTEMS = ("model", "lead", "permuted")
PERMUTED_SEED = 0

Predict = Callable[[list[int]], list[str]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to evaluate and how; `source_length` None keeps the ids the dataset holds."""

    checkpoint: Path
    data: Path
    output: Path
    systems: tuple[str, ...] = SYSTEMS
    strategy: DecodingStrategy = field(default_factory=DecodingStrategy)
    batch_size: int = 8
    limit: int = 0
    precision: str = "bf16"
    source_length: int | None = None
    lead_sentences: int = 3


@dataclass(frozen=True)
class Example:
    """A test document: its ids (L,), its text, its untruncated references from all its pairs."""

    id: str
    source: np.ndarray
    document: str
    references: list[str]


class Examples:
    """The first `limit` (0: all) documents of a summarisation dataset that have a reference.

    Samples of one id and one text are pairs of one document, at its first one's place. Raises
    ValueError when the dataset holds none, is of another kind or has no reference at all.
    """

    def __init__(self, dataset: Dataset, source_length: int | None = None, limit: int = 0) -> None:
        if dataset.manifest["kind"] != "summarisation":
            raise ValueError(
                f"{dataset.path} holds {dataset.manifest['kind']} samples, evaluation needs "
                "references; make the set with `python -m preprocessing.finetune`"
            )
        if len(dataset) == 0:
            raise ValueError(f"{dataset.path} holds no samples, nothing to evaluate")
        self.dataset, self.source_length = dataset, source_length
        self.tokenizer = open_tokenizer(dataset.tokenizer_path)
        documents: dict[tuple[str, int], list[int]] = {}
        for index in range(len(dataset)):
            metadata = dataset[index].metadata
            pairs = documents.setdefault((metadata["id"], hash(metadata["source_text"])), [])
            if metadata["references"]:
                pairs.append(index)
        self.pairs = [pairs for pairs in documents.values() if pairs]
        self.without_references = len(documents) - len(self.pairs)
        if not self.pairs:
            raise ValueError(
                f"{dataset.path}: none of its {len(documents)} documents has a reference to score "
                "against; evaluate on a split that has them"
            )
        self.count = min(limit or len(self.pairs), len(self.pairs))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        sample, *others = (self.dataset[pair] for pair in self.pairs[index])
        document, source = sample.metadata["source_text"], sample.source
        references = [text for pair in (sample, *others) for text in pair.metadata["references"]]
        if self.source_length is not None:
            source = encode_source(self.tokenizer, document, self.source_length)
        return Example(sample.metadata["id"], source, document, references)


def lead(document: str, sentences: int) -> str:
    """The first sentences of a document, the baseline that reads nothing else."""
    return " ".join(split_sentences(document)[:sentences])


def derangement(count: int, seed: int = PERMUTED_SEED) -> list[int]:
    """For each of `count` documents another one: a seeded cycle through all of them.

    Raises ValueError for fewer than two documents, which have no other.
    """
    if count < 2:
        raise ValueError("permuted needs at least 2 documents; leave it out of --systems")
    order = np.random.default_rng(seed).permutation(count)
    donors = np.empty(count, dtype=np.int64)
    donors[order] = np.roll(order, 1)
    return donors.tolist()


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

    def describe(self) -> str:
        """What there is and what is to be done, in one line."""
        dataset, left_out = self.settings["dataset"], self.examples.without_references
        without = f" ({left_out} without a reference left out)" if left_out else ""
        to_do = "complete, nothing to do" if self.results else f"to do: {', '.join(self.missing)}"
        return f"{len(self.examples)} documents of {dataset['name']}{without}, {to_do}"


def prepare(options: Options) -> Prepared:
    """Check all that can be checked without a summary; reads much, writes nothing.

    Raises ValueError when the checkpoint or the data cannot be evaluated, their tokenizers differ,
    or the output folder cannot be used or holds an evaluation of other settings or damaged files.
    """
    if "permuted" in options.systems and "model" not in options.systems:
        raise ValueError("permuted reuses the model's summaries; add model to --systems")
    dataset = Dataset(options.data)
    folder, tokenizer = open_checkpoint(options.checkpoint)
    _same_tokenizer(tokenizer, dataset)
    check_folder(options.output)
    examples = Examples(dataset, options.source_length, options.limit)
    settings = _settings(options, folder, dataset, len(examples))
    _same_settings(options.output / "settings.json", settings)
    donors = derangement(len(examples)) if "permuted" in options.systems else []
    results = _complete_results(options)
    stores = {system: Predictions(options.output, system) for system in SYSTEMS}
    for store in stores.values():
        if store.complete and not results:
            store.check_whole(len(examples))
    missing = [name for name in SYSTEMS if name in options.systems and not stores[name].complete]
    return Prepared(examples, settings, donors, results, stores, missing)


def evaluate(options: Options, world: World) -> tuple[dict[str, Any], bool]:
    """Predict and score what is missing in the output folder; (results, whether any was missing).

    Every process calls it and takes its share of the batches; rank 0 joins and aggregates. Raises
    ValueError as `prepare` does.
    """
    prepared = prepare(options)
    examples, settings, stores = prepared.examples, prepared.settings, prepared.stores
    if world.is_main and examples.without_references:
        print(f"{examples.without_references} documents without a reference are not scored")
    if prepared.results:
        return prepared.results, False
    world.barrier()  # every process has checked; only now does one write
    if world.is_main:
        options.output.mkdir(parents=True, exist_ok=True)
        replace_json(options.output / "settings.json", settings)
    world.barrier()

    missing, batches = prepared.missing, []
    if missing:
        lengths = [len(examples[index].source) for index in range(len(examples))]
        batches = length_batches(lengths, options.batch_size)
    for system in missing:
        predict = _predictor(
            system, options, examples, stores["model"], prepared.donors, world.device
        )
        _fill(stores[system], examples, batches, predict, world)
    if world.is_main:
        found = {
            "checkpoint": str(options.checkpoint),
            "data": str(options.data),
            "settings": settings,
            "environment": {"torch": torch.__version__, "device": world.device.type},
            **_summary({name: store.read() for name, store in stores.items() if store.complete}),
        }
        replace_json(options.output / RESULTS, found)
    world.barrier()
    return json.loads((options.output / RESULTS).read_text(encoding="utf-8")), True


def _complete_results(options: Options) -> dict[str, Any] | None:
    """The results that lie in the output folder, if all systems asked for are among them."""
    path = options.output / RESULTS
    if not path.is_file():
        return None
    results = json.loads(path.read_text(encoding="utf-8"))
    return results if results["systems"].keys() >= set(options.systems) else None


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
) -> None:
    """Predict and score the batches that lack an example, this process its share of them."""
    done = {record["index"] for record in store.read()}
    world.barrier()  # every process has read before one writes
    store.repair(world.rank)
    share = [batch for batch in batches if not done.issuperset(batch)][world.rank :: world.size]
    bar = None
    if world.is_main:
        bar = Progress(f"Summaries ({store.system})", sum(map(len, share)), "documents")
    for batch in share:
        # The whole batch even where a part is done: its padding, hence its rounding, stays.
        summaries = predict(batch)
        records = (
            _record(index, examples[index], text)
            for index, text in zip(batch, summaries, strict=True)
            if index not in done
        )
        store.append(list(records), world.rank)
        if bar:
            bar.update(len(batch))
    world.barrier()
    if bar:
        bar.close()
        store.finish(len(examples))
    world.barrier()


def _record(index: int, example: Example, prediction: str) -> Record:
    pairs = rouge.score_pairs(prediction, example.references)
    return {
        "index": index,
        "id": example.id,
        "document": example.document[:DOCUMENT_START],
        "prediction": prediction,
        "references": example.references,
        "scores": rouge.mean(pairs),
        "best": rouge.best(pairs),
    }


def _summary(systems: dict[str, list[Record]]) -> dict[str, Any]:
    """Means and intervals of each system, the model's paired difference from the others."""
    scores = {name: [record["scores"] for record in records] for name, records in systems.items()}
    return {
        "examples": len(next(iter(scores.values()))),
        "unit": "F1, percent; mean over a document's references, then over documents",
        "systems": {name: rouge.aggregate(values) for name, values in scores.items()},
        "best_over_references": {
            name: rouge.aggregate([record["best"] for record in records])
            for name, records in systems.items()
        },
        "model_minus": {
            name: rouge.compare(scores["model"], values)
            for name, values in scores.items()
            if "model" in scores and name != "model"
        },
        # rouge-score reads ASCII letters and digits only: these score 0 whatever they say.
        "predictions_without_words": {
            name: sum(not rouge.readable(record["prediction"]) for record in records)
            for name, records in systems.items()
        },
    }


def _settings(options: Options, folder: Path, dataset: Dataset, count: int) -> dict[str, Any]:
    """What decides the numbers; an output folder holds the results of one such choice."""
    length = options.source_length
    return {
        "weights_sha256": file_sha256(weights_file(folder)),
        "tokenizer_sha256": dataset.manifest["tokenizer"]["sha256"],
        "dataset": {
            "name": dataset.manifest["name"],
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
        "rouge": rouge.recipe(),
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
