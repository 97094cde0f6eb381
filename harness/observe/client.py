"""What the load generator itself cost and missed, as telemetry, and that telemetry over a window."""

from __future__ import annotations

from collections.abc import Sequence

from harness.load.driver import Progress
from harness.load.loop import LATE_SHIFT
from harness.store import Sample
from harness.summary import ClientView


def samples(before: Progress, now: Progress) -> list[Sample]:
    """The figures of the time between two reports of one worker, under its number."""
    span = now.time_s - before.time_s
    out = {
        "cpu_fraction": (now.cpu_s - before.cpu_s) / span if span > 0 else 0.0,
        "reads": now.reads - before.reads,
        "unstamped": now.unstamped - before.unstamped,
        "tokens": now.tokens - before.tokens,
        "in_flight": now.in_flight,
    }
    return [Sample(now.time_s, "client", f"{now.worker}/{name}", float(value)) for name, value in out.items()]


def read_delay(reports: Sequence[Progress], time_s: float, tick_s: float) -> list[Sample]:
    """The 99th percentile of how late each worker's reads were over these reports, beyond the planned wait."""
    out = []
    for worker in sorted({p.worker for p in reports}):
        mine = [p.late for p in reports if p.late and p.worker == worker]
        whole = [sum(bins) for bins in zip(*mine, strict=True)]
        if sum(whole):
            out.append(Sample(time_s, "client", f"{worker}/read_delay_p99_s", max(0.0, _p99(whole) - tick_s)))
    return out


def _p99(histogram: Sequence[int]) -> float:
    """Upper edge of the bin that holds the 99th percentile, seconds."""
    wanted, seen = 0.99 * sum(histogram), 0
    for index, count in enumerate(histogram):
        seen += count
        if seen >= wanted:
            return ((index + 1) << LATE_SHIFT) * 1e-9
    return (len(histogram) << LATE_SHIFT) * 1e-9


def view(all_samples: Sequence[Sample], window: tuple[float, float]) -> ClientView:
    """The client over one window: its busiest worker; merged share and verdict come with the metrics."""
    cpu: dict[str, list[float]] = {}
    delays = []
    for sample in all_samples:
        if sample.source == "client" and window[0] <= sample.time_s <= window[1]:
            worker, _, metric = sample.metric.rpartition("/")
            if metric == "cpu_fraction":
                cpu.setdefault(worker, []).append(sample.value)
            elif metric == "read_delay_p99_s":
                delays.append(sample.value)
    return ClientView(
        cpu_fraction=max((sum(values) / len(values) for values in cpu.values()), default=None),
        read_delay_p99_s=max(delays, default=None),
    )
