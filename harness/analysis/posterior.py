"""The posterior of the throughput curve: what levels say of the knee, summed over every curve that agrees with them.

In u = ln N and ln X, with N requests in flight and the throughput X:

    ln X = level + ln(e^a / (h + e^a)) + g(a) - loss·(v - late)₊ + noise
    v = w·E[(Z + (u - s)/w)₊], Z normal;  a = u - v          a rises with u up to the knee s = ln S, and v past it

The rising branch is a hyperbola with half-point h as far as the levels agree. g is an integrated random walk, which
lets the elasticity wander by `tau` an e-fold of load: hardly for a dense model on one GPU, more for mixtures of
experts, padded batches and contention. The width w makes the corner soft, as that of a closed network of queues; with
w = 0 it is sharp. Past the knee throughput is flat, or lost at a rate that wanders too, from the knee on or from a load
that is `late` e-folds further on. A curve that hardly rises below its knee is on its plateau already, so the elasticity
there is at least LEAST_RISE.

Given (S, h, tau, w, loss, late, noise) the rest is Gaussian. The sum over a grid of these is the posterior, without
starting values and without resampling. One eigendecomposition for each (S, tau, w, loss, late) serves all h and all
noises. The grid of S is refined where the mass lies.

The noise is one unknown for all levels. The errors that levels measured of themselves say what it is about, and how
levels compare, within a factor of 3: a short window hardly knows its own error. Repeats of a level count by their
scatter.

Left out: what the curve means (`conclusion`), and which levels take part (`points`).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from harness.analysis.table import Floats, Ints

BEYOND = 4.0  # times the highest load, up to where a knee is looked for
LEAST_RISE = 0.06  # dlnX/dlnN right below a knee, at least

_COARSE = 3  # knees an octave, before the grid is refined
_FINE, _PARTS, _REFINED = 30, 6, 2  # knees of a refined part, about; of each cell, at most; how often it is refined
_SMOOTH = ((0.0, 0.65), (0.1, 0.12), (0.2, 0.12), (0.35, 0.11))  # w of a corner, and its prior weight
# tau (of the elasticity, an e-fold), its prior weight, and the corners that it is combined with.
_ROUGH = (
    (0.01, 0.45, _SMOOTH),
    (0.06, 0.25, _SMOOTH),
    (0.20, 0.17, ((0.0, 0.75), (0.2, 0.25))),
    (0.50, 0.08, ((0.0, 1.0),)),
    (1.20, 0.05, ((0.0, 1.0),)),
)
_FLAT = 0.0, 0.01  # mean and standard deviation of what an e-fold of load past the knee loses
# The same of a server that preempts, and of one that thrashes; their rate of loss wanders by as much, an e-fold.
_FALLING = (0.20, 0.15), (1.0, 0.8)
_LATE = 0.4, 0.8, 1.2, 1.8  # e-folds past the knee, from where on throughput may fall that was flat before
_FALLS, _FALLS_LATE = 0.08, 0.01  # prior weight of a fall from the knee on, and of a later one
_SUSPECTED = 0.02  # ln of the highest throughput over that of the last level, from which on falls are tried
_HALF_POINTS = 12
_NOISES = np.geomspace(0.003, 0.15, 9)  # noise to try if no level has measured its own error
_TYPICAL = 0.05  # typical size of such a noise: larger ones are ever less likely
_TIMES = np.array([0.7, 0.85, 1.0, 1.25, 1.6, 2.2, 3.2, 5.0])  # the levels' own error that the noise may be
_TIMES_PRIOR = np.array([0.08, 0.17, 0.25, 0.20, 0.12, 0.09, 0.06, 0.03])
_SOFT_EDGE = 0.03  # width of the edge at LEAST_RISE, in elasticity
_NEGLIGIBLE = 2e-3  # share of the posterior in a cell of S, below which it is not refined
_UNLIKELY = 1e-3  # the same of a form
# ln of the knee less s for each w: a soft corner bends before it. Its standard deviation for each w, and a sharp one's.
_BEFORE, _CORNER = 0.35, (0.25, 0.005)
_SLIP, _SLIPPED = 0.01, 8.0  # chance that a level is off by itself, and times its error if it is
# The grid for these odds has no form with less prior weight than the first, and one half-point in so many.
_RARE, _SPARSE = 0.004, 3
_MOST_LEVELS = 64  # the most levels that a posterior is made of
_STEPS = 96  # steps of the random walk that draws a curve


class Data(msgspec.Struct, frozen=True, eq=False):
    """Distinct levels in order of load; arrays of shape [n]."""

    u: Floats  # ln N
    y: Floats  # ln X, the mean of the level's repeats
    g: Floats  # the level's error over the noise
    scatter: float  # Σ of squares of repeats about their level, over their weights
    freedom: int  # repeats less levels
    error: float | None  # relative error that the levels measured of themselves; None: none did


class Curves(msgspec.Struct, frozen=True, eq=False):
    """D curves drawn from the posterior, on a common grid of N."""

    N: Floats  # [q]
    log_X: Floats  # [D, q]
    hinge: Floats  # [D]: S, up to BEYOND times the highest load
    plateau: Floats  # [D]: throughput at S
    blur: Floats  # [D]: factor on a load near S, for what the cells of the grid and the shape of the corner leave open

    def throughput(self, N: Floats) -> Floats:
        """Return throughput at N in flight, in work per second, shape [D, len(N)].

        Below the grid it is in proportion to N, above it that of the grid's end.
        """
        x, at = np.log(self.N), np.log(np.clip(N, self.N[0], self.N[-1]))
        k = np.maximum(np.searchsorted(x, at) - 1, 0)
        after = np.minimum(k + 1, len(x) - 1)  # the grid may be a single load
        gap = x[after] - x[k]
        share = np.divide(at - x[k], gap, out=np.zeros_like(gap), where=gap > 0)
        below = np.minimum(np.log(N / self.N[0]), 0.0)
        return np.asarray(np.exp(self.log_X[:, k] * (1 - share) + self.log_X[:, after] * share + below))

    def reaching(self, share: float, top: Floats) -> Floats:
        """Return the least load N at which each curve reaches `share` · `top`, shape [D]; the grid's end if never."""
        wanted = np.log(share * top)[:, None]
        k = np.argmax(np.append(self.log_X[:, :-1] >= wanted, np.ones((len(top), 1), bool), axis=1), axis=1)
        rows, x = np.arange(len(top)), np.log(self.N)
        after, before = self.log_X[rows, k], self.log_X[rows, np.maximum(k - 1, 0)]
        part = np.clip((wanted[:, 0] - before) / np.where(after > before, after - before, 1.0), 0.0, 1.0)
        part = np.where(after < wanted[:, 0], 1.0, part)
        inside = np.exp(x[np.maximum(k - 1, 0)] + part * (x[k] - x[np.maximum(k - 1, 0)]))
        return np.asarray(
            np.where(k == 0, self.N[0] * np.exp(np.minimum(wanted[:, 0] - self.log_X[:, 0], 0.0)), inside)
        )


