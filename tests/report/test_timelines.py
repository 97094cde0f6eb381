"""The charts that need requests or telemetry: over time, and distributions; and the figures that a page begins with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.analysis.timeline import Timeline
from harness.data.manifest import Manifest
from harness.data.summary import Knees
from harness.data.views import Spread, Value
from harness.report import answer as answers
from harness.report import page, run_report
from harness.report.chart import Chart
from harness.results.result import Result
from tests.builders.summaries import SITUATIONS, full, level

DEMO = Path(__file__).parent.parent / "data" / "demo"
EMPTY = Timeline(seconds=1.0)


def test_only_what_was_recorded_has_a_chart() -> None:
    assert run_report.over_time(full(), EMPTY) == []
    found = run_report.over_time(full(), Timeline(seconds=1.0, errors=[(0.5, 0.0), (1.5, 2.0)]))
    assert [each.title for each in found] == ["Failed requests"]
    assert [(point.x, point.y) for point in found[0].series[0].points] == [(0.5, 0.0), (1.5, 2.0)]


def test_each_level_begins_with_a_line_and_its_name_where_there_is_room() -> None:
    starts = zip((1, 2, 4), (10.0, 12.0, 60.0), strict=True)
    levels = [msgspec.structs.replace(level(c), window=(at, at + 1)) for c, at in starts]
    summary = msgspec.structs.replace(full(), levels=levels)
    (chart,) = run_report.over_time(summary, Timeline(seconds=1.0, throughput=[(0.0, 1.0), (100.0, 2.0)]))
    assert [(guide.at, guide.label) for guide in chart.guides] == [(10.0, "1"), (12.0, ""), (60.0, "4")]


def test_a_long_line_keeps_its_peak() -> None:
    line = [(float(i), 9.0 if i == 777 else 1.0) for i in range(1000)]
    (chart,) = run_report.over_time(full(), Timeline(seconds=1.0, throughput=line))
    points = chart.series[0].points
    assert len(points) <= 300
    assert max(point.y for point in points) == 9.0


def test_kv_use_is_in_percent_and_replicas_are_told_apart() -> None:
    found = run_report.over_time(
        full(), Timeline(seconds=1.0, kv_usage={"http://a": [(1.0, 0.5)], "http://b": [(1.0, 0.25)]})
    )
    assert [(each.name, each.points[0].y) for each in found[0].series] == [
        ("KV cache, http://a", 50.0),
        ("KV cache, http://b", 25.0),
    ]


@pytest.mark.slow
def test_a_recorded_run_has_its_charts_on_a_page_of_at_most_1_5_mb() -> None:
    measured = Result.open(DEMO)
    summary = summarise(measured)
    document = run_report.with_records(run_report.report(summary, measured.manifest), summary, measured)
    found: dict[str, Chart] = {chart.name: chart for section in document.sections for chart in section.charts}
    assert {"over-time", "flight-over-time", "ttft-distribution", "tpot-distribution"} <= set(found)
    for name in ("ttft-distribution", "tpot-distribution"):
        for series in found[name].series:
            shares = [point.y for point in series.points]
            assert (shares[0], shares[-1]) == (0.0, 100.0)
            assert shares == sorted(shares)
    titles = [section.title for section in document.sections]
    assert titles.index("Over time") < titles.index("Distributions") < titles.index("Levels")
    assert len(page.render(document).encode()) < 1_500_000


def test_a_page_begins_with_knee_plateau_and_ttft_at_the_knee() -> None:
    levels = [
        msgspec.structs.replace(each, ttft_s=Spread(0.1, 0.09, 0.2, 0.3, 0.4, 0.5, 700)) for each in full().levels
    ]
    found = answers.figures(msgspec.structs.replace(full(), levels=levels))
    assert [(fact.label, fact.text) for fact in found] == [
        ("Knee", "16.2 requests in flight; 95 % interval 15.4–17.1"),
        ("Plateau", "1,853 output tok/s; 95 % interval 1,839–1,868"),
        ("TTFT at the knee", "90 ms; median, measured at C = 16; p99 400 ms"),
    ]


def test_the_knee_of_limits_is_the_highest_load_that_meets_them() -> None:
    knees = Knees(slo=Value(12.0, (12.0, 16.0)))
    (knee, _, ttft) = answers.figures(msgspec.structs.replace(full(), knees=knees))
    assert knee.text == "12 requests in flight; the limits are met there, and missed at 16"
    assert "measured at C = 12" in ttft.detail


@pytest.mark.parametrize("name", ["simulated", "hollow", "interrupted"])
def test_without_a_knee_the_first_figures_are_the_headline_s(name: str) -> None:
    document = run_report.report(SITUATIONS[name](), Manifest())
    assert document.figures == answers.answer(SITUATIONS[name]()).lines[:3]
    assert document.figures[0].value == document.answer
