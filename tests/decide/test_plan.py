"""Plans by hand: every expected figure is worked out in the test that expects it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base import units
from harness.base.errors import HarnessError
from harness.data.views import Spread, Value
from harness.decide.plan import plan, replicas
from harness.decide.plan.capacity import Capacity, MeasuredLoad, choose
from harness.decide.plan.plan import Plan, make
from harness.decide.plan.question import Demand, Prices, Question, Reserve
from harness.spec.work import Unit

G = 200.0  # output tokens of a request


def spread(mean: float) -> Spread:
    return Spread(mean, mean, mean, mean, mean, mean, 1000)


def load(C: float, X: float, *, half: float = 0.0, slo: str | None = None, **changes: Any) -> MeasuredLoad:
    """C in flight make X output tok/s; a request of 200 tokens takes C·200/X by Little's law."""
    ci95 = (X * (1 - half), X * (1 + half))
    made = MeasuredLoad(
        load=C,
        work_per_s=Value(X, ci95),
        requests_per_s=X / G,
        in_flight=C,
        ttft_s=spread(0.1),
        itl_s=spread(0.02),
        e2e_s=spread(C * G / X),
        slo=slo,
        doubts=[],
    )
    return msgspec.structs.replace(made, **changes)


def capacity(*loads: MeasuredLoad, **changes: Any) -> Capacity:
    made = Capacity(
        source="results/a",
        simulated=False,
        open_loop=False,
        unit=Unit.OUTPUT_TOKENS.value,
        slo=[],
        slo_load=None,
        slo_missed=None,
        rises=False,
        measured_replicas=1,
        gpu="h100-sxm",
        gpus=1.0,
        usd_per_gpu_hour=None,
        work_per_request=G,
        documents_per_request=None,
        input_tokens=500.0,
        output_tokens=G,
        cold_start_s=None,
        engine="vllm",
        loads=list(loads),
    )
    return msgspec.structs.replace(made, **changes)


CURVE = (load(1, 100), load(8, 700), load(16, 960), load(32, 1000), load(64, 990))
LIMITED: dict[str, Any] = {"slo": ["ttft_p99=2s"], "slo_load": 8.0, "slo_missed": 16.0}


def test_only_a_closed_loop_that_ended_below_every_miss_may_carry_more_further_up() -> None:
    def rises(**changes: Any) -> bool:
        made = planned(capacity(*CURVE[:2], rises=True, slo=["ttft_p99=2s"], slo_load=8.0, **changes))
        return any("still rises" in note for note in made.notes)

    assert rises()
    assert not rises(slo_missed=16.0)
    assert not rises(open_loop=True)


def test_a_plan_says_that_the_server_failed_at_another_load() -> None:
    said = "more than 1 % of the requests failed at a load of 24: find out why first"
    assert said in planned(capacity(*CURVE[:2], fails_at=24.0)).notes
    assert not any("failed" in note for note in planned(capacity(*CURVE[:2])).notes)


def planned(found: Capacity, **question: Any) -> Plan:
    question.setdefault("demand", Demand(requests_per_s=10.0))
    asked = Question(**question)
    return make(found, asked, replicas.read_traffic(asked.demand.traffic) if asked.demand.traffic else None)


# ---- the operating point ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "limits", "at"),
    [
        (None, {}, 16),  # 960 of 1,000 is the first with 95 %
        ("cost", {}, 32),
        (None, LIMITED, 8),
        ("slo", LIMITED, 8),
        ("cost", LIMITED | {"slo_load": 64.0, "slo_missed": None}, 32),
        ("knee", LIMITED | {"slo_load": 64.0, "slo_missed": None}, 16),
    ],
)
def test_the_operating_point_is_a_measured_load(by: Any, limits: dict[str, Any], at: float) -> None:
    found = choose(capacity(*CURVE, **limits), by)
    assert found.at is not None
    assert found.at.load == at


