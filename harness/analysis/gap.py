"""Measured over predicted: one ratio a level, and at the plateau what the difference comes from. Pure.

A prediction is a curve X = B / y(B), with B = min(C, cap) requests running and y = decoding + prefilling seconds a
token. Three of its figures are measured by themselves: decoding by ITL and prefilling by TTFT, both at one request in
flight, and the cap by the hinge. Each is put in place of its prediction, and what the plateau changes by is its
factor; since the change depends on what was replaced before, it is the geometric mean over all orders (Shapley's
share). What then still lies between the curve and the measured plateau is the client's where the client was the limit
and it is a loss, else software's or the host's. So the factors multiply to measured over predicted, and the one that
moves it furthest its own way is named.

Measured and predicted agree where the whole curve does: the plateau, every level, and the pace of one request alone.
Left out: telling a slow memory from a slow launch, which one request in flight cannot; and anything of a workload
without output tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import known_mean
from harness.data.judgement import AGREES, Cause
from harness.data.levels import LevelSummary
from harness.data.manifest import Roof
from harness.data.prediction import Achieved, Gap, PredictedLevel, Prediction, batch_cap, stopping
from harness.data.summary import Curve, Phases
from harness.data.views import ServerView, Value

KV_FULL = 0.95  # from here on the KV cache counts as full
_QUEUED = 1.0  # requests that wait, from where the batch is full


def with_ratios(prediction: Prediction, levels: Sequence[LevelSummary]) -> Prediction:
    """Return the prediction with each level's ratio of measured to predicted throughput; repeats are averaged.

    The calibrated prediction gets ratios to its own levels. A ratio is None if no valid level of that concurrency
    was measured.
    """
    measured: dict[int, list[float]] = {}
    for level in levels:
        x = level.throughput.mean
        if x is not None and usable(level, Purpose.ANSWER):
            measured.setdefault(level.concurrency or 0, []).append(x)

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
    """Return why measured throughput differs from predicted, a factor for each cause; at the plateau or the top level.

    `levels` are those of the ramp, `curve` the fit to them; `roof` (the hardware at its data sheet's figures) gives MBU
    and MFU, `phases` a prefill that was probed. None if nothing can be compared.
    """
    if not complete(prediction):
        return None
    predicted, top = predicted_curve(prediction), _top(levels, curve)
    if top is None or not predicted.decoding(1) > 0:
        return None
    one = [level for level in levels if level.concurrency == 1 and usable(level, Purpose.POINT)]  # request in flight
    itl, ttft = known_mean(s.itl_s.mean for s in one), known_mean(s.ttft_s.mean for s in one)
    decode = itl / predicted.decoding(1) if itl else None
    prefill, mfu = _prefill(prediction, predicted, itl, ttft, roof, phases)
    expected, cause = _batch(top, prediction)
    figures = {Cause.BANDWIDTH: decode, Cause.COMPUTE: prefill, cause: top.batch}
    C = top.concurrency
    if math.isinf(C) and math.isinf(expected):  # a plateau where none was to come
        C = float(max(level.concurrency for level in levels if level.concurrency is not None))
    factors = _factors(predicted, C, expected, {each: value for each, value in figures.items() if value is not None})
    if factors is None:
        return None
    ratio = top.throughput / predicted.throughput(min(C, expected))
    unexplained = ratio / math.prod(factors.values())
    rest = Cause.CLIENT if top.client and unexplained < 1 else Cause.SOFTWARE  # a client makes nothing faster
    factors[rest] = unexplained
    off, where = _furthest(with_ratios(prediction, levels).levels, decode)
    mbu = None
    if roof is not None and itl:
        least = roof.step(prediction.input_tokens + prediction.output_tokens / 2)
        mbu = Achieved(least / itl, least / predicted.decoding(1))
    gap = Gap(
        at=None if math.isinf(top.concurrency) else top.concurrency,
        ratio=ratio,
        ratio_single=decode,
        ratio_prefill=prefill,
        hinge_over_cap=top.batch / expected if top.batch is not None and expected < math.inf else None,
        mbu=mbu,
        mfu=mfu,
        factors=factors,
        largest=_largest(factors, ratio, off, rest),
        sentence="",
    )
    stops = f"the batch stops at {top.batch or 0:.3g} requests, not at {expected:.3g}"
    return msgspec.structs.replace(gap, sentence=_sentence(gap, stops, off, where))


def _factors(
    predicted: PredictedCurve, C: float, cap: float, measured: Mapping[Cause, float]
) -> dict[str, float] | None:
    """Return for each cause the factor by which its measured figure, instead of the predicted, changes throughput at C.

    Measured figures are ratios of decoding and prefill times, and the requests running where the batch stops, instead
    of `cap`. A factor is the mean over all orders of replacing them. None if a predicted throughput is unknown.
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


def agree(ratio: float) -> bool:
    """Return whether a measured figure over the predicted one lies within what counts as agreement (`AGREES`).

    >>> agree(0.8), agree(0.31)
    (True, False)
    """
    low, high = AGREES
    return low <= ratio <= high


def _furthest(levels: Sequence[PredictedLevel], decode: float | None) -> tuple[float, str]:
    """Return the ratio of measured to predicted that is furthest from 1, of levels and of one request alone, and where.

    `decode` is ITL at one request in flight, measured over predicted.
    """
    found = [(1.0, "")]
    found += [(x, f"at C = {level.concurrency}") for level in levels if (x := level.measured_over_predicted)]
    found += [(1 / decode, "for one request alone (by ITL)")] if decode else []
    return max(found, key=lambda each: abs(math.log(each[0])))


def _largest(factors: Mapping[str, float], ratio: float, off: float, rest: Cause) -> str:
    """Return the cause with the largest factor in the direction of `ratio`, measured over predicted throughput.

    NONE where the whole curve agrees. Where only the plateau agrees, the direction is that of `off`, the ratio of
    another load that is furthest from 1. Where every factor is near 1, the cause is `rest`: what no figure explains.
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
    batch: float | None  # requests running where the batch is full
    queues: list[LevelSummary]  # levels at which requests wait for the batch


def _top(levels: Sequence[LevelSummary], curve: Curve | None) -> _Top | None:
    """Return load, throughput and batch of the plateau if it was reached, else of the highest usable level."""
    ramp = [s for s in levels if s.concurrency is not None and s.throughput.mean and usable(s, Purpose.TOP)]
    good = [s for s in ramp if usable(s, Purpose.ANSWER)]
    if curve and curve.plateau_reached and curve.plateau_tokens_per_s.value and curve.hinge_concurrency.value:
        hinge = curve.hinge_concurrency.value
        past = [s for s in good if (s.concurrency or 0) > hinge]
        return _Top(math.inf, curve.plateau_tokens_per_s.value, False, hinge, past)
    if not ramp:
        return None
    # Levels that the client voided do not count, unless they end the curve: then the client is what ended it. Too few
    # in flight without failures is its doing too: a slot without a request waits to send one.
    C = max(s.concurrency or 0 for s in ramp)
    there = [s for s in good if s.concurrency == C] or [s for s in ramp if s.concurrency == C]
    queues = [s for s in there if s.server and (s.server.waiting or 0.0) >= _QUEUED]
    full = known_mean(level.server.running for level in queues if level.server)
    rate = known_mean(s.throughput.mean for s in there)
    assert rate is not None
    return _Top(float(C), rate, there[0] not in good, full or None, queues)


def _prefill(
    prediction: Prediction,
    predicted: PredictedCurve,
    itl: float | None,
    ttft: float | None,
    roof: Roof | None,
    phases: Phases | None,
) -> tuple[float | None, Achieved | None]:
    """Return the measured time of computing a prompt over the predicted, and the MFU; None for what is not known.

    The time comes from the prefill probe's slope, else from `ttft` of one request alone less the assumed decoding steps
    and overheads of its tokens. None if these are more than two thirds of TTFT: then TTFT says nothing of the
    prompt. Overheads count against MFU, measured and predicted alike.
    """
    P, assumed = prediction.input_tokens, prediction.assumptions
    probed = phases.prefill.mfu if phases and phases.prefill else None
    if probed and probed.value and assumed.mfu_prefill is not None:
        return assumed.mfu_prefill / probed.value, Achieved(probed.value, assumed.mfu_prefill)
    expected = predicted.prefill + (assumed.api_overhead_s or 0.0)
    if ttft is None or not expected > 0:
        return None, None
    step = predicted.decoding(1) if itl is None else itl
    before = (1 + (assumed.first_token_steps or 0.0)) * step + (assumed.token_overhead_s or 0.0) * P
    taken = ttft - before
    if taken < before / 2:  # two thirds of TTFT are assumed
        return None, None
    mfu = None
    if roof is not None and predicted.prefill > 0:
        cached = P * assumed.prefix_hit
        least = roof.prompt * (P - cached) + roof.attend / 2 * (P * P - cached * cached)
        mfu = Achieved(least / taken, least / expected)
    return taken / expected, mfu


def _batch(top: _Top, prediction: Prediction) -> tuple[float, Cause]:
    """Return the predicted limit of the batch, in requests (inf: none), and what limits the batch that was measured.

    A batch that stops before the expected cap is stopped by what the server's counters show while requests wait; else
    the expected cap is named. The cap of KV memory is that of the card's memory, not of what the server reports.
    """
    stops = {name: limit for name, limit in stopping(prediction.caps).items() if 0 < limit < math.inf}
    assumed = prediction.assumptions
    if "kv_memory" in stops and assumed.kv_tokens_by_memory is not None and assumed.kv_tokens:
        stops["kv_memory"] *= assumed.kv_tokens_by_memory / assumed.kv_tokens
    binding = min(stops, key=lambda name: stops[name], default="")
    expected = stops.get(binding, math.inf)
    cause = Cause.KV_MEMORY if binding == "kv_memory" else Cause.SEQUENCES  # of every limit of the scheduler
    if top.batch is not None and top.batch < expected:
        reported = {found for level in top.queues if level.server and (found := _by_counters(level.server))}
        cause = next((each for each in (Cause.KV_MEMORY, Cause.SEQUENCES) if each in reported), cause)
    return expected, cause


def _by_counters(server: ServerView) -> Cause | None:
    """Return why waiting requests do not run, by the server's counters: KV memory is full, or the batch limit.

    None if it publishes no KV use, or nearly none wait.
    """
    if server.preemptions:
        return Cause.KV_MEMORY
    if server.kv_usage is None or (server.waiting or 0.0) < _QUEUED:
        return None
    running = server.running or 0.0
    return Cause.KV_MEMORY if server.kv_usage >= min(KV_FULL, running / (running + 1)) else Cause.SEQUENCES


# ---- in words ------------------------------------------------------------------------------------------------------


def _sentence(gap: Gap, stops: str, off: float, where: str) -> str:
    """Return a sentence for people: by how much measured and predicted differ, the largest cause, a figure above peak.

    `stops` says where the batch stopped; `off` is the ratio that is furthest from 1, `where` its load.
    """
    at = "at the plateau" if gap.at is None else f"at C = {gap.at:.4g}"
    beyond = above_peak(gap.mbu, gap.mfu)
    end = f". {beyond}." if beyond else "."
    if gap.largest == Cause.NONE:
        return f"Measured agrees with predicted: {gap.ratio:.2f} of it {at}{end}"
    ratios = f"{gap.ratio:.2f} of predicted {at}"
    if agree(gap.ratio):
        ratios = f"{off:.2f} of predicted {where}, though {gap.ratio:.2f} {at}"
    part = f"the largest part is {gap.largest}, a factor {gap.factors[gap.largest]:.2f}"
    return f"Measured is {ratios}; {part}: {_why(gap, stops)}{end}"


def _why(gap: Gap, stops: str) -> str:
    """Return the end of a sentence that explains the largest cause of the gap between measured and predicted."""
    if gap.largest == Cause.BANDWIDTH:
        took = f"a token of one request alone takes {gap.ratio_single or 0:.2f} × the predicted time"
        return f"{took}: memory is slower, or each step takes longer to launch"
    if gap.largest == Cause.COMPUTE:
        return f"a prompt takes {gap.ratio_prefill or 0:.2f} × the predicted time to compute"
    if gap.largest in (Cause.SEQUENCES, Cause.KV_MEMORY):
        return stops
    if gap.largest == Cause.CLIENT:
        return "the load generator or its quota, not the server, set what was measured"
    if gap.ratio > AGREES[1]:
        return "faster than the figures given allow: one is wrong (a sparse peak, prefix cache hits, the KV dtype)"
    if gap.ratio_single is None:
        return "without a valid level at C = 1 it cannot be told from bandwidth and compute"
    return "neither one request alone nor the batch limit explains it"


def above_peak(mbu: Achieved | Value | None, mfu: Achieved | Value | None) -> str:
    """Return a sentence on MBU or MFU above 1, which no hardware reaches, and the likely cause; "" for neither."""
    named = [("MBU", mbu, "bytes/s"), ("MFU", mfu, "FLOP/s")]
    above = [(f"{name} {share.value:.2f}", what) for name, share, what in named if share and (share.value or 0.0) > 1]
    if not above:
        return ""
    shares, figures = (" and ".join(words) for words in zip(*above, strict=True))
    return f"{shares}: no hardware reaches more than 1, so its {figures} are given too low, or it is another card"


# ---- the prediction as a curve -----------------------------------------------------------------------------------


def complete(prediction: Prediction) -> bool:
    """Return whether every figure of the prediction that is a divisor is above 0: a stored one may be damaged."""
    assumed = prediction.assumptions
    rooms = [assumed.kv_tokens or 0.0] if assumed.kv_tokens_by_memory is not None else []
    least = [prediction.output_tokens, prediction.single_stream_tokens_per_s.mid, assumed.dp, *rooms]
    return min(least) > 0 and (assumed.api_overhead_s or 0.0) >= 0


class PredictedCurve(msgspec.Struct, frozen=True):
    """Seconds a token of one request, by the prediction, over the number that run in all replicas."""

    running: tuple[float, ...]  # requests at which it is known, ascending
    seconds: tuple[float, ...]  # seconds of decoding at that batch
    cap: float
    prefill: float  # seconds of one prompt, whose step reads the weights anyway
    share: float  # prefills in a step per running request of a replica: 1/G
    replicas: float

    def decoding(self, B: float) -> float:
        """Return the seconds of a step without prefills at batch B, by straight lines through the known batches."""
        if len(self.running) == 1:
            return self.seconds[0]
        i = next((i for i, known in enumerate(self.running[1:-1]) if known >= B), len(self.running) - 2)
        (a, b), (y, z) = self.running[i : i + 2], self.seconds[i : i + 2]
        return y + (z - y) * (B - a) / (b - a)

    def prefilling(self, B: float) -> float:
        """Return a step's prefills."""
        return max(1.0, B / self.replicas) * self.share * self.prefill

    def throughput(self, B: float, decode: float = 1.0, prefill: float = 1.0) -> float:
        """Return output tokens/s of a batch B, where decoding takes `decode` times as long and prompts `prefill` times.

        nan where a step would take no time: a prediction that comes from outside need not make sense.
        """
        seconds = decode * self.decoding(B) + prefill * self.prefilling(B)
        return B / seconds if seconds > 0 else math.nan


def predicted_curve(prediction: Prediction) -> PredictedCurve:
    """Return a prediction as a curve of the seconds of a step without prefills over the requests that run.

    Its points are C = 1, the prediction's levels up to the batch cap, and the plateau at that cap.
    """
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
