"""What the figures cannot say for themselves: notes, doubts and invalids, as values with advice.

One small function a verdict: it returns the verdict, or None when there is nothing to say. A message states
the fact with its figures, the advice what to do. Left out: deciding what a run's exit status is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.analysis.hyperbolas import PAST
from harness.analysis.stats import SAMPLES, half_width
from harness.analysis.window import Little, Trend
from harness.summary import ClientView, Curve, GpuView, LevelSummary, Verdict

ERROR_RATE = 0.01
IN_FLIGHT = 0.95  # of what was asked; below it there is no plateau to speak of
TOKENS_PER_CHUNK = 1.05  # above it a chunk's gap is no inter-token latency
HARM = 0.02  # of the slots' time that stood empty on our account, above which throughput is not that of the load asked
CPU, MERGED = 0.80, 0.05  # above these the client was short of time
NEAR, TOO_NEAR = 0.50, 0.80  # of the calibrated ceiling, and of one that is a lower bound: from here a doubt
LUMPED = 0.05  # of the events, above which the server is said to send several at a time
WITHHELD = 0.05  # of the time without a processor, above which that is the cause
STAMPS_OFF = 0.05  # of a latency, by which the clock's stamps may be late
PERCENTILES = (50, 90, 95, 99)
KEPT, LATE_S = 0.98, 0.010  # an open loop sends at least this share of its rate, half of it no later than this
CACHED = 0.01  # of the input tokens of random prompts, from which on they were not new to the server
KV_FULL = 0.95  # from here on the KV cache holds no more
THROTTLED = 0.10  # of the window, above which a GPU's clocks are not those of its data sheet
_REQUEST_TIMES = 20  # that a window needs for an interval


# A level


def window_too_short(s: LevelSummary) -> Verdict | None:
    if s.output_tokens_per_s.ci95 is not None:
        return None
    request = s.e2e_s.mean
    if request is None:
        return _doubt(
            "window_too_short",
            f"no request that began in the window of {s.window_s:.3g} s succeeded: no interval",
            "hold the level longer, or look at its errors",
            s,
        )
    if s.window_s < _REQUEST_TIMES * request:
        return _note(
            "window_too_short",
            f"window of {s.window_s:.3g} s is {s.window_s / request:.1f} request times of {request:.3g} s; "
            f"an interval needs {_REQUEST_TIMES}",
            f"hold each level for at least {_REQUEST_TIMES * request:.3g} s",
            s,
        )
    return _doubt(
        "window_too_short",
        f"throughput is still correlated over a tenth of the window of {s.window_s:.3g} s: no interval",
        "hold each level longer",
        s,
    )


def fit_error_assumed(s: LevelSummary, assumed: bool) -> Verdict | None:
    if not assumed or not s.output_tokens_per_s_se or not s.output_tokens_per_s.mean:
        return None
    share = s.output_tokens_per_s_se / s.output_tokens_per_s.mean
    return _note(
        "fit_error_assumed",
        f"window of {s.window_s:.3g} s is too short to measure its own error ({share:.1%} by its number of requests); "
        "the fit takes it from the scatter of the levels",
        "hold each level for at least 4 request times, better 20, for errors of their own",
        s,
    )


def errors_above_1_percent(s: LevelSummary) -> Verdict | None:
    if s.error_rate is None or s.error_rate <= ERROR_RATE:
        return None
    kinds = ", ".join(f"{kind} {n}" for kind, n in s.errors_by_type.items())
    return _invalid(
        "errors_above_1_percent",
        f"{s.errors} of {s.requests} requests failed ({s.error_rate:.1%}): {kinds}",
        "find out what the server refuses; its throughput here is not that of the asked load",
        s,
    )


def in_flight_low(s: LevelSummary) -> Verdict | None:
    """Voids a plateau, not the level's own point: the curve is fitted against the measured in flight."""
    if s.in_flight is None or s.concurrency is None or s.in_flight >= IN_FLIGHT * s.concurrency:
        return None
    return _invalid(
        "in_flight_low",
        f"{s.in_flight:.1f} of {s.concurrency} asked requests were in flight "
        f"({s.in_flight / s.concurrency:.0%}, at least {IN_FLIGHT:.0%} is needed for a plateau)",
        "look for refused requests or a slow client, or make the requests longer",
        s,
    )


