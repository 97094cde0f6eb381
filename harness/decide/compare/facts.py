"""The facts of a run as words, by which two stacks are told alike or not; what is not known is None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.data.machines import Card
from harness.data.manifest import Manifest
from harness.data.prediction import Assumptions
from harness.data.summary import Summary
from harness.predict.catalog import short
from harness.spec.scenario import workload_digest

KNEE = "knee"
TOGETHER = "together"  # prefill and decode, on the same servers
_NO_SETTINGS = ("host", "port", "model", "served-model-name", "alias", "api-key", "download-dir", "log-level")
_MEASURED = (
    "num_gpu_blocks",
    "num_cpu_blocks",
    "kv_cache_size_tokens",
    "kv_cache_memory_bytes",
    "kv_cache_max_concurrency",
)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs must share to be compared, as words; None is unknown."""

    measured_by: str
    workload: str | None = None
    unit: str | None = None  # a Unit: what throughput counts
    model: str | None = None
    parameters: float | None = None
    gpu: str | None = None
    gpus: str | None = None
    power_limit: str | None = None
    precision: str | None = None
    kv_dtype: str | None = None
    tp: str | None = None
    pools: str = TOGETHER  # servers of each pool, by its name
    max_num_seqs: str | None = None
    seats: str | None = None  # the same as it was measured
    engine: str | None = None
    start: str | None = None  # of a level: staggered, burst or batch
    transport: str | None = None  # that sent the requests: socket or httpx
    flags: Mapping[str, str] = {}  # the server's settings, by its command or as it published them


def of_run(manifest: Manifest, summary: Summary) -> Facts:
    """Return the facts of a folder's run."""
    hardware, server = manifest.scenario.hardware, manifest.server
    prediction = summary.prediction or manifest.prediction
    assumed = prediction.assumptions if prediction else None
    on_host = manifest.gpu == "host" and manifest.machine is not None
    cpus = manifest.machine.cpus if manifest.machine else ()
    seqs, seats = hardware.max_num_seqs or server.get("slots"), summary.knees.seats
    if manifest.url == "sim:":
        seqs = manifest.scenario.sim.max_num_seqs
    simulated = ", simulated" if summary.simulated else ""
    model = (prediction.model if prediction else None) or manifest.model
    return Facts(
        measured_by=f"{KNEE}{simulated}",
        workload=workload_digest(manifest.scenario),
        unit=summary.unit,
        model=short(model).lower() if model else None,
        parameters=assumed.parameters if assumed else None,
        gpu=manifest.machine.cpu if on_host and manifest.machine else _card(manifest),
        gpus=f"{len(cpus)} cores" if on_host else None if manifest.gpus is None else str(manifest.gpus),
        power_limit=_power(manifest.gpu_facts),
        precision=_precision(hardware.dtype, assumed),
        kv_dtype=hardware.kv_dtype or manifest.cache_config.get("cache_dtype"),
        tp=None if hardware.tp is None and manifest.gpus != 1 else str(hardware.tp or 1),
        pools=_pools(manifest.scenario.target.pool_metrics or ()),
        max_num_seqs=None if seqs is None else str(seqs),
        seats=f"{seats.value:.3g} (measured)" if seats and seats.value else None,
        engine=" ".join(str(server[key]) for key in ("name", "version") if server.get(key)) or None,
        start=manifest.scenario.ramp.start,
        flags=_flags(manifest),
        transport=manifest.client.transport or None,
    )


def _flags(manifest: Manifest) -> dict[str, str]:
    """Return the server's settings: the flags of the command that started it, else those that it published."""
    if manifest.stack:
        return {name: value for name, value in flags_of(manifest.stack.command).items() if name not in _NO_SETTINGS}
    known = manifest.cache_config.items()
    return {name: value for name, value in known if name not in _MEASURED and name != "engine" and name[0] != "_"}


def _pools(servers: Iterable[str]) -> str:
    """Return how many servers each pool has, by their names.

    >>> _pools(["prefill 1", "prefill 2", "decode"])
    '2 prefill, 1 decode'
    """
    count = Counter(name.rstrip("0123456789 ") or name for name in servers)
    return ", ".join(f"{n} {name}" for name, n in count.items()) or TOGETHER


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command with their values; one without a value is "on".

    >>> flags_of(["vllm", "serve", "m", "--max-num-seqs", "8", "--dtype=float32", "--enforce-eager"])
    {'max-num-seqs': '8', 'dtype': 'float32', 'enforce-eager': 'on'}
    """
    found: dict[str, str] = {}
    for word, after in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else "on" if after.startswith("--") else after
    return found


def _card(manifest: Manifest) -> str | None:
    names = {card.name for card in manifest.gpu_facts or [] if card.name}
    return ", ".join(sorted(names)) or (manifest.gpu.lower() if manifest.gpu else None)


def _power(cards: Sequence[Card] | None) -> str | None:
    limits = {card.power_limit_w for card in cards or [] if card.power_limit_w}
    return ", ".join(f"{limit:g} W" for limit in sorted(limits)) or None


def _precision(dtype: str | None, assumed: Assumptions | None) -> str | None:
    """Return the weights' dtype as it is stated, and the bits of one as they are read.

    >>> _precision("fp8", Assumptions(weight_bytes=9.08e9, parameters=8.03e9)), _precision(None, None)
    ('fp8, 9 bits a weight', None)
    """
    bits = ""
    if assumed and assumed.weight_bytes and assumed.parameters:
        bits = f"{8 * assumed.weight_bytes / assumed.parameters:.0f} bits a weight"
    return ", ".join(part for part in (dtype, bits) if part) or None
