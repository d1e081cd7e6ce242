"""From sentences of ids to samples."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from pipeline.huggingface_tokenizer import AnyTokenizer
from pipeline.shards import ID_DTYPES, Sample, id_dtype_for
from preprocessing.corpora import EMPTY
from preprocessing.statistics import Statistics


def make_sample(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    metadata: dict[str, Any],
    lengths: tuple[int, int],
    tokenizer: AnyTokenizer,
    statistics: Statistics,
) -> Sample | str:
    """Join sentences (each a row of ids), cut to lengths[side] ids with EOS (0: never), add EOS.

    Counts lengths and cuts into `statistics`. Returns the reason why there is no sample if the
    source has no ids, or the target has sentences but no ids; without sentences it is EOS alone.
    The metadata get `target_sentence_ends`.
    """
    sides = [list(chain.from_iterable(sentences)) for sentences in (source, target)]
    if not sides[0] or (target and not sides[1]):
        return EMPTY
    kept = [
        ids[: length - 1] if length else ids for ids, length in zip(sides, lengths, strict=True)
    ]
    statistics.source_lengths[len(sides[0]) + 1] += 1
    statistics.target_lengths[len(sides[1]) + 1] += 1
    statistics.truncated_sources += len(kept[0]) < len(sides[0])
    statistics.truncated_targets += len(kept[1]) < len(sides[1])
    dtype = ID_DTYPES[id_dtype_for(tokenizer.vocab_size)]
    return Sample(
        np.array([*kept[0], tokenizer.eos_id], dtype),
        np.array([*kept[1], tokenizer.eos_id], dtype),
        {
            **metadata,
            "target_sentence_ends": sentence_ends(target, len(kept[1])),
        },
    )


def sentence_ends(sentences: Sequence[Sequence[int]], length: int) -> list[int]:
    """Where each sentence ends (exclusive) when all are joined and cut to `length` ids.

    The sentence that is cut is the last one.
    """
    ends = list(accumulate(map(len, sentences)))
    if ends and ends[-1] > length:
        ends = [*ends[: bisect_left(ends, length)], length]
    return ends
