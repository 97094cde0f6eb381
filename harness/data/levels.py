"""The shape of a level in `summary.json`: its figures, of all its requests and of each part of them."""

# Annotations are not put off, as in `figures`.
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.figures import Column, Figure, Figures, Group, Of, RequestFigures, over
from harness.data.judgement import Verdict
from harness.data.record import Role
from harness.data.views import ClientView, Estimate, GpuView, PoolView, ServerView, Spread, Value
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


class ClassSummary(RequestFigures, frozen=True, kw_only=True):
    """A class of requests at one level."""


class ReplicaSummary(Figures, frozen=True, kw_only=True):
    """One of several replicas at one level."""

    in_flight_share: Annotated[
        float | None,
        Figure(Group.LOAD, "of what was in flight on all of them", "1", columns=(Column("share", (Of.REPLICA,)),)),
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
    requests_mean: float | None  # of those completed, like the two below
    latency_s: Spread  # to the last byte
    last_token_s: Spread  # to the last token
    cached_fraction: Spread | UnsetType = UNSET  # of a session's prompt tokens; not in the file where none is counted
    cached_by_turn: list[float | None] | UnsetType = UNSET  # of all first, second, … prompts; the last: and all later
    ttft_by_turn_s: list[float | None] | UnsetType = UNSET  # means, in the same order; not there where nothing streams
    ttft_by_cached_s: list[float | None] | UnsetType = UNSET  # means of prompts below CACHED, each, and above
    tokens_per_minute: float | None = None  # output tokens that one session gets, its pauses included
    idle: float | None = None  # mean number of those at once that have nothing in flight
    idle_tokens: float | None = None  # of the conversations of these: what a cache has to keep for them


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


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure moves over a window, by a line through equal parts of it."""

    mean: float
    start: float  # of the line, at the window's beginning
    per_hour: Value
    share_per_hour: Value | None  # of `start`; None where that is not above 0
    sure: bool  # the slope is not 0, or the last third of the window differs from the first, at 99.99 %
    bins: int  # parts in which it was read


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A level's figures over its window; None where one was not recorded, or in too few parts."""

    throughput: Trend | None = None  # as `LevelSummary.throughput`
    ttft_p99_s: Trend | None = None
    kv_usage: Trend | None = None
    memory_bytes: Trend | None = None  # resident, of the server's process
    gpu_memory_bytes: Trend | None = None  # of all GPUs together


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
    output_tokens_per_s_se_assumed: bool = False  # by the number of requests: a weight, whose scale the fit finds
    offered_requests_per_s: Annotated[
        float | None,
        Figure(
            Group.LOAD,
            "open loop: requests due in the window, over its length",
            "request/s",
            lambda x: x.offered,
            exported=False,
        ),
    ] = None
    little_in_flight: Annotated[
        float | None,
        Figure(
            Group.LOAD,
            "N by Little's law, successes only, to compare with `in_flight`",
            "request",
            lambda x: x.requests.little.by_law,
            exported=False,
        ),
    ]
    documents_per_s: Annotated[
        Estimate | UnsetType,
        Figure(Group.RATE, "texts of these requests; not there where the unit is output tokens", "document/s"),
    ] = UNSET
    output_tokens_per_s_per_gpu: Annotated[
        float | None,
        Figure(
            Group.RATE,
            "over all GPUs that serve",
            "token/s",
            lambda x: over(x.rates.output.mean, x.conditions.gpus),
            decoded=True,
        ),
    ]
    tokens_per_s_per_user: Annotated[
        float | None, Figure(Group.RATE, "1/mean ITL", "token/s", lambda x: over(1, x.chunks.itl.mean), decoded=True)
    ]
    peak_output_tokens_per_s: Annotated[
        float | None,
        Figure(
            Group.RATE,
            "most in one whole second of the window",
            "token/s",
            lambda x: x.rates.peak,
            decoded=True,
            exported=False,
        ),
    ]
    decode_tokens_per_s: Annotated[
        float | None,
        Figure(
            Group.RATE, "output without first chunks", "token/s", lambda x: x.rates.decode, decoded=True, exported=False
        ),
    ]
    prefill_tokens_per_s: float | None = None
    images_per_s: Annotated[
        float | UnsetType | None,
        Figure(
            Group.RATE,
            "with `images`: those of these successes",
            "image/s",
            lambda x: x.each_second(x.conditions.images),
            exported=False,
        ),
    ] = UNSET
    image_bytes_per_s: Annotated[
        float | UnsetType | None,
        Figure(
            Group.RATE,
            "their PNG files, not the base64 around them",
            "byte/s",
            lambda x: x.each_second(x.conditions.image_bytes),
            exported=False,
        ),
    ] = UNSET
    discarded_tokens_per_s: Annotated[
        float | None,
        Figure(
            Group.RATE,
            "tokens of failed requests",
            "token/s",
            lambda x: x.rates.discarded,
            decoded=True,
            exported=False,
        ),
    ]
    unplaced_tokens: Annotated[
        int,
        Figure(
            Group.LENGTH,
            "usage − tokens that have an arrival, of the successes",
            "token",
            lambda x: round(x.requests.unplaced_tokens),
            decoded=True,
            exported=False,
        ),
    ]
    tokens_per_chunk: Annotated[
        float | None,
        Figure(
            Group.LENGTH, "output tokens for each chunk", "token", lambda x: x.chunks.tokens_per_chunk, decoded=True
        ),
    ]
    lag_s: Annotated[
        Spread, Figure(Group.DELAY, "lag of the successes that began in the window", "s", lambda x: x.requests.lag)
    ]
    tail_s: Annotated[
        Spread | UnsetType,
        Figure(
            Group.DELAY,
            "from the last token to the end of the answer; not there in older results",
            "s",
            lambda x: x.requests.tail,
            exported=False,
        ),
    ] = UNSET
    from_send: FromSend | None = None
    server: ServerView | None
    client: ClientView
    gpu: GpuView | None = None
    slo: list[Attainment] = msgspec.field(default_factory=list)
    input_tokens_asked: int | None = None  # of a probe's level whose prompts have a length of their own
    classes: dict[str, ClassSummary] | UnsetType = UNSET  # by name; not in the file without classes
    sessions: SessionSummary | UnsetType = UNSET  # not in the file without sessions
    replicas: dict[str, ReplicaSummary] | UnsetType = UNSET  # by url; not in the file where there is one server
    pools: dict[str, PoolView] | UnsetType = UNSET  # by name; not in the file without pages of pools
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
