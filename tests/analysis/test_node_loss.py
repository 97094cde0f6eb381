"""A lost replica, by records worked out by hand: when, for how long, at what cost, and what is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.analysis.patterns import STOPPED, losses
from harness.analysis.rules.run import Recorded, node_loss
from harness.analysis.table import Table
from harness.data.judgement import CurveState
from harness.data.record import Level, Record
from harness.data.summary import Curve, NodeLoss
from harness.data.views import Value
from tests.builders import summaries
from tests.builders.records import request

A, B = "http://a", "http://b"
LEVEL = Level(0, 4, 0, 0.0, 0.0, 12.0, 12.0)


def busy(url: str, start: float, end: float, every: float = 0.5, takes: float = 0.5) -> list[Record]:
    """Requests of one slot, one after the other: the first of five tokens after a fifth of the time."""
    starts = [start + every * i for i in range(round((end - start) / every))]
    return [request(t, [t + takes * (k + 1) / 5 for k in range(5)], url=url) for t in starts]


def failed(url: str, sent: float, done: float, error: str = "reset") -> Record:
    return request(sent, done=done, error=error, url=url)


def lost(records: list[Record], curve: Curve | None = None) -> list[NodeLoss]:
    return losses(Table.of(records), [LEVEL], [A, B], curve)


def outage(back: float | None = 7.0) -> list[Record]:
    """Two slots a replica; b breaks off two requests at 5.0 s, refuses a third at 5.1, and is back at 7.0 s."""
    records = [*busy(A, 0, 12), *busy(A, 0, 12), *busy(B, 0, 5), *busy(B, 0, 5)]
    records += [failed(B, 5.0, 5.0), failed(B, 5.0, 5.0), failed(B, 5.1, 5.1, "refused")]
    return records + (busy(B, back, 12) + busy(B, back, 12) if back else [])


def test_a_replica_that_stops_and_comes_back_is_found_with_its_failures_and_its_recovery() -> None:
    (loss,) = lost(outage())
    assert (loss.url, loss.kind, loss.at) == (B, STOPPED, 4)
    assert (loss.start_s, loss.end_s, loss.recovery_s) == (5.0, 7.0, 2.0)
    assert (loss.errors, loss.errors_s) == (3, pytest.approx(0.1))


def test_the_survivors_are_measured_before_during_and_after() -> None:
    (loss,) = lost(outage())
    assert loss.before is not None
    assert loss.during is not None
    assert loss.after is not None
    # Two slots of 5 tokens in 0.5 s are 20 tok/s a replica. A token at an edge belongs to what begins there: the four
    # at 5 s are none of the 200 before, and of the 200 after, the four at 12 s are none and the two of a at 7 s are.
    assert loss.before.output_tokens_per_s == pytest.approx(196 / 5)
    assert loss.during.output_tokens_per_s == pytest.approx(42 / 2)
    assert loss.after.output_tokens_per_s == pytest.approx(198 / 5)
    assert loss.during.survivors_output_tokens_per_s == pytest.approx(40 / 2)
    assert loss.during.survivors_in_flight == pytest.approx(2.0)
    assert loss.during.survivors_ttft_s.mean == pytest.approx(0.1)
    assert loss.during.survivors_ttft_s.n == 8


def test_a_replica_that_does_not_come_back_has_no_recovery() -> None:
    (loss,) = lost(outage(back=None))
    assert (loss.end_s, loss.recovery_s, loss.after) == (None, None, None)
    assert loss.during is not None
    assert loss.during.seconds == pytest.approx(7.0)


def with_plateau(tokens_per_s: float, state: str = CurveState.FOUND) -> Curve:
    nothing = Value(None)
    return Curve(
        state=state, family="capped_hyperbola", single_stream_tokens_per_s=nothing, hinge_concurrency=nothing,
        plateau_tokens_per_s=Value(tokens_per_s), plateau_reached=True, dip=None, weights={}, parameters={},
        verdicts=[],
    )  # fmt: skip


@pytest.mark.parametrize(("plateau", "held"), [(90.0, True), (70.0, False)])
def test_the_headroom_holds_where_the_others_plateau_is_what_all_gave_before(plateau: float, held: bool) -> None:
    (loss,) = lost(outage(), with_plateau(plateau))  # 40 tok/s before; half of the plateau is left
    assert loss.survivors_plateau_tokens_per_s == plateau / 2
    assert loss.headroom_held is held


@pytest.mark.parametrize(("every", "held"), [(0.25, True), (0.32, True), (0.35, False), (0.5, False)])
def test_without_a_plateau_the_headroom_held_where_throughput_fell_by_less_than_half_a_share(
    every: float, held: bool
) -> None:
    before = [*busy(A, 0, 6), *busy(A, 0, 6), *busy(B, 0, 6), *busy(B, 0, 6)]  # 40 tok/s of two replicas
    during = [*busy(A, 6, 12, every, every), *busy(A, 6, 12, every, every)]  # 40, 31, 29 and 20 tok/s of one
    (loss,) = lost([*before, *during, *(failed(B, 6.0, 6.0) for _ in range(3))])
    assert (loss.survivors_plateau_tokens_per_s, loss.headroom_held) == (None, held)


def test_without_a_plateau_and_with_few_requests_nothing_is_claimed_of_the_headroom() -> None:
    assert [loss.headroom_held for loss in lost(outage())] == [None]
    assert [loss.headroom_held for loss in lost(outage(), with_plateau(90.0, CurveState.BEYOND))] == [None]


@pytest.mark.parametrize(
    "records",
    [
        busy(A, 0, 12) + busy(B, 0, 12),
        busy(A, 0, 12) + busy(B, 0, 12) + [failed(B, 5.0, 5.0), failed(B, 5.0, 5.1)],  # too few
        busy(A, 0, 12) + busy(B, 0, 12) + [failed(B, 5.0, 5.0 + i / 100, "http_429") for i in range(9)],  # refused
        busy(A, 0, 12) + busy(B, 0, 12) + [failed(B, 5.0, 5.0 + i / 100, "cancelled") for i in range(9)],  # our own
        [failed(url, i, i + 0.1, "refused") for i in range(12) for url in (A, B)],  # all of them, not one
        [each for url in (A, B) for each in busy(url, 0, 6) + busy(url, 6, 12, every=1.5, takes=1.5)],  # both slow
    ],
    ids=["healthy", "two failures", "refusals", "cut by us", "everything down", "everything slow"],
)  # fmt: skip
def test_what_is_no_loss_of_one_replica_is_not_found(records: list[Record]) -> None:
    assert lost(records) == []


def test_one_server_has_no_node_to_lose() -> None:
    assert losses(Table.of(outage()), [LEVEL], [B]) == []


def test_survivors_that_slow_down_under_the_load_of_a_lost_replica_are_not_called_slow() -> None:
    def loaded(url: str) -> list[Record]:
        return busy(url, 0, 5) + busy(url, 5, 11, every=1.2, takes=1.2) + busy(url, 11, 17)

    records = [*loaded(A), *busy(B, 0, 5), *(failed(B, 5.0, 5.0) for _ in range(3)), *busy(B, 11, 17)]
    assert [(loss.url, loss.kind) for loss in lost(records)] == [(B, STOPPED)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "was back after 2 s; 3 requests failed within 0.1 s; before → during → after it: 39.2 → 21 → 39.6 tok/s"),
        ({"recovery_s": None, "end_s": None}, "did not come back"),
        (
            {"headroom_held": False, "survivors_plateau_tokens_per_s": 25.0},
            "the others do not carry the load: their plateau is 25 tok/s",
        ),
        ({"headroom_held": True}, "39.6 tok/s; the others carry the load"),
    ],
)
def test_a_loss_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    (loss,) = lost(outage())
    changed = msgspec.structs.replace(loss, **changes)
    (said,) = node_loss.findings(Recorded(manifest=summaries.MANIFEST, losses=[changed]))
    assert words in said.message
    assert said.at == 4
