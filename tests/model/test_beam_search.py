"""Beam search against all sequences there are, and against a naive search of whole passes."""

from itertools import product

import pytest
import torch
from lively import IDS, MASK, lively_model, without_padding

from pipeline.model.generation import largest

V = 5
SMALL_IDS = IDS % V


def best_of_all(model, source, longest, penalty):
    """The new tokens of the highest score among all sequences of at most `longest`."""
    eos_id = model.config.eos_id
    labels = torch.tensor(list(product(range(V), repeat=longest)))
    logs = model(source.expand(len(labels), -1), labels=labels).logits.log_softmax(-1)
    logs = logs.gather(-1, labels[..., None])[..., 0]
    scores = {}
    for tokens, log in zip(labels.tolist(), logs, strict=True):
        length = tokens.index(eos_id) + 1 if eos_id in tokens else longest
        scores[tuple(tokens[:length])] = float(log[:length].sum()) / length**penalty
    return list(max(scores, key=scores.get))


@torch.no_grad()
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.7, 1.0, 2.0])
@pytest.mark.parametrize("eos_id", [1, 2, 4])
def test_enough_beams_find_the_best_of_all_sequences(eos_id, penalty):
    model = lively_model(eos_id, vocab_size=V)
    search = {"num_beams": 2 * (V - 1) ** 3, "length_penalty": penalty, "early_stopping": "never"}
    ids = model.generate(SMALL_IDS, MASK, 4, **search)
    expected = [
        best_of_all(model, source[None, : mask.sum()], 4, penalty)
        for source, mask in zip(SMALL_IDS, MASK, strict=True)
    ]
    assert without_padding(ids, eos_id) == expected


def naive_search(model, source, beams, longest, penalty, stops, shortest=0, size=0):
    """Beam search of one document, a full forward pass over all hypotheses at each step."""
    eos_id = model.config.eos_id
    running, results = [(0.0, [])], []
    for length in range(1, 1 + longest):
        totals = []
        labels = torch.tensor([[*tokens, 2] for _, tokens in running])  # the last is no input
        logits = model(source.expand(len(labels), -1), labels=labels).logits[:, -1]
        for (total, tokens), logs in zip(running, logits.log_softmax(-1).tolist(), strict=True):
            earlier = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
            for token, log in enumerate(logs):
                repeats = size and [*tokens, token][-size:] in earlier
                if not repeats and not (token == eos_id and length <= shortest):
                    totals.append((total + log, [*tokens, token]))
        likeliest = sorted(totals, reverse=True)[: 2 * beams]
        ended = [length == longest or tokens[-1] == eos_id for _, tokens in likeliest]
        results += [
            (total / length**penalty, tokens)
            for (total, tokens), over in zip(likeliest[:beams], ended, strict=False)
            if over
        ]
        results = sorted(results, reverse=True)[:beams]
        running = [one for one, over in zip(likeliest, ended, strict=True) if not over][:beams]
        if len(results) == beams and running:
            at_best = longest if stops == "never" and penalty > 0 else length
            if stops is True or running[0][0] / at_best**penalty <= results[-1][0]:
                break
    return results[0][1]


@torch.no_grad()
@pytest.mark.parametrize("stops", [True, False, "never"])
@pytest.mark.parametrize(("beams", "penalty"), [(2, 0.0), (4, 1.0), (2, 2.0), (4, -1.0)])
@pytest.mark.parametrize(
    ("eos_id", "rules"), [(12, {}), (3, {"min_new_tokens": 3, "no_repeat_ngram_size": 2})]
)
def test_beams_are_those_of_a_naive_search(beams, penalty, stops, rules, eos_id):
    """Documents of unequal length and unequal end, together and alone."""
    model = lively_model(eos_id)
    settings = {"num_beams": beams, "length_penalty": penalty, "early_stopping": stops, **rules}
    ids = model.generate(IDS, MASK, 8, **settings)
    expected = [
        naive_search(model, source[None, : mask.sum()], beams, 8, penalty, stops, *rules.values())
        for source, mask in zip(IDS, MASK, strict=True)
    ]
    assert without_padding(ids, eos_id) == expected
    assert ids.shape[1] == 1 + max(map(len, expected))
    for row, tokens in zip(ids, expected, strict=True):
        assert (row[1 + len(tokens) :] == 0).all()


@torch.no_grad()
def test_beams_find_what_greedy_misses():
    """Or the tests above would prove nothing."""
    model = lively_model(3)
    texts = [model.generate(IDS, MASK, 8, num_beams=beams).tolist() for beams in (1, 2, 4)]
    assert texts[0] != texts[1] != texts[2]


@torch.no_grad()
def test_the_sooner_a_search_may_stop_the_fewer_steps_it_takes():
    model = lively_model(12)
    model.head.weight[12] *= 1.5
    steps, step = [], model.decoder.step
    model.decoder.step = lambda *arguments: steps.append(1) or step(*arguments)
    counts = []
    for stops in (True, False, "never"):
        model.generate(IDS, MASK, 30, num_beams=3, early_stopping=stops)
        counts.append(len(steps))
        steps.clear()
    assert counts[0] <= counts[1] < counts[2] <= 30
    assert counts[0] < 10


@torch.no_grad()
def test_an_unlikely_end_is_no_result():
    """Without a length penalty an end at once has the highest sum, unless it is no candidate."""
    model = lively_model(12)
    model.head.weight[12] *= -3
    ids = model.generate(IDS, MASK, 9, num_beams=2, length_penalty=0.0)
    assert all(len(row) == 9 for row in without_padding(ids, 12))


@torch.no_grad()
def test_of_equals_the_first_and_the_shortest_wins():
    model = lively_model(3)
    model.head.weight.zero_()
    for penalty in (0.0, 1.0):
        search = {"num_beams": 4, "length_penalty": penalty}
        assert model.generate(IDS, MASK, 9, **search).tolist() == 4 * [[0, 3]]
        ids = model.generate(IDS, MASK, 9, min_new_tokens=3, **search)
        assert ids.tolist() == 4 * [[0, 0, 0, 0, 3]]


def test_largest_is_a_stable_sort():
    scores = torch.randint(5, (7, 30), generator=torch.Generator().manual_seed(0)).float()
    scores[0, 3:] = -torch.inf
    values, index = largest(scores, 6)
    ordered = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, ordered.values[:, :6])
    assert torch.equal(index[1:], ordered.indices[1:, :6])
    assert torch.equal(index[0, :3], ordered.indices[0, :3])
