"""Replicas take their steps side by side, and requests go to the one that has the fewest."""

from __future__ import annotations

import pytest

from harness.predict.batching import StepMachine
from harness.predict.sequence import SimulatedRequest
from harness.sim.machines import Replicas
from harness.sim.profile import profile

ONE = profile(max_num_seqs=2)


def machine():
    return StepMachine(ONE.model, ONE.deployment)


def pair():
    return Replicas([machine(), machine()])


def arrivals(server):
    """{request: when each of its tokens leaves, seconds}, until nothing is left to do."""
    now, out = 0.0, {}
    while (step := server.step()) is not None:
        now += step.duration
        for token in step.tokens:
            out.setdefault(token.request, []).append(now)
    return out


def test_two_replicas_serve_two_requests_as_each_alone_does():
    """Of different lengths, so that their steps end at different times."""
    requests = [SimulatedRequest(1, 100, 5), SimulatedRequest(2, 3000, 9)]
    both = pair()
    for each in requests:
        both.submit(each)
    together, alone = arrivals(both), {}
    for each in requests:
        one = machine()
        one.submit(each)
        alone |= arrivals(one)
    assert {id: pytest.approx(times) for id, times in alone.items()} == together
    assert together[1][-1] < together[2][0]


def test_requests_go_to_the_replica_that_has_the_fewest_and_wait_where_all_seats_are_taken():
    server = pair()
    for id in range(5):
        server.submit(SimulatedRequest(id, 10, 3))
    assert (server.waiting, server.running) == (5, 0)
    server.step()
    assert (server.waiting, server.running) == (1, 4)
    assert sorted(arrivals(server)) == [0, 1, 2, 3, 4]
    assert (server.waiting, server.running, server.kv_usage) == (0, 0, 0)


def test_a_cancelled_request_frees_its_seat_in_its_own_replica():
    server = pair()
    for id in range(4):
        server.submit(SimulatedRequest(id, 10, 50))
    server.step()
    assert server.cancel(2)
    assert not server.cancel(2)
    server.submit(SimulatedRequest(9, 10, 1))
    found = arrivals(server)
    assert found[9][0] < found[0][2]
    assert {id: len(times) for id, times in found.items()} == {0: 49, 1: 50, 3: 50, 9: 1}


def test_a_replica_finds_only_the_prefixes_of_its_own():
    caching = profile(prefix_caching=True)
    server = Replicas([StepMachine(caching.model, caching.deployment) for _ in range(2)])
    found = []
    for id, other in ((1, None), (2, 3), (4, None)):
        server.submit(SimulatedRequest(id, 40, 1, hashes=(1, 2)))
        if other is not None:
            server.submit(SimulatedRequest(other, 40, 1, hashes=(1, 2)))
        while (step := server.step()) is not None:
            found += [(token.request, server.cached_tokens(token.request)) for token in step.tokens]
    assert sorted(found) == [(1, 0), (2, 32), (3, 0), (4, 32)]
