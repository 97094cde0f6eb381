"""What the charts contain, and that they are drawn; their looks are for the eye."""

from __future__ import annotations

import math
import re
import struct
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.data.manifest import Manifest
from harness.data.summary import Knees, Summary
from harness.data.views import Estimate, Spread, Value
from harness.report import answer as answers
from harness.report import chart, charts, page, png
from harness.report.chart import Chart, Guide, Series
from harness.report.charts import frontier
from tests.builders.summaries import (
    MANIFEST,
    SIMULATED_MANIFEST,
    SITUATIONS,
    P,
    full,
    hollow,
    prediction,
    provisional,
    simulated,
    throughput,
)


def curve(summary: Summary, manifest: Manifest = MANIFEST) -> Chart:
    return charts.curve(summary, manifest)


def series(found: Chart, name: str) -> Series:
    return next(each for each in found.series if each.name == name)


def line(found: Series) -> dict[float, float]:
    return {point.x: point.y for point in found.points}


def names(found: Chart) -> list[str]:
    return [guide.text for guide in found.guides if guide.label]


def guide(found: Chart, at: float) -> Guide:
    return next(each for each in found.guides if each.at == at)


def drawn(summary: Summary, manifest: Manifest = MANIFEST) -> bytes:
    return png.draw(charts.curve(summary, manifest))


def test_the_drawn_curve_is_the_fitted_one_with_its_band() -> None:
    summary = full()
    found = series(curve(summary), "curve, 95 % band")
    assert summary.curve is not None
    assert [(point.x, point.y, point.low, point.high) for point in found.points] == [
        (each.in_flight, each.per_s, each.low, each.high) for each in summary.curve.line
    ]
    assert found.line == "solid"


def test_without_a_fit_no_curve_is_drawn() -> None:
    assert not [each.name for each in curve(hollow(), Manifest()).series if each.tone == "fitted"]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_labels_keep_their_gap_their_order_and_their_bounds(wanted: list[float]) -> None:
    places = chart.spread_apart(wanted, 2.0, 0.0, 10.0)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    assert all(places[b] - places[a] >= 2.0 - 1e-9 for a, b in pairwise(order))
    assert all(-1e-9 <= place <= 10 + 1e-9 for place in places)


@given(st.sets(st.integers(1, 4096), min_size=1, max_size=20))
def test_tick_labels_never_touch(levels: set[int]) -> None:
    kept = chart.ticks(sorted(levels))
    assert set(kept) <= levels
    assert all(math.log2(b / a) >= 0.34 for a, b in pairwise(kept))


def test_the_prediction_between_levels_follows_its_own_hyperbola() -> None:
    summary = msgspec.structs.replace(full(), prediction=prediction((1, 16, 64), {}))
    mid = line(series(curve(summary), "predicted, low–mid–high"))
    assert len(mid) > 20
    assert list(mid.values()) == pytest.approx([1.06 * throughput(n) for n in mid], rel=1e-9)


def test_levels_are_drawn_where_they_were_measured_and_invalid_ones_hollow() -> None:
    found = curve(full())
    sound, invalid = series(found, "measured, 95 % interval"), series(found, "invalid level")
    assert len(sound.points) == 9
    assert [point.x for point in invalid.points] == [64 * 0.992]
    assert invalid.marker == "ring"
    assert [(point.high or 0) - point.y for point in sound.points] == pytest.approx([0.008 * p.y for p in sound.points])


def test_an_interval_stays_within_the_axes_and_an_error_of_the_fit_is_named_as_such() -> None:
    wide = msgspec.structs.replace(
        full().levels[3],
        output_tokens_per_s=Estimate(900.0),
        output_tokens_per_s_se=2000.0,
        output_tokens_per_s_se_assumed=True,
    )
    summary = full()
    assert summary.curve is not None
    noisy = msgspec.structs.replace(summary.curve, parameters={"noise": 2.0})
    found = curve(msgspec.structs.replace(summary, levels=[*summary.levels[:3], wide], curve=noisy))
    (point,) = series(found, "measured, pale: the fit's own error").points
    assert found.y.ends is not None
    assert point.low == 0.0
    assert point.high == found.y.ends[1]
    assert len(series(found, "measured, 95 % interval").points) == 3


