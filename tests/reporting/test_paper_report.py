"""The paper's report, of made-up evaluations and runs whose figures are worked out by hand."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from pictures import pixels
from written_runs import write_run

from pipeline.common.plot_style import PALETTE
from pipeline.report import main
from pipeline.reporting import plots
from pipeline.reporting.evaluation_reader import permuted_verdict, verdict
from pipeline.reporting.paper.published import paper
from pipeline.reporting.plots import POINTS
from pipeline.reporting.run_reader import LOSS, Run, Series, cost, loss_table, read_run

PAPERS_TABLES = (
    Path(__file__).resolve().parents[2] / "../shared/reference/paper_tables.json"
).resolve()
TITLES = ["arXiv", "PubMed", "GovReport", "SummScreenFD", "BookSum-Chapter", "BookSum-Book"]


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 1, "high": value + 1}


def scores(*values: float) -> dict[str, dict[str, float]]:
    """Of ROUGE-1, -2, -L, -Lsum, and the two means as given."""
    names = ("rouge1", "rouge2", "rougeL", "rougeLsum", "mean_rouge", "mean_rouge_L")
    return {name: interval(value) for name, value in zip(names, values, strict=True)}


def write_evaluation(folder: Path, name: str, systems: dict, **more: object) -> Path:
    """A results.json as evaluate.py leaves it."""
    folder.mkdir(parents=True)
    results = {
        "settings": {
            "weights_sha256": "0" * 64,
            "dataset": {"name": f"{name}-test", "split": "test", "fingerprint": "1" * 64},
            "decoding": {"method": "greedy", "max_new_tokens": 512},
        },
        "examples": 1234,
        "systems": systems,
        "best_over_references": {
            name: {**one, "geometric_mean": one["mean_rouge"]} for name, one in systems.items()
        },
        "model_minus": {},
        "predictions_without_words": dict.fromkeys(systems, 0),
        **more,
    }
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, list[str]]:
    """Two evaluated sets of the paper and one of our own; a pre-training and one fine-tuning."""
    folder = tmp_path_factory.mktemp("chain")
    arxiv = write_evaluation(
        folder / "evaluation-arxiv",
        "arxiv",
        # means by hand: (42 + 18 + 39) / 3, (42 + 18 + 24) / 3
        {"model": scores(42, 18, 24, 39, 33, 28), "lead": scores(30, 6, 15, 27, 21, 17)},
    )
    permuted = scores(12, 3, 9, 12, 9, 8)
    govreport = write_evaluation(
        folder / "evaluation-govreport",
        "govreport",
        # (57 + 27 + 54) / 3, (57 + 27 + 30) / 3
        {"model": scores(57, 27, 30, 54, 46, 38), "permuted": permuted},
        model_minus={"permuted": scores(45, 24, 21, 42, 37, 30)},
        predictions_without_words={"model": 3, "permuted": 3},
    )
    own = write_evaluation(folder / "own", "my_set", {"model": scores(3, 0, 1, 3, 2, 1)})
    measured = [
        {"step": step, "loss": loss, "seconds": 900.0, "checkpoint_seconds": 0.0, "processes": 16}
        for step, loss in enumerate((8.0, 6.0, 5.0, 4.0), start=1)
    ]
    measured[3]["checkpoint_seconds"] = 3600.0
    measured[3] |= {"energy_kwh": 2.5, "carbon_kg": 0.145}
    pretrain = write_run(folder / "pretrain", measured, {"train": {"peak_lr": 0.02}})
    finetune = write_run(
        folder / "finetune-arxiv",
        [
            {"step": 1, "loss": 3.0, "seconds": 1800.0, "processes": 8},
            {"step": 2, "loss": None, "seconds": 1800.0},  # the number of processes is missing
            {"step": 2, "validation_loss": 3.5, "validation_mean_rouge": 0.2},
            {"step": 3, "loss": 2.0, "seconds": 3600.0, "processes": 8},
            {"step": 3, "validation_loss": 3.25, "validation_mean_rouge": 0.25},
        ],
        {"train": {"peak_lr": 0.0005}},
        finished=False,
    )
    return {
        "pretrain": [str(pretrain)],
        "finetune": [f"arxiv={finetune}"],
        "evaluation": [f"my_set={own}", f"govreport={govreport}", f"arxiv={arxiv}"],
    }


def arguments(parts: dict[str, list[str]], output: Path, *more: str) -> list[str]:
    named = [word for name, values in parts.items() for word in (f"--{name}", *values)]
    return ["paper", *named, f"--output={output}", *more]


@pytest.fixture(scope="module")
def report(parts, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("written") / "report"
    main(arguments(parts, output))
    return output


def test_every_set_of_the_paper_has_a_row_and_the_empty_ones_are_named(report):
    text = (report / "report.md").read_text()
    overview = text.split("## Scores")[1].split("###")[0]
    lines = [line for line in overview.splitlines() if line.startswith("| ")][2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in found] == [*TITLES, "my\\_set"]
    # The paper's means: (43.8 + 17.0 + 39.7) / 3 = 33.5, (56.5 + 26.8 + 28.9) / 3 = 37.4.
    assert found[0][1:] == ["1,234", "6,440", "33.00", "32.00 to 34.00", "33.50", "-0.50"]
    assert found[2][1:] == ["1,234", "973", "38.00", "37.00 to 39.00", "37.40", "+0.60"]
    # (45.7 + 20.1 + 42.0) / 3 = 35.93
    assert found[1][1:] == ["not evaluated", "6,658", "", "", "35.93", ""]
    assert found[6][1:] == ["1,234", "", "2.00", "1.00 to 3.00", "", ""]
    empty = "Not evaluated: PubMed, SummScreenFD, BookSum-Chapter, BookSum-Book."
    assert empty in text


def section(text: str, title: str) -> str:
    return re.split(r"^#+ ", text.split(f"### {title}\n")[1], flags=re.M)[0]


def table(text: str) -> dict[str, list[str]]:
    """Rows of the first table by their first cell."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return {first: others for first, *others in cells}


