"""The shape of a level in `summary.json`: its figures, of all its requests and of each part of them."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.judgement import Verdict
from harness.data.roles import Role
from harness.data.views import ClientView, Estimate, GpuView, NodeView, ServerView, Spread, Value
from harness.spec.work import Unit


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
    confidence: float = 0.95  # of the outcome, on one side
    interrupted: float | UnsetType = UNSET  # share that missed it while another request's prompt was computed


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
    cached_fraction: Spread | UnsetType = UNSET  # of a session's prompt tokens; not in the file where none is counted
    cached_by_turn: list[float | None] | UnsetType = UNSET  # of all first, second, … prompts; the last: and all later


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


class LevelPhases(msgspec.Struct, frozen=True, kw_only=True):
    """How the server divides its busy time between prompts and responses; the rates are of the time in the phase."""

    prefill_tokens_per_s: Estimate = Estimate(None)  # computed prompt tokens, while prompts are computed
    decode_tokens_per_s: Estimate = Estimate(None)  # output tokens but first ones, while responses are
    prefill_share: Estimate = Estimate(None)  # of the busy time
    busy: float | None = None  # share of the window in which the server had work
    step_s: float | None = None  # a step without a prompt, of `batch` requests that hold `context` tokens
    batch: float | None = None
    context: float | None = None
    steps_per_s: float | None = None
    prefill_s: float | None = None  # of a request, from the step that takes it up to its first token
    wait_s: float | None = None  # of a request, before that
    source: str = ""  # records | levels: with the steps of other levels | server | both: it agrees with the records
    reason: str = ""  # why figures are missing, or where records and server differ


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
    image_bytes_per_s: float | UnsetType | None = UNSET  # as PNG; not in the file without images
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
    worst_slowdown: float | UnsetType | None = UNSET  # of all classes; not in the file without classes
    sessions: SessionSummary | UnsetType = UNSET  # not in the file without sessions
    interference: Interference | UnsetType = UNSET  # not in the file without a class of much longer prompts
    recoveries_s: list[float | None] | UnsetType = UNSET  # after each spike, None: not before the next; UNSET: no spike
    replicas: dict[str, ReplicaSummary] | UnsetType = UNSET  # by url; not in the file where there is one server
    quality: AnswerQuality | UnsetType = UNSET  # of its canaries; not in the file without any
    drift: Drift | UnsetType = UNSET  # not in the file where the window is shorter than five minutes
    service: Service | UnsetType = UNSET  # not in the file where nothing streams
    phases: LevelPhases | UnsetType = UNSET  # not in the file where nothing is decoded
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
