"""What the ramp goes by of a finished level."""

from __future__ import annotations

from harness.analysis import ramp, slo
from harness.record import Level
from harness.summary import LevelSummary, Spread


def of_level(made: LevelSummary, level: Level) -> ramp.Held:
    """A finished level as the ramp sees it.

    How many requests it took is told by those of its window: those of the whole level are not all over yet when the
    ramp asks, and it shall see the same later.
    """
    assert level.end_s is not None
    invalid = {v.code for v in made.verdicts if v.level == "invalid"}
    seconds = level.end_s - level.begin_s
    return ramp.Held(
        concurrency=level.concurrency,
        rate=level.rate,
        in_flight=made.in_flight,
        output_tokens_per_s=made.output_tokens_per_s.mean or 0.0,
        se=made.output_tokens_per_s_se,
        assumed=made.output_tokens_per_s_se_assumed,
        error_rate=made.error_rate or 0.0,
        seconds=seconds,
        requests=round(made.requests * seconds / made.window_s),
        request_s=made.e2e_s.mean,
        valid=not invalid - {"in_flight_low"},
        in_flight_ok="in_flight_low" not in invalid,
        ttft_p99_s=_p99_at_least(made.ttft_s),
        slo=slo.outcome(made.slo) if made.slo else None,
        unstable="unstable" in invalid,
        stalled="stalled" in level.notes,
    )


def _p99_at_least(spread: Spread) -> float | None:
    """What p99 is or passes, by the highest percentile that the samples carry."""
    carried = (spread.p99, spread.p95, spread.p90, spread.p50)
    return next((value for value in carried if value is not None), None)
