"""`make gpu-check`: its sections run on a CPU at toy sizes; what it does not run, it says."""

import json
import math
import subprocess
import sys

import pytest
import torch

from pipeline import benchmark
from pipeline.benchmarking import (
    gpu_candidates,
    gpu_check,
    gpu_convolution,
    gpu_network,
    gpu_rows,
    gpu_training,
)
from pipeline.benchmarking import gpu_predictions as predictions
from pipeline.benchmarking.gpu_candidates import Candidate
from pipeline.common.paths import ROOT
from pipeline.model import Locost
from pipeline.model.long_conv import Layout
from pipeline.model.ssm import ssm_layers
from pipeline.training.choices import FILE as CHOICES_FILE
from pipeline.training.choices import choices

CPU = torch.device("cpu")
RECORDS = sorted((ROOT / "benchmarks").glob("*/gpu_check.json"))


@pytest.mark.slow
def test_every_section_passes_on_a_cpu_at_toy_sizes(tmp_path, capsys):
    arguments = ["gpu", "--device", "cpu", "--small", "--output", str(tmp_path)]
    assert benchmark.main(arguments) == 0
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    sections = results["sections"]
    assert list(sections) == list(gpu_check.SECTIONS)
    assert all(rows for rows in sections.values())
    assert results["failures"] == results["skipped"] == []
    assert "0 failures" in capsys.readouterr().out

    first, *losses, estimate, stage3 = sections["check: training"]
    assert [row["error"] <= row["tolerance"] for row in losses] == [True, True]
    assert losses[0]["ours"] == first["first_loss"] and first["last_loss"] < first["first_loss"]
    assert estimate["samples_per_s"] == first["samples_per_s"] > 0
    assert estimate["estimated_samples_per_s"] > 0 and estimate["estimated_for"] == "h100"
    assert first["attention"].startswith("sdpa (") and first["fft"].startswith("rows")
    assert stage3["bit_for_bit"]
    assert [row["operation"] for row in sections["check: network"]] == ["all-reduce", "all-to-all"]
    real = sections["time: real micro-batches"]
    assert [(row["count"], row["samples"]) for row in real] == [(16, 256), (32, 256)]
    decoded = sections["time: decoding"]
    assert [(row["B"], row["beams"]) for row in decoded] == [(1, 1), (1, 4), (8, 1), (8, 4)]
    assert all({"plain_step_ms", "graph_step_ms"} <= row.keys() for row in decoded)


