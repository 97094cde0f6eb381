"""One level's summary from the records (docs/definitions.md, levels[]).

Throughput counts tokens by their arrival inside the window, those of every request; latencies are those of the requests
that began in the window and succeeded. Canaries are load, and counted as such; lengths, latencies and goodput are of
the other requests. Left out: prefill tok/s (`step_account`), and whether an SLO is met (`slo`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from harness.analysis import window
from harness.analysis.metrics import figures, late_share, mean_itl, meets, peak_rate, steps, ttft
from harness.analysis.rules import findings
from harness.analysis.rules.figures import LUMPED, PERCENTILES, TOKENS_PER_CHUNK, spoilt
from harness.analysis.rules.requests import Conditions, Measured, sent_late, unstable
from harness.analysis.stats import ASSUMED, batch_means, fit_error, spread
from harness.analysis.table import Bools, Floats, Table, gaps, placed_tokens
from harness.analysis.window import Little, began_in, in_flight, little
from harness.data.figures import DECODED, NO_ESTIMATE, Declared, Group, declared
from harness.data.judgement import rank
from harness.data.levels import FromSend, LevelSummary
from harness.data.record import Level, LevelNote
from harness.data.views import NO_SPREAD, ClientView, Estimate, GpuView, ServerView, Spread
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
    counted = _counted(table, level, conditions)
    requests, chunks, rates = counted.requests, counted.chunks, counted.rates
    decodes = conditions.unit is Unit.OUTPUT_TOKENS
    if gpu and gpu.energy_j is not None and decodes and rates.output.mean and conditions.gpus in (None, gpu.gpus):
        joules = gpu.energy_j / (rates.output.mean * (end - start))
        gpu = msgspec.structs.replace(gpu, joules_per_output_token=joules)
    client = _with_lateness(client, table, level, chunks, requests.e2e.mean, stamps_late_s)
    if conditions.ceiling:
        share = rates.events / (end - start) / conditions.ceiling
        client = msgspec.structs.replace(client, ceiling_fraction=share)
    made = msgspec.structs.replace(_summary(counted), server=server, client=client, gpu=gpu)
    if made.cached_input_fraction is None and server is not None:
        made = msgspec.structs.replace(made, cached_input_fraction=server.prefix_hit_fraction)

    traffic = conditions.traffic
    asked = level.rate if traffic.speed is None else None  # how many of a trace are due only its dataset says
    backlog = None
    if level.rate is not None:
        backlog = window.backlog(table, start, end, traffic.period_s, rate=asked, shape=traffic.shape)
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
        events_at_once=chunks.at_once,
        median_lag_s=float(np.median(requests.lag)) if len(requests.lag) else None,
        usage_tokens=requests.usage_tokens,
        hung=int(np.count_nonzero(requests.silent)) or level.hung,
        failing_since_s=window.failing_since(table, level),
        hung_at=_only_place(table, requests.silent),
        silence_s=window.silence(table, start, end),
    )
    return msgspec.structs.replace(measured.s, verdicts=sorted(findings(measured), key=rank))


def part_summary(table: Table, level: Level, conditions: Conditions, whole: LevelSummary) -> LevelSummary:
    """Return the summary of a part of a level's requests (a class, a replica), which `table` holds alone; no verdicts.

    Figures that late reads or an unsteady rate void in the `whole` level are left out here too.
    """
    made = _summary(_counted(table, level, conditions))
    if unstable.voids(whole):
        made = _without_steady_state(made)
    return _without_late_reads(msgspec.structs.replace(made, client=whole.client))


class _Requests(msgspec.Struct, frozen=True):
    """The requests that began in the window."""

    began: Bools  # shape [requests], like the next two
    good: Bools  # those that succeeded, but for canaries: latencies are theirs
    failed: Bools
    figures: dict[str, Floats]  # figures of the good requests
    lag: Floats  # seconds from schedule to send, of the good requests
    counted: int  # requests without those that we cut
    judged: int  # counted requests whose latencies count
    output_tokens: Floats  # output tokens of every request: by usage, else one for each arrival
    placed_tokens: Floats  # output tokens of every request that have an arrival
    usage_tokens: float  # output tokens of the good requests whose usage came
    unplaced_tokens: float  # usage_tokens without an arrival
    e2e: Spread
    tail: Floats  # seconds from the last token to the end of the answer, of the good requests
    silent: Bools  # those that hung, shape [requests]
    little: Little


def _requests(table: Table, level: Level, slo: Mapping[str, float]) -> _Requests:
    """Return which requests a level counts (good, failed, judged), with the good ones' figures and output tokens."""
    began = began_in(table, level)
    good, silent = began & table.ok & ~table.canary, window.silent(table, level)
    lost = silent & table.failed & ~began  # requests that hung since before the window
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
        tail=(table.done - table.last)[good],
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


