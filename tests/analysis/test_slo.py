"""Attainment and the SLO knee: each count by hand, each interval against Wilson's, each knee against its definition."""

from __future__ import annotations

import heapq
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import metrics, slo
from harness.analysis.rules.levels import Concluded, near_capacity, prompts_interrupt
from harness.analysis.stats import Z95, wilson
from harness.analysis.table import Table
from harness.base.errors import HarnessError
from harness.data.judgement import Verdict
from harness.data.levels import Attainment, LevelSummary
from harness.data.record import Level, Record
from harness.data.summary import is_decided
from harness.data.views import Estimate, Value
from tests.builders import summaries
from tests.builders.records import WINDOW, request


def judge(records: list[Record], name: str, seconds: float, level: Level = WINDOW) -> Attainment:
    [found] = slo.attainments(slo.limits({name: seconds}), Table.of(records), level)
    return found


def loop(n: int, ttft: Any = lambda i: 0.01) -> list[Record]:
    """n requests that begin evenly over the ten seconds of WINDOW, of two tokens 10 ms apart."""
    began = [10 * i / n for i in range(n)]
    return [request(at, [at + ttft(i), at + ttft(i) + 0.01]) for i, at in enumerate(began)]


def counted(met: int, n: int, needed: float = 0.99, limit: str = "ttft=1s") -> Attainment:
    """An attainment of independent samples."""
    return Attainment(limit, needed, met, n, met / n, wilson(met, n), slo.decided(met, n, needed))


MET, MISSED, UNRESOLVED = counted(1000, 1000), counted(0, 100), counted(100, 100)
UNLIKELY = counted(98, 100)  # not decided either


# Attainment


def test_a_p99_limit_is_met_from_299_requests_that_all_met_it() -> None:
    assert judge(loop(299), "ttft_p99", 0.02) == counted(299, 299, limit="ttft_p99=20ms")
    assert judge(loop(299), "ttft_p99", 0.02).outcome == "met"  # 0.99²⁹⁹ is 4.95 %
    assert judge(loop(298), "ttft_p99", 0.02).outcome == "unresolved"
    assert judge(loop(500), "ttft_p99", 0.005).outcome == "missed"


def test_a_limit_without_a_percentile_needs_99_percent_and_a_median_half() -> None:
    half = loop(500, lambda i: 0.01 if i % 2 else 0.03)
    assert [judge(half, name, 0.02).outcome for name in ("ttft", "ttft_p75", "ttft_p50")] == [
        "missed",
        "missed",
        "unresolved",
    ]
    assert judge(loop(500, lambda i: 0.01 if i % 3 else 0.03), "ttft_p50", 0.02).outcome == "met"


def test_failures_and_timeouts_are_misses_and_what_was_cut_is_out() -> None:
    failed = [request(at, [at + 0.01], error="truncated") for at in (1.0, 2.0)]
    late = [request(at, done=at + 0.1, error="client_deadline") for at in (3.0, 4.0, 5.0)]
    cut = [request(at, [at + 0.01], error="cancelled") for at in (6.0, 7.0)]
    got = judge(loop(400) + failed + late + cut, "ttft", 0.02)
    assert (got.met, got.n, got.fraction) == (400, 405, 400 / 405)


def test_requests_count_that_began_in_the_window() -> None:
    outside = [request(-0.5, [0.5]), request(10.5, [10.6]), request(5.0, [5.1], level=1)]
    assert judge([*loop(20), *outside], "ttft", 0.02).n == 20


def test_in_open_loop_a_latency_counts_from_the_schedule() -> None:
    records = [msgspec.structs.replace(each, scheduled_s=(each.sent_s or 0.0) - 0.05) for each in loop(100)][20:]
    rate = msgspec.structs.replace(WINDOW, concurrency=None, rate=10.0)
    assert (judge(records, "ttft", 0.02).met, judge(records, "ttft", 0.02, rate).met) == (80, 0)
    assert (judge(records, "ttft", 0.061, rate).met, judge(records, "e2e", 0.065, rate).met) == (80, 0)


