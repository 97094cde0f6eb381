"""The measurement beside the prediction: one ratio a level, and what a ratio far from 1 points to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.summary import LevelSummary, Prediction

AGREES = (0.75, 1.15)  # measured over predicted that still agrees


def beside(prediction: Prediction, levels: Sequence[LevelSummary]) -> Prediction:
    """The prediction with measured_over_predicted (its mid) filled in, by concurrency; repeats are averaged.

    None where nothing was measured at that concurrency or every measurement of it is invalid.
    """
    measured: dict[int, list[float]] = {}
    for s in levels:
        x = s.output_tokens_per_s.mean
        if x is not None and not any(v.level == "invalid" for v in s.verdicts):
            measured.setdefault(s.concurrency or 0, []).append(x)

    def ratio(concurrency: int, predicted: float) -> float | None:
        rates = measured.get(concurrency)
        return sum(rates) / len(rates) / predicted if rates and predicted > 0 else None

    return msgspec.structs.replace(
        prediction,
        levels=[
            msgspec.structs.replace(p, measured_over_predicted=ratio(p.concurrency, p.output_tokens_per_s.mid))
            for p in prediction.levels
        ],
    )


def agreement(ratio: float) -> str:
    """What measured over predicted says (analytic.md §3).

    >>> agreement(0.9)
    'agrees'
    >>> agreement(0.5)
    'below: a gap in software, host or client'
    >>> agreement(1.4)
    'above: a wrong spec (sparse peak, prefix cache or KV dtype)'
    """
    low, high = AGREES
    if ratio < low:
        return "below: a gap in software, host or client"
    if ratio > high:
        return "above: a wrong spec (sparse peak, prefix cache or KV dtype)"
    return "agrees"
