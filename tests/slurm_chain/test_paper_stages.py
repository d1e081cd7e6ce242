"""The stages beyond a fine-tuning and an evaluation of each set: what the paper's page needs."""

import os
from pathlib import Path

import pytest

from pipeline.chain import fed
from pipeline.reporting.paper.feeds import FEEDS, command, in_words
from pipeline.slurm_chain.chain_settings import ChainSettings, read_settings
from pipeline.slurm_chain.results import report_arguments
from pipeline.slurm_chain.stage_graph import ChainStage, stage_graph

ROOT = Path(__file__).resolve().parents[2]


def settings_of(**changes: str) -> ChainSettings:
    """Those of slurm/settings.sh, with changes in the environment."""
    return read_settings(ROOT, {"PATH": os.environ["PATH"], **changes})


def graph_of(**changes: str) -> dict[str, ChainStage]:
    return {stage.name: stage for stage in stage_graph(settings_of(**changes))}


EVERYTHING = {
    "BASELINES": "longt5-tglobal led bart-large",
    "LONGT5_TGLOBAL_MODEL": "models/longt5",
    "LED_MODEL": "models/led",
    "BART_LARGE_MODEL": "models/bart-large",
    "BERT_SCORE_ARGUMENTS": "--model models/roberta --layer 17",
    "BLANC_ARGUMENTS": "--model models/bert",
    "JUDGE_ARGUMENTS": "--price_input 0 --price_output 0",
}


def test_every_table_and_figure_is_fed_by_some_stage():
    stages = stage_graph(settings_of(**EVERYTHING))
    names = [stage.name for stage in stages]
    assert len(set(names)) == len(names)
    assert all(names.index(need) < names.index(s.name) for s in stages for need in s.needs)
    assert set(FEEDS) == {
        stage.result for stage in stages if stage.result != ("", "")
    }  # no result that nothing makes, no stage whose result feeds nothing
    parts = {part for parts in FEEDS.values() for part in parts}
    # Figure 2 is a diagram of the layer, which needs no result.
    assert parts == {f"table {n}" for n in range(1, 10)} | {
        f"figure {n}" for n in (1, 3, 4, 5, 6, 7)
    }


def test_by_default_the_paper_without_what_needs_other_weights_or_a_server():
    stages = graph_of()
    assert {stage.arguments for stage in stages.values() if stage.kind == "measure"} == {
        ("systems",), ("kernels",),
    }  # fmt: skip
    trained = [s.arguments[0] for s in stages.values() if s.kind == "finetune"]
    assert trained == [
        "arxiv", "pubmed", "govreport", "summscreenfd", "booksum_chapter", "booksum_book",
        *(f"booksum_book@{1024 << k}" for k in range(5)),
    ]  # fmt: skip
    assert stages["evaluate-arxiv+8192"].needs == ("finetune-arxiv",)
    assert stages["evaluate-booksum_book@1024"].needs == ("finetune-booksum_book@1024",)
    assert stages["kernels"].needs == ("pretrain",) and stages["systems"].needs == ()


def test_a_baseline_starts_from_its_weights_and_reads_shards_made_with_its_tokenizer():
    stages = graph_of(**EVERYTHING)
    assert stages["preprocess-govreport-led"].needs == ("preprocess-govreport",)
    assert stages["finetune-govreport-led"].needs == ("preprocess-govreport-led",)
    assert stages["finetune-govreport-led"].arguments == ("govreport:led",)
    assert "finetune-booksum_book-led" not in stages  # not in the paper
    longt5 = stages["finetune-booksum_book-longt5-tglobal"]
    assert longt5.needs == ("preprocess-booksum_book",)  # the tokenizer of the pre-training
    assert stages["evaluate-arxiv-longt5-tglobal+8192"].arguments == ("arxiv:longt5-tglobal+8192",)
    assert "evaluate-arxiv-led+8192" not in stages
    assert "finetune-booksum_book-bart-large" in stages
    judged = [stage.arguments for stage in stages.values() if stage.arguments[:1] == ("judge",)]
    assert judged == [("judge", "pubmed"), ("judge", "pubmed:longt5-tglobal"),
                      ("judge", "pubmed:led")]  # fmt: skip