def test_each_figure_is_the_contracts() -> None:
    # First token (reasoning) after 0.1 s, first of the answer after 0.4 s, then a stall of 2 s; six tokens in 2.6 s.
    one = request(1.0, [1.1, 1.2, 1.3, 1.4, 3.4, 3.5], done=3.6, first_content_s=1.4)
    found = metrics.figures(Table.of([one, request(2.0, [2.5])]), WINDOW, stalled=True)
    assert {name: round(float(column[0]), 6) for name, column in found.items()} == {
        "ttft": 0.1, "ttfat": 0.4, "itl": 0.48, "tpot": 0.48, "e2e": 2.6, "icl": 2.0,
    }  # fmt: skip
    assert np.isnan(found["icl"][1]), "one chunk has no gap"
    assert np.isnan(found["tpot"][1])


def test_itl_of_a_request_is_its_tpot_and_a_percentile_of_itl_is_over_gaps() -> None:
    # Ten gaps of which one is long: the mean keeps the limit, the gap does not.
    uneven = [request(at, [at, *(at + 0.01 * i for i in range(1, 10)), at + 0.2]) for at in np.arange(0.0, 10.0, 0.02)]
    assert judge(uneven, "itl", 0.05).fraction == 1.0
    assert judge(uneven, "icl", 0.05).fraction == 0.0, "the stall of every request is longer"
    gaps = judge(uneven, "itl_p90", 0.05)
    assert (gaps.met, gaps.n) == (4500, 5000)
    assert judge(uneven, "icl_p90", 0.05).fraction == 0.9


def test_streams_that_step_together_are_one_sample_of_gaps_a_step() -> None:
    # 8 streams through 1,000 steps of 10 ms: 8,000 gaps that tell as much as 1,000.
    eight = [request(0.001, [0.001 + 0.01 * i for i in range(1001)]) for _ in range(8)]
    got = judge(eight, "itl_p99", 0.02)
    assert (got.met, got.n) == (8000, 8000)
    assert got.ci95 == pytest.approx(wilson(1000, 1000))
    [two] = slo.attainments(slo.limits({"itl_p99": 0.02}), Table.of(eight), WINDOW, replicas=2)
    assert two.ci95 == pytest.approx(wilson(2000, 2000))


def test_a_failed_request_misses_as_many_gaps_as_the_others_have() -> None:
    nine = [request(0.1 * i, [0.1 * i + 0.01 * k for k in range(11)]) for i in range(9)]
    got = judge([*nine, request(0.95, done=1.0, error="http_5xx")], "itl_p50", 0.02)
    assert (got.met, got.n) == (90, 100)
    assert judge([request(0.1 * i, error="reset", done=0.1 * i) for i in range(9)], "itl_p50", 0.02).met == 0


def test_gaps_of_chunks_are_no_gaps_of_tokens() -> None:
    chunked = [request(at, [at, at + 0.1], tokens=(2, 2)) for at in np.arange(0.0, 10.0, 0.1)]
    got = judge(chunked, "itl_p99", 0.05)
    assert (got.n, got.fraction, got.ci95, got.outcome) == (100, None, None, "unresolved")
    assert judge(chunked, "icl_p99", 0.05).outcome == "missed"
    assert judge(chunked, "itl", 0.06).outcome == "unresolved", "TPOT stands: 0.1 s for two tokens"
    assert judge(chunked, "itl", 0.04).outcome == "missed"


