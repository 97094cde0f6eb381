"""Numbers as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base import units
from harness.base.errors import HarnessError, nearest


@pytest.mark.parametrize(("text", "value"), [("50ms", 0.05), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), (".5", 0.5)])
def test_durations(text: str, value: float) -> None:
    assert units.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("1.5k", 1500), ("2M", 2_000_000), ("7", 7)])
def test_counts(text: str, value: int) -> None:
    assert units.count(text) == value


@pytest.mark.parametrize("text", ["", "5 parsecs", "ms", "-3s", "1,5s"])
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(HarnessError, match="write it like"):
        units.seconds(text)


@pytest.mark.parametrize("text", ["1.5", "0.5k1", "x"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(HarnessError):
        units.count(text)


@pytest.mark.parametrize("text", ["", "0,1", "1,1", "a,b"])
def test_levels_are_distinct_and_at_least_one(text: str) -> None:
    with pytest.raises(HarnessError, match="--levels"):
        units.levels(text)


@pytest.mark.parametrize("text", ["", "0,1", "-1", "2,2", "a,b"])
def test_rates_are_distinct_and_above_zero(text: str) -> None:
    with pytest.raises(HarnessError, match="--rate"):
        units.rates(text)


def test_levels_and_rates_keep_their_order_and_forgive_spaces() -> None:
    assert units.levels(" 8, 1k,2,") == [8, 1000, 2]
    assert units.rates("10, .5") == [10.0, 0.5]


def test_limits_are_seconds_by_name_in_the_order_given() -> None:
    assert list(units.slo("ttft_p99=2s, itl_p99=50ms,e2e=10s").items()) == [
        ("ttft_p99", 2.0),
        ("itl_p99", 0.05),
        ("e2e", 10.0),
    ]


def test_every_figure_may_be_limited_by_request_and_by_percentile() -> None:
    for figure in ("ttft", "ttfat", "itl", "tpot", "e2e", "icl"):
        assert units.LIMITS[figure] == (figure, None)
        for q, share in (("50", 0.5), ("75", 0.75), ("90", 0.9), ("95", 0.95), ("99", 0.99), ("99.9", 0.999)):
            assert units.slo(f"{figure}_p{q}=1s") == {f"{figure}_p{q}": 1.0}
            assert units.LIMITS[f"{figure}_p{q}"] == (figure, share)


def test_goodput_is_the_same_limits_in_milliseconds_under_the_names_that_people_type() -> None:
    assert units.goodput("ttft:500 tpot:50") == units.slo("ttft=500ms,tpot=50ms")
    assert units.goodput("e2el:2000") == {"e2e": 2.0}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tfft_p99=2s", "--slo: unknown limit 'tfft_p99'; did you mean 'ttft_p99'?"),
        ("ttft_p98=2s", "--slo: unknown limit 'ttft_p98'; did you mean 'ttft_p99'?"),
        (
            "x=1",
            "--slo: unknown limit 'x'; known: ttft, ttfat, itl, tpot, e2e, icl, "
            "each also with _p and one of 50, 75, 90, 95, 99, 99.9",
        ),
        ("ttft", "--slo: 'ttft' has no '='; write it like 'ttft_p99=2s,e2e=10s'"),
        ("ttft=0", "--slo: 'ttft=0' is no limit above 0; write it like 'ttft_p99=2s,e2e=10s'"),
        ("ttft=200", "--slo: '200' has no unit; write 200ms or 200s"),
        ("ttft=1s,e2e=9s,ttft=2s", "--slo: 'ttft' is limited twice; write each limit once"),
        ("ttft=soon", "--slo: 'soon' is not a duration; write it like '50ms', '2s' or '5m'"),
        (",", "--slo: no limit is given; write it like 'ttft_p99=2s,e2e=10s'"),
    ],
)
def test_what_is_no_limit_is_said_in_one_line(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        units.slo(text)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ttft=5", "'ttft=5' has no ':'"),
        ("ttft:5s", "'5s' is not a number of milliseconds"),
        ("e2e:1 e2el:2", "'e2e' is limited twice"),
        ("tpott:50", "unknown limit 'tpott'; did you mean 'tpot'?"),
    ],
)
def test_a_mistaken_goodput_is_said_in_one_line(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        units.goodput(text)
    assert str(caught.value).startswith(f"--goodput: {line}")


@given(st.integers(1, 10**9))
def test_a_written_duration_reads_back(microseconds: int) -> None:
    assert units.seconds(units.duration(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, rel=1e-11)


def test_an_error_is_place_fact_and_way_out_in_one_line() -> None:
    error = HarnessError("unknown field 'x'", place="a.toml", way_out=nearest("levls", ["levels", "seed"]))
    assert str(error) == "a.toml: unknown field 'x'; did you mean 'levels'?"
