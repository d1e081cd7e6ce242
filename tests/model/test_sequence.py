"""A source shared by several processes: the exchanges, and attention to it, against the whole."""

from dataclasses import replace

import pytest
import torch
from thread_group import in_group

from pipeline.model import Locost, LocostConfig, sharded_flash
from pipeline.model.sequence import (
    ALONE,
    Unconnected,
    check_sequence,
    own_channels,
    own_part,
    own_random,
    swap,
    unswap,
)
from pipeline.model.sharded_attention import (
    Dropout,
    _MergedAttention,
    choose_way,
    own_attention,
    own_gradients,
    way_error,
)

TINY = LocostConfig(
    vocab_size=40, d_model=12, state_dim=4, d_ff=24, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=6, dropout=0.0,
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("permuted", [False, True])
def test_positions_are_exchanged_for_channels_and_back(size, permuted):
    whole = torch.randn(2, 6, 5 * size, dtype=torch.float64)

    def work(group):
        own = whole.chunk(size, dim=2)[group.rank]
        if permuted:  # other strides: `empty_like` would keep them
            own = own.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        swapped = swap(own, group)
        assert torch.equal(swapped, whole[:, own_channels(6, group)])
        assert torch.equal(unswap(swapped, group), own)
        return True

    assert all(in_group(size, work))


def test_backward_of_each_exchange_is_its_adjoint():
    """<swap x, y> = <x, swap' y>, both sides added up over the processes; for unswap alike."""
    torch.manual_seed(0)
    shapes = {swap: ((2, 6, 5), (2, 2, 15)), unswap: ((2, 2, 15), (2, 6, 5))}
    for exchange, (before, after) in shapes.items():
        x, y = torch.randn(3, *before).double(), torch.randn(3, *after).double()

        def work(group, exchange=exchange, x=x, y=y):
            own = x[group.rank].clone().requires_grad_()
            result = exchange(own, group)
            result.backward(y[group.rank])
            return (result * y[group.rank]).sum(), (own * own.grad).sum()

        left, right = zip(*in_group(3, work), strict=True)
        assert sum(left).item() == pytest.approx(sum(right).item(), rel=1e-13)


def dense(queries, keys, values, mask, factors):
    """Attention written out; the weights after the softmax times `factors`."""
    scores = (queries @ keys.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) * factors) @ values


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_merged_attention_and_its_gradients(dropout, monkeypatch):
    """Against the whole in float64; a row has one process's part alone, other parts are empty."""
    monkeypatch.setattr("pipeline.model.sharded_attention.BLOCK_SCORES", {"cpu": 64})
    torch.manual_seed(1)
    size, part = 3, 7
    queries = 2 * torch.randn(2, 2, 4, 5).double()
    keys, values = torch.randn(2, 2, 2, size * part, 5).double()
    mask = torch.arange(size * part) < torch.tensor([[3], [16]])[:, None, None]
    direction = torch.randn(size, 2, 2, 4, 5).double()

    def work(group):
        own = slice(group.rank * part, (group.rank + 1) * part)
        leaves = [
            x.clone().requires_grad_() for x in (queries, keys[..., own, :], values[..., own, :])
        ]
        context = _MergedAttention.apply(*leaves, mask[..., own], group, dropout, group.rank)
        context.backward(direction[group.rank])
        kept = Dropout(dropout, group.rank, queries.device)
        ones = torch.ones(2, 2, 4, part).double()
        sizes = [4] * (part // 4) + [part % 4]  # 64 scores at one time, 16 to a position
        factors = [kept(block) for block in ones.split(sizes, dim=-1)]
        return context.detach(), *(leaf.grad for leaf in leaves), torch.cat(factors, dim=-1)

    found = [torch.stack(x) for x in zip(*in_group(size, work), strict=True)]
    leaves = [x.clone().requires_grad_() for x in (queries, keys, values)]
    right = dense(*leaves, mask, torch.cat([*found[4]], dim=-1))
    right.backward(direction.sum(0))  # each process's loss reads the result
    assert (found[4] == 0).any() == (dropout > 0)
    for context in found[0]:
        assert torch.allclose(context, right, rtol=0, atol=1e-12)
    assert torch.allclose(found[1].sum(0), leaves[0].grad, rtol=0, atol=1e-12)
    for own, leaf in zip(found[2:4], leaves[1:], strict=True):
        assert torch.allclose(torch.cat([*own], dim=2), leaf.grad, rtol=0, atol=1e-12)


class FlashOperators:
    """Torch's two operators of flash attention, which no CPU has: their arguments and layouts, row
    by row by `own_attention`. In `faulty`, the backward pass takes the part for the whole."""

    def __init__(self, faulty: bool = False) -> None:
        self.faulty = faulty

    def rows(self, query_ends, key_ends, queries, *others):
        for row in range(len(query_ends) - 1):
            q, k = (slice(*ends[row : row + 2].tolist()) for ends in (query_ends, key_ends))
            yield row, q, k, [x[q].transpose(0, 1)[None].float() for x in (queries, *others)]

    def _flash_attention_forward(
        self, queries, keys, values, query_ends, key_ends, longest, longest_key, dropout, causal,
        debug, *, scale,
    ):  # fmt: skip
        assert (dropout, causal, debug, scale) == (0.0, False, False, 1.0)
        assert (len(queries), len(keys)) == (query_ends[-1], key_ends[-1])
        assert longest == query_ends.diff().max() and longest_key >= key_ends.diff().max()
        out, lse = torch.empty_like(queries), torch.empty(queries.shape[1], len(queries))
        for _, q, k, (own,) in self.rows(query_ends, key_ends, queries):
            pair = [x[k].transpose(0, 1)[None].float() for x in (keys, values)]
            context, of_row = own_attention(own, *pair, None)
            out[q] = context[0].transpose(0, 1).to(out.dtype)
            lse[:, q] = of_row[0, ..., 0].nan_to_num(neginf=torch.inf)
        return out, lse, torch.zeros(2), torch.zeros(()), None

    def _flash_attention_backward(
        self, grad, queries, keys, values, out, lse, query_ends, key_ends, longest, longest_key,
        dropout, causal, rng_state, unused, *, scale,
    ):  # fmt: skip
        assert (dropout, causal, scale, len(rng_state), unused.dim()) == (0.0, False, 1.0, 2, 0)
        grads = [torch.empty_like(x) for x in (queries, keys, values)]
        for _, q, k, (own, of_row, whole) in self.rows(query_ends, key_ends, queries, grad, out):
            pair = [x[k].transpose(0, 1)[None].float() for x in (keys, values)]
            whole_lse = lse[None, :, q, None]
            if self.faulty:
                whole, whole_lse = own_attention(own, *pair, None)
            found = own_gradients(of_row, own, *pair, None, whole, whole_lse, 0.0, 0)
            for result, place, one in zip(grads, (q, k, k), found, strict=True):
                result[place] = one[0].transpose(0, 1).to(result.dtype)
        return tuple(grads)


def test_flash_attention_to_a_part_is_called_as_its_operators_are(monkeypatch):
    """Stand-ins for the operators: nothing here can run them. Their test at the start of a run,
    which decides whether they are used, sees a wrong one."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(sharded_flash, "aten", FlashOperators())
    assert 0 < way_error("flash", cpu, torch.bfloat16, 8) < 2e-2
    monkeypatch.setattr(sharded_flash, "aten", FlashOperators(faulty=True))
    assert way_error("flash", cpu, torch.bfloat16, 8) > 0.1
    assert choose_way(cpu, torch.bfloat16, 8)[0] == "blocks"
    assert way_error("blocks", cpu, torch.float32, 8) < 1e-5


def test_flash_attention_to_a_part_of_padding_alone_calls_no_operator(monkeypatch):
    monkeypatch.setattr(sharded_flash, "aten", None)
    x, nowhere = torch.randn(2, 1, 3, 4).bfloat16(), torch.zeros(2, 1, 1, 3).bool()
    context, lse, state = sharded_flash.flash_attention(x, x, x, nowhere, 0.0, 0)
    assert not context.any() and (lse == -torch.inf).all()
    grads = sharded_flash.flash_gradients(context, x, x, x, nowhere, context, lse, 0.0, 0, *state)
    assert not any(grad.any() for grad in grads)


def test_a_part_of_padding_alone_adds_nothing():
    x = torch.randn(1, 1, 3, 4)
    context, lse = own_attention(x, x, x, torch.zeros(1, 1, 1, 3).bool())
    assert torch.equal(context, torch.zeros_like(x)) and (lse == -torch.inf).all()


def test_dropout_of_shared_attention_has_the_distribution_of_one_process():
    """Mean and variance of the result over many draws, against torch's own dropout."""
    torch.manual_seed(0)
    draws, part, p = 4000, 3, 0.3
    queries, keys, values = torch.randn(3, 1, 1, 2 * part, 4).double()
    queries = queries[:, :, :1]
    many = [x.expand(draws, -1, -1, -1) for x in (queries, keys, values)]

    def work(group):
        own = slice(group.rank * part, (group.rank + 1) * part)
        parts = [many[0], many[1][:, :, own], many[2][:, :, own]]
        return _MergedAttention.apply(*parts, None, group, p, 10 + group.rank)

    shared, _ = in_group(2, work)
    alone = torch.nn.functional.scaled_dot_product_attention(*many, dropout_p=p, scale=1.0)
    spread = alone.std(0) / draws**0.5
    assert ((shared.mean(0) - alone.mean(0)).abs() < 5 * 2**0.5 * spread).all()
    assert torch.allclose(shared.std(0), alone.std(0), rtol=0.1)


def test_each_process_draws_its_own_numbers_and_then_the_same():
    def draws(rank):
        torch.manual_seed(3)
        with own_random(Unconnected(2, rank), torch.device("cpu"), training=True):
            own = torch.rand(4)
        return own, torch.rand(4)

    (first, shared), (second, also) = draws(0), draws(1)
    assert not torch.isclose(first, second).any() and torch.equal(shared, also)
    before = torch.get_rng_state()
    for group, training in ((ALONE, True), (Unconnected(2), False)):
        with own_random(group, torch.device("cpu"), training):
            assert torch.equal(torch.get_rng_state(), before)


def test_parts_are_padded_to_the_same_length():
    ids, mask = torch.arange(1, 8).view(1, 7), torch.tensor([[1] * 6 + [0]])
    parts = [own_part(ids, mask, Unconnected(3, rank)) for rank in range(3)]
    assert torch.cat([own for own, _ in parts], 1).tolist() == [[1, 2, 3, 4, 5, 6, 7, 0, 0]]
    assert torch.cat([own for _, own in parts], 1).tolist() == [[1] * 6 + [0] * 3]
    _, real = own_part(ids, None, Unconnected(3, 2))
    assert real.tolist() == [[1, 0, 0]]
    assert own_part(ids, None, ALONE) == (ids, None)


@pytest.mark.parametrize(
    ("size", "more", "said"),
    [
        (5, {}, "sequence_parallel_size 5 does not divide model.d_model 12"),
        (2, {"published_convolution": True}, "model.published_convolution true"),
    ],
)
def test_what_cannot_be_shared_is_refused(size, more, said):
    config = replace(TINY, **more)
    check_sequence(config, 1)
    with pytest.raises(ValueError, match=said):
        Locost(config).use_sequence(Unconnected(size))


@torch.no_grad()
def test_without_gradients_long_sources_and_kept_kernels():
    """Blocks of tokens, and the own channels' kernels kept from one document to the next."""
    torch.manual_seed(0)
    whole = Locost(TINY).double().eval()
    ids, labels = torch.randint(1, 40, (2, 23)), torch.randint(1, 40, (2, 4))
    mask = (torch.arange(23) < torch.tensor([[23], [9]])).long()
    expected = whole(ids, mask, labels)

    def work(group):
        model = Locost(TINY).double().eval()
        model.load_state_dict(whole.state_dict())
        model.encoder.use_token_blocks(4)
        model.use_sequence(group)
        losses = [model(ids, mask, labels).loss for _ in range(2)]
        return torch.stack(losses), model(ids, mask).encoder_states

    losses, states = zip(*in_group(2, work), strict=True)
    assert torch.allclose(torch.stack(losses), expected.loss.expand(2, 2), rtol=1e-13)
    together = torch.cat(states, dim=1)[:, :23]
    assert torch.allclose(together, expected.encoder_states, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [2, 4])
def test_a_process_without_its_group_keeps_a_part_of_the_activations(size):
    """Bytes kept for backward of the encoder's states, against the whole's."""
    torch.manual_seed(0)
    config = replace(TINY, d_model=16)
    ids = torch.randint(1, 40, (1, 1024))

    def kept(group):
        model = Locost(config)
        model.use_sequence(group)
        held = {}

        def keep(x):
            if not isinstance(x, torch.nn.Parameter):
                held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            states = model(ids).encoder_states
        return sum(held.values()), states

    (part, _), (whole, _) = kept(Unconnected(size)), kept(ALONE)
    assert part < 1.1 * whole / size
