"""One level's figures from the records (docs/definitions.md, levels[]).

Throughput counts tokens by their arrival inside the window, whoever's they are; latencies are those of the
requests that began in the window and succeeded. Left out: prefill tok/s (it needs a probe of its own), and whether an
SLO is met (analysis.slo), whose limits on one request are counted here as goodput.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from harness.analysis import verdicts, window
from harness.analysis.stats import ASSUMED, batch_means, fit_error, spread
from harness.analysis.table import Bools, Floats, Table, gaps, placed_tokens
from harness.analysis.window import began_in, in_flight, little
from harness.record import Level
from harness.summary import ClientView, Estimate, FromSend, GpuView, LevelSummary, ServerView, Spread

_ALIKE = 0.2  # apart, up to which the count in a part of a request stands: its requests end in emptier company


def ttft(sent: Floats, first: Floats) -> Floats:
    """Time to first token: first arrival that carries a token - send; seconds, shape [n]."""
    return first - sent


def tpot(first: Floats, last: Floats, output_tokens: Floats, first_tokens: Floats) -> Floats:
    """Time per output token after the first chunk; seconds, shape [n].

    (last - first) / (output tokens - tokens in the first chunk); nan where that is < 1.

    >>> tpot(np.array([0.1]), np.array([2.1]), np.array([101.0]), np.array([1.0]))
    array([0.02])
    """
    after = output_tokens - first_tokens
    return np.asarray(np.divide(last - first, after, out=np.full(len(after), np.nan), where=after >= 1))


def mean_itl(first: Floats, last: Floats, output_tokens: Floats, first_tokens: Floats) -> float | None:
    """Mean inter-token latency, token-weighted; seconds.

    Σ(last - first) / Σ(output tokens - tokens in the first chunk), over requests where that is >= 1.

    >>> mean_itl(np.array([0.0, 0.0]), np.array([1.0, 8.0]), np.array([11.0, 41.0]), np.array([1.0, 1.0]))
    0.18
    """
    after = output_tokens - first_tokens
    counts = after >= 1  # nan is not
    return float((last - first)[counts].sum() / after[counts].sum()) if counts.any() else None


def peak_rate(arrival: Floats, tokens: Floats, start: float, end: float, seconds: float = 1.0) -> float | None:
    """Most tokens in any whole second counted from the window's start, per second; None in a shorter window."""
    n = int((end - start) / seconds + 1e-9)
    if n < 1:
        return None
    index = ((arrival - start) / seconds).astype(np.int64)
    whole = (index >= 0) & (index < n)
    return float(np.bincount(index[whole], weights=tokens[whole], minlength=n).max()) / seconds


def meets(slo: Mapping[str, float], figures: Mapping[str, Floats], n: int) -> Bools:
    """Which requests met every limit (seconds a request, by name); a figure that a request lacks meets its limit."""
    met = np.ones(n, dtype=np.bool_)
    for name, limit in slo.items():
        met &= ~(figures[name] > limit)
    return met


def figures(table: Table, level: Level, *, stalled: bool) -> dict[str, Floats]:
    """What a limit may be put on, of every request; seconds by figure, each shape [requests], nan where it has none.

    ITL of one request is its TPOT, its ICL the longest gap between two of its chunks (its stall), which is worked out
    only where it is `stalled` that is asked for.
    """
    origin = table.sent if level.rate is None else table.scheduled  # what waits for us in open loop waits (wrk2)
    output = np.where(np.isnan(table.output_tokens), placed_tokens(table), table.output_tokens)
    pace = tpot(table.first, table.last, output, table.first_tokens)
    found = {
        "ttft": ttft(origin, table.first),
        "ttfat": ttft(origin, table.first_content),
        "itl": pace,
        "tpot": pace,
        "e2e": table.done - origin,
    }
    return found | {"icl": stalls(table)} if stalled else found


