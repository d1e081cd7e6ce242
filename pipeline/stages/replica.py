"""The replica's stages: three systems of one size, pre-trained, then fine-tuned by seed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.common.paths import ROOT
from pipeline.stages.commands import (
    corpus_stages,
    deepspeed_command,
    pretraining_shards,
    python_command,
    training,
)
from pipeline.stages.stage_runner import CommandStage

RECIPES = ROOT / "pipeline" / "recipes"
PRETRAIN, FINETUNE = RECIPES / "replica_pretrain.yaml", RECIPES / "replica_finetune.yaml"
VOCABULARY = 8_000
PASSAGE = 1100  # characters: fills the source and the target of pre-training
WHOLE = 8192  # tokens read at the test: twice what was trained on

# The same width, depth and feed-forward size for all. LED's feed-forward has one matrix less, so it
# is half as wide again; LED also has learnt positions. Its default init_std of 0.02 is for a width
# of 1,024: with it, LED did not learn to use its input.
LOCOST: dict[str, Any] = {
    "d_model": 192, "d_ff": 512, "state_dim": 16, "encoder_layers": 2, "decoder_layers": 2,
    "num_heads": 6, "head_dim": 32,
}  # fmt: skip
LONGT5: dict[str, Any] = {
    "d_model": 192, "d_ff": 512, "d_kv": 32, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 6,
}  # fmt: skip
LED: dict[str, Any] = {
    "d_model": 192, "encoder_ffn_dim": 768, "decoder_ffn_dim": 768, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
    "attention_window": 256, "max_encoder_position_embeddings": WHOLE,
    "max_decoder_position_embeddings": 256, "init_std": 0.06,
}  # fmt: skip
SYSTEMS = {"locost": LOCOST, "longt5-tglobal": LONGT5, "led": LED}
SEEDS = (0, 1, 2)

# --quick: less of everything, with the same stages.
QUICK = {
    "text": ["--limit_files", "1500"],
    "pretrain": ["--train.max_steps", "20", "--train.validate_every", "20"],
    "finetune": [
        "--train.max_steps", "20", "--train.validate_every", "20", "--train.validation_samples",
        "4", "--data.source_length", "1024",
    ],
    "evaluate": ["--limit", "8"],
    "measure": ["--lengths", "512"],
}  # fmt: skip


@dataclass(frozen=True)
class ReplicaStages:
    """The replica's command lines; all their files are in `folder`."""

    folder: Path
    quick: bool

    def stages(self) -> list[CommandStage]:
        """The stages before the report, seed by seed, so that one seed is complete early."""
        return [
            CommandStage(
                "text",
                "Text: documentation of the standard library and the requirements",
                partial(
                    python_command,
                    "preprocessing/documentation.py",
                    "--whole",
                    "--passage_characters",
                    PASSAGE,
                    "--output",
                    self.folder / "text",
                    *self.extra("text"),
                ),
            ),
            *corpus_stages(self.folder, VOCABULARY, self.gap_sentence_shards),
            *self.trainings_and_evaluations(),
            CommandStage("measure", "Time and memory at these sizes", self.measure),
        ]

    def seeds(self) -> tuple[int, ...]:
        """The seeds of the sample order and the dropout in fine-tuning."""
        return SEEDS[:1] if self.quick else SEEDS

    def trainings_and_evaluations(self) -> Iterator[CommandStage]:
        """Pre-training of each system, then fine-tuning and evaluation by seed and system."""
        for system in SYSTEMS:
            yield CommandStage(f"{system}-pretrain", f"{system}: pre-training",
                        partial(self.pretrain, system))  # fmt: skip
        for seed in self.seeds():
            for system in SYSTEMS:
                name, title = f"{system}-{seed}", f"{system}, seed {seed}"
                yield CommandStage(f"{name}-finetune", f"{title}: fine-tuning",
                            partial(self.finetune, system, seed))  # fmt: skip
                yield CommandStage(f"{name}-evaluate", f"{title}: evaluation",
                            partial(self.evaluate, system, seed))  # fmt: skip

    def gap_sentence_shards(self, name: str, numbers: str) -> list[str]:
        documents = self.folder / "text" / f"documentation-0000{numbers}-of-*.json.gz"
        return pretraining_shards(self.folder, name, documents, PRETRAIN)

    def pretrain(self, system: str) -> list[str]:
        sizes = ["--model.baseline_settings", json.dumps(SYSTEMS[system])]
        return training(
            self.folder, PRETRAIN, "pretrain", "pretrain-validation", f"{system}-pretrain",
            *self.model_arguments(system), *(() if system == "locost" else sizes),
            # LED's embedding is initialised smaller than T5's: its rate is scaled up less.
            *(("--train.embedding_lr_scale", 3) if system == "led" else ()),
            *self.extra("pretrain"),
        )  # fmt: skip

    def finetune(self, system: str, seed: int) -> list[str]:
        return training(
            self.folder, FINETUNE, "train", "validation", f"{system}-{seed}/finetune",
            *self.model_arguments(system), "--train.seed", seed, "--model.init_from",
            self.folder / f"{system}-pretrain" / "last", *self.extra("finetune"),
        )  # fmt: skip

    def model_arguments(self, system: str) -> list[object]:
        """The arguments of train.py that select the system."""
        if system == "locost":
            return [word for name, size in LOCOST.items() for word in (f"--model.{name}", size)]
        return ["--model.baseline", system]

    def evaluate(self, system: str, seed: int) -> list[str]:
        recipe = yaml.safe_load(FINETUNE.read_text(encoding="utf-8"))
        run = self.folder / f"{system}-{seed}"
        return deepspeed_command("evaluate.py", [
            "--checkpoint", run / "finetune" / "best",
            "--data", self.folder / "shards" / "test", "--output", run / "evaluation",
            "--source_length", WHOLE, "--max_new_tokens", recipe["train"]["max_new_tokens"],
            "--batch_size", 4, "--lead_sentences", 1, "--source_use_by_position",
            *self.extra("evaluate"),
        ])  # fmt: skip

    def measure(self) -> list[str]:
        sizes = {name: {**its, "vocab_size": VOCABULARY} for name, its in SYSTEMS.items()}
        return python_command(
            "pipeline/benchmark.py", "systems", "--systems", *SYSTEMS, "--settings",
            json.dumps(sizes), "--lengths", 1024, 4096, WHOLE, "--batch", 1, "--tokens", 64,
            "--dtype", "bf16", "--rounds", 1, "--output", self.folder / "measurements",
            *self.extra("measure"),
        )  # fmt: skip

    def report(self) -> list[str]:
        return python_command("pipeline/report.py", "replica", "--folder", self.folder,
                      "--systems", *SYSTEMS, "--seeds", *self.seeds(),
                      "--output", self.folder)  # fmt: skip

    def extra(self, stage: str) -> list[str]:
        """The arguments that make a stage smaller, with --quick."""
        return QUICK[stage] if self.quick else []


def settings(quick: bool) -> dict[str, object]:
    """What decides the replica's results; a folder with other settings is not resumed."""
    recipes = {path.name: path.read_text(encoding="utf-8") for path in (PRETRAIN, FINETUNE)}
    return {"quick": quick, "systems": SYSTEMS, "vocabulary": VOCABULARY, "passage": PASSAGE,
            "recipes": recipes}  # fmt: skip
