"""Decoding in steps of fixed shapes against the plain loop: tokens, logits, and waits.

The graph itself needs a GPU; here its steps run one operation at a time.
"""

import pytest
import torch
from lively import IDS, MASK, lively_model
from locost_golden import error, random_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pipeline.model import static_decoding
from pipeline.model.cross_attention import Absorbed, Cached
from pipeline.model.decoding_steps import PlainSteps
from pipeline.model.static_decoding import FixedSteps, rounded_weights, without_graph

VARIANTS = [
    {"positions": positions, "tie_embeddings": tied}
    for positions in ("relative", "rotary")
    for tied in (True, False)
]
FORMS = {"cached": (2**40, Cached), "absorbed": (0, Absorbed)}
STRATEGIES = [
    {},
    {"min_new_tokens": 7},
    {"min_new_tokens": 20, "no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 1},
    {"top_p": 0.9, "seed": 5},
    {"top_p": 0.7, "temperature": 1.5, "min_new_tokens": 5, "no_repeat_ngram_size": 3},
    {"num_beams": 2},
    {"num_beams": 3, "early_stopping": False, "length_penalty": 0.0},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0, "min_new_tokens": 4},
    {"num_beams": 4, "early_stopping": False, "length_penalty": -1.0, "no_repeat_ngram_size": 2},
]


@pytest.fixture
def decode(monkeypatch):
    """Generate 21 tokens by plain or by fixed steps."""

    def run(model, mode, ids=IDS, mask=MASK, longest=21, **strategy):
        monkeypatch.setattr(static_decoding, "mode", mode)
        return model.generate(ids, mask, longest, **strategy)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eos_id", "changes"), [(3, {"positions": "rotary"}), (9, {}), (12, {"positions": "rotary"})]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tokens_are_those_of_the_plain_loop(decode, strategy, eos_id, changes):
    """With 12 rows end at once, with the others at other steps than those that are looked at."""
    model = lively_model(eos_id, **changes)
    for budget in (2**40, 0):
        plain = decode(model, "plain", memory_budget=budget, **strategy)
        assert torch.equal(decode(model, "fixed", memory_budget=budget, **strategy), plain)
    alone = IDS[2:3, : MASK[2].sum()]
    plain = decode(model, "plain", alone, None, **strategy)
    assert torch.equal(decode(model, "fixed", alone, None, **strategy), plain)


@pytest.mark.slow
@pytest.mark.parametrize("longest", [2, 7, 8, 9, 17])
@pytest.mark.parametrize("strategy", [{}, {"num_beams": 3}, {"top_p": 0.9}])
def test_any_length_limit(decode, longest, strategy):
    for eos_id in (9, 12, 39):
        model = lively_model(eos_id)
        results = [decode(model, mode, longest=longest, **strategy) for mode in ("plain", "fixed")]
        assert torch.equal(*results)


@pytest.mark.parametrize("strategy", [{}, {"num_beams": 3}, {"top_p": 0.9}])
def test_tied_weights_and_float32(decode, strategy):
    for changes in VARIANTS:
        model = random_model(eos_id=9, **changes)
        assert torch.equal(*(decode(model, mode, **strategy) for mode in ("plain", "fixed")))


def compared(model, form, precision=None, beams=2, longest=40):
    """Logits of plain and of fixed steps with random tokens, beams moved at every third."""
    budget, kind = FORMS[form]
    tokens = torch.randint(2, 40, (longest, 4 * beams, 1))
    rows = torch.randint(beams, (longest, 4, beams)) + beams * torch.arange(4)[:, None]
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        states = model.encode(IDS, MASK)
        results = []
        for make in (PlainSteps, lambda *both: FixedSteps(*both, tokens[0], without_graph)):
            state = model.decoder.start(states, MASK, longest, beams, budget)
            assert all(type(source) is kind for source in state.source)
            for past in state.past:
                past.held.fill_(torch.nan)  # as memory may hold
            steps = make(model, state)
            results.append([])
            for step, token in enumerate(tokens):
                results[-1].append(steps.logits(token).clone())
                if step % 3 == 2:
                    steps.select(rows[step].flatten())
    return [torch.stack(logits) for logits in results]


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changes", VARIANTS)
def test_logits_are_those_of_plain_steps(changes, form):
    model = random_model(**changes)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        plain, fixed = compared(model.to(dtype), form)
        assert plain.dtype == fixed.dtype == dtype
        assert error(fixed, plain) < tolerance


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changes", VARIANTS)
def test_weights_are_rounded_where_autocast_does(changes, form):
    """Next to the difference to float32 that between them is small: with rotary positions a number
    is now and then rounded to its other neighbour, as the masked kernel adds in another order."""
    model = random_model(**changes)
    torch.manual_seed(1)
    plain, fixed = compared(model, form, torch.bfloat16)
    torch.manual_seed(1)
    exact, _ = compared(model, form)
    assert plain.dtype == fixed.dtype == torch.float32
    difference, rounding = (fixed - plain).abs().mean(), (plain - exact).abs().mean()
    assert rounding > 0 and difference < rounding / (2 if "rotary" in changes.values() else 30)
    assert (fixed - exact).abs().mean() < 1.2 * rounding
    with torch.autocast("cpu", torch.bfloat16):
        weights = rounded_weights(model)
    assert len(weights) == 2 * 9 + 1
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert rounded_weights(model) == {}


