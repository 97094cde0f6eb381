"""The shape of the answer: `summary.json`, name for name as in docs/summary.schema.json.

Only shape: the figures come from analysis, predict and decide. Seconds and tokens per second throughout;
a missing number is None, never 0; an interval end that is unbounded is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.judgement import CurveState
from harness.data.judgement import Verdict as Verdict
from harness.data.record import FORMAT as FORMAT
from harness.data.record import Level
from harness.data.roles import Role
from harness.spec.work import Unit


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval; `ci95` None where the samples do not carry one."""

    mean: float | None
    ci95: tuple[float, float] | None = None


class Value(msgspec.Struct, frozen=True):
    """A fitted value with its 95 % interval; an end that is unbounded is None."""

    value: float | None
    ci95: tuple[float | None, float | None] | None = None


class Spread(msgspec.Struct, frozen=True):
    """A distribution; a percentile is None where n samples do not carry it (docs/method.md, Percentiles)."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    n: int


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several engines behind the server's page (data parallelism); as in `ServerView`."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    generation_tokens_per_s: float | None = None


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The server's own figures over the level's window; None where it does not publish one.

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
    queue_s: Spread | None = None  # of a request: in the queue, computing its prompt, making its answer, TTFT
    prefill_s: Spread | None = None
    decode_s: Spread | None = None
    ttft_s: Spread | None = None
    prefill_time_fraction: float | None = None  # prefill over prefill and decode
    batch_size: Spread | None = None  # requests in a batch: of a batch, or as seen at each reading of the page
    batch_histogram: list[tuple[float | None, float]] = []  # the same: (up to so many, share)
    batch_limit: float | None = None  # requests that all batches together may have
    batch_utilization: float | None = None  # running / batch_limit
    step_tokens: Spread | None = None  # prompt and output tokens of one engine step
    acceptance: float | None = None  # of the drafted tokens, kept
    tokens_per_step: float | None = None  # that one step of one request brings: 1 + kept drafts
    cache_tiers: dict[str, float] = {}  # share of the prompt tokens that came from each tier of the cache
    engines: dict[str, EngineView] = {}  # by the engine's label; empty where there is one
    running_imbalance: float | None = None  # of the engines: (largest - smallest) / mean
    kv_usage_imbalance: float | None = None  # of the engines: largest - smallest


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The machines that serve, by their node exporters."""

    nodes: int
    cpu_fraction: float | None = None  # of the busiest
    memory_used_fraction: float | None = None  # of the fullest


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator cost and missed over the level's window."""

    cpu_fraction: float | None = None
    read_delay_p99_s: float | None = None
    merged_fraction: float | None = None  # of the events, that shared a read because it came late
    ceiling_fraction: float | None = None  # events a second over what this host's calibration followed
    limited: bool | None = None  # throughput is void on the client's account
    late_fraction: float | None = None  # of the slots' time, between an answer's end and the next send
    lumped_fraction: float | None = None  # of the events, that the server sent together with others
    timestamp_source: str | None = None  # kernel | user
    waited_fraction: float | None = None  # of the time, that the worker could have run and had no processor
    steal_fraction: float | None = None  # of the processors' time, that the hypervisor gave to others
    throttled_fraction: float | None = None  # of the time, that this container was throttled at its CPU limit
    idle_processors: float | None = None  # of this host, on average


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


class Attainment(msgspec.Struct, frozen=True):
    """How many requests of a level met one limit of the SLO, and whether that settles it."""

    limit: str  # as it is written, like "ttft_p99=2s"
    needed: float  # share that has to meet it
    met: int
    n: int  # that began in the window, failures included
    fraction: float | None
    ci95: tuple[float, float] | None
    outcome: str  # an Outcome
    class_: str | UnsetType = msgspec.field(name="class", default=UNSET)  # whose requests alone have the limit


class FromSend(msgspec.Struct, frozen=True):
    """Open loop only: the same latencies counted from the send instead of the schedule, which hides our own delay."""

    ttft_s: Spread
    ttfat_s: Spread
    e2e_s: Spread


class ClassSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A class of requests at one level; what is not said here is as in `LevelSummary`."""

    requests: int
    errors: int
    error_rate: float | None
    cancelled: int
    abandoned: int
    in_flight: float | None
    input_tokens_mean: float | None
    output_tokens_mean: float | None
    requests_per_s: Estimate
    input_tokens_per_s: Estimate
    output_tokens_per_s: Estimate
    cached_input_fraction: float | None
    ttft_s: Spread
    ttfat_s: Spread
    itl_s: Spread
    icl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    goodput_requests_per_s: float | None
    goodput_tokens_per_s: float | None
    slo_met_fraction: float | None  # by the limits of the class, else by the run's
    slowdown: float | None = None  # E2E per output token over that at the lowest level


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, or tasks of an agent, that began in a level's window; their pauses are part of their times."""

    sessions: int
    completed: int  # every request answered
    failed: int  # any request failed; the rest were cut
    in_flight: float  # mean over the window, from the first send to the last byte
    sessions_per_s: float  # completed in the window
    requests_mean: float | None  # of those completed, like the two below
    latency_s: Spread  # to the last byte
    last_token_s: Spread  # to the last token


class ReplicaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One of several replicas at one level; what is not said here is as in `LevelSummary`."""

    requests: int
    errors: int
    error_rate: float | None
    cancelled: int
    in_flight: float | None
    in_flight_share: float | None  # of what was in flight on all replicas
    input_tokens_per_s: Estimate
    output_tokens_per_s: Estimate
    requests_per_s: Estimate
    ttft_s: Spread
    itl_s: Spread
    e2e_s: Spread
    server: ServerView | None


class AnswerQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to canaries: against the first ones of an unloaded server, and against what is expected of them."""

    answers: int  # that did not fail
    compared: int  # of these, with a first answer to the same prompt
    agreement: Estimate  # share of them whose words are those of the first
    differs_at: float | None = None  # words that the others begin with like the first, median
    flaws: dict[str, int] = {}  # answers that are empty, no UTF-8, or repeat themselves
    finish_reasons: dict[str, int] = {}
    accuracy: Estimate | UnsetType = UNSET  # of those with an expected answer; not in the file without any
    detectable: float | None = None  # smallest share of changed answers that would have been found