def test_an_assumed_error_is_drawn_as_large_as_the_fit_found_it() -> None:
    """In a window of one request time 100 % is assumed, where the curve found that a level is off by 1 %."""
    short = [
        msgspec.structs.replace(
            level,
            output_tokens_per_s=Estimate(level.output_tokens_per_s.mean),
            output_tokens_per_s_se=level.output_tokens_per_s.mean,
            output_tokens_per_s_se_assumed=True,
        )
        for level in full().levels[:6]
    ]
    summary = full()
    assert summary.curve is not None
    scaled = msgspec.structs.replace(summary.curve, parameters={"noise": 0.01})
    found = curve(msgspec.structs.replace(summary, levels=short, curve=scaled))
    points = series(found, "measured, pale: the fit's own error").points
    assert [(point.high or 0) - point.y for point in points] == pytest.approx(
        [0.0196 * point.y for point in points], rel=1e-3
    )


def test_a_level_without_in_flight_is_drawn_at_its_concurrency() -> None:
    levels = [msgspec.structs.replace(level, in_flight=None) for level in full().levels[:3]]
    assert [x for x, _, _ in charts.measured(msgspec.structs.replace(full(), levels=levels))] == [1.0, 2.0, 4.0]


def test_hovering_shows_every_figure_of_the_level() -> None:
    text = " ".join(series(curve(full()), "invalid level").points[0].hover)
    for part in ("C = 64", "in flight 63.5", "output 1,857 ± 15 tok/s", "TTFT p50 5,135, p90 ", "ITL p50", "TPOT p50",
                 "E2E p50", "errors 3 (timeout 2, reset 1)", "invalid: client_limited"):  # fmt: skip
        assert part in text


def test_knee_and_plateau_are_drawn_only_when_the_plateau_was_reached() -> None:
    assert "knee 16.2 (15.4–17.1)" in names(curve(full()))
    assert "plateau 1,853 (1,839–1,868)" in names(curve(full()))
    tempted = msgspec.structs.replace(simulated().curve, hinge_concurrency=Value(9.9, (7.0, None)))
    found = names(curve(msgspec.structs.replace(simulated(), curve=tempted)))
    assert [text for text in found if "knee" in text or "plateau" in text] == ["knee above 8 →"]


def test_a_provisional_knee_is_dashed_with_its_band_and_says_so() -> None:
    found = curve(provisional())
    assert {"knee about 16.1 (provisional, 11–28)", "plateau about 1,841 (1,702 or more)"} <= set(names(found))
    assert (guide(found, 16.1).line, guide(found, 16.1).ci95) == ("dashed", (11.0, 28.0))
    assert guide(curve(full()), 16.2).line == "solid"
    assert charts.latency(provisional(), "ttft").guides[0].line == "dashed"


def test_the_knee_of_the_limits_is_drawn_as_the_knee_and_the_curve_s_own_as_the_hinge() -> None:
    knees = msgspec.structs.replace(full().knees, slo=Value(12.0, (12.0, 16.0)))
    found = curve(msgspec.structs.replace(full(), knees=knees))
    assert {"knee 12, by the limits", "hinge 16.2 (15.4–17.1)"} <= set(names(found))
    assert found.answer == "Knee: 12 requests in flight meet the limits, 16 miss them"


def test_a_limit_near_what_was_measured_is_a_line_across_its_latency() -> None:
    slo = {"ttft_p99": 0.2, "ttft_p50": 60.0, "e2e_p99": 1.0}
    assert names(charts.latency(full(), "ttft", slo)) == ["ttft_p99 = 200ms"]
    assert names(charts.latency(full(), "itl", slo)) == []


def test_ttft_is_on_a_log_axis_unless_a_time_is_0() -> None:
    assert charts.latency(full(), "ttft").y.log == 10
    assert charts.latency(full(), "itl").y.log == 0
    zero = Spread(0.0, 0.0, None, None, None, None, 20)
    levels = [msgspec.structs.replace(full().levels[0], ttft_s=zero), *full().levels[1:]]
    assert charts.latency(msgspec.structs.replace(full(), levels=levels), "ttft").y.log == 0


def open_loop() -> Summary:
    """Three rates of which the last misses the limits; the curve of a closed loop beside it is not drawn."""
    levels = [
        msgspec.structs.replace(level, concurrency=None, rate=rate)
        for level, rate in zip(full().levels[:3], (0.5, 1.0, 2.0), strict=True)
    ]
    knees = Knees(slo_rate=Value(1.0, (1.0, 2.0)))
    return msgspec.structs.replace(full(), levels=levels, knees=knees, prediction=None)


