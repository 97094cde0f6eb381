"""A scenario: everything that repeats a run, as one strict TOML file; every flag of `knee run` is one path in it.

Secrets need not be in it: a header's value or a field of `extra_body` may be written `env:NAME`. `resolved` is for the
wire and contains them, `shown` is for people and the disk and contains none.

Durations may be written '3s', counts '1.5k', lengths that vary '512±64'. What one field may be is in its type, what
several may be together `check`. What a scenario leaves out stays None and is decided (and written to the manifest) when
the run meets the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from harness.base import decoding, plugins, secrecy, units
from harness.base.errors import HarnessError
from harness.spec import classes, dataset, fleet, images, quality, reuse, traffic
from harness.spec.bounds import Must, above_0, bound, located
from harness.spec.classes import AnswerLength, ClassSpec, PromptLength
from harness.spec.dataset import DatasetSpec
from harness.spec.quality import QualitySpec
from harness.spec.reuse import NodeSpec, Pause, PrefixSpec, SessionSpec
from harness.spec.work import APIS, PREFILL_ONLY

_LEVEL, _RATE = ("a level is at least 1", "write [1, 2, 4, 8]"), ("a rate is above 0", "write [5, 10, 20]")
_PER_MTOK = "not two or three prices", "write it like 0.15,0.60 or 0.15,0.60,0.075"

Natural = Annotated[int, bound("it must be 1 or more", "give 1 or more", ge=1)]
NotNegative = Annotated[int, bound("it is not negative", "give 0 or more", ge=0)]
Levels = Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], bound(*_LEVEL, min_length=1)]
Rates = Annotated[list[Annotated[float, msgspec.Meta(gt=0)]], bound(*_RATE, min_length=1)]
Prices = Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], bound(*_PER_MTOK, min_length=2, max_length=3)]
HalfWidth = Annotated[float, bound("a half-width is above 0, at most 0.5", "write 0.02 for 2 %", gt=0, le=0.5)]
Latency = Annotated[float, bound("a bound is above 0", "write it like '2s' or '500ms'", gt=0)]
Price = Annotated[float, bound("a price is not negative", "give USD per GPU and hour", ge=0)]
Workers = Annotated[int, bound("it must be 1 or more", "give 1 or more, or 'auto'", ge=1)]
Seconds = Annotated[float, bound("a time is not negative", "write '30s', or 0", ge=0)]
Share = Annotated[float, bound("a share is from 0 to 1", "write 0.02 for 2 %", ge=0, le=1)]
Inputs = Annotated[int, bound("a request has 1 to 10,000 texts", "give as many", ge=1, le=10_000)]
Axis = Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], bound("a value is at least 1", "write [128, 512, 2048]")]


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint; secrets are better named (`api_key_env`, `env:NAME`) than written."""

    url: str | None = None
    model: str | None = None
    api: str = "chat"  # one of work.APIS, or of those that other packages add
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    request_timeout: Annotated[float, above_0("write it like '600s'")] = 600.0  # seconds, one request
    wait: Seconds | UnsetType = UNSET  # for a server that does not answer; UNSET: 0 at launch, 5 s during the run
    max_rps: Annotated[float, above_0("leave it out")] | None = None  # quota of a hosted endpoint, requests/s
    server_meta: dict[str, str] = {}
    ca_file: str | None = None  # PEM; None: the authorities that the system trusts
    insecure: bool = False  # take any certificate
    transport: Literal["socket", "httpx"] = "socket"
    stream: bool | UnsetType = UNSET  # whether answers come piece by piece; UNSET: they do
    metrics_url: str | None = None  # where the server's figures are; None: /metrics next to the API
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    urls: list[str] | UnsetType = UNSET  # of several replicas, `url` the first of them
    balance: fleet.Balance | UnsetType = UNSET  # over the replicas; UNSET: round-robin
    allow_different_replicas: bool | UnsetType = UNSET  # of other versions or limits than the first
    session_header: str | UnsetType = UNSET  # name of the header that carries a session's id; UNSET: none does
    traceparent: bool | UnsetType = UNSET  # every request carries a trace id of its own (W3C Trace Context)
    exporters: list[str] | UnsetType = UNSET  # pages of DCGM and node exporters
    omit: list[str] | UnsetType = UNSET  # fields that no request has, by their paths; UNSET: none but what is refused

    @property
    def streams(self) -> bool:
        return self.stream is not False


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_tokens: PromptLength = 512
    output_tokens: AnswerLength = 128
    tokenizer: str | None = None
    seed: int | None = None  # of the prompts; None: another one each run, written to the manifest
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    prefix: PrefixSpec | UnsetType = UNSET
    session: SessionSpec | UnsetType = UNSET
    node: list[NodeSpec] | UnsetType = UNSET  # [[workload.node]], a graph
    tools: list[dict[str, Any]] | UnsetType = UNSET  # definitions in every prompt, as OpenAI's API has them
    dataset: DatasetSpec | UnsetType = UNSET
    inputs: Inputs | UnsetType = UNSET  # texts of a request, where nothing is decoded; each has `input_tokens`
    images: Annotated[int, bound("1 to 64 images", "give 1 to 64", ge=1, le=64)] | UnsetType = UNSET  # in each request
    image_size: str | UnsetType = UNSET  # width x height in pixels, of each; UNSET: 512x512


