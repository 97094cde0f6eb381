"""What the names that an engine publishes on its Prometheus page mean, by the tables in engines.toml.

The run stores the engine's own names in telemetry, and everything that reads a result finds their meaning here, so that
a table that knows more reads an old result better. A metric is a counter, a gauge or a histogram; of several engines
behind one page (data parallelism) counters, histograms and some gauges are added, other gauges averaged.
"""

from __future__ import annotations

import enum
import functools
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec


class Kind(enum.StrEnum):
    """How a metric is read, and put together over several engines."""

    COUNTER = enum.auto()  # its growth; added
    ADDED = enum.auto()  # a gauge like the running requests
    AVERAGED = enum.auto()  # a gauge like a share of the KV cache
    HISTOGRAM = enum.auto()  # the growth of its buckets; added


class Figure(enum.StrEnum):
    """What a metric says. Telemetry of before the raw names were stored has these words."""

    RUNNING = "running"  # requests in the batch
    WAITING = "waiting"  # requests in the queue
    BATCH_LIMIT = "batch_limit"  # requests that a batch may have
    KV_USAGE = "kv_usage"  # share of the KV cache
    PREFIX_QUERIES = "prefix_queries"  # tokens or blocks that were looked up in the prefix cache
    PREFIX_HITS = "prefix_hits"  # tokens or blocks that were found
    PREFIX_MISSES = "prefix_misses"  # tokens or blocks that were not found, if queries are not counted
    CACHED_TOKENS = "cached_tokens"  # prompt tokens from the cache, by the tier that had them
    PROMPT_TOKENS = "prompt_tokens"  # counted when the first token is made
    GENERATION_TOKENS = "generation_tokens"  # counted as they are made
    ENDED_PROMPT_TOKENS = "ended_prompt_tokens"  # counted when the answer ends
    ENDED_GENERATION_TOKENS = "ended_generation_tokens"  # counted when the answer ends
    QUEUED_PROMPT_TOKENS = "queued_prompt_tokens"  # counted when the request comes
    COMPUTED_PROMPT_TOKENS = "computed_prompt_tokens"  # prompt tokens that did not come from the cache
    PREEMPTIONS = "preemptions"
    REQUESTS_SUCCEEDED = "requests_succeeded"
    DRAFTS = "drafts"  # steps of one request that verified drafted tokens
    DRAFT_TOKENS = "draft_tokens"
    ACCEPTED_TOKENS = "accepted_tokens"  # drafted tokens that were kept
    ACCEPTED_LENGTH = "accepted_length"  # tokens that such a step brings, if there are no counters
    QUEUE_SECONDS = "queue_seconds"  # queue time of all requests, added up
    PREFILL_SECONDS = "prefill_seconds"
    DECODE_SECONDS = "decode_seconds"
    EXECUTIONS = "executions"  # executions of a batch
    EXECUTED = "executed"  # requests in these batches
    TTFT = "ttft_s"
    QUEUE_TIME = "queue_s"
    PREFILL_TIME = "prefill_s"
    DECODE_TIME = "decode_s"
    TRANSFER_TIME = "transfer_s"  # time to move a request's KV cache from a prefill server to a decode server
    TRANSFER_BYTES = "transfer_bytes"
    STEP_TOKENS = "step_tokens"  # prompt and output tokens of an engine step
    BATCH_SIZE = "batch_size"  # requests
    MEMORY = "memory_bytes"  # memory of the process that publishes the page


class Metric(msgspec.Struct, frozen=True):
    """One name of an engine's page."""

    figure: Figure
    kind: Kind
    where: tuple[tuple[str, str], ...] = ()  # labels that a series has to have
    scale: float = 1.0  # to seconds, or to a share
    tier: str = ""  # the label by which its series add up: tiers of the cache