def _chunks(table: Table, requests: _Requests, T: float, replicas: int) -> _Chunks:
    """Return ITL, gaps between chunks, and tokens a chunk; the ITL has no percentiles where chunks hold several."""
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
    itl = msgspec.structs.replace(NO_SPREAD, mean=mean, n=independent)
    if tokens_per_chunk is not None and tokens_per_chunk <= TOKENS_PER_CHUNK and not lumps:
        itl = msgspec.structs.replace(icl, mean=mean)
    return _Chunks(
        itl=itl,
        icl=icl,
        tokens_per_chunk=tokens_per_chunk,
        merged=int(table.merged[good].sum()) / chunks - lumped if chunks else None,
        lumped=lumped,
        at_once=_events_at_once(table, good) if lumps else None,
    )


class _Rates(msgspec.Struct, frozen=True):
    """What arrived in the window, of all requests: per second, with its error."""

    output: Estimate
    output_se: float | None
    se_assumed: bool
    peak: float | None
    input: Estimate
    requests: Estimate
    decode: float | None
    discarded: float
    cached: float | None  # share of the input tokens
    events: int  # events that arrived, those of failed requests included


def _rates(table: Table, level: Level, requests: _Requests) -> _Rates:
    """Return a level's rates over its window (tokens, requests, prompts, events) and its share of cached input tokens.

    Tokens of failed requests do not count. Where requests are longer than the window the rates are by Little's law.
    """
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
    """Return the rates by Little's law (`window.even_rate`) if the window is shorter than a request, else `counted`."""
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
    """Return the client with its shares of late reads and late sends, taken from the records if it has none yet."""
    if client.merged_fraction is None and chunks.merged is not None:
        client = msgspec.structs.replace(client, merged_fraction=chunks.merged, lumped_fraction=chunks.lumped)
    if level.concurrency and client.late_fraction is None:
        late = late_share(table, level, *level.window)
        if stamps_late_s and request_s:  # an end that was read late made the next request as late
            late += (1 - late) * min(1.0, stamps_late_s / request_s)
        client = msgspec.structs.replace(client, late_fraction=late)
    return client


class Counted(msgspec.Struct, frozen=True):
    """A level's requests in its window: what each figure is made from (`harness.data.figures`)."""

    table: Table
    level: Level
    conditions: Conditions
    requests: _Requests
    chunks: _Chunks
    rates: _Rates
    met: Bools | None  # the successes that met every limit, shape [successes]; None: no limit

    @property
    def seconds(self) -> float:
        """Return the length of the window."""
        return self.level.window[1] - self.level.window[0]

    @property
    def in_flight(self) -> float | None:
        return in_flight(self.table, *self.level.window, ~self.requests.silent)

    @property
    def offered(self) -> float | None:
        """Return the requests per second that were due in the window of an open loop."""
        return (self.requests.counted + self.began("abandoned")) / self.seconds if self.level.rate is not None else None

    def began(self, outcome: str) -> int:
        """Return how many requests that began in the window ended so: cancelled or abandoned."""
        return int((self.requests.began & getattr(self.table, outcome)).sum())

    def mean(self, values: Floats) -> float | None:
        """Return the mean over the successes whose value is known; `values` are of all requests."""
        known = values[self.requests.good]
        known = known[~np.isnan(known)]
        return float(known.mean()) if len(known) else None

    def each_second(self, of_request: int) -> float | UnsetType | None:
        """Return what the requests have, per second; UNSET if they have none."""
        rate = self.rates.requests.mean
        return UNSET if not of_request else rate and rate * of_request


def _counted(table: Table, level: Level, conditions: Conditions) -> Counted:
    requests = _requests(table, level, conditions.slo)
    return Counted(
        table=table,
        level=level,
        conditions=conditions,
        requests=requests,
        chunks=_chunks(table, requests, level.window[1] - level.window[0], conditions.replicas),
        rates=_rates(table, level, requests),
        met=meets(conditions.slo, requests.figures, int(requests.good.sum())) if conditions.slo else None,
    )