class Ramp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    levels: Levels | None = None  # None: doubling up to max_concurrency
    max_concurrency: Natural = 1024
    level_seconds: Annotated[float, above_0("write '10s'")] | None = None  # of every window; None: until it is precise
    precision: HalfWidth | None = None  # of a level's 95 % interval, relative, at which its window may end
    quick: bool = False  # end the ramp at its first answer, found or provisional
    max_ttft: Latency | None = None  # seconds; the ramp ends where TTFT p99 passes it
    max_seconds: Annotated[float, above_0("write '10m'")] | None = None
    max_requests: Annotated[int, above_0("give 1 or more")] | None = None
    max_dollars: Annotated[float, above_0("give 1 or more")] | None = None  # by the prices in `hardware`
    rates: Rates | None = None  # open loop: requests per second, a level each; no levels then
    search_rate: bool = False  # open loop: search for the largest rate that meets the SLO
    probe: Literal["prefill", "decode"] | None = None  # measure that phase alone
    slo_fail: bool = False  # missing the SLO ends with exit status 99
    arrivals: str = "poisson"  # of an open loop, as harness.spec.traffic has them
    start: Literal["staggered", "burst", "batch"] = "staggered"  # batch: all at once, and again when all are over
    think: Pause | UnsetType = UNSET  # closed loop: from the end of an answer to the slot's next request
    repeat: Natural = 1
    workers: Workers | None = None  # load-generating processes; None: as many as the load needs and the host has
    ray: str | UnsetType = UNSET  # address of the cluster whose nodes have the workers; else this machine has them
    keep_going: bool = False  # with fixed levels or rates: one that fails does not end the run
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    duration: Annotated[float, above_0("write '1h'")] | UnsetType = UNSET  # of a soak: one window at one load
    knee_share: Annotated[float, above_0("write 0.8")] | UnsetType = UNSET  # of the knee, its load; UNSET: 0.8
    max_disk: Annotated[int, above_0("write '10GB'")] | UnsetType = UNSET  # bytes of the run's records on the disk

    @property
    def level_rates(self) -> list[float] | None:
        """Mean requests per second of each level: `rates`, else the arrivals' own rate; None: these are no rates."""
        if self.rates is not None or self.levels is not None or self.search_rate:
            return self.rates
        own = traffic.parse(self.arrivals).own_rate
        return None if own is None else [own]


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the prediction and the cost need; without gpu and model_config there is no prediction."""

    gpu: str | None = None  # a key of the table; "host": this machine's own cores, measured
    host_cpus: list[int] | None = None  # of these cores; None: all that the run may use
    gpus: Natural = 1
    price: Price | None = None  # USD per GPU-hour
    price_per_mtok: Prices | None = None  # USD per million tokens: in, out and, if they are cheaper, cached
    model_config: str | None = None
    tp: Natural | None = None  # GPUs of a replica; None: one GPU serves
    dtype: str | None = None  # of the weights as the server loads them; None: as they are stored
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    calibration: str | None = None  # a profile of `knee calibrate model`, for a second prediction


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ramp for every combination of these: a level map. What is empty stays as the scenario has it."""

    input_tokens: Axis = []  # lengths of the prompts
    output_tokens: Axis = []  # lengths of the answers
    inputs: Axis | UnsetType = UNSET  # texts of a request
    max_num_seqs: Axis = []  # a setting of the server, so of `sim:` alone; others are named by `urls`
    urls: dict[str, str] = {}  # a server for each setting, by its name


