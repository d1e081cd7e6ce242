"""BERTScore against its package, on a tiny model."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from finished_evaluation import edit, finish
from record_roberta import LAYERS, LIMIT, PAIRS, RECORD, TEXTS, make_roberta
from tiny_bert import make_bert

from pipeline.metrics import main

package = pytest.importorskip("bert_score", reason="bert-score: requirements-extras.txt")

LONG = "The river runs past an old stone mill. " * 60
CHANGES = {
    0: {"prediction": "Herons fish by the river."},
    1: {"prediction": "", "references": ["Someone calls them home."]},
    2: {"references": ["Three children\nwatch.", "Evening light turns gold.", " "]},
    3: {"prediction": LONG, "references": [LONG + "Bread.", "Bread."]},
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    # As in many pre-trained folders, the tokenizer gives no limit.
    return make_bert(tmp_path_factory.mktemp("models") / "bert-tiny", seed=0)


@pytest.fixture(scope="module")
def template(checkpoint, dataset_folder, tmp_path_factory) -> Path:
    folder = finish(checkpoint, dataset_folder, tmp_path_factory.mktemp("evaluation") / "out")
    edit(folder, CHANGES)
    return folder


@pytest.fixture
def evaluation(template, tmp_path) -> Path:
    return shutil.copytree(template, tmp_path / "out")


def run(evaluation: Path, model: Path, *more: str) -> dict:
    before = set(evaluation.glob("bert_score-*.json"))
    main(["bert_score", "--evaluation", str(evaluation), "--model", str(model), *more])
    (path,) = set(evaluation.glob("bert_score-*.json")) - before
    return json.loads(path.read_text())


def by_hand(records: list[dict], model: Path, **options) -> list[np.ndarray]:
    """For each record an array (references, 3), by the package alone, empty texts 0."""
    scorer = package.BERTScorer(model_type=str(model), num_layers=2, lang="en", **options)
    scorer._tokenizer.model_max_length = 512
    values = []
    for record in records:
        texts = [" ".join(text.split()) for text in record["references"]]
        empty = [not (text and record["prediction"].split()) for text in texts]
        full = [text or "a" for text in texts]
        prediction = " ".join(record["prediction"].split()) or "a"
        scores = np.stack(scorer.score([prediction] * len(full), full), axis=1)
        base = scorer.baseline_vals.numpy() if options else 0
        scores[empty] = (0 - base) / (1 - base)
        values.append(scores)
    return values


def test_scores_equal_the_package_called_by_hand(evaluation, bert, capsys):
    result = run(evaluation, bert, "--layer", "2", "--batch_size", "4")
    records = edit(evaluation, {})
    expected = by_hand(records, bert)
    lines = next(evaluation.glob("bert_score-model-*.jsonl")).read_text().splitlines()
    scored = {line["index"]: line for line in map(json.loads, lines[1:])}
    for record, scores in zip(records, expected, strict=True):
        assert np.array(scored[record["index"]]["pairs"]) == pytest.approx(scores, abs=2e-6)
    for name, reduce in (("scores", np.mean), ("best_over_references", np.max)):
        means = np.mean([reduce(scores, axis=0) for scores in expected], axis=0)
        values = [result[name][column]["value"] for column in ("precision", "recall", "f1")]
        assert values == pytest.approx(100 * means, abs=1e-3)
        assert all(s["low"] <= s["value"] <= s["high"] for s in result[name].values())
    assert 0 < result["scores"]["f1"]["value"] < 99
    # 26 predictions, 29 references, of which one each is longer than 512 tokens.
    assert result["truncated"] == {"limit": 512, "predictions": 1 / 26, "references": 1 / 29}
    assert result["examples"] == 26
    printed = capsys.readouterr().out
    empty = sum(not record["prediction"].strip() for record in records)
    assert f"model: {empty} empty predictions" in printed
    assert "model: 1 empty references" in printed
    assert "3.8% of predictions cut at 512 tokens" in printed


def test_rescaling_equals_the_package(evaluation, bert, tmp_path):
    baseline = tmp_path / "baseline.tsv"
    baseline.write_text("LAYER,P,R,F\n0,0.1,0.1,0.1\n1,0.2,0.2,0.2\n2,0.31,0.32,0.33\n")
    result = run(evaluation, bert, "--layer", "2", "--baseline", str(baseline))
    options = {"rescale_with_baseline": True, "baseline_path": str(baseline)}
    expected = by_hand(edit(evaluation, {}), bert, **options)
    means = np.mean([scores.mean(axis=0) for scores in expected], axis=0)
    values = [result["scores"][column]["value"] for column in ("precision", "recall", "f1")]
    assert values == pytest.approx(100 * means, abs=1e-3)
    assert result["settings"]["rescaling"]["baseline"] == "baseline.tsv"


def test_a_result_names_its_settings_and_models_share_no_column(evaluation, bert, tmp_path):
    first = run(evaluation, bert, "--layer", "2")
    settings = first["settings"]
    assert settings["model"] == "bert-tiny" and settings["layer"] == 2
    assert settings["rescaling"] == "none" and settings["idf"] is False
    assert set(settings["packages"]) == {"bert-score", "transformers", "torch"}
    layer = run(evaluation, bert, "--layer", "3")
    # The same name, other weights.
    other = run(evaluation, make_bert(tmp_path / "bert-tiny", seed=1), "--layer", "2")
    assert len({one["column"] for one in (first, layer, other)}) == 3
    assert other["settings"]["weights_sha256"] != settings["weights_sha256"]
    lead = run(evaluation, bert, "--layer", "2", "--system", "lead")
    assert lead["column"] == first["column"] and lead["system"] == "lead"


def test_the_name_of_the_folder_does_not_matter(evaluation, bert, tmp_path):
    """The package would load these as T5, and run a shell command for the second."""
    plain = run(evaluation, bert, "--layer", "2")
    for name in ("t5-like", "scibert"):
        copied = shutil.copytree(bert, tmp_path / name)
        assert run(evaluation, copied, "--layer", "2")["scores"] == plain["scores"]


def test_a_stopped_run_keeps_its_scores(evaluation, bert, monkeypatch):
    from pipeline.scoring.bert_score import BertScorer

    whole = run(evaluation, bert, "--layer", "2", "--batch_size", "1")
    path = next(evaluation.glob("bert_score-*.jsonl"))
    (result,) = evaluation.glob("bert_score-*.json")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10]) + lines[10][:20])
    result.unlink()
    seen, score = [], BertScorer.score
    monkeypatch.setattr(
        BertScorer, "score", lambda self, pairs: seen.extend(pairs) or score(self, pairs)
    )
    assert run(evaluation, bert, "--layer", "2", "--batch_size", "1") == whole
    pairs = sum(len(record["references"]) for record in edit(evaluation, {})[9:])
    assert len(seen) == pairs


def test_a_run_started_on_other_predictions_is_not_resumed(evaluation, bert, capsys):
    run(evaluation, bert, "--layer", "2")
    edit(evaluation, {5: {"prediction": "Soup."}})
    with pytest.raises(SystemExit):
        run(evaluation, bert, "--layer", "2")
    assert "was started with other settings (predictions_sha256 was" in capsys.readouterr().err


def test_positions_start_after_the_padding_id_in_some_models(tmp_path, bert):
    from transformers import RobertaConfig, RobertaModel

    from pipeline.scoring.bert_score import BertScorer

    folder = shutil.copytree(bert, tmp_path / "roberta-like")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    RobertaModel(
        RobertaConfig(
            vocab_size=90, num_hidden_layers=1, pad_token_id=1, max_position_embeddings=34, **sizes
        )
    ).save_pretrained(folder)
    scorer = BertScorer(folder, 1)
    assert scorer.limit == 32
    assert scorer.score([("river " * 50, "river " * 50)])[0] == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("saved_by_transformers_5", [False, True])
def test_roberta_is_scored_as_in_the_environment_of_the_package(tmp_path, saved_by_transformers_5):
    """There a text begins with a space, so its first word is the token of a word inside a text."""
    from bert_score.utils import sent_encode
    from transformers import AutoTokenizer

    from pipeline.scoring.bert_score import BertScorer

    expected = json.loads(RECORD.read_text())
    assert expected["packages"] == {"bert-score": "0.3.13", "transformers": "4.26.1"}
    folder = make_roberta(tmp_path / "roberta-tiny")
    if saved_by_transformers_5:
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    scorer = BertScorer(folder, LAYERS)
    assert scorer.limit == LIMIT
    assert [sent_encode(scorer.tokenizer, text) for text in TEXTS] == expected["ids"]
    assert scorer.score(PAIRS) == pytest.approx(np.array(expected["scores"]), abs=2e-6)
    assert scorer.settings(None)["prefix_space"] is True


def test_only_models_that_the_package_names_begin_with_a_space(tmp_path, bert):
    from pipeline.scoring.bert_score import BertScorer

    longformer = BertScorer(make_roberta(tmp_path / "longformer", "longformer"), LAYERS)
    assert longformer.tokenizer.decode(longformer.tokenizer.encode("the")[1:-1]) == "the"
    for scorer in (longformer, BertScorer(bert, LAYERS)):
        assert "prefix_space" not in scorer.settings(None)


def test_an_unusable_model_is_one_line(evaluation, bert, tmp_path, monkeypatch, capsys):
    def refused(model: Path, layer: str = "2", *more: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            run(evaluation, model, "--layer", layer, *more)
        line = capsys.readouterr().err
        assert stopped.value.code == 2 and line.startswith("error: ") and line.count("\n") == 1
        return line

    def broken(name: str) -> Path:
        return shutil.copytree(bert, tmp_path / name)

    assert "no config.json" in refused(tmp_path / "nowhere")
    assert "no config.json" in refused(bert / "vocab.txt")
    model = broken("no-weights")
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert "no model.safetensors" in refused(model)
    model = broken("torn")
    (model / "model.safetensors").write_bytes((bert / "model.safetensors").read_bytes()[:5000])
    assert "model.safetensors is damaged" in refused(model)
    model = broken("no-json")
    (model / "config.json").write_text("[]")
    assert "config.json: not a JSON object" in refused(model)
    for text, said in (
        ("{}", "names no model_type"),
        ("[" * 10**5, "config.json: not JSON"),
        (
            '{"model_type": "bert", "num_hidden_layers": 1000000}',
            "num_hidden_layers=1000000 is imp",
        ),
    ):
        (model / "config.json").write_text(text)
        assert said in refused(model)
    assert "--layer 1000000: " in refused(bert, "1000000")
    model = broken("unknown")
    (model / "config.json").write_text('{"model_type": "strange", "auto_map": {}}')
    assert "cannot be loaded" in refused(model)
    assert "lacks 32 weights of layers 1 to 5" in refused(bert, "5")
    baseline = tmp_path / "baseline.tsv"
    baseline.write_text("LAYER,P,R,F\n0,0.1,0.1,0.1\n")
    assert "has no line 2,P,R,F" in refused(bert, "2", "--baseline", str(baseline))
    monkeypatch.setitem(sys.modules, "bert_score", None)
    assert "pip install -r requirements-extras.txt" in refused(bert)
    assert list(evaluation.glob("bert_score-*")) == []


def test_an_unusable_evaluation_is_one_line(evaluation, bert, capsys):
    def refused(*more: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            run(evaluation, bert, "--layer", "2", *more)
        line = capsys.readouterr().err
        assert stopped.value.code == 2 and line.startswith("error: ") and line.count("\n") == 1
        return line

    assert "no predictions-permuted.jsonl" in refused("--system", "permuted")
    edit(evaluation, {7: {"index": 6}})
    assert "index 6 twice" in refused()
    edit(evaluation, {7: {"prediction": None, "index": 7}})
    assert "line 8: not a prediction with id" in refused()
    edit(evaluation, {7: {"prediction": "Words.", "references": None}})
    assert "line 8: not a prediction with id" in refused()
    edit(evaluation, {7: {"references": ["Words."]}})
    predictions = evaluation / "predictions-model.jsonl"
    predictions.write_text(predictions.read_text()[:-20])
    assert "line 26: not a prediction with id" in refused()
    (evaluation / "results.json").write_text("{}")
    assert "is damaged" in refused()
    (evaluation / "results.json").unlink()
    assert "not a finished evaluation" in refused()


def test_repeated_ids_and_documents_without_a_reference_are_reported(evaluation, bert, capsys):
    edit(evaluation, {4: {"id": "same"}, 5: {"id": "same"}, 7: {"references": []}})
    assert run(evaluation, bert, "--layer", "1")["examples"] == 25
    printed = capsys.readouterr().out
    assert "model: 1 ids of several documents" in printed
    assert "model: 1 documents without a reference" in printed
    edit(evaluation, {index: {"references": []} for index in range(26)})
    with pytest.raises(SystemExit):
        run(evaluation, bert, "--layer", "2")
    assert "no document has a reference to score against" in capsys.readouterr().err
