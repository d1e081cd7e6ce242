"""The report of the demo, from real files, as Markdown and as one HTML page."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from written_runs import write_learning_run

from pipeline.common.html import ROOT, escape, hide_paths, to_html
from pipeline.distributed.world import World
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.examples import mean_words
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.evaluation.systems import SYSTEMS, derangement
from pipeline.model.generation import DecodingStrategy
from pipeline.report import main, parse
from pipeline.reporting.demo import TASK, in_a_word
from pipeline.reporting.marking import content_words
from pipeline.reporting.plots import smooth
from pipeline.scoring.rouge import mean_rouge
from pipeline.shards import Dataset
from pipeline.stages.demo import DemoStages

ALONE = World(0, 1, 0, torch.device("cpu"))
STAGES = [
    {"name": "tokenizer", "seconds": 12.34, "command": "python -m preprocessing.tokenizer train"},
    {"name": "pre-training", "seconds": 100, "command": f"deepspeed {ROOT}/pipeline/train.py a|b"},
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory, checkpoint, other_checkpoint, dataset_folder) -> dict[str, Path]:
    """Every part of a report; the evaluations are real ones of two tiny models.

    Such models say nothing about any document, so some summaries are replaced by a quotation of
    their document, others by one of the permuted document.
    """
    folder = tmp_path_factory.mktemp("report")
    ours = EvaluationOptions(
        checkpoint=checkpoint,
        data=dataset_folder,
        output=folder / "evaluation",
        systems=SYSTEMS,
        strategy=DecodingStrategy(max_new_tokens=10),
        precision="fp32",
    )
    theirs = {"checkpoint": other_checkpoint, "output": folder / "scratch_evaluation"}
    evaluate(ours, ALONE)
    evaluate(replace(ours, systems=("model",), **theirs), ALONE)
    documents = [sample.metadata["source_text"] for sample in Dataset(dataset_folder)]
    donors = derangement(len(documents))
    quoted = {i: i for i in range(1, len(documents), 2)} | {i: donors[i] for i in range(0, 9, 4)}
    records = predictions(ours.output)
    for i, k in quoted.items():
        records[i]["prediction"] = documents[k].splitlines()[-1]
    (ours.output / "predictions-model.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    (folder / "stages.json").write_text(json.dumps(STAGES))
    return {
        "pretrain": write_learning_run(folder / "pretrain", 1, 120, validation=False),
        "finetune": write_learning_run(folder / "finetune", 2, 60, validation=True),
        "scratch": write_learning_run(folder / "scratch", 3, 60, validation=True),
        "evaluation": folder / "evaluation",
        "scratch_evaluation": folder / "scratch_evaluation",
        "data": dataset_folder,
        "stages": folder / "stages.json",
    }


def arguments(parts: dict[str, Path], output: Path) -> list[str]:
    return ["demo", *(f"--{name}={path}" for name, path in {**parts, "output": output}.items())]


def test_the_demo_calls_it_by_its_arguments(tmp_path):
    options = parse(DemoStages(tmp_path, quick=True).report()[2:])  # without interpreter and script
    assert (options.page, options.stages) == ("demo", tmp_path / "stages.json")
    assert options.data == tmp_path / "shards" / "test"


@pytest.fixture(scope="module")
def report(parts, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("written") / "demo"
    main(arguments(parts, output))
    return output


def predictions(folder: Path, system: str = "model") -> list[dict]:
    return [json.loads(line) for line in (folder / f"predictions-{system}.jsonl").open()]


def interval(value: dict[str, float], form: str = ".2f") -> str:
    return f"{value['low']:{form}} to {value['high']:{form}}"


def test_the_table_holds_the_five_systems_with_the_scores_of_the_evaluations(report, parts):
    text = (report / "report.md").read_text()
    assert text.count("| system | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | Mean ROUGE |") == 1
    ours = json.loads((parts["evaluation"] / "results.json").read_text())["systems"]
    theirs = json.loads((parts["scratch_evaluation"] / "results.json").read_text())["systems"]
    for name, scores in {
        "pre-trained": ours["model"],
        "not pre-trained": theirs["model"],
        "lead": ours["lead"],
        "lead words": ours["lead_words"],
        "permuted": ours["permuted"],
    }.items():
        row = re.search(rf"^\| {name} \| (\d.*) \|$", text, re.MULTILINE)
        columns = ("rouge1", "rouge2", "rougeL", "rougeLsum", "mean_rouge")
        cells = [f"{scores[c]['value']:.2f} ({interval(scores[c])})" for c in columns]
        assert row[1].split(" | ") == cells


def test_the_differences_are_those_of_the_evaluations(report, parts):
    text = (report / "report.md").read_text()
    results = json.loads((parts["evaluation"] / "results.json").read_text())
    table = text.split(
        "| pre-trained minus | Mean ROUGE | 95 % interval | the pre-trained model is |\n"
    )[1]
    rows = [line[2:-2].split(" | ") for line in table.split("\n\n")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == ["permuted", "lead", "lead words", "not pre-trained"]
    minus = results["model_minus"]
    for row, name in zip(rows, ("permuted", "lead", "lead_words"), strict=False):
        found = minus[name]["mean_rouge"]
        assert row[1:3] == [f"{found['value']:+.2f}", interval(found, "+.2f")]
    assert rows[1][3] == "worse"
    beaten = "The model is beaten by the document's first 3 sentences: Mean ROUGE "
    assert f"{beaten}{rows[1][1]} (95 % interval {rows[1][2]})." in text
    means = [
        np.mean([mean_rouge(record["scores"]) for record in predictions(parts[name])])
        for name in ("evaluation", "scratch_evaluation")
    ]
    assert float(rows[-1][1]) == pytest.approx(100 * (means[0] - means[1]), abs=0.006)


def test_a_difference_is_named_by_its_interval():
    chance = "equal, or the difference is chance"
    for words, (low, high) in {"better": (0.1, 2), chance: (-0.1, 2), "worse": (-2, -0.1)}.items():
        assert in_a_word({"value": (low + high) / 2, "low": low, "high": high}) == words


def test_the_first_screen_says_the_task_and_shows_one_document_with_its_words_marked(report, parts):
    text = (report / "report.md").read_text()
    title, task, heading, source, reference, summary = text.split("\n\n")[:6]
    assert title == "# LOCOST in miniature, from text to scored summaries"
    assert task.startswith(TASK) and "26 test documents" in task
    assert heading == "## One document"
    documents = [sample.metadata["source_text"] for sample in Dataset(parts["data"])]
    records = predictions(parts["evaluation"])
    index = int(next(i for i, r in enumerate(records) if f"### 1. {r['id']}\n" in text))
    own, other = documents[index], documents[derangement(len(documents))[index]]
    taken = content_words(records[index]["prediction"]) & content_words(own) - content_words(other)
    assert taken
    assert source.startswith("**Source:** ") and summary.startswith("**Summary:** ")
    assert reference == f"**Reference:** {records[index]['references'][0]}"
    for shown, whole in ((source, own), (summary, records[index]["prediction"])):
        marked = re.findall("<mark>(.*?)</mark>", shown)
        assert {word.lower() for word in marked} == taken & content_words(whole)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["One document", "Scores", "Losses", "Ten summaries", "Settings", "Time"]


def test_it_counts_the_summaries_with_words_of_their_own_document_alone(report, parts):
    text = (report / "report.md").read_text()
    known = [content_words(sample.metadata["source_text"]) for sample in Dataset(parts["data"])]
    records = predictions(parts["evaluation"])
    said = [content_words(record["prediction"]) for record in records]
    donors = derangement(len(known))
    own = [bool(words & known[i] - known[donors[i]]) for i, words in enumerate(said)]
    other = [bool(words & known[donors[i]] - known[i]) for i, words in enumerate(said)]
    assert 0 < sum(other) < sum(own) < len(own)
    ids = re.findall(r"^### \d+\. (.*)$", text, re.MULTILINE)
    shown = sum(own[i] for i, record in enumerate(records) if record["id"] in ids)
    assert (
        f"Of the ten summaries below {shown} have a content word that occurs in their own source "
        f"and not in the permuted one; of all 26, {100 * np.mean(own):.1f} %. By chance (words of "
        f"the permuted document alone, in the same summaries): {100 * np.mean(other):.1f} %."
    ) in text
    words = mean_words(record["references"][0] for record in records)
    assert f"*lead words* its first {words} words" in text


def test_ten_samples_settings_and_times_and_no_absolute_path(report, parts):
    text = (report / "report.md").read_text()
    assert len(re.findall(r"^### \d+\. ", text, re.MULTILINE)) == 10
    assert text.count("**Source:**") == text.count("**Reference:**") == 1 + 10
    assert "| `train.seed` | 1 | 2 | 3 |" in text
    assert "| `data.train` | demo/shards/train |" in text
    assert "| tokenizer | 12.3 | <code>python -m preprocessing.tokenizer train</code> |" in text
    assert "| all | 112.3 |  |" in text
    for private in (str(ROOT), str(parts["stages"].parent), "/home", "/root"):
        assert private not in text
        assert private not in (report / "report.html").read_text()


def test_the_page_stands_alone_and_its_pictures_are_the_files(report):
    page = (report / "report.html").read_text()
    pictures = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            source = dict(attributes).get("src", "")
            if tag == "img":
                pictures.append(base64.b64decode(source.removeprefix("data:image/png;base64,")))
            assert tag not in ("link", "script")

    Reader().feed(page)
    assert pictures == [(report / name).read_bytes() for name in ("loss.png", "rouge.png")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert page.count("<table>") == 6
    # The command's bar does not end its cell.
    assert '<code>deepspeed <span class="word">pipeline/train.py</span> a&#124;b</code>' in page


def test_the_same_parts_give_the_same_bytes(report, parts, tmp_path):
    stages = tmp_path / "stages.json"
    stages.write_text(json.dumps([{**stage, "seconds": 1.0} for stage in STAGES]))
    main(arguments({**parts, "stages": stages}, tmp_path / "again"))
    for name in ("loss.png", "rouge.png"):
        assert (tmp_path / "again" / name).read_bytes() == (report / name).read_bytes()
    first, second = (
        (folder / "report.md").read_text().split("## Time")[0]
        for folder in (report, tmp_path / "again")
    )
    assert first == second


def test_any_text_shows_as_itself(tmp_path):
    wild = "a *b* _c_ `d` [e](f) <g> & # | ~~h~~ \\ \n\n    i 1. **j** &amp; <script>k</script>"
    page = to_html(f"# Title\n\n**Text:** {escape(wild)}", tmp_path)
    shown = []
    parser = HTMLParser()
    parser.handle_data = shown.append
    parser.feed(page.split("</strong>")[1].split("</p>")[0])
    assert "".join(shown).strip() == " ".join(wild.split())
    assert "<em>" not in page and "<script>" not in page


def test_paths_are_hidden_and_nothing_else():
    assert hide_paths(f"{ROOT}/demo/run --x=/data/secret/set 1/2 ~/a ./b and/or") == (
        "demo/run --x=set 1/2 ~/a ./b and/or"
    )


def test_smoothing_keeps_a_line_a_line():
    line = np.linspace(5, 3, 401)
    np.testing.assert_allclose(smooth(line)[5:-5], line[5:-5])
    assert smooth([2.0]).tolist() == [2.0]


@pytest.mark.parametrize(
    ("part", "path", "message"),
    [
        ("pretrain", "absent", "absent"),
        ("scratch_evaluation", "absent", "no results of model"),
        ("stages", "stages.json", "not a JSON list"),
        ("data", "absent", "absent"),
    ],
)
def test_a_missing_part_is_one_line_and_status_2(parts, tmp_path, capsys, part, path, message):
    (tmp_path / "stages.json").write_text('[{"title": "x"}]')
    with pytest.raises(SystemExit) as end:
        main(arguments({**parts, part: tmp_path / path}, tmp_path / "demo"))
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert not (tmp_path / "demo" / "report.md").exists()


def test_another_test_set_is_refused(parts, validation_folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(arguments({**parts, "data": validation_folder}, tmp_path / "demo"))
    error = capsys.readouterr().err
    assert str(validation_folder) in error and "is not the set that was evaluated" in error


def test_an_evaluation_without_lead_words_is_refused(parts, tmp_path, capsys):
    """As one of an earlier version; the line says how to add them."""
    other = tmp_path / "evaluation"
    other.mkdir()
    results = json.loads((parts["evaluation"] / "results.json").read_text())
    del results["systems"]["lead_words"]
    (other / "results.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit):
        main(arguments({**parts, "evaluation": other}, tmp_path / "demo"))
    error = capsys.readouterr().err
    assert "no results of lead_words" in error and "--systems" in error
