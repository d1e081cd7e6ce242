"""A small site: documentation as the corpus, tiny recipes, the settings that name them."""

import json
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import yaml
from cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
SLOWLY = 300.0  # seconds that a start may take where other processes use the cores
SIZES = {"source_length": 64, "target_length": 32}
MODEL = {
    "d_model": 16, "d_ff": 32, "state_dim": 4, "encoder_layers": 1, "decoder_layers": 1,
    "num_heads": 2, "head_dim": 8, "dropout": 0.1,
}  # fmt: skip
TRAIN = {
    "max_steps": 12, "batch_size": 8, "accumulation": 1, "schedule": "constant", "peak_lr": 0.001,
    "precision": "fp32", "checkpoint_every": 50, "validate_every": 100_000,
    "validation_samples": 4,
}  # fmt: skip


class Site:
    """Text, tokenizer and recipes in a folder, where jobs write too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = folder / "text"
        program("preprocessing/documentation.py", "--output", text, "--limit_files", 300)
        documents = sorted(text.glob("documentation-*.json.gz"))
        (folder / "c4").mkdir()
        for number, document in enumerate(documents):
            kind = "validation" if number == len(documents) - 1 else "train"
            shutil.copy(document, folder / "c4" / f"{kind}-{document.name}")
        for name in ("docs", "notes"):
            (folder / "sets" / name).mkdir(parents=True)
            for split in ("train", "validation", "test"):
                pairs = (text / f"summaries-{split}.jsonl").read_text().splitlines(keepends=True)
                few = folder / "sets" / name / f"{split}.jsonl"
                few.write_text("".join(pairs[:40]))
        program("preprocessing/tokenizer.py", "train", "--input", *documents,
                "--output", folder / "tokenizer.model", "--vocab_size", 1000)  # fmt: skip
        (folder / "recipes").mkdir()
        self.write_recipe("pretrain_c4")
        rouge = {"validation_rouge": True, "max_new_tokens": 8}
        for name in ("docs", "notes"):
            self.write_recipe(f"finetune_{name}", **rouge)

    def write_recipe(self, name: str, folder: str = "recipes", **train: object) -> Path:
        """A recipe of a model that takes milliseconds a step, with these settings of `train`."""
        path = self.folder / folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({"model": MODEL, "data": SIZES, "train": TRAIN | train}))
        return path

    def settings(self, runs: str, **more: str) -> dict[str, str]:
        """The environment, which overrides slurm/settings.sh; `runs` is relative to this folder."""
        lengths = " ".join(f"--{name} {length}" for name, length in SIZES.items())
        return {
            "CPU": "1",
            "GPUS_PER_NODE": "1",
            "LOCOST_ROOT": str(ROOT),
            "PYTHON": sys.executable,
            "TOKENIZER": str(self.folder / "tokenizer.model"),
            "C4_TRAIN": str(self.folder / "c4" / "train-*"),
            "C4_VALIDATION": str(self.folder / "c4" / "validation-*"),
            "SHARDS": str(self.folder / "shards"),
            "RUNS": str(self.folder / runs),
            "RECIPES": str(self.folder / "recipes"),
            "SETS": "docs notes",
            "SETS_DIR": str(self.folder / "sets"),
            "PREPROCESS_ARGUMENTS": lengths,
            "EVALUATE_ARGUMENTS": "--max_new_tokens 8 --precision fp32",
            **more,
        }

    def make_shards(self) -> None:
        """Make the pre-training shards, without Slurm."""
        for split in ("train", "validation"):
            program("preprocessing/pretrain.py", "--input", self.folder / "c4" / f"{split}-*",
                    "--split", split, "--tokenizer", self.folder / "tokenizer.model",
                    "--output", self.folder / "shards" / f"c4-{split}",
                    *(word for name, length in SIZES.items() for word in (f"--{name}", length)),
                    )  # fmt: skip


def program(script: str, *arguments: object) -> None:
    """Run one of the project's command lines; its output is shown if it fails."""
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def submit(cluster: Cluster, script: str, settings: dict[str, str], *arguments: str,
           nodes: int = 2, tasks: int = 1, flags: tuple[str, ...] = ()) -> str:  # fmt: skip
    """sbatch one of slurm/'s scripts with these settings; the job's id."""
    runs = Path(settings["RUNS"])
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    gpus = "--gpus-per-node=0"  # the scripts ask for four; later flags may ask again
    return cluster.submit(
        gpus, f"--nodes={nodes}", f"--ntasks-per-node={tasks}", "--cpus-per-task=1", "--time=10",
        f"--output={runs}/logs/%x-%j.log", *flags, str(ROOT / "slurm" / script), *arguments,
        cwd=runs, **settings,
    )  # fmt: skip


def heartbeat(run: Path) -> dict[str, float]:
    """The run's last heartbeat; zeros before the first."""
    path = run / "heartbeat.json"
    return json.loads(path.read_text()) if path.exists() else {"step": 0, "time": 0}


def wait_until_training(cluster: Cluster, job: str, run: Path) -> None:
    """Wait until the job, in its latest start, has made a step."""
    deadline = time.monotonic() + SLOWLY
    while True:
        fields = cluster.job(job)
        state, began = fields["JobState"], fields["StartTime"]
        if state == "RUNNING":
            # To the second: what ran before the job may have moved in the rest of that one.
            if heartbeat(run)["time"] > datetime.fromisoformat(began).timestamp() + 1:
                return
        else:
            assert state in ("PENDING", "COMPLETING"), f"{fields}\n{cluster.log(job)}"
        assert time.monotonic() < deadline, f"no step: {fields}\n{cluster.log(job)}"
        time.sleep(0.2)


def losses(run: Path) -> list[tuple[int, float]]:
    """(step, loss) of every line of training."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def weights(run: Path) -> bytes:
    """The last checkpoint's weights file."""
    return (run / "last" / "model" / "model.safetensors").read_bytes()
