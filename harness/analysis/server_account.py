"""The server's own account of one window: its gauges, counters and histograms by their samples, and ours. Pure.

Samples have the engine's own names (`data.server_metrics`). A scrape is one page: the samples of one time. A gauge
is the mean over the window's scrapes, a counter or histogram what it grew by between the first scrape and the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from harness.analysis.stats import SAMPLES, spread
from harness.analysis.table import Floats, Table
from harness.data import server_metrics
from harness.data.record import SERVER, Sample
from harness.data.server_metrics import Figure, Kind, Meaning
from harness.data.views import NO_SPREAD, EngineView, PoolView, ServerView, Spread

Buckets = Mapping[float, float]  # upper bound: observations up to there, and above the bound before
_ENOUGH = 200  # engine steps or requests: a step or a request more or less at the edges is then half a percent


class Growth(msgspec.Struct, frozen=True):
    """What a counter grew by between two scrapes."""

    start_s: float
    end_s: float
    increase: float

    @property
    def per_s(self) -> float:
        return self.increase / (self.end_s - self.start_s)


class Scrapes:
    """The samples of one window, by their meaning."""

    def __init__(self, samples: Iterable[Sample], window: tuple[float, float], source: str = SERVER) -> None:
        """Gather the figures that `source` published within `window`, in seconds, by what they mean."""
        self._series: dict[Figure, dict[tuple[str, Meaning], list[tuple[float, float]]]] = {}
        times = set()
        for sample in samples:
            if sample.source == source and window[0] <= sample.time_s <= window[1]:
                times.add(sample.time_s)
                for meaning in server_metrics.meanings(sample.metric):
                    of_figure = self._series.setdefault(meaning.figure, {})
                    of_figure.setdefault((sample.metric, meaning), []).append((sample.time_s, sample.value))
        self.times = sorted(times)

    @property
    def engines(self) -> list[str]:
        """Return the labels of the engines behind the page; none if they are not told apart."""
        found = {meaning.engine for series in self._series.values() for _, meaning in series}
        return sorted(found - {""}, key=lambda label: (len(label), label))

    def values(self, figure: Figure, engine: str | None = None) -> list[float]:
        """Return a gauge at each scrape that has it, of all engines together or of one."""
        return [value for _, value in self.over_time(figure, engine)]

    def over_time(self, figure: Figure, engine: str | None = None) -> list[tuple[float, float]]:
        """Return (time of the scrape, value) of a gauge, over all engines or one, for each scrape in the window."""
        at: dict[float, list[tuple[Meaning, float]]] = {}
        for (_, meaning), points in self._series.get(figure, {}).items():
            if meaning.kind in (Kind.ADDED, Kind.AVERAGED) and engine in (None, meaning.engine):
                for time_s, value in points:
                    at.setdefault(time_s, []).append((meaning, value))
        return [(time_s, server_metrics.together(found)[figure]) for time_s, found in at.items()]

    def mean(self, figure: Figure, engine: str | None = None) -> float | None:
        """Return a gauge over the window."""
        values = self.values(figure, engine)
        return sum(values) / len(values) if values else None

    def growth(self, figure: Figure, engine: str | None = None, part: str = "") -> Growth | None:
        """Return by how much a counter grew from first to last scrape; None if it was not seen twice, or was reset.

        `part` is the "sum" or "count" of a histogram. A series that appears later began at 0: engines publish some
        with their first event.
        """
        chosen = [
            (1.0 if part == "count" else meaning.scale, points)
            for (_, meaning), points in self._series.get(figure, {}).items()
            if meaning.part == part and engine in (None, meaning.engine)
            and (part or meaning.kind is Kind.COUNTER)
        ]  # fmt: skip
        if not chosen:
            return None
        start, end = min(points[0][0] for _, points in chosen), max(points[-1][0] for _, points in chosen)
        increase = 0.0
        for scale, points in chosen:
            first = points[0][1] if points[0][0] == start else 0.0
            if points[-1][0] != end or points[-1][1] < first:
                return None
            increase += (points[-1][1] - first) * scale
        return Growth(start, end, increase) if end > start else None

    def ratio(self, part: Figure, whole: Sequence[Figure]) -> float | None:
        """Return the growth of a counter over that of others together; None if they did not grow."""
        top, bottom = self.growth(part), [self.growth(figure) for figure in whole]
        total = sum(each.increase for each in bottom if each is not None)
        return top.increase / total if top is not None and all(bottom) and total > 0 else None

    def spread(self, figure: Figure) -> Spread | None:
        """Return mean and percentiles of a histogram's growth in the window; None if nothing was added to it.

        The mean alone where the buckets do not add up to the count.
        """
        buckets = self.buckets(figure)
        count, total = self.growth(figure, part="count"), self.growth(figure, part="sum")
        if count is None or count.increase <= 0:
            return None
        mean = total.increase / count.increase if total is not None else None
        n = int(count.increase)
        known = sum(buckets.values()) == n  # not so after a scrape of before the window, or a reset inside it
        return bucket_spread(buckets, mean) if known else msgspec.structs.replace(NO_SPREAD, mean=mean, n=n)

    def buckets(self, figure: Figure) -> dict[float, float]:
        """Return how many values each bucket of a histogram took after the first scrape, by its upper bound."""
        buckets: dict[float, float] = {}
        for (_, meaning), points in self._series.get(figure, {}).items():
            if meaning.part == "bucket":
                taken = sum(value for time_s, value in points if time_s > self.times[0])
                buckets[meaning.up_to] = buckets.get(meaning.up_to, 0.0) + taken
        return buckets


def server_view(
    samples: Sequence[Sample],
    window: tuple[float, float],
    table: Table | None = None,
    itl_s: float | None = None,
    batch_limit: int | None = None,
    source: str = SERVER,
) -> ServerView | None:
    """Return the server's figures of one window, and its token counters over those of its requests, in `table`.

    None if it published nothing. Both sides of a ratio are counted between the same two scrapes. A step of the
    engine takes `itl_s`; `batch_limit` is that of one engine, where the operator or the server has stated it; `source`
    has the samples of one of several replicas.
    """
    scrapes = Scrapes(samples, window, source)
    if not scrapes.times:
        return None
    engines = scrapes.engines
    generation, generation_ratio = _generation(scrapes, table, itl_s)
    prompt, prompt_ratio = _prompt(scrapes, table)
    preempted, running = scrapes.growth(Figure.PREEMPTIONS), scrapes.mean(Figure.RUNNING)
    stated = batch_limit * max(1, len(engines)) if batch_limit else None
    limit = scrapes.mean(Figure.BATCH_LIMIT) or stated
    hits = scrapes.ratio(Figure.PREFIX_HITS, [Figure.PREFIX_QUERIES])
    if hits is None:
        hits = scrapes.ratio(Figure.PREFIX_HITS, [Figure.PREFIX_HITS, Figure.PREFIX_MISSES])
    if hits is None:
        hits = _cached(scrapes)
    views = {label: _engine(scrapes, label) for label in engines} if len(engines) > 1 else {}
    return ServerView(
        running=running,
        waiting=scrapes.mean(Figure.WAITING),
        kv_usage=scrapes.mean(Figure.KV_USAGE),
        prefix_hit_fraction=hits,
        preemptions=preempted.increase if preempted else None,
        generation_tokens_per_s=generation.per_s if generation else None,
        prompt_tokens_per_s=prompt.per_s if prompt else None,
        generation_tokens_ratio=generation_ratio,
        prompt_tokens_ratio=prompt_ratio,
        queue_s=scrapes.spread(Figure.QUEUE_TIME) or _mean_queue(scrapes),
        prefill_s=scrapes.spread(Figure.PREFILL_TIME),
        decode_s=scrapes.spread(Figure.DECODE_TIME),
        ttft_s=scrapes.spread(Figure.TTFT),
        prefill_time_fraction=_prefill_fraction(scrapes),
        batch_size=_batch(scrapes),
        batch_limit=limit,
        batch_utilization=running / limit if running is not None and limit else None,
        step_tokens=scrapes.spread(Figure.STEP_TOKENS),
        acceptance=scrapes.ratio(Figure.ACCEPTED_TOKENS, [Figure.DRAFT_TOKENS]),
        tokens_per_step=_tokens_per_step(scrapes),
        engines=views,
    )


def pool_view(samples: Sequence[Sample], window: tuple[float, float], source: str) -> PoolView:
    """Return the metrics of a server in a prefill or decode pool over one window, with its KV transfers."""
    scrapes = Scrapes(samples, window, source)
    return PoolView(
        server=server_view(samples, window, source=source),
        transfer_s=scrapes.spread(Figure.TRANSFER_TIME),
        transfer_bytes=scrapes.spread(Figure.TRANSFER_BYTES),
    )


def _generation(scrapes: Scrapes, table: Table | None, itl_s: float | None) -> tuple[Growth | None, float | None]:
    """Return the growth of the server's count of output tokens, and its ratio to Knee's count at the same moments.

    A server that counts a request's tokens at its end is compared by the requests that ended. Otherwise there is no
    ratio with fewer than 200 engine steps: a step at the edge of the window could make a difference of 1 %.
    """
    ended = scrapes.growth(Figure.ENDED_GENERATION_TOKENS)
    if ended is not None:
        return ended, None if table is None else _by_request(ended, table.last, table.output_tokens)
    found = scrapes.growth(Figure.GENERATION_TOKENS)
    if found is None or table is None or not itl_s or (found.end_s - found.start_s) / itl_s < _ENOUGH:
        return found, None
    between = (table.arrival >= found.start_s) & (table.arrival < found.end_s)
    tokens = int(table.tokens.sum(where=between, dtype=np.int64))
    return found, found.increase / tokens if tokens else None


def _prompt(scrapes: Scrapes, table: Table | None) -> tuple[Growth | None, float | None]:
    """Return the growth of the server's count of prompt tokens, and its ratio to Knee's count, where comparable."""
    for figure in (Figure.COMPUTED_PROMPT_TOKENS, Figure.ENDED_PROMPT_TOKENS, Figure.PROMPT_TOKENS):
        if (found := scrapes.growth(figure)) is not None and table is not None:
            tokens = table.input_tokens
            if figure is Figure.COMPUTED_PROMPT_TOKENS:
                tokens = tokens - np.nan_to_num(table.cached_tokens)
            times = table.last if figure is Figure.ENDED_PROMPT_TOKENS else table.first
            return found, _by_request(found, times, tokens)
        if found is not None:
            return found, None
    return scrapes.growth(Figure.QUEUED_PROMPT_TOKENS), None


def _by_request(counter: Growth, times: Floats, tokens: Floats) -> float | None:
    """Return the counter over the tokens of the requests at these times, of at least 200 whose tokens are known."""
    inside = tokens[(times >= counter.start_s) & (times < counter.end_s) & ~np.isnan(tokens)]
    total = float(inside.sum())
    return counter.increase / total if len(inside) >= _ENOUGH and total > 0 else None


def _mean_queue(scrapes: Scrapes) -> Spread | None:
    """Return the mean seconds in the queue: growth of a counter of queue seconds over that of requests (Triton)."""
    waited, requests = scrapes.growth(Figure.QUEUE_SECONDS), scrapes.growth(Figure.REQUESTS_SUCCEEDED)
    if waited is None or requests is None or requests.increase <= 0:
        return None
    mean = waited.increase / requests.increase
    return msgspec.structs.replace(NO_SPREAD, mean=mean, n=int(requests.increase))


def _prefill_fraction(scrapes: Scrapes) -> float | None:
    """Return the server's share of prefill time in prefill and decode time, from its histograms or its counters."""
    for prefill, decode, part in (
        (Figure.PREFILL_TIME, Figure.DECODE_TIME, "sum"),
        (Figure.PREFILL_SECONDS, Figure.DECODE_SECONDS, ""),
    ):
        on_prompts, on_answers = scrapes.growth(prefill, part=part), scrapes.growth(decode, part=part)
        if on_prompts and on_answers and (total := on_prompts.increase + on_answers.increase) > 0:
            return on_prompts.increase / total
    return None


