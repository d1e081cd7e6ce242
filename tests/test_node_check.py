"""The check of the nodes: what is wrong is told by the node's name."""

import json
import time

from pipeline.node_check import Node, faults, judge, look

H100 = "H100, 550.54"


def node(name: str, **changes: object) -> Node:
    return Node(**{"name": name, "gpus": [H100] * 4, "free_gb": {"/runs": 900.0}} | changes)


def test_nodes_that_are_alike_have_no_fault():
    nodes = [node("n1"), node("n2.cluster.example", clock_seconds=3.0)]
    assert faults(nodes, ["n1", "n2"], gpus=4) == []


def test_each_fault_is_told_once_by_the_nodes_name():
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
        "n3: H100, 535.00 where most nodes have H100, 550.54",
        "n4: /runs has 0.2 GB free, 1 are needed",
        "n4: /tmp is not there or cannot be written to",
        "n5: its clock is -61 s from the others'",
    ]


def test_without_gpus_none_is_asked_for():
    assert faults([node("n1", gpus=[])], ["n1"], gpus=0) == []


def test_a_clock_is_compared_as_the_line_arrives(capsys):
    def said(name: str, ahead: float) -> str:
        facts = {"name": name, "gpus": [], "free_gb": {}, "time": time.time() + ahead}
        return json.dumps(facts) + "\n"

    lines = [said("n1", 0), said("n2", 120), "srun: something else\n", said("n3", 0)]
    assert judge(lines, ["n1", "n2", "n3"], gpus=0) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("node n1: no GPU; ")
    assert "error: node n2: its clock is +120 s" in printed.err
    assert "sbatch --exclude=n2" in printed.err
    assert "srun: something else" in printed.err


def test_this_machine_as_it_is(tmp_path):
    here = look([str(tmp_path), str(tmp_path / "nowhere")])
    assert here.free_gb[str(tmp_path)] > 0
    assert here.free_gb[str(tmp_path / "nowhere")] == -1
