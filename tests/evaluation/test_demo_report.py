import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from pipeline.demo import Road
from pipeline.distributed import World
from pipeline.evaluation.page import ROOT, escape, hide_paths, to_html
from pipeline.evaluation.plots import smooth
from pipeline.evaluation.run import Options, evaluate
from pipeline.model.generation import DecodingStrategy
from pipeline.report import main, parse

ALONE = World(0, 1, 0, torch.device("cpu"))
STAGES = [
    {"name": "tokenizer", "seconds": 12.34, "command": "python -m preprocessing.tokenizer train"},
    {"name": "pre-training", "seconds": 100, "command": f"deepspeed {ROOT}/pipeline/train.py a|b"},
]


def write_run(folder: Path, seed: int, steps: int, validation: bool) -> Path:
    """A run folder as train.py leaves it: falling losses, validations every tenth step."""
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(1, steps + 1):
        loss = 4 + 4 * np.exp(-step / 20) + rng.normal(0, 0.1)
        lines.append({"step": step, "loss": loss, "lr": 0.01})
        if validation and step % 10 == 0:
            lines.append(
                {"step": step, "validation_loss": loss + 0.2, "validation_mean_rouge": step / 1000}
            )
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = {
        "output": str(folder),
        "model": {"d_model": 16, "init_from": None},
        "data": {"train": str(ROOT / "demo/shards/train")},
        "train": {"seed": seed, "betas": [0.9, 0.999]},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory, checkpoint, other_checkpoint, dataset_folder) -> dict[str, Path]:
    """Every part of a report; the evaluations are real ones of two tiny models."""
    folder = tmp_path_factory.mktemp("report")
    ours = Options(
        checkpoint=checkpoint,
        data=dataset_folder,
        output=folder / "evaluation",
        strategy=DecodingStrategy(max_new_tokens=10),
        precision="fp32",
    )
    theirs = {"checkpoint": other_checkpoint, "output": folder / "scratch_evaluation"}
    evaluate(ours, ALONE)
    evaluate(replace(ours, systems=("model",), **theirs), ALONE)
    (folder / "stages.json").write_text(json.dumps(STAGES))
    return {
        "pretrain": write_run(folder / "pretrain", 1, 120, validation=False),
        "finetune": write_run(folder / "finetune", 2, 60, validation=True),
        "scratch": write_run(folder / "scratch", 3, 60, validation=True),
        "evaluation": folder / "evaluation",
        "scratch_evaluation": folder / "scratch_evaluation",
        "stages": folder / "stages.json",
    }


def arguments(parts: dict[str, Path], output: Path) -> list[str]:
    return ["demo", *(f"--{name}={path}" for name, path in {**parts, "output": output}.items())]


def test_the_demo_calls_it_by_its_arguments(tmp_path):
    options = parse(Road(tmp_path, quick=True).report()[2:])  # without interpreter and script
    assert (options.page, options.stages) == ("demo", tmp_path / "stages.json")


@pytest.fixture(scope="module")
def report(parts, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("written") / "demo"
    main(arguments(parts, output))
    return output


def test_the_table_holds_the_four_systems_with_the_scores_of_the_evaluations(report, parts):
    text = (report / "report.md").read_text()
    assert text.count("| system | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | Mean ROUGE |") == 1
    ours = json.loads((parts["evaluation"] / "results.json").read_text())["systems"]
    theirs = json.loads((parts["scratch_evaluation"] / "results.json").read_text())["systems"]
    for name, scores in {
        "pre-trained": ours["model"],
        "not pre-trained": theirs["model"],
        "lead": ours["lead"],
        "permuted": ours["permuted"],
    }.items():
        row = re.search(rf"^\| {name} \| (.*) \|$", text, re.MULTILINE)
        columns = ("rouge1", "rouge2", "rougeL", "rougeLsum", "mean_rouge")
        assert row[1].split(" | ") == [f"{scores[column]['value']:.2f}" for column in columns]


def test_it_says_whether_the_input_matters(report, parts):
    text = (report / "report.md").read_text()
    results = json.loads((parts["evaluation"] / "results.json").read_text())
    difference = results["model_minus"]["permuted"]["mean_rouge"]
    said = "does **not** score above" if difference["value"] <= 0 else "scores above"
    assert f"The true document {said} the permuted one" in text
    assert f"Mean ROUGE {difference['value']:+.2f} (95 % interval" in text


def test_ten_samples_settings_and_times_and_no_absolute_path(report, parts):
    text = (report / "report.md").read_text()
    assert len(re.findall(r"^### \d+\. ", text, re.MULTILINE)) == 10
    assert text.count("**Document:**") == text.count("**Reference:**") == 10
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
    assert pictures == [(report / name).read_bytes() for name in ("rouge.png", "loss.png")]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert page.count("<table>") == 5
    # The command's bar does not end its cell.
    assert "<code>deepspeed pipeline/train.py a&#124;b</code>" in page


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
