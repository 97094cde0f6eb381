"""Sessions as tasks: chains with the asked turns, lengths and pauses, the same on any worker."""

from __future__ import annotations

import msgspec

from harness.spec.reading import build
from harness.workload import tasks
from harness.workload.task import MOST_NODES
from harness.workload.tasks import session
from tests.builders.draws import Between, Constant

FIXED = session(
    turns=Constant(3),
    input_tokens=Constant(50),
    output_tokens=Constant(20),
    think_ms=Constant(4000),
    seed=1,
)
DRAWN = session(
    turns=Between(1, 9), input_tokens=Between(1, 99), output_tokens=Between(1, 99), think_ms=Between(1, 9), seed=1
)


def test_a_session_is_a_chain_whose_first_turn_is_due_at_once() -> None:
    task = FIXED.task(5)
    assert task.number == 5
    assert [(node.name, node.parents, node.pause_s) for node in task.nodes] == [
        ("turn 1", (), 0.0), ("turn 2", (0,), 4.0), ("turn 3", (1,), 4.0),
    ]  # fmt: skip
    assert {(node.input_tokens, node.output_tokens, node.fresh) for node in task.nodes} == {(50, 20, False)}


def test_a_session_is_a_function_of_seed_and_number() -> None:
    assert DRAWN.task(7) == DRAWN.task(7)
    assert len({str(DRAWN.task(n).nodes) for n in range(50)}) == 50
    assert DRAWN.task(7).nodes != msgspec.structs.replace(DRAWN, seed=2).task(7).nodes


def test_turns_and_lengths_are_as_drawn() -> None:
    """Means of 5 turns, 50 tokens; of 2,000 sessions within four standard errors: 2.58 / 44.7 and 28.6 / 100."""
    tasks = [DRAWN.task(n) for n in range(2000)]
    nodes = [node for task in tasks for node in task.nodes]
    assert abs(len(nodes) / 2000 - 5) < 4 * 2.58 / 2000**0.5
    assert abs(sum(node.input_tokens for node in nodes) / len(nodes) - 50) < 4 * 28.6 / len(nodes) ** 0.5


def test_a_session_without_end_is_cut() -> None:
    assert len(msgspec.structs.replace(FIXED, turns=Constant(5000)).task(0).nodes) == MOST_NODES


def test_a_session_may_have_no_pauses() -> None:
    without = session(turns=Constant(3), input_tokens=Constant(50), output_tokens=Constant(20), seed=1)
    assert {node.pause_s for node in without.task(0).nodes} == {0.0}


def test_a_turn_s_sub_agents_are_chains_side_by_side_and_the_next_turn_waits_for_their_ends() -> None:
    """Three turns, each but the last with two agents of two requests: the first of each begins anew."""
    session = {"turns": 3, "user_tokens": 10, "sub_agents": {"share": 1, "count": 2, "turns": 2}}
    source = tasks.of(build({"workload": {"seed": 1, "session": session}}, place="test"))
    assert source is not None
    nodes = source.task(0).nodes
    assert [node.parents for node in nodes] == [
        (),
        (0,),
        (1,),
        (0,),
        (3,),
        (0, 2, 4),
        (5,),
        (6,),
        (5,),
        (8,),
        (5, 7, 9),
    ]
    assert [place for place, node in enumerate(nodes) if node.fresh] == [1, 3, 6, 8]
    assert tasks.width(build({"workload": {"session": session}}, place="test")) == 2


def test_tools_times_are_scaled_in_sessions_and_graphs() -> None:
    session = {"turns": 3, "user_tokens": 10, "think": "4s"}
    source = tasks.of(build({"workload": {"session": session, "tool_time_scale": 0.05}}, place="test"))
    assert source is not None
    assert [node.pause_s for node in source.task(0).nodes] == [0.0, 0.2, 0.2]
