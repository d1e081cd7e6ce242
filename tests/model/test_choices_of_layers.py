"""The trials of convolutions and blocks: exact candidates are accepted, wrong ones are dropped."""

import re
from dataclasses import replace

import pytest
import torch

from pipeline.model import Locost, LocostConfig, convolution_choice
from pipeline.model import block_choice as blocks
from pipeline.model.choosing import Candidates, choose
from pipeline.model.convolution_choice import choose_transform
from pipeline.model.row_pairs import PAIRS
from pipeline.model.ssm import TRANSFORMS

CPU = torch.device("cpu")
TINY = LocostConfig(vocab_size=40, d_model=8, state_dim=4, d_ff=24, num_heads=2, head_dim=8,
                    encoder_layers=2, decoder_layers=2)  # fmt: skip


@pytest.mark.parametrize(
    "changes", [{}, {"ssm_projections": "complex"}, {"ssm_directions": "separate"}]
)
@pytest.mark.parametrize("transform", ["rows", "pairs"])
def test_a_layer_is_exact_by_either_transform(transform, changes):
    config = LocostConfig(d_model=8, state_dim=16, **changes)
    assert 0 < convolution_choice.tested(config, CPU, "torch", transform) < 1e-5


@pytest.mark.parametrize("fault", ["forward", "backward", "NaN"])
def test_a_wrong_transform_is_dropped(monkeypatch, fault):
    """Also where only a gradient is wrong; auto says why, a given name is refused."""
    name = "convolve" if fault == "forward" else "convolve_backward"
    right = getattr(PAIRS, name)

    def wrong(*args):
        result = right(*args)
        args[-1].mul_(torch.nan if fault == "NaN" else 1.001)
        return result

    monkeypatch.setitem(TRANSFORMS, "pairs", PAIRS._replace(**{name: wrong}))
    monkeypatch.setattr(convolution_choice, "trial", lambda *_: pytest.fail("nothing to time"))
    said = "not pairs: it fails here: a relative error of .* exceeds 1e-05"
    monkeypatch.setattr(convolution_choice, "choose", on_any_device)
    chosen, line = choose_transform("auto", CPU, TINY, "torch")
    assert chosen == "rows" and re.search(said, line)
    with pytest.raises(ValueError, match=r"FFT pairs is not usable.*give --train\.fft rows"):
        choose_transform("pairs", CPU, TINY, "torch")


def on_any_device(name, candidates):
    """`choose` that also tries what auto does not try on a CPU."""
    return choose(name, replace(candidates, untried={}))


@pytest.mark.parametrize(("times", "chosen"), [((10.0, 9.0), "pairs"), ((10.0, 9.9), "rows")])
def test_the_faster_transform_is_chosen(monkeypatch, times, chosen):
    """By stand-ins for the times."""
    of = dict(zip(("rows", "pairs"), times, strict=True))
    monkeypatch.setattr(convolution_choice, "choose", on_any_device)
    monkeypatch.setattr(convolution_choice, "trial", lambda *args: of[args[-1]])
    found, line = choose_transform("auto", CPU, TINY, "torch")
    assert found == chosen and f"rows 10.0 ms, pairs {times[1]} ms" in line


def test_tests_and_trials_leave_the_random_state(monkeypatch):
    monkeypatch.setattr(convolution_choice, "TRIAL_SHAPES", ((2, 20), (3, 30)))
    monkeypatch.setattr(blocks, "TRIAL_SHAPES", ((2, 20, 5), (3, 30, 6)))
    model = Locost(TINY)
    before = torch.get_rng_state()
    assert convolution_choice.trial(TINY, CPU, "torch", "pairs") > 0
    assert blocks.trial("eager", model, CPU, torch.bfloat16) > 0
    assert convolution_choice.tested(TINY, CPU, "torch") < 1e-5
    assert blocks.tested("eager", model, CPU, torch.float32) < 1e-5
    assert torch.equal(torch.get_rng_state(), before)


def test_compiled_blocks_are_tested_with_what_the_model_uses(monkeypatch):
    """Compiled by a stand-in that changes a result: the real compiler is in slow tests."""
    model = Locost(TINY)
    for layer in blocks.ssm_layers(model):
        layer.transform = "pairs"
    few = blocks.few_layers(model, CPU)
    assert [layer.transform for layer in blocks.ssm_layers(few)] == ["pairs"]

    def wrongly(self, **_):
        self.encoder.norm.weight.data.mul_(1.01)

    monkeypatch.setattr(Locost, "compile_blocks", wrongly)
    with pytest.raises(ValueError, match=r"blocks compiled is not usable: .* relative error"):
        blocks.choose_blocks("compiled", model, CPU, torch.float32)


def test_a_lone_reference_that_was_tested_elsewhere_is_not_tested():
    def test(name):
        raise AssertionError(name)

    fields = {"what": "x", "option": "--x", "names": ["a", "b"], "reference": "a", "trial": test}
    candidates = Candidates(**fields, test=test, obstacles={"b": "no"}, test_reference=False)
    assert choose("auto", candidates) == ("a", "a (not b: no)")
    assert choose("a", candidates) == ("a", "a")
