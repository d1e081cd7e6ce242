"""BLANC by its package, in a worker process: it needs an environment with older transformers."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.common.files import replace_json
from pipeline.common.progress import Progress
from pipeline.common.sentences import SPLITTER
from pipeline.scoring.bootstrap import intervals
from pipeline.scoring.finished_evaluation import FinishedEvaluation
from pipeline.scoring.jsonl_store import JsonlStore, fingerprint
from pipeline.scoring.local_model import LocalModel, local_model

WORKER = Path(__file__).with_name("blanc_worker.py")
PYTHON = WORKER.parents[2] / ".venv-legacy" / "bin" / "python"
VARIANTS = ("help", "tune")
LONGEST = 512  # tokens of one input, fixed in the package
REPLACEMENTS = 30_000  # BLANC-tune draws replacement tokens from the ids below this

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Which BLANC: the package's defaults, and a seed for BLANC-tune, which has none by default."""

    variant: str = "help"
    gap: int = 2
    seed: int = 1


def blanc_model(folder: Path, variant: str) -> LocalModel:
    """A model folder that BLANC can use; ValueError where it is another kind of model."""
    local = local_model(folder)
    kind = local.config["model_type"]
    if kind != "bert":
        raise ValueError(f"{local.folder} is a model of type {kind}; BLANC needs BERT")
    if not (local.folder / "vocab.txt").is_file():
        raise ValueError(f"{local.folder} has no vocab.txt, which BLANC's tokenizer needs")
    if "cls.predictions.transform.dense.weight" not in local.tensors:
        raise ValueError(
            f"{local.folder} has no masked language modelling head; give a BertForMaskedLM"
        )
    positions = local.config.get("max_position_embeddings", 0)
    if positions < LONGEST:
        raise ValueError(f"{local.folder} reads at most {positions} tokens, BLANC needs {LONGEST}")
    vocabulary = local.config.get("vocab_size", 0)
    if variant == "tune" and vocabulary < REPLACEMENTS:
        raise ValueError(
            f"{local.folder} has {vocabulary} tokens, BLANC-tune draws from the first "
            f"{REPLACEMENTS}; use --variant help"
        )
    return local


def check_python(python: Path) -> None:
    """Raise ValueError without the interpreter of BLANC's environment."""
    if not python.exists():
        raise ValueError(f"{python} does not exist; `make legacy` builds BLANC's environment")


@contextmanager
def worker(python: Path, model: LocalModel, settings: dict[str, Any]) -> Iterator[tuple[Ask, dict]]:
    """The worker's `ask` and its package versions.

    Raises ValueError where the interpreter is missing, or with the worker's last line of standard
    error when it dies.
    """
    check_python(python)
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [
                python.absolute(),
                WORKER,
            ],  # absolute() keeps a venv's symbolic link
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=model.folder,
            env={**os.environ, **offline},
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        assert process.stdin and process.stdout

        def ask(question: dict[str, Any]) -> dict[str, Any]:
            try:
                process.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                return json.loads(process.stdout.readline())  # type: ignore[union-attr]
            except (BrokenPipeError, json.JSONDecodeError):
                process.wait()
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["no message"])[-1]
                raise ValueError(f"BLANC's process ({python}) ended: {last}") from None

        try:
            yield ask, ask(settings)["packages"]
        finally:
            process.kill()  # it would wait for questions
            with suppress(BrokenPipeError):  # an unread question is flushed
                process.stdin.close()


def blanc(
    finished: FinishedEvaluation,
    document: Callable[[int], str],
    folder: Path,
    variant: Variant,
    python: Path = PYTHON,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Score every summary by its document, resuming from the scores on disk; the result.

    Appends to `blanc-<system>-<model>-<variant>-<hash>.jsonl` next to the predictions, and writes
    the result as `.json` once complete. Raises ValueError as `worker` does, and when no summary
    could be scored.
    """
    model = blanc_model(folder, variant.variant)
    settings = {
        **model.identity(),
        **asdict(variant),
        "measure": "relative",
        "limit": LONGEST,
        "sentences": SPLITTER,
    }
    name = f"{model.name}-{variant.variant}-{fingerprint(settings)}"
    stem = finished.folder / f"blanc-{finished.system}-{name}"
    with worker(python, model, {**settings, "batch_size": batch_size}) as (ask, packages):
        started = {**settings, "predictions_sha256": finished.sha256, "packages": packages}
        with JsonlStore(Path(f"{stem}.jsonl"), started) as store:
            bar = Progress("BLANC", len(finished.summaries), "summaries", len(store.records))
            for one in finished.summaries:
                if one.index in store.records:
                    continue
                pair = {"document": document(one.index), "summary": one.prediction}
                store.append({"index": one.index, "id": one.id, **ask(pair)})
                bar.update()
            bar.close()
            records = [store.records[one.index] for one in finished.summaries]
    scored = [record for record in records if "error" not in record]
    if not scored:
        raise ValueError(f"BLANC scored none of {len(records)} summaries: {records[0]['error']}")
    sentences = sum(record["sentences"] for record in scored)
    result = {
        "metric": "blanc",
        "column": f"BLANC {name}",
        "system": finished.system,
        "examples": len(scored),
        "unit": "percent; mean over documents",
        "scores": intervals([{"blanc": record["score"]} for record in scored], scale=100),
        "truncated": {
            "limit": LONGEST,
            "sentences_with_summary": sum(record["cut_sentences"] for record in scored)
            / max(sentences, 1),
        },
        "not_scored": [record for record in records if "error" in record],
        "remarks": finished.remarks(),
        "settings": started,
        "dataset": finished.results["settings"]["dataset"],
    }
    replace_json(Path(f"{stem}.json"), result)
    return result
