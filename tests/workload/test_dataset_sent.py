"""A row's messages, tools and images in the body of a request, by each API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.dialects import DIALECTS
from harness.workload.dataset import table
from harness.workload.dataset.dataset import open_dataset
from harness.workload.rows import Rows
from tests.builders.datasets import file, json_lines

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": WEATHER}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "12 C", "tool_call_id": "c1"},
]


def body(folder: Path, api: str, record: dict[str, Any]) -> dict[str, Any]:
    """What is sent for a file's one row."""
    rows = open_dataset(file(folder, "x.jsonl", json_lines([record]))).rows()
    table.write(rows, folder / "rows")
    source = Rows(path=str(folder / "rows"), words=("a",), seed=1, output_tokens=9)
    found: dict[str, Any] = json.loads(DIALECTS[api].encoder("m").encode(source.request(0)))
    return found


def test_chat_sends_openai_s_messages_as_they_are(tmp_path: Path) -> None:
    sent = body(tmp_path, "chat", {"messages": TALK, "tools": [TOOL], "max_tokens": 7})
    assert (sent["messages"], sent["tools"], sent["max_tokens"]) == (TALK, [TOOL], 7)
    seen = [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}]
    assert body(tmp_path, "chat", {"messages": seen})["messages"] == seen


def test_anthropic_has_blocks_for_calls_and_results(tmp_path: Path) -> None:
    sent = body(tmp_path, "anthropic", {"messages": TALK, "tools": [TOOL], "max_tokens": 7})
    assert (sent["system"], sent["max_tokens"]) == ("Be kind.", 7)
    assert sent["tools"] == [{"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}}]
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "12 C"}
    assert sent["messages"] == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]


def test_without_tools_anthropic_has_calls_as_text(tmp_path: Path) -> None:
    """Its API refuses blocks of tools that no request defines."""
    sent = body(tmp_path, "anthropic", {"messages": TALK})
    assert [each["content"] for each in sent["messages"]] == [
        "Weather?", '{"name":"weather","arguments":"{\\"city\\":\\"Bern\\"}"}', "12 C",
    ]  # fmt: skip


def test_responses_has_items_for_calls_and_results(tmp_path: Path) -> None:
    sent = body(tmp_path, "responses", {"messages": TALK, "tools": [TOOL], "max_tokens": 7})
    assert sent["input"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Bern"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "12 C"},
    ]
    assert (sent["tools"], sent["max_output_tokens"]) == ([{"type": "function", **WEATHER}], 7)


def test_apis_of_one_text_or_without_calls_have_them_as_text(tmp_path: Path) -> None:
    record = {"messages": TALK, "tools": [TOOL]}
    text = body(tmp_path, "completions", record)["prompt"]
    assert text.startswith('[{"type":"function"')
    assert text.endswith('Be kind.\n\nWeather?\n\n{"name":"weather","arguments":"{\\"city\\":\\"Bern\\"}"}\n\n12 C')
    sent = body(tmp_path, "ollama", record)["messages"]
    assert [sorted(each) for each in sent] == [["content", "role"]] * 4
    assert sent[2]["content"].startswith('{"name":"weather"')
