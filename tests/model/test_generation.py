"""Step-by-step decoding against decoding that starts anew for every token."""

import pytest
import torch
from locost_golden import error, random_model
from torch.nn import functional

IDS = torch.randint(2, 40, (4, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9], [1]])).long()


@torch.no_grad()
def lively_model(eos_id):
    """A model whose rows differ: attention counts for more than the last token."""
    model = random_model(eos_id=eos_id, tie_embeddings=False).double()
    for block in model.decoder.blocks:
        block.cross_attention.o.weight *= 6
        block.self_attention.o.weight *= 6
    return model


def decode_anew(model, max_new_tokens, min_new_tokens):
    """Greedy decoding by a whole forward pass of each row alone for each token."""
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
def test_greedy_is_decoding_anew(eos_id, min_new_tokens):
    """With each end token rows end at other times; with 12 at once, and then the batch stops."""
    model = lively_model(eos_id)
    ids = model.generate(IDS, MASK, max_new_tokens=12, min_new_tokens=min_new_tokens)
    assert ids.tolist() == decode_anew(model, 12, min_new_tokens)
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


def test_impossible_lengths_are_named():
    model = random_model()
    for lengths in ((0, 0), (3, 4), (3, -1)):
        with pytest.raises(ValueError, match="max_new_tokens"):
            model.generate(IDS, MASK, *lengths)
    with pytest.raises(ValueError, match="attention_mask"):
        model.generate(IDS, MASK[:1])


def test_generation_runs_in_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        assert random_model().generate(IDS, MASK, 5).shape[0] == 4
