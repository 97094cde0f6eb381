"""A level that lies far off the curve of all others, as by a slip in a table or a hiccup of the server.

One such level bends every family that is fitted with it, so it is named, and stays in the fit: whether it is wrong only
its measurer can tell. The first and the last level are never named. A single stream that is slow and a throughput that
falls at the end are what a server does.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from harness.analysis.hyperbolas import CAPPED, leaving_out_each
from harness.analysis.points import PooledLevels

_FEWEST = 7  # levels, so that six are left
_OFF = math.log(1.25)  # of the others' curve, at least
_TIMES = 8.0  # the others' scatter about their own curve, at least


class OddLevel(msgspec.Struct, frozen=True):
    """What was measured once, over what the others' curve has there, and the hinge without it (on the axis of N)."""

    concurrency: float
    ratio: float
    hinge: float


def find(levels: PooledLevels) -> OddLevel | None:
    """The level that is farthest off; None where none is so far off that the others do not explain it.

    Each level's others are fitted by a capped hyperbola, all with the same relative error.
    """
    N, n = levels.N, len(levels.N)
    if n < _FEWEST:
        return None
    y = N / levels.X
    others = leaving_out_each(N, y, y**-2.0, CAPPED)
    off = np.log(others.y(N) / y)  # [n fits, n levels]: throughput over the fit's
    own = np.abs(np.diagonal(off))
    scatter = np.sqrt((np.sum(off**2, axis=1) - own**2) / (n - 1 - 3))
    inner = (np.arange(n) > 0) & (np.arange(n) < n - 1) & (levels.times == 1)
    odd = inner & (own > _OFF) & (own > _TIMES * scatter)
    if not odd.any():
        return None
    k = int(np.argmax(np.where(odd, own / np.maximum(scatter, 1e-6), 0.0)))
    return OddLevel(float(levels.C[k]), math.exp(float(off[k, k])), float(others.hinge[k]))
