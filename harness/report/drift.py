"""The table of what moves over a level's window: a row for each figure, its slope, and where it changed at once."""

from __future__ import annotations

from harness.data.summary import LevelSummary, Summary, Trend, Value
from harness.report import document as doc
from harness.report.format import MISSING, confidence, joined, number, percent
from harness.report.headline import unit_of
from harness.report.workload import loads

TITLE = "Over the window"
_NOTE = "change an hour: slope of a line through equal parts of the window; sure: not 0, at 99.99 %"


def section(summary: Summary) -> doc.Section:
    """Its table; an empty one, which is not shown, where every window is shorter than five minutes."""
    per_s = "output tok/s" if unit_of(summary).decodes else unit_of(summary).per_s
    rows = [(level, *each) for level in summary.levels for each in _figures(level, per_s)]
    if not rows:
        return doc.Section()
    columns = [
        loads(summary, [level for level, _, _, _ in rows]),
        doc.Column("figure", [name for _, name, _, _ in rows], words=True),
        doc.Column("mean", [number(trend.mean * scale) for _, _, scale, trend in rows]),
        doc.Column("change\nan hour", [number((trend.per_hour.value or 0.0) * scale) for _, _, scale, trend in rows]),
        doc.Column("share\nan hour", [_share(trend.share_per_hour) for _, _, _, trend in rows], words=True),
        doc.Column("sure", ["yes" if trend.sure else "no" for _, _, _, trend in rows], words=True),
        doc.Column("changed at once", [_change(trend) for _, _, _, trend in rows], words=True),
    ]
    return doc.Section(TITLE, columns=doc.shown(columns), note=_NOTE)


def _figures(level: LevelSummary, per_s: str) -> list[tuple[str, float, Trend]]:
    """(name with its unit, its scale, how it moves) of each figure that was read."""
    moved = level.drift
    if not moved:
        return []
    named = [
        (per_s, 1.0, moved.throughput),
        ("TTFT p99 ms", 1e3, moved.ttft_p99_s),
        ("KV use %", 100.0, moved.kv_usage),
        ("preemptions/s", 1.0, moved.preemptions_per_s),
        ("server memory GB", 1e-9, moved.memory_bytes),
        ("GPU memory GB", 1e-9, moved.gpu_memory_bytes),
    ]
    return [(name, scale, trend) for name, scale, trend in named if trend is not None]


def _share(share: Value | None) -> str:
    """A share an hour with its interval, in percent."""
    if share is None:
        return MISSING
    ends = None if share.ci95 is None else tuple(None if end is None else end * 100 for end in share.ci95)
    return joined(percent(share.value), confidence(ends).removeprefix("95 % interval "))  # type: ignore[arg-type]


def _change(trend: Trend) -> str:
    """Its moment with its interval, its size, and its cause."""
    change = trend.change
    if change is None:
        return MISSING
    at = f"{number(change.at_s.value)} s ({confidence(change.at_s.ci95).removeprefix('95 % interval ')})"
    return joined(at, percent(change.share.value) if change.share is not None else "", change.cause)
