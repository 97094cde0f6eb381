"""The whole program against the simulated endpoint: real processes, real sockets, real time.

A closed loop misses up to one step a request, so its hinge lies up to 1 + 1/G above --max-num-seqs, G being the tokens
of an answer.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
from knee_table import Bench, Line, covers

from harness.analysis import curve
from harness.data.levels import LevelSummary
from harness.data.summary import FOUND, NONE, PROVISIONAL, Summary
from harness.data.views import Value

# Seats of the endpoint behind the socket, tokens of an answer, and how much faster than real time it runs: what the
# closed loop misses is to be small against the interval, and 96 streams are to keep the load generator below its limit.
BEHIND_SOCKET, OFF = ((24, 192, 3), (48, 192, 3), (96, 96, 2)), 0.05

# At half its speed the endpoint takes 0.014 s a token alone: 1, 2.5 and 5 s an answer.
SHORT = {
    "socket-3s-24": (24, 180, "--levels 1,2,4,8,16,32,64 --level-seconds 3", (FOUND,)),
    "socket-3s-100": (100, 180, "--levels 1,2,4,8,16,32,64 --level-seconds 3", ("beyond", PROVISIONAL)),
    "socket-budget-60-1s": (24, 72, "--max-concurrency 256 --max-seconds 60", (FOUND, PROVISIONAL, "beyond")),
    "socket-budget-60-5s": (24, 360, "--max-concurrency 256 --max-seconds 60", (FOUND, PROVISIONAL, "beyond")),
    "socket-budget-120-5s": (24, 360, "--max-concurrency 256 --max-seconds 120", (FOUND, PROVISIONAL, "beyond")),
}


class FinishedRun(NamedTuple):
    """A run that is over; `summary` None where it failed."""

    summary: Summary | None
    status: int
    seconds: float
    errors: str


def filling(seats: int, tokens: int) -> float:
    """Requests in flight that fill the seats: the next one misses the step that begins when one ends.

    That is a step in as many as an answer has tokens.

    >>> filling(24, 72)
    24.333333333333332
    """
    return seats * (1 + 1 / tokens)


def run(command_line: str) -> FinishedRun:
    """`knee run …` in a process of its own, with a result folder that goes away."""
    with tempfile.TemporaryDirectory() as out:
        quiet = ["--json", "--quiet", "--no-plots", "--out", f"{out}/run"]
        command = [sys.executable, "-m", "harness", *command_line.split()[1:], *quiet]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        taken = time.monotonic() - began
    whole = done.returncode in (0, 3)
    summary = msgspec.json.decode(done.stdout, type=Summary) if whole else None
    return FinishedRun(summary, done.returncode, taken, done.stderr[-300:].replace("\n", " "))


def end_to_end(work: Bench) -> Iterator[Line]:
    """Ramps that take as long as they take."""
    for cap, tokens, speed in BEHIND_SOCKET:
        command_line = (
            f"knee run --url sim: --max-num-seqs {cap} --max-concurrency 512 --input-tokens 64 "
            f"--output-tokens {tokens} --speed {speed} --seed {work.options.seed}"
        )
        truth = filling(cap, tokens)
        what, reach = f"hinge of `{command_line}`", f"{truth:.2f} ± 5 %, in its interval"
        ended = run(command_line)
        if ended.summary is None:
            yield Line(f"socket-{cap}", what, reach, "failed", False, ended.errors)
            continue
        found = ended.summary.curve
        hinge = found.hinge_concurrency if found is not None else Value(None)
        off = abs(hinge.value / truth - 1) if hinge.value else math.inf
        yield Line(
            f"socket-{cap}", what, reach, text(hinge), off <= OFF and covers(hinge, truth) is True,
            f"{len(ended.summary.levels)} levels in {ended.seconds:.0f} s, exit {ended.status}, plateau "
            f"{'reached' if found is not None and found.plateau_reached else 'not reached'}{_invalid(ended.summary)}",
        )  # fmt: skip


def short(name: str, work: Bench) -> Iterator[Line]:
    """Yield a sweep with windows of 3 s, or a ramp with a budget."""
    cap, tokens, how, states = SHORT[name]
    truth = filling(cap, tokens)
    command_line = (
        f"knee run --url sim: --max-num-seqs {cap} --input-tokens 64 --output-tokens {tokens} --speed 0.5 {how} "
        f"--seed {work.options.seed}"
    )
    what, reach = f"`{command_line}`", f"{' or '.join(states)}, a hinge's interval holds {truth:.2f}"
    ended = run(command_line)
    if ended.summary is None:
        yield Line(name, what, reach, "failed", False, ended.errors)
        return
    found = ended.summary.curve
    state, hinge = (NONE, Value(None)) if found is None else (found.state, found.hinge_concurrency)
    right = state == "beyond" or covers(hinge, truth) is True
    provisional, at = (_first(ended.summary.levels, some) for some in ((FOUND, PROVISIONAL), (FOUND,)))
    yield Line(
        name, what, reach, f"{state}, hinge {text(hinge)}", state in states and right,
        f"levels {' '.join(str(level.concurrency) for level in ended.summary.levels)} in {ended.seconds:.0f} s, "
        f"provisional {provisional}, found {at}, exit {ended.status}{_invalid(ended.summary)}",
    )  # fmt: skip


def _first(levels: list[LevelSummary], states: tuple[str, ...]) -> str:
    """When the first levels had such an answer, by the ends of their windows."""
    for i in range(1, len(levels) + 1):
        points = curve.points_of([level for level in levels[:i] if level.output_tokens_per_s.mean])
        if curve.fit(points).curve.state in states:
            return f"after {levels[i - 1].window[1]:.0f} s"
    return "never"


def _invalid(summary: Summary) -> str:
    invalid = sorted({v.code for v in summary.verdicts if v.level == "invalid"})
    return f"; invalid: {', '.join(invalid)}" if invalid else ""


def text(value: Value) -> str:
    """Return a value with its interval.

    >>> text(Value(16.21, (15.0, None))), text(Value(None))
    ('16.21 [15.00 … ∞]', 'none')
    """
    if value.value is None:
        return "none"
    ends = "none" if value.ci95 is None else " … ".join("∞" if end is None else f"{end:.2f}" for end in value.ci95)
    return f"{value.value:.2f} [{ends}]"


ROWS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    **{name: partial(short, name) for name in SHORT},
    "socket": end_to_end,
}
