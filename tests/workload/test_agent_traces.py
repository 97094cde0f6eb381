"""Recorded agents: the requests that each trace must read to, by hand from its public description, and their hits."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harness.spec.reading import build
from harness.workload import hit_rate, tasks
from harness.workload import source as sources
from harness.workload.dataset import table
from harness.workload.dataset.dataset import open_dataset
from harness.workload.rows import answer_tokens, prompt_tokens
from harness.workload.text import PromptWords
from tests.builders.datasets import BURSTGPT, chat, export, file, json_lines, rows_of, sound_and_broken
from tests.builders.prefix_hits import Cache


def call(
    t: float, tokens: int, answer: int, hashes: list[int], took: float | None = 1.0, **more: Any
) -> dict[str, Any]:
    timed = {} if took is None else {"api_time": took}
    return {"t": t, "type": "s", "model": "opus", "in": tokens, "out": answer, "hash_ids": hashes} | timed


def weka(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "t1", "models": ["opus"], "block_size": 64, "hash_id_scope": "local", "requests": requests} | more


# github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md: times in seconds since the conversation began.
SUB = {"t": 7, "type": "subagent", "agent_id": "a1"}
INNER = [call(7, 130, 5, [1, 2, 7]), call(10, 190, 6, [1, 2, 8])]
WEKA = [
    weka(
        call(0, 200, 20, [1, 2, 3, 4], 2.0),
        call(5, 260, 10, [1, 2, 3, 5, 6]),
        SUB | {"requests": INNER},
        call(14, 330, 8, [1, 2, 3, 5, 9, 10]),
    ),
    weka(call(0, 100, 7, [1, 2]), id="t2"),
]
# time, input, cached, output tokens, the requests of its session that it waits for, the pause after them
WEKA_ROWS = [
    (0, 200, 0, 20, (), 0),
    (5, 260, 192, 10, (0,), 3),
    (7, 130, 128, 5, (1,), 1),
    (10, 190, 128, 6, (2,), 2),
    (14, 330, 256, 8, (3,), 3),
    (0, 100, 0, 7, (), 0),  # of the second file: its hashes are its own
]

# github.com/kvcache-ai/Mooncake: milliseconds, blocks of 512; AIPerf adds sessions and pauses.
MOONCAKE = [
    {"session_id": "a", "timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [1, 2, 3]},
    {"session_id": "b", "timestamp": 250, "input_length": 600, "output_length": 10, "hash_ids": [1, 9]},
    {"session_id": "a", "delay": 500, "input_length": 1600, "output_length": 50, "hash_ids": [1, 2, 4, 5]},
    {"session_id": "b", "delay": 100, "input_length": 1024, "output_length": 10, "hash_ids": [1, 9]},
    {"session_id": "a", "delay": 1500, "input_length": 1700, "output_length": 30, "hash_ids": [1, 2, 4, 6]},
]
MOONCAKE_ROWS = [  # 1,024 tokens are two blocks, of which the last token is computed
    (0, 1100, 0, 50, None, None),
    (0.25, 600, 512, 10, None, None),
    (0.5, 1600, 1024, 50, None, 0.5),
    (0.35, 1024, 512, 10, None, 0.1),
    (2.0, 1700, 1536, 30, None, 1.5),
]

# github.com/alibaba-edu/qwen-bailian-usagetraces-anon: seconds, blocks of 16, -1 for a conversation's first request.
BAILIAN = [
    dict(
        zip(("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"), each, strict=True)
    )
    for each in (
        (7, -1, 10.0, 40, 5, [1, 2, 3]),
        (8, -1, 11.0, 20, 6, [1, 4]),
        (9, 7, 14.0, 60, 7, [1, 2, 5, 6]),
        (10, 9, 15.5, 70, 8, [1, 2, 5, 7, 8]),
        (11, 7, 16.0, 50, 9, [1, 2, 9, 3]),
    )
]
BAILIAN_ROWS = [
    (0, 40, 0, 5, (), None),
    (1, 20, 16, 6, (), None),
    (4, 60, 32, 7, (0,), 4),
    (5.5, 70, 48, 8, (1,), 1.5),
    (6, 50, 32, 9, (0,), 6),
]


@pytest.mark.parametrize(
    ("name", "records", "expected", "sessions"),
    [
        ("weka", WEKA, WEKA_ROWS, ["t1"] * 5 + ["t2"]),
        ("mooncake", MOONCAKE, MOONCAKE_ROWS, ["a", "b", "a", "b", "a"]),
        ("bailian", BAILIAN, BAILIAN_ROWS, ["7", "8", "7", "7", "7"]),
    ],
)
def test_a_trace_reads_to_the_requests_that_it_records(
    tmp_path: Path, name: str, records: list[Any], expected: list[Any], sessions: list[str]
) -> None:
    rows = rows_of(tmp_path, "trace.jsonl", json_lines(records))
    assert open_dataset(tmp_path / "trace.jsonl").format == name
    found = [(row.at_s, row.input_tokens, row.output_tokens, row.after, row.pause_s) for row in rows]
    assert [each[:4] for each in found] == [(at, tokens, out, after) for at, tokens, _, out, after, _ in expected]
    assert [each[4] for each in found] == [pytest.approx(each[5]) for each in expected]
    assert [row.session.split(" at ")[0] for row in rows] == sessions
    cached = [each.cached for each in hit_rate.of_rows(rows)]
    assert cached == [each[2] for each in expected]


def test_times_in_a_sub_agent_may_count_from_its_own_start(tmp_path: Path) -> None:
    inner = [call(0, 130, 5, [1, 2, 7]), call(3, 190, 6, [1, 2, 8])]
    trace = weka(*WEKA[0]["requests"][:2], SUB | {"requests": inner}, WEKA[0]["requests"][3])
    found = rows_of(tmp_path, "trace.json", json.dumps(trace, indent=1))
    assert [row.at_s for row in found] == [each[0] for each in WEKA_ROWS[:5]]


def test_the_next_request_does_not_wait_for_a_sub_agent_that_goes_on(tmp_path: Path) -> None:
    trace = weka(call(0, 65, 1, [1, 2]), SUB | {"requests": INNER}, call(9, 65, 1, [1, 2]))
    assert [row.after for row in rows_of(tmp_path, "x.jsonl", json_lines([trace]))] == [(), (0,), (0,), (1,)]


def test_without_api_time_pauses_are_from_request_to_request_and_a_note_says_so(tmp_path: Path) -> None:
    trace = weka(call(0, 65, 1, [1, 2], None), call(4, 65, 1, [1, 2], None))
    rows = rows_of(tmp_path, "x.jsonl", json_lines([trace]))
    assert [row.pause_s for row in rows] == [0, 4]
    assert "pauses hold the recorded answers' time" in rows[0].notes[0]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (weka(call(0, 65, 1, [1, 2]), block_size=None), "hash_ids and no block_size"),
        (weka(call(5, 65, 1, [1, 2]), call(4, 65, 1, [1])), "its clock runs back, from 5 to 4 s"),
        (weka(call(0, 64, 1, [1, 2])), "2 hashes of 64 tokens are more than a prompt of 64"),
        (weka(), "holds no requests"),
        (weka({"t": 0, "type": "n", "out": 5}), "its request 1 has no 'in'"),
        (BAILIAN[0] | {"parent_chat_id": 7}, "follows itself"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_in_one_line(tmp_path: Path, record: Any, words: str) -> None:
    whole = BAILIAN[1] if "chat_id" in record else weka(call(0, 65, 1, [1, 2]))
    rows, error = sound_and_broken(tmp_path, "x.jsonl", json_lines([record, whole]))
    assert len(rows) == 1
    assert words in error


def test_a_chat_before_its_parent_is_refused(tmp_path: Path) -> None:
    rows, error = sound_and_broken(tmp_path, "x.jsonl", json_lines([BAILIAN[0], BAILIAN[2] | {"timestamp": 9.5}]))
    assert (len(rows), "its clock runs back" in error) == (1, True)


@pytest.mark.parametrize(("records", "expected"), [(WEKA, WEKA_ROWS), (BAILIAN, BAILIAN_ROWS)])
def test_a_run_expects_the_trace_s_own_hits(tmp_path: Path, records: list[Any], expected: list[Any]) -> None:
    table.write(open_dataset(file(tmp_path, "x.jsonl", json_lines(records))).rows(), tmp_path / "rows")
    cached, prompts = (sum(each[i] for each in expected) for i in (2, 1))
    for sessions in (False, True):
        asked = build({"workload": {"seed": 1, "dataset": {"path": "x", "sessions": sessions}}}, place="test")
        block = 64 if records is WEKA else 16
        assert hit_rate.expected(asked, block=block, rows=str(tmp_path / "rows")) == pytest.approx(cached / prompts)


def test_a_block_that_is_not_whole_is_not_served(tmp_path: Path) -> None:
    """Of 100 tokens in two blocks of 64 a cache keeps the first; what follows with both is served that one.

    A server with blocks of 16 keeps 36 tokens of the second, two blocks. A template of 8 tokens, which all prompts
    begin with, takes the place of the last 8 words: 8 + 64 + 28 tokens.
    """
    rows = rows_of(tmp_path, "x.jsonl", json_lines([weka(call(0, 100, 7, [1, 2]), call(2, 129, 7, [1, 2, 3]))]))
    assert [each.cached for each in hit_rate.of_rows(rows)] == [0, 64]
    assert [each.cached for each in hit_rate.of_rows(rows, 16)] == [0, 96]
    assert [each.cached for each in hit_rate.of_rows(rows, 1, template=8)] == [8, 100]


def test_a_trace_that_begins_anew_has_other_words_that_share_as_much(tmp_path: Path) -> None:
    table.write(open_dataset(file(tmp_path, "x.jsonl", json_lines(WEKA))).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "dataset": {"path": "x"}}}, place="test")
    source = sources.singles(asked, PromptWords(), str(tmp_path / "rows"))
    prompts = [str(source.request(number).prompt).split() for number in range(12)]

    def shared(pairs: Iterable[tuple[list[str], list[str]]]) -> list[int]:
        """How many words the two of each pair begin with alike."""
        return [next(i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b) for pair in pairs]

    first, again = prompts[:6], prompts[6:]
    found = shared(itertools.combinations(first, 2))
    assert found == shared(itertools.combinations(again, 2))
    assert sorted(set(found)) == [0, 128, 192, 256]
    assert set(shared(itertools.product(first, again))) == {0}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_words_that_are_sent_have_the_trace_s_hits_token_for_token(tmp_path: Path, workers: int) -> None:
    """Each worker makes its words by itself; a word is a token, and the cache is the step machine's."""
    table.write(open_dataset(file(tmp_path, "x.jsonl", json_lines(WEKA))).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "dataset": {"path": "x", "sessions": True}}}, place="test")
    sources = [tasks.of(asked, PromptWords(), str(tmp_path / "rows")) for _ in range(workers)]
    cache, found = Cache(block=64), []
    for session, turns in enumerate((5, 1)):
        for turn in range(turns):
            source = sources[(session + turn) % workers]
            assert source is not None
            prompt = source.request(source.task(session), turn, dict.fromkeys(range(turn), "an answer")).prompt
            words = " ".join(each if isinstance(each, str) else each.text for each in prompt).split()
            found.append((len(words), cache.serve(hit_rate.hashes(words, 64), len(words))))
    assert found == [(tokens, cached) for _, tokens, cached, *_ in WEKA_ROWS]


