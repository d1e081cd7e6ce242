"""The replica's stages: three systems of one size, tuned alike, pre-trained and fine-tuned by seed.

What a system and a seed give, and what a search gives, is a small JSON file in `results`; a stage
whose result is there is complete, so a replica continues from the results alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.common.files import replace_json
from pipeline.common.paths import ROOT
from pipeline.common.settings import differences, flatten
from pipeline.shards import Dataset
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
MASKED = 0.2  # of the gap sentences; the others stay in the source, from which copying is learnt
LONGEST = 16_384  # tokens

# The same width, depth and feed-forward size for all. LED's feed-forward has one matrix less, so it
# is half as wide again; LED also has learnt positions. Its default init_std of 0.02 is for a width
# of 1,024.
LOCOST: dict[str, Any] = {
    "d_model": 192, "d_ff": 512, "state_dim": 16, "encoder_layers": 2, "decoder_layers": 2,
    "num_heads": 3, "head_dim": 64,
}  # fmt: skip
LONGT5: dict[str, Any] = {
    "d_model": 192, "d_ff": 512, "d_kv": 64, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 3,
}  # fmt: skip
LED: dict[str, Any] = {
    "d_model": 192, "encoder_ffn_dim": 768, "decoder_ffn_dim": 768, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
    "attention_window": 256, "max_encoder_position_embeddings": LONGEST,
    "max_decoder_position_embeddings": 256, "init_std": 0.06,
}  # fmt: skip
SYSTEMS = {"locost": LOCOST, "longt5-tglobal": LONGT5, "led": LED}
SEEDS = (0, 1, 2)

# The search, the same for every system: of six short pre-trainings the one with the lowest
# validation loss, then from its weights of two short fine-tunings.
RATES = ((0.0005, 10.0), (0.001, 10.0), (0.001, 3.0))
"""Peak learning rate, and by how much the embedding's is larger."""
INITIALISATIONS: dict[str, dict[str, Any]] = {
    "code": {},
    "copy": {"cross_attention_initialisation": "copy"},
}
COPYING_LOCOST = {"ssm_dt_min": 0.016, "ssm_dt_max": 1.6}
"""With `copy`: with 16 modes, steps that separate neighbouring tokens (docs/learning.md)."""
FINETUNE_RATES = (0.0005, 0.001)
TRIAL_STEPS = {"pretrain": 300, "finetune": 150}

