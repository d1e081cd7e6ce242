"""The commands that the page names for what its tables and figures lack."""

from dataclasses import replace

from pipeline.report import main
from pipeline.reporting.measurements import Measurements
from pipeline.reporting.paper.inputs import PaperInputs, SetEvaluation
from pipeline.reporting.paper.published import paper
from pipeline.reporting.paper.to_fill import missing, to_fill

DONE = [{"metric": metric} for metric in ("bert_score", "blanc", "judge")]
PARTS = [*(f"table {n}" for n in range(1, 10)), *(f"figure {n}" for n in range(1, 8))]
WHOLE = PaperInputs(
    pretrain=object(),
    finetune={"arxiv": object()},
    evaluations={
        name: {system: SetEvaluation({}, DONE) for system in theirs.rows}
        for name, theirs in paper().sets.items()
    },
    extrapolation={system: {8192: SetEvaluation({})} for system in paper().extrapolation},
    contexts={"locost": {1024: SetEvaluation({}), 32768: SetEvaluation({})}},
    measurements=Measurements(
        "a GPU",
        [
            {"subject": system, "length": length}
            for system in (*paper().throughput, *paper().scrolls, *paper().complexity)
            for length in (1024, 4096, 16384)
        ],
    ),
    manifests={name: [{}] for name in ("c4", *paper().sets)},
    kernels=object(),
)


def commands(part: str, inputs: PaperInputs) -> list[str]:
    """The commands in the page's sentence."""
    return [one for text in to_fill(part, inputs) for one in text.split("`")[1::2]]


def test_a_whole_page_names_no_command():
    assert list(missing(WHOLE)) == []
    assert [text for part in PARTS for text in to_fill(part, WHOLE)] == []


def test_an_empty_page_names_one_for_every_table_and_figure_but_the_diagram():
    empty = PaperInputs()
    assert [part for part in PARTS if not list(to_fill(part, empty))] == ["figure 2"]
    assert commands("table 1", empty) == commands("figure 7", empty) == ["bash slurm/chain.sh"]
    (scores,) = commands("table 2", empty)
    assert scores.startswith('SETS="arxiv pubmed booksum_chapter" BASELINES="pegasus led bigbird')
    assert "LONGT5_TGLOBAL_MODEL=FOLDER" in scores and 'BLANC_ARGUMENTS="--model FOLDER"' in scores
    assert commands("table 6", empty) == [
        'SETS="arxiv" BASELINES="longt5-tglobal" LONGT5_TGLOBAL_MODEL=FOLDER bash slurm/chain.sh'
    ]
    assert commands("figure 5", empty) == ['SETS="booksum_book" bash slurm/chain.sh']
    assert 'JUDGE_ARGUMENTS="--price_input P --price_output P"' in commands("table 7", empty)[0]


def test_what_is_partly_empty_names_what_it_lacks_alone():
    without_led = {**WHOLE.evaluations, "govreport": dict(WHOLE.evaluations["govreport"])}
    del without_led["govreport"]["led"]
    inputs = replace(WHOLE, evaluations=without_led)
    wanted = ['SETS="govreport" BASELINES="led" LED_MODEL=FOLDER bash slurm/chain.sh']
    assert commands("table 3", inputs) == commands("figure 1", inputs) == wanted
    assert commands("table 2", inputs) == []
    unscored = {**WHOLE.evaluations, "arxiv": {**WHOLE.evaluations["arxiv"]}}
    unscored["arxiv"]["locost"] = SetEvaluation({}, DONE[1:])
    assert commands("table 2", replace(WHOLE, evaluations=unscored)) == [
        'SETS="arxiv" BERT_SCORE_ARGUMENTS="--model FOLDER --layer N" bash slurm/chain.sh'
    ]
    rows = [row for row in WHOLE.measurements.rows
            if row["subject"] in ("locost", "led", "t5") or row["length"] < 16384]  # fmt: skip
    inputs = replace(WHOLE, measurements=Measurements("a GPU", rows))
    measure = "sbatch slurm/measure.sh systems --systems"
    assert commands("table 4", inputs) == [f"{measure} longt5-tglobal"]
    assert commands("figure 1", inputs) == [f"{measure} longt5-tglobal bart"]
    assert commands("table 1", inputs) == [f"{measure} longt5-tglobal bigbird lsg"]
    assert commands("table 2", inputs) == []
    both = commands("table 3", replace(inputs, evaluations=without_led))
    assert both == [*wanted, f"{measure} longt5-tglobal bart"]


def test_the_page_has_the_commands_below_its_tables_and_figures(tmp_path):
    assert main(["paper", "--missing", "pretrain", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    seventh = page.split("### 7. Judge")[1].split("### 8.")[0]
    (command,) = commands("table 7", PaperInputs())
    assert f"To fill what is missing: `{command}`" in seventh
    assert page.count("To fill what is missing: ") == 9 + 6
