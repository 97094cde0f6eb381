"""Runs as they are compared: of which stack each is, its conditions, its levels, and the points of its curve.

A run is read from a result folder, with its records or with its summary alone, or from another tool's files. What is
not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.analysis.answer import of_ramp
from harness.analysis.points import Point, foreign_point, points_of, pool
from harness.analysis.rules.levels import answers_changed
from harness.analysis.rules.requests import errors_above_1_percent, stalled
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.machines import Card
from harness.data.manifest import Manifest, Roof
from harness.data.prediction import Assumptions
from harness.data.summary import Summary
from harness.data.views import Estimate
from harness.decide.levels import opened, valid, weighted, within_reason
from harness.predict.catalog import short
from harness.results import readers
from harness.results.readers.level import SHARED, ForeignResult, in_words
from harness.spec.scenario import workload_digest
from harness.spec.work import Unit, usd_per_million

KNEE = "knee"


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
    max_num_seqs: str | None = None
    seats: str | None = None  # the same as it was measured
    engine: str | None = None
    start: str | None = None  # of a level: staggered, burst or batch
    transport: str | None = None  # that sent the requests: socket or httpx


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A level's figures but its throughput; seconds."""

    load: float  # requests in flight, or in open loop requests per second
    open_loop: bool = False
    ttft_p50_s: float | None = None
    itl_mean_s: float | None = None
    e2e_p50_s: float | None = None
    tokens_per_s_per_user: float | None = None
    tokens_per_s_per_gpu: float | None = None
    usd_per_million: float | None = None
    joules_per_token: float | None = None


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's canaries say of its answers."""

    changed_at: float | None  # the smallest load at which they changed
    agreement: float | None  # unloaded: share of answers with the words of the first one
    accuracy: Estimate | None  # unloaded, of the questions; None: there are none
    questions: str = ""  # a digest of prompts and of what is expected of their answers


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run of a stack."""

    label: str  # of the stack
    stack: str | None = None  # its name where `knee stacks run` started it
    place: str  # folder or files
    scenario: str | None = None
    began: str | None = None  # when, as ISO 8601
    facts: Facts
    simulated: bool = False
    input_tokens: float | None = None  # mean of the requests, as they were counted
    output_tokens: float | None = None
    points: list[Point]  # of valid levels with as many in flight as were requested
    loads: list[Load]
    lost: dict[float, str] = {}  # loads that failed or that nobody answered at, and how
    predicted_plateau: float | None = None  # output tok/s, by the data sheet
    ceiling: float | None = None  # output tok/s at MBU = MFU = 1, no overhead, any batch
    start_to_ready_s: float | None = None
    first_answer_s: float | None = None  # of one request once it was ready
    answers: Answers | None = None  # None: it had no canaries
    lacks: tuple[str, ...] = ()

    def throughput(self) -> dict[float, tuple[float, float]]:
        """Return ln of throughput and its own relative error by concurrency; levels measured again are pooled."""
        if not self.points:
            return {}
        found = pool(self.points)
        rows = zip(found.C, found.X, found.sigma, strict=True)
        return {float(C): (math.log(X), float(sigma)) for C, X, sigma in rows}


# ---- of which stack each folder and file is -------------------------------------------------------------------------


def labelled(stacks: Sequence[str], format: str = "") -> list[Run]:
    """Read every folder and file, and label its runs; several files of one label are one stack's.

    `format` is that of the files; without it their content says which.
    """
    named = [_named(text) for text in stacks]
    folders = {place: read_folder(place) for _, place in named if Path(place).is_dir()}
    files = {place: readers.read(place, format) for _, place in named if place not in folders}
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


def each_once(places: Sequence[str]) -> Sequence[str]:
    """Return the places of one side; HarnessError where one is given twice, which would count as its own repeat."""
    known = [Path(place).resolve() for place in places]
    for place, own in zip(places, known, strict=True):
        if known.count(own) > 1:
            raise HarnessError("is given twice", place=place, way_out="give each folder once")
    return places


def _named(text: str) -> tuple[str, str]:
    """Return a stack's name, "" for none, and its folder or file.

    >>> _named("vllm=results/a"), _named("results/a=b")
    (('vllm', 'results/a'), ('', 'results/a=b'))
    """
    name, equals, place = text.partition("=")
    return (name, place) if equals and name and "/" not in name and not Path(text).exists() else ("", text)


def _labels(named: Sequence[tuple[str, str]], *found: Mapping[str, str]) -> list[str]:
    """Return the stacks' names: those in front of them, else the first names that tell them apart, else their own.

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
    """Read the runs of a result folder, without a label; HarnessError where none has a finished level."""
    manifest, summary, _ = opened(place)
    found = of_folder("", place, manifest, summary)
    if not found:
        raise unfinished(place)
    return found


