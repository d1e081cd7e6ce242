"""Baselines against transformers itself, as models and as folders."""

import json
import math
from typing import get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_systems import HERE, SMALL

from pipeline.baselines.model import Baseline, load_baseline
from pipeline.baselines.registry import check_model, load_model, save_model
from pipeline.baselines.systems import SYSTEMS, BaselineConfig, Name, name_of
from pipeline.data.collate import collate
from pipeline.inference.decode import check_sharing
from pipeline.shards import Dataset

# The kinds of data in turn: each system meets one.
KINDS = dict(zip(HERE, ["ours", "byte pairs", "many words"] * 3, strict=False))


def make(name, vocab_size=96, **others):
    torch.manual_seed(0)
    return Baseline(
        BaselineConfig(name=name, vocab_size=vocab_size, settings=SMALL[name], **others)
    )


def batch_of(data, name, samples=4):
    dataset = Dataset(data[KINDS[name]].train)
    batch = collate([dataset[k] for k in range(samples)], 0, 0)
    assert (batch.attention_mask == 0).any()
    return batch, dataset.manifest["tokenizer"]["vocab_size"]


def theirs(model, batch):
    """transformers' own output on a batch."""
    more = {}
    if model.config.name == "led":
        more["global_attention_mask"] = torch.zeros_like(batch.input_ids)
        more["global_attention_mask"][:, 0] = 1
    return model.network(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels, **more
    )


def learnt(model):
    """All but PEGASUS's positions, which are sines."""
    found = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    kept = len(list(model.parameters())) - len(found)
    assert kept == (2 if model.config.name == "pegasus" else 0)
    return found


def test_names_are_those_of_the_flag():
    assert list(get_args(Name)) == list(SYSTEMS)


@pytest.mark.parametrize("name", HERE)
def test_loss_and_logits_are_transformers_own(data, name):
    batch, vocab_size = batch_of(data, name)
    model = make(name, vocab_size).eval()
    ours = model(batch.input_ids, batch.attention_mask, batch.labels)
    expected = theirs(model, batch)
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.logits, expected.logits, rtol=0, atol=0)
    summed = model(batch.input_ids, batch.attention_mask, batch.labels, loss_reduction="sum").loss
    torch.testing.assert_close(summed, expected.loss * (batch.labels >= 0).sum(), rtol=1e-6, atol=0)
    states = model(batch.input_ids, batch.attention_mask).encoder_states
    torch.testing.assert_close(states, expected.encoder_last_hidden_state, rtol=0, atol=0)


@pytest.mark.parametrize("name", HERE)
def test_random_weights_start_at_a_uniform_guess(data, name):
    """A head whose logits are not scaled starts at a loss of several dozens, for lack of luck."""
    batch, vocab_size = batch_of(data, name)
    loss = make(name, vocab_size).eval()(batch.input_ids, batch.attention_mask, batch.labels).loss
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.25)


