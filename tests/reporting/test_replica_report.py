"""The replica's report, from real evaluations of tiny models, against rouge-score."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pictures import pixels
from rouge_score.rouge_scorer import RougeScorer
from written_runs import write_learning_run

from pipeline.common.plot_style import PALETTE
from pipeline.distributed.world import World
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.manifest import write_manifest
from pipeline.model.generation import DecodingStrategy
from pipeline.report import main
from pipeline.reporting.replica import page_lines
from pipeline.reporting.replica_results import read_replica
from pipeline.shards import Dataset, write_shard
from pipeline.tokenizer import Tokenizer

ALONE = World(0, 1, 0, torch.device("cpu"))
TITLES = {"LOCOST": "locost", "LongT5": "longt5-tglobal"}
NAMES = tuple(TITLES.values())
ROOT = Path(__file__).resolve().parents[2]
RECORDED = [*(ROOT / "benchmarks" / "replica").glob("*-[0-9].json")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checkpoint, other_checkpoint, dataset_folder) -> Path:
    """replica.py's output for two systems and two seeds; the evaluations are real ones."""
    folder = tmp_path_factory.mktemp("replica")
    ours = EvaluationOptions(
        checkpoint=checkpoint,
        data=dataset_folder,
        output=folder,
        strategy=DecodingStrategy(max_new_tokens=10),
        precision="fp32",
        systems=("model", "permuted", "lead", "lead_words"),
        source_use_by_position=True,
    )
    for system, its in zip(NAMES, (checkpoint, other_checkpoint), strict=True):
        for seed in (0, 1):
            run = folder / system / f"seed-{seed}"
            tokens = DecodingStrategy(max_new_tokens=10 + 5 * seed)
            evaluate(
                replace(ours, checkpoint=its, output=run / "evaluation", strategy=tokens), ALONE
            )
            write_trained(run / "finetune", 3.0, 0.25 + seed)
            write_trained(run / "pretrain", 2.0, 0.5 + seed)
        for number, loss in enumerate((5.5, 4.25, 4.75)):
            write_trained(folder / system / f"trial-copy-{number}" / "pretrain", loss, 0.1)
        for number, loss in enumerate((3.5, 3.25)):
            write_trained(folder / system / f"trial-rate-{number}" / "finetune", loss, 0.2)
    cut_sources(dataset_folder, folder / "shards" / "test")
    return folder


def write_trained(run: Path, loss: float, source_use: float) -> None:
    """A run folder whose last validation has these values."""
    write_learning_run(run, 0, 40, validation=True)
    rates = {"peak_lr": 0.001, "embedding_lr_scale": 3, "max_steps": 40}
    model = {"d_model": 16, "cross_attention_initialisation": "copy"}
    (run / "config.yaml").write_text(yaml.safe_dump({"train": rates, "model": model}))
    with (run / "metrics.jsonl").open("a") as file:
        last = {"step": 40, "validation_loss": loss, "validation_source_use": source_use}
        file.write(json.dumps(last) + "\n")


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory) -> Path:
    """The small files, read from the trainings by the command."""
    results = tmp_path_factory.mktemp("results")
    (results / "settings.json").write_text(json.dumps({"systems": dict.fromkeys(NAMES)}))
    for system in NAMES:
        start = ["replica-result", "--folder", str(folder), "--system", system]
        main([*start, "--search", "--output", str(results / f"search-{system}.json")])
        for seed in (0, 1):
            to = str(results / f"{system}-{seed}.json")
            main([*start, "--seed", str(seed), "--output", to])
    rows = [
        {"subject": system, "mode": mode, "length": 4096, "memory": "plain", "device": "cpu",
         "cpu_s": seconds, "peak_gib": gib}
        for mode in ("training", "inference")
        for system, seconds, gib in (("locost", 2.0, 0.25), ("longt5-tglobal", 8.0, 0.5))
    ]  # fmt: skip
    (results / "systems.json").write_text(json.dumps({"rows": rows}))
    return results


