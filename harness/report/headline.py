"""The headline: knee, plateau and single stream by the state of the curve, in the same words everywhere.

    found        16.1 requests in flight (95 % interval 15.4–16.5)
    provisional  about 16.1 requests in flight (provisional; 95 % interval 11–28), with what would settle it
    beyond       above 64 requests in flight: throughput still rises there
    none         not measurable: 1 level measured, too few for a curve

Where slots hold sessions, the knee is so many sessions.
With limits (an SLO) the knee is the highest load that meets them, and the curve's own follows as the hinge.
Terminal, Markdown, page, picture and `knee fit` take their sentences from here; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.validity import Purpose, usable
from harness.judgement import Code, Outcome
from harness.report.document import Fact
from harness.report.format import confidence, joined, listed, load_of, number, percent, plain
from harness.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, Estimate, Knees, LevelSummary, Summary, Value
from harness.units import span
from harness.work import Unit

_FLAT = 1.05  # of the lowest level: a hinge up to there lies at that level or below it
REASONS = (Code.PLATEAU_NOT_REACHED, Code.KNEE_NOT_IDENTIFIABLE)  # verdicts that repeat why the answer is not found


def state(curve: Curve | None) -> str:
    """How much of an answer the curve is: found, provisional, beyond or none.

    Summaries of format 1 have no state; there it follows from the figures.
    """
    if curve is None:
        return NONE
    if curve.state != NONE or curve.reasons or curve.family is None:
        return curve.state
    if curve.plateau_reached:
        return FOUND
    return BEYOND if curve.hinge_concurrency.value is None else PROVISIONAL


def is_open(summary: Summary) -> bool:
    """Whether requests were sent at fixed rates (open loop) instead of by slots."""
    return any(level.rate is not None for level in summary.levels)


def unit_of(summary: Summary) -> Unit:
    """What throughput counts; output tokens where a later version counts what this one does not know."""
    return Unit(summary.unit) if summary.unit in list(Unit) else Unit.OUTPUT_TOKENS


def headline(summary: Summary) -> list[Fact]:
    """Knee, plateau and single stream; after the knee what would settle it."""
    own = of_ramp(summary.levels)
    loads = [level.concurrency for level in own if level.concurrency is not None and not _invalid(level)]
    if is_open(summary):
        found = [_open_knee(summary)]
    elif limited(summary):
        curve = of_curve(summary.curve, summary.knees, loads, label="Hinge", unit=summary.load_unit)
        found = [_limited_knee(summary), *curve]
    else:
        found = of_curve(summary.curve, summary.knees, loads, unit=summary.load_unit)
    return [*found, _plateau(summary), *_single_stream(summary, own)]


def sentence(summary: Summary) -> str:
    """The knee in one line, for titles and pictures."""
    fact = headline(summary)[0]
    return f"{fact.label}: {fact.text}"


def of_curve(
    curve: Curve | None,
    knees: Knees,
    loads: Sequence[float],
    label: str = "Knee",
    unit: str = "requests in flight",
) -> list[Fact]:
    """The knee that the curve has, by its state: the answer, why it is not found, and what would settle it.

    `loads` are the concurrencies of the valid levels, in this unit.
    """
    now = state(curve)
    if curve is None or now == NONE:
        return [Fact(label, f"not measurable: {_reasons(curve) or _too_few(len(set(loads)))}"), *_settle(curve, loads)]
    if now == BEYOND:
        last = curve.at_least_concurrency if curve.at_least_concurrency is not None else max(loads, default=None)
        where = "the last level" if last is None else f"{number(last)} {unit}"
        return [Fact(label, f"above {where}: throughput still rises there", _expected(curve)), *_settle(curve, loads)]
    hinge = hinge_of(curve, knees) or Value(None)
    about = "about " if now == PROVISIONAL else ""
    lowest = min(loads, default=None)
    at_lowest = lowest is not None and all(
        end is not None and end <= _FLAT * lowest for end in (hinge.value, hinge.ci95[1] if hinge.ci95 else hinge.value)
    )
    if at_lowest and lowest != 1:
        about = "at most "
    value = f"{about}{number(hinge.value)} {unit}{_brackets(hinge, now)}"
    fact = Fact(label, value, _not_rising(curve, lowest) if at_lowest and lowest is not None else "")
    if now == FOUND:
        return [fact]
    why = _reasons(curve)
    return [fact, *([Fact("Why provisional", why)] if why else []), *_settle(curve, loads)]


def hinge_of(curve: Curve | None, knees: Knees) -> Value | None:
    """The hinge, found or provisional; None where there is none to show."""
    if curve is None or state(curve) not in (FOUND, PROVISIONAL):
        return None
    hinge = knees.hinge or curve.hinge_concurrency
    return hinge if hinge.value is not None else None


def plateau_of(curve: Curve | None) -> Value | None:
    """The plateau, found or provisional; None where there is none to show."""
    if curve is None or state(curve) not in (FOUND, PROVISIONAL) or curve.plateau_tokens_per_s.value is None:
        return None
    return curve.plateau_tokens_per_s


def fastest(summary: Summary) -> LevelSummary | None:
    """The level with the highest throughput; an invalid one only where there is no other."""
    measured = [level for level in summary.levels if level.throughput.mean is not None]
    measured = [level for level in measured if not _invalid(level)] or measured
    return max(measured, key=lambda level: level.throughput.mean or 0.0, default=None)


def limited(summary: Summary) -> bool:
    """Whether the run has limits, which make the knee."""
    return summary.knees.slo is not None or any(level.slo for level in summary.levels)


def _limited_knee(summary: Summary) -> Fact:
    """The highest load that meets the limits."""
    if summary.knees.slo is not None and summary.knees.slo.value is not None:
        return _met(summary.knees.slo, summary.load_unit)
    judged = [level for level in summary.levels if level.slo]
    lowest = min(judged, key=lambda level: level.concurrency or 0, default=None)
    if lowest is not None and any(each.outcome == Outcome.MISSED for each in lowest.slo):
        return Fact("Knee", f"below {number(lowest.concurrency)} in flight: the lowest level misses the limits")
    return Fact("Knee", "not measurable: no level has enough requests to decide the limits")


def _open_knee(summary: Summary) -> Fact:
    """The knee of an open loop, which has no concurrency: the highest rate that meets the limits."""
    if summary.knees.slo_rate is None or summary.knees.slo_rate.value is None:
        return Fact("Knee", "not measured: requests were sent at fixed rates")
    return _met(summary.knees.slo_rate, "requests per second")


def _met(knee: Value, unit: str) -> Fact:
    missed = knee.ci95[1] if knee.ci95 else None
    if missed is None:
        return Fact("Knee", f"at least {number(knee.value)} {unit}: no level misses the limits")
    return Fact("Knee", f"{number(knee.value)} {unit} meet the limits, {number(missed)} miss them")


def _not_rising(curve: Curve, lowest: float) -> str:
    """What a curve that does not rise means for the server."""
    if curve.dip is not None:
        return "throughput falls with load: the server is fastest at the lowest level"
    if lowest == 1:
        return "throughput does not rise with load: the server handles 1 at a time"
    return f"throughput does not rise with load: {number(lowest)} in flight, the lowest level, saturate the server"


def _expected(curve: Curve) -> str:
    """Where the knee is expected beyond the levels."""
    if curve.expected_concurrency is None:
        return ""
    by = {"asymptote": "the curve's asymptote puts it", "prediction": "the prediction puts it"}
    return f"{by.get(curve.expected_by or '', 'expected')} near {number(curve.expected_concurrency)}"


def _reasons(curve: Curve | None) -> str:
    """Why the answer is not found."""
    if curve is None:
        return ""
    messages = [v.message.partition(": ")[2] or v.message for v in curve.verdicts if v.code in REASONS]
    return "; ".join(map(plain, curve.reasons or messages))


def _too_few(levels: int) -> str:
    if not levels:
        return "no valid level"
    return f"{levels} level{'' if levels == 1 else 's'} measured, too few for a curve"


def _settle(curve: Curve | None, loads: Sequence[float]) -> list[Fact]:
    """The levels to measure, some of them again, for an answer that is found, and how long that takes."""
    settle = curve.settle if curve else None
    if settle is None or not settle.levels:
        return []
    wanted = list(dict.fromkeys(settle.levels))
    again = [number(level) for level in wanted if level in loads]
    new = [number(level) for level in wanted if level not in loads]
    does = f"measure {listed(new)} in flight" if new else ""
    if again:
        does = f"repeat {listed(again)}" + (f" and {does}" if does else " in flight")
    time = f", about {span(settle.seconds)}" if settle.seconds is not None else ""
    return [Fact("To settle it", f"{does}{time}")]


def _plateau(summary: Summary) -> Fact:
    curve, now, top, unit = summary.curve, state(summary.curve), fastest(summary), unit_of(summary)
    plateau = plateau_of(curve)
    if curve is not None and plateau is not None:
        about = "about " if now == PROVISIONAL else ""
        value = f"{about}{number(plateau.value)} {unit.per_s}{_brackets(plateau, now)}"
        more = [
            f"{words} at {number(knee.value)} in flight"
            for words, knee in (("half of it", summary.knees.half_point), ("95 %", summary.knees.plateau95))
            if knee and knee.value is not None
        ]
        lost = curve.dip.value if curve.dip else None
        falls = f"it falls by {percent(round(lost, 3))} to the last level" if lost is not None else ""
        return Fact("Plateau", value, joined(", ".join(more), falls))
    if top is None:
        return Fact("Plateau", f"not measurable: no level has {'output' if unit.decodes else 'answers'}")
    most = f"{number(top.throughput.mean)} {unit.per_s}"
    if is_open(summary):
        rate = "rate of output" if unit.decodes else "rate"
        return Fact("Plateau", f"not measured: the highest {rate} is {most} at {load_of(top)}")
    tends = curve.asymptote_tokens_per_s if curve and now == BEYOND else None
    beyond = f"the curve tends to {number(tends.value)}{_brackets(tends)}" if tends and tends.value is not None else ""
    return Fact("Plateau", f"at least {most}, measured at {load_of(top)}", beyond)


def _single_stream(summary: Summary, levels: Sequence[LevelSummary]) -> list[Fact]:
    """One request in flight, or one session: as it was measured, then as the curve has it."""
    curve, unit = summary.curve, unit_of(summary)
    label = "Single stream" if unit.decodes else "One request alone"
    label = "Single session" if summary.load_unit == "sessions" else label
    fitted = curve.single_stream_tokens_per_s if curve else Value(None)
    by_curve = f"{number(fitted.value)}{{}} by the curve{_brackets(fitted)}" if fitted.value is not None else ""
    ones = [level.throughput for level in levels if level.concurrency == 1 and not _invalid(level)]
    known = [each.mean for each in ones if each.mean is not None]
    if not known:
        return [Fact(label, by_curve.format(f" {unit.per_s}"))] if by_curve else []
    how = _brackets(ones[0]) if len(known) == 1 else f" (mean of {len(known)} levels)"
    value = f"{number(sum(known) / len(known))} {unit.per_s} measured{how}"
    return [Fact(label, value, by_curve.format(""))]


def _invalid(level: LevelSummary) -> bool:
    return not usable(level, Purpose.ANSWER)


def of_ramp(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """The levels of the curve, without those of a prefill probe."""
    return [level for level in levels if level.input_tokens_asked is None]


def _brackets(value: Value | Estimate, now: str = FOUND) -> str:
    """A figure's interval, and whether it is provisional, in brackets."""
    return f" ({joined('provisional' * (now == PROVISIONAL), confidence(value.ci95))})"
