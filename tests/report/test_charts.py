"""What the charts contain, and that both drawers draw it; their looks are for the eye."""

from __future__ import annotations

import doctest
import html
import math
import re
import struct
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.manifest import Manifest
from harness.report import chart, charts, headline, plotly_json, png
from harness.summary import Estimate, Spread, Summary, Value
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


def curve_figure(summary: Summary, manifest: Manifest = MANIFEST) -> dict[str, Any]:
    return plotly_json.figure(charts.curve(summary, manifest))


def latency_figure(summary: Summary, name: str) -> dict[str, Any]:
    return plotly_json.figure(charts.latency(summary, name))


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t for t in figure["data"] if t.get("name") == name)


def drawn(summary: Summary, manifest: Manifest = MANIFEST) -> bytes:
    return png.draw(charts.curve(summary, manifest))


def test_the_examples_in_the_docstrings_hold() -> None:
    assert [doctest.testmod(module).failed for module in (chart, charts)] == [0, 0]


def test_the_drawn_curve_is_the_fitted_one_with_its_corner() -> None:
    summary = full()
    fitted = trace(curve_figure(summary), "fitted capped hyperbola")
    line = dict(zip(fitted["x"], fitted["y"], strict=True))
    assert summary.curve is not None
    assert line[summary.curve.hinge_concurrency.value] == pytest.approx(1853.4, rel=0.01)
    assert line[min(line)] == pytest.approx(min(line) / (7.0e-3 + 1.0e-4 * min(line)))
    assert line[max(line)] == pytest.approx(1853.4)


def test_no_family_draws_no_curve() -> None:
    names = [t.get("name", "") for t in curve_figure(hollow(), Manifest())["data"]]
    assert not [name for name in names if "fitted" in name]


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
    mid = trace(curve_figure(summary), "predicted, low–mid–high")
    assert len(mid["x"]) > 20
    assert mid["y"] == pytest.approx([1.06 * throughput(n) for n in mid["x"]], rel=1e-9)


def test_levels_are_drawn_where_they_were_measured_and_invalid_ones_hollow() -> None:
    figure = curve_figure(full())
    sound, invalid = trace(figure, "measured, 95 % interval"), trace(figure, "invalid level")
    assert len(sound["x"]) == 9
    assert invalid["x"] == [64 * 0.992]
    assert invalid["marker"]["symbol"] == "circle-open"
    assert sound["error_y"]["array"] == pytest.approx([0.008 * y for y in sound["y"]])


def test_a_level_without_in_flight_is_drawn_at_its_concurrency() -> None:
    levels = [msgspec.structs.replace(level, in_flight=None) for level in full().levels[:3]]
    assert [x for x, _, _ in charts.measured(msgspec.structs.replace(full(), levels=levels))] == [1.0, 2.0, 4.0]


def test_hovering_shows_every_figure_of_the_level() -> None:
    text = trace(curve_figure(full()), "invalid level")["text"][0]
    for part in ("C = 64", "in flight 63.5", "output 1,857 ± 15 tok/s", "TTFT p50 5,135, p90 ", "ITL p50", "TPOT p50",
                 "E2E p50", "errors 3 (timeout 2, reset 1)", "invalid: client_limited"):  # fmt: skip
        assert part in text


def test_knee_and_plateau_are_drawn_only_when_the_plateau_was_reached() -> None:
    reached = [note["text"] for note in curve_figure(full())["layout"]["annotations"]]
    assert "<b>knee 16.2 (15.4–17.1)</b>" in reached
    assert "plateau 1,853 (1,839–1,868)" in reached
    tempted = msgspec.structs.replace(simulated().curve, hinge_concurrency=Value(9.9, (7.0, None)))
    summary = msgspec.structs.replace(simulated(), curve=tempted)
    notes = [note["text"] for note in curve_figure(summary)["layout"]["annotations"]]
    assert [text for text in notes if "knee" in text or "plateau" in text] == ["<b>knee above 8 →</b>"]


def test_a_provisional_knee_is_dashed_with_its_band_and_says_so() -> None:
    figure = curve_figure(provisional())
    notes = [note["text"] for note in figure["layout"]["annotations"]]
    assert "<b>knee about 16.1 (provisional, 11–28)</b>" in notes
    assert "plateau about 1,841 (1,702 or more)" in notes
    upright = [shape for shape in figure["layout"]["shapes"] if shape["type"] == "line" and shape.get("x0") == 16.1]
    assert [shape["line"]["dash"] for shape in upright] == ["dash"]
    assert any(
        shape["type"] == "rect" and (shape["x0"], shape["x1"]) == (11.0, 28.0) for shape in figure["layout"]["shapes"]
    )
    solid = curve_figure(full())["layout"]["shapes"]
    assert "solid" in [shape["line"].get("dash") for shape in solid if shape.get("x0") == 16.2]
    assert latency_figure(provisional(), "ttft")["layout"]["shapes"][0]["line"]["dash"] == "dash"


