"""Counting a step's launches, bytes and operations on a fake card; bars of the base model."""

import json
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipeline import benchmark
from pipeline.common.gpus import GPUS
from pipeline.config import TrainConfig
from pipeline.counting import fake_card, steps
from pipeline.counting.graph_steps import graph_step
from pipeline.counting.operator_work import Work
from pipeline.counting.step_parts import OTHER, PARTS
from pipeline.counting.steps import Counts
from pipeline.model import Locost, LocostConfig, flops

TINY = LocostConfig(
    vocab_size=40, d_model=16, state_dim=4, d_ff=24, encoder_layers=2, decoder_layers=2,
    num_heads=2, head_dim=8,
)  # fmt: skip
BASE_LAUNCHES = [((8, 450, 130), 2_295), ((8, 4096, 512), 2_199), ((16, 4096, 512), 2_199)]
"""Most launches of the base model's training step, by shape, with AdamW's 6."""
BASE_DECODING_LAUNCHES = 350
OUTSIDE_LAUNCHES, OUTSIDE_LAUNCHES_OF_BEAMS = 8, 55
"""Most launches of a decoding step outside its CUDA graph's replay: greedy, and with 4 beams."""
B, L, T = 2, 20, 16


def counted(run) -> Counter:
    """Work by operator; all of it is outside the model."""
    counts = steps.count(run)
    assert all(part == OTHER for part, _, _ in counts.operators)
    return Counter({(name, work): n for (_, name, work), n in counts.operators.items()})


class ThreeOperators(nn.Module):
    """A matrix product, a sum with a row, and a real FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 4))
        self.row = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return torch.fft.rfft(x @ self.weight.t() + self.row)


def test_three_known_operators_have_their_known_work():
    with torch.device("meta"):
        module = ThreeOperators()
    fake_card.to_card(module)
    x = fake_card.empty((2, 4), torch.float32)
    with torch.no_grad():
        found = counted(lambda: module(x))
    assert found == {
        ("mm", Work(1, 4 * (2 * 4 + 8 * 4 + 2 * 8), flops32=2 * 2 * 4 * 8)): 1,
        ("add", Work(1, 4 * (2 * 8 + 8 + 2 * 8))): 1,
        ("_fft_r2c", Work(1, 4 * 2 * 8 + 8 * 2 * 5, flops32=2.5 * 16 * 3)): 1,
    }


def test_views_and_allocations_count_nothing():
    x = fake_card.empty((2, 3, 4), torch.float32)

    def run():
        x.transpose(0, 1)[1:].unsqueeze(0).expand(5, -1, -1, -1).detach()
        torch.view_as_real(torch.view_as_complex(x.unflatten(2, (2, 2))))
        torch.empty(7, device="cuda")
        x.new_empty(3), x.flatten(), x.unbind(0), x.diagonal(), x[..., None].squeeze(-1)

    assert not counted(run)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: x.copy_(x[:1]), Work(1, 4 * (24 + 12))),
        (lambda x: x.mul_(2), Work(1, 4 * (24 + 24))),
        (lambda x: torch._foreach_mul_([x, x[:1]], 2.0), Work(1, 4 * 2 * (24 + 12))),
        (lambda x: x.zero_(), Work(1, 4 * 24)),
        (lambda x: nn.functional.pad(x, (0, 2)), Work(2, 4 * (24 + 36 + 24))),
        (lambda x: x.expand(5, 2, 3, 4) * 1.0, Work(1, 4 * (24 + 5 * 24))),
        (lambda x: x[0, 0, 0].item(), Work(1, 4, syncs=1)),
    ],
)
def test_bytes_read_and_written(run, expected):
    x = fake_card.empty((2, 3, 4), torch.float32)
    total = steps.count(lambda: run(x)).total()
    assert total == expected


@torch.library.custom_op("locost_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Never runs: a fake card has no data."""
    raise AssertionError


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


doubled.register_autograd(lambda ctx, grad: grad * 2)


def test_a_custom_operator_counts_one_launch():
    x = fake_card.empty((2, 3), torch.float32).requires_grad_()
    assert counted(lambda: doubled(x)) == {("doubled", Work(1, 4 * (6 + 6))): 1}
    both = steps.count(lambda: doubled(x).backward(x.detach()))
    assert both.total().launches == 2


