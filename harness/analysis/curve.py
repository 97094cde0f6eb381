"""The curve through the levels, and its knees, each with a 95 % interval (analytic.md §5).

The levels become distinct points (`pool`), the points a curve of one of three families (`hyperbolas`), and the curve
its knees. The intervals are a parametric bootstrap's: each draw adds the levels' errors, lack of fit included, to a
curve and is then fitted, reweighted and selected all over. That curve is of one of the families, as often as its Akaike
weight says (Buckland et al. 1997): drawn around the chosen one alone, a dip that was narrowly missed would leave no
trace in the interval of the plateau, and of dips with 5 % noise that looked flat it would hold the truth in 75 %.

A dip is a family with its own doubts. It takes part only where 3 levels lie past its hinge, which is decided once, on
the measured levels. Chosen, it still counts as confirmed only where 2 levels past the hinge were held twice and the
interval of its depth leaves out 0; else there is a verdict and no figure. USL, the other curve that falls, is
computed beside and never chosen.

Left out: choosing the next level (`ramp`), and why throughput falls (`verdicts.dip_confirmed`, which knows the levels).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import hyperbolas, verdicts
from harness.analysis.hyperbolas import COEFFICIENTS, PAST, Curves, Solved, criterion, least_squares, solve
from harness.analysis.stats import FLOOR, Z95, between, t_quantile
from harness.analysis.table import Bools, Floats, Ints
from harness.summary import Curve, Knees, LevelSummary, Value, Verdict

MORE_LEVELS = 3  # than coefficients, that a family needs
DIP_LEVELS, DIP_REPEATED, TWICE = 3, 2, 2  # past its hinge: to take part; of these, held twice, to be confirmed

_ASSUMED = 0.02  # error of a level that has none when others have theirs
_ELASTICITY, _SURE, _BELOW_LAST = 0.10, 0.95, 0.9  # of a plateau that is reached

Draws = Curves  # of the bootstrap: what else the measured levels may have meant
HYPERBOLA, CAPPED, DIP, FAMILIES = hyperbolas.HYPERBOLA, hyperbolas.CAPPED, hyperbolas.DIP, hyperbolas.FAMILIES


class Point(msgspec.Struct, frozen=True):
    """A measured level. `in_flight` None: nothing but C is known; `se`: one standard error, tok/s."""

    concurrency: float
    in_flight: float | None
    output_tokens_per_s: float
    se: float | None = None
    valid: bool = True
    in_flight_ok: bool = True
    assumed: bool = False  # `se` is a weight, not a measurement: the fit finds the scale of all such errors


class Fit(msgspec.Struct, frozen=True):
    curve: Curve
    knees: Knees
    draws: Draws | None = None  # None where no family is identifiable


class Levels(msgspec.Struct, frozen=True):
    """Distinct levels in order of N, repeats pooled; sigma is the relative error, nan where there is none."""

    N: Floats
    C: Floats
    X: Floats
    sigma: Floats
    held: Bools  # as many in flight as were asked for
    times: Ints  # how often each was measured
    drift: float  # relative σ between repeats of one level, beyond their own errors


def points_of(levels: Sequence[LevelSummary]) -> list[Point]:
    """The measured levels as points; a level that is invalid for anything but in flight is not valid.

    Levels of an open loop are none: what is in flight there follows from the rate and wanders. Nor are those that a
    probe holds before its ramp, whose prompts have lengths of their own.
    """
    out = []
    for s in levels:
        if s.concurrency is None or s.input_tokens_asked is not None:
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

    X = N / (max(a + bN, N/P) + d·N·ln(N/B)₊), B = a/(1/P - b); without P the hyperbola.
    """
    if curve.family is None:
        return np.full(np.shape(N), np.nan)
    a, b, P, d = (curve.parameters.get(name, other) for name, other in (("a", 0), ("b", 0), ("P", math.inf), ("d", 0)))
    y = np.maximum(a + b * N, N / P)
    if d:
        y = y + d * N * np.log(np.maximum(1.0, N * (1 / P - b) / a))
    return np.asarray(N / y)


