"""Whether a level's figures can be trusted: by the server's state, the window's length, the tokens, the arrivals."""

from __future__ import annotations

import math

from harness.analysis.rules import Finding, Place, rule
from harness.analysis.rules.requests import MERGED, Measured, read_late, remedy_for
from harness.analysis.stats import SAMPLES, Z95, half_width
from harness.data.judgement import DOUBT, NOTE
from harness.data.levels import LevelSummary
from harness.data.record import LevelNote
from harness.data.views import GpuView

THROTTLED = 0.10  # share of the window, above which a GPU's clocks are not those of its data sheet
_WHOLE = 0.9  # share of a response's time: a shorter window can hold many responses and few prompts, or few and many
_REQUEST_TIMES = 20  # request times that a window needs for an interval
TOKENS_PER_CHUNK = 1.05  # above it a chunk's gap is no inter-token latency
CACHED = 0.01  # share of the input tokens of random prompts, from which on they were not new to the server
LUMPED = 0.05  # share of the events, above which the server counts as sending several at a time
WHOLE = 4.0  # tokens of an answer, from which on one that comes at once did not stream
LATE_END = 0.10  # share of a request's time that an answer may take to end after its last token
STAMPS_OFF = 0.05  # share of a latency by which the clock's stamps may be late
PERCENTILES = (50, 90, 95, 99)


@rule(Measured, DOUBT, brief="throughput was still changing{}: measure for longer")
def not_settled(level: Measured) -> Finding | None:
    """Throughput was still changing half-way through warm-up and window."""
    if LevelNote.NOT_SETTLED not in level.notes:
        return None
    return Finding("throughput was still changing half-way through warm-up and window", "hold the level longer")


@rule(Measured, DOUBT, brief="throughput is less precise than asked{}")
def not_precise(level: Measured) -> Finding | None:
    """The window ended before its throughput was as precise as asked."""
    precision = level.conditions.precision
    if LevelNote.NOT_PRECISE not in level.notes or precision is None:
        return None
    half = half_width(level.s.throughput)
    known = "is not known to any interval" if half is None else f"is known to ±{half:.1%}"
    return Finding(
        f"throughput {known}, ±{precision:.1%} was requested: it still varies after {level.s.window_s:.3g} s",
        "see the level's other verdicts first; ask for less precision, or for --level-seconds",
    )


@rule(Measured, DOUBT, brief="the measurement was cut short{}")
def cut_short(level: Measured) -> Finding | None:
    """A budget, an interrupt, failures, a stall or a shard's timetable ended the window early, or the level before the
    last request of its window.
    """
    notes = set(level.notes)
    if LevelNote.INTERRUPTED in notes:
        message = f"an interrupt ended the level after {level.s.window_s:.3g} s of its window"
        return Finding(message, "`knee run --resume` measures it again")
    if notes & {LevelNote.COOLDOWN_CUT, LevelNote.COOLDOWN_STALLED}:
        return Finding(
            "the level ended before the last request of its window had: slow ones are missing",
            "see its errors first; else give the run more time or requests",
        )
    if LevelNote.CUT_SHORT in notes and not level.conditions.counted:
        message = f"a budget ended the window after {level.s.window_s:.3g} s"
        return Finding(message, "give the run more time or requests")
    return None


@rule(Measured, DOUBT, brief="a GPU was slowed down by heat or power{}")
def gpu_throttled(level: Measured) -> Finding | None:
    """Heat or a power brake slowed a GPU down; the ordinary power cap only has a note."""
    gpu = level.s.gpu
    if gpu is None or gpu.throttled_fraction is None or gpu.throttled_fraction <= THROTTLED:
        return None
    reasons = [f"{name} {share:.0%}" for name, share in (gpu.throttle or {}).items() if name != "sw_power_cap"]
    return Finding(
        f"a GPU was slowed down in {gpu.throttled_fraction:.0%} of the window ({', '.join(reasons)}){clock(gpu)}",
        "look at its cooling and its power supply: another card of its kind would be faster",
    )


def clock(gpu: GpuView) -> str:
    if gpu.sm_clock_hz is None or gpu.sm_clock_min_hz is None:
        return ""
    return f"; SM clock {gpu.sm_clock_hz / 1e6:.0f} MHz on average, {gpu.sm_clock_min_hz / 1e6:.0f} at least"


@rule(Measured, DOUBT, NOTE, brief="window too short for an interval{}: measure for longer", place=Place.LAST)
def window_too_short(level: Measured) -> Finding | None:
    """Throughput has no interval; a note where a longer window gives one and this one is as long as a response."""
    s, request = level.s, level.s.e2e_s.mean
    if level.rising or s.throughput.ci95 is not None:
        return None
    if request is None:
        message = f"no request that began in the window of {s.window_s:.3g} s succeeded: no interval"
        return Finding(message, "hold the level longer, or look at its errors")
    if s.window_s < _REQUEST_TIMES * request:
        return Finding(
            f"the window of {s.window_s:.3g} s is {s.window_s / request:.1f} times as long as a request of "
            f"{request:.3g} s; an interval needs {_REQUEST_TIMES} times",
            f"hold each level for at least {_REQUEST_TIMES * request:.3g} s",
            NOTE if s.window_s >= _WHOLE * (request - (s.ttft_s.mean or 0.0)) else DOUBT,
        )
    return Finding(
        f"throughput varies too slowly for an interval from a window of {s.window_s:.3g} s", "hold each level longer"
    )


