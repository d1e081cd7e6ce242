"""The node check: each fault names its node."""

import json
import time

from pipeline.node_check import Node, faults, judge, look

H100 = "H100, 550.54"


def node(name: str, **changes: object) -> Node:
    return Node(**{"name": name, "gpus": [H100] * 4, "free_gb": {"/runs": 900.0}} | changes)


def test_equal_nodes_have_no_fault():
    nodes = [node("n1"), node("n2.cluster.example", clock_seconds=3.0)]
    assert faults(nodes, ["n1", "n2"], gpus=4) == []


def test_each_fault_is_reported_once_with_its_node():
    nodes = [
        node("n1"),
        node("n2", gpus=[H100] * 3),
        node("n3", gpus=["H100, 535.00"] * 4),
        node("n4", free_gb={"/runs": 0.2, "/tmp": -1.0}),
        node("n5", clock_seconds=-61.0),
        node("n6"),
        node("n7"),
    ]
    assert faults(nodes, [*(n.name for n in nodes), "n8"], gpus=4) == [
        "n8: no answer within 45 s",
        "n2: 3 of 4 GPUs answer nvidia-smi",
        "n4: /runs has 0.2 GB free, 1 are needed",
        "n4: /tmp is missing or not writable",
        "n5: its clock is -61 s from the others'",
    ]


def test_nodes_with_other_gpus_are_noted_and_not_refused(capsys):
    mixed = [node("n1"), node("n2"), node("n3", gpus=["H100, 535.00"] * 4)]
    lines = [json.dumps({**{k: v for k, v in vars(one).items() if k != "clock_seconds"},
                         "time": time.time()}) for one in mixed]  # fmt: skip
    assert judge(lines, ["n1", "n2", "n3"], gpus=4) == 0
    noted = "note: node n3: H100, 535.00 where most nodes have H100, 550.54; every step waits"
    assert noted in capsys.readouterr().out


def test_no_node_is_blamed_where_srun_could_not_start(capsys):
    assert judge(["srun: error: Unable to create step\n"], ["n1", "n2"], 4, srun_status=1) == 1
    said = capsys.readouterr().err
    assert "Unable to create step" in said and "node n1" not in said
    assert "error: srun could not start the check on any node (status 1)" in said


def test_without_gpus_none_is_required():
    assert faults([node("n1", gpus=[])], ["n1"], gpus=0) == []


def test_clocks_are_compared_when_the_line_arrives(capsys):
    def line(name: str, ahead: float) -> str:
        facts = {"name": name, "gpus": [], "free_gb": {}, "time": time.time() + ahead}
        return json.dumps(facts) + "\n"

    lines = [line("n1", 0), line("n2", 120), "srun: something else\n", line("n3", 0)]
    assert judge(lines, ["n1", "n2", "n3"], gpus=0) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("node n1: no GPU; ")
    assert "error: node n2: its clock is +120 s" in printed.err
    assert "sbatch --exclude=n2" in printed.err
    assert "srun: something else" in printed.err


def test_this_machine(tmp_path):
    here = look([str(tmp_path), str(tmp_path / "nowhere")])
    assert here.free_gb[str(tmp_path)] > 0
    assert here.free_gb[str(tmp_path / "nowhere")] == -1