def training_step(config=TINY, batch=B, source=L, target=T, **settings) -> Counts:
    return steps.training_step(config, TrainConfig(**settings), batch, source, target)


def test_counts_are_the_same_each_time_and_parts_sum_to_the_total():
    first, second = training_step(), training_step()
    assert first.operators == second.operators
    by_part = first.by_part()
    assert set(by_part) <= set(PARTS)
    assert len(by_part) == len(PARTS) - 1  # all but the choice of tokens
    for values in zip(first.total(), *by_part.values(), strict=True):
        assert values[0] == pytest.approx(sum(values[1:]), rel=1e-12)
    gpu = GPUS["h100"]
    by_part_seconds = sum(first.card_seconds(gpu, part) for part in by_part)
    assert first.card_seconds(gpu) == pytest.approx(by_part_seconds)


def test_almost_every_operator_has_a_part():
    for precision in ("bf16", "fp32"):
        work = training_step(precision=precision).by_part()[OTHER]
        assert work.launches <= 1  # the gradient of the loss


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_operations_of_products_are_the_model_s(dtype):
    found = training_step(precision=dtype).by_part()
    model = flops.training_flops(TINY, B, L, T)
    field = "flops" if dtype == "bf16" else "flops32"
    for part, name in (
        ("encoder: projections and gate", "projections"), ("encoder: feed-forward", "feed-forward"),
        ("decoder: feed-forward", "decoder feed-forward"), ("head and loss", "head"),
    ):  # fmt: skip
        assert getattr(found[part], field) == model[name], part
    assert found["encoder: kernel build"].flops == 0  # in fp32 under autocast too


def test_products_are_those_of_the_same_step_on_a_cpu():
    """Forward and backward, without attention, of which devices have kernels of their own."""
    model = Locost(TINY)
    ids, labels = torch.randint(3, 40, (B, L)), torch.randint(3, 40, (B, T))
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids, torch.ones_like(ids), labels, loss_reduction="sum").loss
        loss.backward()
    cpu = counter.get_flop_counts()["Global"]
    on_card = Counter()
    for (_, name, work), times in training_step().operators.items():
        if not name.startswith("_fft"):
            on_card[name] += times * (work.flops + work.flops32)
    plain = ("mm", "addmm")
    assert sum(on_card[name] for name in plain) == sum(
        count for packet, count in cpu.items() if packet.__name__.split(".")[-1] in plain
    )


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "most"), BASE_LAUNCHES, ids=str)
def test_fewer_launches_than_the_bar(shape, most):
    counts = training_step(LocostConfig(), *shape)
    assert counts.total().launches <= most, counts.by_part()


@pytest.mark.parametrize(("batch", "a_layer"), [(31, 4), (32, 3)], ids=["rebuilt", "kept"])
def test_the_kernel_build_is_a_few_launches(batch, a_layer):
    """Forward, where the spectrum is not kept backward again, sums, and gradients."""
    work = training_step(batch=batch).by_part()["encoder: kernel build"]
    assert work.launches == a_layer * TINY.encoder_layers
    products = (a_layer - 2) * 4 + 8  # of real numbers, times 2
    assert work.flops32 == products * TINY.encoder_layers * 2 * 16 * 4 * L


def test_recomputation_is_refused(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train:\n  recompute_activations: true\n")
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["launches", "--config", str(recipe)])
    assert "train.recompute_activations, which cannot be counted" in capsys.readouterr().err


@pytest.mark.slow
def test_a_decoding_step_by_a_cuda_graph():
    """The step that looks whether all rows have ended, as one in eight does."""
    config = LocostConfig()
    plain, greedy, beams = (
        steps.decoding_step(config, 8, 512),
        graph_step(config, 8, 512),
        graph_step(config, 8, 512, beams=4),
    )
    assert greedy.outside.total().launches <= OUTSIDE_LAUNCHES
    assert beams.outside.total().launches <= OUTSIDE_LAUNCHES_OF_BEAMS
    for step in (greedy, beams):
        assert step.inside.total().syncs == 0  # none can be captured
        assert step.outside.total().syncs == 1
    parts = greedy.inside.by_part()
    assert {"decoder: self-attention", "decoder: cross-attention", "head and loss"} <= parts.keys()
    assert set(greedy.outside.by_part()) == {"choice of tokens"}
    cross = "decoder: cross-attention"  # which reads the same keys and values
    assert parts[cross].flops == plain.by_part()[cross].flops


