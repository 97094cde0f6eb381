"""The shape of the answer: `summary.json`, name for name as in docs/summary.schema.json.

Only shape: the figures come from analysis, predict and decide. Seconds and tokens per second throughout;
a missing number is None, never 0; an interval end that is unbounded is None.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from harness.data.judgement import CurveState, Verdict
from harness.data.levels import AnswerQuality, LevelSummary
from harness.data.prediction import Agents, Prediction
from harness.data.record import FORMAT, Level, Role
from harness.data.views import Ends, Spread, Value
from harness.spec.work import Unit


class Settle(msgspec.Struct, frozen=True):
    """What would turn a provisional answer, or one beyond the levels, into a found one."""

    levels: list[int]  # concurrencies to measure, those measured already among them
    seconds: float | None = None  # seconds that they would take; None: not known


FOUND, PROVISIONAL, BEYOND, NONE = CurveState


class CurvePoint(msgspec.Struct, frozen=True):
    """One place of the curve: throughput in the run's unit per second, with its 95 % interval."""

    in_flight: float
    concurrency: float  # concurrency that keeps so many in flight
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
    only_wide: bool = False  # the width of the knee's interval is the one reason, which leaves the plateau shown
    at_least_concurrency: float | None = None  # state "beyond": the highest concurrency measured
    expected_concurrency: float | None = None  # state "beyond": where the prediction puts the knee
    expected_by: str | None = None  # prediction: its source
    family: str | None = None  # the curve is none of a family
    single_stream_tokens_per_s: Value
    hinge_concurrency: Value  # the corner: where the rising branch ends
    plateau_tokens_per_s: Value
    plateau_reached: bool
    dip: Value | None  # share of the plateau that is lost at the last level; None if none is shown
    weights: dict[str, float] | None = None  # weights of families of curves; None, as there are none
    parameters: dict[str, float]  # noise: relative σ of a level; roughness, softness: of the curve (docs/method.md)
    line: list[CurvePoint] = []  # from the lowest level to the highest
    verdicts: list[Verdict]


class Knees(msgspec.Struct, frozen=True, kw_only=True):
    hinge: Value | None = None
    plateau95: Value | None = None
    half_point: Value | None = None
    slo: Value | None = None  # largest concurrency that meets the SLO; up to the smallest that misses it (`is_decided`)
    seats: Value | None = None  # requests that the server serves at once, if the records show it (analysis.seats)
    peak: Value | None = None
    slo_rate: Value | None = None  # `slo` of an open loop, requests per second
    quality: Value | UnsetType | None = UNSET  # the knee, below loads at which answers change; not without canaries


class Headline(Ends, msgspec.Struct, frozen=True):
    """The knee unqualified: the SLO's if one is given, else the seats if they are known, else the curve's hinge."""

    kind: str  # slo | seats | hinge
    state: str  # a CurveState; found: both ends are finite, the upper at most 1.5 times the lower
    value: float | None = None  # None if the state is beyond or none
    ci95: tuple[float | None, float | None] | None = None


def is_decided(knee: Value | None) -> bool:
    """Return whether the load of an SLO knee is known to have met the SLO; else it only leans to it."""
    return knee is not None and knee.ci95 is not None and knee.ci95[0] is not None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    usd_per_million_output_tokens: float | None = None
    usd_per_million_input_tokens: float | UnsetType = UNSET  # absent unless nothing is decoded
    usd_per_million_documents: float | UnsetType = UNSET  # absent unless nobody counts tokens
    usd_per_gpu_hour: float | None = None
    gpus: int | None = None
    at_concurrency: float | None = None


class ClientSummary(msgspec.Struct, frozen=True, kw_only=True):
    events_per_s_ceiling: float | None = None  # all workers together, by this host's calibration
    ceiling_is_lower_bound: bool | None = None  # the calibration's server, not its client, was the limit
    timestamp_error_p99_s: float | None = None  # arrival stamp against the server's own, by the calibration
    timestamp_source: str | None = None  # kernel | user
    transport: str = "socket"
    workers: int = 1


class RampStep(msgspec.Struct, frozen=True):
    """One decision of the ramp: the level it chose, or none where it ended, and why."""

    concurrency: int | None
    reason: str
    rate: float | None = None
    repeat: int = 0
    role: Role | None = None  # what a level is measured for
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
    mfu: Value | None  # from that slope; None if hardware or model is not known
    lengths: list[tuple[float, float]]  # (prompt tokens, mean TTFT in seconds)


