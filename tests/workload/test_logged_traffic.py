"""Logged traffic and branching conversations: what each file must read to, by hand from its public description."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.spec.reading import build
from harness.workload import hit_rate, tasks
from harness.workload.dataset import Row, conversations, table
from harness.workload.dataset.dataset import open_dataset
from harness.workload.rows import Rows
from tests.builders.datasets import file, json_lines, rows_of, sound_and_broken


def text(tokens: int) -> str:
    """Of four characters a token."""
    return "x" * 4 * tokens


def user(tokens: int) -> dict[str, str]:
    return {"role": "user", "content": text(tokens)}


# ---- AIPerf's conversations that branch: docs/benchmark-modes/dag.md of github.com/ai-dynamo/aiperf ------------------
# A fork goes on with all that was said, an agent that is spawned begins with nothing; the next turn waits for agents,
# and its messages alone are appended. delay is in milliseconds.
DAG = [
    {
        "session_id": "root",
        "turns": [
            {
                "messages": [{"role": "system", "content": text(10)}, user(10)],
                "max_tokens": 16,
                "spawns": ["agent", {"children": ["late"], "join_at": 2}],
            },
            {"messages": [user(20)], "max_tokens": 8, "delay": 500, "forks": [{"child": "aside", "background": True}]},
            {"messages": [user(3)], "max_tokens": 4, "forks": ["end"]},
        ],
    },
    {
        "session_id": "agent",
        "turns": [{"messages": [user(5)], "max_tokens": 5}, {"messages": [user(5)], "max_tokens": 6, "delay": 250}],
    },
    {"session_id": "late", "turns": [{"messages": [user(7)], "max_tokens": 2}]},
    {"session_id": "aside", "turns": [{"messages": [user(4)], "max_tokens": 9}]},
    {"session_id": "end", "turns": [{"messages": [user(6)], "max_tokens": 7}]},
]
# the requests that each waits for, the pause, and tokens: of the prompt, of it from a cache that keeps all, the answer
DAG_ROWS = [
    ((), 0, 20, 0, 16),
    ((0,), 0, 5, 0, 5),  # agent
    ((1,), 0.25, 15, 10, 6),
    ((0,), 0, 7, 0, 2),  # late
    ((0, 2), 0.5, 56, 36, 8),  # 20 + 16 before it, and 20
    ((4,), 0, 68, 64, 9),  # aside
    ((4, 3), 0, 67, 64, 4),
    ((6,), 0, 77, 71, 7),  # end
]


def test_a_conversation_that_branches_reads_to_its_requests_with_what_each_waits_for(tmp_path: Path) -> None:
    path = file(tmp_path, "dag.jsonl", json_lines(DAG))
    assert open_dataset(path).format == "dag"
    table.write(open_dataset(path).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "dataset": {"path": "x", "sessions": True}}}, place="test")
    source = tasks.of(asked, rows=str(tmp_path / "rows"))
    assert source is not None
    nodes = source.task(0).nodes
    hits = list(hit_rate.hits(asked, block=1, rows=str(tmp_path / "rows")))
    found = zip(nodes, hits, strict=True)
    assert [(n.parents, n.pause_s, hit.prompt, hit.cached, n.output_tokens) for n, hit in found] == DAG_ROWS
    assert source.input_tokens(source.task(0)) == [row[2] for row in DAG_ROWS]


def test_what_is_sent_of_a_branch_is_what_was_said_on_the_way_to_it(tmp_path: Path) -> None:
    """In sessions with the server's answers; by itself with words of their length."""
    table.write(open_dataset(file(tmp_path, "dag.jsonl", json_lines(DAG))).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "dataset": {"path": "x", "sessions": True}}}, place="test")
    source = tasks.of(asked, rows=str(tmp_path / "rows"))
    assert source is not None
    answers = {place: f"answer {place}" for place in range(len(DAG_ROWS))}
    sent = [source.request(source.task(0), place, answers).prompt for place in range(len(DAG_ROWS))]
    said = [[each if isinstance(each, str) else each.content for each in prompt] for prompt in sent]
    before = [text(10), text(10), "answer 0", text(20)]
    assert said[2] == [text(5), "answer 1", text(5)]
    assert said[4] == before
    assert said[7] == [*before, "answer 4", text(3), "answer 6", text(6)]
    alone = Rows(path=str(tmp_path / "rows"), words=("a",), seed=1, output_tokens=10)
    roles = [[each.role for each in alone.request(place).prompt if not isinstance(each, str)] for place in (3, 5)]
    assert roles == [["user"], ["system", "user", "assistant", "user", "assistant", "user"]]