def test_offline_work_has_no_limits() -> None:
    found = choose(capacity(*CURVE, **LIMITED), offline=True)
    assert found.at is not None
    assert (found.at.load, found.outcome) == (32, "")


def test_by_slo_needs_one() -> None:
    with pytest.raises(HarnessError, match="--by slo: the run has no SLO; add --slo"):
        choose(capacity(*CURVE), "slo")


@pytest.mark.parametrize(("lowest", "status"), [("missed", 99), ("unresolved", 3)])
def test_without_a_load_that_meets_the_slo_nothing_is_planned(lowest: str, status: int) -> None:
    made = planned(capacity(load(1, 100, slo=lowest), slo=["ttft_p99=1ms"], slo_missed=1.0))
    assert (made.fleet, made.exit_status) == (None, status)


# ---- the fleet --------------------------------------------------------------------------------------------


def test_golden_case_27_users_and_what_each_sees() -> None:
    """10 users without pauses, each at 50 tok/s, are 500 tok/s: half of what one replica of 1,000 does."""
    at = load(10, 1000, e2e_s=spread(G / 50))
    found = planned(capacity(at), demand=Demand(users=10.0, think_s=0.0)).fleet
    assert found is not None
    assert found.requests_per_s * G == pytest.approx(500)
    assert found.options[0].utilization == pytest.approx(0.5)


def test_headroom_and_spares() -> None:
    """100 rps of 200 tokens on 6,000 tok/s are 3.33 replicas; 4.76 at 70 %, and 4 + k with k spares."""
    found = capacity(load(16, 6000))
    for spare, n in ((None, 5), (0, 5), (1, 5), (2, 6)):
        made = planned(found, demand=Demand(requests_per_s=100.0), reserve=Reserve(spare=spare)).fleet
        assert made is not None
        assert (made.replicas, made.needed, made.may_fail) == (n, 4, n - 4)


def test_the_interval_of_the_throughput_is_that_of_the_replicas() -> None:
    """At 10 % more or less: 3.33 / 0.7 / 1.1 = 4.33 and 3.33 / 0.7 / 0.9 = 5.29."""
    made = planned(capacity(load(16, 6000, half=0.1)), demand=Demand(requests_per_s=100.0))
    assert made.fleet is not None
    assert made.fleet.ci95 == (5, 6)
    assert "by the low end of the measured throughput 6 replicas are needed" in made.notes


def test_one_replica_lost() -> None:
    """10 rps on 1,200 tok/s are 1.67 replicas: 3 at 70 %, 83 % each with one lost, and two may not fail."""
    made = planned(capacity(load(16, 1200))).fleet
    assert made is not None
    assert [each.replicas for each in made.options] == [2, 3, 4]
    assert made.options[1].utilization == pytest.approx(0.5556, rel=1e-3)
    assert made.options[1].one_lost == pytest.approx(0.8333, rel=1e-3)
    assert made.may_fail == 1


def test_users_come_back_after_an_answer_and_a_pause() -> None:
    """16 in flight at 960 tok/s: 3.33 s. With 30 s of pause 1,000 users send 30 requests/s, 100 in flight."""
    made = planned(capacity(load(16, 960)), demand=Demand(users=1000.0, think_s=30.0))
    assert made.fleet is not None
    assert made.fleet.requests_per_s == pytest.approx(30)
    assert made.fleet.in_flight == pytest.approx(100)
    back = planned(capacity(load(16, 960)), demand=Demand(requests_per_s=30.0, think_s=30.0))
    assert back.users == pytest.approx(1000)


