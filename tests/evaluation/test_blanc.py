"""BLANC in its own environment, and what happens without it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from finished_evaluation import edit, finish
from tiny_bert import WORDS, guess_what_is_around, make_bert

from pipeline.common.sentences import split_sentences
from pipeline.evaluation.examples import Examples
from pipeline.metrics import main
from pipeline.scoring.blanc import PYTHON
from pipeline.shards import Dataset

pytest.importorskip("transformers", reason="transformers: requirements-extras.txt")
legacy = pytest.mark.skipif(not PYTHON.exists(), reason=f"no {PYTHON.parts[-3]}: `make legacy`")

# The package alone, in its own environment: sentences are already split, one per line.
BY_HAND = """
import json, sys
from blanc import BlancHelp, BlancTune, blanc
blanc.sent_tokenize = lambda text: text.splitlines()
variant, folder, gap, pairs = json.load(sys.stdin)
options = {"gap": gap, "show_progress_bar": False}
if variant == "tune":
    scorer = BlancTune(folder, random_seed=1, **options)
else:
    scorer = BlancHelp(folder, **options)
print(json.dumps(scorer.eval_pairs(*zip(*pairs))), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "albert-but-bert"
    # As many tokens as BLANC-tune needs.
    return guess_what_is_around(make_bert(folder, seed=0, layers=1, vocabulary=30_000))


@pytest.fixture
def evaluation(checkpoint, validation_folder, tmp_path) -> Path:
    folder = finish(checkpoint, validation_folder, tmp_path / "out", limit=3)
    examples = Examples(Dataset(validation_folder))
    shared = next(word for word in WORDS if word in examples[0].document)
    texts = (f"{shared} {shared}. The {shared}!", "", "The river. Herons!")
    edit(folder, {index: {"prediction": text} for index, text in enumerate(texts)})
    return folder


def run(evaluation: Path, model: Path, *more: str) -> dict:
    main(["blanc", "--evaluation", str(evaluation), "--model", str(model), *more])
    (path,) = evaluation.glob("blanc-*.json")
    return json.loads(path.read_text())


@legacy
@pytest.mark.soak
@pytest.mark.parametrize(("variant", "gap"), [("help", 2), ("tune", 6)])
def test_scores_equal_the_package_called_by_hand(evaluation, bert, validation_folder, variant, gap):
    more = ("--variant", variant, "--gap", str(gap))
    if variant == "help":
        edit(evaluation, {2: {"prediction": "The river. Herons! " + "bread " * 500}})
    result = run(evaluation, bert, *more)
    records = edit(evaluation, {})
    examples = Examples(Dataset(validation_folder), limit=3)
    # BLANC-tune reads the whole summary; only the sentences to predict are split.
    pairs = [
        (
            "\n".join(split_sentences(examples[index].document)),
            "\n".join(split_sentences(record["prediction"])),
        )
        for index, record in enumerate(records)
    ]
    plain = shutil.copytree(bert, evaluation.parent / "plain")
    finished = subprocess.run(
        [PYTHON, "-c", BY_HAND],
        input=json.dumps([variant, str(plain), gap, pairs]),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    expected = json.loads(finished.stderr.splitlines()[-1])
    lines = next(evaluation.glob("blanc-*.jsonl")).read_text().splitlines()
    scored = [json.loads(line) for line in lines[1:]]
    assert [one["score"] for one in scored] == pytest.approx(expected)
    mean = 100 * sum(expected) / len(expected)
    assert result["scores"]["blanc"]["value"] == pytest.approx(mean)
    assert any(expected) and scored[1]["score"] == 0  # an empty summary does not help
    cut = scored[2]["cut_sentences"]
    assert cut == (scored[2]["sentences"] if variant == "help" else 0)
    settings = result["settings"]
    assert settings["variant"] == variant and settings["gap"] == gap
    assert settings["model"] == "albert-but-bert" and settings["measure"] == "relative"
    assert set(settings["packages"]) == {"blanc", "transformers", "torch", "numpy"}
    # Stopped within the last line, it resumes there and ends with the same result.
    path = next(evaluation.glob("blanc-*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rfind(b"{") + 20])
    assert run(evaluation, bert, *more) == result
    assert path.read_bytes() == whole


def test_what_blanc_cannot_use_is_one_line(evaluation, dataset_folder, tmp_path, capsys):
    def refused(model: Path, *more: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            run(evaluation, model, *more)
        line = capsys.readouterr().err
        assert stopped.value.code == 2 and line.startswith("error: ") and line.count("\n") == 1
        return line

    bert = make_bert(tmp_path / "bert", seed=0, layers=1)
    assert "no config.json" in refused(tmp_path / "nowhere")
    assert "draws from the first 30000" in refused(bert, "--variant", "tune")
    assert "`make legacy` builds" in refused(bert, "--python", str(tmp_path / "python"))
    assert "is not the dataset evaluated in" in refused(bert, "--data", str(dataset_folder))
    (bert / "vocab.txt").unlink()
    assert "no vocab.txt" in refused(bert)
    config = json.loads((bert / "config.json").read_text())
    (bert / "vocab.txt").write_text("[PAD]\n")
    (bert / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert "reads at most 128 tokens, BLANC needs 512" in refused(bert)
    (bert / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    assert "BLANC needs BERT" in refused(bert)
    (bert / "config.json").write_text(json.dumps(config))
    broken = tmp_path / "python-that-dies"
    broken.write_text("#!/bin/sh\necho first >&2\necho No module named blanc >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "ended: No module named blanc" in refused(bert, "--python", str(broken))
    assert list(evaluation.glob("blanc-*")) == []


def test_a_model_without_a_head_is_not_given_a_random_one(evaluation, tmp_path, capsys):
    from transformers import BertModel

    bert = make_bert(tmp_path / "bert", seed=0, layers=1)
    BertModel.from_pretrained(bert).save_pretrained(bert)
    with pytest.raises(SystemExit):
        run(evaluation, bert)
    assert "no masked language modelling head" in capsys.readouterr().err
