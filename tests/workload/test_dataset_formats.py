"""What a record of each format means, and how a file's format is recognised."""

from __future__ import annotations

import doctest
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.base.errors import HarnessError
from harness.workload.dataset import dataset
from harness.workload.dataset.dataset import open_dataset
from harness.workload.request import Message
from tests.builders.datasets import (
    AZURE_2023,
    AZURE_2024,
    BURSTGPT,
    BURSTGPT_SESSIONS,
    CONVERSATIONS,
    MOONCAKE,
    chat,
    export,
    file,
    json_lines,
    rows_of,
    sound_and_broken,
)

ROOT = Path(__file__).parents[2]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(dataset) == (0, 2)


# Traces


def test_azure_2023_has_times_to_the_microsecond_since_its_first_request(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "conv.csv", AZURE_2023)
    assert [row.at_s for row in rows] == pytest.approx([0.0, 4.314579, 4.541977], abs=1e-6)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (879, 55)]
    assert rows[1].place == "line 3, byte 75"
    assert AZURE_2023[75:].startswith("2023-11-16 18:15:50")


def test_azure_2024_has_a_zone_and_not_always_a_fraction(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "code.csv", AZURE_2024)
    assert [row.at_s for row in rows] == pytest.approx([0.0, 0.007405, 0.99007], abs=1e-6)
    assert rows[2].output_tokens is None, "no answer is no length"
    assert rows[2].notes == ("an answer of 0 tokens says no length: as many as --output-tokens are asked for",)
    assert not rows[0].notes


def test_burstgpt_says_of_a_failed_request_only_how_long_it_was(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "BurstGPT_1.csv", BURSTGPT)
    assert [row.at_s for row in rows] == [0.0, 40.0, 113.0]
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(472, 18), (1087, 230), (417, None)]


def test_burstgpt_may_have_sessions(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "BurstGPT_3.csv", BURSTGPT_SESSIONS)
    assert [row.session for row in rows] == ["1722ac82", "d5983bf9", "1722ac82"]
    assert [row.at_s for row in rows] == [0.0, 51.0, 82.0]


def test_mooncake_has_milliseconds_and_the_hashes_of_blocks(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "mooncake_trace.jsonl", MOONCAKE)
    assert [row.at_s for row in rows] == [0.0, 0.0, 3.052]
    assert [row.hashes for row in rows] == [(0, 1, 2, 3), (0, 14, 15), ()]
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(6755, 500), (7319, 490), (600, 1)]


def test_a_request_of_mooncake_has_both_lengths_or_a_text(tmp_path: Path) -> None:
    others = [{"timestamp": 4000, "text_input": "Hi"}, {"timestamp": 4000, "input_length": 9, "output_length": 0}]
    broken = json_lines([{"timestamp": 5000, "input_length": 9}])
    rows, error = sound_and_broken(tmp_path, "x.jsonl", MOONCAKE + json_lines(others) + broken)
    assert [row.prompt for row in rows] == [None, None, None, "Hi", None]
    assert "not a request of a Mooncake trace: Object missing required field 'output_length'" in error


# Conversations


def test_each_message_of_the_user_is_a_request_of_its_conversations_session(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "sharegpt.json", json.dumps(CONVERSATIONS))
    assert [(row.prompt, row.answer) for row in rows] == [
        ((Message("system", "Be brief."), Message("user", "One?")), "1"),
        ((Message("user", "Two?"),), "2"),
        ((Message("user", "Three?"),), None),
        ((Message("user", 'Vier {["?'),), "4 \\"),
    ]
    first, second, third, last = (row.session for row in rows)
    assert first == second
    assert len({first, third, last}) == 3, "identifiers repeat, sessions do not"


def test_messages_without_text_are_none_and_answers_in_pieces_are_one(tmp_path: Path) -> None:
    entries = [("human", " "), ("human", "a"), ("human", "b"), ("gpt", "1"), ("gpt", ""), ("bard", "2")]
    conversation = {"conversations": [{"from": speaker, "value": value} for speaker, value in entries]}
    (row,) = rows_of(tmp_path, "x.jsonl", json_lines([conversation]))
    assert (row.prompt, row.answer) == ((Message("user", "a"), Message("user", "b")), "1\n2")


def test_a_speaker_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    odd = {"conversations": [{"from": "robot", "value": "x"}]}
    with pytest.raises(
        HarnessError, match=r"line 1, byte 0: not a conversation of ShareGPT: message 1 has no role that is known: sys"
    ):
        rows_of(tmp_path, "x.jsonl", json_lines([odd]))