def test_a_set_has_each_type_with_intervals_and_the_papers_row(report):
    text = section((report / "report.md").read_text(), "arXiv")
    assert "1,234 documents of arxiv-test (test). The paper reads at most 4,096 tokens" in text
    found = table(text)
    assert list(found) == ["system", ":--", "ours", "the paper's LOCOST", "difference", "lead"]
    assert found["ours"][:2] == ["42.00 (41.00 to 43.00)", "18.00 (17.00 to 19.00)"]
    assert found["ours"][4] == "33.00 (32.00 to 34.00)"
    assert found["the paper's LOCOST"] == ["43.80", "17.00", "", "39.70", "33.50"]
    assert found["difference"] == ["-1.80", "+1.00", "", "-0.70", "-0.50"]
    assert found["lead"][0] == "30.00 (29.00 to 31.00)"


def test_a_set_of_scrolls_is_compared_by_rouge_l(report):
    text = section((report / "report.md").read_text(), "GovReport")
    found = table(text)
    assert found["the paper's LOCOST"] == ["56.50", "26.80", "28.90", "", "37.40"]
    assert found["difference"] == ["+0.50", "+0.20", "+1.10", "", "+0.60"]
    assert found["permuted"][4] == "8.00 (7.00 to 9.00)"
    verdict = "when given another one: Mean ROUGE +30.00 (95 % interval +29.00 to +31.00)."
    assert verdict in text
    assert "which score 0: 3." in text


def test_a_set_of_ones_own_has_no_row_of_the_paper(report):
    text = section((report / "report.md").read_text(), "my\\_set")
    assert list(table(text)) == ["system", ":--", "ours"]
    assert "The paper" not in text


def test_losses_costs_and_settings_of_the_runs(report):
    text = (report / "report.md").read_text()
    losses = table(text.split("## Losses")[1].split("## ")[0])
    assert losses["pre-training"] == ["4", "8.000", "4.000", "", ""]
    assert losses["arXiv"] == ["3", "3.000", "2.000", "3.250", "25.00"]
    assert "Not finished: arXiv." in text
    costs = table(text.split("## Cost")[1].split("## ")[0])
    # The paper: 140 h x 16 GPUs, x 190 W, x 58 g a kWh.
    assert costs["the paper's pre-training"] == ["140.0", "2,240.0", "425.6", "24.7"]
    # Four steps of a quarter of an hour and a save of an hour, on 16 processes.
    assert costs["pre-training"] == ["2.0", "32.0", "2.5", "0.1"]
    assert costs["arXiv"] == ["2.0", "", "", ""]
    assert "| `train.peak_lr` | 0.02 | 0.0005 |" in text
    assert "| `decoding.max_new_tokens` | 512 | 512 | 512 |" in text
    assert "0" * 64 not in text


def test_the_html_page_stands_alone(report):
    page = (report / "report.html").read_text()
    sources = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            sources.extend(value for name, value in attributes if name == "src")
            assert tag not in ("link", "script")

    Reader().feed(page)
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    for private in (str(report.parent), "/home", "/root"):
        assert private not in page + (report / "report.md").read_text()