class Service(msgspec.Struct, frozen=True):
    """Requests between their first token and their last one over a level's window: each holds a seat of the server."""

    streaming: Estimate  # mean
    most: int  # at once, for at least 0.1 % of the window
    most_fraction: float  # of the window, with so many


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between the tokens of all other classes, around the reading of the prompts of one."""

    class_: str = msgspec.field(name="class")  # whose prompts are long
    prompts: int  # that were read in the window
    before_s: Spread  # as long before each prompt as it took to read
    during_s: Spread
    after_s: Spread


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Where a figure changed at once; means before and after it."""

    at_s: Value  # since the run began
    before: float
    after: float
    share: Value | None  # after over before, less 1; None where it was 0 before
    cause: str = ""  # restart | throttle | neighbour; "": nothing that was recorded tells


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure moves over a window, by a line through equal parts of it."""

    mean: float
    start: float  # of the line, at the window's beginning
    per_hour: Value
    share_per_hour: Value | None  # of `start`; None where that is not above 0
    sure: bool  # the slope is not 0, at 99.99 %
    bins: int  # parts in which it was read
    change: Change | None = None  # None: it does not change at once, or a line tells more


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A level's figures over its window; None where one was not recorded, or in too few parts."""

    throughput: Trend | None = None  # as `LevelSummary.throughput`
    ttft_p99_s: Trend | None = None
    kv_usage: Trend | None = None
    preemptions_per_s: Trend | None = None
    memory_bytes: Trend | None = None  # resident, of the server's process
    gpu_memory_bytes: Trend | None = None  # of all GPUs together


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int | None  # None in open loop
    rate: float | None = None  # open loop: requests per second that were to be sent; None in closed loop
    offered_requests_per_s: float | None = None  # open loop: requests that were due in the window, over its length
    from_send: FromSend | None = None
    repeat: int
    in_flight: float | None
    little_in_flight: float | None  # N by Little's law from rates and latencies, to compare with the integral
    window_s: float
    window: tuple[float, float]
    requests: int  # began in the window (phase measure)
    errors: int
    error_rate: float | None
    errors_by_type: dict[str, int]
    cancelled: int
    output_tokens_per_s: Estimate
    output_tokens_per_s_se: float | None  # the fit's own error of `throughput`, one standard error, apart from ci95
    output_tokens_per_s_se_assumed: bool = False  # by the number of requests: a weight, whose scale the fit finds
    output_tokens_per_s_per_gpu: float | None
    tokens_per_s_per_user: float | None
    peak_output_tokens_per_s: float | None
    input_tokens_per_s: Estimate
    cached_input_fraction: float | None
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    requests_per_s: Estimate
    documents_per_s: Estimate | UnsetType = UNSET  # not in the file where answers are decoded, like the unit
    unit: str | UnsetType = UNSET  # a Unit: what `throughput` counts
    images_per_s: float | UnsetType | None = UNSET  # not in the file without images
    image_bytes_per_s: float | UnsetType | None = UNSET  # likewise; as PNG
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
    tail_s: Spread | UnsetType = UNSET  # from the last token to the end of the answer; UNSET: in older results
    lag_s: Spread
    goodput_requests_per_s: float | None
    goodput_tokens_per_s: float | None
    slo_met_fraction: float | None
    tokens_per_chunk: float | None
    server: ServerView | None
    client: ClientView
    gpu: GpuView | None = None
    node: NodeView | UnsetType = UNSET  # not in the file without node exporters
    slo: list[Attainment] = []
    input_tokens_asked: int | None = None  # of a probe's level whose prompts have a length of their own
    abandoned: int | UnsetType = UNSET  # requests that the workload gives up; not in the file where there are none
    classes: dict[str, ClassSummary] | UnsetType = UNSET  # by name; not in the file without classes
    worst_slowdown: float | UnsetType | None = UNSET  # of all classes; likewise
    sessions: SessionSummary | UnsetType = UNSET  # not in the file without sessions
    interference: Interference | UnsetType = UNSET  # not in the file without a class of much longer prompts
    recoveries_s: list[float | None] | UnsetType = UNSET  # after each spike; None: not before the next; likewise
    replicas: dict[str, ReplicaSummary] | UnsetType = UNSET  # by url; not in the file where there is one server
    quality: AnswerQuality | UnsetType = UNSET  # of its canaries; not in the file without any
    drift: Drift | UnsetType = UNSET  # not in the file where the window is shorter than five minutes
    service: Service | UnsetType = UNSET  # not in the file where nothing streams
    reason: str = ""  # why the ramp chose it
    role: Role | None = None  # what for; None: of a level without a reason
    verdicts: list[Verdict]

    @property
    def load(self) -> int | float | None:
        """The requested load: requests in flight, or in open loop requests per second."""
        return self.concurrency if self.rate is None else self.rate

    @property
    def in_slots(self) -> float | None:
        """What the slots held on average, which a curve is over: requests in flight, or a session each."""
        return self.in_flight if not self.sessions or self.concurrency is None else float(self.concurrency)

    @property
    def throughput(self) -> Estimate:
        """Work per second in the run's unit."""
        if self.unit == Unit.INPUT_TOKENS:
            return self.input_tokens_per_s
        if self.unit == Unit.DOCUMENTS:
            return self.documents_per_s or Estimate(None)
        return self.output_tokens_per_s

    @property
    def first_s(self) -> Spread:
        """Time to the first token; to the whole answer where nothing is decoded."""
        return self.e2e_s if self.unit else self.ttft_s


class Settle(msgspec.Struct, frozen=True):
    """What would turn a provisional answer, or one beyond the levels, into a found one."""

    levels: list[int]  # concurrencies to measure, those measured already among them
    seconds: float | None = None  # that they would take; None where nothing is known of time


FOUND, PROVISIONAL, BEYOND, NONE = CurveState


