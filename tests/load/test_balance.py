"""Which replica a request goes to: tables of picks, and what takes a replica out and puts it back."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.load.schedule import FAILURES, Balancer, State


def picks(balancer: Balancer, requests: int) -> list[int]:
    """The replicas of requests that end before the next one begins."""
    found = []
    for _ in range(requests):
        found.append(balancer.begin())
        balancer.end(found[-1], failed=False)
    return found


@pytest.mark.parametrize(
    ("worker", "expected"), [(0, [0, 1, 2, 0]), (1, [1, 2, 0, 1]), (2, [2, 0, 1, 2]), (4, [1, 2, 0, 1])]
)
def test_round_robin_begins_at_another_replica_on_every_worker(worker: int, expected: list[int]) -> None:
    assert picks(Balancer("round-robin", 3, worker), 4) == expected


def test_least_in_flight_fills_up_the_emptiest_and_takes_turns_where_they_are_alike() -> None:
    balancer = Balancer("least-in-flight", 3)
    assert [balancer.begin() for _ in range(4)] == [0, 1, 2, 0]
    balancer.end(2, failed=False)
    assert [balancer.begin() for _ in range(2)] == [2, 1]
    assert balancer.in_flight == [2, 2, 1]


def test_a_session_stays_on_its_replica_on_every_worker_and_sessions_are_spread() -> None:
    first, second = Balancer("session", 4), Balancer("session", 4, worker=3)
    of = {f"s{i}": first.begin(f"s{i}") for i in range(400)}
    assert {name: second.begin(name) for name in of} == of
    assert sorted(Counter(of.values())) == [0, 1, 2, 3]
    assert min(Counter(of.values()).values()) > 70  # of 100 each; 70 is 3.5 standard deviations below
    assert [second.begin() for _ in range(2)] == [3, 0]  # without a session: in turn


def test_the_sessions_of_a_lost_replica_are_spread_over_all_others_and_the_rest_stay() -> None:
    balancer = Balancer("session", 3)
    before = {f"s{i}": balancer.begin(f"s{i}") for i in range(300)}
    balancer.states[1] = State.OUT
    after = {name: balancer.begin(name) for name in before}
    assert all(after[name] == at for name, at in before.items() if at != 1)
    assert {after[name] for name, at in before.items() if at == 1} == {0, 2}


def fail(balancer: Balancer, at: int, times: int) -> None:
    for _ in range(times):
        balancer.in_flight[at] += 1
        balancer.end(at, failed=True)


def test_three_failures_in_a_row_take_a_replica_out_and_a_success_between_them_does_not() -> None:
    balancer = Balancer("round-robin", 2)
    fail(balancer, 1, FAILURES - 1)
    balancer.in_flight[1] += 1
    balancer.end(1, failed=False)
    fail(balancer, 1, FAILURES - 1)
    assert picks(balancer, 2) == [0, 1]
    fail(balancer, 1, FAILURES)
    assert picks(balancer, 3) == [0, 0, 0]


def test_a_replica_that_answered_a_probe_gets_one_request_and_is_in_when_that_succeeds() -> None:
    balancer = Balancer("round-robin", 2)
    fail(balancer, 1, FAILURES)
    balancer.answered(1)
    assert [balancer.begin() for _ in range(3)] == [1, 0, 0]
    balancer.end(1, failed=True)
    assert balancer.states[1] is State.OUT
    balancer.answered(1)
    assert balancer.begin() == 1
    balancer.end(1, failed=False)
    assert balancer.states[1] is State.IN
    assert sorted(picks(balancer, 2)) == [0, 1]


def test_a_request_that_we_cut_says_nothing_and_where_all_are_out_all_are_tried() -> None:
    balancer = Balancer("round-robin", 2)
    fail(balancer, 0, FAILURES)
    fail(balancer, 1, FAILURES - 1)
    balancer.in_flight[1] += 1
    balancer.end(1, failed=True, cut=True)
    assert balancer.states == [State.OUT, State.IN]
    fail(balancer, 1, 1)
    assert picks(balancer, 0) == []
    assert [balancer.begin() for _ in range(4)] == [0, 1, 0, 1]
