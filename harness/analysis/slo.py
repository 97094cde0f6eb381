"""Does a level meet the SLO, and up to which load: counts of what met a limit, their intervals, and the SLO knee.

`ttft_p99=2s` asks that 99 % of the requests have a TTFT of at most 2 s. So a limit is judged by attainment, the share
that met it, against the share needed, and never by comparing a percentile. It is met where so many would be as good as
impossible if the true share were less than what is needed: at most 1 - confidence, by the binomial distribution, on the
one side that matters. It is missed where so few would be. Else it is unresolved, which is common: where all n samples
met a p99 limit, 0.99ⁿ is 5 % at n = 299, and 1 % at n = 459, as MLPerf's early stopping asks; a p99.9 limit needs 2,995
and 4,603. Failures and timeouts are misses, requests that we cut are left out. Wilson's 95 % interval of the share is
shown with it.

Requests come in clumps (all that are in flight share a stall), so n of them may carry less information than n
independent ones. How much less is read off time blocks (`clumping`), and only what is left is counted.

Left out: how long a level has to last for a decision, and goodput, which `metrics.meets` counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from msgspec import UNSET

from harness.analysis import metrics
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.figures import LUMPED, TOKENS_PER_CHUNK, cut_short
from harness.analysis.rules.requests import errors_above_1_percent, unstable
from harness.analysis.stats import Z95, batches, incomplete_beta, t_quantile, uncorrelated, wilson
from harness.analysis.table import Bools, Floats, Table, follows, placed_tokens
from harness.analysis.table import gaps as gaps_of
from harness.analysis.window import began_in
from harness.base import units
from harness.data.judgement import Outcome
from harness.data.levels import Attainment, LevelSummary
from harness.data.record import Level
from harness.data.views import Value
from harness.spec.scenario import SLO_CONFIDENCE

_NEEDED = 0.99  # share that has to meet a limit which names no percentile
CONFIDENCE = SLO_CONFIDENCE
# docs/method.md, Attainment of an SLO: at least 10 time blocks of at least 2 request times
_BLOCKS, _REQUEST_TIMES = 10, 2
CLUMP_TIMES = _BLOCKS * _REQUEST_TIMES  # request times of a window, from which on it shows how samples clump
_AGREE = 1.5  # variances of blocks and of independent samples that are closer than this agree
QUEUE_TIMES = 3.0  # times that the queue's own time fits into a window
_MORE = 1.02  # times as many samples are tried, until they decide
_FEWEST_LATE = 20  # late samples that show how they clump: with 10, intervals of a queue's waits cover too little


class SloLimit(msgspec.Struct, frozen=True):
    """One limit of an SLO: `needed` of all samples have a `figure` of at most `seconds`."""

    name: str  # like "ttft_p99"
    figure: str  # ttft | ttfat | itl | tpot | e2e | icl
    needed: float  # share, 0 to 1
    seconds: float
    confidence: float = CONFIDENCE  # confidence with which it has to be met, or missed

    @property
    def of_gaps(self) -> bool:
        """Return whether gaps are its samples (a percentile of ITL or ICL), not requests."""
        return self.figure in ("itl", "icl") and self.name != self.figure

    def __str__(self) -> str:
        return f"{self.name}={units.duration(self.seconds)}"


def limits(slo: Mapping[str, float], confidence: float = CONFIDENCE) -> list[SloLimit]:
    """Return the limits of an SLO, seconds by name, in their order; without a percentile 0.99 have to meet it.

    >>> [(str(limit), limit.figure, limit.needed) for limit in limits({"ttft_p90": 2.0, "e2e": 0.5})]
    [('ttft_p90=2s', 'ttft', 0.9), ('e2e=500ms', 'e2e', 0.99)]
    """
    for name in slo:
        units.known_limit(name, "slo")
    named = [(name, *units.LIMITS[name], seconds) for name, seconds in slo.items()]
    return [
        SloLimit(name, figure, _NEEDED if share is None else share, limit, confidence)
        for name, figure, share, limit in named
    ]


def per_request(limits: Sequence[SloLimit]) -> dict[str, float]:
    """Return the limits of goodput on one request, for `metrics.meets`: seconds by figure, the tightest limit of each.

    >>> per_request(limits({"ttft_p99": 2.0, "ttft_p50": 0.5, "itl_p99": 0.05}))
    {'ttft': 0.5, 'itl': 0.05}
    """
    seconds: dict[str, float] = {}
    for limit in limits:
        seconds[limit.figure] = min(limit.seconds, seconds.get(limit.figure, math.inf))
    return seconds


def attainments(limits: Sequence[SloLimit], table: Table, level: Level, *, replicas: int = 1) -> list[Attainment]:
    """Return for each limit the share of samples in a level's window that met it; `table` may hold the whole run.

    Samples are the requests that began in the window. A limit on a percentile of ITL or ICL has their gaps instead,
    of which one step of the engine gives every stream the same (`replicas`: how many engines serve), and a failed
    request misses as many as the others have on average. Gaps of ITL are known only where a chunk is a token: else
    the attainment is unresolved, with samples but without a fraction.
    """
    start, end = level.window
    counted = began_in(table, level) & ~table.cut
    good = counted & table.ok
    origin = table.waited_from(level)
    spans = (table.done - origin)[counted]
    spans = spans[spans > 0]  # nan is not
    request_s = float(spans.mean()) if len(spans) else 0.0
    of_requests = metrics.figures(table, level, stalled=any(limit.figure == "icl" for limit in limits))
    chunks = int(table.chunks[good].sum())
    lumps = bool(table.lumped[good].sum() > LUMPED * chunks)
    chunked = lumps or float(placed_tokens(table)[good].sum()) > TOKENS_PER_CHUNK * chunks
    arrival, gap = np.zeros(0), np.zeros(0)
    if any(limit.of_gaps for limit in limits):
        arrival, gap = table.arrival[follows(table, good)], gaps_of(table, good)
        if lumps:  # what the server sends at once is one chunk, and has no gap within
            arrival, gap = arrival[gap > 0], gap[gap > 0]

    def requests(limit: SloLimit) -> Attainment:
        """Return the share of the requests that meet a limit on each of them, with the effect of their clumping."""
        figure = of_requests[limit.figure]
        met = table.ok & metrics.meets({limit.figure: limit.seconds}, of_requests, len(table.ok))
        late = np.where(table.ok, metrics.as_judged(limit.figure, figure), np.inf)
        effect = clumping(origin[counted], late[counted], limit.seconds, start, end, request_s)
        if effect is None:  # too short to measure it: the worst case is that all in flight fail or pass together
            effect = max(1.0, min(float(spans.sum()) / (end - start), len(spans)))
        return attained(limit, int(met[counted].sum()), int(counted.sum()), effect)

    def gaps(limit: SloLimit) -> Attainment:
        """Return the share of gaps between tokens that meet a limit; those of failed requests miss it."""
        if limit.figure == "itl" and chunked:
            nothing = Attainment(str(limit), limit.needed, 0, len(gap), None, None, Outcome.UNRESOLVED)
            return msgspec.structs.replace(nothing, confidence=limit.confidence)
        if not good.any():
            return attained(limit, 0, int(counted.sum()), 1.0)
        met = gap <= limit.seconds
        last = max(end, float(arrival.max(initial=end)) + 1e-9)  # the last answers end after the window
        steps = metrics.steps(gap, end - start, replicas)
        effect = max(clumping(arrival, gap, limit.seconds, start, last, request_s) or 1.0, len(gap) / max(steps, 1))
        lost = round(len(gap) * (int(counted.sum()) / int(good.sum()) - 1))
        attainment = attained(limit, int(met.sum()), len(gap) + lost, effect)
        late = arrival[~met]
        if not len(late) or table.failed.any():
            return attainment
        by_others = _interrupted(table, late - gap[~met], late)
        return msgspec.structs.replace(attainment, interrupted=float(by_others.sum()) / attainment.n)

    return [gaps(limit) if limit.of_gaps else requests(limit) for limit in limits]


def _interrupted(table: Table, since: Floats, until: Floats) -> Bools:
    """Return for each gap whether another request's first token came at its end: its prompt made the gap; [gaps].

    "At its end" is within half a gap: streams of one step do not get their tokens at the same moment.
    """
    firsts = np.sort(table.first[~np.isnan(table.first)])
    half = (until - since) / 2
    return np.searchsorted(firsts, until + half, side="right") > np.searchsorted(firsts, since + half, side="right")


def clumping(times: Floats, values: Floats, limit: float, start: float, end: float, request_s: float) -> float | None:
    """Return how clumped the misses of a limit are: their share's variance over that of independent samples (Kish).

    The misses are the `values` above the limit, or the 20 slowest if fewer than 20 are: a queue whose longest waits
    come together will bring its misses together. The window is cut into B time blocks: at least 10, of at least 2
    request times each, and twice as long while the lag-1 correlation is above 0.2. With
    D = B/(B - 1) Σ (late_b - p n_b)² / (n p (1 - p)), where n_b requests of block b have late_b misses, it is
    D (t/z)², so that few blocks do not feign precision; 1 if D is at most 1.5; None if 10 blocks do not fit.

    >>> beats = np.arange(0.0, 100.0, 0.5)
    >>> slow = np.where(beats % 20 < 18, 0.1, 0.3)  # every 20 s four in a row
    >>> round(clumping(beats, slow, 0.2, 0.0, 100.0, 0.5), 2)
    4.29
    """
    n = len(values)
    blocks = int((end - start) / (_REQUEST_TIMES * request_s) + 1e-9) if request_s else n
    if blocks < _BLOCKS or not n:
        return None
    values = np.round(values, 6)  # less than a microsecond is the clock's, not the server's
    if int((values > limit).sum()) < _FEWEST_LATE:
        limit = np.sort(values)[-1 - min(_FEWEST_LATE, n // 2)]
    late = values > limit
    p = float(late.mean())
    if p in (0.0, 1.0):
        return 1.0

    def scatter(blocks: int) -> Floats:
        return batches(times, late.astype(np.float64) - p, start, end, blocks) * ((end - start) / blocks)

    x = uncorrelated(scatter, blocks, 2 * _BLOCKS)
    blocks = len(x)
    effect = blocks / (blocks - 1) * float(x @ x) / (n * p * (1 - p))
    return effect * (t_quantile(0.975, blocks - 1) / Z95) ** 2 if effect > _AGREE else 1.0


def attained(limit: SloLimit, met: int, n: int, effect: float) -> Attainment:
    """Return the attainment of a limit that `met` of n samples meet, n/effect of them independent.

    Its interval is Wilson's with a z that is √effect wider, which is the same as n/effect samples.
    """
    return _attained(str(limit), limit.needed, limit.confidence, met, n, effect)


def _attained(limit: str, needed: float, confidence: float, met: int, n: int, effect: float) -> Attainment:
    ci95 = wilson(met, n, Z95 * math.sqrt(effect))
    if ci95 is None:
        return Attainment(limit, needed, met, n, None, None, Outcome.UNRESOLVED, confidence=confidence)
    outcome = decided(met / effect, n / effect, needed, confidence)
    return Attainment(limit, needed, met, n, met / n, ci95, outcome, confidence=confidence)


def decided(met: float, n: float, needed: float, confidence: float = CONFIDENCE) -> Outcome:
    """Return MET, MISSED or UNRESOLVED: whether `met` of n independent samples decide that the needed share meets.

    P(at least as many met) with the share needed is the incomplete beta I_needed(met, n - met + 1), P(at most as many)
    is I_(1 - needed)(n - met, met + 1).

    >>> [str(decided(n, n, 0.99)) for n in (298, 299)], str(decided(473, 474, 0.99)), str(decided(95, 100, 0.99))
    (['unresolved', 'met'], 'met', 'missed')
    >>> [str(decided(n, n, 0.99, 0.99)) for n in (458, 459)]  # MLPerf's early stopping
    ['unresolved', 'met']
    """
    doubt = 1 - confidence + 1e-12
    if met > 0 and incomplete_beta(met, n - met + 1, needed) <= doubt:
        return Outcome.MET
    if met < n and incomplete_beta(n - met, met + 1, 1 - needed) <= doubt:
        return Outcome.MISSED
    return Outcome.UNRESOLVED


def independent(attainment: Attainment) -> float:
    """Return how many independent samples an attainment's interval is for: n in (p - e)² = z² e(1 - e)/n, e an end."""
    assert attainment.ci95 is not None
    p = attainment.met / attainment.n
    e = attainment.ci95[0] if p > 0.5 else attainment.ci95[1]  # the other end may be cut off at 0 or 1
    return Z95**2 * e * (1 - e) / (p - e) ** 2


