"""How a server divides its busy time between prompts and responses at one level, by the gaps between its tokens.

Every stream of a server gets a token in each of its steps, so a gap between two tokens of a stream is a step. A step
without a prompt takes d(B, K), by the B requests that stream and the K tokens that they hold. A step that computes a
prompt, or a chunk of one, takes longer, and what it takes longer is the prompt's. Where nobody streams and somebody
waits, all time is the prompt's.

    decoding = Σ d over the steps,  prefill = busy - decoding

d is seen in the steps that surely have no prompt: no request was without its first token then. Where requests always
wait, and as many stream as the server serves at once, they are those in which all seats stream. Where there are too few
of them the account is refused, or made with the d of other levels. Left out: several engines behind one URL, of which
the records do not say who answered; time in the network, which is in the first token of a lone request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.seats import EDGE
from harness.analysis.stats import t_quantile
from harness.analysis.table import Bools, Floats, Table, follows, gaps
from harness.data.levels import LevelPhases, LevelSummary, Service
from harness.data.views import Estimate, ServerView

_FEWEST = 20  # steps without a prompt, from which on their time counts as known
_VARIES = 0.05  # share of its mean by which B or K has to vary before d is fitted over it
_SLOW = 2.0  # times the usual step without a prompt: a pause of the server's, and no step
_BLOCKS = 10  # blocks of a window, whose scatter makes the intervals
_HALF = 0.5  # share of a step by which the tokens of one step may come apart
_LONGER = 1.25  # times a step without a prompt, up to which any step counts as one
_MOST = 1 << 19  # gaps that are looked at: of more, some of each step
_AGREE = 0.1  # share of the server's own time of a prompt, up to which the records agree with it
_LEVELS = 0.02  # relative error of a step by other levels, at least
_FURTHEST = 5.0  # times the largest batch of them

NO_STREAM = "no response streams"
ALWAYS = "a prompt is computed or waits in nearly every step, so that none is known to be without one"


class Step(msgspec.Struct, frozen=True):
    """A step without a prompt, d = a + b B + c K, in seconds; `error` is relative."""

    a: float
    b: float = 0.0
    c: float = 0.0
    error: float = 0.0

    def seconds(self, batch: Floats, context: Floats) -> Floats:
        """Return the time of steps of so many requests that hold so many tokens; seconds, shape [steps]."""
        return np.asarray(self.a + self.b * batch + self.c * context)

    def mean(self, level: LevelPhases) -> float:
        """Return the time of a step of a level's mean batch and context; seconds."""
        return self.a + self.b * (level.batch or 0.0) + self.c * (level.context or 0.0)


class Gaps(msgspec.Struct, frozen=True):
    """The gaps that end in a level's window, each a part of a step; columns of shape [gaps]."""

    end: Floats
    seconds: Floats
    tokens: Floats  # at its end
    time: Floats  # the server's time in this gap: a stream of B has 1/B of it
    batch: Floats  # requests that stream
    context: Floats  # tokens that they hold
    plain: Bools  # surely without a prompt

    @property
    def steps(self) -> Floats:
        """Return what part of a step each gap is, about 1/B."""
        return np.asarray(self.time / self.seconds)


