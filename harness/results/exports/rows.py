"""The levels of a summary as flat rows: one name a figure, the unit at the name's end, None where there is no value."""

from __future__ import annotations

from harness.data.summary import Estimate, LevelSummary, Spread, Summary

Cell = str | int | float | bool | None

PLAIN = (
    "concurrency", "rate", "repeat", "in_flight", "window_s", "requests", "errors", "cancelled", "abandoned",
    "error_rate", "input_tokens_mean", "output_tokens_mean",
)  # fmt: skip
ESTIMATES = ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s", "documents_per_s")
MORE = (
    "output_tokens_per_s_per_gpu", "tokens_per_s_per_user", "tokens_per_chunk", "cached_input_fraction",
    "goodput_requests_per_s", "slo_met_fraction",
)  # fmt: skip
SPREADS = ("ttft_s", "ttfat_s", "itl_s", "icl_s", "tpot_s", "e2e_s", "lag_s")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_NONE = Estimate(None)
NAMES = (
    *PLAIN,
    *(f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")),
    "output_tokens_per_s_se",
    *MORE,
    *(f"{name.removesuffix('_s')}_{each}_s" for name in SPREADS for each in STATISTICS),
    "verdicts",
    "simulated",
)


def rows(summary: Summary) -> list[dict[str, Cell]]:
    """A row a level, in the order of measuring; every row has the same names in the same order."""
    return [row(level) | {"simulated": summary.simulated} for level in summary.levels]


def row(level: LevelSummary) -> dict[str, Cell]:
    """The figures of one level: of an `Estimate` the mean and its 95 % interval, of a `Spread` each statistic."""
    found: dict[str, Cell] = {name: getattr(level, name) for name in PLAIN} | {"abandoned": level.abandoned or None}
    for name in ESTIMATES:
        estimate: Estimate = getattr(level, name) or _NONE  # one that is not in the file is false
        low, high = estimate.ci95 or (None, None)
        found |= {name: estimate.mean, f"{name}_low": low, f"{name}_high": high}
    # An error that was assumed is a weight, not a measurement.
    se = None if level.output_tokens_per_s_se_assumed else level.output_tokens_per_s_se
    found |= {"output_tokens_per_s_se": se, **{name: getattr(level, name) for name in MORE}}
    for name in SPREADS:
        spread: Spread = getattr(level, name)
        found |= {f"{name.removesuffix('_s')}_{each}_s": getattr(spread, each) for each in STATISTICS}
    return found | {"verdicts": " ".join(dict.fromkeys(f"{each.level}:{each.code}" for each in level.verdicts))}
