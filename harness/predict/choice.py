"""Which GPU: every card of the table, in every size that fits, by what its tokens cost or by how many there are.

Each is judged at its best load: the most users within the SLO, never more than fit into the batch. They are ordered by
the slow end of the band, and cards whose constants are a guess come after the others. Prices are the middle of what
renting costs, or the operator's own. A measured rate takes the place of a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness.base.errors import HarnessError, nearest
from harness.data.prediction import Band, batch_cap
from harness.predict.catalog import Constants, Gpu, among, constants, doubts
from harness.predict.deployment import deployment, divisors
from harness.predict.limits import caps
from harness.predict.model import Model
from harness.predict.roofline import predict
from harness.predict.steady import slo_figure
from harness.spec.work import MeanLengths, usd_per_million

_SIZES = (1, 2, 4, 8)  # GPUs of one node
_RANKS = ("cost", "speed")
_READ = ("itl", "icl", "tpot", "e2e")  # figures that limit how slowly an answer goes on
_USUAL_TPOT = 0.2  # seconds; the limit of MLPerf Inference's server scenario of Llama 2 70B


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One card in one size at its best load; one with a `why_not` is out."""

    gpu: str
    tp: int
    why_not: str = ""  # it does not fit, or misses the SLO
    concurrency: int | None = None
    output_tokens_per_s: Band | None = None
    requests_per_s: float | None = None
    itl_s: float | None = None
    ttft_s: float | None = None
    usd_per_hour: float | None = None  # of all its GPUs
    usd_per_million: float | None = None  # output tokens, or input where there are none
    usd_per_million_slow: float | None = None  # the same at the slow end
    binding_cap: str | None = None
    measured: bool = False
    constants: Constants = "guess"  # how well those of the card are known
    doubts: list[str] = []


def with_usual(slo: Mapping[str, float], workload: MeanLengths) -> dict[str, float]:
    """Return the limits, and one on the time per output token where they only limit the wait for the first.

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
    prices: Mapping[str, float] | None = None,
    measured: Mapping[tuple[str, int], float] | None = None,
    **figures: Any,
) -> list[Choice]:
    """Return every card × tensor-parallel size, the best first, those that are out last with their reason.

    The sizes of a card that do not fit are one choice together, the largest of them, which says what does fit.
    rank "cost": the fewest dollars a million tokens; "speed": the most tokens/s; of each the slow end. An `slo` on the
    first token alone is completed (`with_usual`). `prices` are USD per GPU-hour by key, `measured` tokens/s (requests/s
    where nothing is decoded) by key and GPUs; `figures` are of the Deployment.
    """
    if rank not in _RANKS:
        raise HarnessError(f"unknown order {rank!r}", place="--rank", way_out=nearest(rank, _RANKS))
    limits = with_usual(slo or {}, workload)
    found = [
        each
        for card in cards
        for each in _sizes(model, card, workload, limits, (prices or {}).get(card.key), measured or {}, figures)
    ]
    return sorted(found, key=lambda each: _order(each, rank))


def best_sizes(choices: Iterable[Choice]) -> list[Choice]:
    """Return the size of each card that comes first, in the same order."""
    first: dict[str, Choice] = {}
    for each in choices:
        first.setdefault(each.gpu, each)
    return list(first.values())


def _order(choice: Choice, rank: str) -> tuple[bool, bool, float]:
    guessed = choice.constants == "guess" and not choice.measured
    if rank == "cost":
        cost = choice.usd_per_million_slow
        return bool(choice.why_not), guessed, math.inf if cost is None else cost
    rate = choice.output_tokens_per_s.low if choice.output_tokens_per_s else 0.0
    return bool(choice.why_not), guessed, -(rate or choice.requests_per_s or 0.0)


def _sizes(
    model: Model,
    card: Gpu,
    workload: MeanLengths,
    slo: Mapping[str, float],
    price: float | None,
    measured: Mapping[tuple[str, int], float],
    figures: dict[str, Any],
) -> list[Choice]:
    """Return a card in every size that fits, and the largest that does not with the reason."""
    if price is None and card.usd_per_hour:
        price = sum(card.usd_per_hour) / 2
    sizes = [n for n in _SIZES if n in divisors(model) and (n == 1 or among(card, n).link is not None)]
    deployment(card, **figures)  # a mistake in the options is raised here: it is no reason against a card
    found: list[Choice] = []
    out: dict[int, str] = {}
    for tp in sizes:
        try:
            found.append(_best(model, card, tp, workload, slo, price, figures))
        except HarnessError as error:
            out[tp] = error.fact
    found = [_replaced(each, workload, measured.get((card.key, each.tp))) for each in found]
    if out:
        largest = max(out)
        fits = f"; it fits from {found[0].tp} on" if found and found[0].tp > largest else ""
        found.append(
            Choice(
                gpu=card.key, tp=largest, why_not=out[largest] + fits, constants=constants(card), doubts=doubts(card)
            )
        )
    return found


def _best(
    model: Model,
    card: Gpu,
    tp: int,
    workload: MeanLengths,
    slo: Mapping[str, float],
    price: float | None,
    figures: dict[str, Any],
) -> Choice:
    where = deployment(card, tp=tp, **figures)
    limits = caps(model, where, workload, slo)
    allowed = limits.get("slo")
    C = max(1, int(min(batch_cap(limits), math.inf if allowed is None else allowed))) * where.dp
    prediction = predict(model, where, workload, [C], slo=slo, price=price)
    level = prediction.levels[0]
    rates = level.requests_per_s
    return Choice(
        gpu=card.key,
        tp=tp,
        why_not="misses the SLO even with one user" if level.meets_slo is False else "",
        concurrency=C,
        output_tokens_per_s=level.output_tokens_per_s,
        requests_per_s=rates.mid if rates else None,
        itl_s=level.itl_s,
        ttft_s=level.ttft_s,
        usd_per_hour=None if price is None else price * where.gpus,
        usd_per_million=level.usd_per_million.mid if level.usd_per_million else None,
        usd_per_million_slow=level.usd_per_million.high if level.usd_per_million else None,
        constants=constants(where.gpu),
        binding_cap=prediction.binding_cap,
        doubts=doubts(where.gpu),
    )


def _replaced(choice: Choice, workload: MeanLengths, rate: float | None) -> Choice:
    """Return the choice with what was measured in the place of what was predicted."""
    if rate is None:
        return choice
    G = workload.output_tokens
    tokens = rate if G else rate * workload.input_tokens
    price = choice.usd_per_hour
    cost = None if price is None else usd_per_million(price, tokens)
    return msgspec.structs.replace(
        choice,
        output_tokens_per_s=Band(rate, rate, rate) if G else choice.output_tokens_per_s,
        requests_per_s=rate / G if G else rate,
        usd_per_million=cost,
        usd_per_million_slow=cost,
        measured=True,
    )
