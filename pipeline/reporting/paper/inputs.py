"""Inputs of the paper's report: runs, evaluations, other metrics, measurements and manifests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.common.html import escape
from pipeline.reporting.evaluation_reader import read_results
from pipeline.reporting.json_file import read_json_object
from pipeline.reporting.measurements import Measurements
from pipeline.reporting.paper.kernels import KernelPictures
from pipeline.reporting.paper.published import LOCOST, paper
from pipeline.reporting.run_reader import Run
from pipeline.scoring.predictions import Predictions
from pipeline.scoring.source_use import BY_POSITION, Rise
from pipeline.shards import file_sha256

Results = dict[str, Any]
METRICS = ("bert_score", "blanc", "judge")
PRETRAINING = "pre-training"
HIDDEN = dict.fromkeys(("govreport", "summscreenfd"), ("test", "validation"))
"""Splits that stand for the test split: SCROLLS withholds its references."""


@dataclass(frozen=True)
class SetEvaluation:
    """One system on one set: results.json, and the results of other metrics."""

    results: Results
    metrics: list[Results] = field(default_factory=list)


@dataclass(frozen=True)
class PaperInputs:
    """Everything the report shows; `evaluations` by set, then by system."""

    pretrain: Run | None = None
    finetune: Mapping[str, Run] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, SetEvaluation]] = field(default_factory=dict)
    extrapolation: Mapping[str, Mapping[int, SetEvaluation]] = field(default_factory=dict)
    """Of arXiv, by system and source tokens read."""
    contexts: Mapping[str, Mapping[int, SetEvaluation]] = field(default_factory=dict)
    """Of BookSum-Book, by system and source tokens trained on."""
    measurements: Measurements | None = None
    manifests: Mapping[str, list[Results]] = field(default_factory=dict)
    """Of the datasets, by set."""
    kernels: KernelPictures | None = None
    missing: Sequence[str] = ()
    """Stages without results, which the page names."""

    @property
    def locost(self) -> dict[str, Results]:
        """LOCOST's results by set."""
        return {
            name: systems[LOCOST].results
            for name, systems in self.evaluations.items()
            if LOCOST in systems
        }

    def by_set(self) -> Iterator[tuple[str, str, SetEvaluation]]:
        """Every evaluation, with its set's title and its system's."""
        for name in ordered(self.evaluations):
            for system, one in self.evaluations[name].items():
                yield title(name), system_title(system), one
        for kind, sweep in (("read at", self.extrapolation), ("trained at", self.contexts)):
            name = "arxiv" if sweep is self.extrapolation else "booksum_book"
            for system, by_tokens in sweep.items():
                for tokens, one in sorted(by_tokens.items()):
                    yield title(name), f"{system_title(system)} {kind} {tokens:,}", one

    def labelled(self) -> Iterator[tuple[str, SetEvaluation]]:
        """Every evaluation with its name in the report."""
        for name, system, one in self.by_set():
            yield name if system == system_title(LOCOST) else f"{name}, {system}", one

    def source_use(self) -> dict[str, dict[str, list[Rise]]]:
        """The rises of the loss by part of the source, by set and system, where measured."""
        found: dict[str, dict[str, list[Rise]]] = {}
        for name, system, one in self.by_set():
            if rises := one.results.get(BY_POSITION):
                found.setdefault(name, {})[system] = rises
        return found

    @property
    def panels(self) -> dict[str, dict[str, Run]]:
        """The training runs by the titles of the loss figure's panels."""
        pretraining = {PRETRAINING: self.pretrain} if self.pretrain else {}
        finetuning = {title(name): self.finetune[name] for name in ordered(self.finetune)}
        panels = {"Pre-training": pretraining, "Fine-tuning": finetuning}
        return {name: runs for name, runs in panels.items() if runs}

    @property
    def runs(self) -> dict[str, Run]:
        """The training runs by their names in the tables."""
        return {name: run for runs in self.panels.values() for name, run in runs.items()}


def ordered(names: Mapping[str, Any]) -> list[str]:
    """The paper's sets in its order, then the others."""
    known = [name for name in paper().sets if name in names]
    return known + sorted(set(names) - set(known))


def split_name(split: str) -> str:
    """A split's name, whose common synonyms are one."""
    return "validation" if split in ("val", "valid", "dev") else split


def title(name: str) -> str:
    """A set's name in the paper; other sets keep theirs."""
    return paper().sets[name].title if name in paper().sets else escape(name)