class Engine(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An engine's names, as engines.toml has them; of a histogram that without `_bucket`, `_sum` and `_count`."""

    name: str  # name in the manifest
    version: str  # version of the sources that the names were read from
    prefix: str  # how its names begin
    rank: str = ""  # the label that tells the engines behind one page apart
    stage: str = ""  # the label of an engine's stages, which all publish the same requests: the first one counts
    share: str = ""  # the label that is empty on the total of an added gauge, and else names a part of it
    counter: dict[str, Figure] = {}
    added: dict[str, Figure] = {}
    averaged: dict[str, Figure] = {}
    histogram: dict[str, Figure] = {}
    special: dict[str, tuple[Metric, ...]] = {}  # those with labels or a scale, or with several figures

    @functools.cached_property
    def metrics(self) -> Mapping[str, Sequence[Metric]]:
        """Return what each of its names says."""
        return {n: (Metric(figure, kind),) for kind in Kind for n, figure in getattr(self, kind).items()} | self.special


_TABLES = tomllib.loads(Path(__file__).with_name("engines.toml").read_text("utf-8"))
ENGINES = msgspec.convert(_TABLES["engine"], tuple[Engine, ...])
_OF = MappingProxyType({name: engine for engine in ENGINES for name in engine.metrics})
_GAUGES = {Figure.RUNNING: Kind.ADDED, Figure.WAITING: Kind.ADDED, Figure.KV_USAGE: Kind.AVERAGED}
_WORDS = frozenset(Figure)
_PARTS = ("_bucket", "_sum", "_count")


class Meaning(msgspec.Struct, frozen=True):
    """What one series says."""

    figure: Figure
    kind: Kind
    scale: float = 1.0
    engine: str = ""  # one of several engines behind the page; "": there is one, or the page does not name them
    part: str = ""  # which series of a histogram: bucket, sum or count
    up_to: float = 0.0  # the upper bound of a bucket, scaled


def metric_of(name: str) -> tuple[Engine, Sequence[Metric], str] | None:
    """Return (engine, metrics, part of a histogram or "") that a Prometheus name stands for; None if it is unknown.

    >>> engine, metrics, part = metric_of("vllm:request_queue_time_seconds_bucket")
    >>> engine.name, metrics[0].figure.value, part
    ('vllm', 'queue_s', 'bucket')
    """
    if (engine := _OF.get(name)) is not None:
        metrics = engine.metrics[name]
        return (engine, metrics, "") if metrics[0].kind is not Kind.HISTOGRAM else None
    for ending in _PARTS:
        base = name.removesuffix(ending)
        engine = _OF.get(base) if base != name else None
        if engine is not None and engine.metrics[base][0].kind is Kind.HISTOGRAM:
            return engine, engine.metrics[base], ending[1:]
    return None


def key(name: str, labels: Mapping[str, str]) -> str | None:
    """Return a series' name in telemetry: the metric with only the labels that its meaning needs; None: not used.

    >>> key("vllm:num_requests_running", {"engine": "1", "model_name": "toy"})
    'vllm:num_requests_running{engine="1"}'
    """
    found = metric_of(name)
    if found is None:
        return None
    engine, metrics, part = found
    if labels.get(engine.stage, "0") != "0" or (metrics[0].kind is Kind.ADDED and labels.get(engine.share)):
        return None
    kept = [engine.rank] if engine.rank in labels else []
    kept += ["le"] if part == "bucket" else []
    for metric in metrics:
        kept += [label for label, _ in metric.where] + ([metric.tier] if metric.tier else [])
    if not any(all(labels.get(label) == value for label, value in metric.where) for metric in metrics):
        return None
    pairs = (f'{label}="{_plain(labels.get(label, ""))}"' for label in dict.fromkeys(kept))
    return name + (f"{{{','.join(pairs)}}}" if kept else "")


def _plain(value: str) -> str:
    """Return a label's value that needs no escapes: at most 40 letters, digits and `+-._:/`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "+-._:/") else "_" for c in value[:40])


@functools.lru_cache(8192)
def meanings(series: str) -> tuple[Meaning, ...]:
    """Return the figures that a series of telemetry has, by its name there (`key`), with unit and engine; else ().

    >>> [(m.figure.value, m.engine) for m in meanings('vllm:num_requests_running{engine="1"}')]
    [('running', '1')]
    """
    if series in _WORDS:  # telemetry of older versions has these names
        figure = Figure(series)
        return (Meaning(figure, _GAUGES.get(figure, Kind.COUNTER)),)
    name, _, inside = series.removesuffix("}").partition("{")
    pairs = (pair.partition("=") for pair in inside.split(",") if pair)
    labels = {label: value.strip('"') for label, _, value in pairs}
    found = metric_of(name)
    if found is None:
        return ()
    engine, metrics, part = found
    try:
        up_to = float(labels["le"]) if part == "bucket" else 0.0
    except (KeyError, ValueError):
        return ()
    return tuple(
        Meaning(
            metric.figure,
            metric.kind,
            metric.scale,
            labels.get(engine.rank, ""),
            part,
            up_to * metric.scale,
        )
        for metric in metrics
        if all(labels.get(label) == value for label, value in metric.where)
    )


def engine_of(names: Collection[str]) -> str:
    """Return the name of the engine whose page has these metrics, Triton's backend first; "" if it is not known."""
    return next((engine.name for engine in ENGINES if any(name.startswith(engine.prefix) for name in names)), "")


def together(values: Iterable[tuple[Meaning, float]]) -> dict[Figure, float]:
    """Return the figures of one moment over all engines: counters and some gauges added, other gauges averaged.

    >>> two = [('vllm:kv_cache_usage_perc{engine="0"}', 0.5), ('vllm:kv_cache_usage_perc{engine="1"}', 0.75)]
    >>> together((meaning, value) for series, value in two for meaning in meanings(series))
    {<Figure.KV_USAGE: 'kv_usage'>: 0.625}
    """
    sums: dict[Figure, float] = {}
    series: dict[Figure, int] = {}
    averaged = set()
    for meaning, value in values:
        sums[meaning.figure] = sums.get(meaning.figure, 0.0) + value * meaning.scale
        series[meaning.figure] = series.get(meaning.figure, 0) + 1
        averaged |= {meaning.figure} if meaning.kind is Kind.AVERAGED else set()
    return {figure: value / (series[figure] if figure in averaged else 1) for figure, value in sums.items()}
