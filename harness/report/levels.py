"""What one level, or one phase, gives, in a line each; repeats as one level; the level that an answer is read at.

A percentile of several repeats is the mean of those that have it, not that of all their requests together. Left out:
the knee and the plateau, which several levels make together (`answer`), and how a fit pools repeats, weighted by their
errors (`analysis.points`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from harness.analysis import answer, slo
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import known_mean, t_quantile
from harness.data.figures import Column, Declared, Figures, Group, Of, declared
from harness.data.levels import LevelPhases, LevelSummary
from harness.data.summary import Curve, Phases
from harness.data.views import Estimate, Spread, Value
from harness.report.document import Fact
from harness.report.format import MISSING, NO_INTERVAL, confidence, interval, joined, load_of, ms, number, percent, time
from harness.spec.work import Unit

_HALF = 0.5  # share of the time, from which on a phase is the one to look at
SOURCES = {
    "records": "the gaps between tokens",
    "levels": "the steps of other levels",
    "both": "the gaps between tokens, and the server's histograms agree",
}
_FEWEST = 3  # repeats whose scatter makes an interval


def highest_up_to(levels: Sequence[LevelSummary], knee: float | None) -> LevelSummary | None:
    """Return the level at a knee: the highest up to 5 % above it; None without a knee or such a level."""
    at = answer.knee_load(knee, [level.load or 0.0 for level in levels])
    return next((level for level in levels if (level.load or 0.0) == at), None)


def most_served(levels: Sequence[LevelSummary], curve: Curve | None) -> LevelSummary | None:
    """Return the level at which most is served, by the curve if there is one; None without a level."""
    return max(levels, key=lambda level: answer.throughput(curve, [level]).value or 0.0, default=None)


def at_the_knee(levels: Sequence[LevelSummary], knee: float | None, curve: Curve | None) -> list[Fact]:
    """Return a line on the latencies of the highest level up to the knee, else of the level that serves most."""
    if level := highest_up_to(levels, knee):
        return [Fact("At the knee", f"{_latencies(level)} ({load_of(level)})")]
    top = most_served([level for level in levels if level.throughput.mean], curve)
    return [latencies(top)] if top else []


def one_level(level: LevelSummary, unit: Unit, price: str) -> list[Fact]:
    """Return the answer's lines for a run of one level: throughput, TTFT, and ITL with E2E (or the one latency)."""
    first = throughput(level, unit, price)
    if not unit.decodes:
        return [first, Fact("Latency", _percentiles("", level.e2e_s) or MISSING)]
    pace = joined(_itl(level), _percentiles("E2E ", level.e2e_s))
    if not level.e2e_s.n:
        return [first, Fact("Requests", "none began and ended in the window: measure for longer")]
    return [first, Fact("First token", _percentiles("TTFT ", level.ttft_s) or MISSING), Fact("Pace", pace or MISSING)]


def throughput(level: LevelSummary, unit: Unit, price: str) -> Fact:
    """Return throughput of a level, with its interval, its requests and what they cost."""
    rate = level.requests_per_s.mean
    value = f"{number(level.throughput.mean)} {unit.per_s} ({confidence(level.throughput.ci95)}) at {load_of(level)}"
    return Fact("Throughput", value, joined(f"{number(rate)} requests/s" if rate else "", price))


def latencies(level: LevelSummary) -> Fact:
    """Return times of the requests at a level."""
    return Fact(f"At {load_of(level)}", _latencies(level))


def phases(measured: Phases | None) -> list[Fact]:
    """Return a line each on prefill and decode as their probes measured them: rate, time a token, MFU or MBU."""
    out = []
    if measured and measured.prefill:
        prefill, slope = measured.prefill, measured.prefill.seconds_per_token.value
        each = f"{number(slope * 1e6)} µs a prompt token" if slope is not None else ""
        rate, share = prefill.tokens_per_s, _share("MFU", prefill.mfu)
        if rate.value is None and each:
            out.append(Fact("Prefill", each, share))
        else:
            out.append(
                Fact("Prefill", f"{number(rate.value)} prompt tok/s", joined(confidence(rate.ci95), each, share))
            )
    if measured and measured.decode:
        decode = measured.decode
        alone = f"ITL {time(decode.itl_s)} with one request" if decode.itl_s is not None else ""
        detail = joined(confidence(decode.tokens_per_s.ci95), alone, _share("MBU", decode.mbu))
        out.append(Fact("Decode", f"{number(decode.tokens_per_s.value)} output tok/s", detail))
    return out