class Operations(TorchDispatchMode):
    """Records those operations that bring a number to the host; if wanted, all, with shapes."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2")

    def __init__(self, shapes=False):
        super().__init__()
        self.shapes, self.all, self.waits = shapes, [], []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        def signature(x):
            return (x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x

        name = function.name().removeprefix("aten::").partition(".")[0]
        if self.shapes:
            self.all.append((name, str(tree_map(signature, (arguments, keywords)))))
        if name in self.WAITS:
            self.waits.append(name)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    "strategy", [{}, {"top_p": 0.9}, {"num_beams": 2, "no_repeat_ngram_size": 2}]
)
def test_the_host_waits_once_in_eight_steps(decode, strategy):
    model = lively_model(39)
    with torch.no_grad():
        states = model.encode(IDS, MASK)
    model.encode = lambda ids, mask: states  # decoding alone
    waits = []
    for longest in (16, 32):
        rules = {"longest": longest, "min_new_tokens": longest, **strategy}
        with Operations() as operations:
            assert decode(model, "fixed", **rules).shape == (4, 1 + longest)
        waits.append(len(operations.waits))
    assert waits[1] - waits[0] == 16 / 8
    assert waits[0] <= 16 / 8 + 4
    with Operations() as operations:
        decode(model, "plain", **rules)
    assert len(operations.waits) > 32, "a count that misses waits proves nothing"


@torch.no_grad()
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("changes", VARIANTS)
def test_every_step_is_the_same_operations(changes, form):
    """In the same order and of the same shapes, with the same numbers, as a replay repeats them."""
    model = random_model(**changes)
    start = torch.zeros(8, 1, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        state = model.decoder.start(model.encode(IDS, MASK), MASK, 20, 2, FORMS[form][0])
        steps = FixedSteps(model, state, start, without_graph)
        recorded = []
        for _ in range(5):
            with Operations(shapes=True) as operations:
                steps.run()
            recorded.append(operations)
    assert all(other.all == recorded[0].all for other in recorded)
    assert not recorded[0].waits
    rounded = [shapes for name, shapes in recorded[0].all if name == "_to_copy"]
    sizes = {str(x.shape) for name, x in model.decoder.named_parameters() if x.dim() == 2}
    assert rounded and not any(size in shapes for size in sizes for shapes in rounded)


def test_a_graph_that_cannot_be_made_is_said_once(decode, capsys):
    """It cannot on this machine, whatever torch was built for."""
    if torch.cuda.is_available():
        pytest.skip("a graph can be made here")
    model = lively_model(9)
    plain = decode(model, "plain", num_beams=2)
    assert capsys.readouterr().err == ""
    assert torch.equal(decode(model, "graph", num_beams=2), plain)
    said = capsys.readouterr().err
    assert said.startswith("decoding step by step, without a CUDA graph: ")
    assert said.count("\n") == 1
    assert torch.equal(decode(model, "graph", num_beams=2), plain)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [1.5, torch.nan])
def test_a_graph_that_computes_something_else_is_not_used(decode, capsys, monkeypatch, wrong):
    """The graph is a stand-in: none can be made here, and a wrong one nowhere."""
    model = lively_model(9)
    monkeypatch.setattr(static_decoding, "Graph", lambda step, device: lambda: step() * wrong)
    for strategy in ({}, {"num_beams": 2}):
        plain = decode(model, "plain", **strategy)
        static_decoding._unfit.clear()
        assert torch.equal(decode(model, "graph", **strategy), plain)
        assert "its logits differ by" in capsys.readouterr().err
    monkeypatch.setattr(static_decoding, "Graph", static_decoding.without_graph)
    static_decoding._unfit.clear()
    assert torch.equal(decode(model, "graph", **strategy), plain)
    assert capsys.readouterr().err == ""


def test_on_a_cpu_steps_are_plain(monkeypatch):
    monkeypatch.setattr(static_decoding, "FixedSteps", None)
    lively_model(9).generate(IDS, MASK, 30)


@pytest.mark.parametrize("strategy", [{}, {"num_beams": 3}])
def test_weights_that_are_not_finite_are_named(decode, strategy):
    model = random_model()
    with torch.no_grad():
        model.decoder.norm.weight[3] = torch.nan
    for mode in ("fixed", "graph"):
        with pytest.raises(ValueError, match="not finite"):
            decode(model, mode, **strategy)


def test_a_model_is_as_before(decode):
    """Its parameters are its own, of their type, and nothing keeps it in memory."""
    model = random_model()
    before = {name: (id(x), x.dtype, x.clone()) for name, x in model.named_parameters()}
    with torch.autocast("cpu", torch.bfloat16):
        decode(model, "fixed")
    for name, x in model.named_parameters():
        assert before[name][:2] == (id(x), x.dtype) and torch.equal(before[name][2], x)
        assert x.requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graph_on_a_gpu(decode, capsys, form, strategy):
    model = lively_model(9).cuda().float()
    rules = {"memory_budget": FORMS[form][0], **strategy}
    ids, mask = IDS.cuda(), MASK.cuda()
    plain = decode(model, "plain", ids, mask, **rules)
    assert torch.equal(decode(model, "graph", ids, mask, **rules), plain)
    with torch.autocast("cuda", torch.bfloat16):
        decode(model, "graph", ids, mask, **rules)
    assert capsys.readouterr().err == "", "the graph was used"
