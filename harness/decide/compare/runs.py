"""Runs for a comparison: the stack of each, its conditions, its levels, and the points of its curve.

A run is read from a result folder, with its records or with its summary alone, or from another tool's files. Its facts
are texts: equal texts mean equal conditions, and None means unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from harness.analysis.answer import of_ramp
from harness.analysis.points import Point, foreign_point, points_of, pool
from harness.analysis.rules.requests import errors_above_1_percent, stalled
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.machines import Card
from harness.data.manifest import Manifest
from harness.data.prediction import Assumptions
from harness.data.summary import Summary
from harness.decide.levels import each_once, error_of_mean, opened, valid, weighted, within_reason
from harness.predict.catalog import short
from harness.results import readers
from harness.results.folder import MANIFEST, has_requests
from harness.results.readers.level import SHARED, ForeignLevel, ForeignResult, in_words
from harness.spec.choices import ROUND_ROBIN
from harness.spec.scenario import workload_digest, workload_fields
from harness.spec.work import Unit, usd_per_million

TOGETHER = "together"  # prefill and decode, on the same servers
ONE = "one server"
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
    workload_fields: Mapping[str, str] = {}  # the fields that the workload's digest is made from
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
    balance: str = ONE  # how requests are divided over several servers
    max_num_seqs: str | None = None
    seats: str | None = None  # requests that it was seen to serve at once
    engine: str | None = None
    start: str | None = None  # how a level starts: staggered, burst or batch
    transport: str | None = None  # what sent the requests: socket or httpx
    flags: Mapping[str, str] = {}  # the server's settings, by its command or as it published them


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A level's figures but its throughput; seconds."""

    load: float  # requests in flight, or in open loop requests per second
    open_loop: bool = False
    tokens_per_s: float | None = None
    cached: float | None = None  # share of the prompt tokens that came from a prefix cache
    ttft_p50_s: float | None = None
    itl_mean_s: float | None = None
    e2e_p50_s: float | None = None
    tokens_per_s_per_user: float | None = None
    tokens_per_s_per_gpu: float | None = None
    usd_per_million: float | None = None
    joules_per_token: float | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run of a stack."""

    label: str = ""  # the stack's label in a comparison
    stack: str | None = None  # its name where `knee stacks run` started it
    place: str  # folder or files
    began: str | None = None  # when, as ISO 8601
    facts: Facts
    simulated: bool = False
    input_tokens: float | None = None  # mean of the requests, as they were counted
    output_tokens: float | None = None
    input_tokens_se: float | None = None  # one standard error of that mean; None if requests do not differ
    output_tokens_se: float | None = None
    points: list[Point]  # valid levels with as many in flight as were requested
    loads: list[Load]
    lost: dict[float, str] = {}  # loads that failed or that nobody answered at, and how
    failed: tuple[int, int] | None = None  # requests that failed, of all
    cached: float | None = None  # share of the prompt tokens that came from a prefix cache
    tokens_per_chunk: float | None = None
    template_tokens: float | None = None  # tokens that the chat template adds to a prompt
    predicted_plateau: float | None = None  # output tok/s, by the data sheet
    start_to_ready_s: float | None = None
    first_answer_s: float | None = None  # time of one request to the ready server
    lacks: tuple[str, ...] = ()

    def throughput(self) -> dict[float, tuple[float, float]]:
        """Return {concurrency: (ln throughput, its relative error)} of the run; repeats of a level are pooled.

        If a level's error is only assumed, the difference between repeats of levels takes its place.
        """
        if not self.points:
            return {}
        found = pool(self.points)
        measured = {point.concurrency for point in self.points if point.se is not None and not point.assumed}
        drift = found.drift / np.sqrt(found.times)
        rows = zip(found.C, found.X, found.sigma, drift, strict=True)
        return {float(C): (math.log(X), float(own if C in measured else more)) for C, X, own, more in rows}


# ---- the stack of each folder and file ------------------------------------------------------------------------------


def labelled(stacks: Sequence[str], format: str = "") -> list[Run]:
    """Return the runs of all folders and files, each labelled with its stack; places with one label are one stack.

    `format` is that of the files; without it their content says which.
    """
    named = [_named(text) for text in stacks]
    folders = {place: read_folder(place) for _, place in named if is_run(place)}
    files = {place: read_foreign(place, format) for _, place in named if place not in folders}
    started = {place: own[0].stack or "" for place, own in folders.items() if own}
    engines = {place: (own[0].facts.engine or "").partition(" ")[0] for place, own in folders.items() if own}
    engines |= {place: found.engine or "" for place, found in files.items()}
    labels = _labels(named, started, engines)
    out: list[Run] = []
    for label in dict.fromkeys(labels):
        own = [place for each, (_, place) in zip(labels, named, strict=True) if each == label]
        each_once(own)
        out += [msgspec.structs.replace(run, label=label) for place in own for run in folders.get(place, [])]
        out += of_files(label, [(place, files[place]) for place in own if place in files])
    return out


def is_run(place: str) -> bool:
    """Return whether a place is a folder with a manifest, or with requests that Knee recorded."""
    folder = Path(place)
    return folder.is_dir() and ((folder / MANIFEST).exists() or has_requests(folder))


def read_foreign(place: str, format: str = "") -> ForeignResult:
    """Return the levels of another tool's file, or of all its files in a folder."""
    return readers.read_folder(place, format) if Path(place).is_dir() else readers.read(place, format)