def test_what_a_server_sends_at_once_has_no_gap_within() -> None:
    """Ten lumps of four events, one every 0.4 s: three quarters of the gaps are 0."""
    lumps = [request(at, [at + 0.4 * (i // 4) for i in range(40)]) for at in np.arange(0.0, 4.0, 0.1)]
    table = Table.of(lumps)
    table = msgspec.structs.replace(table, lumped=np.full(len(lumps), 30))
    [got] = slo.attainments(slo.limits({"icl_p50": 0.1}), table, WINDOW)
    assert (got.met, got.outcome) == (0, "missed")


def test_a_level_without_samples_is_unresolved() -> None:
    for name in ("ttft_p99", "itl_p99"):
        assert judge([], name, 1.0).outcome == "unresolved"
    answers_of_one_token = [request(at, [at + 0.1]) for at in np.arange(0.0, 10.0, 0.1)]
    assert judge(answers_of_one_token, "icl_p50", 1.0) == Attainment("icl_p50=1s", 0.5, 0, 0, None, None, "unresolved")


@pytest.mark.parametrize("needed", [0.9, 0.99])
def test_a_decision_is_wrong_as_often_as_its_confidence_allows(needed: float) -> None:
    """Of shares that are just what is needed, 5 % at most are found to be met, and 5 % missed; by 20,000 draws."""
    rng = np.random.default_rng(5)
    for n in (120, 400, 1500):
        counts = np.bincount(rng.binomial(n, needed, 20_000), minlength=n + 1)
        found = dict.fromkeys(("met", "missed", "unresolved"), 0)
        for met in np.flatnonzero(counts):
            found[slo.decided(int(met), n, needed)] += int(counts[met])
        assert max(found["met"], found["missed"]) <= 0.054 * 20_000


def test_mlperfs_early_stopping_is_a_confidence_of_99_percent() -> None:
    """MLPerf Inference's rules for p99: 459 queries without one that is late, 662 with one."""
    strict = slo.limits({"ttft_p99": 0.02}, 0.99)
    for n, expected in ((458, "unresolved"), (459, "met")):
        [found] = slo.attainments(strict, Table.of(loop(n)), WINDOW)
        assert (found.outcome, found.confidence) == (expected, 0.99)
    assert [str(slo.decided(n - 1, n, 0.99, 0.99)) for n in (661, 662)] == ["unresolved", "met"]


def test_gaps_that_a_prompt_of_another_request_makes_late_are_counted() -> None:
    """A stream of 200 gaps of 10 ms, of which every twentieth takes 40 ms since another's first token ends it."""
    ends = np.cumsum([0.04 if i % 20 == 19 else 0.01 for i in range(200)])
    others = [request(float(at) - 0.03, [float(at)]) for at in ends[19::20]]
    got = judge([request(0.0, [0.0, *ends.tolist()]), *others], "itl_p99", 0.02)
    assert (got.met, got.n, got.interrupted) == (190, 200, pytest.approx(0.05))
    alone = judge([request(0.0, [0.0, *ends.tolist()])], "itl_p99", 0.02)
    assert alone.interrupted == 0.0


def near(rate: float, *, window_s: float = 60.0, unstable: bool = False, served: float | None = None) -> LevelSummary:
    """A level of that rate, which the server completes unless it completes less; all of its requests met the limit."""
    verdicts = [Verdict("unstable", "invalid", "")] if unstable else []
    made = summaries.level(8, slo=[MISSED if unstable else MET], verdicts=verdicts)
    done = Estimate(rate if served is None else served)
    return msgspec.structs.replace(made, concurrency=None, rate=rate, window_s=window_s, requests_per_s=done)


def test_a_rate_near_the_capacity_is_provisional_until_its_window_has_the_queue_s_own_time() -> None:
    """Of 6 requests/s 5 are completed. At 4.85, 97 %, a queue forgets in 1/(5 · 0.03²) = 222 s; at 4, in 5 s."""
    overloaded = near(6.0, unstable=True, served=5.0)
    short, long, low = near(4.85), near(4.85, window_s=700.0), near(4.0)
    assert slo.rate_knee([short, overloaded]) == Value(4.85, (None, 6.0))
    assert slo.rate_knee([long, overloaded]) == Value(4.85, (4.85, 6.0))
    assert slo.rate_knee([low, overloaded]) == Value(4.0, (4.0, 6.0))
    assert slo.rate_knee([near(8.0)]) == Value(8.0, (8.0, None))  # its capacity is not known
    [found] = near_capacity.findings(Concluded(levels=[short, overloaded]))
    assert found.message.startswith("4.85 requests per second are 97% of the 5 that the server completes")
    assert "takes some 222 s to come and go, and the window had 60 s" in found.message
    assert "--rate 4.85 --level-seconds 667s" in found.advice


def test_a_level_that_was_cut_before_its_slow_requests_ended_leans_to_no_limit_that_is_met() -> None:
    def rate(at: float, met: int, n: int, *verdicts: Verdict) -> LevelSummary:
        made = summaries.level(8, slo=[counted(met, n)], verdicts=list(verdicts))
        return msgspec.structs.replace(made, concurrency=None, rate=at)

    cut = Verdict(
        "cut_short", "doubt", "the level ended before the last request of its window had: slow ones are missing"
    )
    assert slo.rate_knee([rate(13.1, 41, 41), rate(26.2, 65, 65, cut)]) == Value(13.1, (None, None))
    assert slo.rate_knee([rate(13.1, 41, 41), rate(26.2, 65, 65)]) == Value(26.2, (None, None))
    assert slo.rate_knee([rate(13.1, 41, 41), rate(26.2, 400, 400, cut)]) == Value(26.2, (26.2, None)), "decided"


def test_a_limit_that_only_prompts_of_others_break_says_so() -> None:
    share = Attainment("itl_p99=18ms", 0.99, 9830, 10_000, 0.983, (0.98, 0.986), "missed", interrupted=0.016)
    [found] = prompts_interrupt.findings(Concluded(levels=[level(3, share)]))
    assert found.message == (
        "itl_p99=18ms is missed from C = 3 on, since prompts of others interrupt 1.6% of the gaps; "
        "of the other gaps 0.1% are late"
    )
    assert "tpot" in found.advice
    slow = msgspec.structs.replace(share, met=9500, fraction=0.95)  # most late gaps have no prompt in them
    assert not prompts_interrupt.findings(Concluded(levels=[level(3, slow)]))


# Clumps


def test_misses_in_clumps_tell_less_than_misses_spread_out() -> None:
    spread = judge(loop(500, lambda i: 0.03 if i % 50 == 0 else 0.01), "ttft_p95", 0.02)
    clumped = judge(loop(500, lambda i: 0.03 if 200 <= i < 210 else 0.01), "ttft_p95", 0.02)
    assert (spread.fraction, spread.ci95, spread.outcome) == (0.98, wilson(490, 500), "met")
    assert (clumped.fraction, clumped.outcome) == (0.98, "unresolved")
    assert clumped.ci95 is not None
    assert clumped.ci95[0] < 0.95 < clumped.ci95[1]


def test_where_all_met_it_the_slowest_show_whether_misses_would_come_together() -> None:
    spread = judge(loop(500, lambda i: 0.015 if i % 25 == 0 else 0.01), "ttft_p99", 0.02)
    clumped = judge(loop(500, lambda i: 0.015 if 200 <= i < 220 else 0.01), "ttft_p99", 0.02)
    assert (spread.ci95, spread.outcome) == (wilson(500, 500), "met")
    assert (clumped.met, clumped.n, clumped.outcome) == (500, 500, "unresolved")


def test_a_queue_s_waits_are_covered_though_they_are_no_independent_samples() -> None:
    # 32 slots before a server of 16: whoever waits waits long, and so does the next. The limit is the p98 of it all.
    rng = np.random.default_rng(3)
    turn, free = [(float(at), slot) for slot, at in enumerate(rng.random(32))], [0.0] * 16
    served: list[tuple[float, float]] = []
    heapq.heapify(turn)
    while len(served) < 40_000:
        sent, slot = heapq.heappop(turn)
        begins = max(heapq.heappop(free), sent)
        served.append((sent, begins - sent))
        end = begins + rng.exponential()
        heapq.heappush(free, end)
        heapq.heappush(turn, (end, slot))
    times, waits = np.array(served).T
    limit, seconds = float(np.percentile(waits, 98)), 60.0
    naive = covered = levels = 0
    for start in np.arange(100.0, times[-1] - seconds, seconds):
        inside = (times >= start) & (times < start + seconds)
        n, met = int(inside.sum()), int((waits[inside] <= limit).sum())
        effect = slo.clumping(times[inside], waits[inside], limit, start, start + seconds, 2.0)
        assert effect is not None
        for z, kind in ((Z95, "naive"), (Z95 * effect**0.5, "blocks")):
            low, high = wilson(met, n, z) or (1.0, 0.0)
            covered += kind == "blocks" and low <= 0.98 <= high
            naive += kind == "naive" and low <= 0.98 <= high
        levels += 1
    assert covered >= 0.9 * levels
    assert naive < 0.75 * levels, "which is why"


def test_a_window_too_short_for_blocks_takes_requests_in_flight_together_for_one() -> None:
    # 400 requests of 2.5 s, 100 in flight: four request times, so no more than four samples.
    slow = [request(10 * i / 400, [10 * i / 400 + 2.5]) for i in range(400)]
    met, missed = judge(slow, "ttft_p99", 3.0), judge(slow, "ttft_p99", 2.0)
    assert (met.outcome, missed.outcome) == ("unresolved", "missed")
    assert met.ci95 == pytest.approx(wilson(4, 4))


@pytest.mark.parametrize("size", [1, 20])
def test_the_interval_covers_the_truth_for_clumps_of_any_size(size: int) -> None:
    rng = np.random.default_rng(7)
    times, covered = np.arange(4000) / 40, 0
    for _ in range(200):
        met = np.repeat(rng.random(4000 // size) < 0.9, size)
        effect = slo.clumping(times, np.where(met, 1.0, 3.0), 2.0, 0.0, 100.0, 0.25)
        assert effect is not None
        low, high = wilson(int(met.sum()), 4000, Z95 * effect**0.5) or (1.0, 0.0)
        covered += low <= 0.9 <= high
    assert covered >= 0.92 * 200, "95 % asked"
    assert covered < 200


# Outcomes


def test_one_miss_misses_and_one_doubt_leaves_open() -> None:
    assert slo.outcome([MET, MISSED, UNRESOLVED]) == "missed"
    assert slo.outcome([MET, UNRESOLVED]) == "unresolved"
    assert slo.outcome([MET, MET]) == "met"
    assert slo.outcome([]) == "unresolved"


@given(st.integers(0, 400), st.integers(1, 400), st.integers(2, 9), st.sampled_from([0.5, 0.9, 0.99]))
def test_pooled_repeats_are_one_long_level(met: int, n: int, times: int, needed: float) -> None:
    one = counted(min(met, n), n, needed)
    long = counted(one.met * times, n * times, needed)
    got = slo.pooled([one] * times)
    assert (got.met, got.n) == (long.met, long.n)
    assert got.ci95 == pytest.approx(long.ci95, abs=1e-9)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(2, 5), st.integers(1, 6))
def test_more_samples_of_the_same_share_never_widen(n: int, missed: int, times: int, clump: int) -> None:
    def width(a: Attainment) -> float:
        assert a.ci95 is not None
        return a.ci95[1] - a.ci95[0]

    met = n - min(missed, n)
    ci95 = wilson(met, n, Z95 * clump**0.5)
    clumped = msgspec.structs.replace(counted(met, n), ci95=ci95)
    assert width(slo.pooled([clumped])) == pytest.approx(width(clumped))
    assert width(slo.pooled([clumped] * times)) < width(clumped)


def test_a_repeat_without_an_interval_adds_nothing() -> None:
    chunked = Attainment("itl_p99=1s", 0.99, 0, 50, None, None, "unresolved")
    assert slo.pooled([chunked, chunked]) == chunked
    assert slo.pooled([chunked, MET]) == MET


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=60), st.floats(0.001, 1.0), st.floats(1.0, 3.0))
def test_a_looser_limit_is_never_met_by_fewer(ttfts: list[float], limit: float, looser: float) -> None:
    records = [request(0.1 * i, [0.1 * i + each]) for i, each in enumerate(ttfts)]
    tight, loose = judge(records, "ttft", limit), judge(records, "ttft", limit * looser)
    assert tight.met <= loose.met
    assert tight.n == loose.n == len(ttfts)


@pytest.mark.parametrize(("met", "n", "needed"), [(100, 100, 0.99), (48, 50, 0.9), (48, 100, 0.5), (304, 310, 0.99)])
def test_enough_samples_would_settle_it(met: int, n: int, needed: float) -> None:
    open_ = counted(met, n, needed)
    assert open_.outcome == "unresolved"
    more = slo.enough(open_)
    assert more is not None
    p = met / n
    assert slo.decided(p * more, more, needed) != "unresolved"
    assert slo.decided(p * 0.95 * more, 0.95 * more, needed) == "unresolved"
    assert slo.enough(counted(90, 100, 0.9)) is None


# The knee


def level(at: float, *limits: Attainment, rate: bool = False, invalid: str = "") -> LevelSummary:
    verdicts = [Verdict(invalid, "invalid", "")] if invalid else []
    made = summaries.level(int(at), slo=list(limits), verdicts=verdicts)
    return msgspec.structs.replace(made, concurrency=None, rate=at) if rate else made


@pytest.mark.parametrize(
    ("outcomes", "knee"),
    [
        ({1: MET, 8: MET, 16: MISSED}, Value(8.0, (8.0, 16.0))),
        ({16: MISSED, 8: MET, 1: MET}, Value(8.0, (8.0, 16.0))),
        ({1: MET, 8: MET}, Value(8.0, (8.0, None))),
        ({1: MET, 8: UNRESOLVED, 16: MISSED}, Value(1.0, (1.0, 16.0))),
        ({1: MET, 8: UNRESOLVED, 16: MET, 32: MISSED}, Value(16.0, (16.0, 32.0))),
        ({1: MET, 8: MISSED, 16: MET}, Value(1.0, (1.0, 8.0))),
        ({1: MISSED, 8: MET}, None),
        ({1: UNRESOLVED, 8: MISSED}, Value(1.0, (None, 8.0))),
        ({1: UNRESOLVED, 8: UNRESOLVED}, Value(8.0, (None, None))),
        ({1: UNRESOLVED, 8: UNLIKELY, 16: UNRESOLVED, 32: MISSED}, Value(1.0, (None, 32.0))),
        ({1: UNLIKELY, 8: MISSED}, None),
        ({}, None),
    ],
)
def test_the_knee_is_the_most_that_met_it_below_the_least_that_missed(
    outcomes: dict[int, Attainment], knee: Value | None
) -> None:
    assert slo.knee([level(at, each) for at, each in outcomes.items()]) == knee
    assert slo.rate_knee([level(at, each, rate=True) for at, each in outcomes.items()]) == knee
    assert slo.rate_knee([level(at, each) for at, each in outcomes.items()]) is None


@settings(max_examples=40)
@given(st.dictionaries(st.integers(1, 64), st.sampled_from([MET, MISSED, UNRESOLVED]), max_size=8))
def test_the_knee_met_it_and_nothing_below_missed_it_and_better_levels_never_lower_it(
    outcomes: dict[int, Attainment],
) -> None:
    def knee(of: dict[int, Attainment]) -> float:
        found = slo.knee([level(at, each) for at, each in of.items()])
        return found.value or 0.0 if found and is_decided(found) else 0.0

    fit = [c for c in outcomes if outcomes[c] is MET and MISSED not in [outcomes[d] for d in outcomes if d < c]]
    assert knee(outcomes) == max(fit, default=0.0)
    better = {MISSED: UNRESOLVED, UNRESOLVED: MET, MET: MET}
    for at in outcomes:
        assert knee(outcomes | {at: better[outcomes[at]]}) >= knee(outcomes)


def test_repeats_of_a_level_are_pooled_before_they_are_judged() -> None:
    twice = [level(8, counted(200, 200)), level(8, counted(200, 200))]
    assert slo.knee(twice[:1]) == Value(8.0, (None, None)), "200 leave it open"
    assert slo.knee(twice) == Value(8.0, (8.0, None))


def test_every_limit_has_to_be_met() -> None:
    other = counted(0, 100, limit="itl_p99=50ms")
    assert slo.knee([level(1, MET, MET), level(8, MET, other)]) == Value(1.0, (1.0, 8.0))


def test_invalid_levels_are_left_out_but_overload_is_a_miss() -> None:
    assert slo.knee([level(1, MET), level(8, MISSED, invalid="client_limited")]) == Value(1.0, (1.0, None))
    assert slo.knee([level(1, MET), level(8, MET, invalid="in_flight_low")]) == Value(1.0, (1.0, None))
    for overload in ("errors_above_1_percent", "in_flight_low"):
        assert slo.knee([level(1, MET), level(8, MISSED, invalid=overload)]) == Value(1.0, (1.0, 8.0))
    assert slo.knee([level(1, MET), level(8, MET, invalid="errors_above_1_percent")]) == Value(1.0, (1.0, 8.0))
    unstable = [level(2.5, MET, rate=True), level(5.0, MET, rate=True, invalid="unstable")]
    assert slo.rate_knee(unstable) == Value(2.5, (2.5, 5.0))


def test_most_repeats_of_a_load_decide_it() -> None:
    lost = level(8, MISSED, invalid="errors_above_1_percent")
    assert slo.knee([level(8, MET), level(8, MET), lost]) == Value(8.0, (8.0, None))
    assert slo.knee([level(1, MET), level(8, MET), lost]) == Value(1.0, (1.0, None)), "one of each leaves it open"
    assert slo.knee([level(1, MET), level(8, MET), lost, lost]) == Value(1.0, (1.0, 8.0))


def test_levels_of_a_probe_with_prompts_of_their_own_say_nothing() -> None:
    assert slo.knee([msgspec.structs.replace(level(1, MET), input_tokens_asked=64)]) is None


# Limits


def test_limits_are_read_in_order_with_their_figure_and_share() -> None:
    found = slo.limits({"itl_p99": 0.05, "ttft_p99.9": 2.0, "e2e": 90.0})
    assert [(str(each), each.figure, each.needed, each.of_gaps) for each in found] == [
        ("itl_p99=50ms", "itl", 0.99, True),
        ("ttft_p99.9=2s", "ttft", 0.999, False),
        ("e2e=90s", "e2e", 0.99, False),
    ]
    assert not slo.limits({"itl": 1.0})[0].of_gaps
    with pytest.raises(HarnessError, match="did you mean 'ttft'"):
        slo.limits({"tfft": 1.0})


def test_a_turn_of_an_agent_is_a_request() -> None:
    """100 requests of 20 ms: none within 15 ms, all within 25 ms, as by `e2e`."""
    assert [(limit.name, limit.figure, limit.needed) for limit in slo.limits({"turn_p95": 5.0, "turn": 9.0})] == [
        ("turn_p95", "e2e", 0.95),
        ("turn", "e2e", 0.99),
    ]
    records = loop(100)
    assert judge(records, "turn_p95", 0.015).met == judge(records, "e2e_p95", 0.015).met == 0
    assert judge(records, "turn_p95", 0.025).met == 100