def test_metrics_and_measurements_have_one_gpu_or_none():
    settings = settings_of(**EVERYTHING)
    flags = {stage.name: stage.flags(settings) for stage in stage_graph(settings)}
    assert flags["bert_score-arxiv"] == ("--gpus-per-node=0", "--gpus-per-node=1")
    assert flags["judge-pubmed"] == flags["kernels"] == ("--gpus-per-node=0",)
    cpu = settings_of(CPU="1", **EVERYTHING)
    assert {stage.flags(cpu) for stage in stage_graph(cpu) if stage.kind == "measure"} == {
        ("--gpus-per-node=0",)
    }


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"BASELINES": "led"}, "LED_MODEL is '', expected the folder of led's weights"),
        ({"BASELINES": "gpt"}, "BASELINES is 'gpt', expected distinct names"),
        ({"BASELINES": "led led"}, "BASELINES is 'led led', expected distinct names"),
        (
            {"BASELINES": "led", "LED_MODEL": "m", "SETS": "docs"},
            r"LED_SETS is 'arxiv .*', expected some of SETS \(docs\)",
        ),
        ({"CONTEXTS": "1K"}, "CONTEXTS is '1K', expected numbers of tokens"),
    ],
)
def test_a_wrong_setting_of_them_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        settings_of(**changes)


def test_a_stage_is_shown_with_all_that_needs_it():
    found = fed(stage_graph(settings_of(**EVERYTHING)))
    assert found["evaluate-govreport"] == "table 3; figure 1"
    assert found["finetune-arxiv"] == "tables 2, 6, 9"
    assert found["preprocess-booksum_book"] == "tables 5, 8, 9; figure 5"
    assert found["pretrain"] == "tables 2, 3, 5, 6, 7, 9; figures 1, 3, 5, 6, 7"
    assert found["systems"] == "tables 1, 3, 4; figures 1, 4"
    assert found["preprocess-govreport-led"] == "table 3; figure 1"
    assert found["report"] == ""
    assert fed(stage_graph(settings_of(SETS="docs")))["evaluate-docs"] == "scores"
    assert (
        in_words({"figure 5", "table 10", "table 2", "scores"}) == "tables 2, 10; figure 5; scores"
    )


def test_the_report_gets_all_complete_results_and_the_names_of_the_missing(tmp_path):
    settings = settings_of(
        SETS="pubmed", RUNS=f"{tmp_path}/runs", SHARDS=f"{tmp_path}/shards", KERNELS_ARGUMENTS=" "
    )
    for name in (
        "runs/pretrain/FINISHED", "runs/finetune-pubmed/FINISHED", "runs/finetune-x/metrics.jsonl",
        "runs/evaluation-pubmed/results.json", "runs/evaluation-pubmed-longt5-tglobal/results.json",
        "runs/evaluation-arxiv-led+8192/results.json",  # of another call
        "runs/evaluation-booksum_book@1024/results.json", "runs/evaluation-docs/settings.json",
        "runs/kernels/kernels.json", "shards/pubmed-test/manifest.json",
        "shards/c4-train/manifest.json",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    own = tmp_path / "runs" / "evaluation-booksum_book"
    own.mkdir()
    (own / "results.json").write_text('{"trained_source_length": 32768}')
    words = [
        word.replace(str(tmp_path), "")
        for word in report_arguments(settings, stage_graph(settings))
    ]
    assert words == [
        "--pretrain", "/runs/pretrain", "--finetune", "pubmed=/runs/finetune-pubmed",
        "--extrapolation", "8192:led=/runs/evaluation-arxiv-led+8192",
        "--evaluation", "booksum_book=/runs/evaluation-booksum_book",
        "--context", "1024=/runs/evaluation-booksum_book@1024",
        "--evaluation", "pubmed=/runs/evaluation-pubmed",
        "--evaluation", "pubmed:longt5-tglobal=/runs/evaluation-pubmed-longt5-tglobal",
        "--context", "32768=/runs/evaluation-booksum_book",
        "--data", "c4=/shards/c4-train", "--data", "pubmed=/shards/pubmed-test",
        "--kernels", "/runs/kernels", "--missing", "systems",
    ]  # fmt: skip


def test_the_command_for_what_is_missing_is_one_of_chain_sh():
    assert command(["evaluation"]) == "bash slurm/chain.sh"
    assert command(["evaluation", "blanc"], ["arxiv", "pubmed"], ["led", "bart-large", "led"]) == (
        'SETS="arxiv pubmed" BASELINES="led bart-large" LED_MODEL=FOLDER BART_LARGE_MODEL=FOLDER '
        'BLANC_ARGUMENTS="--model FOLDER" bash slurm/chain.sh'
    )
