"""Requests of a dataset: its texts and lengths, in its order, made of words where it has no texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.workload.dataset import Row, table
from harness.workload.request import Message, Request
from harness.workload.rows import Rows, answer_tokens, prompt_tokens
from harness.workload.source import Source
from harness.workload.text import COMMON


def rows_of(folder: Path, *rows: Row, **settings: Any) -> Rows:
    table.write(rows, folder / "rows")
    usual: dict[str, Any] = {"words": COMMON, "seed": 3, "prompt_words": 100, "output_tokens": 77}
    return Rows(path=str(folder / "rows"), **usual | settings)


def words(request: Request) -> list[str]:
    assert isinstance(request.prompt, str)
    return request.prompt.split()


def test_rows_are_asked_in_their_order_and_again_from_the_first(tmp_path: Path) -> None:
    source = rows_of(
        tmp_path, Row(prompt="One?", output_tokens=5), Row(prompt="Two?", answer="12345678"), Row(prompt="3")
    )
    asked = [source.request(number) for number in range(4)]
    assert [(each.prompt, each.output_tokens) for each in asked] == [("One?", 5), ("Two?", 2), ("3", 77), ("One?", 5)]


def test_a_source_that_came_over_the_wire_asks_the_same(tmp_path: Path) -> None:
    source = rows_of(tmp_path, Row(input_tokens=50, output_tokens=5), Row(prompt="Two?"))
    elsewhere = msgspec.msgpack.decode(msgspec.msgpack.encode(source), type=Source)
    assert [elsewhere.request(n) for n in range(5)] == [source.request(n) for n in range(5)]


def test_a_later_turn_stands_behind_the_turns_and_answers_before_it(tmp_path: Path) -> None:
    source = rows_of(
        tmp_path,
        Row(prompt=(Message("system", "Be brief."), Message("user", "One?")), answer="1", session="a"),
        Row(prompt="Other?", session="b"),
        Row(prompt="Two?", answer="2", session="a"),
    )
    assert source.request(2).prompt == (
        Message("system", "Be brief."), Message("user", "One?"), Message("assistant", "1"), Message("user", "Two?"),
    )  # fmt: skip
    assert source.request(1).prompt == (Message("user", "Other?"),)
    assert [source.request(n).session for n in range(4)] == ["0", "1", "0", "0"]
    assert rows_of(tmp_path, Row(prompt="Alone")).request(0).session == ""


def test_a_prompt_that_is_whole_has_nothing_before_it(tmp_path: Path) -> None:
    tools = ({"type": "function", "function": {"name": "f" * 32}},)
    whole = (Message("user", "One?"), Message("assistant", "1"), Message("user", "Two?"))
    source = rows_of(
        tmp_path,
        Row(prompt="One?", answer="1", session="a"),
        Row(prompt=whole, session="a", whole=True, tools=tools),
    )
    assert source.request(1).prompt == whole
    assert [source.request(n).tools for n in range(2)] == [None, tools]


def test_a_system_prompt_that_each_row_of_a_session_has_is_sent_once(tmp_path: Path) -> None:
    system = Message("system", "Be kind.")
    rows = [Row(prompt=(system, Message("user", text)), answer="1", session="a", place=text) for text in "xy"]
    source = rows_of(tmp_path, *rows)
    assert source.request(1).prompt == (
        system, Message("user", "x"), Message("assistant", "1"), Message("user", "y"),
    )  # fmt: skip
    assert [source.own(0, turn, 1) for turn in (0, 1)] == [(system, Message("user", "x")), (Message("user", "y"),)]


def test_an_answer_that_was_not_recorded_is_words_of_its_length(tmp_path: Path) -> None:
    """Some servers refuse a message without a text."""
    source = rows_of(tmp_path, Row(prompt="One?", session="a", output_tokens=5), Row(prompt="Two?", session="a"))
    _, answered, _ = source.request(1).prompt
    assert isinstance(answered, Message)
    assert (answered.role, len(answered.content.split())) == ("assistant", 5)
    assert source.request(3).prompt == source.request(1).prompt


def test_lengths_alone_become_words_that_are_never_sent_twice(tmp_path: Path) -> None:
    """20 tokens of a template and 2 a word: (100 - 20) / 2 = 40 words."""
    source = rows_of(tmp_path, Row(input_tokens=100, output_tokens=5), added_tokens=20, tokens_per_word=2.0)
    prompts = [words(source.request(number)) for number in range(100)]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 100
    assert source.request(0).input_tokens == 100


def test_blocks_of_equal_hashes_are_equal_texts(tmp_path: Path) -> None:
    """Blocks of 512 tokens: 1,200 are two whole ones and 176 of a third."""
    a, b = Row(input_tokens=1200, hashes=(1, 2, 3)), Row(input_tokens=1100, hashes=(1, 2, 4))
    source = rows_of(tmp_path, a, b, Row(input_tokens=600, hashes=(1,)))
    first, second, third = (words(source.request(number)) for number in range(3))
    assert (len(first), len(second), len(third)) == (1200, 1100, 600)
    assert first[:1024] == second[:1024]
    assert first[1024:1040] != second[1024:1040]
    assert third[:512] == first[:512], "the rest has no hash"
    assert third[512:] != words(source.request(5))[512:]


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        (Row(input_tokens=9, output_tokens=4, prompt="x" * 400, answer="y" * 400), 9, 4),
        (Row(prompt="x" * 400, answer="y" * 400), 100, 100),
        (Row(prompt=(Message("system", "x" * 40), Message("user", "x" * 40))), 20, None),
        (Row(prompt="x" * 40, tools=({"a": "x" * 32},)), 20, None),  # [{"a":"…"}] has 10 characters beside the text
        (Row(prompt=(Message("assistant", "", {"tool_calls": [{"function": {"a": "x" * 32}}]}),)), 10, None),
    ],
)
def test_lengths_are_those_of_the_row_or_a_token_for_four_characters(row: Row, prompt: int, answer: int | None) -> None:
    assert (prompt_tokens(row), answer_tokens(row)) == (prompt, answer)
