"""The record of systems: interleaved, resumed run by run, refused under other settings."""

import json
import sys
from contextlib import suppress
from dataclasses import asdict

import matplotlib.image
import pytest
import torch

from pipeline import benchmark
from pipeline.benchmarking import systems
from pipeline.benchmarking.system_ratios import ratios, targets
from pipeline.benchmarking.system_record import code_fingerprint, with_medians
from pipeline.benchmarking.system_text import caption, page_lines
from pipeline.common.paths import ROOT
from pipeline.distributed.device import hardware_name

RECORD = ROOT / "benchmarks" / "cpu" / "systems" / "systems.json"
PAGE = RECORD.with_name("README.md")
BEGIN, END = "<!-- systems: begin -->", "<!-- systems: end -->"
SECONDS = {"locost": [2.0, 2.2, 2.1], "t5": [3.0, 1.0, 3.3], "led": [1.0, 1.1, 1.0]}
KERNEL = {"kernel": "encoder made up", "recomputation": False, "weights_gib": 0.5}


class Killed(Exception):
    """Stands for a kill in the middle of a run."""


class FakeRuns:
    """Stands for `measure_apart`: figures by system and call, crosses, a kill at one call."""

    def __init__(self, killed_at=None, crosses=()):
        self.made = []
        self.killed_at, self.crosses = killed_at, crosses

    def __call__(self, case, limit_s, memory_bytes, python, environment):
        if len(self.made) == self.killed_at:
            raise Killed
        self.made.append((case.length, case.mode, case.memory, case.subject))
        if (case.subject, case.length) in self.crosses:
            return {**asdict(case), "cross": "out of memory (more than 1 GiB)"}
        before = self.made.count(self.made[-1])
        wall = SECONDS[case.subject][before - 1]
        found = {"wall_s": wall, "cpu_s": 2 * wall, "peak_gib": wall / 10, "total_gib": 1.0}
        return {**asdict(case), **found, **KERNEL}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs the command over made-up measurements; gives them and the record."""

    def run(*arguments, killed_at=None, crosses=()):
        fake = FakeRuns(killed_at, crosses)
        monkeypatch.setattr(systems, "measure_apart", fake)
        words = ["systems", "--systems", *SECONDS, "--lengths", "8", "16", "--tokens", "4"]
        with suppress(Killed):
            assert benchmark.main([*words, "--output", str(tmp_path), *arguments]) == 0
        return fake.made, json.loads((tmp_path / "systems.json").read_text())

    return run


def test_rounds_take_the_systems_in_turn_and_each_begins_with_another(call, tmp_path, capsys):
    made, record = call("--mode", "training")
    one, two, three = SECONDS
    turns = [one, two, three, two, three, one, three, one, two]
    assert made == [
        (length, "training", memory, system)
        for length in (8, 16) for memory in ("plain", "saving") for system in turns
    ]  # fmt: skip
    row = record["rows"][1]
    assert (row["subject"], row["wall_s"], row["wall_s_min"], row["wall_s_max"]) == (
        "t5", 3.0, 1.0, 3.3,
    )  # fmt: skip
    assert [run["round"] for run in row["runs"]] == [1, 2, 3]
    assert all(run["load"] >= 0 and run["time"] and run["sitting"] for run in row["runs"])
    printed = capsys.readouterr().out
    assert "weights, not counted in the peak: locost 0.50 GiB, t5 0.50 GiB" in printed
    assert "Where LOCOST loses:\n  training, plain, led, memory: 8: 2.100" in printed
    assert matplotlib.image.imread(tmp_path / "systems.png").std() > 0.01  # not blank


def test_a_killed_comparison_repeats_only_the_run_in_progress(call):
    mode = ("--mode", "training")
    first, partial = call(*mode, killed_at=5)
    assert len(first) == 5 and sum(len(row["runs"]) for row in partial["rows"]) == 5
    rest, resumed = call(*mode)
    assert len(rest) == 36 - 5
    again, same = call(*mode)
    assert again == [] and same == resumed
    sittings = {run["sitting"] for row in resumed["rows"] for run in row["runs"]}
    assert len(sittings) in (1, 2)  # a sitting's name is its second


def test_crosses_end_a_system_and_are_not_measured_again(call):
    made, record = call("--mode", "training", crosses=[("t5", 8)])
    assert sum(system == "t5" for *_, system in made) == 2  # plain and saving, one round each
    rows = {(row["subject"], row["memory"], row["length"]): row for row in record["rows"]}
    assert rows["t5", "plain", 16]["cross"] == "out of memory (more than 1 GiB) (at 8)"
    assert "wall_s" not in rows["t5", "plain", 8]
    assert call("--mode", "training")[0] == []


def test_more_rounds_lengths_and_systems_continue_a_record(call):
    call("--mode", "inference", "--rounds", "1")
    made, record = call("--mode", "inference", "--rounds", "2")
    # Only LOCOST saves memory in inference: the others are measured once.
    assert len(made) == 2 * (3 + 1) and sum("as" in row for row in record["rows"]) == 2 * 2
    assert {len(row["runs"]) for row in record["rows"]} == {2}


def test_the_threads_of_the_command_itself_change_nothing(call):
    """Those of OMP_NUM_THREADS, which no run has."""
    call("--mode", "inference", "--rounds", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        made, _ = call("--mode", "inference", "--rounds", "1")
    finally:
        torch.set_num_threads(threads)
    assert made == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--threads", "2"], "threads was 1, now 2"),
        (["--dtype", "bf16"], "dtype was fp32, now bf16"),
        (["--tokens", "5"], "tokens was 4, now 5"),
        (["--memory_limit", "2"], "memory_limit_gib was available, now 2"),
        (["--settings", '{"t5": {"d_ff": 8}}'], "sizes.t5.d_ff was None, now 8"),
    ],
)
def test_another_setting_is_refused_in_one_line(call, capsys, more, said):
    _, record = call("--mode", "inference")
    with pytest.raises(SystemExit) as end:
        call("--mode", "inference", *more)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert call("--mode", "inference")[1] == record


def test_other_code_and_libraries_are_refused(call, capsys, monkeypatch, tmp_path):
    call("--mode", "inference")
    for name, new, said in (
        ("code_fingerprint", lambda: "0123", f"code was {code_fingerprint()}, now 0123"),
        ("versions", lambda _: {"torch": "1", "transformers": "2"}, "now 1"),
    ):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(systems, name, new)
            call("--mode", "inference")
        assert said in capsys.readouterr().err


def test_lsg_is_left_for_later_without_its_environment(call, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SECONDS, "lsg", [1.0, 1.0, 1.0])
    absent, present = tmp_path / "nowhere", sys.executable
    made, record = call("--mode", "inference", "--legacy_python", str(absent))
    assert not any(system == "lsg" for *_, system in made)
    assert record["settings"]["legacy_versions"] is None
    assert "not measured: lsg" in capsys.readouterr().out
    made, record = call("--mode", "inference", "--legacy_python", present)
    assert {system for *_, system in made} == {"lsg"} and len(made) == 2 * 3
    assert record["settings"]["legacy_versions"] == record["versions"]
    assert call("--mode", "inference", "--legacy_python", str(absent))[0] == []


def made_up(system, peaks, mode="training", length=4096, **other):
    runs = [
        {
            "round": number,
            "wall_s": 10 * peak,
            "cpu_s": 1.0,
            "peak_gib": peak,
            "sitting": "a",
            "machine": "one",
        }
        for number, peak in enumerate(peaks, 1)
    ]
    row = {"subject": system, "mode": mode, "memory": "plain", "length": length, "runs": runs}
    return with_medians({**row, **other})


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([1.0, 2.0, 3.0], [1.1, 2.1, 3.1], "wins"),
        ([1.1, 2.1, 3.1], [1.0, 2.0, 3.0], "loses"),
        ([1.0, 1.0, 1.1], [1.05, 1.05, 1.05], "within the spread"),
        ([1.0, 1.0], [2.0, 2.0], "too few rounds"),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "within the spread"),
    ],
)
def test_all_rounds_must_agree(ours, theirs, verdict):
    found = ratios([made_up("locost", ours), made_up("led", theirs)])
    assert [ratio.verdict for ratio in found if ratio.figure == "memory"] == [verdict]


def test_a_side_that_did_not_run_loses():
    none = {"cross": "out of memory"}
    ran, failed = made_up("locost", [1.0]), made_up("led", [], **none)
    assert {ratio.verdict for ratio in ratios([ran, failed])} == {"wins"}
    ran, failed = made_up("led", [1.0]), made_up("locost", [], **none)
    assert {ratio.verdict for ratio in ratios([ran, failed])} == {"loses"}
    assert ratios([made_up("led", [], **none), failed]) == []


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        ([0.44, 0.45, 0.45], "met"),
        ([0.44, 0.44, 0.46], "within the spread"),
        ([0.46, 0.46, 0.46], "missed"),
        ([0.4, 0.4], "too few rounds"),
    ],
)
def test_a_target_is_met_only_by_every_round(ours, outcome):
    rows = [made_up("locost", ours), made_up("longt5-tglobal", [1.0] * len(ours))]
    found = [
        (target.most, said)
        for target, ratio, said in targets(ratios(rows))
        if ratio.figure == "memory"
    ]
    assert found == [(0.45, outcome)]


def test_rounds_of_different_sittings_are_counted():
    other = made_up("led", [2.0, 2.0, 2.0])
    other["runs"][0]["sitting"] = "b"
    assert {ratio.apart for ratio in ratios([made_up("locost", [1.0, 1.0, 1.0]), other])} == {1}


def test_another_machine_continues_a_record_and_is_not_compared_with_the_first(call, monkeypatch):
    call("--mode", "training", killed_at=1)  # LOCOST's first round is of the first machine
    first = hardware_name(torch.device("cpu"))
    monkeypatch.setattr(systems, "hardware_name", lambda _: "Another CPU")
    made, record = call("--mode", "training")
    assert len(made) == 36 - 1
    assert record["device"] == f"{first} and Another CPU"
    ratio = next(one for one in ratios(record["rows"]) if one.system == "t5")
    assert len(ratio.rounds) == 2 and ratio.verdict == "too few rounds"
    said = f"{first} (8 tokens), Another CPU (8, 16 tokens); torch"
    assert said in caption(record)


def test_the_page_gets_the_record_and_nothing_else_changes(call, tmp_path):
    _, record = call("--mode", "training", crosses=[("t5", 16)])
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    for _ in range(2):
        assert call("--page", str(page))[0] == []
        text = page.read_text()
        assert text.startswith(f"before\n\n{BEGIN}\n\nAll figures are from `systems.json`.")
        assert text.endswith(f"\n{END}\n\nafter\n") and "old" not in text
    lines = "\n".join(page_lines(record, "systems.json")).splitlines()
    assert "| training, plain | 8 | 2.1 (2–2.2) | 3 (1–3.3) | 1 (1–1.1) |" in lines
    assert "| training, saving | 16 | 2.1 (2–2.2) | × | 1 (1–1.1) |" in lines
    loses = "| training | plain | led | memory | 8: 2.100 (2.000 to 2.100); 16: 2.100"
    assert any(line.startswith(loses) for line in lines)
    above = tmp_path.parent / "above.md"
    above.write_text(f"{BEGIN}\n{END}\n")
    call("--page", str(above))
    assert f"`{tmp_path.name}/systems.json`" in above.read_text()  # as the page's reader finds it
    page.write_text("no marks")
    with pytest.raises(SystemExit):
        call("--page", str(page))


def test_the_recorded_page_says_what_its_file_says():
    """It is written by `benchmark.py systems --output benchmarks/cpu/systems --page`."""
    record = json.loads(RECORD.read_text())
    text = PAGE.read_text()
    expected = "\n".join(page_lines(record, RECORD.name))
    assert text.split(BEGIN)[1].split(END)[0].strip() == expected.strip()


def test_the_page_says_what_was_measured_with_freed_blocks_returned():
    record = json.loads((RECORD.parents[1] / "blocks_returned" / "systems.json").read_text())
    peaks = {(row["memory"], row["subject"]): row["runs"][0]["peak_gib"] for row in record["rows"]}
    for memory in ("plain", "saving"):
        ours, theirs = (f"{peaks[memory, system]:.2f}" for system in ("locost", "longt5-tglobal"))
        assert f"| {memory} | {ours} | {theirs} |" in PAGE.read_text()