def little_mismatch(s: LevelSummary, little: Little) -> Verdict | None:
    if not little.mismatch or little.apart is None:
        return None
    message = (
        f"{little.counted:.2f} requests counted in flight, {little.by_law:.2f} by Little's law "
        f"({little.apart:.0%} apart)"
    )
    if not little.enough:
        return _note(
            "little_mismatch",
            message + f", with fewer than {_REQUEST_TIMES} requests a slot",
            "hold the level longer before reading much into it",
            s,
        )
    return _invalid(
        "little_mismatch",
        message,
        "the level was not in steady state, or times were lost: hold it longer and look at the records",
        s,
    )


def client_limited(s: LevelSummary, client: ClientView) -> Verdict | None:
    """Invalid where the load generator has lowered throughput, and only there: it sent late.

    docs/method.md, Limits of the client.

    Records that are lost and requests that are not in flight have verdicts of their own.
    """
    if client.late_fraction is None or client.late_fraction <= HARM:
        return None
    cause, remedy = _remedy(client)
    said = f"; {cause}" if cause else ""
    return _invalid(
        "client_limited",
        f"{client.late_fraction:.1%} of the request slots' time passed before the next request was sent "
        f"(limit {HARM:.0%}): the load was lower than asked{said}",
        remedy if cause else f"{remedy}, and whether --max-rps holds requests back",
        s,
    )


def client_busy(s: LevelSummary, client: ClientView, lower_bound: bool = False) -> Verdict | None:
    """Where the load generator was short of time; throughput stands.

    `lower_bound`: its calibrated ceiling is one, and being near it says less.
    """
    reasons = []
    share, delay, itl = client.ceiling_fraction, client.read_delay_p99_s, s.itl_s.mean
    if share is not None and share >= (TOO_NEAR if lower_bound else NEAR):
        reasons.append(f"at {share:.0%} of {'what it is known to follow' if lower_bound else 'its ceiling'}")
    if client.cpu_fraction is not None and client.cpu_fraction > CPU:
        reasons.append(f"{client.cpu_fraction:.0%} of its processor used")
    if client.merged_fraction is not None and client.merged_fraction > MERGED:
        reasons.append(f"{client.merged_fraction:.1%} of the events read late, together with others")
    if delay is not None and itl is not None and delay > itl / 2:
        reasons.append(f"read delay p99 {delay * 1e3:.3g} ms (ITL {itl * 1e3:.3g} ms)")
    if not reasons:
        return None
    cause, remedy = _remedy(client)
    said = f"the load generator was busy: {', '.join(reasons)}"
    stands = "" if client.late_fraction is None or client.late_fraction > HARM else "; throughput stands"
    return _doubt("client_busy", f"{said}; {cause}{stands}" if cause else said + stands, remedy, s)


def _remedy(client: ClientView) -> tuple[str, str]:
    """What kept the load generator from its work, as far as the figures tell, and what helps against that."""
    if (client.throttled_fraction or 0.0) > WITHHELD:
        cause = f"this container was held at its CPU limit for {client.throttled_fraction:.0%} of the time"
        return cause, "raise the container's CPU limit"
    if (client.steal_fraction or 0.0) > WITHHELD:
        cause = f"the hypervisor gave {client.steal_fraction:.0%} of the processors' time to others"
        return cause, "run the client on a host of its own"
    if (client.waited_fraction or 0.0) > WITHHELD:
        cause = (
            f"it waited for a processor for {client.waited_fraction:.0%} of the time: another process ran on its core"
        )
        return cause, "stop the other process, or give the client cores of its own with taskset"
    if max(client.cpu_fraction or 0.0, client.ceiling_fraction or 0.0) > CPU:
        idle = client.idle_processors
        if idle is not None and idle < 0.5:
            return "all processors of this machine were busy", "run the client on a larger machine"
        return "too few workers", "give it more workers: --workers"
    if client.ceiling_fraction is not None and client.ceiling_fraction >= NEAR:
        return "", "give it more workers: --workers"
    return "", "see what else runs on this machine"


def spoilt(s: LevelSummary) -> dict[str, tuple[int, ...]]:
    """Percentiles that late reads have spoilt, by the figure's name in the summary.

    Where the kernel stamps, only gaps are: events that shared a read share its stamp. A percentile of gaps is given
    while fewer were merged than lie beyond it. The clock's stamps are as late as their reads, whatever they are of.
    """
    client, itl = s.client, s.itl_s.mean
    merged, delay = client.merged_fraction or 0.0, client.read_delay_p99_s or 0.0
    late = itl is not None and delay > itl / 2
    lost = tuple(q for q in PERCENTILES if late or merged > min(MERGED, round(1 - q / 100, 6)))
    out = {"itl_s": lost, "icl_s": lost} if lost else {}
    if client.timestamp_source == "user":
        for name in ("ttft_s", "ttfat_s", "tpot_s", "e2e_s"):
            mean = getattr(s, name).mean
            if mean is not None and delay > STAMPS_OFF * mean:
                out[name] = PERCENTILES
    return out