class CurvePoint(msgspec.Struct, frozen=True):
    """One place of the curve: throughput in the run's unit per second, with its 95 % interval."""

    in_flight: float
    concurrency: float  # that keeps so many in flight
    per_s: float
    low: float
    high: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve through the levels (docs/method.md, The fit) and what follows from it.

    `state` is what it shows of the knee:

        found        knee and plateau, and the plateau is reached
        provisional  knee and plateau are the best estimate; `reasons` are what is missing, `settle` what would help
        beyond       throughput still rises at the last level: no plateau up to `at_least_concurrency`
        none         the levels do not suffice for any of these; `reasons` are why
    """

    state: str = NONE
    reasons: list[str] = []  # why it is not "found", a sentence each without its period
    settle: Settle | None = None
    at_least_concurrency: float | None = None  # state "beyond": the highest concurrency measured
    expected_concurrency: float | None = None  # state "beyond": where the prediction puts the knee
    expected_by: str | None = None  # prediction: its source
    family: str | None = None  # the curve is none of a family
    single_stream_tokens_per_s: Value
    hinge_concurrency: Value  # the corner: where the rising branch ends
    plateau_tokens_per_s: Value
    plateau_reached: bool
    dip: Value | None  # share of the plateau that is lost at the last level; None where none is shown
    weights: dict[str, float] | None = None  # of families; there are none
    parameters: dict[str, float]  # noise: relative σ of a level; roughness, softness: of the curve (docs/method.md)
    line: list[CurvePoint] = []  # from the lowest level to the highest
    verdicts: list[Verdict]


class Knees(msgspec.Struct, frozen=True, kw_only=True):
    hinge: Value | None = None
    plateau95: Value | None = None
    half_point: Value | None = None
    slo: Value | None = None  # largest concurrency that meets the SLO; up to the smallest that misses it (`is_decided`)
    seats: Value | None = None  # requests that the server serves at once, where the records show it (analysis.seats)
    peak: Value | None = None
    slo_rate: Value | None = None  # likewise in open loop, requests per second
    quality: Value | UnsetType | None = UNSET  # the knee, below loads at which answers change; not without canaries


class Headline(msgspec.Struct, frozen=True):
    """The knee unqualified: the SLO's if one is given, else the seats where they are known, else the curve's hinge."""

    kind: str  # slo | seats | hinge
    state: str  # a CurveState; found: both ends are finite, the upper at most 1.5 times the lower
    value: float | None = None  # None where the state is beyond or none
    ci95: tuple[float | None, float | None] | None = None


def is_decided(knee: Value | None) -> bool:
    """Whether the load of an SLO knee is known to have met the SLO; else it only leans to it."""
    return knee is not None and knee.ci95 is not None and knee.ci95[0] is not None


class Band(msgspec.Struct, frozen=True):
    low: float
    mid: float
    high: float


class PredictedLevel(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int
    output_tokens_per_s: Band
    input_tokens_per_s: Band | UnsetType = UNSET  # where nothing is decoded; else not in the file
    itl_s: float | None  # None where nothing is decoded
    ttft_s: float  # the mean, where as many requests meet as in published benchmarks
    ttft_mean_s: Band | UnsetType = UNSET  # low: requests come evenly spread; high: all at once
    ttft_p99_s: Band | UnsetType = UNSET
    itl_p99_s: float | UnsetType = UNSET
    measured_over_predicted: float | None = None
    requests_per_s: Band | None = None
    usd_per_million: Band | None = None  # output tokens, or input where there are none; low is the cheap end
    meets_slo: bool | None = None  # by the means; None without an SLO
    bound_by: str | None = None  # what most of the time goes to, or the cap that is passed
    experts_hit: float | None = None  # of a layer, by one step's batch; None where there are no experts

    @property
    def throughput(self) -> Band:
        """Output tokens per second; input tokens where nothing is decoded."""
        return self.input_tokens_per_s or self.output_tokens_per_s


class SteppedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load as the step machine serves it on its virtual clock, all replicas together.

    Latencies are those of the fullest replica, None where it falls behind what arrives; percentiles of the gaps between
    tokens also None where speculation brings several tokens at once.
    """

    concurrency: int | None  # None in open loop
    rate: float | None = None  # open loop: requests per second that were to come; None in closed loop
    offered_requests_per_s: float | None = None  # open loop: that came
    window_s: float
    requests: int  # answered in the window
    output_tokens_per_s: float
    requests_per_s: float
    in_flight: float
    running: float  # of these, in the batch
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
    error_unseen: float | None  # of output tokens/s, root mean square; None where every level was fitted on
    single_stream_tokens_per_s: float
    plateau_tokens_per_s: float
    hinge_concurrency: float | None
    levels: list[PredictedLevel]


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a prediction rests on; None, and not in the file, where it is not known or an older version left it out.

    Those from `tp` on are in the file only where they are not the usual ones.
    """

    mbu: float | None = None
    mfu_prefill: float | None = None
    mfu_decode: float | None = None
    layer_overhead_s: float | None = None
    step_overhead_s: float | None = None
    request_overhead_s: float | None = None
    api_overhead_s: float | None = None
    gpu_memory_utilization: float | None = None
    kv_tokens: float | None = None  # of one replica
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    kv_bytes_per_request: float | None = None  # at the mean context
    parameters: float | None = None
    prefill_s: float | None = None  # of one prompt
    prefill_beside_s: float | None = None  # likewise, in steps in which others decode
    speed: float | None = None  # of a simulation's clock
    kv_tokens_by_memory: float | None = None  # that the card has room for, where the server publishes its own
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
    inputs: int | UnsetType = UNSET  # texts of a request, each of so many input tokens; not in the file where it is one
    binding_cap: str | None
    caps: dict[str, float | None]
    plateau_tokens_per_s: Band
    single_stream_tokens_per_s: Band
    hinge_concurrency: float | None
    levels: list[PredictedLevel]
    assumptions: Assumptions
    calibrated: Calibrated | None = None
    step_machine: list[SteppedLevel] = []  # on request or where lengths vary: the same, or rates, step by step
    scaling_efficiency: float | None = None  # throughput of n GPUs over n times that of one
    notes: list[str] = []
    gap: Gap | None = None  # where the measurement leaves it


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    usd_per_million_output_tokens: float | None = None
    usd_per_million_input_tokens: float | UnsetType = UNSET  # where nothing is decoded; else not in the file
    usd_per_million_documents: float | UnsetType = UNSET  # where nobody counts tokens; likewise
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


class RampStep(msgspec.Struct, frozen=True):
    """One decision of the ramp: the level it chose, or none where it ended, and why."""

    concurrency: int | None
    reason: str
    rate: float | None = None
    repeat: int = 0
    role: Role | None = None  # of a level: what it is measured for
    stopped: bool = False  # whether an end is a remark: what was to be measured did not come to an end

    @classmethod
    def of(cls, level: Level) -> RampStep:
        """Return the decision to measure a level."""
        return cls(level.concurrency, level.reason, level.rate, level.repeat, level.role)


class PrefillPhase(msgspec.Struct, frozen=True, kw_only=True):
    """From the prefill probe: one output token over growing prompts."""

    tokens_per_s: Value  # capacity: prompt tok/s at the plateau of its ramp, at the requested prompt length
    seconds_per_token: Value  # dTTFT/dP at one request in flight
    ttft_base_s: Value  # TTFT of an empty prompt, extrapolated
    mfu: Value | None  # from that slope; None where hardware or model is not known
    lengths: list[tuple[float, float]]  # (prompt tokens, mean TTFT in seconds)


class DecodePhase(msgspec.Struct, frozen=True, kw_only=True):
    """From the decode probe: short prompts, long answers."""

    tokens_per_s: Value  # capacity: output tok/s without first tokens, at the plateau of its ramp
    itl_s: float | None  # at one request in flight
    mbu: Value | None  # from that ITL; None where hardware or model is not known


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a phase probe; the phases are quoted apart, never summed."""

    prefill: PrefillPhase | None = None
    decode: DecodePhase | None = None