def unfinished(place: str) -> HarnessError:
    """Return the error with which a folder is refused that has nothing to compare."""
    return HarnessError("no level of it is finished", place=place, way_out="give the run more time")


def of_folder(label: str, place: str, manifest: Manifest, summary: Summary) -> list[Run]:
    """Return the runs in a result folder: one, or as many as its scenario repeats."""
    ramp = of_ramp(summary.levels)
    lengths = [
        weighted((getattr(level, name), level.requests) for level in ramp)
        for name in ("input_tokens_mean", "output_tokens_mean")
    ]
    start = manifest.stack or None
    out = []
    for repeat in sorted({level.repeat for level in summary.levels}):
        levels = [level for level in ramp if level.repeat == repeat]
        points = [each for each in points_of(levels) if each.valid and each.in_flight_ok and within_reason(each)]
        out.append(
            Run(
                label=label,
                stack=start and start.name,
                place=place,
                scenario=manifest.name,
                began=manifest.created,
                facts=_facts(manifest, summary),
                simulated=summary.simulated,
                input_tokens=lengths[0],
                output_tokens=lengths[1],
                points=points,
                loads=[_load(level, manifest) for level in valid(levels)],
                lost={float(each.load or 0): _failure(each) for each in levels if _is_lost(each)},
                predicted_plateau=summary.prediction.plateau_tokens_per_s.mid if summary.prediction else None,
                ceiling=ceiling(manifest.roof, *lengths),
                start_to_ready_s=start and start.start_to_ready_s,
                first_answer_s=start and start.first_answer_s,
                answers=_answers(manifest, summary),
            )
        )
    return out


def _is_lost(level: LevelSummary) -> bool:
    """Return whether the server's doing takes a load from its stack."""
    return errors_above_1_percent.voids(level) or stalled.voids(level)


def _answers(manifest: Manifest, summary: Summary) -> Answers | None:
    if not summary.unloaded_quality:
        return None
    changed = [each.at for each in summary.verdicts if answers_changed.made(each) and each.at is not None]
    return Answers(
        changed_at=min(changed, default=None),
        agreement=summary.unloaded_quality.agreement.mean,
        accuracy=summary.unloaded_quality.accuracy or None,
        questions=manifest.quality.prompts_digest if manifest.quality else "",
    )


# ---- other tools' files ---------------------------------------------------------------------------------------------


def of_files(label: str, files: Sequence[tuple[str, ForeignResult]]) -> list[Run]:
    """Return the runs in another tool's files of one stack: a load that comes again belongs to the next run.

    HarnessError where the files are of two models, engines, cards or tools, or one of them is of a simulation.
    """
    for name in SHARED:
        known = [(place, _word(getattr(found, name))) for place, found in files if getattr(found, name) is not None]
        for place, word in known:
            if word.lower() != known[0][1].lower():
                fact = f"one stack has files of {known[0][1]} and of {word}"
                raise HarnessError(fact, place=f"{known[0][0]}, {place}", way_out="give each a label of its own")
    runs: list[tuple[list[str], ForeignResult]] = []
    for place, found in files:
        for level in found.levels:
            key = (level.concurrency, level.rate)
            lacking = (run for run in runs if all((each.concurrency, each.rate) != key for each in run[1].levels))
            if (run := next(lacking, None)) is None:
                runs.append(([place], msgspec.structs.replace(found, levels=[level])))
            else:
                run[0].append(place)
                run[1].levels.append(level)
    lacks = {place: found.lacks for place, found in files}
    return [_of_file(label, list(dict.fromkeys(places)), found, lacks) for places, found in runs]


def _word(fact: str | int) -> str:
    """Return a fact of a file for people; a model without the path that leads to it."""
    return short(fact) if isinstance(fact, str) else in_words(fact)


