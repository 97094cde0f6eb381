"""The answer of a run in lines, by what the run was for, in the same words everywhere.

    knees         the knee, its limits, the plateau with the load that gives 95 % of it, latencies at the knee
    one level     throughput, time to the first token, pace
    fixed rates   the rate that the server sustains, its limits, throughput and latencies there

The knee is the seats where the records show them:

    16.2 requests in flight (95 % interval 15.9–16.5): the server serves so many at once, more wait

Else it is, by the state of the curve:

    found        16.1 requests in flight (95 % interval 15.4–16.5)
    provisional  about 16.1 requests in flight (provisional; 95 % interval 11–28)
    beyond       above 64 requests in flight: throughput still rises there
    none         not measurable: 1 level measured, too few for a curve

Where slots hold sessions, the knee is so many sessions. With limits (an SLO) the knee is the highest load that
meets them. A phase's probe ends with its phase. Terminal, Markdown, page, picture and `knee fit` take their lines
from here; nothing is decided here. Left out: what one level gives (`levels`), and all other facts (`facts`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.analysis.answer import SloKnee, of_ramp, own_knee
from harness.analysis.answer import slo_knee as of_limits
from harness.analysis.answer import throughput as throughput_at
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.requests import unstable
from harness.analysis.stats import known_mean
from harness.data.judgement import Outcome
from harness.data.levels import Attainment, LevelSummary
from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, Headline, Knees, Summary
from harness.data.views import Estimate, Value
from harness.report.document import Fact
from harness.report.format import confidence, joined, listed, load_of, ms, number, percent, plain
from harness.report.levels import (
    at_the_knee,
    distinct,
    highest_up_to,
    latencies,
    mean_of,
    most_served,
    of_loads,
    one_level,
    phases,
    throughput,
)
from harness.spec.work import Unit

_NEAR_RATE = 0.05  # share of a rate: if the requests that came differ by more, the answer says it
_FLAT = 1.05  # a hinge up to 1.05 times the lowest level lies at that level or below it


def state(curve: Curve | None) -> str:
    """Return how much of an answer the curve is: found, provisional, beyond or none."""
    return curve.state if curve else NONE


def unit_of(summary: Summary) -> Unit:
    """Return what throughput counts."""
    return Unit.known(summary.unit)


class Answer(msgspec.Struct, frozen=True):
    """The lines of an answer; each place shows those that it has room for."""

    first: Fact  # the knee, or what a run without one is for
    limits: Sequence[Fact] = ()  # limits of an SLO, and which of them is missed first
    rest: Sequence[Fact] = ()  # the plateau and latencies, or other figures

    @property
    def lines(self) -> list[Fact]:
        """Return all of them, most important first."""
        return [self.first, *self.limits, *self.rest]

    @property
    def sentence(self) -> str:
        """Return the knee and its limits in one line, for titles and pictures."""
        return joined(*(f"{fact.label}: {fact.text}" for fact in (self.first, *self.limits[:1])))


def answer(summary: Summary) -> Answer:
    """Return a run's answer: the knee, the limits, and what else was found at it; at rates for an open loop."""
    own = of_ramp(summary.levels)
    valid = [level for level in own if _valid(level)]
    if summary.open_loop:
        return _at_rates(summary, own, distinct(valid))
    one = len({level.concurrency for level in own}) == 1 and state(summary.curve) == NONE
    if one and valid and not (summary.limited or summary.phases):
        first, *rest = one_level(distinct(valid)[0], unit_of(summary), price(summary))
        return Answer(first, rest=rest)
    loads = [level.concurrency for level in valid if level.concurrency is not None]
    of_run = of_knee(own_knee(summary), summary.curve, summary.knees, loads, unit=summary.load_unit)
    knee, *limits = by_limits(summary) if summary.limited else [of_run]
    if summary.limited and own_knee(summary).kind == "seats":
        limits.append(of_seats(own_knee(summary), label="Seats"))
    of_phase = phases(summary.phases)[:1]
    if of_phase and not own:
        return Answer(of_phase[0], rest=[knee, *limits])
    at_knee = of_phase or at_the_knee(distinct(valid), summary.knee_concurrency, summary.curve)
    return Answer(knee, limits, [*_seats(summary, distinct(valid)), *_cache(summary), _plateau(summary), *at_knee])


