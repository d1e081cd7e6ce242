import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

from pipeline.distributed import World
from pipeline.evaluate import main, parse
from pipeline.evaluation import run
from pipeline.evaluation.run import Examples, Options, derangement, evaluate
from pipeline.files import hold_lock
from pipeline.model.generation import DecodingStrategy
from pipeline.shards import Dataset
from preprocessing.sentences import split_sentences

ALONE = World(0, 1, 0, torch.device("cpu"))
CLI = Path(__file__).resolve().parents[2] / "pipeline" / "evaluate.py"
FILES = ("predictions-lead.jsonl", "predictions-model.jsonl", "predictions-permuted.jsonl")


@pytest.fixture
def options(checkpoint, dataset_folder, tmp_path) -> Options:
    return Options(
        checkpoint=checkpoint,
        data=dataset_folder,
        output=tmp_path / "out",
        strategy=DecodingStrategy(max_new_tokens=10),
        batch_size=4,
        precision="fp32",
        lead_sentences=1,
    )


@pytest.fixture(scope="module")
def finished(checkpoint, dataset_folder, tmp_path_factory) -> Path:
    """The output of one undisturbed evaluation."""
    output = tmp_path_factory.mktemp("evaluation") / "out"
    options = Options(
        checkpoint=checkpoint,
        data=dataset_folder,
        output=output,
        strategy=DecodingStrategy(max_new_tokens=10),
        batch_size=4,
        precision="fp32",
        lead_sentences=1,
    )
    assert evaluate(options, ALONE)[1]
    return output


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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


def test_one_document_has_no_other(options):
    with pytest.raises(ValueError, match="at least 2 documents"):
        evaluate(replace(options, limit=1), ALONE)
    assert not options.output.exists()
    assert evaluate(replace(options, limit=1, systems=("model",)), ALONE)[1]


def test_a_stopped_evaluation_goes_on_and_ends_in_the_same_files(options, finished, monkeypatch):
    """Stopped after three batches, in the middle of a line, then again; nothing is made twice."""
    generate, calls = run.generate_batch, []

    def failing(*arguments):
        if len(calls) in (3, 5):
            calls.append("stopped")
            raise KeyboardInterrupt
        calls.append(arguments[2])
        return generate(*arguments)

    monkeypatch.setattr(run, "generate_batch", failing)
    part = options.output / "predictions-model.part-0.jsonl"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            evaluate(options, ALONE)
        part.write_bytes(part.read_bytes()[:-20])
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)
    # Seven batches in all; those cut short were made again, whole, and no other.
    assert len(calls) - calls.count("stopped") == 7 + 2


def test_a_complete_evaluation_is_left_alone(options, finished, monkeypatch):
    shutil.copytree(finished, options.output)
    monkeypatch.setattr(run, "load", lambda *_: pytest.fail("the model was loaded for nothing"))
    before = {path: path.stat().st_mtime_ns for path in options.output.iterdir()}
    results, worked = evaluate(options, ALONE)
    assert not worked
    assert results == json.loads((finished / "results.json").read_text())
    assert before == {path: path.stat().st_mtime_ns for path in options.output.iterdir()}


def test_predictions_that_are_gone_are_made_again(options, finished):
    shutil.copytree(finished, options.output)
    (options.output / "predictions-lead.jsonl").unlink()
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)


def test_predictions_without_scores_are_scored_and_not_made_again(options, finished, monkeypatch):
    """As a kill leaves them between the two."""
    monkeypatch.setattr(run, "load", lambda *_: (None, None))
    monkeypatch.setattr(run, "generate_batch", lambda *_: pytest.fail("made twice"))
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
        with pytest.raises(ValueError, match="another evaluation works in this folder; wait"):
            evaluate(options, ALONE)
        assert [path.name for path in options.output.iterdir()] == [".lock"]
    assert evaluate(replace(options, limit=2, systems=("lead",)), ALONE)[1]
    assert evaluate(replace(options, limit=2, systems=("model", "lead")), ALONE)[1]