def late_reads(s: LevelSummary) -> Verdict | None:
    """Which percentiles are left out on account of late reads, and why; `s` still has them."""
    lost = spoilt(s)
    had = {name for name, qs in lost.items() if any(getattr(getattr(s, name), f"p{q}") is not None for q in qs)}
    if not had:
        return None
    names = ", ".join(name.removesuffix("_s").upper() for name in lost if name in had)
    some = min((lost[name] for name in had), key=len)
    which = "percentiles" if len(some) == len(PERCENTILES) else " and ".join(f"p{q}" for q in some)
    delay, itl = s.client.read_delay_p99_s, s.itl_s.mean
    if delay is not None and itl is not None and delay > itl / 2:
        why = f"reads were up to {delay * 1e3:.3g} ms late (p99), more than half of ITL {itl * 1e3:.3g} ms"
    elif s.client.merged_fraction and "itl_s" in lost:
        why = f"{s.client.merged_fraction:.1%} of the events were read late, together with others"
    else:
        why = f"the clock stamped them up to {(delay or 0.0) * 1e3:.3g} ms late (p99)"
    return _note("late_reads", f"{names} {which} left out: {why}", _remedy(s.client)[1], s)


def server_lumps(s: LevelSummary, events_at_once: float | None) -> Verdict | None:
    """Events that came in one segment: the server's doing, or that of a proxy before it."""
    if events_at_once is None:
        return None
    return _note(
        "server_lumps",
        f"the server sends {events_at_once:.3g} events at a time: ICL is that of the lumps, ITL percentiles are left "
        "out, throughput stands",
        "a proxy that buffers, speculation or steps of several tokens do this; look at the proxy first",
        s,
    )


def too_few_steps(s: LevelSummary, gaps: int) -> Verdict | None:
    """Why there is no p99 of many gaps, and how long a window gives it."""
    n = s.icl_s.n
    if not n or n >= SAMPLES[99] or gaps < SAMPLES[99] or s.icl_s.p50 is None:
        return None
    name = "ICL" if s.itl_s.p50 is None else "ITL"
    seconds = SAMPLES[99] * s.window_s / n
    return _note(
        "too_few_steps",
        f"{name} p99 left out: the {gaps:,} gaps come from {n} engine steps, p99 needs {SAMPLES[99]}",
        f"hold the level for {seconds:.3g} s: --level-seconds {math.ceil(seconds)}",
        s,
    )


def gpu_throttled(s: LevelSummary) -> Verdict | None:
    """Heat and power brakes; the ordinary power cap only has a note."""
    if s.gpu is None or s.gpu.throttled_fraction is None or s.gpu.throttled_fraction <= THROTTLED:
        return None
    reasons = [f"{name} {share:.0%}" for name, share in (s.gpu.throttle or {}).items() if name != "sw_power_cap"]
    return _doubt(
        "gpu_throttled",
        f"a GPU was slowed down in {s.gpu.throttled_fraction:.0%} of the window ({', '.join(reasons)}){_clock(s.gpu)}",
        "look at its cooling and its power supply: another card of its kind would be faster",
        s,
    )


def gpu_power_capped(s: LevelSummary) -> Verdict | None:
    share = (s.gpu.throttle or {}).get("sw_power_cap", 0.0) if s.gpu else 0.0
    if s.gpu is None or share <= THROTTLED:
        return None
    return _note(
        "gpu_power_capped",
        f"a GPU was at its power limit in {share:.0%} of the window{_clock(s.gpu)}",
        "usual under full load; compare with cards of the same power limit only",
        s,
    )


def _clock(gpu: GpuView) -> str:
    if gpu.sm_clock_hz is None or gpu.sm_clock_min_hz is None:
        return ""
    return f"; SM clock {gpu.sm_clock_hz / 1e6:.0f} MHz on average, {gpu.sm_clock_min_hz / 1e6:.0f} at least"


