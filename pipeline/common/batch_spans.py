"""Spans of global batches that a run leaves out: `--train.skip_batches 4990-5010,7000-7005`.

Batches are numbered from 0 here; for users from 1, as the steps of a run that skips none.
"""

import re

Spans = tuple[range, ...]


def parse_spans(text: str) -> Spans:
    """`4990-5010,7000` as ranges, ascending. Raises ValueError for anything else."""
    spans = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ValueError
        spans.append(range(int(match[1]) - 1, int(match[2] or match[1])))
    bounds = [bound for span in spans for bound in (span.start, span.stop)]
    ascending = all(a < b for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    if not ascending or bounds != sorted(bounds) or (bounds and bounds[0] < 0):
        raise ValueError
    return tuple(spans)


def batch_of(step: int, spans: Spans) -> int:
    """The batch that update `step` (from 0) takes."""
    for span in spans:
        if step < span.start:
            break
        step += len(span)
    return step


def used_spans(steps: int, spans: Spans) -> Spans:
    """Those that the first `steps` updates have skipped."""
    reached = batch_of(steps - 1, spans) if steps else -1
    return tuple(span for span in spans if span.start < reached)
