"""An estimate of a run before any load: levels, requests, time and dollars, from the time of one request."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.analysis import slo
from harness.base.units import span
from harness.data.record import Role
from harness.search import pace, ramp
from harness.search.budget import Budget, Usage, dollars
from harness.search.decision import Decision, Reason, measure
from harness.search.level import check_lengths
from harness.search.state import MeasuredLevel, Search
from harness.spec import traffic
from harness.spec.scenario import Scenario
from harness.workload import shape, tasks
from harness.workload.arrivals import replay
from harness.workload.dataset.table import Table

_TO_FIRST, _TO_END = 35.0, 180.0  # request times, if the knee lies at some 16 to 48 in flight
_TO_LIMITS = 300.0  # request times, where an SLO is missed there
_RATES = 10  # levels that a search for a rate takes
_RATE_LASTS = 25.0  # request times that each of them lasts at least
_SURE = 999  # requests of a level that decide whatever is asked


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    levels: int
    requests: int
    usage: Usage
    seconds: float
    dollars: float | None
    most: Estimate | None = None  # with windows extended as far as they may be; None if that changes nothing


def estimate(scenario: Scenario, e2e_s: float, probes: Sequence[int] = (), rows: str = "") -> Estimate:
    """Return a run's expected levels, requests, tokens, seconds and dollars if a request takes `e2e_s` at every level.

    A closed-loop level: one or two requests a slot to warm up, of tasks at least a whole one; C in flight during the
    window, C that end after it. An open-loop level: its rate over two request times, the window and one more; where a
    trace is replayed, its own requests in that time, for there may be long gaps behind them. `probes` are the prompt
    tokens of levels before the ramp, each of one request in flight, `rows` is the path of a dataset's table. The ramp
    is assumed to reach its highest level, and no window to be extended; `most` has those that last until they are
    precise extended as far as they are. At high levels requests take longer: fewer are sent, or the run takes longer.

    >>> from harness.spec.scenario import Ramp
    >>> made = estimate(Scenario(ramp=Ramp(levels=[4], level_seconds=10.0)), 0.5)
    >>> made.requests, made.usage.output_tokens, made.seconds  # 8 + 80 + 4; 128 each; 1 + 10 + 0.5
    (92, 11776, 11.5)
    """
    quota = scenario.target.max_rps or float("inf")
    mean, rest_s = shape.of(scenario).mean(), tasks.rest_s(scenario, rows)
    slot_rate, task_s = tasks.requests_per_s(scenario, e2e_s, rows), tasks.seconds(scenario, e2e_s, rows)
    ramped = [(step, mean.input_tokens) for step in _steps(scenario, e2e_s, rest_s, mean.output_tokens)]
    levels = []
    for step, input_tokens in (*((measure(1, Reason.PROMPT_LENGTH, Role.PROBE, tokens=n), n) for n in probes), *ramped):
        rate = min(step.rate or 0.0 if step.concurrency is None else step.concurrency * slot_rate, quota)
        lasts = pace.of_level(scenario, step.role, e2e_s + rest_s, None, rate)
        if step.concurrency is not None:
            warm_up = max(lasts.warm_up * step.concurrency / rate, task_s if scenario.has_tasks else 0.0)
        else:
            warm_up = 2 * e2e_s
        levels.append(_Planned(rate, input_tokens, warm_up + e2e_s, lasts.window_s))
    windows = check_lengths(e2e_s + rest_s)
    replayed = bool(rows) and not scenario.has_tasks and traffic.parse(scenario.ramp.arrivals).speed is not None
    times = Table(Path(rows)).at_s if replayed else ()
    made, most = (_in_all(scenario, levels, windows[check], mean.output_tokens, times) for check in (0, -1))
    longer = most.requests != made.requests or not math.isclose(most.seconds, made.seconds)
    return msgspec.structs.replace(made, most=most) if longer else made


class _Planned(NamedTuple):
    """A level of a run that is to come."""

    rate: float  # requests per second
    input_tokens: float  # mean tokens of a prompt
    around_s: float  # seconds before and after its window
    window_s: float | None  # None: until it is precise


def _sent(rate: float, seconds: float, times: Sequence[float]) -> float:
    """Return how many requests a level sends in so many seconds: at its rate, or at the times of a trace."""
    if not times:
        return rate * seconds
    return sum(1 for _ in itertools.takewhile(lambda due_s: due_s < seconds, replay(times, rate)))


def _in_all(
    scenario: Scenario, levels: Sequence[_Planned], precise_s: float, output_tokens: float, times: Sequence[float]
) -> Estimate:
    """Return the estimate of all levels, where a window that lasts until it is precise has `precise_s` seconds."""
    spec, inputs = scenario.ramp, scenario.workload.inputs or 1
    lasting = [level.around_s + (level.window_s or precise_s) for level in levels]
    if times and spec.max_seconds:  # the requests of a trace are not spread evenly over its time
        lasting = [min(lasts_s, spec.max_seconds) for lasts_s in lasting]
    sent = [_sent(each.rate, lasts_s, times) for each, lasts_s in zip(levels, lasting, strict=True)]
    seconds, requests = spec.repeat * sum(lasting), spec.repeat * sum(sent)
    tokens_in = spec.repeat * sum(n * each.input_tokens * inputs for n, each in zip(sent, levels, strict=True))

    def usage(share: float) -> Usage:
        return Usage(round(tokens_in * share), 0, round(round(requests * share) * output_tokens))

    cost = dollars(scenario.hardware, seconds, usage(1.0))
    bounds = ((spec.max_requests, requests), (spec.max_seconds, seconds), (spec.max_dollars, cost))
    share = min([1.0, *(bound / value for bound, value in bounds if bound and value)])
    return Estimate(
        levels=len(levels) * spec.repeat,
        requests=round(requests * share),
        usage=usage(share),
        seconds=seconds * share,
        dollars=None if cost is None else cost * share,
    )


def _steps(scenario: Scenario, e2e_s: float, rest_s: float, output_tokens: float) -> list[Decision]:
    """Return the levels that the search would choose if throughput rose at each and the highest still met the SLO."""
    free = msgspec.structs.replace(scenario.ramp, max_seconds=None, max_requests=None, max_dollars=None)
    spec = msgspec.structs.replace(scenario, ramp=free)
    search = Search.of(spec, Budget(free), e2e_s=e2e_s, rest_s=rest_s)
    measured: list[MeasuredLevel] = []
    steps: list[Decision] = []
    while not (step := ramp.next_level(measured, search)).over:
        steps.append(step)
        N = step.concurrency or (step.rate or 0.0) * e2e_s
        kept = free.max_concurrency >= N
        measured.append(
            MeasuredLevel(
                concurrency=step.concurrency,
                rate=step.rate,
                in_flight=N,
                throughput=N * (output_tokens or 1.0) / e2e_s,
                seconds=1.0,
                requests=1,
                request_s=e2e_s,
                slo="met" if kept else "missed",
                attainments=(slo.attained(slo.SloLimit("", "ttft", 0.5, 0.0), _SURE if kept else 0, _SURE, 1.0),),
                soak=step.role is Role.SOAK,
            )
        )
    return steps


def plan(made: Estimate, scenario: Scenario, e2e_s: float, hosts: str) -> list[str]:
    """Return the estimate in words with its assumptions, for the operator's consent; `hosts` are the public ones."""
    spec = scenario.ramp
    bounds = [
        f"--{name} {value:g}"
        for name, value in (
            ("max-requests", spec.max_requests), ("max-seconds", spec.max_seconds), ("max-dollars", spec.max_dollars),
        )
        if value is not None
    ]  # fmt: skip
    most = made.most or made
    cost = "" if most.dollars is None else f", ${most.dollars:,.2f}"
    tokens = f"{most.usage.input_tokens:,} tokens in and {most.usage.output_tokens:,} out"
    return [
        f"{hosts} {'are public hosts' if ',' in hosts else 'is a public host'}; this is the plan, an estimate:",
        f"up to {made.levels} levels, {most.requests:,} requests, {tokens}, {most.seconds / 60:,.1f} min{cost}",
        f"(every request as long as the first, {e2e_s:.3g} s; bounded by {', '.join(bounds) or 'nothing'})",
    ]