def system_title(name: str) -> str:
    """A system's name in the paper; others keep theirs. `led:eager` is LED-base, eager."""
    system, _, variant = name.partition(":")
    shown = paper().systems.get(system) or escape(system)
    return f"{shown}, {escape(variant)}" if variant else shown


def read_set_evaluation(folder: Path, name: str) -> SetEvaluation:
    """A complete evaluation of the model on the set `name`.

    Raises ValueError where it is incomplete; where `name` is a set of the paper, on an evaluation
    of another set or split; and where a metric scored other predictions.
    """
    results = read_results(folder, ("model",))
    if name in paper().sets:
        _check_set(folder, name, results["settings"]["dataset"])
    return SetEvaluation(results, list(_metrics(folder)))


def _check_set(folder: Path, name: str, dataset: Mapping[str, Any]) -> None:
    """Refuse another set than `name`, and another split than the paper's.

    Evaluations of earlier versions do not name the set of their data.
    """
    found, split = dataset.get("set", name), split_name(str(dataset["split"]))
    if found != name:
        raise ValueError(
            f"{folder} is an evaluation of {found or 'data that names no set'}, not of {name}; "
            "give it under its own name, or preprocess its documents with "
            f"--dataset {name.replace('_', '-')}"
        )
    if split not in HIDDEN.get(name, ("test",)):
        raise ValueError(
            f"{folder} is an evaluation of {name}'s split {split}, not of its test split; give it "
            f"under another name, as --evaluation {name}_{split}={folder}"
        )


def check_manifest(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Refuse shards of another set than `name`, where that is one of the paper's."""
    found = str(manifest["settings"].get("dataset", name)).replace("-", "_")
    if name in paper().sets and found != name:
        raise ValueError(f"{folder} holds shards of {found}, not of {name}; give --data {found}=")


def check_one_model(evaluations: Mapping[int, SetEvaluation], system: str) -> None:
    """Refuse evaluations of several models where a table compares the lengths that one reads."""
    if len(_weights(evaluations)) > 1:
        raise ValueError(
            f"the evaluations of arXiv by {system} at {_listed(evaluations)} tokens are of "
            "several models; --extrapolation compares lengths read by one model"
        )


def check_own_models(evaluations: Mapping[int, SetEvaluation], system: str) -> None:
    """Refuse one model's evaluations where each is of a model trained at another length."""
    known = [one for one in evaluations.values() if "weights_sha256" in one.results["settings"]]
    if len(_weights(evaluations)) < len(known):
        raise ValueError(
            f"of the evaluations by {system} trained at {_listed(evaluations)} tokens two are of "
            "one model; give --context the evaluation of each length's own model"
        )


def _weights(evaluations: Mapping[int, SetEvaluation]) -> set[str]:
    """Checksums of the models; evaluations of earlier versions may have none."""
    found = (one.results["settings"].get("weights_sha256") for one in evaluations.values())
    return {weights for weights in found if weights}


def _listed(evaluations: Mapping[int, SetEvaluation]) -> str:
    return ", ".join(f"{tokens:,}" for tokens in sorted(evaluations))


def arxiv_sweeps(inputs: PaperInputs) -> dict[str, dict[int, SetEvaluation]]:
    """By system and tokens read: the extrapolation's evaluations, and arXiv's own with a length."""
    found: dict[str, dict[int, SetEvaluation]] = {}
    for system, one in inputs.evaluations.get("arxiv", {}).items():
        if isinstance(source := one.results["settings"]["decoding"].get("source_length"), int):
            found[system] = {source: one}
    for system, sweep in inputs.extrapolation.items():
        found[system] = {**found.get(system, {}), **sweep}
    return found


def _metrics(folder: Path) -> Iterator[Results]:
    """Results of the other metrics on the model's summaries, ordered by name."""
    paths = [path for kind in METRICS for path in sorted(folder.glob(f"{kind}-model-*.json"))]
    if not paths:
        return
    digest = file_sha256(Predictions(folder, "model").path)
    for path in paths:
        found = read_json_object(path)
        if not {"metric", "column", "scores", "settings"} <= found.keys():
            raise ValueError(
                f"{path} is not the result of a metric; delete it and run metrics.py again"
            )
        if found["settings"].get("predictions_sha256") != digest:
            raise ValueError(f"{path} is of other summaries; delete it and run metrics.py again")
        yield found