# --quick: less of everything, with the same stages.
QUICK = {
    "text": ["--limit_files", "1500"],
    "trial": ["--train.max_steps", "4", "--train.validate_every", "4"],
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
    """The replica's command lines; all their files are in `folder`, what remains in `results`."""

    folder: Path
    results: Path
    quick: bool

    def stages(self) -> list[CommandStage]:
        """The stages before the report, seed by seed, so that one seed is complete early."""
        text = partial(
            python_command, "preprocessing/documentation.py", "--whole",
            "--passage_characters", PASSAGE, "--output", self.folder / "text", *self.extra("text"),
        )  # fmt: skip
        of_text = [
            CommandStage("text", "Text: modules and classes of this machine's packages", text),
            *corpus_stages(self.folder, VOCABULARY, self.gap_sentence_shards),
        ]
        trained = [*self.searches(), *self.seeds_of_systems()]
        needed = any(stage.result and not stage.result.exists() for stage in trained)
        return [
            *(of_text if needed else ()),
            *trained,
            CommandStage("measure", "Time and memory at these sizes", self.measure, self.measured),
        ]

    @property
    def measured(self) -> Path:
        """The record of time and memory."""
        return self.results / "systems.json"

    def search_result(self, system: str) -> Path:
        """What a system's search found."""
        return self.results / f"search-{system}.json"

    def seed_result(self, system: str, seed: int) -> Path:
        """What a system's trainings with a seed gave."""
        return self.results / f"{system}-{seed}.json"

    def seeds(self) -> tuple[int, ...]:
        """The seeds of the weights, the sample order and the dropout, in both trainings."""
        return SEEDS[:1] if self.quick else SEEDS

    def searches(self) -> Iterator[CommandStage]:
        """The trials of each system, and what is chosen."""
        for system in SYSTEMS:
            result = self.search_result(system)
            for name, settings in pretrain_trials(system).items():
                yield CommandStage(
                    f"{system}-{name}", f"{system}, {name}: pre-training",
                    partial(self.pretrain, system, f"{system}/{name}", settings,
                            *self.trial("pretrain")), result,
                )  # fmt: skip
            for name, rate in finetune_trials().items():
                yield CommandStage(
                    f"{system}-{name}", f"{system}, {name}: fine-tuning",
                    partial(self.finetune_trial, system, name, rate), result,
                )  # fmt: skip
            yield CommandStage(
                f"{system}-search", f"{system}: what the trials say",
                partial(self.result_command, system, "search", result), result,
            )  # fmt: skip

    def seeds_of_systems(self) -> Iterator[CommandStage]:
        """Pre-training, fine-tuning and evaluation by seed and system."""
        for seed in self.seeds():
            for system in SYSTEMS:
                run, result = f"{system}/seed-{seed}", self.seed_result(system, seed)
                title = f"{system}, seed {seed}"
                for name, what, command in (
                    ("pretrain", "pre-training", partial(self.pretrain_seed, system, seed)),
                    ("finetune", "fine-tuning", partial(self.finetune_seed, system, seed)),
                    ("evaluate", "evaluation", partial(self.evaluate, run)),
                    ("result", "result", partial(self.result_command, system, seed, result)),
                ):
                    yield CommandStage(
                        f"{system}-{seed}-{name}", f"{title}: {what}", command, result
                    )

    def gap_sentence_shards(self, name: str, numbers: str) -> list[str]:
        documents = self.folder / "text" / f"documentation-0000{numbers}-of-*.json.gz"
        return pretraining_shards(self.folder, name, documents, PRETRAIN, "--mask_share", MASKED)

    def pretrain(self, system: str, run: str, settings: dict[str, Any], *more: object) -> list[str]:
        """A pre-training with these settings: train.py's fields by their dotted names."""
        sizes = ["--model.baseline_settings", json.dumps(SYSTEMS[system])]
        return training(
            self.folder, PRETRAIN, "pretrain", "pretrain-validation", f"{run}/pretrain",
            *self.model_arguments(system), *(() if system == "locost" else sizes),
            *(word for name, value in settings.items() for word in (f"--{name}", value)),
            *(more or self.extra("pretrain")),
        )  # fmt: skip

    def finetune(self, system: str, run: str, start: Path, *more: object) -> list[str]:
        """A fine-tuning from the weights of a pre-training."""
        return training(
            self.folder, FINETUNE, "train", "validation", f"{run}/finetune",
            *self.model_arguments(system), "--model.init_from", start / "pretrain" / "last", *more,
        )  # fmt: skip

    def finetune_trial(self, system: str, name: str, rate: float) -> list[str]:
        trials = self.folder / system
        best = min(pretrain_trials(system), key=lambda trial: validation_loss(trials / trial))
        return self.finetune(
            system, f"{system}/{name}", trials / best, "--train.peak_lr", rate,
            *(self.trial("finetune") if not self.quick else self.extra("finetune")),
        )  # fmt: skip

    def pretrain_seed(self, system: str, seed: int) -> list[str]:
        self.check_test_set()
        chosen = json.loads(self.search_result(system).read_text())["pretrain"]["settings"]
        return self.pretrain(system, f"{system}/seed-{seed}", {**chosen, "train.seed": seed})

    def finetune_seed(self, system: str, seed: int) -> list[str]:
        run = f"{system}/seed-{seed}"
        chosen = json.loads(self.search_result(system).read_text())["finetune"]["settings"]
        rates = [word for name, value in chosen.items() for word in (f"--{name}", value)]
        return self.finetune(
            system, run, self.folder / run, "--train.seed", seed, *rates, *self.extra("finetune")
        )

    def check_test_set(self) -> None:
        """Raise ValueError where the results so far are of another test set than this machine's."""
        mine = Dataset(self.folder / "shards" / "test").fingerprint
        for path in sorted(self.results.glob("*-[0-9].json")):
            found = json.loads(path.read_text())["test_set"]
            if found != mine:
                raise ValueError(
                    f"{path} is of another test set ({found[:16]}, here {mine[:16]}): the texts "
                    "are those of this machine's Python and packages; give another --results"
                )

    def model_arguments(self, system: str) -> list[object]:
        """The arguments of train.py that select the system."""
        if system == "locost":
            return [word for name, size in LOCOST.items() for word in (f"--model.{name}", size)]
        return ["--model.baseline", system]

    def evaluate(self, run: str) -> list[str]:
        recipe = yaml.safe_load(FINETUNE.read_text(encoding="utf-8"))
        return deepspeed_command("evaluate.py", [
            "--checkpoint", self.folder / run / "finetune" / "best",
            "--data", self.folder / "shards" / "test", "--output", self.folder / run / "evaluation",
            "--systems", "model", "permuted", "lead", "lead_words",
            "--source_length", LONGEST, "--max_new_tokens", recipe["train"]["max_new_tokens"],
            "--precision", recipe["train"]["precision"],
            "--min_new_tokens", 8, "--no_repeat_ngram_size", 3, "--batch_size", 4,
            "--lead_sentences", 1, "--source_use_by_position", *self.extra("evaluate"),
        ])  # fmt: skip

    def result_command(self, system: str, what: object, output: Path) -> list[str]:
        """Reads what trainings left into a small file: of the search, or of a seed."""
        return python_command(
            "pipeline/report.py", "replica-result", "--folder", self.folder, "--system", system,
            *(("--search",) if what == "search" else ("--seed", what)), "--output", output,
        )  # fmt: skip

    def measure(self) -> list[str]:
        recipe = yaml.safe_load(FINETUNE.read_text(encoding="utf-8"))
        sizes = {name: {**its, "vocab_size": VOCABULARY} for name, its in SYSTEMS.items()}
        return python_command(
            "pipeline/benchmark.py", "systems", "--systems", *SYSTEMS, "--settings",
            json.dumps(sizes), "--lengths", 1024, 4096, LONGEST, "--batch", 1, "--tokens", 64,
            "--dtype", recipe["train"]["precision"], "--output", self.results,
            *self.extra("measure"),
        )  # fmt: skip

    def report(self) -> list[str]:
        return python_command(
            "pipeline/report.py", "replica", "--results", self.results, "--output", self.folder
        )

    def trial(self, kind: str) -> list[str]:
        """The arguments of a trial."""
        steps = str(TRIAL_STEPS[kind])
        if self.quick:
            return QUICK["trial"]
        return ["--train.max_steps", steps, "--train.validate_every", steps]

    def extra(self, stage: str) -> list[str]:
        """The arguments that make a stage smaller, with --quick."""
        return QUICK[stage] if self.quick else []


def pretrain_trials(system: str) -> dict[str, dict[str, Any]]:
    """The pre-trainings that a system's search tries, by name: train.py's fields that differ."""
    found = {}
    for start, fields in INITIALISATIONS.items():
        if start == "copy" and system == "locost":
            fields = {**fields, **COPYING_LOCOST}
        for number, (rate, embedding) in enumerate(RATES):
            found[f"trial-{start}-{number}"] = {
                **{f"model.{name}": value for name, value in fields.items()},
                "train.peak_lr": rate, "train.embedding_lr_scale": embedding,
            }  # fmt: skip
    return found


def finetune_trials() -> dict[str, float]:
    """The rates of the fine-tunings that a search tries, by name."""
    return {f"trial-rate-{number}": rate for number, rate in enumerate(FINETUNE_RATES)}


def validation_loss(run: Path) -> float:
    """The last validation loss of the pre-training in a folder. Raises ValueError without one."""
    lines = map(json.loads, (run / "pretrain" / "metrics.jsonl").read_text().splitlines())
    losses = [line["validation_loss"] for line in lines if "validation_loss" in line]
    if not losses:
        raise ValueError(f"{run}/pretrain has no validation loss; run it again")
    return losses[-1]


def settings(quick: bool) -> dict[str, Any]:
    """What decides the replica's results; a folder with other settings is not resumed."""
    recipes = {path.name: path.read_text(encoding="utf-8") for path in (PRETRAIN, FINETUNE)}
    return {
        "quick": quick, "systems": SYSTEMS, "vocabulary": VOCABULARY, "passage": PASSAGE,
        "mask_share": MASKED, "rates": [list(rate) for rate in RATES],
        "finetune_rates": list(FINETUNE_RATES), "trial_steps": TRIAL_STEPS, "recipes": recipes,
    }  # fmt: skip


def open_results(results: Path, wanted: dict[str, Any]) -> None:
    """Make the folder of results, or check that what it holds has these settings.

    Raises ValueError where it has others.
    """
    path = results / "settings.json"
    if path.exists():
        if changed := differences(flatten(json.loads(path.read_text())), flatten(wanted)):
            raise ValueError(
                f"{results} holds results of other settings: {'; '.join(changed[:3])}; give "
                "another --results, or delete it"
            )
        return
    results.mkdir(parents=True, exist_ok=True)
    replace_json(path, wanted)