def level_summary(
    table: Table,
    level: Level,
    *,
    gpus: int | None = None,
    replicas: int = 1,
    slo: Mapping[str, float] | None = None,
    server: ServerView | None = None,
    client: ClientView | None = None,
    gpu: GpuView | None = None,
    ceiling: float | None = None,
    ceiling_is_lower_bound: bool = False,
    input_tokens_asked: float | None = None,
    template_tokens: float = 0.0,
    output_tokens_asked: float | None = None,
    precision: float | None = None,
    stamps_late_s: float = 0.0,
) -> LevelSummary:
    """Everything the records say of one level whose window is closed; `table` holds the whole run.

    `slo` maps ttft, ttfat, tpot (or itl, its other name for one request), icl (its stall) and e2e to seconds a
    request; `ceiling` is the events per second that the load generator is known to follow; `precision` the half-width
    at which the window might end, where it had no length of its own; `stamps_late_s` how late the clock's stamps were
    on average (0 for the kernel's).
    """
    if level.window_start_s is None or level.window_end_s is None:
        raise ValueError(f"level {level.index} has no closed window")
    start, end = level.window_start_s, level.window_end_s
    T = end - start

    began = began_in(table, level)
    good = began & table.ok
    failed = began & table.failed
    cancelled = began & table.cancelled
    counted = int(began.sum()) - int(cancelled.sum())
    errors = Counter(table.error[row] for row in np.flatnonzero(failed))

    # Latencies, of the requests that began in the window and succeeded.
    with_arrival = placed_tokens(table)
    output = np.where(np.isnan(table.output_tokens), with_arrival, table.output_tokens)
    shape = table.first[good], table.last[good], output[good], table.first_tokens[good]
    of_all = figures(table, level, stalled="icl" in (slo or {}))
    of_good = {name: values[good] for name, values in of_all.items()}
    e2e = spread(of_good["e2e"])
    lag = (table.sent - table.scheduled)[good]
    chunks = int(table.chunks[good].sum())
    lumped = int(table.lumped[good].sum()) / chunks if chunks else 0.0
    icls = gaps(table, good)
    events = _events_at_once(table, good)
    if lumps := lumped > verdicts.LUMPED:  # what the server sends at once is one chunk, and has no gap within
        icls = icls[icls > 0]
    independent = steps(icls, T, replicas)
    icl = spread(icls, independent)
    tokens_per_chunk = float(with_arrival[good].sum()) / chunks if chunks else None
    itl_mean = mean_itl(*shape)
    itl = Spread(itl_mean, None, None, None, None, None, independent)
    if tokens_per_chunk is not None and tokens_per_chunk <= verdicts.TOKENS_PER_CHUNK and not lumps:
        itl = msgspec.structs.replace(icl, mean=itl_mean)

    # Rates, of everything that arrived in the window.
    inside = (table.arrival >= start) & (table.arrival < end)
    void = table.failed[table.owner]
    arrival = table.arrival[inside & ~void]
    tokens = table.tokens[inside & ~void].astype(np.float64)
    rate = batch_means(arrival, tokens, start, end, e2e.mean)
    if gpu is not None and gpu.energy_j is not None and rate.mean and gpus in (None, gpu.gpus):
        gpu = msgspec.structs.replace(gpu, joules_per_output_token=gpu.energy_j / (rate.mean * T))
    done = table.ok & (table.done >= start) & (table.done < end)
    answer_s = spread((table.last - table.first)[good]).mean
    se, assumed = fit_error(arrival, tokens, start, end, e2e.mean, int(done.sum()), answer_s)
    requests_rate = batch_means(table.done[done], np.ones(int(done.sum())), start, end, e2e.mean)
    firsts = ~table.failed & (table.first >= start) & (table.first < end)
    decoded: float | None = float(tokens.sum() - np.nansum(table.first_tokens[firsts])) / T
    even = window.even_rate(table, level, output) if "stalled" not in level.notes else None
    if even is not None:
        requests_rate = _estimate(window.even_rate(table, level, np.ones(len(output))))
        if rate.mean and se and abs(rate.mean / even - 1) <= _ALIKE:
            se = math.hypot(se, rate.mean - even)
        else:
            rate, se, assumed = _estimate(even), _short_error(table, start, end, even), True
            decoded = _estimate(window.even_rate(table, level, output - table.first_tokens)).mean
    prompts = _known(table.input_tokens[firsts])
    hits = ~np.isnan(table.cached_tokens) & ~np.isnan(table.input_tokens) & firsts
    cached = float(table.cached_tokens[hits].sum() / table.input_tokens[hits].sum()) if hits.any() else None
    if cached is None and server is not None:
        cached = server.prefix_hit_fraction
    client = client or ClientView()
    if client.merged_fraction is None and chunks:
        merged = int(table.merged[good].sum()) / chunks - lumped
        client = msgspec.structs.replace(client, merged_fraction=merged, lumped_fraction=lumped)
    if level.concurrency and client.late_fraction is None:
        late = late_share(table, level, start, end)
        if stamps_late_s and e2e.mean:  # by the clock: an end that was read late was sent after as late
            late += (1 - late) * min(1.0, stamps_late_s / e2e.mean)
        client = msgspec.structs.replace(client, late_fraction=late)

    if ceiling:
        arrived = int(inside.sum())  # failed requests' too
        client = msgspec.structs.replace(client, ceiling_fraction=arrived / T / ceiling)

    placed = good & ~np.isnan(table.output_tokens)
    usage = float(table.output_tokens[placed].sum())
    met = meets(slo, of_good, len(of_good["e2e"])) if slo else None
    N = little(table, level, start, end)
    summary = LevelSummary(
        concurrency=level.concurrency,
        rate=level.rate,
        offered_requests_per_s=counted / T if level.rate is not None else None,
        from_send=_from_send(table, good) if level.rate is not None else None,
        repeat=level.repeat,
        in_flight=in_flight(table, start, end),
        little_in_flight=N.by_law,
        window_s=T,
        window=(start, end),
        requests=int(began.sum()),
        errors=int(failed.sum()),
        error_rate=float(failed.sum()) / counted if counted else None,
        errors_by_type=dict(errors.most_common()),
        cancelled=int(cancelled.sum()),
        output_tokens_per_s=rate,
        output_tokens_per_s_se=se,
        output_tokens_per_s_se_assumed=assumed,
        output_tokens_per_s_per_gpu=rate.mean / gpus if gpus and rate.mean is not None else None,
        tokens_per_s_per_user=1 / itl_mean if itl_mean else None,
        peak_output_tokens_per_s=peak_rate(arrival, tokens, start, end),
        input_tokens_per_s=batch_means(table.first[firsts], prompts, start, end, e2e.mean)
        if prompts is not None
        else Estimate(None),
        cached_input_fraction=cached,
        decode_tokens_per_s=decoded,
        prefill_tokens_per_s=None,
        requests_per_s=requests_rate,
        discarded_tokens_per_s=float(table.tokens[inside & void].sum()) / T,
        unplaced_tokens=round(usage - float(with_arrival[placed].sum())),
        input_tokens_mean=_mean(table.input_tokens[good]),
        output_tokens_mean=_mean(output[good]),
        ttft_s=spread(of_good["ttft"]),
        ttfat_s=spread(of_good["ttfat"]),
        itl_s=itl,
        icl_s=icl,
        tpot_s=spread(of_good["tpot"]),
        e2e_s=e2e,
        lag_s=spread(lag),
        goodput_requests_per_s=float(met.sum()) / T if met is not None else None,
        goodput_tokens_per_s=float(output[good][met].sum()) / T if met is not None else None,
        slo_met_fraction=float(met.sum()) / counted if met is not None and counted else None,
        tokens_per_chunk=tokens_per_chunk,
        server=server,
        client=client,
        gpu=gpu,
        input_tokens_asked=level.input_tokens,
        reason=level.reason,
        verdicts=[],
    )
    trend = window.trend(table, start, end) if level.rate is not None else None
    if trend is not None and trend.rising:
        summary = _without_steady_state(summary)
    known = (client.cpu_fraction, client.read_delay_p99_s, client.merged_fraction, client.ceiling_fraction)
    if client.late_fraction is not None or any(value is not None for value in known):
        limited = verdicts.client_limited(summary, client) is not None
        summary = msgspec.structs.replace(summary, client=msgspec.structs.replace(client, limited=limited))
    late_reads = verdicts.late_reads(summary)
    summary = _without_late_reads(summary)
    found = verdicts.of_level(
        summary,
        little=N,
        ceiling_is_lower_bound=ceiling_is_lower_bound,
        trend=trend,
        late_reads=late_reads,
        events_at_once=events if lumps else None,
        gaps=len(icls),
        median_lag_s=float(np.median(lag)) if len(lag) else None,
        notes=level.notes,
        precision=precision,
        drift=window.drift(arrival, tokens, start, end, e2e.mean),
        assumed_error=assumed,
        usage_tokens=usage,
        input_tokens_asked=level.input_tokens or input_tokens_asked,
        template_tokens=template_tokens,
        output_tokens_asked=output_tokens_asked,
    )
    return msgspec.structs.replace(summary, verdicts=found)


