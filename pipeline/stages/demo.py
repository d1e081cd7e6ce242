"""The demo's stages: text of this machine -> shards -> trainings -> scores -> report."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from pipeline.common.paths import ROOT
from pipeline.stages import commands, stage_runner
from pipeline.stages.commands import (
    corpus_stages,
    pretraining_shards,
    python_command,
    training,
)
from pipeline.stages.stage_runner import CommandStage

RECIPES = ROOT / "pipeline" / "recipes"
PRETRAIN, FINETUNE = RECIPES / "demo_pretrain.yaml", RECIPES / "demo_finetune.yaml"
VOCABULARY = 8_000
PASSAGE = 600  # characters: fills the source of pre-training, so that it is read whole
MASKED = 0.2  # of the gap sentences; the others stay in the source, from which copying is learnt

# --quick, for the test suite: less of everything, with the same stages, formats and models.
QUICK = {
    "text": ["--limit_files", "1500"],
    "pretrain": ["--train.max_steps", "25", "--train.validate_every", "25"],
    "finetune": [
        "--train.max_steps", "25", "--train.validate_every", "25", "--train.validation_samples",
        "16",
    ],
    "evaluate": ["--limit", "40"],
}  # fmt: skip


@dataclass(frozen=True)
class DemoStages:
    """The demo's command lines; all their files are in `folder`."""

    folder: Path
    quick: bool
    seed: int = 0

    def stages(self) -> list[CommandStage]:
        """The stages before the report, in order."""
        pretrained = ("--model.init_from", self.folder / "pretrain" / "last")
        return [
            CommandStage(
                "text",
                "Text: documentation and functions of the standard library and the requirements",
                self.text,
            ),
            *corpus_stages(self.folder, VOCABULARY, self.gap_sentence_shards),
            CommandStage("precision", "Precision: one step each way", self.precision),
            CommandStage(
                "pretrain", "Pre-training: DeepSpeed ZeRO-1, two processes", self.pretrain
            ),
            CommandStage(
                "finetune",
                "Fine-tuning, pre-trained",
                partial(self.finetune, "finetune", *pretrained),
            ),
            CommandStage(
                "scratch", "Fine-tuning, not pre-trained", partial(self.finetune, "scratch")
            ),
            CommandStage(
                "evaluate",
                "Evaluation: pre-trained, lead, lead words, permuted",
                partial(self.evaluate, "finetune", "model", "lead", "lead_words", "permuted"),
            ),
            CommandStage(
                "evaluate-scratch",
                "Evaluation: not pre-trained",
                partial(self.evaluate, "scratch", "model"),
            ),
        ]

    def documents(self, which: str) -> Path:
        """A glob of the text files with these numbers."""
        return self.folder / "text" / f"documentation-0000{which}-of-*.json.gz"

    def text(self) -> list[str]:
        return python_command("preprocessing/documentation.py", "--output", self.folder / "text",
                      "--passage_characters", PASSAGE, *self.extra("text"))  # fmt: skip

    def gap_sentence_shards(self, name: str, numbers: str) -> list[str]:
        return pretraining_shards(self.folder, name, self.documents(numbers), PRETRAIN,
                             "--mask_share", MASKED)  # fmt: skip

    def precision(self) -> list[str]:
        return python_command(
            "pipeline/benchmark.py", "precision", "--config", PRETRAIN,
            "--vocab_size", VOCABULARY + 100, "--output", self.folder / "precision.json",
        )  # fmt: skip

    def faster_precision(self) -> str:
        """The precision with the faster step on this CPU; bf16 without AMX may be slower."""
        return json.loads((self.folder / "precision.json").read_text())["faster"]

    def pretrain(self) -> list[str]:
        return training(
            self.folder, PRETRAIN, "pretrain", "pretrain-validation", "pretrain",
            "--train.precision", self.faster_precision(), "--train.seed", self.seed,
            *self.extra("pretrain"),
        )  # fmt: skip

    def finetune(self, output: str, *more: object) -> list[str]:
        return training(
            self.folder, FINETUNE, "train", "validation", output,
            "--train.precision", self.faster_precision(), "--train.seed", self.seed,
            *self.extra("finetune"), *more,
        )  # fmt: skip

    def evaluate(self, run: str, *systems: str) -> list[str]:
        recipe = yaml.safe_load(FINETUNE.read_text(encoding="utf-8"))
        return python_command(
            "pipeline/evaluate.py", "--checkpoint", self.folder / run / "best",
            "--data", self.folder / "shards" / "test",
            "--output", self.folder / "evaluation" / run, "--systems", *systems,
            "--source_length", recipe["data"]["source_length"],
            "--max_new_tokens", recipe["train"]["max_new_tokens"],
            "--batch_size", 32, "--lead_sentences", 1, "--no_repeat_ngram_size", 2,
            "--min_new_tokens", 4, "--precision", self.faster_precision(),
            *self.extra("evaluate"),
        )  # fmt: skip

    def report(self) -> list[str]:
        return python_command(
            "pipeline/report.py", "demo", "--pretrain", self.folder / "pretrain",
            "--finetune", self.folder / "finetune", "--scratch", self.folder / "scratch",
            "--evaluation", self.folder / "evaluation" / "finetune",
            "--scratch_evaluation", self.folder / "evaluation" / "scratch",
            "--data", self.folder / "shards" / "test",
            "--stages", self.folder / "stages.json", "--output", self.folder,
        )  # fmt: skip

    def extra(self, stage: str) -> list[str]:
        """The arguments that make a stage smaller, with --quick."""
        return QUICK[stage] if self.quick else []


def settings(quick: bool, seed: int) -> dict[str, object]:
    """What decides the demo's results: size, seed, and the text of recipes and of this code.

    A folder with other settings is not resumed.
    """
    modules = [Path(__file__), Path(commands.__file__), Path(stage_runner.__file__)]
    return {
        "quick": quick,
        "seed": seed,
        "files": {
            file.name: file.read_text(encoding="utf-8") for file in (*modules, PRETRAIN, FINETUNE)
        },
    }
