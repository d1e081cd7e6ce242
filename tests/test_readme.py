"""Every command of the README and docs/ runs, small, one test a page; their targets exist."""

import contextlib
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_server import TIMEOUT
from safetensors.torch import load_file

from pipeline.distributed.world import free_port
from pipeline.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
START = ROOT / "docs" / "usage.md"
"""The page that makes what the others read: shards, runs, an evaluation, a model folder."""
PAGES = [START, ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {START})]
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
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
        f"--limit_s 60 {more}"
        for command, more in (
            ("layer", "--mode inference"),
            ("encoder", "--mode inference --layers 1"),
            ("decode", "--tokens 2 --beams 1 --forms cached"),
        )
    },
    "benchmark.py data": "--steps 2",
    "estimate.py": "--model.d_model 16 --model.d_ff 32 --model.encoder_layers 1 "
    "--model.decoder_layers 1 --model.num_heads 2 --model.head_dim 8",
    "benchmark.py launches": "--config demo_pretrain.yaml --shapes 2x64x16 --decode 2x64",
    "benchmark.py sequence": "--lengths 256 --processes 1 2",
    "tokenizer train": "--vocab_size 36",
}
CPU = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}  # what forks must not decide again
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ONE_PROCESS = {"GPUS_PER_NODE": "1", "PRETRAIN_NODES": "1"}  # for which the job scripts check
ELSEWHERE = {
    "python pipeline/benchmark.py processes --data shards/c4-train --config "
    "pipeline/recipes/demo_pretrain.yaml": "test_benchmark_processes.py, with a smaller model",
    "make demo": "test_demo.py runs it (--quick)",
    "make test": "this is part of it",
    "make gpu-check": "needs a GPU; test_benchmark.py runs the same on a CPU, small",
    "make gpu-wheels GPU_WHEELS=wheels": "downloads; test_gpu_check.py looks at what it asks for",
    "make gpu-check GPU_PYTHON=python3 GPU_WHEELS=wheels": "as make gpu-check",
    "tensorboard --logdir demo": "serves until stopped; test_demo.py reads the events",
    "python pipeline/summarize.py --checkpoint demo/finetune/best README.md": "test_demo.py",
    "python -m preprocessing.show demo/shards/test --sample 0": "test_show.py, on another folder",
}


def commands_of(pages: list[Path]) -> dict[str, list[str]]:
    """By page, the commands that no page before it has."""
    seen: set[str] = set(ELSEWHERE)
    found: dict[str, list[str]] = {}
    for page in pages:
        lines = [
            re.sub(r"\s+# .*", "", line)
            for block in re.findall(r"```bash\n(.*?)```", TEXTS[page.name], re.S)
            for line in block.splitlines()
        ]
        found[page.name] = [line for line in dict.fromkeys(lines) if line not in seen]
        seen.update(lines)
    return {name: lines for name, lines in found.items() if lines}


COMMANDS = commands_of(PAGES)


def words_of(command: str) -> list[str]:
    """A command's words, with what makes it small."""
    for sign, more in SMALLER.items():
        if sign in command:
            command = re.sub(r" --vocab_size \d+", "", command) + f" {more}"
    return shlex.split(command)


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen]:
    """A process that runs Python commands without their imports' time."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "tests" / "command_server.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **CPU},
    )  # fmt: skip
    yield process
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def run(server, tmp_path_factory):
    """Runs a page's command in a folder, and asserts that it ends with status 0.

    Python commands run in forks of the server. Launchers run as they are, except that only the
    start page has deepspeed's own: elsewhere its command runs in the environment that deepspeed
    gives the one process that it starts here, unless it is to start several.
    """
    log = tmp_path_factory.mktemp("log") / "output"

    def call(command: str, folder: Path, launcher: bool = False) -> None:
        words = words_of(command)
        environment = {**os.environ, **AS_ROOT, **ONE_PROCESS, "PYTHON": sys.executable}
        if "--num_gpus" in words:
            words[1:1] = ["--master_port", str(free_port())]
        elif words[0] == "deepspeed" and not launcher:
            environment |= {
                "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
            }  # fmt: skip
            words = ["python", words[1], "--local_rank=0", *words[2:]]
        log.unlink(missing_ok=True)
        if words[0] == "python":
            asked = {"words": words[1:], "folder": str(folder), "log": str(log)}
            server.stdin.write(json.dumps({**asked, "environment": environment | CPU}) + "\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
        else:
            program = Path(sys.executable).with_name(words[0])
            words[0] = str(program) if program.exists() else words[0]
            words = [sys.executable if word == "python" else word for word in words]
            with log.open("w") as output:
                process = subprocess.Popen(
                    words, cwd=folder, env=environment, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
            try:
                status = process.wait(TIMEOUT)
            finally:  # launchers leave their processes behind
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert status == 0, f"{command}\n{log.read_text()}"

    return call


@pytest.fixture(scope="module")
def bare(tmp_path_factory, tokenizer_path) -> Path:
    """A user's folder: C4 files, pairs, T5's tokenizer and the published weights, all tiny."""
    folder = tmp_path_factory.mktemp("user") / "bare"
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
    pairs = (
        f'{{"id": "{k}", "document": "{" ".join(sentences * (4 + k))}", "summary": "{k}."}}'
        for k in range(9)
    )
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


@pytest.fixture(scope="module")
def started(bare, run) -> tuple[Path, dict[str, str]]:
    """The folder after all commands of the start page, and what went wrong with which of them."""
    folder = shutil.copytree(bare, bare.with_name("started"), symlinks=True)
    failed = {}
    for command in COMMANDS[START.name]:
        try:
            run(command, folder, launcher=True)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed[command] = str(error)
    return folder, failed


@pytest.mark.parametrize("page", [*TEXTS, "CONTRIBUTING.md"])
def test_a_page_names_make_targets_that_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    text = TEXTS.get(page) or (ROOT / page).read_text()
    for target in re.findall(r"(?:`|^)make ([a-z][\w-]*)", text, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_a_page_links_to_pages_that_exist():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.slow
@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_of_a_page_runs(page, started, run, tmp_path):
    folder, failed = started
    if page == START.name:
        assert len(COMMANDS[page]) >= 8
        assert not failed, "\n".join(failed.values())
        return
    folder = shutil.copytree(folder, tmp_path / "user", symlinks=True)
    if page == "slurm.md":
        shutil.rmtree(folder / "runs")  # a dry run of what is complete checks nothing
    for command in COMMANDS[page]:
        run(command, folder)
