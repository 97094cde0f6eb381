"""What a level's requests show besides its figures: sessions and lost replicas. Pure.

A session are requests that belong together, of a user's turns or of an agent's task. It begins with the first send of
its requests (in open loop when that was due), lasts to the last byte of them all, pauses included, and is of the level
that it began in.

A replica is lost from the end of the first of three or more failures in a row, until the send of its next request that
succeeds, while other replicas answer. What a replica refuses (4xx) is no loss, and a loss of all replicas at once is
the failure of the whole endpoint.

A server that takes at most N requests at once refuses those that find N in flight, and no others. A quota of requests
per second refuses requests however many are in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from harness.analysis import metrics
from harness.analysis.stats import spread
from harness.analysis.table import Bools, Floats, Ints, Table
from harness.data.levels import CACHED, SessionSummary
from harness.data.record import Level, LevelNote
from harness.data.summary import FOUND, PROVISIONAL, Curve, LossPhase, NodeLoss
from harness.spec.choices import LOST

TURNS = 8  # turns that count by themselves; the last also counts all later ones

# ---- sessions ----------------------------------------------------------------------------------------------------


def sessions(table: Table, level: Level, requests: int | None = None) -> SessionSummary | None:
    """Return the sessions of a level whose window is closed; None if it has none.

    `table` holds all of the level's requests, `requests` is how many a whole session has. Where that varies (None), a
    session is whole if it began in the level, none of its requests was cut, and it then sent nothing for longer than
    any pause of the level lasted: so long no tool takes. A slot begins a session as soon as the one before is over, so
    as many are completed in the window as begin in it, but for those that failed.
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
        latest_s = np.full(n, -np.inf)
        np.fmax.at(latest_s, of, times)
        return latest_s

    began = -latest(-table.waited_from(level))
    done, last = latest(table.done), latest(table.last)
    sent = np.bincount(of, minlength=n)
    spans = _spans(of, table)
    whole = (count(table.ok) == sent) & (sent >= (requests or 1))
    counted = (began >= start) & (began < end) & (count(table.turn == 0) > 0)
    ended = int((whole & (done >= start) & (done < end)).sum())
    if requests is None:
        whole &= (count(table.turn == 0) > 0) & (done + spans.paused_s.max(initial=0.0) < table.began.max())
        ended = int(counted.sum() - ((count(table.failed) > 0) & (done >= start) & (done < end)).sum())
    usage = table.ok & ~np.isnan(table.cached_tokens) & (table.input_tokens > 0)
    prompts, hits = (np.where(usage, each, 0.0) for each in (table.input_tokens, table.cached_tokens))
    of_sessions = np.bincount(of, hits, n) / np.maximum(np.bincount(of, prompts, n), 1.0)
    inside = np.minimum(np.where(np.isfinite(done), done, end), end) - np.maximum(began, start)
    in_flight = float(np.maximum(inside, 0.0).sum()) / (end - start)
    tokens = table.output_tokens[table.ok & (table.done >= start) & (table.done < end)].sum() / (end - start)
    idle = max(0.0, (level.concurrency or in_flight) - spans.busy_s(start, end) / (end - start))
    completed = counted & whole
    return SessionSummary(
        sessions=int(counted.sum()),
        completed=int(completed.sum()),
        failed=int((counted & (count(table.failed) > 0)).sum()),
        in_flight=in_flight,
        sessions_per_s=max(0, ended) / (end - start),
        requests_mean=float(sent[completed].mean()) if completed.any() else None,
        latency_s=spread((done - began)[completed]),
        last_token_s=spread((last - began)[completed]),
        cached_fraction=spread(of_sessions[completed]) if usage.any() else UNSET,
        **_by_turn(table, table.waited_from(level), usage, prompts, hits),
        tokens_per_minute=60 * float(tokens) / in_flight if in_flight else None,
        idle=idle,
        idle_tokens=idle * spans.waiting_tokens if spans.tokens.size else None,
    )


