"""The prediction of requests that differ in length: every level by the step machine.

No mean request stands for them. Attention over a prompt grows with its square, a long prompt holds up all that decode,
and most tokens belong to the long answers. So throughput, ITL and TTFT of each level are those of a simulation with
requests of these very lengths. What no simulation says is the closed form's at the mean request: the caps, the limits,
and how far low and high lie from the middle. Lengths come from outside, and with them all randomness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from harness.data.summary import Band, PredictedLevel, Prediction, SteppedLevel
from harness.predict import roofline
from harness.predict.deployment import Deployment
from harness.predict.latency import TOGETHER, latencies, meets
from harness.predict.limits import batch_cap
from harness.predict.model import Model
from harness.predict.steady import SteadyState
from harness.predict.step import StepCost, prefill_time, step_cost
from harness.spec.work import MeanLengths, Mixture, means

_NOTE = "lengths differ: throughput, ITL and TTFT are the step machine's, caps and limits those of the mean request"


def predict(
    model: Model,
    where: Deployment,
    lengths: MeanLengths | Mixture,
    levels: Sequence[int],
    *,
    simulated: bool = False,
    slo: Mapping[str, float] | None = None,
    price: float | None = None,
    notes: Sequence[str] = (),
) -> Prediction:
    """The whole prediction, by `roofline.predict` where requests are alike; a mixture takes some 0.2 s a level more."""
    mean = means(lengths)
    closed = roofline.predict(model, where, mean, list(levels), simulated=simulated, slo=slo, price=price, notes=notes)
    if isinstance(lengths, MeanLengths) or not closed.output_tokens:
        return closed
    from harness.predict.stepped import at_levels  # which predictions in closed form start without

    cost, cap = step_cost(model, where), batch_cap(closed.caps)
    top = max(1, math.floor(cap)) if cap < math.inf else max(levels, default=1)
    ends = roofline.predict(model, where, mean, [1, top]).levels
    single, plateau = (
        each.output_tokens_per_s for each in map(_replaced, ends, at_levels(model, where, lengths, ends))
    )
    stepped = at_levels(model, where, lengths, closed.levels)
    found = [_replaced(*pair) for pair in zip(closed.levels, stepped, strict=True)]
    alone, mixed = (
        sum(prefill_time(cost, P, cost.cached * P, decoding=others) for P, _ in lengths) / len(lengths)
        for others in (0.0, 1.0)
    )
    return msgspec.structs.replace(
        closed,
        single_stream_tokens_per_s=single,
        plateau_tokens_per_s=plateau,
        levels=[_judged(level, cost, mean, slo) for level in found] if slo else found,
        step_machine=stepped,
        assumptions=msgspec.structs.replace(closed.assumptions, prefill_s=alone, prefill_beside_s=mixed),
        notes=[*closed.notes, _NOTE],
    )


def _replaced(level: PredictedLevel, seen: SteppedLevel) -> PredictedLevel:
    """A level of the closed form with what the step machine gives in the place of the middle."""

    def around(band: Band | None, middle: float) -> Band | None:
        return band and Band(band.low / band.mid * middle, middle, band.high / band.mid * middle)

    tokens = around(level.output_tokens_per_s, seen.output_tokens_per_s)
    assert tokens is not None
    usd = level.usd_per_million and level.usd_per_million.mid / (tokens.mid / level.output_tokens_per_s.mid)
    return msgspec.structs.replace(
        level,
        output_tokens_per_s=tokens,
        itl_s=seen.itl_s and seen.itl_s.mean,
        ttft_s=seen.ttft_s.mean if seen.ttft_s else level.ttft_s,
        requests_per_s=around(level.requests_per_s, seen.requests_per_s),
        usd_per_million=usd and around(level.usd_per_million, usd),
    )


def _judged(level: PredictedLevel, cost: StepCost, mean: MeanLengths, slo: Mapping[str, float]) -> PredictedLevel:
    """The level with whether its latencies meet the SLO."""
    itl = math.nan if level.itl_s is None else level.itl_s
    point = SteadyState(level.concurrency, level.output_tokens_per_s.mid, itl, level.ttft_s)
    return msgspec.structs.replace(level, meets_slo=meets(latencies(point, cost, mean, TOGETHER[1]), slo))
