"""The exported folder in transformers."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.convert import main
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs requirements-extras.txt")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("exported_modules")]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "checkpoints.md"
VARIANTS = {
    "base": {},
    "untied": {"tie_embeddings": False, "dropout": 0.1, "decoder_layers": 1},
    "as printed": {
        "positions": "rotary",
        "ssm_directions": "separate",
        "ssm_initialisation": "paper",
        "ssm_discretisation": "none",
        "ssm_projections": "complex",
    },
    "fused": {"published_convolution": True},
}
IDS = torch.tensor([[5, 9, 33, 7, 60, 21, 1], [8, 12, 40, 1, 0, 0, 0]])
MASK = (IDS != 0).long()
LABELS = torch.tensor([[17, 23, 1], [44, 1, -100]])


@pytest.fixture(scope="module", params=VARIANTS)
def folders(request, tmp_path_factory, tokenizer_path):
    """Our model folder and the one exported from it."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model = Locost(
        LocostConfig(
            vocab_size=Tokenizer(tokenizer_path).vocab_size,
            **{"d_model": 16, "state_dim": 4, "d_ff": 32, "encoder_layers": 2},
            **{"decoder_layers": 2, "num_heads": 2, "head_dim": 8, **VARIANTS[request.param]},
        )
    )
    with torch.no_grad():  # so large that the source, and each token, changes the next one
        for parameter in model.decoder.parameters():
            parameter.mul_(3)
    save_model(model, folder / "ours", tokenizer=tokenizer_path)
    arguments = ["--output", str(folder / "theirs"), "--format", "huggingface"]
    assert main(["export", str(folder / "ours"), *arguments]) == 0
    return folder / "ours", folder / "theirs"


def load(folder, **options):
    """The model, loaded by the library."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(
        folder, trust_remote_code=True, **options
    )


def without_padding(ids, eos_id):
    """The new tokens of each row through its first end token; the library pads with that."""
    rows = [row[1:] for row in ids.tolist()]
    return [row[: row.index(eos_id) + 1] if eos_id in row else row for row in rows]


def same_weights(theirs, ours):
    weights, expected = theirs.locost.state_dict(), ours.state_dict()
    return weights.keys() == expected.keys() and all(
        torch.equal(weights[name], expected[name]) for name in expected
    )


def test_weights_logits_and_loss(folders, tmp_path):
    ours, (theirs, report) = load_model(folders[0]), load(folders[1], output_loading_info=True)
    assert not any(report.values())
    assert not theirs.training
    assert theirs.config.tie_word_embeddings == ours.config.tie_embeddings
    theirs.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    expected = ours(IDS, MASK, LABELS)
    for model in (theirs, again):
        assert same_weights(model, ours)
        output = model(input_ids=IDS, attention_mask=MASK, labels=LABELS)
        assert torch.equal(output.logits, expected.logits)
        assert torch.equal(output.loss, expected.loss)
        assert torch.equal(output.encoder_last_hidden_state, expected.encoder_states)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_generation(folders, use_cache):
    ours, theirs = load_model(folders[0]), load(folders[1])
    expected = ours.generate(IDS, MASK, max_new_tokens=12)
    assert len(set(expected.flatten().tolist())) > 3
    ids = theirs.generate(IDS, attention_mask=MASK, max_new_tokens=12, use_cache=use_cache)
    assert torch.equal(ids, expected)


@pytest.mark.parametrize(
    "how", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2, "top_k": 0}]
)
def test_beams_and_samples(folders, how):
    """The decoder's state gives what decoding from the start gives, beams that change included."""
    model = load(folders[1])
    results = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        how = {"max_new_tokens": 12, "use_cache": use_cache, **how}
        results.append(model.generate(IDS, attention_mask=MASK, **how))
    assert torch.equal(*results)


