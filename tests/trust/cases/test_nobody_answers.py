"""Requests that hang, servers that stop, single failures and empty answers: what a whole run makes of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.analysis.summarise import exit_status
from harness.data.levels import LevelSummary
from harness.data.summary import Summary
from tests.builders.streams import DONE, delta
from tests.trust.cases.server import Call, endpoint

pytestmark = pytest.mark.slow


def run(
    out: Path, answer: Callable[[Call], object], model: Callable[[], str] = lambda: "toy", **options: Any
) -> Summary:
    with endpoint(answer, model=model) as url:
        usual: dict[str, Any] = {"input_tokens": 32, "output_tokens": 8, "workers": 1}
        return harness.run(url, out=out, **usual | options).summary


def codes(level: LevelSummary) -> set[str]:
    return {verdict.code for verdict in level.verdicts}


def empty(call: Call) -> None:
    call.head()
    call.write(delta("stop", role="assistant", content=""))
    call.write(DONE)
    call.end()


def test_answers_without_a_token_are_failures_after_which_a_slot_rests(tmp_path: Path) -> None:
    sent: list[float] = []

    def dead_engine(call: Call) -> None:
        if call.is_check:
            call.good()
            return
        sent.append(time.monotonic())
        empty(call)

    found = run(tmp_path / "run", dead_engine, levels=[4], level_seconds=2, slo="ttft_p99=50ms")
    (level,) = found.levels
    assert set(level.errors_by_type) == {"empty_response"}
    assert level.errors == level.requests
    assert [limit.outcome for limit in level.slo] == ["missed"]
    assert level.goodput_requests_per_s == 0
    assert len(sent) < 100, "a server that answers at once is not flooded"
    assert exit_status(found) == 3


def test_one_failure_of_eighty_does_not_end_the_levels(tmp_path: Path) -> None:
    def one_reset(call: Call) -> None:
        if call.number % 80 != 40:
            call.good()
            return
        call.head()
        call.tokens(count=3)
        call.request.reset()

    found = run(tmp_path / "run", one_reset, levels=[1, 2, 4], level_seconds=2)
    assert [level.concurrency for level in found.levels] == [1, 2, 4]
    assert sum(level.errors for level in found.levels) >= 1
    assert not any("errors_above_1_percent" in codes(level) for level in found.levels)


def test_a_request_of_the_warm_up_that_is_never_answered_is_neither_in_flight_nor_waited_for(tmp_path: Path) -> None:
    held = threading.Event()
    first: list[Call] = []

    def hangs_once(call: Call) -> None:
        if call.is_check or first:
            call.good()
            return
        first.append(call)
        held.wait(60)

    began = time.monotonic()
    try:
        found = run(tmp_path / "run", hangs_once, levels=[4], level_seconds=3)
    finally:
        held.set()
    assert time.monotonic() - began < 30, "the deadline of a request is 600 s"
    (level,) = found.levels
    assert 2 < level.in_flight < 3.1  # 3, less the time between two requests, which is long on a busy machine
    assert {"hung", "in_flight_low"} <= codes(level)


@pytest.mark.alone
def test_a_server_that_hangs_ends_the_search_with_since_when(tmp_path: Path) -> None:
    gone = threading.Event()

    def freezes(call: Call) -> None:
        if call.is_check or call.number < 40:
            call.good()
        else:
            gone.wait(60)

    try:
        found = run(tmp_path / "run", freezes, max_seconds=120)
    finally:
        gone.set()
    assert not found.complete
    assert exit_status(found) == 3
    assert any(step.reason.startswith("stopped: ") for step in found.ramp)
    assert "stalled" in {code for level in found.levels for code in codes(level)}


@pytest.mark.parametrize(("after", "replaced"), [("other", True), ("toy", False)])
def test_a_server_that_lists_another_model_after_the_load_is_an_invalid_run(
    tmp_path: Path, after: str, replaced: bool
) -> None:
    loaded: list[Call] = []

    def good(call: Call) -> None:
        if not call.is_check:
            loaded.append(call)
        call.good()

    found = run(tmp_path / "run", good, lambda: after if loaded else "toy", levels=[1], level_seconds=1)
    said = [each for each in found.verdicts if each.code == "model_replaced"]
    assert bool(said) is replaced
    if replaced:  # else the machine may be too busy for the client, which is 3 as well
        assert exit_status(found) == 3


def test_a_prompt_that_takes_long_is_no_silence(tmp_path: Path) -> None:
    def slow(call: Call) -> None:
        time.sleep(6.0)
        call.good()

    found = run(tmp_path / "run", slow, levels=[1, 4], level_seconds=7)
    assert not {"stalled", "silence", "hung"} & {code for level in found.levels for code in codes(level)}
    assert found.complete


def test_answers_that_come_whole_are_no_silence(tmp_path: Path) -> None:
    def whole(call: Call) -> None:
        time.sleep(0.0 if call.is_check else 6.0)
        message = {"role": "assistant", "content": "a b c d e f g h"}
        usage = {"prompt_tokens": 32, "completion_tokens": 8, "total_tokens": 40}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": usage}
        call.request.answer(200, json.dumps(body).encode())

    found = run(tmp_path / "run", whole, levels=[1, 4], level_seconds=14, stream=False)
    assert not {"stalled", "silence", "hung"} & {code for level in found.levels for code in codes(level)}
    assert found.complete
    assert [level.errors for level in found.levels] == [0, 0]
