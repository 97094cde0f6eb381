"""Where measured leaves predicted, in a sentence, from the figures of the gap alone.

Left out: the figures themselves (`gap`).
"""

from __future__ import annotations

import msgspec

from harness.analysis.cap import Cap
from harness.data.judgement import AGREES, Cause
from harness.data.summary import Achieved, Gap, Value


class Off(msgspec.Struct, frozen=True):
    """A part of the curve at which measured leaves predicted."""

    ratio: float  # measured over predicted
    where: str  # in words


def agree(ratio: float) -> bool:
    """Whether measured and predicted agree.

    >>> agree(0.8), agree(0.31)
    (True, False)
    """
    low, high = AGREES
    return low <= ratio <= high


def sentence(found: Gap, cap: Cap, context: float, off: Off | None, *, single_stream: bool) -> str:
    """What the gap comes from, and which figures of the hardware are wrong.

    `context` is the mean one of a request, `off` where the curve is furthest off, `single_stream` whether that was
    measured.
    """
    beyond = above_peak(found.mbu, found.mfu)
    return _gap(found, cap, context, off, single_stream=single_stream) + (f" {beyond}." if beyond else "")


def above_peak(mbu: Achieved | Value | None, mfu: Achieved | Value | None) -> str:
    """Which shares of the hardware's figures are above 1, and what that means; "" where none is."""
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