# ---- texts: session, turn, whole prompt in tokens of four characters, cached by a cache that keeps all, answer -------

ASK, ANSWER, CALL = "a" * 40, "b" * 80, {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
STEP = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": ASK},
]
OPENAI = [{"messages": [{"role": "user", "content": ASK}, *STEP * n], "max_tokens": 5 + n} for n in range(5)]
SHAREGPT = [
    {
        "id": name,
        "conversations": [
            {"from": ("human", "observation")[k > 0], "value": ASK}
            if answer is None
            else {"from": ("gpt", "function_call")[k < turns - 1], "value": answer}
            for k in range(turns)
            for answer in (None, ANSWER)
        ],
    }
    for name, turns in (("a", 3), ("b", 2))
]
SGLANG = {
    "conversations": [
        [{"messages": [{"role": "user", "content": ASK}], "prompt_tokens": 100 * n, "max_tokens": n} for n in turns]
        for turns in ((1, 3, 5), (2, 4))
    ]
}
CALL_TOKENS = len('{"name":"f","arguments":"{}"}')


OPENAI_ROWS = [(n, 0, round((40 + n * (CALL_TOKENS + 40)) / 4), 5 + n) for n in range(5)]
SHAREGPT_ROWS = [(0, 0, 10, 20), (0, 1, 10, 20), (0, 2, 10, 20), (1, 0, 10, 20), (1, 1, 10, 20)]
SGLANG_ROWS = [(0, 0, 100, 1), (0, 1, 300, 3), (0, 2, 500, 5), (1, 0, 200, 2), (1, 1, 400, 4)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json_lines(OPENAI), OPENAI_ROWS),
        (json_lines(SHAREGPT), SHAREGPT_ROWS),
        (json.dumps(SGLANG), SGLANG_ROWS),
    ],
)
def test_texts_with_tools_read_to_the_requests_of_their_sessions(
    tmp_path: Path, content: str, expected: list[tuple[int, int, int, int]]
) -> None:
    """A conversation's row adds its own message to what was said; SGLang's counts the whole prompt, a body holds it."""
    sessions, turns, found = dict[str, int](), Counter[int](), []
    for row in rows_of(tmp_path, "x.jsonl", content):
        number = sessions.setdefault(row.session or row.place, len(sessions))
        found.append((number, turns[number], prompt_tokens(row), answer_tokens(row)))
        turns[number] += 1
    assert found == expected


