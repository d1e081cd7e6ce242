"""Characters that the tokenizer lacks are counted, and documents of little else left out."""

import json

import pytest
from made_up_text import write_lines

from pipeline.shards import Dataset
from preprocessing import finetune, pretrain, show

MILL = "the old mill stands here"
KNOWN = f"{MILL}. {MILL} too. the river runs past. children watch. the end is near."
MIXED = f"{KNOWN} {'川' * 20}。"  # one unknown id, of 21 characters
FOREIGN = "川のそばの水車。" * 9


@pytest.fixture
def made(command, tokenizer_path, tmp_path, capsys):
    """Make a dataset of the texts: (dataset, closing line)."""

    def make(main, records, *options):
        source = write_lines(tmp_path / "x.jsonl", list(map(json.dumps, records)))
        output = tmp_path / f"set-{len(list(tmp_path.iterdir()))}"
        command(
            main, "--input", source, "--tokenizer", tokenizer_path, "--output", output, *options
        )
        return Dataset(output), capsys.readouterr().out

    return make


def pretraining(*texts):
    return [{"text": text, "url": f"https://example.org/{i}"} for i, text in enumerate(texts)]


def pairs(*texts):
    return [
        {"id": str(i), "document": document, "summary": summary}
        for i, (document, summary) in enumerate(texts)
    ]


def test_pretraining_counts_characters_not_ids(made):
    foreign = "。".join("川" * 30 for _ in range(6))
    dataset, said = made(pretrain.main, pretraining(KNOWN, MIXED, foreign.replace("。", ". ")))
    counts = dataset.manifest["counts"]
    assert counts["excluded"] == {"unknown characters": 1} and counts["kept"] == 2
    assert counts["unknown_characters"] == 21
    share = 21 / counts["characters"]
    assert f"unknown characters 1; the tokenizer lacks {share:.2%} of their characters (21)" in said


def test_a_pair_is_left_out_for_its_document_or_its_summary(made):
    records = pairs((KNOWN, MILL), (MIXED, MILL), (FOREIGN, MILL), (KNOWN, FOREIGN))
    dataset, _ = made(finetune.main, records, "--dataset", "jsonl")
    counts = dataset.manifest["counts"]
    assert counts["excluded"] == {"unknown characters": 2} and counts["kept"] == 2
    assert counts["unknown_characters"] == 21
    assert counts["characters"] == len(KNOWN + MIXED) + 2 * len(MILL)
    everything, _ = made(finetune.main, records, "--dataset", "jsonl", "--max_unknown_share", 1)
    assert everything.manifest["counts"]["kept"] == 4
    strict, _ = made(finetune.main, records, "--dataset", "jsonl", "--max_unknown_share", 0)
    assert strict.manifest["counts"]["kept"] == 1


def test_a_set_in_another_script_is_refused_with_the_remedy(made):
    with pytest.raises(
        ValueError, match=r"unknown characters 1\); .* or raise --max_unknown_share"
    ):
        made(finetune.main, pairs((FOREIGN, FOREIGN)), "--dataset", "jsonl")


def test_show_says_the_share(made, command, capsys):
    dataset, _ = made(finetune.main, pairs((MIXED, MILL)), "--dataset", "jsonl")
    command(show.main, dataset.path)
    share = 21 / (len(MIXED) + len(MILL))
    assert f"21 characters, {share:.2%}" in capsys.readouterr().out


def test_a_share_out_of_range_is_refused(made):
    for main, records, more in (
        (pretrain.main, pretraining(KNOWN), ()),
        (finetune.main, pairs((KNOWN, MILL)), ("--dataset", "jsonl")),
    ):
        with pytest.raises(ValueError, match=r"--max_unknown_share is 1\.5, expected a share"):
            made(main, records, "--max_unknown_share", 1.5, *more)
