"""Which level gains the most information per second about the hinge, the plateau, or the slope past it.

Left out: which of these is wanted, and what else a level is measured for (`refinement`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis import curve
from harness.analysis.hyperbolas import excused
from harness.analysis.table import Floats
from harness.search.knee import FAR, PAST, settled
from harness.search.state import State

_AS_GOOD = 0.9  # of the best gain: among these the least measured is taken, as no curve is exact
_LEVER = 0.02  # Σ(ln N - mean)² too small to measure an elasticity by: two levels a fifth apart


def most(state: State, fit: curve.Fit, levels: Sequence[int], wide: Sequence[Floats]) -> int | None:
    """That of the affordable levels C whose measurement would narrow the wanted quantity most per second.

    The bootstrap curves disagree by var(ln X(C)) there and by var(ln Q) about the quantity Q; a level measured with
    the relative error s (`_adds`) takes cov²/(var + s²) off the latter (the linear update of a normal ensemble).
    That is divided by the seconds that the level would take. Q is the first of `wide`, or the hinge.
    """
    draws = fit.draws
    assert draws is not None
    candidates = [C for C in levels if state.affordable(C)]
    if not candidates:
        return None
    N = np.interp(candidates, list(state.times), state.N) * np.maximum(1.0, np.array(candidates) / max(state.times))
    L = np.log(draws.throughput(N))
    L = L - L.mean(0)
    s2 = _adds(state, fit, candidates, N)
    if not wide and not settled(fit):
        gain = _flatter(state, draws, N)
    else:
        q = np.log(wide[0] if wide else np.minimum(draws.hinge, FAR * state.N[-1]))  # the hinge comes first
        q = q - q.mean()
        gain = (L.T @ q / len(q)) ** 2 / (np.mean(L**2, axis=0) + s2)
    value = gain / [state.cost(C) for C in candidates]
    good = [C for C, v in zip(candidates, value, strict=True) if v >= _AS_GOOD * value.max()]
    return min(good, key=lambda C: (state.times.get(C, 0), -value[candidates.index(C)]))


def _adds(state: State, fit: curve.Fit, levels: Sequence[int], N: Floats) -> Floats:
    """Square of the relative error with which measuring each level once more counts, shape [levels].

    Its own error with the drift between repeats, and what the family lacks there, which is more at low N. A repeat
    narrows the former only: n of them have the variance v(n) = s²/n + τ², and the next one is worth
    1/v(n + 1) - 1/v(n).
    """
    of = fit.curve.parameters
    B = np.array(min(of["a"] / (1 / of["P"] - of["b"]), FAR * state.N[-1]) if "P" in of else FAR * state.N[-1])
    tau2 = of.get("lack_of_fit", 0.0) ** 2 + (of.get("lack_of_fit_low", 0.0) * excused(N, B)) ** 2
    n, own = np.array([state.times.get(C, 0) for C in levels]), state.typical_error**2 + of["drift"] ** 2
    again, now = own / (n + 1) + tau2, own / np.maximum(n, 1) + tau2
    return np.where(n > 0, again * now / np.where(n > 0, now - again, 1.0), again)


def _flatter(state: State, draws: curve.Draws, N: Floats) -> Floats:
    """Share that a level of N would take off the variance of the elasticity past the hinge: s²/Σ(ln N - mean)²."""
    edge = PAST * float(np.median(draws.hinge))
    past = [n for n, times in zip(state.N, state.times.values(), strict=True) for _ in range(times) if n >= edge]
    if not past:
        return np.zeros(len(N))
    x = np.log(past)
    had = float(np.sum((x - x.mean()) ** 2)) + _LEVER
    more = len(x) / (len(x) + 1) * (np.log(N) - x.mean()) ** 2
    return np.asarray(np.where(edge <= N, more / (had + more), 0.0))