class Sim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded simulated endpoint, for `url = "sim:"`."""

    profile: str = "llama-3.1-8b/h100-sxm"
    max_num_seqs: Natural = 16  # requests that run at once
    speed: Annotated[float, above_0("1 is the hardware's own")] = 1.0  # its clock runs this much faster than that
    # UNSET, not a value: so the digest of a scenario without them stays what it was before there were any.
    prefix_caching: bool | UnsetType = UNSET  # else as engines do: on where prompts begin alike
    block_size: Natural | UnsetType = UNSET  # tokens of a KV block; else 16
    scheduling_policy: Literal["fcfs", "priority"] | UnsetType = UNSET  # which request goes first; else by arrival
    reasoning_tokens: NotNegative | UnsetType = UNSET  # before an answer
    replicas: Natural | UnsetType = UNSET  # GPUs that serve side by side; else one
    corrupt_share: Share | UnsetType = UNSET  # of its answers that are other words; else none
    corrupt_above: Natural | UnsetType = UNSET  # requests in flight, only above which; else at any


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "run"
    target: Target = Target()
    workload: WorkloadSpec = WorkloadSpec()
    class_: Sequence[ClassSpec] | UnsetType = msgspec.field(name="class", default=UNSET)  # [[class]]
    ramp: Ramp = Ramp()
    hardware: Hardware = Hardware()
    slo: dict[str, float] = {}  # limits in seconds, by a name of units.LIMITS
    sweep: Sweep = Sweep()
    sim: Sim = Sim()
    quality: QualitySpec | UnsetType = UNSET

    @property
    def decodes(self) -> bool:
        """Whether its API generates an answer."""
        return self.target.api not in PREFILL_ONLY

    @property
    def reuses_prompts(self) -> bool:
        """Whether prompts begin alike on purpose, so that a prefix cache serves parts of them."""
        return bool(self.workload.prefix or self.workload.dataset) or self.has_tasks

    @property
    def has_tasks(self) -> bool:
        """Whether requests belong together, in sessions or graphs."""
        workload = self.workload
        return bool(workload.session or workload.node or (workload.dataset and workload.dataset.sessions))

    @property
    def has_limits(self) -> bool:
        """Whether a level meets or misses something: an SLO of the run, or of a class."""
        return bool(self.slo) or any(each.slo for each in self.class_ or ())

    @property
    def one_length(self) -> bool:
        """Whether all prompts have one length, all answers another, and no request is of a class or of a task."""
        lengths = (self.workload.input_tokens, self.workload.output_tokens)
        alone = not (self.class_ or self.has_tasks or self.workload.dataset)
        return alone and all(isinstance(length, int) for length in lengths)


_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_HEADER_VALUE = re.compile(r"[\t -~]*")
_FIELD = re.compile(r"\w+(\.\w+)*")  # a path in a request's body
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME = 200  # bytes of a scenario's name: a file's has 255, and a folder's adds the time
_API_VERSION = re.compile(r"\?api-version=[-.0-9A-Za-z]*$")
_NO_KEY = ("an address with a key in it would be stored with the result", "give --api-key-env VARIABLE or --header")
PRECISION = 0.02  # half-width of a level's 95 % interval at which its window may end, by default
MOST_LEVELS = 10_000  # of a run, its repeats included; and cells of a map
MOST_RATE = 1_000_000.0  # requests per second: more than a machine's network stack takes connections
_SECONDS = [
    ("target", "request_timeout"), ("target", "wait"), ("ramp", "level_seconds"), ("ramp", "max_seconds"),
    ("ramp", "duration"),
]  # fmt: skip
_SIZES = [("ramp", "max_disk")]
_COUNTS = [
    ("ramp", "max_concurrency"), ("ramp", "max_requests"), ("ramp", "repeat"),
    ("sweep", "input_tokens"), ("sweep", "output_tokens"), ("sweep", "max_num_seqs"), ("sweep", "inputs"),
    ("workload", "inputs"),
]  # fmt: skip
_LENGTHS = [("workload", "input_tokens"), ("workload", "output_tokens")]


def load(path: str) -> Scenario:
    """The scenario in a TOML file, checked field by field."""
    with decoding.reading(path, "TOML", "give the path of a scenario.toml, or a name of `knee run --list`"):
        raw = decoding.toml(decoding.content(Path(path)))
    return build(raw, place=path)


def build(raw: Mapping[str, Any], *, place: str) -> Scenario:
    """The scenario from plain data; an unknown name is an error with its path and the nearest right one."""
    with decoding.reading(place, "a scenario", "write what can be measured"):
        decoding.check(dict(raw))
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    tree["workload"] = reuse.read(tree.get("workload", {}), f"{place}: $.workload")
    if isinstance(tree.get("target"), dict):
        tree["target"] = fleet.read(tree["target"])
    if isinstance(hardware := tree.get("hardware"), dict) and hardware.get("tp"):
        hardware.setdefault("gpus", hardware["tp"])  # one replica over all
    slo = tree.get("slo")
    limits = [("slo", name) for name in slo] if isinstance(slo, dict) else []  # also of names that `check` refuses
    limits += [("ramp", "max_ttft")]
    for paths, convert in (
        (_SECONDS, units.seconds), (limits, units.limit), (_COUNTS, units.count), (_LENGTHS, classes.length),
        (_SIZES, units.size),
    ):  # fmt: skip
        for table, key in paths:
            units.convert(tree.get(table), key, convert, f"{place}: $.{table}")
    if isinstance(tree.get("class"), dict):
        raise HarnessError("one table is no list of classes at $.class", place=place, way_out="write it [[class]]")
    if isinstance(tree.get("class"), list):
        tables = [classes.read(table, f"{place}: $.class[{i}]") for i, table in enumerate(tree["class"])]
        tree["class"] = classes.of_models(tables, place)
    try:
        scenario = msgspec.convert(tree, Scenario)
    except msgspec.ValidationError as error:
        raise located(str(error), Scenario, place) from None
    check(scenario, place=place)
    return scenario


def _names_a_folder(name: str) -> bool:
    """Whether a result folder can have the name, and lie where it is put."""
    plain = name.isprintable() and "/" not in name and not name.startswith(".")
    return plain and 0 < len(name.encode()) <= _LONGEST_NAME


def check(scenario: Scenario, *, place: str) -> None:
    """Refuse what cannot be measured, before anything is."""

    def must(holds: bool, path: str, fact: str, way_out: str) -> None:
        if not holds:
            raise HarnessError(f"{fact} at $.{path}", place=place, way_out=way_out)

    ramp, hardware = scenario.ramp, scenario.hardware
    must(
        _names_a_folder(scenario.name), "name",
        "it cannot name a folder", f"one line without '/', not begun by '.', at most {_LONGEST_NAME} bytes",
    )  # fmt: skip
    _check_target(scenario, must)
    if scenario.workload.image_size:
        must(bool(scenario.workload.images), "workload.image_size", "a size, but no images", "write images = 1")
        images.size(scenario.workload.image_size, f"{place}: $.workload.image_size")
    _check_arrivals(scenario, must, place)
    _check_pauses(scenario, must, place)
    if ramp.rates is not None:
        must(ramp.levels is None, "ramp.rates", "levels and rates exclude each other", "leave one of them out")
        must(len(set(ramp.rates)) == len(ramp.rates), "ramp.rates", "a rate stands twice", "use repeat instead")
    if ramp.levels is not None:
        must(len(set(ramp.levels)) == len(ramp.levels), "ramp.levels", "a level stands twice", "use repeat instead")
    must(
        not ramp.keep_going or ramp.levels is not None or ramp.level_rates is not None,
        "ramp.keep_going", "a ramp that chooses its levels ends by itself", "give --levels or --rate",
    )  # fmt: skip
    must(
        ramp.max_dollars is None or hardware.price is not None or hardware.price_per_mtok is not None,
        "ramp.max_dollars", "no price to count by", "give --price or --price-per-mtok",
    )  # fmt: skip
    must(
        hardware.host_cpus is None or hardware.gpu in (None, "host"),
        "hardware.host_cpus", "it is used with gpu = host only", "give --gpu host",
    )  # fmt: skip
    _check_lengths(scenario, must, place)
    workload = scenario.workload
    reuse.check(workload.prefix or None, workload.session or None, workload.node or [], must, place)
    _check_search(scenario, must, place)
    _check_sweep(scenario, must)
    _check_sizes(scenario, must)
    _check_inputs(scenario, must)
    if scenario.quality is not UNSET:
        tasks, probed = scenario.has_tasks, ramp.probe is not None
        quality.check(decodes=scenario.decodes, tasks=tasks, probe=probed, must=must)


def _check_target(scenario: Scenario, must: Must) -> None:
    """Addresses and headers; no secret may stand where it would be stored."""
    target = scenario.target
    known = target.api in APIS or target.api in plugins.names(plugins.DIALECTS)
    must(known, "target.api", f"unknown api '{target.api}'", f"known: {', '.join(APIS)}")
    must(not _may_carry_a_key(target.url or ""), "target.url", *_NO_KEY)
    must(not any(map(_may_carry_a_key, target.urls or ())), "target.urls", *_NO_KEY)
    sessions = scenario.has_tasks or bool(scenario.workload.dataset)
    fleet.check(target, must, sessions=sessions, swept=scenario.sweep != Sweep())
    header = target.session_header or ""
    must(
        not header or _HEADER_NAME.fullmatch(header) is not None,
        "target.session_header", "it is no header's name", "write it like X-Session-Id",
    )  # fmt: skip
    must(not _may_carry_a_key(target.metrics_url or ""), "target.metrics_url", *_NO_KEY)
    for url in target.exporters or ():
        must(not _may_carry_a_key(url), "target.exporters", *_NO_KEY)
    for name in target.omit or ():
        must(_FIELD.fullmatch(name) is not None, "target.omit", "it names no field", "write it like ignore_eos")
        must(name not in target.extra_body, "target.omit", f"extra_body has {name}", "leave one of them out")
    must(  # a key that was written here by mistake is not repeated
        target.api_key_env is None or _VARIABLE.fullmatch(target.api_key_env) is not None,
        "target.api_key_env", "it is not the name of a variable", "export MY_KEY=… and give MY_KEY",
    )  # fmt: skip
    must(
        not (target.insecure and target.ca_file), "target.insecure", "insecure ignores ca_file", "leave one of them out"
    )
    for name, value in target.headers.items():
        must(_HEADER_NAME.fullmatch(name) is not None, "target.headers", "a header has a name", "write it Name: value")
        must(
            _HEADER_VALUE.fullmatch(value) is not None,
            f"target.headers.{name}",
            "a header is one line of ASCII",
            "encode it",
        )


def _check_inputs(scenario: Scenario, must: Must) -> None:
    """What APIs have that decode nothing, and what they have not."""
    workload, ramp, sweep = scenario.workload, scenario.ramp, scenario.sweep
    if scenario.decodes:
        fact, way_out = "an answer is generated to one prompt", f"give --api, one of: {', '.join(PREFILL_ONLY)}"
        must(workload.inputs is UNSET, "workload.inputs", fact, way_out)
        must(sweep.inputs is UNSET, "sweep.inputs", fact, way_out)
        return
    api = scenario.target.api
    for path, used in (
        ("workload.session", workload.session), ("workload.node", workload.node), ("workload.tools", workload.tools),
        ("workload.prefix", workload.prefix), ("workload.dataset", workload.dataset), ("class", scenario.class_),
        ("workload.images", workload.images), ("ramp.probe", ramp.probe), ("sweep.output_tokens", sweep.output_tokens),
    ):  # fmt: skip
        must(not used, path, f"a request of {api} holds texts of their own, and gets no answer", "leave it out")
    for name in scenario.slo:
        of_answers = not name.startswith("e2e")
        must(not of_answers, f"slo.{name}", f"{api} sends no tokens, so nothing has this time", "limit e2e_p99")
    most = max(sweep.inputs or (1,))
    must(most <= 10_000, "sweep.inputs", f"a request of {most:,} texts is too large", "give 10,000 or less")


def _check_lengths(scenario: Scenario, must: Must, place: str) -> None:
    """The classes, and what asks by lengths of its own."""
    workload, usual = scenario.workload, WorkloadSpec()
    classes.check(scenario.class_ or (), must, place)
    for field in ("input_tokens", "output_tokens"):
        must(
            not scenario.class_ or getattr(workload, field) == getattr(usual, field),
            f"workload.{field}", "classes have lengths of their own", "leave it out",
        )  # fmt: skip
    for key in ("prefix", "session", "node") if workload.dataset else ():
        must(not getattr(workload, key), f"workload.{key}", "a dataset has prompts of its own", "leave one of them out")
    if workload.dataset:
        dataset.check(workload.dataset, must, place)
    must(not (workload.dataset and scenario.class_), "class", "a dataset has requests of its own", "leave it out")
    for path, used in (("ramp.probe", scenario.ramp.probe is not None), ("sweep", scenario.sweep != Sweep())):
        must(not used or scenario.one_length, path, "it needs prompts and answers of one length", "give numbers")
    for key in ("prefix", "tools") if scenario.ramp.probe == "prefill" else ():
        must(not getattr(workload, key), "ramp.probe", f"its prompts have no {key}", f"leave workload.{key} out")


def _check_arrivals(scenario: Scenario, must: Must, place: str) -> None:
    """How an open loop's requests arrive."""
    ramp, arrivals = scenario.ramp, traffic.parse(scenario.ramp.arrivals, f"{place}: $.ramp.arrivals")
    trace, dataset = arrivals.speed is not None, scenario.workload.dataset
    must(not trace or bool(dataset), "ramp.arrivals", "no dataset has times to replay", "give --dataset FILE")
    own = trace or arrivals.own_rate is not None
    fact = "arrivals with rates of their own are an open loop: levels exclude them"
    must(not own or ramp.levels is None, "ramp.arrivals", fact, "leave one of them out")
    peak = arrivals.peak * max(ramp.level_rates or (), default=0.0)
    fact = f"{peak:g} requests a second are more than the {MOST_RATE:,.0f} that a machine can send"
    must(peak <= MOST_RATE, "ramp.arrivals" if own else "ramp.rates", fact, f"give {MOST_RATE:,.0f} or less")


