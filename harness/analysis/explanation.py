"""Where measured leaves predicted, in a sentence, from the figures of the gap alone.

Left out: the figures themselves (`gap`).
"""

from __future__ import annotations

from harness.analysis.cap import Cap
from harness.judgement import AGREES, Cause
from harness.summary import Achieved, Gap


def sentence(found: Gap, cap: Cap, context: float, *, single_stream: bool) -> str:
    """What the gap comes from; `context` is the mean one of a request, `single_stream` whether that was measured."""
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

    factors = found.factors
    if found.largest != Cause.NONE:
        part = f"the largest part is {found.largest}, a factor {factors[found.largest]:.2f}: {why(found.largest)}"
        return f"Measured is {found.ratio:.2f} of predicted {where}; {part}."
    agrees = f"Measured agrees with predicted {where}: {found.ratio:.2f} of it"
    low, high = AGREES
    slow, fast = min(factors, key=lambda cause: factors[cause]), max(factors, key=lambda cause: factors[cause])
    if factors[slow] >= low or factors[fast] <= high:
        return f"{agrees}."
    parts = f"{slow} {factors[slow]:.2f} and {fast} {factors[fast]:.2f}"
    return f"{agrees}, by parts that cancel: {parts}; {why(slow)}."


def _decoding(ratio: float | None, mbu: Achieved | None) -> str:
    if ratio is None:
        return ""
    figures = f" (MBU {mbu.value:.2f}, {mbu.predicted:.2f} predicted)" if mbu else ""
    took = f"a token of one request alone takes {ratio:.2f} × the predicted time{figures}"
    return f"{took}, by memory or by launching steps"


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
        return "no valid level at C = 1 tells it from bandwidth and compute"
    return "what one request alone and the batch limit leave unexplained"
