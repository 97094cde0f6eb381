"""The tasks of a scenario: their texts converted, their lengths, and the hits to expect of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.spec.reading import read
from harness.spec.scenario import Scenario
from harness.workload import hit_rate, shape, tasks
from harness.workload.tasks import Graph
from harness.workload.text import PromptWords

SESSION = {"turns": 3, "user_tokens": 10, "think": "500ms..2s"}
AGENT: list[dict[str, Any]] = [
    {"name": "plan", "input_tokens": 40, "output_tokens": 8},
    {"name": "search", "after": ["plan"], "fan_out": 3, "fresh": True, "input_tokens": 20, "output_tokens": 4},
    {"name": "join", "after": ["plan", "search"], "input_tokens": 10, "output_tokens": 2, "pause": "2s"},
]


WORDS = PromptWords(words=("x", "y"))


def scenario(**workload: Any) -> Scenario:
    return read({"workload": {"seed": 1, "output_tokens": 5} | workload}, place="test")


def test_a_session_has_the_workload_s_answers_and_pauses_in_seconds() -> None:
    found = tasks.of(scenario(session=SESSION))
    assert found is not None
    assert isinstance(found.kinds, Graph)
    task = found.task(4)
    assert [(node.input_tokens, node.output_tokens, node.parents) for node in task.nodes] == [
        (10, 5, ()), (10, 5, (0,)), (10, 5, (1,)),
    ]  # fmt: skip
    assert task.nodes[0].pause_s == 0.0
    assert all(0.5 <= node.pause_s <= 2.0 for node in task.nodes[1:])


def test_a_graph_s_steps_have_lengths_of_their_own_or_the_workload_s() -> None:
    found = tasks.of(scenario(node=[{"name": "a", "input_tokens": 7}, {"name": "b"}], input_tokens=9))
    assert found is not None
    assert isinstance(found.kinds, Graph)
    assert [(node.input_tokens, node.output_tokens) for node in found.task(0).nodes] == [(7, 5), (9, 5)]


def test_single_requests_are_no_tasks() -> None:
    assert tasks.of(scenario(prefix={"tokens": 9})) is None
    assert tasks.lengths(scenario()) == []
    assert tasks.width(scenario()) == 1


def test_a_source_of_tasks_goes_to_the_workers_as_it_is() -> None:
    found = tasks.of(scenario(node=AGENT, prefix={"tokens": 9, "pool": 3}, tools=[{"type": "function"}]), WORDS)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=tasks.Tasks) == found


@pytest.mark.parametrize(
    ("workload", "first"),
    [
        ({"session": SESSION}, [(10, 5), (25, 5), (40, 5)]),
        ({"session": SESSION | {"system_tokens": 100}}, [(110, 5), (125, 5), (140, 5)]),
        ({"session": SESSION, "prefix": {"tokens": 7}}, [(17, 5), (32, 5), (47, 5)]),
        ({"node": AGENT}, [(40, 8), (20, 4), (20, 4), (20, 4), (40 + 8 + 12 + 10, 2)]),
    ],
)
def test_a_prompt_is_as_long_as_its_history_and_its_own_message(
    workload: dict[str, Any], first: list[tuple[int, int]]
) -> None:
    asked = scenario(**workload)
    assert tasks.lengths(asked)[: len(first)] == first
    mean = shape.of(asked).mean()
    assert mean.input_tokens == pytest.approx(sum(prompt for prompt, _ in first) / len(first))
    assert mean.output_tokens == pytest.approx(sum(answer for _, answer in first) / len(first))


def test_a_task_takes_its_longest_way_through_requests_and_pauses() -> None:
    """Three turns of 0.5 s and two pauses of 2 s; plan, search, a pause of 2 s and join; a request alone."""
    assert tasks.seconds(scenario(session=SESSION | {"think": 2.0}), 0.5) == pytest.approx(5.5)
    assert tasks.seconds(scenario(node=AGENT), 0.5) == pytest.approx(3.5)
    assert tasks.seconds(scenario(), 0.5) == 0.5


def test_requests_of_a_task_side_by_side() -> None:
    assert tasks.width(scenario(session=SESSION)) == 1
    assert tasks.width(scenario(node=AGENT)) == 3


@pytest.mark.parametrize(
    ("workload", "block", "template", "rate"),
    [
        # Prompts of 16, 37 and 58 tokens with answers of 5: of 111, 16 + 5 and 37 + 5 are there, whole blocks of 4.
        ({"session": {"turns": 3, "user_tokens": 16}}, 4, 0, (20 + 40) / 111),
        # With a script's answers, which the server did not give, the prompts before are there: 16 and 36 of 37.
        ({"session": {"turns": 3, "user_tokens": 16, "history": "scripted"}}, 4, 0, (16 + 36) / 111),
        # 8 tokens of a template in front of all, of which every prompt finds 2 blocks: 24, 45, 66 of 135.
        ({"session": {"turns": 3, "user_tokens": 16}}, 4, 8, (8 + 28 + 48) / 135),
        # A system prompt of 32 tokens that all sessions share.
        ({"session": {"turns": 1, "user_tokens": 16, "system_tokens": 32}}, 16, 0, 32 / 48),
        # The plan of 40, three searches of their own, and a join of 40 + 8 + 12 + 10, which finds the first 48.
        ({"node": AGENT}, 4, 0, 48 / 170),
        # Single requests with one prefix, of whose 40 tokens 32 are whole blocks.
        ({"prefix": {"tokens": 40}, "input_tokens": 60}, 16, 0, 32 / 100),
        ({"prefix": {"tokens": 40, "pool": 7}, "input_tokens": 60}, 16, 0, 32 / 100),
    ],
)  # fmt: skip
def test_the_hits_to_expect(workload: dict[str, Any], block: int, template: int, rate: float) -> None:
    found = hit_rate.expected(scenario(**workload), block=block, template_tokens=template)
    assert found == pytest.approx(rate, rel=0.01)


def test_a_share_with_a_prefix_expects_as_large_a_share_of_its_hits() -> None:
    """Of prompts of 100 and of 20 tokens, 80 % have a prefix of 80: 0.8 · 80 of 0.8 · 100 + 0.2 · 20."""
    found = hit_rate.expected(scenario(prefix={"tokens": 80, "share": 0.8}, input_tokens=20), block=16)
    assert found == pytest.approx(64 / 84, abs=0.01)


def test_without_reuse_no_hits_are_expected() -> None:
    assert hit_rate.expected(scenario(), block=16, template_tokens=100) is None