def by_chunks(judged: Mapping[float, Judged]) -> list[str]:
    """Return the limits that no load can be judged by, since its tokens come in chunks."""
    pooled = [attainment for at in judged.values() for attainment in at.pooled]
    known = {attainment.limit for attainment in pooled if attainment.ci95 is not None}
    return sorted({attainment.limit for attainment in pooled if attainment.n and attainment.ci95 is None} - known)


def enough(attainment: Attainment) -> int | None:
    """Return how many samples would decide a limit if share and clumping stay as they are; None: no number would.

    About z² q(1 - q)/(p - q)² independent ones, for a share p where q is needed, z the normal quantile of the
    confidence; not fewer than decide it where all of them meet the limit.

    >>> enough(Attainment("ttft=1s", 0.99, 100, 100, 1.0, wilson(100, 100), "unresolved"))
    299
    """
    a = attainment
    if a.ci95 is None or (wanted := enough_independent(a)) is None:
        return None
    return math.ceil(wanted * a.n / independent(a) - 1e-6)


def enough_independent(attainment: Attainment) -> float | None:
    """Return how many independent samples would decide a limit if the share that meets it stays; None: no number."""
    p, q, confidence = attainment.fraction, attainment.needed, attainment.confidence
    if p is None or p == q:
        return None
    z = NormalDist().inv_cdf(confidence)
    n = max(z**2 * q * (1 - q) / (p - q) ** 2, float(fewest(q, confidence)) if p > q else 1.0)
    while decided(p * n, n, q, confidence) == Outcome.UNRESOLVED:  # the quantile is of many
        n *= _MORE
    return n


