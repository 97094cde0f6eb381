"""A replica that stops answering, or slows down, and comes back: found from the records alone. Pure.

A replica is lost from the end of the first of three or more failures in a row, until the send of its next request that
succeeds, while other replicas answer. It is slow while five or more requests in a row take twice as long for an output
token as its faster quarter does, while the others do not. What a replica refuses (4xx) is no loss.

Left out: a loss of all replicas at once, which is the failure of the whole endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from harness.analysis.replicas import rows
from harness.analysis.stats import spread
from harness.analysis.table import Bools, Floats, Table
from harness.data.record import Level
from harness.data.summary import FOUND, PROVISIONAL, Curve, LossPhase, NodeLoss
from harness.spec.fleet import LOST

FEWEST = 3  # failures in a row that are a loss
FEWEST_SLOW, SLOW = 5, 2.0  # requests in a row, and how many times their usual time for a token
_KNOWN = 20  # requests of a replica at one level, from where on its usual time is known
STOPPED, SLOWED = "stopped", "slowed"


class Span(msgspec.Struct, frozen=True):
    """When a replica was lost; seconds since the run's origin, `end_s` None where it did not come back."""

    url: str
    kind: str  # stopped | slowed
    start_s: float
    end_s: float | None


def of_run(table: Table, levels: Sequence[Level], urls: Sequence[str], fitted: Curve | None = None) -> list[NodeLoss]:
    """Every loss in the finished levels of a run, in order, with what it cost."""
    found = []
    for level in levels if len(urls) > 1 else ():
        of_level = table.only(table.level == level.index)
        spans = [span for url in urls for span in stops(of_level, url)]
        spans += [span for url in urls for span in slowdowns(of_level, url) if not _overlaps(span, spans)]
        found += [_loss(of_level, level, span, len(urls), fitted) for span in spans]
    return sorted(found, key=lambda loss: loss.start_s)


def stops(table: Table, url: str) -> Iterator[Span]:
    """When a replica did not answer, by a level's requests."""
    own = rows(table, url)
    failed = own & np.fromiter((error in LOST for error in table.error), np.bool_, len(table.error))
    ended = np.flatnonzero(own & (failed | table.ok) & ~np.isnan(table.done))
    ended = ended[np.argsort(table.done[ended], kind="stable")]
    for first, last in _runs(failed[ended], FEWEST):
        start = float(table.done[ended[first]])
        answered = own & table.ok & (table.sent > start)
        end = float(table.sent[answered].min()) if answered.any() else None
        until = float(table.done[ended[last]]) if end is None else end
        if (~own & table.ok & (table.done >= start) & (table.sent <= until)).any():
            yield Span(url, STOPPED, start, end)


def slowdowns(table: Table, url: str) -> Iterator[Span]:
    """When a replica took much longer for its tokens than it usually does, by a level's requests."""
    own = rows(table, url) & table.ok
    if own.sum() < _KNOWN:
        return
    pace = _pace(table)
    sent = np.flatnonzero(own)
    sent = sent[np.argsort(table.sent[sent], kind="stable")]
    usual = float(np.quantile(pace[sent], 0.25))
    slow = pace[sent] > SLOW * usual
    for first, last in _runs(slow, FEWEST_SLOW):
        start = float(table.sent[sent[first]])
        end = float(table.sent[sent[last + 1]]) if last + 1 < len(sent) else None
        until = float(table.sent[sent[last]]) if end is None else end
        others = ~rows(table, url) & table.ok & (table.sent >= start) & (table.sent <= until)
        if others.any() and float(np.median(pace[others])) <= SLOW * usual:
            yield Span(url, SLOWED, start, end)


def _pace(table: Table) -> Floats:
    """E2E per output token; seconds, shape [requests]."""
    return np.asarray((table.done - table.sent) / np.fmax(table.output_tokens, 1.0))


def _runs(marked: Bools, least: int) -> Iterator[tuple[int, int]]:
    """First and last index of every run of at least so many marks.

    >>> list(_runs(np.array([True, False, True, True, True]), 2))
    [(2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - first >= least:
            yield first, end - 1


def _overlaps(span: Span, others: Sequence[Span]) -> bool:
    """Whether it lies within the loss of another replica, which slows down those that are left."""
    far = float("inf")
    return any(
        span.start_s < (far if other.end_s is None else other.end_s)
        and other.start_s < (far if span.end_s is None else span.end_s)
        for other in others
    )


def _loss(table: Table, level: Level, span: Span, replicas: int, fitted: Curve | None) -> NodeLoss:
    """What a loss cost: its failures, and the replicas that were left before, during and after it."""
    begin = level.begin_s if level.window_start_s is None else level.window_start_s
    end = level.window_end_s if level.window_end_s is not None else float(np.nanmax(table.done))
    begin = begin if begin < span.start_s else level.begin_s
    over = max(end, span.start_s) if span.end_s is None else span.end_s
    lost = rows(table, span.url)
    until = np.inf if span.end_s is None else span.end_s
    failures = table.done[lost & table.failed & (table.done >= span.start_s) & (table.done <= until)]
    before = _phase(table, ~lost, begin, span.start_s)
    plateau = None
    if fitted is not None and fitted.state in (FOUND, PROVISIONAL) and fitted.plateau_tokens_per_s.value:
        plateau = fitted.plateau_tokens_per_s.value * (replicas - 1) / replicas
    needed = before.output_tokens_per_s if before else None
    return NodeLoss(
        url=span.url,
        kind=span.kind,
        at=level.concurrency if level.rate is None else level.rate,
        start_s=span.start_s,
        end_s=span.end_s,
        recovery_s=None if span.end_s is None else span.end_s - span.start_s,
        errors=len(failures),
        errors_s=float(failures.max() - failures.min()) if len(failures) else None,
        before=before,
        during=_phase(table, ~lost, span.start_s, over),
        after=None if span.end_s is None else _phase(table, ~lost, span.end_s, end),
        survivors_plateau_tokens_per_s=plateau,
        headroom_held=None if plateau is None or needed is None else needed <= plateau,
    )


def _phase(table: Table, survivors: Bools, start: float, end: float) -> LossPhase | None:
    """The figures of a span of time; None where it has no length."""
    if end <= start:
        return None
    seconds = end - start
    arrived = (table.arrival >= start) & (table.arrival < end) & np.repeat(~table.failed, table.chunks)
    of_survivors = arrived & np.repeat(survivors, table.chunks)
    spent = np.minimum(np.where(np.isnan(table.done), end, table.done), end) - np.maximum(table.began, start)
    began = survivors & table.ok & (table.sent >= start) & (table.sent < end)
    return LossPhase(
        seconds=seconds,
        output_tokens_per_s=float(table.tokens[arrived].sum()) / seconds,
        survivors_output_tokens_per_s=float(table.tokens[of_survivors].sum()) / seconds,
        survivors_in_flight=float(np.maximum(spent, 0.0)[survivors].sum()) / seconds,
        survivors_ttft_s=spread((table.first - table.sent)[began]),
    )