# ---- the tokens ---------------------------------------------------------------------------------------------


@rule(Measured, DOUBT, brief="tokens that were counted were not seen to arrive{}")
def unplaced_tokens(level: Measured) -> Finding | None:
    """More than 1 % of the tokens that the server counted have no arrival; the end of each answer needs none."""
    missing, usage = level.s.unplaced_tokens, level.usage_tokens
    if not usage or -0.01 * usage <= missing <= max(0.01 * usage, level.s.requests - level.s.errors):
        return None
    return Finding(
        f"{missing} of {usage:.0f} tokens that the server counted were not seen to arrive ({missing / usage:.1%})",
        "name the tokenizer, or ask for usage in every chunk",
    )


@rule(Measured, DOUBT, brief="answers have other lengths than asked{}")
def output_length_off(level: Measured) -> Finding | None:
    """Answers have 10 % more or fewer tokens than asked."""
    mean, requested = level.s.output_tokens_mean, level.conditions.output_tokens
    if not requested or mean is None or abs(mean / requested - 1) <= 0.10:
        return None
    return Finding(
        f"{mean:.1f} output tokens a request, {requested:.1f} were requested",
        "check that the server honours ignore_eos and max_tokens",
    )


@rule(Measured, NOTE, brief="prompts have other lengths than asked{}: --tokenizer")
def input_length_off(level: Measured) -> Finding | None:
    """Prompts have 10 % more or fewer tokens than asked."""
    mean, requested = level.s.input_tokens_mean, level.level.input_tokens or level.conditions.input_tokens
    if not requested or mean is None or abs(mean / requested - 1) <= 0.10:
        return None
    return Finding(
        f"{mean:.1f} input tokens a request by the server's count, {requested:.1f} were requested",
        "name the model's tokenizer; chat templates add some tokens of their own",
    )


@rule(Measured, DOUBT, brief="prompts came from the prefix cache{}")
def prefix_cache_hits(level: Measured) -> Finding | None:
    """The prefix cache served more of the prompts than their common template and the hits that were asked for."""
    s, asked = level.s, level.conditions
    common = asked.template_tokens / s.input_tokens_mean if s.input_tokens_mean else 0.0
    share, expected = s.cached_input_fraction, asked.expected_hit_rate
    by_chance = Z95 * math.sqrt(expected * (1 - expected) / max(s.requests, 1))  # no shares of this mean vary by more
    if share is None or share < CACHED + common + expected + by_chance:
        return None
    of_expected = f", {expected:.1%} by what the workload repeats" if expected else ""
    return Finding(
        f"{share:.1%} of the input tokens came from the prefix cache{of_expected}",
        "switch the cache off, or ask for a workload that means to hit it",
    )


@rule(Measured, DOUBT, brief="server and client count other tokens{}: other users?")
def token_counts_disagree(level: Measured) -> Finding | None:
    """The server counts 1 % more or fewer tokens than Knee."""
    s = level.s
    if s.server is None or s.abandoned:  # what was given up has no usage, and the server counts its prompts
        return None
    # A prompt counts there when it is computed, and here with its first token: those between may be in either.
    in_transit = (s.in_flight or 0.0) / s.requests if s.requests else 0.0
    ratios = {
        "output": (s.server.generation_tokens_ratio, 0.01),
        "input": (s.server.prompt_tokens_ratio, 0.01 + in_transit),
    }
    off = [
        f"{name} {ratio:.3f}" for name, (ratio, most) in ratios.items() if ratio is not None and abs(ratio - 1) > most
    ]
    if not off:
        return None
    return Finding(
        f"the server's own token counters over ours: {', '.join(off)}", "make sure that nobody else uses the server"
    )


# ---- latencies and their percentiles ------------------------------------------------------------------------


@rule(Measured, NOTE, brief="several tokens come in a chunk{}: no ITL percentiles")
def itl_chunked(level: Measured) -> Finding | None:
    """ITL has no percentiles, because chunks have several tokens."""
    per_chunk = level.s.tokens_per_chunk
    if per_chunk is None or per_chunk <= TOKENS_PER_CHUNK:
        return None
    return Finding(
        f"{per_chunk:.2f} tokens a chunk: ITL percentiles are not given, mean ITL, TPOT and ICL are",
        "read TPOT for the pace and ICL for the stalls",
    )


@rule(Measured, NOTE, brief="several tokens come at once{}: no ITL percentiles")
def server_lumps(level: Measured) -> Finding | None:
    """ITL has no percentiles, because the server, or a proxy before it, sends several events at once."""
    if level.events_at_once is None:
        return None
    return Finding(
        f"the server sends {level.events_at_once:.3g} events at a time: ITL percentiles are left out, ICL is the time "
        "between such bundles, throughput stands",
        "a proxy that buffers, speculation or steps of several tokens do this; look at the proxy first",
    )


