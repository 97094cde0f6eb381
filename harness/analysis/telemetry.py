"""Telemetry over one window: the load generator, GPUs and serving machines by their samples. Pure.

The server's own figures are in `analysis.server_account`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.analysis.stats import known_mean
from harness.data.record import Sample
from harness.data.views import ClientView, GpuView

_EDGE_S = 5.0  # how far outside a window a sample may lie and still count for the energy counter at its edge

# Bits of the clocks event reasons (nvml.h, nvmlClocksEventReasons) that keep the clock below what was requested.
# The rest are normal: idle, clocks set by the operator, and boosting in step with other cards.
THROTTLE = {
    "sw_power_cap": 0x04,  # at its power limit: ordinary under full load
    "hw_slowdown": 0x08,  # halved by the board: heat, the power brake, or too fast a rise in power
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
_SLOWED = sum(THROTTLE.values()) - THROTTLE["sw_power_cap"]

Points = list[tuple[float, float]]  # (time, value), in order of time


def series(samples: Iterable[Sample], source: str, start: float, end: float) -> dict[str, dict[str, Points]]:
    """Return the samples of a source in [start, end] as {worker, machine or card: {metric: [(time, value)]}}."""
    series: dict[str, dict[str, Points]] = {}
    for sample in samples:
        if sample.source == source and start <= sample.time_s <= end:
            name, _, metric = sample.metric.rpartition("/")
            series.setdefault(name, {}).setdefault(metric, []).append((sample.time_s, sample.value))
    return series


def client_view(samples: Sequence[Sample], window: tuple[float, float]) -> ClientView:
    """Return how busy and how late the load generator was in a window: the worst of its workers and of its machines."""
    workers, hosts = (series(samples, source, *window) for source in ("client", "host"))

    def highest(of: dict[str, dict[str, Points]], metric: str) -> float | None:
        return max((_mean(points[metric]) for points in of.values() if metric in points), default=None)

    processors = [[_mean(points) for name, points in host.items() if name.startswith("cpu")] for host in hosts.values()]
    unstamped = highest(workers, "unstamped_fraction")
    late = (value for worker in workers.values() for _, value in worker.get("read_delay_p99_s", []))
    return ClientView(
        cpu_fraction=highest(workers, "cpu_fraction"),
        read_delay_p99_s=max(late, default=None),
        timestamp_source=None if unstamped is None else "user" if unstamped > 0.5 else "kernel",
        waited_fraction=highest(workers, "waited_fraction"),
        steal_fraction=highest(hosts, "steal_fraction"),
        throttled_fraction=highest(hosts, "throttled_fraction"),
        idle_processors=min((sum(1.0 - busy for busy in each) for each in processors if each), default=None),
    )


def stamp_delay(samples: Sequence[Sample], window: tuple[float, float]) -> float:
    """Return how late the clock's stamps were on average, of the latest worker; seconds, 0 for the kernel's."""
    inside = (sample for sample in samples if window[0] <= sample.time_s <= window[1])
    return max((s.value for s in inside if s.metric.endswith("/read_delay_mean_s")), default=0.0)


def pauses(samples: Sequence[Sample], window: tuple[float, float]) -> dict[str, float]:
    """Return for how many seconds of a window a worker, the main process or the machine stood still, by metric.

    Nothing was sent or read then.
    """
    start, end = window
    stood: dict[str, float] = {}
    for sample in samples:
        if sample.source == "client" and sample.metric.endswith(("paused_s", "slept_s")):
            inside = min(end, sample.time_s) - max(start, sample.time_s - sample.value)
            if sample.metric == "slept_s":  # a moment on this clock, which stood still
                inside = sample.value if start <= sample.time_s <= end else 0.0
            if inside > 0:
                stood[sample.metric] = stood.get(sample.metric, 0.0) + inside
    return stood


def gpu_view(samples: Sequence[Sample], window: tuple[float, float]) -> GpuView | None:
    """Return the GPUs that were busy in a window; None if none was, or none watched. Samples are in order of time.

    Power and energy are sums over these GPUs, None unless each has its own; utilisation and the mean clock are means,
    memory and temperature the highest, the throttle shares those of the GPU that has most of each: in tensor
    parallelism the slowest one sets the pace. Joules a token are for the metrics, which know the tokens. The GPUs of
    exporters ('0:3') stand for this machine's ('3'): they may be the same.
    """
    start, end = window
    cards = series(samples, "gpu", start - _EDGE_S, end + _EDGE_S)
    if any(":" in name for name in cards):
        cards = {name: card for name, card in cards.items() if ":" in name}

    def inside(card: Mapping[str, Points], metric: str) -> Points:
        return [point for point in card.get(metric, []) if start <= point[0] <= end]

    def busy(card: Mapping[str, Points]) -> bool:
        if "utilization" in card:
            return any(value for _, value in inside(card, "utilization"))
        return any(inside(card, metric) for metric in card)  # a MIG slice does not say

    busy_cards = [card for card in cards.values() if busy(card)]
    if not busy_cards:
        return None

    def of_all(metric: str) -> list[float]:
        return [value for card in busy_cards for _, value in inside(card, metric)]

    clocks = of_all("sm_clock_hz")
    reasons = [[int(value) for _, value in inside(card, "throttle_reasons")] for card in busy_cards]

    def share(mask: int) -> float:
        return max(sum(bool(value & mask) for value in card) / len(card) for card in reasons if card)

    known = any(reasons)
    shares = {name: share(mask) for name, mask in THROTTLE.items()} if known else {}
    return GpuView(
        gpus=len(busy_cards),
        utilization=known_mean(of_all("utilization")),
        power_w=_sum(known_mean(value for _, value in inside(card, "power_w")) for card in busy_cards),
        energy_j=_sum(_energy(card, window) for card in busy_cards),
        memory_used_bytes=max(of_all("memory_used_bytes"), default=None),
        sm_clock_hz=known_mean(clocks),
        sm_clock_min_hz=min(clocks, default=None),
        temperature_max_c=max(of_all("temperature_c"), default=None),
        throttle={name: value for name, value in shares.items() if value} if known else None,
        throttled_fraction=share(_SLOWED) if known else None,
    )


def _energy(card: Mapping[str, Points], window: tuple[float, float]) -> float | None:
    """Return joules over the window: by the card's counter, else by its power over time."""
    counted = _grown(card.get("energy_j", []), window)
    return counted if counted is not None else _grown(_integral(card.get("power_w", [])), window)


def _grown(counter: Points, window: tuple[float, float]) -> float | None:
    """Return by how much a counter grew over the window, by straight lines between samples.

    Where samples cover a part of the window, in proportion; None below half of it, or where the counter was reset.
    """
    if len(counter) < 2 or any(b < a for (_, a), (_, b) in itertools.pairwise(counter)):
        return None
    low, high = max(window[0], counter[0][0]), min(window[1], counter[-1][0])
    span = window[1] - window[0]
    if high <= low or high - low < span / 2:
        return None
    times, values = zip(*counter, strict=True)
    before, after = np.interp([low, high], times, values)
    return float(after - before) * span / (high - low)


def _integral(rate: Points) -> Points:
    """Return what a rate has added up to at each of its points, by trapezoids."""
    sums = itertools.accumulate(((b + a) / 2 * (t2 - t) for (t, a), (t2, b) in itertools.pairwise(rate)), initial=0.0)
    return list(zip((t for t, _ in rate), sums, strict=False))


def _mean(points: Points) -> float:
    return sum(value for _, value in points) / len(points)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, None if one is missing: a sum over some of the GPUs would pass for all of them."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
