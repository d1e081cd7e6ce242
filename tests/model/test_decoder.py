"""Decoding step by step, in each form of the cross-attention, against the whole pass."""

import pytest
import torch
from locost_golden import error, random_model

from pipeline.model import cross_attention
from pipeline.model.cross_attention import Absorbed, Cached, mix_blocks, mix_whole
from pipeline.model.memory import available_memory, job_memory, machine_memory

IDS = torch.randint(2, 40, (3, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9]])).long()
FORMS = {"cached": (2**40, Cached), "absorbed": (0, Absorbed)}


def steps(model, targets, states, mask, beams, budget):
    """The decoder's outputs for targets (B beams, T, H), a position at a time."""
    state = model.decoder.start(states, mask, targets.shape[1], beams, budget)
    outputs = [model.decoder.step(x[:, None], state) for x in targets.unbind(1)]
    return torch.cat(outputs, dim=1), state


@torch.no_grad()
@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("mask", [None, MASK])
def test_steps_are_the_whole_pass(positions, form, beams, mask):
    model = random_model(positions=positions).double()
    budget, kind = FORMS[form]
    states = model.encode(IDS, mask)
    targets = model.embedding(torch.randint(0, 40, (3 * beams, 11)))
    wide_mask = None if mask is None else mask.repeat_interleave(beams, 0)
    whole = model.decoder(targets, states.repeat_interleave(beams, 0), wide_mask)
    ours, state = steps(model, targets, states, mask, beams, budget)
    assert error(ours, whole) < 1e-10
    assert all(type(source) is kind for source in state.source)
    assert form in state.describe()


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
def test_selected_rows_continue_from_the_past_of_another(form):
    model = random_model().double()
    budget = FORMS[form][0]
    states = model.encode(IDS, MASK)
    first, second = (model.embedding(torch.randint(0, 40, (6, 5))) for _ in range(2))
    rows = torch.tensor([1, 1, 2, 3, 5, 4])
    state = model.decoder.start(states, MASK, 10, beams=2, memory_budget=budget)
    for x in first.unbind(1):
        model.decoder.step(x[:, None], state)
    state.select(rows)
    ours = torch.cat([model.decoder.step(x[:, None], state) for x in second.unbind(1)], dim=1)
    targets = torch.cat([first[rows], second], dim=1)
    wide = (states.repeat_interleave(2, 0), MASK.repeat_interleave(2, 0))
    assert error(ours, model.decoder(targets, *wide)[:, 5:]) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("form", FORMS)
def test_steps_in_bf16(positions, form):
    """One copy of the states, in the type of the products; as exact as the whole pass is."""
    model = random_model(positions=positions)
    states = model.encode(IDS, MASK)
    targets = model.embedding(torch.randint(0, 40, (6, 11)))
    wide = (states.repeat_interleave(2, 0), MASK.repeat_interleave(2, 0))
    exact = model.double().decoder(targets.double(), wide[0].double(), wide[1])
    with torch.autocast("cpu", torch.bfloat16):
        ours, state = steps(model.float(), targets, states, MASK, 2, FORMS[form][0])
    assert error(ours, exact) < 2e-2
    if form == "absorbed":
        assert len({id(source.states) for source in state.source}) == 1
        assert state.source[0].states.dtype == torch.bfloat16


def test_absorbed_states_are_not_copied_where_their_type_fits():
    model = random_model()
    states = torch.randn(1, 5, 16)
    state = model.decoder.start(states, None, 3, memory_budget=0)
    assert state.source[0].states.data_ptr() == states.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [1, 7, 100])
def test_softmax_in_blocks_and_by_torch(dtype, block, monkeypatch):
    """Scores up to some hundreds, largest last, and a first block that is all padding."""
    monkeypatch.setattr(cross_attention, "BLOCK_TOKENS", 2 * block)
    states = torch.randn(2, 23, 16, dtype=torch.float64) * torch.linspace(1, 30, 23)[:, None]
    queries = torch.randn(2, 6, 16, dtype=torch.float64)
    mask = torch.rand(2, 23) < 0.7
    mask[:, :8], mask[0, 8], mask[1, 20] = False, True, True
    for real in (None, mask):
        scores = queries @ states.transpose(1, 2)
        if real is not None:
            scores = scores.masked_fill(~real[:, None], -torch.inf)
        expected = scores.softmax(-1) @ states
        spread = cross_attention.spread(real)
        for mix in (mix_blocks, mix_whole):
            ours = mix(queries.to(dtype), states.to(dtype), spread)
            ours = ours[0] if mix is mix_blocks else ours
            assert error(ours, expected) < (1e-12 if dtype == torch.float64 else 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@torch.no_grad()
def test_absorbed_on_a_gpu(dtype, tolerance):
    model = random_model().cuda()
    mask = MASK.cuda()
    states = model.encode(IDS.cuda(), mask)
    targets = model.embedding(torch.randint(0, 40, (6, 11)).cuda())
    wide = (states.repeat_interleave(2, 0), mask.repeat_interleave(2, 0))
    exact = model.double().decoder(targets.double(), wide[0].double(), wide[1])
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        ours, _ = steps(model.float(), targets, states, mask, 2, 0)
    assert error(ours, exact) < tolerance


def test_the_form_follows_the_budget():
    """2 layers x keys and values x 3 x 13 states x 16 channels x 4 bytes."""
    model, states = random_model(), torch.randn(3, 13, 16)
    need = 2 * 2 * 3 * 13 * 16 * 4
    for budget, kind in ((need, Cached), (need - 1, Absorbed), (None, Cached)):
        state = model.decoder.start(states, MASK, 5, memory_budget=budget)
        assert type(state.source[0]) is kind


def test_the_default_budget_is_half_of_the_free_memory(monkeypatch):
    model, states = random_model(), torch.randn(1, 13, 16)
    need = 2 * 2 * 13 * 16 * 4
    for free, kind in ((2 * need, Cached), (2 * need - 1, Absorbed)):
        monkeypatch.setattr(cross_attention, "available_memory", lambda device, free=free: free)
        assert type(model.decoder.start(states, None, 5).source[0]) is kind


def test_free_memory_of_a_machine(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable:       70 kB\n")
    assert machine_memory(meminfo) == 70 * 1024
    assert machine_memory(tmp_path / "absent") >= available_memory(torch.device("cpu")) > 0


@pytest.mark.parametrize(
    ("membership", "folder", "limit", "used"),
    [
        ("0::/job/step", "sys/fs/cgroup", "memory.max", "memory.current"),
        (
            "5:cpu:/other\n4:memory:/job/step",
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    ],
)
def test_free_memory_of_a_job(tmp_path, membership, folder, limit, used):
    """A step without a limit in a job with one; both versions of control groups."""
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(membership + "\n")
    step = tmp_path / folder / "job/step"
    step.mkdir(parents=True)
    for group, most in ((step, "max"), (step.parent, "1000")):
        (group / limit).write_text(most + "\n")
        (group / used).write_text("300\n")
        (group / "memory.stat").write_text("anon 200\ninactive_file 100\n")
    assert list(job_memory(tmp_path)) == [800]
