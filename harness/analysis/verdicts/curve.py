"""What several levels show together: of the fitted curve, its dip, and of a level that was measured again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.analysis import explanation
from harness.analysis.hyperbolas import PAST
from harness.analysis.verdicts.server import KV_FULL
from harness.judgement import Code, Verdict, doubt, note
from harness.summary import Curve, Gap, LevelSummary, Phases
from harness.work import Unit

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


def dip_unconfirmed(depth: float | None, reasons: Sequence[str]) -> Verdict:
    """The curve that fits best falls past its hinge, but that may be chance; depth: share lost at the last level."""
    lost = "" if depth is None else f", by {depth:.0%} at the last level"
    return note(
        Code.DIP_UNCONFIRMED,
        f"throughput seems to fall past the knee{lost}; not confirmed: {'; '.join(reasons)}",
        "measure more levels past the knee, and each of them twice",
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


def above_peak(gap: Gap | None, phases: Phases | None) -> Verdict | None:
    """A doubt where more was reached than the hardware can do by its figures, at one request alone or by a probe."""
    mbu, mfu = (gap.mbu, gap.mfu) if gap else (None, None)
    probed = (
        phases.decode.mbu if phases and phases.decode else None,
        phases.prefill.mfu if phases and phases.prefill else None,
    )
    found = explanation.above_peak(mbu or probed[0], mfu or probed[1])
    if not found:
        return None
    return doubt(Code.ABOVE_PEAK, found, "check --gpu and --dtype: the prediction rests on these figures")


def _largest(levels: Sequence[LevelSummary], figure: str) -> float | None:
    found = [x for s in levels if s.server and (x := getattr(s.server, figure)) is not None]
    return max(found, default=None)


def drift(levels: Sequence[LevelSummary]) -> Verdict | None:
    """A doubt where one concurrency, measured again, differs by > 5 % and by > 3 of its standard errors."""
    worst: tuple[float, LevelSummary, LevelSummary] | None = None
    seen: dict[int | float | None, LevelSummary] = {}
    for s in levels:
        first = seen.setdefault(s.load, s)
        x, y = first.throughput.mean, s.throughput.mean
        if first is s or not x or y is None:
            continue
        error = math.hypot(first.output_tokens_per_s_se or 0.0, s.output_tokens_per_s_se or 0.0)
        change = y / x - 1
        if abs(change) > max(0.05, 3 * error / x) and (worst is None or abs(change) > abs(worst[0])):
            worst = change, first, s
    if worst is None:
        return None
    change, first, s = worst
    unit = "documents/s" if s.unit == Unit.DOCUMENTS else "tok/s"
    return doubt(
        Code.DRIFT,
        f"{first.throughput.mean:.4g} {unit} at first, {s.throughput.mean:.4g} when measured again ({change:+.1%})",
        "look for other load, a warming cache or a throttling GPU",
        s.load,
    )
