"""The replica's report, from real evaluations of tiny models, against rouge-score."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import pixels
from rouge_score.rouge_scorer import RougeScorer
from written_runs import write_learning_run

from pipeline.common.plot_style import PALETTE
from pipeline.distributed.world import World
from pipeline.evaluation.evaluator import evaluate
from pipeline.evaluation.preparation import EvaluationOptions
from pipeline.manifest import write_manifest
from pipeline.model.generation import DecodingStrategy
from pipeline.report import main, parse
from pipeline.reporting.replica import over_seeds, ratio
from pipeline.shards import Dataset, write_shard
from pipeline.stages.replica import SYSTEMS, ReplicaStages
from pipeline.tokenizer import Tokenizer

ALONE = World(0, 1, 0, torch.device("cpu"))
NAMES = ("locost", "longt5-tglobal")


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
        source_use_by_position=True,
    )
    for system, its in zip(NAMES, (checkpoint, other_checkpoint), strict=True):
        for seed in (0, 1):
            run = folder / f"{system}-{seed}"
            tokens = DecodingStrategy(max_new_tokens=10 + 5 * seed)
            evaluate(
                replace(ours, checkpoint=its, output=run / "evaluation",
                        strategy=tokens),
                ALONE,
            )  # fmt: skip
            write_learning_run(run / "finetune", seed, 40, validation=True)
            with (run / "finetune" / "metrics.jsonl").open("a") as file:
                for use in (0.5, 0.25 + seed):
                    file.write(json.dumps({"step": 40, "validation_source_use": use}) + "\n")
        write_learning_run(folder / f"{system}-pretrain", 0, 40, validation=False)
    cut_sources(dataset_folder, folder / "shards" / "test")
    rows = [
        {"subject": system, "mode": mode, "length": 4096, "memory": "plain", "device": "cpu",
         "cpu_s": seconds, "peak_gib": gib}
        for mode in ("training", "inference")
        for system, seconds, gib in (("locost", 2.0, 0.25), ("longt5-tglobal", 8.0, 0.5))
    ]  # fmt: skip
    (folder / "measurements").mkdir()
    (folder / "measurements" / "systems.json").write_text(json.dumps({"rows": rows}))
    stage = {"name": "text", "seconds": 1.0, "command": "python preprocessing/documentation.py"}
    (folder / "stages.json").write_text(json.dumps([stage]))
    return folder


def cut_sources(dataset_folder: Path, folder: Path) -> None:
    """The dataset with sources truncated to 8 ids; its texts are whole."""
    dataset = Dataset(dataset_folder)
    folder.mkdir(parents=True)
    shutil.copy(dataset.tokenizer_path, folder)
    samples = ((f"{i:010d}", replace(dataset[i], source=dataset[i].source[:8]))
               for i in range(len(dataset)))  # fmt: skip
    shard = write_shard(folder / "cut-00000-00000", samples)
    write_manifest(folder, {**dataset.manifest, "shards": [shard]})


def command(folder: Path, output: Path) -> list[str]:
    return ["replica", "--folder", str(folder), "--systems", *NAMES, "--seeds", "0", "1",
            "--output", str(output)]  # fmt: skip


def by_hand(folder: Path, system: str, seed: int) -> np.ndarray:
    """Mean ROUGE of each document in percent, by rouge-score."""
    scorer = RougeScorer(["rouge1", "rouge2", "rougeLsum"])
    path = folder / f"{system}-{seed}" / "evaluation" / "predictions-model.jsonl"
    found = []
    for record in map(json.loads, path.read_text().splitlines()):
        pairs = [
            scorer.score(*("\n".join(re.split(r"(?<=[.!?])\s+", text)) for text in (
                reference, record["prediction"])))
            for reference in record["references"]
        ]  # fmt: skip
        found.append(100 * np.mean([[s.fmeasure for s in pair.values()] for pair in pairs]))
    return np.array(found)


def test_tables_hold_what_rouge_score_gives(folder, dataset_folder, tmp_path):
    main(command(folder, tmp_path))
    text = (tmp_path / "report.md").read_text()
    means = {name: np.mean([by_hand(folder, name, s) for s in (0, 1)], axis=0) for name in NAMES}
    for title, name in (("LOCOST", "locost"), ("LongT5", "longt5-tglobal")):
        row = re.search(
            rf"^\| {title}[^,|]* \| .* \| ([\d.]+) \(.*\) \| ([\d., ]+) \|$", text, re.M
        )
        assert float(row[1]) == pytest.approx(means[name].mean(), abs=0.02)
        seeds = [by_hand(folder, name, seed).mean() for seed in (0, 1)]
        assert [float(x) for x in row[2].split(", ")] == pytest.approx(seeds, abs=0.02)
    dataset = Dataset(dataset_folder)
    tokenizer = Tokenizer(dataset_folder / "tokenizer.model")
    texts = [dataset[index].metadata["source_text"] for index in range(len(dataset))]
    lengths = np.array([len(tokenizer.encode(text)) + 1 for text in texts])  # and EOS
    short = lengths < 1024
    counts = re.search(r"^\| documents \| (\d+|–) \|", text, re.M)
    assert counts[1] == str(short.sum())
    row = re.search(r"^\| LOCOST \| ([\d.]+) \| –", text, re.M)
    assert float(row[1]) == pytest.approx(means["locost"][short].mean(), abs=0.02)
    assert "| training, 4,096 tokens, seconds | 2.00 | 8.00 (0.25) |" in text
    assert (
        f"{len(lengths)} documents; their length is {np.median(lengths):,.0f} tokens in the median"
        in text
    )
    assert f"{lengths.max()} at most" in text
    assert len(re.findall("when given another", text)) == 2
    assert len(re.findall("(LOCOST|LongT5) is beaten by the document's first", text)) == 2
    assert "Letters that rouge-score drops, as it reads only a to z: references 0.0 %" in text
    assert "-base" not in text  # the paper's sizes are not these
    losses = [line for line in text.splitlines() if re.match(r"\| (locost|longt5-tglobal), ", line)]
    uses = [line.split("|")[-2].strip() for line in losses]
    assert uses == [""] * 2 + ["0.250", "1.250"] * 2
    assert str(folder) not in text


def test_it_shows_how_far_each_system_reads_over_its_seeds(folder, tmp_path):
    main(command(folder, tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "| part of the source | LOCOST | LongT5 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| 90% to 100% |"))
    shown = [float(cell.split()[0]) for cell in row.strip("|").split("|")[1:]]
    for system, value in zip(NAMES, shown, strict=True):
        seeds = []
        for seed in (0, 1):
            path = folder / f"{system}-{seed}" / "evaluation" / "losses-model.jsonl"
            records = [json.loads(line) for line in path.open()]
            changes = sum(one["losses"][10] - one["losses"][0] for one in records)
            seeds.append(changes / sum(one["tokens"] for one in records))
        assert value == pytest.approx(np.mean(seeds), abs=6e-5)
    assert len(re.findall(r"(LOCOST|LongT5) uses the end|that (LOCOST|LongT5) uses", text)) == 2
    # A curve of each system.
    assert all(pixels(tmp_path / "source_use.png", PALETTE[rank]) > 500 for rank in (0, 1))


def test_evaluations_of_earlier_versions_say_that_it_was_not_measured(folder, tmp_path):
    earlier = shutil.copytree(folder, tmp_path / "earlier")
    for path in earlier.glob("*/evaluation/losses-model.jsonl"):
        path.unlink()
    main(command(earlier, tmp_path / "out"))
    assert "Not measured: evaluate with --source_use" in (tmp_path / "out/report.md").read_text()
    assert not (tmp_path / "out" / "source_use.png").exists()


def test_a_ratio_is_of_the_means():
    def documents(*values: float) -> list[dict[str, float]]:
        return [dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), v) for v in values]

    found = ratio(documents(0.2, 0.4, 0.6), documents(0.1, 0.2, 0.3))
    assert found["value"] == found["low"] == found["high"] == pytest.approx(2)
    assert over_seeds([documents(0.2, 0.4), documents(0.4, 0.8)]) == [
        pytest.approx(scores) for scores in documents(0.3, 0.6)
    ]
    with pytest.raises(ValueError, match="evaluations have 1, 2 documents"):
        over_seeds([documents(0.1), documents(0.1, 0.2)])


def test_a_missing_part_is_one_line_and_status_2(folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command(folder, tmp_path), "--seeds", "0", "7"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1 and "locost-7" in said


def test_the_replica_calls_it_by_its_arguments(tmp_path):
    options = parse([str(word) for word in ReplicaStages(tmp_path, quick=True).report()[2:]])
    assert (options.page, options.systems, options.seeds) == ("replica", list(SYSTEMS), [0])
