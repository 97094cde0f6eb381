"""The figures of a phase probe: what a prompt token costs, how many are computed, how fast tokens are generated. Pure.

Prefill: one output token over growing prompts, one request in flight, TTFT against the prompt's length P. What does not
grow with P (network, scheduling, the step that the first token leaves with) is in the intercept, so prefill is
described by the slope and not by P/TTFT. Attention makes TTFT convex, and prompts too short to keep the arithmetic busy
take as long as reading the weights does:

    TTFT(P) = max(floor, c + s P + q P²),  q >= 0

Decode: short prompts, long answers. The two phases are quoted apart and never summed. Left out: the server's own
figures of its prefill time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import Z95, t_quantile
from harness.analysis.table import Floats
from harness.data.levels import LevelSummary
from harness.data.manifest import Roof
from harness.data.summary import Curve, DecodePhase, Phases, PrefillPhase
from harness.data.views import Value

_ASSUMED = 0.02  # relative error of a TTFT whose level has no error of its own


class Probed(msgspec.Struct, frozen=True):
    """The phase that a run probed, and what its figures lack."""

    phases: Phases
    best: LevelSummary | None  # the level that gives the capacity, if the ramp reached no plateau
    flat_below: float | None = None  # prompt tokens, where TTFT does not rise yet at the requested length


def of_probe(
    probe: str | None,
    levels: Sequence[LevelSummary],
    curve: Curve | None,
    *,
    input_tokens: float,
    roof: Roof | None = None,
) -> Probed | None:
    """Return the phase that the run probed; None of a run that is no probe.

    `levels` are all of the run, `curve` the fit to those of its ramp, `input_tokens` the requested prompt length.
    """
    if probe == "prefill":
        return _prefill(levels, curve, input_tokens=input_tokens, roof=roof)
    return _decode(levels, curve, roof=roof) if probe == "decode" else None


def _prefill(levels: Sequence[LevelSummary], curve: Curve | None, *, input_tokens: float, roof: Roof | None) -> Probed:
    """Return the prefill phase of a probe: prompt tok/s at the plateau, and at C = 1 seconds per prompt token and MFU.

    MFU = (2 body + 4 L n_q d P) / (F dTTFT/dP) at the requested P: the FLOP of one prompt token more over those that
    the GPUs could have done in its time. Where TTFT is still flat at that P, it is the P from which it rises.
    """
    alone = [s for s in levels if s.concurrency == 1 and s.ttft_s.mean is not None and usable(s, Purpose.POINT)]
    P = np.array([_prompt(s, input_tokens) for s in alone])
    t = np.array([s.ttft_s.mean for s in alone], dtype=np.float64)
    # One request follows the other, each with an answer of one token: TTFT has the relative error of the level's rate.
    rise = fit(P, t, t * np.array([_relative_error(s) for s in alone]))
    at = max(input_tokens, rise.begins) if rise is not None else input_tokens
    slope = rise.slope(at) if rise is not None else Value(None)
    capacity, shown, best = _plateau(levels, curve)
    requests = sum(s.requests for s in shown) or 1
    prompt = sum(_prompt(s, input_tokens) * s.requests for s in shown) / requests
    answer = sum((s.output_tokens_mean or 1.0) * s.requests for s in shown) / requests
    prefill = PrefillPhase(
        tokens_per_s=capacity.times(prompt / answer) if prompt and answer else Value(None),
        seconds_per_token=slope,
        ttft_base_s=rise.base() if rise is not None else Value(None),
        mfu=_share(roof.token(at), slope) if roof is not None else None,
        lengths=sorted(zip(P.tolist(), t.tolist(), strict=True)),
    )
    return Probed(Phases(prefill=prefill), best, at if at > input_tokens else None)


def _decode(levels: Sequence[LevelSummary], curve: Curve | None, *, roof: Roof | None) -> Probed:
    """Return the decode phase of a probe: output tok/s at the plateau (no first tokens), and at C = 1 ITL and MBU.

    MBU = (W(1) + (ctx + 1) kv) / (BW ITL), ctx = P + G/2: the bandwidth that was reached, over the data sheet's. A
    step's launch and scheduling are in ITL and at one request in flight cannot be separated from its reading, so they
    lower this MBU below the share of its bandwidth at which the GPU reads while it does.
    """
    capacity, shown, best = _plateau(levels, curve)
    whole = sum((s.output_tokens_per_s.mean or 0.0) * s.window_s for s in shown)
    later = sum((s.decode_tokens_per_s or 0.0) * s.window_s for s in shown)
    alone = [level for level in levels if level.concurrency == 1 and level.itl_s.mean and usable(level, Purpose.POINT)]
    itl = sum(s.itl_s.mean or 0.0 for s in alone) / len(alone) if alone else None
    mbu = None
    if roof is not None and itl is not None:
        context = sum((s.input_tokens_mean or 0.0) + (s.output_tokens_mean or 0.0) / 2 for s in alone) / len(alone)
        error = math.sqrt(sum(_relative_error(s) ** 2 for s in alone)) / len(alone)
        ends = (itl * (1 - Z95 * error), itl * (1 + Z95 * error))
        mbu = _share(roof.step(context), Value(itl, ends))
    found = DecodePhase(
        tokens_per_s=capacity.times(later / whole) if later and whole else Value(None), itl_s=itl, mbu=mbu
    )
    return Probed(Phases(decode=found), best)


# ---- TTFT over the length of the prompt ------------------------------------------------------------------


class Rise(msgspec.Struct, frozen=True):
    """TTFT = c + s P + q P² where it rises; `covariance` of (c, s, q), `quantile` of its errors (None: no interval)."""

    coefficients: tuple[float, float, float]
    covariance: tuple[tuple[float, ...], ...]
    quantile: float | None
    begins: float  # the shortest prompt that is longer than the flat part; the shortest of all if nothing is flat

    def base(self) -> Value:
        """Return c, the TTFT of an empty prompt, extrapolated; seconds."""
        return self._along(1.0, 0.0, 0.0)

    def slope(self, P: float) -> Value:
        """Return dTTFT/dP = s + 2 q P; seconds a prompt token."""
        return self._along(0.0, 1.0, 2 * P)

    def _along(self, *direction: float) -> Value:
        """Return the combination of the coefficients by `direction`, with an interval by their covariance."""
        g = np.array(direction)
        value = float(g @ np.array(self.coefficients))
        if self.quantile is None:
            return Value(value)
        half = self.quantile * math.sqrt(max(0.0, float(g @ np.array(self.covariance) @ g)))
        return Value(value, (value - half, value + half))


class _TtftFit(msgspec.Struct, frozen=True):
    """One form of the curve, fitted."""

    rise: Rise
    chi2: float
    freedom: int  # points beyond coefficients

    def score(self, points: int, scatter: float) -> float:
        """Return AICc with known errors, widened by the `scatter` that no form explains: less is better."""
        k = points - self.freedom
        return self.chi2 / scatter + 2 * k + 2 * k * (k + 1) / (self.freedom - 1)


def fit(P: Floats, t: Floats, se: Floats) -> Rise | None:
    """Return the TTFT over prompt length by weighted least squares, with a flat part for short prompts; None below two.

    `t` are means, `se` their standard errors, shape [levels]. With j of the shortest lengths in the flat part, the
    others carry c + s P + q P² (q only where it is above 0 and four or more points bear it); j is chosen by AICc.
    Intervals by t on the points beyond coefficients, the errors never narrower than `se` and as wide as the points
    scatter.

    >>> P = np.array([100.0, 200.0, 400.0, 800.0])
    >>> line = fit(P, 0.01 + 5e-5 * P, 1e-4 * np.ones(4))
    >>> round(line.base().value, 6), round(line.slope(400.0).value, 9)
    (0.01, 5e-05)
    """
    known = np.unique(P)
    if len(known) < 2:
        return None
    made = _rising(P, t, se, known[0])
    forms = [made]
    if made.freedom >= 2:
        for flat, begins in itertools.pairwise(known[:-1]):  # two lengths are left to rise
            form = _with_floor(P, t, se, float(flat), float(begins))
            if form is not None and form.freedom >= 2:
                forms.append(form)
    if len(forms) > 1:
        scatter = max(1.0, min(form.chi2 / form.freedom for form in forms))
        made = min(forms, key=lambda form: form.score(len(P), scatter))
    return _with_interval(made)


def _rising(P: Floats, t: Floats, se: Floats, begins: float) -> _TtftFit:
    """Return the fit c + s P + q P² without a flat part, its covariance by `se`; q is 0 if it would be below 0.

    q is also 0 with fewer than four lengths.
    """
    unit = float(P.max())  # keeps the columns of one size
    x = P / unit
    A = np.stack([np.ones_like(x), x, x * x], axis=1)
    for terms in (3, 2):
        if terms == 3 and len(np.unique(P)) < 4:
            continue
        weighted = A[:, :terms] / se[:, None]
        coefficients, _, _, _ = np.linalg.lstsq(weighted, t / se, rcond=None)
        if terms == 2 or coefficients[2] >= 0:
            break
    inverse = np.zeros((3, 3))
    inverse[:terms, :terms] = np.linalg.inv(weighted.T @ weighted)
    scale = np.array([1.0, 1 / unit, 1 / unit**2])
    c, s, q = (np.append(coefficients, 0.0)[:3] * scale).tolist()
    covariance = tuple(tuple(row) for row in (inverse * np.outer(scale, scale)).tolist())
    chi2 = float((((A[:, :terms] @ coefficients - t) / se) ** 2).sum())
    return _TtftFit(Rise((c, s, q), covariance, None, float(begins)), chi2, len(P) - terms)


def _with_floor(P: Floats, t: Floats, se: Floats, flat: float, begins: float) -> _TtftFit | None:
    """Return the fit of a constant TTFT up to `flat` tokens and a rise from `begins`; None if they do not meet."""
    low = flat >= P
    weight = 1 / se[low] ** 2
    floor = float((t[low] * weight).sum() / weight.sum())
    made = _rising(P[~low], t[~low], se[~low], begins)
    c, s, q = made.rise.coefficients
    if not c + s * flat + q * flat * flat <= floor <= c + s * begins + q * begins * begins:
        return None
    chi2 = float((((t[low] - floor) / se[low]) ** 2).sum())
    return _TtftFit(made.rise, made.chi2 + chi2, made.freedom + int(low.sum()) - 1)


def _with_interval(made: _TtftFit) -> Rise:
    if made.freedom < 1:
        return made.rise
    wider = max(1.0, made.chi2 / made.freedom)
    covariance = tuple(tuple(value * wider for value in row) for row in made.rise.covariance)
    return msgspec.structs.replace(made.rise, covariance=covariance, quantile=t_quantile(0.975, made.freedom))


def _prompt(level: LevelSummary, requested: float) -> float:
    """Return prompt tokens of a level's requests, as they were counted, else as requested."""
    return float(level.input_tokens_mean or level.input_tokens_asked or requested)