def _by_turn(
    table: Table, began: Floats, usage: Bools, prompts: Floats, hits: Floats
) -> dict[str, list[float | None] | UnsetType]:
    """Return cached share by turn, TTFT by turn and TTFT by cached share, under their names in a SessionSummary.

    `usage` marks the requests whose `prompts` and `hits`, in tokens, are known.
    """
    ttft = metrics.ttft(began, table.first)
    first = table.ok & ~np.isnan(ttft)
    place, known = np.minimum(table.turn, TURNS - 1), usage & first
    shares = hits / np.maximum(prompts, 1.0)
    return {
        "cached_by_turn": _over(place[usage], hits[usage], prompts[usage]) if usage.any() else UNSET,
        "ttft_by_turn_s": _over(place[first], ttft[first]) if first.any() else UNSET,
        "ttft_by_cached_s": _over(np.digitize(shares[known], CACHED), ttft[known]) if known.any() else UNSET,
    }


class _Spans(NamedTuple):
    """Times of sessions, shape [2, n], in seconds: with a request in flight; then with none, between two of them."""

    busy: Floats
    paused: Floats
    tokens: Floats  # tokens of the conversation in each pause: the prompt and the answer before it

    @property
    def paused_s(self) -> Floats:
        found: Floats = self.paused[1] - self.paused[0]
        return found

    @property
    def waiting_tokens(self) -> float:
        """Return the tokens of a conversation in a pause, the mean over the time of all."""
        return float((self.paused_s * self.tokens).sum() / self.paused_s.sum())

    def busy_s(self, start: float, end: float) -> float:
        """Return how long all sessions together had a request in flight within a window, in seconds."""
        return float(np.maximum(np.minimum(self.busy[1], end) - np.maximum(self.busy[0], start), 0.0).sum())


def _spans(session_of: Ints, table: Table) -> _Spans:
    """Return when sessions had a request in flight, when they paused, and their conversations' tokens in the pauses.

    session_of[i] is the session of request i. A request without an end is in flight for good.
    """
    done = np.where(np.isnan(table.done), np.inf, table.done)
    ended: dict[int, tuple[float, float]] = {}  # by session: its last end so far, its conversation's tokens
    busy, paused = [], []
    for row in np.argsort(table.began, kind="stable").tolist():
        since, tokens = ended.get(session := int(session_of[row]), (-np.inf, 0.0))
        began, until = table.began[row], max(done[row], since)
        busy.append((max(began, since), until))
        if began > since > -np.inf:
            paused.append((since, began, tokens))
        if until > since:
            ended[session] = until, table.input_tokens[row] + table.output_tokens[row]
    *pauses, of_pauses = np.array(paused, np.float64).reshape(-1, 3).T
    return _Spans(np.array(busy, np.float64).T, np.array(pauses), of_pauses)


def _over(place: Ints, parts: Floats, wholes: Floats | None = None) -> list[float | None]:
    """Return for each place Σ parts/Σ wholes of the entries that belong there; without wholes, the mean of the parts.

    >>> _over(np.array([0, 2, 2]), np.array([0.0, 60.0, 30.0]), np.array([100.0, 100.0, 100.0]))
    [0.0, None, 0.45]
    """
    found, whole = np.bincount(place, parts), np.bincount(place, wholes)
    return [float(part / all_) if all_ else None for part, all_ in zip(found, whole, strict=True)]


# ---- refused requests --------------------------------------------------------------------------------------------

_GONE = {LevelNote.STALLED, LevelNote.REFUSED}  # nobody was there to refuse
_FEW = 3  # requests refused, and taken, that show how many are taken at once
_NEARLY_ALL = 0.9  # share of the refused that found so many in flight or more, and of the taken that found fewer


def taken_at_once(table: Table, level: Level) -> int | None:
    """Return how many requests at once the server takes if it refused those on top of them alone; else None.

    A refused request counts those in flight when it was sent or when it was answered, whichever are more: the server
    may have seen one first that was sent later.
    """
    refused = table.failed & np.isnan(table.first)
    taken, own = ~refused & ~np.isnan(table.sent), (table.level == level.index) & ~np.isnan(table.sent)
    if min((own & refused).sum(), (own & taken).sum()) < _FEW or _GONE & {*level.notes}:
        return None
    begins, ends = np.sort(table.sent[taken]), np.sort(table.done[taken])  # those without an end come last
    found, later = (np.searchsorted(begins, at) - np.searchsorted(ends, at, "right") for at in (table.sent, table.done))
    of_refused, of_taken = np.maximum(found, later)[own & refused], found[own & taken]
    most = int(np.quantile(of_refused, 1 - _NEARLY_ALL, method="lower"))
    return most if float((of_taken < most).mean()) >= _NEARLY_ALL else None


# ---- lost replicas -----------------------------------------------------------------------------------------------