def binding_phase(level: LevelSummary) -> list[Fact]:
    """Return a line on whether prompts or responses take most of the server's time at a level; [] if unknown."""
    phases = level.phases
    if not phases or phases.prefill_share.mean is None:
        return []
    share, at = phases.prefill_share.mean, load_of(level)
    ends = "–".join(percent(end) for end in phases.prefill_share.ci95 or ()) or NO_INTERVAL
    most = phases.prefill_share.ci95[1] if phases.prefill_share.ci95 else share
    if above_zero(phases.prefill_share) is None:
        value = f"at least {percent(1 - most)} of the server's time goes into responses at {at}"
        helps = f"at most {percent(most)} into prompts: shorter prompts cannot save more"
    elif share >= _HALF:
        value = f"{percent(share)} of the server's time goes into prompts at {at} ({ends})"
        helps = "shorter prompts or a prefix cache help, more seats do not"
    else:
        value = f"{percent(1 - share)} of the server's time goes into responses at {at}"
        helps = f"{percent(share)} into prompts ({ends}): shorter prompts cannot save more"
    rates = [
        f"{number(known)} {what}" if (known := above_zero(rate)) is not None else ""
        for rate, what in (
            (phases.prefill_tokens_per_s, "prompt tok/s while it computes prompts"),
            (phases.decode_tokens_per_s, "output tok/s while it makes responses"),
        )
    ]
    return [Fact("Phases", value, joined(helps, *rates, f"by {SOURCES[phases.source]}"))]


def above_zero(figure: Estimate) -> float | None:
    """Return a phase's share or rate; None if it is 0, or its 95 % interval does not leave out 0.

    >>> above_zero(Estimate(0.2, (0.1, 0.3))), above_zero(Estimate(0.01, (0.0, 0.3)))
    (0.2, None)
    """
    low = figure.ci95[0] if figure.ci95 else figure.mean
    return figure.mean if low is not None and low > 0 else None


def _latencies(level: LevelSummary) -> str:
    if not level.decodes:
        return _percentiles("latency ", level.e2e_s) or _none(level)
    median = f"E2E p50 {time(level.e2e_s.p50)}" if level.e2e_s.p50 is not None else ""
    times = joined(_percentiles("TTFT ", level.ttft_s), _itl(level), median)
    return times or _none(level)


def _none(level: LevelSummary) -> str:
    return "no request succeeded" if level.errors else "no request began and ended in the window"


def _itl(level: LevelSummary) -> str:
    return f"ITL {time(level.itl_s.mean)}" if level.itl_s.mean is not None else ""


def _percentiles(name: str, times: Spread) -> str:
    """Return as words the median and the highest known percentile of times; the mean where no percentile is known.

    >>> _percentiles("TTFT ", Spread(0.05, 0.04, 0.06, 0.07, None, 0.2, 150))
    'TTFT p50 40 ms, p95 70 ms'
    >>> _percentiles("TTFT ", Spread(0.05, None, None, None, None, 0.2, 9))
    'TTFT 50 ms on average (n = 9)'
    """
    if times.p50 is None:
        return f"{name}{time(times.mean)} on average (n = {times.n:,})" if times.mean is not None else ""
    highest = next((q for q in ("p99", "p95", "p90") if getattr(times, q) is not None), "")
    high = f", {highest} {time(getattr(times, highest))}" if highest else ""
    return f"{name}p50 {time(times.p50)}{high}"


def _share(name: str, value: Value | None) -> str:
    if value is None or value.value is None:
        return ""
    words = interval(value.ci95)
    return f"{name} {value.value:.2f}" + (f" ({words})" if words else "")


# ---- repeats of a level ----------------------------------------------------------------------------------------------


