"""Kept kernels: computed once, the same bits in any order of documents, never out of date."""

import pytest
import torch
from locost_golden import error

from pipeline.inference.memory import DocumentMemory
from pipeline.model import Locost, LocostConfig, kept_kernels
from pipeline.model.generation import DecodingStrategy
from pipeline.model.kept_kernels import CHUNK, TRUNCATED_FROM, kept_bytes, kept_limit
from pipeline.model.ssm import KERNEL_PARAMETERS, BidirectionalSSM
from pipeline.model.vandermonde import Vandermonde

SIZES = {"d_model": 3, "state_dim": 5, "encoder_layers": 2}
VARIANTS = [
    {},
    {"ssm_directions": "separate", "ssm_projections": "complex"},
    {"ssm_directions": "causal"},
    {"published_convolution": True},
]


def layer(**variant):
    torch.manual_seed(1)
    return BidirectionalSSM(LocostConfig(**SIZES, **variant)).eval()


def keys(length, parts=1):
    return torch.randn(2, 3 * parts, length, generator=torch.Generator().manual_seed(length))


@pytest.fixture
def computed(monkeypatch):
    """The chunks of lags computed so far."""
    begins, lags = [], Vandermonde.lags
    monkeypatch.setattr(
        Vandermonde, "lags", lambda self, *ends: begins.append(ends[0]) or lags(self, *ends)
    )
    return begins


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_result_is_that_of_new_kernels_bit_for_bit_whatever_came_before(variant):
    kept = layer(**variant)
    for length in (700, 33, 1500, 700, 1, 2 * CHUNK):
        x = keys(length, kept.parts)
        with torch.no_grad():
            found, alone = (one.convolution(x.clone()) for one in (kept, layer(**variant)))
        assert torch.equal(found, alone)
        assert error(found, kept.convolution(x).detach()) < 1e-5  # with gradients: no kept kernels


@torch.no_grad()
def test_a_lag_is_computed_once(computed):
    kept = layer()
    for length in (CHUNK + 9, 5, CHUNK + 9, 2 * CHUNK, 3 * CHUNK - 1, 40):
        kept.convolution(keys(length))
    assert computed == [0, CHUNK, 2 * CHUNK]


@torch.no_grad()
@pytest.mark.parametrize("name", KERNEL_PARAMETERS)
@pytest.mark.parametrize("way", ["in place", "data", "load_state_dict", "double"])
def test_kernels_follow_their_parameters(name, way):
    kept, x = layer(), keys(90)
    before = kept.convolution(x.clone())
    parameter = getattr(kept, name)
    if way == "in place":
        parameter += 0.1
    elif way == "data":  # leaves no trace in the tensor's version
        parameter.data += 0.1
    elif way == "load_state_dict":
        kept.load_state_dict({**kept.state_dict(), name: parameter + 0.1})
    else:
        kept.double()
    new = layer().to(kept.D.dtype)
    new.load_state_dict(kept.state_dict())
    after = kept.convolution(x.clone())
    assert torch.equal(after, new.convolution(x.clone()))
    assert way == "double" or error(after, before) > 1e-4


@torch.no_grad()
def test_none_are_kept_in_training_beyond_the_limit_or_unless_wanted(computed):
    kept = layer()
    kept.convolution(keys(90))
    assert kept.kept.bytes
    kept.train()
    assert not kept.kept.bytes
    kept.convolution(keys(90))
    assert not kept.kept.bytes
    kept.eval()
    kept.kept.limit = CHUNK
    kept.convolution(keys(CHUNK + 1))
    assert not kept.kept.bytes
    kept.convolution(keys(CHUNK))
    kept.kept.use(False)
    kept.convolution(keys(CHUNK))
    assert not kept.kept.bytes
    assert computed == [0, 0]


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_their_memory_is_known_and_bounded(variant, monkeypatch):
    config = LocostConfig(**SIZES, vocab_size=40, decoder_layers=1, d_ff=8, **variant)
    model, ids = Locost(config).eval(), torch.ones(1, CHUNK + 1, dtype=torch.long)
    model.generate(ids, max_new_tokens=1)
    assert model.encoder.kept_bytes() == kept_bytes(config, CHUNK + 1) > 0
    model.encoder.keep_kernels(False)
    assert model.encoder.kept_bytes() == 0
    assert kept_limit(config) == TRUNCATED_FROM
    monkeypatch.setattr(kept_kernels, "KEPT_BYTES", 2**18)
    assert 2**17 < kept_bytes(config, kept_limit(config)) < 1.01 * 2**18
    assert kept_bytes(config, kept_limit(config) + 1) == 0


def test_the_published_sizes_keep_the_papers_pretraining_length():
    assert kept_limit(LocostConfig()) == 7168
    kernels, parameters = 4096 * 12 * 2 * 768 * 4, 12 * 768 * (8 * 256 + 1) * 4
    assert kept_bytes(LocostConfig(), 4096) == kernels + parameters


def test_a_plan_counts_them_and_drops_them_where_memory_is_short():
    def plan(limit, tokens=4096, kept=0):
        document = DocumentMemory(LocostConfig(), tokens, DecodingStrategy(), 4, False, kept)
        return document.choose_plan(0, limit, 2**60)

    roomy = plan(2**60)
    assert roomy.kernels == kept_bytes(LocostConfig(), 4096)
    assert plan(roomy.peak) == roomy
    short = plan(roomy.peak - 1)
    assert (short.kernels, short.peak) == (0, roomy.peak - roomy.kernels)
    assert (short.cached, short.token_block) == (roomy.cached, roomy.token_block)
    assert plan(2**60, tokens=50_000).kernels == 0
    assert plan(2**60, tokens=50_000, kept=10**6).kernels == 10**6
