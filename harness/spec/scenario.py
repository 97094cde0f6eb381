"""A scenario: everything that repeats a run, as one strict TOML file; every flag of `knee run` is one path in it.

Secrets need not be in it: a header's value or a field of `extra_body` may be written `env:NAME`. `resolved` is for the
wire and contains them, `shown` is for people and the disk and contains none.

Durations may be written '3s', counts '1.5k', lengths that vary '512±64' (`reading`). What a scenario leaves out stays
None and is decided (and written to the manifest) when the run meets the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from harness.base import secrecy, units
from harness.base.errors import HarnessError
from harness.spec import load as loads
from harness.spec.bounds import above_0, bound
from harness.spec.choices import PREFILL_ONLY, Balance, Phase, Start, Transport
from harness.spec.classes import AnswerLength, ClassSpec, Limit, PromptLength
from harness.spec.load import Load
from harness.spec.reuse import DatasetSpec, NodeSpec, Pause, PrefixSpec, SessionSpec

_LEVEL = f"a level is 1 to {units.MOST_STREAMS:,} requests in flight"
_RATE = ("a rate is above 0", "write [5, 10, 20]")
_PER_MTOK = "not two or three prices", "write it like 0.15,0.60 or 0.15,0.60,0.075"

Natural = Annotated[int, bound("it must be 1 or more", "give 1 or more", ge=1)]
Count = Annotated[int, bound("it must be 1 or more", "give 1 or more", units.count, ge=1)]
NotNegative = Annotated[int, bound("it is not negative", "give 0 or more", ge=0)]
Streams = Annotated[int, bound(_LEVEL, "give a number in that range", units.count, ge=1, le=units.MOST_STREAMS)]
_Level = Annotated[int, msgspec.Meta(ge=1, le=units.MOST_STREAMS)]
Levels = Annotated[list[_Level], bound(_LEVEL, "write [1, 2, 4, 8]", min_length=1)]
Rates = Annotated[list[Annotated[float, msgspec.Meta(gt=0)]], bound(*_RATE, min_length=1)]
Prices = Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], bound(*_PER_MTOK, min_length=2, max_length=3)]
Confidence = Annotated[float, bound("a confidence is 0.5 to 0.9999", "write 0.99", ge=0.5, le=0.9999)]
HalfWidth = Annotated[float, bound("a half-width is above 0, at most 0.5", "write 0.02 for 2 %", gt=0, le=0.5)]
Latency = Annotated[float, bound("a bound is above 0", "write it like '2s' or '500ms'", units.limit, gt=0)]
Price = Annotated[float, bound("a price is not negative", "give USD per GPU and hour", ge=0)]
Workers = Annotated[int, bound("it must be 1 or more", "give 1 or more, or 'auto'", ge=1)]
Lasting = Annotated[float, above_0("write '10s', '10m' or '1h'", units.seconds)]
Seconds = Annotated[float, bound("a time is not negative", "write '30s', or 0", units.seconds, ge=0)]
Inputs = Annotated[int, bound("a request has 1 to 10,000 texts", "give as many", units.count, ge=1, le=10_000)]
_AXIS = f"a value is 1 to {units.MOST_TOKENS:,}"
_AxisValue = Annotated[int, msgspec.Meta(ge=1, le=units.MOST_TOKENS, extra={"read": units.count})]
Axis = Annotated[list[_AxisValue], bound(_AXIS, "write [128, 512, 2048]")]
_Texts = Annotated[int, msgspec.Meta(ge=1, le=10_000, extra={"read": units.count})]
TextsAxis = Annotated[list[_Texts], bound("a request has 1 to 10,000 texts", "write [1, 16, 64]")]
MOST_REPLICAS = 64  # every one is asked for its model before the load
Urls = Annotated[
    list[str],
    bound(
        f"1 to {MOST_REPLICAS} urls are expected", "give one for each replica", min_length=1, max_length=MOST_REPLICAS
    ),
]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint; secrets are better named (`api_key_env`, `env:NAME`) than written."""

    url: str | None = None
    model: str | None = None
    api: str = "chat"  # one of work.APIS, or of those that other packages add
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    request_timeout: Annotated[float, above_0("write it like '600s'", units.seconds)] = 600.0  # seconds, one request
    wait: Seconds | UnsetType = UNSET  # for a server that does not answer; UNSET: 0 at launch, 5 s during the run
    max_rps: Annotated[float, above_0("leave it out")] | None = None  # quota of a hosted endpoint, requests/s
    server_meta: dict[str, str] = {}
    ca_file: str | None = None  # PEM; None: the authorities that the system trusts
    insecure: bool = False  # take any certificate
    transport: Transport = "socket"
    stream: bool | UnsetType = UNSET  # whether answers come piece by piece; UNSET: they do
    metrics_url: str | None = None  # page of the server's figures; None: /metrics next to the API
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    urls: Urls | UnsetType = UNSET  # URLs of several replicas; `url` is the first
    balance: Balance | UnsetType = UNSET  # over the replicas; UNSET: round-robin
    versus: Balance | UnsetType = UNSET  # the other way to balance, which a run of its own measures
    allow_different_replicas: bool | UnsetType = UNSET  # replicas may differ from the first in version or limits
    session_header: str | UnsetType = UNSET  # name of the header that carries a session's id; UNSET: none does
    exporters: list[str] | UnsetType = UNSET  # pages of DCGM exporters
    pool_metrics: dict[str, str] | UnsetType = UNSET  # pages of servers behind a proxy, by their pools' names
    omit: list[str] | UnsetType = UNSET  # fields that no request has, by their paths; UNSET: none but what is refused

    @property
    def every_url(self) -> list[str]:
        """Return the address of every replica; of one server its own, none where the scenario names none."""
        return list(self.urls or ([self.url] if self.url is not None else []))

    @property
    def streams(self) -> bool:
        return self.stream is not False


