"""The shape of a prediction in `summary.json`, made before any load, and of how the measurement left it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.views import Spread

HELD = 0.9  # share of the hits of a cache that keeps all: with less, it no longer holds the agents


class Band(msgspec.Struct, frozen=True):
    low: float
    mid: float
    high: float


class PredictedLevel(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int
    output_tokens_per_s: Band
    input_tokens_per_s: Band | UnsetType = UNSET  # absent unless nothing is decoded
    itl_s: float | None  # None if nothing is decoded
    ttft_s: float  # the mean, where as many requests meet as in published benchmarks
    ttft_mean_s: Band | UnsetType = UNSET  # low: requests come evenly spread; high: all at once
    ttft_p99_s: Band | UnsetType = UNSET
    itl_p99_s: float | UnsetType = UNSET
    measured_over_predicted: float | None = None
    requests_per_s: Band | None = None
    usd_per_million: Band | None = None  # output tokens, or input if there are none; low is the cheap end
    meets_slo: bool | None = None  # whether the means meet the SLO; None without an SLO
    bound_by: str | None = None  # what most of the time goes to, or the cap that is passed
    experts_hit: float | None = None  # experts of a layer that one step's batch uses; None without experts

    @property
    def throughput(self) -> Band:
        """Return the output tokens per second; input tokens if nothing is decoded."""
        return self.input_tokens_per_s or self.output_tokens_per_s


class SteppedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load as the step machine serves it on its virtual clock, all replicas together.

    Latencies are those of the fullest replica, None if it falls behind what arrives; percentiles of the gaps between
    tokens also None if speculation brings several tokens at once.
    """

    concurrency: int | None  # None in open loop
    rate: float | None = None  # open loop: requests per second that were to come; None in closed loop
    offered_requests_per_s: float | None = None  # open loop: that came
    window_s: float
    requests: int  # answered in the window
    output_tokens_per_s: float
    requests_per_s: float
    in_flight: float
    running: float  # requests in the batch
    preemptions: int
    ttft_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    over_closed_form: float | None = None  # output tokens/s over the closed form's; None in open loop
    unstable: bool = False  # it falls behind what arrives: requests_per_s is what is sustained


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """The same prediction by what a server was measured to reach, next to the data sheet's and never mixed with it.

    low and high of its levels are the error at the levels that the calibration did not see.
    """

    source: str  # the measurement that it was fitted on
    fitted_on: list[float]  # its concurrencies
    parameters: dict[str, float]  # mbu, mfu_prefill, mfu_decode, o_layer, o_step, o_req, o_api; seconds
    fitted: list[str]  # those that the levels settle
    kept: dict[str, str]  # those that stay as they were assumed, with the reason
    error_unseen: float | None  # root mean square, of output tokens/s at levels not fitted on; None without any
    single_stream_tokens_per_s: float
    plateau_tokens_per_s: float
    hinge_concurrency: float | None
    levels: list[PredictedLevel]


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a prediction rests on; None, and not in the file, if it is not known or an older version left it out.

    Those from `tp` on are in the file only where they are not the usual ones.
    """

    mbu: float | None = None
    mfu_prefill: float | None = None
    mfu_decode: float | None = None
    layer_overhead_s: float | None = None
    step_overhead_s: float | None = None
    request_overhead_s: float | None = None
    api_overhead_s: float | None = None
    token_overhead_s: float | None = None  # seconds outside the batch per prompt token
    first_token_steps: float | None = None  # decoding steps that a first token waits besides its own
    gpu_memory_utilization: float | None = None
    kv_tokens: float | None = None  # tokens that one replica's KV cache holds
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    kv_bytes_per_request: float | None = None  # at the mean context
    parameters: float | None = None
    prefill_s: float | None = None  # computing time of one prompt
    prefill_beside_s: float | None = None  # computing time of one prompt in steps in which others decode
    speed: float | None = None  # speed of a simulation's clock
    kv_tokens_by_memory: float | None = None  # tokens that the card has room for, if the server publishes its own
    tp: float = 1
    pp: float = 1
    dp: float = 1
    ep: float = 1
    prefix_hit: float = 0
    fused: float = 0
    acceptance: float = 0
    draft_tokens: float = 0
    draft_s: float = 0


def stopping(caps: Mapping[str, float | None]) -> dict[str, float]:
    """Return the caps that stop the batch; others bend the curve, and at an SLO the operator stops."""
    others = ("kv_traffic", "compute", "prefill", "slo")
    return {name: cap for name, cap in caps.items() if cap is not None and name not in others}


def batch_cap(caps: Mapping[str, float | None]) -> float:
    """Return how many requests can run at once: the least of the caps that stop the batch."""
    return min(stopping(caps).values(), default=math.inf)


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Made before any load. `caps` are named limits on the batch size B (requests running at once)."""

    model: str
    gpu: str
    gpus: int
    simulated: bool
    input_tokens: float
    output_tokens: float
    inputs: int | UnsetType = UNSET  # texts of a request, each of so many input tokens; absent if it is one
    binding_cap: str | None
    caps: dict[str, float | None]
    plateau_tokens_per_s: Band
    single_stream_tokens_per_s: Band
    hinge_concurrency: float | None
    levels: list[PredictedLevel]
    assumptions: Assumptions
    calibrated: Calibrated | None = None
    step_machine: list[SteppedLevel] = []  # the same levels, or rates, step by step; on request or if lengths vary
    scaling_efficiency: float | None = None  # throughput of n GPUs over n times that of one
    notes: list[str] = []
    gap: Gap | None = None  # how the measurement differs from it