# Prompts and messages


def test_prompts_have_lengths_times_and_sessions_where_they_are_known(tmp_path: Path) -> None:
    content = 'prompt,completion,output_tokens,at_s,session\n"Say ""hi"",\nplease",hi,2,0.5,s\nNo more,,,1.5,\n'
    first, second = rows_of(tmp_path, "x.csv", content)
    assert (first.prompt, first.answer, first.output_tokens) == ('Say "hi",\nplease', "hi", 2)
    assert (first.at_s, first.session, first.place) == (0.0, "s", "line 2, byte 45")
    assert (second.prompt, second.answer, second.output_tokens) == ("No more", None, None)
    assert (second.at_s, second.session, second.place) == (1.0, "", f"line 4, byte {content.index('No more')}")


MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Ja"}, {"type": "text", "text": "?"}]},
]
ANSWERED = [*MESSAGES, {"role": "assistant", "content": "Ja."}]
PROMPT = (Message("system", "Be kind."), Message("user", "Ja?"))


def test_messages_are_one_request_and_end_with_its_answer_or_not(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "x.jsonl", json_lines([{"messages": MESSAGES}, {"messages": ANSWERED, "n": 1}]))
    assert [(row.prompt, row.answer) for row in rows] == [(PROMPT, None), (PROMPT, "Ja.")]


def test_a_prompt_in_a_list_is_messages_or_the_turns_of_a_session(tmp_path: Path) -> None:
    """As MT-bench at the hub has its turns, and data of preferences their messages."""
    (row,) = rows_of(tmp_path, "x.jsonl", json_lines([{"prompt": ANSWERED, "chosen": "Ja."}]))
    assert (row.prompt, row.answer, row.session) == (PROMPT, "Ja.", "")
    rows = rows_of(tmp_path, "y.jsonl", json_lines([{"prompt_id": 1, "prompt": ["One?", "Two?"], "reference": []}]))
    assert [row.prompt for row in rows] == ["One?", "Two?"]
    assert len({row.session for row in rows}) == 1
    rows, error = sound_and_broken(tmp_path, "z.jsonl", json_lines([{"prompt": [1, 2]}, {"prompt": "Hi"}]))
    assert (len(rows), "its prompt is no text, nor a list of texts or of messages: lists of numbers" in error) == (
        1,
        True,
    )


def test_a_list_of_one_text_is_that_text_and_no_list_stands_for_messages_that_are_there(tmp_path: Path) -> None:
    records = [
        {"prompt": ["One?"], "completion": "1"},
        {"prompt": ["One?", "Two?"], "messages": MESSAGES},
        {"prompt": [{"role": "user", "content": "No"}], "messages": MESSAGES},
        {"prompt": [{"role": "user", "content": "No"}], "input": MESSAGES},
        {"text": [1, 2], "question": "Two?"},
    ]
    rows = rows_of(tmp_path, "x.jsonl", json_lines(records))
    assert [(row.prompt, row.answer) for row in rows] == [("One?", "1"), *[(PROMPT, None)] * 3, ("Two?", None)]
    assert rows[1].notes == ("prompt cannot be read and is left out",)
    _, error = sound_and_broken(tmp_path, "y.jsonl", json_lines([{"prompt": []}]))
    assert "its prompt is empty" in error


def test_items_of_responses_are_messages_with_their_calls(tmp_path: Path) -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Ja?"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    (row,) = rows_of(tmp_path, "x.jsonl", json_lines([{"body": {"instructions": "Be kind.", "input": items}}]))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert row.prompt == (
        *PROMPT,
        Message("assistant", "", {"tool_calls": [call]}),
        Message("tool", "ok", {"tool_call_id": "c"}),
    )


