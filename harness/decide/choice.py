"""Which GPU: every card of the table, in every size that fits, in the order of what a demand or its tokens cost.

Each is judged at its best load: the most users within the SLO, never more than fit into the batch. Replicas share a
demand, with a reserve. The slow end of the band decides the order, and cards whose constants are a guess come last.
Prices are the middle of what renting a card costs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.data.prediction import Band, batch_cap
from harness.decide.plan.question import MONTH_H, UTILIZATION, with_spares
from harness.predict.catalog import Constants, Gpu, among, constants, doubts
from harness.predict.deployment import Deployment, deployment, divisors
from harness.predict.model import Model
from harness.predict.roofline import over_replicas, predict
from harness.predict.steady import caps, slo_figure
from harness.predict.step import step_cost
from harness.spec.work import MeanLengths, usd_per_million

_SIZES = (1, 2, 4, 8)  # GPUs of one node
_READ = ("itl", "icl", "tpot", "e2e")  # figures that limit how slowly an answer goes on
_USUAL_TPOT = 0.2  # seconds; the limit of MLPerf Inference's server scenario of Llama 2 70B
RANKS = ("cost", "speed", "latency", "power")


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be served, and what is kept in reserve, as `knee plan` counts it."""

    requests_per_s: float
    utilization: float = UTILIZATION  # highest share of a replica's best load
    spare: int = 1  # replicas that may be down


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one choice that serve a demand, and how each serves its share of it."""

    replicas: int
    utilization: float  # share of their best load that is used, at the slow end
    usd_per_month: float | None = None
    watts: float | None = None  # rated watts
    concurrency: int  # requests in flight at one replica; the times are one replica's too
    itl_s: float | None
    ttft_s: float | None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One card in one size at its best load; one with a `why_not` is out."""

    gpu: str
    tp: int
    why_not: str = ""  # it does not fit, or misses the SLO
    concurrency: int | None = None
    output_tokens_per_s: Band | None = None
    requests_per_s: float | None = None
    requests_per_s_slow: float | None = None  # the same at the slow end
    itl_s: float | None = None
    ttft_s: float | None = None
    usd_per_hour: float | None = None  # dollars for all its GPUs
    usd_per_million: float | None = None  # output tokens, or input if there are none
    usd_per_million_slow: float | None = None  # the same at the slow end
    watts: float | None = None  # rated watts of all its GPUs
    kwh_per_million: float | None = None  # tokens as above, at the slow end
    binding_cap: str | None = None
    constants: Constants = "guess"  # how well those of the card are known
    doubts: list[str] = []
    fleet: Fleet | None = None  # for a demand


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What every card is judged by: the model, the load, the limits and the deployment's figures."""

    model: Model
    workload: MeanLengths
    slo: Mapping[str, float]
    alone: bool  # one user in flight, in place of the best load
    demand: Demand | None
    figures: Mapping[str, Any]


def with_usual(slo: Mapping[str, float], workload: MeanLengths) -> dict[str, float]:
    """Return the limits, with a usual one on TPOT added where they limit only the wait for the first token.

    Without it the best load of a card is one at which nobody wants to read.

    >>> with_usual({"ttft_p99": 2.0}, MeanLengths(1000, 200))
    {'ttft_p99': 2.0, 'tpot': 0.2}
    """
    named = {slo_figure(name) for name in slo}
    alone = bool(named) and not named & set(_READ) and workload.output_tokens > 1
    return {**slo, "tpot": _USUAL_TPOT} if alone else dict(slo)


def choose(
    model: Model,
    cards: Iterable[Gpu],
    workload: MeanLengths,
    *,
    slo: Mapping[str, float] | None = None,
    rank: str = "cost",
    demand: Demand | None = None,
    **figures: Any,
) -> list[Choice]:
    """Return every card × tensor-parallel size, ranked by `rank`, the best first; those that do not fit come last.

    The sizes of a card that do not fit are one choice together, the largest of them, which says what does fit.
    rank "cost": the fewest dollars, a month for a `demand`, else a million tokens; "speed": the most tokens/s;
    "power": the fewest rated watts for the demand, else kWh a million tokens; of each the slow end. "latency": the
    shortest answer, at the demand's load, else alone. An `slo` on the first token alone is completed (`with_usual`).
    `figures` are of the Deployment.
    """
    if rank not in RANKS:
        raise HarnessError(f"unknown order {rank!r}", place="--rank", way_out=nearest(rank, RANKS))
    terms = _Terms(
        model=model,
        workload=workload,
        slo=with_usual(slo or {}, workload),
        alone=rank == "latency" and demand is None,
        demand=demand,
        figures=figures,
    )
    choices = [size for card in cards for size in _sizes(terms, card)]
    return sorted(choices, key=lambda each: _order(each, rank, workload.output_tokens))


def best_sizes(choices: Iterable[Choice]) -> list[Choice]:
    """Return the first choice of each card (GPU), in the order of the choices, which come best first."""
    best: dict[str, Choice] = {}
    for choice in choices:
        best.setdefault(choice.gpu, choice)
    return list(best.values())


def _order(choice: Choice, rank: str, G: float) -> tuple[bool, bool, float]:
    figure = ranked_by(choice, rank, G)
    return bool(choice.why_not), guessed(choice), math.inf if figure is None else figure


