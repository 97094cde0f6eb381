"""The GPUs and machines that serve, by the pages of exporters beside the server: NVIDIA's DCGM exporter, node exporter.

Names by DCGM exporter 4.8.2 (etc/default-counters.csv; the reasons for lower clocks have to be added to that list) and
node exporter 1.12.1. GPUs have the figures of `observe.gpu`, and are called '1:3': the second exporter's GPU 3.
"""

from __future__ import annotations

from harness.data.record import Sample
from harness.observe import exposition

# Of DCGM: our figure, and what makes it one of base units. A figure that a card lacks is a number beyond reason.
_GPU = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", 1e-2),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", 2.0**20),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_hz", 1e6),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_hz", 1e6),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle_reasons", 1.0),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle_reasons", 1.0),  # its name before DCGM 4
}
_NODE = {
    "node_memory_MemTotal_bytes": "memory_total_bytes",
    "node_memory_MemAvailable_bytes": "memory_available_bytes",
}
_CPU = "node_cpu_seconds_total"
_IDLE = ("idle", "iowait")
_MOST_SAMPLES = 2_000  # of one page: 256 GPUs have as many


def samples(exporter: int, time_s: float, page: str) -> list[Sample]:
    """The figures of one exporter's page; none of a page that has no known name, or more than any machine.

    >>> samples(0, 0.0, 'DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-4a"} 250.5')
    [Sample(time_s=0.0, source='gpu', metric='0:1/power_w', value=250.5)]
    """
    found: dict[tuple[str, str], float] = {}
    for each in exposition.series(page, lambda name: name in _GPU or name in _NODE or name == _CPU):
        if each.name in _GPU:
            gpu, slice_ = each.labels.get("gpu", ""), each.labels.get("GPU_I_ID", "")
            if not gpu.isdecimal() or not (slice_.isdecimal() or not slice_):
                continue
            figure, scale = _GPU[each.name]
            found["gpu", f"{exporter}:{gpu}{'.' if slice_ else ''}{slice_}/{figure}"] = each.value * scale
        elif each.name in _NODE:
            found["node", f"{exporter}/{_NODE[each.name]}"] = each.value
        else:
            kinds = ("cpu_s", "cpu_idle_s") if each.labels.get("mode") in _IDLE else ("cpu_s",)
            for kind in kinds:
                key = "node", f"{exporter}/{kind}"
                found[key] = found.get(key, 0.0) + each.value
        if len(found) > _MOST_SAMPLES:
            return []
    return [Sample(time_s, source, metric, value) for (source, metric), value in found.items()]
