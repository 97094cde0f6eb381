"""One level in the words of `vllm bench serve`: for those who know its block of figures, and compare with it."""

from __future__ import annotations

from harness.analysis.stats import SAMPLES
from harness.data.summary import Spread, Summary
from harness.report import document as doc
from harness.report.format import MISSING, number
from harness.report.headline import unit_of

_TIMES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2EL", "e2e_s"))


def section(summary: Summary) -> doc.Section:
    """Return the figures of the only level; an empty section where there are several, or nothing was generated."""
    if len(summary.levels) != 1 or not unit_of(summary).decodes:
        return doc.Section()
    (level,) = summary.levels
    done = level.requests - level.errors - level.cancelled
    if done <= 0:
        return doc.Section()

    def total(each: float | None) -> str:
        return MISSING if each is None else number(round(each * done))

    facts = [
        doc.Fact("Successful requests", number(done)),
        doc.Fact("Benchmark duration (s)", f"{level.window_s:.2f}"),
        doc.Fact("Total input tokens", total(level.input_tokens_mean)),
        doc.Fact("Total generated tokens", total(level.output_tokens_mean)),
        doc.Fact("Request throughput (req/s)", number(level.requests_per_s.mean)),
        doc.Fact("Output token throughput (tok/s)", number(level.output_tokens_per_s.mean)),
    ]
    for name, field in _TIMES:
        spread: Spread = getattr(level, field)
        facts += [
            doc.Fact(f"Mean {name} (ms)", _ms(spread.mean)),
            doc.Fact(f"Median {name} (ms)", _percentile(spread, spread.p50, 50)),
            doc.Fact(f"P99 {name} (ms)", _percentile(spread, spread.p99, 99)),
        ]
    return doc.Section("Serving result", facts)


def _ms(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{seconds * 1e3:,.2f}"


def _percentile(spread: Spread, value: float | None, q: int) -> str:
    """The percentile, or how many samples it needs."""
    return _ms(value) if value is not None else f"{MISSING} (n = {spread.n}, {SAMPLES[q]} needed)"
