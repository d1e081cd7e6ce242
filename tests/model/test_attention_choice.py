"""Which attention backend is chosen, and what is said of the others."""

import sys

import pytest
import torch
from locost_golden import random_model
from packed_reference import stand_in

from pipeline.model import LocostConfig, choosing
from pipeline.model import attention_backends as backends
from pipeline.model import attention_choice as choice
from pipeline.model.decoder import use_attention

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16
SMALL = LocostConfig(d_model=16, num_heads=2, head_dim=8, decoder_layers=2)


@pytest.fixture
def missing(monkeypatch):
    """`import flash_attn` fails."""
    monkeypatch.setitem(sys.modules, "flash_attn", None)


@pytest.fixture
def runnable(monkeypatch):
    """The CPU passes as a device of flash attention, whose operators are stand-ins."""
    monkeypatch.setattr(backends, "packed_obstacle", lambda device, dtype: None)
    for backend in ("varlen", "flash"):
        stand_in(monkeypatch, backend)


def stub_times(monkeypatch, **milliseconds):
    """A stub for the trial, which would measure the stand-ins: its results, or what it raises."""
    timed = []

    def trial(backend, **_):
        timed.append(backend)
        if isinstance(milliseconds[backend], Exception):
            raise milliseconds[backend]
        return milliseconds[backend]

    monkeypatch.setattr(choice, "trial", trial)
    return timed


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (BF16, 2e-2)])
def test_sdpa_passes_its_test(dtype, tolerance):
    backend, line = choice.choose_backend("sdpa", CPU, dtype, SMALL)
    assert backend == "sdpa" and line.startswith("sdpa (relative error")
    assert 0 < choice.self_test("sdpa", CPU, dtype, 64) < tolerance


def test_auto_says_why_it_is_sdpa(monkeypatch):
    """Both others have the same obstacle; nothing is timed."""
    timed = stub_times(monkeypatch)
    model = random_model()
    _, line = use_attention(model.decoder, "auto", CPU, BF16)
    assert model.decoder.attention_backend == "sdpa" and not timed
    assert line.startswith("sdpa (") and "\n" not in line
    assert "not varlen or flash: flash attention needs a CUDA device, and this is cpu" in line


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"varlen": 4.0, "flash": 5.0, "sdpa": 10.0}, "varlen"),
        ({"varlen": 5.0, "flash": 4.0, "sdpa": 10.0}, "flash"),
        ({"varlen": 9.4, "flash": 12.0, "sdpa": 10.0}, "varlen"),
        ({"varlen": 9.6, "flash": 12.0, "sdpa": 10.0}, "sdpa"),
        ({"varlen": 10.0, "flash": 10.0, "sdpa": 10.0}, "sdpa"),
        ({"varlen": 20.0, "flash": 30.0, "sdpa": 10.0}, "sdpa"),
    ],
)
def test_auto_takes_the_fastest_if_it_is_worth_it(runnable, monkeypatch, times, chosen):
    timed = stub_times(monkeypatch, **times)
    backend, line = choice.choose_backend("auto", CPU, BF16, SMALL)
    assert backend == chosen and timed == ["varlen", "flash", "sdpa"]
    assert line.startswith(f"{chosen} (relative error") and f"sdpa {times['sdpa']} ms" in line


def test_a_chosen_name_is_tested_but_not_timed(runnable, monkeypatch):
    """What other processes and resumed runs are given."""
    timed = stub_times(monkeypatch, varlen=4.0, flash=5.0, sdpa=10.0)
    first, second = random_model(), random_model()
    use_attention(first.decoder, "auto", CPU, BF16)
    assert len(timed) == 3
    _, line = use_attention(second.decoder, first.decoder.attention_backend, CPU, BF16)
    assert second.decoder.attention_backend == "varlen" and len(timed) == 3
    assert line.startswith("varlen (relative error")
    assert "self-attention by sdpa, as varlen takes no relative bias" in line


def test_a_candidate_whose_trial_fails_is_dropped(runnable, monkeypatch):
    problem = RuntimeError("no kernel image\nis available")
    stub_times(monkeypatch, varlen=problem, flash=4.0, sdpa=10.0)
    backend, line = choice.choose_backend("auto", CPU, BF16, SMALL)
    assert backend == "flash" and "not varlen: it fails here: no kernel image)" in line
    stub_times(monkeypatch, varlen=4.0, flash=4.0, sdpa=problem)
    with pytest.raises(ValueError, match=r"attention sdpa is not usable.*installation of torch"):
        choice.choose_backend("auto", CPU, BF16, SMALL)


