"""The whole road on this machine: Python sources -> shards -> trainings -> scores -> report.

`make demo` runs it. Each stage is one of the project's own command lines (`pipeline/road.py`).
"""

import sys
from pathlib import Path

if not __package__:  # run by path: import from the repository root, not from this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import json
from dataclasses import dataclass
from functools import partial

import yaml

from pipeline.road import ROOT, Stage, gap_sentences, python, summaries, training, travel

RECIPES = ROOT / "pipeline" / "recipes"
PRETRAIN, FINETUNE = RECIPES / "demo_pretrain.yaml", RECIPES / "demo_finetune.yaml"
HELD_OUT_FILE, OTHER_FILES = "7", "[0-6]"  # of the eight files of text
VOCABULARY = 8_000
PASSAGE = 600  # characters: fills the source of pre-training, so that it is read whole
MASKED = 0.2  # of the gap sentences; the others stay in the source, from which copying is learnt

# Everything smaller, for the test suite: the same stages, formats and models.
QUICK = {
    "text": ["--limit_files", "1500"],
    "pretrain": ["--train.max_steps", "60", "--train.validate_every", "60"],
    "finetune": [
        "--train.max_steps", "60", "--train.validate_every", "60", "--train.validation_samples",
        "16",
    ],
    "evaluate": ["--limit", "40"],
}  # fmt: skip


@dataclass(frozen=True)
class Road:
    """The command lines of the road, all of whose files lie under `folder`."""

    folder: Path
    quick: bool
    seed: int = 0

    def stages(self) -> list[Stage]:
        """The stages before the report, in order."""
        pretrained = ("--model.init_from", self.folder / "pretrain" / "last")
        return [
            Stage("text", "Text: documentation and functions of the standard library and the "
                  "requirements", self.text),
            Stage("tokenizer", f"Tokenizer: SentencePiece unigram, {VOCABULARY:,} pieces",
                  self.tokenizer),
            Stage("shards-pretrain", "Pre-training shards: gap sentences, over MPI",
                  partial(self.gap_sentences, "pretrain", OTHER_FILES)),
            Stage("shards-held-out", "Pre-training shards to validate on",
                  partial(self.gap_sentences, "pretrain-validation", HELD_OUT_FILE)),
            *(Stage(f"shards-{split}", f"Summarisation shards: {split}",
                    partial(summaries, self.folder, split))
              for split in ("train", "validation", "test")),
            Stage("precision", "Precision: one step each way", self.precision),
            Stage("pretrain", "Pre-training: DeepSpeed ZeRO-1, two processes", self.pretrain),
            Stage("finetune", "Fine-tuning, pre-trained",
                  partial(self.finetune, "finetune", *pretrained)),
            Stage("scratch", "Fine-tuning, not pre-trained", partial(self.finetune, "scratch")),
            Stage("evaluate", "Evaluation: pre-trained, lead, lead words, permuted",
                  partial(self.evaluate, "finetune", "model", "lead", "lead_words", "permuted")),
            Stage("evaluate-scratch", "Evaluation: not pre-trained",
                  partial(self.evaluate, "scratch", "model")),
        ]  # fmt: skip

    def documents(self, which: str) -> Path:
        """A glob of the text files with these numbers."""
        return self.folder / "text" / f"documentation-0000{which}-of-*.json.gz"

    def text(self) -> list[str]:
        return python("preprocessing/documentation.py", "--output", self.folder / "text",
                      "--passage_characters", PASSAGE, *self.extra("text"))  # fmt: skip

    def tokenizer(self) -> list[str]:
        return python(
            "preprocessing/tokenizer.py", "train", "--input", self.documents("?"),
            "--output", self.folder / "tokenizer.model", "--vocab_size", VOCABULARY,
        )  # fmt: skip

    def gap_sentences(self, name: str, numbers: str) -> list[str]:
        return gap_sentences(self.folder, name, self.documents(numbers), PRETRAIN,
                             "--mask_share", MASKED)  # fmt: skip

    def precision(self) -> list[str]:
        return python(
            "pipeline/benchmark.py", "precision", "--config", PRETRAIN,
            "--vocab_size", VOCABULARY + 100, "--output", self.folder / "precision.json",
        )  # fmt: skip

    def faster_precision(self) -> str:
        """The precision in which this CPU took a step faster; bf16 without AMX may be slower."""
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
        return python(
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
        return python(
            "pipeline/report.py", "demo", "--pretrain", self.folder / "pretrain",
            "--finetune", self.folder / "finetune", "--scratch", self.folder / "scratch",
            "--evaluation", self.folder / "evaluation" / "finetune",
            "--scratch_evaluation", self.folder / "evaluation" / "scratch",
            "--data", self.folder / "shards" / "test",
            "--stages", self.folder / "stages.json", "--output", self.folder,
        )  # fmt: skip

    def extra(self, stage: str) -> list[str]:
        """What makes the stage smaller, in the quick road."""
        return QUICK[stage] if self.quick else []


def settings(quick: bool, seed: int) -> dict[str, object]:
    """What decides the outcome: size and seed, and the text of the recipes and of the road."""
    files = [Path(__file__), ROOT / "pipeline" / "road.py", PRETRAIN, FINETUNE]
    return {
        "quick": quick,
        "seed": seed,
        "files": {file.name: file.read_text(encoding="utf-8") for file in files},
    }


def main(arguments: list[str]) -> int:
    """Exit status: 0 with the report written, else that of the stage that failed."""
    parser = argparse.ArgumentParser(prog="demo.py", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all of it, smaller: under 4 minutes")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "demo", help="folder for everything (demo)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of initial weights, sample order and dropout (0)"
    )
    options = parser.parse_args(arguments)
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}, expected 0 or more")
    road = Road(options.output.resolve(), options.quick, options.seed)
    report = Stage("report", "Report", road.report)
    return travel(road.folder, settings(options.quick, options.seed), road.stages(), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
