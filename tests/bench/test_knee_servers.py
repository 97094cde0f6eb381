"""The servers that no family describes have the truth that is written beside them, and their rows judge by it."""

from __future__ import annotations

import doctest
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.data.views import Value

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import knee_servers as servers
import knee_table
import knee_truths
from knee_servers import Wander
from knee_table import Outcome, Sharp, judged

STEADY = np.ones(round(servers.BUDGET_S / servers.TICK_S) + 1)


def test_the_examples_in_the_docstrings_of_the_table_hold():
    found = doctest.testmod(knee_table)
    assert found.attempted
    assert found.failed == 0


@pytest.mark.parametrize("seats", servers.SEATS)
def test_experts_rise_to_their_seats_and_stay_there(seats):
    for which in range(len(servers.EXPERTS)):
        X = servers.experts(seats, which).X
        assert (np.diff(X[:seats]) > 0).all()
        assert X[seats - 1 :] == pytest.approx(X[seats - 1])


def test_mean_value_analysis_agrees_with_the_networks_worked_by_hand():
    # One station of 1 s, think time 1 s: two in flight find Q = 1/2, so R = 1.5 and X = 2/2.5; then Q = 1.2, X = 3/3.2.
    X = servers.mva((1.0,), 2.0).X / knee_truths.TOKENS
    assert X[:3] == pytest.approx([0.5, 0.8, 3 / 3.2])
    # Two equal stations without think time: X(N) = N/(N + 1).
    assert servers.mva((1.0, 1.0), 2.0).X[:4] / knee_truths.TOKENS == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5])


@pytest.mark.parametrize("name", servers.STATIONS)
def test_the_asymptotes_of_a_closed_network_cross_at_its_knee(name):
    [make] = servers.CURVES[name]
    X = make().X
    assert X[-1] / X[0] == pytest.approx(servers.KNEE)
    assert X[47] < 0.95 * X[-1]  # and it is soft there


def test_a_padded_batch_is_slower_with_33_than_with_32_and_full_at_64():
    server = servers.padded()
    assert server.throughput(32) == pytest.approx(32 / 0.03)
    assert server.throughput(33) == pytest.approx(33 / 0.04)
    assert server.throughput(64) == server.throughput(1000) == pytest.approx(1600)


def test_two_plateaus_lie_where_they_are_to_lie():
    server = servers.two_plateaus()
    assert [server.throughput(N) for N in (4, 8, 16, 32, 40, 41, 1024)] == pytest.approx(
        [200, 400, 400, 800, 1000, 1000, 1000]
    )


def test_a_level_without_noise_is_exact_and_of_unknown_error():
    level = knee_truths.noisy(servers.padded(), 0.0)(64, np.random.default_rng(0))
    assert level.throughput == pytest.approx(1600)
    assert level.se is None


def test_a_wandering_speed_has_its_spread_and_forgets_in_its_time():
    x = np.log(Wander(0.15, 5.0).drawn(20_000.0, np.random.default_rng(1)))
    assert x.std() == pytest.approx(0.15, rel=0.05)
    later = round(5.0 / servers.TICK_S)
    assert np.corrcoef(x[:-later], x[later:])[0, 1] == pytest.approx(math.exp(-1), abs=0.05)


def test_windows_of_six_requests_of_a_calm_server_err_by_3_percent():
    speed = servers.CALM.drawn(15_000.0, np.random.default_rng(2))
    window = round(6 * servers.REQUEST_S / servers.TICK_S)
    means = speed[: len(speed) // window * window].reshape(-1, window).mean(axis=1)
    assert means.std() == pytest.approx(0.03, rel=0.1)


def test_one_request_alone_has_85_percent_of_the_flat_servers_plateau():
    assert servers.FLAT.throughput(1) / servers.FLAT.plateau == pytest.approx(0.85)
    assert servers.MovingServer(servers.FLAT, STEADY).request_s(1, 0.0) == pytest.approx(servers.REQUEST_S)


def test_a_server_changes_at_its_moment_and_a_window_has_a_share_of_both():
    server = servers.MovingServer(servers.DENSE, STEADY, servers.SLOWED, 50.0)
    before = servers.DENSE.throughput(16)
    for start, factor in ((20.0, 1.0), (45.0, 0.8), (60.0, 0.6)):
        level = servers.measured_level(server, 16, start, start + 10.0, 20.0)
        assert level.throughput == pytest.approx(factor * before, rel=0.01)
    assert server.request_s(16, 60.0) == pytest.approx(server.request_s(16, 0.0) / 0.6)


def test_levels_follow_one_another_within_their_budget():
    timed = servers.in_time(servers.MovingServer(servers.DENSE, STEADY), 0, 60.0)
    assert len(timed) >= 4
    assert all(a.end_s < b.start_s for a, b in itertools.pairwise(timed))
    assert timed[-1].end_s <= 60.0 + servers.TICK_S


def test_a_change_shows_only_where_levels_of_both_sides_differ_by_it():
    server = servers.MovingServer(servers.DENSE, STEADY, servers.DOUBLED, 50.0)
    levels = [
        servers.TimedLevel(servers.measured_level(server, C, start, start + 8.0, 10.0), start, start + 8.0)
        for C, start in ((4, 0.0), (8, 10.0), (48, 20.0), (16, 52.0), (64, 62.0))
    ]
    assert servers.watched(server, levels, 0).shows
    assert not servers.watched(server, [*levels[:2], *levels[3:]], 0).shows  # nothing above 24 before it


SHARP = Sharp(0.5, 2.0)
GOOD, ENDLESS = Outcome(48.0, "found", Value(48.0, (40.0, 60.0)), 96, 12), Value(48.0, (40.0, None))


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"hinge": Value(55.0, (50.0, 60.0))}, False),  # found, and wrong
        ({"state": "provisional", "hinge": Value(55.0, (50.0, 60.0))}, False),  # covers too seldom all the same
        ({"hinge": ENDLESS}, False),  # covers everything
        ({"state": "provisional"}, False),  # never found
        ({"hinge": Value(48.0, (30.0, 65.0))}, False),  # not sharp
        ({"state": "provisional", "hinge": Value(None)}, False),
    ],
)
def test_a_row_is_met_by_answers_that_are_right_and_sharp(changes, met):
    one = Outcome(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **changes})
    assert judged("row", "what", [one] * 10, SHARP).met is met


def test_a_row_forgives_2_wrong_answers_of_100_and_counts_ends_only_past_the_truth():
    wrong = Outcome(48.0, "found", Value(55.0, (50.0, 60.0)), 96, 12)
    short = Outcome(48.0, "beyond", Value(None, (20.0, None)), 32, 6)
    assert judged("row", "what", [GOOD] * 98 + [wrong] * 2, SHARP).met
    assert not judged("row", "what", [GOOD] * 97 + [wrong] * 3, SHARP).met
    line = judged("row", "what", [GOOD] * 90 + [short] * 10, SHARP)
    assert "100.0% of 90 finite" in line.found
