"""Rows under the names of other tools and APIs: what they ask for is read, or said to be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.base.errors import HarnessError
from harness.workload.dataset import Row, plain
from harness.workload.dataset.dataset import open_dataset
from harness.workload.request import Message
from tests.builders.datasets import file, json_lines, rows_of


def test_no_name_has_two_meanings() -> None:
    listed = [name for each in plain.NAMES.values() for name in each]
    assert len(listed) == len(set(listed))
    assert set(plain.NAMES) == set(plain.Values.__struct_fields__)


def row_of(folder: Path, record: dict[str, Any]) -> Row:
    (row,) = rows_of(folder, "x.jsonl", json_lines([record]))
    return row


ASKED = [{"role": "user", "content": "Why?"}]
WHY = (Message("user", "Why?"),)
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": WEATHER}


# Lengths


@pytest.mark.parametrize("name", plain.NAMES["output_tokens"])
def test_the_length_of_an_answer_has_many_names(name: str, tmp_path: Path) -> None:
    assert row_of(tmp_path, {"model": "m", "messages": ASKED, name: 33, "temperature": 0}).output_tokens == 33


@pytest.mark.parametrize("name", plain.NAMES["input_tokens"])
def test_the_length_of_a_prompt_has_many_names(name: str, tmp_path: Path) -> None:
    row = row_of(tmp_path, {name: 512, "output_tokens": 8})
    assert (row.input_tokens, row.output_tokens, row.prompt) == (512, 8, None)


def test_of_two_names_the_first_one_counts_and_one_of_another_kind_is_left_out(tmp_path: Path) -> None:
    row = row_of(tmp_path, {"prompt": "a", "max_tokens": 9, "output_tokens": 4})
    assert (row.output_tokens, row.notes) == (4, ())
    row = row_of(tmp_path, {"prompt": "a", "max_tokens": "auto", "max_completion_tokens": 7, "response": {"ok": 1}})
    assert (row.output_tokens, row.answer) == (7, None)
    assert row.notes == ("response cannot be read and is left out", "max_tokens cannot be read and is left out")


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,20,3\n1.5,21,4\n", "vidur"),
        (
            "s.csv",
            "request_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,0.5,1,20,3\n1,1.5,1,21,4\n",
            "splitwise",
        ),
        ("a.csv", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n0.5,0,20,3\n1.5,2,21,4\n", "azure"),
        ("p.csv", "arrival_time,prompt_len,output_len\n0.5,20,3\n1.5,21,4\n", "plain"),
    ],
)
def test_a_trace_is_a_row_of_the_table(name: str, content: str, format: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, name, content)
    assert open_dataset(tmp_path / name).format == format
    assert [(row.at_s, row.input_tokens, row.output_tokens) for row in rows] == [(0.0, 20, 3), (1.0, 21, 4)]
    assert [row.notes for row in rows] == [(), ("images are left out",) if name == "a.csv" else ()]


# Times


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("at_s", 2, 3.5),
        ("timestamp", 2_000, 3_500),
        ("timestamp", "2024-05-10T00:00:02Z", "2024-05-10T00:00:03.5Z"),
        ("timestamp", 1_715_299_202, 1_715_299_203.5),  # seconds since 1970
        ("timestamp", 1_715_299_202_000, 1_715_299_203_500),  # milliseconds
        ("timestamp_ms", 2_000, 3_500),
        ("arrival_time", 2.0, 3.5),
    ],
)
def test_times_have_the_unit_of_their_name(name: str, first: Any, second: Any, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "x.jsonl", json_lines([{"prompt": "a", name: each} for each in (first, second)]))
    assert [row.at_s for row in rows] == [0.0, pytest.approx(1.5)]
    noted = name != "at_s" and name != "arrival_time" and isinstance(first, int) and not 1e9 <= first < 1e10
    assert [bool(row.notes) for row in rows] == [noted] * 2


def test_a_pause_in_place_of_a_time_counts_from_the_row_before_of_its_session(tmp_path: Path) -> None:
    lengths = {"input_length": 9, "output_length": 2}
    records = [
        {"session_id": "a", "timestamp": 1000} | lengths,
        {"session_id": "b", "timestamp": 1200} | lengths,
        {"session_id": "a", "delay": 500} | lengths,
    ]
    rows = rows_of(tmp_path, "x.jsonl", json_lines(records))
    assert [(row.at_s, row.session, row.pause_s) for row in rows] == [
        (0.0, "a", None), (pytest.approx(0.2), "b", None), (0.5, "a", 0.5),
    ]  # fmt: skip


# Bodies of requests


def test_a_body_s_system_prompt_and_tools_are_sent(tmp_path: Path) -> None:
    for system in ("Be kind.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]):
        row = row_of(tmp_path, {"system": system, "messages": ASKED, "max_tokens": 4, "tools": [TOOL]})
        assert row.prompt == (Message("system", "Be kind."), *WHY)
        assert row.tools == (TOOL,)
    row = row_of(tmp_path, {"system_prompt": "Be kind.", "question": "Why?", "response": "So."})
    assert (row.prompt, row.answer) == ((Message("system", "Be kind."), *WHY), "So.")
    assert row_of(tmp_path, {"system_prompt": " ", "question": "Why?"}).prompt == "Why?"


def test_anthropic_s_tools_and_blocks_become_openai_s(tmp_path: Path) -> None:
    tool = {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}}
    used = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "12 C"}]}
    talk = [
        *ASKED,
        {"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "I look."}, used]},
        {"role": "user", "content": [result]},
    ]  # fmt: skip
    row = row_of(tmp_path, {"messages": talk, "tools": [tool], "max_tokens": 4})
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
    assert row.prompt == (
        *WHY, Message("assistant", "I look.", {"tool_calls": [call]}), Message("tool", "12 C", {"tool_call_id": "t1"}),
    )  # fmt: skip
    assert row.tools == (TOOL,)


def test_responses_bodies_have_an_input_and_instructions(tmp_path: Path) -> None:
    row = row_of(tmp_path, {"instructions": "Be kind.", "input": "Why?", "max_output_tokens": 4})
    assert (row.prompt, row.output_tokens) == ((Message("system", "Be kind."), *WHY), 4)
    part = {"type": "input_text", "text": "Why?"}
    assert row_of(tmp_path, {"input": [{"role": "user", "content": [part]}]}).prompt == WHY
    assert row_of(tmp_path, {"instruction": "Translate.", "input": "Why?", "output": "Warum?"}).prompt == (
        "Translate.\n\nWhy?"
    )


def test_a_line_of_a_batch_is_its_body(tmp_path: Path) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "timestamp": "2024-05-10T00:00:00Z"}
    bodies = [{"model": "m", "messages": ASKED, "max_tokens": n} for n in (4, 5)]
    rows = rows_of(tmp_path, "x.jsonl", json_lines([line | {"body": body} for body in bodies]))
    assert [(row.prompt, row.output_tokens, row.at_s) for row in rows] == [(WHY, 4, 0.0), (WHY, 5, 0.0)]


def test_calls_of_tools_and_their_results_stay_what_they_are(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    talk = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12 C"},
        {"role": "assistant", "content": "12."},
    ]
    row = row_of(tmp_path, {"messages": talk, "tools": [TOOL]})
    assert row.prompt == (
        *WHY, Message("assistant", "", {"tool_calls": [call]}), Message("tool", "12 C", {"tool_call_id": "c1"}),
    )  # fmt: skip
    assert (row.answer, row.whole) == ("12.", True)
    assert row_of(tmp_path, {"messages": talk[:2]}).answer == '{"name":"weather","arguments":"{}"}'


def test_images_of_messages_are_sent_and_those_beside_are_named(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "Why?"}
    row = row_of(tmp_path, {"messages": [{"role": "user", "content": [text, image]}]})
    assert row.prompt == (Message("user", "Why?", {"content": [text, image]}),)
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    blocks = [{"type": "image", "source": source}, text]
    row = row_of(tmp_path, {"messages": [{"role": "user", "content": blocks}]})
    assert row.prompt == (Message("user", "Why?", {"content": [image, text]}),)
    assert row_of(tmp_path, {"text": "Why?", "image": "cat.png"}).notes == ("images are left out",)
    assert row_of(tmp_path, {"text": "Why?", "images": []}).notes == ()


def test_messages_count_where_a_prompt_stands_beside_them(tmp_path: Path) -> None:
    row = row_of(tmp_path, {"prompt": "Why?", "messages": [*ASKED, {"role": "assistant", "content": "So."}]})
    assert (row.prompt, row.answer, row.notes) == (WHY, "So.", ())
    assert row_of(tmp_path, {"prompt": "How?", "messages": ASKED}).notes == ("a prompt beside messages is left out",)


def test_a_field_that_looks_like_work_and_is_not_read_is_named(tmp_path: Path) -> None:
    record = {"prompt": "a", "thinking_tokens": 9, "total_tokens": 12, "documents": ["b"], "stop": "c", "id": 1}
    later = {"prompt": "a", "prefix_prompt": "d"}
    assert open_dataset(file(tmp_path, "x.jsonl", json_lines([record, later]))).unread == (
        "thinking_tokens", "documents", "prefix_prompt",
    )  # fmt: skip
    body = {"body": {"messages": ASKED, "rejected_messages": []}}
    assert open_dataset(file(tmp_path, "x.jsonl", json_lines([body]))).unread == ("rejected_messages",)
    assert open_dataset(file(tmp_path, "x.csv", "prompt,extra_tokens\na,1\n")).unread == ("extra_tokens",)


@pytest.mark.parametrize("tools", ["search, weather", ["search"], {"a": 1}, "[1]"])
def test_what_another_tool_has_under_these_names_stops_nothing(tools: Any, tmp_path: Path) -> None:
    odd = {"role": "user", "content": "Why?", "tool_calls": "[]", "name": 5, "text": 3}
    row = row_of(tmp_path, {"messages": [odd], "tools": tools, "system": 5, "timestamp": "noon", "delay": "long"})
    assert (row.prompt, row.tools, row.at_s, row.pause_s) == (WHY, None, None, None)
    assert set(row.notes) == {
        *(f"{name} cannot be read and is left out" for name in ("system", "timestamp", "delay")),
        "tools cannot be read and are left out",
    }
    (row,) = rows_of(tmp_path, "y.jsonl", json_lines([{"conversations": [odd], "tools": tools, "system": 5}]))
    assert (row.prompt, row.notes) == (WHY, ("tools cannot be read and are left out",))


# Sessions


def test_each_of_the_turns_of_a_row_is_a_request_of_its_session(tmp_path: Path) -> None:
    questions = {"question_id": 1, "category": "c", "turns": ["Write.", "Again."], "system": "Be kind."}
    first, second = rows_of(tmp_path, "x.jsonl", json_lines([questions]))
    assert (first.prompt, second.prompt) == ((Message("system", "Be kind."), Message("user", "Write.")), "Again.")
    assert first.session == second.session != ""
    turns = [{"text": "Hi", "delay": 0, "max_tokens": 3}, {"text": "And?", "delay": 500}]
    rows = rows_of(tmp_path, "x.jsonl", json_lines([{"session_id": "s", "turns": turns}]))
    assert [(row.prompt, row.session, row.pause_s, row.output_tokens) for row in rows] == [
        ("Hi", "s", 0.0, 3), ("And?", "s", 0.5, None),
    ]  # fmt: skip


def test_sglang_s_conversations_are_sessions_of_rows(tmp_path: Path) -> None:
    """Each adds its messages, and counts the whole prompt."""
    turns = [{"messages": ASKED, "prompt_tokens": 900}, {"messages": ASKED, "prompt_tokens": 1000}]
    content = json.dumps({"metadata": {"n": 2}, "conversations": [turns, turns[:1]]})
    rows = rows_of(tmp_path, "x.json", content)
    assert [(row.prompt, row.input_tokens) for row in rows] == [(WHY, 900), (WHY, 1000), (WHY, 900)]
    assert rows[0].session == rows[1].session != rows[2].session


@pytest.mark.parametrize(
    "entries",
    [
        [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}],
        [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
        [{"role": "user", "value": "Why?"}, {"role": "assistant", "value": "So."}],
        [{"role": "User", "text": "Why?"}, {"role": "Assistant", "text": "So.", "language": "English"}],
    ],
)
@pytest.mark.parametrize("field", ["conversations", "items", "conversation"])
def test_a_conversation_s_messages_have_a_role_and_a_text_by_several_names(
    field: str, entries: list[dict[str, str]], tmp_path: Path
) -> None:
    row = row_of(tmp_path, {field: entries, "timestamp": "2023-04-09T00:02:53+00:00", "turn": 1})
    assert (row.prompt, row.answer) == (WHY, "So.")


def test_a_conversation_s_calls_of_tools_are_texts_and_its_system_prompt_and_tools_are_sent(tmp_path: Path) -> None:
    entries = [("human", "Why?"), ("function_call", '{"name": "f"}'), ("observation", "12"), ("gpt", "So.")]
    talk = [{"from": who, "value": value} for who, value in entries]
    record = {"conversations": talk, "system": "Be kind.", "tools": json.dumps([TOOL])}
    first, second = rows_of(tmp_path, "x.jsonl", json_lines([record]))
    assert (first.prompt, first.answer) == ((Message("system", "Be kind."), *WHY), '{"name": "f"}')
    assert (second.prompt, second.answer) == ((Message("user", "12"),), "So.")
    assert first.tools == second.tools == (TOOL,)


def test_parquet_has_the_fields_of_all_messages_in_each(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        *ASKED,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]
    pq.write_table(pa.table({"messages": [talk], "max_tokens": [6]}), tmp_path / "x.parquet")
    (row,) = open_dataset(tmp_path / "x.parquet").rows()
    assert row.prompt == (
        *WHY, Message("assistant", "", {"tool_calls": [call]}), Message("tool", "12", {"tool_call_id": "c1"}),
    )  # fmt: skip
    assert row.output_tokens == 6


def test_what_a_request_asks_for_beside_its_text_is_named_where_it_is_not_sent(tmp_path: Path) -> None:
    def notes(**fields: Any) -> tuple[str, ...]:
        return row_of(tmp_path, {"messages": ASKED, **fields}).notes

    assert notes(n=1, response_format={"type": "text"}, tool_choice="auto") == ()
    assert notes(n=4) == ("n is left out: every request is answered once",)
    assert notes(response_format={"type": "json_object"}, tool_choice="required") == (
        "response_format is left out", "tool_choice is left out",
    )  # fmt: skip
    line = {"body": {"messages": ASKED, "n": 2}}
    assert row_of(tmp_path, line).notes == ("n is left out: every request is answered once",)
    assert row_of(tmp_path, {"input_tokens": 8, "output_tokens": 4, "n": 7}).notes == (), "it numbers rows of a trace"


def test_the_first_row_of_a_trace_decides_the_unit_of_all_its_times(tmp_path: Path) -> None:
    """Milliseconds that pass 11.6 days, and a log in seconds since 1970."""

    def times(*stamps: float) -> list[float | None]:
        lines = [{"timestamp": at, "input_length": 8, "output_length": 4} for at in stamps]
        return [row.at_s for row in rows_of(tmp_path, "x.jsonl", json_lines(lines))]

    assert times(999_999_000, 1_000_001_000) == pytest.approx([0.0, 2.0])
    assert times(1_700_000_000, 1_700_000_002) == [0.0, 2.0]


def test_columns_that_the_operator_names_are_read_and_no_others_of_their_meaning(tmp_path: Path) -> None:
    rows = [{"q": "Why?", "prompt": "not this", "text": "a system prompt", "n_out": 9, "when": 3.5}]
    path = file(tmp_path, "x.jsonl", json_lines([*rows, rows[0] | {"when": 5.0}]))
    columns = {"prompt": "q", "system": "text", "output_tokens": "n_out", "at_s": "when"}
    first, second = open_dataset(path, columns=columns).rows()
    assert first.prompt == (Message("system", "a system prompt"), Message("user", "Why?"))
    assert (first.output_tokens, first.at_s, second.at_s) == (9, 0.0, 1.5)


@pytest.mark.parametrize(
    ("columns", "words"),
    [({"promt": "q"}, "did you mean 'prompt'"), ({"prompt": "qq"}, "it has no field 'qq'")],
)
def test_a_column_that_is_not_there_or_means_nothing_is_refused(
    tmp_path: Path, columns: dict[str, str], words: str
) -> None:
    path = file(tmp_path, "x.jsonl", json_lines([{"q": "Why?"}]))
    with pytest.raises(HarnessError, match=words):
        open_dataset(path, columns=columns)


@pytest.mark.parametrize(
    ("record", "right"),
    [
        ({"promt": "a"}, "prompt"),
        ({"prompt": "a", "ouput_tokens": 3}, "output_tokens"),
        ({"prompt": "a", "max_tokesn": 3}, "max_tokens"),
        ({"prompt": "a", "sesion_id": "x"}, "session_id"),
        ({"body": {"messages": ASKED, "max_toekns": 3}}, "max_tokens"),
    ],
)
def test_a_field_that_misses_a_name_by_a_letter_is_refused_unless_the_format_is_named(
    tmp_path: Path, record: dict[str, Any], right: str
) -> None:
    path = file(tmp_path, "x.jsonl", json_lines([record]))
    with pytest.raises(HarnessError, match=f"no reader knows the field .*; did you mean '{right}'"):
        open_dataset(path)
    assert open_dataset(path, "plain").format == "plain"


def test_a_field_that_only_resembles_a_name_is_no_mistake(tmp_path: Path) -> None:
    record = {"prompt": "a", "prompts": 2, "answers": ["b"], "promt": "c", "arrival_time_ns": 4, "relay": 5, "id": 6}
    record |= {"Response": "d", "answer1": "e", "Sessions": 7}
    assert open_dataset(file(tmp_path, "x.jsonl", json_lines([record]))).format == "plain"