@pytest.mark.slow
def test_without_deepspeed_and_other_packages_all_but_training_is_there():
    """What docs/benchmarks.md says the check needs, on a node that has nothing else."""
    absent = (
        *gpu_training.NEEDED, "matplotlib", "rouge_score", "bs4", "markdown", "transformers",
        "pyarrow", "mpi4py",
    )  # fmt: skip
    program = (
        "import sys\n"
        f"for name in {absent!r}: sys.modules[name] = None\n"
        "import torch\n"
        "from pipeline import benchmark\n"
        "from pipeline.benchmarking import gpu_training, gpu_timings\n"
        "benchmark.build_parser()\n"
        "cpu = torch.device('cpu')\n"
        "print(*gpu_training.training(cpu, True))\n"
        "print(len([*gpu_timings.real_micro_batches(cpu, True)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    training, count = done.stdout.splitlines()
    assert "cannot import deepspeed, msgpack" in training and "wheels" in training
    assert count == "2"


def test_failures_are_named_and_the_next_section_runs(tmp_path, capsys, monkeypatch):
    def broken(device, small):
        yield {"check": "a", "error": math.nan, "passed": False}
        raise RuntimeError("lost")

    def fine(device, small):
        yield {"ms": 1.0}

    monkeypatch.setattr(gpu_check, "SECTIONS", {"one": broken, "two": fine})
    assert gpu_check.gpu_check(CPU, tmp_path, True, budget_s=100) == 1
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert results["failures"] == ["one: check a  error nan  passed NO", "one: RuntimeError: lost"]
    assert results["sections"]["two"] == [{"ms": 1.0}]


def test_sections_beyond_the_budget_are_skipped(tmp_path, capsys, monkeypatch):
    def fine(device, small):
        yield {"ms": 1.0}
        yield {"ms": 2.0}

    monkeypatch.setattr(gpu_check, "SECTIONS", {"one": fine, "two": fine})
    assert gpu_check.gpu_check(CPU, tmp_path, True, budget_s=0) == 0
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert results["skipped"] == ["one", "two"]
    assert "two: skipped" in capsys.readouterr().out


def test_a_section_beyond_its_limit_gives_way_to_the_next(tmp_path, capsys, monkeypatch):
    def fine(device, small):
        yield {"ms": 1.0}
        yield {"ms": 2.0}

    monkeypatch.setattr(gpu_check, "SECTIONS", {"slow": fine, "next": fine})
    monkeypatch.setattr(gpu_check, "LIMITS", {"slow": 0.0})
    assert gpu_check.gpu_check(CPU, tmp_path, False, budget_s=100) == 0
    results = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {name: len(rows) for name, rows in results["sections"].items()} == {"slow": 1, "next": 2}
    assert results["skipped"] == ["the rest of slow"]
    assert predictions.HEAD in capsys.readouterr().out  # with what was measured


def test_training_comes_before_every_timing_and_has_the_longest_limit():
    names = list(gpu_check.SECTIONS)
    first_timing = min(names.index(name) for name in names if not name.startswith("check"))
    assert all(name.startswith("check") for name in names[:first_timing])
    timed = [number for number, name in enumerate(names) if name.startswith("time")]
    assert all(number < min(timed) for number, name in enumerate(names) if "candidates" in name)
    limits = {name: gpu_check.limit_of(name, small=False) for name in names}
    assert max(limits, key=limits.get) == "check: training"
    assert limits["check: training"] <= 440 - 4 * gpu_check.TIMING_LIMIT  # of --budget_s


def _fails():
    raise RuntimeError("no such kernel\nand more")


def _of_error(error):
    return lambda: {"ms": 1.0, "error": error, "tolerance": 1e-3}


@pytest.mark.parametrize(
    ("runs", "passed"),
    [
        ([_of_error(0.0), _of_error(1e-4)], [True, True]),
        ([_of_error(0.0), _fails], [True, True]),  # the trainer falls back
        ([_of_error(0.0), _of_error(0.1)], [True, False]),  # a test that lets it through
        ([_of_error(0.0), _of_error(math.nan)], [True, False]),
        ([_fails, _of_error(0.0)], [False, True]),  # nothing to fall back to
    ],
)
def test_a_candidate_that_raises_fails_the_check_only_as_the_reference(runs, passed, monkeypatch):
    listed = [Candidate(f"candidate {n}", None, run) for n, run in enumerate(runs)]
    listed.append(Candidate("absent", "not installed", _fails))
    monkeypatch.setattr(gpu_candidates, "CANDIDATES", {"a choice": lambda device, small: listed})
    *found, absent = gpu_candidates.rows("a choice", CPU, True)
    assert [row["passed"] for row in found] == passed
    assert absent == {"choice": "a choice", "candidate": "absent", "not run": "not installed"}
    for row, run in zip(found, runs, strict=True):
        assert (row.get("raised") == "no such kernel") == (run is _fails)
    if runs[1] is _fails:
        assert found[1]["so"] == "the trainer falls back to the reference"


def test_all_that_a_run_chooses_by_timing_has_its_candidates():
    made = choices(Locost(gpu_rows.SMALL), CPU, torch.float32, stage=1)
    assert len(gpu_candidates.CANDIDATES) == len(made)
    for listed, reference in zip(
        gpu_candidates.CANDIDATES.values(), gpu_training.REFERENCES.values(), strict=True
    ):
        assert listed(CPU, True)[0].name == reference


def test_timings_take_what_the_trainer_would_choose(monkeypatch):
    def listed(*milliseconds):
        return [lambda ms=ms: {"ms": ms, "error": 0.0, "tolerance": 1.0} for ms in milliseconds]

    def measure(choice, names, runs):
        found = [Candidate(name, None, run) for name, run in zip(names, runs, strict=True)]
        monkeypatch.setitem(gpu_candidates.CANDIDATES, choice, lambda device, small: found)
        assert len([*gpu_candidates.rows(choice, CPU, True)]) == len(names)

    monkeypatch.setattr(gpu_candidates, "_times", {})
    model = Locost(gpu_rows.SMALL)
    plain = {"attention": "sdpa", "kernel_build": "torch", "fft": "rows", "blocks": "eager"}
    assert gpu_candidates.as_in_training(model, CPU) == plain  # nothing was measured

    measure("attention", ["sdpa", "varlen", gpu_candidates.CUDNN], listed(10.0, 9.0, 1.0))
    measure("kernel build", ["torch", "triton"], [*listed(10.0), _fails])
    measure("FFT", ["rows", "pairs"], listed(10.0, 9.9))
    chosen = gpu_candidates.as_in_training(model, CPU)
    assert chosen == plain | {"attention": "varlen"}
    assert model.decoder.attention_backend == "varlen"
    measure("FFT", ["rows", "pairs"], listed(10.0, 5.0))
    assert gpu_candidates.as_in_training(model, CPU)["fft"] == "pairs"
    assert {layer.transform for layer in ssm_layers(model)} == {"pairs"}


def test_every_choice_has_a_reference_that_can_run_anywhere():
    for choice in gpu_candidates.CANDIDATES.values():
        assert choice(CPU, True)[0].obstacle is None


@pytest.mark.parametrize(
    ("ours", "stopped_after", "exact", "passed"),
    [
        ([3.0, 2.5, 2.0], 1, True, True),
        ([3.0, 2.5, 2.0 + 1e-9], 1, True, False),  # not bit for bit
        ([3.0, 2.5, 2.0 + 1e-9], 1, False, True),
        ([3.0, 2.5, 2.5], 1, False, False),
        ([3.0, 2.5, math.nan], 1, False, False),
        ([3.0, 2.5], 1, False, False),
        ([3.0, 2.5, 2.0, 1.9], 1, False, False),
        ([3.0, 2.5, 2.0], 3, True, False),  # it was not stopped before its end
        ([3.0, 2.5, 2.0], 0, True, False),
    ],
)
def test_a_resumed_run_must_have_the_losses_of_the_whole_one(ours, stopped_after, exact, passed):
    row = gpu_training.compared(ours, [3.0, 2.5, 2.0], stopped_after, exact)
    assert row["passed"] is passed


def test_losses_that_are_not_finite_are_no_success():
    row = gpu_training.compared([3.0, math.nan], [3.0, math.nan], 1, exact=True)
    assert row["passed"] is False


def test_a_run_that_fails_is_a_row_and_the_next_follows():
    def rows():
        yield {"loss": 1.0}
        raise RuntimeError("status 1, expected 0: no room\nmore")

    def both():
        return (yield from gpu_training.unless_it_raises("ZeRO 1", rows()))

    assert [*both()] == [
        {"loss": 1.0},
        {"trains": "ZeRO 1", "raised": "status 1, expected 0: no room", "passed": False},
    ]


def test_choices_by_timing_are_those_of_the_first_run(tmp_path):
    chosen = {"attention": "varlen", "fft": "pairs", "blocks": "compiled", "accumulation": 2}
    entries = {name: {"chosen": value, "for": {}} for name, value in chosen.items()}
    (tmp_path / CHOICES_FILE).write_text(json.dumps(entries))
    words = gpu_training.choices(tmp_path)
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--train.attention": "varlen", "--train.kernel_build": "torch", "--train.fft": "pairs",
        "--train.blocks": "eager",
    }  # fmt: skip
    assert "sdpa" in gpu_training.choices(tmp_path / "absent")


