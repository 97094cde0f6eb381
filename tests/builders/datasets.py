"""Small files of every format, as their documentations have them, for the tests of the readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.workload.dataset import Row
from harness.workload.dataset.dataset import Skipped, open_dataset

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,0
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9,2,ChatGPT,36,29,65,Conversation log
19440192.0,1722ac82,8,GPT-4,1779,123,1902,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 14, 15]}
{"timestamp": 3052, "input_length": 600, "output_length": 1, "hash_ids": []}
"""
CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "a_0",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "One?"},
            {"from": "gpt", "value": "1"},
            {"from": "human", "value": "Two?"},
            {"from": "gpt", "value": "2"},
        ],
    },
    {"id": "a_0", "conversations": [{"from": "gpt", "value": "left over"}, {"from": "human", "value": "Three?"}]},
    {"id": "b_0", "conversations": []},
    {"id": "c_0", "items": [{"from": "user", "value": 'Vier {["?'}, {"from": "chatgpt", "value": "4 \\"}]},
]


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(values: list[Any]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def place(content: bytes | str, byte: int) -> str:
    """A byte of a file as an error names it."""
    data = content.encode() if isinstance(content, str) else content
    return f"line {data.count(bytes((10,)), 0, byte) + 1}, byte {byte}"


def rows_of(folder: Path, name: str, content: str | bytes, format: str | None = None) -> list[Row]:
    """All rows of a file with that content."""
    return list(open_dataset(file(folder, name, content), format).rows())


def sound_and_broken(folder: Path, name: str, content: str | bytes, format: str | None = None) -> tuple[list[Row], str]:
    """The rows that are whole, and the first error behind the file's folder; every one is of one line."""
    skipped = Skipped()
    rows = list(open_dataset(file(folder, name, content), format).rows(skipped))
    assert skipped.count, "something is broken"
    assert all("\n" not in str(error) for error in skipped.first)
    return rows, str(skipped.first[0]).removeprefix(f"{folder}/")


# ---- spans ------------------------------------------------------------------------------------------------


def span(
    name: str, began: float, ended: float, parent: str = "", *, trace: str = "t", **attributes: Any
) -> dict[str, Any]:
    """A span of OTLP/JSON, times in seconds; 64-bit numbers are text there."""
    listed = [
        {"key": key.replace("__", "."), "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in attributes.items()
    ]
    return {
        "traceId": trace,
        "spanId": name,
        "parentSpanId": parent,
        "name": name,
        "kind": 3,
        "startTimeUnixNano": str(round(began * 1e9)),
        "endTimeUnixNano": str(round(ended * 1e9)),
        "attributes": listed,
    }


def chat(name: str, began: float, ended: float, parent: str = "", *, trace: str = "t", **more: Any) -> dict[str, Any]:
    """A request to a model, of 100 tokens, answered with 10."""
    usage = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 10}
    return span(name, began, ended, parent, trace=trace, **{"gen_ai__operation__name": "chat"} | usage | more)


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "agent"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}
