"""Where the levels of a ramp lie once its climb is over, and how it ends."""

from __future__ import annotations

import itertools
import math
from functools import partial

import msgspec
import pytest

from harness.data.record import Role
from harness.data.summary import FOUND
from harness.search.decision import Reason
from harness.search.ramp import next_level
from tests.builders.ramps import climbed, measured, padded, ramp, search, server

KNEES = [(20.5, None), (48.5, None), (16.0, 16), (40.0, 40)]  # knee, seats that records show


@pytest.mark.slow
@pytest.mark.parametrize("hinge", [7.0, 33.0, 48.0])
def test_a_whole_ramp_ends_with_the_hinge_known(hinge: float) -> None:
    options = search(max_concurrency=256)
    whole = ramp(options, partial(server, hinge=hinge))
    assert whole.steps[-1].reason.startswith("stopped: the 95 % interval of the knee")
    assert "not reached" not in whole.steps[-1].reason
    assert whole.known(options).corner == pytest.approx(hinge, rel=0.03)
    assert len({m.users for m in whole.levels}) >= 6
    assert max(m.users for m in whole.levels) <= 6 * hinge
    assert len(whole.refined) <= 12, "and does not use all the levels that it may"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hinge", "seats", "noise"), [(7.0, None, 0.0), *((*each, noise) for each in KNEES[::2] for noise in (0.0, 0.02))]
)
def test_after_the_climb_at_least_half_of_the_time_goes_to_levels_around_the_knee(
    hinge: float, seats: int | None, noise: float
) -> None:
    """An interval of 20 % ends it early, so that levels elsewhere weigh more."""
    options = search(max_concurrency=256, hinge_width=0.2)
    whole = ramp(options, partial(server, hinge=hinge), seats=seats, noise=noise)
    near = sum(m.seconds for m in whole.refined if 0.5 * hinge <= m.users <= 1.5 * hinge)
    assert near >= 0.5 * sum(m.seconds for m in whole.refined)


@pytest.mark.slow
@pytest.mark.parametrize(("hinge", "seats"), KNEES)
def test_levels_around_the_knee_lie_in_turn_below_and_above_it(hinge: float, seats: int | None) -> None:
    whole = ramp(search(max_concurrency=256), partial(server, hinge=hinge), seats=seats)
    above = [(step.concurrency or 0) > hinge for step in whole.steps if step.why is Reason.INFORMATION]
    assert len(above) >= 5
    assert all(a != b for a, b in itertools.pairwise(above))


@pytest.mark.slow
@pytest.mark.parametrize(("seats", "noise"), [(6, 0.0), (8, 0.0), (16, 0.0), (24, 0.02)])
def test_once_requests_wait_nothing_above_twice_that_load_is_measured_but_one_far_level(
    seats: int, noise: float
) -> None:
    """Requests wait where at least 1.15 times as many are in flight as are served."""
    whole = ramp(search(max_concurrency=256), partial(server, hinge=seats), seats=seats, noise=noise)
    waiting = [i for i, m in enumerate(whole.levels) if m.users >= 1.15 * seats]
    assert whole.steps[waiting[0]].role is Role.FIRST_PASS
    assert whole.steps[waiting[0] + 1].role is not Role.FIRST_PASS, "the climb ends with the first of them"
    onset = min(whole.levels[i].users for i in waiting[:2])
    later = [m.users for m in whole.levels[waiting[1] :] if m.users > 2 * onset]
    assert later == [pytest.approx(4 * seats, abs=1)]


@pytest.mark.slow
def test_one_load_at_which_requests_wait_is_followed_by_a_second_one() -> None:
    whole = ramp(search(max_concurrency=256), partial(server, hinge=16.0), seats=16)
    i = next(i for i, step in enumerate(whole.steps) if step.role is not Role.FIRST_PASS)
    assert (whole.steps[i].why, whole.steps[i].concurrency) == (Reason.WAITS, 23)  # √(16·32)
    assert whole.steps[-1].reason == "stopped: the server serves 16 at once"