_TOOL_TIME = bound("a scale is from 0 to 1000", "write 0.05", ge=0, le=1000)


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: PromptLength = 512
    output_tokens: AnswerLength = 128
    tokenizer: str | None = None
    seed: int | None = None  # seed of the prompts; None: another one each run, written to the manifest
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    prefix: PrefixSpec | UnsetType = UNSET
    session: SessionSpec | UnsetType = UNSET
    node: list[NodeSpec] | UnsetType = UNSET  # [[workload.node]], a graph
    tools: list[dict[str, Any]] | UnsetType = UNSET  # definitions in every prompt, as OpenAI's API has them
    dataset: DatasetSpec | UnsetType = UNSET
    tool_time_scale: Annotated[float, _TOOL_TIME] | UnsetType = UNSET  # pauses of sessions and tasks times this; else 1
    inputs: Inputs | UnsetType = UNSET  # texts of a request, if nothing is decoded; each has `input_tokens`
    images: Annotated[int, bound("1 to 64 images", "give 1 to 64", ge=1, le=64)] | UnsetType = UNSET  # in each request
    image_size: str | UnsetType = UNSET  # width x height in pixels, of each; UNSET: 512x512


class Ramp(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    levels: Levels | None = None  # None: doubling up to max_concurrency
    max_concurrency: Streams = 1024
    level_seconds: Annotated[float, above_0("write '10s'", units.seconds)] | None = (
        None  # length of every window; None: until it is precise
    )
    precision: HalfWidth | None = None  # relative half-width of a level's 95 % interval at which its window may end
    quick: bool = False  # end the ramp at its first answer, found or provisional
    max_ttft: Latency | None = None  # seconds; the ramp ends where TTFT p99 passes it
    max_seconds: Lasting | None = None
    max_requests: Annotated[int, above_0("give 1 or more", units.count)] | None = None
    max_dollars: Annotated[float, above_0("give 1 or more")] | None = None  # most dollars, by the prices in `hardware`
    rates: Rates | None = None  # open loop: requests per second, a level each; no levels then
    search_rate: bool = False  # open loop: search for the largest rate that meets the SLO
    probe: Phase | None = None  # measure that phase alone
    slo_confidence: Confidence | UnsetType = UNSET  # confidence with which a limit has to be met or missed; UNSET: 0.95
    slo_fail: bool = False  # missing the SLO ends with exit status 99
    arrivals: str = "poisson"  # arrivals of an open loop, written like harness.spec.traffic
    start: Start = "staggered"
    think: Pause | UnsetType = UNSET  # closed loop: from the end of an answer to the slot's next request
    repeat: Count = 1
    workers: Workers | None = None  # load-generating processes; None: as many as the load needs and the host has
    ray: str | UnsetType = UNSET  # address of the cluster whose nodes have the workers; else this machine has them
    keep_going: bool = False  # a fixed level or rate that fails does not end the run
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    duration: Lasting | UnsetType = UNSET  # length of a soak: one window at one load
    knee_share: Annotated[float, above_0("write 0.8")] | UnsetType = UNSET  # load of a soak over the knee; UNSET: 0.8
    max_disk: Annotated[int, above_0("write '10GB'", units.size)] | UnsetType = (
        UNSET  # bytes of the run's records on the disk
    )

    @cached_property
    def load(self) -> Load:
        """Return which kind of load these fields ask for."""
        return loads.of(self.levels, self.rates, searched=self.search_rate, arrivals=self.arrivals)


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What the prediction and the cost need; without gpu and model_config there is no prediction."""

    gpu: str | None = None  # a key of the table; "host": this machine's own cores, measured
    host_cpus: list[int] | None = None  # cores that serve; None: all that the run may use
    gpus: Natural = 1
    price: Price | None = None  # USD per GPU-hour
    price_per_mtok: Prices | None = None  # USD per million tokens: in, out and, if they are cheaper, cached
    model_config: str | None = None
    tp: Natural | None = None  # GPUs of a replica; None: one GPU serves
    dtype: str | None = None  # type of the weights as the server loads them; None: as they are stored
    kv_dtype: str | None = None
    max_num_seqs: int | None = None
    calibration: str | None = None  # a profile of `knee calibrate model`, for a second prediction


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A ramp for every combination of these: a level map. What is empty stays as the scenario has it."""

    input_tokens: Axis = []  # lengths of the prompts
    output_tokens: Axis = []  # lengths of the answers
    inputs: TextsAxis | UnsetType = UNSET  # texts of a request
    max_num_seqs: Axis = []  # a setting of the server, so of `sim:` alone; others are named by `urls`
    urls: dict[str, str] = {}  # a server for each setting, by its name


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    """The embedded simulated endpoint, for `url = "sim:"`."""

    profile: str = "llama-3.1-8b/h100-sxm"
    max_num_seqs: Natural = 16  # requests that run at once
    speed: Annotated[float, above_0("1 is the hardware's own")] = 1.0  # its clock runs this much faster than that
    # UNSET, not a value: so the digest of a scenario without them stays what it was before there were any.
    prefix_caching: bool | UnsetType = UNSET  # else as engines do: on where prompts begin alike
    block_size: Natural | UnsetType = UNSET  # tokens of a KV block; else 16
    kv_tokens: Natural | UnsetType = UNSET  # tokens of a GPU's KV cache; else as many as it has memory for
    scheduling_policy: Literal["fcfs", "priority"] | UnsetType = UNSET  # order of requests; UNSET: by arrival
    reasoning_tokens: NotNegative | UnsetType = UNSET  # reasoning tokens before an answer
    replicas: Natural | UnsetType = UNSET  # GPUs that serve side by side; else one


MOST_SHARE = 0.02  # most of the load: what is measured stays the workload's
_SHARE = bound("canaries are more than 0 and at most 2 % of the load", "write 0.02", gt=0, le=MOST_SHARE)
_REPEATS = bound("a first answer is compared with at least one more, at most 100", "give 2 to 100", ge=2, le=100)


class QualitySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Canaries: requests with fixed prompts and temperature 0, in place of a share of the load's own."""

    file: str | None = None  # path of a JSONL file of prompts; None: those that come with Knee
    share: Annotated[float, _SHARE] = MOST_SHARE  # share of the requests that are canaries
    repeats: Annotated[int, _REPEATS] = 3  # how often each is asked before the load, one request in flight
    output_tokens: Annotated[int, above_0("give 1 or more")] = 64  # tokens of an answer, at most


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """What is done before the load and before each level, for workloads that repeat prompts on purpose."""

    audit_cache: bool | UnsetType = UNSET  # say what the prefix cache gives, by new and repeated prompts
    reset_cache: bool | UnsetType = UNSET  # empty it before every level
    before_level: str | UnsetType = UNSET  # a command, which runs without a shell
    stop_replica: str | UnsetType = UNSET  # a command that stops one of several replicas, in one more level at the end


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "run"
    target: Target = Target()
    workload: WorkloadSpec = WorkloadSpec()
    class_: Sequence[ClassSpec] | UnsetType = msgspec.field(name="class", default=UNSET)  # [[class]]
    ramp: Ramp = Ramp()
    hardware: Hardware = Hardware()
    slo: dict[str, Limit] = {}  # limits in seconds, by a name of units.LIMITS
    sweep: Sweep = Sweep()
    sim: Sim = Sim()
    quality: QualitySpec | UnsetType = UNSET
    hooks: Hooks | UnsetType = UNSET

    @property
    def load(self) -> Load:
        """Return which of the kinds of load it has."""
        return self.ramp.load

    @property
    def decodes(self) -> bool:
        """Return whether its API generates an answer."""
        return self.target.api not in PREFILL_ONLY

    @property
    def reuses_prompts(self) -> bool:
        """Return whether prompts begin alike on purpose, so that a prefix cache serves parts of them."""
        return bool(self.workload.prefix or self.workload.dataset) or self.has_tasks

    @property
    def counted(self) -> str:
        """Return the word for what a closed-loop level counts: "agents", "sessions", or requests "in flight"."""
        session, dataset = self.workload.session, self.workload.dataset
        if (session and session.sub_agents) or (dataset and dataset.sessions and dataset.agents):
            return "agents"
        return "sessions" if self.has_tasks else "in flight"

    @property
    def many(self) -> bool:
        """Return whether it is measured by many runs: a level map, or a comparison of two ways to balance."""
        return self.sweep != Sweep() or bool(self.target.versus)

    @property
    def has_tasks(self) -> bool:
        """Return whether requests belong together, in sessions or graphs."""
        workload = self.workload
        return bool(workload.session or workload.node or (workload.dataset and workload.dataset.sessions))

    @property
    def has_limits(self) -> bool:
        """Return whether a level meets or misses something: an SLO of the run, or of a class."""
        return bool(self.slo) or any(spec.slo for spec in self.class_ or ())

    @property
    def slo_confidence(self) -> float:
        """Return the confidence with which a limit has to be met, or missed."""
        return self.ramp.slo_confidence or SLO_CONFIDENCE

    @property
    def one_length(self) -> bool:
        """Return whether all prompts have one length, all answers another, without classes and tasks."""
        lengths = (self.workload.input_tokens, self.workload.output_tokens)
        alone = not (self.class_ or self.has_tasks or self.workload.dataset)
        return alone and all(isinstance(length, int) for length in lengths)


HEADER_VALUE = re.compile(r"[\t -~]*")
SLO_CONFIDENCE = 0.95  # one-sided
PRECISION = 0.02  # half-width of a level's 95 % interval at which its window may end, by default


def resolved(scenario: Scenario, environ: Mapping[str, str]) -> Scenario:
    """Return the scenario with its secrets: the API key as a header, and the variable's value for every `env:NAME`."""
    target = scenario.target
    headers = {
        name: secrecy.resolved(value, environ, f"$.target.headers.{name}") for name, value in target.headers.items()
    }
    body = secrecy.mapped(target.extra_body, lambda text, _: secrecy.resolved(text, environ, "$.target.extra_body"))
    if target.api_key_env:
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {_key(target.api_key_env, environ)}"
    for name, value in headers.items():
        if not HEADER_VALUE.fullmatch(value):
            raise HarnessError(
                "its value is not one line of ASCII", place=f"header {name}", way_out="see what its variable holds"
            )
    return msgspec.structs.replace(scenario, target=msgspec.structs.replace(target, headers=headers, extra_body=body))


def _key(variable: str, environ: Mapping[str, str]) -> str:
    """Return the API key in an environment variable; the error without one names it unless it may be a key."""
    key = environ.get(variable)
    if not key:
        what = "is not set" if key is None else "is empty"
        fact = f"the variable {variable} {what}" if variable.isupper() else "no variable of that name is set"
        name = variable if variable.isupper() else "MY_KEY"
        raise HarnessError(fact, place="--api-key-env", way_out=f"export {name}=…")
    return key


def variables(scenario: Scenario) -> list[tuple[str, str]]:
    """Return every environment variable whose value the requests would carry, with the path that names it.

    >>> variables(Scenario(target=Target(api_key_env="A", headers={"X-Key": "env:B"})))
    [('A', '$.target.api_key_env'), ('B', '$.target.headers.X-Key')]
    """
    target = scenario.target
    key = [(target.api_key_env, "$.target.api_key_env")] if target.api_key_env else []
    inside = {"headers": target.headers, "extra_body": target.extra_body}
    return [*key, *secrecy.variables(inside, "$.target")]


def carried(scenario: Scenario) -> list[str]:
    """Return the names (never the values) of what the requests carry that may be secret: headers, fields, prompts."""
    target = scenario.target
    parts = [name for name, _ in variables(scenario)]
    for name, value in target.headers.items():
        if secrecy.secret_header(name) and not secrecy.names_a_variable(value):
            parts.append(f"the header {name}")
    if secrecy.shown(target.extra_body) != target.extra_body:
        parts.append("a field of extra_body")
    if scenario.workload.dataset:
        parts.append(f"the requests of {scenario.workload.dataset.path}")
    if scenario.quality and scenario.quality.file:
        parts.append(f"the prompts of {scenario.quality.file}")
    return list(dict.fromkeys(parts))


def secrets(scenario: Scenario, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values of a scenario: of headers, body fields, environment variables and proxies."""
    target, wire = scenario.target, resolved(scenario, environ).target
    secrets = set(secrecy.of_proxies(environ))
    for name, value in wire.headers.items():
        if secrecy.secret_header(name) or secrecy.names_a_variable(target.headers.get(name, "")):
            secrets.update(secrecy.credentials(value))

    def note(text: str, secret: bool) -> str:
        if secret or secrecy.names_a_variable(text):
            secrets.add(secrecy.resolved(text, environ, ""))
        return text

    secrecy.mapped(target.extra_body, note)
    return tuple(sorted(secrets - {"", target.model}))  # a header may repeat what is no secret


def shown(scenario: Scenario, secrets: Iterable[str] = ()) -> Scenario:
    """Return the scenario as people may see it: secret headers and fields hidden, known `secrets` in facts too."""
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
    """Return the scenario as TOML that `load` reads back to the same value.

    None is left out, and so is the simulated endpoint where another is measured.
    """
    import tomli_w

    tree = msgspec.to_builtins(scenario)
    if scenario.sim == Sim() and not (scenario.target.url or "sim:").startswith("sim:"):
        del tree["sim"]
    for name, section in tree.items():
        if isinstance(section, dict):
            tree[name] = {key: each for key, each in section.items() if each not in (None, {}, [])}
    try:
        return tomli_w.dumps({name: section for name, section in tree.items() if section})
    except TypeError:  # null is the one value of JSON that TOML lacks
        fact = "null cannot be written in TOML"
        raise HarnessError(fact, place="--print-scenario", way_out="leave the field out") from None


def digest(scenario: Scenario) -> str:
    """Return sixteen hex digits that change when anything about the run but a secret changes."""
    return _digest(shown(scenario))


def workload_digest(scenario: Scenario) -> str:
    """Return a digest, 16 hex digits, of the workload alone: requests and how they arrive, whoever serves them.

    Left out: address, name, price, seed, levels, their start, bounds, hardware, limits, and where tokenizer and data
    lie; data count by their requests and mean lengths.
    """
    return _digest(list(_workload_parts(scenario).values()))


def workload_fields(scenario: Scenario) -> dict[str, str]:
    """Return what `workload_digest` is of as texts: a value by its key, like {"workload.input_tokens": "64±8"}."""
    fields: dict[str, str] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                add(f"{name}.{key}", each)
        elif value not in (None, []):
            fields[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()

    for name, value in _workload_parts(scenario).items():
        add(name, {each["name"]: each for each in value} if name == "class" else value)
    return fields


def _workload_parts(scenario: Scenario) -> dict[str, Any]:
    workload, ramp = msgspec.to_builtins(scenario.workload), scenario.ramp
    workload.update(seed=None, tokenizer=None)
    workload.get("dataset", {}).pop("path", None)
    classes = [each | {"slo": {}} for each in msgspec.to_builtins(scenario.class_ or [])]
    target = shown(scenario).target
    load = f"open loop, {ramp.arrivals}" if scenario.load.is_open else "closed loop"
    think = msgspec.to_builtins(ramp.think or 0)
    parts = {"workload": workload, "class": classes, "target.api": target.api, "target.extra_body": target.extra_body}
    parts |= {"load": load, "ramp.think": think, "ramp.probe": ramp.probe}
    return parts | ({"target.omit": list(target.omit)} if target.omit else {})


def _digest(data: Any) -> str:
    import hashlib  # OpenSSL's, which is slow to load

    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()[:16]