def _estimate(rate: float | None) -> Estimate:
    """A rate without an interval."""
    return Estimate(None if rate is None or math.isnan(rate) else rate)


def _short_error(table: Table, start: float, end: float, rate: float) -> float | None:
    """One standard error of the rate in a part of a request, assumed by how many requests touch it."""
    touching = int((table.ok & (table.sent < end) & (table.done > start)).sum())
    return rate * max(ASSUMED, 1 / math.sqrt(touching)) if touching and not math.isnan(rate) else None


def late_share(table: Table, level: Level, start: float, end: float) -> float:
    """Share of the slots' time in a window that stood empty on our account, 0 to 1.

    Σ(send − end of the request before in the slot, connecting left out) / (C · T), as far as it lies in the window,
    which is lag/(E2E + lag) where each is like the other. The pause after a failure is meant, and not in it.
    """
    assert level.concurrency is not None
    after_failure = np.isin(table.scheduled, table.done[table.failed])
    late = (table.sent >= start) & (table.scheduled < end) & ~after_failure
    until = np.minimum(table.sent[late] - np.nan_to_num(table.connect[late]), end)
    empty = np.maximum(until - np.maximum(table.scheduled[late], start), 0.0)
    return float(empty.sum() / (level.concurrency * (end - start)))


def _events_at_once(table: Table, rows: Bools) -> float | None:
    """How many token-carrying events came with one stamp, on average over the marked rows."""
    every = int(table.chunks[rows].sum())
    together = int((gaps(table, rows) == 0).sum())
    return every / (every - together) if every > together else None