def _batch(scrapes: Scrapes) -> Spread | None:
    """Return the requests in a batch: from the engine's histogram, else from running requests, else from two counters.

    The counters come last: Triton's are over all its models.
    """
    of_batches = scrapes.spread(Figure.BATCH_SIZE)
    if of_batches is not None:
        return of_batches
    seen = scrapes.values(Figure.RUNNING)
    if seen:
        return spread(np.array(seen))
    executed, executions = scrapes.growth(Figure.EXECUTED), scrapes.growth(Figure.EXECUTIONS)
    if executed is None or executions is None or executions.increase <= 0:
        return None
    mean = executed.increase / executions.increase
    return msgspec.structs.replace(NO_SPREAD, mean=mean, n=int(executions.increase))


def _tokens_per_step(scrapes: Scrapes) -> float | None:
    """Return tokens that one step of one request brings: 1 + accepted / drafts, or the engine's own mean length."""
    if (accepted := scrapes.ratio(Figure.ACCEPTED_TOKENS, [Figure.DRAFTS])) is not None:
        return 1.0 + accepted
    return scrapes.mean(Figure.ACCEPTED_LENGTH) or None  # 0: it does not draft


def _cached(scrapes: Scrapes) -> float | None:
    """Return the share of the prompt tokens that the cache had, in all of its tiers."""
    prompts = scrapes.growth(Figure.PROMPT_TOKENS) or scrapes.growth(Figure.ENDED_PROMPT_TOKENS)
    found = scrapes.growth(Figure.CACHED_TOKENS)
    return min(1.0, found.increase / prompts.increase) if prompts and prompts.increase > 0 and found else None