def _seats(summary: Summary, levels: Sequence[LevelSummary]) -> list[Fact]:
    """Return the line on how many requests the server serves at once (seats), and how many sessions wait for tools.

    [] if the load counts requests, or no seats are known.
    """
    seats, level = summary.knees.seats, highest_up_to(levels, summary.knee_concurrency)
    if not summary.of_sessions or seats is None or seats.value is None:
        return []
    of = level.sessions if level else None
    idle = f"{number(of.idle)} of {load_of(level)} wait for tools" if level and of and of.idle else ""
    kept = f"their conversations are {number(of.idle_tokens)} tokens" if idle and of and of.idle_tokens else ""
    text = f"{count(seats.value, 'requests in flight')} ({confidence(seats.ci95)}): the server serves so many at once"
    return [Fact("Seats", text, joined(idle, kept))]


def _cache(summary: Summary) -> list[Fact]:
    """Return how many agents the prefix cache holds, measured and predicted; nothing where neither is known."""
    agents, unit = summary.agents, summary.load_unit
    if not agents or (agents.holds is None and agents.measured_holds is None):
        return []
    held = agents.measured_holds
    measured = "not passed by the levels" if held is None else f"about {number(held)} {unit}"
    guess = "" if agents.holds is None else f"about {agents.holds:,} {unit} predicted"
    return [Fact("Cache holds", measured, joined(guess, f"{agents.kv_tokens:,} tokens"))]


def by_curve(summary: Summary) -> bool:
    """Return whether the run's knee is that of its curve: not the seats, nor that of limits."""
    return not summary.open_loop and not summary.limited and own_knee(summary).kind == "hinge"


def of_seats(seats: Headline, label: str = "Knee") -> Fact:
    """Return the seats of the server as a fact, with their interval, and whether they are provisional."""
    about, value = "about " if seats.state == PROVISIONAL else "", Value(seats.value, seats.ci95)
    found = f"{about}{count(value.value, 'requests in flight')}{_brackets(value, seats.state)}"
    return Fact(label, f"{found}: the server serves so many at once, more wait")


def of_knee(
    own: Headline, curve: Curve | None, knees: Knees, loads: Sequence[float], unit: str = "requests in flight"
) -> Fact:
    """Return the server's own knee. `loads` are the concurrencies of the valid levels, in this unit."""
    return of_seats(own) if own.kind == "seats" else of_curve(curve, knees, loads, unit=unit)


def of_curve(
    curve: Curve | None,
    knees: Knees,
    loads: Sequence[float],
    label: str = "Knee",
    unit: str = "requests in flight",
) -> Fact:
    """Return the answer's line on the curve's knee, or why there is none; `loads` are the valid levels', in `unit`.

    "not measurable" without a curve, "above" where throughput still rises at the last level, "about" while provisional,
    "at most" where the knee lies at the lowest level.
    """
    now, n = state(curve), len(set(loads))
    if curve is None or now == NONE:
        few = f"{count(n, 'levels')} measured, too few for a curve" if n else "no valid level"
        return Fact(label, f"not measurable: {reasons(curve) or few}")
    if now == BEYOND:
        last = curve.at_least_concurrency if curve.at_least_concurrency is not None else max(loads, default=None)
        where = "the last level" if last is None else count(last, unit)
        expected = "" if curve.expected_concurrency is None else number(curve.expected_concurrency)
        known = f"the {curve.expected_by} puts it near {expected}" if expected else ""
        return Fact(label, f"above {where}: throughput still rises there", known)
    hinge = hinge_of(curve, knees) or Value(None)
    about = "about " if now == PROVISIONAL else ""
    lowest = min(loads, default=None)
    at_lowest = lowest is not None and all(
        end is not None and end <= _FLAT * lowest for end in (hinge.value, hinge.ci95[1] if hinge.ci95 else hinge.value)
    )
    if at_lowest and lowest != 1:
        about = "at most "
    value = f"{about}{count(hinge.value, unit)}{_brackets(hinge, now)}"
    return Fact(label, value, _not_rising(curve, lowest) if at_lowest and lowest is not None else "")


