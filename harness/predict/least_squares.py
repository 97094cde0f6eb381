"""Least squares within ranges, for a handful of figures: Gauss-Newton, damped as by Levenberg and Marquardt.

numpy is imported where it is used: a prediction without a fit does without it. Why not by scipy stands in
docs/design.md, Budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Residuals = Callable[[Mapping[str, float]], list[float]]  # of the figures by name

_STEPS = 60
_FARTHEST = 1.0  # that a figure goes in one step
_DAMPING, _MOST_DAMPING = 1e-3, 1e9
_CLOSE = 1e-9  # relative gain of a step after which none is taken
_SINGULAR = 1e-12


class Span(NamedTuple):
    """Where a figure may lie, and what is a small step of it: its slope is taken over a share of the width."""

    low: float
    high: float
    width: float


def least_squares(
    f: Residuals, start: Mapping[str, float], spans: Mapping[str, Span]
) -> tuple[dict[str, float], float]:
    """Where Σ f² is least, within the spans, and how much it is there.

    A figure at that end of its span which it would leave stands still for the step.
    """
    import numpy as np

    names = list(start)
    low, high = np.array([spans[name][:2] for name in names]).reshape(-1, 2).T
    x = np.clip([start[name] for name in names], low, high)
    r = np.array(f(_named(names, x)))
    cost, damping = float(r @ r), _DAMPING
    for _ in range(_STEPS):
        J = _slopes(f, _named(names, x), spans, 1e-4)
        uphill = J @ r
        moving = ~((x <= low) & (uphill > 0) | (x >= high) & (uphill < 0))
        A = J[moving] @ J[moving].T
        A[np.diag_indices_from(A)] = np.diagonal(A) * (1 + damping) + _SINGULAR
        step = np.zeros(len(names))
        step[moving] = np.linalg.solve(A, -uphill[moving])
        there = np.clip(x + np.clip(step, -_FARTHEST, _FARTHEST), low, high)
        r_there = np.array(f(_named(names, there)))
        if (lower := float(r_there @ r_there)) < cost:
            gained, x, r, cost, damping = cost - lower, there, r_there, lower, damping / 5
            if gained <= _CLOSE * cost + _SINGULAR:
                break
        elif damping > _MOST_DAMPING:
            break
        else:
            damping *= 4
    return _named(names, x), cost


def standard_errors(f: Residuals, at: Mapping[str, float], spans: Mapping[str, Span]) -> dict[str, float]:
    """Of each figure, where f are residuals in units of their own errors: √diag (JᵀJ)⁻¹.

    The slopes are those over half of a width: a fit likes to end where one cause takes over from another, and right
    there neither seems to matter.
    """
    import numpy as np

    J = _slopes(f, at, spans, 0.5)
    return _named(list(at), np.sqrt(np.diagonal(np.linalg.inv(J @ J.T))))


def _slopes(f: Residuals, at: Mapping[str, float], spans: Mapping[str, Span], share: float) -> npt.NDArray[np.float64]:
    """df/dx by central differences over that share of each figure's width, shape [figures, residuals]."""
    import numpy as np

    steps = {name: share * spans[name].width for name in at}
    ends = [(f({**at, name: at[name] + d}), f({**at, name: at[name] - d})) for name, d in steps.items()]
    return np.array([(np.array(up) - down) / (2 * d) for (up, down), d in zip(ends, steps.values(), strict=True)])


def _named(names: list[str], x: npt.NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(names, x.tolist(), strict=True))