def test_a_conversation_with_tools_is_served_all_that_was_said_before(tmp_path: Path) -> None:
    """Each turn asks 10 tokens and is answered with 20: prompts of 10, 40 and 70, of which 0, 30 and 60 were there."""
    table.write(open_dataset(file(tmp_path, "x.jsonl", json_lines(SHAREGPT))).rows(), tmp_path / "rows")
    asked = build({"workload": {"seed": 1, "dataset": {"path": "x", "sessions": True}}}, place="test")
    hits = hit_rate.hits(asked, block=1, rows=str(tmp_path / "rows"))
    assert [(hit.prompt, hit.cached) for hit in hits] == [(10, 0), (40, 30), (70, 60), (10, 0), (40, 30)]


def test_the_models_of_a_trace_are_kept(tmp_path: Path) -> None:
    assert {row.model for row in rows_of(tmp_path, "x.jsonl", json_lines(WEKA))} == {"opus"}
    spans = export(chat("a", 0, 1, gen_ai__request__model="big"), chat("b", 2, 3))
    assert [row.model for row in rows_of(tmp_path, "s.jsonl", json_lines([spans]))] == ["big", ""]
    assert [row.model for row in rows_of(tmp_path, "b.csv", BURSTGPT)] == ["ChatGPT", "ChatGPT", "GPT-4"]