@rule(Measured, DOUBT, brief="answers come whole{}: TTFT is the time of an answer")
def whole_answers(level: Measured) -> Finding | None:
    """Answers were to stream, and nearly all tokens of one come at once."""
    s = level.s
    at_once, length = (level.events_at_once or 1.0) * (s.tokens_per_chunk or 1.0), s.output_tokens_mean or 0.0
    if not level.conditions.streams or length < WHOLE or at_once < 0.9 * length:
        return None
    return Finding(
        f"{at_once:.3g} of an answer's {length:.3g} tokens come at once: TTFT is the time of a whole answer, and "
        "prefill and decode cannot be told apart; throughput and E2E are right",
        "let the proxy before the server pass events on as they come (nginx: proxy_buffering off), or ask for whole "
        "answers: --no-stream",
    )


@rule(Measured, NOTE, brief="answers end long after their last token{}")
def late_end(level: Measured) -> Finding | None:
    """Answers end long after their last token: by 10 % of the time of a request, or more."""
    tail, e2e = level.s.tail_s.mean if level.s.tail_s else None, level.s.e2e_s.mean
    if not tail or not e2e or tail < LATE_END * e2e:
        return None
    return Finding(
        f"answers end {tail * 1e3:.0f} ms after their last token, {tail / e2e:.0%} of the time of a request",
        "E2E and requests per second have that time in them; look at what the server does after the last token",
    )


def spoilt(level: LevelSummary) -> dict[str, tuple[int, ...]]:
    """Return the percentiles that late reads made wrong, by the figure's name in the summary.

    With kernel stamps only gaps (ITL, ICL) are wrong: events that were read together have one stamp. A percentile of
    gaps is right while fewer were merged than lie beyond it. Stamps of the user's clock are as late as their reads.
    """
    client, late = level.client, read_late(level)
    merged, delay = client.merged_fraction or 0.0, client.read_delay_p99_s or 0.0
    lost = tuple(q for q in PERCENTILES if late or merged > min(MERGED, round(1 - q / 100, 6)))
    out = {"itl_s": lost, "icl_s": lost} if lost else {}
    if client.timestamp_source == "user":
        for name in ("ttft_s", "ttfat_s", "tpot_s", "e2e_s"):
            mean = getattr(level, name).mean
            if mean is not None and delay > STAMPS_OFF * mean:
                out[name] = PERCENTILES
    return out


@rule(Measured, NOTE, brief="percentiles are left out{}: the client read late")
def late_reads(level: Measured) -> Finding | None:
    """Percentiles are left out, because Knee read the answers late."""
    s = level.late
    if s is None:
        return None
    lost = spoilt(s)
    had = [name for name, qs in lost.items() if any(getattr(getattr(s, name), f"p{q}") is not None for q in qs)]
    if not had:
        return None
    names = ", ".join(name.removesuffix("_s").upper() for name in had)
    merged, delay = s.client.merged_fraction or 0.0, s.client.read_delay_p99_s or 0.0
    late = f"reads were up to {delay * 1e3:.3g} ms late (p99), and " if delay else ""
    return Finding(
        f"percentiles of {names} left out: {late}{merged:.1%} of the events were read together with others",
        remedy_for(s.client)[1],
    )


@rule(Measured, NOTE, brief="a GPU was at its power limit{}")
def gpu_power_capped(level: Measured) -> Finding | None:
    """A GPU was at its power limit."""
    gpu = level.s.gpu
    share = (gpu.throttle or {}).get("sw_power_cap", 0.0) if gpu else 0.0
    if gpu is None or share <= THROTTLED:
        return None
    return Finding(
        f"a GPU was at its power limit in {share:.0%} of the window{clock(gpu)}",
        "usual under full load; compare with cards of the same power limit only",
    )


@rule(Measured, NOTE, brief="too few requests for p99{}: measure for longer", place=Place.LAST)
def too_few_samples(level: Measured) -> Finding | None:
    """The window has too few requests for p99."""
    n = level.s.first_s.n
    if level.rising or n >= SAMPLES[99]:
        return None
    carried = [q for q, needed in SAMPLES.items() if n >= needed]
    upto = f"percentiles up to p{carried[-1]:g}" if carried else "no percentile"
    return Finding(
        f"{n} requests are enough for {upto}; p99 needs {SAMPLES[99]}", "hold the level longer for higher percentiles"
    )


@rule(Measured, NOTE, brief="all requests count{}, to the end of the last")
def by_count(level: Measured) -> Finding | None:
    """A level with a given number of requests, which it shares with other levels or which is below 8 a slot, has all of
    them in its window, from the first to the end of the last.
    """
    if LevelNote.COUNTED not in level.notes:
        return None
    return Finding(
        f"all {level.s.requests} requests count, from the first to the end of the last: the figures hold the beginning "
        "and the end, with fewer in flight",
        "give more requests, or --level-seconds, for a steady state",
    )