def test_the_result_file_says_how_to_repeat_it(options):
    results, _ = evaluate(replace(options, limit=3, systems=("lead",), stemmer=True), ALONE)
    recipe = results["settings"]["rouge"]
    assert recipe["stemmer"] is True and recipe["package"] == "rouge-score 0.1.2"
    assert {"sentences", "interval", "measure", "references"} <= recipe.keys()
    decoding = results["settings"]["decoding"]
    assert (decoding["source_length"], decoding["max_new_tokens"]) == ("as in the dataset", 10)
    assert results["environment"]["torch"] == torch.__version__
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


def test_the_first_words_are_evaluated_beside_the_model(options, finished):
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


def test_the_first_words_are_a_system_on_request():
    paths = ["--checkpoint=a", "--data=b", "--output=c"]
    assert parse(paths)[0].systems == ("model", "lead", "permuted")
    assert parse([*paths, "--systems", "lead_words"])[0].systems == ("lead_words",)


def test_pretraining_shards_are_refused(options, dataset_folder, tmp_path):
    folder = tmp_path / "pretraining"
    shutil.copytree(dataset_folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "kind": "pretraining"}))
    with pytest.raises(ValueError, match="pretraining samples"):
        evaluate(replace(options, data=folder), ALONE)


def test_the_options_of_generation_make_the_strategy():
    paths = ["--checkpoint=a", "--data=b", "--output=c"]
    assert parse(paths)[0].strategy == DecodingStrategy()
    chosen = "--num_beams=4 --length_penalty=2 --memory_budget=1.5 --min_new_tokens=3"
    assert parse([*paths, *chosen.split()])[0].strategy == DecodingStrategy(
        num_beams=4, length_penalty=2.0, memory_budget=3 * 2**29, min_new_tokens=3
    )


def test_a_strategy_that_cannot_be_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--checkpoint=a", "--data=b", "--output=c", "--seed=3"])
    error = capsys.readouterr().err
    assert error.startswith("error: seed=3") and error.count("\n") == 1


def command(options: Options) -> list[str]:
    return [
        f"--checkpoint={options.checkpoint}",
        f"--data={options.data}",
        f"--output={options.output}",
        "--max_new_tokens=10",
        "--batch_size=4",
        "--precision=fp32",
        "--lead_sentences=1",
    ]


@pytest.fixture
def dry_run(options, capsys, monkeypatch):
    """`dry_run(*more)` in this process, which must predict nothing: (status, output, error)."""
    monkeypatch.setattr(run, "load", None)
    monkeypatch.setattr(run, "generate_batch", None)

    def call(*more: str) -> tuple[int, str, str]:
        status = 0
        try:
            main([*command(options), "--dry_run", *more])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_a_dry_run_says_what_there_is_and_leaves_nothing(dry_run, options, finished):
    to_do = "ready: 26 documents of tiny, to do: {}\n"
    assert dry_run() == (0, to_do.format("model, lead, permuted"), "")
    assert dry_run("--systems", "lead", "--limit=3")[1].startswith("ready: 3 documents of tiny")
    assert not options.output.exists()
    shutil.copytree(finished, options.output)
    assert dry_run()[1] == "ready: 26 documents of tiny, complete, nothing to do\n"
    (options.output / "results.json").unlink()
    assert dry_run()[1] == to_do.format("the results")
    (options.output / "predictions-lead.jsonl").unlink()
    before = contents(options.output)
    assert dry_run() == (0, to_do.format("lead"), "")
    assert contents(options.output) == before


def test_a_dry_run_in_the_first_step_of_a_job_asks_no_other_process(dry_run, monkeypatch):
    for name, value in (("PROCID", 0), ("NTASKS", 4), ("LOCALID", 0)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert dry_run()[0] == 0
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("LOCAL_RANK", 1)):
        monkeypatch.setenv(name, str(value))
    assert dry_run() == (0, "", "")  # of those that a launcher started, the first one speaks


