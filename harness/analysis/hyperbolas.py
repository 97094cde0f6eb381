"""The families of the curve and their least squares, for many data sets at once (docs/method.md, The curve).

In y = N/X (seconds a token, for each request in flight):

    hyperbola           y = a + bN                       B = ∞
    capped hyperbola    y = max(a + bN, N/P)             1/P = a/B + b
    dip                 y = max(a + bN, N/P) + d·N·ln(N/B)₊

How the best hinge is found, without a grid and without starting values. Between two neighbouring levels B takes no
part: the levels below it are a line a + bN, those above it N·(c + d·ln N), two least squares that know nothing of each
other. B is where they meet. If that is not between the two levels then the best B of that gap is one of them, since
"B lies above N_i" is a half-space of (a, b, c, d); and with B at a level everything is linear again. So the minimum
over n gaps and n levels is the minimum over all B, and sums over the levels below and above are all it needs.

How the lack of fit is estimated. Real servers are concave at low N, where overheads show that the family does
not have; a fit that takes the levels' own small errors there at face value bends the whole line and moves the
hinge. So each level's relative variance is σ² + (τ_low·f)² + τ², f falling from 1 to 0 around N = B/4
(`excused`). τ is the moment estimate that brings χ² down to its degrees of freedom (Huber's χ² from 8 levels
on, so that an outlier is no lack of fit); τ_low is the value on a ladder from 0 to 64 % with the greatest
likelihood together with the τ that goes with it. The likelihood charges log τ for every level that it excuses:
clean levels keep their weight, and what is low and concave is paid by τ_low alone. Each rung starts from its
likeliest hinge on a coarse grid, since the hinge decides which levels are low and they decide the hinge.
σ and τ are relative to the fitted y; relative to the measured one, whatever came out small would weigh more.

Left out: what follows from the coefficients (`curve`), and USL, which has no hinge and is never chosen.
"""

from __future__ import annotations

import msgspec
import numpy as np

from harness.analysis.table import Bools, Floats, Ints

HYPERBOLA, CAPPED, DIP = range(3)
FAMILIES = ("hyperbola", "capped_hyperbola", "dip")  # in the order that a tie prefers
COEFFICIENTS = (2, 3, 4)  # with the hinge
PAST = 1.1  # a level is past the hinge from so many hinges on

_LADDER = np.array([0.0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])  # of τ_low
_COARSE = 64  # hinges that a rung may start from
_HARDLY = 0.02  # τ where a rung starts
_HUBER, _HUBER_MEAN, _HUBER_LEVELS, _ROUNDS = 1.345, 0.7101, 8, 3  # 0.7101 = E min(z², 1.345²), z normal
_FALSE_POSITIONS = 9  # on the way to τ
_TIE = 2.0
_IDENTIFIABLE = 6  # levels that three coefficients need: n >= k + 3
_SINGULAR = 1e-12


class Curves(msgspec.Struct, frozen=True, eq=False):
    """D curves on the axis of N, each array of shape [D]."""

    a: Floats  # seconds
    b: Floats  # seconds for each request in flight
    hinge: Floats  # B; inf for a hyperbola
    d: Floats  # 0 without a dip
    family: Ints  # index into FAMILIES

    @property
    def plateau(self) -> Floats:
        """P = B/(a + bB), output tok/s; inf for a hyperbola."""
        with np.errstate(divide="ignore"):
            return np.where(np.isinf(self.hinge), np.inf, 1 / (self.a / self.hinge + self.b))

    def y(self, N: Floats) -> Floats:
        """N/X, seconds, shape [D, len(N)]."""
        past = np.maximum(1.0, N / self.hinge[:, None])
        y = self.a[:, None] * past + self.b[:, None] * N
        return y + self.d[:, None] * N * np.log(past) if self.d.any() else np.asarray(y)

    def throughput(self, N: Floats) -> Floats:
        """Output tok/s at N in flight, shape [D, len(N)]."""
        return np.asarray(N / self.y(N))


