"""Batches left out: which batch each step takes, and what is refused."""

import pytest

from pipeline.common.batch_spans import batch_of, parse_spans, used_spans
from pipeline.data.order import GlobalOrder


def test_the_steps_take_all_other_batches_in_order():
    spans = parse_spans("3-5,9")
    assert [batch_of(step, spans) + 1 for step in range(6)] == [1, 2, 6, 7, 8, 10]
    plain, skipping = GlobalOrder([(50,)], 4, 0), GlobalOrder([(50,)], 4, 0, skipped=spans)
    for step in range(6):
        assert skipping.samples(step) == plain.samples(batch_of(step, spans))
        assert skipping.shards_ahead(step) == plain.shards_ahead(batch_of(step, spans))


@pytest.mark.parametrize("text", ["5-3", "0-4", "4-6,5-9", "9,3", "x", "3-", "-3", "3-5-7", ","])
def test_anything_but_ascending_spans_is_refused(text):
    with pytest.raises(ValueError):
        parse_spans(text)


def test_only_the_spans_that_steps_have_reached_are_used():
    spans = parse_spans("3-5,9")
    assert used_spans(0, spans) == used_spans(2, spans) == ()
    assert used_spans(3, spans) == used_spans(5, spans) == spans[:1]
    assert used_spans(6, spans) == spans
