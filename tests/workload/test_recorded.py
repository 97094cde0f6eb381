"""Sessions of a dataset: a row waits for those before it, and goes on with their conversation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.spec.reading import build
from harness.spec.scenario import Scenario
from harness.workload import source as sources
from harness.workload import tasks
from harness.workload.dataset import Row, table
from harness.workload.request import Message
from harness.workload.tasks import Tasks
from harness.workload.text import PromptWords

TURNS = (
    Row(prompt=(Message("system", "Be brief."), Message("user", "One?")), answer="12345678", session="a"),
    Row(prompt="Another?", answer="No.", output_tokens=9, session="b"),
    Row(prompt="Two?", output_tokens=5, session="a", pause_s=0.25),
    Row(prompt="Three?", session="a"),
)


def scenario(**dataset: Any) -> Scenario:
    workload = {"seed": 1, "output_tokens": 7, "dataset": {"path": "a file", "sessions": True} | dataset}
    return build({"workload": workload}, place="test")


def sessions(folder: Path, *rows: Row, **dataset: Any) -> Tasks:
    table.write(rows, folder / "rows")
    found = tasks.of(scenario(**dataset), PromptWords(words=("x", "y", "z")), rows=str(folder / "rows"))
    assert found is not None
    return found


def messages(source: Tasks, number: int, turn: int, *answers: str) -> list[tuple[str, str]]:
    prompt = source.request(source.task(number), turn, dict(enumerate(answers))).prompt
    assert not isinstance(prompt, str)
    return [(each.role, each.content) for each in prompt]


def test_a_session_s_rows_follow_each_other_with_their_answers_lengths_and_pauses(tmp_path: Path) -> None:
    """Four characters a token: an answer of 8 comes to 2; where no row says a length, the workload does."""
    source = sessions(tmp_path, *TURNS, think="2s")
    nodes = [(node.parents, node.output_tokens, node.pause_s) for node in source.task(0).nodes]
    assert nodes == [((), 2, 0.0), ((0,), 5, 0.25), ((1,), 7, 2.0)]
    assert [node.output_tokens for node in source.task(1).nodes] == [9]
    assert source.task(2).nodes == source.task(0).nodes  # again from the first


def test_live_history_holds_the_server_s_own_answers(tmp_path: Path) -> None:
    source = sessions(tmp_path, *TURNS)
    assert source.live
    assert messages(source, 0, 2, "Uno.", "Dos.") == [
        ("system", "Be brief."), ("user", "One?"), ("assistant", "Uno."), ("user", "Two?"), ("assistant", "Dos."),
        ("user", "Three?"),
    ]  # fmt: skip


def test_scripted_history_holds_the_recorded_answers_or_words_of_their_length(tmp_path: Path) -> None:
    found = messages(sessions(tmp_path, *TURNS, history="scripted"), 0, 2)
    assert ("assistant", "12345678") in found
    assert [len(text.split()) for role, text in found if role == "assistant"] == [1, 5]


def test_lengths_alone_become_words_that_bring_the_history_to_them(tmp_path: Path) -> None:
    """Prompts of 30, 50 and 12 tokens, answers of 10: the second adds 50 - 30 - 10, the third begins anew."""
    rows = [Row(input_tokens=n, output_tokens=10, session="a") for n in (30, 50, 12)]
    source = sessions(tmp_path, *rows)
    nodes = source.task(0).nodes
    assert [(node.input_tokens, node.fresh) for node in nodes] == [(30, False), (10, False), (12, True)]
    assert source.input_tokens(source.task(0)) == [30, 50, 12]
    assert [len(text.split()) for _, text in messages(source, 0, 1, "a b c")] == [30, 3, 10]
    assert [len(text.split()) for _, text in messages(source, 0, 2, "a", "b")] == [12]
    assert messages(source, 0, 0) != messages(source, 1, 0)  # never the same words twice


def test_equal_blocks_begin_sessions_alike(tmp_path: Path) -> None:
    rows = [Row(input_tokens=600, output_tokens=1, session=name, hashes=(7, i)) for i, name in enumerate("ab")]
    source = sessions(tmp_path, *rows)
    one, other = (messages(source, number, 0)[0][1].split() for number in (0, 1))
    assert one[:512] == other[:512]
    assert one[512:] != other[512:]


def test_an_agent_s_requests_wait_for_those_that_its_trace_names(tmp_path: Path) -> None:
    rows = [
        Row(input_tokens=20, output_tokens=2, session="a", after=()),
        Row(input_tokens=40, output_tokens=2, session="a", after=(0,), pause_s=0.5),
        Row(input_tokens=50, output_tokens=2, session="a", after=(0,)),
        Row(input_tokens=90, output_tokens=2, session="a", after=(1, 2)),
    ]
    source = sessions(tmp_path, *rows)
    assert [node.parents for node in source.task(0).nodes] == [(), (0,), (0,), (1, 2)]
    assert source.task(0).nodes[1].pause_s == 0.5


def test_a_row_that_holds_its_history_begins_a_conversation_and_has_its_own_tools(tmp_path: Path) -> None:
    tools = ({"type": "function"},)
    whole = (Message("user", "One?"), Message("assistant", "1"), Message("user", "Two?"))
    source = sessions(
        tmp_path,
        Row(prompt="One?", session="a"),
        Row(prompt=whole, session="a", whole=True, tools=tools),
        Row(prompt="Three?", session="a"),
    )
    assert [node.parents for node in source.task(0).nodes] == [(), (0,), (1,)]
    assert messages(source, 0, 1, "Uno.") == [("user", "One?"), ("assistant", "1"), ("user", "Two?")]
    assert messages(source, 0, 2, "Uno.", "Dos.")[2:] == [
        ("user", "Two?"), ("assistant", "Dos."), ("user", "Three?"),
    ]  # fmt: skip
    assert [source.request(source.task(0), n, {0: "", 1: ""}).tools for n in range(3)] == [None, tools, None]


def test_a_source_of_sessions_goes_to_the_workers_as_it_is(tmp_path: Path) -> None:
    source = sessions(tmp_path, *TURNS)
    elsewhere = msgspec.msgpack.decode(msgspec.msgpack.encode(source), type=Tasks)
    assert elsewhere == source
    assert messages(elsewhere, 0, 1, "A") == messages(source, 0, 1, "A")


def test_pauses_may_be_drawn_in_place_of_the_file_s(tmp_path: Path) -> None:
    source = sessions(tmp_path, *TURNS, think="2s", pauses="drawn")
    assert [node.pause_s for node in source.task(0).nodes] == [0.0, 2.0, 2.0]


def test_a_row_s_request_has_the_class_of_its_model_and_is_given_up_as_the_row_or_the_class_says(
    tmp_path: Path,
) -> None:
    """One in four of the class is given up after 2 tokens: of 800 draws 200, by 12 (a standard deviation) times 4."""
    rows = [
        Row(input_tokens=9, output_tokens=5, session="a", model="opus"),
        Row(input_tokens=9, output_tokens=5, session="a", model="haiku", cancel_s=1.5),
        Row(input_tokens=9, output_tokens=5, session="a", model="other"),
    ]
    table.write(rows, tmp_path / "rows")
    kinds = [{"name": "opus", "model": "big", "cancel": {"share": 0.25, "after_tokens": 2}}, {"name": "haiku"}]
    for together in (True, False):
        dataset = {"path": "a file", "sessions": together}
        asked = build({"workload": {"seed": 1, "dataset": dataset}, "class": kinds}, place="test")
        found = sources.of(asked, PromptWords(words=("x", "y", "z")), rows=str(tmp_path / "rows"))
        sent = []
        for n, place in itertools.product(range(800), range(3)):
            if isinstance(found, Tasks):
                sent.append(found.request(found.task(n), place, {0: "", 1: ""}))
            else:
                sent.append(found.request(3 * n + place))
        assert [each.class_ for each in sent[:3]] == ["opus", "haiku", ""]
        assert {each.cancel and each.cancel.after_s for each in sent[1::3]} == {1.5}
        assert {each.cancel for each in sent[2::3]} == {None}
        given_up = [each.cancel for each in sent[::3] if each.cancel]
        assert abs(len(given_up) - 200) < 48
        assert {each.after_tokens for each in given_up} == {2}


def test_without_its_table_nothing_is_known_of_a_dataset_s_sessions() -> None:
    assert tasks.of(scenario()) is None


def test_a_slot_sends_as_many_requests_as_its_tasks_and_pauses_allow(tmp_path: Path) -> None:
    """Session a: 3 requests of 1 s, pauses of 0.25 and 2 s; b: one of 1 s. Four requests in 6.25 s."""
    table.write(TURNS, tmp_path / "rows")
    spec, rows = scenario(think="2s"), str(tmp_path / "rows")
    assert tasks.requests_per_s(spec, 1.0, rows) == pytest.approx(4 / 6.25)
    assert tasks.rest_s(spec, rows) == pytest.approx(2.25 / 4)
