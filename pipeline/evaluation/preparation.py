"""Everything about an evaluation that can be checked before a summary is generated."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.baselines.registry import weights_file
from pipeline.common.files import check_folder
from pipeline.common.settings import differences
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.results import find_results
from pipeline.evaluation.systems import DEFAULT_SYSTEMS, PERMUTED_SEED, SYSTEMS, derangement
from pipeline.inference.decode import check_sharing, open_checkpoint
from pipeline.model.generation import DecodingStrategy
from pipeline.scoring import rouge
from pipeline.scoring.predictions import Predictions
from pipeline.scoring.source_use import Losses
from pipeline.shards import Dataset, file_sha256
from pipeline.tokenizer import AnyTokenizer

SETTINGS = "settings.json"


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What to evaluate and how; `source_length` None keeps the dataset's ids."""

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
    source_use_by_position: bool = False
    """Measure the rise of the loss with each tenth of the source exchanged."""
    sequence_parallel_size: int = 1
    """Processes that share each document."""


@dataclass(frozen=True)
class PreparedEvaluation:
    """An evaluation that has passed all checks; `results` if it is complete."""

    examples: Examples
    settings: dict[str, Any]
    results: dict[str, Any] | None
    stores: dict[str, Predictions]
    missing: list[str]
    """Systems whose predictions are incomplete."""
    losses: Losses
    measures: bool
    """Whether source use by position is wanted, and incomplete."""
    submission: bool

    def describe(self) -> str:
        """The documents and the remaining work, in one line."""
        dataset, without = self.settings["dataset"], self.without_references
        measures = ["source use by position"] if self.measures else []
        missing = ", ".join([*self.missing, *measures]) or "the results"
        to_do = "complete, nothing to do" if self.results else f"to do: {missing}"
        what = f" ({without})" if without else ""
        return f"{len(self.examples)} documents of {dataset['name']}{what}, {to_do}"

    @property
    def without_references(self) -> str:
        """How documents without a reference are treated; empty where there are none."""
        count = self.examples.without_references
        done = "summarised, not scored" if self.submission else "left out"
        return f"{count} without a reference {done}" if count else ""


def prepare(options: EvaluationOptions) -> PreparedEvaluation:
    """Check everything that does not need a summary; writes nothing.

    Raises ValueError when the checkpoint or the data cannot be evaluated, their tokenizers differ,
    or the output folder cannot be used or holds an evaluation with other settings or damaged files.
    """
    if "permuted" in options.systems and "model" not in options.systems:
        raise ValueError("permuted reuses the model's summaries; add model to --systems")
    if options.scrolls_submission and options.systems != ("model",):
        raise ValueError("--scrolls_submission is for the model alone; give --systems model")
    dataset = Dataset(options.data)
    folder, tokenizer = open_checkpoint(options.checkpoint)
    check_sharing(folder, options.sequence_parallel_size)
    _check_tokenizer(tokenizer, dataset)
    check_folder(options.output)
    examples = Examples(
        dataset, options.source_length, options.limit, hidden=options.scrolls_submission
    )
    if options.scrolls_submission and (repeated := examples.repeated_ids()):
        raise ValueError(
            f"{dataset.path}: {len(repeated)} ids, among them {repeated[0]!r}, have several "
            "documents, but a submission has one summary per id; give each document its own id"
        )
    settings = _settings(options, folder, dataset, len(examples))
    _check_settings(options.output, settings)
    if "permuted" in options.systems:
        derangement(len(examples))  # ValueError where there is only one document
    by_position = options.source_use_by_position
    if by_position and len(examples) < 2:
        raise ValueError(
            f"--source_use_by_position exchanges parts of sources, and {dataset.path} gives 1 "
            "document; give more, or leave it out"
        )
    stores = {system: Predictions(options.output, system) for system in SYSTEMS}
    losses = Losses(options.output, "model")
    for store in (*stores.values(), losses):
        if store.complete:
            store.check_whole(len(examples))
    missing = [name for name in SYSTEMS if name in options.systems and not stores[name].complete]
    measures = by_position and not losses.complete
    results = None
    if not missing and not measures:
        results = find_results(
            options.output, options.systems, options.scrolls_submission, by_position
        )
    return PreparedEvaluation(
        examples, settings, results, stores, missing, losses, measures, options.scrolls_submission
    )


def _settings(
    options: EvaluationOptions, folder: Path, dataset: Dataset, count: int
) -> dict[str, Any]:
    """The settings that determine the numbers; an output folder holds one choice of them."""
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
            **_strategy(options.strategy),
            "source_length": "as in the dataset" if length is None else length or "whole text",
            "batch_size": options.batch_size,
            "precision": options.precision,
        },
        "lead_sentences": options.lead_sentences,
        "permuted_seed": PERMUTED_SEED,
        "rouge": rouge.recipe(options.stemmer),
    }


def _strategy(strategy: DecodingStrategy) -> dict[str, Any]:
    """The strategy as settings, by which greedy evaluations made before `early_stopping` existed
    can be resumed, but no beam search that would end elsewhere or sampling that drew otherwise."""
    settings = asdict(strategy)
    if strategy.num_beams == 1:
        del settings["early_stopping"]
    return settings | ({} if strategy.top_p is None else {"draws": "by seed and source"})


def _check_tokenizer(tokenizer: AnyTokenizer, dataset: Dataset) -> None:
    ours, theirs = tokenizer.sha256, dataset.manifest["tokenizer"]["sha256"]
    if ours != theirs:
        raise ValueError(
            f"{tokenizer.path} (sha256 {ours}) is not the tokenizer of {dataset.path} (sha256 "
            f"{theirs}); preprocess the dataset again with it"
        )


def _check_settings(output: Path, settings: dict[str, Any]) -> None:
    path = output / SETTINGS
    if not path.is_file():
        return
    if changes := differences(json.loads(path.read_text(encoding="utf-8")), settings):
        raise ValueError(
            f"{output} holds an evaluation with other settings ({'; '.join(changes)}); give the "
            "same settings to resume it, or another --output"
        )
