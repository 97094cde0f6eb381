"""`import knee`, what people guess for options and fields, and the decisions of the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import harness
import knee
from harness.data.summary import Headline
from harness.library.run import laid_over
from tests.builders import summaries

DEMO = Path(__file__).parents[1] / "data" / "demo"


def test_both_names_are_of_one_package() -> None:
    assert knee is harness
    code = "from knee import run, plan; import harness; assert harness.plan is plan; assert callable(run)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "levels", "rates"),
    [
        ({"concurrency": 4}, [4], None),
        ({"concurrency": [1, 4]}, [1, 4], None),
        ({"levels": "1,4"}, [1, 4], None),
        ({"rate": 5}, None, [5.0]),
        ({"rates": "5,10"}, None, [5.0, 10.0]),
    ],
)
def test_a_load_may_be_a_number_or_a_text(
    options: dict[str, object], levels: list[int] | None, rates: list[float] | None
) -> None:
    found = laid_over(None, "sim:", options).ramp
    assert (found.levels, found.rates) == (levels, rates)


def test_an_interval_has_its_ends_by_name() -> None:
    found = summaries.full().knee
    assert found.ci95 is not None
    assert (found.low, found.high) == found.ci95
    assert Headline("hinge", "none").low is None


def test_a_plan_is_asked_by_the_names_of_plan_json() -> None:
    made = knee.plan(DEMO, requests_per_s=50, gpu_hour=3.0)
    assert made == knee.plan(knee.load(DEMO), rps=50, price=3.0)
    assert (made.question.demand.requests_per_s, made.question.prices.gpu_hour) == (50, 3.0)
    with pytest.raises(knee.HarnessError, match="no field of a plan: requests_pers; did you mean"):
        knee.plan(DEMO, requests_pers=50)


def test_a_check_decides_thresholds() -> None:
    assert knee.check(DEMO, thresholds="error_rate <= 1%").outcome == "met"
    assert knee.check(DEMO, thresholds=["plateau >= 1G"]).outcome == "missed"
    with pytest.raises(knee.HarnessError, match="has no baseline"):
        knee.check(DEMO, thresholds="plateau >= 0.9*baseline")
