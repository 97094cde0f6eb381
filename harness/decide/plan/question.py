"""What a plan is asked for, as its flags give it: the demand, what is kept in reserve, prices, and what may change."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from harness.base.errors import HarnessError

By = Literal["slo", "cost", "knee"]
UTILIZATION = 0.7  # of the operating point: a headroom of 1/0.7 - 1 = 43 % above the peak
MONTH_H = 720.0  # hours: 30 days
MOST = 1e9  # requests per second, users, dollars: nothing that is planned has more


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served. One of the first three, a day's traffic, or a batch; None is not asked."""

    requests_per_s: float | None = None  # at the peak
    users: float | None = None  # at the peak; each sends again `think_s` after an answer's end
    documents_per_s: float | None = None  # at the peak, of work that decodes nothing
    think_s: float | None = None
    traffic: str | None = None  # of a day, as `harness.spec.traffic` writes it
    offline_tokens: float | None = None  # a batch: output tokens, of work that decodes nothing input tokens
    offline_documents: float | None = None  # a batch of work that decodes nothing
    deadline_s: float | None = None
    input_tokens: float | None = None  # means of a request; None: as measured
    output_tokens: float | None = None
    long_input: dict[str, float] = {}  # tokens by percentile, like p99
    long_output: dict[str, float] = {}

    @property
    def offline(self) -> bool:
        """Whether it is a batch."""
        return self.offline_tokens is not None or self.offline_documents is not None


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept above the peak. A redundancy factor, spares or an availability: one of the three at most."""

    utilization: float = UTILIZATION  # of the operating point's throughput, at the peak; headroom = 1/u - 1
    redundancy: float | None = None  # a factor on the replicas
    spare: int | None = None  # replicas that may be down at the peak (N+k)
    availability: float | None = None  # share of the time that enough replicas are up
    replica_availability: float | None = None  # share of the time that one replica is up

    def __post_init__(self) -> None:
        several = [self.redundancy, self.spare, self.availability]
        if sum(each is not None for each in several) > 1:
            fact = "a redundancy factor, spares and an availability exclude each other"
            raise HarnessError(fact, place="--redundancy, --spare, --availability", way_out="give one of them")
        if (self.availability is None) != (self.replica_availability is None):
            way_out = "give --availability and --replica-availability together"
            raise HarnessError("spares follow from both availabilities", place="--availability", way_out=way_out)


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """USD; None: not known, and what needs it is left out."""

    gpu_hour: float | None = None
    gpus: float | None = None  # of one replica; None: as recorded
    reserved_gpu_hour: float | None = None
    spot_gpu_hour: float | None = None
    spot_interruptions_per_h: float | None = None  # of one replica
    monthly: dict[str, float] = {}  # other costs of a month, by name
    egress_gb: float | None = None
    kwh: float | None = None
    carbon_g_kwh: float | None = None  # grams of CO2 per kWh
    cold_start_s: float | None = None  # of one replica; None: as measured


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What may change."""

    growth: float | None = None  # of the demand, per month
    months: int = 12
    speedup: float | None = None  # of throughput by an optimisation
    effort_usd: float | None = None  # that it costs


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan is asked."""

    demand: Demand
    by: By | None = None  # None: by the SLO where there is one, else the knee
    reserve: Reserve = Reserve()
    prices: Prices = Prices()
    outlook: Forecast = Forecast()
    reference: bool = False  # widely quoted tables too

    def __post_init__(self) -> None:
        demand, outlook = self.demand, self.outlook
        amounts = (
            demand.requests_per_s, demand.users, demand.documents_per_s, demand.offline_tokens, demand.offline_documents
        )  # fmt: skip
        asked = sum(each is not None for each in amounts)
        if asked > 1 or (demand.offline and demand.traffic is not None):
            way_out = "give one of --rps, --users, --documents-per-s, --offline-tokens and --offline-documents"
            raise HarnessError("a plan has one demand", place="knee plan", way_out=way_out)
        if not asked and demand.traffic is None:
            way_out = (
                "add --rps 50, --users 1000 --think-time 30s, --traffic SHAPE or --offline-tokens 10B --deadline 8h"
            )
            raise HarnessError("no demand is given", place="knee plan", way_out=way_out)
        if demand.offline != (demand.deadline_s is not None):
            fact = "a batch has an amount and a deadline"
            raise HarnessError(fact, place="--deadline", way_out="give --offline-tokens and --deadline together")
        if demand.users is not None and demand.think_s is None:
            way_out = "add --think-time, the pause between an answer and the next question; 0s for none"
            raise HarnessError("users without a think time", place="--users", way_out=way_out)
        if (outlook.speedup is None) != (outlook.effort_usd is None):
            way_out = "give --speedup and --effort together"
            raise HarnessError("an optimisation has a speedup and a price", place="--speedup", way_out=way_out)
        if demand.offline and outlook != Forecast():
            raise HarnessError("a batch does not grow", place="--growth, --speedup", way_out="leave them out")
        if demand.offline and (unused := self._of_a_peak()):
            way_out = "leave them out; a batch is priced by --price"
            raise HarnessError("a batch has no peak and no month", place=", ".join(unused), way_out=way_out)

    def _of_a_peak(self) -> list[str]:
        """Return the flags of what is given for requests that come all the time."""
        demand, reserve, prices = self.demand, self.reserve, self.prices
        given = {
            "--think-time": demand.think_s is not None,
            "--long-input": demand.long_input,
            "--long-output": demand.long_output,
            "--utilization or --headroom": reserve.utilization != UTILIZATION,
            "--redundancy": reserve.redundancy is not None,
            "--spare": reserve.spare is not None,
            "--availability": reserve.availability is not None,
            "--reserved-price": prices.reserved_gpu_hour is not None,
            "--spot-price": prices.spot_gpu_hour is not None or prices.spot_interruptions_per_h is not None,
            "--monthly": prices.monthly,
            "--egress-price": prices.egress_gb is not None,
        }
        return [flag for flag, value in given.items() if value]


# ---- the rules of money and of fleets --------------------------------------------------------------------------------


class Tokens(msgspec.Struct, frozen=True):
    """An amount of tokens, or of tokens per second, with what it counts."""

    amount: float
    counts: str  # output | total (input + output)


def busy(peak_requests_per_s: float, per_request: Tokens, per_s: Tokens) -> float:
    """Return the replicas that a peak keeps fully busy, λ·w/X, before rounding up; X is of one replica.

    >>> busy(10, Tokens(700, "total"), Tokens(5000, "total")) / 0.7 * 1.25  # of the target utilisation, with redundancy
    2.5
    """
    if per_request.counts != per_s.counts:
        raise HarnessError(
            f"a request of {per_request.amount:g} {per_request.counts} tokens cannot be divided by "
            f"{per_s.amount:g} {per_s.counts} tokens/s",
            place="replicas",
            way_out="count output tokens on both sides, or input + output on both",
        )
    return peak_requests_per_s * per_request.amount / per_s.amount


def with_spares(exact: float, utilization: float, spare: int) -> int:
    """Return whole replicas for what keeps `exact` of them busy: with headroom, or while `spare` of them are down.

    >>> with_spares(100 * 200 / 6000, 0.7, spare=1)
    5
    """
    return max(rounded_up(exact / utilization), rounded_up(exact) + spare)


def rounded_up(x: float) -> int:
    """Return whole machines."""
    # 0.7 · 10 / 0.7 is a hair above 10 in floating point; that hair is not a machine.
    return math.ceil(x - 1e-9)


def usd_per_request(usd_per_million: float, tokens: float) -> float:
    """Return the price of one request; USD. `tokens` counts what the price per million counts.

    >>> round(usd_per_request(0.17, 500 + 200), 6)
    0.000119
    """
    return usd_per_million * tokens / 1e6


def tco(gpus: int, usd_per_gpu_hour: float, hours: float, *others: float) -> float:
    """Return the total cost of ownership over `hours`: GPUs and all the other costs of that time; USD.

    >>> tco(10, 3, 720, 500, 1000, 500, 5000)  # storage, network, monitoring, engineering
    28600
    """
    return gpus * usd_per_gpu_hour * hours + sum(others)


def months_to_pay(usd: float, usd_saved_per_month: float) -> float:
    """Return months until an effort has paid for itself; infinite when it saves nothing.

    >>> months_to_pay(50_000, 10_000)
    5.0
    """
    return usd / usd_saved_per_month if usd_saved_per_month > 0 else math.inf
