"""A server that changes during a ramp is noticed, with when and by how much; one that keeps its speed never is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from harness.analysis import change
from harness.analysis.change import Shift, TimedPoint
from harness.analysis.seats import Occupancy
from harness.data.judgement import Verdict
from harness.data.levels import LevelSummary
from harness.data.views import Estimate
from tests.builders.summaries import level

EVERY_S = 20.0  # from the middle of a window to that of the next
RAMP = (1, 2, 4, 8, 16, 32, 64, 18, 30, 21, 27)

Server = Callable[[float], float]  # requests in flight in, tok/s out


def serves(seats: float, speed: float = 1.0) -> Server:
    """A server that is faster by a half with as many requests as it has seats, each of them slower."""
    return lambda C: speed * 50 * min(C, seats) / (1 + 0.01 * min(C, seats))


def ramp(
    *stretches: tuple[Server, int], levels: Sequence[int] = RAMP, noise: float = 0.0, seed: int = 0
) -> list[TimedPoint]:
    """The levels of each server in turn, the last one's to the end; each says how many are its own."""
    rng = np.random.default_rng(seed)
    servers = [server for server, count in stretches for _ in range(count)]
    out = []
    for i, (C, server) in enumerate(zip(levels, servers, strict=True)):
        X = server(C) * float(np.exp(noise * rng.normal()))
        out.append(TimedPoint(C, float(C), X, (noise or 0.005) * X, time_s=EVERY_S * i))
    return out


def shift(points: Sequence[TimedPoint]) -> Shift:
    found = change.of_levels(points)
    assert found is not None
    return found


def test_a_server_that_slows_down_is_named_with_time_and_size() -> None:
    found = shift(ramp((serves(24), 7), (serves(24, 0.6), 4), noise=0.03))
    assert (found.times, found.since, found.steady) == (1, 7, (7, 11))
    assert (found.start_s, found.end_s) == (6 * EVERY_S, 7 * EVERY_S)
    low, high = found.ratio.ci95 or (None, None)
    assert low is not None
    assert high is not None
    assert low < 0.6 < high < 0.8


AGAIN = (*RAMP[:8], 8, 26, 21, 8, 90)  # 8 in flight twice more, as a search has a control


@pytest.mark.parametrize("later", [0.99, 1.01])
def test_a_server_that_changes_all_along_shows_at_loads_that_are_measured_again(later: float) -> None:
    drifts = [(serves(24, later**i), 1) for i in range(len(AGAIN))]
    found = change.again(ramp(*drifts, levels=AGAIN, noise=0.01))
    assert found is not None
    low, high = found.ratio.ci95 or (None, None)
    assert low is not None
    assert high is not None
    assert low < later**8 < high
    assert found.apart_s == 8 * EVERY_S, "8 in flight was measured fourth and twelfth"


def test_loads_measured_again_are_left_out_where_a_change_has_its_moment() -> None:
    points = ramp((serves(24), 8), (serves(24, 0.6), 6), levels=(*RAMP[:8], *RAMP[1:7]), noise=0.01)
    found = change.steady(points)
    assert change.again(points) is not None
    assert found.shift is not None
    assert found.again is None
    assert change.steady(points[:8]).again is None


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_loads_that_are_measured_again_on_a_calm_server_show_nothing(noise: float) -> None:
    ramps = [ramp((serves(24), len(AGAIN)), levels=AGAIN, noise=noise, seed=seed) for seed in range(50)]
    assert [change.again(points) for points in ramps] == [None] * 50
    assert change.again(ramp((serves(24), len(RAMP)))) is None, "no load was measured again"
    assert change.again([]) is None


@pytest.mark.slow
def test_more_seats_are_a_change_though_levels_below_the_old_knee_stay() -> None:
    found = shift(ramp((serves(24), 7), (serves(48), 5), levels=(*RAMP[:7], 18, 40, 21, 60, 34), noise=0.01))
    assert found.since in (7, 8)  # with 18 in flight there is no difference
    assert found.ratio.value is not None
    assert found.ratio.value > 1.2
    assert found.concurrency > 24


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
def test_a_calm_server_is_not_doubted(noise: float) -> None:
    ramps = [ramp((serves(24), len(RAMP)), noise=noise, seed=seed) for seed in range(3)]
    assert [change.of_levels(points) for points in ramps] == [None] * 3


@pytest.mark.slow
def test_steps_of_a_curve_are_no_change_where_all_later_levels_have_more_load() -> None:
    """A server whose steps take twice as long with more than 8 in flight, and that has 32 seats."""

    def steps(C: float) -> float:
        return 79.0 * min(C, 32) / (1.78 if C > 8 else 1)

    assert change.of_levels(ramp((steps, 8), levels=(1, 2, 4, 8, 16, 32, 64, 44))) is None
    twice = ramp((steps, 5), (lambda C: 2 * steps(C), 4), levels=(1, 2, 4, 8, 16, 32, 64, 4, 8))
    assert change.of_levels(twice) is not None, "levels of less load tell"