class DecodePhase(msgspec.Struct, frozen=True, kw_only=True):
    """From the decode probe: short prompts, long answers."""

    tokens_per_s: Value  # capacity: output tok/s without first tokens, at the plateau of its ramp
    itl_s: float | None  # at one request in flight
    mbu: Value | None  # from that ITL; None if hardware or model is not known


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

    law: str | None  # how it is written, like "lognormal(512,300)"; None if it is not known, as is `asked`
    asked: LengthSpread | None
    realised: LengthSpread
    mean_se: float | None  # one standard error of the realised mean


class ClassWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one class, of all levels' windows together."""

    class_: str = msgspec.field(name="class")  # "": the workload has no classes
    requests: int  # answered
    share_asked: float
    share: float | None  # share of the requests that were sent
    input_tokens: Lengths
    output_tokens: Lengths


class WorkloadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a workload whose requests differ, and what came of it."""

    classes: list[ClassWorkload]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One of the operational checks."""

    name: str  # phases | p99_ttft | kv_cache | long_context_tail | node_loss
    outcome: str  # pass | doubt | not measured
    figures: dict[str, float] = {}
    threshold: float | None = None  # a share, of p99_ttft seconds
    source: str = ""  # where the threshold comes from
    at: float | None = None  # concurrency, or in open loop rate, of the level
    message: str = ""  # why it is a doubt, or what would measure it


class LossPhase(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas, and those that were not lost, before, during or after a loss."""

    seconds: float
    output_tokens_per_s: float  # all replicas together
    survivors_output_tokens_per_s: float
    survivors_in_flight: float  # mean
    survivors_ttft_s: Spread  # requests that were sent then and succeeded


class NodeLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that stopped answering; times are seconds since the run's origin."""

    url: str
    kind: str  # stopped
    at: float | None  # concurrency, or in open loop rate, of its level
    start_s: float  # end of its first failure
    end_s: float | None  # send of its first success after it; None: it did not come back
    recovery_s: float | None
    errors: int
    errors_s: float | None  # from its first failure to its last
    before: LossPhase | None
    during: LossPhase | None
    after: LossPhase | None
    survivors_plateau_tokens_per_s: float | None  # by the fitted curve; None: no plateau was measured
    headroom_held: bool | None  # whether the others could give what all gave before; None: unknown


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    simulated: bool
    complete: bool  # False: the run was interrupted or died; the finished levels stay
    verdicts: list[Verdict]
    unit: str = Unit.OUTPUT_TOKENS.value  # a Unit: what throughput counts, the curve's too
    knee_concurrency: float | None  # the value of `knee`
    knee: Headline = Headline("hinge", NONE)  # the value for files of earlier versions, which have none
    levels: list[LevelSummary]
    curve: Curve | None
    knees: Knees
    prediction: Prediction | None
    cost: Cost | None
    client: ClientSummary
    ramp: list[RampStep] = []
    phases: Phases | None = None
    workload: WorkloadSummary | UnsetType = UNSET  # absent if all requests are alike
    checks: list[Check] | UnsetType = UNSET  # absent without a valid level
    node_losses: list[NodeLoss] | UnsetType = UNSET  # absent if no replica was lost
    unloaded_quality: AnswerQuality | UnsetType = UNSET  # canaries before the load; absent without any
    agents: Agents | UnsetType = UNSET  # predicted and measured hits; absent without a prediction of them
    counted: str | UnsetType = UNSET  # agents, if a level counts them; else absent

    @property
    def load_unit(self) -> str:
        """Return what a level of a closed loop, and its knee, counts."""
        return self.counted or ("sessions" if self.of_sessions else "requests in flight")

    @property
    def of_sessions(self) -> bool:
        """Return whether a level counts sessions, tasks or agents."""
        return any(level.sessions for level in self.levels)

    @property
    def open_loop(self) -> bool:
        """Return whether requests were sent at fixed rates instead of by slots."""
        return any(level.rate is not None for level in self.levels)

    @property
    def limited(self) -> bool:
        """Return whether the run has limits, which make the knee."""
        return bool(self.knees.slo or self.knees.slo_rate) or any(level.slo for level in self.levels)