def _relative_error(level: LevelSummary) -> float:
    rate = level.output_tokens_per_s.mean
    return level.output_tokens_per_s_se / rate if rate and level.output_tokens_per_s_se else _ASSUMED


# ---- capacity --------------------------------------------------------------------------------------------


def _plateau(
    levels: Sequence[LevelSummary], curve: Curve | None
) -> tuple[Value, list[LevelSummary], LevelSummary | None]:
    """Return output tok/s of the plateau and the levels past its hinge, else of the best level, and that level."""
    ramp = [
        s for s in levels if s.input_tokens_asked is None and s.output_tokens_per_s.mean and usable(s, Purpose.POINT)
    ]
    if not ramp:
        return Value(None), [], None
    if curve is not None and curve.plateau_reached and curve.plateau_tokens_per_s.value is not None:
        hinge = curve.hinge_concurrency.value or 0.0
        above = [s for s in ramp if (s.in_flight or s.concurrency or 0.0) >= hinge]
        return curve.plateau_tokens_per_s, above or ramp, None
    best = max(ramp, key=lambda s: s.output_tokens_per_s.mean or 0.0)
    return Value(best.output_tokens_per_s.mean, best.output_tokens_per_s.ci95), [best], best


def _share(least: float, taken: Value) -> Value | None:
    """Return `least` / `taken`, both times, with the 95 % interval that `taken` gives it; None if taken ≤ 0."""
    if taken.value is None or taken.value <= 0:
        return None
    if taken.ci95 is None:
        return Value(least / taken.value)
    low, high = taken.ci95
    return Value(
        least / taken.value, (least / high if high else None, least / low if low is not None and low > 0 else None)
    )