def of_loads(levels: Sequence[LevelSummary]) -> list[list[LevelSummary]]:
    """Return the levels grouped by load, the lowest first; invalid repeats are left out where a load has valid ones."""
    by_load: dict[tuple[float, int], list[LevelSummary]] = {}
    for level in levels:
        by_load.setdefault((level.load or 0, level.input_tokens_asked or 0), []).append(level)
    return [[x for x in same if usable(x, Purpose.ANSWER)] or same for _, same in sorted(by_load.items())]


def distinct(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """Return one level for each load, the lowest first."""
    return [mean_of(same) for same in of_loads(levels)]


def mean_of(same: Sequence[LevelSummary]) -> LevelSummary:
    """Return repeats of a level as one: means of rates and times, sums of requests and errors, every finding."""
    first = same[0]
    if len(same) == 1:
        return first
    figures = {name: _together(each, [getattr(x, name) for x in same]) for name, each in declared(LevelSummary).items()}
    return msgspec.structs.replace(
        first,
        repeat=0,
        verdicts=[verdict for x in same for verdict in x.verdicts],
        slo=list(slo.judged([x.slo for x in same if usable(x, Purpose.ANSWER)] or [first.slo], 0).pooled),
        phases=_phases([x.phases for x in same if x.phases]) or UNSET,
        **figures,
    )


def _phases(repeats: Sequence[LevelPhases]) -> LevelPhases | None:
    """Return the mean of how repeats of a level divide the server's time; of those that know it, if any does."""
    known = [repeat for repeat in repeats if repeat.prefill_share.mean is not None] or repeats
    if len(known) < 2:
        return known[0] if known else None
    names = ("prefill_tokens_per_s", "decode_tokens_per_s", "prefill_share")
    return msgspec.structs.replace(known[0], **{name: _estimate([getattr(x, name) for x in known]) for name in names})


def _together(figure: Declared, repeats: Sequence[Any]) -> Any:
    """Return a figure of several repeats as one: the sum of counts, the mean of rates and times.

    A figure that a repeat lacks (UNSET) is UNSET, but a count is the sum of those that have it.
    """
    known = [repeat for repeat in repeats if repeat is not UNSET]
    if len(known) < len(repeats):
        return UNSET if figure.kind is not int else sum(known) or UNSET
    if figure.kind is Spread:
        return _spread(known)
    if figure.kind is Estimate:
        return _estimate(known)
    return sum(known) if figure.kind is int else known_mean(known)


def _estimate(repeats: Sequence[Estimate]) -> Estimate:
    """Return the mean, with an interval by the scatter of three or more repeats (Student's t).

    >>> _estimate([Estimate(98.0), Estimate(100.0), Estimate(102.0)]).mean
    100.0
    """
    known = [repeat.mean for repeat in repeats if repeat.mean is not None]
    if len(known) < _FEWEST:
        return Estimate(known_mean(known))
    mean = float(np.mean(known))
    half = t_quantile(0.975, len(known) - 1) * float(np.std(known, ddof=1)) / math.sqrt(len(known))
    return Estimate(mean, (mean - half, mean + half))


def _spread(repeats: Sequence[Spread]) -> Spread:
    means = {name: known_mean(getattr(x, name) for x in repeats) for name in ("mean", "p50", "p90", "p95", "p99")}
    most = max((repeat.max for repeat in repeats if repeat.max is not None), default=None)
    return Spread(**means, max=most, n=sum(repeat.n for repeat in repeats))


# ---- columns that figures declare ------------------------------------------------------------------------------------


def declared_columns(of: Of, kind: type[Figures], *groups: Group) -> Iterator[tuple[Column, Callable[[Figures], str]]]:
    """Yield (column, function that writes its cells) for each figure that a table `of` levels, classes or replicas has.

    With groups, only for figures of these.
    """
    for figure in declared(kind).values():
        for column in figure.columns:
            if of in column.of and figure.about.group in (groups or Group):
                yield column, partial(_cell, figure, column)


def _cell(figure: Declared, column: Column, row: Figures) -> str:
    """Return a figure of a row; a latency in milliseconds, a share in percent."""
    value = getattr(row, figure.name)
    if isinstance(value, Spread):
        return ms(getattr(value, column.part))
    if isinstance(value, Estimate):
        return number(value.mean)
    if value is UNSET or (column.sparse and not value):
        return MISSING
    return percent(value) if figure.about.unit == "1" else number(value)