def test_whole_payloads_hold_nothing_more_and_what_is_spawned_before_a_session_waits_for_nothing(
    tmp_path: Path,
) -> None:
    """Each turn of the mode brings its history."""
    mode = {"context_mode": "message_array_with_responses"}
    history = [user(4), {"role": "assistant", "content": "y"}, user(1)]
    records = [
        {
            "session_id": "r",
            "pre_session_spawns": ["a"],
            "turns": [{"messages": [user(1)], "extra": {"seed": 1}}, {"messages": history}],
        }
        | mode,
        {"session_id": "a", "turns": [{"messages": [user(5)], "spawns": []}, {"messages": [user(2)]}]},
    ]
    rows = rows_of(tmp_path, "dag.jsonl", json_lines(records))
    assert [(row.after, row.whole) for row in rows] == [((), True), ((0,), False), ((), True), ((2,), True)]
    assert [row.notes for row in rows] == [(), (), ("extra is left out",), ()]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([DAG[0] | {"turns": [{"messages": [user(1)], "forks": ["nobody"]}]}], "'nobody' is not in the file"),
        ([{"session_id": name, "turns": [{"messages": [user(1)], "spawns": ["ab"[name == "a"]]}]} for name in "ab"],
         "each of its conversations is begun by another one"),
        ([DAG[2], DAG[2], DAG[0]], "'late' comes twice"),
        ([{"session_id": "x", "turns": [{"messages": [user(1)], "spawns": [{"children": ["x"], "join_at": 1}]}]}],
         "each of its conversations is begun by another one"),
    ],
)  # fmt: skip
def test_branches_that_lead_nowhere_are_refused(tmp_path: Path, records: list[Any], words: str) -> None:
    _, error = sound_and_broken(tmp_path, "dag.jsonl", json_lines(records))
    assert words in error


def test_several_may_begin_the_same_conversation(tmp_path: Path) -> None:
    roots: list[dict[str, Any]] = [
        {"session_id": name, "turns": [{"messages": [user(1)], "spawns": ["helper"]}]} for name in ("r1", "r2")
    ]
    helper = {"session_id": "helper", "turns": [{"messages": [user(2)]}]}
    rows = rows_of(tmp_path, "dag.jsonl", json_lines([*roots, helper]))
    assert [(row.session, row.after) for row in rows] == [("r1", ()), ("r1", (0,)), ("r2", ()), ("r2", (0,))]
    alone: list[dict[str, Any]] = [
        {"session_id": str(number), "turns": [{"messages": [user(1)]}]} for number in range(3500)
    ]
    places = [0, 900, 999]  # of what begins it, and of itself
    for place, each in zip(places, (roots[0], helper, roots[1]), strict=True):
        alone[place] = each
    pair = [{"session_id": name, "turns": [{"messages": [user(1)], "forks": [other]}]} for name, other in ("ab", "ba")]
    records = (("", msgspec.convert(each, conversations.Branching)) for each in (*pair, *alone))
    found = [each for _, each in conversations.gather(records)]
    assert [each.session for each in found if isinstance(each, Row)].count("r2") == 2
    errors = [str(each) for each in found if isinstance(each, Exception)]
    assert errors == [f"no conversation that can be read begins {name!r} within 1,000 lines" for name in "ab"]


def test_a_file_that_branches_is_read_as_a_stream(tmp_path: Path) -> None:
    """A thousand lines around a conversation are kept, and those of 3,000 others are read before the last line."""
    records: list[dict[str, Any]] = [{"session_id": "first", "turns": [{"messages": [user(1)], "forks": ["next"]}]}]
    records += [{"session_id": name, "turns": [{"messages": [user(2)]}]} for name in ("next", *map(str, range(3000)))]
    records += [{"session_id": "last", "turns": [{"messages": [user(3)], "spawns": ["0"]}]}]
    taken = []

    def lines() -> Iterator[tuple[str, conversations.Branching]]:
        for number, record in enumerate(records):
            taken.append(number)
            yield f"line {number}", msgspec.convert(record, conversations.Branching)

    found = conversations.gather(lines())
    first, second = (next(found)[1] for _ in range(2))
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert [(each.session, each.after) for each in (first, second)] == [("first", ()), ("first", (0,))]
    assert len(taken) < 2_100
    *others, (place, error) = found
    assert (len(others), place) == (3000, "line 3002")
    assert "'0' is not in the file, within 1,000 lines" in str(error)


