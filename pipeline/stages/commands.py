"""Command lines and stages that the demo and the replica share."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import yaml

from pipeline.common.paths import ROOT
from pipeline.stages.stage_runner import CommandStage

PROCESSES = 2
HELD_OUT_FILE, OTHER_FILES = "7", "[0-6]"  # of the eight files of text


def python_command(script: str, *arguments: object) -> list[str]:
    """A script of this repository, run by this interpreter."""
    return [sys.executable, str(ROOT / script), *map(str, arguments)]


def mpi_command(command: Sequence[str]) -> list[str]:
    """`command` in PROCESSES processes, by the mpirun installed next to this interpreter."""
    return [_installed("mpirun"), "--bind-to", "none", "-n", str(PROCESSES), *command]


def deepspeed_command(
    script: str, arguments: Sequence[object], processes: int = PROCESSES
) -> list[str]:
    """A script of pipeline/ in `processes` processes, by DeepSpeed's launcher on a free port."""
    from pipeline.distributed.world import free_port  # imports torch: only where it is needed

    return [
        _installed("deepspeed"), "-q", "--num_accelerators", str(processes),
        "--master_port", str(free_port()), str(ROOT / "pipeline" / script),
        *map(str, arguments),
    ]  # fmt: skip


def pretraining_shards(
    folder: Path, name: str, documents: Path, recipe: Path, *more: object
) -> list[str]:
    """Makes the shards `folder/shards/name` of `documents`, at the lengths of `recipe`, by MPI."""
    lengths = yaml.safe_load(recipe.read_text(encoding="utf-8"))["data"]
    return mpi_command(python_command(
        "preprocessing/pretrain.py", "--input", documents, "--split", name,
        "--tokenizer", folder / "tokenizer.model", "--output", folder / "shards" / name,
        "--source_length", lengths["source_length"], "--target_length", lengths["target_length"],
        *more,
    ))  # fmt: skip


def summarisation_shards(folder: Path, split: str) -> list[str]:
    """Makes the shards `folder/shards/split` of the folder's pairs."""
    return python_command(
        "preprocessing/finetune.py", "--dataset", "jsonl",
        "--input", folder / "text" / f"summaries-{split}.jsonl", "--split", split,
        "--tokenizer", folder / "tokenizer.model", "--output", folder / "shards" / split,
    )  # fmt: skip


def corpus_stages(
    folder: Path, vocabulary: int, gap_sentence_shards: Callable[[str, str], list[str]]
) -> list[CommandStage]:
    """From the folder's text to a tokenizer and all shards.

    `gap_sentence_shards` gives the command for the shards of that name, from the text files with
    those numbers.
    """
    tokenizer = partial(
        python_command, "preprocessing/tokenizer.py", "train",
        "--input", folder / "text" / "documentation-*.json.gz",
        "--output", folder / "tokenizer.model", "--vocab_size", vocabulary,
    )  # fmt: skip
    return [
        CommandStage(
            "tokenizer", f"Tokenizer: SentencePiece unigram, {vocabulary:,} pieces", tokenizer
        ),
        CommandStage(
            "shards-pretrain",
            "Pre-training shards: gap sentences, over MPI",
            partial(gap_sentence_shards, "pretrain", OTHER_FILES),
        ),
        CommandStage(
            "shards-held-out",
            "Pre-training shards to validate on",
            partial(gap_sentence_shards, "pretrain-validation", HELD_OUT_FILE),
        ),
        *(
            CommandStage(
                f"shards-{split}",
                f"Summarisation shards: {split}",
                partial(summarisation_shards, folder, split),
            )
            for split in ("train", "validation", "test")
        ),
    ]


def training(
    folder: Path, recipe: Path, data: str, validation: str, output: str, *more: object
) -> list[str]:
    """Trains with ZeRO-1 on the shards `data` of the folder, into `folder/output`."""
    shards = folder / "shards"
    return deepspeed_command("train.py", [
        "--config", recipe, "--deepspeed_config", ROOT / "ds_configs" / "zero1.json",
        "--data.train", shards / data, "--data.validation", shards / validation,
        "--output", folder / output, *more,
    ])  # fmt: skip


def _installed(program: str) -> str:
    """The path of a program installed next to this interpreter."""
    return str(Path(sys.executable).with_name(program))
