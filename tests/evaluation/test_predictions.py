"""Predictions on disk: appended, repaired after kills, joined."""

import pytest

from pipeline.scoring.predictions import Predictions, lacks_scores


def record(index: int) -> dict:
    return {"index": index, "prediction": f"naïve {index}\u2028"}


def test_parts_of_several_processes_join_in_order_without_loss_or_duplicates(tmp_path):
    store = Predictions(tmp_path, "model")
    store.append([record(3), record(1)], rank=0)
    store.append([record(0)], rank=1)
    torn = tmp_path / "predictions-model.part-1.jsonl"
    torn.write_bytes(torn.read_bytes() + b'{"index": 2, "pre')
    # The incomplete line counts as missing and is not joined with the next one.
    assert Predictions(tmp_path, "model").read() == [record(0), record(1), record(3)]
    store.repair(rank=1)
    store.append([record(2), record(3)], rank=1)
    assert not store.complete
    with pytest.raises(RuntimeError, match="4 predictions of 5"):
        store.finish(5)
    store.finish(4)
    assert store.complete
    assert store.read() == [record(i) for i in range(4)]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions-model.jsonl"]


def test_an_example_is_complete_with_its_scores(tmp_path):
    store = Predictions(tmp_path, "model")
    records = [{**record(index), "references": ["x"] * (index < 2)} for index in range(3)]
    store.append(records, rank=1)
    store.append_scores([{"index": 1, "scores": {"rouge1": 0.5}}], rank=0)
    with pytest.raises(RuntimeError, match="3 predictions of 3, 2 scored"):
        store.finish(3)
    assert [lacks_scores(one) for one in store.read()] == [True, False, False]
    scores = tmp_path / "scores-model.part-2.jsonl"
    scores.write_text('{"index": 0, "scores": {}}\n{"index": 0, "sco')
    store.repair(rank=2)
    assert scores.read_text().count("\n") == 1
    store.finish(3)
    assert list(store.read()[1]) == ["index", "prediction", "references", "scores"]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions-model.jsonl"]


def test_systems_do_not_mix(tmp_path):
    Predictions(tmp_path, "lead").append([record(0)], rank=0)
    assert Predictions(tmp_path, "model").read() == []


@pytest.mark.parametrize("damage", [lambda text: text[:-20], lambda text: "[]\n" + text])
def test_a_damaged_file_is_not_scored_over_fewer_documents(tmp_path, damage):
    store = Predictions(tmp_path, "model")
    store.append([{"index": index, "prediction": "words"} for index in range(3)], rank=0)
    store.finish(3)
    store.check_whole(3)
    store.path.write_text(damage(store.path.read_text()))
    with pytest.raises(ValueError, match=r"predictions-model\.jsonl is damaged.*expected 3"):
        store.check_whole(3)