def test_users_of_other_answers_wait_in_proportion_to_them() -> None:
    """16 in flight at 960 tok/s: 3.33 s of 200 tokens, so .333 s of 20. 160 users send 480 requests/s: 14.3 at 70 %."""
    found = capacity(load(16, 960))
    made = planned(found, demand=Demand(users=160.0, think_s=0.0, output_tokens=20.0))
    assert made.fleet is not None
    assert made.fleet.requests_per_s == pytest.approx(480)
    assert made.fleet.replicas == 15
    assert made.fleet.in_flight == pytest.approx(160)
    back = planned(found, demand=Demand(requests_per_s=480.0, think_s=0.0, output_tokens=20.0))
    assert back.users == pytest.approx(160)
    longer_prompts = planned(found, demand=Demand(users=160.0, think_s=0.0, input_tokens=5000.0)).fleet
    assert longer_prompts is not None
    assert longer_prompts.requests_per_s == pytest.approx(48)


def test_documents_of_work_that_decodes_nothing() -> None:
    """32 documents of 125 tokens a request, 80,000 tok/s: 20 requests or 640 documents/s; 1,000 need 2.23 at 70 %."""
    found = capacity(load(16, 80_000), unit="input tokens", work_per_request=4000.0, documents_per_request=32.0)
    made = planned(found, demand=Demand(documents_per_s=1000.0)).fleet
    assert made is not None
    assert made.requests_per_s == pytest.approx(31.25)
    assert made.exact == pytest.approx(2.232, rel=1e-3)
    with pytest.raises(HarnessError, match="the run counts no documents"):
        planned(capacity(load(16, 960)), demand=Demand(documents_per_s=1000.0))


def test_other_lengths_are_said_to_go_beyond_the_measurement() -> None:
    made = planned(capacity(load(16, 1000)), demand=Demand(requests_per_s=10.0, output_tokens=400.0))
    assert made.fleet is not None
    assert made.fleet.exact == pytest.approx(10 * 400 / 1000 / 0.7)
    assert any("measured with 200 tokens out, planned for 400" in note for note in made.notes)
    assert not any("measured with" in note for note in planned(capacity(load(16, 1000))).notes)


def test_a_demand_beyond_reason_is_refused() -> None:
    with pytest.raises(HarnessError, match="more than 100,000 replicas"):
        planned(capacity(load(16, 1.0)), demand=Demand(requests_per_s=1e14))


# ---- money ------------------------------------------------------------------------------------------------


def test_what_the_money_buys() -> None:
    """Two replicas of 2 GPUs at $3 are $12 an hour; 10 rps of 500 in and 200 out are 7.2 M output tokens an hour."""
    found = planned(capacity(load(16, 2000, half=0.1)), prices=Prices(gpu_hour=3.0, gpus=2.0)).costs
    assert found is not None
    assert found.usd_per_hour == 12
    assert found.usd_per_month == found.usd_per_month_at_peak == 8640
    assert found.usd_per_million == pytest.approx(12 / 7.2)
    assert found.usd_per_million_blended == pytest.approx(12 / 25.2)
    assert found.usd_per_request == pytest.approx(12 / 36_000)
    # at the operating point: $6 over 7.2 M tokens, at 10 % more or less
    assert found.usd_per_million_at_point.value == pytest.approx(6 / 7.2)
    assert found.usd_per_million_at_point.ci95 == pytest.approx((6 / 7.92, 6 / 6.48))


def test_what_is_not_known_has_no_figure() -> None:
    made = planned(capacity(load(16, 2000), gpus=None), prices=Prices(gpu_hour=3.0))
    assert made.costs is None
    assert made.fleet is not None
    assert {each.usd_per_month for each in made.fleet.options} == {None}
    assert "the GPUs of a replica are not recorded: add --gpus N" in made.notes
    assert "no price is known: add --price USD, per GPU and hour" in planned(capacity(load(16, 2000))).notes


def test_the_price_of_the_run_is_taken_where_no_other_is_given() -> None:
    found = planned(capacity(load(16, 2000), usd_per_gpu_hour=2.0)).costs
    assert found is not None
    assert found.usd_per_hour == 4


