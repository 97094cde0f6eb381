"""The shape of `manifest.json`: all that could explain a difference between two runs, written before any load.

The run that writes it and everything that reads it share these types. A field that is UNSET is not in the file: it is
not known yet, or an earlier version did not write it. One that is None is there as null: it could not be found out.
What a later version adds is left out. A manifest that is damaged is refused whole, by the path of what is wrong with
it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from harness.data.machines import Amount, Card, Client, Count, Host, Machine, Natural
from harness.data.prediction import Agents, Prediction
from harness.data.record import FORMAT, check_format
from harness.data.summary import RampStep
from harness.spec import shard
from harness.spec.recipe import Stack
from harness.spec.scenario import Scenario

ShardNumber = Annotated[int, Meta(ge=1, le=shard.MOST)]
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]  # three hundred years
Fact = str | int | float | bool | None
CountedIn = Literal["input tokens", "documents"] | UnsetType

# ---- what the run found out -------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    temperature: Amount | None = None  # None: the server refuses the field
    ignore_eos: bool = False


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What each request contains."""

    input_tokens: Amount | UnsetType = UNSET
    output_tokens: Amount | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    prompt_words: Count | UnsetType = UNSET
    prompt_tokens: Amount | UnsetType | None = UNSET  # tokens of a prompt, by the server's count
    template_tokens: Annotated[int, Meta(ge=-(10**9), le=10**9)] | UnsetType = (
        UNSET  # leading tokens that all prompts share
    )
    tokens_per_word: Amount | UnsetType = UNSET
    probe_lengths: list[Count] | UnsetType = UNSET
    expected_hit_rate: Amount | UnsetType | None = UNSET  # hit rate of a cache that keeps all; None: no reuse
    images: Count | UnsetType = UNSET  # in each request
    image_bytes: Count | UnsetType = UNSET  # bytes of a request's images together, as PNG
    sampling: Sampling | UnsetType = UNSET


class CanaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one answer to a canary; fields as in `Record`."""

    canary: Natural
    error: str = ""
    finish_reason: str = ""
    differs_at: Natural | None = None
    flaw: str = ""
    score: Annotated[float, Meta(ge=0, le=1)] | None = None


class UnloadedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The canaries' answers before the load, one request in flight."""

    digests: list[str]  # digests of the first answer to each prompt; "": it failed
    answers: list[CanaryAnswer]  # in the order in which they came
    prompts_digest: str = ""  # digest of the prompts and the expected answers


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated endpoint stood for."""

    profile: str | None = None
    speed: Amount | UnsetType = UNSET


class RoofWindow(msgspec.Struct, frozen=True):
    """Seconds in layers that look back only so many tokens."""

    tokens: int
    kv: float  # reading one token's KV
    attend: float  # attending to one token of context
    prompt_attend: float  # per squared prompt token


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the hardware needs at its data sheet's figures: MFU = MBU = 1 and no overhead."""

    prompt: float  # one prompt token through the body: 2 body / F
    attend: float  # one prompt token more, per token before it: 4 L n_q d / F
    weights: float  # reading the weights and states of one request's decode step: W(1) / BW
    kv: float  # reading one token's KV: kv / BW
    windows: tuple[RoofWindow, ...] = ()  # layers that look back only so far, which are in neither attend nor kv

    def step(self, context: float) -> float:
        """Return the seconds of one request's decode step: W(1) and the KV of its context and of its new token."""
        windows = sum((min(context, window.tokens) + 1) * window.kv for window in self.windows)
        return self.weights + (context + 1) * self.kv + windows

    def token(self, P: float) -> float:
        """Return the seconds of one prompt token more, after P of them."""
        windows = sum(2 * window.prompt_attend * min(P, window.tokens) for window in self.windows)
        return self.prompt + P * self.attend + windows


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Where t = 0 lies."""

    monotonic_ns_origin: int  # on CLOCK_MONOTONIC
    unix_origin: Seconds


class WallClock(msgspec.Struct, frozen=True, kw_only=True):
    """How far a machine's wall clock may be off; None if its kernel does not tell."""

    synchronised: bool | None = None
    error_s: Amount | None = None  # at most; None for a clock that nothing keeps right
    stepped_s: Seconds | UnsetType = UNSET  # seconds by which it was set while the run went on


