"""Which level comes next, and why."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.points import points_of
from harness.data.levels import Attainment, SessionSummary
from harness.data.record import Level, Role
from harness.search.decision import Decision, End, Reason, Stop
from harness.search.ramp import climb, next_level
from harness.search.state import MeasuredLevel, ceiling
from harness.search.state import measured as of_summary
from tests.builders import summaries
from tests.builders.ramps import MOST, climbed, measured, ramp, search, server
from tests.builders.summaries import EMPTY

# Given levels


def test_fixed_levels_are_measured_in_their_order_and_then_it_ends() -> None:
    options = search(levels=[5, 3])
    assert next_level([], options) == Decision(Reason.FIXED, "given", 5, role=Role.FIXED)
    assert next_level([measured(5, 10.0)], options) == Decision(Reason.FIXED, "given", 3, role=Role.FIXED)
    assert next_level([measured(5, 10.0), measured(3, 10.0)], options) == Decision(
        End.ALL_MEASURED, "all given levels are held"
    )


def test_fixed_rates_likewise() -> None:
    options = search(rates=[0.5, 2.0])
    assert next_level([], options) == Decision(Reason.FIXED, "given", rate=0.5, role=Role.FIXED)
    first = measured(None, 10.0, rate=0.5)
    assert next_level([first], options).rate == 2.0
    both = [first, measured(None, 10.0, rate=2.0)]
    assert next_level(both, options) == Decision(End.ALL_MEASURED, "all given rates are held")


def test_errors_end_fixed_levels() -> None:
    step = next_level(climbed(1.0, 2.0, error_rate=0.02), search(levels=[1, 2, 4]))
    assert step == Decision(Stop.FAILED, "stopped: 2.0% of the requests failed at 2 in flight")
    assert next_level(climbed(1.0, 2.0, error_rate=0.01), search(levels=[1, 2, 4])).concurrency == 4


# A soak


def test_given_levels_end_at_a_first_token_that_comes_later_than_allowed() -> None:
    slow = [measured(1, 50.0, ttft_p99_s=0.2), measured(64, 900.0, ttft_p99_s=1.5)]
    step = next_level(slow, search(levels=[1, 64, 1024], max_ttft_s=1.0))
    assert step.reason == "stopped: TTFT p99 of 1.5 s at 64 is past 1 s"
    assert next_level(slow[:1], search(levels=[1, 64, 1024], max_ttft_s=1.0)).concurrency == 64


def test_a_soak_is_at_a_share_of_the_knee_once_the_search_is_over() -> None:
    levels = ramp(search()).levels
    step = next_level(levels, search(knee_share=0.5))
    assert (step.why, step.role) == (Reason.SOAK, Role.SOAK)
    assert step.concurrency == pytest.approx(10, abs=1)
    assert step.reason == "soak at 50% of the knee"
    soaked = [*levels, measured(10, 10.0, soak=True)]
    assert next_level(soaked, search(knee_share=0.5)) == Decision(End.SOAKED, "the soak is over")


def test_with_an_slo_a_soak_is_at_a_share_of_the_highest_level_that_met_it() -> None:
    levels = [measured(C, server(C), slo="met" if C <= 8 else "missed") for C in (1, 2, 4, 8, 9, 10, 16)]
    step = next_level(levels, search(knee_share=0.75, slo=True, max_concurrency=16, seconds_left=0.0))
    assert (step.concurrency, step.reason) == (6, "soak at 75% of the SLO knee")


def test_a_soak_with_a_load_of_its_own_is_that_level_and_one_that_stalled_is_none() -> None:
    assert next_level([measured(5, 10.0)], search(levels=[5], knee_share=0.8)).why is End.ALL_MEASURED
    stalled = climbed(1.0, 2.0) + [measured(C, 0.1, stalled=True) for C in (4, 8)]
    assert next_level(stalled, search(knee_share=0.8)).why is Stop.STALLED


# The climb


@pytest.mark.parametrize(
    ("rates", "most", "after"),
    [
        ([], 64, 1),
        ([1.0, 2.0, 4.0], 64, 8),
        ([1.0, 2.0, 4.0], 6, 6),
        ([1.0, 2.0, 4.0, 4.0], 64, 11),  # the first flat doubling: half a step, as what comes is dear
        ([1.0, 1.0], 64, 3),
    ],
)
def test_it_doubles_and_after_a_flat_doubling_goes_half_as_far(rates: list[float], most: int, after: int) -> None:
    assert next_level(climbed(*rates), search(max_concurrency=most)).concurrency == after


def test_throughput_that_rises_again_is_doubled_again() -> None:
    levels = [measured(1, 1.0), measured(2, 1.0), measured(3, 2.0)]
    assert next_level(levels, search()).concurrency == 6


def test_two_flat_steps_end_the_climb_and_what_is_missing_is_filled_around_the_bend() -> None:
    levels = [*climbed(1.0, 2.0, 3.0, 3.0), measured(11, 3.0)]
    step = next_level(levels, search())
    assert (step.concurrency, step.reason) == (5, "only 5 levels so far: 5 lies near the bend")
    # A prediction is where to look first, if it lies inside.
    assert next_level(levels, search(predicted_hinge=7.2)).concurrency == 7
    assert next_level(levels, search(predicted_hinge=900.0)).concurrency == 5


def test_too_few_levels_allowed_for_a_hinge_end_it_and_are_named() -> None:
    levels = [measured(C, float(C)) for C in (1, 2, 4, 3)]
    step = next_level(levels, search(max_concurrency=4))
    assert step.over
    assert step.reason.startswith("stopped: a knee needs 6 valid levels, there are 4; --max-concurrency 4")


@pytest.mark.slow
def test_after_errors_nothing_at_that_level_or_above_is_measured_but_below_it_goes_on() -> None:
    levels = climbed(1.0, 2.0, 4.0, 8.0, 9.0, error_rate=0.5, valid=False)
    while not (step := next_level(levels, search())).over and len(levels) < 7:
        assert step.concurrency is not None
        assert step.concurrency < 16
        levels.append(measured(step.concurrency, min(step.concurrency, 8.0)))
    assert len(levels) > 5


def test_where_a_part_of_the_requests_fails_it_has_to_do_so_twice_to_forbid_more() -> None:
    levels = climbed(1.0, 2.0, 4.0, 8.0, error_rate=0.2, valid=False)
    assert next_level(levels, search()).reason == "8 again: the level was invalid"
    assert next_level([*levels, measured(8, 8.0)], search()).concurrency == 16
    assert next_level([*levels, levels[-1]], search()).concurrency in (5, 6, 7)
    for shown in ({"error_rate": 0.6}, {"error_rate": 0.2, "in_flight_ok": False}):
        failed = climbed(1.0, 2.0, 4.0, 8.0, valid=False, **shown)
        assert next_level(failed, search()).concurrency in (5, 6, 7), (
            "most failed, or were refused and left slots empty"
        )


def test_errors_below_levels_that_went_without_any_forbid_nothing() -> None:
    """Two connections that broke at 11, where 32 and 64 were fine: 11 is held once more, and the plateau stays open."""
    levels = [measured(C, server(C)) for C in (1, 2, 4, 8, 16, 32, 45)]
    broke = measured(11, server(11), error_rate=0.011, valid=False)
    assert next_level([*levels, broke], search()).reason == "11 again: the level was invalid"
    assert ceiling([*levels, broke], search())[0] == 64
    assert ceiling([*levels, broke, measured(11, server(11))], search())[0] == 64
    assert ceiling([*levels, broke, broke], search())[0] == 64


def test_ttft_past_its_bound_forbids_only_what_lies_above() -> None:
    levels = climbed(1.0, 2.0, 4.0, 8.0, ttft_p99_s=3.0)
    assert next_level(levels, search()).concurrency == 16
    step = next_level(levels, search(max_ttft_s=2.0))
    assert step.concurrency is not None
    assert step.concurrency < 8


def test_an_invalid_level_is_measured_once_more_and_then_left_out() -> None:
    once = climbed(1.0, 2.0, 4.0, 8.0, valid=False)
    step = next_level(once, search())
    assert (step.concurrency, step.reason) == (8, "8 again: the level was invalid")
    assert next_level([*once, measured(8, 8.0)], search()).concurrency == 16
    assert next_level([*once, measured(8, 4.0, valid=False)], search()).concurrency == 16, "it bars no higher level"


def test_a_single_stream_that_is_twice_invalid_ends_nothing() -> None:
    spoiled = climbed(100.0, valid=False)
    assert next_level(spoiled, search()).concurrency == 1
    assert next_level(spoiled * 2, search()).concurrency == 2


@pytest.mark.parametrize("hinge", [1.5, 2.5])
def test_a_level_that_never_counts_is_given_up_and_others_are_measured_instead(hinge: float) -> None:
    """A cause that stands, like a client too slow for the short answers of a single stream."""
    levels: list[MeasuredLevel] = []
    while not (step := next_level(levels, search())).over:
        assert len(levels) < MOST
        C = step.concurrency
        assert C is not None
        levels.append(measured(C, server(C, hinge), valid=C > 1))
    assert [m.users for m in levels].count(1) == 2


def test_two_stalled_levels_in_a_row_end_the_ramp() -> None:
    stalled = measured(2, 1.0, valid=False, stalled=True)
    assert not next_level([measured(1, 1.0), stalled], search()).over
    step = next_level([measured(1, 1.0), stalled, stalled], search())
    assert step.over
    assert "stalled" in step.reason


def test_a_first_pass_ends_above_a_level_that_nothing_gains_on() -> None:
    """Of a noisy plateau neighbours seem to rise, 161 to 190, and nothing passes 200."""
    noisy = [measured(C, X) for C, X in ((1, 121.0), (2, 142.0), (4, 200.0), (8, 161.0), (11, 190.0))]
    assert climb(noisy, search(paced=True)).reason == "two levels above 4 gained nothing on it"
    assert climb(noisy, search()).concurrency == 22
    assert climb(noisy[:-1], search(paced=True)).concurrency == 11


def test_where_in_flight_no_longer_follows_nothing_higher_is_measured() -> None:
    follows = climbed(1.0, 2.0, 4.0, 8.0, in_flight=7.2, in_flight_ok=False)
    assert next_level(follows, search()).concurrency == 16
    stuck = climbed(1.0, 2.0, 4.0, 8.0, in_flight=4.3, in_flight_ok=False)
    step = next_level(stuck, search())
    assert step.concurrency is not None
    assert step.concurrency <= 8


def test_a_level_that_the_budget_does_not_pay_for_is_not_measured() -> None:
    levels = climbed(1.0, 1.9, 3.6, 6.0)  # 1: 2,944 s … 8: 3,925 s
    assert next_level(levels, search(seconds_left=4_000.0)).concurrency != 16
    step = next_level(levels, search(seconds_left=100.0))
    assert step.over
    assert "the 100 s left are too few" in step.reason
    assert next_level(levels, search(requests_left=10)).over
    # The first pass had a level left, which was not paid for either: that is no reason to end.
    step = next_level([*levels, measured(6, 5.0)], search(seconds_left=100.0))
    assert step.reason.endswith("there are 5; the 100 s left are too few for a level that helps")


@pytest.mark.slow
def test_fixed_levels_go_on_past_one_that_fails_with_keep_going() -> None:
    failed = [measured(1, 50.0), measured(2, 10.0, error_rate=0.9, valid=False)]
    for options in ({"levels": [1, 2, 4]}, {"rates": [1.0, 2.0, 4.0]}):
        assert next_level(failed, search(**options)).over
        step = next_level(failed, search(**options, keep_going=True))
        assert (step.concurrency or step.rate) == 4
    assert next_level([*failed, measured(4, 90.0)], search(levels=[1, 2, 4], keep_going=True)).over


def test_between_a_level_that_succeeds_and_one_that_fails_it_goes_halfway_and_does_not_creep_down() -> None:
    levels = [measured(C, float(C)) for C in (1, 2, 4, 8, 16, 32)]
    failing = {"error_rate": 0.5, "valid": False}
    levels.append(measured(64, 1.0, **failing))
    tried = []
    for _ in range(4):
        C = next_level(levels, search()).concurrency
        assert C is not None
        if C > 32:
            tried.append(C)
        levels.append(measured(C, 1.0, **failing) if C > 32 else measured(C, float(C)))
    assert tried == [45, 38]  # √(32·64), √(32·45); 35 is not worth it


# The SLO


def judged(**slo: str) -> list[MeasuredLevel]:
    """Four levels are all that max_concurrency allows, so that the knee is over at once; c1="met" and so on."""
    return [measured(int(C[1:]), float(C[1:]), slo=outcome) for C, outcome in slo.items()]


def test_the_slo_is_bisected_between_met_and_missed() -> None:
    levels = judged(c1="met", c2="met", c4="missed", c3="missed")
    step = next_level(levels, search(max_concurrency=4, slo=True))
    assert step.over
    assert step.reason.endswith("the SLO is met up to 2 in flight and missed at 3")


def test_an_slo_that_even_a_single_stream_misses_or_that_all_meet_is_reported() -> None:
    none = judged(c1="missed", c2="missed", c4="missed", c3="missed")
    assert "missed even at 1 in flight" in next_level(none, search(max_concurrency=4, slo=True)).reason
    every = judged(c1="met", c2="met", c4="met", c3="met")
    assert next_level(every, search(max_concurrency=4, slo=True)).reason.endswith(
        "met up to 4 in flight; --max-concurrency 4 is reached"
    )


def test_an_unresolved_level_is_measured_twice_more_and_is_then_the_answer() -> None:
    levels = judged(c1="met", c2="met", c4="missed", c3="unresolved")
    for _ in range(2):
        step = next_level(levels, search(max_concurrency=4, slo=True))
        assert step.concurrency == 3
        levels.append(measured(3, 3.0, slo="unresolved"))
    step = next_level(levels, search(max_concurrency=4, slo=True))
    assert step.over
    assert step.reason.endswith("met up to 2 in flight and unresolved at 3")


def test_what_ends_both_searches_is_given_once() -> None:
    levels = judged(c1="met", c2="met", c4="missed", c8="missed", c16="missed")
    assert next_level(levels, search(slo=True, seconds_left=0.0)).reason == (
        "stopped: a knee needs 6 valid levels, there are 5; the SLO is met up to 2 in flight and missed at 4; "
        "no time is left for a level that helps"
    )


def test_a_load_that_too_few_requests_leave_open_is_likely_met() -> None:
    open_ = [Attainment("ttft_p99=2s", 0.99, 100, 100, 1.0, (0.96, 1.0), "unresolved")]
    levels = judged(c1="met", c2="met", c4="missed", c3="missed")
    levels[1] = msgspec.structs.replace(levels[1], slo="unresolved", attainments=tuple(open_))
    step = next_level(levels, search(max_concurrency=4, slo=True, quick=True))
    assert step.reason.endswith("the SLO is likely met up to 2 in flight and missed at 3")


def test_a_miss_below_a_level_that_met_is_measured_again() -> None:
    levels = judged(c1="met", c2="missed", c4="met", c3="met")
    assert next_level(levels, search(max_concurrency=4, slo=True)).concurrency == 2


# The largest rate


def rates(limit: float, unresolved: float = math.nan, first: float | None = None, **last: object) -> list[Decision]:
    """A search over a server that meets its SLO up to `limit` requests per second."""
    levels: list[MeasuredLevel] = []
    options = search(search_rate=True, slo=True, first_rate=first)
    steps = [next_level(levels, options)]
    while not steps[-1].over:
        rate = steps[-1].rate
        assert rate is not None
        assert len(levels) < 40
        outcome = "unresolved" if rate == unresolved else "met" if rate <= limit else "missed"
        levels.append(measured(None, 100.0, rate=rate, slo=outcome))
        steps.append(next_level(levels, options))
    return steps


def test_a_rate_is_doubled_until_missed_and_then_bisected_to_5_percent() -> None:
    tried = [s.rate for s in rates(21.0)]
    assert tried[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert tried[6] == 22.6  # √(16·32)
    met = max(r for r in tried if r is not None and r <= 21.0)
    missed = min(r for r in tried if r is not None and r > 21.0)
    assert missed <= 1.05 * met


def test_a_first_rate_that_is_missed_is_halved() -> None:
    assert [s.rate for s in rates(0.3, first=1.25)][:3] == [1.25, 0.625, 0.312]


def test_an_unstable_rate_counts_as_missed_whatever_its_requests_met() -> None:
    levels = [measured(None, 10.0, rate=1.0, slo="met"), measured(None, 10.0, rate=2.0, slo="met", unstable=True)]
    assert next_level(levels, search(search_rate=True, slo=True)).rate == 1.41


def test_an_unresolved_rate_is_measured_three_times_in_all() -> None:
    assert [s.rate for s in rates(21.0, unresolved=16.0)].count(16.0) == 3


# What holds for every ramp


OUTCOMES = st.sampled_from(["met", "missed", "unresolved"])
LEVEL = st.tuples(
    st.floats(0.2, 3.0), st.booleans(), st.sampled_from([0.0, 0.0, 0.0, 0.5]), OUTCOMES, st.floats(0.01, 4.0)
)


@settings(max_examples=15, deadline=None)
@given(st.lists(LEVEL, min_size=40, max_size=40), st.integers(1, 5), st.booleans())
def test_whatever_comes_back_it_stays_within_bounds_ends_and_is_the_same_again(
    fates: list[tuple[float, bool, float, str, float]], most: int, slo: bool
) -> None:
    """Up to 5 levels need no fit: every answer, as wild as it may be, in milliseconds."""
    options = search(max_concurrency=most, slo=slo, max_ttft_s=3.0)
    levels: list[MeasuredLevel] = []
    for factor, valid, errors, outcome, ttft in fates:
        step = next_level(levels, options)
        assert step == next_level(list(levels), options)
        assert step.reason
        if step.over:
            break
        C = step.concurrency
        assert C is not None
        assert 1 <= C <= most
        assert ceiling(levels, options)[0] >= C
        clean = max((h.users for h in levels if h.counts), default=0)
        assert not any(h.error_rate > 0.01 and clean < h.users <= C for h in levels)
        levels.append(
            measured(C, C * factor, valid=valid and errors == 0.0, error_rate=errors, slo=outcome, ttft_p99_s=ttft)
        )
    else:
        raise AssertionError("it did not end")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(OUTCOMES, st.booleans(), st.booleans()), min_size=60, max_size=60))
def test_every_search_for_a_rate_ends(fates: list[tuple[str, bool, bool]]) -> None:
    levels: list[MeasuredLevel] = []
    for outcome, valid, unstable in fates:
        step = next_level(levels, search(search_rate=True, slo=True))
        if step.over:
            return
        assert step.rate is not None
        assert step.rate > 0
        levels.append(measured(None, 10.0, rate=step.rate, slo=outcome, valid=valid, unstable=unstable))
    raise AssertionError("it did not end")


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(st.floats(3.0, 100.0), st.floats(0.0, 2.0), st.integers(6, 100), st.lists(st.floats(-0.1, 0.1), min_size=80))
def test_every_ramp_with_noise_ends_within_its_bounds(hinge: float, bend: float, most: int, noise: list[float]) -> None:
    options = search(max_concurrency=most)
    levels: list[MeasuredLevel] = []
    while not (step := next_level(levels, options)).over:
        C = step.concurrency
        assert C is not None
        assert 1 <= C <= most
        assert len(levels) < MOST
        X = server(C, hinge, bend) * (1 + noise[len(levels) % len(noise)])
        levels.append(measured(C, X, se=0.05 * X))


def test_a_level_of_sessions_lies_at_their_number_not_at_their_requests_in_flight() -> None:
    """8 users who mostly think have 1.6 requests in flight; the knee is wanted in users."""
    thinking = SessionSummary(
        sessions=20, completed=18, failed=0, in_flight=7.2, sessions_per_s=0.6, requests_mean=4.0,
        latency_s=EMPTY, last_token_s=EMPTY,
    )  # fmt: skip
    level = Level(0, 8, 0, 0.0, window_start_s=1.0, window_end_s=11.0, end_s=12.0)
    alone = msgspec.structs.replace(summaries.level(8), in_flight=1.6)
    found = of_summary(msgspec.structs.replace(alone, sessions=thinking), level)
    assert (found.in_flight, found.n, of_summary(alone, level).n) == (8.0, 8.0, 1.6)
    points = points_of([msgspec.structs.replace(alone, sessions=thinking), alone])
    assert [point.in_flight for point in points] == [8.0, 1.6]


def test_a_search_for_a_rate_ends_where_a_request_alone_misses_the_limits() -> None:
    options = search(search_rate=True, slo=True, first_rate=1.0)
    levels: list[MeasuredLevel] = []
    while not (step := next_level(levels, options)).over:
        assert step.rate is not None
        levels.append(measured(None, 50.0, rate=step.rate, slo="missed"))
    assert [level.rate for level in levels] == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert "missed even at 0.0625" in step.reason