def schedule_not_kept(s: LevelSummary, median_lag_s: float | None) -> Verdict | None:
    """Open loop: whether what was sent is what was asked, and when (docs/method.md, Open loop)."""
    if s.rate is None or s.offered_requests_per_s is None:
        return None
    reasons = []
    sent = s.offered_requests_per_s / s.rate
    due = s.rate * s.window_s
    # By chance alone a Poisson count is below its mean by more than three times its root once in 700 windows.
    if sent < KEPT and due * (1 - sent) > 3 * math.sqrt(due):
        reasons.append(f"{s.offered_requests_per_s:.4g} of {s.rate:.4g} requests per second were due")
    if median_lag_s is not None and median_lag_s >= LATE_S:
        reasons.append(f"half of the requests left {median_lag_s * 1e3:.3g} ms late or later")
    if not reasons:
        return None
    return _invalid(
        "schedule_not_kept",
        "the schedule was not kept: " + "; ".join(reasons),
        "raise --max-concurrency or --workers, or lower the rate",
        s,
    )


def unstable(s: LevelSummary, trend: Trend | None) -> Verdict | None:
    if trend is None or not trend.rising:
        return None
    return _invalid(
        "unstable",
        f"requests in flight rose by {trend.slope:.3g} a second over the whole window: the rate is above what the "
        "server sustains, and there are no latencies of a steady state",
        "lower the rate; offered and completed requests per second stand",
        s,
    )


def itl_chunked(s: LevelSummary) -> Verdict | None:
    if s.tokens_per_chunk is None or s.tokens_per_chunk <= TOKENS_PER_CHUNK:
        return None
    return _note(
        "itl_chunked",
        f"{s.tokens_per_chunk:.2f} tokens a chunk: ITL percentiles are not given, mean ITL, TPOT and ICL are",
        "read TPOT for the pace and ICL for the stalls",
        s,
    )


def unplaced_tokens(s: LevelSummary, output_tokens: float) -> Verdict | None:
    """`output_tokens`: what usage counted for the requests that the unplaced tokens belong to."""
    if not output_tokens or abs(s.unplaced_tokens) <= 0.01 * output_tokens:
        return None
    return _doubt(
        "unplaced_tokens",
        f"{s.unplaced_tokens} of {output_tokens:.0f} tokens in the server's usage have no arrival "
        f"({s.unplaced_tokens / output_tokens:.1%})",
        "name the tokenizer, or ask for usage in every chunk",
        s,
    )


def output_length_off(s: LevelSummary, asked: float | None) -> Verdict | None:
    if not asked or s.output_tokens_mean is None or abs(s.output_tokens_mean / asked - 1) <= 0.10:
        return None
    return _doubt(
        "output_length_off",
        f"{s.output_tokens_mean:.1f} output tokens a request, {asked:.1f} were asked for",
        "check that the server honours ignore_eos and max_tokens",
        s,
    )


def input_length_off(s: LevelSummary, asked: float | None) -> Verdict | None:
    if not asked or s.input_tokens_mean is None or abs(s.input_tokens_mean / asked - 1) <= 0.10:
        return None
    return _note(
        "input_length_off",
        f"{s.input_tokens_mean:.1f} input tokens a request by the server's count, {asked:.1f} were asked for",
        "name the model's tokenizer; chat templates add some tokens of their own",
        s,
    )


def prefix_cache_hits(s: LevelSummary, template_tokens: float = 0.0) -> Verdict | None:
    """Hits beyond the chat template's tokens, with which every prompt begins."""
    common = template_tokens / s.input_tokens_mean if s.input_tokens_mean else 0.0
    if s.cached_input_fraction is None or s.cached_input_fraction < CACHED + common:
        return None
    return _doubt(
        "prefix_cache_hits",
        f"{s.cached_input_fraction:.1%} of the input tokens came from the prefix cache",
        "switch the cache off, or ask for a workload that means to hit it",
        s,
    )


def token_counts_disagree(s: LevelSummary) -> Verdict | None:
    if s.server is None:
        return None
    ratios = {"output": s.server.generation_tokens_ratio, "input": s.server.prompt_tokens_ratio}
    off = [f"{name} {ratio:.3f}" for name, ratio in ratios.items() if ratio is not None and abs(ratio - 1) > 0.01]
    if not off:
        return None
    return _doubt(
        "token_counts_disagree",
        f"the server's own token counters over ours: {', '.join(off)}",
        "make sure that nobody else uses the server",
        s,
    )


def too_few_samples(s: LevelSummary) -> Verdict | None:
    n = s.ttft_s.n
    if n >= SAMPLES[99]:
        return None
    carried = [q for q, needed in SAMPLES.items() if n >= needed]
    upto = f"percentiles up to p{carried[-1]:g}" if carried else "no percentile"
    return _note(
        "too_few_samples",
        f"{n} requests carry {upto}; p99 needs {SAMPLES[99]}",
        "hold the level longer for higher percentiles",
        s,
    )


