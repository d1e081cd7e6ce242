"""The evaluation of a checkpoint: scores, files, resuming and refusals."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from finished_evaluation import ALONE, contents, lines
from rouge_score.rouge_scorer import RougeScorer

from pipeline.common.files import hold_lock
from pipeline.common.sentences import split_sentences
from pipeline.evaluation import systems
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.preparation import prepare
from pipeline.evaluation.systems import derangement
from pipeline.model.generation import DecodingStrategy
from pipeline.shards import Dataset


def test_scores_equal_the_package_called_by_hand_on_the_stored_references(finished, dataset_folder):
    results = json.loads((finished / "results.json").read_text())
    dataset = Dataset(dataset_folder)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
    for system in ("model", "lead", "permuted"):
        records = lines(finished / f"predictions-{system}.jsonl")
        assert [record["id"] for record in records] == [s.metadata["id"] for s in dataset]
        by_hand = [
            scorer.score(
                sample.metadata["references"][0], "\n".join(split_sentences(record["prediction"]))
            )
            for record, sample in zip(records, dataset, strict=True)
        ]
        for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
            mean = np.mean([scores[name].fmeasure for scores in by_hand])
            assert results["systems"][system][name]["value"] == pytest.approx(100 * mean)
    # The tiny set's summary is the document's first sentence.
    assert results["systems"]["lead"]["mean_rouge"]["value"] == pytest.approx(100)
    assert results["examples"] == 26
    assert results["settings"]["dataset"]["fingerprint"] == dataset.fingerprint
    difference = results["model_minus"]["lead"]["rouge1"]["value"]
    assert difference == pytest.approx(results["systems"]["model"]["rouge1"]["value"] - 100)


def test_permuted_is_the_model_on_another_document(finished):
    records = lines(finished / "predictions-model.jsonl")
    permuted = lines(finished / "predictions-permuted.jsonl")
    donors = derangement(len(records))
    assert [record["prediction"] for record in permuted] == [
        records[donor]["prediction"] for donor in donors
    ]
    assert [record["references"] for record in permuted] == [r["references"] for r in records]


def test_permuted_needs_two_documents(options):
    with pytest.raises(ValueError, match="at least 2 documents"):
        evaluate(replace(options, limit=1), ALONE)
    assert not options.output.exists()
    assert evaluate(replace(options, limit=1, systems=("model",)), ALONE)[1]


def test_an_interrupted_evaluation_resumes_to_the_same_files(options, finished, monkeypatch):
    """Interrupted after three batches, within a line, then again; no batch is repeated."""
    generate, calls = systems.generate_batch, []

    def failing(*arguments):
        if len(calls) in (3, 5):
            calls.append("stopped")
            raise KeyboardInterrupt
        calls.append(arguments[2])
        return generate(*arguments)

    monkeypatch.setattr(systems, "generate_batch", failing)
    part = options.output / "predictions-model.part-0.jsonl"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            evaluate(options, ALONE)
        part.write_bytes(part.read_bytes()[:-20])
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)
    # Seven batches in all; only the two whose line was cut were generated again, whole.
    assert len(calls) - calls.count("stopped") == 7 + 2


def test_a_complete_evaluation_is_left_unchanged(options, finished, monkeypatch):
    shutil.copytree(finished, options.output)
    monkeypatch.setattr(systems, "load", lambda *_: pytest.fail("the model was loaded"))
    before = {path: path.stat().st_mtime_ns for path in options.output.iterdir()}
    results, worked = evaluate(options, ALONE)
    assert not worked
    assert results == json.loads((finished / "results.json").read_text())
    assert before == {path: path.stat().st_mtime_ns for path in options.output.iterdir()}


def test_deleted_predictions_are_made_again(options, finished):
    shutil.copytree(finished, options.output)
    (options.output / "predictions-lead.jsonl").unlink()
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)


def test_predictions_without_scores_are_scored_and_not_repeated(options, finished, monkeypatch):
    """As a kill between prediction and scoring leaves them."""
    monkeypatch.setattr(systems, "load", lambda *_: (None, None))
    monkeypatch.setattr(systems, "generate_batch", lambda *_: pytest.fail("generated again"))
    options.output.mkdir()
    records = lines(finished / "predictions-model.jsonl")
    for record in records[3:]:
        del record["scores"], record["best"]
    part = options.output / "predictions-model.part-5.jsonl"
    part.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)


def test_two_evaluations_do_not_share_a_folder(options):
    options.output.mkdir()
    with hold_lock(options.output / ".lock"):
        with pytest.raises(ValueError, match="another evaluation is using this folder; wait"):
            evaluate(options, ALONE)
        assert [path.name for path in options.output.iterdir()] == [".lock"]
    assert evaluate(replace(options, limit=2, systems=("lead",)), ALONE)[1]
    assert evaluate(replace(options, limit=2, systems=("model", "lead")), ALONE)[1]


def test_the_result_file_holds_the_settings_to_reproduce_it(options):
    results, _ = evaluate(replace(options, limit=3, systems=("lead",), stemmer=True), ALONE)
    recipe = results["settings"]["rouge"]
    assert recipe["stemmer"] is True and recipe["package"] == "rouge-score 0.1.2"
    assert {"sentences", "interval", "measure", "references"} <= recipe.keys()
    decoding = results["settings"]["decoding"]
    assert (decoding["source_length"], decoding["max_new_tokens"]) == ("as in the dataset", 10)
    installed, recorded = torch.__version__, results["environment"]["torch"]
    assert recorded.partition("+")[0] == installed.partition("+")[0]  # CUDA wheels omit +cu130
    record = lines(options.output / "predictions-lead.jsonl")[0]
    stemmed = RougeScorer(["rouge1"], use_stemmer=True)
    by_hand = stemmed.score(record["references"][0], record["prediction"])["rouge1"].fmeasure
    assert record["scores"]["rouge1"] == by_hand
    with pytest.raises(ValueError, match=r"rouge\.stemmer was True, now False"):
        evaluate(replace(options, limit=3, systems=("lead",)), ALONE)


def test_systems_can_be_added_later(options, finished):
    evaluate(replace(options, systems=("lead",)), ALONE)
    assert list(json.loads((options.output / "results.json").read_text())["systems"]) == ["lead"]
    evaluate(replace(options, systems=("model", "permuted")), ALONE)
    assert contents(options.output) == contents(finished)
    with pytest.raises(ValueError, match="add model to --systems"):
        evaluate(replace(options, systems=("permuted",)), ALONE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"strategy": DecodingStrategy(max_new_tokens=11)},
            "decoding.max_new_tokens was 10, now 11",
        ),
        (
            {"strategy": DecodingStrategy(max_new_tokens=10, num_beams=2)},
            "decoding.method was greedy, now beam search; decoding.num_beams was 1, now 2",
        ),
        ({"source_length": 8}, "decoding.source_length was as in the dataset, now 8"),
        ({"limit": 20}, "dataset.examples was 26, now 20"),
    ],
)
def test_other_settings_are_refused_and_named(options, finished, change, named):
    shutil.copytree(finished, options.output)
    with pytest.raises(ValueError, match=re.escape(named)):
        evaluate(replace(options, **change), ALONE)
    assert contents(options.output) == contents(finished)


def test_another_tokenizer_is_refused_with_both_hashes(options, checkpoint, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    model = other / "model" / "tokenizer.model"
    # A trailing unknown protobuf field: another file, the same vocabulary.
    model.write_bytes(model.read_bytes() + b"\xf8\x3f\x01")
    with pytest.raises(ValueError, match=r"[0-9a-f]{64}.*[0-9a-f]{64}"):
        evaluate(replace(options, checkpoint=other), ALONE)
    assert not options.output.exists()


def test_lead_words_is_evaluated_next_to_the_model(options, finished):
    shutil.copytree(finished, options.output)
    results, worked = evaluate(replace(options, systems=("model", "lead_words")), ALONE)
    assert worked and "lead_words" in results["systems"]
    records = lines(options.output / "predictions-lead_words.jsonl")
    references = [len(record["references"][0].split()) for record in records]
    documents = [sample.metadata["source_text"] for sample in Dataset(options.data)]
    count = round(np.mean(references))
    assert [record["prediction"] for record in records] == [
        " ".join(document.split()[:count]) for document in documents
    ]
    values = [results["systems"][name]["rouge1"]["value"] for name in ("model", "lead_words")]
    difference = results["model_minus"]["lead_words"]["rouge1"]["value"]
    assert difference == pytest.approx(values[0] - values[1])
    # Only the evaluated documents' references count.
    some = Examples(Dataset(options.data), limit=3)
    assert some.mean_reference_words() == round(np.mean(references[:3]))


def test_pretraining_shards_are_refused(options, dataset_folder, tmp_path):
    folder = tmp_path / "pretraining"
    shutil.copytree(dataset_folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "kind": "pretraining"}))
    with pytest.raises(ValueError, match="pretraining samples"):
        evaluate(replace(options, data=folder), ALONE)


@pytest.mark.parametrize(
    ("strategy", "named"),
    [({}, None), ({"num_beams": 2}, "early_stopping"), ({"top_p": 0.9}, "draws")],
)
def test_evaluations_of_earlier_versions_are_resumed_if_they_decoded_as_now(
    options, strategy, named
):
    """They had neither `early_stopping` nor draws by document."""
    options = replace(options, strategy=DecodingStrategy(max_new_tokens=10, **strategy))
    settings = prepare(options).settings
    for name in ("early_stopping", "draws"):
        settings["decoding"].pop(name, None)
    options.output.mkdir()
    (options.output / "settings.json").write_text(json.dumps(settings))
    if named is None:
        assert prepare(options).missing
    else:
        with pytest.raises(ValueError, match=rf"decoding\.{named} was None, now"):
            prepare(options)