def outcome(attainments: Sequence[Attainment]) -> Outcome:
    """Return the outcome of all limits together: MISSED wins over UNRESOLVED over MET; UNRESOLVED without limits."""
    outcomes = {attainment.outcome for attainment in attainments} or {Outcome.UNRESOLVED}
    return next(each for each in Outcome if each in outcomes)


def leaning(attainments: Sequence[Attainment]) -> Outcome:
    """Return the outcome that undecided limits lean to, by their shares alone; UNRESOLVED if one has no share."""
    if any(attainment.fraction is not None and attainment.fraction < attainment.needed for attainment in attainments):
        return Outcome.MISSED
    known = attainments and all(attainment.fraction is not None for attainment in attainments)
    return Outcome.MET if known else Outcome.UNRESOLVED


def samples_needed(limits: Sequence[SloLimit]) -> int:
    """Return how many requests decide the strictest limit if all meet it; 0 if no limit is on single requests.

    >>> samples_needed(limits({"ttft_p99": 2.0, "e2e_p50": 9.0}))
    299
    """
    return max((fewest(limit.needed, limit.confidence) for limit in limits if not limit.of_gaps), default=0)


def fewest(needed: float, confidence: float = CONFIDENCE) -> int:
    """Return samples that decide a limit where all of them meet it: neededⁿ is at most 1 - confidence."""
    return math.ceil(math.log(1 - confidence) / math.log(needed) - 1e-9)


