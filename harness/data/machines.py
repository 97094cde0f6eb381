"""The machines of a run, as `manifest.json` has them: the load generator with its calibration, and what serves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

Count = Annotated[int, Meta(ge=1, le=2**31)]
Natural = Annotated[int, Meta(ge=0, le=2**53)]
# Any figure that is not negative; a whole one stays whole.
Amount = Annotated[int, Meta(ge=0, le=10**18)] | Annotated[float, Meta(ge=0, le=1e18)]


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the load generator ran on."""

    system: str | UnsetType = UNSET
    machine: str | UnsetType = UNSET
    python: str | UnsetType = UNSET
    cpus: int | UnsetType | None = UNSET
    cpus_allowed: list[int] | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    load_average: list[float] | UnsetType = UNSET
    load_average_end: list[float] | UnsetType = UNSET


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The most that got through, a second; processors are shares of one, 0 to 1 a process."""

    per_s: Amount
    limited_by: str  # client | server | host (neither had a processor to itself): only client is a true ceiling
    client_cpu: float
    server_cpu: float
    server_processes: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Arrival stamp − the endpoint's own stamp right before it wrote that token; seconds."""

    streams: int
    groups: int  # phases of the ITL that the streams are spread over; 1: all in one engine step
    tokens_per_s: float
    tokens: int  # compared
    error_p50_s: float
    error_p99_s: Amount
    error_max_s: float
    merged_fraction: float  # share of the tokens that shared a read and so a stamp
    cpu_s_per_million: float  # CPU seconds of the worker per million tokens


class ClientCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine's load generator can do with one worker."""

    format: int
    created: datetime
    host: str  # hash of its name
    cpu: str
    cpus: int  # number of CPUs that this process was allowed to use
    python: str
    harness_version: str
    transport: str
    timestamp_source: str  # kernel | user
    receive: str = "pure"  # compiled | pure: the receive path (docs/receive.md)
    workers: int
    load_average: float  # mean over the minute before: a busy machine calibrates itself too low
    single: Ceiling  # tokens a second, one write each
    bulk: Ceiling  # tokens a second, many a write
    requests: Ceiling  # requests a second, of one token
    streams: int  # open at once, by client and endpoint alike
    streams_asked: int
    timing: tuple[Timing, ...]
    ttft_error_p99_s: float | None  # p99 of |TTFT − (first write − send)|; None: too few requests

    @property
    def error_p99_s(self) -> float:
        """Return the worst of the loads' 99th percentiles of arrival errors, seconds."""
        return max(row.error_p99_s for row in self.timing)


class WorkerClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clock of a worker on another machine, against the run's; both CLOCK_MONOTONIC."""

    worker: int
    node: str
    offset_s: float  # the worker's minus ours as the session begins; its times are moved to the run's by that
    error_s: Amount  # the largest of the estimates: each true offset lies within its estimate's
    drift_s: float  # the estimate furthest from the first, minus the first
    # One as the session begins, one a level and one a minute; times are moved by the newest that differs.
    estimates: Count


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """The load generator; what only its end shows is UNSET until then."""

    calibration: ClientCalibration | None = None
    workers: Count = 1
    timestamp_source: str | UnsetType | None = UNSET  # kernel | user
    receive: str | UnsetType = UNSET  # compiled | pure: the receive path, pure if it was for one worker
    transport: str | UnsetType = UNSET
    cpus: list[list[int]] | UnsetType = UNSET  # CPUs of each worker; absent: the system chose them
    clocks: list[WorkerClock] | UnsetType = UNSET  # clocks of the workers on other machines
    resent: Natural | UnsetType = UNSET  # requests that a promised connection had swallowed


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by its driver; None if the card does not report it.

    `id` is a digest of its UUID: two runs on one card are seen to be, and the card stays unnamed.
    """

    index: str = ""
    name: str | None = None
    id: str | None = None
    memory_bytes: Amount | None = None
    driver: str | None = None
    cuda: str | None = None
    power_limit_w: Amount | None = None
    sm_clock_max_hz: Amount | None = None
    memory_clock_max_hz: Amount | None = None
    mig: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None


# Multiply-adds of bf16 that one instruction does for each of float32, by the name that the kernel gives the extension;
# the first that the processor has. AMX: 16×16×32 in 16 cycles against two 16-wide units; VDPBF16PS takes two pairs
# where VFMADD takes one (Intel 64 and IA-32 Optimization Reference Manual; AMD Zen 4 Software Optimization Guide).
BF16_OVER_FP32 = {"amx_bf16": 16.0, "avx512_bf16": 2.0}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What some cores of a machine reach together: bytes, bytes/s, FLOP/s."""

    cpu: str
    cpus: tuple[int, ...]  # numbers of the measured CPUs
    memory_bytes: float  # memory of the machine, or of the container that this runs in
    read_bytes_per_s: float  # an array summed up
    copy_bytes_per_s: float  # one into another, both counted
    add_bytes_per_s: float  # the sum of two into a third, all three counted
    fp32_flops: float  # matrices of float32
    extension: str = ""  # instructions that multiply bf16; "": it has none

    @property
    def bandwidth(self) -> float:
        """Return the best of the streams; bytes/s."""
        return max(self.read_bytes_per_s, self.copy_bytes_per_s, self.add_bytes_per_s)

    @property
    def flops(self) -> dict[str, float]:
        """Return FLOP/s by compute dtype: fp32 as measured, bf16 from it by what the processor's instructions do."""
        return {"fp32": self.fp32_flops, "bf16": self.fp32_flops * BF16_OVER_FP32.get(self.extension, 1.0)}

    @property
    def source(self) -> str:
        """Return how these figures came about, in words."""
        ratio = BF16_OVER_FP32.get(self.extension)
        stands_in = f"{ratio:g} × that by {self.extension}" if ratio else "the same, for want of bf16 instructions"
        cores = f"core{'s' if len(self.cpus) > 1 else ''} {','.join(map(str, self.cpus))}"
        measured = "bandwidth measured by streams, fp32 by matrix products"
        return f"{measured} on {cores} of {self.cpu}; bf16 is {stands_in}, not measured"
