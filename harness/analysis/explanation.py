"""Where the batch stopped and what stops it, and where measured leaves predicted, in a sentence.

Left out: the figures of the gap (`gap`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.data.judgement import AGREES, Cause
from harness.data.levels import LevelSummary
from harness.data.prediction import Achieved, Gap, Prediction, stopping
from harness.data.views import ServerView, Value

KV_FULL = 0.95  # from here on the KV cache counts as full
SLACK = 0.02  # of a hinge: a client that misses a step a request moves it by 1/G, and noise by as much
QUEUED = 1.0  # requests that wait, from where the batch is full


class Cap(msgspec.Struct, frozen=True):
    """Where the batch stops, and what stops it."""

    expected: float
    running: float | None  # None: no stop was measured
    cause: Cause
    certain: bool
    inside: list[str]  # predicted caps that the measured hinge may be

    @classmethod
    def of(
        cls,
        hinge: tuple[float, float, float] | None,
        queues: Sequence[LevelSummary],
        prediction: Prediction,
    ) -> Cap:
        """Return where the batch stopped, and what stopped it.

        A batch that outgrows the cap which was to bind shows that another one does. One that stops before the expected
        cap is stopped by what the server's counters show while requests wait. Without counters the expected cap is
        named: that supposes the smallest error in the prediction.
        """
        stops = _stops(prediction)
        expected = min(stops.values(), default=math.inf)
        binding = _cause(next((name for name, limit in stops.items() if limit == expected), "max_num_seqs"))
        if hinge is None:
            return cls(expected, None, binding, False, [])
        value, low, high = hinge
        slack = max(SLACK, 1 / prediction.output_tokens)
        inside = [name for name, limit in stops.items() if low * (1 - slack) <= limit <= high * (1 + slack)]
        reported = {cause for s in queues if s.server and (cause := _by_counters(s.server))}
        if value < expected and reported:
            cause = Cause.KV_MEMORY if Cause.KV_MEMORY in reported else Cause.SEQUENCES
            return cls(expected, value, cause, True, inside)
        return cls(expected, value, binding, value >= expected or bool(inside), inside)


def _stops(prediction: Prediction) -> dict[str, float]:
    """Return the caps that stop the batch; that of KV memory by the card's memory, not by what the server reports."""
    stops = {name: limit for name, limit in stopping(prediction.caps).items() if 0 < limit < math.inf}
    assumed = prediction.assumptions
    if "kv_memory" in stops and assumed.kv_tokens_by_memory is not None and assumed.kv_tokens:
        stops["kv_memory"] *= assumed.kv_tokens_by_memory / assumed.kv_tokens
    return stops


def _cause(cap: str) -> Cause:
    """Return the cause that a cap stands for; every limit of the scheduler counts as its batch limit."""
    return Cause.KV_MEMORY if cap == "kv_memory" else Cause.SEQUENCES


def _by_counters(server: ServerView) -> Cause | None:
    """Return what keeps a queue out of the batch: no KV for one more like those that run, or the batch limit."""
    if server.preemptions:
        return Cause.KV_MEMORY
    if server.kv_usage is None or (server.waiting or 0.0) < QUEUED:
        return None
    running = server.running or 0.0
    return Cause.KV_MEMORY if server.kv_usage >= min(KV_FULL, running / (running + 1)) else Cause.SEQUENCES


class Off(msgspec.Struct, frozen=True):
    """A part of the curve at which measured leaves predicted."""

    ratio: float  # measured over predicted
    where: str  # in words


def agree(ratio: float) -> bool:
    """Return whether a measured figure over the predicted one lies within what counts as agreement (`AGREES`).

    >>> agree(0.8), agree(0.31)
    (True, False)
    """
    low, high = AGREES
    return low <= ratio <= high


