"""The shape of a level in `summary.json`: its figures, of all its requests and of each part of them."""

# Annotations are not put off, as in `figures`.
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.figures import Column, Figure, Figures, Group, Mark, Of, RequestFigures, over
from harness.data.judgement import Verdict
from harness.data.record import Role
from harness.data.views import ClientView, Estimate, GpuView, PoolView, ServerView, Spread, Value
from harness.spec.work import Unit

LOAD, LENGTH, RATE, DELAY = Group.LOAD, Group.LENGTH, Group.RATE, Group.DELAY
DECODED, NOT_EXPORTED = Mark


class Attainment(msgspec.Struct, frozen=True):
    """How many requests of a level met one limit of the SLO, and whether that settles it."""

    limit: str  # the limit as it is written, like "ttft_p99=2s"
    needed: float  # share that has to meet it
    met: int
    n: int  # requests that began in the window, failures included
    fraction: float | None
    ci95: tuple[float, float] | None
    outcome: str  # an Outcome
    class_: str | UnsetType = msgspec.field(name="class", default=UNSET)  # the class whose requests have the limit
    confidence: float = 0.95  # one-sided confidence of the outcome
    interrupted: float | UnsetType = UNSET  # share that missed it while another request's prompt was computed


class FromSend(msgspec.Struct, frozen=True):
    """Open loop only: the same latencies counted from the send instead of the schedule, which hides our own delay."""

    ttft_s: Spread
    ttfat_s: Spread
    e2e_s: Spread


class ClassSummary(RequestFigures, frozen=True, kw_only=True):
    """A class of requests at one level."""


class ReplicaSummary(Figures, frozen=True, kw_only=True):
    """One of several replicas at one level."""

    in_flight_share: Annotated[
        float | None, Figure(LOAD, "of what was in flight on all of them", "1"), Column("share", (Of.REPLICA,))
    ]
    server: ServerView | None


CACHED = (0.5, 0.9, 0.99)  # shares of a prompt between which TTFTs are told apart


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, or tasks of an agent, that began in a level's window; their pauses are part of their times."""

    sessions: int
    completed: int  # every request answered
    failed: int  # any request failed; the rest were cut
    in_flight: float  # mean over the window, from the first send to the last byte
    sessions_per_s: float  # completed in the window
    requests_mean: float | None  # mean of completed sessions, as are the two below
    latency_s: Spread  # to the last byte
    last_token_s: Spread  # to the last token
    cached_fraction: Spread | UnsetType = UNSET  # cached share of a session's prompt tokens; absent if none is counted
    cached_by_turn: list[float | None] | UnsetType = UNSET  # by turn: first, second, …; the last holds all later ones
    ttft_by_turn_s: list[float | None] | UnsetType = UNSET  # means, in the same order; absent if nothing streams
    ttft_by_cached_s: list[float | None] | UnsetType = UNSET  # means of prompts below CACHED, each, and above
    tokens_per_minute: float | None = None  # output tokens that one session gets, its pauses included
    idle: float | None = None  # mean number of those at once that have nothing in flight
    idle_tokens: float | None = None  # tokens of the idle sessions' conversations: what a cache has to keep for them


class AnswerQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to canaries: against the first ones of an unloaded server, and against what is expected of them."""

    answers: int  # answers that did not fail
    compared: int  # answers with a first answer to the same prompt
    agreement: Estimate  # share of them whose words are those of the first
    differs_at: float | None = None  # words that the others begin with like the first, median
    flaws: dict[str, int] = {}  # answers that are empty, no UTF-8, or repeat themselves
    finish_reasons: dict[str, int] = {}
    accuracy: Estimate | UnsetType = UNSET  # share of right answers; absent without expected answers
    detectable: float | None = None  # smallest share of changed answers that would have been found


class Service(msgspec.Struct, frozen=True):
    """Requests between their first token and their last one over a level's window: each holds a seat of the server."""

    streaming: Estimate  # mean
    most: int  # at once, for at least 0.1 % of the window
    most_fraction: float  # share of the window with `most` streams


