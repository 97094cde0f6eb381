"""The usual rules of thumb of decoding, as formulas: what figures that people quote are worked out by.

They leave out interference of prefill, overheads and memory. W are bytes of weights, ctx tokens of context, kv bytes of
KV cache a token, BW bytes/s, MBU the share of BW that is reached, and B requests in the batch.
"""

from __future__ import annotations

import math


def tpot0(B: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Return the time per output token at batch B, nothing but memory traffic; seconds. (W + B ctx kv) / (BW MBU).

    >>> round(tpot0(1, 70e9, 0, 0, 3.35e12) * 1e3, 2)  # every weight of 70B in fp8, read once on an H100, ms
    20.9
    """
    return (W + B * ctx * kv) / (BW * MBU)


def x0(B: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Return the decode throughput at batch B; tokens/s. B / TPOT0."""
    return B / tpot0(B, W, ctx, kv, BW, MBU)


def ceiling0(ctx: float, kv: float, BW: float, MBU: float = 1.0) -> float:
    """Return the decode throughput that no batch beats; tokens/s. (BW MBU) / (ctx kv).

    >>> round(ceiling0(2000, 131072, 3.35e12, 0.7))
    8945
    """
    return BW * MBU / (ctx * kv)


def b_star(W: float, ctx: float, kv: float) -> float:
    """Return the batch whose KV traffic equals the weight traffic, where X0 is half its ceiling. W / (ctx kv)."""
    return W / (ctx * kv)


def slo_batch(tpot: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> int:
    """Return the largest batch whose TPOT0 still meets the limit; 0 when not even one does."""
    return max(0, math.floor((tpot * BW * MBU - W) / (ctx * kv)))


def kv_batch(memory: float, utilization: float, weights: float, ctx: float, kv: float) -> int:
    """Return the requests whose KV cache fits next to the weights. floor((memory u - weights) / (ctx kv)).

    >>> kv_batch(80e9, 0.9, 16e9, 2000, 131072)
    213
    """
    return max(0, math.floor((memory * utilization - weights) / (ctx * kv)))