def sentence(found: Gap, cap: Cap, context: float, off: Off | None, *, single_stream: bool) -> str:
    """Return what the gap comes from, and which figures of the hardware are wrong.

    `context` is the mean one of a request, `off` where the curve is furthest off, `single_stream` whether that was
    measured.
    """
    beyond = above_peak(found.mbu, found.mfu)
    return _gap(found, cap, context, off, single_stream=single_stream) + (f" {beyond}." if beyond else "")


def above_peak(mbu: Achieved | Value | None, mfu: Achieved | Value | None) -> str:
    """Return which shares of the hardware's figures are above 1, and what that means; "" where none is."""
    named = [("MBU", mbu, "bytes/s"), ("MFU", mfu, "FLOP/s")]
    above = [(f"{name} {share.value:.2f}", what) for name, share, what in named if share and (share.value or 0.0) > 1]
    if not above:
        return ""
    shares, figures = (" and ".join(words) for words in zip(*above, strict=True))
    return f"{shares}: no hardware reaches more than 1, so its {figures} are given too low, or it is another card"


def _gap(found: Gap, cap: Cap, context: float, off: Off | None, *, single_stream: bool) -> str:
    where = "at the plateau" if found.at is None else f"at C = {found.at:.4g}"

    def why(cause: str) -> str:
        match cause:
            case Cause.BANDWIDTH:
                return _decoding(found.ratio_single, found.mbu)
            case Cause.COMPUTE:
                return _prefill(found.ratio_prefill, found.mfu)
            case Cause.SEQUENCES | Cause.KV_MEMORY:
                return _batch(cap, context)
            case Cause.CLIENT:
                return "the load generator or its quota, not the server, set what was measured"
        return _unexplained(found.ratio, single_stream=single_stream)

    if found.largest == Cause.NONE:
        return f"Measured agrees with predicted: {found.ratio:.2f} of it {where}."
    part = f"the largest part is {found.largest}, a factor {found.factors[found.largest]:.2f}"
    if off is not None and agree(found.ratio):
        ratios = f"{off.ratio:.2f} of predicted {off.where}, though {found.ratio:.2f} {where}"
        return f"Measured is {ratios}; {part} {where}: {why(found.largest)}."
    return f"Measured is {found.ratio:.2f} of predicted {where}; {part}: {why(found.largest)}."


def _decoding(ratio: float | None, mbu: Achieved | None) -> str:
    if ratio is None:
        return ""
    figures = f" (MBU {mbu.value:.2f}, {mbu.predicted:.2f} predicted)" if mbu else ""
    took = f"a token of one request alone takes {ratio:.2f} × the predicted time{figures}"
    return f"{took}: memory is slower, or each step takes longer to launch"


def _prefill(ratio: float | None, mfu: Achieved | None) -> str:
    if ratio is None:
        return ""
    figures = f" (MFU {mfu.value:.2f}, {mfu.predicted:.2f} predicted)" if mfu else ""
    return f"a prompt takes {ratio:.2f} × the predicted time to compute{figures}"


def _batch(cap: Cap, context: float) -> str:
    if cap.running is None:
        return ""
    stops = f"the batch stops at {cap.running:.3g} requests, not at {cap.expected:.3g}"
    if cap.cause == Cause.KV_MEMORY:
        amount = "fewer" if cap.running < cap.expected else "more"
        why = f"the server holds {amount} KV tokens, about {cap.running * context:,.0f}"
    else:
        why = f"the server is configured for {cap.running:.3g}"
    return f"{stops}: {why}{'' if cap.certain else ' (it publishes nothing to tell KV memory from max_num_seqs)'}"


def _unexplained(ratio: float, *, single_stream: bool) -> str:
    if ratio > AGREES[1]:
        return "faster than the figures given allow: one is wrong (a sparse peak, prefix cache hits, the KV dtype)"
    if not single_stream:
        return "without a valid level at C = 1 it cannot be told from bandwidth and compute"
    return "neither one request alone nor the batch limit explains it"