def damage_weights(folder: Path, change: str) -> None:
    path = folder / "model" / "model.safetensors"
    if change == "cut short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        config = folder / "model" / "config.json"
        config.write_text(config.read_text().replace('"d_ff": 32', '"d_ff": 48'))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("cut short", "not a safetensors file"),
        ("of another size", "not the weights of this configuration"),
    ],
)
def test_a_dry_run_looks_into_the_weights(dry_run, options, checkpoint, tmp_path, change, named):
    damaged = Path(shutil.copytree(checkpoint, tmp_path / "damaged"))
    damage_weights(damaged, change)
    status, output, error = dry_run(f"--checkpoint={damaged}")
    assert (status, output) == (2, "")
    assert error.startswith("error: ") and error.count("\n") == 1 and named in error
    assert not options.output.exists()


def test_what_stands_against_an_evaluation_is_one_line(dry_run, options, finished, tmp_path):
    (tmp_path / "file").write_text("")
    shutil.copytree(finished, options.output)
    for named, *more in (
        ("no dataset folder", f"--data={tmp_path / 'absent'}"),
        ("is no model", f"--checkpoint={tmp_path / 'absent'}"),
        ("other settings (decoding.max_new_tokens was 10, now 9)", "--max_new_tokens=9"),
        ("file is a file", f"--output={tmp_path / 'file'}"),
        ("file is a file", f"--output={tmp_path / 'file' / 'folder'}"),
        ("add model to --systems", "--systems", "permuted"),
    ):
        status, output, error = dry_run(*more)
        assert (status, output) == (2, "")
        assert error.startswith("error: ") and error.count("\n") == 1 and named in error
    (options.output / "results.json").unlink()
    predictions = options.output / "predictions-model.jsonl"
    predictions.write_text(predictions.read_text()[:-500])
    assert "is damaged" in dry_run()[2]


@pytest.mark.slow
def test_two_processes_write_the_same_files_as_one(options, finished, tmp_path):
    launch = [
        *(sys.executable, "-m", "deepspeed.launcher.runner"),
        *("-q", "--num_accelerators", "2", str(CLI)),
    ]
    done = subprocess.run(
        [*launch, *command(options)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("| lead | 100.00 |") == 1
    expected, found = contents(finished), contents(options.output)
    assert found.keys() == expected.keys()
    for name in FILES:
        assert found[name] == expected[name]


KILLED_AT_THE_FOURTH_BATCH = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
from pipeline import evaluate
from pipeline.evaluation import run
generate, calls = run.generate_batch, []
def killing(*arguments):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return generate(*arguments)
run.generate_batch = killing
evaluate.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_evaluation_keeps_its_batches_and_ends_in_the_same_files(options, finished):
    program = [sys.executable, "-c", KILLED_AT_THE_FOURTH_BATCH, str(CLI.parents[1])]
    done = subprocess.run([*program, *command(options)], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert len(lines(options.output / "predictions-model.part-0.jsonl")) == 12
    assert not (options.output / "results.json").exists()
    assert evaluate(options, ALONE)[1]
    assert contents(options.output) == contents(finished)


@pytest.mark.slow
def test_the_command_line_prints_a_table_and_one_line_for_an_error(options, tmp_path):
    def call(*more: str) -> subprocess.CompletedProcess:
        arguments = [sys.executable, str(CLI), *command(options), *more]
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    done = call("--systems", "model", "lead")
    assert done.returncode == 0, done.stderr
    assert "| system | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | Mean ROUGE |" in done.stdout
    assert "nothing to do" in call("--systems", "lead").stdout
    refused = call("--max_new_tokens", "3")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
    missing = call("--data", str(tmp_path / "absent"))
    assert missing.returncode == 2 and "absent" in missing.stderr
    assert missing.stderr.count("\n") == 1