def test_one_level_alone_is_no_change() -> None:
    points = ramp((serves(24), len(RAMP)), noise=0.02)
    points[8] = msgspec.structs.replace(points[8], throughput=1.3 * points[8].throughput)
    assert change.of_levels(points) is None
    assert change.steady(points).points == points


def test_the_moment_may_lie_within_a_window() -> None:
    found = shift(ramp((serves(24), 6), (serves(24, 0.8), 1), (serves(24, 0.6), 4), noise=0.01))
    assert (found.start_s, found.end_s, found.since) == (5 * EVERY_S, 7 * EVERY_S, 7)


@pytest.mark.slow
def test_of_several_changes_the_last_one_counts() -> None:
    levels = (*RAMP[:7], 18, 30, 21, 27, 16, 34, 24)
    slows = ramp((serves(24), 6), (serves(24, 0.7), 4), (serves(24, 0.4), 4), levels=levels, noise=0.01)
    found = shift(slows)
    assert (found.times, found.since, found.start_s) == (2, 10, 5 * EVERY_S)
    assert found.ratio.value == pytest.approx(0.4, rel=0.1)


def resting(slows_at: int | None = None, seed: int = 0) -> list[TimedPoint]:
    """The levels of agents that send 2.5 short requests a second each, of unlike lengths, for 1 s and then for 3."""
    rng = np.random.default_rng(seed)
    levels = (1, 2, 4, 8, 16, 32, 64, 45, 4, 2, 8, 24, 16, 23, 16, 8, 24, 9, 24, 8)
    out = []
    for i, C in enumerate(levels):
        window = 1.0 if i < 7 else 3.0
        requests = int(rng.poisson(2.5 * min(C, 40) * window))
        X = float(rng.lognormal(2.8, 0.83, requests).sum()) / window
        X *= 0.5 if slows_at is not None and i >= slows_at else 1.0
        error = math.sqrt(2 / max(requests, 1))
        by_batches = error * X * float(np.exp(0.4 * rng.normal()))
        out.append(TimedPoint(C, float(C), X, by_batches, chance=0.9 * error, time_s=6.0 * i))
    return out


def test_agents_that_happen_to_send_little_are_no_change_of_the_server() -> None:
    assert [change.of_levels(resting(seed=seed)) for seed in range(8)] == [None] * 8
    assert shift(resting(slows_at=13)).since in (12, 13, 14)


def test_places_are_those_of_the_points_given_and_invalid_ones_say_nothing() -> None:
    points = ramp((serves(24), 7), (serves(24, 0.6), 4), noise=0.02)
    broken = msgspec.structs.replace(points[3], throughput=1.0, valid=False)
    assert shift([*points[:3], broken, *points[3:]]).since == 8


def test_a_search_goes_on_with_the_levels_since_then() -> None:
    points = ramp((serves(24), 7), (serves(24, 0.6), 4), noise=0.02)
    assert change.contradict(points)
    assert change.steady(points, fast=True).points == points[7:]


@pytest.mark.slow
def test_with_too_few_levels_since_then_the_levels_before_are_the_curve() -> None:
    points = ramp((serves(24), 8), (serves(24, 0.6), 3), noise=0.02)
    assert shift(points).steady == (0, 8)
    assert change.steady(points).points == points[:8]


def crowded(points: Sequence[TimedPoint], *stretches: tuple[int, int]) -> list[TimedPoint]:
    """The same points with what their records show of the seats: so many in each stretch, of so many levels."""
    seats = [seats for seats, count in stretches for _ in range(count)]
    return [
        msgspec.structs.replace(
            p, occupancy=Occupancy(p.concurrency, p.concurrency, min(p.concurrency, most), 0.02, 10.0, most, 0.5)
        )
        for p, most in zip(points, seats, strict=True)
    ]


def test_more_seats_are_counted_where_throughput_hardly_shows_them() -> None:
    """At 64 all seats were taken, at 27 more are: throughput is within its noise, the count is not."""
    points = ramp((serves(24), 10), (serves(27.5), 1), noise=0.05)
    found = shift(crowded(points, (24, 10), (27, 1)))
    assert (found.since, found.served, found.steady) == (10, 24.0, (0, 10))
    assert len(change.steady(crowded(points, (24, 10), (27, 1))).crowd) == 10
    assert change.of_levels(points) is None