# ---- TraceLab, github.com/uw-syfi/TraceLab: README.md, docs/prompt_cache_accounting.md ------------------------------
# A line is a round. Its input is complete with the last user_message or tool_result before the model's events. A prompt
# holds all of the prompt before it, and of the answer what is no reasoning; a compacted one what the cache still had.


def a_round(
    session: str, at: int, ends: int, total: int, prefix: int, out: int, events: list[tuple[str, int]] | None = None
) -> dict[str, Any]:
    kinds = events or [("user_message", at), ("reasoning", at + 1), ("tool_call", ends)]
    return {
        "provider": "claude", "session_id": session, "round_index": at, "model": "opus", "input_tokens_total": total,
        "prefix_tokens": prefix, "newly_append_tokens": total - prefix, "output_tokens": out, "tools": [],
        "timing_events": [
            {"event_type": kind, "timestamp": f"2026-06-08T12:{s // 60:02}:{s % 60:02}.000Z"} for kind, s in kinds
        ],
    }  # fmt: skip


INPUTS = [("tool_result", 30), ("user_message", 60), ("text", 61), ("usage_report", 63)]
TRACELAB = [
    a_round("claude:1", 0, 4, 2000, 0, 50),
    a_round("claude:1", 10, 12, 2600, 1990, 900),
    a_round("codex:2", 5, 9, 900, 0, 20),
    a_round("claude:1", 60, 63, 2700, 0, 40, events=INPUTS),
    a_round("claude:1", 120, 130, 1500, 1100, 10),
]
# session, time, input, cached in whole blocks of 512, output, the pause since the last event of the round before
TRACELAB_ROWS = [
    ("claude:1", 0, 2000, 0, 50, None),
    ("claude:1", 10, 2600, 1536, 900, 6),
    ("codex:2", 5, 900, 0, 20, None),
    ("claude:1", 60, 2700, 2560, 40, 48),
    ("claude:1", 120, 1500, 1024, 10, 59),
]


def test_tracelab_s_rounds_read_to_requests_whose_prompts_hold_the_one_before(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "t.jsonl", json_lines(TRACELAB))
    assert open_dataset(tmp_path / "t.jsonl").format == "tracelab"
    cached = [hit.cached for hit in hit_rate.of_rows(rows)]
    found = [(row.session, row.at_s, row.input_tokens, row.output_tokens, row.pause_s) for row in rows]
    assert [(*each[:3], hit, *each[3:]) for each, hit in zip(found, cached, strict=True)] == TRACELAB_ROWS
    assert {row.model for row in rows} == {"opus"}
    _, error = sound_and_broken(tmp_path, "b.jsonl", json_lines([TRACELAB[0], TRACELAB[1] | {"timing_events": []}]))
    assert "no time" in error


# ---- Amazon SageMaker's data capture, docs/tutorials/sagemaker-data-capture.md of AIPerf and AWS's own pages ---------
# Both payloads are texts, of JSON or in base64; inferenceTime has whole seconds.


def capture(second: int, body: Any, usage: tuple[int, int] | None, encoding: str = "JSON") -> dict[str, Any]:
    def data(value: Any) -> dict[str, str]:
        written = json.dumps(value)
        return {"data": base64.b64encode(written.encode()).decode() if encoding == "BASE64" else written}

    counts = {} if usage is None else {"usage": dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))}
    both = {"endpointInput": data(body), "endpointOutput": data(counts)}
    for each in both.values():
        each |= {"observedContentType": "application/json", "encoding": encoding}
    at = f"2026-04-29T00:03:{second:02}Z"
    return {"captureData": both, "eventMetadata": {"eventId": "e", "inferenceTime": at}, "eventVersion": "0"}


SAGEMAKER = [
    capture(18, {"messages": [user(10)], "max_tokens": 50}, (12, 30)),
    capture(18, {"messages": [{"role": "system", "content": text(5)}, user(5)], "max_tokens": 20}, None),
    capture(19, {"messages": [user(7)], "max_tokens": 9}, (9, 9), "BASE64"),
    capture(25, {"prompt": text(30), "max_tokens": 40, "model": "m"}, (31, 12)),
    capture(40, {"messages": [user(2), {"role": "assistant", "content": "y"}, user(2)]}, (8, 3)),
]
SAGEMAKER_ROWS = [(0, 12, 30, 1), (0, None, 20, 2), (1, 9, 9, 1), (7, 31, 12, 1), (22, 8, 3, 3)]  # and messages


