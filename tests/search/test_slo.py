"""The search for the load up to which an SLO is met, on the virtual clock."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import msgspec
import pytest

from harness.analysis.stats import Z95, wilson
from harness.data.levels import Attainment
from harness.data.summary import Summary, is_decided
from harness.report.answer import answer
from harness.search.slo import JudgedLoad, edge_of, judged
from harness.search.state import MeasuredLevel
from harness.sim import profile as profiles
from harness.spec import reading
from tests.builders import virtual_run

pytestmark = pytest.mark.slow


def searched(folder: Path, slo: dict[str, float], *, seats: int = 16, **ramp: object) -> Summary:
    tree = {
        "workload": {"input_tokens": 128, "output_tokens": 64, "seed": 3},
        "ramp": ramp, "slo": slo, "sim": {"max_num_seqs": seats},
    }  # fmt: skip
    spec = reading.build(tree, place="test")
    return virtual_run.run(spec, profiles.embedded(spec.sim), folder).summary


def test_limits_that_an_idle_server_meets_are_followed_up_to_where_they_are_missed(tmp_path: Path) -> None:
    """A p99 needs 299 requests and a single stream has a few: that ended the search at 1 in flight."""
    summary = searched(tmp_path, {"tpot_p99": 0.0075}, seats=64)
    assert summary.knees.slo is not None
    assert summary.knees.slo.value == 10
    assert summary.knees.slo.ci95 == (10, 11)
    assert (
        answer(summary).sentence == "Knee: 10 requests in flight meet the limits, 11 miss them; Limit: tpot_p99=7.5ms"
    )


def test_in_a_minute_there_is_at_least_a_provisional_answer(tmp_path: Path) -> None:
    summary = searched(tmp_path, {"ttft_p99": 2.0, "itl_p99": 0.05}, max_seconds=60)
    knee = summary.knees.slo
    assert knee is not None
    assert knee.value is not None
    assert knee.ci95 is not None
    assert 64 <= knee.value < (knee.ci95[1] or 0) <= 96
    assert summary.knee_concurrency == knee.value
    if not is_decided(knee):
        assert "provisional: too few requests to decide" in answer(summary).sentence


@pytest.mark.parametrize("seed", [1, 3])
def test_a_server_of_varying_speed_is_decided_in_four_minutes(tmp_path: Path, seed: int) -> None:
    """The load next to the edge took all of the time before, and stayed open."""

    def slowdown(time_s: float) -> float:
        k, share = divmod(time_s / 20, 1.0)
        a, b = (random.Random(seed + 1000 * (k + i)).gauss(0, 0.1) for i in (0, 1))
        return 8 * math.exp(a * (1 - share) + b * share)

    tree = {
        "workload": {"input_tokens": 64, "output_tokens": 16, "seed": seed},
        "ramp": {"max_seconds": 240}, "slo": {"ttft_p99": 0.6}, "sim": {"max_num_seqs": 16},
    }  # fmt: skip
    spec = reading.build(tree, place="test")
    profile = profiles.embedded(spec.sim)
    server = virtual_run.Server(profile, slowdown)
    knee = virtual_run.run(spec, profile, tmp_path, server=server).summary.knees.slo
    assert knee is not None
    assert is_decided(knee)
    assert knee.ci95 is not None
    assert 16 < (knee.value or 0) < (knee.ci95[1] or 0) <= 24


def test_a_rate_that_too_few_requests_leave_open_is_doubled_and_not_halved(tmp_path: Path) -> None:
    """Which takes four minutes; with more time the same rates are only decided."""
    summary = searched(tmp_path, {"ttft_p99": 0.5}, search_rate=True, max_seconds=240)
    rates = [level.rate or 0.0 for level in summary.levels]
    assert [b / a for a, b in itertools.pairwise(rates[:5])] == pytest.approx([2.0] * 4, rel=0.01)
    knee = summary.knees.slo_rate
    assert knee is not None
    assert knee.ci95 is not None
    assert 18 < (knee.value or 0) < 31  # which 16 seats could do at most, half a second a request
    assert (knee.value or 0) < (knee.ci95[1] or 0) < 36


def test_a_rate_is_not_charged_with_the_queue_of_a_higher_one(tmp_path: Path) -> None:
    """16 seats of 0.5 s serve 31 a second; at a higher rate hundreds of requests wait when the level ends."""
    summary = searched(tmp_path, {"ttft_p99": 2.0}, search_rate=True, max_seconds=300)
    rates = [level.rate or 0.0 for level in summary.levels]
    after = summary.levels[rates.index(max(rates)) + 1]
    assert 20 < (after.rate or 0.0) < 31 < max(rates)
    assert [each.fraction for each in after.slo] == [1.0]
    knee = summary.knees.slo_rate
    assert knee is not None
    assert knee.ci95 is not None
    assert 25 < (knee.value or 0) < 31 < (knee.ci95[1] or 0) < 36


def test_limits_of_a_class_alone_are_searched_too(tmp_path: Path) -> None:
    tree = {
        "workload": {"seed": 3},
        "class": [
            {"name": "chat", "input": 128, "output": 64, "slo": {"tpot_p99": 0.0075}},
            {"name": "batch", "input": 128, "output": 64},
        ],
        "sim": {"max_num_seqs": 64},
    }
    spec = reading.build(tree, place="test")
    summary = virtual_run.run(spec, profiles.embedded(spec.sim), tmp_path).summary
    assert summary.knees.slo is not None
    assert summary.knees.slo.ci95 is not None
    assert 8 <= (summary.knees.slo.value or 0) < (summary.knees.slo.ci95[1] or 0) <= 12


def test_a_load_that_was_measured_for_long_and_has_too_few_requests_stays_open() -> None:
    def level(n: int) -> MeasuredLevel:
        share = Attainment("ttft_p99=2s", 0.99, n, n, 1.0, wilson(n, n), "unresolved")
        return msgspec.structs.replace(plain, attainments=(share,), window_s=5.0 * n)

    plain = MeasuredLevel(
        concurrency=2, rate=None, in_flight=2.0, throughput=10.0, se=None, error_rate=0.0, seconds=60.0,
        requests=12, request_s=10.0, valid=True, in_flight_ok=True, ttft_p99_s=None, slo="unresolved",
    )  # fmt: skip
    # 299 requests decide it, with a tenth to spare 329: after 212 in 1,060 s the others come in 584 s.
    assert judged([level(12), level(200)]).window_s == pytest.approx(1060 * (1.1 * 299 / 212 - 1), rel=0.01)
    assert judged([level(12), level(200)]).decidable
    assert not judged([level(12), level(120)]).decidable  # in 984 s, more than the 600 of a window
    assert not judged([level(12), level(200)], seconds_left=500.0).decidable
    assert judged([level(12), level(300)]).outcome == "met"
    # One request that met it shows no share yet: 299 would take 1,495 s, but 22 may show that others miss it.
    assert judged([level(1)]).window_s == pytest.approx(5 * (1.1 * 20 - 1))
    assert judged([level(1)]).decidable
    assert not judged([level(1)], seconds_left=100.0).decidable


def test_how_requests_clump_is_taken_from_a_level_that_is_long_enough_to_show_it() -> None:
    """18 in flight, 10 requests/s of 1.8 s: in fewer than 36 s, 18 requests count as one."""

    def level(n: int, window_s: float, clumped: float) -> MeasuredLevel:
        share = Attainment("ttft_p99=2s", 0.99, n, n, 1.0, wilson(n, n, Z95 * math.sqrt(clumped)), "unresolved")
        return MeasuredLevel(
            concurrency=18, rate=None, in_flight=18.0, throughput=10.0, seconds=60.0, requests=n, request_s=1.8,
            slo="unresolved", attainments=(share,), window_s=window_s,
        )  # fmt: skip

    short, long = level(90, 9.0, 18.0), level(480, 48.0, 4.0)
    assert judged([short]).window_s == pytest.approx((1.1 * 299 - 5) / 10, rel=0.01)
    assert judged([short, long]).window_s == pytest.approx((1.1 * 299 - 125) / 10 * 4, rel=0.01)
    assert judged([short], others=[short, long]).window_s == pytest.approx((1.1 * 299 - 5) / 10 * 4, rel=0.01)


def test_a_level_with_fewer_in_flight_than_asked_for_can_miss_the_slo_and_not_meet_it() -> None:
    """As in the report: the ramp and the report find the same knee."""
    shares = {"met": Attainment("ttft_p99=2s", 0.99, 999, 999, 1.0, wilson(999, 999), "met"),
              "missed": Attainment("ttft_p99=2s", 0.99, 0, 999, 0.0, wilson(0, 999), "missed")}  # fmt: skip
    for outcome, share in shares.items():
        low = MeasuredLevel(
            concurrency=16, rate=None, in_flight=12.0, throughput=10.0, se=None, error_rate=0.0, seconds=60.0,
            requests=999, request_s=1.0, valid=True, in_flight_ok=False, ttft_p99_s=None, slo=outcome,
            attainments=(share,),
        )  # fmt: skip
        assert judged([low]).outcome == ("missed" if outcome == "missed" else "unresolved")


def test_the_loads_next_to_the_edge_are_decided_and_the_next_lower_one_where_these_stay_open() -> None:
    met, likely, missed = (
        JudgedLoad("met", "met", 1, True),
        JudgedLoad("unresolved", "met", 1, True),
        JudgedLoad("missed", "missed", 1, True),
    )
    assert edge_of({1: likely, 2: likely, 3: missed}).undecided == 2
    assert edge_of({1: likely, 2: met, 3: missed}).undecided is None
    doubtful = JudgedLoad("unresolved", "missed", 1, True)
    assert edge_of({1: likely, 2: likely, 3: doubtful}).undecided == 2
    assert edge_of({1: met, 2: likely, 3: doubtful, 4: missed}).undecided == 2
    assert edge_of({1: likely, 2: met, 3: doubtful, 4: missed}).undecided == 3
    often = JudgedLoad("unresolved", "met", 3, True)
    assert edge_of({1: likely, 2: likely, 3: often, 4: missed}).undecided == 2
    assert edge_of({1: likely, 2: met, 3: often, 4: missed}).undecided is None


def test_in_limited_time_a_load_clearly_below_the_edge_is_decided_before_those_next_to_it() -> None:
    met, likely, missed = (
        JudgedLoad("met", "met", 1, True),
        JudgedLoad("unresolved", "met", 1, True),
        JudgedLoad("missed", "missed", 1, True),
    )
    assert edge_of({16: likely, 20: likely, 21: missed}, time_limited=True).undecided == 18
    assert edge_of({16: likely, 18: met, 20: likely, 21: missed}, time_limited=True).undecided == 20
    long = JudgedLoad("unresolved", "met", 2, True, window_s=70.0)
    edge = edge_of({16: likely, 18: long, 20: likely, 21: missed}, time_limited=True)
    assert (edge.undecided, edge.window_s) == (18, 70.0)
    open_still = JudgedLoad("unresolved", "met", 3, True)
    assert edge_of({16: likely, 18: open_still, 20: likely, 21: missed}, time_limited=True).undecided == 20
    assert edge_of({4.5: likely, 4.7: missed}, time_limited=True).undecided == 4.05
    assert edge_of({1: likely, 2: missed}, time_limited=True).undecided == 1