NULLS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"id": None, "conversations": [{"from": "human", "value": "Hi"}], "model": None}, [{}]),
    (
        {
            "id": None, "block_size": 64, "hash_id_scope": None,
            "requests": [{"t": 0, "type": None, "model": None, "in": 70, "out": 5, "hash_ids": [1, 2]}],
        },
        [{"input_tokens": 70, "output_tokens": 5, "hashes": (1, 2)}],
    ),
    (
        {
            "session_id": "a", "input_tokens_total": 9, "output_tokens": 5, "prefix_tokens": None,
            "timing_events": [{"event_type": "text", "timestamp": "2026-01-01T00:00:00Z"}],
        },
        [{"input_tokens": 9, "output_tokens": 5}],
    ),
    (
        {"chat_id": 1, "parent_chat_id": None, "timestamp": 0, "input_length": 9, "output_length": 5},
        [{"input_tokens": 9, "after": ()}],
    ),
    (
        {"session_id": "a", "pre_session_spawns": None,
         "turns": [{"messages": [{"role": "user", "content": "Hi"}], "forks": None, "spawns": []}]},
        [{"session": "a"}],
    ),
    ({"prompt": "Hi", "output_tokens": None, "session": None}, [{"prompt": "Hi", "session": ""}]),
]  # fmt: skip