def test_the_knee_of_the_limits_is_drawn_as_the_knee_and_the_curve_s_own_as_the_hinge() -> None:
    knees = msgspec.structs.replace(full().knees, slo=Value(12.0, (12.0, 16.0)))
    layout = curve_figure(msgspec.structs.replace(full(), knees=knees))["layout"]
    notes = [note["text"] for note in layout["annotations"]]
    assert "<b>knee 12, by the limits</b>" in notes
    assert "<b>hinge 16.2 (15.4–17.1)</b>" in notes
    assert layout["title"]["text"].replace("<br>", " ") == "Knee: 12 requests in flight meet the limits, 16 miss them"


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_answer_stands_above_both_pictures_in_the_words_of_the_report(name: str) -> None:
    summary = SITUATIONS[name]()
    title = curve_figure(summary)["layout"]["title"]["text"]
    assert html.unescape(title.replace("<br>", " ")) == headline.sentence(summary)
    written: list[str] = []
    text = Figure.text

    def listening(self: Figure, x: float, y: float, s: str, **rest: Any) -> Any:
        written.append(s)
        return text(self, x, y, s, **rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Figure, "text", listening)
        drawn(summary)
    assert headline.sentence(summary) in written


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_both_drawers_name_every_series_and_every_guide(name: str) -> None:
    found = charts.curve(SITUATIONS[name](), MANIFEST)
    paper = png.paper((9, 5.4))
    names = [entry for _, entry in png.fill(paper.add_axes((0.1, 0.1, 0.8, 0.8)), found)]
    figure = plotly_json.figure(found)
    assert names == [series.name for series in found.series] == [t["name"] for t in figure["data"] if "name" in t]
    labels = [guide.text for guide in found.guides]
    notes = [re.sub("</?b>", "", note["text"]) for note in figure["layout"]["annotations"]]
    assert [html.unescape(note) for note in notes if note != "SIMULATED"] == labels
    upright = [text.get_text() for text in paper.axes[0].texts]
    assert {guide.text for guide in found.guides if guide.axis == "x"} <= set(upright)


def test_an_unbounded_knee_is_shaded_to_the_edge() -> None:
    curve = full().curve
    knees = msgspec.structs.replace(full().knees, hinge=Value(16.2, (15.4, None)))
    layout = curve_figure(msgspec.structs.replace(full(), curve=curve, knees=knees))["layout"]
    band = next(shape for shape in layout["shapes"] if shape["type"] == "rect" and shape["xref"] == "x")
    assert band["x0"] == 15.4
    assert math.log10(band["x1"]) == pytest.approx(layout["xaxis"]["range"][1])


def test_caps_within_the_axis_are_named_at_their_place() -> None:
    notes = curve_figure(full())["layout"]["annotations"]
    caps = {note["text"]: 10 ** note["x"] for note in notes if note.get("textangle") == -90}
    assert caps == {"max_num_seqs 16": pytest.approx(16), "kv_memory 47": pytest.approx(47)}


def test_latencies_are_milliseconds_and_only_those_that_exist() -> None:
    ttft = latency_figure(full(), "ttft")
    assert [t["name"] for t in ttft["data"]] == ["p50", "p90"]  # no level has the 662 requests of a p99
    assert trace(ttft, "p50")["y"][0] == pytest.approx(30.0)
    assert [t["name"] for t in latency_figure(full(), "itl")["data"]] == ["p50", "p90", "p99"]
    assert latency_figure(hollow(), "e2e")["data"] == []


def test_where_chunks_hold_several_tokens_tpot_stands_in_by_name() -> None:
    bare = Spread(0.008, None, None, None, None, None, 100)
    levels = [msgspec.structs.replace(level, itl_s=bare) for level in full().levels]
    figure = latency_figure(msgspec.structs.replace(full(), levels=levels), "itl")
    assert [t["name"] for t in figure["data"]] == ["mean", "TPOT p50", "TPOT p90"]
    assert trace(figure, "mean")["y"] == [8.0] * 10


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_figure_says_none_or_nan(name: str) -> None:
    summary = SITUATIONS[name]()
    figures = [curve_figure(summary), *(latency_figure(summary, n) for n in charts.LATENCIES)]
    assert not re.search(r"\b(None|nan|null|NaN)\b", msgspec.json.encode(figures).decode())


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_plotly_knows_every_property_of_every_figure(name: str) -> None:
    from plotly.graph_objects import Figure

    summary = SITUATIONS[name]()
    for figure in (curve_figure(summary), *(latency_figure(summary, n) for n in charts.LATENCIES)):
        Figure(figure)  # raises on a property that the schema does not have


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
    assert trace(curve_figure(summary), "measured, 95 % interval")["y"] == [0.0]


@pytest.mark.slow
def test_the_png_takes_any_name_and_a_summary_without_levels() -> None:
    bare = msgspec.structs.replace(hollow(), levels=[], prediction=None, curve=None)
    assert drawn(bare, Manifest(model="/models/$x_{1}$/" + "long-" * 40, gpu="$"))


def test_the_hinge_of_these_tests_is_16() -> None:
    assert throughput(15.99) < P
    assert throughput(16.01) == P
