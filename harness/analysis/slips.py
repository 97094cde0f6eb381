"""The posterior of levels of which one may be off by itself, by luck or by a moment in which the machine was busy.

Of the levels that were measured once, one of a hundred is taken to be off, with 8 times the error of the others. The
posterior is the mean of that without such a level and of those with each one, weighted by how likely they are. So one
level moves the knee only as far as the others allow. Where several are off it is noise, or the curve's own shape
(`posterior`).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from harness.analysis import posterior
from harness.analysis.posterior import Curves, Data, Posterior
from harness.analysis.table import Bools, Floats

_SUSPECT, _SURE = 0.02, 0.9  # odds of a slip from which on it counts, and chance from which on it is said
_MOST_LEVELS = 24  # number of levels up to which one alone may move the knee


class Mixture(msgspec.Struct, frozen=True, eq=False):
    """Posteriors that exclude each other, the likeliest first."""

    parts: list[Posterior]
    chances: Floats  # [part]; their sum is 1
    slips: list[int | None]  # [part]: the level that is off by itself; None: no level is

    @property
    def slip(self) -> int | None:
        """Return the level that is off by itself with a chance of 90 %; None if no single one is."""
        return self.slips[0] if self.chances[0] >= _SURE else None

    def quantiles(self, *shares: float) -> list[float]:
        """Return the loads below which the knee lies with these chances, in requests in flight."""
        knees = [part.knees() for part in self.parts]
        edges = np.unique(np.concatenate([each for _, each in knees]))
        mass = self.chances @ [np.interp(edges, own, below) for below, own in knees]
        return np.exp(np.interp(shares, mass, edges)).tolist()  # type: ignore[no-any-return]

    def chance_below(self, N: float) -> float:
        """Return the chance that the knee lies below N in flight."""
        return float(self.chances @ [part.chance_below(N) for part in self.parts])

    @property
    def noise(self) -> float:
        """Return the relative error of a level of usual length, by the mean of the posterior."""
        return float(self.chances @ [part.noise for part in self.parts])

    def mean_form(self) -> tuple[float, float]:
        """Return (tau, w), by the mean of the posterior."""
        tau, w = self.chances @ [part.mean_form() for part in self.parts]
        return float(tau), float(w)

    def draw(self, N: Floats, count: int, rng: np.random.Generator) -> Curves:
        """Return `count` random throughput curves, evaluated at the loads N [q], from each part by its chance."""
        counts = np.diff(np.round(count * np.append(0.0, np.cumsum(self.chances)))).astype(int)
        drawn = [posterior.draw(part, N, int(n), rng) for part, n in zip(self.parts, counts, strict=True) if n]
        names = ("log_X", "hinge", "plateau", "blur")
        return Curves(N, *(np.concatenate([getattr(each, name) for each in drawn]) for name in names))


def of(data: Data, once: Bools, most: float = math.inf) -> Mixture:
    """Return the posterior of levels of which one may be off by itself; the knee is at most `most` in flight.

    Only levels that were measured `once` [n] may be: repeats that agree are no luck, and others show the noise.
    """
    usual = posterior.of(data, most)
    parts, slips, odds = [usual], list[int | None]([None]), [1.0]
    if once.any() and len(once) <= _MOST_LEVELS:
        for level in np.flatnonzero(once & (posterior.odds_of_slips(data, most) > _SUSPECT)).tolist():
            parts.append(posterior.of(posterior.slipped(data, level), most))
            slips.append(level)
            odds.append(posterior.odds_of_slip(usual, parts[-1]))
    order = np.argsort(np.negative(odds), kind="stable")
    return Mixture([parts[i] for i in order], np.array(odds)[order] / sum(odds), [slips[i] for i in order])
