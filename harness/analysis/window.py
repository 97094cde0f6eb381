"""The steady window of a level: where it begins, what part of it counts, and how many requests were in flight in it.

Pure, and cheap enough to be evaluated while a level runs. Left out: when to stop a level.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import numpy.typing as npt

from harness.analysis.stats import BY_CHANCE, slope, t_quantile
from harness.analysis.table import Bools, Floats, Table
from harness.data.record import Level

_FEWEST_BINS = 20  # below this the transient is not searched for
_LITTLE_APART = 0.05
REQUESTS_A_SLOT = 20
_MANY_REQUESTS = 20.0  # request times of a window, above which a part of one more or less is within its error
_WHOLE = 0.98  # a window counts as a whole request time from this share of it on
_PLACES = 65  # places in a window at which whole request times are tried
_SUSTAINED = 0.005  # share of the due requests that may queue up in a level that the server sustains
_RISE = 24.0  # request times of a window, above which a line through N(t) rises less by chance than N scatters
_KNOWN = 0.5  # share of a short window's time in flight, and of what began in it, whose requests' ends must be known
_HUNG, _HUNG_S = 0.5, 5.0  # share of a window without a token, and seconds in flight: a request with both hangs
_BY_CHANCE = 0.01  # chance of so many failures in a row, up to which a level counts as failing to its end
_SILENCE, _SILENCE_S = 5.0, 1.0  # times the usual gap, and seconds, from which on no token came for long
_PROMPTS = 3  # gaps that end in a first token, from which on these are usual
_SILENCES = 8  # number of longest gaps that are looked at: a prompt that is computed is no silence
_BEGAN = 0.125  # share of the slots: so many requests that began in a window represent all of them


class Truncation(msgspec.Struct, frozen=True):
    """How many leading bins are transient; settled only if the minimum lies before the search's end."""

    cut: int
    settled: bool
    checked: bool


class Little(msgspec.Struct, frozen=True):
    """In flight of the successes, counted and by Little's law; both None without successes."""

    counted: float | None
    by_law: float | None
    apart: float | None  # |by_law - counted| / counted
    mismatch: bool  # apart beyond 5 % and beyond 2·C/requests
    enough: bool  # at least 20 requests a slot, so a mismatch is more than a note


def bin_width(median_icl: float) -> float:
    """Return seconds of one bin of the transient search: max(50 ms, 5 × median ICL); each is one MSER-5 batch.

    >>> bin_width(0.004), bin_width(0.04)
    (0.05, 0.2)
    """
    return max(0.050, 5 * median_icl)