def fit(points: Sequence[Point], *, seed: int = 0, draws: int = 400) -> Fit:
    """The curve through the valid points and its knees, with 95 % intervals by parametric bootstrap.

    A draw that comes out a hyperbola has its hinge at infinity. Knees and hinge_concurrency are given on the axis of
    C; parameters and draws stay on that of N. Fewer draws are a cheaper fit: 100 suffice to choose a level by.
    """
    levels = pool(points)
    N, n = levels.N, len(levels.N)
    if n < COEFFICIENTS[HYPERBOLA] + MORE_LEVELS:
        return Fit(_unfitted(n), Knees())
    known = not np.isnan(levels.sigma).all()
    sigma = np.where(np.isnan(levels.sigma), _ASSUMED, np.maximum(levels.sigma, FLOOR)) if known else None
    best, refused = _best(N, N / levels.X, sigma)

    rng = np.random.default_rng(seed)
    # Without errors the scatter itself is only known to n - 3 degrees of freedom.
    spread = 1.0 if known else t_quantile(0.975, n - 3) / Z95
    many = _bootstrap(N, best, sigma, spread, draws, rng)
    one, all_ = _derived(best.chosen, N), _derived(many.chosen, N)
    # What the family lacks at low N it lacks at N = 1 and at the slope there too.
    low = best.tau_low[0] if N[0] < best.chosen.hinge[0] / 4 else 0.0
    lacking = np.exp(rng.normal(0.0, 1.0, draws) * low)
    all_ |= {name: all_[name] * lacking for name in ("single", "slope")}

    def value(name: str, *, shown: bool, on_c: bool) -> Value:
        if not shown:
            return Value(None)
        lo, hi = interval(all_[name])
        if name == "hinge":
            lo = min(lo, float(N[-1]))  # "beyond the last level" is all that an infinite hinge says
        ends = [_end(concurrency_at(levels, x) if on_c else x) for x in (float(one[name][0]), lo, hi)]
        return Value(ends[0], (ends[1], ends[2]))

    family = int(best.chosen.family[0])
    doubts = _not_reached(levels, best, many.chosen, known)
    reached = not doubts
    identifiable = len(best.fits) > CAPPED
    hinge = value("hinge", shown=identifiable, on_c=True)
    depth = value("depth", shown=family == DIP, on_c=False)
    unconfirmed = _unconfirmed(levels, best.chosen, depth) if family == DIP else refused
    confirmed = family == DIP and not unconfirmed
    found: list[Verdict] = [] if identifiable else [verdicts.knee_not_identifiable(n)]
    if unconfirmed:
        found.append(verdicts.dip_unconfirmed(depth.value, unconfirmed))
    if not reached:
        found.append(verdicts.plateau_not_reached(doubts, float(N[-1])))
    curve = Curve(
        family=FAMILIES[family],
        single_stream_tokens_per_s=value("single", shown=True, on_c=False),
        slope_tokens_per_s=value("slope", shown=True, on_c=False),
        hinge_concurrency=hinge,
        plateau_tokens_per_s=value("plateau", shown=reached, on_c=False),
        plateau_reached=reached,
        dip=depth if confirmed else None,
        asymptote_tokens_per_s=value("most", shown=True, on_c=False) if family == HYPERBOLA else None,
        usl=_usl(levels, best, known),
        weights=dict(zip(FAMILIES, _weights(best).tolist(), strict=False)),
        parameters=_parameters(levels, best),
        verdicts=found,
    )
    # Output rises up to the hinge and not past it, dip or none: the least load that gives the most.
    knees = Knees(
        hinge=hinge if hinge.value is not None else None,
        plateau95=value("plateau95", shown=True, on_c=True) if reached else None,
        half_point=value("half", shown=True, on_c=True) if reached else None,
        peak=hinge if reached or confirmed else None,
    )
    return Fit(curve, knees, many.chosen)


