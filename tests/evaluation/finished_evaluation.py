"""A finished evaluation, as evaluate.py leaves it, with the predictions a test wants."""

import json
from pathlib import Path

import torch

from pipeline.distributed import World
from pipeline.evaluation.predictions import Predictions
from pipeline.evaluation.run import Options, evaluate
from pipeline.model.generation import DecodingStrategy


def finish(checkpoint: Path, data: Path, output: Path, limit: int = 0) -> Path:
    """Evaluate a tiny checkpoint and its lead baseline on a tiny dataset."""
    options = Options(
        checkpoint=checkpoint,
        data=data,
        output=output,
        systems=("model", "lead"),
        strategy=DecodingStrategy(max_new_tokens=10),
        precision="fp32",
        limit=limit,
    )
    evaluate(options, World(0, 1, 0, torch.device("cpu")))
    return output


def edit(folder: Path, changes: dict[int, dict], system: str = "model") -> list[dict]:
    """Change fields of some predictions, by index; all records after that."""
    path = Predictions(folder, system).path
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for index, fields in changes.items():
        records[index] |= fields
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records