@pytest.mark.parametrize("name", HERE)
def test_gradients_are_transformers_own_and_survive_recomputation(data, name):
    batch, vocab_size = batch_of(data, name)
    model = make(name, vocab_size).train()
    results = []
    for recompute in (False, True):
        model.recompute_activations(recompute)
        model.zero_grad()
        model(batch.input_ids, batch.attention_mask, batch.labels).loss.backward()
        results.append({key: p.grad for key, p in learnt(model)})
    model.recompute_activations(False)
    model.zero_grad()
    theirs(model, batch).loss.backward()
    for key, parameter in learnt(model):
        for found in results:
            torch.testing.assert_close(found[key], parameter.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", HERE)
def test_greedy_summaries_are_the_likeliest_tokens(data, name):
    """Token by token from the forward pass, and by transformers' generate on the bare model."""
    batch, vocab_size = batch_of(data, name)
    model = make(name, vocab_size, eos_id=vocab_size - 1)
    model.train()
    found = model.generate(batch.input_ids, batch.attention_mask, max_new_tokens=5)
    assert model.training
    model.eval()
    ids = torch.zeros(4, 1, dtype=torch.long)
    for _ in range(5):
        next_one = torch.cat([ids[:, 1:], torch.zeros(4, 1, dtype=torch.long)], dim=1)
        logits = model(batch.input_ids, batch.attention_mask, next_one).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    for row, expected in zip(found.tolist(), ids.tolist(), strict=True):
        end = row.index(vocab_size - 1) + 1 if vocab_size - 1 in row else len(row)
        assert row[:end] == expected[:end]


@pytest.mark.parametrize("name", HERE)
def test_a_folder_keeps_the_model_and_is_transformers_too(data, name, tmp_path):
    batch, vocab_size = batch_of(data, name)
    model = make(name, vocab_size, dropout=0.25, eos_id=1).eval()
    save_model(model, tmp_path, data[KINDS[name]].train / "manifest.json")
    loaded = load_model(tmp_path)
    assert not loaded.training
    assert check_model(tmp_path) == loaded.config
    assert (loaded.config.name, loaded.config.dropout) == (name, 0.25)
    expected = model(batch.input_ids, batch.attention_mask, batch.labels).logits
    again = loaded(batch.input_ids, batch.attention_mask, batch.labels).logits
    assert torch.equal(again, expected)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    model.network = network
    torch.testing.assert_close(theirs(model, batch).logits, expected, rtol=1e-5, atol=1e-5)
    assert load_baseline(tmp_path, dropout=0.5).config.dropout == 0.5


@pytest.mark.parametrize(
    ("name", "vocab_size", "millions"),
    [("longt5-tglobal", 32_128, 247.6), ("led", 50_265, 161.8), ("t5", 32_128, 222.9),
     ("bart", 50_265, 139.4)],
)  # fmt: skip
def test_base_sizes_are_the_published_ones(name, vocab_size, millions):
    with torch.device("meta"):
        model = Baseline(BaselineConfig(name=name, vocab_size=vocab_size))
    count = sum(parameter.numel() for parameter in model.parameters())
    if name.startswith("longt5"):  # has a separate head, which transformers 5 ties
        count += model.embedding.weight.numel()
    assert count / 1e6 == pytest.approx(millions, abs=0.06)


def test_bigbird_goes_back_to_sparse_attention_and_draws_no_random_numbers():
    model = make("bigbird")
    short, long = torch.randint(3, 96, (1, 20)), torch.randint(3, 96, (1, 60))
    labels = torch.randint(3, 96, (1, 4))
    model.eval()
    expected = model(long, None, labels).logits
    assert model.encoder.attention_type == "block_sparse"
    torch.manual_seed(5)
    model(short, None, labels)
    assert model.encoder.attention_type == "original_full"
    assert torch.equal(model(long, None, labels).logits, expected)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)


def test_a_sample_depends_on_seed_and_document_alone():
    model = make("t5", eos_id=95)
    source, mask = torch.randint(3, 96, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "top_p": 0.9}
    torch.manual_seed(1)
    both = model.generate(source, mask, seed=4, **how)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(model.generate(source[:1], None, seed=4, **how), both[:1])
    assert torch.equal(model.generate(source[1:, :7], None, seed=4, **how), both[1:])
    assert not torch.equal(model.generate(source, mask, seed=5, **how), both)
    assert not torch.equal(model.generate(source, mask, max_new_tokens=6, min_new_tokens=6), both)


@pytest.mark.parametrize("stops", [True, False, "never"])
def test_beam_search_gets_every_option(stops):
    """transformers' own search on the bare network; LOCOST's: tests/test_huggingface.py."""
    model = make("t5", eos_id=95).eval()
    source = torch.randint(3, 96, (2, 12))
    how = {"num_beams": 3, "length_penalty": 2.0, "early_stopping": stops, "max_new_tokens": 9}
    expected = model.network.generate(source, **how)
    assert torch.equal(model.generate(source, None, **how), expected)
    given = []
    model.network.generate = lambda **options: given.append(options)
    model.generate(source, None, **how)
    assert how.items() <= given[0].items()