def _bootstrap(
    N: Floats, best: Solved, sigma: Floats | None, spread: float, draws: int, rng: np.random.Generator
) -> Solved:
    """So many data sets that the levels might have been, solved."""
    noise = rng.normal(0.0, 1.0, (draws, len(N))) * best.sigma[0] * spread
    parents = np.concatenate([found.y(N) for found in best.fits])
    which = rng.choice(len(parents), draws, p=_weights(best))
    return solve(N, parents[which] * np.exp(noise), sigma, len(best.fits) - 1)


def _weights(best: Solved) -> Floats:
    """Akaike weight of every family admitted, from the scores."""
    weights = np.exp((best.score[0].min() - best.score[0]) / 2)
    return np.asarray(weights / weights.sum())


def _best(N: Floats, y: Floats, sigma: Floats | None) -> tuple[Solved, list[str]]:
    """The measured levels' own fit, with the families that they admit: n >= k + 3, a dip also by the levels past it.

    Beside it why a dip that would have been chosen was not admitted.
    """
    n = len(N)
    richest = max(family for family, k in enumerate(COEFFICIENTS) if n >= k + MORE_LEVELS)
    best = solve(N, y[None], sigma, richest)
    past = int(np.count_nonzero(_past(N, best.fits[-1])))
    if richest < DIP or past >= DIP_LEVELS:
        return best, []
    refused = (
        [f"{past} level{'s' * (past != 1)} past the hinge, {DIP_LEVELS} are needed"]
        if best.chosen.family[0] == DIP
        else []
    )
    return solve(N, y[None], sigma, CAPPED), refused


def pool(points: Sequence[Point]) -> Levels:
    """The valid points as distinct levels; repeats of one concurrency are averaged, weighted by their errors.

    A machine that drifts moves a level as a whole, which its own error cannot show but repeats do. What lies between
    them beyond their errors is counted at every level, at one that was held once too.
    """
    valid = [p for p in points if p.valid and p.output_tokens_per_s > 0 and p.concurrency > 0]
    C, at, times = np.unique([p.concurrency for p in valid], return_inverse=True, return_counts=True)
    N = np.array([p.in_flight or p.concurrency for p in valid])
    X = np.array([p.output_tokens_per_s for p in valid])
    sigma = np.maximum(np.array([math.nan if p.se is None else p.se for p in valid]) / X, FLOOR)
    drift = between(np.log(X), sigma, at)
    w = 1 / (sigma**2 + drift**2)
    blind = np.isnan(np.bincount(at, w, len(C)))  # a level that was once held without an error has none
    w[blind[at]] = 1.0
    total = np.bincount(at, w, len(C))
    held = np.bincount(at, [not p.in_flight_ok for p in valid], len(C)) == 0
    return Levels(
        N=np.bincount(at, w * N, len(C)) / total,
        C=C,
        X=np.bincount(at, w * X, len(C)) / total,
        sigma=np.where(blind, math.nan, total**-0.5),
        held=held,
        times=times,
        drift=drift,
    )


def concurrency_at(levels: Levels, N: float) -> float:
    """C that holds N in flight: interpolated between the levels, in proportion beyond them."""
    first, last = levels.N[0], levels.N[-1]
    if first < N < last:
        return float(np.interp(N, levels.N, levels.C))
    edge = -1 if first < N else 0
    return float(N * levels.C[edge] / levels.N[edge])


# What follows from the coefficients