def _engine(scrapes: Scrapes, label: str) -> EngineView:
    """Return the means of one engine's counters over the window, by the label that names it."""
    generation = scrapes.growth(Figure.GENERATION_TOKENS, label)
    return EngineView(
        running=scrapes.mean(Figure.RUNNING, label),
        waiting=scrapes.mean(Figure.WAITING, label),
        kv_usage=scrapes.mean(Figure.KV_USAGE, label),
        generation_tokens_per_s=generation.per_s if generation else None,
    )


# ---- histograms --------------------------------------------------------------------------------------------------


def quantile(buckets: Buckets, q: float) -> float | None:
    """Return the value that a share q of the observations does not pass, by linear interpolation inside its bucket.

    With n observations the quantile has rank r = q n. It lies in the first bucket (a, b] up to whose end r of them
    come: below of them before a, k inside it, so that x = a + (b − a)(r − below)/k. The lowest bucket begins at 0.
    None if there are no observations, or if it lies in the bucket without an end: only its start is known.

    Ten observations, 2 up to .3, 6 more up to .5, and 2 more up to .8: the median has rank 5, the third of the six
    in the second bucket, .3 + .2 · 3/6 = .4; p95 has rank 9.5, .5 + .3 · 1.5/2 = .725.

    >>> ten = {0.3: 2, 0.5: 6, 0.8: 2, math.inf: 0}
    >>> round(quantile(ten, 0.5), 6), round(quantile(ten, 0.95), 6), quantile({1.0: 1, math.inf: 1}, 0.9)
    (0.4, 0.725, None)
    """
    rank, below, start = q * sum(buckets.values()), 0.0, 0.0
    for end, count in sorted(buckets.items()):
        if count > 0 and below + count >= rank:
            return start + (end - start) * (rank - below) / count if math.isfinite(end) else None
        below, start = below + count, end
    return None


def bucket_spread(buckets: Buckets, mean: float | None) -> Spread:
    """Return the distribution by its buckets, without `max`; a percentile only where n carries it (`stats.SAMPLES`)."""
    n = int(sum(buckets.values()))
    p50, p90, p95, p99 = (quantile(buckets, q / 100) if n >= SAMPLES[q] else None for q in (50, 90, 95, 99))
    return Spread(mean, p50, p90, p95, p99, None, n)
