"""The tables of replicas and of those that were lost, cell by cell."""

from __future__ import annotations

import msgspec

from harness.data.levels import ReplicaSummary
from harness.data.summary import LossPhase, NodeLoss, Summary
from harness.data.views import Estimate
from harness.report import run_report, run_tables
from tests.builders.summaries import MANIFEST, full, level, spread
from tests.report.test_workload_tables import cells

A = ReplicaSummary(
    requests=90, errors=3, error_rate=1 / 30, cancelled=0, in_flight=6.0, in_flight_share=0.75,
    input_tokens_per_s=Estimate(1500.0), output_tokens_per_s=Estimate(192.0), requests_per_s=Estimate(3.0),
    ttft_s=spread(0.05, 90), itl_s=spread(0.01, 90), e2e_s=spread(0.7, 90), server=None,
)  # fmt: skip
PHASE = LossPhase(
    seconds=5.0, output_tokens_per_s=256.0, survivors_output_tokens_per_s=128.0, survivors_in_flight=4.0,
    survivors_ttft_s=spread(0.05, 90),
)  # fmt: skip
LOSS = NodeLoss(
    url="http://b\x1b[31m", kind="stopped", at=8, start_s=31.2, end_s=33.7, recovery_s=2.5, errors=3, errors_s=0.05,
    before=PHASE, during=msgspec.structs.replace(PHASE, output_tokens_per_s=140.0), after=None,
    survivors_plateau_tokens_per_s=150.0, headroom_held=False,
)  # fmt: skip


def lossy() -> Summary:
    b = msgspec.structs.replace(A, requests=30, errors=0, in_flight=2.0, in_flight_share=0.25)
    here = level(8, replicas={"http://a": A, "http://b": b})
    return msgspec.structs.replace(full(), levels=[here], node_losses=[LOSS])


def test_a_replica_has_a_row_at_each_level() -> None:
    found = cells(run_tables.of_replicas(lossy())[0])
    assert found["replica"] == ["http://a", "http://b"]
    assert (found["requests"], found["errors"], found["share"]) == (["90", "30"], ["3", "0"], ["75 %", "25 %"])
    assert found["TTFT ms p50"] == ["50", "50"]


def test_a_loss_is_a_row_with_its_three_phases_and_no_escape_of_a_terminal() -> None:
    found = cells(run_tables.of_replicas(lossy())[1])
    assert found["replica"] == ["http://b\\u001b[31m"]
    assert (found["at s"], found["recovery s"], found["errors"]) == (["31.2"], ["2.50"], ["3"])
    assert found["output tok/s"] == ["256 → 140 → –"]
    assert found["headroom"] == ["not held"]


def test_the_tables_stand_in_the_report_and_not_in_that_of_one_server() -> None:
    titles = [section.title for section in run_report.report(lossy(), MANIFEST).sections]
    assert titles.index("Replicas") + 1 == titles.index("Lost replicas")
    assert all(not section.columns for section in run_tables.of_replicas(full()))