def test_an_open_loop_is_drawn_over_its_rates() -> None:
    found = curve(open_loop())
    assert found.x.label == "target rate, requests/s"
    assert [name for _, name in found.x.ticks] == ["0.5", "1", "2"]
    assert [point.x for point in series(found, "measured, 95 % interval").points] == [0.5, 1.0, 2.0]
    assert [each.name for each in found.series] == ["measured, 95 % interval"]
    assert names(found) == ["knee 1 requests/s, by the limits"]


def test_the_frontier_has_a_point_a_level_beside_the_predicted_ones() -> None:
    found = frontier(full())
    measured, predicted = (each.points for each in reversed(found.series))
    assert (measured[0].x, measured[0].y) == pytest.approx(
        (1 / (7.0e-3 + 1.0e-4 * 0.992), 0.996 * throughput(0.992)), rel=0.02
    )
    assert (predicted[0].x, predicted[0].y) == pytest.approx((1 / 0.008, 1.06 * throughput(1)))
    assert [point.label for point in measured][:3] == ["1", "2", "4"]


def test_repeats_of_a_level_are_points_and_their_line_goes_through_their_mean() -> None:
    one, two = full().levels[2], full().levels[3]
    again = msgspec.structs.replace(
        one, repeat=1, in_flight=4.01, ttft_s=Spread(0.05, 0.05, None, None, None, None, 20)
    )
    found = charts.latency(msgspec.structs.replace(full(), levels=[one, two, again]), "ttft")
    line, points = found.series[0], found.series[1]
    assert (line.name, line.marker, points.name, points.line) == ("", "", "p50", "")
    assert len(points.points) == 3
    assert [point.y for point in line.points] == pytest.approx([(30.0 + 50.0) / 2, 30.0])


