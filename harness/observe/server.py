"""The metrics that the server publishes, as samples under the engine's own names.

`data.server_metrics` has the names and what they mean. A gauge or a counter is a sample of its value. Of a histogram
the count and the sum are samples of their values, and a bucket one of how many observations it took by itself since
the page before. Where it took none it has no sample (most buckets of most pages do not), but for the one below a
bucket that took some: its bound is that one's lower end. A server that publishes nothing known has no samples, and
every figure made from them stays None.
"""

from __future__ import annotations

from harness.data import server_metrics
from harness.data.record import SERVER, Sample
from harness.observe import exposition

_MOST_SERIES = 20_000  # of known names on one page; a server has some for each of its engines
_MOST_SAMPLES = 5_000  # of one page; 64 engines of vLLM make 3,500


def published(page: str) -> dict[str, float]:
    """The known series of one page by their names in telemetry; of equal names the sum, of shares the mean.

    >>> published('vllm:num_requests_running{engine="0",model_name="a"} 3.0')
    {'vllm:num_requests_running{engine="0"}': 3.0}
    """
    found: dict[str, list[float]] = {}
    for n, each in enumerate(exposition.series(page, server_metrics.metric_of)):
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
    """The figures of one page, but for histograms, by their words in `server_metrics.Figure`.

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
    """The name of the engine that publishes the page; "" where it is not known."""
    prefixes = tuple(each.prefix for each in server_metrics.ENGINES)
    found = exposition.series(page, lambda name: name.startswith(prefixes))
    return server_metrics.engine_of({each.name for each in found})


def cache_config(page: str) -> dict[str, str]:
    """The labels of vLLM's cache_config_info: block_size, num_gpu_blocks and the rest as published."""
    info = next(exposition.series(page, lambda name: name == "vllm:cache_config_info"), None)
    return info.labels if info is not None else {}


class Pages:
    """One server's pages, one after the other; `source` is what its samples name as theirs."""

    def __init__(self, source: str = SERVER) -> None:
        self._source = source
        self._buckets: dict[str, float] | None = None  # of the page before: what each took by itself, ever

    def samples(self, time_s: float, page: str) -> list[Sample]:
        """The samples of the next page; none of one that has more than any server."""
        found: dict[str, float] = {}
        cumulative: dict[tuple[str, str, str], list[tuple[float, str, float]]] = {}  # of each histogram its buckets
        for key, value in published(page).items():
            for meaning in server_metrics.meanings(key)[:1]:
                if meaning.part == "bucket":
                    histogram = key.partition("{")[0], meaning.engine, meaning.tier
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
