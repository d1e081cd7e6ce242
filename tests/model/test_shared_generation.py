"""Generation from sources that processes share, against one process with the whole of them."""

from copy import deepcopy

import pytest
import torch
from locost_golden import error
from thread_group import in_group

from pipeline.model import Locost, LocostConfig, cross_attention, ssm
from pipeline.model.cross_attention import Absorbed, Cached
from pipeline.model.decoding_steps import PlainSteps
from pipeline.model.sequence import Unconnected, own_part
from pipeline.model.static_decoding import decoding_mode

TINY = LocostConfig(
    vocab_size=40, d_model=12, state_dim=4, d_ff=24, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=6, dropout=0.0,
)  # fmt: skip
FORMS = {"cached": (2**40, Cached), "absorbed": (0, Absorbed)}
SOURCES = {
    "odd": (21, [21, 9, 13]),
    "parts of padding": (22, [3, 1, 5]),
    "fewer tokens than processes": (3, [3, 2, 1]),
}
"""Padded length, and the real one of each row."""
STRATEGIES = {
    "greedy": {},
    "beams": {"num_beams": 3, "length_penalty": 0.5, "early_stopping": False},
    "sampling": {"top_p": 0.9, "temperature": 1.5, "seed": 3},
}


def shared(model: Locost, size: int, work) -> list:
    """What `work(model)` returns on each of the processes that share its sources."""

    def alone(group):
        own = deepcopy(model)
        own.use_sequence(group)
        return torch.no_grad()(work)(own)

    return in_group(size, alone)


def batch(source: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask."""
    length, real = SOURCES[source]
    ids = torch.randint(3, 40, (len(real), length), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(length) < torch.tensor(real)[:, None]).long()
    return ids * mask, mask


@pytest.fixture
def model() -> Locost:
    """Weights with which attention is far from even and sources change what is written."""
    torch.manual_seed(0)
    model = Locost(TINY).eval()
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(2)
        model.embedding.weight.mul_(3)
    return model


@pytest.mark.parametrize(("source", "size"), [*zip(SOURCES, (2, 4, 4), strict=True)])
def test_the_same_tokens_as_in_one_process(model, source, size):
    ids, mask = batch(source)
    for (budget, _), strategy in (
        (form, s) for form in FORMS.values() for s in STRATEGIES.values()
    ):
        options = {"max_new_tokens": 8, "memory_budget": budget, **strategy}
        expected = model.generate(ids, mask, **options)
        found = shared(model, size, lambda own, o=options: own.generate(ids, mask, **o))
        assert all(torch.equal(one, expected) for one in found)
    assert len({tuple(row) for row in expected.tolist()}) == 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_same_logits_in_all_processes_bit_for_bit(model, form, size, monkeypatch):
    """Also in blocks of tokens, and with kernels that end where they are zero to rounding."""
    monkeypatch.setattr(cross_attention, "BLOCK_TOKENS", 8)
    monkeypatch.setattr(ssm, "TRUNCATED_FROM", 16)
    budget, kind = FORMS[form]
    targets = torch.randint(3, 40, (3, 5), generator=torch.Generator().manual_seed(2))

    def logits(own):
        own.encoder.use_token_blocks(2)
        part, part_mask = own_part(ids, mask, own.sequence)
        state = own.decoder.start(own.encode(part, part_mask), part_mask, 5, 1, budget)
        assert isinstance(state.source[0], kind)
        steps = PlainSteps(own, state)
        return torch.stack([steps.logits(token) for token in targets.split(1, dim=1)])

    for source in SOURCES:
        ids, mask = batch(source)
        expected = torch.no_grad()(logits)(model.double())
        first, *others = shared(model.float(), size, logits)
        assert error(first, expected) < 1e-5
        assert all(torch.equal(first, other) for other in others)


def test_processes_that_chose_different_forms_agree(model):
    ids, mask = batch("odd")
    expected = model.generate(ids, mask, max_new_tokens=12)

    def work(own):
        budget = 2**40 if own.sequence.rank else 0
        return own.generate(ids, mask, max_new_tokens=12, memory_budget=budget)

    assert all(torch.equal(one, expected) for one in shared(model, 2, work))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_process_decides(model, strategy):
    """Where rounding differs, which different weights of the decoder stand for."""
    ids, mask = batch("odd")
    options = {"max_new_tokens": 12, **STRATEGIES[strategy]}

    def work(own):
        if own.sequence.rank:
            own.decoder.norm.weight.mul_(-1)
        return own.generate(ids, mask, **options)

    first, other = shared(model, 2, work)
    assert torch.equal(first, other)
    alone = deepcopy(model)
    alone.decoder.norm.weight.detach().mul_(-1)
    assert not torch.equal(alone.generate(ids, mask, **options), other)


def test_each_process_holds_its_part_of_states_keys_and_kernels(model):
    ids = torch.randint(3, 40, (1, 64), generator=torch.Generator().manual_seed(1))
    held = {}
    for size in (1, 4):
        states = []
        model.use_sequence(Unconnected(size))
        for budget, _ in FORMS.values():
            model.generate(ids, max_new_tokens=1, memory_budget=budget, started=states.append)
        (keys, *_), (absorbed, *_) = (state.source for state in states)
        kept = model.encoder.kept_bytes()
        held[size] = [keys.keys.nbytes, keys.values.nbytes, absorbed.states.nbytes, kept]
    assert held[1] == [4 * bytes for bytes in held[4]]


def test_decoding_is_step_by_step(model):
    """A graph, or the fixed steps it is made of, would hold the exchanges."""
    ids, mask = batch("odd")
    expected = model.generate(ids, mask, max_new_tokens=12)

    with decoding_mode("fixed"):
        found = shared(model, 2, lambda own: own.generate(ids, mask, max_new_tokens=12))
    assert all(torch.equal(one, expected) for one in found)