def rises(*values: float) -> list[dict]:
    """Of ten parts, the first ones as given, then zero."""
    return [
        {"part": k + 1, "from": k / 10, "to": (k + 1) / 10, "rise": value, "low": value - 0.001,
         "high": value + 0.001}
        for k, value in enumerate([*values, *[0.0] * (10 - len(values))])
    ]  # fmt: skip


def test_how_far_each_system_reads_is_shown_set_by_set(tmp_path):
    model = {"model": scores(42, 18, 24, 39, 33, 28)}
    far, near = rises(*[0.02] * 10), rises(0.1, 0.05)
    given = [
        f"{name}={write_evaluation(tmp_path / name.replace(':', '-'), 'arxiv', model, **more)}"
        for name, more in (
            ("arxiv", {"source_use_by_position": far}),
            ("arxiv:led", {"source_use_by_position": near}),
            ("govreport", {"source_use_by_position": near}),
            ("pubmed", {}),
        )
    ]
    main(["paper", "--evaluation", *given, f"--output={tmp_path / 'out'}"])
    text = (tmp_path / "out" / "report.md").read_text().split("## How far they read")[1]
    text = text.split("\n## ")[0]
    assert re.findall("^### (.*)$", text, re.M) == [
        "arXiv, by part of the source", "GovReport, by part of the source",
    ]  # fmt: skip
    arxiv = table(section(text, "arXiv, by part of the source"))
    assert arxiv["part of the source"] == ["LOCOST", "LED-base"]
    assert arxiv["90% to 100%"] == [
        "+0.0200 (+0.0190 to +0.0210)", "+0.0000 (-0.0010 to +0.0010)",
    ]  # fmt: skip
    assert "LOCOST uses the end of its sources" in text
    assert "There is no evidence that LED-base uses the end of its sources" in text
    picture = tmp_path / "out" / "source_use.png"
    assert all(pixels(picture, PALETTE[rank]) > 500 for rank in (0, 1))
    assert "](source_use.png)" in text


def test_a_page_without_source_use_says_what_it_needs(report):
    assert "Not measured: evaluate with --source_use_by" in (report / "report.md").read_text()
    assert not (report / "source_use.png").exists()


def test_some_of_the_inputs_are_enough(parts, tmp_path):
    main(arguments({"evaluation": parts["evaluation"][-1:]}, tmp_path / "a"))
    text = (tmp_path / "a" / "report.md").read_text()
    assert "No training run was given." in text and not (tmp_path / "a" / "loss.png").exists()
    main(arguments({"pretrain": parts["pretrain"]}, tmp_path / "b"))
    text = (tmp_path / "b" / "report.md").read_text()
    assert text.count("not evaluated") == 6 and not (tmp_path / "b" / "rouge.png").exists()


def test_a_dry_run_reads_and_writes_nothing(parts, tmp_path, capsys):
    main(arguments(parts, tmp_path / "out", "--dry_run"))
    assert capsys.readouterr().out == "ready: 2 training runs, 3 evaluations\n"
    assert not list(tmp_path.iterdir())