class Shard(shard.Shard, frozen=True, kw_only=True):
    """One machine's share of a run."""

    number: ShardNumber
    of: ShardNumber
    start_s: Seconds
    clock: WallClock = WallClock()
    host: Host | UnsetType = UNSET  # this machine in a merged run; the manifest's own host is the first machine
    client: Client | UnsetType = UNSET


class CachedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Some prompts of the audit of the prefix cache."""

    first_s: Amount  # to the first token, median
    tokens: Amount | None = None  # mean tokens of a prompt
    cached: Amount | None = None  # share of them, by the server's count


class CacheAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix cache gave before the load, one request in flight."""

    new: CachedPrompts  # prompts that nobody has sent
    again: CachedPrompts  # the same once more
    own: CachedPrompts | None = None  # the load's
    outcome: Literal["on", "off", "unclear"]
    warm: bool | None = None  # the load's own are cached; None: not known

    @property
    def sentence(self) -> str:
        """Return a sentence on whether a prefix cache is on, by TTFT, and whether the load's prompts are in it."""
        new_ms, again_ms = self.new.first_s * 1e3, self.again.first_s * 1e3
        counted = "" if self.again.cached is None else f", {self.again.cached:.0%} of its tokens cached"
        times = f"{again_ms:.3g} ms to the first token of a repeated prompt, {new_ms:.3g} ms of a new one{counted}"
        gives = {
            "on": f"the prefix cache is on: {times}",
            "off": f"no prefix cache serves a repeated prompt: {times}",
            "unclear": f"whether a prefix cache is on is not clear: {times}; longer prompts would show it",
        }
        own = {True: "; the load's own prompts are in it already", False: "; the load's own prompts are cold", None: ""}
        return gives[self.outcome] + own[self.warm]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One go at a run, the first or a resumed one; what it loaded, if it came to that."""

    created: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET  # begins the id of each of its requests
    began_s: Seconds | UnsetType = UNSET
    monotonic_ns_origin: int | UnsetType = UNSET
    unix_origin: Seconds | UnsetType = UNSET
    boot: str | UnsetType | None = UNSET  # a digest that names the boot of the machine
    workers: Count | UnsetType = UNSET
    harness_version: str | UnsetType = UNSET
    server: dict[str, Fact] | UnsetType = UNSET
    ended: str | UnsetType = UNSET  # complete, or why it ended before
    ended_s: Seconds | UnsetType = UNSET
    sent: dict[str, Natural] | UnsetType = UNSET  # requests, by the beginning of their ids

    @property
    def seconds(self) -> float:
        """Return how long it loaded; only of a session that has an end."""
        return (self.ended_s or 0.0) - (self.began_s or 0.0)


class PoolServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that was started behind the endpoint, for one phase of every request."""

    name: str  # name of its pool, numbered if the pool has several servers
    url: str
    command: list[str]  # secrets are removed


class StackStart(msgspec.Struct, frozen=True, kw_only=True):
    """How the server was started for this run, and how long that took."""

    name: str
    command: list[str]  # secrets are removed
    version: str | None = None  # given by a command of the recipe; None: see `server`
    start_to_ready_s: Amount
    first_answer_s: Amount | None = None  # time of one request to the ready server
    pools: list[PoolServer] | UnsetType = UNSET  # absent if the command is the server's own


# ---- the manifests ----------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's manifest and a level map's begin with."""

    format: int = FORMAT
    name: str | None = None
    created: str | None = None
    complete: bool = False
    command: str | None = None
    harness_version: str | None = None
    scenario: Scenario = Scenario()  # secrets are removed (`scenario.shown`)
    scenario_digest: str | None = None


