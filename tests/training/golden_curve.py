"""The golden loss curve: the debug recipe on made-up data, every seed fixed.

    python tests/training/golden_curve.py write              the fixture, anew
    python tests/training/golden_curve.py compare OLD NEW    two commits of this repository

The data are random ids with a pattern to learn, drawn here, so that no tokenizer's training and no
download decides them. A change that means to alter the curve writes the fixture anew and says why.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.manifest import write_manifest  # noqa: E402
from pipeline.shards import Sample, write_shard  # noqa: E402
from pipeline.tokenizer import EOS_ID, Tokenizer  # noqa: E402

FIXTURE = ROOT / "tests" / "fixtures" / "golden_curve.txt"
SAMPLES, PIECES = 512, 20


def make_dataset(folder: Path) -> Path:
    """Sources of 10 to 40 ids; the target is every third of them, which can be learnt."""
    folder.mkdir(parents=True)
    text = iter(["one two three four five six seven eight nine ten"] * 50)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=text, model_prefix=str(folder / "tokenizer"), vocab_size=PIECES,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    tokenizer = Tokenizer(folder / "tokenizer.model")
    draw = np.random.RandomState(0)  # its stream never changes, unlike default_rng's

    def sample() -> Sample:
        source = 3 + draw.randint(0, 8, draw.randint(10, 40)).cumsum() % 24
        return Sample(np.append(source, EOS_ID), np.append(source[::3], EOS_ID), {})

    shard = write_shard(folder / "golden-0", [(f"{k:04d}", sample()) for k in range(SAMPLES)])
    write_manifest(
        folder,
        {
            "format_version": 1,
            "kind": "pretraining",
            "name": "golden",
            "split": "train",
            "tokenizer": {
                "file": "tokenizer.model",
                "sha256": tokenizer.sha256,
                "vocab_size": tokenizer.vocab_size,
            },
            "id_dtype": "uint16",
            "settings": {},
            "shards": [shard],
            "counts": {"documents": SAMPLES, "kept": SAMPLES, "excluded": {}},
            "lengths": {},
        },
    )
    return folder


def losses(repository: Path, folder: Path) -> list[float]:
    """The losses of the debug recipe (this one) as that checkout trains it, one process, fp32."""
    data = make_dataset(folder / "data")
    subprocess.run(
        [
            *(sys.executable, str(repository / "pipeline" / "train.py")),
            *("--config", str(ROOT / "pipeline" / "recipes" / "debug.yaml")),
            *("--data.train", str(data), "--output", str(folder / "run")),
            *("--train.precision", "fp32"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def write(folder: Path) -> None:
    curve = losses(ROOT, folder)
    FIXTURE.write_text("".join(f"{step} {loss:.7f}\n" for step, loss in enumerate(curve, start=1)))
    print(f"{FIXTURE}: {len(curve)} losses, {curve[0]:.4f} to {curve[-1]:.4f}")


def compare(folder: Path, commits: list[str]) -> None:
    curves = []
    for commit in commits:
        checkout = folder / commit
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(checkout), commit], check=True)
        try:
            curves.append(losses(checkout, folder / f"{commit}-run"))
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)
    for step, (old, new) in enumerate(zip(*curves, strict=True), start=1):
        print(f"{step:3} {old:.7f} {new:.7f} {new - old:+.1e}")
    largest = max(abs(new - old) for old, new in zip(*curves, strict=True))
    print(f"largest difference {largest:.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if sys.argv[1:] == ["write"]:
            write(Path(temporary))
        elif sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
            compare(Path(temporary), sys.argv[2:])
        else:
            sys.exit(__doc__)
