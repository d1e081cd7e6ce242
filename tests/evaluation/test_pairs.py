"""Several summaries of one document are samples with one id: generated once, all scored."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from finished_evaluation import ALONE

from pipeline.evaluate import summary, warnings
from pipeline.evaluation import systems
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.examples import Examples
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.evaluation.results import SUBMISSION
from pipeline.inference.decode import Summary
from pipeline.manifest import write_manifest
from pipeline.model import load_model
from pipeline.model.generation import DecodingStrategy
from pipeline.scoring.rouge import score
from pipeline.shards import Dataset, Sample, write_shard
from pipeline.training.callbacks.stop_request import StopRequest
from pipeline.training.validation_set import ValidationSet

WITH_ROUGE = SimpleNamespace(  # what validation reads of a RunConfig
    train=SimpleNamespace(
        validation_samples=0,
        validation_batch_size=16,
        validation_rouge=True,
        validation_source_use=False,
        max_new_tokens=4,
        precision="fp32",
    ),
    data=SimpleNamespace(source_length=64, target_length=64),
)


def rewrite(folder: Path, dataset: Dataset, samples: list[Sample]) -> Dataset:
    """A dataset of these samples, with the tokenizer of another."""
    folder.mkdir()
    shutil.copy(dataset.tokenizer_path, folder)
    keyed = [(f"{k:05d}", sample) for k, sample in enumerate(samples)]
    hidden = sum(not sample.metadata["references"] for sample in samples)
    counts = {"documents": len(samples), "kept": len(samples), "without_references": hidden}
    shards = [write_shard(folder / "pairs-00000-00000", keyed)]
    write_manifest(folder, {**dataset.manifest, "shards": shards, "counts": counts})
    return Dataset(folder)


def changed(sample: Sample, **metadata: object) -> Sample:
    return replace(sample, metadata={**sample.metadata, **metadata})


@pytest.fixture
def pairs(dataset_folder, tmp_path) -> Dataset:
    """Documents a (3 pairs, not adjacent), b, a hidden one, and another text with the id a."""
    dataset = Dataset(dataset_folder)
    a, b, hidden, other = (dataset[k] for k in range(4))
    samples = [
        changed(a, id="a"),
        changed(b, id="b"),
        changed(a, id="a", references=["The mill.\nThe river."]),
        changed(hidden, id="c", references=[]),
        changed(other, id="a"),
        changed(a, id="a", references=["Soup."]),
    ]
    return rewrite(tmp_path / "pairs", dataset, samples)


def options(checkpoint: Path, dataset: Dataset, output: Path) -> EvaluationOptions:
    return EvaluationOptions(
        checkpoint=checkpoint,
        data=dataset.path,
        output=output,
        systems=("model", "lead"),
        strategy=DecodingStrategy(max_new_tokens=6),
        precision="fp32",
    )


def test_pairs_of_one_text_are_one_document(pairs):
    examples = Examples(pairs)
    assert [example.id for example in examples] == ["a", "b", "a"]
    assert examples[0].references == [pairs[k].metadata["references"][0] for k in (0, 2, 5)]
    assert examples[2].document == pairs[4].metadata["source_text"]
    assert examples.without_references == 1
    assert len(Examples(pairs, limit=2)) == 2


def test_a_document_is_generated_once_and_scored_against_every_summary(
    checkpoint, pairs, tmp_path, monkeypatch, capsys
):
    generate, sources = systems.generate_batch, []

    def counting(*arguments):
        sources.extend(source.tolist() for source in arguments[2])
        return generate(*arguments)

    monkeypatch.setattr(systems, "generate_batch", counting)
    results, _ = evaluate(options(checkpoint, pairs, tmp_path / "out"), ALONE)
    assert sorted(sources) == sorted(pairs[k].source.tolist() for k in (0, 1, 4))
    assert results["examples"] == 3
    assert "documents: 1 without a reference left out" in capsys.readouterr().out
    text = (tmp_path / "out" / "predictions-model.jsonl").read_text()
    record = json.loads(text.partition("\n")[0])
    references = [pairs[k].metadata["references"][0] for k in (0, 2, 5)]
    assert record["references"] == references
    by_hand = [score(record["prediction"], [reference])["rouge1"] for reference in references]
    assert record["scores"]["rouge1"] == pytest.approx(sum(by_hand) / 3)
    assert record["best"]["rouge1"] == pytest.approx(max(by_hand))


def test_a_hidden_split_is_refused(checkpoint, pairs, tmp_path):
    hidden = [changed(sample, references=[]) for sample in pairs]
    dataset = rewrite(tmp_path / "hidden", pairs, hidden)
    with pytest.raises(ValueError, match=r"none of its 4 documents has a reference"):
        evaluate(options(checkpoint, dataset, tmp_path / "out"), ALONE)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="holds no references"):
        ValidationSet(dataset, WITH_ROUGE, ALONE)


def test_a_hidden_split_is_summarised_for_a_submission(checkpoint, pairs, tmp_path, capsys):
    hidden = [changed(sample, references=[]) for sample in list(pairs)[:4]]
    dataset = rewrite(tmp_path / "hidden", pairs, hidden)
    output = tmp_path / "out"
    chosen = replace(
        options(checkpoint, dataset, output), systems=("model",), scrolls_submission=True
    )
    results, _ = evaluate(chosen, ALONE)
    assert "documents: 3 without a reference summarised, not scored" in capsys.readouterr().out
    assert (results["examples"], results["systems"]) == (0, {})
    written = json.loads((output / SUBMISSION).read_text())
    records = [json.loads(line) for line in (output / "predictions-model.jsonl").open()]
    assert written == {record["id"]: record["prediction"] for record in records}
    assert list(written) == ["a", "b", "c"] and any(written.values())
    assert not evaluate(chosen, ALONE)[1]
    (output / SUBMISSION).unlink()
    assert evaluate(chosen, ALONE)[1]
    assert json.loads((output / SUBMISSION).read_text()) == written
    with pytest.raises(ValueError, match="give --systems model"):
        evaluate(replace(chosen, systems=("model", "lead")), ALONE)


def test_a_submission_scores_documents_with_references(checkpoint, pairs, tmp_path):
    known = [sample for k, sample in enumerate(pairs) if k != 4]
    dataset = rewrite(tmp_path / "known", pairs, known)
    chosen = replace(options(checkpoint, dataset, tmp_path / "out"), systems=("model",))
    expected, _ = evaluate(chosen, ALONE)
    both = replace(chosen, output=tmp_path / "both", scrolls_submission=True)
    found, _ = evaluate(both, ALONE)
    assert (expected["examples"], found["examples"]) == (2, 2)
    for name in ("systems", "best_over_references"):
        assert found[name]["model"]["rouge1"] == pytest.approx(expected[name]["model"]["rouge1"])
    assert list(json.loads((tmp_path / "both" / SUBMISSION).read_text())) == ["a", "b", "c"]


def test_a_submission_has_one_summary_per_id(checkpoint, pairs, tmp_path):
    assert Examples(pairs).repeated_ids() == ["a"]
    chosen = replace(
        options(checkpoint, pairs, tmp_path / "out"), systems=("model",), scrolls_submission=True
    )
    with pytest.raises(ValueError, match="1 ids, among them 'a', have several documents"):
        evaluate(chosen, ALONE)
    assert not (tmp_path / "out").exists()


def test_texts_that_rouge_cannot_read_score_0_and_are_counted(
    checkpoint, pairs, tmp_path, monkeypatch
):
    texts = {"a": "", "b": "日本、。"}
    references = {"a": "The mill.", "b": "\u3000"}
    samples = [
        changed(pairs[k], id=name, references=[references[name]]) for k, name in enumerate("ab")
    ]
    dataset = rewrite(tmp_path / "odd", pairs, [*samples, changed(pairs[2], id="b")])
    made = [Summary(""), Summary("日本、。", ended=False), Summary("Soup.")]
    monkeypatch.setattr(systems, "generate_batch", lambda *arguments: made)
    chosen = replace(options(checkpoint, dataset, tmp_path / "out"), systems=("model",))
    results, _ = evaluate(chosen, ALONE)
    records = [json.loads(line) for line in (tmp_path / "out/predictions-model.jsonl").open()]
    for record in records:
        assert record["empty"] == (record["prediction"] == "")
        assert record["cut"] == (record["prediction"] == "日本、。")
        if record["prediction"] in texts.values():
            assert set(record["scores"].values()) == {0.0}
    assert results["predictions_without_words"] == {"model": 2}
    assert results["empty_predictions"] == results["cut_predictions"] == {"model": 1}
    assert (results["references_without_words"], results["repeated_ids"]) == (1, 1)
    shown = "\n".join(summary(results))
    assert "model: 2 predictions without ASCII letters or digits score 0, 1 of them empty" in shown
    assert "1 references without ASCII letters or digits" in shown
    assert "1 ids have several documents" in shown
    empty, cut = warnings(results)
    assert empty.startswith("model: 1 summaries are empty; ")
    assert cut.startswith("model: 1 summaries are cut at ")


def test_a_pair_that_shares_only_a_year_says_what_its_score_leaves_out(
    checkpoint, pairs, tmp_path, monkeypatch
):
    document, reference = "В 1905 году корабль вышел.", "Летом 1905 родился художник."
    sample = changed(pairs[0], id="a", source_text=document, references=[reference])
    dataset = rewrite(tmp_path / "russian", pairs, [sample])
    monkeypatch.setattr(systems, "generate_batch", lambda *arguments: [Summary("A mill of 1905.")])
    results, _ = evaluate(options(checkpoint, dataset, tmp_path / "out"), ALONE)
    assert results["systems"]["lead"]["rouge1"]["value"] == 100
    assert results["letters_dropped"] == {
        "references": 1.0,
        "predictions": {"model": 0.0, "lead": 1.0},
    }
    assert (
        "Letters that rouge-score drops, as it reads only a to z: references 100.0 %, model 0.0 %, "
        "lead 100.0 %. These scores compare only what is left."
    ) in list(summary(results))
    del results["letters_dropped"]  # as earlier versions leave it
    assert "Letters" not in "\n".join(summary(results))


def test_rouge_l_is_third_for_some_datasets_of_scrolls(checkpoint, pairs, tmp_path):
    dataset = rewrite(tmp_path / "gov", pairs, list(pairs))
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    manifest["settings"] = {"dataset": "booksum-book", "source_length": 0}
    write_manifest(dataset.path, manifest)
    results, _ = evaluate(options(checkpoint, dataset, tmp_path / "out"), ALONE)
    assert results["mean"] == "mean_rouge_L"
    assert results["settings"]["dataset"]["set"] == "booksum_book"
    assert results["settings"]["decoding"]["source_length"] == "whole text"
    lead = results["systems"]["lead"]
    by_hand = sum(lead[name]["value"] for name in ("rouge1", "rouge2", "rougeL")) / 3
    shown = "\n".join(summary(results))
    assert f"| {by_hand:.2f} (" in shown
    assert "Mean ROUGE is the mean of ROUGE-1, ROUGE-2 and ROUGE-L." in shown
    best = results["best_over_references"]["lead"]
    product = best["rouge1"]["value"] * best["rouge2"]["value"] * best["rougeL"]["value"]
    assert f"/ {product ** (1 / 3):.2f}" in shown


def test_validation_with_rouge_skips_hidden_references(checkpoint, pairs):
    validation = ValidationSet(pairs, WITH_ROUGE, ALONE)
    values, summaries = validation.run(load_model(checkpoint / "model"), StopRequest())
    assert 0 <= values["mean_rouge"] <= 1
    assert len(summaries) == 4
    assert values["letters_dropped"] == 0
    russian = [changed(sample, references=["The мост."]) for sample in pairs]
    dataset = rewrite(pairs.path.parent / "russian", pairs, russian)
    values, _ = ValidationSet(dataset, WITH_ROUGE, ALONE).run(
        load_model(checkpoint / "model"), StopRequest()
    )
    assert values["letters_dropped"] == pytest.approx(4 / 7)
