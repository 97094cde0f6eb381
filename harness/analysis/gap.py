"""Measured over predicted: one ratio a level, and at the plateau what the difference comes from. Pure.

A prediction is a curve X = B / y(B), with B = min(C, cap) requests running and y = decoding + prefilling seconds a
token. Three of its figures are measured by themselves: decoding by ITL and prefilling by TTFT, both at one request in
flight, and the cap by the hinge. Each is put in place of its prediction, and what the plateau changes by is its
factor; since the change depends on what was replaced before, it is the geometric mean over all orders (Shapley's
share). What then still lies between the curve and the measured plateau is the client's where the client was the limit
and it is a loss, else software's or the host's. So the factors multiply to measured over predicted, their logarithms
add up to its logarithm, and the one that moves it furthest its own way is named.

Measured and predicted agree where the whole curve does: the plateau, every level, and the pace of one request alone.

Left out: the sentence that says it (`explanation`); telling a slow memory from a slow launch, which one request in
flight cannot; and anything of a workload without output tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.analysis.explanation import QUEUED, SLACK, Cap, Off, agree, sentence
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import known_mean
from harness.data.judgement import Cause
from harness.data.levels import LevelSummary
from harness.data.manifest import Roof
from harness.data.prediction import Achieved, Gap, PredictedLevel, Prediction, batch_cap
from harness.data.summary import Curve, Phases


def with_ratios(prediction: Prediction, levels: Sequence[LevelSummary]) -> Prediction:
    """Return the prediction with measured_over_predicted (its mid) filled in, by concurrency; repeats are averaged.

    The calibrated one is judged by its own. None where nothing was measured at that concurrency or every
    measurement of it is invalid.
    """
    measured: dict[int, list[float]] = {}
    for s in levels:
        x = s.throughput.mean
        if x is not None and usable(s, Purpose.ANSWER):
            measured.setdefault(s.concurrency or 0, []).append(x)

    def ratio(concurrency: int, predicted: float) -> float | None:
        rates = measured.get(concurrency)
        return sum(rates) / len(rates) / predicted if rates and predicted > 0 else None

    def judged(predicted: Sequence[PredictedLevel]) -> list[PredictedLevel]:
        return [
            msgspec.structs.replace(p, measured_over_predicted=ratio(p.concurrency, p.throughput.mid))
            for p in predicted
        ]

    own = prediction.calibrated
    return msgspec.structs.replace(
        prediction,
        levels=judged(prediction.levels),
        calibrated=own and msgspec.structs.replace(own, levels=judged(own.levels)),
    )


def attribute(
    prediction: Prediction,
    levels: Sequence[LevelSummary],
    curve: Curve | None,
    *,
    roof: Roof | None = None,
    phases: Phases | None = None,
) -> Gap | None:
    """Return where measured throughput leaves predicted, at the plateau if it was reached, else at the top level.

    `levels` are those of the ramp, `curve` the fit to them; `roof` (the hardware at its data sheet's figures) gives MBU
    and MFU, `phases` a prefill that was probed. None where nothing can be compared.
    """
    if not complete(prediction):
        return None
    predicted, top = predicted_curve(prediction), _top(levels, curve)
    if top is None or not predicted.decoding(1) > 0:
        return None
    alone = _alone(levels)
    decode = alone.itl / predicted.decoding(1) if alone.itl else None
    prefill = _prefill_ratio(predicted, alone, prediction, phases)
    cap = Cap.of(top.hinge, top.queues, prediction)
    figures = {Cause.BANDWIDTH: decode, Cause.COMPUTE: prefill, cap.cause: cap.running}
    measured = {cause: value for cause, value in figures.items() if value is not None}
    C = top.concurrency
    if math.isinf(C) and math.isinf(cap.expected):  # a plateau where none was to come
        C = float(max(_concurrencies(levels)))
    factors = _factors(predicted, C, cap.expected, measured)
    if factors is None:
        return None
    ratio = top.throughput / predicted.throughput(min(C, cap.expected))
    unexplained = ratio / math.prod(factors.values())
    rest = Cause.CLIENT if top.client and unexplained < 1 else Cause.SOFTWARE  # a client makes nothing faster
    factors[rest] = unexplained
    mbu, mfu = _achieved(prediction, predicted, alone, roof, phases)
    off = _furthest(with_ratios(prediction, levels).levels, decode)
    found = Gap(
        at=None if math.isinf(top.concurrency) else top.concurrency,
        ratio=ratio,
        ratio_single=decode,
        ratio_prefill=prefill,
        hinge_over_cap=cap.running / cap.expected if cap.running is not None and cap.expected < math.inf else None,
        limits=cap.inside,
        mbu=mbu,
        mfu=mfu,
        factors=factors,
        largest=_largest(factors, ratio, off.ratio if off else 1.0, rest),
        sentence="",
    )
    context = prediction.input_tokens + prediction.output_tokens / 2
    words = sentence(found, cap, context, off, single_stream=alone.itl is not None)
    return msgspec.structs.replace(found, sentence=words)


def _factors(
    predicted: PredictedCurve, C: float, cap: float, measured: Mapping[Cause, float]
) -> dict[str, float] | None:
    """Return what each measured figure, put in place of the predicted, multiplies the throughput at C by.

    They are the ratios of decoding and prefill times, and the number running where the batch stops, in place of `cap`.
    None where the predicted curve does not reach so far.
    """

    def throughput(replaced: Iterable[Cause]) -> float:
        now = {cause: measured[cause] for cause in replaced}
        decode, prefill = now.pop(Cause.BANDWIDTH, 1.0), now.pop(Cause.COMPUTE, 1.0)
        return predicted.throughput(min(C, *(now.values() or [cap])), decode, prefill)

    orders = list(itertools.permutations(measured))
    moved = dict.fromkeys(measured, 0.0)
    for order in orders:
        rates = [throughput(order[:i]) for i in range(len(order) + 1)]
        if not all(0 < rate < math.inf for rate in rates):
            return None
        for cause, before, after in zip(order, rates, rates[1:], strict=False):
            moved[cause] += math.log(after / before)
    return {cause: math.exp(by / len(orders)) for cause, by in moved.items()}


def _furthest(levels: Sequence[PredictedLevel], decode: float | None) -> Off | None:
    """Return where measured leaves predicted furthest, of the levels and of the pace of one request alone.

    `decode` is ITL at one request in flight, measured over predicted. None where everything agrees.
    """
    found = [
        Off(each.measured_over_predicted, f"at C = {each.concurrency}")
        for each in levels
        if each.measured_over_predicted
    ]
    found += [Off(1 / decode, "for one request alone (by ITL)")] if decode else []
    return max(
        (each for each in found if not agree(each.ratio)), key=lambda each: abs(math.log(each.ratio)), default=None
    )


def _largest(factors: Mapping[str, float], ratio: float, off: float, rest: Cause) -> str:
    """Return the cause that moves throughput furthest the way that it went; none where the whole curve agrees.

    Where the plateau agrees, it is the way of `off`, the ratio furthest off below it; a cause that moves the plateau
    little explains no level. Where no cause moves it far, it is `rest`, that of what no figure explains.
    """
    deciding = off if agree(ratio) else ratio
    if agree(deciding):
        return Cause.NONE
    largest = (min if deciding < 1 else max)(factors, key=lambda cause: factors[cause])
    return rest if agree(factors[largest]) else largest


# ---- what was measured ------------------------------------------------------------------------------------


class _Top(msgspec.Struct, frozen=True):
    """Where throughput is compared: at the plateau (concurrency inf) or at the highest level."""

    concurrency: float
    throughput: float
    client: bool  # it was the limit there
    hinge: tuple[float, float, float] | None  # value and interval, where the batch is full
    queues: list[LevelSummary]  # levels at which requests wait for the batch


def _top(levels: Sequence[LevelSummary], curve: Curve | None) -> _Top | None:
    ramp = [s for s in levels if s.concurrency is not None and s.throughput.mean and usable(s, Purpose.TOP)]
    good = [s for s in ramp if usable(s, Purpose.ANSWER)]
    if curve and curve.plateau_reached and curve.plateau_tokens_per_s.value and curve.hinge_concurrency.value:
        hinge = curve.hinge_concurrency
        low, high = hinge.ci95 or (None, None)
        value = curve.hinge_concurrency.value
        ends = (value, low if low is not None else value, high if high is not None else math.inf)
        past = [s for s in good if (s.concurrency or 0) > value]
        return _Top(math.inf, curve.plateau_tokens_per_s.value, False, ends, past)
    if not ramp:
        return None
    # Levels that the client voided do not count, unless they end the curve: then the client is what ended it. Too few
    # in flight without failures is its doing too: a slot without a request waits to send one.
    C = max(s.concurrency or 0 for s in ramp)
    there = [s for s in good if s.concurrency == C] or [s for s in ramp if s.concurrency == C]
    queues = [s for s in there if s.server and (s.server.waiting or 0.0) >= QUEUED]
    full = known_mean(s.server.running for s in queues if s.server)
    hinge_ends = (full, full * (1 - SLACK), full * (1 + SLACK)) if full else None
    rate = known_mean(s.throughput.mean for s in there)
    assert rate is not None
    return _Top(float(C), rate, there[0] not in good, hinge_ends, queues)


class _Alone(msgspec.Struct, frozen=True):
    """One request in flight: seconds; None where that was not measured."""

    itl: float | None
    ttft: float | None


def _alone(levels: Sequence[LevelSummary]) -> _Alone:
    one = [s for s in levels if s.concurrency == 1 and usable(s, Purpose.POINT)]
    return _Alone(known_mean(s.itl_s.mean for s in one), known_mean(s.ttft_s.mean for s in one))


def _concurrencies(levels: Sequence[LevelSummary]) -> list[int]:
    return [s.concurrency for s in levels if s.concurrency is not None]


def _prefill_ratio(
    predicted: PredictedCurve, alone: _Alone, prediction: Prediction, phases: Phases | None
) -> float | None:
    """Return how many times the predicted time a prompt takes to compute; by the probe's slope where there is one.

    Else what TTFT leaves for it over what is expected of it.
    """
    assumed = prediction.assumptions
    probed = phases.prefill.mfu if phases and phases.prefill else None
    if probed and probed.value and assumed.mfu_prefill is not None:
        return assumed.mfu_prefill / probed.value
    expected = predicted.prefill + (assumed.api_overhead_s or 0.0)
    taken = _prefill_s(prediction, predicted, alone)
    return taken / expected if taken is not None and taken > 0 and expected > 0 else None


def _prefill_s(prediction: Prediction, predicted: PredictedCurve, alone: _Alone) -> float | None:
    """Return TTFT without the decoding of its step, the steps that it waits, and what takes the request in."""
    if alone.ttft is None:
        return None
    assumed, step = prediction.assumptions, predicted.decoding(1) if alone.itl is None else alone.itl
    steps = 1 + (assumed.first_token_steps or 0.0)
    return alone.ttft - steps * step - (assumed.token_overhead_s or 0.0) * prediction.input_tokens


def _achieved(
    prediction: Prediction, predicted: PredictedCurve, alone: _Alone, roof: Roof | None, phases: Phases | None
) -> tuple[Achieved | None, Achieved | None]:
    """Return MBU = bytes of a step / (BW ITL), MFU = FLOP of a prompt / (F (TTFT - ITL)) at one request in flight.

    Overheads count against both, measured and predicted alike: what is predicted lies below what is assumed.
    """
    mbu = mfu = None
    P, assumed = prediction.input_tokens, prediction.assumptions
    if roof is not None and alone.itl:
        context = P + prediction.output_tokens / 2
        least = roof.step(context)
        mbu = Achieved(least / alone.itl, least / predicted.decoding(1))
    probed = phases.prefill.mfu if phases and phases.prefill else None
    taken = _prefill_s(prediction, predicted, alone)
    if probed and probed.value and assumed.mfu_prefill is not None:
        mfu = Achieved(probed.value, assumed.mfu_prefill)
    elif roof is not None and taken is not None and taken > 0 and predicted.prefill > 0:
        cached = P * assumed.prefix_hit
        least = roof.prompt * (P - cached) + roof.attend / 2 * (P * P - cached * cached)
        mfu = Achieved(least / taken, least / (predicted.prefill + (assumed.api_overhead_s or 0.0)))
    return mbu, mfu


# ---- the prediction as a curve -----------------------------------------------------------------------------------


def complete(prediction: Prediction) -> bool:
    """Return whether every figure that is divided by is above 0, which one read from a folder need not be."""
    assumed = prediction.assumptions
    rooms = [assumed.kv_tokens or 0.0] if assumed.kv_tokens_by_memory is not None else []
    least = [prediction.output_tokens, prediction.single_stream_tokens_per_s.mid, assumed.dp, *rooms]
    return min(least) > 0 and (assumed.api_overhead_s or 0.0) >= 0


class PredictedCurve(msgspec.Struct, frozen=True):
    """Seconds a token of one request, by the prediction, over the number that run in all replicas."""

    running: tuple[float, ...]  # where it is known, ascending
    seconds: tuple[float, ...]  # of decoding, there
    cap: float
    prefill: float  # seconds of one prompt, whose step reads the weights anyway
    share: float  # prefills in a step per running request of a replica: 1/G
    replicas: float

    def decoding(self, B: float) -> float:
        """Return the step without its prefills: linear between what is known, and on as between the last two."""
        if len(self.running) == 1:
            return self.seconds[0]
        i = next((i for i, known in enumerate(self.running[1:-1]) if known >= B), len(self.running) - 2)
        (a, b), (y, z) = self.running[i : i + 2], self.seconds[i : i + 2]
        return y + (z - y) * (B - a) / (b - a)

    def prefilling(self, B: float) -> float:
        """Return a step's prefills."""
        return max(1.0, B / self.replicas) * self.share * self.prefill

    def throughput(self, B: float, decode: float = 1.0, prefill: float = 1.0) -> float:
        """Return output tokens/s of B running, where decoding and computing prompts take so many times as long.

        nan where that would be no time at all: a prediction that comes from outside need not be one.
        """
        seconds = decode * self.decoding(B) + prefill * self.prefilling(B)
        return B / seconds if seconds > 0 else math.nan


def predicted_curve(prediction: Prediction) -> PredictedCurve:
    """Return the curve through the prediction's own points: below the cap the levels', and its ends."""
    cap, assumed = batch_cap(prediction.caps), prediction.assumptions
    known = {1.0: prediction.single_stream_tokens_per_s.mid}
    for level in prediction.levels:
        known.setdefault(min(float(level.concurrency), cap), level.output_tokens_per_s.mid)
    if cap < math.inf:
        known[cap] = prediction.plateau_tokens_per_s.mid
    share, replicas = 1 / prediction.output_tokens, assumed.dp
    prefill = assumed.prefill_beside_s or assumed.prefill_s or 0.0
    bare = PredictedCurve((), (), cap, prefill, share, replicas)
    points = sorted((B, B / X - bare.prefilling(B)) for B, X in known.items() if X > 0)
    return msgspec.structs.replace(bare, running=tuple(B for B, _ in points), seconds=tuple(y for _, y in points))
