"""The figures of each replica at a level, and whether the load was spread evenly over them."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis.level import Facts, summarise_level
from harness.analysis.table import Table
from harness.data.levels import LevelSummary
from harness.data.record import Record, Sample
from tests.builders.records import WINDOW, steady

A, B = "http://a", "http://b"


def dealt(shares: list[str], C: int = 4) -> list[Record]:
    """The requests of a closed loop, each at the replica whose turn it is."""
    records = sorted(steady(C, 10.0), key=lambda record: record.sent_s or 0.0)
    return [msgspec.structs.replace(record, url=shares[i % len(shares)]) for i, record in enumerate(records)]


def level(records: list[Record], balance: str = "round-robin", samples: tuple[Sample, ...] = ()) -> LevelSummary:
    facts = Facts(urls=(A, B), balance=balance)
    return summarise_level(records, Table.of(records), samples, msgspec.structs.replace(WINDOW, concurrency=4), facts)


def codes(s: LevelSummary) -> list[str]:
    return [verdict.code for verdict in s.verdicts]


def test_each_replica_has_the_figures_of_its_own_requests_and_their_sums_are_the_levels() -> None:
    s = level(dealt([A, A, A, B]))
    assert s.replicas
    a, b = s.replicas[A], s.replicas[B]
    assert (a.requests, b.requests, a.requests + b.requests) == (30, 10, s.requests)
    assert a.in_flight_share == pytest.approx(0.76, abs=0.005)  # the last requests of a began later
    rates = [each.output_tokens_per_s.mean for each in (a, b, s)]
    assert rates == pytest.approx([26.0, 8.2, 34.2])  # of 270, 90 and 360 tokens, 10, 8 and 18 come after it
    assert b.ttft_s.mean == pytest.approx(0.2)
    assert "replicas_uneven" in codes(s)


@pytest.mark.parametrize("balance", ["round-robin", "least-in-flight", "session"])
def test_replicas_that_share_the_load_get_no_verdict(balance: str) -> None:
    assert "replicas_uneven" not in codes(level(dealt([A, B]), balance))


def test_a_balancer_that_sends_all_to_one_replica_is_named() -> None:
    s = level(dealt([B]), "least-in-flight")
    (said,) = [verdict for verdict in s.verdicts if verdict.code == "replicas_uneven"]
    assert said.message.startswith("http://b had 100% of what was in flight; an equal share is 50%")
    assert s.replicas
    assert (s.replicas[A].requests, s.replicas[A].ttft_s.mean) == (0, None)


def test_each_replica_has_its_own_servers_figures_and_the_level_has_none() -> None:
    of_b = tuple(Sample(t / 2, f"server {B}", "running", 3.0) for t in range(20))
    s = level(dealt([A, B]), samples=of_b)
    assert s.replicas
    assert s.server is None
    assert s.replicas[A].server is None
    assert s.replicas[B].server is not None
    assert s.replicas[B].server.running == 3.0