def pooled(repeats: Sequence[Attainment]) -> Attainment:
    """Return one limit's attainment over repeats of a level: counts added, and the independent samples among them."""
    known = [repeat for repeat in repeats if repeat.ci95 is not None]
    if len(known) < 2:
        return known[0] if known else repeats[0]
    n = sum(each.n for each in known)
    effect = n / sum(independent(each) for each in known)
    first, met = known[0], sum(each.met for each in known)
    made = _attained(first.limit, first.needed, first.confidence, met, n, effect)
    made = msgspec.structs.replace(made, class_=first.class_)
    shares = [(each.interrupted, each.n) for each in known if each.interrupted is not UNSET]
    if not shares:
        return made
    return msgspec.structs.replace(made, interrupted=sum(share * count for share, count in shares) / n)


class Judged(msgspec.Struct, frozen=True):
    """One load by all of its repeats."""

    outcome: Outcome
    leans: Outcome  # the outcome if it is decided, else the side that its share is on; unresolved if that says nothing
    pooled: tuple[Attainment, ...]  # attainment of each limit over all repeats, if these decide


def judged(repeats: Sequence[Sequence[Attainment]], failed: int) -> Judged:
    """Return whether one load meets the SLO: by the pooled attainments of its valid repeats and its `failed` repeats.

    A failed repeat missed the SLO by overload. As many of them as valid ones leave it unresolved, more make it missed.
    """
    limits: dict[object, list[Attainment]] = defaultdict(list)
    for each in (attainment for attainments in repeats for attainment in attainments):
        limits[each.class_, each.limit].append(each)
    if not limits or failed >= len(repeats):
        most = Outcome.MISSED if failed > len(repeats) else Outcome.UNRESOLVED
        return Judged(most, most, ())
    together = tuple(pooled(limit) for limit in limits.values())
    found = outcome(together)
    return Judged(found, leaning(together) if found == Outcome.UNRESOLVED else found, together)


def knee(levels: Sequence[LevelSummary]) -> Value | None:
    """Return the largest concurrency that met the SLO below the smallest that missed it; requests in flight.

    The interval runs from there to the smallest that missed it (None: no level did): levels between are unresolved or
    were not measured. Where no level is known to have met it, the largest that leans to it, with an interval that has
    no lower end; None if none does. Repeats are judged together. Invalid levels are left out, except that one with
    too many errors has missed the SLO, and one with too few in flight can.
    """
    return _boundary(by_load(levels, rates=False))


