"""The progress of tasks on a clock that only the test moves: what is sent when, and what after a failure."""

from __future__ import annotations

import heapq
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workload.task import Node, Task, TaskProgress


def task(*nodes: tuple[tuple[int, ...], float]) -> Task:
    """A task of nodes given as (parents, pause)."""
    made = (Node(parents=parents, pause_s=pause_s, input_tokens=1, output_tokens=1) for parents, pause_s in nodes)
    return Task(number=0, nodes=tuple(made))


def ran(progress: TaskProgress, took_s: float, failing: Collection[int] = ()) -> list[tuple[float, str, int]]:
    """Run a task to its end, each request in the same time; (time, event, node) in order."""
    now_s, ends, log = 0.0, list[tuple[float, int]](), list[tuple[float, str, int]]()
    while not progress.over:
        for node, due_s in progress.ready(now_s):
            assert due_s == now_s
            log.append((now_s, "sent", node))
            heapq.heappush(ends, (now_s + took_s, node))
        due_s = progress.next_due_s
        if ends and (due_s is None or ends[0][0] <= due_s):
            now_s, node = heapq.heappop(ends)
            progress.ended(node, now_s, None if node in failing else f"answer {node}")
            log.append((now_s, "failed" if node in failing else "ended", node))
        elif due_s is not None:
            now_s = due_s
    return log


def sent(log: list[tuple[float, str, int]]) -> list[tuple[float, int]]:
    return [(at_s, node) for at_s, event, node in log if event == "sent"]


CHAIN = task(((), 0), ((0,), 5), ((1,), 0.5))
FAN_OUT = task(((), 0), ((0,), 1), ((0,), 1), ((0,), 3), ((1, 2, 3), 0))


def test_a_chain_waits_for_each_end_and_pauses() -> None:
    progress = TaskProgress(CHAIN)
    assert sent(ran(progress, took_s=2.0)) == [(0.0, 0), (7.0, 1), (9.5, 2)]
    assert (progress.failed, progress.answers) == (False, {0: "answer 0", 1: "answer 1", 2: "answer 2"})


def test_a_fan_out_is_sent_at_once_and_the_join_after_the_last() -> None:
    assert sent(ran(TaskProgress(FAN_OUT), took_s=2.0)) == [(0.0, 0), (3.0, 1), (3.0, 2), (5.0, 3), (7.0, 4)]


def test_a_sub_agent_runs_beside_its_parent_s_next_step() -> None:
    """plan → search → search again, beside plan → write; both → review."""
    agents = task(((), 0), ((0,), 0), ((1,), 0), ((0,), 1), ((3, 2), 0))
    assert sent(ran(TaskProgress(agents), took_s=2.0)) == [(0.0, 0), (2.0, 1), (3.0, 3), (4.0, 2), (6.0, 4)]


def test_a_task_begins_when_it_is_told_to() -> None:
    progress = TaskProgress(
        task(
            ((), 2),
        ),
        start_s=10.0,
    )
    assert (progress.ready(11.9), progress.next_due_s, progress.ready(12.0)) == ([], 12.0, [(0, 12.0)])


@pytest.mark.parametrize(
    ("which", "failing", "nodes"),
    [
        (CHAIN, {0}, [0]),
        (CHAIN, {1}, [0, 1]),
        (CHAIN, {2}, [0, 1, 2]),
        (FAN_OUT, {2}, [0, 1, 2, 3]),  # the join is not sent, the others of the fan-out are
        (FAN_OUT, {0}, [0]),
    ],
)
def test_what_waits_for_a_failed_node_is_not_sent(which: Task, failing: set[int], nodes: list[int]) -> None:
    progress = TaskProgress(which)
    assert [node for _, node in sent(ran(progress, took_s=2.0, failing=failing))] == nodes
    assert progress.failed
    assert progress.next_due_s is None


def test_a_task_is_not_over_while_a_request_is_in_flight_or_a_pause_lasts() -> None:
    progress = TaskProgress(CHAIN)
    assert (progress.over, progress.ready(0.0), progress.over) == (False, [(0, 0.0)], False)
    progress.ended(0, 2.0, "")
    assert (progress.over, progress.next_due_s) == (False, 7.0)
    assert progress.ready(6.0) == []
    assert progress.ready(9.0) == [(1, 7.0)]  # late: it was due at 7
    assert progress.ready(9.0) == []
    progress.ended(1, 10.0, None)
    assert progress.over


def test_what_is_due_is_given_ahead_earliest_first() -> None:
    progress = TaskProgress(task(((), 3), ((), 1), ((), 2), ((), 1)))
    assert progress.ready(2.5) == [(1, 1.0), (3, 1.0), (2, 2.0)]


def test_a_join_is_due_by_its_last_parent_s_end_whoever_tells_first() -> None:
    progress = TaskProgress(task(((), 0), ((), 0), ((0, 1), 1)))
    progress.ready(0.0)
    progress.ended(1, 9.0, "")
    progress.ended(0, 4.0, "")
    assert progress.next_due_s == 10.0


def test_a_node_that_was_not_sent_cannot_end() -> None:
    progress = TaskProgress(CHAIN)
    with pytest.raises(KeyError):
        progress.ended(1, 0.0, "")


def test_requests_of_all_tasks_have_numbers_of_their_own() -> None:
    numbers = [Task(number=n, nodes=()).request_number(node) for n in range(3) for node in (0, 1, 999)]
    assert len(set(numbers)) == 9


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    nodes = []
    for i in range(draw(st.integers(1, 12))):
        parents = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        nodes.append((tuple(sorted(parents)), draw(st.sampled_from([0.0, 0.5, 3.0]))))
    return task(*nodes)


@given(tasks(), st.sets(st.integers(0, 11), max_size=3))
def test_every_node_follows_its_parents_and_only_what_descends_from_a_failure_is_left_out(
    which: Task, failing: set[int]
) -> None:
    log = ran(TaskProgress(which), took_s=1.0, failing=failing)
    ended = {node: at_s for at_s, event, node in log if event == "ended"}
    left_out = set[int]()
    for i, node in enumerate(which.nodes):
        if any(parent in left_out or parent in failing for parent in node.parents):
            left_out.add(i)
    assert sorted(node for _, node in sent(log)) == [i for i in range(len(which.nodes)) if i not in left_out]
    for at_s, i in sent(log):
        node = which.nodes[i]
        assert at_s == max((ended[parent] for parent in node.parents), default=0.0) + node.pause_s
