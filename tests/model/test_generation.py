"""Step-by-step decoding against full forward passes for every token."""

import weakref

import pytest
import torch
from lively import IDS, MASK, lively_model, without_padding
from locost_golden import error, random_model
from torch.nn import functional

from pipeline.model.generation import DecodingStrategy, repeats, restrict


def full_pass_decode(model, max_new_tokens, min_new_tokens):
    """Greedy decoding by a full forward pass of each row for each token."""
    rows = []
    for ids, mask in zip(IDS, MASK, strict=True):
        tokens = []
        while len(tokens) < max_new_tokens and model.config.eos_id not in tokens:
            labels = torch.tensor([[*tokens, 2]])  # the last label is never an input
            logits = model(ids[None, : mask.sum()], labels=labels).logits[0, -1]
            if len(tokens) < min_new_tokens:
                logits[model.config.eos_id] = -torch.inf
            tokens.append(int(logits.argmax()))
        rows.append(torch.tensor([model.config.start_id, *tokens]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0).tolist()


@torch.no_grad()
@pytest.mark.parametrize("eos_id", [3, 9, 12, 37])
@pytest.mark.parametrize("min_new_tokens", [0, 4])
def test_greedy_is_full_pass_decoding(eos_id, min_new_tokens):
    """With each end token rows end at other times; with 12 at once, and then the batch stops."""
    model = lively_model(eos_id)
    ids = model.generate(IDS, MASK, max_new_tokens=12, min_new_tokens=min_new_tokens)
    assert ids.tolist() == full_pass_decode(model, 12, min_new_tokens)
    assert (ids == eos_id).any()
    assert ids.shape[1] == (2 if eos_id == 12 and not min_new_tokens else 13)


@torch.no_grad()
def test_steps_are_the_whole_pass():
    """Beyond the 128 positions of the relative bias too."""
    model = random_model().double()
    targets = model.embedding(torch.randint(0, 40, (4, 150)))
    states = model.encode(IDS, MASK)
    whole = model.decoder(targets, states, MASK)
    state = model.decoder.start(states, MASK, 150)
    steps = [model.decoder.step(targets[:, t : t + 1], state) for t in range(150)]
    assert error(torch.cat(steps, dim=1), whole) < 1e-12


def test_attention_is_unscaled_softmax_with_the_shared_bias():
    model = random_model().double()
    attention = model.decoder.blocks[1].self_attention
    bias = model.decoder.relative_bias.causal(6)
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    keys, values = attention.keys_values(x)
    queries = functional.linear(x, attention.q.weight).view(1, 6, 2, 8).transpose(1, 2)
    weights = torch.softmax(queries @ keys.transpose(-1, -2) + bias, dim=-1)
    assert (weights.triu(1) == 0).all()
    expected = (weights @ values).transpose(1, 2).reshape(1, 6, 16) @ attention.o.weight.t()
    assert error(attention(x, keys, values, bias), expected) < 1e-13


METHODS = ({}, {"num_beams": 3}, {"top_p": 0.3, "seed": 1})
"""Greedy, beam search and sampling."""


def repeated(tokens, size):
    """Whether a sequence of `size` comes twice."""
    ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_no_ngram_comes_twice(method):
    model = lively_model(3)
    free = without_padding(model.generate(IDS, MASK, 35, 30, **method), 3)
    for size in (1, 2, 3):
        assert any(repeated(row, size) for row in free), "a rule without an effect proves nothing"
        ids = model.generate(IDS, MASK, 35, 30, no_repeat_ngram_size=size, **method)
        rows = without_padding(ids, 3)
        assert not any(repeated(row, size) for row in rows)
        assert all(3 not in row[:30] for row in rows)
    assert all(30 < len(row) <= 35 for row in rows)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 4, 20])
def test_rules_change_the_forbidden_tokens_alone(size, length):
    generator = torch.Generator().manual_seed(size)
    generated = torch.randint(4, (6, length), generator=generator)
    scores = torch.randn(6, 4, generator=generator)
    strategy = DecodingStrategy(min_new_tokens=3, no_repeat_ngram_size=size)
    expected = scores.clone()
    for row, tokens in enumerate(generated.tolist()):
        for token in range(4):
            ending = [*tokens, token][-size:]
            earlier = [tokens[i : i + size] for i in range(length - size + 1)]
            if ending in earlier or (token == 2 and length < 3):
                expected[row, token] = -torch.inf
    before = scores.clone()
    assert torch.equal(restrict(scores, generated, strategy, eos_id=2), expected)
    assert torch.equal(scores, before)