def test_a_fleet_that_follows_the_traffic_is_paid_from_one_cold_start_before() -> None:
    """A day of 12 h at 5 rps and 12 h at 20: 1 and 4 replicas at u = 1, X 1,000. The cold start is an hour."""
    cells = [5.0] * 12 + [20.0] * 12
    found = replicas.follow(cells, 20.0, 86_400.0, lambda rate: math.ceil(rate * G / 1000 - 1e-9), 3600.0)
    # three more replicas for 12 h and an hour ahead: 24 + 39 replica-hours of 96
    assert (found.hours_at_peak, found.hours_following) == (96, 63)


# ---- a day ------------------------------------------------------------------------------------------------


def test_a_shape_is_scaled_to_the_peak() -> None:
    shape = replicas.read_traffic("series(0h:10,12h:40,24h)")
    cells, peak = replicas.rates(shape, None)
    assert (len(cells), cells[0], cells[-1], peak) == (1440, 10, pytest.approx(40), 40)
    cells, peak = replicas.rates(shape, 4.0)
    assert (cells[0], cells[-1], peak) == (1, pytest.approx(4), 4)


def test_a_file_of_traffic(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    file.write_text("time,requests_per_s\n0h, 10\n\n12h,40\n")
    assert replicas.rates(replicas.read_traffic(str(file)), None) == replicas.rates(
        replicas.read_traffic("series(0h:10,12h:40)"), None
    )
    for content, words in (("", "not a traffic file"), ("a,b\n0h,1", "header"), ("time,requests_per_s\n0h", "rates")):
        file.write_text(content)
        with pytest.raises(HarnessError, match=words):
            replicas.read_traffic(str(file))
    with pytest.raises(HarnessError, match="No such file"):
        replicas.read_traffic(str(tmp_path / "nothing"))


def test_without_a_cold_start_nothing_is_said_of_following() -> None:
    demand = Demand(traffic="wave(period=24h,low=5,high=20)")
    made = planned(capacity(load(16, 1000)), demand=demand, prices=Prices(gpu_hour=2.0))
    assert made.day is not None
    assert made.costs is not None
    assert made.day.hours_following is None
    assert made.costs.usd_per_month == made.costs.usd_per_month_at_peak
    assert "the cold start of a replica is not known: add --cold-start TIME" in made.notes
    # 12.5 rps on average: 9 M output tokens an hour on 6 replicas of $2
    assert made.costs.usd_per_million == pytest.approx(12 / 9, rel=1e-6)


def test_the_measured_cold_start_is_used() -> None:
    demand = Demand(traffic="wave(period=24h,low=5,high=20)")
    made = planned(capacity(load(16, 1000), cold_start_s=90.0), demand=demand, prices=Prices(gpu_hour=2.0))
    assert made.day is not None
    assert made.day.cold_start_s == 90
    assert made.day.hours_following is not None
    assert made.day.hours_following < made.day.hours_at_peak == 6 * 24


# ---- a batch, alerts --------------------------------------------------------------------------------------


def test_a_batch_with_a_deadline() -> None:
    """10 G tokens in 8 h are 347,222 tok/s: 347.2 replicas of 1,000, which take 7 h 58 min 24 s of 348."""
    demand = Demand(offline_tokens=1e10, deadline_s=28_800.0)
    made = planned(capacity(*CURVE), demand=demand, prices=Prices(gpu_hour=2.0))
    assert made.batch is not None
    assert made.batch.replicas == 348
    assert made.batch.seconds == pytest.approx(1e10 / 348_000)
    assert made.batch.usd == pytest.approx(1e10 / 1000 / 3600 * 2)
    assert made.batch.usd_per_million == pytest.approx(2 / 3.6)
    late = planned(capacity(*CURVE), demand=demand, prices=Prices(gpu_hour=2.0, cold_start_s=3600.0)).batch
    assert late is not None
    assert late.replicas == 397  # 1e10 / (1000 · 25,200) = 396.8
    with pytest.raises(HarnessError, match="the deadline is not after a cold start of 3600 s"):
        planned(
            capacity(*CURVE), demand=Demand(offline_tokens=1e9, deadline_s=60.0), prices=Prices(cold_start_s=3600.0)
        )


def test_a_batch_counts_what_the_run_counts() -> None:
    found = capacity(load(16, 80_000), unit="input tokens", work_per_request=4000.0, documents_per_request=32.0)
    made = planned(found, demand=Demand(offline_documents=3.2e6, deadline_s=5000.0)).batch
    assert made is not None
    assert (made.work, made.replicas) == (4e8, 1)
    with pytest.raises(HarnessError, match="--offline-documents: the run counts output tokens"):
        planned(capacity(*CURVE), demand=Demand(offline_documents=10.0, deadline_s=10.0))


def test_thresholds_are_shares_of_what_was_measured() -> None:
    found = planned(capacity(load(16, 1000)), reserve=Reserve(utilization=0.6)).thresholds
    assert found is not None
    assert (found.scale_out_above, found.low_below, found.critical_below) == (600, 700, 500)
    assert found.in_flight_above == 16


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        ("vllm", "vllm:generation_tokens_total"),
        ("sglang", "sglang:generation_tokens_total"),
        ("llamacpp", "llamacpp:tokens_predicted_total"),
    ],
)
def test_the_rules_have_the_engine_s_own_names(engine: str, tokens: str) -> None:
    rules = plan.thresholds(load(16, 1000), 0.7, engine, {}).rules
    low = f"expr: 'sum(rate({tokens}[5m])) / count(count by (instance) ({tokens})) < 700 and sum("
    assert low in rules
    assert "for: 5m\n        labels:\n          severity: warning" in rules


