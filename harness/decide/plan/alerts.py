"""When to scale and when to wake somebody: thresholds per replica, and the same as Prometheus rules.

Throughput far below what was measured means little while nobody asks for more. So the alerts fire only while requests
wait: then the replicas are asked for all they have. 70 % for five minutes and 50 % are widely quoted levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from harness.base.units import LIMITS, duration
from harness.data.server_metrics import ENGINES, Engine, Figure, Kind, Metric
from harness.decide.plan.capacity import MeasuredLoad

LOW, CRITICAL, LOW_FOR = 0.7, 0.5, "5m"
KV_FULL = 0.95  # of its blocks
_GENERATED = (Figure.GENERATION_TOKENS, Figure.ENDED_GENERATION_TOKENS)


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Per replica, in the run's unit of work per second."""

    scale_out_above: float  # the target utilisation of the operating point
    low_below: float  # for five minutes while requests wait: a warning
    critical_below: float  # while requests wait: critical
    in_flight_above: float | None  # more pass the operating point
    rules: str  # a Prometheus rule file; "": the engine's names are not known


def thresholds(at: MeasuredLoad, utilization: float, engine: str, limits: Mapping[str, float]) -> Thresholds:
    """Return throughput and in-flight thresholds for alerts on a replica, with a rule file if its engine is known."""
    X = at.throughput
    found = Thresholds(
        scale_out_above=utilization * X,
        low_below=LOW * X,
        critical_below=CRITICAL * X,
        in_flight_above=at.in_flight,
        rules="",
    )
    known = next((each for each in ENGINES if each.name == engine), None)
    return msgspec.structs.replace(found, rules=_rules(found, known, limits) if known else "")


def _rules(bounds: Thresholds, engine: Engine, limits: Mapping[str, float]) -> str:
    """Return a file of Prometheus alert rules for an engine; "" if it does not publish tokens and waiting requests."""
    tokens, waiting = _series(engine, *_GENERATED), _series(engine, Figure.WAITING)
    if not tokens or not waiting:
        return ""
    running = _series(engine, Figure.RUNNING)
    replicas = f"count(count by (instance) ({tokens}))"
    each = f"sum(rate({tokens}[5m])) / {replicas}"
    queue = f"sum({waiting}) > 0"
    less = f"sum(rate({tokens}[15m])) / ({replicas} - 1)"
    rules = [
        _rule("KneeScaleOut", f"{each} > {bounds.scale_out_above:.6g}", "1m", "info",
              "Output tokens/s of a replica are above the planned utilisation: start one more."),
        _rule("KneeScaleIn", f"{less} < {bounds.scale_out_above:.6g} and {replicas} > 1", "15m", "info",
              "One replica fewer would stay within the planned utilisation."),
        _rule("KneeThroughputLow", f"{each} < {bounds.low_below:.6g} and {queue}", LOW_FOR, "warning",
              "Requests wait, and a replica makes less than 70 % of what was measured."),
        _rule("KneeThroughputCritical", f"{each} < {bounds.critical_below:.6g} and {queue}", "1m", "critical",
              "Requests wait, and a replica makes less than 50 % of what was measured."),
    ]  # fmt: skip
    if running and bounds.in_flight_above is not None:
        in_flight = f"(sum({running}) + sum({waiting})) / {replicas}"
        rules.append(
            _rule("KneeInFlightHigh", f"{in_flight} > {bounds.in_flight_above:.6g}", "1m", "warning",
                  "More requests are in flight on a replica than at its operating point.")
        )  # fmt: skip
    rules += _of_limits(engine, limits)
    kv = _series(engine, Figure.KV_USAGE)
    if kv:
        rules.append(
            _rule("KneeKvCacheFull", f"max({kv}) > {KV_FULL}", LOW_FOR, "warning",
                  "The KV cache is nearly full: requests will wait or be preempted.")
        )  # fmt: skip
    return "groups:\n  - name: knee-plan\n    rules:\n" + "".join(rules)


def _of_limits(engine: Engine, limits: Mapping[str, float]) -> list[str]:
    """Return an alert rule for each limit on TTFT, if the engine publishes a histogram of it."""
    known = next(_metrics(engine, [Figure.TTFT], histogram=True), None)
    found = []
    for name, seconds in limits.items():
        figure, share = LIMITS[name]
        if known is None or figure != "ttft":
            continue
        series, limit = _labelled(f"{known[0]}_bucket", known[1]), seconds / known[1].scale
        quantile = f"histogram_quantile({0.99 if share is None else share:g}, sum by (le) (rate({series}[5m])))"
        summary = f"The limit {name}={duration(seconds)} is missed."
        suffix = name.removeprefix("ttft").strip("_").upper()
        found.append(_rule(f"KneeTtft{suffix}High", f"{quantile} > {limit:.6g}", LOW_FOR, "warning", summary))
    return found


def _rule(name: str, expression: str, lasts: str, severity: str, summary: str) -> str:
    """Return one alert of a rule file; the texts are ours and have no quotes."""
    lines = (
        f"      - alert: {name}",
        f"        expr: '{expression}'",
        f"        for: {lasts}",
        "        labels:",
        f"          severity: {severity}",
        "        annotations:",
        f"          summary: '{summary}'",
    )
    return "\n".join(lines) + "\n"


def _series(engine: Engine, *figures: Figure) -> str:
    """Return the engine's name of the first of these figures that it has, with its labels; "" for none."""
    return next((_labelled(name, metric) for name, metric in _metrics(engine, figures, histogram=False)), "")


def _metrics(engine: Engine, figures: Sequence[Figure], *, histogram: bool) -> Iterator[tuple[str, Metric]]:
    """Yield the engine's metrics of these figures by their names, in the order of the figures."""
    for figure in figures:
        for name, metrics in engine.metrics.items():
            for metric in metrics:
                if metric.figure is figure and (metric.kind is Kind.HISTOGRAM) == histogram:
                    yield name, metric


def _labelled(name: str, metric: Metric) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in metric.where)
    return f"{name}{{{labels}}}" if labels else name