def test_every_choice_of_a_run_is_fixed_where_runs_are_compared():
    made = choices(Locost(gpu_rows.SMALL), CPU, torch.float32, stage=1)
    assert [choice.name for choice in made] == [*gpu_training.REFERENCES]
    assert {name: choice.use(reference)[0] for choice, (name, reference) in zip(
        made, gpu_training.REFERENCES.items(), strict=True
    )} == gpu_training.REFERENCES  # fmt: skip


def test_one_gpu_has_nothing_to_exchange(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # there is none here
    (row,) = gpu_network.network(torch.device("cuda"), small=False)
    assert row == {"network": "NCCL", "not run": "1 GPU, 2 needed"}


def test_a_process_that_dies_is_said_with_its_last_words(monkeypatch):
    monkeypatch.setattr(gpu_network, "__name__", "pipeline.benchmarking.gpu_rows_absent")
    with pytest.raises(RuntimeError, match=r"status 1: .*gpu_rows_absent"):
        list(gpu_network.network(CPU, small=True))


def test_published_times_are_those_of_the_same_fft():
    """Ours at 2,048 positions is their 4K: the FFT is of twice the input."""
    assert Layout.of(2048).size == 4096
    assert gpu_convolution.published(4096)["flashfftconv_fp16_gated_ms"] == 1.43
    assert all(Layout.of(size // 2).size == size for size in gpu_convolution.FLASH_FFT_CONV)
    assert gpu_convolution.published(65536) == {}


def measured(**values):
    row = {"L": 4096, "B": 16, "ms": 210.04, "samples_per_s": 76.19, "step_ms": 2.41, **values}
    return {"device": "NVIDIA H200", "sections": {"time: training": [row], "time: inference": [
        {"L": 16384, "samples_per_s": 3.04}]}}  # fmt: skip


def test_the_measured_column_is_filled_from_a_record():
    earlier = predictions.read_record(predictions.EARLIER)
    empty = [*predictions.table(earlier)]
    assert empty[0].endswith("| measured |")
    assert empty[2] == "| training step, 16 x 4,096 / 512 | 200 ms | 303 ms | |"
    assert all(line.endswith("| |") for line in empty[2:])

    filled = [*predictions.table(earlier, measured())]
    assert filled[0].endswith("| measured, NVIDIA H200 |")
    cells = [line.split("|")[-2].strip() for line in filled[2:]]
    assert cells == ["210 ms", "76.2 samples/s", "", "", "", "3.04 samples/s"]  # no MFU, no step
    filled = [*predictions.table(earlier, measured(mfu=0.231))]
    assert "| 23.1 % |" in filled[4]


def test_a_page_gets_the_table_and_nothing_else_changes(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{predictions.HEAD} old |\n|---|\n| 1 |\n\nafter\n")
    record = tmp_path / "gpu_check.json"
    record.write_text(json.dumps(measured()))
    arguments = ["predictions", "--measured", str(record), "--page", str(page)]
    assert benchmark.main(arguments) == 0
    printed = capsys.readouterr().out
    assert page.read_text() == f"before\n\n{printed}\nafter\n"
    assert benchmark.main(arguments) == 0
    assert page.read_text() == f"before\n\n{printed}\nafter\n"


@pytest.mark.parametrize(
    ("content", "said"), [("none", "expected 1"), (f"{predictions.HEAD}\n" * 2, "has 2 tables")]
)
def test_a_page_without_one_table_is_refused(content, said):
    with pytest.raises(ValueError, match=said):
        predictions.refreshed(content, [])


def test_another_file_is_no_record(tmp_path, capsys):
    file = tmp_path / "x.json"
    file.write_text('{"rows": []}')
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["predictions", "--measured", str(file)])
    assert capsys.readouterr().err.startswith(f"error: {file} is not a record of the GPU check")


def test_the_recorded_page_holds_the_table_of_its_records():
    """Made by `benchmark.py predictions --page`, with a later record where there is one."""
    page = (ROOT / "benchmarks" / "README.md").read_text()
    earlier = predictions.read_record(predictions.EARLIER)
    later = [predictions.read_record(file) for file in RECORDS if file != predictions.EARLIER]
    tables = [[*predictions.table(earlier, record)] for record in (None, *later)]
    assert sum("\n".join(lines) + "\n" in page for lines in tables) == 1


def test_wheels_are_installed_without_network():
    """What make would run: the installation itself needs the wheels."""

    def printed(*variables):
        command = ["make", "-n", "gpu-check", "GPU_PYTHON=python3", *variables]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    text = printed("GPU_WHEELS=wheels")
    assert "python3 -m pip install" in text and "--no-index" in text and "wheels/*.whl" in text
    assert f"PYTHONPATH={ROOT}/gpu-check/packages python3 pipeline/benchmark.py gpu" in text
    assert "-m pip" not in printed()


def test_the_wheels_are_all_that_training_needs_beyond_torch():
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "training_packages.py"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.partition("==")[0] for line in done.stdout.splitlines()}
    assert set(gpu_training.NEEDED) <= names
    assert {"hjson", "pydantic", "docstring-parser", "typeshed-client"} <= names  # theirs
    assert not any(name == "torch" or name.startswith(("nvidia", "triton")) for name in names)
