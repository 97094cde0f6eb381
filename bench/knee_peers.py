"""Two rules by which a knee is found elsewhere, written out from what they do, to compare with the fit.

Both read levels of a sweep and nothing else, and both can only answer near a level that was measured. Facts from the
sources of the tools that have them (GuideLLM 0.8, AIPerf 0.13); neither gives an interval.

    python -m bench.knee_peers    the table of docs/peers.md: both rules and `knee fit` on the same levels
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_FEWEST = 5  # levels
_TAIL, _GAIN, _HEIGHT = 0.25, 0.5, 0.85
_EXCESS = 0.20


def two_lines(C: Sequence[float], X: Sequence[float]) -> float | None:
    """Return where a rising line and a flatter one meet; None where no pair of lines is admitted.

    Every level but the outermost is tried as the break, and belongs to both lines: so where the knee lies between
    two levels, one of the lines is bent by a level that is not its own. Both axes run from 0 to 1, linearly, and
    the lines are of least squares: the high levels have all the weight. A break counts if the second line is at
    most a quarter as steep, both leave at most half of one line's squared error, and its level has 85 % of the
    greatest throughput; of those the one with the least error. The answer is the crossing if that lies between
    the levels beside the break, else the break itself.

    >>> two_lines([1, 2, 4, 8, 16], [1, 2, 4, 4, 4])    # the knee is a level: right
    4.0
    """
    x, y = np.asarray(C, dtype=np.float64), np.asarray(X, dtype=np.float64)
    n = len(x)
    if n < _FEWEST or x[0] == x[-1] or y.min() == y.max():
        return None
    u, v = (x - x[0]) / (x[-1] - x[0]), (y - y.min()) / (y.max() - y.min())
    whole = _line(u, v)[2]
    if whole < 1e-12:
        return None
    best: tuple[float, float] | None = None
    for i in range(2, n - 1 if n == _FEWEST else n - 2):
        (rise, steep, left), (flat, slope, right) = _line(u[: i + 1], v[: i + 1]), _line(u[i:], v[i:])
        admitted = steep > 0 and slope <= _TAIL * steep and y[i] >= _HEIGHT * y.max()
        if not admitted or left + right > (1 - _GAIN) * whole:
            continue
        crossing = (flat - rise) / (steep - slope)
        at = crossing if u[i - 1] <= crossing <= u[i + 1] else u[i]
        if best is None or left + right < best[0]:
            best = left + right, float(x[0] + at * (x[-1] - x[0]))
    return None if best is None else round(best[1], 9)


def _line(u: Floats, v: Floats) -> tuple[float, float, float]:
    """Intercept, slope and squared error of the line of least squares."""
    du = u - u.mean()
    slope = float(du @ v / (du @ du))
    intercept = float(v.mean() - slope * u.mean())
    return intercept, slope, float(((v - intercept - slope * u) ** 2).sum())


def latency_threshold(C: Sequence[float], latency: Sequence[float], excess: float = _EXCESS) -> float | None:
    """Return the first level whose latency lies more than `excess` above the lowest level's; None where none does.

    It is a level, so as wrong as the grid is coarse; and where latency rises with every request in flight, which a
    server's step time does, it answers long before throughput is at its end.

    >>> latency_threshold([1, 32, 64], [1.0, 1.0, 1.33])
    64.0
    """
    limit = latency[0] * (1 + excess)
    return next((float(c) for c, seconds in zip(C[1:], latency[1:], strict=True) if seconds > limit), None)


_SEATS, _LEVELS = (12, 24, 48, 100), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def main() -> None:
    """Print what each rule and Knee's fit answer for servers of so many seats, from the same levels without noise."""
    import harness

    print("| seats | GuideLLM's two lines | AIPerf's latency | `knee fit` |\n|--:|--:|--:|--:|")
    for seats in _SEATS:
        X = [min(C, seats) / (0.01 + 0.00022 * min(C, seats)) for C in _LEVELS]
        lines, latency = (
            two_lines(_LEVELS, X),
            latency_threshold(_LEVELS, [C / x for C, x in zip(_LEVELS, X, strict=True)]),
        )
        knee = harness.fit(list(zip(_LEVELS, X, strict=True))).curve.hinge_concurrency
        low, high = (f"{end:.3g}" if end else "?" for end in knee.ci95 or (None, None))
        shown = ["none" if each is None else f"{each:.3g}" for each in (lines, latency)]
        print(f"| {seats} | {shown[0]} | {shown[1]} | {knee.value:.3g} ({low}–{high}) |")


if __name__ == "__main__":
    main()
