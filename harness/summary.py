"""The shape of the answer: `summary.json`, name for name as in docs/summary.schema.json.

Only shape: the figures come from analysis, predict and decide. Seconds and tokens per second throughout;
a missing number is None, never 0; an interval end that is unbounded is None.
"""

from __future__ import annotations

import msgspec

FORMAT = 1


class Verdict(msgspec.Struct, frozen=True):
    """A note, a doubt or an invalid: what was seen, where, and what to do about it."""

    code: str
    level: str  # note | doubt | invalid
    message: str
    advice: str = ""
    at: int | float | None = None  # concurrency, or in open loop rate, of the level it touches; None: the whole run


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval; `ci95` None where the samples do not carry one."""

    mean: float | None
    ci95: tuple[float, float] | None = None


class Value(msgspec.Struct, frozen=True):
    """A fitted value with its 95 % interval; an end that is unbounded is None."""

    value: float | None
    ci95: tuple[float | None, float | None] | None = None


class Spread(msgspec.Struct, frozen=True):
    """A distribution; a percentile is None where n samples do not carry it (analytic.md §7)."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """What the server said of itself over the level's window; None where it does not publish it."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prefix_hit_fraction: float | None = None
    preemptions: float | None = None
    generation_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_ratio: float | None = None  # server's token counter / ours, over the level
    prompt_tokens_ratio: float | None = None


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator cost and missed over the level's window."""

    cpu_fraction: float | None = None
    read_delay_p99_s: float | None = None
    merged_fraction: float | None = None
    ceiling_fraction: float | None = None  # events a second over what this host's calibration followed
    limited: bool | None = None


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of this machine that were busy over the level's window; None where they do not publish it."""

    gpus: int  # how many; the rest of the machine's idled and are not in here
    utilization: float | None = None  # share of the time in which any kernel ran, 0 to 1
    power_w: float | None = None  # of all of them together, and so the energy
    energy_j: float | None = None
    joules_per_output_token: float | None = None  # all energy on the output tokens
    memory_used_bytes: float | None = None  # of the fullest one
    sm_clock_hz: float | None = None
    sm_clock_min_hz: float | None = None
    temperature_max_c: float | None = None
    throttle: dict[str, float] | None = None  # share of the window by reason, those that occurred
    throttled_fraction: float | None = None  # by heat or power brake; the ordinary power cap is not in it


class FromSend(msgspec.Struct, frozen=True):
    """Open loop only: the same latencies counted from the send instead of the schedule, which hides our own delay."""

    ttft_s: Spread
    ttfat_s: Spread
    e2e_s: Spread


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int | None  # None in open loop
    rate: float | None = None  # open loop: requests per second that were to be sent; None in closed loop
    offered_requests_per_s: float | None = None  # open loop: requests that were due in the window, over its length
    from_send: FromSend | None = None
    repeat: int
    in_flight: float | None
    little_in_flight: float | None  # N by Little's law from rates and latencies, beside the integral
    window_s: float
    window: tuple[float, float]
    requests: int  # began in the window (phase measure)
    errors: int
    error_rate: float | None
    errors_by_type: dict[str, int]
    cancelled: int
    output_tokens_per_s: Estimate
    output_tokens_per_s_se: float | None  # the fit's own error, one standard error, apart from ci95
    output_tokens_per_s_per_gpu: float | None
    tokens_per_s_per_user: float | None
    peak_output_tokens_per_s: float | None
    input_tokens_per_s: Estimate
    cached_input_fraction: float | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    requests_per_s: Estimate
    discarded_tokens_per_s: float | None
    unplaced_tokens: int
    input_tokens_mean: float | None
    output_tokens_mean: float | None
    ttft_s: Spread
    ttfat_s: Spread
    itl_s: Spread
    icl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    lag_s: Spread
    goodput_requests_per_s: float | None
    goodput_tokens_per_s: float | None
    slo_met_fraction: float | None
    tokens_per_chunk: float | None
    server: ServerView | None
    client: ClientView
    gpu: GpuView | None = None
    verdicts: list[Verdict]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted curve y = N/X (analytic.md §5) and what follows from it."""

    family: str | None  # hyperbola | capped_hyperbola | dip | None when it was not identifiable
    single_stream_tokens_per_s: Value
    hinge_concurrency: Value
    plateau_tokens_per_s: Value
    plateau_reached: bool
    dip: Value | None
    weights: dict[str, float]
    parameters: dict[str, float]  # a, b, P, d as the family has them; lack_of_fit (relative σ)
    verdicts: list[Verdict]


class Knees(msgspec.Struct, frozen=True, kw_only=True):
    hinge: Value | None = None
    plateau95: Value | None = None
    half_point: Value | None = None
    slo: Value | None = None
    peak: Value | None = None


class Band(msgspec.Struct, frozen=True):
    low: float
    mid: float
    high: float


class PredictedLevel(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int
    output_tokens_per_s: Band
    itl_s: float
    ttft_s: float
    measured_over_predicted: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Made before any load. `caps` are named limits on the batch size B (requests running at once)."""

    model: str
    gpu: str
    gpus: int
    simulated: bool
    input_tokens: float
    output_tokens: float
    binding_cap: str | None
    caps: dict[str, float | None]
    plateau_tokens_per_s: Band
    single_stream_tokens_per_s: Band
    hinge_concurrency: float | None
    levels: list[PredictedLevel]
    assumptions: dict[str, float]
    calibrated: None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    usd_per_million_output_tokens: float | None = None
    usd_per_gpu_hour: float | None = None
    gpus: int | None = None
    at_concurrency: float | None = None


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    events_per_s_ceiling: float | None = None  # of all workers together, by this host's calibration
    ceiling_is_lower_bound: bool | None = None  # the calibration's server, not its client, was the limit
    timestamp_error_p99_s: float | None = None  # by the calibration: arrival stamp against the server's own
    timestamp_source: str | None = None  # kernel | user
    transport: str = "socket"
    workers: int = 1


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    simulated: bool
    complete: bool  # False: the run was interrupted or died; the finished levels stand
    verdicts: list[Verdict]
    knee_concurrency: float | None
    levels: list[LevelSummary]
    curve: Curve | None
    knees: Knees
    prediction: Prediction | None
    cost: Cost | None
    client: ClientSummary
