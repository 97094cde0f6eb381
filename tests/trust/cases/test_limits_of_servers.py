"""Servers that refuse what comes on top of so many in flight, or too often, and servers that end within a run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.data.levels import LevelSummary
from harness.data.summary import Summary
from harness.report import facts, run_report
from tests.trust.cases.server import Call, endpoint

pytestmark = pytest.mark.slow
CAP = 3


def run(out: Path, url: str, **options: Any) -> Summary:
    usual: dict[str, Any] = {"input_tokens": 32, "output_tokens": 8, "workers": 1}
    return harness.run(url, out=out, **usual | options).summary


def codes(level: LevelSummary) -> set[str]:
    return {verdict.code for verdict in level.verdicts}


def lines(summary: Summary) -> str:
    """What the screen says on failures, and on what would settle the knee."""
    settle = [f"{fact.label}: {fact.value}" for fact in facts.details(summary)]
    return "\n".join([*run_report.failures(summary).lines, *settle])


class Seats:
    """A server that has CAP answers at a time and refuses every other request, in one way or another."""

    def __init__(self, refuse: Callable[[Call], object]) -> None:
        self.refuse, self.lock, self.taken = refuse, threading.Lock(), 0

    def __call__(self, call: Call) -> None:
        with self.lock:
            free = self.taken < CAP
            self.taken += free
        if not free:
            self.refuse(call)
            return
        call.head()
        call.tokens()
        call.last()
        with self.lock:
            self.taken -= 1
        call.end()


def answers(status: int) -> Callable[[Call], object]:
    return lambda call: call.request.answer(status, b'{"error": {"message": "too many requests"}}')


@pytest.mark.parametrize("refuse", [answers(429), answers(503), answers(200), lambda call: call.request.reset()])
def test_a_server_that_refuses_beyond_a_number_in_flight_is_bounded_by_it_and_not_by_a_rate(
    tmp_path: Path, refuse: Callable[[Call], object]
) -> None:
    with endpoint(Seats(refuse)) as url:
        found = run(tmp_path / "run", url, levels=[1, 2, 3, 8], level_seconds=1)
    last = found.levels[-1]
    assert last.taken_at_once == CAP
    assert "refused_above" in codes(last)
    assert "quota_limited" not in codes(last)
    said = lines(found)
    assert f"--max-concurrency {CAP}" in said
    assert "--max-rps" not in said
    assert f"To settle it: raise the server's limit: it refuses more than {CAP} at once" in said
    assert not any(
        f"{CAP} at once, as a run without --quick" in fact.value for fact in facts.in_short(found, quick=True)
    )
    assert found.curve is not None
    assert found.curve.settle is not None
    assert all(C <= CAP for C in found.curve.settle.levels), "what it refuses settles nothing"


def test_a_quota_of_requests_a_second_is_kept_by_a_rate(tmp_path: Path) -> None:
    lock, left, since = threading.Lock(), [40.0], [time.monotonic()]

    def quota(call: Call) -> None:
        with lock:
            now = time.monotonic()
            left[0], since[0] = min(40.0, left[0] + 40 * (now - since[0])), now
            free = left[0] >= 1
            left[0] -= free
        if free:
            call.good()
        else:
            call.request.answer(429, b'{"error": {"message": "too many requests"}}')

    with endpoint(quota) as url:
        found = run(tmp_path / "run", url, levels=[1, 8], level_seconds=2, keep_going=True)
    last = found.levels[-1]
    assert "quota_limited" in codes(last)
    assert not last.taken_at_once
    said = lines(found)
    assert "--max-rps R keeps its quota" in said
    assert "get a higher quota: it refuses requests at C = 8" in said


def test_a_server_that_ends_is_to_be_started_before_more_levels_are_measured(tmp_path: Path) -> None:
    full = threading.Event()
    lock, now = threading.Lock(), [0]

    def ends(call: Call) -> None:
        with lock:
            now[0] += 1
            if now[0] >= 8:
                full.set()
        call.good()
        with lock:
            now[0] -= 1

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(endpoint(ends))
        killer = threading.Thread(target=lambda: full.wait(60) and stack.close())
        killer.start()
        found = run(tmp_path / "run", url, max_seconds=40, wait=1)
        full.set()
        killer.join()
    said = lines(found)
    assert "stalled" in codes(found.levels[-1])
    assert "To settle it: see the server's log and start it again: nobody answered any more at C = 8" in said


def test_a_refusal_among_hundreds_of_requests_is_no_quota(tmp_path: Path) -> None:
    def rarely(call: Call) -> None:
        if call.number % 150 == 149:
            call.request.answer(429, b'{"error": {"message": "too many requests"}}')
        else:
            call.good()

    with endpoint(rarely) as url:
        found = run(tmp_path / "run", url, levels=[1, 8], level_seconds=2)
    assert found.levels[-1].errors_by_type["http_429"] < 0.01 * found.levels[-1].requests
    assert not any("quota_limited" in codes(level) for level in found.levels)
    assert "get a higher quota" not in lines(found)


@pytest.mark.parametrize("fail", [answers(500), answers(401), lambda call: call.request.reset()])
def test_a_server_that_fails_every_request_from_some_moment_on_is_to_be_looked_at_first(
    tmp_path: Path, fail: Callable[[Call], object]
) -> None:
    full = threading.Event()
    lock, now = threading.Lock(), [0]

    def fails(call: Call) -> None:
        with lock:
            now[0] += 1
            if now[0] >= 8:
                full.set()
        if full.is_set():
            fail(call)
        else:
            call.good()
        with lock:
            now[0] -= 1

    with endpoint(fails) as url:
        found = run(tmp_path / "run", url, levels=[1, 2, 4, 8, 16], level_seconds=2, keep_going=True)
    assert "fails_to_its_end" in codes(found.levels[-1])
    assert not any("fails_to_its_end" in codes(level) for level in found.levels[:2])
    at = found.levels[-1].concurrency
    assert f"see the server's log: no request succeeded any more at C = {at}; then" in lines(found)