def truncation(counts: npt.ArrayLike) -> Truncation:
    """Return the transient by MSER (White 1997): the cut d that minimises Σ_{i>=d} (x_i - mean)² / (n - d)².

    Searched in the first half only; a minimum at its end means not settled, fewer than 20 bins not checked.

    >>> truncation([0, 2, 5] + [9, 11] * 15)
    Truncation(cut=3, settled=True, checked=True)
    """
    x = np.asarray(counts, dtype=np.float64)
    n = len(x)
    if n < _FEWEST_BINS:
        return Truncation(0, settled=True, checked=False)
    x = x - x.mean()  # keeps the two sums below from cancelling
    left = np.arange(n, 0, -1)
    total, squares = np.cumsum(x[::-1])[::-1], np.cumsum(x[::-1] ** 2)[::-1]
    scatter = np.maximum(squares - total**2 / left, 0) / left**2
    cut = int(np.argmin(scatter[: n // 2 + 1]))
    return Truncation(cut, settled=cut < n // 2, checked=True)


class Backlog(msgspec.Struct, frozen=True):
    """How the number in flight moves over a window: requests per second, and whether it rises beyond doubt."""

    slope: float
    rising: bool  # the lower end of its 95 % interval is above 0, and neither chance nor a burst explains it


def backlog(
    table: Table,
    start: float,
    end: float,
    period_s: float | None = None,
    *,
    rate: float | None = None,
    shape: float = 1.0,
) -> Backlog | None:
    """Return how fast requests that are due and not over become more in [start, end), and whether that is beyond doubt.

    None if nothing is in flight in it, or if traffic with a period has fewer than four of them in it. A line
    through the means of four to ten parts of the window, each of two request times if there is room, or of whole
    periods where traffic has one, with Student's t for their scatter about it. An open loop above what the server
    sustains queues up without end and has no steady state to measure. A rise by less than 0.5 % of the requests that
    come is chance, or no harm: the server completes the rest. Nor does a queue grow where as many requests ended as
    come at the level's `rate` in that time (None: that the requests' own times say): then more than that came by
    chance, and the server kept up.

    Chance moves N(t) by about its root, by the root of N/K where arrivals are in bursts (`shape` K below 1), and
    forgets it within some request times. The line's rise over the window has to be three times what it gets from that.
    """
    over = np.where(np.isnan(table.done), np.inf, table.done)
    there = (over > start) & (table.scheduled < end)
    spans = (over - table.scheduled)[there & np.isfinite(over)]
    request = float(spans.mean()) if len(spans) else end - start
    if period_s is None:
        edges = np.linspace(start, end, 1 + max(4, min(10, int((end - start) / (2 * request)))))
    else:
        edges = _periods(start, end, period_s)
    if len(edges) < 5:
        return None
    N = np.array(
        [
            np.maximum(np.minimum(over, high) - np.maximum(table.scheduled, low), 0.0).sum() / (high - low)
            for low, high in itertools.pairwise(edges)
        ]
    )
    if not N.any():
        return None
    rise, error = slope((edges[:-1] + edges[1:]) / 2, N)
    due = np.count_nonzero((table.scheduled >= start) & (table.scheduled < end)) / (end - start)
    first, last = float(edges[0]), float(edges[-1])
    ended = np.count_nonzero((over >= first) & (over < last)) / (last - first)
    # Where N is forgotten as exp(-t/R), the line's rise has 24·R/T of its variance; in few request times, about all.
    by_chance = math.sqrt(float(N.mean()) / min(1.0, shape) * min(1.0, _RISE * request / (last - first)))
    rising = (
        rise - t_quantile(0.975, len(N) - 2) * error > 0
        and rise >= _SUSTAINED * due
        and rise * (last - first) > BY_CHANCE * by_chance
        and (rate is None or ended < rate)
    )
    return Backlog(rise, rising=bool(rising))


def _periods(start: float, end: float, period_s: float) -> Floats:
    """Return edges of at most ten equal parts of a window, each of whole periods; what is left over is in none."""
    periods = int((end - start) / period_s * (1 + 1e-6))
    each = max(1, math.ceil(periods / 10))
    return np.asarray(start + each * period_s * np.arange(periods // each + 1))


def began_in(table: Table, level: Level) -> Bools:
    """Return which requests were sent, or in open loop were due, in the level's closed window, shape [requests]."""
    start, end = level.window
    began = table.waited_from(level)
    return np.asarray((table.level == level.index) & (began >= start) & (began < end))


def all_requests(table: Table, level: Level) -> Level:
    """Return the level with a window from its first request to the end of its last, as other tools measure."""
    rows = (table.level == level.index) & ~table.cut & ~np.isnan(table.done)
    if not rows.any():
        return level
    start, end = float(table.began[rows].min()), float(table.done[rows].max())
    return msgspec.structs.replace(level, window_start_s=start, window_end_s=end + 1e-6)


def whole_requests(table: Table, level: Level) -> Level:
    """Return the level with its window cut to a whole number of request times, if it has few; open loop: unchanged.

    Slots that are kept full fall into step on a server that computes prompts in batches: they wait for their first
    tokens together, and end together. A window of one and a half request times then contains one such wait or two, by
    chance, and its throughput is off by up to half. One of whole request times contains as many waits as answers,
    wherever it begins; since the request time is a mean and no constant, it is placed where its throughput is nearest
    to the mean over all places.
    """
    start, end = level.window
    good = began_in(table, level) & table.ok
    if level.concurrency is None or not good.any():
        return level
    request_s = float((table.done - table.sent)[good].mean())
    times = (end - start) / request_s if request_s > 0 else math.inf
    if not _WHOLE <= times < _MANY_REQUESTS:
        return level
    length = min(end - start, max(1, math.floor(times + 1 - _WHOLE)) * request_s)
    starts = start + np.linspace(0.0, end - start - length, _PLACES)
    order = np.argsort(table.arrival, kind="stable")
    arrival, upto = table.arrival[order], np.concatenate([[0], np.cumsum(table.tokens[order])])
    tokens = upto[np.searchsorted(arrival, starts + length)] - upto[np.searchsorted(arrival, starts)]
    start = float(starts[np.argmin(np.abs(tokens - tokens.mean()))])
    return msgspec.structs.replace(level, window_start_s=start, window_end_s=start + length)


def even_rate(table: Table, level: Level, amounts: Floats) -> float | None:
    """Return the rate of `amounts` (one a request) in a window shorter than a request, by Little's law; else None.

    Slots in step (`whole_requests`) send nothing while all wait for their first tokens, and then all at once: what is
    counted within a part of a request is anything between nothing and twice the truth. So it is Little's law,
    N·Σ(part·amount) / Σ(part·time), by the part of each request's time that lies in the window; `amounts` are one a
    request. Requests from before the window did not wait behind a whole queue if the level has just begun, and make a
    full server seem faster than it is: where enough requests began in the window, their mean wait for the first token
    counts for every request. Successes only; the others are taken to be like them, and the rate is nan where these
    are most of them, because we cut them. None in open loop, and where all that was in flight failed.
    """
    start, end = level.window
    inside = np.fmin(table.done, end) - np.fmax(table.sent, start)
    there = (inside > 0) & ~table.failed
    if level.concurrency is None or not there.any():
        return None
    good = there & table.ok & ~np.isnan(amounts)
    took = (table.done - table.sent)[good]
    lasted = took if good.any() else (table.done - table.sent)[there]  # those that were cut, if there are no others
    if end - start >= _WHOLE * float(lasted.mean()):
        return None
    if float(inside[good].sum()) < _KNOWN * float(inside[there].sum()):
        return math.nan
    began = there & (table.sent >= start) & (table.sent < end)
    longer = np.zeros(len(amounts))  # what each would have waited more, had it begun in the window
    if np.count_nonzero(began) >= _BEGAN * level.concurrency:
        if np.count_nonzero(began & good) < _KNOWN * np.count_nonzero(began):
            return math.nan
        wait = np.fmin(table.first, table.done) - table.sent  # the whole time if there is no first token
        longer = float(wait[began & good].mean()) - wait
    part = inside[good] / took
    per_slot = float((part * amounts[good]).sum() / (part * (took + longer[good])).sum())
    return per_slot * float(inside[there].sum()) / (end - start)


def in_flight(table: Table, start: float, end: float, rows: Bools | None = None) -> float:
    """Return the mean number of requests in flight over [start, end), ∫N(t)dt/T, each from its send to its last byte.

    Failed requests count; a request that is still open counts to the end, one that was never sent not at all.
    """
    inside = np.fmin(table.done, end) - np.fmax(table.sent, start)
    counts = inside > 0 if rows is None else rows & (inside > 0)  # zeros would move the last digit by their number
    return float(inside[counts & ~np.isnan(table.sent)].sum()) / (end - start)


def silent(table: Table, level: Level) -> Bools:
    """Return which requests hung, shape [requests]: in flight for half of the window or more, without a token.

    They failed at last, or are the oldest of those that the level did not wait for. They are left out of the requests
    in flight, since no server worked on them.
    """
    start, end = level.window
    over = np.where(np.isnan(table.done), np.inf, table.done)
    inside = np.minimum(over, end) - np.maximum(table.began, start)
    waits = np.where(np.isnan(table.last), True, (table.last < start) | (table.first >= end))
    hung = table.failed & waits & (inside >= _HUNG * (end - start)) & (over - table.began > _HUNG_S)
    if level.hung and level.end_s is not None:
        left = np.flatnonzero(~table.ok & waits & (table.began < end) & (over > level.end_s))
        hung[left[np.argsort(table.began[left])][: level.hung]] = True
    return np.asarray(hung)


def failing_since(table: Table, level: Level) -> float | None:
    """Return from when on every request of a level failed, in seconds since its begin; None: the last ones did not.

    So many failures in a row must be unlikely at the share of the requests before them that failed. A quota's refusals
    (429) end with the quota's time.
    """
    own = (table.level == level.index) & ~np.isnan(table.began)
    failed = own & table.failed
    if level.hung or not failed.any():
        return None
    alive = own & ~failed & (table.ok | ~np.isnan(table.first))
    tail = failed & (table.began > np.fmax(table.done, table.last)[alive].max(initial=-np.inf))
    before, n = own & ~tail, int(tail.sum())
    share = (int((before & failed).sum()) + 1) / (int(before.sum()) + 2)
    quota = any(table.error[row] == "http_429" for row in np.flatnonzero(tail))
    if n == 0 or quota or share**n > _BY_CHANCE:
        return None
    return float(table.began[tail].min()) - level.begin_s


def silence(table: Table, start: float, end: float) -> float | None:
    """Return the longest time in a window, in seconds, without any token while answers streamed; None if not unusual.

    Usual is up to five times what nine of ten gaps between two arrivals last, of any requests, up to a second, and up
    to twice as long as a prompt takes where the others wait for it: a gap that ends in a first token.
    """
    inside = np.sort(table.arrival[(table.arrival >= start) & (table.arrival < end)])
    gaps = np.diff(inside)
    if not len(gaps):
        return None
    usual = max(_SILENCE_S, _SILENCE * float(np.quantile(gaps, 0.9)))
    prompts = gaps[np.isin(inside[1:], table.first)]
    if len(prompts) >= _PROMPTS:
        usual = max(usual, 2 * float(np.quantile(prompts, 0.9)))
    for i in np.argsort(-gaps)[:_SILENCES]:
        if gaps[i] < usual:
            return None
        if ((table.first <= inside[i]) & (table.last >= inside[i + 1])).any():
            return float(gaps[i])
    return None


def little(table: Table, level: Level, start: float, end: float) -> Little:
    """Return requests in flight as counted and by Little's law, λ · mean time, and whether the two differ too much.

    docs/method.md, In flight and Little's law: λ = (starts + ends)/(2T), N ≈ λ·(TTFT + (G - first)·ITL + tail).

    Successes only on both sides. (G - first)·ITL, token-weighted, is the mean of last - first, and the tail that of
    done - last, so the time in system is the mean of done - send over the successes that began in the window.
    """
    ok = table.ok
    starts = ok & (table.sent >= start) & (table.sent < end)
    ends = ok & (table.done >= start) & (table.done < end)
    span = (table.done - table.sent)[starts & ~np.isnan(table.last)]
    counted = in_flight(table, start, end, ok)
    if not len(span) or not counted > 0:  # a damaged file's requests may end before they begin
        return Little(None, None, None, mismatch=False, enough=False)
    by_law = float(starts.sum() + ends.sum()) / (2 * (end - start)) * float(span.mean())
    apart = abs(by_law - counted) / counted
    requests, C = int(starts.sum()), level.concurrency or math.ceil(counted)
    return Little(
        counted,
        by_law,
        apart,
        mismatch=apart > _LITTLE_APART and apart > 2 * C / requests,
        enough=requests >= REQUESTS_A_SLOT * C,
    )