def _named(text: str) -> tuple[str, str]:
    """Return a stack's name, "" for none, and its folder or file.

    >>> _named("vllm=results/a"), _named("results/a=b")
    (('vllm', 'results/a'), ('', 'results/a=b'))
    """
    name, equals, place = text.partition("=")
    return (name, place) if equals and name and "/" not in name and not Path(text).exists() else ("", text)


def _labels(named: Sequence[tuple[str, str]], *found: Mapping[str, str]) -> list[str]:
    """Return a label for each (name, place): the name, else from the first of `found` that differs, else the place.

    >>> _labels([("", "runs/a"), ("", "runs/b"), ("x", "c")], {}, {"runs/a": "vllm", "runs/b": "llamacpp"})
    ['vllm', 'llamacpp', 'x']
    >>> _labels([("", "runs/a"), ("", "old/a"), ("", "b.json")], {"runs/a": "vllm", "old/a": "vllm"})
    ['runs/a', 'old/a', 'b']
    """
    bare = [place for name, place in named if not name]
    for names in found:
        known = [names.get(place, "") for place in bare]
        if all(known) and len(set(known)) > 1:
            return [name or names[place] for name, place in named]
    stems = {place: Path(place).name if Path(place).is_dir() else Path(place).stem for place in bare}
    alone = {place for place in bare if list(stems.values()).count(stems[place]) == 1}
    return [name or (stems[place] if place in alone else place) for name, place in named]


# ---- result folders -------------------------------------------------------------------------------------------------


def read_folder(place: str) -> list[Run]:
    """Read the runs of a result folder, without a label; raise HarnessError if none has a finished level."""
    manifest, summary, _ = opened(place)
    repeats = of_folder(place, manifest, summary)
    if not repeats:
        raise unfinished(place)
    return repeats


def unfinished(place: str) -> HarnessError:
    """Return the error for a folder without a finished level."""
    return HarnessError("no level of it is finished", place=place, way_out="give the run more time")


def of_folder(place: str, manifest: Manifest, summary: Summary) -> list[Run]:
    """Return the runs in a result folder: one, or as many as its scenario repeats."""
    ramp = of_ramp(summary.levels)
    lengths = [
        weighted((getattr(level, name), level.requests) for level in ramp)
        for name in ("input_tokens_mean", "output_tokens_mean")
    ]
    classes = summary.workload.classes if summary.workload else []
    start = manifest.stack or None
    out = []
    for repeat in sorted({level.repeat for level in summary.levels}):
        levels = [level for level in ramp if level.repeat == repeat]
        points = [each for each in points_of(levels) if each.valid and each.in_flight_ok and within_reason(each)]
        out.append(
            Run(
                stack=start and start.name,
                place=place,
                began=manifest.created,
                facts=_facts(manifest, summary),
                simulated=summary.simulated,
                input_tokens=lengths[0],
                output_tokens=lengths[1],
                input_tokens_se=error_of_mean([(group.requests, group.input_tokens) for group in classes]),
                output_tokens_se=error_of_mean([(group.requests, group.output_tokens) for group in classes]),
                points=points,
                loads=[_load(level, manifest) for level in valid(levels)],
                lost={
                    float(level.load or 0): _failure(level)
                    for level in levels
                    if errors_above_1_percent.voids(level) or stalled.voids(level)
                },
                failed=(sum(level.errors for level in levels), sum(level.requests for level in levels)),
                cached=weighted((level.cached_input_fraction, level.requests) for level in levels),
                tokens_per_chunk=weighted((level.tokens_per_chunk, level.requests) for level in levels),
                template_tokens=manifest.workload.template_tokens or None,
                predicted_plateau=summary.prediction.plateau_tokens_per_s.mid if summary.prediction else None,
                start_to_ready_s=start and start.start_to_ready_s,
                first_answer_s=start and start.first_answer_s,
            )
        )
    return out


