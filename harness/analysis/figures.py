"""One level's summary from the records (docs/definitions.md, levels[]).

Throughput counts tokens by their arrival inside the window, those of every request; latencies are those of the requests
that began in the window and succeeded. Canaries are load, and counted as such; lengths, latencies and goodput are of
the other requests. Left out: prefill tok/s (`step_account`), and whether an SLO is met (`slo`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from harness.analysis import window
from harness.analysis.conditions import Conditions
from harness.analysis.metrics import figures, late_share, mean_itl, meets, peak_rate, steps, ttft
from harness.analysis.rules import findings
from harness.analysis.rules.figures import LUMPED, PERCENTILES, TOKENS_PER_CHUNK, spoilt
from harness.analysis.rules.requests import Measured, sent_late, unstable
from harness.analysis.stats import ASSUMED, batch_means, fit_error, spread
from harness.analysis.table import Bools, Floats, Table, gaps, placed_tokens
from harness.analysis.window import Little, began_in, in_flight, little
from harness.data.judgement import rank
from harness.data.levels import FromSend, LevelSummary
from harness.data.record import Level, LevelNote
from harness.data.views import ClientView, Estimate, GpuView, ServerView, Spread
from harness.spec.work import Unit

_ALIKE = 0.2  # apart, up to which the count in a part of a request stands: its requests end in emptier company


def level_summary(
    table: Table,
    level: Level,
    conditions: Conditions = Conditions(),
    *,
    server: ServerView | None = None,
    client: ClientView = ClientView(),
    gpu: GpuView | None = None,
    stamps_late_s: float = 0.0,
) -> LevelSummary:
    """Return all figures and verdicts of one level whose window is closed; `table` is the whole run.

    `stamps_late_s`: how late the clock's stamps were on average, 0 for the kernel's.
    """
    start, end = level.window
    requests = _requests(table, level, conditions.slo)
    chunks = _chunks(table, requests, end - start, conditions.replicas)
    rates = _rates(table, level, requests)
    decodes = conditions.unit is Unit.OUTPUT_TOKENS
    if gpu and gpu.energy_j is not None and decodes and rates.output.mean and conditions.gpus in (None, gpu.gpus):
        joules = gpu.energy_j / (rates.output.mean * (end - start))
        gpu = msgspec.structs.replace(gpu, joules_per_output_token=joules)
    client = _with_lateness(client, table, level, chunks, requests.e2e.mean, stamps_late_s)
    if conditions.ceiling:
        share = rates.events / (end - start) / conditions.ceiling
        client = msgspec.structs.replace(client, ceiling_fraction=share)
    made = _summary(table, level, conditions, requests, chunks, rates)
    made = msgspec.structs.replace(made, server=server, client=client, gpu=gpu)
    if made.cached_input_fraction is None and server is not None:
        made = msgspec.structs.replace(made, cached_input_fraction=server.prefix_hit_fraction)

    backlog = window.backlog(table, start, end, conditions.traffic.period_s) if level.rate is not None else None
    if backlog is not None and backlog.rising:
        made = _without_steady_state(made)
    known = (client.cpu_fraction, client.read_delay_p99_s, client.merged_fraction, client.ceiling_fraction)
    if client.late_fraction is not None or any(value is not None for value in known):
        made = msgspec.structs.replace(made, client=msgspec.structs.replace(client, limited=sent_late(client)))
    measured = Measured(
        s=_without_late_reads(made),
        level=level,
        conditions=conditions,
        late=made,
        little=requests.little,
        backlog=backlog,
        drift=rates.drift,
        events_at_once=chunks.at_once,
        gaps=chunks.gaps,
        median_lag_s=float(np.median(requests.lag)) if len(requests.lag) else None,
        usage_tokens=requests.usage_tokens,
        hung=int(np.count_nonzero(requests.silent)) or level.hung,
        silence_s=window.silence(table, start, end),
    )
    return msgspec.structs.replace(measured.s, verdicts=sorted(findings(measured), key=rank))


def part_summary(table: Table, level: Level, conditions: Conditions, whole: LevelSummary) -> LevelSummary:
    """Return the figures of some of a level's requests, which the table holds alone; no verdicts.

    What late reads or an unsteady rate have spoilt in the `whole` level is left out here too.
    """
    requests = _requests(table, level, conditions.slo)
    chunks = _chunks(table, requests, whole.window_s, conditions.replicas)
    made = _summary(table, level, conditions, requests, chunks, _rates(table, level, requests))
    if unstable.voids(whole):
        made = _without_steady_state(made)
    return _without_late_reads(msgspec.structs.replace(made, client=whole.client))


class _Requests(msgspec.Struct, frozen=True):
    """The requests that began in the window."""

    began: Bools  # shape [requests], like the next two
    good: Bools  # those that succeeded, but for canaries: latencies are theirs
    failed: Bools
    figures: dict[str, Floats]  # of the good ones
    lag: Floats  # of the good ones, from schedule to send
    counted: int  # without what we cut
    judged: int  # of these, those whose latencies count
    output_tokens: Floats  # of every request, by usage, else as many as have an arrival
    placed_tokens: Floats  # of these, with an arrival
    usage_tokens: float  # of the good ones whose usage came
    unplaced_tokens: float  # of these, without an arrival
    e2e: Spread
    tail: Spread  # from the last token to the end of the answer
    silent: Bools  # those that hung, shape [requests]
    little: Little


def _requests(table: Table, level: Level, slo: Mapping[str, float]) -> _Requests:
    began = began_in(table, level)
    good, silent = began & table.ok & ~table.canary, window.silent(table, level)
    lost = silent & table.failed & ~began  # which hung since before the window
    with_arrival = placed_tokens(table)
    known = good & ~np.isnan(table.output_tokens)
    usage = float(table.output_tokens[known].sum())
    of_good = {name: values[good] for name, values in figures(table, level, stalled="icl" in slo).items()}
    output_tokens = np.where(np.isnan(table.output_tokens), with_arrival, table.output_tokens)
    return _Requests(
        began=began,
        good=good,
        failed=(began & table.failed) | lost,
        figures=of_good,
        lag=(table.sent - table.scheduled)[good],
        counted=int(((began & ~table.cut) | lost).sum()),
        judged=int((began & ~table.cut & ~table.canary).sum()),
        output_tokens=output_tokens,
        placed_tokens=with_arrival,
        usage_tokens=usage,
        unplaced_tokens=usage - float(with_arrival[known].sum()),
        e2e=spread(of_good["e2e"]),
        tail=spread((table.done - table.last)[good]),
        silent=silent,
        little=little(table, level, *level.window),
    )


class _Chunks(msgspec.Struct, frozen=True):
    """How the chunks of the good requests came."""

    itl: Spread
    icl: Spread
    tokens_per_chunk: float | None
    merged: float | None  # share of them that shared a read because it came late
    lumped: float  # share of them that the server sent together with others
    at_once: float | None  # how many the server sends at once; None: one
    gaps: int


def _chunks(table: Table, requests: _Requests, T: float, replicas: int) -> _Chunks:
    good = requests.good
    chunks = int(table.chunks[good].sum())
    lumped = int(table.lumped[good].sum()) / chunks if chunks else 0.0
    icls = gaps(table, good)
    if lumps := lumped > LUMPED:  # what the server sends at once is one chunk, and has no gap within
        icls = icls[icls > 0]
    mean_icl = float(icls.mean()) if len(icls) else None
    independent = steps(icls, T, replicas, reorder=True)
    icl = spread(icls, independent, mean_icl, reorder=True)
    tokens_per_chunk = float(placed_tokens(table)[good].sum()) / chunks if chunks else None
    mean = mean_itl(table.first[good], table.last[good], requests.placed_tokens[good], table.first_tokens[good])
    itl = Spread(mean, None, None, None, None, None, independent)
    if tokens_per_chunk is not None and tokens_per_chunk <= TOKENS_PER_CHUNK and not lumps:
        itl = msgspec.structs.replace(icl, mean=mean)
    return _Chunks(
        itl=itl,
        icl=icl,
        tokens_per_chunk=tokens_per_chunk,
        merged=int(table.merged[good].sum()) / chunks - lumped if chunks else None,
        lumped=lumped,
        at_once=_events_at_once(table, good) if lumps else None,
        gaps=len(icls),
    )


class _Rates(msgspec.Struct, frozen=True):
    """What arrived in the window, of all requests: per second, with its error."""

    output: Estimate
    output_se: float | None
    se_assumed: bool
    drift: float | None
    peak: float | None
    input: Estimate
    requests: Estimate
    decode: float | None
    discarded: float
    cached: float | None  # share of the input tokens
    events: int  # that arrived, failed requests' too


def _rates(table: Table, level: Level, requests: _Requests) -> _Rates:
    (start, end), request_s = level.window, requests.e2e.mean
    arrival, tokens = table.arrival, table.tokens
    inside = (arrival >= start) & (arrival < end)
    if table.failed.any():
        tokens = np.where(np.repeat(table.failed, table.chunks), np.int32(0), tokens)
    counted_tokens, every = (int(each.sum(where=inside, dtype=np.int64)) for each in (tokens, table.tokens))
    done = table.ok & (table.done >= start) & (table.done < end)
    firsts = ~table.failed & (table.first >= start) & (table.first < end)
    prompts = _known(table.input_tokens[firsts])
    answered = firsts & table.ok & ~table.canary & ~np.isnan(table.input_tokens)
    answer_s = spread((table.last - table.first)[requests.good]).mean
    se, assumed = fit_error(arrival, tokens, start, end, request_s, int(done.sum()), answer_s)
    counted = _Rates(
        output=batch_means(arrival, tokens, start, end, request_s),
        output_se=se,
        se_assumed=assumed,
        drift=window.drift(arrival, tokens, start, end, request_s),
        peak=peak_rate(arrival, tokens, start, end),
        input=Estimate(None) if prompts is None else batch_means(table.first[firsts], prompts, start, end, request_s),
        requests=batch_means(table.done[done], np.ones(int(done.sum())), start, end, request_s),
        decode=float(counted_tokens - np.nansum(table.first_tokens[firsts])) / (end - start),
        discarded=float(every - counted_tokens) / (end - start),
        cached=_share(table.cached_tokens[answered], table.input_tokens[answered]),
        events=int(np.count_nonzero(inside)),
    )
    if LevelNote.STALLED in level.notes:  # what no token came of was counted, and is 0
        return counted
    return _within_a_request(counted, table, level, requests.placed_tokens)


def _within_a_request(counted: _Rates, table: Table, level: Level, output_tokens: Floats) -> _Rates:
    """Return the rates of a window that is a part of a request (`window.even_rate`); of any other, those counted."""
    even = window.even_rate(table, level, output_tokens)
    if even is None:
        return counted
    ended = _estimate(window.even_rate(table, level, np.ones(len(output_tokens))))
    output = counted.output.mean
    if output and counted.output_se and abs(output / even - 1) <= _ALIKE:
        return msgspec.structs.replace(counted, output_se=math.hypot(counted.output_se, output - even), requests=ended)
    start, end = level.window
    touching = int((table.ok & (table.sent < end) & (table.done > start)).sum())
    return msgspec.structs.replace(
        counted,
        output=_estimate(even),
        output_se=None if math.isnan(even) else even * max(ASSUMED, 1 / math.sqrt(touching)),
        se_assumed=True,
        decode=_estimate(window.even_rate(table, level, output_tokens - table.first_tokens)).mean,
        requests=ended,
    )


def _estimate(rate: float | None) -> Estimate:
    """Return a rate without an interval."""
    return Estimate(None if rate is None or math.isnan(rate) else rate)


def _with_lateness(
    client: ClientView, table: Table, level: Level, chunks: _Chunks, request_s: float | None, stamps_late_s: float
) -> ClientView:
    """Return the client with late reads and late sends by the records, where its telemetry lacks them."""
    if client.merged_fraction is None and chunks.merged is not None:
        client = msgspec.structs.replace(client, merged_fraction=chunks.merged, lumped_fraction=chunks.lumped)
    if level.concurrency and client.late_fraction is None:
        late = late_share(table, level, *level.window)
        if stamps_late_s and request_s:  # by the clock: an end that was read late was sent after as late
            late += (1 - late) * min(1.0, stamps_late_s / request_s)
        client = msgspec.structs.replace(client, late_fraction=late)
    return client


def _summary(
    table: Table, level: Level, conditions: Conditions, requests: _Requests, chunks: _Chunks, rates: _Rates
) -> LevelSummary:
    """Return the figures under their names; client, server, GPU and verdicts are filled in later."""
    T, good, gpus = level.window[1] - level.window[0], requests.good, conditions.gpus
    cancelled, abandoned = (int((requests.began & rows).sum()) for rows in (table.cancelled, table.abandoned))
    errors = Counter(table.error[row] for row in np.flatnonzero(requests.failed))
    met = meets(conditions.slo, requests.figures, int(good.sum())) if conditions.slo else None
    latencies = {name: spread(requests.figures[name]) for name in ("ttft", "ttfat", "tpot")}
    made = LevelSummary(
        concurrency=level.concurrency,
        rate=level.rate,
        offered_requests_per_s=(requests.counted + abandoned) / T if level.rate is not None else None,
        from_send=_from_send(table, good) if level.rate is not None else None,
        repeat=level.repeat,
        in_flight=in_flight(table, *level.window, ~requests.silent),
        little_in_flight=requests.little.by_law,
        window_s=T,
        window=level.window,
        requests=int(requests.began.sum()),
        errors=int(requests.failed.sum()),
        error_rate=float(requests.failed.sum()) / requests.counted if requests.counted else None,
        errors_by_type=dict(errors.most_common()),
        cancelled=cancelled,
        abandoned=abandoned or UNSET,
        output_tokens_per_s=rates.output,
        output_tokens_per_s_se=rates.output_se,
        output_tokens_per_s_se_assumed=rates.se_assumed,
        output_tokens_per_s_per_gpu=rates.output.mean / gpus if gpus and rates.output.mean is not None else None,
        tokens_per_s_per_user=1 / chunks.itl.mean if chunks.itl.mean else None,
        peak_output_tokens_per_s=rates.peak,
        input_tokens_per_s=rates.input,
        cached_input_fraction=rates.cached,
        decode_tokens_per_s=rates.decode,
        prefill_tokens_per_s=None,
        requests_per_s=rates.requests,
        images_per_s=_times(rates.requests.mean, conditions.images),
        image_bytes_per_s=_times(rates.requests.mean, conditions.image_bytes),
        discarded_tokens_per_s=rates.discarded,
        unplaced_tokens=round(requests.unplaced_tokens),
        input_tokens_mean=_mean(table.input_tokens[good]),
        output_tokens_mean=_mean(requests.output_tokens[good]),
        ttft_s=latencies["ttft"],
        ttfat_s=latencies["ttfat"],
        itl_s=chunks.itl,
        icl_s=chunks.icl,
        tpot_s=latencies["tpot"],
        e2e_s=requests.e2e,
        tail_s=requests.tail,
        lag_s=spread(requests.lag),
        goodput_requests_per_s=float(met.sum()) / T if met is not None else None,
        goodput_tokens_per_s=float(requests.output_tokens[good][met].sum()) / T if met is not None else None,
        slo_met_fraction=float(met.sum()) / requests.judged if met is not None and requests.judged else None,
        tokens_per_chunk=chunks.tokens_per_chunk,
        server=None,
        client=ClientView(),
        input_tokens_asked=level.input_tokens,
        reason=level.reason,
        role=level.role,
        verdicts=[],
    )
    return made if conditions.unit is Unit.OUTPUT_TOKENS else _without_decoding(made, rates, conditions)


def _without_decoding(s: LevelSummary, rates: _Rates, conditions: Conditions) -> LevelSummary:
    """Return a level of which nothing is decoded: what counts tokens of answers, or times them, is not there.

    `rates.output` is of the work that arrived, in the unit of the conditions.
    """
    inputs, unit = conditions.inputs, conditions.unit
    requests, ends = s.requests_per_s, s.requests_per_s.ci95
    documents = Estimate(
        None if requests.mean is None else inputs * requests.mean,
        None if ends is None else (inputs * ends[0], inputs * ends[1]),
    )
    nothing = Spread(None, None, None, None, None, None, 0)
    absent = (
        "tokens_per_s_per_user", "peak_output_tokens_per_s", "decode_tokens_per_s", "discarded_tokens_per_s",
        "output_tokens_per_s_per_gpu", "output_tokens_mean", "tokens_per_chunk",
    )  # fmt: skip
    from_send = s.from_send and msgspec.structs.replace(s.from_send, ttft_s=nothing, ttfat_s=nothing)
    return msgspec.structs.replace(
        s,
        **dict.fromkeys(("ttft_s", "ttfat_s", "itl_s", "icl_s", "tpot_s"), nothing),
        **dict.fromkeys(absent),
        unit=unit.value,
        output_tokens_per_s=Estimate(None),
        input_tokens_per_s=rates.output if unit is Unit.INPUT_TOKENS else Estimate(None),
        documents_per_s=rates.output if unit is Unit.DOCUMENTS else documents,
        unplaced_tokens=0,
        from_send=from_send,
    )


def _events_at_once(table: Table, rows: Bools) -> float | None:
    """Return how many token-carrying events came with one stamp, on average over the marked rows."""
    every = int(table.chunks[rows].sum())
    together = int((gaps(table, rows) == 0).sum())
    return every / (every - together) if every > together else None


def _without_late_reads(s: LevelSummary) -> LevelSummary:
    """Return the summary without the percentiles that late reads have spoilt (`spoilt`)."""
    changes = {}
    for name, lost in spoilt(s).items():
        spread = getattr(s, name)
        gone = {f"p{q}": None for q in lost} | ({"max": None} if len(lost) == len(PERCENTILES) else {})
        changes[name] = msgspec.structs.replace(spread, **gone)
    return msgspec.structs.replace(s, **changes)


def _from_send(table: Table, good: Bools) -> FromSend:
    sent = table.sent
    return FromSend(
        ttft_s=spread(ttft(sent, table.first)[good]),
        ttfat_s=spread(ttft(sent, table.first_content)[good]),
        e2e_s=spread((table.done - sent)[good]),
    )


def _without_steady_state(s: LevelSummary) -> LevelSummary:
    """Return an open loop that is not sustained without latencies: these would be of the length of the window."""
    nothing = Spread(None, None, None, None, None, None, 0)
    names = ("ttft_s", "ttfat_s", "itl_s", "icl_s", "tpot_s", "e2e_s")
    return msgspec.structs.replace(s, **dict.fromkeys(names, nothing), from_send=None)


def _share(part: Floats, whole: Floats) -> float | None:
    """Return Σ part/Σ whole; None where any part is missing, which may be 0 (vllm-project/vllm, issue 44377)."""
    return None if not len(part) or np.isnan(part).any() else float(part.sum() / whole.sum())


def _known(values: Floats) -> Floats | None:
    """Return values with the mean of the rest for nans (requests cut before their usage came); None without any."""
    missing = np.isnan(values)
    if missing.all():
        return None
    return np.where(missing, values[~missing].mean(), values)


def _times(requests_per_s: float | None, each: int) -> float | UnsetType | None:
    """Return what requests have, per second; UNSET where they have none."""
    return UNSET if not each else requests_per_s and requests_per_s * each


def _mean(values: Floats) -> float | None:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None