def test_a_probe_s_level_is_no_point_of_the_curve() -> None:
    probe = msgspec.structs.replace(full().levels[4], input_tokens_asked=64)
    found = charts.measured(msgspec.structs.replace(full(), levels=[*full().levels[:3], probe]))
    assert [level.concurrency for _, _, level in found] == [1, 2, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_answer_stands_above_the_picture_in_the_words_of_the_report(name: str) -> None:
    summary = SITUATIONS[name]()
    assert curve(summary).answer == answers.answer(summary).sentence
    written: list[str] = []
    text = Figure.text

    def listening(self: Figure, x: float, y: float, s: str, **rest: Any) -> Any:
        written.append(s)
        return text(self, x, y, s, **rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Figure, "text", listening)
        drawn(summary)
    assert answers.answer(summary).sentence in written


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_picture_names_every_series_and_every_guide(name: str) -> None:
    found = curve(SITUATIONS[name]())
    paper = png.paper((9, 5.4))
    entries = [entry for _, entry in png.fill(paper.add_axes((0.1, 0.1, 0.8, 0.8)), found)]
    assert entries == [each.name for each in found.series if each.name]
    upright = [text.get_text() for text in paper.axes[0].texts]
    assert {each.text for each in found.guides if each.axis == "x"} <= set(upright)


def test_a_chart_in_words_has_its_series_and_its_guides() -> None:
    words = chart.described(curve(full()))
    assert words.startswith("meta-llama/Llama-3.1-8B-Instruct: output tok/s against requests in flight.")
    assert "Knee: 16.2 requests in flight (95 % interval 15.4–17.1)." in words
    assert "invalid level: 1,857 at 63.5." in words
    assert "knee 16.2 (15.4–17.1)" in words


def test_caps_within_the_axis_are_named_at_their_place() -> None:
    caps = {each.label: each.at for each in curve(full()).guides if each.tone == "cap"}
    assert caps == {"max_num_seqs 16": 16.0, "kv_memory 47": 47.0}


def test_latencies_are_milliseconds_and_only_those_that_exist() -> None:
    ttft = charts.latency(full(), "ttft")
    assert [each.name for each in ttft.series] == ["p50", "p90"]  # no level has the 662 requests of a p99
    assert ttft.series[0].points[0].y == pytest.approx(30.0)
    assert [each.name for each in charts.latency(full(), "itl").series] == ["p50", "p90", "p99"]
    assert charts.latency(hollow(), "e2e").series == []


def test_where_chunks_hold_several_tokens_tpot_stands_in_by_name() -> None:
    bare = Spread(0.008, None, None, None, None, None, 100)
    levels = [msgspec.structs.replace(level, itl_s=bare) for level in full().levels]
    lumped = msgspec.structs.replace(full(), levels=levels)
    found = charts.latency(lumped, "itl")
    assert [each.name for each in found.series] == ["mean", "TPOT p50", "TPOT p90"]
    assert [point.y for point in found.series[0].points] == [8.0] * 10
    slo = {"itl_p99": 0.01, "tpot_p90": 0.01}
    assert names(charts.latency(lumped, "itl", slo)) == ["tpot_p90 = 10ms"]
    assert names(charts.latency(full(), "itl", slo)) == ["itl_p99 = 10ms"]


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_chart_says_none_or_nan(name: str) -> None:
    summary = SITUATIONS[name]()
    found = [curve(summary), frontier(summary), *(charts.latency(summary, n) for n in charts.LATENCIES)]
    source = page.charts_json({each.name: each for each in found if each.series})
    assert not re.search(r"\b(None|nan|NaN)\b", source)
    assert set(re.findall(r"[^,{\[]*:?null", source)) <= {'"at":null', "null", "[null"}  # an end without a bound


@pytest.mark.parametrize("name", ["ttft", "itl", "e2e"])
def test_every_point_lies_within_the_axes_of_its_picture(name: str) -> None:
    highest = max(point.y for each in charts.latency(full(), name).series for point in each.points)
    found = charts.latency(full(), name, {f"{name}_p99": 2e-3 * highest})  # a limit twice as high
    axes = png.paper((9, 5.4)).add_axes((0.1, 0.1, 0.8, 0.8))
    png.fill(axes, found)
    assert axes.get_ylim()[1] > 2 * highest
    assert len([at for at in axes.get_yticks() if axes.get_ylim()[0] <= at <= axes.get_ylim()[1]]) >= 2
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    points = [point for each in found.series for point in each.points]
    assert len(points) >= 15
    assert all(left <= point.x <= right and low <= point.y <= high for point in points)


@pytest.mark.slow
def test_the_svg_is_xml_with_its_words_and_the_same_whenever_it_is_drawn() -> None:
    first, second = png.vector(curve(full())), png.vector(curve(full()))
    assert first == second
    texts = [each.text for each in ET.fromstring(first).iter("{http://www.w3.org/2000/svg}text")]
    assert "knee 16.2 (15.4–17.1)" in texts


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_png_has_its_size_and_is_small(name: str) -> None:
    data = drawn(SITUATIONS[name](), SIMULATED_MANIFEST if name == "simulated" else MANIFEST)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1440, 864)
    assert len(data) < 200_000


@pytest.mark.slow
def test_a_level_at_which_nothing_flowed_is_drawn_at_zero() -> None:
    dead = msgspec.structs.replace(full().levels[3], in_flight=0.0, output_tokens_per_s=Estimate(0.0, (0.0, 0.0)))
    summary = msgspec.structs.replace(hollow(), levels=[dead], prediction=None)
    assert charts.measured(summary)[0][:2] == (8.0, 0.0)
    assert drawn(summary)
    assert [point.y for point in series(curve(summary), "measured, 95 % interval").points] == [0.0]


@pytest.mark.slow
def test_the_png_takes_any_name_and_a_summary_without_levels() -> None:
    bare = msgspec.structs.replace(hollow(), levels=[], prediction=None, curve=None)
    assert drawn(bare, Manifest(model="/models/$x_{1}$/" + "long-" * 40, gpu="$"))


def test_the_hinge_of_these_tests_is_16() -> None:
    assert throughput(15.99) < P
    assert throughput(16.01) == P


def test_a_name_that_the_font_lacks_is_drawn_by_its_numbers_and_stays_in_the_page_s_drawing() -> None:
    """Warnings are errors here, so that a glyph that is missing would fail both."""
    named = msgspec.structs.replace(curve(full()), subtitle="千问-8b")
    assert png.draw(named) == png.draw(msgspec.structs.replace(named, subtitle="[U+5343 U+95EE]-8b"))
    assert "千问-8b" in png.vector(named).decode()
