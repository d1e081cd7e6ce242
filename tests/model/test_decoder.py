"""Decoding step by step: rotary positions, and cross-attention without keys and values."""

import pytest
import torch
from locost_golden import error, random_model

from pipeline.model import cross_attention
from pipeline.model.cross_attention import Absorbed, Cached
from pipeline.model.memory import available_memory, job_memory, machine_memory

IDS = torch.randint(2, 40, (4, 13), generator=torch.Generator().manual_seed(3))
MASK = (torch.arange(13) < torch.tensor([[13], [4], [9], [1]])).long()


def steps(model, mask, budget, beams=3, length=5, states=None):
    """Outputs of some steps in which every beam differs, and the state."""
    decoder = model.decoder
    torch.manual_seed(1)
    if states is None:
        states = model.encode(IDS, mask)
    state = decoder.start(states, mask, length, beams=beams, memory_budget=budget)
    outputs = []
    for _ in range(length):
        tokens = torch.randint(0, 40, (len(states) * beams, 1))
        outputs.append(decoder.step(model.embedding(tokens), state))
    return torch.cat(outputs, dim=1), state


@torch.no_grad()
@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_steps_are_the_whole_pass(positions):
    model = random_model(positions=positions).double()
    assert (model.decoder.relative_bias is None) == (positions == "rotary")
    targets = model.embedding(torch.randint(0, 40, (4, 150)))
    states = model.encode(IDS, MASK)
    state = model.decoder.start(states, MASK, 150)
    ours = [model.decoder.step(targets[:, t : t + 1], state) for t in range(150)]
    assert error(torch.cat(ours, dim=1), model.decoder(targets, states, MASK)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("mask", [MASK, None])
@pytest.mark.parametrize("block", [1, 3, 2048])
def test_absorbed_is_cached(mask, block, monkeypatch):
    monkeypatch.setattr(cross_attention, "BLOCK_TOKENS", {"cpu": 4 * block})
    model = random_model(num_heads=3).double()
    cached, state = steps(model, mask, budget=2**40)
    assert isinstance(state.source[0], Cached)
    absorbed, state = steps(model, mask, budget=0)
    assert all(source is state.source[0] for source in state.source)
    assert isinstance(state.source[0], Absorbed)
    assert error(absorbed, cached) < 1e-12


@torch.no_grad()
def test_absorbed_in_extreme_scores():
    """The running maximum keeps the softmax finite where single blocks would overflow."""
    model = random_model().double()
    states = model.encode(IDS, MASK)
    states[:, 7] *= 300
    cached, _ = steps(model, MASK, 2**40, states=states)
    absorbed, _ = steps(model, MASK, 0, states=states)
    assert cached.isfinite().all()
    assert error(absorbed, cached) < 1e-10


@torch.no_grad()
def test_absorbed_in_bf16_is_as_near_as_cached():
    model = random_model()
    exact, _ = steps(random_model().double(), MASK, 2**40)
    with torch.autocast("cpu", torch.bfloat16):
        cached, _ = steps(model, MASK, 2**40)
        absorbed, state = steps(model, MASK, 0)
    assert state.source[0].states.dtype == torch.bfloat16  # one narrow copy
    assert error(absorbed, exact) < max(2 * error(cached, exact), 2e-2)


@torch.no_grad()
def test_the_budget_decides_to_the_byte():
    model = random_model()
    size = 2 * 2 * 2 * 8 * 4 * 13 * 4  # blocks, keys and values, heads x 8, rows x 13, float32
    _, state = steps(model, MASK, size)
    assert isinstance(state.source[0], Cached)
    assert state.describe() == "cross-attention: cached keys and values, 0.00 GiB"
    _, state = steps(model, MASK, size - 1)
    assert isinstance(state.source[0], Absorbed)
    assert "absorbed" in state.describe()
    assert isinstance(steps(model, MASK, None)[1].source[0], Cached)  # so much is free


def test_memory_of_the_machine_and_of_a_job(tmp_path):
    assert 2**28 < available_memory(torch.device("cpu")) < 2**50
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    5 kB\n")
    assert machine_memory(tmp_path / "meminfo") == 5 * 1024
    assert list(job_memory(tmp_path / "nowhere")) == []

    def group(path, limit, used, names):
        folder = tmp_path / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 3\ninactive_file 10\n")

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job\n")
    group("slurm/job/inner", 7, 1, ("memory.max", "memory.current"))  # not ours
    group("slurm/job", 1000, 300, ("memory.max", "memory.current"))
    assert list(job_memory(tmp_path)) == [710]
    (tmp_path / "proc/self/cgroup").write_text("4:cpu:/x\n5:memory:/job\n")
    group("memory/job", 500, 100, ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    assert list(job_memory(tmp_path)) == [410]