class Solved(msgspec.Struct, frozen=True, eq=False):
    """Fits of D data sets."""

    chosen: Curves
    fits: list[Curves]  # of every family admitted; the last one has the lack of fit that judges all
    y: Floats  # [D, n]: the data
    score: Floats  # [D, families admitted]: what the selection compares
    tau: Floats  # [D]
    tau_low: Floats  # [D]
    sigma: Floats  # [D, n]: total relative error of each level
    weights: Floats  # [D, n]: of the squares that every family was fitted by


def solve(N: Floats, Y: Floats, sigma: Floats, richest: int, *, excuse_low: bool = True) -> Solved:
    """Fit, reweight and select for every data set Y [D, n]; sigma [n] is the relative error of each level.

    N rises. The families up to `richest` take part. Without `excuse_low` low levels are as good as others: where all
    errors follow from the scatter, what the family lacks at low N is in them already.
    """
    D, n = Y.shape
    huber = np.ones((D, n))
    best, total, tau, tau_low = _lack_of_fit(N, Y, sigma, richest, _LADDER if excuse_low and richest else _LADDER[:1])
    for _ in range(_ROUNDS):
        y = best.y(N)
        r = Y / y - 1
        if n >= _HUBER_LEVELS:
            huber = _HUBER / np.maximum(np.abs(r) / total, _HUBER)
        best = least_squares(N, Y, huber / (y * total) ** 2, richest)

    # The same weights judge every family.
    w = huber / (best.y(N) * total) ** 2
    sums = _Sums(N, Y, w)
    fits = [_least_squares(sums, family) for family in range(richest + 1)]
    chi2 = np.stack([(w * (Y - found.y(N)) ** 2).sum(1) for found in fits], axis=1)
    score = criterion(chi2, np.array(COEFFICIENTS[: richest + 1]), n)
    simplest = np.argmax(score < score.min(1, keepdims=True) + _TIE, axis=1)
    return Solved(taken(fits, simplest), fits, Y, score, tau, tau_low, total, w)


def criterion(chi2: Floats, k: Ints, n: int) -> Floats:
    """χ² + 2k + 2k(k+1)/(n-k-1), the errors of the levels being known.

    Fewer than 6 levels carry no found answer, only a provisional one; the correction, which has a pole there, is that
    of two levels more.
    """
    n = n if n >= _IDENTIFIABLE else n + 2
    return np.asarray(chi2 + 2 * k + 2 * k * (k + 1) / (n - k - 1))


# The lack of fit


def _lack_of_fit(
    N: Floats, Y: Floats, sigma: Floats, family: int, steps: Floats
) -> tuple[Curves, Floats, Floats, Floats]:
    """The family's curves with the lack of fit they need, total error [D, n], τ [D] and τ_low [D].

    All rungs of the ladder at once: data set i on rung r is row r·D + i.
    """
    D, n = Y.shape
    robust = n >= _HUBER_LEVELS
    Z, step = np.tile(Y, (len(steps), 1)), np.repeat(steps, D)[:, None]
    best = _starts(N, Y, sigma, steps) if family else least_squares(N, Z, (Z * sigma) ** -2.0, family)
    for _ in range(2):  # τ, and which levels are low, follow the curve that they allow
        y = best.y(N)
        low = excused(N, best.hinge[:, None])
        spent = np.hypot(sigma, low * step)
        tau = _moment(Z / y - 1, spent, low > 0, n - COEFFICIENTS[family], robust)
        total = np.hypot(spent, tau[:, None])
        best = least_squares(N, Z, (y * total) ** -2.0, family)
    z = np.abs(Z / best.y(N) - 1) / total
    gross = robust & (low == 0) & (z > _HUBER)
    cost = (np.where(gross, 2 * _HUBER * z - _HUBER**2, z**2) + 2 * np.log(total)).sum(1)
    rows = np.argmin(cost.reshape(-1, D), axis=0) * D + np.arange(D)
    return _rows(best, rows), total[rows], tau[rows], step[rows, 0]