class LevelPhases(msgspec.Struct, frozen=True, kw_only=True):
    """How the server divides its busy time between prompts and responses; the rates are of the time in the phase."""

    prefill_tokens_per_s: Estimate = Estimate(None)  # computed prompt tokens, while prompts are computed
    decode_tokens_per_s: Estimate = Estimate(None)  # output tokens but first ones, while responses are
    prefill_share: Estimate = Estimate(None)  # share of the busy time
    busy: float | None = None  # share of the window in which the server had work
    step_s: float | None = None  # a step without a prompt, of `batch` requests that hold `context` tokens
    batch: float | None = None
    context: float | None = None
    steps_per_s: float | None = None
    prefill_s: float | None = None  # seconds from the step that takes a request up to its first token
    wait_s: float | None = None  # seconds that a request waits before that step
    source: str = ""  # records | levels: with the steps of other levels | server | both: it agrees with the records
    reason: str = ""  # why figures are missing, or where records and server differ


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure moves over a window, by a line through equal parts of it."""

    mean: float
    start: float  # the line's value where the window begins
    per_hour: Value
    share_per_hour: Value | None  # per_hour over `start`; None unless start > 0
    sure: bool  # the slope is not 0, or the last third of the window differs from the first, at 99.99 %
    bins: int  # parts in which it was read


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A level's figures over its window; None if one was not recorded, or in too few parts."""

    throughput: Trend | None = None  # see `LevelSummary.throughput`
    ttft_p99_s: Trend | None = None
    kv_usage: Trend | None = None
    memory_bytes: Trend | None = None  # resident, of the server's process
    gpu_memory_bytes: Trend | None = None  # all GPUs together