@pytest.mark.slow
@pytest.mark.parametrize("paced", [False, True])
def test_where_batches_are_padded_levels_off_the_powers_of_two_come_before_the_end(paced: bool) -> None:
    """With 33 in flight less comes than with 32."""
    options = search(max_concurrency=256, paced=paced)
    assert padded(33) < padded(32) < padded(64)
    whole = ramp(options, padded)
    off = {m.users for m in whole.levels if math.log2(m.users) % 1}
    assert {C for C in off if 32 < C < 64}
    assert whole.known(options).corner == pytest.approx(64, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("bend", [0.2, 166.0])
def test_a_server_that_still_rises_at_the_highest_level_allowed_ends_the_ramp_and_is_said_so(bend: float) -> None:
    """With the second bend half of what it tends to is reached at 3 in flight; such a curve has no corner to narrow."""
    whole = ramp(search(max_concurrency=64), partial(server, hinge=500.0, bend=bend))
    assert whole.steps[-1].reason == "stopped: throughput still rises at 64; --max-concurrency 64 is reached"
    assert len(whole.levels) <= 7 + 12


@pytest.mark.slow
def test_a_prediction_changes_the_way_but_not_the_end() -> None:
    wrong, right = (ramp(search(max_concurrency=256, predicted_hinge=about)) for about in (200.0, None))
    for whole in (wrong, right):
        assert whole.steps[-1].reason.startswith("stopped: the 95 % interval of the knee")


@pytest.mark.slow
def test_a_fall_past_the_knee_is_measured_again() -> None:
    rates = [server(C) for C in (1, 2, 4, 8, 16, 32, 64)]
    low = measured(91, 0.8 * rates[-1])
    step = next_level([*climbed(*rates), low], search(max_concurrency=91))
    assert (step.concurrency, step.reason) == (91, "91 again: throughput seems to fall past the knee")
    assert next_level([*climbed(*rates), low, low], search(max_concurrency=91)).why is not Reason.FALLS_AGAIN


@pytest.mark.slow
def test_a_level_of_the_climb_is_measured_again_every_few_levels_and_before_the_far_one() -> None:
    """A server that slows down differs there, and a fall past the knee is like one that slowed down."""
    whole = ramp(search(max_concurrency=256), partial(server, hinge=24.0), seats=24)
    control = [i for i, step in enumerate(whole.steps) if step.why is Reason.CONTROL]
    assert {whole.steps[i].concurrency for i in control} == {8}
    far = next(i for i, step in enumerate(whole.steps) if step.why is Reason.FAR)
    assert 0 < far - control[-1] <= 2
    first = next(i for i, m in enumerate(whole.levels) if m.users == 8)
    assert all(b - a <= 6 for a, b in itertools.pairwise([first, *control]))


@pytest.mark.slow
def test_what_looks_like_a_change_is_confirmed_by_the_last_level_before_it() -> None:
    """The climb from 16 on is much slower: by its load, or from that time on."""
    rates = [server(C) * (1.0 if C < 16 else 0.3) for C in (1, 2, 4, 8, 16, 32, 64)]
    levels = [msgspec.structs.replace(m, time_s=20.0 * i) for i, m in enumerate(climbed(*rates))]
    step = next_level(levels, search(max_concurrency=64))
    assert (step.concurrency, step.why) == (8, Reason.CONTROL)


@pytest.mark.slow
def test_a_server_that_loses_throughput_past_its_knee_is_shown_to() -> None:
    """A fifth of the load's power: 24 % less at four times the knee."""
    options = search(max_concurrency=256)
    whole = ramp(options, lambda C: server(C) * min(1.0, (20 / C) ** 0.2))
    again = [step.concurrency for step in whole.steps if step.why is Reason.FALLS_AGAIN]
    assert again == [32]
    found = whole.known(options)
    assert found.corner == pytest.approx(20, rel=0.05)
    assert found.fit.curve.state == FOUND
    assert found.fit.curve.dip is not None
    assert found.fit.curve.dip.value == pytest.approx(1 - (20 / whole.levels[-1].users) ** 0.2, abs=0.02)
