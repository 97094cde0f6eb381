"""What a class of long prompts costs the others: the gaps between their tokens around the reading of its prompts. Pure.

A prompt is read from its send to its first token. A gap that overlaps a reading is during it; one that does not, but
overlaps the time before or after it of the same length, is before or after it.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.classes import rows
from harness.analysis.stats import spread
from harness.analysis.table import Bools, Floats, Table
from harness.data.record import Level
from harness.data.summary import Interference

LONGER = 8.0  # times the mean prompt of all others, from which on a class has long prompts


def of_level(table: Table, level: Level) -> Interference | None:
    """The cost of the class with the longest prompts; None where none is much longer, or none was read."""
    classes = {name: of_class for name, of_class in rows(table).items() if of_class.any()}
    if len(classes) < 2:
        return None
    means = {name: _mean(table.input_tokens[of_class]) for name, of_class in classes.items()}
    name = max(means, key=lambda each: means[each])
    if not means[name] >= LONGER * _mean(table.input_tokens[~classes[name]]):
        return None
    start, end = level.window
    read = classes[name] & (table.sent < end) & (table.first > start)  # also in part, also of answers that failed later
    if not read.any():
        return None
    starts, ends = _gaps(table, ~classes[name] & table.ok, start, end)
    sent, first = table.sent[read], table.first[read]
    length = first - sent
    during = overlaps(starts, ends, sent, first)
    before = ~during & overlaps(starts, ends, sent - length, sent)
    after = ~during & ~before & overlaps(starts, ends, first, first + length)
    gaps = ends - starts
    return Interference(
        class_=name,
        prompts=int(read.sum()),
        before_s=spread(gaps[before]),
        during_s=spread(gaps[during]),
        after_s=spread(gaps[after]),
    )


def overlaps(starts: Floats, ends: Floats, begin: Floats, over: Floats) -> Bools:
    """Whether each span, shape [spans], has more than a point in common with any of the intervals, shape [intervals].

    >>> overlaps(np.array([0.0, 2.0, 4.0]), np.array([1.0, 3.0, 5.0]), np.array([0.5, 3.0]), np.array([0.7, 3.5]))
    array([ True, False, False])
    """
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(over[order])
    last = np.searchsorted(begin, ends, side="left") - 1  # the last interval that begins before the span ends
    return np.asarray((last >= 0) & (reached[np.maximum(last, 0)] > starts))


def _gaps(table: Table, chosen: Bools, start: float, end: float) -> tuple[Floats, Floats]:
    """When each gap between two chunks of one of the requests began and ended, inside the window."""
    follows = np.repeat(chosen, table.chunks)
    follows[(np.cumsum(table.chunks) - table.chunks)[table.chunks > 0]] = False  # a first chunk follows none
    later = np.flatnonzero(follows)
    starts, ends = table.arrival[later - 1], table.arrival[later]
    inside = (starts >= start) & (ends <= end)
    return starts[inside], ends[inside]


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
