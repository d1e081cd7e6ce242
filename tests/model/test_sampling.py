"""Sampling against the exact distribution, cut and scaled by hand."""

import pytest
import torch
from lively import IDS, MASK, lively_model

from pipeline.model.decoding_steps import PlainSteps
from pipeline.model.generation import DecodingStrategy, token_by_token
from pipeline.model.sampling import Nucleus, document_draws, sample

V = 5


def nucleus(logits, top_p):
    """The probabilities of the fewest likeliest tokens that reach top_p, 0 elsewhere."""
    left = dict(enumerate(logits.softmax(-1).tolist()))
    kept = {}
    while sum(kept.values()) < top_p and left:
        likeliest = max(left, key=left.get)
        kept[likeliest] = left.pop(likeliest)
    return [kept.get(token, 0) / sum(kept.values()) for token in range(len(logits))]


@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.6, 0.95, 1.0])
def test_even_draws_give_every_token_its_share(top_p):
    """Of n draws spread evenly over [0, 1), n times its probability, to within one."""
    logits = torch.randn(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logits[5] = -torch.inf
    n = 2000
    draws = (torch.arange(n) + 0.5) / n
    counts = sample(logits.expand(n, -1), top_p, draws.double()).bincount(minlength=8)
    for count, probability in zip(counts.tolist(), nucleus(logits, top_p), strict=True):
        assert abs(count - n * probability) <= 1
        assert count == 0 or probability > 0


def test_the_largest_draw_stays_in_the_nucleus():
    """Where float32 probabilities sum to less than 1, or forbidden tokens follow, too."""
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, 300:310] = torch.linspace(-20, 0, 10)
    for top_p in (0.5, 1.0):
        token = sample(logits, top_p, torch.tensor([1 - 2**-53], dtype=torch.float64))
        assert 300 <= token < 310


@torch.no_grad()
def test_two_tokens_have_their_joint_probability():
    """Pearson's chi-square over all pairs; the expected ones from whole forward passes."""
    model = lively_model(3, vocab_size=V)
    source, rows, top_p, temperature = IDS[:1] % V, 4000, 0.8, 1.7
    first = nucleus(model(source, labels=torch.tensor([[2]])).logits[0, 0] / temperature, top_p)
    expected = torch.zeros(V, V, dtype=torch.float64)
    for token in range(V):
        if token == 3:  # the end: nothing but padding follows
            expected[token, 0] = first[token]
            continue
        logits = model(source, labels=torch.tensor([[token, 2]])).logits[0, 1]
        expected[token] = first[token] * torch.tensor(nucleus(logits / temperature, top_p))
    draws = torch.rand(rows, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    state = model.decoder.start(model.encode(source).expand(rows, -1, -1), None, 2)
    start, strategy = torch.zeros(rows, 1, dtype=torch.long), DecodingStrategy(max_new_tokens=2)
    sampling = Nucleus(top_p, temperature, draws)
    ids = token_by_token(model, PlainSteps(model, state), start, strategy, sampling)
    found = (ids[:, 1] * V + ids[:, 2]).bincount(minlength=V * V).view(V, V)
    possible = expected > 0
    assert possible.sum() > 6 and (expected == 0).any()
    assert found[~possible].sum() == 0
    wanted = rows * expected[possible]
    chi_square = ((found[possible] - wanted) ** 2 / wanted).sum()
    degrees = possible.sum() - 1
    assert chi_square < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


@torch.no_grad()
def test_a_tiny_nucleus_is_greedy():
    model = lively_model(9)
    greedy = model.generate(IDS, MASK, 12)
    assert torch.equal(model.generate(IDS, MASK, 12, top_p=1e-9, seed=5), greedy)
    assert torch.equal(model.generate(IDS, MASK, 12, top_p=1.0, temperature=1e-6), greedy)
    assert not torch.equal(model.generate(IDS, MASK, 12, top_p=1.0), greedy)


@torch.no_grad()
def test_a_sample_depends_on_seed_and_document_alone():
    """Not on the other rows and their order, its padding, or the length limit."""
    model = lively_model(39)

    def samples(ids, mask, longest=12, seed=7):
        return model.generate(ids, mask, longest, top_p=0.95, seed=seed)

    whole = samples(IDS, MASK)
    assert torch.equal(samples(IDS.flip(0), MASK.flip(0)), whole.flip(0))
    for row, (ids, mask) in enumerate(zip(IDS, MASK, strict=True)):
        alone = samples(ids[None, : mask.sum()], None)[0]
        assert torch.equal(alone, whole[row, : len(alone)])
        assert (whole[row, len(alone) :] == 0).all()
    assert torch.equal(samples(IDS, MASK, 6), whole[:, :7])
    assert not torch.equal(samples(IDS, MASK, seed=8), whole)
    assert len({tuple(row) for row in whole.tolist()}) == 4


def test_draws_differ_between_seeds_and_documents():
    draws = torch.stack([document_draws(seed, IDS, MASK, 5) for seed in (0, 1, 2**63 - 1)])
    assert draws.unique().numel() == 3 * 4 * 5
    assert ((draws >= 0) & (draws < 1)).all()
    other_padding = IDS + 5 * (1 - MASK)
    assert torch.equal(document_draws(1, other_padding, MASK, 5), draws[1])