def _check_pauses(scenario: Scenario, must: Must, place: str) -> None:
    """What a closed loop alone has: think time, static batches, and tasks, of which a slot holds one."""
    ramp, workload = scenario.ramp, scenario.workload
    replayed = traffic.parse(ramp.arrivals).speed is not None
    open_loop = ramp.level_rates is not None or ramp.search_rate or replayed
    reuse.pauses(ramp.think or 0.0, f"{place}: $.ramp.think")
    must(not (ramp.think and open_loop), "ramp.think", "an open loop has no think time", "leave one of them out")
    batch = ramp.start == "batch"
    must(not (batch and open_loop), "ramp.start", "an open loop has no batches", "leave one of them out")
    must(not (batch and ramp.think), "ramp.think", "a batch follows the one before at once", "leave it out")
    fact = "static batches come from one worker"
    must(not batch or ramp.workers in (None, 1), "ramp.workers", fact, "leave it out")
    if scenario.has_tasks:
        table = "workload.session" if workload.session else "workload.node" if workload.node else "workload.dataset"
        must(not open_loop, table, "sessions and graphs are closed loops so far", "give --levels in place of --rate")
        must(not batch, "ramp.start", "a batch has single requests, not sessions or graphs", "leave it out")
        must(not ramp.think, "ramp.think", "sessions and graphs have pauses of their own", "write them there")
        must(not scenario.class_, "class", "sessions and graphs are of one class so far", "leave [[class]] out")


