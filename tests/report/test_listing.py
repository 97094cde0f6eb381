"""Result folders as a table and over time."""

from __future__ import annotations

import pytest

from harness.decide.check.figures import Quantity
from harness.decide.listing import Broken, Entry, Listing
from harness.report import listing as report
from harness.report import markdown, page


def entry(place: str, created: str | None, value: float | None, model: str = "m", **changes: object) -> Entry:
    fields: dict[str, object] = {
        "place": place, "created": created, "target": "http://x", "model": model, "per_s": "output tok/s",
        "simulated": False, "state": "found", "knee": Quantity(16.0), "plateau": Quantity(100.0),
        "figure": Quantity(value, None if value is None else (0.9 * value, 1.1 * value)), "status": "complete",
    }  # fmt: skip
    return Entry(**fields | changes)  # type: ignore[arg-type]


ROWS = [
    entry("a", "2026-03-01T00:00:00+00:00", 0.1),
    entry("b", "2026-03-03T00:00:00+00:00", 0.2, model="other"),
    entry("c", "2026-03-05T00:00:00+00:00", None),
    entry("d", None, 0.3),
]


def test_a_figure_over_time_has_a_point_for_each_run_that_has_it_and_a_date() -> None:
    chart = report.over_time(ROWS, "ttft_p50@8", "s")
    assert [each.name for each in chart.series] == ["m", "other"]
    ((point,), (other,)) = (each.points for each in chart.series)
    assert (point.x, point.y, point.low, point.high) == pytest.approx((1772323200.0, 100.0, 90.0, 110.0))
    assert (other.x, other.y) == pytest.approx((1772496000.0, 200.0))
    assert chart.y.label == "ttft_p50@8, ms"
    assert chart.x.ticks[0] == (1772323200.0, "2026-03-01")
    begin, end = chart.x.ends or (0.0, 0.0)
    assert all(begin < at < end for at, _ in chart.x.ticks)


def test_what_is_provisional_is_a_ring_of_the_same_tone() -> None:
    rows = [ROWS[0], entry("e", "2026-03-02T00:00:00+00:00", 0.1, figure=Quantity(0.1, None, "provisional: too few"))]
    sure, unsure = report.over_time(rows, "plateau", "/s").series
    assert (sure.marker, unsure.marker, unsure.name) == ("dot", "ring", "m, provisional")
    assert sure.tone == unsure.tone
    assert unsure.points[0].hover[-1] == "provisional: too few"
    assert (unsure.points[0].low, unsure.points[0].high) == (0.1, 0.1)


def test_no_point_is_said_in_the_chart() -> None:
    assert report.over_time([], "plateau", "/s").missing == "no run has this figure and a date"


def test_a_simulated_run_is_marked_and_text_from_outside_is_harmless() -> None:
    evil = entry("x\x1b[2J", "lately", 1.0, model="<script>", simulated=True, status="invalid")
    made = report.index(Listing(results=[evil], broken=[Broken("y", "y: not a\nmanifest")]), "plateau", "/s")
    text = markdown.render(made)
    assert "SIMULATED" in text
    assert "invalid, simulated" in text
    assert "y: not a manifest" in text
    assert "\x1b" not in text
    assert r"\<script>" in text


def test_the_page_says_which_command_makes_it_again() -> None:
    source = page.render(report.index(Listing(results=[], broken=[]), "plateau", "/s"))
    assert "Made by knee from result folders. <code>knee list --html FILE</code> makes it again." in source