def rate_knee(levels: Sequence[LevelSummary]) -> Value | None:
    """Return the SLO knee of open loop: as `knee`, of rates, requests per second; an unstable level missed the SLO.

    Rates from the server's capacity on miss it, too, whatever they show. The lower end of the interval is None if
    the window is too short for the queue at that rate.
    """
    judged, most = by_load(levels, rates=True), capacity(levels)
    # More than the server completes only queues, whatever a short window shows of it.
    over = min((rate for rate in judged if rate >= most), default=math.inf)
    boundary = _boundary({rate: each for rate, each in judged.items() if rate < over})
    if boundary is None or boundary.ci95 is None:
        return boundary
    low, high = boundary.ci95
    ends = [end for end in (high, over) if end is not None and end < math.inf]
    return Value(boundary.value, (None if near_capacity(levels, boundary.value) else low, min(ends, default=None)))


class NearCapacity(msgspec.Struct, frozen=True):
    """A rate so near to what the server completes that its window is short for the queue there."""

    rate: float
    capacity: float  # requests per second that were completed where more came
    queue_s: float  # in which a queue comes and goes
    window_s: float  # length of all windows at this rate together


def near_capacity(levels: Sequence[LevelSummary], rate: float | None) -> NearCapacity | None:
    """Return the rate, the capacity and the window it needs, if its window is too short for the queue; else None.

    The queue of a server with a capacity of μ requests/s, of which a share ρ comes, forgets in about 1/(μ (1 - ρ)²)
    seconds (heavy traffic; Kingman 1962). A rate that is no level, or of a server that was never overloaded, is none.
    """
    most = capacity(levels)
    window_s = sum(level.window_s for level in levels if level.rate == rate)
    if rate is None or not window_s or math.isinf(most):
        return None
    needed_s = queue_s(rate, most)
    return NearCapacity(rate, most, needed_s, window_s) if window_s < QUEUE_TIMES * needed_s else None


def capacity(levels: Sequence[LevelSummary]) -> float:
    """Return the most requests per second that were completed where more came; inf if that never happened."""
    completed = [level.requests_per_s.mean for level in levels if level.rate is not None and unstable.voids(level)]
    return max((each for each in completed if each), default=math.inf)


def queue_s(rate: float, capacity: float) -> float:
    """Return the seconds that a queue takes to build up and drain, at a rate below the capacity (requests/s); else inf.

    >>> round(queue_s(4.5, 5.0), 6), queue_s(5.0, 5.0)
    (20.0, inf)
    """
    if not rate < capacity:
        return math.inf
    return 0.0 if math.isinf(capacity) else 1 / (capacity * (1 - rate / capacity) ** 2)


def by_load(levels: Sequence[LevelSummary], *, rates: bool) -> dict[float, Judged]:
    """Return whether each load meets the SLO, the lowest first; loads are rates or concurrencies, by `rates`."""
    sound: dict[float, list[Sequence[Attainment]]] = defaultdict(list)
    failed: dict[float, int] = defaultdict(int)
    for level in levels:
        at = level.rate if rates else level.concurrency if level.rate is None else None
        if at is None or level.input_tokens_asked is not None:
            continue
        misses = overloaded(level) or outcome(level.slo) == Outcome.MISSED
        if usable(level, Purpose.ANSWER):
            # The slow requests of a level that was cut short are missing: it leans to no limit that is met.
            leans = outcome(level.slo) == Outcome.UNRESOLVED and leaning(level.slo) == Outcome.MET
            if not (leans and any(map(cut_short.made, level.verdicts))):
                sound[at].append(level.slo)
        elif misses and usable(level, Purpose.MISS):
            failed[at] += 1
    return {at: judged(sound[at], failed[at]) for at in sorted({*sound, *failed})}


def overloaded(level: LevelSummary) -> bool:
    """Return whether a level misses every SLO, whatever its answered requests show: it had more than it serves."""
    return unstable.voids(level) or errors_above_1_percent.voids(level)


def _boundary(judged: Mapping[float, Judged]) -> Value | None:
    """Return the highest load below any miss that met the SLO, else likely did, with the lowest miss as upper end."""
    missed = min((at for at, each in judged.items() if each.outcome == Outcome.MISSED), default=math.inf)
    end = float(missed) if missed < math.inf else None
    met = max((at for at, each in judged.items() if each.outcome == Outcome.MET and at < missed), default=None)
    if met is not None:
        return Value(float(met), (float(met), end))
    below = {at: each.leans for at, each in judged.items() if at < missed}
    lowest = min((at for at, leans in below.items() if leans == Outcome.MISSED), default=math.inf)
    likely = max((at for at, leans in below.items() if leans == Outcome.MET and at < lowest), default=None)
    return None if likely is None else Value(float(likely), (None, end))
