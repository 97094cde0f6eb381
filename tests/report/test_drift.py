"""The table of what moves over a window: a row for each figure that was read."""

from __future__ import annotations

import msgspec

from harness.data.levels import Drift, Trend
from harness.data.views import Value
from harness.report import document as doc
from harness.report.run_tables import drift
from tests.builders.summaries import full, level

FALLS = Trend(
    mean=90.0, start=100.0, per_hour=Value(-60.0, (-63.0, -57.0)),
    share_per_hour=Value(-0.6, (-0.625, -0.575)), sure=True, bins=40,
)  # fmt: skip
WAITS = msgspec.structs.replace(FALLS, mean=0.15, per_hour=Value(0.01), share_per_hour=None, sure=False)


def test_each_figure_has_its_slope() -> None:
    levels = [level(8), level(16, drift=Drift(throughput=FALLS, ttft_p99_s=WAITS))]
    found = drift(msgspec.structs.replace(full(), levels=levels))
    assert doc.rows(found.columns) == [
        ("16", "output tok/s", "90", "-60", "-60 %; -62.5–-57.5", "yes"),
        ("16", "TTFT p99 ms", "150", "10", "–", "no"),
    ]


def test_short_windows_have_no_table() -> None:
    assert drift(full()) == doc.Section()
