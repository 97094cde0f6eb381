"""Before a public host is loaded: what the run will come to, shown, and a yes.

A server on this machine, in a private network or behind a Unix socket is the operator's own. Whether it is one is told
by the addresses that its name has, not by how the name looks; a name without any here (a proxy may know it) is public.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import sys
from collections.abc import Sequence

import msgspec

from harness.analysis import ramp
from harness.errors import HarnessError
from harness.experiment.budget import Spent
from harness.experiment.launch import Address, Launch
from harness.experiment.levels import Asked, looked_at, pace_of, search
from harness.experiment.safety import Usage, dollars
from harness.scenario import Scenario
from harness.units import span

_TO_FIRST, _TO_END = 35.0, 130.0  # request times, where the knee lies at some 16 to 48 in flight
_WAY_OUT = "add --yes; --max-requests, --max-seconds and --max-dollars bound a run"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will come to, as far as one request tells."""

    levels: int
    requests: int
    usage: Usage
    seconds: float
    dollars: float | None


def estimate(scenario: Scenario, e2e_s: float, probes: Sequence[int] = ()) -> Estimate:
    """What a run will ask of its server, if every request takes `e2e_s` at every level.

    A level in closed loop: one or two requests a slot to warm up, C in flight while the window lasts, C to end with it;
    on schedule: its rate over two request times, the window and one more. `probes` are the prompt tokens of levels in
    front of the ramp, each of one request in flight. The ramp is taken to go on to its highest level, and no window to
    be extended. At high levels requests take longer, so there are fewer of them or it takes more time.

    >>> from harness.scenario import Ramp
    >>> made = estimate(Scenario(ramp=Ramp(levels=[4], level_seconds=10.0)), 0.5)
    >>> made.requests, made.usage.output_tokens, made.seconds  # 8 + 80 + 4; 128 each; 1 + 10 + 0.5
    (92, 11776, 11.5)
    """
    spec, quota = scenario.ramp, scenario.target.max_rps or float("inf")
    requests = seconds = tokens_in = 0.0
    ramped = [(step, scenario.workload.input_tokens) for step in _steps(scenario, e2e_s)]
    levels = [*((ramp.Next(1, "probe"), tokens) for tokens in probes), *ramped] * spec.repeat
    for step, input_tokens in levels:
        pace = pace_of(spec, step.role, e2e_s, None)
        window = pace.window_s or looked_at(e2e_s)[0]
        if step.concurrency is not None:
            rate = min(step.concurrency / e2e_s, quota)
            warm_up = pace.warm_up * step.concurrency / rate
        else:
            rate = min(step.rate or 0.0, quota)
            warm_up = 2 * e2e_s
        lasting = warm_up + window + e2e_s
        seconds += lasting
        requests += rate * lasting
        tokens_in += rate * lasting * input_tokens

    def usage(share: float) -> Usage:
        return Usage(round(tokens_in * share), 0, round(requests * share) * scenario.workload.output_tokens)

    cost = dollars(scenario.hardware, seconds, usage(1.0))
    bounds = ((spec.max_requests, requests), (spec.max_seconds, seconds), (spec.max_dollars, cost))
    share = min([1.0, *(bound / value for bound, value in bounds if bound and value)])
    return Estimate(
        levels=len(levels),
        requests=round(requests * share),
        usage=usage(share),
        seconds=seconds * share,
        dollars=None if cost is None else cost * share,
    )