def outlook(made: Estimate, scenario: Scenario, e2e_s: float, rows: str = "") -> str:
    """Return one line on the planned levels, their time and cost, for a run that needs no consent."""
    spec = scenario.ramp
    repeats = f", and that {spec.repeat} times" if spec.repeat > 1 else ""
    first, end = (span(seconds) for seconds in search_s(scenario, e2e_s, rows))
    if spec.load.is_given:
        what = f"{made.levels} level{'s' * (made.levels != 1)}, about {made.requests:,} requests, {span(made.seconds)}"
        if made.most is not None:
            most = f"{made.most.requests:,} requests, {span(made.most.seconds)}"
            what += f" (up to {most}, if throughput takes that long to be precise)"
    elif spec.load.is_open:
        what = f"requests per second, doubled from {1 / e2e_s:.3g} on until the limits are missed, in about {end}"
        what += repeats
    else:
        what = f"1, 2, 4, … {scenario.counted} until throughput stops rising, at most {spec.max_concurrency:,}; "
        what += f"a first answer in about {first}{'' if spec.quick else f', the knee in about {end}'}{repeats}"
    if spec.duration and not spec.load.is_given:
        what += f", then {span(spec.duration)} at one load"
    if spec.max_requests and not spec.load.is_given:
        what += f", unless --max-requests {spec.max_requests} ends it before"
    dearest = (made.most or made).dollars
    cost = f", at most ${dearest:,.2f}" if dearest is not None else ""
    return f"plan: {what}{cost}; a request takes {e2e_s:.2g} s alone. Ctrl-C ends the run and keeps its levels"


def search_s(scenario: Scenario, e2e_s: float, rows: str = "") -> tuple[float, float]:
    """Return the seconds that a search takes (to its first answer, to its end), for one repeat."""
    spec = scenario.ramp
    most = (spec.max_seconds or math.inf) / spec.repeat  # a ramp's, which its repeats share
    if spec.load.is_open:
        end = min(_RATES * max(pace.RATE_S, _RATE_LASTS * e2e_s), most)
        return end, end
    turn_s = e2e_s + tasks.rest_s(scenario, rows)
    whole = _TO_FIRST if spec.quick else _TO_LIMITS if scenario.has_limits else _TO_END
    return min(_TO_FIRST * turn_s, most), min(whole * turn_s, most)
