"""An agent's spans become requests that wait for those they waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.workload.dataset import Row, agents
from harness.workload.dataset.agents import Waiting
from tests.builders.datasets import chat, export, json_lines, place, rows_of, sound_and_broken, span


def spans_of(tmp_path: Path, *spans: dict[str, Any]) -> list[Row]:
    return rows_of(tmp_path, "x.jsonl", json_lines([export(*spans)]))


def test_a_loop_of_calls_and_tools_is_a_chain_with_pauses(tmp_path: Path) -> None:
    rows = spans_of(
        tmp_path,
        chat("third", 7.0, 8.0, "agent"),  # spans stand in no order
        span("agent", 0.0, 9.0),
        chat("first", 1.0, 2.0, "agent"),
        span("tool", 2.0, 4.5, "agent", gen_ai__operation__name="execute_tool"),
        chat("second", 5.0, 6.0, "agent"),
    )
    assert [row.after for row in rows] == [(), (0,), (1,)]
    assert [row.pause_s for row in rows] == [None, 3.0, 1.0]
    assert [row.at_s for row in rows] == [0.0, 4.0, 6.0]
    assert {(row.input_tokens, row.output_tokens, row.session) for row in rows} == {(100, 10, "t")}


def test_sub_agents_side_by_side_wait_for_the_plan_and_the_answer_waits_for_both(tmp_path: Path) -> None:
    rows = spans_of(
        tmp_path,
        span("agent", 0.0, 20.0),
        chat("plan", 0.0, 1.0, "agent"),
        span("left", 2.0, 9.0, "agent"),
        chat("left 1", 2.0, 3.0, "left"),
        chat("left 2", 4.0, 9.0, "left"),
        span("right", 2.5, 8.0, "agent"),
        chat("right 1", 3.5, 5.0, "right"),  # began when left 1 had ended, and does not wait for it
        chat("right 2", 6.0, 8.0, "right"),
        chat("answer", 10.0, 11.0, "agent"),
    )
    #       plan, left 1, right 1, left 2, right 2, answer
    assert [row.after for row in rows] == [(), (0,), (0,), (1,), (2,), (3, 4)]
    assert rows[5].pause_s == 1.0


def test_a_conversation_s_traces_are_a_session_and_the_later_waits_for_the_earlier(tmp_path: Path) -> None:
    rows = spans_of(
        tmp_path,
        chat("a", 0.0, 1.0, trace="one", gen_ai__conversation__id="c"),
        chat("a", 2.0, 3.0, trace="two", gen_ai__conversation__id="c"),
        chat("b", 4.0, 5.0, "nobody knows", trace="two"),
    )
    assert [(row.session, row.after) for row in rows] == [("c", ()), ("c", (0,)), ("two", ())]  # another session
    assert rows[1].pause_s == 1.0


def test_what_is_no_request_or_failed_is_none(tmp_path: Path) -> None:
    rows = spans_of(
        tmp_path,
        chat("failed", 0.0, 1.0, error__type="timeout"),
        chat("agent", 0.0, 9.0, gen_ai__operation__name="invoke_agent"),
        span("http", 0.0, 1.0, http__request__method="POST"),
        chat("a", 2.0, 3.0, "agent"),
    )
    assert [row.at_s for row in rows] == [0.0]


def test_older_names_of_the_lengths_are_read(tmp_path: Path) -> None:
    usage = {"gen_ai__usage__prompt_tokens": 7, "gen_ai__usage__completion_tokens": 0}
    (row,) = spans_of(tmp_path, span("a", 0, 1, gen_ai__operation__name="chat", **usage))
    assert (row.input_tokens, row.output_tokens) == (7, None)


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ([span("a", 0, 1, gen_ai__operation__name="chat")], "a request has no gen_ai.usage.input_tokens"),
        ([chat("a", 0, 1, gen_ai__usage__input_tokens=0)], "Expected 'int' >= 1"),
        ([chat("a", 0, 1, gen_ai__usage__output_tokens=10**12)], "Expected 'int' <= 100000000"),
        ([chat("a", 2, 1)], "the span 'a' ended before it began"),
        ([chat("a", 0, 1), chat("a", 1, 2)], "two spans have the identifier 'a'"),
        ([chat("a", 0, 1, "b"), chat("b", 0, 1, "a")], "is one of its own parents"),
        ([chat("a", 0, 1, "a")], "the span 'a' is one of its own parents"),
        ([chat("a", -1, 1)], "Expected 'int' >= 0"),
        ([{"spanId": "a"}], "missing required field 'traceId'"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    sound = export(chat("sound", 0, 1, trace="other"))
    rows, error = sound_and_broken(tmp_path, "x.jsonl", json_lines([export(*spans), sound]))
    assert why in error
    assert "other" in {row.session for row in rows}


def test_a_document_over_many_lines_names_the_one_that_is_broken(tmp_path: Path) -> None:
    text = json.dumps(export(chat("a", 0, 1)), indent=1)
    broken = text.replace('"scope": {}', '"scope": {,}')
    rows, error = sound_and_broken(tmp_path, "x.json", broken, "spans")
    assert rows == []
    where = place(broken, broken.index("{,") + 1)
    assert error.startswith(f"x.json, {where}: not spans of OpenTelemetry: JSON is malformed")


# Waiting, alone


def request(began: int, ended: int, parent: str = "") -> Waiting:
    return Waiting(parent, began, ended, True)


def test_spans_of_no_length_do_not_wait_for_themselves() -> None:
    assert agents.waits({"a": request(3, 3), "b": request(3, 3), "c": request(4, 4)}) == {
        "a": (),
        "b": (),
        "c": ("a", "b"),
    }


def test_of_a_sequence_only_the_last_is_waited_for() -> None:
    found = agents.waits({str(i): request(2 * i, 2 * i + 1) for i in range(2000)})
    assert all(found[str(i)] == (str(i - 1),) for i in range(1, 2000))


def test_a_deep_tree_takes_no_recursion() -> None:
    deep = {str(i): Waiting(str(i - 1), 0, 9, False) for i in range(5_000)}
    assert agents.waits(deep | {"a": request(0, 1, "4999"), "b": request(2, 3, "4999")})["b"] == ("a",)


def test_more_waiting_than_can_be_kept_is_refused() -> None:
    many = {f"a{i}": request(0, 1) for i in range(1500)} | {f"b{i}": request(2, 3) for i in range(1500)}
    with pytest.raises(ValueError, match="wait for more others than are followed"):
        agents.waits(many)
