"""What several levels show together: of the curve, of its fall, and of a server that changed during its run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.change import Shift
from harness.analysis.conclusion import PAST
from harness.analysis.verdicts.server import KV_FULL
from harness.data.judgement import Code, Verdict, doubt, note
from harness.data.summary import Curve, LevelSummary

GPU_BUSY = 0.70  # of the time, from which on a GPU does not wait for its host
PROCESSOR_IDLE = 0.5  # processors of this machine, below which all count as busy


def plateau_not_reached(reasons: Sequence[str], last: float) -> Verdict:
    return note(
        Code.PLATEAU_NOT_REACHED,
        f"plateau not reached up to {last:.4g} in flight: {'; '.join(reasons)}",
        "raise --max-concurrency, or hold the levels above the knee longer",
    )


def knee_not_identifiable(levels: int, needed: int) -> Verdict:
    return note(
        Code.KNEE_NOT_IDENTIFIABLE,
        f"knee not identifiable: {levels} distinct valid level{'s' * (levels != 1)}, at least {needed} are needed",
        "measure more levels, some of them around the bend",
    )


def throughput_collapses(most: float, at: float, least: float, least_at: float, fall: float) -> Verdict:
    """Past the knee throughput falls further than any curve here follows; output tok/s, and where, in flight."""
    return doubt(
        Code.THROUGHPUT_COLLAPSES,
        f"throughput collapses past the knee, from {most:.4g} at {at:g} in flight to {least:.4g} at {least_at:g}; "
        f"knee and plateau are those of the levels below {fall:g}",
        f"keep the load below {fall:g}, and look in the server's log for preemption, swapping and timeouts",
    )


def dip_confirmed(curve: Curve, levels: Sequence[LevelSummary]) -> Verdict | None:
    """What a confirmed dip costs, and what the server reported past the hinge and not below it."""
    hinge = curve.hinge_concurrency.value
    if curve.dip is None or curve.dip.value is None or hinge is None:
        return None
    seen = [s for s in levels if s.concurrency is not None and s.server is not None]
    past = [s for s in seen if (s.concurrency or 0) >= PAST * hinge]
    below = [s for s in seen if s not in past]
    signs = []
    preempted = _largest(past, "preemptions")
    if preempted and preempted > 2 * (_largest(below, "preemptions") or 0.0):
        signs.append(f"up to {preempted:.4g} preemptions in a window")
    if (used := _largest(past, "kv_usage") or 0.0) >= KV_FULL:
        signs.append(f"KV cache {used:.0%} full")
    if (waiting := _largest(past, "waiting") or 0.0) >= 1:
        signs.append(f"up to {waiting:.4g} requests waiting")
    if signs:
        why = f"past the knee the server reported {', '.join(signs)}"
    elif past:
        why = "nothing that the server reported past the knee explains it"
    else:
        why = "the server reported nothing of itself"
    if preempted:
        advice = "lower its batch limit or give its KV cache more memory: preempted work is done twice"
    else:
        advice = f"keep concurrency near {hinge:.4g}, or limit the batch there"
    return note(
        Code.DIP_CONFIRMED,
        f"throughput falls by {curve.dip.value:.0%} from the knee at {hinge:.4g} to the last level; {why}",
        advice,
    )


def host_bound(curve: Curve, levels: Sequence[LevelSummary]) -> Verdict | None:
    """Where nothing is decoded and throughput is flat while the GPUs wait: what feeds them binds."""
    hinge = curve.hinge_concurrency.value
    if hinge is None:
        return None
    past = [s for s in levels if s.unit and s.concurrency is not None and s.concurrency >= PAST * hinge]
    busy = [s.gpu.utilization for s in past if s.gpu and s.gpu.utilization is not None]
    if not busy or max(busy) >= GPU_BUSY:
        return None
    idle = [s.client.idle_processors for s in past if s.client.idle_processors is not None]
    full = ", and no processor of this machine is idle" if idle and max(idle) < PROCESSOR_IDLE else ""
    return doubt(
        Code.HOST_BOUND,
        f"past the knee at {hinge:.4g} the GPUs compute for {max(busy):.0%} of the time{full}: "
        "tokenising or the host binds, not the GPU",
        "give the server more API or tokenizer processes, or send more inputs a request",
    )


def _largest(levels: Sequence[LevelSummary], figure: str) -> float | None:
    found = [x for s in levels if s.server and (x := getattr(s.server, figure)) is not None]
    return max(found, default=None)


def changed(shift: Shift, levels: int) -> Verdict:
    """Return the doubt of a server that changed during its run; the answer rests on so many levels."""
    ratio, (low, high) = shift.ratio.value or 1.0, shift.ratio.ci95 or (None, None)
    ends = f" (95 % interval {low:.2f}–{high:.2f})" if low is not None and high is not None else ""
    when = f"{shift.start_s:,.0f} to {shift.end_s:,.0f} s into the run"
    often = "the server changed" if shift.times == 1 else f"the server changed {shift.times} times"
    served = f", and another number of requests at once than the {shift.served:.3g} before" if shift.served else ""
    if shift.steady is None:
        rests = "all levels, since no stretch is long enough"
    elif shift.steady[0] == shift.since:
        rests = f"the {levels} levels since then"
    else:
        rests = f"the {levels} levels before it, as few came after"
    return doubt(
        Code.DRIFT,
        f"{often}, {when}: {ratio:.2f} times the throughput at {shift.concurrency:.3g} in flight from then on{ends}"
        f"{served}; knee and plateau are those of {rests}",
        "look for an autoscaler, other load or a throttling GPU at that time, and measure again",
    )