def hinge_of(curve: Curve | None, knees: Knees) -> Value | None:
    """Return the curve's hinge if the curve is found or provisional and has one; else None."""
    if curve is None or state(curve) not in (FOUND, PROVISIONAL):
        return None
    hinge = knees.hinge or curve.hinge_concurrency
    return hinge if hinge.value is not None else None


def plateau_of(curve: Curve | None) -> Value | None:
    """Return the plateau, found or provisional; None if there is none to show."""
    if curve is None or state(curve) not in (FOUND, PROVISIONAL) or curve.plateau_tokens_per_s.value is None:
        return None
    return curve.plateau_tokens_per_s


def slo_knee(summary: Summary) -> tuple[SloKnee, str]:
    """Return the SLO knee with the unit of its loads."""
    rates = summary.open_loop
    unit = "requests per second" if rates else summary.load_unit
    return of_limits(summary.knees, summary.levels, rates=rates), unit


def by_limits(summary: Summary) -> list[Fact]:
    """Return the answer's lines on the limits: the highest load that meets them, the limits, which is missed first."""
    judged = sorted((level for level in summary.levels if level.slo), key=lambda level: level.load or 0)
    limits = list(dict.fromkeys(map(_limit, judged[0].slo))) if judged else []
    knee, unit = slo_knee(summary)
    missed = _missed_at(knee.missed, judged) if len(limits) > 1 else []
    return [
        Fact("Knee", _highest_within(knee, unit)),
        *([Fact("Limits" if len(limits) > 1 else "Limit", ", ".join(limits))] if limits else []),
        *missed,
    ]


def _highest_within(knee: SloKnee, unit: str) -> str:
    """Return as words the highest load within the limits and the lowest that misses them; "about" where not decided."""
    if knee.met is None:
        return beyond_limits(knee, unit)
    met, missed = count(knee.met, unit), number(knee.missed)
    misses = f"{knee.overloaded} at {missed}" if knee.overloaded else f"{missed} miss them"
    if not knee.decided:
        above = "" if knee.missed is None else f", {misses}"
        return f"about {met} within the limits (provisional: too few requests to decide){above}"
    if knee.missed is None:
        return f"at least {met} within the limits: no level misses them"
    return f"{met} {'meets' if knee.met == 1 else 'meet'} the limits, {misses}"


def beyond_limits(knee: SloKnee, unit: str) -> str:
    """Return as words that every load misses the limits, or why none can be judged."""
    if knee.lowest:
        why = f"{knee.overloaded} at the lowest level" if knee.overloaded else "the lowest level misses the limits"
        return f"below {count(knee.missed, unit)}: {why}"
    if knee.chunked:
        return f"not measurable: tokens come in chunks, so {listed(knee.chunked)} cannot be judged; limit tpot or icl"
    if knee.missed is not None:
        why = f"{knee.overloaded} there" if knee.overloaded else f"{number(knee.missed)} miss the limits"
        below = f"below {count(knee.missed, unit)}: {why}"
        return f"{below}, lower levels have too few requests"
    if not knee.judged:
        return "not measurable: no valid level says whether it meets the limits"
    return "not measurable: no level has enough requests to decide the limits"


def _limit(judged: Attainment) -> str:
    """Return a limit in words, with its class if it is a class's own."""
    return f"{plain(judged.limit)} of {plain(judged.class_)}" if judged.class_ else plain(judged.limit)


def _missed_at(load: float | None, judged: Sequence[LevelSummary]) -> list[Fact]:
    """Return a line on the limits that are missed at `load`, with the share of requests within each."""
    for level in judged:
        missed = [attainment for attainment in level.slo if attainment.outcome == Outcome.MISSED]
        if missed and level.load == load:
            shares = [f"{_limit(each)} ({percent(each.fraction)} within it)" for each in missed]
            return [Fact("Missed", f"{', '.join(shares)} at {load_of(level)}")]
    return []


