"""BERTScore by its package (bert-score), with a model from a local folder.

The package computes the scores. The model is loaded here: the package treats any path with "t5" in
it as a T5 model, and would download one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.common.files import replace_json
from pipeline.common.progress import Progress
from pipeline.scoring.bootstrap import intervals
from pipeline.scoring.finished_evaluation import EvaluatedSummary, FinishedEvaluation
from pipeline.scoring.jsonl_store import JsonlStore, fingerprint
from pipeline.scoring.local_model import local_model
from pipeline.shards import file_sha256

COLUMNS = ("precision", "recall", "f1")
PACKAGES = ("bert-score", "transformers", "torch")
PREFIX_SPACE = frozenset(
    "data2vec-text gpt2 gpt_neo gptj ibert opt roberta roberta-prelayernorm".split()
)
"""Model types whose texts the package begins with a space, as words inside a text have one. It asks
the tokenizer for it with each text; those of transformers 5 take it only when they are made."""
BATCHES_A_CHUNK = 4  # texts are sorted by length within a chunk, its scores written together

Triple = tuple[float, float, float]
"""Precision, recall and F1 of one pair, at most 1."""


@dataclass(frozen=True)
class RescalingBaseline:
    """Scores of unrelated texts in one layer (the package's table), which rescaling maps to 0."""

    file: str
    sha256: str
    values: Triple

    def rescale(self, raw: np.ndarray) -> np.ndarray:
        """Raw scores (n, 3) mapped so that the baseline becomes 0 and 1 stays 1."""
        values = np.array(self.values)
        return (raw - values) / (1 - values)


def read_baseline(path: Path, layer: int) -> RescalingBaseline:
    """The row of a layer in a file LAYER,P,R,F. Raises ValueError where it is missing."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = {line.split(",")[0]: line.split(",")[1:] for line in lines[1:]}
    try:
        precision, recall, f1 = map(float, rows[str(layer)])
    except (KeyError, ValueError):
        raise ValueError(
            f"{path} has no line {layer},P,R,F; give the package's rescale_baseline file of this "
            "model"
        ) from None
    return RescalingBaseline(path.name, file_sha256(path), (precision, recall, f1))


class BertScorer:
    """The first `layer` layers of the encoder in a model folder, and its tokenizer.

    Raises ValueError when the folder has no such encoder, too few layers, missing weights or no
    maximum input length.
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
        if layer > len(self.local.tensors):  # before layers without weights are built
            raise ValueError(
                f"--layer {layer}: {self.local.folder} has only {len(self.local.tensors)} tensors"
            )
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self.prefixed = self.local.config["model_type"] in PREFIX_SPACE
        prefix = {"add_prefix_space": True} if self.prefixed else {}
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(self.local.folder, **prefix, **here)
            model, info = AutoModel.from_pretrained(
                self.local.folder,
                num_hidden_layers=layer,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **here,
            )
        except Exception as error:  # transformers raises many types for an invalid folder
            reason = " ".join(str(error).split())
            raise ValueError(f"{self.local.folder} cannot be loaded: {reason[:300]}") from None
        lacking = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
        if lacking:
            raise ValueError(
                f"{self.local.folder} lacks {len(lacking)} weights of layers 1 to {layer}, among "
                f"them {lacking[0]}; give a complete model and one of its layers"
            )
        if self.tokenizer.pad_token_id is None:
            raise ValueError(f"{self.local.folder}: its tokenizer has no padding token")
        self.model = model.encoder if hasattr(model, "decoder") else model
        self.model.eval().to(self.device)
        self.limit = _limit(self.local.folder, self.tokenizer, self.model)
        # The package truncates texts at the tokenizer's limit.
        self.tokenizer.model_max_length = self.limit

    def settings(self, baseline: RescalingBaseline | None) -> dict[str, Any]:
        """The settings that determine the scores."""
        rescaling = {"baseline": baseline.file, "sha256": baseline.sha256} if baseline else "none"
        return {
            **self.local.identity(),
            "layer": self.layer,
            "rescaling": rescaling,
            "idf": False,
            "limit": self.limit,
            "white_space": "one space",
            # Not where there is none, so that scores of earlier versions are resumed.
            **({"prefix_space": True} if self.prefixed else {}),
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
        """How many of the texts are truncated."""
        ids = self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        return sum(len(row) > self.limit for row in ids)


def bert_score(
    finished: FinishedEvaluation, scorer: BertScorer, baseline: RescalingBaseline | None
) -> dict[str, Any]:
    """Score every pair of an evaluation's system, resuming from the scores on disk; the result.

    Appends to `bert_score-<system>-<model>-L<layer>-<hash>.jsonl` next to the predictions, and
    writes the result as `.json` once complete. Raises ValueError when there is no reference.
    """
    settings = scorer.settings(baseline)
    name = f"{scorer.local.name}-L{scorer.layer}-{fingerprint(settings)}"
    stem = finished.folder / f"bert_score-{finished.system}-{name}"
    started = {
        **settings,
        "predictions_sha256": finished.sha256,
        "packages": {package: version(package) for package in PACKAGES},
    }
    with_references = [one for one in finished.summaries if one.references]
    if not with_references:
        raise ValueError(f"{finished.folder}: no document has a reference to score against")
    with JsonlStore(Path(f"{stem}.jsonl"), started) as store:
        missing = [one for one in with_references if one.index not in store.records]
        bar = Progress("BERTScore", len(with_references), "summaries", len(store.records))
        for chunk in _chunks(missing, scorer.batch_size * BATCHES_A_CHUNK):
            for record in _records(chunk, scorer):
                store.append(record)
            bar.update(len(chunk))
        bar.close()
        records = [store.records[one.index] for one in with_references]
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
        "settings": started,
        "dataset": finished.results["settings"]["dataset"],
    }
    replace_json(Path(f"{stem}.json"), result)
    return result


def _records(chunk: Sequence[EvaluatedSummary], scorer: BertScorer) -> Iterable[dict[str, Any]]:
    """Raw scores of every pair, and how many of a document's texts were truncated."""
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


def _rescaled(pairs: Sequence[Triple], baseline: RescalingBaseline | None) -> np.ndarray:
    raw = np.array(pairs)
    return baseline.rescale(raw) if baseline else raw


def _over_references(scores: np.ndarray, reduce: Any) -> dict[str, float]:
    return dict(zip(COLUMNS, map(float, reduce(scores, axis=0)), strict=True))


def _spaced(text: str) -> str:
    """The text on one line: references hold one sentence per line, predictions do not."""
    return " ".join(text.split())


def _chunks(items: Sequence[EvaluatedSummary], size: int) -> Iterable[Sequence[EvaluatedSummary]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _limit(folder: Path, tokenizer: Any, model: Any) -> int:
    """Maximum input length in tokens, special ones included.

    The smaller of the tokenizer's limit and the size of the position table, which starts after the
    padding id in models such as RoBERTa. Raises ValueError when there is no limit.
    """
    limits = [tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 0) or 0]
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if table is not None:
        offset = 0 if table.padding_idx is None else table.padding_idx + 1
        limits.append(table.num_embeddings - offset)
    stated = [limit for limit in limits if 0 < limit < 10**9]  # 10**30: no limit in the tokenizer
    if not stated:
        raise ValueError(
            f"{folder} gives no maximum input length; set model_max_length in tokenizer_config.json"
        )
    return min(stated)
