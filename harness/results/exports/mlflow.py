"""A run as MLflow keeps one: parameters, tags, and a metric for each figure of each level.

Names may hold letters, digits, spaces and `_-./`, a parameter's text 6,000 characters (mlflow.org, MLflow Tracking). A
metric's step is the level's concurrency, so that MLflow draws each figure against load; in an open loop it is the
level's number, and `rate` is a metric of its own. A figure that was not measured is not logged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from harness.data.manifest import Manifest
from harness.data.summary import LevelSummary, Summary
from harness.results.exports import rows
from harness.results.exports.rows import Cell

_LONGEST = 500  # characters of a parameter


class Metric(NamedTuple):
    name: str
    value: float
    at_ms: int  # unix time
    step: int


class Logged(msgspec.Struct, frozen=True):
    """What one run comes to; times are unix ms."""

    name: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: list[Metric]
    began_ms: int
    ended_ms: int


def of_run(summary: Summary, manifest: Manifest) -> Logged:
    """The levels in the order of measuring, and behind them the run's answer; without a run's clock all times are 0."""
    metrics = [each for number, level in enumerate(summary.levels) for each in _of_level(number, level, manifest)]
    windows = [level.window for level in summary.levels] or [(0.0, 0.0)]
    ended = _unix_ms(max(end for _, end in windows), manifest)
    answer: dict[str, Cell] = {"knee_concurrency": summary.knee_concurrency}
    if summary.curve is not None:
        answer |= {
            "plateau_tokens_per_s": summary.curve.plateau_tokens_per_s.value,
            "single_stream_tokens_per_s": summary.curve.single_stream_tokens_per_s.value,
        }
    metrics += _numbers(answer, ended, 0)
    return Logged(
        name=manifest.name or "knee",
        params=_params(manifest),
        tags={
            "knee.state": str(summary.knee.state),
            "knee.simulated": str(summary.simulated).lower(),
            "knee.complete": str(summary.complete).lower(),
            "knee.unit": summary.unit,
            "knee.version": manifest.harness_version or "",
        },
        metrics=metrics,
        began_ms=_unix_ms(min(start for start, _ in windows), manifest),
        ended_ms=ended,
    )


def _of_level(number: int, level: LevelSummary, manifest: Manifest) -> list[Metric]:
    step = number if level.concurrency is None else level.concurrency
    at = _unix_ms(level.window[1], manifest)
    return _numbers(rows.row(level), at, step)


def _numbers(figures: Mapping[str, Cell], at_ms: int, step: int) -> list[Metric]:
    """A metric of each that is a finite number."""
    return [
        Metric(name, float(value), at_ms, step)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _unix_ms(at: float, manifest: Manifest) -> int:
    return 0 if manifest.clock is UNSET else round((manifest.clock.unix_origin + at) * 1e3)


def _params(manifest: Manifest) -> dict[str, str]:
    """What was measured on what; a server's facts by their name, behind `server.`."""
    workload = manifest.workload
    found = {
        "scenario": manifest.name,
        "scenario_digest": manifest.scenario_digest,
        "model": manifest.model,
        "api": manifest.api,
        "url": manifest.url,
        "gpu": manifest.gpu,
        "gpus": manifest.gpus,
        "price_usd_per_gpu_hour": manifest.price,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "stack": UNSET if manifest.stack is UNSET else manifest.stack.name,
        **{f"server.{name}": value for name, value in manifest.server.items()},
    }
    return {_allowed(name): str(value)[:_LONGEST] for name, value in found.items() if value not in (None, "", UNSET)}


def _allowed(name: str) -> str:
    """The name with `_` for each character that MLflow refuses.

    >>> _allowed("server.kv cache (GiB)")
    'server.kv cache _GiB_'
    """
    return "".join(each if each.isascii() and (each.isalnum() or each in "_-./ ") else "_" for each in name)[:250]
