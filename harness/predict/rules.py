"""The rules of thumb, one function each, as they are usually quoted: bytes over bandwidth, FLOP over peak, money.

They leave out prefill interference, overheads and memory, which predict.roofline puts in; they are kept because
people check a measurement against them, and to show where they part from the whole model.

Letters: B requests running at once, C in flight, P prompt and G output tokens, W weight bytes read per step, kv KV
bytes per token, ctx context tokens per request, BW bytes/s, F FLOP/s, MBU and MFU the shares of them that are
reached, N parameters, X output tokens/s. The other rules of money and of fleets are in decide.plan.
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


def prefill0(peak: float, MFU: float, N: float) -> float:
    """Return the prompt tokens/s of the compute roof; quoted next to decode, never summed with it. peak MFU / (2 N)."""
    return peak * MFU / (2 * N)


def ridge(F: float, BW: float) -> float:
    """Return the arithmetic intensity above which compute limits; FLOP/byte. F / BW."""
    return F / BW


def slo_batch(tpot: float, W: float, ctx: float, kv: float, BW: float, MBU: float = 1.0) -> int:
    """Return the largest batch whose TPOT0 still meets the limit; 0 when not even one does."""
    return max(0, math.floor((tpot * BW * MBU - W) / (ctx * kv)))


def kv_batch(memory: float, utilization: float, weights: float, ctx: float, kv: float) -> int:
    """Return the requests whose KV cache fits next to the weights. floor((memory u - weights) / (ctx kv)).

    >>> kv_batch(80e9, 0.9, 16e9, 2000, 131072)
    213
    """
    return max(0, math.floor((memory * utilization - weights) / (ctx * kv)))


def closed_loop_throughput(C: float, ttft: float, G: float, tpot: float) -> float:
    """Return the output tokens/s of C users without think time, by Little's law. C G / (TTFT + (G - 1) TPOT).

    >>> round(closed_loop_throughput(100, 0.2, 200, 0.025), 1)
    3864.7
    """
    return C * G / (ttft + (G - 1) * tpot)


def mixed_step(B: float, G: float, t_dec: float, t_pre: float) -> float:
    """Return the mean step in steady state: a step ends B/G requests, so it prefills B/G new ones; seconds."""
    return t_dec + B / G * t_pre


def requests_per_s(output_tokens_per_s: float, output_tokens: float) -> float:
    """Return the requests/s that a token rate completes. X / G.

    >>> requests_per_s(6000, 200)
    30.0
    """
    return output_tokens_per_s / output_tokens
