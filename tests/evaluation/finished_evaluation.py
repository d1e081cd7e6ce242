"""A finished evaluation, as evaluate.py leaves it, with the predictions a test needs."""

import json
from pathlib import Path

import torch

from pipeline.distributed.world import World
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.model.generation import DecodingStrategy
from pipeline.scoring.predictions import Predictions

ALONE = World(0, 1, 0, torch.device("cpu"))


def finish(checkpoint: Path, data: Path, output: Path, limit: int = 0) -> Path:
    """Evaluate a tiny checkpoint and its lead baseline on a tiny dataset."""
    options = EvaluationOptions(
        checkpoint=checkpoint,
        data=data,
        output=output,
        systems=("model", "lead"),
        strategy=DecodingStrategy(max_new_tokens=10),
        precision="fp32",
        limit=limit,
    )
    evaluate(options, ALONE)
    return output


def edit(folder: Path, changes: dict[int, dict], system: str = "model") -> list[dict]:
    """Change fields of some predictions, by index; returns all records after that."""
    path = Predictions(folder, system).path
    records = lines(path)
    for index, fields in changes.items():
        records[index] |= fields
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


def lines(path: Path) -> list[dict]:
    """The records of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