class Manifest(Begun, frozen=True, kw_only=True):
    """A run's manifest."""

    workload: Workload = Workload()
    url: str | None = None  # secrets are removed
    urls: list[str] | UnsetType = UNSET  # URLs of several replicas, as records name them
    model: str | None = None
    api: str | None = None
    unit: CountedIn = UNSET  # what throughput counts, where not output tokens
    server: dict[str, Fact] = {}  # what it published, and what the operator stated of it
    cache_config: dict[str, str] = {}  # vLLM's, as published
    model_listed: bool = True  # the server's list of models had it, or there was none
    models_after: list[str] | UnsetType = UNSET  # what a server listed after the load, if that was not the model
    dropped_fields: list[str] = []  # those that the server refused, and those that were to be omitted
    simulated: Simulated | None = None
    gpu: str | None = None
    gpus: Count | None = None
    price: Amount | None = None  # USD per GPU-hour
    host: Host = Host()
    client: Client = Client()
    notes: list[str] = []
    gpu_facts: list[Card] | None = None  # None unless the GPUs are on this machine
    machine: Machine | None = None  # None unless cores of this machine serve
    prediction: Prediction | None = None  # made before any load
    agents: Agents | UnsetType = UNSET  # predicted before any load, where requests belong together
    roof: Roof | None = None
    stack: StackStart | UnsetType = UNSET  # absent unless `knee stacks run` started the server
    quality: UnloadedAnswers | UnsetType = UNSET  # absent unless the scenario has canaries
    cache: CacheAudit | UnsetType = UNSET  # absent without --audit-cache
    sessions: list[Session] = msgspec.field(default_factory=list, name="sittings")
    clock: Clock | UnsetType = UNSET
    ramp: list[RampStep] | UnsetType = UNSET  # its decisions, once it is over
    shards: list[Shard] | UnsetType = UNSET  # the shards of a run on several machines whose requests are here

    @property
    def loaded(self) -> list[Session]:
        """Return the sessions so far that came to load anything."""
        return [session for session in self.sessions if session.began_s is not UNSET]


class MapManifest(Begun, frozen=True, kw_only=True):
    """The manifest of a level map or a comparison of stacks; each of its cells has a run's."""

    stacks: list[Stack] | UnsetType = UNSET  # the stacks of a comparison
    sessions: list[Session] = msgspec.field(default_factory=list, name="sittings")
    model: str | UnsetType | None = UNSET
    gpu: str | UnsetType | None = UNSET
    simulated: bool | UnsetType = UNSET
    unit: CountedIn = UNSET


def read(stored: Any) -> Manifest | MapManifest:
    """Return the manifest that plain data is.

    ValueError, or msgspec's own error, with the path of what is wrong with it.
    """
    if not isinstance(stored, dict):
        raise ValueError(f"Expected `object`, got `{type(stored).__name__}`")
    check_format(stored.get("format", FORMAT))
    many = isinstance(stored.get("simulated"), bool) or "stacks" in stored
    of_map = many or msgspec.convert(stored, Begun).scenario.many
    return msgspec.convert(stored, MapManifest) if of_map else msgspec.convert(stored, Manifest)


def missing(manifest: Manifest | MapManifest) -> str | None:
    """Return the name of a field that the manifest lacks and resuming needs; None if nothing is missing."""
    needed: list[tuple[str, object]] = [("scenario_digest", manifest.scenario_digest)]
    if isinstance(manifest, MapManifest):
        needed.append(("name", manifest.name))
    else:
        needed += [("model", manifest.model), ("workload.prompt_words", manifest.workload.prompt_words)]
        for session in manifest.loaded:
            needed += [(f"sittings.{name}", getattr(session, name)) for name in ("monotonic_ns_origin", "unix_origin")]
        needed += [("sittings.ended_s", session.ended_s) for session in manifest.loaded[:-1]]
    return next((name for name, value in needed if value is None or value is UNSET), None)
