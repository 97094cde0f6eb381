"""Pages in Prometheus' text format as samples: the server's metrics, and those of exporters of its GPUs.

- A page may come from anybody. Format: prometheus.io/docs/instrumenting/exposition_formats, Text-based format. Left
  out: comments, time stamps, exemplars, and every series whose name nobody wants.
- `data.server_metrics` has the names of the engines' metrics and what they mean. A gauge or a counter is a sample of
  its value. Of a histogram the count and the sum are samples of their values, and a bucket one of how many
  observations it took by itself since the page before. Where it took none it has no sample (most buckets of most
  pages do not), but for the one below a bucket that took some: its bound is that one's lower end. A server that
  publishes nothing known has no samples, and every figure made from them stays None.
- The exporter is NVIDIA's DCGM exporter 4.8.2 (etc/default-counters.csv; the reasons for lower clocks have to be added
  to that list). GPUs have the figures of `observe.gpu`, and are called '1:3': the second exporter's GPU 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.data import server_metrics
from harness.data.record import SERVER, Sample

# Both expressions take a time that grows with the text's length alone, whatever the text is: what a part has taken it
# never gives back (`++`), and a line that is no sample is read once.
_SAMPLE = re.compile(
    r"\n([a-zA-Z_:][a-zA-Z0-9_:]*+)"
    r'(\{(?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+\})?+'
    r"[ \t]++([^\s]{1,64}+)(?=\s|\Z)"
)
_LABEL = re.compile(r'[ \t,{]*+([a-zA-Z_][a-zA-Z0-9_]*+)="((?:[^"\\]++|\\.)*+)"')
MOST = 1e18  # bound of any count; more is no count
_MOST_LABELS, _LONGEST_LABEL = 64, 200  # labels of a series that are kept, and characters of each


class Series(NamedTuple):
    """One line of a page."""

    name: str
    labels: dict[str, str]
    value: float


def series(page: str, wanted: Callable[[str], object]) -> Iterator[Series]:
    """Yield the series whose names are `wanted`, with a value that can be counted: a number from 0 to 1e18.

    >>> list(series('# HELP up …\\nup{job="a",x="\\\\""} 1 1700000000000\\ndown NaN', lambda name: True))
    [Series(name='up', labels={'job': 'a', 'x': '\\\\"'}, value=1.0)]
    """
    text, at = "\n" + page, 0
    # Not by `finditer`: of each page it leaves a string in Python's cache of attributes, which fills for hours.
    while (sample := _SAMPLE.search(text, at)) is not None:
        at = sample.end()
        if not wanted(sample[1]):
            continue
        try:
            value = float(sample[3])
        except ValueError:  # not a number
            continue
        if 0 <= value < MOST:
            yield Series(sample[1], _labels(sample[2] or ""), value)


def _labels(text: str) -> dict[str, str]:
    """Return the labels between braces, as they are written."""
    labels: dict[str, str] = {}
    at = 0
    while len(labels) < _MOST_LABELS and (label := _LABEL.match(text, at)) is not None:
        labels[label[1][:_LONGEST_LABEL]] = label[2][:_LONGEST_LABEL]
        at = label.end()  # each begins where the one before ended: nothing is read twice
    return labels


_MOST_SERIES = 20_000  # series of known names on one page; a server has some for each of its engines
_MOST_SAMPLES = 5_000  # samples of one page; 64 engines of vLLM make 3,500


def published(page: str) -> dict[str, float]:
    """Return the known series of one page by their names in telemetry; of equal names the sum, of shares the mean.

    A page with more series than any server has gives {}.

    >>> published('vllm:num_requests_running{engine="0",model_name="a"} 3.0')
    {'vllm:num_requests_running{engine="0"}': 3.0}
    """
    found: dict[str, list[float]] = {}
    for n, each in enumerate(series(page, server_metrics.metric_of)):
        if n == _MOST_SERIES:
            return {}  # no server has so many, and a part of a sum is no sum
        key = server_metrics.key(each.name, each.labels)
        if key is not None:
            found.setdefault(key, []).append(each.value)
    averaged = server_metrics.Kind.AVERAGED
    return {
        key: sum(values) / (len(values) if any(m.kind is averaged for m in server_metrics.meanings(key)) else 1)
        for key, values in found.items()
    }


def figures(page: str) -> dict[str, float]:
    """Return the figures of one page, but for histograms, by their words in `server_metrics.Figure`.

    >>> figures('vllm:num_requests_running{engine="0"} 3.0\\nvllm:num_requests_running{engine="1"} 4.0')
    {'running': 7.0}
    """
    meanings = (
        (meaning, value)
        for key, value in published(page).items()
        for meaning in server_metrics.meanings(key)
        if not meaning.part
    )
    return {figure.value: value for figure, value in server_metrics.together(meanings).items()}


def engine(page: str) -> str:
    """Return the name of the engine that publishes the page; "" if it is not known."""
    prefixes = tuple(each.prefix for each in server_metrics.ENGINES)
    found = series(page, lambda name: name.startswith(prefixes))
    return server_metrics.engine_of({each.name for each in found})


def cache_config(page: str) -> dict[str, str]:
    """Return the labels of vLLM's cache_config_info: block_size, num_gpu_blocks and the rest as published."""
    info = next(series(page, lambda name: name == "vllm:cache_config_info"), None)
    return info.labels if info is not None else {}