def excused(N: Floats, B: Floats) -> Floats:
    """Share of τ_low that a level carries: 1 up to B/8, a half at B/4, none from B/2 on; even in log N.

    An edge at exactly B/4 would pull the hinge to four times whichever level gains by being excused.
    """
    return np.asarray(np.clip(np.log2(B / (2 * N)) / 2, 0.0, 1.0))


def _starts(N: Floats, Y: Floats, sigma: Floats, steps: Floats) -> Curves:
    """For each rung and data set the likeliest capped hyperbola of a coarse grid, with a τ that hardly matters."""
    B = np.geomspace(N[0], N[-1], _COARSE)
    g, low = np.maximum(1.0, N[:, None] / B), excused(N[:, None], B)  # [n, grid]
    u, un = Y**-2.0, Y**-2.0 * N
    found = []
    for step in steps:
        s2 = (sigma**2 + _HARDLY**2)[:, None] + (low * step) ** 2
        v, gv = 1 / s2, g / s2
        gg, gn, nn, gy, ny = u @ (g * gv), un @ gv, (un * N) @ v, (1 / Y) @ gv, (N / Y) @ v
        a, b, gain = _two(gg, gn, nn, gy, ny)
        gain = np.where(a > 0, gain, -np.inf)
        at = np.argmin((v + np.log(s2)).sum(0) - gain, axis=1)  # Σ w·Y² is Σ v, the same for every data set
        rows = np.arange(len(Y)), at
        found.append((a[rows], b[rows], B[at]))
    a, b, hinge = np.concatenate(found, axis=1)
    return Curves(a, b, hinge, np.zeros(len(a)), np.full(len(a), CAPPED))


def _moment(r: Floats, s: Floats, low: Bools, freedom: int, robust: bool) -> Floats:
    """τ that brings χ² = Σ r²/(s² + τ²) down to its degrees of freedom, 0 where it is there already; shape [D].

    By false position (Illinois) on 1/χ², which is all but linear in τ².
    """
    r2, s2 = r**2, s**2
    bound = np.where(low | (not robust), np.inf, _HUBER**2)
    scale = np.where(np.isinf(bound), 1.0, 1 / _HUBER_MEAN)

    def missing(tau2: Floats) -> Floats:
        return np.asarray(1 / freedom - 1 / (np.minimum(r2 / (s2 + tau2[:, None]), bound) * scale).sum(1))

    with np.errstate(divide="ignore"):  # a perfect fit
        rows = np.flatnonzero(missing(np.zeros(len(r))) > 0)
    tau2 = np.zeros(len(r))
    r2, s2, bound, scale = r2[rows], s2[rows], bound[rows], scale[rows]
    lo, hi = np.zeros(len(rows)), r2.sum(1) / (_HUBER_MEAN * freedom)
    at_lo, at_hi = missing(lo), missing(hi)
    was = np.zeros(len(rows), dtype=np.bool_)
    for i in range(_FALSE_POSITIONS):
        t = (lo * at_hi - hi * at_lo) / (at_hi - at_lo)
        at = missing(t)
        short = at > 0
        half = np.where((short == was) & (i > 0), 0.5, 1.0)  # an end that stays again counts half, or the other creeps
        lo, at_lo, hi, at_hi = (
            np.where(short, t, lo), np.where(short, at, at_lo * half),
            np.where(short, hi, t), np.where(short, at_hi * half, at),
        )  # fmt: skip
        was = short
    tau2[rows] = (lo * at_hi - hi * at_lo) / (at_hi - at_lo)
    return np.sqrt(tau2)


# Least squares, exactly


def least_squares(N: Floats, Y: Floats, w: Floats, family: int) -> Curves:
    """The family's curve with the least Σ w·(Y - y)² for every data set Y [D, n], a > 0, b >= 0 and d >= 0.

    >>> N = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    >>> found = least_squares(N, np.maximum(1.0, N / 5)[None], np.ones((1, 6)), CAPPED)
    >>> [round(float(x[0]), 9) for x in (found.a, found.hinge, found.plateau)]
    [1.0, 5.0, 5.0]
    """
    return _least_squares(_Sums(N, Y, w), family)