def _without_late_reads(s: LevelSummary) -> LevelSummary:
    """Without the percentiles that late reads have spoilt (verdicts.spoilt)."""
    changes = {}
    for name, lost in verdicts.spoilt(s).items():
        spread = getattr(s, name)
        gone = {f"p{q}": None for q in lost} | ({"max": None} if len(lost) == len(verdicts.PERCENTILES) else {})
        changes[name] = msgspec.structs.replace(spread, **gone)
    return msgspec.structs.replace(s, **changes)


def stalls(table: Table) -> Floats:
    """The longest gap between two token-carrying chunks of each request; seconds, shape [requests], nan below two."""
    later = np.flatnonzero(np.diff(table.owner) == 0)
    longest = np.full(len(table.chunks), np.nan)
    np.fmax.at(longest, table.owner[later], np.diff(table.arrival)[later])
    return longest


def _from_send(table: Table, good: Bools) -> FromSend:
    sent = table.sent
    return FromSend(
        ttft_s=spread(ttft(sent, table.first)[good]),
        ttfat_s=spread(ttft(sent, table.first_content)[good]),
        e2e_s=spread((table.done - sent)[good]),
    )


def _without_steady_state(s: LevelSummary) -> LevelSummary:
    """An open loop above what the server sustains: its latencies are those of the window's length, not the server's."""
    nothing = Spread(None, None, None, None, None, None, 0)
    names = ("ttft_s", "ttfat_s", "itl_s", "icl_s", "tpot_s", "e2e_s")
    return msgspec.structs.replace(s, **dict.fromkeys(names, nothing), from_send=None)


def steps(icls: Floats, T: float, replicas: int) -> int:
    """Independent gaps: one engine step gives every stream the same one, so at most window ÷ median ICL a replica."""
    if not len(icls):
        return 0
    median = float(np.median(icls))
    return min(len(icls), int(T / median * replicas)) if median > 0 else len(icls)


def _known(values: Floats) -> Floats | None:
    """Nans (requests that we cut before their usage came) at the mean of the rest; None where none is known."""
    missing = np.isnan(values)
    if missing.all():
        return None
    return np.where(missing, values[~missing].mean(), values)


def _mean(values: Floats) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None