def _at_rates(summary: Summary, levels: Sequence[LevelSummary], valid: Sequence[LevelSummary]) -> Answer:
    """Return the answer of an open loop: the rate that meets the limits, or is sustained, and throughput there."""
    knee = summary.knees.slo_rate.value if summary.knees.slo_rate else None
    top = highest_up_to(valid, knee) or max(valid, key=lambda level: level.rate or 0.0, default=None)
    first, *limits = by_limits(summary) if summary.limited else [_sustained(levels, top)]
    if top is None:
        return Answer(first, limits, [Fact("Throughput", "not measurable: no valid level")])
    return Answer(first, limits, [throughput(top, unit_of(summary), price(summary)), latencies(top)])


def _sustained(levels: Sequence[LevelSummary], top: LevelSummary | None) -> Fact:
    """Return a line on the highest rate that the server sustained and the lowest at which requests piled up."""
    over = [level.rate for level in levels if level.rate is not None and unstable.voids(level)]
    if over and top is None:
        return Fact("Sustained rate", f"below {number(min(over))} requests/s: they pile up")
    if top is None:
        return Fact("Sustained rate", "not measurable: no valid level")
    above = [rate for rate in over if top.rate is not None and rate > top.rate]
    if above:
        return Fact("Sustained rate", f"{number(top.rate)} requests/s; at {number(min(above))} they pile up")
    least = f"at least {number(top.rate)} requests/s, the highest rate measured"
    lower = f"they piled up at {number(min(over))}, which a longer window would settle" if over else ""
    return Fact("Sustained rate", joined(least, _came(top), lower))


def _came(level: LevelSummary) -> str:
    """Return as words how many requests per second came in a level's window, if these differ from its rate.

    "" if they are within 5 % of the rate.
    """
    rate, came = level.rate, level.offered_requests_per_s
    if rate is None or came is None or abs(came - rate) <= _NEAR_RATE * rate:
        return ""
    return f"in its window {number(came)} a second came"


def count(value: float | None, unit: str) -> str:
    """Return a count with its unit.

    >>> count(1, "requests in flight"), count(16.2, "sessions")
    ('1 request in flight', '16.2 sessions')
    """
    words = number(value)
    noun, *rest = unit.split(" ", 1)
    return " ".join([words, noun.removesuffix("s") if words == "1" else noun, *rest])


def _not_rising(curve: Curve, lowest: float) -> str:
    """Return in words what it means that throughput does not rise from the `lowest` level on."""
    if curve.dip is not None:
        return "throughput falls with load: the server is fastest at the lowest level"
    if lowest == 1:
        return "throughput does not rise with load: the server handles 1 at a time"
    return f"throughput does not rise with load: {number(lowest)} in flight, the lowest level, saturate the server"


def reasons(curve: Curve | None) -> str:
    """Return why the answer is not found."""
    return "; ".join(map(plain, curve.reasons if curve else ()))


def price(summary: Summary) -> str:
    """Return what a million of the run's unit costs; "" if no price is known."""
    unit = unit_of(summary)
    usd = getattr(summary.cost, f"usd_per_million_{unit.replace(' ', '_')}", None)
    return f"${number(usd)} per million {unit}" if usd else ""


def _plateau(summary: Summary) -> Fact:
    """Return a line on the plateau: its throughput, the load with 95 % of it, one request alone, and the price.

    Without a plateau: "at least" the most that was served, or why it is not measurable.
    """
    own, curve, unit, least = of_ramp(summary.levels), summary.curve, unit_of(summary), summary.knees.plateau95
    single = known_mean(level.throughput.mean for level in own if level.concurrency == 1 and _valid(level))
    if single is None and curve is not None:
        single = curve.single_stream_tokens_per_s.value
    detail = joined(f"{_one_alone(summary)} {number(single)}" if single is not None else "", price(summary))
    plateau = plateau_of(curve)
    if plateau is not None:
        about = "about " if state(curve) == PROVISIONAL else ""
        load = summary.load_unit.removeprefix("requests ")
        nearly = f"95 % of it from {number(least.value)} {load} on{_brackets(least)}" if least else ""
        text = f"{about}{number(plateau.value)} {unit.per_s}{_brackets(plateau)}"
        return Fact("Plateau", text, joined(nearly, detail))
    measured = [level for level in own if level.throughput.mean]
    top = most_served([level for level in measured if _valid(level)], curve)
    if top is None:
        why = "no valid level" if measured else f"no level has {'output' if unit.decodes else 'answers'}"
        return Fact("Plateau", f"not measurable: {why}")
    most = throughput_at(curve, [top]).value
    return Fact("Plateau", f"at least {number(most)} {unit.per_s}, served at {load_of(top)}", detail)


