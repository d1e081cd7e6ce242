"""BERTScore by its package (bert-score), with a model from a local folder.

The package computes the scores. The model is loaded here: the package takes any path with "t5" in
it for a T5 model, and would download one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.evaluation.appended import Appended, fingerprint
from pipeline.evaluation.bootstrap import intervals
from pipeline.evaluation.finished import Finished, Summary
from pipeline.evaluation.local_model import local_model
from pipeline.files import replace_json
from pipeline.progress import Progress
from pipeline.shards import file_sha256

COLUMNS = ("precision", "recall", "f1")
PACKAGES = ("bert-score", "transformers", "torch")
BATCHES_A_CHUNK = 4  # texts are sorted by length within a chunk; then its scores are on disk

Triple = tuple[float, float, float]
"""Precision, recall and F1 of one pair, at most 1."""


@dataclass(frozen=True)
class Baseline:
    """Scores of unrelated texts in one layer, which rescaling makes 0; the package's own table."""

    file: str
    sha256: str
    values: Triple

    def rescale(self, raw: np.ndarray) -> np.ndarray:
        """Raw scores (n, 3) so that the baseline becomes 0 and 1 stays 1."""
        values = np.array(self.values)
        return (raw - values) / (1 - values)


def read_baseline(path: Path, layer: int) -> Baseline:
    """The line of a layer in a file LAYER,P,R,F. Raises ValueError without such a line."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = {line.split(",")[0]: line.split(",")[1:] for line in lines[1:]}
    try:
        precision, recall, f1 = map(float, rows[str(layer)])
    except (KeyError, ValueError):
        raise ValueError(
            f"{path} has no line {layer},P,R,F; give the package's rescale_baseline file of this "
            "model"
        ) from None
    return Baseline(path.name, file_sha256(path), (precision, recall, f1))


class Scorer:
    """The first `layer` layers of the encoder in a model folder, and its tokenizer.

    Raises ValueError when the folder holds no such encoder, has too few layers, lacks weights or
    states no limit of length.
    """

    def __init__(self, folder: Path, layer: int, batch_size: int = 64) -> None:
        try:
            import bert_score  # noqa: F401
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise ValueError(
                f"BERTScore needs {error.name}; pip install -r requirements-extras.txt"
            ) from None
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.local, self.layer, self.batch_size = local_model(folder), layer, batch_size
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(self.local.folder, **here)
            model, info = AutoModel.from_pretrained(
                self.local.folder,
                num_hidden_layers=layer,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **here,
            )
        except Exception as error:  # whatever a folder that is none makes transformers say
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.local.folder} cannot be loaded: {reason[:300]}") from None
        lacking = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
        if lacking:
            raise ValueError(
                f"{self.local.folder} lacks {len(lacking)} weights of layers 1 to {layer}, among "
                f"them {lacking[0]}; give a whole model and a layer it has"
            )
        if self.tokenizer.pad_token_id is None:
            raise ValueError(f"{self.local.folder}: its tokenizer has no padding token")
        self.model = model.encoder if hasattr(model, "decoder") else model
        self.model.eval().to(self.device)
        self.limit = _limit(self.local.folder, self.tokenizer, self.model)
        # The package cuts texts at the tokenizer's own limit.
        self.tokenizer.model_max_length = self.limit

    def settings(self, baseline: Baseline | None) -> dict[str, Any]:
        """What decides the scores."""
        rescaling = {"baseline": baseline.file, "sha256": baseline.sha256} if baseline else "none"
        return {
            **self.local.identity(),
            "layer": self.layer,
            "rescaling": rescaling,
            "idf": False,
            "limit": self.limit,
            "white_space": "one space",
        }

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Raw scores (n, 3) of (prediction, reference) pairs; 0 where one of them is empty."""
        from bert_score.utils import bert_cos_score_idf

        scores = np.zeros((len(pairs), 3))
        full = [i for i, pair in enumerate(pairs) if all(pair)]
        if full:
            weights: defaultdict[int | None, float] = defaultdict(lambda: 1.0)
            weights[self.tokenizer.sep_token_id] = weights[self.tokenizer.cls_token_id] = 0.0
            scores[full] = bert_cos_score_idf(
                self.model,
                [pairs[i][1] for i in full],
                [pairs[i][0] for i in full],
                self.tokenizer,
                weights,
                batch_size=self.batch_size,
                device=self.device,
            ).numpy()
        return scores

    def cut(self, texts: Sequence[str]) -> int:
        """How many of the texts are longer than the model reads."""
        ids = self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.limit for row in ids)


