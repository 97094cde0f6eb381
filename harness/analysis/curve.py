"""The curve through the levels, and its knees, each with a 95 % interval (analytic.md §5).

In y = N/X (seconds a token, for each request in flight) every family is linear once its hinge B is given:

    hyperbola         y = a + bN                      B = ∞
    capped hyperbola  y = max(a + bN, N/P)            = a·max(1, N/B) + bN  with  1/P = a/B + b

so for each B of a grid the best a and b are one 2×2 solve: no starting values, no divergence, and matrix
products do it for all bootstrap draws at once. Left out, for now: the dip, USL, and choosing the next level.

How the lack of fit is estimated. Real servers are concave at low N, where overheads show that the family does
not have; a fit that takes the levels' own small errors there at face value bends the whole line and moves the
hinge. So each level's relative variance is σ² + (τ_low·f)² + τ², f falling from 1 to 0 around N = B/4
(`excused`). τ is the moment estimate that brings χ² down to its degrees of freedom (Huber's χ² from 8 levels
on, so that an outlier is no lack of fit); τ_low is the value on a ladder from 0 to 64 % with the greatest
likelihood together with the τ that goes with it. The likelihood charges log τ for every level that it excuses:
clean levels keep their weight, and what is low and concave is paid by τ_low alone. Each rung starts from the
likeliest hinge of the whole grid, since the hinge decides which levels are low and they decide the hinge.
σ and τ are relative to the fitted y; relative to the measured one, whatever came out small would weigh more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import verdicts
from harness.analysis.stats import FLOOR, Z95, t_quantile
from harness.analysis.table import Bools, Floats, Ints
from harness.summary import Curve, Knees, LevelSummary, Value

HYPERBOLA, CAPPED = "hyperbola", "capped_hyperbola"
COEFFICIENTS = {HYPERBOLA: 2, CAPPED: 3}  # in the order that a tie prefers

_GRID = 400  # hinges tried, evenly spaced in log N
_GOLDEN, _STEPS = (math.sqrt(5) - 1) / 2, 26  # narrows two grid steps to 1e-7 of B
_LADDER = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # of τ_low
_HUBER, _HUBER_MEAN, _HUBER_LEVELS, _ROUNDS = 1.345, 0.7101, 8, 3  # 0.7101 = E min(z², 1.345²), z normal
_TIE = 2.0
_BLOCK = 64  # data sets a time, so that a block's sums stay in the cache
_SINGULAR = 1e-12
_ASSUMED = 0.02  # error of a level that has none when others have theirs
_PAST = 1.1  # a level is past the hinge from here on
_ELASTICITY, _SURE, _BELOW_LAST = 0.10, 0.95, 0.9  # of a plateau that is reached

Line = tuple[Floats, Floats, Floats]  # a, b, B of D data sets, each of shape [D]


class Point(msgspec.Struct, frozen=True):
    """A measured level. `in_flight` None: nothing but C is known; `se`: one standard error, tok/s."""

    concurrency: float
    in_flight: float | None
    output_tokens_per_s: float
    se: float | None = None
    valid: bool = True
    in_flight_ok: bool = True


class Fit(msgspec.Struct, frozen=True):
    curve: Curve
    knees: Knees


class Levels(msgspec.Struct, frozen=True):
    """Distinct levels in order of N, repeats pooled; sigma is the relative error, nan where there is none."""

    N: Floats
    C: Floats
    X: Floats
    sigma: Floats
    held: Bools  # as many in flight as were asked for


class Solved(msgspec.Struct, frozen=True):
    """Fits of D data sets, shape [D]: coefficients of the chosen family; B is inf where that is the hyperbola."""

    a: Floats
    b: Floats
    B: Floats
    score: Floats  # [D, families]: what the selection compares
    tau: Floats
    tau_low: Floats
    sigma: Floats  # [D, n]: total relative error of each level
    huber: Floats  # [D, n]: weight left to each level, 1 unless it lies far off


def points_of(levels: Sequence[LevelSummary]) -> list[Point]:
    """The measured levels as points; a level that is invalid for anything but in flight is not valid.

    Levels of an open loop are none: what is in flight there follows from the rate and wanders.
    """
    out = []
    for s in levels:
        if s.concurrency is None:
            continue
        codes = {v.code for v in s.verdicts if v.level == "invalid"}
        out.append(
            Point(
                s.concurrency,
                s.in_flight,
                s.output_tokens_per_s.mean or math.nan,
                s.output_tokens_per_s_se,
                valid=not codes - {"in_flight_low"},
                in_flight_ok="in_flight_low" not in codes,
            )
        )
    return out


def throughput(curve: Curve, N: Floats) -> Floats:
    """Output tok/s of the fitted curve at N in flight, shape of N; nan where no family was identified.

    X = N / max(a + bN, N/P); without P the hyperbola.
    """
    if curve.family is None:
        return np.full(np.shape(N), np.nan)
    a, b, P = (curve.parameters.get(name, math.inf) for name in "abP")
    return np.asarray(N / np.maximum(a + b * N, N / P))


def fit(points: Sequence[Point], *, seed: int = 0, draws: int = 400) -> Fit:
    """The curve through the valid points and its knees, with 95 % intervals by parametric bootstrap.

    Each draw adds the levels' errors (lack of fit included) to the chosen curve and is then fitted, reweighted
    and selected all over; a draw that comes out a hyperbola has its hinge at infinity. The hinge's grid spans
    the levels. Knees and hinge_concurrency are given on the axis of C; parameters stay on that of N.
    """
    levels = pool(points)
    n = len(levels.N)
    families = [family for family, k in COEFFICIENTS.items() if n >= k + 3]
    if not families:
        return Fit(_unfitted(n), Knees())
    capped = CAPPED in families
    known = not np.isnan(levels.sigma).all()
    sigma = np.where(np.isnan(levels.sigma), _ASSUMED, np.maximum(levels.sigma, FLOOR)) if known else None

    N, y = levels.N, levels.N / levels.X
    best = solve(N, y[None], sigma, capped)
    noise, spread = best.sigma[0], 1.0
    if not known:  # the scatter itself is only known to n - 3 degrees of freedom
        spread = t_quantile(0.975, max(n - 3, 1)) / Z95
    rng = np.random.default_rng(seed)
    fitted = _y(best, N)[0]
    many = solve(N, fitted * np.exp(rng.normal(0.0, 1.0, (draws, n)) * noise * spread), sigma, capped)

    family = HYPERBOLA if np.isinf(best.B[0]) else CAPPED
    one, all_ = _derived(best, N), _derived(many, N)
    # What the family lacks at low N it lacks at N = 1 too.
    low = best.tau_low[0] if N[0] < best.B[0] / 4 else 0.0
    all_["single"] = all_["single"] * np.exp(rng.normal(0.0, 1.0, draws) * low)
    reasons = _not_reached(levels, best, many, known)
    weights = np.exp((best.score[0].min() - best.score[0]) / 2)
    parameters = {"a": float(best.a[0]), "b": float(best.b[0])}
    if family == CAPPED:
        parameters["P"] = float(one["plateau"][0])
    parameters |= {
        "lack_of_fit": float(best.tau[0]),
        "lack_of_fit_low": float(best.tau_low[0]),
        "leave_one_out": _leave_one_out(N, y, best),
    }

    def value(name: str, *, shown: bool, on_c: bool) -> Value:
        if not shown:
            return Value(None)
        lo, hi = _interval(all_[name])
        if name == "hinge":
            lo = min(lo, float(N[-1]))  # "beyond the last level" is all that an infinite hinge says
        ends = [_end(concurrency_at(levels, x) if on_c else x) for x in (float(one[name][0]), lo, hi)]
        return Value(ends[0], (ends[1], ends[2]))

    reached = not reasons
    hinge = value("hinge", shown=capped, on_c=True)
    found = [] if capped else [verdicts.knee_not_identifiable(n)]
    if not reached:
        found.append(verdicts.plateau_not_reached(reasons, float(N[-1])))
    curve = Curve(
        family=family,
        single_stream_tokens_per_s=value("single", shown=True, on_c=False),
        hinge_concurrency=hinge,
        plateau_tokens_per_s=value("plateau", shown=reached, on_c=False),
        plateau_reached=reached,
        dip=None,
        weights=dict(zip(families, (weights / weights.sum()).tolist(), strict=True)),
        parameters=parameters,
        verdicts=found,
    )
    if not reached:
        return Fit(curve, Knees(hinge=hinge if hinge.value is not None else None))
    return Fit(
        curve,
        Knees(
            hinge=hinge,
            plateau95=value("plateau95", shown=True, on_c=True),
            half_point=value("half", shown=True, on_c=True),
            peak=hinge,  # without a dip, the least load that gives the greatest throughput
        ),
    )


def pool(points: Sequence[Point]) -> Levels:
    """The valid points as distinct levels; repeats of one concurrency are averaged, weighted by their errors.

    Repeats that differ by more than their errors make the pooled error larger (Birge's ratio), never smaller.
    """
    repeats: dict[float, list[Point]] = {}
    for p in points:
        if p.valid and p.output_tokens_per_s > 0 and p.concurrency > 0:
            repeats.setdefault(p.concurrency, []).append(p)
    rows = []
    for C, same in repeats.items():
        N = np.array([p.in_flight or C for p in same])
        X = np.array([p.output_tokens_per_s for p in same])
        se = np.array([np.nan if p.se is None else max(p.se, FLOOR * p.output_tokens_per_s) for p in same])
        sigma = np.nan
        w = np.ones(len(same))
        if not np.isnan(se).any():
            w = se**-2.0
            pooled = np.average(X, weights=w)
            birge = ((X - pooled) ** 2 @ w) / max(len(same) - 1, 1)
            sigma = math.sqrt(max(birge, 1.0) / w.sum()) / pooled
        held = all(p.in_flight_ok for p in same)
        rows.append((np.average(N, weights=w), C, np.average(X, weights=w), sigma, held))
    rows.sort()
    column = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    return Levels(column[0], column[1], column[2], column[3], held=column[4].astype(np.bool_))


def concurrency_at(levels: Levels, N: float) -> float:
    """C that holds N in flight: interpolated between the levels, in proportion beyond them."""
    first, last = levels.N[0], levels.N[-1]
    if first < N < last:
        return float(np.interp(N, levels.N, levels.C))
    edge = -1 if first < N else 0
    return float(N * levels.C[edge] / levels.N[edge])


# The fit of many data sets at once


def solve(N: Floats, Y: Floats, sigma: Floats | None, capped: bool) -> Solved:
    """Fit, reweight and select for every data set Y [D, n]; sigma None: one common error, from the residuals."""
    D, n = Y.shape
    problem = _Problem(N, Y, capped)
    huber = np.ones((D, n))
    tau = tau_low = np.zeros(D)
    if sigma is None:
        total = np.ones((D, n))
        a, b, B = problem.best(total, huber, Y)
        a, b, B = problem.best(total, huber, _line(a, b, B, N))
    else:
        (a, b, B), total, tau, tau_low = _lack_of_fit(problem, sigma)
    for _ in range(_ROUNDS):
        y = _line(a, b, B, N)
        r = Y / y - 1
        if sigma is None:
            scatter = np.sqrt((huber * r**2).sum(1) / max(n - 3, 1))  # the capped family's degrees of freedom
            total = np.broadcast_to(np.maximum(scatter, FLOOR)[:, None], (D, n))
        if n >= _HUBER_LEVELS:
            huber = _HUBER / np.maximum(np.abs(r) / total, _HUBER)
        a, b, B = problem.best(total, huber, y)

    # The same weights judge every family.
    y = _line(a, b, B, N)
    w = huber / (y * total) ** 2
    a0, b0, inf = problem.straight(w)
    fits = [(a0, b0, inf), (a, b, B)] if capped else [(a0, b0, inf)]
    score = np.stack(
        [
            _score((w * (Y - _line(*f, N)) ** 2).sum(1), k, n, total if sigma is None else None)
            for f, k in zip(fits, COEFFICIENTS.values(), strict=False)
        ],
        axis=1,
    )
    if capped:
        simple = score[:, 0] < score[:, 1] + _TIE
        a, b, B = np.where(simple, a0, a), np.where(simple, b0, b), np.where(simple, inf, B)
    return Solved(a, b, B, score, tau, tau_low, total, huber)


def _score(chi2: Floats, k: int, n: int, scatter: Floats | None) -> Floats:
    """χ² + 2k + 2k(k+1)/(n-k-1) where errors are known; else ordinary AICc, whose k counts the scatter too."""
    if scatter is not None:
        rss = np.maximum(chi2 * scatter[:, 0] ** 2, 1e-24)
        chi2, k = n * np.log(rss / n), k + 1
    return np.asarray(chi2 + 2 * k + 2 * k * (k + 1) / (n - k - 1))


def _lack_of_fit(problem: _Problem, sigma: Floats) -> tuple[Line, Floats, Floats, Floats]:
    """The richest family with the lack of fit it needs: (a, b, B), total error [D, n], τ [D], τ_low [D]."""
    N, Y = problem.N, problem.Y
    D, n = Y.shape
    ones = np.ones((D, n))
    robust = n >= _HUBER_LEVELS
    freedom = n - COEFFICIENTS[CAPPED if problem.capped else HYPERBOLA]
    kept: list[Floats] = []
    likeliest = np.full(D, np.inf)
    for step in (0.0, *_LADDER) if problem.capped else (0.0,):
        best = problem.start(sigma, step)
        for _ in range(2):  # τ, and which levels are low, follow the line that they allow
            y = _line(*best, N)
            low = excused(N, best[2][:, None])
            spent = np.hypot(sigma, low * step)
            tau = _moment(Y / y - 1, spent, low > 0, freedom, robust)
            total = np.hypot(spent, tau[:, None])
            best = problem.best(total, ones, y, 10)
        z = (Y / _line(*best, N) - 1) / total
        gross = robust & (low == 0) & (np.abs(z) > _HUBER)
        cost = (np.where(gross, 2 * _HUBER * np.abs(z) - _HUBER**2, z**2) + 2 * np.log(total)).sum(1)
        found = [*best, total, tau, np.full(D, step)]
        kept = kept or found
        better = cost < likeliest
        likeliest = np.where(better, cost, likeliest)
        for old, new in zip(kept, found, strict=True):
            old[better] = new[better]
    a, b, B, total, tau, tau_low = kept
    return (a, b, B), total, tau, tau_low


def excused(N: Floats, B: Floats) -> Floats:
    """Share of τ_low that a level carries: 1 up to B/8, a half at B/4, none from B/2 on; even in log N.

    An edge at exactly B/4 would pull the hinge to four times whichever level gains by being excused.
    """
    return np.asarray(np.clip(np.log2(B / (2 * N)) / 2, 0.0, 1.0))


def _moment(r: Floats, s: Floats, low: Bools, freedom: int, robust: bool) -> Floats:
    """τ that brings Σ r²/(s² + τ²) down to its degrees of freedom, 0 where it is there already; shape [D]."""

    def excess(tau2: Floats) -> Floats:
        z2 = r**2 / (s**2 + tau2[:, None])
        if robust:
            z2 = np.where(low, z2, np.minimum(z2, _HUBER**2) / _HUBER_MEAN)
        return np.asarray(z2.sum(1) - freedom)

    lo, hi = np.zeros(len(r)), (r**2).sum(1) + 1e-12
    needed = excess(lo) > 0
    for _ in range(24):
        middle = (lo + hi) / 2
        above = excess(middle) > 0
        lo, hi = np.where(above, middle, lo), np.where(above, hi, middle)
    return np.where(needed, np.sqrt(hi), 0.0)


class _Problem:
    """The data sets and the grid of hinges, with everything that no weight changes worked out once."""

    def __init__(self, N: Floats, Y: Floats, capped: bool) -> None:
        self.N, self.Y, self.capped = N, Y, capped
        self.hinges = np.geomspace(N[0], N[-1], _GRID)
        self.bent = np.maximum(1.0, N[:, None] / self.hinges)  # [n, grid]

    def straight(self, w: Floats) -> Line:
        """The hyperbola under weights w [D, n]."""
        a, b, _ = self.at(w, np.full(len(w), np.inf))
        return a, b, np.full(len(w), np.inf)

    def start(self, sigma: Floats, step: float) -> Line:
        """The likeliest line on the grid with τ_low = step and a τ that hardly matters: a finer search begins here."""
        w = self.Y**-2.0
        if not self.capped:
            return self.straight(w / sigma**2)
        s2 = sigma[:, None] ** 2 + _ASSUMED**2 + (excused(self.N[:, None], self.hinges) * step) ** 2  # [n, grid]
        at = self.nearest(w, 1 / s2, (1 / s2 + np.log(s2)).sum(0))  # 1/s2 is Σ w·over·Y², w being 1/Y²
        B = self.hinges[at]
        a, b, _ = self.at(w / s2.T[at], B)
        return a, b, B

    def best(self, total: Floats, huber: Floats, y: Floats, steps: int = _STEPS) -> Line:
        """The richest family's best line, errors `total` [D, n] being relative to y [D, n]; golden section at last."""
        w = huber / (y * total) ** 2
        if not self.capped:
            return self.straight(w)
        at = self.nearest(w, np.ones((len(self.N), 1)), 0.0)
        lo = np.log(self.hinges[np.maximum(at - 1, 0)])
        hi = np.log(self.hinges[np.minimum(at + 1, _GRID - 1)])
        left, right = hi - _GOLDEN * (hi - lo), lo + _GOLDEN * (hi - lo)
        at_left, at_right = self.at(w, np.exp(left))[2], self.at(w, np.exp(right))[2]
        for _ in range(steps):
            down = at_left < at_right
            lo, hi = np.where(down, lo, left), np.where(down, right, hi)
            new = np.where(down, hi - _GOLDEN * (hi - lo), lo + _GOLDEN * (hi - lo))
            at_new = self.at(w, np.exp(new))[2]
            left, right = np.where(down, new, right), np.where(down, left, new)
            at_left, at_right = np.where(down, at_new, at_right), np.where(down, at_left, at_new)
        B = np.exp((lo + hi) / 2)
        a, b, _ = self.at(w, B)
        return a, b, B

    def at(self, w: Floats, B: Floats) -> tuple[Floats, Floats, Floats]:
        """a, b and the weighted sum of squares that they leave at the hinge B, each [D]."""
        N, Y = self.N, self.Y
        g = np.maximum(1.0, N / B[:, None])
        wg, wy = w * g, w * Y
        a, b = _coefficients((wg * g).sum(1), wg @ N, w @ N**2, (wg * Y).sum(1), wy @ N)
        return a, b, (w * (Y - a[:, None] * g - b[:, None] * N) ** 2).sum(1)

    def nearest(self, w: Floats, over: Floats, charge: Floats | float) -> Ints:
        """Index of the hinge B with the least charge - (what its line takes from Σ w·over·Y²); over [n, grid or 1]."""
        N, Y = self.N, self.Y
        g, g2 = self.bent * over, self.bent**2 * over
        found = []
        for i in range(0, len(w), _BLOCK):
            u, y = w[i : i + _BLOCK], Y[i : i + _BLOCK]
            un, uy = u * N, u * y
            gain = _explained(u @ g2, un @ g, (un * N) @ over, uy @ g, (uy * N) @ over)
            found.append(np.argmin(charge - gain, axis=1))
        return np.concatenate(found)


def _coefficients(gg: Floats, gn: Floats, nn: Floats, gy: Floats, ny: Floats) -> tuple[Floats, Floats]:
    """Least squares of y = a·g + b·N from its sums, with a > 0 and b >= 0.

    Levels that all lie past the hinge tell a and b apart no more; then b = 0.
    """
    det = gg * nn - gn**2
    apart = det > _SINGULAR * gg * nn
    det = np.where(apart, det, 1.0)
    a, b = (gy * nn - ny * gn) / det, (ny * gg - gy * gn) / det
    flat = ~apart | (b < 0)
    a, b = np.where(flat, gy / gg, a), np.where(flat, 0.0, b)
    saturated = a <= 0
    slope = ny / nn
    return np.where(saturated, 1e-9 * slope, a), np.where(saturated, slope, b)


def _explained(gg: Floats, gn: Floats, nn: Floats, gy: Floats, ny: Floats) -> Floats:
    """How much of Σ w·y² those coefficients take away, without working them out: the grid's inner loop."""
    p, q = gy * nn - ny * gn, ny * gg - gy * gn
    det = gg * nn - gn * gn
    free = (det > _SINGULAR * gg * nn) & (q >= 0)
    gain = np.where(free, (gy * p + ny * q) / np.where(free, det, 1.0), gy * gy / gg)
    return np.asarray(np.where(free & (p <= 0), ny * ny / nn, gain))


def _line(a: Floats, b: Floats, B: Floats, N: Floats) -> Floats:
    """y of every data set's capped hyperbola, shape [D, n]; B = inf is the hyperbola."""
    return np.asarray(a[:, None] * np.maximum(1.0, N / B[:, None]) + b[:, None] * N)


def _y(solved: Solved, N: Floats) -> Floats:
    return _line(solved.a, solved.b, solved.B, N)


# What follows from the coefficients


def _derived(s: Solved, N: Floats) -> dict[str, Floats]:
    """X1, hinge, plateau, half-point and the N of 95 % of the plateau, each [D]; inf where there is none."""
    with np.errstate(divide="ignore"):
        P = 1 / (s.a / s.B + s.b)

        def share(f: float) -> Floats:  # N/(a + bN) = f·P
            left = 1 - f * P * s.b
            return np.asarray(np.where(np.isinf(P), np.inf, f * np.where(np.isinf(P), 0.0, P) * s.a / left))

        with np.errstate(invalid="ignore"):
            half, most = share(0.5), share(0.95)
    single = 1 / (s.a * np.maximum(1.0, 1 / s.B) + s.b)
    return {"single": single, "hinge": s.B, "plateau": P, "half": half, "plateau95": most}


def _interval(draws: Floats) -> tuple[float, float]:
    """2.5 % and 97.5 % of the draws, outwards to the next draw, since infinities do not interpolate."""
    ordered = np.sort(draws)
    last = len(ordered) - 1
    return float(ordered[math.floor(0.025 * last)]), float(ordered[math.ceil(0.975 * last)])


def _end(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _not_reached(levels: Levels, best: Solved, many: Solved, known: bool) -> list[str]:
    """Why the plateau counts as not reached (analytic.md §5); empty: it is reached."""
    N, B = levels.N, float(best.B[0])
    if math.isinf(B):
        return ["throughput still rises with load"]
    reasons = []
    past: Ints = np.flatnonzero(N >= _PAST * B)
    if len(past) < 2:
        reasons.append(f"{len(past)} levels past the hinge, 2 are needed")
    sure = float(np.mean(many.B / N[-1] < _BELOW_LAST))
    if sure < _SURE:
        reasons.append(f"the hinge lies below {_BELOW_LAST:g} of the last level with a chance of {sure:.0%} only")
    if len(past) >= 2:
        s = best.sigma[0, past]
        x = np.log(N[past])
        w = s**-2.0
        x = x - np.average(x, weights=w)
        lever = float(w @ x**2)
        quantile = Z95 if known else t_quantile(0.975, max(len(N) - 3, 1))
        slope, half = float((w * x) @ np.log(levels.X[past])) / (lever or 1.0), quantile / math.sqrt(lever or 1e-9)
        if abs(slope) + half > _ELASTICITY:
            reasons.append(f"elasticity past the hinge is {slope:+.2f} ± {half:.2f}, not within ±{_ELASTICITY:g}")
    if not levels.held[past].all():
        reasons.append(f"fewer in flight than {verdicts.IN_FLIGHT:.0%} of what was asked")
    return reasons


def _leave_one_out(N: Floats, y: Floats, best: Solved) -> float:
    """Relative rms error at each level of the chosen family fitted, with the same weights, to all the others."""
    n = len(N)
    w = (1 - np.eye(n)) * best.huber[0]
    problem = _Problem(N, np.broadcast_to(y, (n, n)), capped=bool(np.isfinite(best.B[0])))
    a, b, B = problem.best(best.sigma[0] * np.ones((n, n)), w, _y(best, N)[0] * np.ones((n, n)))
    return float(np.sqrt(np.mean((y / np.diagonal(_line(a, b, B, N)) - 1) ** 2)))


def _unfitted(n: int) -> Curve:
    nothing = Value(None)
    return Curve(
        family=None,
        single_stream_tokens_per_s=nothing,
        hinge_concurrency=nothing,
        plateau_tokens_per_s=nothing,
        plateau_reached=False,
        dip=None,
        weights={},
        parameters={},
        verdicts=[verdicts.knee_not_identifiable(n)],
    )