def test_a_page_says_what_is_missing_and_may_have_nothing_else(tmp_path, capsys):
    output = tmp_path / "report"
    assert main(["paper", "--missing", "pretrain", "evaluate-arxiv", "--output", str(output)]) == 0
    assert "; missing: pretrain, evaluate-arxiv" in capsys.readouterr().out
    text = (output / "report.md").read_text()
    assert "**Missing: pretrain, evaluate-arxiv.** They failed, were stopped, or have not" in text
    with pytest.raises(SystemExit, match="2"):
        main(["paper", "--output", str(output)])
    assert "nothing to report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("evaluation", "pubmed={}/absent", "absent has no results of model"),
        ("evaluation", "pubmed={}/begun", "begun has no results of model"),
        ("evaluation", "pubmed={}/broken", "results.json is not JSON"),
        ("evaluation", "pubmed={}/list", "results.json is not a JSON object"),
        ("evaluation", "arxiv={}/begun", "--evaluation names arxiv of locost twice"),
        ("evaluation", "BookSum-Book={}/begun", "the set is called booksum_book"),
        ("evaluation", "{}/begun", "expected SET=FOLDER"),
        ("finetune", "pubmed={}/absent", "absent"),
        ("finetune", "pubmed={}/broken", "config.yaml is not YAML"),
        ("finetune", "pubmed={}/begun", "holds no loss"),
    ],
)
def test_a_missing_input_is_one_line_and_status_2(parts, tmp_path, capsys, option, value, named):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun/config.yaml").write_text("{}")
    (tmp_path / "begun/metrics.jsonl").write_text('{"step": 1, "loss": 3')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/results.json").write_text("{")
    (tmp_path / "list").mkdir()
    (tmp_path / "list/results.json").write_text("[]")
    (tmp_path / "broken/config.yaml").write_text("a: [\nb")
    with pytest.raises(SystemExit) as end:
        main(arguments(parts, tmp_path / "out", f"--{option}", value.format(tmp_path)))
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("error: ") and error.count("\n") == 1 and named in error
    assert not (tmp_path / "out").exists()


def test_a_long_run_is_drawn_by_some_of_its_steps(tmp_path, monkeypatch):
    """A million points would exceed the memory that Agg allows."""
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    steps = np.arange(1, 500 * POINTS + 1)
    run = Run({}, {LOSS: Series(steps, 1 + 1 / steps)}, finished=True)
    plots.plot_losses({"Pre-training": {"pre-training": run}}, tmp_path / "loss.png")
    (panel,) = drawn[0].axes
    for line in panel.lines:
        assert POINTS <= len(line.get_xdata()) < 2 * POINTS
        assert line.get_xdata()[0] == 1
    assert f"| pre-training | {steps[-1]} | 2.000 | 1.000 |" in loss_table({"pre-training": run})


def test_the_papers_figures_are_those_of_its_tables():
    if not PAPERS_TABLES.is_file():
        pytest.skip("no ../shared/reference/paper_tables.json")
    tables = json.loads(PAPERS_TABLES.read_text())
    assert [one.title for one in paper().sets.values()] == TITLES
    for one in paper().sets.values():
        first, second, third = (one.scores[name] for name in ("rouge1", "rouge2", one.last))
        assert one.documents == tables["datasets"][one.title][2]
        if one.title in tables["summarization"]:
            assert one.last == "rougeLsum"
            assert tables["summarization"][one.title]["LOCOST"][:3] == [first, second, third]
        elif one.title in tables["scrolls"]:
            assert one.last == "rougeL"
            expected = [one.lengths[0], first, second, third]
            assert tables["scrolls"][one.title]["LOCOST"][:4] == expected
        else:
            assert one.last == "rougeL"
            assert tables["booksum_book"]["LOCOST"][1:4] == [first, second, third]
            assert one.mean_rouge == pytest.approx(tables["booksum_book"]["LOCOST"][4], abs=0.05)
    cost, ours = tables["cost"], paper().pretraining
    assert (ours.hours, ours.gpus, ours.watts_a_gpu, ours.grams_co2_a_kwh) == (
        cost["hours"], cost["gpus"], cost["watts_per_gpu"], cost["gCO2_per_kWh"],
    )  # fmt: skip
    assert ours.co2_kg == pytest.approx(cost["kgCO2_printed"], abs=0.5)


@pytest.mark.parametrize(
    ("low", "high", "said", "said_of_permuted"),
    [
        (0.1, 2, "The model beats it: ", "The model uses its document, as it scores higher than"),
        (
            -0.1,
            2,
            "It is not clear that the model beats it, as",
            "The model may score as high when",
        ),
        (-2, -0.1, "The model is beaten by it: ", "The model may score as high when given another"),
    ],
)
def test_a_difference_in_words_says_what_its_interval_allows(low, high, said, said_of_permuted):
    minus = {"value": (low + high) / 2, "low": low, "high": high}
    assert verdict(minus, "it").startswith(said)
    assert permuted_verdict(minus).startswith(said_of_permuted)
    assert verdict(minus, "it").endswith(f"(95 % interval {low:+.2f} to {high:+.2f}).")


def test_energy_that_was_not_recorded_to_the_end_is_left_out(tmp_path):
    """Its last total would be taken for the whole run's."""
    lines = [{"step": step, "loss": 4.0, "seconds": 1.0, "processes": 1} for step in (1, 2, 3)]
    for line in lines[:2]:
        line |= {"energy_kwh": 2.5, "carbon_kg": 0.1}
    found = cost(read_run(write_run(tmp_path / "ended", lines, {})))
    assert found == [3 / 3600, 3 / 3600, None, None]
    lines[2] |= {"energy_kwh": 3.5, "carbon_kg": 0.2}
    assert cost(read_run(write_run(tmp_path / "whole", lines, {})))[2:] == [3.5, 0.2]