@pytest.mark.parametrize("fault", ["wrong scale", "nan", "exception"])
def test_a_faulty_candidate_is_dropped_and_an_error_by_name(runnable, monkeypatch, fault):
    right = sys.modules["flash_attn"].flash_attn_varlen_func

    def faulty(*args, **kwargs):
        if fault == "exception":
            raise RuntimeError("only Ampere GPUs or newer")
        if fault == "nan":
            return right(*args, **kwargs) * torch.nan
        return right(*args, **{**kwargs, "softmax_scale": None})

    sys.modules["flash_attn"].flash_attn_varlen_func = faulty
    timed = stub_times(monkeypatch, varlen=4.0, sdpa=10.0)
    backend, line = choice.choose_backend("auto", CPU, BF16, SMALL)
    said = "only Ampere" if fault == "exception" else "a relative error of .* exceeds"
    assert backend == "varlen" and timed == ["varlen", "sdpa"]
    assert "not flash: it fails here: " in line
    with pytest.raises(ValueError, match=f"flash is not usable.*{said}.*attention sdpa"):
        choice.choose_backend("flash", CPU, BF16, SMALL)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_an_obstacle_to_varlen_in_training(runnable, monkeypatch, training):
    stub_times(monkeypatch, varlen=1.0, flash=4.0, sdpa=10.0)
    model = random_model(dropout=0.1).train(training)
    _, line = use_attention(model.decoder, "auto", CPU, BF16)
    said = "not varlen: varlen_attn has no dropout, and the model trains with 0.1" in line
    assert said == training
    assert model.decoder.attention_backend == ("flash" if training else "varlen")
    if training:
        with pytest.raises(ValueError, match=r"varlen is not available: .*trains with 0\.1"):
            use_attention(model.decoder, "varlen", CPU, BF16)


@pytest.mark.parametrize("name", ["flash", "varlen"])
def test_one_given_by_name_without_device_type_or_module_is_an_error(missing, monkeypatch, name):
    with pytest.raises(ValueError, match="needs a CUDA device, and this is cpu"):
        choice.choose_backend(name, CPU, BF16, SMALL)
    with pytest.raises(ValueError, match=r"and float16, not torch\.float32: set precision bf16"):
        choice.choose_backend(name, CUDA, torch.float32, SMALL)
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    reason = r"cannot be imported.*requirements-gpu\.txt|has no varlen_attn.*requirements\.txt"
    with pytest.raises(ValueError, match=reason):
        choice.choose_backend(name, CUDA, BF16, SMALL)


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="'flush' is unknown: give auto, varlen, flash, sdpa"):
        choice.choose_backend("flush", CPU, torch.float32, SMALL)


@pytest.mark.parametrize("backend", ["sdpa", "varlen"])
def test_the_trial_never_repeats_a_shape_nor_draws_random_numbers(runnable, monkeypatch, backend):
    """The real trial, small: a shape seen before would hide what a plan for it costs."""
    monkeypatch.setattr(choice, "TRIAL_SHAPES", ((2, 3, 20), (3, 2, 40)))
    sources, real = [], choice.whole_source

    def recorded(states, mask, backend):
        sources.append((tuple(states.shape), mask.sum(1).tolist()))
        return real(states, mask, backend)

    monkeypatch.setattr(choice, "whole_source", recorded)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert choice.trial(backend, CPU, BF16, SMALL) > 0
    assert torch.equal(torch.rand(1), expected)
    assert len({shape for shape, _ in sources}) == len(sources) == 2 * (1 + choice.TRIAL_RUNS)
    assert sources[:2] == [((2, 20, 16), [10, 20]), ((3, 40, 16), [13, 26, 40])]


def test_conditions_tell_what_a_choice_holds_for():
    conditions = choosing.conditions(CPU, BF16)
    assert conditions == choosing.conditions(CPU, BF16)
    assert conditions != choosing.conditions(CPU, torch.float32)
    assert (conditions["device"], conditions["torch"]) == ("cpu", torch.__version__)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["varlen", "flash", "auto"])
def test_a_backend_on_a_gpu(name):
    if name == "flash":
        pytest.importorskip("flash_attn")
    backend, line = choice.choose_backend(name, CUDA, BF16, LocostConfig())
    assert backend == name or name == "auto", line