class Posterior(msgspec.Struct, frozen=True, eq=False):
    """Weights over the grid, and its axes."""

    data: Data
    log_S: Floats  # [s], the middles of the cells of ln S
    width: Floats  # [s], of the cells
    forms: Floats  # [c, 6]: tau, w, mean and standard deviation of the loss, where it begins, prior weight
    noises: Floats  # [k]
    half_points: Floats  # [h]
    weights: Floats  # [s, c, k, h]; their sum is 1
    evidence: float  # ln of the likelihood, averaged over the grid

    def knees(self) -> tuple[Floats, Floats]:
        """Return the cumulative distribution of ln knee: its values, and the ln loads where it has them, [s + 1] each.

        A knee is spread over the width of its grid cell, and more the softer its corner is: no shape is exact.
        """
        edges = np.append(self.log_S - self.width / 2, self.log_S[-1] + self.width[-1] / 2)
        by_corner = self.weights.sum((2, 3))
        mass = np.zeros(len(edges))
        for w in np.unique(self.forms[:, 1]):
            sd = np.sqrt((_CORNER[0] * w) ** 2 + _CORNER[1] ** 2 + self.width**2 / 12)
            mass += _normal((edges[:, None] - self.log_S + _BEFORE * w) / sd) @ by_corner[:, self.forms[:, 1] == w].sum(
                1
            )
        return np.maximum.accumulate(mass), edges

    def quantiles(self, *shares: float) -> list[float]:
        """Return the loads below which the knee lies with these chances, in requests in flight."""
        mass, edges = self.knees()
        return np.exp(np.interp(shares, mass, edges)).tolist()  # type: ignore[no-any-return]

    def chance_below(self, N: float) -> float:
        """Return the chance that the knee lies below N in flight."""
        mass, edges = self.knees()
        return float(np.interp(math.log(N), edges, mass))

    @property
    def noise(self) -> float:
        """Return the relative error of a level of usual length, by the mean of the posterior."""
        return float(self.weights.sum((0, 1, 3)) @ self.noises)

    def mean_form(self) -> tuple[float, float]:
        """Return (tau, w), by the mean of the posterior."""
        tau, w = self.weights.sum((0, 2, 3)) @ self.forms[:, :2]
        return float(tau), float(w)