# ---- the facts of a folder's run -------------------------------------------------------------------------------------


def _facts(manifest: Manifest, summary: Summary) -> Facts:
    """Return the facts of a folder's run."""
    hardware, server = manifest.scenario.hardware, manifest.server
    prediction = summary.prediction or manifest.prediction
    assumed = prediction.assumptions if prediction else None
    on_host = manifest.gpu == "host" and manifest.machine is not None
    cpus = manifest.machine.cpus if manifest.machine else ()
    cards = sorted({card.name for card in manifest.gpu_facts or [] if card.name}) or [(manifest.gpu or "").lower()]
    seqs, seats = hardware.max_num_seqs or server.get("slots"), summary.knees.seats
    if manifest.url == "sim:":
        seqs = manifest.scenario.sim.max_num_seqs
    simulated = ", simulated" if summary.simulated else ""
    model = (prediction.model if prediction else None) or manifest.model
    cores = f"{len(cpus)} core{'s' * (len(cpus) != 1)}"
    return Facts(
        measured_by=f"knee{simulated}",
        workload=workload_digest(manifest.scenario),
        workload_fields=workload_fields(manifest.scenario),
        unit=summary.unit,
        model=short(model).lower() if model else None,
        parameters=assumed.parameters if assumed else None,
        gpu=manifest.machine.cpu if on_host and manifest.machine else ", ".join(cards) or None,
        gpus=cores if on_host else None if manifest.gpus is None else str(manifest.gpus),
        power_limit=_power_limits(manifest.gpu_facts),
        precision=_precision(hardware.dtype, assumed),
        kv_dtype=hardware.kv_dtype or manifest.cache_config.get("cache_dtype"),
        tp=None if hardware.tp is None and manifest.gpus != 1 else str(hardware.tp or 1),
        pools=_pools(manifest.scenario.target.pool_metrics or ()),
        balance=manifest.scenario.target.balance or ROUND_ROBIN if manifest.scenario.target.urls else ONE,
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
    flags: dict[str, str] = {}
    for word, after in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            flags[name] = value if equals else "on" if after.startswith("--") else after
    return flags


def _power_limits(cards: Sequence[Card] | None) -> str | None:
    limits = {card.power_limit_w for card in cards or [] if card.power_limit_w}
    return ", ".join(f"{limit:g} W" for limit in sorted(limits)) or None


def _precision(dtype: str | None, assumed: Assumptions | None) -> str | None:
    """Return as words the stated dtype of the weights and the bits that a weight takes; None if neither is known.

    >>> _precision("fp8", Assumptions(weight_bytes=9.08e9, parameters=8.03e9)), _precision(None, None)
    ('fp8, 9 bits a weight', None)
    """
    bits = ""
    if assumed and assumed.weight_bytes and assumed.parameters:
        bits = f"{8 * assumed.weight_bytes / assumed.parameters:.0f} bits a weight"
    return ", ".join(part for part in (dtype, bits) if part) or None


# ---- other tools' files ---------------------------------------------------------------------------------------------


def of_files(label: str, files: Sequence[tuple[str, ForeignResult]]) -> list[Run]:
    """Return the runs in another tool's files of one stack.

    A file or folder with several loads is a run. Those with one load each are the levels of one run together. A load
    that comes again within a run is measured twice, and pooled. Raise HarnessError if the files are of two models,
    engines, cards or tools, or one of them is of a simulation.
    """
    for name in SHARED:
        known = [(place, _word(getattr(file, name))) for place, file in files if getattr(file, name) is not None]
        for place, word in known:
            if word.lower() != known[0][1].lower():
                fact = f"one stack has files of {known[0][1]} and of {word}"
                raise HarnessError(fact, place=f"{known[0][0]}, {place}", way_out="give each a label of its own")
    single = [
        (place, file) for place, file in files if len({(level.requested, level.rate) for level in file.levels}) < 2
    ]
    whole = [([place], file) for place, file in files if (place, file) not in single]
    places = [place for place, _ in single]
    whole += [(places, readers.joined(single, ", ".join(places)))] if single else []
    return [_of_file(label, own, file) for own, file in whole]


def _word(fact: str | int) -> str:
    """Return a fact of a file for people; a model without the path that leads to it."""
    return short(fact) if isinstance(fact, str) else in_words(fact)


def _of_file(label: str, places: Sequence[str], foreign: ForeignResult) -> Run:
    """Return another tool's result as a run; levels that are not valid, or without load or throughput, are left out."""
    points, loads = [], []
    for level in foreign.levels:
        load, X, gpus = level.requested or level.rate, level.output_tokens_per_s, foreign.gpus
        if not load or not X or not level.valid or not level.in_flight_ok:
            continue
        if level.requested:
            points.append(foreign_point(level.requested, level))
        # Gaps between chunks are a token's only where each chunk carries one: the last resort.
        known = (level.itl_mean_s, level.tpot_s.mean, level.itl_s.mean)
        itl = next((each for each in known if each is not None), None)
        loads.append(
            Load(
                load=load,
                open_loop=level.requested is None,
                tokens_per_s=X,
                ttft_p50_s=level.ttft_s.p50,
                itl_mean_s=itl,
                e2e_p50_s=level.e2e_s.p50,
                tokens_per_s_per_user=1 / itl if itl else None,
                tokens_per_s_per_gpu=X / gpus if gpus else None,
            )
        )
    weighed = [(level.input_tokens_mean, level.output_tokens_mean, level.requests or 1) for level in foreign.levels]
    return Run(
        label=label,
        place=", ".join(places),
        facts=Facts(
            measured_by=foreign.source + ", simulated" * foreign.simulated,
            unit=Unit.OUTPUT_TOKENS.value,
            model=foreign.model,
            gpu=foreign.gpu,
            gpus=None if foreign.gpus is None else str(foreign.gpus),
            engine=foreign.engine,
            precision=foreign.precision,
        ),
        simulated=foreign.simulated,
        failed=_failed(foreign.levels),
        input_tokens=weighted((inputs, n) for inputs, _, n in weighed),
        output_tokens=weighted((outputs, n) for _, outputs, n in weighed),
        points=points,
        loads=loads,
        lacks=foreign.lacks,
    )


def _failed(levels: Sequence[ForeignLevel]) -> tuple[int, int] | None:
    """Return (failed requests, all requests) over the levels; None if a level does not say."""
    failed = [level.failed for level in levels]
    if None in failed:
        return None
    total = sum(each or 0 for each in failed)
    return total, total + sum(level.requests or 0 for level in levels)


# ---- figures of a run -----------------------------------------------------------------------------------------------


def _failure(level: LevelSummary) -> str:
    """Return how a level was lost: the share of its requests that failed, and their errors; or that nobody answered."""
    kinds = ", ".join(level.errors_by_type)
    return f"{level.error_rate or 0.0:.0%} failed ({kinds})" if kinds else "nobody answered"


def _load(level: LevelSummary, manifest: Manifest) -> Load:
    """Return the figures of a level that a comparison shows at equal load."""
    X, price, gpus = level.output_tokens_per_s.mean, manifest.price, manifest.gpus
    return Load(
        load=float(level.load or 0),
        open_loop=level.rate is not None,
        tokens_per_s=level.throughput.mean,
        cached=level.cached_input_fraction,
        ttft_p50_s=level.ttft_s.p50,
        itl_mean_s=level.itl_s.mean,
        e2e_p50_s=level.e2e_s.p50,
        tokens_per_s_per_user=level.tokens_per_s_per_user,
        tokens_per_s_per_gpu=level.output_tokens_per_s_per_gpu,
        usd_per_million=usd_per_million(price * gpus, X) if price and gpus and X else None,
        joules_per_token=level.gpu.joules_per_output_token if level.gpu else None,
    )
