"""A finished level, as far as a search uses it: not all of its verdicts and latencies."""

from __future__ import annotations

import msgspec

from harness.analysis import slo
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.requests import answered, in_flight_low, too_many_fail, unstable
from harness.analysis.seats import Occupancy, occupancy
from harness.data.record import Level, LevelNote
from harness.data.roles import Role
from harness.data.summary import Attainment, LevelSummary, Spread
from harness.search.decision import Part


class MeasuredLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What a search knows of a level of a concurrency, or of a rate in requests per second."""

    concurrency: int | None
    rate: float | None
    in_flight: float | None  # requests, or sessions where slots hold these
    throughput: float  # of the run's unit, per second
    se: float | None  # one standard error, tok/s
    assumed: bool = False  # `se` is a weight: the window was too short to measure it
    error_rate: float
    answered: int | None = None  # requests by which that is judged; None: many
    seconds: float  # the whole level, warm-up to the end of cooldown
    requests: int
    request_s: float | None  # mean E2E
    valid: bool
    in_flight_ok: bool
    ttft_p99_s: float | None
    slo: str | None  # met | missed | unresolved; None: there is no SLO
    attainments: tuple[Attainment, ...] = ()  # of its limits
    unstable: bool = False  # open loop: more and more in flight
    stalled: bool = False  # nobody answered for so long that the level was ended
    occupancy: Occupancy | None = None  # what it shows of the server's seats
    time_s: float | None = None  # the middle of its window, since the run's start
    soak: bool = False  # the search is over, and this is what it was for

    @property
    def users(self) -> int:
        """The concurrency, of a level that has one."""
        assert self.concurrency is not None
        return self.concurrency

    @property
    def n(self) -> float:
        """Mean in flight; the concurrency where that is not known."""
        return self.in_flight or float(self.users)

    @property
    def counts(self) -> bool:
        """Whether the level is a point of the curve."""
        return self.valid and not self.fails and self.throughput > 0

    @property
    def fails(self) -> bool:
        """Whether too many of its requests failed."""
        return too_many_fail(self.error_rate, self.answered)

    @property
    def failure(self) -> str:
        """The share of failed requests in words."""
        failed = Part.FAILED if self.rate is None else Part.FAILED_RATE
        return failed.words(error_rate=self.error_rate, concurrency=self.concurrency, rate=self.rate)


def measured(summary: LevelSummary, level: Level) -> MeasuredLevel:
    """A finished level by its summary.

    Its number of requests is estimated from those of its window: those of the whole level are not all over when the
    search goes on, and a resumed run must come to the same number later.
    """
    assert level.end_s is not None
    seconds = level.end_s - level.begin_s
    return MeasuredLevel(
        concurrency=level.concurrency,
        rate=level.rate,
        in_flight=summary.in_slots,
        throughput=summary.throughput.mean or 0.0,
        se=summary.output_tokens_per_s_se,
        assumed=summary.output_tokens_per_s_se_assumed,
        error_rate=summary.error_rate or 0.0,
        answered=answered(summary),
        seconds=seconds,
        requests=round(summary.requests * seconds / summary.window_s),
        request_s=summary.e2e_s.mean,
        valid=usable(summary, Purpose.POINT) and summary.throughput.mean is not None,
        in_flight_ok=not in_flight_low.voids(summary),
        ttft_p99_s=_p99_at_least(summary.first_s),
        slo=slo.outcome(summary.slo) if summary.slo else None,
        attainments=tuple(summary.slo),
        unstable=unstable.voids(summary),
        stalled=bool({LevelNote.STALLED, LevelNote.REFUSED, LevelNote.COOLDOWN_STALLED} & {*level.notes}),
        occupancy=occupancy(summary),
        time_s=sum(summary.window) / 2,
        soak=level.role is Role.SOAK,
    )


def _p99_at_least(spread: Spread) -> float | None:
    """A lower bound of p99: the highest percentile that the samples carry."""
    carried = (spread.p99, spread.p95, spread.p90, spread.p50)
    return next((value for value in carried if value is not None), None)
