"""The figures that a page begins with: the knee, the plateau, and the time to the first token at the knee."""

from __future__ import annotations

from harness.analysis.rules import Purpose, usable
from harness.data.summary import PROVISIONAL, LevelSummary, Summary, Value, is_decided
from harness.report.document import Fact
from harness.report.format import confidence, joined, load_of, ms, number
from harness.report.headline import headline, is_open, limited, of_ramp, own_knee, plateau_of, state, unit_of
from harness.report.operating_point import highest_up_to
from harness.report.repeats import mean_of, of_loads


def figures(summary: Summary) -> list[Fact]:
    """Three of them, each with its interval; without a knee or a plateau those of the headline."""
    knee, plateau = _knee_fact(summary), plateau_of(summary.curve) if not is_open(summary) else None
    if knee is None or (plateau is None and not is_open(summary)):
        return headline(summary)[:3]
    rest = [_fact("Plateau", plateau, unit_of(summary).per_s, state(summary.curve))] if plateau is not None else []
    return [knee, *rest, *_first_token(summary)]


def at_the_knee(summary: Summary) -> LevelSummary | None:
    """The highest of the valid levels up to the knee; None without such a one."""
    knee = _knee(summary)
    levels = [each for each in of_ramp(summary.levels) if each.load and usable(each, Purpose.ANSWER)]
    return highest_up_to(levels, knee.value if knee else None)


def _knee(summary: Summary) -> Value | None:
    """The run's knee, of an open loop the rate that meets the limits; None where it has no value."""
    own = own_knee(summary)
    limit = summary.knees.slo_rate if is_open(summary) else summary.knees.slo
    knee = limit if is_open(summary) or limited(summary) else Value(own.value, own.ci95)
    return knee if knee is not None and knee.value is not None else None


def _knee_fact(summary: Summary) -> Fact | None:
    knee = _knee(summary)
    unit = "requests/s" if is_open(summary) else summary.load_unit
    if knee is None or not (is_open(summary) or limited(summary)):
        return _fact("Knee", knee, unit, own_knee(summary).state) if knee else None
    missed = knee.ci95[1] if knee.ci95 else None
    met = "the limits are met there" if is_decided(knee) else "provisional: too few requests to decide the limits"
    detail = met + ("" if missed is None else f", and missed at {number(missed)}")
    return Fact("Knee", f"{number(knee.value)} {unit}", detail)


def _fact(label: str, value: Value, unit: str, now: str) -> Fact:
    about, doubt = ("about ", "provisional") if now == PROVISIONAL else ("", "")
    return Fact(label, f"{about}{number(value.value)} {unit}", joined(doubt, confidence(value.ci95)))


def _first_token(summary: Summary) -> list[Fact]:
    """Median and 99th percentile at the level at the knee, means of its repeats."""
    level = at_the_knee(summary)
    if level is None:
        return []
    level = next((mean_of(same) for same in of_loads(of_ramp(summary.levels)) if level in same), level)
    if level.first_s.p50 is None:
        return []
    name = "TTFT at the knee" if unit_of(summary).decodes else "Latency at the knee"
    p99 = f"p99 {ms(level.first_s.p99)} ms" if level.first_s.p99 is not None else "too few requests for a p99"
    return [Fact(name, f"{ms(level.first_s.p50)} ms", joined(f"median, measured at {load_of(level)}", p99))]
