"""The measurement beside the prediction: one ratio a level, and at the plateau what the difference comes from. Pure.

A prediction is a curve X = B / y(B), with B = min(C, cap) requests running and y = decoding + prefilling seconds a
token. Three of its figures are measured by themselves: decoding by ITL and prefilling by TTFT, both at one request in
flight, and the cap by the hinge. Each is put in place of its prediction, and what the plateau changes by is its
factor; since the change depends on what was replaced before, it is the geometric mean over all orders (Shapley's
share). What then still lies between the curve and the measured plateau is the client's where the client was the limit
and it is a loss, else software's or the host's. So the factors multiply to measured over predicted, their logarithms
add up to its logarithm, and the one that moves it furthest its own way is named.

Left out: telling a slow memory from a slow launch, which one request in flight cannot; and anything of a workload
without output tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from harness.analysis.phases import Roof
from harness.analysis.verdicts import KV_FULL
from harness.predict.roofline import batch_cap
from harness.summary import Achieved, Curve, Gap, LevelSummary, Phases, PredictedLevel, Prediction, ServerView

AGREES = (0.75, 1.15)  # measured over predicted that still agrees

BANDWIDTH, COMPUTE, SEQUENCES, KV_MEMORY = "bandwidth", "compute (prefill)", "max_num_seqs", "KV memory"
CLIENT, SOFTWARE, NONE = "client", "software or host", "none"
CAUSES = (BANDWIDTH, COMPUTE, SEQUENCES, KV_MEMORY, CLIENT, SOFTWARE, NONE)

_QUEUED = 1.0  # requests that wait, from where the batch is full
_OURS = ("client_limited", "worker_paused", "in_flight_low")  # verdicts that void a level on our own account
_SLACK = 0.02  # of a hinge: a client that misses a step a request moves it by 1/G, and noise by as much


def beside(prediction: Prediction, levels: Sequence[LevelSummary]) -> Prediction:
    """The prediction with measured_over_predicted (its mid) filled in, by concurrency; repeats are averaged.

    The calibrated one is judged likewise, by its own. None where nothing was measured at that concurrency or every
    measurement of it is invalid.
    """
    measured: dict[int, list[float]] = {}
    for s in levels:
        x = s.output_tokens_per_s.mean
        if x is not None and not any(v.level == "invalid" for v in s.verdicts):
            measured.setdefault(s.concurrency or 0, []).append(x)

    def ratio(concurrency: int, predicted: float) -> float | None:
        rates = measured.get(concurrency)
        return sum(rates) / len(rates) / predicted if rates and predicted > 0 else None

    def judged(predicted: Sequence[PredictedLevel]) -> list[PredictedLevel]:
        return [
            msgspec.structs.replace(p, measured_over_predicted=ratio(p.concurrency, p.output_tokens_per_s.mid))
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
    """Where the measured throughput leaves the predicted one, at the plateau if it was reached, else at the top level.

    `levels` are those of the ramp, `curve` the fit to them; `roof` (the hardware at its data sheet's figures) gives MBU
    and MFU, `phases` a prefill that was probed. None where nothing can be compared.
    """
    if not _complete(prediction):
        return None
    pace, top = _pace(prediction), _top(levels, curve)
    if top is None or not pace.decoding(1) > 0:
        return None
    alone = _alone(levels)
    decode = alone.itl / pace.decoding(1) if alone.itl else None
    prefill = _prefill_ratio(pace, alone, decode, prediction, phases)
    cap = _Cap.of(top, prediction)
    measured = {BANDWIDTH: decode, COMPUTE: prefill, cap.cause: cap.running}
    C = top.concurrency
    if math.isinf(C) and math.isinf(cap.expected):  # a plateau where none was to come
        C = float(max(_asked(levels)))
    factors = _factors(pace, C, cap.expected, {cause: value for cause, value in measured.items() if value is not None})
    if factors is None:
        return None
    ratio = top.throughput / pace.throughput(min(C, cap.expected))
    unexplained = ratio / math.prod(factors.values())
    factors[CLIENT if top.client and unexplained < 1 else SOFTWARE] = unexplained  # a client makes nothing faster
    largest = _largest(factors, ratio)
    mbu, mfu = _achieved(prediction, pace, alone, roof, phases)
    context = prediction.input_tokens + prediction.output_tokens / 2
    why = {
        BANDWIDTH: _of_decoding(decode, mbu),
        COMPUTE: _of_prefill(prefill, mfu),
        SEQUENCES: cap.said(context),
        KV_MEMORY: cap.said(context),
        CLIENT: "the load generator or its quota, not the server, set what was measured",
        SOFTWARE: _unexplained(ratio, alone),
    }
    return Gap(
        at=None if math.isinf(top.concurrency) else top.concurrency,
        ratio=ratio,
        ratio_single=decode,
        ratio_prefill=prefill,
        hinge_over_cap=cap.running / cap.expected if cap.running is not None and cap.expected < math.inf else None,
        limits=cap.inside,
        mbu=mbu,
        mfu=mfu,
        factors=factors,
        largest=largest,
        sentence=_sentence(top, ratio, largest, factors, why),
    )


# ---- the predicted curve, with its figures replaced -------------------------------------------------------


def _complete(prediction: Prediction) -> bool:
    """Whether it holds what is divided by: one that was read from a folder need not."""
    assumed = prediction.assumptions
    rooms = [assumed.get("kv_tokens", 0.0)] if "kv_tokens_by_memory" in assumed else []
    least = [prediction.output_tokens, prediction.single_stream_tokens_per_s.mid, assumed.get("dp", 1.0), *rooms]
    return min(least) > 0 and assumed.get("api_overhead_s", 0.0) >= 0


class _Pace(msgspec.Struct, frozen=True):
    """Seconds a token of one request, by the prediction, over the number that run in all replicas."""

    running: tuple[float, ...]  # where it is known, ascending
    seconds: tuple[float, ...]  # of decoding, there
    cap: float
    prefill: float  # seconds of one prompt
    share: float  # prefills in a step per running request of a replica: 1/G
    replicas: float

    def decoding(self, B: float) -> float:
        """The step without its prefills: linear between what is known, and on as between the last two."""
        if len(self.running) == 1:
            return self.seconds[0]
        i = next((i for i, known in enumerate(self.running[1:-1]) if known >= B), len(self.running) - 2)
        (a, b), (y, z) = self.running[i : i + 2], self.seconds[i : i + 2]
        return y + (z - y) * (B - a) / (b - a)

    def prefilling(self, B: float) -> float:
        return max(1.0, B / self.replicas) * self.share * self.prefill

    def weights_wait(self, decode: float) -> float:
        """How many times as long a prompt takes where decoding takes `decode` times as long.

        Above 1 only for one so short that it waits for the weights instead of the arithmetic: no longer than a decode
        step. Each step reads them once, so that it is later by as much as a decode step is.
        """
        alone = self.decoding(1)
        if not 0 < self.prefill < alone:
            return 1.0
        return max(decode, 1 + (decode - 1) * alone / self.prefill)

    def throughput(self, B: float, decode: float = 1.0, prefill: float = 1.0) -> float:
        """Output tokens/s of B running, where decoding and computing prompts take so many times as long.

        nan where that would be no time at all: a prediction that comes from outside need not be one.
        """
        seconds = decode * self.decoding(B) + prefill * self.weights_wait(decode) * self.prefilling(B)
        return B / seconds if seconds > 0 else math.nan


def _pace(prediction: Prediction) -> _Pace:
    """From the prediction's own points: below the cap the levels', and its ends."""
    cap, assumed = batch_cap(prediction.caps), prediction.assumptions
    known = {1.0: prediction.single_stream_tokens_per_s.mid}
    for level in prediction.levels:
        known.setdefault(min(float(level.concurrency), cap), level.output_tokens_per_s.mid)
    if cap < math.inf:
        known[cap] = prediction.plateau_tokens_per_s.mid
    share, replicas = 1 / prediction.output_tokens, assumed.get("dp", 1.0)
    bare = _Pace((), (), cap, assumed.get("prefill_s", 0.0), share, replicas)
    points = sorted((B, B / X - bare.prefilling(B)) for B, X in known.items() if X > 0)
    return msgspec.structs.replace(bare, running=tuple(B for B, _ in points), seconds=tuple(y for _, y in points))


def _factors(pace: _Pace, C: float, cap: float, measured: Mapping[str, float]) -> dict[str, float] | None:
    """What each measured figure, put in place of the predicted, multiplies the throughput at C by.

    They are the ratios of decoding and prefill times, and the number running where the batch stops, in place of `cap`.
    None where the predicted curve does not reach so far.
    """

    def throughput(replaced: Iterable[str]) -> float:
        now = {cause: measured[cause] for cause in replaced}
        decode, prefill = now.pop(BANDWIDTH, 1.0), now.pop(COMPUTE, 1.0)
        return pace.throughput(min(C, *(now.values() or [cap])), decode, prefill)

    orders = list(itertools.permutations(measured))
    moved = dict.fromkeys(measured, 0.0)
    for order in orders:
        rates = [throughput(order[:i]) for i in range(len(order) + 1)]
        if not all(0 < rate < math.inf for rate in rates):
            return None
        for cause, before, after in zip(order, rates, rates[1:], strict=False):
            moved[cause] += math.log(after / before)
    return {cause: math.exp(by / len(orders)) for cause, by in moved.items()}


def _largest(factors: Mapping[str, float], ratio: float) -> str:
    """The cause that moves throughput furthest the way that it went; none where measured and predicted agree."""
    low, high = AGREES
    if low <= ratio <= high:
        return NONE
    return (min if ratio < 1 else max)(factors, key=lambda cause: factors[cause])


# ---- what was measured ------------------------------------------------------------------------------------


class _Top(msgspec.Struct, frozen=True):
    """Where throughput is compared: at the plateau (concurrency inf) or at the highest level."""

    concurrency: float
    throughput: float
    client: bool  # it was the limit there
    hinge: tuple[float, float, float] | None  # value and interval, where the batch is full
    queues: list[LevelSummary]  # levels at which requests wait for the batch


def _top(levels: Sequence[LevelSummary], curve: Curve | None) -> _Top | None:
    ramp = [s for s in levels if s.concurrency is not None and s.output_tokens_per_s.mean and not _void(s)]
    good = [s for s in ramp if not _by_client(s)]
    if curve and curve.plateau_reached and curve.plateau_tokens_per_s.value and curve.hinge_concurrency.value:
        hinge = curve.hinge_concurrency
        low, high = hinge.ci95 or (None, None)
        value = curve.hinge_concurrency.value
        ends = (value, low if low is not None else value, high if high is not None else math.inf)
        past = [s for s in good if (s.concurrency or 0) > value]
        return _Top(math.inf, curve.plateau_tokens_per_s.value, False, ends, past)
    if not ramp:
        return None
    # Levels that the client voided do not count, unless they end the curve: then the client is what ended it.
    C = max(s.concurrency or 0 for s in ramp)
    there = [s for s in good if s.concurrency == C] or [s for s in ramp if s.concurrency == C]
    queues = [s for s in there if s.server and (s.server.waiting or 0.0) >= _QUEUED]
    full = _mean(s.server.running for s in queues if s.server)
    hinge_ends = (full, full * (1 - _SLACK), full * (1 + _SLACK)) if full else None
    rate = _mean(s.output_tokens_per_s.mean for s in there)
    assert rate is not None
    return _Top(float(C), rate, there[0] not in good, hinge_ends, queues)


def _codes(s: LevelSummary) -> set[str]:
    return {v.code for v in s.verdicts if v.level == "invalid"}


def _void(s: LevelSummary) -> bool:
    """Whether a level is invalid for what the server or the measurement did: it says nothing here."""
    return not _codes(s) <= set(_OURS)


def _by_client(s: LevelSummary) -> bool:
    """Whether a level is what the load generator made it.

    Too few in flight without failures is our own delay too: a slot that has no request in flight waits to send one,
    for its processor or for the quota.
    """
    return not _codes(s).isdisjoint(_OURS)


class _Alone(msgspec.Struct, frozen=True):
    """One request in flight: seconds; None where that was not measured."""

    itl: float | None
    ttft: float | None


def _alone(levels: Sequence[LevelSummary]) -> _Alone:
    one = [s for s in levels if s.concurrency == 1 and _codes(s) <= {"in_flight_low"}]  # its times are the server's
    return _Alone(_mean(s.itl_s.mean for s in one), _mean(s.ttft_s.mean for s in one))


def _asked(levels: Sequence[LevelSummary]) -> list[int]:
    return [s.concurrency for s in levels if s.concurrency is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _prefill_ratio(
    pace: _Pace, alone: _Alone, decode: float | None, prediction: Prediction, phases: Phases | None
) -> float | None:
    """How many times as long a prompt takes to compute as was predicted; by the probe's slope where there is one.

    Else TTFT - ITL, the first token's step apart from its decoding, over what is expected of it with the measured ITL.
    """
    assumed = prediction.assumptions
    probed = phases.prefill.mfu if phases and phases.prefill else None
    if probed and probed.value and "mfu_prefill" in assumed:
        return assumed["mfu_prefill"] / probed.value
    expected = pace.prefill * pace.weights_wait(decode or 1.0) + assumed.get("api_overhead_s", 0.0)
    taken = _prefill_s(pace, alone)
    return taken / expected if taken is not None and taken > 0 and expected > 0 else None


def _prefill_s(pace: _Pace, alone: _Alone) -> float | None:
    return None if alone.ttft is None else alone.ttft - (alone.itl if alone.itl is not None else pace.decoding(1))


# ---- the cap ------------------------------------------------------------------------------------------------


class _Cap(msgspec.Struct, frozen=True):
    """Where the batch stops, and what stops it."""

    expected: float
    running: float | None  # None: it was not seen to stop
    cause: str
    certain: bool
    inside: list[str]  # predicted caps that the measured hinge may be

    @classmethod
    def of(cls, top: _Top, prediction: Prediction) -> _Cap:
        """A batch that outgrows the cap which was to bind shows that this one is another.

        One that stops before it is stopped by what the server's counters say where requests wait; without them, by the
        same cap, since that had to be mistaken least.
        """
        stops = _stops(prediction)
        expected = min(stops.values(), default=math.inf)
        binding = _cause(next((name for name, limit in stops.items() if limit == expected), "max_num_seqs"))
        if top.hinge is None:
            return cls(expected, None, binding, False, [])
        value, low, high = top.hinge
        slack = max(_SLACK, 1 / prediction.output_tokens)
        inside = [name for name, limit in stops.items() if low * (1 - slack) <= limit <= high * (1 + slack)]
        said = {cause for s in top.queues if s.server and (cause := _by_counters(s.server))}
        if value < expected and said:
            return cls(expected, value, KV_MEMORY if KV_MEMORY in said else SEQUENCES, True, inside)
        return cls(expected, value, binding, value >= expected or bool(inside), inside)

    def said(self, context: float) -> str:
        if self.running is None:
            return ""
        stops = f"the batch stops at {self.running:.3g} requests, not at {self.expected:.3g}"
        if self.cause == KV_MEMORY:
            amount = "fewer" if self.running < self.expected else "more"
            why = f"the server holds {amount} KV tokens, about {self.running * context:,.0f}"
        else:
            why = f"the server is configured for {self.running:.3g}"
        return f"{stops}: {why}{'' if self.certain else ' (it publishes nothing to tell KV memory from max_num_seqs)'}"


def _stops(prediction: Prediction) -> dict[str, float]:
    """The caps that stop the batch; that of the KV memory as the card has room, whatever the server says it holds."""
    caps, assumed = prediction.caps, prediction.assumptions
    stops = {name: limit for name, limit in caps.items() if limit and batch_cap({name: limit}) < math.inf}
    if "kv_memory" in stops and "kv_tokens_by_memory" in assumed:
        stops["kv_memory"] *= assumed["kv_tokens_by_memory"] / assumed["kv_tokens"]
    return stops


def _cause(cap: str) -> str:
    """The word for a cap; whatever else the scheduler is told to stop at counts as its batch limit."""
    return KV_MEMORY if cap == "kv_memory" else SEQUENCES


def _by_counters(server: ServerView) -> str | None:
    """What keeps a queue out of the batch: no KV for one more like those that run, or the batch limit."""
    if server.preemptions:
        return KV_MEMORY
    if server.kv_usage is None or (server.waiting or 0.0) < _QUEUED:
        return None
    running = server.running or 0.0
    return KV_MEMORY if server.kv_usage >= min(KV_FULL, running / (running + 1)) else SEQUENCES


# ---- in figures and in words ------------------------------------------------------------------------------


def _achieved(
    prediction: Prediction, pace: _Pace, alone: _Alone, roof: Roof | None, phases: Phases | None
) -> tuple[Achieved | None, Achieved | None]:
    """MBU = bytes of a step / (BW ITL) and MFU = FLOP of a prompt / (F (TTFT - ITL)) at one request in flight.

    Overheads count against both, measured and predicted alike: what is predicted lies below what is assumed.
    """
    mbu = mfu = None
    P, assumed = prediction.input_tokens, prediction.assumptions
    if roof is not None and alone.itl:
        context = P + prediction.output_tokens / 2
        least = roof.step(context)
        mbu = Achieved(least / alone.itl, least / pace.decoding(1))
    probed = phases.prefill.mfu if phases and phases.prefill else None
    taken = _prefill_s(pace, alone)
    if probed and probed.value and "mfu_prefill" in assumed:
        mfu = Achieved(probed.value, assumed["mfu_prefill"])
    elif roof is not None and taken is not None and taken > 0 and pace.prefill > 0:
        cached = P * assumed.get("prefix_hit", 0.0)
        least = roof.prompt * (P - cached) + roof.attend / 2 * (P * P - cached * cached)
        mfu = Achieved(least / taken, least / (pace.prefill + assumed.get("api_overhead_s", 0.0)))
    return mbu, mfu


def _unexplained(ratio: float, alone: _Alone) -> str:
    if ratio > AGREES[1]:
        return "faster than the figures given allow: one is wrong (a sparse peak, prefix cache hits, the KV dtype)"
    if alone.itl is None:
        return "no valid level at C = 1 tells it from bandwidth and compute"
    return "what one request alone and the batch limit leave unexplained"


def _of_decoding(ratio: float | None, mbu: Achieved | None) -> str:
    if ratio is None:
        return ""
    figures = f" (MBU {mbu.value:.2f}, {mbu.predicted:.2f} predicted)" if mbu else ""
    return (
        f"a token of one request alone takes {ratio:.2f} × the predicted time{figures}, by memory or by launching steps"
    )


def _of_prefill(ratio: float | None, mfu: Achieved | None) -> str:
    if ratio is None:
        return ""
    figures = f" (MFU {mfu.value:.2f}, {mfu.predicted:.2f} predicted)" if mfu else ""
    return f"a prompt takes {ratio:.2f} × the predicted time to compute{figures}"


def _sentence(top: _Top, ratio: float, largest: str, factors: Mapping[str, float], why: Mapping[str, str]) -> str:
    where = "at the plateau" if math.isinf(top.concurrency) else f"at C = {top.concurrency:.4g}"
    if largest != NONE:
        part = f"the largest part is {largest}, a factor {factors[largest]:.2f}: {why[largest]}"
        return f"Measured is {ratio:.2f} of predicted {where}; {part}."
    agrees = f"Measured agrees with predicted {where}: {ratio:.2f} of it"
    low, high = AGREES
    slow, fast = min(factors, key=lambda cause: factors[cause]), max(factors, key=lambda cause: factors[cause])
    if factors[slow] >= low or factors[fast] <= high:
        return f"{agrees}."
    parts = f"{slow} {factors[slow]:.2f} and {fast} {factors[fast]:.2f}"
    return f"{agrees}, by parts that cancel: {parts}; {why[slow]}."
