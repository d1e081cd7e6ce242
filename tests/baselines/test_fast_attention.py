"""The fast attention of baselines against transformers' eager one, unpatched."""

from collections import Counter

import pytest
import torch
import transformers
from small_systems import HERE, SMALL
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.baselines import attention_patterns
from pipeline.baselines.model import Baseline, load_baseline
from pipeline.baselines.registry import save_model
from pipeline.baselines.systems import BaselineConfig

FUSED = "_scaled_dot_product_flash_attention_for_cpu"
WITH_BIAS = ("longt5-tglobal", "longt5-local", "t5")
"""Their decoders' self-attention learns a bias, of which torch's fused kernel has no gradient."""
LABELS = torch.randint(3, 96, (3, 9), generator=torch.Generator().manual_seed(1))
LABELS[1, 5:] = -100


def make(name, attention="fast", **others):
    torch.manual_seed(0)
    config = {"vocab_size": 96, "settings": SMALL[name], **others}
    model = Baseline(BaselineConfig(name=name, attention=attention, **config))
    with torch.no_grad():  # off the initialisation, where attention is nearly uniform
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sources(length, padded):
    """Three sources and their mask."""
    ids = torch.randint(3, 96, (3, length), generator=torch.Generator().manual_seed(length))
    lengths = [[length], [2 * length // 3], [length // 3]] if padded else [[length]] * 3
    return ids, (torch.arange(length) < torch.tensor(lengths)).long()


def unpatched(model):
    """transformers' own network of the same weights, with its eager attention."""
    network = transformers.AutoModelForSeq2SeqLM.from_config(
        model.network.config, attn_implementation="eager"
    )
    network.load_state_dict(model.network.state_dict())
    network.generation_config = model.network.generation_config
    assert all(type(one).__module__.split(".")[0] != "pipeline" for one in network.modules())
    return network.train(model.training)


def global_mask(name, ids):
    """LED's global attention on the first token."""
    first = (torch.arange(ids.shape[1]) == 0).long().expand_as(ids)
    return {"global_attention_mask": first} if name == "led" else {}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [61, 24])
@pytest.mark.parametrize("name", HERE)
def test_outputs_loss_and_gradients_are_those_of_eager(name, length, monkeypatch):
    """Padded or not, kept or recomputed, in one part or in many. 61 is no multiple of a block, and
    24 has full attention in BigBird's encoder."""
    model = make(name).train()
    network = unpatched(model)
    for padded, recompute, part in ((True, False, 200), (True, True, 1 << 23), (False, False, 1)):
        monkeypatch.setattr(attention_patterns, "LARGEST_PART", {"cpu": part})
        ids, mask = sources(length, padded)
        expected = network(ids, mask, labels=LABELS, **global_mask(name, ids))
        network.zero_grad()
        expected.loss.backward()
        model.recompute_activations(recompute)
        model.zero_grad()
        found = model(ids, mask, LABELS)
        found.loss.backward()
        close(found.loss, expected.loss)
        close(found.logits, expected.logits)
        real = mask.bool()
        close(found.encoder_states[real], expected.encoder_last_hidden_state[real])
        for ours, theirs in zip(model.parameters(), network.parameters(), strict=True):
            if theirs.grad is not None:
                close(ours.grad, theirs.grad)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", HERE)
def test_generation_with_a_cache_is_that_of_eager(name, beams):
    model = make(name, eos_id=95).eval()
    ids, mask = sources(40, padded=True)
    how = {"max_new_tokens": 6, "min_new_tokens": 3, "num_beams": beams}
    more = {"length_penalty": 1.0, "early_stopping": True} if beams > 1 else {}
    expected = unpatched(model).generate(
        input_ids=ids, attention_mask=mask, **global_mask(name, ids), **how, **more
    )
    assert torch.equal(model.generate(ids, mask, **how), expected)


def test_leds_other_global_tokens_are_left_to_transformers():
    model = make("led").eval()
    ids, mask = sources(40, padded=True)
    chosen = torch.zeros_like(ids)
    chosen[:, [0, 5]] = 1
    how = {"attention_mask": mask, "global_attention_mask": chosen, "labels": LABELS}
    close(model.network(ids, **how).logits, unpatched(model)(ids, **how).logits)


class Operations(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def calls(monkeypatch, run):
    """How often `run` calls torch's SDPA, and how often that takes the fused kernel."""
    real, called = torch.nn.functional.scaled_dot_product_attention, []

    def counted(*inputs, **options):
        called.append(None)
        return real(*inputs, **options)

    with monkeypatch.context() as patch, Operations() as operations:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        run()
    return len(called), operations.counts[FUSED]


@pytest.mark.parametrize("name", HERE)
def test_the_kernels_named_are_the_kernels_called(name, monkeypatch):
    """Two layers each: SDPA once or more a layer of the encoder, and four times in the decoder."""
    ids, mask = sources(61, padded=True)
    for attention in ("fast", "eager"):
        model = make(name, attention).train()
        kernels = model.attention_kernels()
        encoder, in_encoder = calls(monkeypatch, lambda: model(ids, mask))  # noqa: B023
        both, fused = calls(monkeypatch, lambda: model(ids, mask, LABELS))  # noqa: B023
        assert kernels.keys() == {"encoder", "decoder", "cross"}
        if attention == "eager":
            assert both == 0 and all("eager" in words for words in kernels.values())
            continue
        assert all("sdpa" in words and "eager" not in words for words in kernels.values())
        assert in_encoder == encoder >= 2
        assert both - encoder == 4
        assert fused == both - (2 if name in WITH_BIAS else 0)
        with torch.no_grad():
            all_calls, fused = calls(monkeypatch, lambda: model(ids, mask, LABELS))  # noqa: B023
        assert fused == all_calls == both


def saved_bytes(run):
    """The memory that a pass keeps for the backward pass."""
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = run()
    assert kept is not None
    return sum(seen.values())


@pytest.mark.parametrize("name", ["longt5-tglobal", "longt5-local", "led", "bigbird", "t5"])
def test_the_scores_of_encoders_are_not_kept(name):
    """They are most of what eager attention keeps of a long source of few channels."""
    ids, mask = sources(240, padded=False)
    positions = {"max_encoder_position_embeddings": 256} if name == "led" else {}
    settings = {**SMALL[name], **positions, "d_model": 16}
    fast, eager = (
        saved_bytes(lambda: model(ids, mask))  # noqa: B023
        for model in (make(name, attention, settings=settings) for attention in ("fast", "eager"))
    )
    assert fast < 0.8 * eager


@pytest.mark.parametrize("name", HERE)
def test_a_folder_is_the_same_and_loads_with_either(name, tmp_path):
    for attention in ("fast", "eager"):
        save_model(make(name, attention), tmp_path / attention)
    fast, eager = (tmp_path / attention for attention in ("fast", "eager"))
    for file in ("config.json", "model.safetensors"):
        assert (fast / file).read_bytes() == (eager / file).read_bytes()
    assert "eager" not in str(load_baseline(eager).attention_kernels())
    assert "sdpa" not in str(load_baseline(fast, attention="eager").attention_kernels())


@pytest.mark.parametrize("name", HERE)
def test_attention_dropout_is_applied_and_drawn_again_for_the_backward_pass(name):
    """By its own draws, so gradients are compared with recomputation under the same seed."""
    dropout = (
        {"dropout": 0.4}
        if name in WITH_BIAS
        else {"settings": {**SMALL[name], "attention_dropout": 0.4}}
    )
    model = make(name, **dropout).train()
    ids, mask = sources(61, padded=True)
    results = []
    for seed, recompute in ((1, False), (1, True), (2, False)):
        model.recompute_activations(recompute)
        model.zero_grad()
        torch.manual_seed(seed)
        loss = model(ids, mask, LABELS).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    same, again, other = results
    torch.testing.assert_close(same, again, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(same[0], other[0])
    if name in WITH_BIAS:
        assert "products in parts" in model.attention_kernels()["encoder"]
        assert "sdpa" in model.eval().attention_kernels()["encoder"]


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match="attention is 'flash'; give fast or eager"):
        make("t5", "flash")