def _check_search(scenario: Scenario, must: Must, place: str) -> None:
    """What the ramp searches for, and how closely."""
    ramp = scenario.ramp
    for name, limit in scenario.slo.items():
        units.known_limit(name, f"{place}: $.slo")
        must(0 < limit < math.inf, f"slo.{name}", "a limit is above 0", "write it like '2s' or '50ms'")
    if ramp.search_rate:
        both = "a search chooses its own rates: levels and rates exclude it"
        must(ramp.levels is None and ramp.rates is None, "ramp.search_rate", both, "leave one of them out")
        must(scenario.has_limits, "ramp.search_rate", "no SLO to search by", "give --slo, like ttft_p99=2s")
    must(not ramp.slo_fail or scenario.has_limits, "ramp.slo_fail", "no SLO to miss", "give --slo, like ttft_p99=2s")
    loads = ramp.levels or ramp.level_rates or ()
    soaks = (
        (len(loads) <= 1, "a soak has one load", "give one level or rate, or none: it is then a share of the knee"),
        (ramp.level_seconds is None, "level_seconds and duration exclude each other", "leave one of them out"),
        (ramp.repeat == 1, "a soak is measured once", "leave repeat out, and give a longer duration"),
        (ramp.probe is None and not ramp.search_rate, "a soak has one load", "leave the probe or the search out"),
        (scenario.sweep == Sweep(), "a soak has one load", "leave the sweep out"),
    )
    for holds, fact, way_out in soaks if ramp.duration else ():
        must(holds, "ramp.duration", fact, way_out)
    must(
        not ramp.knee_share or bool(ramp.duration and not loads),
        "ramp.knee_share", "it is the load of a soak without one", "give --duration and no --levels, or leave it out",
    )  # fmt: skip
    if ramp.probe is not None:
        open_loop = ramp.level_rates is not None or ramp.search_rate
        must(not open_loop, "ramp.probe", "a probe holds levels: rates exclude it", "leave one of them out")