def bert_score(finished: Finished, scorer: Scorer, baseline: Baseline | None) -> dict[str, Any]:
    """Score every pair of an evaluation's system, going on with what is on disk; the result.

    Writes `bert_score-<system>-<model>-L<layer>-<hash>.jsonl` beside the predictions as it goes
    and the result as `.json` when all is there. Raises ValueError without any reference.
    """
    settings = scorer.settings(baseline)
    name = f"{scorer.local.name}-L{scorer.layer}-{fingerprint(settings)}"
    stem = finished.folder / f"bert_score-{finished.system}-{name}"
    begun = {
        **settings,
        "predictions_sha256": finished.sha256,
        "packages": {package: version(package) for package in PACKAGES},
    }
    comparable = [one for one in finished.summaries if one.references]
    if not comparable:
        raise ValueError(f"{finished.folder}: no document has a reference to score against")
    with Appended(Path(f"{stem}.jsonl"), begun) as store:
        missing = [one for one in comparable if one.index not in store.records]
        bar = Progress("BERTScore", len(comparable), "summaries", len(store.records))
        for chunk in _chunks(missing, scorer.batch_size * BATCHES_A_CHUNK):
            for record in _records(chunk, scorer):
                store.append(record)
            bar.update(len(chunk))
        bar.close()
        records = [store.records[one.index] for one in comparable]
    scores = [_rescaled(record["pairs"], baseline) for record in records]
    pairs = sum(len(record["pairs"]) for record in records)
    result = {
        "metric": "bert_score",
        "column": f"BERTScore {name}",
        "system": finished.system,
        "examples": len(records),
        "unit": "percent; mean over a document's references, then over documents",
        "scores": intervals([_over_references(one, np.mean) for one in scores], scale=100),
        "best_over_references": intervals(
            [_over_references(one, np.max) for one in scores], scale=100
        ),
        "truncated": {
            "limit": scorer.limit,
            "predictions": sum(record["cut"][0] for record in records) / len(records),
            "references": sum(record["cut"][1] for record in records) / pairs,
        },
        "remarks": finished.remarks(),
        "settings": begun,
        "dataset": finished.results["settings"]["dataset"],
    }
    replace_json(Path(f"{stem}.json"), result)
    return result


def _records(chunk: Sequence[Summary], scorer: Scorer) -> Iterable[dict[str, Any]]:
    """Raw scores of every pair, and how many of a document's texts were cut."""
    predictions = [_spaced(one.prediction) for one in chunk]
    references = [[_spaced(text) for text in one.references] for one in chunk]
    scores = scorer.score(
        [
            (prediction, reference)
            for prediction, group in zip(predictions, references, strict=True)
            for reference in group
        ]
    )
    start = 0
    for one, prediction, group in zip(chunk, predictions, references, strict=True):
        own = scores[start : start + len(group)]
        start += len(group)
        yield {
            "index": one.index,
            "id": one.id,
            "pairs": [[float(value) for value in row] for row in own],
            "cut": [scorer.cut([prediction]), scorer.cut(group)],
        }


def _rescaled(pairs: Sequence[Triple], baseline: Baseline | None) -> np.ndarray:
    raw = np.array(pairs)
    return baseline.rescale(raw) if baseline else raw


def _over_references(scores: np.ndarray, reduce: Any) -> dict[str, float]:
    return dict(zip(COLUMNS, map(float, reduce(scores, axis=0)), strict=True))


def _spaced(text: str) -> str:
    """The text on one line: references hold a sentence a line, predictions do not."""
    return " ".join(text.split())


def _chunks(items: Sequence[Summary], size: int) -> Iterable[Sequence[Summary]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _limit(folder: Path, tokenizer: Any, model: Any) -> int:
    """Tokens the model reads, with those that the tokenizer adds.

    The least of what the tokenizer states and of the table of positions, which begins behind the
    padding id in models of RoBERTa's kind. Raises ValueError when neither states a limit.
    """
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 0) or 0]
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if table is not None:
        before = 0 if table.padding_idx is None else table.padding_idx + 1
        limits.append(table.num_embeddings - before)
    stated = [limit for limit in limits if 0 < limit < 10**9]  # 10**30: the tokenizer states none
    if not stated:
        raise ValueError(
            f"{folder} states no longest input; set model_max_length in tokenizer_config.json"
        )
    return min(stated)