def test_a_graph_holds_the_decoder_and_no_choice_of_tokens():
    step = graph_step(TINY, B, L, beams=2)
    inside, outside = (
        {name for _, name, _ in counts.operators} for counts in (step.inside, step.outside)
    )
    assert "index_copy_" in inside and "index_copy_" not in outside
    assert {"log_softmax", "_log_softmax"} & outside and "gather" in outside
    assert not {"gather", "argmax", "_log_softmax"} & inside
    assert graph_step(TINY, B, L).inside.total().launches == step.inside.total().launches


def test_autocast_rounds_a_parameter_once_only_where_it_keeps_a_cache():
    weight = nn.Parameter(torch.zeros(4, 4, device="meta"))
    module = nn.Module()
    module.weight = weight
    fake_card.to_card(module)
    x = fake_card.empty((2, 4), torch.bfloat16)

    def twice(cache: bool) -> Counter:
        def run():
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=cache):
                nn.functional.linear(x, module.weight), nn.functional.linear(x, module.weight)

        with fake_card.autocast(False):
            return Counter({name: n for (name, _), n in counted(run).items()})

    assert twice(cache=True)["_to_copy"] == 1
    assert twice(cache=False)["_to_copy"] == 2


@pytest.mark.slow
def test_a_decoding_step():
    counts = steps.decoding_step(LocostConfig(), 8, 512)
    work, parts = counts.total(), counts.by_part()
    assert work.launches <= BASE_DECODING_LAUNCHES, parts
    assert not [part for part in parts if part.startswith("encoder")]
    keys_and_values = 12 * 2 * 8 * 512 * 768 * 2
    assert 1 < parts["decoder: cross-attention"].bytes / keys_and_values < 1.6  # and weights
    assert work.syncs == 1  # whether all rows have ended


@pytest.mark.slow
def test_the_command_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "new" / "launches.json"
    words = ["--shapes", "2x64x16", "--decode", "2x64", "--card", "a100", "--launch_us", "20"]
    words = ["launches", "--config", "demo_pretrain.yaml", *words, "--json", str(path)]
    assert benchmark.main(words) == 0
    printed, found = capsys.readouterr().out, json.loads(path.read_text())
    assert found["card"] == "A100 80 GB"
    assert [step["beams"] for step in found["graph_steps"]] == [1, 4]
    for step in found["graph_steps"]:
        assert f"outside its replay: {step['outside']['launches']} launches" in printed
        assert step["inside"]["launches"] > 20 and step["inside"]["host_ms"] == 0
    for step, heading in zip(
        found["steps"],
        ("training step: batch 2, source 64, target 16", "decoding step: batch 2, source 64"),
        strict=True,
    ):
        assert heading in printed
        total = step["total"]
        assert total["launches"] == sum(row["launches"] for row in step["parts"].values()) > 50
        assert total["host_ms"] == pytest.approx(total["launches"] * 0.02)
        for row in (total, *step["parts"].values()):
            assert row["bound_ms"] == max(row["card_ms"], row["host_ms"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--card abacus", "--card abacus is unknown: give v100"),
        ("--shapes 8x450", "--shapes 8x450: give sizes as BxLxT"),
        ("--decode 8x450x3", "--decode 8x450x3: give sizes as BxL"),
        ("--shapes 8x0x3", "expected an integer of at least 1"),
        ("--config nowhere", "nowhere"),
    ],
)
def test_wrong_arguments_are_one_line(words, said, capsys):
    try:
        status = benchmark.main(["launches", *words.split()])
    except SystemExit as end:  # argparse ends the program itself
        status = end.code
    assert status == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert said in message
    assert message.count("\n") == 1
