"""The sessions of a level: requests that belong together, of a user's turns or of an agent's task, as one. Pure.

A session begins with the first send of its requests (in open loop when that was due) and lasts to the last byte of
them all, pauses included. It is of the level that it began in.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.stats import spread
from harness.analysis.table import Bools, Floats, Ints, Table
from harness.data.record import Level
from harness.data.summary import SessionSummary


def of_level(table: Table, level: Level, requests: int | None = None) -> SessionSummary | None:
    """The sessions of a level whose window is closed; None where it has none.

    `table` holds all of the level's requests, `requests` is how many a whole session has. Where that varies (None), a
    session is whole if none of its requests was cut.
    """
    start, end = level.window
    named = table.level == level.index
    named[[row for row in np.flatnonzero(named) if not table.session[row]]] = False
    if not named.any():
        return None
    table = table.only(named)
    codes: dict[str, int] = {}
    of = np.fromiter((codes.setdefault(name, len(codes)) for name in table.session), np.int64, len(table.session))
    n = len(codes)

    def count(rows: Bools) -> Ints:
        return np.bincount(of[rows], minlength=n)

    def latest(times: Floats) -> Floats:
        found = np.full(n, -np.inf)
        np.fmax.at(found, of, times)
        return found

    began = -latest(-(table.began if level.rate is None else table.scheduled))
    done, last = latest(table.done), latest(table.last)
    sent = np.bincount(of, minlength=n)
    whole = (count(table.ok) == sent) & (sent >= (requests or 1))
    counted = (began >= start) & (began < end)
    ended = whole & (done >= start) & (done < end)
    inside = np.minimum(np.where(np.isfinite(done), done, end), end) - np.maximum(began, start)
    return SessionSummary(
        sessions=int(counted.sum()),
        completed=int((counted & whole).sum()),
        failed=int((counted & (count(table.failed) > 0)).sum()),
        in_flight=float(np.maximum(inside, 0.0).sum()) / (end - start),
        sessions_per_s=float(ended.sum()) / (end - start),
        requests_mean=float(sent[counted & whole].mean()) if (counted & whole).any() else None,
        latency_s=spread((done - began)[counted & whole]),
        last_token_s=spread((last - began)[counted & whole]),
    )