def _summary(counted: Counted) -> LevelSummary:
    """Return a level's summary with every declared figure, made from what was counted; the rest is filled in later."""
    level, decodes = counted.level, counted.conditions.unit is Unit.OUTPUT_TOKENS
    errors = Counter(counted.table.error[row] for row in np.flatnonzero(counted.requests.failed))
    figures = {figure.name: _made(figure, counted) for figure in declared(LevelSummary).values() if figure.about.made}
    made = LevelSummary(
        concurrency=level.concurrency,
        rate=level.rate,
        from_send=_from_send(counted.table, counted.requests.good) if level.rate is not None else None,
        repeat=level.repeat,
        window_s=counted.seconds,
        window=level.window,
        errors_by_type=dict(errors.most_common()),
        output_tokens_per_s_se=counted.rates.output_se,
        output_tokens_per_s_se_assumed=counted.rates.se_assumed,
        server=None,
        client=ClientView(),
        input_tokens_asked=level.input_tokens,
        reason=level.reason,
        role=level.role,
        verdicts=[],
        **figures,
    )
    return made if decodes else _without_decoding(made, counted)


def _made(figure: Declared, counted: Counted) -> Any:
    """Return the value of a declared figure: of an array its distribution, of anything else the number itself."""
    assert figure.about.made is not None
    made = figure.about.made(counted)
    if isinstance(made, np.ndarray):
        return spread(made)
    return made.item() if isinstance(made, np.generic) else made


def _without_decoding(level: LevelSummary, counted: Counted) -> LevelSummary:
    """Return the summary of a level whose requests decode nothing (embeddings), without the figures of output tokens.

    Its throughput is the rate of the work that was done: input tokens or documents, by the unit of the conditions.
    """
    inputs, unit, work = counted.conditions.inputs, counted.conditions.unit, counted.rates.output
    requests, ends = level.requests_per_s, level.requests_per_s.ci95
    documents = Estimate(
        None if requests.mean is None else inputs * requests.mean,
        None if ends is None else (inputs * ends[0], inputs * ends[1]),
    )
    from_send = level.from_send and msgspec.structs.replace(level.from_send, ttft_s=NO_SPREAD, ttfat_s=NO_SPREAD)
    return msgspec.structs.replace(
        level,
        **{figure.name: figure.nothing for figure in declared(LevelSummary).values() if DECODED in figure.marks},
        unit=unit.value,
        input_tokens_per_s=work if unit is Unit.INPUT_TOKENS else NO_ESTIMATE,
        documents_per_s=work if unit is Unit.DOCUMENTS else documents,
        from_send=from_send,
    )


def _only_place(table: Table, rows: Bools) -> str:
    """Return the replica that all marked requests went to; "" if there is one server, or they went to several."""
    places = {table.url[row] for row in np.flatnonzero(rows)}
    return places.pop() if len(places) == 1 and len(set(table.url)) > 1 else ""


def _events_at_once(table: Table, rows: Bools) -> float | None:
    """Return how many token-carrying events came with one stamp, on average over the marked rows."""
    every = int(table.chunks[rows].sum())
    together = int((gaps(table, rows) == 0).sum())
    return every / (every - together) if every > together else None


def _without_late_reads(level: LevelSummary) -> LevelSummary:
    """Return the summary without the latency percentiles that late reads made wrong."""
    changes = {}
    for name, lost in spoilt(level).items():
        spread = getattr(level, name)
        gone = {f"p{q}": None for q in lost} | ({"max": None} if len(lost) == len(PERCENTILES) else {})
        changes[name] = msgspec.structs.replace(spread, **gone)
    return msgspec.structs.replace(level, **changes)


def _from_send(table: Table, good: Bools) -> FromSend:
    sent = table.sent
    return FromSend(
        ttft_s=spread(ttft(sent, table.first)[good]),
        ttfat_s=spread(ttft(sent, table.first_content)[good]),
        e2e_s=spread((table.done - sent)[good]),
    )


def _without_steady_state(level: LevelSummary) -> LevelSummary:
    """Return the summary without latencies: in an open loop that is not sustained they grow with the window."""
    latencies = [figure.name for figure in declared(LevelSummary).values() if figure.about.group is Group.LATENCY]
    return msgspec.structs.replace(level, **dict.fromkeys(latencies, NO_SPREAD), from_send=None)


def _share(part: Floats, whole: Floats) -> float | None:
    """Return Σ part/Σ whole; None if any part is missing, which may be 0 (vllm-project/vllm, issue 44377)."""
    return None if not len(part) or np.isnan(part).any() else float(part.sum() / whole.sum())


def _known(values: Floats) -> Floats | None:
    """Return the values, nan replaced by the mean of the known ones (usage that never came); None if all are nan."""
    missing = np.isnan(values)
    if missing.all():
        return None
    return np.where(missing, values[~missing].mean(), values)