FEWEST = 3  # failures in a row that are a loss
STOPPED = "stopped"
_FEWEST_COMPARED = 10  # requests of the others before a loss, and during it, whose throughputs are compared


class Span(msgspec.Struct, frozen=True):
    """When a replica was lost; seconds since the run's origin, `end_s` None if it did not come back."""

    url: str
    start_s: float
    end_s: float | None


def losses(table: Table, levels: Sequence[Level], urls: Sequence[str], fitted: Curve | None = None) -> list[NodeLoss]:
    """Return every loss of a replica in a run's finished levels, by time, with failures, recovery, throughput."""
    losses = []
    for level in levels if len(urls) > 1 else ():
        of_level = table.only(table.level == level.index)
        spans = [span for url in urls for span in stops(of_level, url)]
        losses += [_loss(of_level, level, span, len(urls), fitted) for span in spans]
    return sorted(losses, key=lambda loss: loss.start_s)


def stops(table: Table, url: str) -> Iterator[Span]:
    """Yield each time span in which a replica failed several requests in a row while other replicas answered."""
    own = table.to(url)
    failed = own & np.fromiter((error in LOST for error in table.error), np.bool_, len(table.error))
    ended = np.flatnonzero(own & (failed | table.ok) & ~np.isnan(table.done))
    ended = ended[np.argsort(table.done[ended], kind="stable")]
    for first, last in _runs(failed[ended], FEWEST):
        start = float(table.done[ended[first]])
        answered = own & table.ok & (table.sent > start)
        end = float(table.sent[answered].min()) if answered.any() else None
        until = float(table.done[ended[last]]) if end is None else end
        if (~own & table.ok & (table.done >= start) & (table.sent <= until)).any():
            yield Span(url, start, end)


def _runs(marked: Bools, least: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of every series of at least `least` True values in a row.

    >>> list(_runs(np.array([True, False, True, True, True]), 2))
    [(2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - first >= least:
            yield first, end - 1


def _loss(table: Table, level: Level, span: Span, count: int, fitted: Curve | None) -> NodeLoss:
    """Return the failures and the recovery time of a replica's loss, and throughput before, during and after it.

    Whether the others could carry the load of all is judged by their part of the fitted plateau, or, without one, by
    what they gave meanwhile.
    """
    begin = level.begin_s if level.window_start_s is None else level.window_start_s
    end = level.window_end_s if level.window_end_s is not None else float(np.nanmax(table.done))
    begin = begin if begin < span.start_s else level.begin_s
    over = max(end, span.start_s) if span.end_s is None else span.end_s
    lost = table.to(span.url)
    until = np.inf if span.end_s is None else span.end_s
    failures = table.done[lost & table.failed & (table.done >= span.start_s) & (table.done <= until)]
    before = _phase(table, ~lost, begin, span.start_s)
    plateau = None
    if fitted is not None and fitted.state in (FOUND, PROVISIONAL) and fitted.plateau_tokens_per_s.value:
        plateau = fitted.plateau_tokens_per_s.value * (count - 1) / count
    during = _phase(table, ~lost, span.start_s, over)
    held = None
    if before is not None:
        held = _carried(before, during, count) if plateau is None else before.output_tokens_per_s <= plateau
    return NodeLoss(
        url=span.url,
        kind=STOPPED,
        at=level.concurrency if level.rate is None else level.rate,
        start_s=span.start_s,
        end_s=span.end_s,
        recovery_s=None if span.end_s is None else span.end_s - span.start_s,
        errors=len(failures),
        errors_s=float(failures.max() - failures.min()) if len(failures) else None,
        before=before,
        during=during,
        after=None if span.end_s is None else _phase(table, ~lost, span.end_s, end),
        survivors_plateau_tokens_per_s=plateau,
        headroom_held=held,
    )


def _carried(before: LossPhase, during: LossPhase | None, count: int) -> bool | None:
    """Return whether the others gave during the loss what all gave before it; None if they had too few requests.

    They did where throughput fell by less than half of one replica's share.
    """
    if during is None or min(before.survivors_ttft_s.n, during.survivors_ttft_s.n) < _FEWEST_COMPARED:
        return None
    return during.output_tokens_per_s >= before.output_tokens_per_s * (1 - 0.5 / count)


def _phase(table: Table, survivors: Bools, start: float, end: float) -> LossPhase | None:
    """Return throughput, in flight and TTFT from start to end, of all and of the `survivors`; None if end ≤ start."""
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