class LengthSpread(msgspec.Struct, frozen=True):
    """A distribution of lengths; tokens."""

    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths as they were asked and as they came."""

    law: str | None  # as it is written, like "lognormal(512,300)"; None where it is not known, like the two with it
    asked: LengthSpread | None
    realised: LengthSpread
    mean_se: float | None  # one standard error of the realised mean
    ks: float | None  # largest distance between the two cumulative distributions, 0 to 1


class FirstUse(msgspec.Struct, frozen=True):
    """What it takes to load a model or an adapter that a class has of its own."""

    ttft_s: float | None  # of the run's first request to it
    resident_ttft_s: float | None  # median of the later ones, at that request's level


class ClassWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one class, of all levels' windows together."""

    class_: str = msgspec.field(name="class")  # "": the workload has no classes
    requests: int  # answered
    share_asked: float
    share: float | None  # of the requests that were sent
    input_tokens: Lengths
    output_tokens: Lengths
    first_use: FirstUse | UnsetType = UNSET  # not in the file where the class has the run's model


class WorkloadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a workload whose requests differ, and what came of it."""

    classes: list[ClassWorkload]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One of the operational checks."""

    name: str  # phases | p99_ttft | kv_cache | long_context_tail | node_loss
    outcome: str  # pass | doubt | not measured
    figures: dict[str, float] = {}
    threshold: float | None = None  # a share, of p99_ttft seconds
    source: str = ""  # of the threshold
    at: float | None = None  # concurrency, or in open loop rate, of the level
    message: str = ""  # why it is a doubt, or what would measure it