def _steps(scenario: Scenario, e2e_s: float) -> list[ramp.Next]:
    """The levels that the ramp comes to where throughput rises with each, and the SLO is met up to the highest."""
    free = msgspec.structs.replace(scenario.ramp, max_seconds=None, max_requests=None, max_dollars=None)
    asked_for = search(msgspec.structs.replace(scenario, ramp=free), Asked(), Spent(0.0, 0), e2e_s)
    held: list[ramp.Held] = []
    steps: list[ramp.Next] = []
    while not (step := ramp.next_level(held, asked_for)).over:
        steps.append(step)
        N = step.concurrency or (step.rate or 0.0) * e2e_s
        kept = free.max_concurrency >= N
        held.append(
            ramp.Held(
                concurrency=step.concurrency,
                rate=step.rate,
                in_flight=N,
                output_tokens_per_s=N * scenario.workload.output_tokens / e2e_s,
                se=None,
                error_rate=0.0,
                seconds=1.0,
                requests=1,
                request_s=e2e_s,
                valid=True,
                in_flight_ok=True,
                ttft_p99_s=None,
                slo="met" if kept else "missed",
            )
        )
    return steps


def told(made: Estimate, scenario: Scenario, launch: Launch) -> list[str]:
    """The estimate in words, with what it assumes."""
    spec = scenario.ramp
    bounds = [
        f"--{name} {value:g}"
        for name, value in (
            ("max-requests", spec.max_requests), ("max-seconds", spec.max_seconds), ("max-dollars", spec.max_dollars),
        )
        if value is not None
    ]  # fmt: skip
    cost = "" if made.dollars is None else f", ${made.dollars:,.2f}"
    tokens = f"{made.usage.input_tokens:,} tokens in and {made.usage.output_tokens:,} out"
    return [
        f"{launch.address.base} is a public host; this is the plan, an estimate:",
        f"up to {made.levels} levels, {made.requests:,} requests, {tokens}, {made.seconds / 60:,.1f} min{cost}",
        f"(every request as long as the first, {launch.e2e_s:.3g} s; bounded by {', '.join(bounds) or 'nothing'})",
    ]


def outlook(made: Estimate, scenario: Scenario, e2e_s: float) -> str:
    """What is to come, in one line, for whoever starts a run on a server of their own."""
    spec = scenario.ramp
    if spec.levels or spec.rates:
        what = f"{made.levels} level{'s' * (made.levels != 1)}, about {made.requests:,} requests, {span(made.seconds)}"
    else:
        first, end = (min(times * e2e_s, spec.max_seconds or math.inf) for times in (_TO_FIRST, _TO_END))
        what = f"1, 2, 4, … in flight until throughput stops rising, at most {spec.max_concurrency:,}; "
        what += f"a first answer in about {span(first)}"
        what += "" if spec.quick else f", the knee in about {span(end)}"
    cost = f", at most ${made.dollars:,.2f}" if made.dollars is not None else ""
    return f"plan: {what}{cost}; a request takes {e2e_s:.2g} s alone. Ctrl-C ends the run and keeps its levels"


def is_public(address: str) -> bool:
    """Whether an IP address can be reached from anywhere, by IANA's registries of special-purpose addresses.

    >>> [is_public(a) for a in ("127.0.0.1", "10.1.2.3", "fe80::1%eth0", "fd00::1", "1.1.1.1", "::ffff:1.1.1.1")]
    [False, False, False, False, True, True]
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global


async def addresses(where: Address) -> list[str]:
    """The IP addresses that the endpoint's name has here; none where it has none."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter: no host has such a name
        return []
    return sorted({str(sockaddr[0]) for *_, sockaddr in found})


def must_be_possible(place: str) -> None:
    """HarnessError where there is nobody to show a plan to, or to answer."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):  # a closed one is None
        fact = "it is a public host, and there is no terminal to ask on"
        raise HarnessError(fact, place=place, way_out=_WAY_OUT)


async def ask(plan: Sequence[str], place: str) -> None:
    """Show the plan and wait for a yes; anything else ends the run before any load."""
    must_be_possible(place)
    sys.stderr.write("\n".join([*plan, "Send it? [y/N] "]))
    sys.stderr.flush()
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)  # not a thread that reads: Ctrl-C must end the wait
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise HarnessError("not confirmed: nothing was loaded", place=place, way_out=_WAY_OUT)
