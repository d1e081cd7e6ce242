"""Gap-sentence generation: which sentences of a document become its pseudo-summary.

PEGASUS (Zhang et al. 2020, section 3.1.1) scores each sentence by ROUGE-1 F1 against the rest of
the document; LOCOST (section 4.1) pre-trains on that choice without a mask token.
"""

import re
from collections import Counter

STRATEGIES = ("ind-orig",)


def select_gap_sentences(
    sentences: list[str], ratio: float = 0.2, strategy: str = "ind-orig"
) -> list[int]:
    """Indices, ascending, of the floor(ratio * M) sentences closest to the rest of the document.

    "ind-orig": each sentence is scored on its own (Ind) with repeated words counted (Orig); equal
    scores go to the earlier sentence. Fewer than 1 / ratio sentences give none.

    Raises ValueError on a ratio not strictly between 0 and 1 or an unknown strategy.
    """
    if not 0 < ratio < 1:
        raise ValueError(f"ratio is {ratio}, expected a share of sentences between 0 and 1")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    # The tiny addend undoes rounding: 0.29 * 100 is 28.999999999999996.
    count = int(ratio * len(sentences) + 1e-9)
    if count == 0:
        return []
    scores = unigram_overlaps(sentences)
    best = sorted(range(len(sentences)), key=lambda i: (-scores[i], i))
    return sorted(best[:count])


def unigram_overlaps(sentences: list[str]) -> list[int]:
    """Each sentence's clipped unigram overlap with all the others together.

    With s the sentence and r the rest, ROUGE-1 F1 = 2 overlap / (|s| + |r|). The denominator is
    the document's length, so this integer ranks exactly as F1 does, with true ties.
    """
    counts = [Counter(rouge_tokens(sentence)) for sentence in sentences]
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return [sum(min(n, total[word] - n) for word, n in count.items()) for count in counts]


def rouge_tokens(text: str) -> list[str]:
    """Words as rouge-score sees them without its stemmer: lower case, runs of a-z and 0-9."""
    return re.findall("[a-z0-9]+", text.lower())
