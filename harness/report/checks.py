"""The operational checks of a run as a short table, and for the page as a block that links what each rests on."""

from __future__ import annotations

from harness.analysis.checks import DOUBT, PASS, SECONDS
from harness.base.units import duration
from harness.data.summary import Check, Summary
from harness.report import document as doc
from harness.report.format import MISSING, number, plain, time

_NAMES = {
    "phases": "prefill and decode apart",
    "p99_ttft": "p99 TTFT",
    "kv_cache": "KV use and hits",
    "long_context_tail": "long-context tail",
    "node_loss": "node loss",
}
# Charts by name and sections by title, the best first.
_RESTS_ON = {
    "phases": ("e2e", "Levels"),
    "p99_ttft": ("ttft", "Levels"),
    "kv_cache": ("kv-over-time", "Levels"),
    "long_context_tail": ("Lengths asked and realised", "Classes", "Levels"),
    "node_loss": ("Lost replicas", "replica-throughput", "Replicas"),
}
_UPPER = {"ttft": "TTFT", "e2e": "E2E", "kv": "KV"}
_SHARES = ("prefill_fraction", "ttft_over_e2e", "kv_usage", "hit_fraction")


def section(summary: Summary) -> doc.Section:
    """A row for each check; empty, and not shown, without any."""
    checks = summary.checks or []
    if not checks:
        return doc.Section()
    columns = [
        doc.Column("check", [_NAMES.get(each.name, plain(each.name)) for each in checks], words=True),
        doc.Column("result", [plain(each.outcome) for each in checks], words=True),
        doc.Column("figures", [_figures(each) for each in checks], words=True),
        doc.Column("limit", [_limit(each) for each in checks], words=True),
        doc.Column("at", [number(each.at) for each in checks]),
        doc.Column("remark", [plain(each.message) or MISSING for each in checks], words=True, spare=1),
    ]
    return doc.Section("Operational checks", columns=columns, checks=[_block(each) for each in checks])


def _block(check: Check) -> doc.Check:
    at = f"at {number(check.at)}" if check.at is not None else ""
    return doc.Check(
        name=_NAMES.get(check.name, plain(check.name)),
        kind="pass" if check.outcome == PASS else "doubt" if check.outcome == DOUBT else "unmeasured",
        outcome=plain(check.outcome),
        figures=" ".join(filter(None, [_figures(check), at])) if check.figures else "",
        limit=_limit(check) if check.figures else "",
        message=plain(check.message),
        rests_on=_RESTS_ON.get(check.name, ()) if check.figures else (),
    )


def _figures(check: Check) -> str:
    def one(name: str, value: float) -> str:
        words = " ".join(_UPPER.get(word, word) for word in plain(name.removesuffix("_s")).split("_"))
        shown = time(value) if name.endswith("_s") else f"{value:.0%}" if name in _SHARES else number(value)
        return f"{words} {shown}"

    return ", ".join(one(name, value) for name, value in check.figures.items()) or MISSING


def _limit(check: Check) -> str:
    source = plain(check.source)
    if check.threshold is None:
        return source or MISSING
    return f"{duration(check.threshold) if check.name in SECONDS else f'{check.threshold:.0%}'} ({source})"