def leaving_out_each(N: Floats, y: Floats, w: Floats, family: int) -> Curves:
    """The family through all levels but one, for each of them: n curves, the first without the first level.

    y and w [n] as in `least_squares`.
    """
    n = len(N)
    return least_squares(N, np.broadcast_to(y, (n, n)), (1 - np.eye(n)) * w, family)


class _Sums:
    """Σ over the levels up to each one, and over those above it; each [D, n]. `low_ny` is Σ w·N·y, and so on."""

    def __init__(self, N: Floats, Y: Floats, w: Floats) -> None:
        n = len(N)
        self.N, self.L = N, np.log(N)
        self._below = np.triu(np.ones((n, n)))
        self._above = 1 - self._below
        self._wnn, self._wny = w * N**2, w * Y * N
        self.low_1, self.low_n, self.low_nn = w @ self._below, (w * N) @ self._below, self._wnn @ self._below
        self.low_y, self.low_ny = (w * Y) @ self._below, self._wny @ self._below
        self.high_nn, self.high_ny = self._wnn @ self._above, self._wny @ self._above
        with np.errstate(divide="ignore", invalid="ignore"):
            self.line = _two(self.low_1, self.low_n, self.low_nn, self.low_y, self.low_ny)

    def bent(self) -> tuple[Floats, Floats, Floats]:
        """Σ w·N²·L, Σ w·N²·L² and Σ w·N·y·L of the levels above each one, L = ln N."""
        L, above = self.L, self._above
        return (self._wnn * L) @ above, (self._wnn * L**2) @ above, (self._wny * L) @ above


def _least_squares(s: _Sums, family: int) -> Curves:
    D = len(s.low_1)
    if family == HYPERBOLA:
        a, b, _ = (x[:, -1] for x in s.line)
        slope = s.low_ny[:, -1] / s.low_nn[:, -1]
        a, b = np.where(a > 0, a, 1e-9 * slope), np.where(a > 0, b, slope)  # throughput that never rises
        return Curves(a, b, np.full(D, np.inf), np.zeros(D), np.full(D, HYPERBOLA))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        capped, gain = _capped(s)
        if family == CAPPED:
            return capped
        dip, more = _dip(s)
    return taken([msgspec.structs.replace(capped, family=dip.family), dip], (more > gain).astype(int))


def _capped(s: _Sums) -> tuple[Curves, Floats]:
    """The best capped hyperbolas and what they take off Σ w·y², [D]."""
    N = s.N
    # The hinge in a gap: the line of the levels below meets the proportion of those above.
    a, b, gain = (x[:, :-1] for x in s.line)
    c = (s.high_ny / s.high_nn)[:, :-1]
    B = a / (c - b)
    inside = (a > 0) & (c > b) & (B / N[:-1] >= 1) & (B / N[1:] <= 1)
    gain = np.where(inside, gain + c * s.high_ny[:, :-1], -np.inf)
    # The hinge at a level; where a is not above 0 the first level does as well, with b = 0.
    at_a, at_b, at_gain = _two(*_at_levels(s))
    at_gain = np.where(at_a > 0, at_gain, -np.inf)
    both = np.concatenate([gain, at_gain], axis=1)
    rows = np.arange(len(both)), np.argmax(both, axis=1)
    levels = np.broadcast_to(N, at_a.shape)
    a, b, B = (np.concatenate(pair, axis=1)[rows] for pair in ((a, at_a), (b, at_b), (B, levels)))
    return Curves(a, b, B, np.zeros(len(a)), np.full(len(a), CAPPED)), both[rows]


def _at_levels(s: _Sums) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """The sums of y = a·g + b·N with g = max(1, N/B), for B at each level: gg, gn, nn, gy, ny."""
    N = s.N
    return (
        s.low_1 + s.high_nn / N**2, s.low_n + s.high_nn / N, s.low_nn + s.high_nn,
        s.low_y + s.high_ny / N, s.low_ny + s.high_ny,
    )  # fmt: skip