class LevelSummary(RequestFigures, frozen=True, kw_only=True):
    """A level: what it was, its figures, what was seen meanwhile, and its verdicts."""

    concurrency: int | None  # None in open loop
    rate: float | None = None  # open loop: requests per second that were to be sent; None in closed loop
    repeat: int
    window_s: float
    window: tuple[float, float]
    errors_by_type: dict[str, int]
    unit: str | UnsetType = UNSET  # a Unit: what `throughput` counts
    output_tokens_per_s_se: float | None  # the fit's own error of `throughput`, one standard error, apart from ci95
    output_tokens_per_s_se_assumed: bool = False  # whether it is a weight, whose scale the fit finds
    offered_requests_per_s: Annotated[
        float | None,
        Figure(LOAD, "open loop: requests due in the window, over its length", "request/s", lambda x: x.offered),
        NOT_EXPORTED,
    ] = None
    little_in_flight: Annotated[
        float | None,
        Figure(
            LOAD,
            "N by Little's law, successes only, to compare with `in_flight`",
            "request",
            lambda x: x.requests.little.by_law,
        ),
        NOT_EXPORTED,
    ]
    documents_per_s: Annotated[
        Estimate | UnsetType,
        Figure(RATE, "texts of these requests; absent if the unit is output tokens", "document/s"),
    ] = UNSET
    output_tokens_per_s_per_gpu: Annotated[
        float | None,
        Figure(RATE, "over all GPUs that serve", "token/s", lambda x: over(x.rates.output.mean, x.conditions.gpus)),
        DECODED,
    ]
    tokens_per_s_per_user: Annotated[
        float | None, Figure(RATE, "1/mean ITL", "token/s", lambda x: over(1, x.chunks.itl.mean)), DECODED
    ]
    peak_output_tokens_per_s: Annotated[
        float | None,
        Figure(RATE, "most in one whole second of the window", "token/s", lambda x: x.rates.peak),
        DECODED,
        NOT_EXPORTED,
    ]
    decode_tokens_per_s: Annotated[
        float | None,
        Figure(RATE, "output without first chunks", "token/s", lambda x: x.rates.decode),
        DECODED,
        NOT_EXPORTED,
    ]
    prefill_tokens_per_s: float | None = None
    images_per_s: Annotated[
        float | UnsetType | None,
        Figure(
            RATE, "with `images`: those of these successes", "image/s", lambda x: x.each_second(x.conditions.images)
        ),
        NOT_EXPORTED,
    ] = UNSET
    image_bytes_per_s: Annotated[
        float | UnsetType | None,
        Figure(
            RATE,
            "their PNG files, not the base64 around them",
            "byte/s",
            lambda x: x.each_second(x.conditions.image_bytes),
        ),
        NOT_EXPORTED,
    ] = UNSET
    discarded_tokens_per_s: Annotated[
        float | None,
        Figure(RATE, "tokens of failed requests", "token/s", lambda x: x.rates.discarded),
        DECODED,
        NOT_EXPORTED,
    ]
    unplaced_tokens: Annotated[
        int,
        Figure(
            LENGTH,
            "usage − tokens that have an arrival, of the successes",
            "token",
            lambda x: round(x.requests.unplaced_tokens),
        ),
        DECODED,
        NOT_EXPORTED,
    ]
    tokens_per_chunk: Annotated[
        float | None,
        Figure(LENGTH, "output tokens for each chunk", "token", lambda x: x.chunks.tokens_per_chunk),
        DECODED,
    ]
    lag_s: Annotated[
        Spread, Figure(DELAY, "lag of the successes that began in the window", "s", lambda x: x.requests.lag)
    ]
    tail_s: Annotated[
        Spread | UnsetType,
        Figure(
            DELAY,
            "from the last token to the end of the answer; not there in older results",
            "s",
            lambda x: x.requests.tail,
        ),
        NOT_EXPORTED,
    ] = UNSET
    from_send: FromSend | None = None
    server: ServerView | None
    client: ClientView
    gpu: GpuView | None = None
    slo: list[Attainment] = msgspec.field(default_factory=list)
    input_tokens_asked: int | None = None  # prompt length that a probe asked of this level
    classes: dict[str, ClassSummary] | UnsetType = UNSET  # by class; absent without classes
    sessions: SessionSummary | UnsetType = UNSET  # absent without sessions
    replicas: dict[str, ReplicaSummary] | UnsetType = UNSET  # by URL; absent with one server
    pools: dict[str, PoolView] | UnsetType = UNSET  # by pool; absent without pages of pools
    quality: AnswerQuality | UnsetType = UNSET  # answers to its canaries; absent without any
    drift: Drift | UnsetType = UNSET  # absent if the window is shorter than five minutes
    service: Service | UnsetType = UNSET  # absent if nothing streams
    taken_at_once: int | UnsetType = UNSET  # requests; absent if the server refuses none that come on top
    phases: LevelPhases | UnsetType = UNSET  # absent if nothing is decoded
    reason: str = ""  # why the ramp chose it
    role: Role | None = None  # what for; None: of a level without a reason
    verdicts: list[Verdict]

    @property
    def load(self) -> int | float | None:
        """Return the requested load: requests in flight, or in open loop requests per second."""
        return self.concurrency if self.rate is None else self.rate

    @property
    def in_slots(self) -> float | None:
        """Return what the slots held on average, the x of a curve: requests in flight, or a session each."""
        return self.in_flight if not self.sessions or self.concurrency is None else float(self.concurrency)

    @property
    def throughput(self) -> Estimate:
        """Return the work per second in the run's unit."""
        if self.unit == Unit.INPUT_TOKENS:
            return self.input_tokens_per_s
        if self.unit == Unit.DOCUMENTS:
            return self.documents_per_s or Estimate(None)
        return self.output_tokens_per_s

    @property
    def decodes(self) -> bool:
        """Return whether its requests generate output tokens; `unit` is stored only where they do not."""
        return not self.unit

    @property
    def first_s(self) -> Spread:
        """Return the time to the first token; to the whole answer if nothing is decoded."""
        return self.ttft_s if self.decodes else self.e2e_s