def _one_alone(summary: Summary) -> str:
    """Return what one request, or one session, in flight is called."""
    if summary.of_sessions:
        return f"single {summary.load_unit.removesuffix('s')}"
    return "single stream" if unit_of(summary).decodes else "single request"


def _valid(level: LevelSummary) -> bool:
    return usable(level, Purpose.ANSWER)


def _brackets(value: Value | Estimate, now: str = FOUND) -> str:
    """Return a figure's interval, and whether it is provisional, in brackets; one without width was counted."""
    counted = value.ci95 is not None and value.ci95[0] == value.ci95[1] is not None
    return f" ({joined('provisional' * (now == PROVISIONAL), 'counted' if counted else confidence(value.ci95))})"


# ---- the first figures of a page -------------------------------------------------------------------------------------


def figures(summary: Summary) -> list[Fact]:
    """Return the report's large figures: knee, plateau, TTFT at the knee; else the first lines of the answer."""
    knee, plateau = _knee_figure(summary), None if summary.open_loop else plateau_of(summary.curve)
    if knee is None or (plateau is None and not summary.open_loop):
        found = answer(summary)
        return [found.first, *found.rest][:3]
    rest = [_figure("Plateau", plateau, unit_of(summary).per_s, state(summary.curve))] if plateau is not None else []
    return [knee, *rest, *_first_token(summary)]


def level_at_the_knee(summary: Summary) -> LevelSummary | None:
    """Return the valid level with the highest load up to 5 % above the knee; None without a knee or such a level.

    The knee is that of the limits where the run has some, else the server's own: its seats where they are known, else
    the curve's.
    """
    if summary.open_loop or summary.limited:
        knee = slo_knee(summary)[0].met
    else:
        knee = own_knee(summary).value
    return highest_up_to([level for level in of_ramp(summary.levels) if level.load and _valid(level)], knee)


def _knee_figure(summary: Summary) -> Fact | None:
    """Return the knee as a figure of its own: of the limits if there are any, else the run's; None if it has none."""
    if not (summary.open_loop or summary.limited):
        own = own_knee(summary)
        return _figure("Knee", Value(own.value, own.ci95), summary.load_unit, own.state) if own.value else None
    knee = slo_knee(summary)[0]
    if knee.met is None:
        return None
    met = "the limits are met there" if knee.decided else "provisional: too few requests to decide the limits"
    missed = "" if knee.missed is None else f", and missed at {number(knee.missed)}"
    unit = "requests/s" if summary.open_loop else summary.load_unit
    return Fact("Knee", f"{number(knee.met)} {unit}", met + missed)


def _figure(label: str, value: Value, unit: str, now: str) -> Fact:
    about, doubt = ("about ", "provisional") if now == PROVISIONAL else ("", "")
    return Fact(label, f"{about}{number(value.value)} {unit}", joined(doubt, confidence(value.ci95)))


def _first_token(summary: Summary) -> list[Fact]:
    """Return a line with the median and p99 of TTFT at the level at the knee, over its repeats; [] if unknown."""
    level = level_at_the_knee(summary)
    if level is None:
        return []
    level = next((mean_of(same) for same in of_loads(of_ramp(summary.levels)) if level in same), level)
    if level.first_s.p50 is None:
        return []
    name = "TTFT at the knee" if unit_of(summary).decodes else "Latency at the knee"
    p99 = f"p99 {ms(level.first_s.p99)} ms" if level.first_s.p99 is not None else "too few requests for a p99"
    return [Fact(name, f"{ms(level.first_s.p50)} ms", joined(f"median, measured at {load_of(level)}", p99))]