def test_a_level_that_was_cut_short_is_no_evidence_of_a_change() -> None:
    points = crowded(ramp((serves(24), 10), (serves(27.5), 1), noise=0.05), (24, 10), (27, 1))
    cut = [*points[:-1], msgspec.structs.replace(points[-1], cut=True)]
    assert change.of_levels(points) is not None
    assert change.of_levels(cut) is None
    assert change.steady(cut).points == cut
    short = Verdict(code="cut_short", level="doubt", message="an interrupt ended the level", advice="")
    made = summaries(points[:2])
    assert [p.cut for p in change.timed([made[0], msgspec.structs.replace(made[1], verdicts=[short])])] == [False, True]


def test_few_that_stream_while_first_tokens_are_late_are_no_seats() -> None:
    """A first token after 1.5 s, an answer in 0.5 s: 2 of 4 stream at once, more of 8, though nobody ever waits."""
    shown = [(1, 0.25, 1, 0.25), (2, 0.51, 2, 0.07), (4, 1.1, 2, 0.32), (8, 2.4, 4, 0.11), (16, 5.7, 7, 0.18)]
    points = [
        TimedPoint(C, float(C), 11.9 * C**0.94, assumed=True, se=12 * C**0.5, time_s=EVERY_S * i,
                   occupancy=Occupancy(C, C, streaming, 0.025, 2.1, most, share))
        for i, (C, streaming, most, share) in enumerate(shown)
    ]  # fmt: skip
    assert change.of_levels(points) is None
    assert change.steady(points[:4], fast=True).points == points[:4]
    again = [*points[:3], msgspec.structs.replace(points[2], time_s=50.0), *points[3:]]
    assert change.of_levels(again) is None, "the same load shows the same number"


def test_one_load_is_no_count_of_seats() -> None:
    """What streamed at once at one load may be its own; two loads that show the same number have seats."""
    points = ramp((serves(24), 11), noise=0.05)
    assert change.of_levels(crowded(points, (24, 5), (27, 1), (31, 5))) is None


def test_a_slower_server_keeps_its_seats() -> None:
    points = ramp((serves(24), 7), (serves(24, 0.6), 4), noise=0.02)
    found = change.steady(crowded(points, (24, 11)))
    assert (len(found.points), len(found.crowd)) == (4, 11)


def test_a_queue_before_one_replica_is_no_loss_of_seats() -> None:
    """Replicas of 8 and 24 seats that get half of the users each: 24 stream of 32 users, and 32 from 48 on."""
    loads = (1, 2, 4, 8, 16, 64, 96, 32, 128, 25, 32)
    points = ramp((serves(48), len(loads)), levels=loads, noise=0.02)
    taken = [(min(C // 2, 8) + min(C - C // 2, 24), 1) for C in loads]
    assert change.of_levels(crowded(points, *taken)) is None
    lost = [*taken[:7], (24, 1), (24, 1), (24, 1), (24, 1)]
    assert change.of_levels(crowded(points, *lost)) is not None, "128 users had 32 seats before"


def test_seats_that_stay_are_no_change() -> None:
    points = ramp((serves(24), 11), noise=0.05)
    assert change.of_levels(crowded(points, (24, 11))) is None


def test_a_number_that_never_lasts_is_no_count_of_seats() -> None:
    """Where memory binds, the greatest number that streams at once comes seldom and differs from level to level."""
    points = crowded(ramp((serves(24), 11), noise=0.05), (20, 7), (31, 4))
    rare = [
        msgspec.structs.replace(p, occupancy=p.occupancy and msgspec.structs.replace(p.occupancy, most_fraction=0.05))
        for p in points
    ]
    assert change.of_levels(rare) is None


@pytest.mark.parametrize("points", [[], ramp((serves(24), 4), levels=RAMP[:4])])
def test_few_levels_do_not_contradict_each_other(points: list[TimedPoint]) -> None:
    assert not change.contradict(points)
    assert change.of_levels(points) is None


def summaries(points: Sequence[TimedPoint]) -> list[LevelSummary]:
    """Levels as a run summarises them, with windows of 10 s."""
    return [
        msgspec.structs.replace(
            level(round(p.concurrency)),
            in_flight=p.concurrency,
            output_tokens_per_s=Estimate(p.throughput, (0.9 * p.throughput, 1.1 * p.throughput)),
            output_tokens_per_s_se=p.se,
            window=(p.time_s + 100, p.time_s + 110),
        )
        for p in points
    ]


@pytest.mark.slow
def test_a_curve_is_made_of_the_levels_since_then() -> None:
    points = change.timed(summaries(ramp((serves(24), 7), (serves(24, 0.6), 4), noise=0.02)))
    found = change.steady(points)
    assert found.points == points[7:]
    assert found.shift is not None
    assert (found.shift.start_s, found.shift.end_s) == (6 * EVERY_S + 105, 7 * EVERY_S + 105)
    assert change.steady(points[:7]).points == points[:7]
    assert change.steady(points[:7]).shift is None