def not_settled(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if "not_settled" not in notes:
        return None
    return _doubt(
        "not_settled",
        "throughput had not settled by half of warm-up and window",
        "hold the level longer",
        s,
    )


def not_precise(s: LevelSummary, notes: Sequence[str], precision: float | None, drift: float | None) -> Verdict | None:
    """A window that ended before its throughput was known as well as was asked, and why that was.

    `drift`: share of its mean by which throughput moved over the window, None where that is chance.
    """
    if "not_precise" not in notes or precision is None:
        return None
    half = half_width(s.output_tokens_per_s)
    known = "is not known to any interval" if half is None else f"is known to ±{half:.1%}"
    if s.error_rate is not None and s.error_rate > ERROR_RATE:
        why, advice = f"{s.error_rate:.1%} of the requests failed", "see its errors first"
    elif s.client.limited:
        why, advice = "the load generator was the limit", "see what it was short of first"
    elif drift is not None:
        why, advice = f"it moved by {drift:+.1%} over the window", "look for a cache that warms or other load"
    elif {"cut_short", "failing"} & set(notes):
        why, advice = "the window was cut short", "give the run more time or requests"
    else:
        why, advice = f"it still varies after {s.window_s:.3g} s", "ask for less precision, or for --level-seconds"
    return _doubt("not_precise", f"throughput {known}, ±{precision:.1%} was asked: {why}", advice, s)


def transient_unchecked(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if "transient_unchecked" not in notes:
        return None
    return _note(
        "transient_unchecked",
        "fewer than 20 bins: the transient at the start was not looked for",
        "hold the level longer",
        s,
    )


def stalled(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if "stalled" not in notes:
        return None
    return _invalid(
        "stalled",
        f"no token arrived for so long that the level was ended; {s.in_flight or 0:.0f} requests were waiting",
        "see the server's log; measure again once it answers",
        s,
    )


def cut_short(s: LevelSummary, notes: Sequence[str]) -> Verdict | None:
    if "cooldown_cut" in notes:
        return _doubt(
            "cut_short",
            "a budget ended the level before the last request of its window had ended: slow ones are missing",
            "give the run more time or requests",
            s,
        )
    if "cut_short" in notes:
        message = f"a budget ended the window after {s.window_s:.3g} s"
        return _doubt("cut_short", message, "give the run more time or requests", s)
    return None


# The whole run


def plateau_not_reached(reasons: Sequence[str], last: float) -> Verdict:
    return Verdict(
        "plateau_not_reached",
        "note",
        f"plateau not reached up to {last:.4g} in flight: {'; '.join(reasons)}",
        "raise --max-concurrency, or hold the levels above the knee longer",
    )


def knee_not_identifiable(levels: int) -> Verdict:
    return Verdict(
        "knee_not_identifiable",
        "note",
        f"knee not identifiable: {levels} distinct valid level{'s' * (levels != 1)}, at least 6 are needed",
        "measure more levels, some of them around the bend",
    )


def drift(levels: Sequence[LevelSummary]) -> Verdict | None:
    """A doubt where one concurrency, measured again, differs by > 5 % and by > 3 of its standard errors."""
    worst: tuple[float, LevelSummary, LevelSummary] | None = None
    seen: dict[int | float | None, LevelSummary] = {}
    for s in levels:
        first = seen.setdefault(s.concurrency or s.rate, s)
        x, y = first.output_tokens_per_s.mean, s.output_tokens_per_s.mean
        if first is s or not x or y is None:
            continue
        error = math.hypot(first.output_tokens_per_s_se or 0.0, s.output_tokens_per_s_se or 0.0)
        change = y / x - 1
        if abs(change) > max(0.05, 3 * error / x) and (worst is None or abs(change) > abs(worst[0])):
            worst = change, first, s
    if worst is None:
        return None
    change, first, s = worst
    return Verdict(
        "drift",
        "doubt",
        f"{first.output_tokens_per_s.mean:.4g} tok/s, measured again {s.output_tokens_per_s.mean:.4g} ({change:+.1%})",
        "look for other load, a warming cache or a throttling GPU",
        _at(s),
    )


def dip_unconfirmed(depth: float | None, reasons: Sequence[str]) -> Verdict:
    """The curve that fits best falls past its hinge, but that may be chance; depth: share lost at the last level."""
    lost = "" if depth is None else f", by {depth:.0%} at the last level"
    return Verdict(
        "dip_unconfirmed",
        "note",
        f"throughput seems to fall past the knee{lost}; not confirmed: {'; '.join(reasons)}",
        "measure more levels past the knee, and each of them twice",
    )


def dip_confirmed(curve: Curve, levels: Sequence[LevelSummary]) -> Verdict | None:
    """What a confirmed dip costs, and what the server said of itself past the hinge that it did not up to it."""
    hinge = curve.hinge_concurrency.value
    if curve.dip is None or curve.dip.value is None or hinge is None:
        return None
    seen = [s for s in levels if s.concurrency is not None and s.server is not None]
    past = [s for s in seen if (s.concurrency or 0) >= PAST * hinge]
    below = [s for s in seen if s not in past]
    signs = []
    preempted = _largest(past, "preemptions")
    if preempted and preempted > 2 * (_largest(below, "preemptions") or 0.0):
        signs.append(f"up to {preempted:.4g} preemptions in a window")
    if (used := _largest(past, "kv_usage") or 0.0) >= KV_FULL:
        signs.append(f"KV cache {used:.0%} full")
    if (waiting := _largest(past, "waiting") or 0.0) >= 1:
        signs.append(f"up to {waiting:.4g} requests waiting")
    if signs:
        why = f"past the knee the server reported {', '.join(signs)}"
    elif past:
        why = "nothing that the server reported past the knee explains it"
    else:
        why = "the server reported nothing of itself"
    if preempted:
        advice = "lower its batch limit or give its KV cache more memory: preempted work is done twice"
    else:
        advice = f"keep concurrency near {hinge:.4g}, or limit the batch there"
    return Verdict(
        "dip_confirmed",
        "note",
        f"throughput falls by {curve.dip.value:.0%} from the knee at {hinge:.4g} to the last level; {why}",
        advice,
    )


def _largest(levels: Sequence[LevelSummary], figure: str) -> float | None:
    found = [x for s in levels if s.server and (x := getattr(s.server, figure)) is not None]
    return max(found, default=None)


def of_level(
    s: LevelSummary,
    *,
    little: Little,
    ceiling_is_lower_bound: bool = False,
    trend: Trend | None = None,
    late_reads: Verdict | None = None,
    events_at_once: float | None = None,
    gaps: int = 0,
    median_lag_s: float | None = None,
    notes: Sequence[str],
    precision: float | None = None,
    drift: float | None = None,
    assumed_error: bool,
    usage_tokens: float,
    input_tokens_asked: float | None,
    template_tokens: float = 0.0,
    output_tokens_asked: float | None,
) -> list[Verdict]:
    """Every verdict on one level, the gravest first."""
    found = [
        errors_above_1_percent(s),
        client_limited(s, s.client),
        client_busy(s, s.client, ceiling_is_lower_bound),
        in_flight_low(s),
        schedule_not_kept(s, median_lag_s),
        unstable(s, trend),
        None if trend is not None and trend.rising else little_mismatch(s, little),
        stalled(s, notes),
        not_settled(s, notes),
        not_precise(s, notes, precision, drift),
        cut_short(s, notes),
        gpu_throttled(s),
        window_too_short(s),
        fit_error_assumed(s, assumed_error),
        unplaced_tokens(s, usage_tokens),
        output_length_off(s, output_tokens_asked),
        input_length_off(s, input_tokens_asked),
        prefix_cache_hits(s, template_tokens),
        token_counts_disagree(s),
        itl_chunked(s),
        server_lumps(s, events_at_once),
        late_reads,
        too_few_steps(s, gaps),
        gpu_power_capped(s),
        too_few_samples(s),
        transient_unchecked(s, notes),
    ]
    rank = {"invalid": 0, "doubt": 1, "note": 2}
    return sorted([v for v in found if v is not None], key=lambda v: rank[v.level])


def _at(s: LevelSummary) -> int | float | None:
    return s.concurrency if s.rate is None else s.rate


def _note(code: str, message: str, advice: str, s: LevelSummary) -> Verdict:
    return Verdict(code, "note", message, advice, _at(s))


def _doubt(code: str, message: str, advice: str, s: LevelSummary) -> Verdict:
    return Verdict(code, "doubt", message, advice, _at(s))


def _invalid(code: str, message: str, advice: str, s: LevelSummary) -> Verdict:
    return Verdict(code, "invalid", message, advice, _at(s))