def _check_sweep(scenario: Scenario, must: Must) -> None:
    """The axes of the level map."""
    sweep, target = scenario.sweep, scenario.target
    for axis in ("input_tokens", "output_tokens", "max_num_seqs", "inputs"):
        values: list[int] = getattr(sweep, axis) or []
        must(len(set(values)) == len(values), f"sweep.{axis}", "a value stands twice", "write each value once")
    must(
        not sweep.max_num_seqs or target.url in (None, "sim:"),
        "sweep.max_num_seqs", "no server but sim: takes it from here", "start a server for each setting: sweep.urls",
    )  # fmt: skip
    must(
        not (sweep.max_num_seqs and sweep.urls),
        "sweep.urls", "max_num_seqs and urls are both the server's setting", "leave one of them out",
    )  # fmt: skip
    for name, url in sweep.urls.items():
        must(bool(name.strip() and url.strip()), "sweep.urls", "a setting has a name and a url", "write NAME = 'URL'")
        must(not _may_carry_a_key(url), "sweep.urls", *_NO_KEY)
    must(len(set(sweep.urls.values())) == len(sweep.urls), "sweep.urls", "a url stands twice", "write each url once")
    must(
        sweep == Sweep() or scenario.ramp.probe is None,
        "sweep", "a level map has a knee a cell, a probe none", "leave [sweep] or ramp.probe out",
    )  # fmt: skip