def phases(table: Table, start: float, end: float, service: Service | None, server: ServerView | None) -> LevelPhases:
    """Return how one server's time in [start, end) is divided between prompts and decoding, or why that is not known.

    Waiting and prompt times that the server publishes are used as they are; what TTFT has beyond them passes outside
    of the server, and is no time of a prompt.
    """
    seats = service.most if service and service.most_fraction >= EDGE else None
    of_requests = (server.queue_s, server.prefill_s) if server else (None, None)
    queue_s, prefill_s = (spread.mean if spread else None for spread in of_requests)
    gaps = gaps_of(table, start, end, seats)
    if gaps is None:
        return LevelPhases(prefill_s=prefill_s, wait_s=queue_s, source="server" * bool(prefill_s), reason=NO_STREAM)
    answered = table.ok & (table.first >= start) & (table.first < end)
    ttft_s = float(np.mean((table.first - table.sent)[answered])) if answered.any() else 0.0
    outside_s = 0.0 if prefill_s is None else max(0.0, ttft_s - prefill_s - (queue_s or 0.0))
    nobody = _nobody_streams(table, start, end, outside_s)
    time, steps = float(gaps.time.sum()), float(gaps.steps.sum())
    measured = LevelPhases(
        busy=min(1.0, (time + float(nobody[1].sum())) / (end - start)),
        steps_per_s=steps / (end - start),
        batch=float((gaps.batch * gaps.steps).sum()) / steps,
        context=float((gaps.context * gaps.steps).sum()) / steps,
        prefill_s=prefill_s,
        wait_s=queue_s,
        source="server" * bool(prefill_s),
    )
    step = plain_step(gaps)
    if step is None:
        return msgspec.structs.replace(measured, reason=ALWAYS)
    divided = _divided(measured, _Blocks.of(table, gaps, step, nobody, (start, end)), step)
    own_s = _prompt_times(table, gaps, step, answered)
    if own_s is None:
        return divided
    if prefill_s is None:
        return msgspec.structs.replace(divided, prefill_s=own_s, wait_s=max(0.0, ttft_s - own_s))
    if abs(own_s - prefill_s) <= _AGREE * prefill_s:
        return msgspec.structs.replace(divided, source="both")
    why = f"a prompt takes {own_s * 1e3:.3g} ms by the records, {prefill_s * 1e3:.3g} ms by the server's histogram"
    return msgspec.structs.replace(divided, reason=why)


def _prompt_times(table: Table, found: Gaps, step: Step, rows: Bools) -> float | None:
    """Return the mean seconds from the begin of the step that computes a prompt to its first token, of marked requests.

    That step begins at the last of: the send, the end of the step without a prompt before it, the first token before.
    """
    seconds = step.seconds(found.batch, found.context)
    within = _HALF * float(np.median(seconds))
    first, sent = table.first[rows], table.sent[rows]
    firsts, lasts = (np.sort(each[~np.isnan(each)]) for each in (table.first, table.last))
    begins = np.searchsorted(firsts, found.end + within) > np.searchsorted(firsts, found.end - found.seconds + within)
    more = (found.seconds - seconds)[begins]  # steps that end with a first token
    limit = np.maximum(_LONGER * seconds, seconds + _HALF * float(np.median(more) if len(more) else 0.0))
    plain = np.sort(found.end[found.seconds <= limit])
    at = [sent, *(_before(each, first - within) for each in (plain, firsts))]
    # If nobody streams, the last token of anybody was the end of a step.
    alone = _Running.of(table).at(first - within)[0] == 0
    at.append(np.where(alone, _before(lasts, first - within), -np.inf))
    begin = np.max(at, axis=0)
    known = (sent >= found.end[0]) | (begin > sent)
    return float(np.mean((first - begin)[known])) if known.any() else None


def _before(times: Floats, limits: Floats) -> Floats:
    """Return for each limit the latest of the sorted times that is not after it; -inf if all are."""
    return np.concatenate([[-np.inf], times])[np.searchsorted(times, limits, side="right")]