def _derived(s: Curves, N: Floats) -> dict[str, Floats]:
    """What has an interval, each [D] and on the axis of N; inf where there is none."""
    P, last = s.plateau, N[-1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        half, most = (  # N/(a + bN) = f·P
            np.where(np.isinf(P), np.inf, f * P * s.a / (1 - f * P * s.b)) for f in (0.5, 0.95)
        )
        depth = np.where(s.family == DIP, 1 - s.throughput(last)[:, 0] / P, 0.0)
        most_of_all = np.where(np.isinf(P), 1 / s.b, P)  # what no load exceeds
    return {
        "single": s.throughput(np.ones(1))[:, 0], "slope": 1 / s.a, "hinge": s.hinge, "plateau": P, "half": half,
        "plateau95": most, "depth": depth, "most": most_of_all,
    }  # fmt: skip


def _parameters(levels: Levels, best: Solved) -> dict[str, float]:
    """Coefficients of the chosen family, drift, lack of fit, and the leave-one-out error, relative rms.

    The last is the error at each level of the family fitted, with the same weights, to all the others.
    """
    N, chosen, family, n = levels.N, best.chosen, int(best.chosen.family[0]), len(levels.N)
    found = {"a": float(chosen.a[0]), "b": float(chosen.b[0])}
    if family >= CAPPED:
        found["P"] = float(chosen.plateau[0])
    if family == DIP:
        found["d"] = float(chosen.d[0])
    found |= {"drift": levels.drift, "lack_of_fit": float(best.tau[0]), "lack_of_fit_low": float(best.tau_low[0])}
    y = best.y[0]
    others = least_squares(N, np.broadcast_to(y, (n, n)), (1 - np.eye(n)) * best.weights[0], family)
    return found | {"leave_one_out": float(np.sqrt(np.mean((np.diagonal(others.y(N)) / y - 1) ** 2)))}


def _usl(levels: Levels, best: Solved, known: bool) -> dict[str, float] | None:
    """y = a + bN + kN² (Gunther's USL) under the same weights; None below 6 levels. Never chosen.

    Its peak is at N = √(a/k). The score compares with those that the families were chosen by.
    """
    N, n = levels.N, len(levels.N)
    if n < 3 + MORE_LEVELS:
        return None
    w = np.sqrt(best.weights[0])
    powers = np.vander(N / N[-1], 3, increasing=True)
    x, *_ = np.linalg.lstsq(powers * w[:, None], best.y[0] * w, rcond=None)
    chi2 = np.sum((w * (best.y[0] - powers @ x)) ** 2)
    a, b, k = (float(v) for v in x / N[-1] ** np.arange(3))
    found = {"a": a, "b": b, "k": k}
    if k > 0 and a > 0:
        found["peak_concurrency"] = concurrency_at(levels, math.sqrt(a / k))
    score = criterion(chi2[None, None], np.array([3]), n, None if known else best.sigma)
    return found | {"score": float(score[0, 0])}


def interval(draws: Floats) -> tuple[float, float]:
    """2.5 % and 97.5 % of the draws, outwards to the next draw, since infinities do not interpolate."""
    ordered = np.sort(draws)
    last = len(ordered) - 1
    return float(ordered[math.floor(0.025 * last)]), float(ordered[math.ceil(0.975 * last)])


def _end(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _not_reached(levels: Levels, best: Solved, draws: Curves, known: bool) -> list[str]:
    """Why the plateau counts as not reached (analytic.md §5); empty: it is reached."""
    N, B = levels.N, float(best.chosen.hinge[0])
    if math.isinf(B):
        return ["throughput still rises with load"]
    reasons = []
    past: Ints = np.flatnonzero(_past(N, best.chosen))
    if len(past) < 2:
        reasons.append(f"{len(past)} level{'s' * (len(past) != 1)} past the hinge, 2 are needed")
    sure = float(np.mean(draws.hinge / N[-1] < _BELOW_LAST))
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


def _past(N: Floats, curve: Curves) -> Bools:
    """Which levels lie past the hinge of a single curve."""
    return np.asarray(N / curve.hinge >= PAST)


def _unconfirmed(levels: Levels, chosen: Curves, depth: Value) -> list[str]:
    """Why a dip that was chosen is not confirmed; empty: it is."""
    past = _past(levels.N, chosen)
    repeated = int(np.count_nonzero(levels.times[past] >= TWICE))
    reasons = []
    if repeated < DIP_REPEATED:
        reasons.append(
            f"{repeated} level{'s' * (repeated != 1)} past the hinge measured twice, {DIP_REPEATED} are needed"
        )
    if not depth.ci95 or not depth.ci95[0] or depth.ci95[0] <= 0:
        reasons.append("its 95 % interval includes 0")
    return reasons


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