def test_repeats_by_hand():
    found = repeats(torch.tensor([[5, 6, 7, 5, 6], [5, 6, 5, 7, 5]]), 2, vocab_size=8)
    assert [row.nonzero().flatten().tolist() for row in found] == [[7], [6, 7]]


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outside_is_touched(method):
    """The global random state, the training mode with its dropout, the arguments."""
    model = random_model(dropout=0.5).train()
    ids, mask, state = IDS.clone(), MASK.clone(), torch.get_rng_state()
    first = model.generate(ids, mask, 6, **method)
    assert torch.equal(first, model.generate(ids, mask, 6, **method))
    assert model.training and model.decoder.blocks[0].training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(ids, IDS) and torch.equal(mask, MASK)


def test_encoder_states_are_freed_where_keys_and_values_suffice():
    model = random_model()
    encode, step, states, alive = model.encode, model.decoder.step, [], []

    def watched_encode(*arguments):
        result = encode(*arguments)
        states.append(weakref.ref(result))
        return result

    def watched_step(*arguments):
        alive.append(states[0]() is not None)
        return step(*arguments)

    model.encode, model.decoder.step = watched_encode, watched_step
    model.generate(IDS, MASK, 3, num_beams=2)
    assert len(states) == 1 and len(alive) == 3 and not any(alive)


@pytest.mark.parametrize("method", METHODS)
def test_a_memory_budget_changes_no_token(method):
    model = lively_model(9)
    texts = [model.generate(IDS, MASK, 12, memory_budget=budget, **method) for budget in (0, 2**30)]
    assert torch.equal(*texts)


IMPOSSIBLE = [
    ({"max_new_tokens": 0}, "max_new_tokens=0 .* at least 1"),
    ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens=4 .* 0 to max_new_tokens=3"),
    ({"min_new_tokens": -1}, "min_new_tokens=-1"),
    ({"num_beams": 0}, "num_beams=0 .* at least 1"),
    ({"num_beams": 2.0}, "num_beams=2.0 .* an integer"),
    ({"num_beams": True}, "num_beams=True .* an integer"),
    ({"num_beams": 2, "length_penalty": -11}, "length_penalty=-11 .* -10 to 10"),
    ({"num_beams": 2, "early_stopping": 1}, "early_stopping=1 .* true, false or never"),
    ({"num_beams": 2, "early_stopping": "false"}, "early_stopping='false' .* true, false or never"),
    ({"early_stopping": False}, "early_stopping=False .* set num_beams"),
    ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan"),
    ({"length_penalty": 0.5}, "length_penalty=0.5 .* set num_beams"),
    ({"top_p": 0.0}, "top_p=0.0"),
    ({"top_p": 1.5}, "top_p=1.5"),
    ({"top_p": "0.9"}, "top_p='0.9' .* a number"),
    ({"top_p": 0.9, "num_beams": 2}, "top_p=0.9 .* num_beams"),
    ({"top_p": 0.9, "temperature": 0}, "temperature=0"),
    ({"top_p": 0.9, "temperature": float("inf")}, "temperature=inf"),
    ({"temperature": 0.5}, "temperature=0.5 .* set top_p"),
    ({"seed": 1}, "seed=1 .* set top_p"),
    ({"top_p": 0.9, "seed": -1}, "seed=-1"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1"),
    ({"no_repeat_ngram_size": 1, "min_new_tokens": 40}, "min_new_tokens=40"),
    ({"memory_budget": -1}, "memory_budget=-1"),
]


@pytest.mark.parametrize(("arguments", "message"), IMPOSSIBLE)
def test_impossible_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        random_model().generate(IDS, MASK, **arguments)


def test_impossible_masks_and_weights_are_named():
    model = random_model()
    with pytest.raises(ValueError, match="attention_mask"):
        model.generate(IDS, MASK[:1])
    with torch.no_grad():
        model.decoder.norm.weight[3] = torch.nan
    for method in METHODS:
        with pytest.raises(ValueError, match="not finite"):
            model.generate(IDS, MASK, 4, **method)


@pytest.mark.parametrize("method", METHODS)
def test_generation_runs_in_autocast(method):
    with torch.autocast("cpu", torch.bfloat16):
        assert random_model().generate(IDS, MASK, 5, **method).shape[0] == 4
