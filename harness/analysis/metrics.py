"""The figures of requests and levels, formula by formula (docs/definitions.md, levels[]).

Left out: which requests and tokens of a level count (`figures`), and whether an SLO is met (`slo`), whose limits on one
request are counted here as goodput.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.analysis.table import Bools, Counts, Floats, Table, pieces, placed_tokens
from harness.data.record import Level

_FIRSTS = ("ttft", "ttfat")
# Failures that are known once the answer is decoded.
_DECODED = ("stream_error", "malformed_event", "truncated", "empty_response", "several_choices")


def ttft(sent: Floats, first: Floats) -> Floats:
    """Return the time to first token: first arrival that carries a token - send; seconds, shape [n]."""
    return first - sent


def tpot(first: Floats, last: Floats, output_tokens: Floats, first_tokens: Floats) -> Floats:
    """Return the time per output token after the first chunk, of the tokens seen to arrive; seconds, shape [n].

    (last - first) / (tokens - tokens in the first chunk); nan where that is < 1.

    >>> tpot(np.array([0.1]), np.array([2.1]), np.array([101.0]), np.array([1.0]))
    array([0.02])
    """
    after = output_tokens - first_tokens
    return np.asarray(np.divide(last - first, after, out=np.full(len(after), np.nan), where=after >= 1))


def mean_itl(first: Floats, last: Floats, output_tokens: Floats, first_tokens: Floats) -> float | None:
    """Return the mean inter-token latency, token-weighted; seconds.

    Σ(last - first) / Σ(output tokens - tokens in the first chunk), over requests where that is >= 1.

    >>> mean_itl(np.array([0.0, 0.0]), np.array([1.0, 8.0]), np.array([11.0, 41.0]), np.array([1.0, 1.0]))
    0.18
    """
    after = output_tokens - first_tokens
    counts = after >= 1  # nan is not
    return float((last - first)[counts].sum() / after[counts].sum()) if counts.any() else None


def peak_rate(arrival: Floats, tokens: Floats | Counts, start: float, end: float) -> float | None:
    """Return the most tokens in any whole second from the window's start on, per second; None in a shorter window."""
    n = int(end - start + 1e-9)
    if n < 1:
        return None
    sums = np.zeros(n)
    for part in pieces(len(arrival)):
        index = (arrival[part] - start).astype(np.int64)
        whole = (arrival[part] >= start) & (index < n)
        sums += np.bincount(index[whole], weights=tokens[part][whole], minlength=n)
    return float(sums.max())


def meets(slo: Mapping[str, float], figures: Mapping[str, Floats], n: int) -> Bools:
    """Return which requests met every limit (seconds a request, by name), shape [n].

    A request without a first token, or without one of its answer, misses a limit on that; an answer of one token has no
    pace, and meets a limit on it.
    """
    met = np.ones(n, dtype=np.bool_)
    for name, limit in slo.items():
        met &= ~(as_judged(name, figures[name]) > limit)
    return met


def as_judged(name: str, figure: Floats) -> Floats:
    """Return a figure of each request as limits see it: what has no first token came too late; shape [requests]."""
    return np.nan_to_num(figure, nan=np.inf if name in _FIRSTS else 0.0, posinf=np.inf)


def figures(table: Table, level: Level, *, stalled: bool) -> dict[str, Floats]:
    """Return every latency that an SLO may limit, in seconds, by name; each of shape [requests], nan where not known.

    They count from the send, in an open loop from when the request was due. ITL of one request is its TPOT, its ICL the
    longest gap between two of its chunks (its stall), which is worked out only with `stalled`.
    """
    origin = table.sent if level.rate is None else table.scheduled  # in open loop our delay counts as waiting (wrk2)
    pace = tpot(table.first, table.last, placed_tokens(table), table.first_tokens)
    latencies = {
        "ttft": ttft(origin, table.first),
        "ttfat": ttft(origin, table.first_content),
        "itl": pace,
        "tpot": pace,
        "e2e": table.done - origin,
    }
    return latencies | {"icl": stalls(table)} if stalled else latencies


def stalls(table: Table) -> Floats:
    """Return the longest gap of token-carrying chunks of each request; seconds, shape [requests], nan below two."""
    longest = np.full(len(table.chunks), np.nan)
    for rows, part in table.pieces():
        chunks = table.chunks[rows]
        owner = np.repeat(np.arange(len(chunks)), chunks)
        later = np.flatnonzero(np.diff(owner) == 0)
        np.fmax.at(longest[rows], owner[later], np.diff(table.arrival[part])[later])
    return longest


def steps(icls: Floats, T: float, replicas: int, *, reorder: bool = False) -> int:
    """Return how many of the gaps are independent: one a step of each replica, as a step gives all streams one gap.

    There are T ÷ median gap steps. `reorder`: the gaps may be put into another order, instead of a copy of them.
    """
    if not len(icls):
        return 0
    median = float(np.median(icls, overwrite_input=reorder))
    return min(len(icls), int(T / median * replicas)) if median > 0 else len(icls)


def late_share(table: Table, level: Level, start: float, end: float) -> float:
    """Return the share of the slots' time in a window that stood empty because of the client, 0 to 1.

    Σ(send − end of the request before in the slot, connecting left out) / (C · T), as far as it lies in the window,
    which is lag/(E2E + lag) where each is like the other. The pause after a failure is meant, and not in it. After one
    that only the decoded answer shows it may come one request later.
    """
    assert level.concurrency is not None
    next_one = np.isin(table.scheduled, table.done[np.isin(table.error, _DECODED)])
    after_failure = np.isin(table.scheduled, table.done[table.failed | next_one])
    late = (table.sent >= start) & (table.scheduled < end) & ~after_failure
    until = np.minimum(table.sent[late] - np.nan_to_num(table.connect[late]), end)
    empty = np.maximum(until - np.maximum(table.scheduled[late], start), 0.0)
    return float(empty.sum() / (level.concurrency * (end - start)))
