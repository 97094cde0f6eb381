"""Numbers as people write them."""

import pytest

from harness import units
from harness.errors import HarnessError, nearest


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


def test_an_error_is_place_fact_and_way_out_in_one_line() -> None:
    error = HarnessError("unknown field 'x'", place="a.toml", way_out=nearest("levls", ["levels", "seed"]))
    assert str(error) == "a.toml: unknown field 'x'; did you mean 'levels'?"