def cut_sources(dataset_folder: Path, folder: Path) -> None:
    """The dataset with sources truncated to 8 ids; its texts are whole."""
    dataset = Dataset(dataset_folder)
    folder.mkdir(parents=True)
    shutil.copy(dataset.tokenizer_path, folder)
    samples = ((f"{i:010d}", replace(dataset[i], source=dataset[i].source[:8]))
               for i in range(len(dataset)))  # fmt: skip
    shard = write_shard(folder / "cut-00000-00000", samples)
    write_manifest(folder, {**dataset.manifest, "shards": [shard]})


def command(results: Path, output: Path) -> list[str]:
    return ["replica", "--results", str(results), "--output", str(output)]


def by_hand(folder: Path, system: str, seed: int) -> np.ndarray:
    """Mean ROUGE of each document in percent, by rouge-score."""
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"])
    path = folder / system / f"seed-{seed}" / "evaluation" / "predictions-model.jsonl"
    found = []
    for record in map(json.loads, path.read_text().splitlines()):
        pairs = [
            scorer.score(*("\n".join(re.split(r"(?<=[.!?])\s+", text)) for text in (
                reference, record["prediction"])))
            for reference in record["references"]
        ]  # fmt: skip
        found.append(100 * np.mean([[s.fmeasure for s in pair.values()] for pair in pairs]))
    return np.array(found)


def row(text: str, label: str) -> list[str]:
    (line,) = re.findall(rf"^\| {re.escape(label)} \|(.*)\|$", text, re.M)
    return [cell.strip() for cell in line.split("|")]


@pytest.mark.slow
def test_tables_hold_what_rouge_score_gives(folder, results, dataset_folder, tmp_path):
    main(command(results, tmp_path))
    text = (tmp_path / "report.md").read_text()
    scores = {name: [by_hand(folder, name, seed) for seed in (0, 1)] for name in NAMES}
    for title, name in TITLES.items():
        *_, mean, each = row(text.split("## By length")[0], title)
        assert float(mean.split()[0]) == pytest.approx(np.mean(scores[name]), abs=0.02)
        means = [seed.mean() for seed in scores[name]]
        assert [float(x) for x in each.split(", ")] == pytest.approx(means, abs=0.02)
    dataset = Dataset(dataset_folder)
    tokenizer = Tokenizer(dataset_folder / "tokenizer.model")
    texts = [dataset[index].metadata["source_text"] for index in range(len(dataset))]
    lengths = np.array([len(tokenizer.encode(text)) + 1 for text in texts])  # and EOS
    short = lengths < 1024
    assert row(text, "documents")[0] == str(short.sum())
    by_length = text.split("## By length")[1].split("##")[0]
    expected = np.mean([seed[short].mean() for seed in scores["locost"]])
    assert float(row(by_length, "LOCOST")[0]) == pytest.approx(expected, abs=0.02)
    assert row(text, "training, 4,096 tokens, seconds") == ["2.00", "8.00 (0.25)"]
    assert f"{lengths.min():,} to {lengths.max():,} tokens, {np.median(lengths):,.0f} in" in text
    words = [len(" ".join(dataset[i].metadata["references"]).split()) for i in range(len(dataset))]
    assert f"references have {np.median(words):,.0f} words in the median" in text
    assert "Seeds of pre-training and fine-tuning: LOCOST 2, LongT5 2." in text
    assert len(re.findall("when given another", text)) == 2
    assert len(re.findall("(LOCOST|LongT5) (beats|is beaten by) (name|first)|that (LOCOST|LongT5)"
                          " beats", text)) == 4  # fmt: skip
    assert "-base" not in text  # the paper's sizes are not these
    assert row(text, "LOCOST, fine-tuning") == ["3.000, 3.000", "0.250, 1.250"]
    assert row(text, "LOCOST, pre-training") == ["2.000, 2.000", "0.500, 1.500"]
    assert str(folder) not in text and str(results) not in text