def test_beams_and_repeats():
    model = make("t5")
    source = torch.randint(3, 96, (2, 12))
    beams = model.generate(source, max_new_tokens=6, num_beams=3, no_repeat_ngram_size=2)
    assert beams.shape[0] == 2 and beams.shape[1] <= 7


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("led", {"d_modell": 3}, "led has no d_modell; give fields of transformers' led"),
        ("t5", {"d_ff": "wide"}, "are impossible for t5"),
        ("bart", {"encoder_attention_heads": 5}, "are impossible for bart"),
    ],
)
def test_impossible_settings_are_named(name, settings, said):
    with pytest.raises(ValueError, match=said):
        Baseline(BaselineConfig(name=name, vocab_size=96, settings=settings))


def test_excessive_lengths_are_refused_with_remedies():
    model = Baseline(
        BaselineConfig(
            name="bart", vocab_size=96, settings={**SMALL["bart"], "max_position_embeddings": 16}
        )
    )
    source, labels = torch.ones(1, 16, dtype=torch.long), torch.ones(1, 17, dtype=torch.long)
    with pytest.raises(ValueError, match=r"sources of 16 tokens.*source_length to 16, or.*: 17}"):
        model(labels, None, labels)
    with pytest.raises(ValueError, match="targets of 16 tokens"):
        model(source, None, labels)
    with pytest.raises(ValueError, match="max_new_tokens to 16"):
        model.generate(source, max_new_tokens=17)
    with pytest.raises(ValueError, match="memory_budget"):
        model.generate(source, max_new_tokens=4, memory_budget=0)


def test_led_reads_whole_windows():
    settings = {**SMALL["led"], "max_encoder_position_embeddings": 21}
    model = Baseline(BaselineConfig(name="led", vocab_size=96, settings=settings))
    labels = torch.ones(1, 3, dtype=torch.long)
    assert model.limits[0] == 16
    model(torch.ones(1, 16, dtype=torch.long), None, labels)
    with pytest.raises(ValueError, match="sources of 16 tokens"):
        model(torch.ones(1, 17, dtype=torch.long), None, labels)


def test_folders_that_are_damaged_are_refused(tmp_path):
    model = make("t5")
    save_model(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "encoder.block.0.layer.0.SelfAttention.q.weight"
    for changed, said in (
        ({name: weights[name].fill_(torch.nan)}, f"NaN or infinity in {name}"),
        ({name: torch.zeros(3, 3)}, rf"{name} is \(3, 3\), expected \(16, 16\)"),
        ({name: None}, f"missing {name}"),
        ({name: weights[name].nan_to_num().long()}, f"{name} is not floating point"),
    ):
        kept = {k: v for k, v in {**weights, **changed}.items() if v is not None}
        save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=said):
            load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="its weights cannot be read"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors or pytorch_model\.bin"):
        check_model(tmp_path)


def test_hostile_configurations_are_refused_before_anything_is_built(tmp_path, monkeypatch):
    save_model(make("t5"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    monkeypatch.setattr("pipeline.baselines.model.classes", None)
    for changed, said in (
        ({"num_layers": 10**6}, "num_layers=1000000 is impossible: give at most 1000"),
        ({"d_model": 10**30}, "d_model=1000000000000000000000000000000 is impossible"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon=inf is impossible"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        for read in (load_model, check_model):
            with pytest.raises(ValueError, match=said):
                read(tmp_path)


def test_pickled_weights_are_read_as_tensors_only(tmp_path):
    model = make("t5").eval()
    save_model(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    for mine, found in zip(model.parameters(), load_model(tmp_path).parameters(), strict=True):
        assert torch.equal(mine, found)
    torch.save({**weights, "more": Exception("code")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="its weights cannot be read"):
        load_model(tmp_path)


def test_code_of_a_folder_is_not_run(tmp_path):
    save_model(make("bart"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSeq2SeqLM": "evil.Model", "AutoConfig": "evil.Config"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    assert load_model(tmp_path).config.name == "bart"


def test_which_system_a_configuration_is_of():
    assert name_of({"model_type": "longt5"}) == "longt5-local"  # transformers' default
    assert name_of({"architecture": "locost"}) is None
    assert name_of(["longt5"]) is None


def test_processes_cannot_share_its_sources(tmp_path):
    save_model(make("t5"), tmp_path)
    check_sharing(tmp_path, 1)
    with pytest.raises(ValueError, match=r"^--sequence_parallel_size 2 is for LOCOST, and .* base"):
        check_sharing(tmp_path, 2)