@pytest.mark.parametrize(("record", "expected"), NULLS)
def test_a_null_is_a_value_that_is_missing(
    tmp_path: Path, record: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    rows = rows_of(tmp_path, "x.json", json.dumps([record]))
    assert [{name: getattr(row, name) for name in each} for row, each in zip(rows, expected, strict=True)] == expected


def test_a_null_within_what_is_sent_stays(tmp_path: Path) -> None:
    """Beside a null that is a value missing."""
    schema = {"type": "object", "properties": {"unit": {"type": "string", "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    record = {"id": None, "model": None, "conversations": [{"from": "human", "value": "Hi"}], "tools": [tool]}
    (row,) = rows_of(tmp_path, "x.jsonl", json_lines([record]))
    assert row.tools == (tool,)


def test_messages_stand_in_a_cell_as_json(tmp_path: Path) -> None:
    cell = json.dumps(ANSWERED).replace('"', '""')
    (row,) = rows_of(tmp_path, "x.csv", f'id,messages\n1,"{cell}"\n')
    assert (row.prompt, row.answer) == (PROMPT, "Ja.")


def test_parquet_holds_prompts_messages_and_traces(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b", "a"], "output_tokens": [3, None, 5]}), tmp_path / "x.parquet")
    rows = list(open_dataset(tmp_path / "x.parquet").rows())
    assert [(row.prompt, row.output_tokens, row.place) for row in rows] == [
        ("a", 3, "row 1"), ("b", None, "row 2"), ("a", 5, "row 3"),
    ]  # fmt: skip
    plain = [{"role": "user", "content": "Ja?"}]
    pq.write_table(pa.table({"messages": [plain, plain]}), tmp_path / "y.parquet")
    assert [row.prompt for row in open_dataset(tmp_path / "y.parquet").rows()] == [(Message("user", "Ja?"),)] * 2
    columns = {"timestamp": [7, 9], "input_length": [600, 6], "output_length": [1, 2], "hash_ids": [[1, 2], [1]]}
    pq.write_table(pa.table(columns), tmp_path / "z.parquet")
    rows = list(open_dataset(tmp_path / "z.parquet").rows())
    assert [(row.at_s, row.hashes) for row in rows] == [(0.0, (1, 2)), (pytest.approx(0.002), (1,))]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"prompt": "\n "}, "its prompt is empty"),
        ({"messages": []}, "its prompt is empty"),
        ({"messages": [ANSWERED[2]]}, "its prompt is empty"),
        ({"messages": None}, "it has neither 'prompt', nor 'messages', nor 'input_tokens'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 1 has no role that is known"),
        ({"messages": [{"role": "user", "content": [{"x": 1}]}]}, "a part of its messages has neither a text"),
        ({"messages": [{"role": "user", "content": None}]}, "its prompt is empty"),
        ({"input_tokens": 512, "output_tokens": 1, "hash_ids": [1, 2]}, "another block_size"),
        ({"messages": "x"}, "JSON is malformed"),
        ({"prompt": 3}, "Expected 'str | array | null', got 'int' - at '$.prompt'"),
        ({"prompt": "a", "output_tokens": -1}, "Expected 'int' >= 0 - at '$.output_tokens'"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_sent_is_refused(record: dict[str, Any], why: str, tmp_path: Path) -> None:
    rows, error = sound_and_broken(tmp_path, "x.jsonl", json_lines([record, {"prompt": "b"}]))
    assert [row.prompt for row in rows] == ["b"]
    assert error.startswith("x.jsonl, line 1, byte ")
    assert why in error


# Result folders


def test_a_result_folder_gives_the_answered_requests_as_they_were_sent() -> None:
    rows = list(open_dataset(ROOT / "results" / "live-vllm-ramp-1").rows())
    table = pq.read_table(ROOT / "results" / "live-vllm-ramp-1" / "requests.parquet")
    sent = [s for s, error in zip(table["sent_s"].to_pylist(), table["error"].to_pylist(), strict=True) if not error]
    assert [row.at_s for row in rows] == [pytest.approx(at - sent[0]) for at in sent]
    assert {row.prompt for row in rows} == {None}
    assert {row.output_tokens for row in rows} <= set(table["output_tokens"].to_pylist())


def test_a_folder_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"a folder without requests.parquet; give a file of it"):
        open_dataset(tmp_path)


# Which format it is


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("x", AZURE_2023, "azure"),
        ("x.csv", AZURE_2024.replace(",", ";"), "azure"),
        ("x.csv", "\ufeff" + BURSTGPT, "burstgpt"),
        ("x.csv", BURSTGPT_SESSIONS.replace("\n", "\r\n"), "burstgpt"),
        ("x.json", MOONCAKE, "mooncake"),
        ("x.jsonl", "\n\n" + MOONCAKE, "mooncake"),
        ("x.jsonl", "{broken\n" + MOONCAKE, "mooncake"),
        ("x", json.dumps(CONVERSATIONS), "sharegpt"),
        ("x", json.dumps(CONVERSATIONS, indent=2), "sharegpt"),
        ("x", json_lines(CONVERSATIONS), "sharegpt"),
        ("x", "\ufeff" + json.dumps(CONVERSATIONS[::-1]), "sharegpt"),
        ("x.json", json.dumps(export(chat("a", 0, 1)), indent=1), "spans"),
        ("x.json", json_lines([export(chat("a", 0, 1))]), "spans"),
        ("x.json", json.dumps([export(chat("a", 0, 1))]), "spans"),
        ("x.tsv", "id\tprompt\n1\ta\n", "plain"),
        ("x.csv", "input_tokens,output_tokens\n1,2\n", "plain"),
        ("x.jsonl", '{"messages": []}', "plain"),
    ],
)
def test_a_format_is_known_by_its_fields(name: str, content: str, format: str, tmp_path: Path) -> None:
    assert open_dataset(file(tmp_path, name, content)).format == format


def test_a_result_file_is_one_though_it_has_lengths_too(tmp_path: Path) -> None:
    shutil.copy(ROOT / "results" / "live-vllm-ramp-1" / "requests.parquet", tmp_path / "x")
    assert open_dataset(tmp_path / "x").format == "result"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "the file is empty; give one that holds requests"),
        (" \n\n", "the file is empty"),
        (
            '{"query": "a", "reply": "b"}',
            "lengths of prompts and of answers: query, reply; say which do with --fields, like",
        ),
        (
            '{"prompt_len": 3, "decoded": 4}',
            ": prompt_len, decoded; say which do with --fields, like prompt=query, or input_to",
        ),
        ("arrival,output_len\n1,2\n", ": output_len; say which do with --fields, like prompt=query, or input_tokens="),
        ('{"prompt": "a", "conversations": []}', "it could be sharegpt or plain; name its format"),
        ("[]", "holds no objects"),
        ("{", "line 1, byte 1: not an object: the file ends in the object from line 1, byte 0 on"),
        ('[\n{"a": x}]', "line 2, byte 8: not an object: JSON is malformed: invalid character"),
        (b"\x1f\x8b\x08", "the file is compressed by gzip; unpack it first"),
        (b"PAR1 and no more", "not a Parquet file: "),
        (b"\xff\xfea\x00", "not delimited text: it is not text in UTF-8"),
    ],
)
def test_a_file_of_no_format_says_so(content: str | bytes, error: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as found:
        open_dataset(file(tmp_path, "x", content))
    assert str(found.value).startswith(f"{tmp_path}/x")
    assert error in str(found.value)


def test_a_file_of_two_formats_is_read_as_the_one_that_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, "x.jsonl", '{"prompt": "a", "conversations": []}')
    assert [row.prompt for row in open_dataset(path, "plain").rows()] == ["a"]
    assert list(open_dataset(path, "sharegpt").rows()) == []


def test_a_format_that_does_not_exist_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="unknown format 'azur'; did you mean 'azure'"):
        open_dataset(file(tmp_path, "x", AZURE_2023), "azur")


def test_a_pipe_is_no_dataset(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(HarnessError, match="is a FIFO, not a file"):
        open_dataset(tmp_path / "x")