def test_the_search_and_what_it_chose(folder, results, tmp_path):
    found = json.loads((results / "search-locost.json").read_text())
    assert found["pretrain"]["chosen"] == "trial-copy-1"
    assert found["finetune"]["chosen"] == "trial-rate-1"
    assert found["finetune"]["settings"].keys() == {"train.peak_lr"}
    main(command(results, tmp_path))
    text = (tmp_path / "report.md").read_text().split("## The search")[1].split("##")[0]
    assert text.count("4.250, 0.100 *") == text.count("3.250, 0.200 *") == len(NAMES)
    assert text.count("*") == 2 * len(NAMES) + 1  # and the caption's
    with pytest.raises(SystemExit):
        main(["replica-result", "--folder", str(folder), "--system", "led", "--search",
              "--output", str(tmp_path / "x.json")])  # fmt: skip


def test_it_shows_how_far_each_system_reads_over_its_seeds(folder, results, tmp_path):
    main(command(results, tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "| part of the source | LOCOST | LongT5 |" in text
    shown = [float(cell.split()[0]) for cell in row(text, "90% to 100%")]
    for system, value in zip(NAMES, shown, strict=True):
        seeds = []
        for seed in (0, 1):
            path = folder / system / f"seed-{seed}" / "evaluation" / "losses-model.jsonl"
            records = [json.loads(line) for line in path.open()]
            changes = sum(one["losses"][10] - one["losses"][0] for one in records)
            seeds.append(changes / sum(one["tokens"] for one in records))
        assert value == pytest.approx(np.mean(seeds), abs=6e-5)
    assert len(re.findall(r"(LOCOST|LongT5) uses the end|that (LOCOST|LongT5) uses", text)) == 2
    # A curve of each system.
    assert all(pixels(tmp_path / "source_use.png", PALETTE[rank]) > 500 for rank in (0, 1))


def test_part_of_the_results_make_a_page(results, tmp_path):
    some = shutil.copytree(results, tmp_path / "some")
    for name in ("longt5-tglobal-0", "longt5-tglobal-1", "locost-1", "systems"):
        (some / f"{name}.json").unlink()
    main(command(some, tmp_path / "out"))
    text = (tmp_path / "out/report.md").read_text()
    assert "fine-tuning: LOCOST 1." in text and "Not measured yet." in text
    for path in some.glob("*-[0-9].json"):
        path.unlink()
    with pytest.raises(SystemExit):
        main(command(some, tmp_path / "none"))


def test_a_page_gets_the_results_between_its_marks(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- replica: begin -->\nold\n<!-- replica: end -->\n\nafter\n")
    for _ in range(2):
        main(["replica", "--results", str(results), "--refresh", str(page)])
        text = page.read_text()
        assert text.startswith("before\n\n<!-- replica: begin -->\n\nSeeds of pre-training")
        assert text.endswith("<!-- replica: end -->\n\nafter\n") and "old" not in text
        assert "![" not in text


def test_results_of_two_test_sets_are_refused(results, tmp_path, capsys):
    mixed = shutil.copytree(results, tmp_path / "mixed")
    changed = json.loads((mixed / "locost-1.json").read_text())
    (mixed / "locost-1.json").write_text(json.dumps({**changed, "test_set": "0" * 64}))
    with pytest.raises(SystemExit) as ended:
        main(command(mixed, tmp_path / "out"))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "has results of 2 test sets, expected one" in said


def test_a_missing_part_is_one_line_and_status_2(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["replica-result", "--folder", str(folder), "--system", "locost", "--seed", "7",
              "--output", str(tmp_path / "x.json")])  # fmt: skip
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1 and "seed-7" in said


@pytest.mark.skipif(not RECORDED, reason="the replica has not been recorded yet")
def test_the_recorded_page_says_what_its_files_say():
    """`report.py replica --results benchmarks/replica --refresh docs/replica.md` writes it."""
    text = (ROOT / "docs" / "replica.md").read_text(encoding="utf-8")
    expected = page_lines(read_replica(ROOT / "benchmarks" / "replica"))
    between = text.split("<!-- replica: begin -->")[1].split("<!-- replica: end -->")[0]
    assert between.strip() == expected.strip()