class Pages:
    """One server's pages, one after the other; `source` is what its samples name as theirs."""

    def __init__(self, source: str = SERVER) -> None:
        self._source = source
        self._buckets: dict[str, float] | None = None  # observations in each bucket alone, by the page before

    def samples(self, time_s: float, page: str) -> list[Sample]:
        """Return the samples of the next page: values as they are, and by how much each bucket of a histogram grew.

        It grew since the page before. No samples of a page that has more than any server.
        """
        found: dict[str, float] = {}
        cumulative: dict[tuple[str, str], list[tuple[float, str, float]]] = {}  # cumulative buckets of each histogram
        for key, value in published(page).items():
            for meaning in server_metrics.meanings(key)[:1]:
                if meaning.part == "bucket":
                    histogram = key.partition("{")[0], meaning.engine
                    cumulative.setdefault(histogram, []).append((meaning.up_to, key, value))
                else:
                    found[key] = value
        buckets: dict[str, float] = {}
        for each in cumulative.values():
            below, key_below = 0.0, ""
            for _, key, value in sorted(each):
                buckets[key] = taken = max(0.0, value - below)
                before = self._buckets.get(key, 0.0) if self._buckets is not None else taken
                if grown := taken - before if taken >= before else taken:  # less than before: it began anew
                    found[key] = grown
                    if key_below:
                        found.setdefault(key_below, 0.0)
                below, key_below = max(below, value), key
        self._buckets = buckets
        if len(found) > _MOST_SAMPLES:
            return []
        return [Sample(time_s, self._source, key, value) for key, value in found.items()]


# DCGM's names: our figure, and its factor to base units. A card without a figure reports an absurdly large number.
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
_MOST_OF_EXPORTER = 2_000  # samples of one page: 256 GPUs have as many


def exporter_samples(exporter: int, time_s: float, page: str) -> list[Sample]:
    """Return the figures of one exporter's page; none of a page that has no known name, or more than any machine.

    >>> exporter_samples(0, 0.0, 'DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-4a"} 250.5')
    [Sample(time_s=0.0, source='gpu', metric='0:1/power_w', value=250.5)]
    """
    totals: dict[str, float] = {}
    for each in series(page, lambda name: name in _GPU):
        gpu, slice_ = each.labels.get("gpu", ""), each.labels.get("GPU_I_ID", "")
        if gpu.isdecimal() and (slice_.isdecimal() or not slice_):
            figure, scale = _GPU[each.name]
            totals[f"{exporter}:{gpu}{'.' if slice_ else ''}{slice_}/{figure}"] = each.value * scale
        if len(totals) > _MOST_OF_EXPORTER:
            return []
    return [Sample(time_s, "gpu", metric, value) for metric, value in totals.items()]
