"""Every command of the README and of docs/ is run, small; `make` has the targets they name."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
PAGES = "\n".join(
    page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
)
COMMANDS = dict.fromkeys(  # in order, each once: pages repeat where they begin
    re.sub(r"\s+# .*", "", line)
    for block in re.findall(r"```bash\n(.*?)```", PAGES, re.S)
    for line in block.splitlines()
)
TINY = (
    "--model.d_model 16 --model.d_ff 32 --model.state_dim 4 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.num_heads 2 --model.head_dim 8 --train.max_steps 2 "
    "--train.batch_size 4 --train.validate_every 2 --train.max_new_tokens 4"
)
# What a command gets added, so that it ends in seconds here.
SMALLER = {
    "train.py": TINY,
    "pretrain.sh": TINY,
    "evaluate.py": "--max_new_tokens 4",
    "summarize.py": "--max_new_tokens 4",
    **{
        f"benchmark.py {command}": "--config pipeline/recipes/demo_pretrain.yaml --lengths 64 "
        "--limit_s 60"
        for command in ("layer", "encoder", "decode")
    },
    "benchmark.py processes": "--batch_size 4 --steps 2",
    "tokenizer train": "--vocab_size 36",
}
ELSEWHERE = {
    "make demo": "test_demo.py runs it (--quick)",
    "make test": "this is part of it",
    "make gpu-check": "needs a GPU; test_benchmark.py runs the same on a CPU, small",
    "tensorboard --logdir demo": "serves until stopped; test_demo.py reads the events",
    "python pipeline/summarize.py --checkpoint demo/finetune/best README.md": "test_demo.py",
    "python -m preprocessing.show demo/shards/test --sample 0": "test_show.py, on another folder",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_path) -> Path:
    """A user's folder: C4 files, pairs, T5's tokenizer and the published weights, all tiny."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "c4" / "en").mkdir(parents=True)
    sentences = ["The mill stands by the river.", "Three children watch the old herons fish."]
    document = " ".join(sentences * 4)
    for split in ("train", "validation"):
        lines = (
            f'{{"text": "{document} Number {k}.", "timestamp": "", "url": "u{k}"}}\n'
            for k in range(9)
        )
        content = gzip.compress("".join(lines).encode())
        (folder / "c4" / "en" / f"c4-{split}.00000-of-00001.json.gz").write_bytes(content)
    pairs = (f'{{"id": "{k}", "document": "{document}", "summary": "{k}."}}' for k in range(9))
    (folder / "pairs.jsonl").write_text("\n".join(pairs) + "\n")
    (folder / "book.txt").write_text(document)
    shutil.copy(tokenizer_path, folder / "spiece.model")
    published = ROOT / "tests" / "fixtures" / "locost_tiny"
    weights = load_file(published / "model.safetensors")
    vocab_size = Tokenizer(tokenizer_path).vocab_size
    for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = torch.zeros(vocab_size, 32)
    torch.save(weights, folder / "pytorch_model.bin")
    config = json.loads((published / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab_size}))
    for code in ("pipeline", "preprocessing", "ds_configs", "slurm"):
        (folder / code).symlink_to(ROOT / code)
    return folder


def test_the_pages_speak_of_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([a-z][\w-]*)", PAGES, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.slow
def test_every_command_of_the_pages_runs(folder):
    # The tokenizer first: the README tells of it after its first use. Then page by page, where what
    # one command writes the next ones read.
    ordered = sorted(
        (command for command in COMMANDS if command not in ELSEWHERE),
        key=lambda command: "preprocessing.tokenizer" not in command,
    )
    assert len(ordered) >= 8
    for command in ordered:
        for sign, more in SMALLER.items():
            if sign in command:
                command = re.sub(r" --vocab_size \d+", "", command) + f" {more}"
        words = shlex.split(command)
        program = Path(sys.executable).with_name(words[0])
        words[0] = str(program) if program.exists() else words[0]
        words = [sys.executable if word == "python" else word for word in words]
        finished = subprocess.run(
            words, cwd=folder, env={**os.environ, "PYTHON": sys.executable},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