def _check_sizes(scenario: Scenario, must: Must) -> None:
    """Refuse more streams than any machine can open; this one's own limits are checked when a run begins."""
    workload, ramp, sweep = scenario.workload, scenario.ramp, scenario.sweep
    lengths: list[tuple[str, int | str]] = []
    for field in ("input_tokens", "output_tokens"):
        lengths += [(f"workload.{field}", getattr(workload, field))]
        lengths += [(f"sweep.{field}", max(getattr(sweep, field), default=0))]
    for i, each in enumerate(scenario.class_ or ()):
        lengths += [(f"class[{i}].input", each.input), (f"class[{i}].output", each.output)]
    for path, most in lengths:
        if isinstance(most, int):  # the numbers of a distribution are bounded where its text is read
            fact = f"{most:,} tokens are more than the {units.MOST_TOKENS:,} of the longest context that models have"
            must(most <= units.MOST_TOKENS, path, fact, f"give {units.MOST_TOKENS:,} or less")
    highest = max([ramp.max_concurrency, *(ramp.levels or ())])
    fact = f"{highest:,} requests in flight are more than the {units.MOST_STREAMS:,} that a machine can hold"
    path = "ramp.levels" if ramp.levels else "ramp.max_concurrency"
    must(highest <= units.MOST_STREAMS, path, fact, f"give {units.MOST_STREAMS:,} or less")
    levels = max(1, len(ramp.levels or ramp.rates or ()))
    fact = f"{levels * ramp.repeat:,} levels are more than the {MOST_LEVELS:,} that a run keeps in memory"
    must(levels * ramp.repeat <= MOST_LEVELS, "ramp.repeat", fact, f"give {max(1, MOST_LEVELS // levels):,} or less")
    cells = math.prod(
        max(1, len(axis or ()))
        for axis in (sweep.input_tokens, sweep.output_tokens, sweep.inputs, sweep.max_num_seqs, sweep.urls)
    )
    fact = f"{cells:,} cells are more than the {MOST_LEVELS:,} that a level map can have"
    must(cells <= MOST_LEVELS, "sweep", fact, "sweep fewer values")


def _may_carry_a_key(address: str) -> bool:
    """Whether an address may carry a secret: of queries only Azure's `api-version` is known to be none.

    >>> _may_carry_a_key("https://me:key@host"), _may_carry_a_key("https://host?api-version=2024-10-21")
    (True, False)
    """
    address = _API_VERSION.sub("", address)
    return not address.startswith("unix:") and re.search("[@?#]", address) is not None


def resolved(scenario: Scenario, environ: Mapping[str, str]) -> Scenario:
    """The scenario for the wire: the API key a header, and every `env:NAME` its value."""
    target = scenario.target
    headers = {
        name: secrecy.resolved(value, environ, f"$.target.headers.{name}") for name, value in target.headers.items()
    }
    body = secrecy.mapped(target.extra_body, lambda text, _: secrecy.resolved(text, environ, "$.target.extra_body"))
    if target.api_key_env:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {_key(target.api_key_env, environ)}"
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise HarnessError(
                "its value is not one line of ASCII", place=f"header {name}", way_out="see what its variable holds"
            )
    return msgspec.structs.replace(scenario, target=msgspec.structs.replace(target, headers=headers, extra_body=body))


def _key(variable: str, environ: Mapping[str, str]) -> str:
    """The API key. A variable that is not set is named only if it looks like a name: it may be the key."""
    key = environ.get(variable)
    if not key:
        what = "is not set" if key is None else "is empty"
        fact = f"the variable {variable} {what}" if variable.isupper() else "no variable of that name is set"
        name = variable if variable.isupper() else "MY_KEY"
        raise HarnessError(fact, place="--api-key-env", way_out=f"export {name}=…")
    return key