def test_sagemaker_s_captured_requests_are_sent_as_they_were_at_their_times(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "s.jsonl", json_lines(SAGEMAKER))
    assert open_dataset(tmp_path / "s.jsonl").format == "sagemaker"
    messages = [1 if isinstance(row.prompt, str) else len(row.prompt or ()) for row in rows]
    found = [(row.at_s, row.input_tokens, row.output_tokens) for row in rows]
    assert [(*each, n) for each, n in zip(found, messages, strict=True)] == SAGEMAKER_ROWS
    assert rows[3].prompt == text(30)
    broken = capture(18, "no object", None)
    _, error = sound_and_broken(tmp_path, "b.jsonl", json_lines([SAGEMAKER[0], broken]))
    assert "line 2" in error
    _, error = sound_and_broken(tmp_path, "c.jsonl", json_lines([SAGEMAKER[0], capture(18, "1,2", None, "CSV")]))
    assert "its body is in 'CSV', neither JSON nor BASE64" in error


def test_sagemaker_s_containers_of_their_own_have_inputs_and_parameters(tmp_path: Path) -> None:
    body = {"inputs": text(10), "parameters": {"max_new_tokens": 12, "details": True}}
    (row,) = rows_of(tmp_path, "s.jsonl", json_lines([capture(18, body, None)]))
    assert (row.prompt, row.output_tokens) == (text(10), 12)


# ---- Baseten's completions in Parquet, docs/tutorials/baseten-trace.md of AIPerf -------------------------------------
# Unix milliseconds; a prompt is whole, with its history; a pause is from the end of the request before to the next one.
BASETEN = {
    "timestamp_start_unix_ms": [1_770_000_000_000, 1_770_000_000_500, 1_770_000_004_000, 1_770_000_009_000,
                                1_770_000_010_000, 1_770_000_011_000],
    "prompt": [text(40), text(30), text(60), text(90), text(5), text(6)],
    "input_tokens": [40, 30, 60, 90, 5, 6],
    "output_tokens": [10, 12, 8, 0, 7, 9],
    "provided_session_id": ["a", "b", "a", "a", None, "b"],
    "total_hashes": [[1, 2, 2**63 + 5], [1, 4], [1, 2, 2**63 + 5, 6], [1, 2, 7, 8, 9, 10], [11], [12]],
    "block_size": [16] * 6,
    "request_canceled": [0, 0, 0, 1, 0, 0],
    "duration_e2e_ms": [1_000, 2_500, 3_000, 700, 100, None],
    "output_text": ["y"] * 6,
}  # fmt: skip
# session, time, input, cached, output, pause, given up after
BASETEN_ROWS = [
    ("a", 0, 40, 0, 10, None, None),
    ("b", 0.5, 30, 16, 12, None, None),
    ("a", 4, 60, 32, 8, 3, None),  # the third block was not whole
    ("a", 9, 90, 32, None, 2, 0.7),
    ("", 10, 5, 0, 7, None, None),
    ("b", 11, 6, 0, 9, 8, None),
]


def test_baseten_s_completions_read_to_requests_with_their_histories_and_cancellations(tmp_path: Path) -> None:
    pq.write_table(pa.table(BASETEN | {"total_hashes": pa.array(BASETEN["total_hashes"], pa.list_(pa.uint64()))}),
                   tmp_path / "b.parquet")  # fmt: skip
    assert open_dataset(tmp_path / "b.parquet").format == "baseten"
    rows = list(open_dataset(tmp_path / "b.parquet").rows())
    cached = [hit.cached for hit in hit_rate.of_rows(rows)]
    assert [(row.prompt, row.whole) for row in rows] == [(each, True) for each in BASETEN["prompt"]]
    assert [
        (row.session, row.at_s, row.input_tokens, hit, row.output_tokens, row.pause_s, row.cancel_s)
        for row, hit in zip(rows, cached, strict=True)
    ] == [pytest.approx(each) for each in BASETEN_ROWS]


def test_a_hash_that_is_too_long_to_keep_is_refused(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [2**64]}
    _, error = sound_and_broken(tmp_path, "m.jsonl", json_lines([row]))
    assert "more than 64 bits" in error