def of(data: Data, most: float = math.inf) -> Posterior:
    """Return the posterior of knee, shape, noise and half point on a grid, refined where likely; knee ≤ `most`."""
    data = _thinned(data)
    forms, noises, half_points = _forms(data), *_grids(data)
    log_S = _coarse(data, most)
    width = np.full(len(log_S), math.log(2) / _COARSE)
    found = _log_posterior(data, log_S, forms, noises, half_points)
    for _ in range(_REFINED):
        mass = np.exp(found - found.max()).sum((1, 2, 3)) * width
        near = np.convolve(mass > _NEGLIGIBLE * mass.sum(), np.ones(3), "same")[: len(mass)] > 0
        if near.sum() > _FINE / 2:
            break
        parts = int(np.clip(_FINE // near.sum(), 2, _PARTS))
        offsets = (np.arange(parts) + 0.5) / parts - 0.5
        fine = (log_S[near][:, None] + width[near][:, None] * offsets).ravel()
        both = np.append(fine, log_S[~near])
        order = np.argsort(both)
        of_forms = np.exp(found - found.max()).sum((0, 2, 3))
        likely = of_forms > _UNLIKELY * of_forms.sum()
        refined = np.full((len(fine), *found.shape[1:]), -np.inf)
        refined[:, likely] = _log_posterior(data, fine, forms[likely], noises, half_points)
        found = np.concatenate([refined, found[~near]])[order]
        log_S, width = both[order], np.append(np.repeat(width[near] / parts, parts), width[~near])[order]
    most_likely = found.max()
    weights = np.exp(found - most_likely) * width[:, None, None, None]
    total = float(weights.sum())
    evidence = float(most_likely) + math.log(total / width.sum())
    return Posterior(data, log_S, width, forms, noises, half_points, weights / total, evidence)


def _coarse(data: Data, most: float) -> Floats:
    """Return the ln knees of the grid before it is refined: from the lowest level to BEYOND times the highest."""
    top = max(min(math.log(BEYOND) + data.u[-1], math.log(most)), data.u[0])
    return np.arange(data.u[0], top + 1e-9, math.log(2) / _COARSE)


def _thinned(data: Data) -> Data:
    """Return the levels; if there are more than _MOST_LEVELS, neighbours in load are merged by weighted means."""
    if len(data.u) <= _MOST_LEVELS:
        return data
    part = np.minimum((data.u - data.u[0]) / (data.u[-1] - data.u[0]) * _MOST_LEVELS, _MOST_LEVELS - 1).astype(np.int64)
    _, at = np.unique(part, return_inverse=True)
    precision = np.bincount(at, data.g**-2.0)
    u, y = (np.bincount(at, data.g**-2.0 * each) / precision for each in (data.u, data.y))
    return msgspec.structs.replace(data, u=u, y=y, g=precision**-0.5)


def _forms(data: Data) -> Floats:
    """Return the curve shapes to try, each a row of parameters and prior; falling ones if the last level is low."""
    falls = float(data.y.max() - data.y[-1]) > _SUSPECTED
    rest = 1 - (_FALLS + _FALLS_LATE) * falls
    flat = [(tau, w, *_FLAT, 0.0, p * q * rest) for tau, p, corners in _ROUGH for w, q in corners]
    slow, fast = _FALLING
    falling = [(tau, w, *slow, 0.0, _FALLS / 6) for tau, w in ((0.01, 0.0), (0.06, 0.0), (0.2, 0.0), (0.06, 0.2))]
    falling += [(tau, 0.0, *fast, 0.0, _FALLS / 6) for tau in (0.01, 0.06)]
    cases = [(tau, 0.0, *loss, late) for tau in (0.01, 0.06) for loss in _FALLING for late in _LATE]
    falling += [(*case, _FALLS_LATE / len(cases)) for case in cases]
    return np.array(flat + (falling if falls else []))


def _grids(data: Data) -> tuple[Floats, Floats]:
    """Return the noises, shape [k], and the half-points, shape [h]."""
    noises = _NOISES if data.error is None else data.error * _TIMES
    return noises, np.geomspace(0.5, max(64.0, 8 * math.exp(data.u[-1])), _HALF_POINTS)


def _noise_prior(data: Data, noises: Floats) -> Floats:
    """Return ln of the prior of each noise, times the likelihood of repeats and of rises steeper than load; shape [k].

    No server gives more than in proportion to load, so such a rise between two levels is noise.
    """
    prior = -noises / _TYPICAL if data.error is None else np.log(_TIMES_PRIOR)
    steeper = np.diff(data.y) - np.diff(data.u)
    z = steeper / (noises[:, None] * np.hypot(data.g[1:], data.g[:-1]))
    chance = np.log(2 * np.maximum(_normal(-z), 1e-300))
    of_rises = np.where(steeper > 0, chance, 0.0).sum(1)
    return np.asarray(prior + of_rises - data.freedom * np.log(noises) - data.scatter / (2 * noises**2))


def slipped(data: Data, level: int) -> Data:
    """Return the levels, of which one is taken to be off by itself: its error is _SLIPPED times as large."""
    g = data.g.copy()
    g[level] *= _SLIPPED
    return msgspec.structs.replace(data, g=g)


def odds_of_slip(usual: Posterior, one_slipped: Posterior) -> float:
    """Return the odds that this level is off by itself, against that none is."""
    gained = one_slipped.evidence - usual.evidence - math.log(_SLIPPED)  # data leave their own errors out
    return _SLIP * math.exp(min(gained, 700.0))


def odds_of_slips(data: Data, most: float) -> Floats:
    """Return rough odds that each level is off by itself, against that none is; shape [n].

    How likely a level is follows from where all others put it (Rasmussen and Williams 2006, 5.4.2), so no level needs
    a posterior of its own. The grid is not refined, and its rarest forms are left out.
    """
    log_S, forms, (noises, half_points) = _coarse(data, most), _forms(data), _grids(data)
    log_S = log_S[: 2 + int(np.searchsorted(log_S, data.u[-1]))]
    forms, half_points = forms[forms[:, 5] > _RARE], half_points[::_SPARSE]
    white = _whitened(data, log_S, forms, noises, half_points)
    weights = _weighed(white, data, log_S, forms, noises, half_points)
    weights = np.exp(weights - weights.max())
    one, back = white.one[:, :, None], np.swapaxes(white.Q, -1, -2)[:, :, None]  # [s, c, 1, n], [s, c, 1, n, n]
    by_one = one * white.total  # [s, c, k, n]
    ones = (one * by_one).sum(-1)[..., None]  # [s, c, k, 1]
    level = white.rest @ np.swapaxes(by_one, -1, -2) / np.swapaxes(ones, -1, -2)  # [s, c, h, k]
    apart = white.rest[:, :, None] - np.swapaxes(level, -1, -2)[..., None] * one[:, :, :, None]  # [s, c, k, h, n]
    pull = (white.total[:, :, :, None] * apart) @ back
    known = white.total @ back[:, :, 0] ** 2 - (by_one[:, :, :, None] @ back)[:, :, :, 0] ** 2 / ones  # [s, c, k, n]
    more = (
        known * (_SLIPPED**2 - 1) * noises[:, None] ** 2
    )  # what a slip adds to the variance around the others' figure
    gained = (pull**2 * (more / (1 + more) / known)[:, :, :, None] - np.log1p(more)[:, :, :, None]) / 2
    before = _noise_prior(data, noises)
    of_rises = np.stack([_noise_prior(slipped(data, i), noises) - before for i in range(len(data.u))], axis=-1)
    likelier = np.exp(np.minimum(gained + of_rises[:, None], 700.0))  # [s, c, k, h, n]
    return np.asarray(_SLIP * np.tensordot(weights, likelier, 4) / weights.sum())


class _Whitened(msgspec.Struct, frozen=True, eq=False):
    """Levels less the curves of a grid, turned by Q so that their errors are independent."""

    Q: Floats  # [s, c, n, n]
    total: Floats  # [s, c, k, n], 1 / variance
    rest: Floats  # [s, c, h, n], levels less the curve
    one: Floats  # [s, c, n], a throughput that is 1 everywhere
    rise: Floats  # [s, c, n], covariance of the levels with the elasticity at the knee


def _whitened(data: Data, log_S: Floats, forms: Floats, noises: Floats, half_points: Floats) -> _Whitened:
    """Return the levels less each curve of the grid, turned so that their errors are independent."""
    tau, w, loss, spread, late, _ = forms.T[:, None, :, None]  # each [1, c, 1]
    s = log_S[:, None, None]
    a, v = coordinates(data.u, s, w, late)
    a, v = np.broadcast_arrays(a, v, a + tau)[:2]  # [s, c, n]
    g, start = data.g, data.u[0]
    covariance = (tau**2)[..., None] * walk(a - start, a - start) + (spread**2)[..., None] * _loss(v, v)
    values, Q = np.linalg.eigh(covariance / (g[:, None] * g))
    total = 1 / (np.maximum(values, 0.0)[:, :, None] + noises[:, None] ** 2)  # [s, c, k, n]
    rest = ((data.y + loss * v)[:, :, None] - hyperbola(a[:, :, None], half_points[:, None])) / g @ Q  # [s, c, h, n]
    one = (1 / g) @ Q  # [s, c, n]
    rise = (tau * np.maximum(a - start, 0.0)) ** 2 / 2 / g
    return _Whitened(Q, total, rest, one, (rise[:, :, None] @ Q)[:, :, 0])


def _log_posterior(data: Data, log_S: Floats, forms: Floats, noises: Floats, half_points: Floats) -> Floats:
    """Return ln of the likelihood times the prior, the level integrated out; shape [s, c, k, h]."""
    return _weighed(_whitened(data, log_S, forms, noises, half_points), data, log_S, forms, noises, half_points)


def _weighed(white: _Whitened, data: Data, log_S: Floats, forms: Floats, noises: Floats, half_points: Floats) -> Floats:
    """Return the same as `_log_posterior`, from the whitened levels of that grid."""
    total, rest, one, rise = white.total, white.rest, white.one, white.rise
    tau, prior = forms.T[[0, 5], None, :, None]  # each [1, c, 1]
    s, start = log_S[:, None, None], data.u[0]

    def over(x: Floats, y: Floats) -> Floats:
        return np.swapaxes((x * y) @ np.swapaxes(total, -1, -2), -1, -2)  # [s, c, k, ...]

    ones = over(one[:, :, None], one[:, :, None])
    level = over(rest, one[:, :, None]) / ones
    by_rise = over(rise[:, :, None], one[:, :, None])
    square = over(rest, rest) - level**2 * ones
    elasticity = over(rest, rise[:, :, None]) - level * by_rise
    elasticity += half_points / (half_points + np.exp(s)[..., None])
    known = over(rise[:, :, None], rise[:, :, None]) - by_rise**2 / ones
    unsure = (tau**2 * np.maximum(s - start, 0.0))[..., None] - known
    rising = (elasticity - LEAST_RISE) / np.sqrt(np.maximum(unsure, 0.0) + _SOFT_EDGE**2)
    found = (np.log(total).sum(-1)[..., None] - square - np.log(ones)) / 2 - np.logaddexp(0, -1.702 * rising)
    return np.asarray(found + np.log(prior)[..., None] + _noise_prior(data, noises)[:, None])


def coordinates(u: Floats, s: Floats, w: Floats, late: Floats | float = 0.0) -> tuple[Floats, Floats]:
    """Return (a, v) of loads u = ln N: how far along the rising branch, at most the knee s, and how far past s + late.

    >>> coordinates(np.array([1.0, 3.0]), np.array(2.0), np.array(0.0))
    (array([1., 2.]), array([0., 1.]))
    """
    soft = np.maximum(w, 1e-9)
    z = np.clip((u - s) / soft, -40.0, 40.0)
    v = np.where(w > 0, soft * (z * _normal(z) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)), np.maximum(u - s, 0.0))
    v = np.where((w > 0) & (z >= 40.0), u - s, v)
    return u - v, np.maximum(v - late, 0.0)


def walk(x: Floats, y: Floats) -> Floats:
    """Return the covariance of an integrated random walk of unit variance at x and y, shape [..., len(x), len(y)].

    m²(3M - m)/6 for m = min(x, y), M = max(x, y), both from where the walk begins; 0 before.
    """
    x, y = np.maximum(x, 0.0)[..., :, None], np.maximum(y, 0.0)[..., None, :]
    least = np.minimum(x, y)
    return np.asarray(least**2 * (3 * np.maximum(x, y) - least) / 6)


def _loss(v: Floats, w: Floats) -> Floats:
    """Return the covariance of what is lost at v and w past the knee, for a rate of unit variance that wanders."""
    return np.asarray(v[..., :, None] * w[..., None, :] + walk(v, w))


def hyperbola(a: Floats, h: Floats) -> Floats:
    """Return ln of N/(h + N) at N = e^a."""
    return np.asarray(a - np.log(h + np.exp(a)))


def _normal(z: Floats) -> Floats:
    """Return the normal distribution function, to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    upper = poly * np.exp(-x * x) / 2
    return np.asarray(np.where(z > 0, 1 - upper, upper))


def draw(posterior: Posterior, N: Floats, count: int, rng: np.random.Generator) -> Curves:
    """Return `count` random throughput curves, evaluated at the loads N [q], drawn from the posterior.

    A curve is a random walk, moved to the levels by the weights that a Gaussian process has for them (Matheron's rule).
    """
    data, (S, form, noise, half) = posterior.data, _cells(posterior, count, rng)
    jitter = rng.uniform(-0.5, 0.5, count) * posterior.width[S]
    forms = posterior.forms[form]
    corner = rng.normal(size=count) * np.hypot(_CORNER[0] * forms[:, 1], _CORNER[1])
    s = posterior.log_S[S][:, None]
    tau, w, loss, spread, late = forms.T[:5, :, None]
    h, start = posterior.half_points[half][:, None], data.u[0]
    levels = coordinates(data.u, s, w, late)
    grid = coordinates(np.log(N), s, w, late)
    a = np.append(grid[0], s, axis=1)  # the plateau is where the rising branch ends
    v = np.append(grid[1], np.zeros_like(s), axis=1)

    at, path = _walks(max(float(a.max()) - start, 1e-6), count, rng)
    past, fall = _walks(max(float(v.max()), float(levels[1].max()), 1e-6), count, rng)
    rate = rng.normal(size=(count, 1))

    def prior(a: Floats, v: Floats) -> Floats:
        lost = loss * v + spread * (rate * v + _read(fall, past, v))
        return np.asarray(hyperbola(a, h) + tau * _read(path, at, a - start) - lost)

    def covariance(a: Floats, v: Floats) -> Floats:
        of_rise = walk(a - start, levels[0] - start)
        return np.asarray((tau**2)[..., None] * of_rise + (spread**2)[..., None] * _loss(v, levels[1]))

    error = posterior.noises[noise][:, None] * data.g
    R = covariance(*levels) + (error**2)[..., None] * np.eye(len(data.u))
    rest = data.y - prior(*levels) - error * rng.normal(size=error.shape)
    solved = np.linalg.solve(R, np.stack([rest, np.ones_like(rest)], axis=-1))
    level = solved[..., 0].sum(1, keepdims=True) / solved[..., 1].sum(1, keepdims=True)
    weights = solved[..., 0] - level * solved[..., 1]
    log_X = level + prior(a, v) + (covariance(a, v) @ weights[..., None])[..., 0]
    blur = np.exp(jitter + corner)
    return Curves(N, log_X[:, :-1], np.exp(s[:, 0] - _BEFORE * forms[:, 1]) * blur, np.exp(log_X[:, -1]), blur)


def grid(*loads: Floats) -> Floats:
    """Return these loads in order, those that only rounding tells apart once; a chord between them has no slope."""
    return np.exp(np.unique(np.round(np.log(np.concatenate(loads)), 9)))


def _cells(posterior: Posterior, count: int, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Return `count` cells of the grid drawn in proportion to their weights, as indices of each axis, shape [count]."""
    upto = np.cumsum(posterior.weights.ravel())
    even = (np.arange(count) + rng.uniform()) / count * upto[-1]
    cells = rng.permutation(np.minimum(np.searchsorted(upto, even), len(upto) - 1))
    return np.unravel_index(cells, posterior.weights.shape)


def _walks(length: float, count: int, rng: np.random.Generator) -> tuple[float, Floats]:
    """Return the step, and integrated random walks from 0 to `length`, shape [count, steps + 1]."""
    step = length / _STEPS
    speed = np.cumsum(rng.normal(size=(count, _STEPS)), axis=1) * math.sqrt(step)
    speed = np.append(np.zeros((count, 1)), speed, axis=1)
    path = np.cumsum((speed[:, 1:] + speed[:, :-1]) / 2, axis=1) * step
    return step, np.append(np.zeros((count, 1)), path, axis=1)


def _read(path: Floats, step: float, x: Floats) -> Floats:
    """Return each walk's value at x [count, m], by straight lines between its steps; 0 below x = 0."""
    at = np.clip(x / step, 0.0, path.shape[1] - 1.000001)
    k = at.astype(np.int64)
    rows = np.arange(len(path))[:, None]
    return np.asarray(path[rows, k] * (1 - (at - k)) + path[rows, k + 1] * (at - k))