def test_a_limit_on_the_ttft_and_a_full_kv_cache_have_rules_where_the_engine_says_them() -> None:
    rules = plan.thresholds(load(16, 1000), 0.7, "vllm", {"ttft_p99": 2.0, "ttft_p50": 0.5, "itl_p99": 0.05}).rules
    buckets = "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))"
    assert f"alert: KneeTtftP99High\n        expr: 'histogram_quantile(0.99, {buckets}) > 2'" in rules
    assert f"alert: KneeTtftP50High\n        expr: 'histogram_quantile(0.5, {buckets}) > 0.5'" in rules
    assert "expr: 'max(vllm:kv_cache_usage_perc) > 0.95'" in rules
    assert "itl" not in rules
    assert "Ttft" not in plan.thresholds(load(16, 1000), 0.7, "llamacpp", {"ttft_p99": 2.0}).rules


def test_an_engine_without_these_metrics_has_no_rules() -> None:
    assert [plan.thresholds(load(16, 1000), 0.7, engine, {}).rules for engine in ("", "triton", "other")] == [
        "",
        "",
        "",
    ]


# ---- the question -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({}, "no demand is given"),
        ({"requests_per_s": 1.0, "users": 2.0, "think_s": 1.0}, "one demand"),
        ({"offline_tokens": 1.0, "deadline_s": 1.0, "traffic": "poisson"}, "one demand"),
        ({"users": 2.0}, "--users: users without a think time"),
        ({"offline_tokens": 1.0}, "--deadline: a batch has an amount and a deadline"),
        ({"requests_per_s": 1.0, "deadline_s": 1.0}, "--deadline: a batch has an amount and a deadline"),
    ],
)
def test_a_question_is_one_question(demand: dict[str, Any], words: str) -> None:
    with pytest.raises(HarnessError, match=words):
        Question(demand=Demand(**demand))


def test_what_a_batch_does_not_use_is_refused() -> None:
    for reserve in (Reserve(spare=1), Reserve(utilization=0.5)):
        with pytest.raises(HarnessError, match="--utilization, --headroom, --spare: a batch has no peak"):
            Question(demand=Demand(offline_tokens=1e9, deadline_s=3600.0), reserve=reserve)


def test_shares() -> None:
    assert [units.share(text) for text in ("43%", "0.43", " 30 % ")] == [0.43, 0.43, 0.3]
    for text in ("43%%", "x%", "", "30% off"):
        with pytest.raises(HarnessError):
            units.share(text)