def variables(scenario: Scenario) -> list[tuple[str, str]]:
    """Every environment variable whose value the requests would carry, with the path that names it.

    >>> variables(Scenario(target=Target(api_key_env="A", headers={"X-Key": "env:B"})))
    [('A', '$.target.api_key_env'), ('B', '$.target.headers.X-Key')]
    """
    target = scenario.target
    key = [(target.api_key_env, "$.target.api_key_env")] if target.api_key_env else []
    inside = {"headers": target.headers, "extra_body": target.extra_body}
    return [*key, *secrecy.variables(inside, "$.target")]


def carried(scenario: Scenario) -> list[str]:
    """What the requests carry that may be secret, by its name, each once: never the value."""
    target = scenario.target
    found = [name for name, _ in variables(scenario)]
    for name, value in target.headers.items():
        if secrecy.secret_header(name) and not secrecy.names_a_variable(value):
            found.append(f"the header {name}")
    if secrecy.shown(target.extra_body) != target.extra_body:
        found.append("a field of extra_body")
    if scenario.workload.dataset:
        found.append(f"the requests of {scenario.workload.dataset.path}")
    if scenario.quality and scenario.quality.file:
        found.append(f"the prompts of {scenario.quality.file}")
    return list(dict.fromkeys(found))


def secrets(scenario: Scenario, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What must not be shown of a scenario and its surroundings: the values themselves."""
    target, wire = scenario.target, resolved(scenario, environ).target
    found = set(secrecy.of_proxies(environ))
    for name, value in wire.headers.items():
        if secrecy.secret_header(name) or secrecy.names_a_variable(target.headers.get(name, "")):
            found.update(secrecy.credentials(value))

    def note(text: str, secret: bool) -> str:
        if secret or secrecy.names_a_variable(text):
            found.add(secrecy.resolved(text, environ, ""))
        return text

    secrecy.mapped(target.extra_body, note)
    return tuple(sorted(found - {"", target.model}))  # a header may repeat what is no secret


def shown(scenario: Scenario, secrets: Iterable[str] = ()) -> Scenario:
    """The scenario for people and the disk: what may be secret is hidden, and known secrets in any text too."""
    target = scenario.target
    headers = {
        name: secrecy.HIDDEN if secrecy.secret_header(name) and not secrecy.names_a_variable(value) else value
        for name, value in target.headers.items()
    }
    facts = secrecy.redact_all(secrecy.shown(target.server_meta), secrets)
    hidden = msgspec.structs.replace(
        target, headers=headers, extra_body=secrecy.shown(target.extra_body), server_meta=facts
    )
    return msgspec.structs.replace(scenario, target=hidden)


def to_toml(scenario: Scenario) -> str:
    """The scenario as TOML that `load` reads back to the same value; None is left out."""
    import tomli_w

    tree = msgspec.to_builtins(scenario)
    for name, section in tree.items():
        if isinstance(section, dict):
            tree[name] = {key: each for key, each in section.items() if each not in (None, {}, [])}
    try:
        return tomli_w.dumps({name: section for name, section in tree.items() if section})
    except TypeError:  # of what JSON has, TOML lacks null alone
        fact = "null cannot be written in TOML"
        raise HarnessError(fact, place="--print-scenario", way_out="leave the field out") from None


def digest(scenario: Scenario) -> str:
    """Sixteen hex digits that change when anything about the run but a secret changes; for comparing result folders."""
    return _digest(shown(scenario))


def workload_digest(scenario: Scenario) -> str:
    """Sixteen hex digits of the work alone: what is asked and how it arrives, whoever serves it.

    Left out: address, name, price, seed, levels, their start, bounds, hardware, limits, and where tokenizer and data
    lie; data count by their requests and mean lengths.
    """
    workload, ramp = msgspec.to_builtins(scenario.workload), scenario.ramp
    workload.update(seed=None, tokenizer=None)
    workload.get("dataset", {}).pop("path", None)
    classes = [each | {"slo": {}} for each in msgspec.to_builtins(scenario.class_ or [])]
    target = shown(scenario).target
    open_loop = ramp.search_rate or ramp.level_rates is not None
    arrives = [open_loop and ramp.arrivals, msgspec.to_builtins(ramp.think or 0), ramp.probe]
    asked = [workload, classes, target.api, target.extra_body, arrives, *([target.omit] if target.omit else [])]
    return _digest(asked)


def _digest(data: Any) -> str:
    import hashlib  # OpenSSL's, which is slow to load

    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()[:16]
