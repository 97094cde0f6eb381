"""The shape of `manifest.json`, as far as anything reads it back; what it holds beyond that is for people.

A manifest that is damaged is refused whole, by the path of what is wrong with it. The records are beside it: without
a manifest they are read all the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from harness.record import FORMAT
from harness.scenario import Hardware as AskedHardware
from harness.scenario import Sim as AskedSim
from harness.summary import Prediction, RampStep

Count = Annotated[int, Meta(ge=1, le=2**31)]
Natural = Annotated[int, Meta(ge=0, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1e18)]  # and any other figure that is not negative
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]  # three hundred years


class Ramp(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the ramp."""

    rates: list[Share] | None = None
    search_rate: bool = False
    level_seconds: Share | None = None
    precision: Share | None = None
    probe: str | None = None


class Hardware(AskedHardware, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The hardware that a run was told of, by this version or a later one."""


class Sim(AskedSim, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Likewise."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    ramp: Ramp = Ramp()
    hardware: Hardware = Hardware()
    slo: dict[str, Share] = {}
    sim: Sim = Sim()


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: Share | None = None
    output_tokens: Share | None = None
    prompt_tokens: Share | None = None
    prompt_words: Natural | None = None
    template_tokens: Annotated[float, Meta(ge=-1e9, le=1e9)] | None = None
    probe_lengths: list[Count] = []


class Single(msgspec.Struct, frozen=True, kw_only=True):
    per_s: Share
    limited_by: str


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    error_p99_s: Share


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    single: Single | None = None
    timing: list[Timing] = []


class Client(msgspec.Struct, frozen=True, kw_only=True):
    calibration: Calibration | None = None
    workers: Count = 1
    timestamp_source: str | None = None
    transport: str = "socket"
    resent: Natural = 0


class Host(msgspec.Struct, frozen=True, kw_only=True):
    cpus_allowed: list[int] = []


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by its driver."""

    name: str | None = None
    memory_bytes: Share | None = None
    memory_clock_max_hz: Share | None = None
    sm_clock_max_hz: Share | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    slots: int | str | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    profile: str | None = None
    speed: Share | None = None


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """One go at a run; what it loaded, if it came to that."""

    began_s: Seconds | UnsetType = UNSET
    ended_s: Seconds | UnsetType = UNSET
    monotonic_ns_origin: int | UnsetType = UNSET
    unix_origin: Seconds | UnsetType = UNSET
    boot: str | None = None
    ended: str | None = None
    server: dict[str, Any] | UnsetType = UNSET
    sent: dict[str, Natural] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's or a level map's manifest says to those who read it."""

    format: int = FORMAT
    name: str | None = None
    created: str | None = None
    complete: bool = False
    command: str | None = None
    harness_version: str | None = None
    url: str | None = None
    model: str | None = None
    gpu: str | None = None
    gpus: Count | None = None
    price: Share | None = None
    scenario: Scenario = Scenario()
    scenario_digest: str | None = None
    workload: Workload = Workload()
    server: Server | None = None
    cache_config: dict[str, str] | None = None
    simulated: Simulated | bool | None = None  # a truth value for a level map
    host: Host = Host()
    client: Client = Client()
    notes: list[str] = []
    gpu_facts: list[Card] | None = None
    machine: dict[str, Any] | None = None
    prediction: Prediction | None = None
    roof: dict[str, Any] | None = None
    ramp: list[RampStep] = []
    sittings: list[Sitting] = []


class Target(msgspec.Struct, frozen=True, kw_only=True):
    headers: dict[str, str]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    ramp: dict[str, Any]


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run or a level map must say beyond that to be gone on with."""

    scenario: Asked
    scenario_digest: str


class Words(msgspec.Struct, frozen=True, kw_only=True):
    prompt_words: Count


class BegunRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a run: where its prompts stand."""

    workload: Words
    model: str
    client: dict[str, Any]
    host: dict[str, Any]
    notes: list[str]


class BegunMap(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a level map."""

    name: str
    created: str | None


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a sitting that came to load anything: where its clock stood."""

    began_s: Seconds
    monotonic_ns_origin: int
    unix_origin: Seconds
    boot: str | None


class Ended(Loaded, frozen=True, kw_only=True):
    """The same of one that others followed."""

    ended_s: Seconds
