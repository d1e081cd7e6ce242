"""LOCOST beside LongT5 and LED in small: pre-trained, fine-tuned on long documents, scored.

`python pipeline/replica.py` runs it on two CPU cores: three systems of one size, each pre-trained
once and fine-tuned by three seeds, on the same texts in the same order by the same recipes.
docs/replica.md has what came out. Each stage is one of the project's own command lines
(`pipeline/road.py`).
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from pipeline.command_line import Parser
from pipeline.road import (
    ROOT,
    Stage,
    gap_sentences,
    launch,
    python,
    summaries,
    training,
    travel,
)

RECIPES = ROOT / "pipeline" / "recipes"
PRETRAIN, FINETUNE = RECIPES / "replica_pretrain.yaml", RECIPES / "replica_finetune.yaml"
HELD_OUT_FILE, OTHER_FILES = "7", "[0-6]"  # of the eight files of text
VOCABULARY = 8_000
PASSAGE = 1100  # characters: fills the source and the target of pre-training
WHOLE = 8192  # tokens read at the test: twice what was trained on

# One width, depth and feed-forward for all; LED's has one matrix less, so its own is half as wide
# again, and it has learnt positions besides. Its usual spread of 0.02 is for a width of 1,024:
# drawn so, it did not learn to read.
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

# Everything smaller, for a look at the whole road.
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
class Road:
    """The command lines of the replica, all of whose files lie under `folder`."""

    folder: Path
    quick: bool

    def stages(self) -> list[Stage]:
        """The stages before the report, in order: seed by seed, so that each is whole by itself."""
        return [
            Stage("text", "Text: documentation of the standard library and the requirements",
                  partial(python, "preprocessing/documentation.py", "--whole",
                          "--passage_characters", PASSAGE, "--output", self.folder / "text",
                          *self.extra("text"))),
            Stage("tokenizer", f"Tokenizer: SentencePiece unigram, {VOCABULARY:,} pieces",
                  self.tokenizer),
            Stage("shards-pretrain", "Pre-training shards",
                  partial(self.gap_sentences, "pretrain", OTHER_FILES)),
            Stage("shards-held-out", "Pre-training shards to validate on",
                  partial(self.gap_sentences, "pretrain-validation", HELD_OUT_FILE)),
            *(Stage(f"shards-{split}", f"Summarisation shards: {split}",
                    partial(summaries, self.folder, split))
              for split in ("train", "validation", "test")),
            *self.trainings(),
            Stage("measure", "Time and memory at these sizes", self.measure),
        ]  # fmt: skip

    def seeds(self) -> tuple[int, ...]:
        """Of the order and the dropout of fine-tuning."""
        return SEEDS[:1] if self.quick else SEEDS

    def trainings(self) -> Iterator[Stage]:
        """Pre-training of each system, then of each seed and system fine-tuning and evaluation."""
        for system in SYSTEMS:
            yield Stage(f"{system}-pretrain", f"{system}: pre-training",
                        partial(self.pretrain, system))  # fmt: skip
        for seed in self.seeds():
            for system in SYSTEMS:
                name, title = f"{system}-{seed}", f"{system}, seed {seed}"
                yield Stage(f"{name}-finetune", f"{title}: fine-tuning",
                            partial(self.finetune, system, seed))  # fmt: skip
                yield Stage(f"{name}-evaluate", f"{title}: evaluation",
                            partial(self.evaluate, system, seed))  # fmt: skip

    def tokenizer(self) -> list[str]:
        return python(
            "preprocessing/tokenizer.py", "train",
            "--input", self.folder / "text" / "documentation-*.json.gz",
            "--output", self.folder / "tokenizer.model", "--vocab_size", VOCABULARY,
        )  # fmt: skip

    def gap_sentences(self, name: str, numbers: str) -> list[str]:
        documents = self.folder / "text" / f"documentation-0000{numbers}-of-*.json.gz"
        return gap_sentences(self.folder, name, documents, PRETRAIN)

    def pretrain(self, system: str) -> list[str]:
        sizes = ["--model.baseline_settings", json.dumps(SYSTEMS[system])]
        return training(
            self.folder, PRETRAIN, "pretrain", "pretrain-validation", f"{system}-pretrain",
            *self.of(system), *(() if system == "locost" else sizes),
            # LED's embedding is drawn smaller than T5's and needs less of a greater rate.
            *(("--train.embedding_lr_scale", 3) if system == "led" else ()),
            *self.extra("pretrain"),
        )  # fmt: skip

    def finetune(self, system: str, seed: int) -> list[str]:
        return training(
            self.folder, FINETUNE, "train", "validation", f"{system}-{seed}/finetune",
            *self.of(system), "--train.seed", seed, "--model.init_from",
            self.folder / f"{system}-pretrain" / "last", *self.extra("finetune"),
        )  # fmt: skip

    def of(self, system: str) -> list[object]:
        """What a training is told of the system."""
        if system == "locost":
            return [word for name, size in LOCOST.items() for word in (f"--model.{name}", size)]
        return ["--model.baseline", system]

    def evaluate(self, system: str, seed: int) -> list[str]:
        recipe = yaml.safe_load(FINETUNE.read_text(encoding="utf-8"))
        run = self.folder / f"{system}-{seed}"
        return launch("evaluate.py", [
            "--checkpoint", run / "finetune" / "best",
            "--data", self.folder / "shards" / "test", "--output", run / "evaluation",
            "--source_length", WHOLE, "--max_new_tokens", recipe["train"]["max_new_tokens"],
            "--batch_size", 4, "--lead_sentences", 1, *self.extra("evaluate"),
        ])  # fmt: skip

    def measure(self) -> list[str]:
        sizes = {name: {**its, "vocab_size": VOCABULARY} for name, its in SYSTEMS.items()}
        return python(
            "pipeline/benchmark.py", "systems", "--systems", *SYSTEMS, "--settings",
            json.dumps(sizes), "--lengths", 1024, 4096, WHOLE, "--batch", 1, "--tokens", 64,
            "--dtype", "bf16", "--output", self.folder / "measurements", *self.extra("measure"),
        )  # fmt: skip

    def report(self) -> list[str]:
        return python("pipeline/report.py", "replica", "--folder", self.folder,
                      "--systems", *SYSTEMS, "--seeds", *self.seeds(),
                      "--output", self.folder)  # fmt: skip

    def extra(self, stage: str) -> list[str]:
        """What makes the stage smaller, in the quick road."""
        return QUICK[stage] if self.quick else []


def settings(quick: bool) -> dict[str, object]:
    """What decides the outcome."""
    recipes = {path.name: path.read_text(encoding="utf-8") for path in (PRETRAIN, FINETUNE)}
    return {"quick": quick, "systems": SYSTEMS, "vocabulary": VOCABULARY, "passage": PASSAGE,
            "recipes": recipes}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Exit status: 0 with the report written, else that of the stage that failed."""
    parser = Parser(prog="replica.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all of it, smaller: a few minutes")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "replica", help="folder for everything (replica)"
    )
    options = parser.parse_args(arguments)
    road = Road(options.output.resolve(), options.quick)
    report = Stage("report", "Report", road.report)
    return travel(road.folder, settings(options.quick), road.stages(), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