def completed(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """Return the levels, those without steps that have no prompt divided into prefill and decode by the other levels.

    A line through these gives the time of such a step. A level far above all of them stays without, as it may be wrong.
    """
    known = [x.phases for x in levels if x.phases and x.phases.step_s]
    B, K, seconds = (np.array([getattr(x, name) for x in known]) for name in ("batch", "context", "step_s"))
    if len(np.unique(np.round(B))) < 2:
        return list(levels)
    step = fit(B, K, seconds, 1 / seconds**2)
    off, most = float(np.abs(step.seconds(B, K) / seconds - 1).max()), float(B.max())

    def complete(level: LevelSummary) -> LevelSummary:
        """Return the level with its phases by the line, unless it has steps of its own or lies too far above others."""
        phases = level.phases
        if not phases or phases.reason != ALWAYS or not phases.batch or phases.batch > _FURTHEST * most:
            return level
        error = max(off, _LEVELS) * max(1.0, phases.batch / most)
        made = _by_level(level, phases, step.mean(phases), error)
        return msgspec.structs.replace(level, phases=made, prefill_tokens_per_s=made.prefill_tokens_per_s.mean)

    return [complete(level) for level in levels]


def _by_level(level: LevelSummary, measured: LevelPhases, step_s: float, error: float) -> LevelPhases:
    """Return a level's prefill and decode rates, given the seconds of its steps without a prompt and their error.

    They are returned unchanged where decoding would take no time, or all the time that the server was busy.
    """
    busy, decoding = measured.busy or 1.0, step_s * (measured.steps_per_s or 0.0)
    if not 0 < decoding < busy:
        return measured
    prompts = (level.input_tokens_per_s.mean or math.nan) * (1 - (level.cached_input_fraction or 0.0))
    prefill, width = busy - decoding, error * decoding

    def over(part: float, whole: float, half: float) -> Estimate:
        if math.isnan(part):
            return Estimate(None)
        return Estimate(part / whole, (part / (whole + half), part / max(whole - half, 1e-9 * whole)))

    share = prefill / busy
    return msgspec.structs.replace(
        measured,
        prefill_tokens_per_s=over(prompts, prefill, width),
        decode_tokens_per_s=over(level.decode_tokens_per_s or math.nan, decoding, width),
        prefill_share=Estimate(share, (max(0.0, share - width / busy), min(1.0, share + width / busy))),
        step_s=step_s,
        source="levels",
        reason="",
    )


def gaps_of(table: Table, start: float, end: float, seats: int | None) -> Gaps | None:
    """Return the gaps between chunks that end in [start, end), with batch and context then, and which had no prompt."""
    streams = table.last > table.first
    rows = follows(table, streams)
    at, seconds = table.arrival[rows], gaps(table, streams)
    # What comes at once is of one step. Chunks that come with the first of a response have no gap, as it has none.
    own = np.flatnonzero((seconds > 0) | (np.diff(np.flatnonzero(rows), prepend=-1) > 1))
    at, seconds, tokens = at[own], seconds[own], np.add.reduceat(table.tokens[rows], own, dtype=np.int64)
    kept = np.flatnonzero((seconds > 0) & (at >= start) & (at < end))
    if not len(kept):
        return None
    each = -(-len(kept) // _MOST)
    kept = kept[each // 2 :: each]
    at, seconds = at[kept], seconds[kept]
    running = _Running.of(table)
    batch, context = running.at(at - _HALF * seconds)
    time = (running.shared(at) - running.shared(at - seconds)) * each
    plain = ~_unanswered(table, at - seconds, at)
    if seats and (time / seconds)[plain].sum() < _FEWEST:
        firsts = np.sort(table.first[~np.isnan(table.first)])
        half = _HALF * seconds
        begins = np.searchsorted(firsts, at + half) > np.searchsorted(firsts, at - half)
        plain = (batch >= seats) & ~begins
    return Gaps(at, seconds, tokens[kept].astype(np.float64) * each, time, batch, context, plain)


def _unanswered(table: Table, since: Floats, until: Floats) -> Bools:
    """Return for each span of time whether some request in flight was without its first token in it, shape [spans]."""
    sent = table.began
    answered = np.where(np.isnan(table.first), np.where(np.isnan(table.done), np.inf, table.done), table.first)
    came = np.searchsorted(np.sort(sent), until - 1e-6, side="left")
    gone = np.searchsorted(np.sort(answered), since + 1e-6, side="right")
    return np.asarray(came > gone)


class _Running(msgspec.Struct, frozen=True):
    """The streams over time: at each of `edges` how many begin or end, and the integral of 1/B up to it."""

    edges: Floats
    batch: Floats  # from each edge on
    held: Floats  # tokens at time 0, if each stream had always grown as fast as it does; from each edge on
    growth: Floats  # tokens per second
    integral: Floats

    @classmethod
    def of(cls, table: Table) -> _Running:
        """Return how many requests stream, and with how many tokens of context, from each edge of time on."""
        rows = np.flatnonzero(table.last > table.first)
        first, last = table.first[rows], table.last[rows]
        growth = table.chunks[rows] / (last - first)
        held = np.nan_to_num(table.input_tokens[rows]) - growth * first
        edges = np.concatenate([first, last])
        order = np.argsort(edges, kind="stable")
        edges = edges[order]

        def over_time(each: Floats) -> Floats:
            return np.asarray(np.cumsum(np.concatenate([each, -each])[order]))

        batch = over_time(np.ones(len(rows)))
        spans = np.diff(edges) / np.maximum(batch[:-1], 1.0) * (batch[:-1] >= 1)
        return cls(edges, batch, over_time(held), over_time(growth), np.concatenate([[0.0], np.cumsum(spans)]))

    def at(self, times: Floats) -> tuple[Floats, Floats]:
        """Return the requests that stream at these times, and the tokens that they hold."""
        i = np.searchsorted(self.edges, times, side="right") - 1
        return self.batch[i], self.held[i] + self.growth[i] * times

    def shared(self, times: Floats) -> Floats:
        """Return the integral of 1/B from the first edge to these times; seconds."""
        return np.interp(times, self.edges, self.integral)


def plain_step(found: Gaps) -> Step | None:
    """Return the step time as a line over batch and context, fitted to gaps without a prompt; None: too few steps."""
    rows = np.flatnonzero(found.plain)
    if found.steps[rows].sum() < _FEWEST:
        return None
    usual = np.median(found.seconds[rows])
    rows = rows[found.seconds[rows] <= _SLOW * usual]
    return fit(found.batch[rows], found.context[rows], found.seconds[rows], found.steps[rows])


def fit(batch: Floats, context: Floats, seconds: Floats, weight: Floats) -> Step:
    """Return the step time a + b·batch + c·context by weighted least squares; coefficients ≥ 0, 0 for what is constant.

    >>> B = np.array([1.0, 2.0, 4.0])
    >>> fit(B, B * 0, 0.01 + 0.001 * B, B * 0 + 1)
    Step(a=0.01, b=0.001, c=0.0, error=0.0)
    """
    columns = [np.ones(len(batch)), batch, context]
    varies = [True, *(float(column.std()) > _VARIES * abs(float(column.mean())) for column in columns[1:])]
    root = np.sqrt(weight)
    for chosen in ((0, 1, 2), (0, 2), (0, 1), (0,)):
        if not all(varies[i] for i in chosen):
            continue
        A = np.stack([columns[i] for i in chosen], axis=1)
        scale = np.abs(A).mean(axis=0)
        found, _, _, _ = np.linalg.lstsq(A / scale * root[:, None], seconds * root, rcond=None)
        if (found >= 0).all():
            break
    coefficients = np.zeros(3)
    coefficients[list(chosen)] = found / scale
    off = seconds - A @ (found / scale)
    steps = float(weight.sum())
    spread = math.sqrt(float(weight @ off**2) / steps) / float(weight @ seconds / steps)
    a, b, c = (round(float(coefficient), 12) for coefficient in coefficients)
    return Step(a, b, c, round(spread / math.sqrt(max(1.0, steps - len(chosen))), 9))


class _Blocks(msgspec.Struct, frozen=True):
    """Seconds and tokens of both phases in equal parts of a window; columns of shape [blocks]."""

    prefill_s: Floats
    decode_s: Floats
    prompt_tokens: Floats
    tokens: Floats

    @classmethod
    def of(
        cls, table: Table, found: Gaps, step: Step, nobody: tuple[Floats, Floats], window: tuple[float, float]
    ) -> _Blocks:
        """Return the window's seconds of prompts and of decoding, and the tokens of both, in blocks of equal length."""
        start, end = window

        def summed(times: Floats, amounts: Floats) -> Floats:
            block = ((times - start) * (_BLOCKS / (end - start))).astype(np.int64)
            return np.bincount(np.minimum(block, _BLOCKS - 1), amounts, _BLOCKS).astype(np.float64)

        decode_s = step.seconds(found.batch, found.context) * found.steps
        began = (table.first >= start) & (table.first < end)
        fresh = table.input_tokens - np.nan_to_num(table.cached_tokens)
        fresh = np.where(np.isnan(fresh), np.nanmean(fresh) if (~np.isnan(fresh)).any() else np.nan, fresh)
        return cls(
            prefill_s=summed(found.end, found.time - decode_s) + summed(*nobody),
            decode_s=summed(found.end, decode_s),
            prompt_tokens=summed(table.first[began], fresh[began]),
            tokens=summed(found.end, found.tokens),
        )


def _nobody_streams(table: Table, start: float, end: float, outside_s: float) -> tuple[Floats, Floats]:
    """Return the times in [start, end) in which requests were in flight and none streamed: their ends, their seconds.

    Such a time ends with a first token, or with a request that gets none. `outside_s` of it is outside of the server.
    """
    over = np.fmax(table.done, table.last)
    over = np.where(np.isnan(over), np.inf, over)
    streams = table.last > table.first
    edges = np.concatenate([table.began, over, table.first[streams], table.last[streams]])
    requests, some = np.ones(len(over)), np.ones(int(streams.sum()))
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    flight = np.cumsum(np.concatenate([requests, -requests, 0 * some, 0 * some])[order])
    streaming = np.cumsum(np.concatenate([0 * requests, 0 * requests, some, -some])[order])
    alone = np.concatenate([[False], (flight > 0) & (streaming == 0)])[:-1]
    at = np.flatnonzero(alone & (edges >= start) & (edges < end))
    ends = np.flatnonzero(streaming[at] > 0)
    spans = edges[at] - edges[at - 1]
    spans[ends] -= outside_s
    return edges[at], np.maximum(0.0, spans)


def _divided(measured: LevelPhases, blocks: _Blocks, step: Step) -> LevelPhases:
    """Return the phases with the rates and the shares of prefill and decode, by the blocks' times and their scatter."""
    busy = blocks.prefill_s + blocks.decode_s
    decode_error = step.error * float(blocks.decode_s.sum())
    return msgspec.structs.replace(
        measured,
        prefill_tokens_per_s=_ratio(blocks.prompt_tokens, blocks.prefill_s, 0.0, decode_error),
        decode_tokens_per_s=_ratio(blocks.tokens, blocks.decode_s, 0.0, decode_error),
        prefill_share=_ratio(blocks.prefill_s, busy, decode_error, most=1.0),
        step_s=step.mean(measured),
        source="records",
    )


def _ratio(
    part: Floats, whole: Floats, part_error: float, whole_error: float = 0.0, most: float = math.inf
) -> Estimate:
    """Return Σ part/Σ whole with its 95 % interval, by the scatter of the blocks and the errors of the two sums.

    It is cut at 0 and at `most`: where a phase takes next to nothing, chance puts it below 0.
    """
    total = float(whole.sum())
    if not total > 0 or math.isnan(float(part.sum())):
        return Estimate(None)  # nothing of the phase was seen
    value, n = float(part.sum()) / total, len(part)
    off = part - value * whole
    variance = n * float(off.var(ddof=1)) + part_error**2 + (value * whole_error) ** 2
    half = t_quantile(0.975, n - 1) * math.sqrt(variance) / total
    low, mean, high = (min(most, max(0.0, each)) for each in (value - half, value, value + half))
    return Estimate(mean, (low, high))
