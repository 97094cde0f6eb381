"""How requests arrive, as people write it, and the rate over time: hand-worked counts, and exact inverses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.spec import traffic
from harness.spec.traffic import Series, Traffic, parse


def test_a_series_has_its_rates_one_after_the_other_and_again() -> None:
    day = Series((0.0, 60.0, 120.0), (10.0, 40.0, 10.0), 180.0)
    assert parse("series(0:10,60:40,120:10)") == parse(" series( 0s:10, 1m:40 , 2m:10 )") == Traffic(profile=day)
    assert (day.mean, day.peak, parse("series(0:10,60:40,120:10)").peak) == (20.0, 40.0, 2.0)
    assert [day.until(t) for t in (0, 30, 60, 90, 180, 195)] == [0, 300, 600, 1800, 3600, 3750]
    assert [day.due(s) for s in (0, 300, 600, 1800, 3600, 3750)] == [0, 30, 60, 90, 180, 195]


def test_a_series_ends_where_it_says_or_as_long_after_its_last_rate_as_before_it() -> None:
    assert parse("series(0s:10,60s:40)").period_s == 120.0
    assert parse("series(0s:10,60s:40,90s)").period_s == 90.0
    assert parse("series(0s:10,60s:40,90s)").own_rate == pytest.approx(20.0)


def test_nothing_is_due_in_a_pause() -> None:
    paused = parse("series(0s:0,10s:5,20s:0,30s)").profile
    assert paused is not None
    assert [paused.due(s) for s in (0.0, 25.0, 50.0, 75.0)] == [10.0, 15.0, 40.0, 45.0]


def test_a_wave_begins_at_its_low_and_is_at_its_mean_a_quarter_later() -> None:
    wave = parse("wave(period=60s,low=5,high=20)").profile
    assert wave is not None
    assert (wave.mean, wave.peak) == (pytest.approx(12.5), pytest.approx(20.0, rel=1e-4))
    # 12.5 · 15 s less 7.5 · 60 s / 2π, the area under a quarter of the sine; half a period has half of it all.
    assert wave.until(15.0) == pytest.approx(187.5 - 71.6197, abs=1e-3)
    assert (wave.until(30.0), wave.until(60.0)) == (pytest.approx(375.0), pytest.approx(750.0))
    assert [wave.until(t + 0.001) - wave.until(t) for t in (0.0, 30.0)] == pytest.approx([0.005, 0.020], rel=1e-3)


def test_a_spike_is_in_the_middle_of_its_period_or_where_it_is_put() -> None:
    middle = Series((0.0, 55.0, 65.0), (5.0, 50.0, 5.0), 120.0)
    assert parse("spike(period=120s,for=10s,low=5,high=50)").profile == middle
    assert middle.mean == pytest.approx((110 * 5 + 10 * 50) / 120)
    first = parse("spike(period=120s,for=10s,at=0s,low=0,high=50)").profile
    last = parse("spike(period=120s,for=10s,at=110s,low=5,high=50)").profile
    assert first == Series((0.0, 10.0), (50.0, 0.0), 120.0)
    assert last == Series((0.0, 110.0), (5.0, 50.0), 120.0)


def test_the_gaps_of_every_kind_may_be_others() -> None:
    shapes = {"": 1.0, ",gaps=poisson": 1.0, ",gaps=constant": math.inf, ",gaps=gamma(0.25)": 0.25}
    for kind in (
        "series(0s:10,60s:40{})",
        "wave(period=60s,low=5,high=20{})",
        "spike(period=9s,for=1s,low=1,high=9{})",
    ):
        assert [parse(kind.format(gaps)).shape for gaps in shapes] == list(shapes.values())


PROFILES = st.builds(
    lambda steps: Series(tuple(map(float, range(len(steps)))), tuple(steps), float(len(steps))),
    st.lists(st.floats(0.1, 1000), min_size=1, max_size=20),
)


@given(PROFILES, st.floats(0, 50))
def test_a_request_is_due_when_it_is_expected(profile: Series, periods: float) -> None:
    s = periods * profile.mean * profile.period_s
    assert profile.until(profile.due(s)) == pytest.approx(s, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "kind",
    ["poisson", "series(0s:10,60s:40)", "wave(period=120s,low=5,high=20)", "spike(period=120s,for=9s,low=1,high=9)"],
)
def test_a_level_s_rate_is_the_mean_over_a_period(kind: str) -> None:
    arrivals = parse(kind)
    assert arrivals.expected(7.0, 50.0, 50.0 + 240.0) == pytest.approx(7.0 * 240.0)
    assert arrivals.clock(7.0)(7.0 * 240.0) == pytest.approx(240.0)


def test_a_rate_of_its_own_is_kept_bit_for_bit() -> None:
    day = parse("series(0s:10,60s:40)")
    assert (day.own_rate, parse("poisson").own_rate, parse("trace").own_rate) == (25.0, None, None)
    assert day.profile is not None
    assert day.clock(25.0) == day.profile.due


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("wive(1)", "unknown arrivals 'wive(1)'; did you mean 'wave'?"),
        ("", "unknown arrivals ''; known: poisson, constant, gamma, series, wave, spike, trace"),
        ("gamma(0)", "a shape of 0 is below 0.001; write it like gamma(0.25)"),
        ("gamma", "gamma has one number, its shape K; write it like gamma(0.25)"),
        ("gamma(x)", "'x' is not a number; write it like '5', '0.25' or '1.5k'"),
        ("gamma(2", "'gamma(2' has no closing bracket; write it like gamma(0.25)"),
        ("poisson(2)", "poisson has no brackets; write it like poisson"),
        ("series(0s:10)", "a series has two rates or more; write it like series(0s:10,60s:40)"),
        ("series(5s:10,60s:40)", "a series begins at 0s; write it like series(0s:10,60s:40)"),
        ("series(0s:10,60s:40,50s)", "the times of a series rise; write it like series(0s:10,60s:40)"),
        ("series(0s:10,60s:40,50s,9s)", "'50s' has no rate; write it like series(0s:10,60s:40)"),
        ("series(0s:0,60s:0)", "a series has a rate above 0; write it like series(0s:10,60s:40)"),
        ("series(0s:10,60x:40)", "'60x' is not a duration; write it like '50ms', '2s' or '5m'"),
        ("series(0s:10,60s:-4)", "'-4' is not a number; write it like '5', '0.25' or '1.5k'"),
        ("wave(period=60s,low=5)", "wave has no high; write it like wave(period=60s,low=5,high=20)"),
        ("wave(period=60s,lo=5,high=9)", "unknown 'lo' in wave; did you mean 'low'?"),
        ("wave(period=0s,low=5,high=9)", "a period is above 0; write it like wave(period=60s,low=5,high=20)"),
        ("wave(period=9s,low=9,high=5)", "low is not below high; write it like wave(period=60s,low=5,high=20)"),
        ("wave(low=1,low=2)", "low is given twice; write it like wave(period=60s,low=5,high=20)"),
        ("wave(period=9s,low=1,high=5,gaps=gama(2))", "unknown gaps 'gama(2)'; did you mean 'gamma'?"),
        ("wave(gaps=poisson,gaps=poisson)", "gaps is given twice; write it like wave(period=60s,low=5,high=20)"),
        ("trace(speed=0)", "speed is not above 0; write it like trace(speed=2)"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as error:
        parse(text, "x.toml")
    assert str(error.value) == f"x.toml: {line}"


@pytest.mark.parametrize("where", ["for=120s", "for=0s", "for=10s,at=111s"])
def test_a_spike_lies_in_its_period(where: str) -> None:
    with pytest.raises(HarnessError, match="period"):
        parse(f"spike(period=120s,{where},low=5,high=50)")


def test_a_series_is_bounded() -> None:
    rates = ",".join(f"{i}s:1" for i in range(traffic.MOST_RATES + 1))
    with pytest.raises(HarnessError, match="more than 10,000 rates"):
        parse(f"series({rates})")