class LossPhase(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas, and those that were not lost, before, during or after a loss."""

    seconds: float
    output_tokens_per_s: float  # of all replicas
    survivors_output_tokens_per_s: float
    survivors_in_flight: float  # mean
    survivors_ttft_s: Spread  # of the requests that were sent then and succeeded


class NodeLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that stopped answering or slowed down; times are seconds since the run's origin."""

    url: str
    kind: str  # stopped | slowed
    at: float | None  # concurrency, or in open loop rate, of its level
    start_s: float  # end of its first failure; of one that slowed down the send of its first slow request
    end_s: float | None  # send of its first success after it; None: it did not come back
    recovery_s: float | None
    errors: int
    errors_s: float | None  # from its first failure to its last
    before: LossPhase | None
    during: LossPhase | None
    after: LossPhase | None
    survivors_plateau_tokens_per_s: float | None  # by the fitted curve; None: no plateau was measured
    headroom_held: bool | None  # whether that is at least what all replicas gave before


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    simulated: bool
    complete: bool  # False: the run was interrupted or died; the finished levels stand
    verdicts: list[Verdict]
    unit: str = Unit.OUTPUT_TOKENS.value  # a Unit: what throughput counts, the curve's too
    knee_concurrency: float | None  # the value of `knee`
    knee: Headline = Headline("hinge", NONE)  # of a file of an earlier version as if there were none
    levels: list[LevelSummary]
    curve: Curve | None
    knees: Knees
    prediction: Prediction | None
    cost: Cost | None
    client: ClientSummary
    ramp: list[RampStep] = []
    phases: Phases | None = None
    workload: WorkloadSummary | UnsetType = UNSET  # not in the file where all requests are alike
    checks: list[Check] | UnsetType = UNSET  # not in the file without a valid level
    node_losses: list[NodeLoss] | UnsetType = UNSET  # not in the file where no replica was lost
    unloaded_quality: AnswerQuality | UnsetType = UNSET  # of the canaries before the load; not in the file without any

    @property
    def load_unit(self) -> str:
        """What a level of a closed loop counts, and its knee."""
        return "sessions" if any(level.sessions for level in self.levels) else "requests in flight"


class Achieved(msgspec.Struct, frozen=True):
    """A share of the data sheet's figure that was reached, and the same quotient by the prediction."""

    value: float
    predicted: float


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Where the measured throughput leaves the predicted one: factors by cause that multiply to `ratio`."""

    at: float | None  # the concurrency at which the two are compared; None: at the plateau
    ratio: float  # output tokens/s, measured over predicted
    ratio_single: float | None  # ITL at one request in flight, measured over predicted
    ratio_prefill: float | None  # time that a prompt takes to compute, likewise, as far as ITL does not explain it
    hinge_over_cap: float | None  # requests at which the batch was seen to stop, over the predicted cap
    limits: list[str]  # predicted caps that lie in the measured hinge's interval
    mbu: Achieved | None
    mfu: Achieved | None
    factors: dict[str, float]
    largest: str  # bandwidth | compute (prefill) | max_num_seqs | KV memory | client | software or host | none
    sentence: str
