"""What the server, its machines and the load generator show of themselves over a level's window.

A missing number is None, never 0; an interval end that is unbounded is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval; `ci95` None if the samples do not carry one."""

    mean: float | None
    ci95: tuple[float, float] | None = None


class Ends:
    """The ends of a 95 % interval by their names; not on disk."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def ci95(self) -> tuple[float | None, float | None] | None: ...

    @property
    def low(self) -> float | None:
        """Return the lower end of the interval; None if it is unbounded or not known."""
        return self.ci95[0] if self.ci95 else None

    @property
    def high(self) -> float | None:
        """Return the upper end of the interval; None if it is unbounded or not known."""
        return self.ci95[1] if self.ci95 else None


class Value(Ends, msgspec.Struct, frozen=True):
    """A fitted value with its 95 % interval; an end that is unbounded is None."""

    value: float | None
    ci95: tuple[float | None, float | None] | None = None

    def times(self, factor: float) -> Value:
        """Return the value and its interval, scaled by a factor above 0."""
        low, high = (None if end is None else end * factor for end in self.ci95 or (None, None))
        return Value(None if self.value is None else self.value * factor, (low, high) if self.ci95 else None)


class Spread(msgspec.Struct, frozen=True):
    """A distribution; a percentile is None if n samples do not carry it (docs/method.md, Percentiles)."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int


NO_SPREAD = Spread(mean=None, p50=None, p90=None, p95=None, p99=None, max=None, n=0)


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several engines behind the server's page (data parallelism); as in `ServerView`."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    generation_tokens_per_s: float | None = None


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own figures over the level's window; None if it does not publish one.

    Of several engines the sum, of `kv_usage` the mean. Distributions by buckets have no `max`.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prefix_hit_fraction: float | None = None
    preemptions: float | None = None
    generation_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_ratio: float | None = None  # server's token counter / ours, over the level
    prompt_tokens_ratio: float | None = None
    queue_s: Spread | None = None  # seconds of a request: in the queue, computing its prompt, making its answer, TTFT
    prefill_s: Spread | None = None
    decode_s: Spread | None = None
    ttft_s: Spread | None = None
    prefill_time_fraction: float | None = None  # prefill over prefill and decode
    batch_size: Spread | None = None  # requests in a batch: of a batch, or as seen at each reading of the page
    batch_limit: float | None = None  # requests that all batches together may have
    batch_utilization: float | None = None  # running / batch_limit
    step_tokens: Spread | None = None  # prompt and output tokens of one engine step
    acceptance: float | None = None  # share of the drafted tokens that were kept
    tokens_per_step: float | None = None  # tokens that one step of one request brings: 1 + kept drafts
    engines: dict[str, EngineView] = {}  # by the engine's label; empty with one engine


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A server behind the endpoint that has one phase of every request; None if it does not publish a figure."""

    server: ServerView | None = None
    transfer_s: Spread | None = None  # time to move a KV cache to a decode server, by the side that counts it
    transfer_bytes: Spread | None = None


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator cost and missed over the level's window."""

    cpu_fraction: float | None = None
    read_delay_p99_s: float | None = None
    merged_fraction: float | None = None  # share of the events that shared a read because it came late
    ceiling_fraction: float | None = None  # events a second over what this host's calibration followed
    limited: bool | None = None  # throughput is void on the client's account
    late_fraction: float | None = None  # share of the slots' time between an answer's end and the next send
    lumped_fraction: float | None = None  # share of the events that the server sent together with others
    timestamp_source: str | None = None  # kernel | user
    waited_fraction: float | None = None  # share of the time that the worker could have run and had no processor
    steal_fraction: float | None = None  # share of the processors' time that the hypervisor gave to others
    throttled_fraction: float | None = None  # share of the time that this container was throttled at its CPU limit
    idle_processors: float | None = None  # mean number on this host


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of this machine that were busy over the level's window; None if they do not publish it."""

    gpus: int  # how many; the rest of the machine's idled and are not in here
    utilization: float | None = None  # share of the time in which any kernel ran, 0 to 1
    power_w: float | None = None  # all of these GPUs together, as is the energy
    energy_j: float | None = None
    joules_per_output_token: float | None = None  # all energy on the output tokens
    memory_used_bytes: float | None = None  # memory of the fullest GPU
    sm_clock_hz: float | None = None
    sm_clock_min_hz: float | None = None
    temperature_max_c: float | None = None
    throttle: dict[str, float] | None = None  # share of the window by reason, those that occurred
    throttled_fraction: float | None = None  # share of the time throttled by heat or power brake, not by the power cap
