"""LSG in the environment that it needs, through trainer and evaluation; refused in this one."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from small_systems import SMALL

from pipeline import evaluate, train
from pipeline.baselines.systems import name_of
from pipeline.scoring.blanc import PYTHON
from pipeline.shards import Dataset

ROOT = Path(__file__).resolve().parents[2]
BY_HAND = Path(__file__).with_name("lsg_by_hand.py")
legacy = pytest.mark.skipif(not PYTHON.exists(), reason=f"no {PYTHON.parts[-3]}: `make legacy`")
REFUSED = (
    "impossible for lsg: sparsity_type cannot be 'best'",
    "block_size must be divisible by sparsity_factor",
    "lsg has no blocks; give fields of",
)
LSG_CONFIG = {"model_type": "bart", "architectures": ["LSGBartForConditionalGeneration"]}


def run(*words: object) -> str:
    finished = subprocess.run(
        [PYTHON, *map(str, words)], capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def trained(data, output: Path, *model: object) -> list[float]:
    """The losses of a run of six steps."""
    run(
        "pipeline/train.py", "--deepspeed_config", "ds_configs/zero1.json", "--output", output,
        *("--data.train", data.train, "--data.validation", data.validation),
        *("--model.baseline", "lsg", *model, "--train.batch_size", 8, "--train.precision", "fp32"),
        *("--train.schedule", "constant", "--train.peak_lr", 0.01, "--train.warmup_steps", 1),
        *("--train.max_steps", 6, "--train.validate_every", 6, "--train.max_new_tokens", 6),
        *("--train.checkpoint_every", 6, "--train.recompute_activations", "true"),
    )  # fmt: skip
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def evaluated(run_folder: Path, data, output: Path) -> dict:
    """What evaluate.py finds of a run's last checkpoint."""
    run(
        "pipeline/evaluate.py", "--checkpoint", run_folder / "last", "--data", data.validation,
        "--output", output, "--batch_size", 4, "--max_new_tokens", 6,
    )  # fmt: skip
    return json.loads((output / "results.json").read_text())


@legacy
@pytest.mark.slow
def test_it_computes_the_same_as_its_package(tmp_path):
    found = json.loads(run(BY_HAND, "compare", tmp_path / "folder").splitlines()[-1])
    assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-6)
    assert found["gradients"][0] > 0 and found["gradients_apart"] < 1e-6
    assert_fast_attention(found["attention"])
    # One layer, of which token 40 changed: the global token sees it, its block does, the first not.
    first, *moved = found["moved"]
    assert len(moved) == 61 and first and all(moved[32:56]) and not any(moved[:8])
    folder = found["folder"]
    assert (folder["name"], folder["equal"], folder["dropout"]) == ("lsg", True, 0.5)
    assert name_of(folder["config"]) == "lsg" and "auto_map" not in folder["config"]
    assert found["limits"] == [[16_384, 16_384], [56, 61]]
    # BART-base's 139.42 million, twice 15,360 positions more, and 512 global tokens.
    assert found["millions"] == pytest.approx(139.42 + (2 * 15_360 + 512) * 768 / 1e6, abs=0.01)
    for said, line in zip(REFUSED, found["refused"], strict=True):
        assert said in line


def assert_fast_attention(found: dict) -> None:
    """Two layers; the encoder's blocks and its global token attend apart."""
    sdpa, eager = found["fast"], found["eager"]
    assert sdpa["kernels"] == {"encoder": "blocks, sdpa", "decoder": "sdpa", "cross": "sdpa"}
    assert eager["kernels"] == {"encoder": "blocks, eager", "decoder": "eager", "cross": "eager"}
    assert (sdpa["calls"], eager["calls"]) == (2 * 2 + 4, 0)
    assert found["apart"] < 1e-5


@legacy
@pytest.mark.slow
def test_random_weights_learn_and_are_evaluated(data, tmp_path):
    settings = json.dumps(SMALL["lsg"])
    losses = trained(data["ours"], tmp_path / "run", "--model.baseline_settings", settings)
    assert len(losses) == 6 and losses[-1] < 0.9 * losses[0]
    results = evaluated(tmp_path / "run", data["ours"], tmp_path / "out")
    assert results["examples"] == 10 and results["systems"].keys() >= {"model", "lead"}


@legacy
@pytest.mark.slow
def test_a_converted_folder_is_fine_tuned_and_its_code_is_not_run(data, tmp_path):
    folder, marker = tmp_path / "lsg", tmp_path / "it-ran"
    text = " ".join(sample.metadata["source_text"] for sample in Dataset(data["ours"].train))
    run(BY_HAND, "convert", folder, text)
    config = json.loads((folder / "config.json").read_text())
    (code,) = folder.glob("*.py")
    assert config["auto_map"]["AutoModelForSeq2SeqLM"].startswith(code.stem)
    code.write_text(f"open({str(marker)!r}, 'w')\n{code.read_text()}")
    sets = {}
    for name in ("train", "validation"):
        sets[name] = tmp_path / name
        run(
            "-m", "preprocessing.retokenise", "--data", getattr(data["ours"], name),
            "--tokenizer", folder, "--output", sets[name],
        )  # fmt: skip
    theirs = type(data["ours"])(**sets, tokenizer=folder)
    losses = trained(theirs, tmp_path / "run", "--model.init_from", folder)
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert evaluated(tmp_path / "run", theirs, tmp_path / "out")["examples"] == 10
    saved = tmp_path / "run" / "last" / "model"
    assert "auto_map" not in json.loads((saved / "config.json").read_text())
    assert not marker.exists() and not list(saved.glob("*.py"))


def test_elsewhere_one_line_says_which_python_to_use(data, tmp_path, capsys):
    folder = shutil.copytree(data["ours"].tokenizer, tmp_path / "lsg")
    (folder / "config.json").write_text(json.dumps(LSG_CONFIG))
    (folder / "model.safetensors").write_bytes(b"")
    words = ["--data.train", str(data["ours"].train), "--output", str(tmp_path / "run")]
    words += ["--deepspeed_config", "ds_configs/zero1.json", "--model.baseline", "lsg"]
    for more in ([], ["--dry_run"], ["--dry_run", "--model.init_from", str(folder)]):
        with pytest.raises(SystemExit, match="2"):
            train.main([*words, *more])
        assert_says_so(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
    words = ["--checkpoint", str(folder), "--data", str(data["ours"].validation)]
    with pytest.raises(SystemExit) as end:
        evaluate.main([*words, "--output", str(tmp_path / "out"), "--dry_run"])
    assert end.value.code == 2
    assert_says_so(capsys.readouterr().err)


def assert_says_so(line: str) -> None:
    assert line.startswith("error: ") and line.count("\n") == 1
    assert "`make legacy`" in line and ".venv-legacy/bin/python" in line


def test_its_folder_is_not_barts():
    assert name_of(LSG_CONFIG) == "lsg"
    for architectures in (["BartForConditionalGeneration"], None, 3):
        assert name_of({"model_type": "bart", "architectures": architectures}) == "bart"
    assert name_of({"model_type": "pegasus", "architectures": ["LSGPegasusModel"]}) is None