def _dip(s: _Sums) -> tuple[Curves, Floats]:
    """The best curves with d > 0 and what they take off Σ w·y², [D]; -inf where none has a dip."""
    N, L = s.N, s.L
    nnl, nnll, nyl = s.bent()
    # The hinge in a gap: the line below meets N·(c + d·ln N) above, where F(B) = a/B + b - c - d·ln B falls through 0.
    a, b, gain = (x[:, :-1] for x in s.line)
    det = s.high_nn * nnll - nnl**2
    d = np.where(det > _SINGULAR * s.high_nn * nnll, (nyl * s.high_nn - s.high_ny * nnl) / det, 0.0)
    c = (s.high_ny - d * nnl) / s.high_nn
    gain_above = (c * s.high_ny + d * nyl)[:, :-1]
    c, d = c[:, :-1], d[:, :-1]
    inside = (a > 0) & (d > 0) & (a / N[:-1] + b >= c + d * L[:-1]) & (a / N[1:] + b <= c + d * L[1:])
    gain = np.where(inside, gain + gain_above, -np.inf)
    # The hinge at a level: y = a·g + b·N + d·h, h = N·ln(N/B)₊; first by elimination of h, then without b.
    gg, gn, nn, gy, ny = _at_levels(s)
    nh, hy = nnl - L * s.high_nn, nyl - L * s.high_ny
    hh, gh = nnll - 2 * L * nnl + L**2 * s.high_nn, nh / N
    at_a, at_b, _ = _two(gg - gh * gh / hh, gn - gh * nh / hh, nn - nh * nh / hh, gy - gh * hy / hh, ny - nh * hy / hh)
    at_d = (hy - at_a * gh - at_b * nh) / hh
    fair = (hh > _SINGULAR * nn) & (at_d > 0) & (at_a > 0)
    at_gain = np.where(fair, at_a * gy + at_b * ny + at_d * hy, -np.inf)
    both = np.concatenate([gain, at_gain], axis=1)
    at = np.argmax(both, axis=1)
    rows = np.arange(len(both)), at
    a, b, d = (np.concatenate(pair, axis=1)[rows] for pair in ((a, at_a), (b, at_b), (d, at_d)))
    gaps = len(N) - 1
    u = L[np.where(at < gaps, at, at - gaps)]
    c = np.where(at < gaps, np.concatenate([c, at_a], axis=1)[rows], 0.0)
    for _ in range(8):  # Newton in u = ln B from the left end: F is convex there and falls, so it never overshoots
        below = a * np.exp(-u)
        u = np.where(at < gaps, u + (below + b - c - d * u) / (below + d), u)
    return Curves(a, b, np.exp(u), d, np.full(len(a), DIP)), both[rows]


def _two(gg: Floats, gn: Floats, nn: Floats, gy: Floats, ny: Floats) -> tuple[Floats, Floats, Floats]:
    """Least squares of y = a·g + b·N from its sums, with b >= 0, and what it takes off Σ w·y².

    Levels that all lie past the hinge tell a and b apart no more; then b = 0.
    """
    det = gg * nn - gn**2
    apart = det > _SINGULAR * gg * nn
    det = np.where(apart, det, 1.0)
    a, b = (gy * nn - ny * gn) / det, (ny * gg - gy * gn) / det
    flat = ~apart | (b < 0)
    a, b = np.where(flat, gy / gg, a), np.where(flat, 0.0, b)
    return a, b, np.asarray(a * gy + b * ny)


def taken(curves: list[Curves], which: Ints) -> Curves:
    """For each data set the curve of its family in `which`."""
    rows = np.arange(len(which))
    columns = zip(*map(msgspec.structs.astuple, curves), strict=True)
    return Curves(*(np.stack(column)[which, rows] for column in columns))


def _rows(curves: Curves, rows: Ints) -> Curves:
    return Curves(*(column[rows] for column in msgspec.structs.astuple(curves)))
