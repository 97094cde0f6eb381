"""Graphs as tasks: each node behind its parents, fan-outs in full, and what is no graph refused."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.workload.tasks import Graph, Step
from tests.builders.draws import Between, Constant


def step(name: str, *after: str, **fields: Any) -> Step:
    drawn = {"input_tokens": Constant(9), "output_tokens": Constant(5)}
    return Step(name=name, after=after, **(drawn | fields))


def graph(*steps: Step) -> Graph:
    return Graph(steps=steps, seed=3)


AGENT = graph(
    step("join", "plan", "search", output_tokens=Constant(50)),
    step("plan", input_tokens=Constant(100)),
    step("search", "plan", fan_out=3, fresh=True, pause_ms=Constant(2000)),
)


def test_a_fan_out_of_three_and_its_join() -> None:
    assert [(node.name, node.parents) for node in AGENT.task(0).nodes] == [
        ("plan", ()), ("search 1", (0,)), ("search 2", (0,)), ("search 3", (0,)), ("join", (0, 1, 2, 3)),
    ]  # fmt: skip
    nodes = AGENT.task(0).nodes
    assert [node.input_tokens for node in nodes] == [100, 9, 9, 9, 9]
    assert [node.output_tokens for node in nodes] == [5, 5, 5, 5, 50]
    assert [node.pause_s for node in nodes] == [0, 2, 2, 2, 0]
    assert [node.fresh for node in nodes] == [False, True, True, True, False]


def test_a_fan_out_after_a_fan_out_waits_for_all_of_it() -> None:
    nodes = graph(step("a", fan_out=2), step("b", "a", fan_out=2)).task(0).nodes
    assert [node.parents for node in nodes] == [(), (), (0, 1), (0, 1)]


def test_a_chain_of_steps_is_a_session() -> None:
    assert [node.parents for node in graph(step("c", "b"), step("a"), step("b", "a")).task(0).nodes] == [(), (0,), (1,)]


def test_a_task_is_a_function_of_seed_and_number_and_its_nodes_are_drawn_apart() -> None:
    drawn = graph(step("a", fan_out=20, input_tokens=Between(1, 1000)))
    assert drawn.task(4) == drawn.task(4)
    assert drawn.task(4).nodes != drawn.task(5).nodes
    assert len({node.input_tokens for node in drawn.task(4).nodes}) > 10


@pytest.mark.parametrize(
    ("steps", "fact"),
    [
        ([step("a", "b"), step("b", "a")], "a → b → a is a circle"),
        ([step("a"), step("b", "aa")], "'b' waits for 'aa', which is not there"),
        ([step("a"), step("a")], "the name 'a' is given twice"),
        ([step("a", fan_out=600), step("b", fan_out=600)], "a task of 1,200 requests is more than 1,000"),
    ],
)
def test_what_is_no_graph_is_refused(steps: list[Step], fact: str) -> None:
    with pytest.raises(HarnessError, match=fact):
        graph(*steps)