class AgentLevel(msgspec.Struct, frozen=True, kw_only=True):
    """So many agents, sessions or tasks at once, as the step machine serves them."""

    concurrency: int
    cached_input_fraction: float  # share of the prompt tokens from the prefix cache
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: float  # mean
    ttft_by_turn_s: list[float | None]  # by turn: first, second, …; the last holds all later ones


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """What a prefix cache serves agents, and how many of them it holds."""

    kv_tokens: int  # all replicas together
    block_size: int  # tokens of a block as it was worked out: the server's own, or several of them
    kept_input_fraction: float | None  # prompt tokens' share from a cache that keeps all; None: no reuse is asked
    holds: int | None  # the most agents with 90 % of those hits; None: not passed by the levels
    levels: list[AgentLevel]
    measured_holds: float | None = None  # the same by the levels of the run, interpolated; None: not passed

    @property
    def needed(self) -> float:
        """Return the share of the prompt tokens from which on the cache holds all agents."""
        return HELD * (self.kept_input_fraction or 0.0)


def crossing(shares: Sequence[tuple[float, float]], needed: float) -> float | None:
    """Return the load at which a falling share drops to `needed`, by a straight line over log load.

    None if every share is at least `needed`, or that of the lowest load is not.

    >>> crossing([(1, 0.9), (4, 0.9), (16, 0.3)], 0.6)
    8.0
    """
    ordered = sorted(shares)
    for (low, more), (high, less) in pairwise(ordered):
        if less < needed <= more:
            return float(low * (high / low) ** ((more - needed) / (more - less)))
        if more < needed:
            break
    return None


class Achieved(msgspec.Struct, frozen=True):
    """A share of the data sheet's figure that was reached, and the same quotient by the prediction."""

    value: float
    predicted: float


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Where the measured throughput leaves the predicted one: factors by cause that multiply to `ratio`."""

    at: float | None  # the concurrency at which the two are compared; None: at the plateau
    ratio: float  # output tokens/s, measured over predicted
    ratio_single: float | None  # ITL at one request in flight, measured over predicted
    ratio_prefill: float | None  # the quotient for a prompt's computing time, beyond what ITL explains
    hinge_over_cap: float | None  # requests at which the batch was seen to stop, over the predicted cap
    mbu: Achieved | None
    mfu: Achieved | None
    factors: dict[str, float]
    largest: str  # bandwidth | compute (prefill) | max_num_seqs | KV memory | client | software or host | none
    sentence: str