def guessed(choice: Choice) -> bool:
    """Return whether the constants of the card are a guess."""
    return choice.constants == "guess"


def ranked_by(choice: Choice, rank: str, G: float) -> float | None:
    """Return the figure of a choice that `rank` sorts by, less is better; None: not known. G: tokens of an answer."""
    fleet = choice.fleet
    if rank == "cost":
        return choice.usd_per_million_slow if fleet is None else fleet.usd_per_month
    if rank == "power":
        return choice.kwh_per_million if fleet is None else fleet.watts
    if rank == "speed":
        return None if choice.requests_per_s_slow is None else -choice.requests_per_s_slow
    at = fleet or choice
    return None if at.ttft_s is None else at.ttft_s + (at.itl_s or 0.0) * max(0.0, G - 1)


def gains(model: Model, card: Gpu, choice: Choice, workload: MeanLengths, **figures: Any) -> tuple[float, float] | None:
    """Return the choice's tokens/s offline (a full batch) and with prompts alone (embeddings), over those at its load.

    None if nothing is decoded.
    """
    tokens = choice.output_tokens_per_s
    if not tokens or not tokens.mid:
        return None
    where = deployment(card, tp=choice.tp, **figures)
    full = max(1, int(batch_cap(caps(model, where, workload, None)))) * where.dp
    both = (workload, MeanLengths(workload.input_tokens, 0.0))
    offline, prompts = (predict(model, where, each, [full]).levels[0].throughput.mid / tokens.mid for each in both)
    return offline, prompts


def _sizes(terms: _Terms, card: Gpu) -> list[Choice]:
    """Return the choices of one card: each tensor-parallel size that fits, and the largest that does not, with why."""
    sizes = [n for n in _SIZES if n in divisors(terms.model) and (n == 1 or among(card, n).link is not None)]
    deployment(card, **terms.figures)  # a mistake in the options is raised here: it is no reason against a card
    choices: list[Choice] = []
    out: dict[int, str] = {}
    for tp in sizes:
        try:
            choices.append(_best(terms, card, tp))
        except HarnessError as error:
            out[tp] = error.fact
    if out:
        largest = max(out)
        fits = f"; it fits from {choices[0].tp} on" if choices and choices[0].tp > largest else ""
        choices.append(
            Choice(
                gpu=card.key, tp=largest, why_not=out[largest] + fits, constants=constants(card), doubts=doubts(card)
            )
        )
    return choices


def _best(terms: _Terms, card: Gpu, tp: int) -> Choice:
    """Return a card at a TP, loaded as high as its caps allow; where a demand is given, also the fleet for it."""
    model, workload, slo = terms.model, terms.workload, terms.slo
    price = sum(card.usd_per_hour) / 2 if card.usd_per_hour else None
    where = deployment(card, tp=tp, **terms.figures)
    limits = caps(model, where, workload, slo)
    allowed = limits.get("slo")
    most = max(1, int(min(batch_cap(limits), math.inf if allowed is None else allowed)))
    prediction = predict(model, where, workload, [(1 if terms.alone else most) * where.dp], slo=slo, price=price)
    level = prediction.levels[0]
    rates, watts = level.requests_per_s, None if card.watts is None else card.watts * where.gpus
    tokens = level.throughput.low
    choice = Choice(
        gpu=card.key,
        tp=tp,
        why_not="misses the SLO even with one user" if level.meets_slo is False else "",
        concurrency=level.concurrency,
        output_tokens_per_s=level.output_tokens_per_s,
        requests_per_s=rates.mid if rates else None,
        requests_per_s_slow=rates.low if rates else None,
        itl_s=level.itl_s,
        ttft_s=level.ttft_s,
        usd_per_hour=None if price is None else price * where.gpus,
        usd_per_million=level.usd_per_million.mid if level.usd_per_million else None,
        usd_per_million_slow=level.usd_per_million.high if level.usd_per_million else None,
        watts=watts,
        kwh_per_million=usd_per_million(watts / 1000, tokens) if watts and tokens else None,
        constants=constants(where.gpu),
        binding_cap=prediction.binding_cap,
        doubts=doubts(where.gpu),
    )
    if terms.demand is None or choice.why_not or not choice.requests_per_s_slow:
        return choice
    return msgspec.structs.replace(choice, fleet=_fleet(terms, where, choice, terms.demand, batch_cap(limits)))


def _fleet(terms: _Terms, where: Deployment, choice: Choice, demand: Demand, cap: float) -> Fleet:
    """Return the replicas that a demand needs, their use and cost, and the latencies at each one's share of it."""
    rate, most = demand.requests_per_s, choice.requests_per_s_slow or math.nan
    n = max(1, with_spares(rate / most, demand.utilization, demand.spare))
    cost = step_cost(terms.model, where)

    def reached(C: int) -> float:
        return over_replicas(cost, cap, terms.workload, C, where.dp).requests_per_s

    C = 1 + bisect.bisect_left(range(1, choice.concurrency or 1), rate / n, key=reached)
    level = predict(terms.model, where, terms.workload, [C]).levels[0]
    price = choice.usd_per_hour
    return Fleet(
        replicas=n,
        utilization=rate / (n * most),
        usd_per_month=None if price is None else price * n * MONTH_H,
        watts=None if choice.watts is None else choice.watts * n,
        concurrency=C,
        itl_s=level.itl_s,
        ttft_s=level.ttft_s,
    )