@pytest.mark.parametrize("folders", ["base", "untied"], indirect=True)
def test_our_beam_search_is_the_librarys(folders):
    """Token for token, with an end that comes early, late or never; alone as in a batch."""
    ours, theirs = load_model(folders[0]), load(folders[1])
    for model in (ours, theirs.locost):
        with torch.no_grad():
            (model.embedding if model.head is None else model.head).weight[1] *= 3
    eos_id, found = ours.config.eos_id, set()
    rules = [{"max_new_tokens": 14}, {"max_new_tokens": 6}]
    rules += [{**rules[0], "no_repeat_ngram_size": 2}, {**rules[0], "min_new_tokens": 5}]
    searches = product((True, False, "never"), (0.0, 0.5, 1.0, 2.0, -1.0))
    for (stops, penalty), rule in zip(searches, cycle(rules)):
        how = {"num_beams": 3, "length_penalty": penalty, "early_stopping": stops, **rule}
        ids = without_padding(ours.generate(IDS, MASK, **how), eos_id)
        expected = theirs.generate(IDS, attention_mask=MASK, **how)
        assert ids == without_padding(expected, eos_id), how
        alone = ours.generate(IDS[1:, :4], None, **how)
        assert without_padding(alone, eos_id) == ids[1:], how
        found |= set(map(tuple, ids))
    assert len(found) > 6 and len({tokens[-1] == eos_id for tokens in found}) == 2


def test_a_fresh_model_is_initialised_by_its_own_modules(folders):
    config = transformers.AutoConfig.from_pretrained(folders[1], trust_remote_code=True)
    torch.manual_seed(3)
    theirs = transformers.AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=True)
    torch.manual_seed(3)
    assert same_weights(theirs, Locost(load_model(folders[0]).config))
    if config.ssm_initialisation == "code":
        log_dt = theirs.locost.encoder.blocks[0].ssm.log_dt
        assert math.log(1e-3) <= log_dt.min() < log_dt.max() <= math.log(0.1)


def test_kernels_stay_in_float32(folders):
    model = load(folders[1], dtype=torch.bfloat16)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    assert kinds["locost.encoder.blocks.0.ssm.log_dt"] == torch.float32
    assert kinds["locost.encoder.blocks.0.ssm.output.weight"] == torch.bfloat16
    narrow, wide = (
        m(input_ids=IDS, attention_mask=MASK, labels=LABELS) for m in (model, load(folders[1]))
    )
    assert narrow.loss.item() == pytest.approx(wide.loss.item(), rel=0.1)


def test_text(folders):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[1], trust_remote_code=True)
    ours = Tokenizer(folders[0])
    assert len(tokenizer) == ours.vocab_size
    for text in ("The river  runs past an old\n stone mill.", "", "Zürich ½ {x}\u3000soup"):
        assert tokenizer(text)["input_ids"] == [*ours.encode(text), ours.eos_id]
    sentinels = [tokenizer.convert_tokens_to_ids(f"<extra_id_{k}>") for k in (0, 99)]
    assert sentinels == [ours.sentinel(0), ours.sentinel(99)]
    batch = tokenizer(["Soup.", "Old herons fish until evening."], padding=True)
    assert batch["attention_mask"][0].count(0)
    ids = load(folders[1]).generate(**batch.convert_to_tensors("pt"), max_new_tokens=3)
    assert len(tokenizer.batch_decode(ids, skip_special_tokens=True)) == 2


def test_weights_that_are_not_whole(folders, tmp_path):
    shutil.copytree(folders[1], tmp_path / "cut")
    weights = load_file(tmp_path / "cut" / "model.safetensors")
    del weights["locost.encoder.norm.weight"]
    save_file(weights, tmp_path / "cut" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="the weights lack a RMSNorm's weight"):
        load(tmp_path / "cut")


def test_impossible_arguments(folders, tmp_path):
    model = load(folders[1])
    with pytest.raises(ValueError, match="input_ids: an id is outside the vocabulary"):
        model.generate(IDS + 1000, max_new_tokens=2)
    with pytest.raises(ValueError, match="input_ids: missing"):
        model(labels=LABELS)
    with pytest.raises(ValueError, match="decoder_input_ids: missing"):
        model(input_ids=IDS)
    shutil.copytree(folders[1], tmp_path / "odd")
    path = tmp_path / "odd" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_heads": 0}))
    with pytest.raises(ValueError, match="num_heads=0 is impossible"):
        load(tmp_path / "odd")


@pytest.mark.parametrize("folders", ["base"], indirect=True)
def test_the_documented_program(folders, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "summariser").symlink_to(folders[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['")
