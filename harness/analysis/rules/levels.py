"""What several levels show together: of the curve, of its fall, of changed answers, and of a server that changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from harness.analysis import gap, slo
from harness.analysis.change import Again, Shift
from harness.analysis.conclusion import PAST
from harness.analysis.phases import Probed
from harness.analysis.points import PooledLevels
from harness.analysis.quality import PHRASES, Quality
from harness.analysis.rules import Finding, Place, Purpose, rule, usable
from harness.analysis.rules.figures import CACHED
from harness.data.judgement import DOUBT, NOTE, Outcome
from harness.data.levels import LevelSummary
from harness.data.prediction import Gap
from harness.data.summary import Curve

_FILLS, _FILLED = 3, 0.10  # levels, and the share of the prompt tokens, by which a cache fills up during a run


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """The levels that a curve is fitted to, and why its knee is not found."""

    at: ClassVar[None] = None  # the whole run
    levels: PooledLevels
    upright: int  # how many of them come before throughput has collapsed
    slip: int | None = None  # index of the level that is off by itself
    reasons: Sequence[str] = ()  # empty where it is found, and where levels are too few for a curve


class Concluded(msgspec.Struct, frozen=True, kw_only=True):
    """What the levels of a run show together."""

    at: ClassVar[None] = None  # the whole run
    levels: Sequence[LevelSummary] = ()  # the ramp's levels
    curve: Curve | None = None
    quality: Quality | None = None
    probed: Probed | None = None
    shift: Shift | None = None  # a change of the server
    again: Again | None = None  # what loads measured again show, where no change parts the levels
    gap: Gap | None = None


# ---- the fit ------------------------------------------------------------------------------------------------


@rule(Fitted, DOUBT, brief="throughput collapses past the knee: keep the load below it")
def throughput_collapses(fit: Fitted) -> Finding | None:
    """Throughput falls to less than 55 % of its second highest and stays there; the curve is that of the levels below.

    No curve here follows such a fall.
    """
    X, C, upright = fit.levels.X, fit.levels.C, fit.upright
    if upright == len(X):
        return None
    low, most, fall = upright + int(np.argmin(X[upright:])), int(np.argmax(X)), float(C[upright])
    return Finding(
        f"throughput collapses past the knee, from {X[most]:.4g} at {float(C[most]):g} in flight to {X[low]:.4g} at "
        f"{float(C[low]):g}; knee and plateau are those of the levels below {fall:g}",
        f"keep the load below {fall:g}, and look in the server's log for preemption, swapping and timeouts",
    )


@rule(Fitted, NOTE)
def level_off(fit: Fitted) -> Finding | None:
    """One level is off by itself: its throughput is not what all others show, so it hardly counts for the knee."""
    if fit.slip is None:
        return None
    C = float(fit.levels.C[fit.slip])
    return Finding(
        f"throughput at {C:g} in flight is not what all other levels show, so it hardly counts for the knee",
        f"measure {C:g} again",
        at=int(C) if int(C) == C else C,
    )


@rule(Fitted, NOTE, place=Place.NOWHERE)  # the headline has it, too
def plateau_not_reached(fit: Fitted) -> Finding | None:
    """The levels do not show where throughput stops rising."""
    if not fit.reasons or fit.upright < len(fit.levels.X):
        return None
    return Finding(
        f"knee and plateau are not shown by levels up to {fit.levels.N[-1]:.4g} in flight: {'; '.join(fit.reasons)}",
        "measure more levels",
    )


@rule(Concluded, NOTE, brief="throughput falls past the knee{}")
def dip_confirmed(run: Concluded) -> Finding | None:
    """Throughput falls past the knee, and a repeat confirms it.

    The message says what the server reported past the hinge.
    """
    hinge = run.curve.hinge_concurrency.value if run.curve else None
    if run.curve is None or run.curve.dip is None or run.curve.dip.value is None or hinge is None:
        return None
    past = [level.server for level in run.levels if level.server and (level.concurrency or 0) >= PAST * hinge]
    preempted = max((server.preemptions or 0.0 for server in past), default=0.0)
    waiting = max((server.waiting or 0.0 for server in past), default=0.0)
    used = max((server.kv_usage or 0.0 for server in past), default=0.0)
    seen = f"up to {preempted:.4g} preemptions, {waiting:.4g} requests waiting, KV cache {used:.0%} full"
    why = f"past the knee the server reported {seen}" if past else "the server reported nothing of itself"
    fall = f"throughput falls by {run.curve.dip.value:.0%} from the knee at {hinge:.4g} to the last level"
    return Finding(
        f"{fall}; {why}",
        f"keep concurrency near {hinge:.4g}, or limit the batch there; preempted work is done twice",
    )


# ---- answers and phases -------------------------------------------------------------------------------------


@rule(Concluded, DOUBT)
def answers_changed(run: Concluded) -> Iterator[Finding]:
    """More canaries than unloaded have other words, a flaw, another finish reason or a wrong answer."""
    found = run.quality.found if run.quality else []
    for load in dict.fromkeys(each.load for each in found):
        parts = [
            f"{each.changed} of {each.n} canaries' answers {PHRASES[each.what]} ({each.changed / each.n:.1%}; "
            f"before {each.before} of {each.of})"
            for each in found
            if each.load == load
        ]
        yield Finding(
            "; ".join(parts),
            "look at what the server does under load: batch size, speculation, KV precision, preemption",
            at=int(load) if load == int(load) else load,
        )


@rule(Concluded, NOTE)
def prefill_flat(run: Concluded) -> Finding | None:
    """TTFT does not rise with the prompt at the length that was asked for."""
    if run.probed is None or run.probed.flat_below is None:
        return None
    return Finding(
        f"TTFT does not grow with the prompt below {run.probed.flat_below:.0f} tokens; its slope is quoted there",
        "ask for longer prompts: --input-tokens",
    )


@rule(Concluded, NOTE, brief="the phase's plateau is not reached")
def phase_plateau_not_reached(run: Concluded) -> Finding | None:
    """The throughput of a probed phase still rises at its last level."""
    best = run.probed.best if run.probed else None
    if run.probed is None or best is None:
        return None
    phase = "prefill" if run.probed.phases.prefill else "decode"
    where = f"C = {best.concurrency}" if best.concurrency is not None else f"{best.rate:g} req/s"
    return Finding(
        f"the {phase} ramp reached no plateau: its capacity is that of its best level, {where}, or more",
        "measure higher levels: --max-concurrency",
    )


@rule(Concluded, DOUBT)
def near_capacity(run: Concluded) -> Finding | None:
    """The highest rate that meets the SLO is so near to what the server completes that its window is too short for the
    queue there: in a longer one it may miss.
    """
    rates = slo.by_load(run.levels, rates=True)
    met = max((rate for rate, each in rates.items() if each.leans == Outcome.MET), default=None)
    near = slo.near_capacity(run.levels, met)
    if near is None:
        return None
    share, queue_s = near.rate / near.capacity, near.queue_s
    takes = "does not end" if math.isinf(queue_s) else f"takes some {queue_s:,.0f} s to come and go"
    message = (
        f"{near.rate:g} requests per second are {share:.0%} of the {near.capacity:.3g} that the server completes: a "
        f"queue there {takes}, and the window had {near.window_s:,.0f} s"
    )
    if math.isinf(queue_s):
        return Finding(message, "plan with a lower rate")
    longer = f"--rate {near.rate:g} --level-seconds {slo.QUEUE_TIMES * queue_s:.0f}s"
    return Finding(message, f"hold it for longer ({longer}), or plan with a lower rate")


@rule(Concluded, NOTE)
def prompts_interrupt(run: Concluded) -> Finding | None:
    """A limit on a percentile of ITL or ICL is missed only by gaps in which prompts of others are computed."""
    for level in sorted(run.levels, key=lambda s: s.load or 0.0):
        for each in level.slo:
            late = 1 - (each.fraction if each.fraction is not None else 1.0)
            others = each.interrupted or 0.0
            if each.outcome == Outcome.MISSED and late - others <= 1 - each.needed < late:
                where = f"C = {level.concurrency}" if level.rate is None else f"{level.rate:g} req/s"
                return Finding(
                    f"{each.limit} is missed from {where} on, since prompts of others interrupt {others:.1%} of the "
                    f"gaps; of the other gaps {(late - others) / (1 - others):.1%} are late",
                    "limit tpot if the pace of a whole response is meant, or let the server compute prompts in chunks",
                )
    return None


# ---- the server ---------------------------------------------------------------------------------------------


@rule(Concluded, DOUBT, brief="the server changed during the run: --verbose says when")
def drift(run: Concluded) -> Finding | None:
    """The server changed during the run; the answer rests on the levels before that, since, or on all if it drifted."""
    advice = "look for an autoscaler, other load, a GPU that throttles or a cache that fills; measure again"
    shift = run.shift
    if shift is None and run.again and run.again.ratio.ci95:
        ratio, (low, high) = run.again.ratio.value, run.again.ratio.ci95
        return Finding(
            f"the server changed all along: {run.again.apart_s:,.0f} s later the same loads had {ratio:.2f} times the "
            f"throughput (95 % interval {low:.2f}–{high:.2f}); knee and plateau are those of all levels",
            advice,
        )
    if shift is None:
        return None
    ratio, (low, high) = shift.ratio.value or 1.0, shift.ratio.ci95 or (None, None)
    ends = f" (95 % interval {low:.2f}–{high:.2f})" if low is not None and high is not None else ""
    when = f"{shift.start_s:,.0f} to {shift.end_s:,.0f} s into the run"
    often = "the server changed" if shift.times == 1 else f"the server changed {shift.times} times"
    served = f", and another number of requests at once than the {shift.served:.3g} before" if shift.served else ""
    if shift.steady is None:
        rests = "all levels, since no stretch is long enough"
    else:
        first, end = shift.steady
        rests = f"the {end - first} levels {'since then' if first == shift.since else 'before it, as few came after'}"
    return Finding(
        f"{often}, {when}: {ratio:.2f} times the throughput at {shift.concurrency:.3g} in flight from then on{ends}"
        f"{served}; knee and plateau are those of {rests}",
        advice,
    )


@rule(Concluded, DOUBT, brief="the prefix cache filled up during the run: later levels had more of it")
def cache_filled(run: Concluded) -> Finding | None:
    """The prefix cache served ever more of the prompts from level to level, so throughput rose for that reason, too."""
    shares = [level.cached_input_fraction for level in run.levels if usable(level, Purpose.POINT)]
    known = [share for share in shares if share is not None]
    rises = all(later >= earlier - CACHED for earlier, later in itertools.pairwise(known))
    if len(known) < _FILLS or not rises or known[-1] - known[0] <= _FILLED:
        return None
    return Finding(
        f"the prefix cache served {known[0]:.0%} of the prompt tokens at the first level and {known[-1]:.0%} at the "
        "last: throughput rose for that reason, too",
        "measure again while it is full, or empty it before each level with --reset-cache",
    )


@rule(Concluded, DOUBT, brief="a figure of the hardware is wrong: MBU or MFU is above 1")
def above_peak(run: Concluded) -> Finding | None:
    """MBU or MFU is above 1, at one request alone or by a probe: a figure of the hardware is too low, or it is another
    card.
    """
    mbu, mfu = (run.gap.mbu, run.gap.mfu) if run.gap else (None, None)
    phases = run.probed.phases if run.probed else None
    probed_mbu = phases.decode.mbu if phases and phases.decode else None
    probed_mfu = phases.prefill.mfu if phases and phases.prefill else None
    found = gap.above_peak(mbu or probed_mbu, mfu or probed_mfu)
    return Finding(found, "check --gpu and --dtype: the prediction rests on these figures") if found else None