def _of_file(label: str, places: Sequence[str], found: ForeignResult, lacks: Mapping[str, Sequence[str]]) -> Run:
    points, loads = [], []
    for level in found.levels:
        load, X, gpus = level.concurrency or level.rate, level.output_tokens_per_s, found.gpus
        if not load or not X or not level.valid or not level.in_flight_ok:
            continue
        if level.concurrency:
            points.append(foreign_point(level.concurrency, level))
        # Gaps between chunks are a token's only where each chunk carries one: the last resort.
        known = (level.itl_mean_s, level.tpot_s.mean, level.itl_s.mean)
        itl = next((each for each in known if each is not None), None)
        loads.append(
            Load(
                load=load,
                open_loop=level.concurrency is None,
                ttft_p50_s=level.ttft_s.p50,
                itl_mean_s=itl,
                e2e_p50_s=level.e2e_s.p50,
                tokens_per_s_per_user=1 / itl if itl else None,
                tokens_per_s_per_gpu=X / gpus if gpus else None,
            )
        )
    weighed = [(level.input_tokens_mean, level.output_tokens_mean, level.requests or 1) for level in found.levels]
    return Run(
        label=label,
        place=", ".join(places),
        facts=Facts(
            measured_by=found.source + ", simulated" * found.simulated,
            unit=Unit.OUTPUT_TOKENS.value,
            model=found.model,
            gpu=found.gpu,
            gpus=None if found.gpus is None else str(found.gpus),
            engine=found.engine,
        ),
        simulated=found.simulated,
        input_tokens=weighted((inputs, n) for inputs, _, n in weighed),
        output_tokens=weighted((outputs, n) for _, outputs, n in weighed),
        points=points,
        loads=loads,
        lacks=tuple(dict.fromkeys(lack for place in places for lack in lacks[place])),
    )


# ---- the facts of a run ---------------------------------------------------------------------------------------------


def ceiling(roof: Roof | None, input_tokens: float | None, output_tokens: float | None) -> float | None:
    """Return the output tok/s that no batch exceeds at the data sheet's figures: KV traffic and prompts alone.

    1/(kv·(ctx + 1) + t_pre/G), ctx = P + G/2, t_pre = P·prompt + attend·P²/2 (docs/method.md, The steady state).

    >>> round(ceiling(Roof(prompt=1e-5, attend=0.0, weights=5e-3, kv=4e-8), 1000, 200))
    10634
    """
    if roof is None or not input_tokens or not output_tokens:
        return None
    P, G = input_tokens, output_tokens
    prompt = P * roof.prompt + roof.attend * P * P / 2
    seconds = roof.step(P + G / 2) - roof.weights + prompt / G
    return 1 / seconds if seconds > 0 else None


def _facts(manifest: Manifest, summary: Summary) -> Facts:
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
        measured_by=f"{KNEE}, format {summary.format}{simulated}",
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
        max_num_seqs=None if seqs is None else str(seqs),
        seats=f"{seats.value:.3g} (measured)" if seats and seats.value else None,
        engine=" ".join(str(server[key]) for key in ("name", "version") if server.get(key)) or None,
        start=manifest.scenario.ramp.start,
        transport=manifest.client.transport or None,
    )


def _failure(level: LevelSummary) -> str:
    """Return how a level was lost: the share of its requests that failed, and their errors; or that nobody answered."""
    kinds = ", ".join(level.errors_by_type)
    return f"{level.error_rate or 0.0:.0%} failed ({kinds})" if kinds else "nobody answered"


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


def _load(level: LevelSummary, manifest: Manifest) -> Load:
    X, price, gpus = level.output_tokens_per_s.mean, manifest.price, manifest.gpus
    return Load(
        load=float(level.load or 0),
        open_loop=level.rate is not None,
        ttft_p50_s=level.ttft_s.p50,
        itl_mean_s=level.itl_s.mean,
        e2e_p50_s=level.e2e_s.p50,
        tokens_per_s_per_user=level.tokens_per_s_per_user,
        tokens_per_s_per_gpu=level.output_tokens_per_s_per_gpu,
        usd_per_million=usd_per_million(price * gpus, X) if price and gpus and X else None,
        joules_per_token=level.gpu.joules_per_output_token if level.gpu else None,
    )
