"""What a plan is asked for, as its flags give it: the demand, what is kept in reserve, and prices."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from harness.base.errors import HarnessError

By = Literal["slo", "cost", "knee"]
UTILIZATION = 0.7  # share of the operating point: a headroom of 1/0.7 - 1 = 43 % above the peak
MONTH_H = 720.0  # hours: 30 days
MOST = 1e9  # requests per second, users, dollars: nothing that is planned has more


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served. One of the first three, a day's traffic, or a batch; None is not asked."""

    requests_per_s: float | None = None  # at the peak
    users: float | None = None  # at the peak; each sends again `think_s` after an answer's end
    documents_per_s: float | None = None  # at the peak, of work that decodes nothing
    think_s: float | None = None
    traffic: str | None = None  # a day's traffic, written like `harness.spec.traffic`
    offline_tokens: float | None = None  # a batch: output tokens, of work that decodes nothing input tokens
    offline_documents: float | None = None  # a batch of work that decodes nothing
    deadline_s: float | None = None
    input_tokens: float | None = None  # means of a request; None: as measured
    output_tokens: float | None = None

    @property
    def offline(self) -> bool:
        """Return whether the demand is a batch."""
        return self.offline_tokens is not None or self.offline_documents is not None


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept above the peak."""

    utilization: float = UTILIZATION  # share of the operating point's throughput at the peak; headroom = 1/u - 1
    spare: int | None = None  # replicas that may be down at the peak (N+k)


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica costs, and how long one takes to start; None: not known, and what needs it is left out."""

    gpu_hour: float | None = None  # USD
    gpus: float | None = None  # GPUs of one replica; None: the recorded number
    cold_start_s: float | None = None  # start of one replica; None: the measured time


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan is asked."""

    demand: Demand
    by: By | None = None  # None: by the SLO if there is one, else the knee
    reserve: Reserve = Reserve()
    prices: Prices = Prices()

    def __post_init__(self) -> None:
        demand = self.demand
        amounts = (
            demand.requests_per_s, demand.users, demand.documents_per_s, demand.offline_tokens, demand.offline_documents
        )  # fmt: skip
        asked = sum(amount is not None for amount in amounts)
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
        if demand.offline and (demand.think_s is not None or self.reserve != Reserve()):
            place = "--think-time, --utilization, --headroom, --spare"
            raise HarnessError("a batch has no peak", place=place, way_out="leave them out")


def with_spares(exact: float, utilization: float, spare: int) -> int:
    """Return the whole replicas for work of `exact` busy ones: at most `utilization` each, or with `spare` more.

    >>> with_spares(100 * 200 / 6000, 0.7, spare=1)
    5
    """
    return max(rounded_up(exact / utilization), rounded_up(exact) + spare)


def rounded_up(x: float) -> int:
    """Return whole machines."""
    # 0.7 · 10 / 0.7 is a hair above 10 in floating point; that hair is not a machine.
    return math.ceil(x - 1e-9)
