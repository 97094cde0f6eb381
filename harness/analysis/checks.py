"""Five checks before a server goes into service, each by figures of a finished run. Pure.

    phases             prefill and decode have each a time of their own, and prompts do not take most of it
    p99_ttft           the wait for the first token, not of most users but of nearly all
    kv_cache           how full the KV cache is, and whether its hits are those that the workload allows
    long_context_tail  the cache holds although a few requests are much longer than the mean
    node_loss          the replicas that are left carry the load

A check is of the longest valid level at the knee (`answer.knee_load`), else at the largest load. What the run did not
measure is "not measured", with what would. docs/definitions.md, Checks, has the thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.analysis.answer import knee_load
from harness.analysis.gap import KV_FULL
from harness.analysis.rules import Purpose, usable
from harness.analysis.slo import by_load
from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.data.summary import Check, NodeLoss, WorkloadSummary
from harness.data.views import ServerView

PASS, DOUBT, NOT_MEASURED = "pass", "doubt", "not measured"
SECONDS = ("p99_ttft",)  # checks whose threshold is a time; the others' are shares

PREFILL_MOST = 0.5  # share of the time on a request; beyond it output tok/s is limited by prompts
TTFT_P99_S = 2.0  # MLPerf Inference v4.0, Llama 2 70B, server scenario: 99 % within 2,000 ms
_ALONE = 1.5  # requests in flight up to which TTFT is the time on the prompt, without a queue
HITS_SHORT = 0.10  # share of the looked-up tokens that may miss although the workload allows a hit
TAIL = 2.0  # p99 of the context over its mean, from which on a workload has a tail


def of_run(
    levels: Sequence[LevelSummary],
    knee: float | None,
    slo: Mapping[str, float],
    *,
    expected_hits: float | None = None,
    workload: WorkloadSummary | None = None,
    losses: Sequence[NodeLoss] = (),
    room: float | None = None,
) -> list[Check]:
    """Return the checks of a run, in their order; none without a level.

    `slo` are the run's limits in seconds, `expected_hits` the share of prompt tokens that a cache which keeps all would
    have, `room` the tokens that the slots of one server hold, where it has slots.
    """
    valid = [level for level in levels if usable(level, Purpose.ANSWER)]
    if not valid:
        return []
    # A search's shortest windows have less than one request a slot, and say little of their load.
    full = [s for s in valid if s.requests >= (s.load or 0.0)] or valid
    loads = [s.load or 0.0 for s in full]
    at = _longest(full, knee_load(knee, loads) or max(loads))
    return [
        phases(at, valid),
        p99_ttft(at, valid, slo),
        kv_cache(at, _server(at, room), expected_hits),
        long_context_tail(at, _server(at, room), workload),
        node_loss(losses),
    ]


def _longest(levels: Sequence[LevelSummary], load: float) -> LevelSummary:
    """Return the level of that load that was measured for longest."""
    return max((level for level in levels if (level.load or 0.0) == load), key=lambda s: s.window_s)


def _unmeasured(name: str, why: str, at: float | None = None, **figures: float) -> Check:
    return Check(name=name, outcome=NOT_MEASURED, figures=figures, at=at, message=why)


def _judged(
    name: str, doubt: str, at: float | None, figures: dict[str, float], source: str, threshold: float | None = None
) -> Check:
    """Return a check with its figures; it passes if there is no doubt ("")."""
    outcome = DOUBT if doubt else PASS
    return Check(name=name, outcome=outcome, figures=figures, threshold=threshold, source=source, at=at, message=doubt)


def phases(at: LevelSummary, levels: Sequence[LevelSummary]) -> Check:
    """Check that prompts take no more than the usual share of the server's time, else of one lone request's time."""
    if not at.decodes:
        why = "it does not apply: nothing is decoded, and prefill is all of a request"
        return _unmeasured("phases", why, at.load)
    share, figure = at.phases.prefill_share.mean if at.phases else None, "prefill_fraction"
    source = "half of the server's busy time"
    if share is None and at.server:
        share, source = at.server.prefill_time_fraction, "half of a request's time"
    streamed = (s for s in levels if s.itl_s.mean is not None and s.in_flight is not None and s.in_flight <= _ALONE)
    alone = max(streamed, key=lambda s: s.window_s, default=None)
    if share is None and alone is not None and alone.ttft_s.mean is not None and alone.e2e_s.mean:
        share, figure, at = alone.ttft_s.mean / alone.e2e_s.mean, "ttft_over_e2e", alone
        source = "half of a request's time"
    if share is None:
        why = "the server publishes no times, and no level has one request in flight whose answer streams: add level 1"
        return _unmeasured("phases", why)
    far = "prompts take most of the time: look at prompt tokens/s, not at output" if share > PREFILL_MOST else ""
    return _judged("phases", far, at.load, {figure: share}, source, PREFILL_MOST)


def p99_ttft(at: LevelSummary, levels: Sequence[LevelSummary], slo: Mapping[str, float]) -> Check:
    """Check p99 TTFT against the run's own limit, by the share of requests within it, else against MLPerf's limit.

    A limit that less load is known to miss is missed at this load too, however few requests it had.
    """
    if not at.decodes:
        why = "it does not apply: nothing is decoded, and no token is the first"
        return _unmeasured("p99_ttft", why, at.load)
    limit = slo.get("ttft_p99", slo.get("ttft"))
    threshold = TTFT_P99_S if limit is None else limit
    load = at.load or 0.0
    values = {
        of: each
        for of, judged in by_load(levels, rates=at.rate is not None).items()
        for each in judged.pooled
        if each.limit.split("=")[0] in ("ttft_p99", "ttft") and not each.class_ and each.outcome != Outcome.UNRESOLVED
    }
    deciding = [of for of, each in values.items() if of == load or (of < load and each.outcome == Outcome.MISSED)]
    decided = values[max(deciding)] if deciding else None
    if at.ttft_s.p99 is None and decided is None:
        why = f"{at.ttft_s.n} requests do not carry a p99: hold the level longer"
        return _unmeasured("p99_ttft", why, at.load)
    at = _longest(levels, max(deciding, default=load))
    late = decided.outcome == Outcome.MISSED if decided else (at.ttft_s.p99 or 0.0) > threshold
    within = decided.fraction if decided else None
    seen = {"ttft_p99_s": at.ttft_s.p99, "ttft_p50_s": at.ttft_s.p50, "within": within}
    figures = {name: value for name, value in seen.items() if value is not None}
    doubt = "one user in a hundred waits longer: lower the load, or give it more replicas" if late else ""
    source = "MLPerf Inference, Llama 2 70B, server" if limit is None else "the run's SLO"
    return _judged("p99_ttft", doubt, at.load, figures, source, threshold)


def kv_cache(at: LevelSummary, server: ServerView | None, expected_hits: float | None) -> Check:
    """Check that the KV cache is not full, preempts nothing, and has as many hits as the workload allows."""
    if server is None or server.kv_usage is None:
        why = "the server publishes no KV use: docs/server-metrics.md has the engines that do"
        return _unmeasured("kv_cache", why, at.load)
    figures = {"kv_usage": server.kv_usage}
    reasons = ["the KV cache is full"] if server.kv_usage >= KV_FULL else []
    if server.preemptions is not None:
        figures["preemptions"] = server.preemptions
        reasons += [f"{server.preemptions:.0f} requests were preempted"] if server.preemptions else []
    hits = server.prefix_hit_fraction
    if hits is not None:
        figures["hit_fraction"] = hits
        if expected_hits and hits < expected_hits - HITS_SHORT:
            reasons.append(
                f"{hits:.0%} of the looked-up tokens were in the cache, the workload allows {expected_hits:.0%}"
            )
    return _judged("kv_cache", "; ".join(reasons), at.load, figures, "a full cache; no preemption", KV_FULL)


def _server(at: LevelSummary, room: float | None) -> ServerView | None:
    """Return the figures that the server publishes; of several replicas, those of the one with the fullest KV cache.

    A server with slots (llama-server) publishes no KV use: it is estimated. Each request that streams keeps its prompt
    and on average half of its answer in the slots, which have `room` tokens.
    """
    replicas = list((at.replicas or {}).values())
    views = [replica.server for replica in replicas if replica.server] or ([at.server] if at.server else [])
    published = [view for view in views if view.kv_usage is not None]
    if published or not room or not at.service or at.service.streaming.mean is None:
        return max(published, key=lambda view: view.kv_usage or 0.0) if published else at.server
    fullest = max((replica.in_flight_share or 0.0 for replica in replicas), default=1.0)
    tokens = (at.input_tokens_mean or 0.0) + (at.output_tokens_mean or 0.0) / 2
    usage = fullest * at.service.streaming.mean * tokens / room
    return msgspec.structs.replace(views[0] if views else ServerView(), kv_usage=usage)


def long_context_tail(at: LevelSummary, server: ServerView | None, workload: WorkloadSummary | None) -> Check:
    """Check that the KV cache does not fill where some requests are much longer than most (p99 ≥ twice the mean)."""
    tail = _tail(workload)
    if tail is None or tail < TAIL:
        why = "the longest requests are hardly longer than the mean: measure `knee run checks`, or lengths of your own"
        return _unmeasured("long_context_tail", why, at.load, **({} if tail is None else {"p99_over_mean": tail}))
    if server is None or server.kv_usage is None:
        return _unmeasured("long_context_tail", "the server publishes no KV use", p99_over_mean=tail)
    preempted = server.preemptions or 0.0
    full = server.kv_usage >= KV_FULL or preempted > 0 or at.errors > 0
    doubt = "the tail fills the cache: plan by p99 of the context, or give it replicas of its own" if full else ""
    figures = {"p99_over_mean": tail, "kv_usage": server.kv_usage, "preemptions": preempted}
    return _judged("long_context_tail", doubt, at.load, figures, "a full cache; no preemption, no error", KV_FULL)


def _tail(workload: WorkloadSummary | None) -> float | None:
    """Return the measured p99 of prompt + answer, of the class with the longest, over the requested mean."""
    weights = total = longest = 0.0
    for each in workload.classes if workload is not None else ():
        prompt, answer = each.input_tokens, each.output_tokens
        came, asked = (prompt.realised, answer.realised), (prompt.asked, answer.asked)
        if came[0].mean is None or came[1].mean is None:
            continue
        # A class of few requests has no p99 to speak of; its longest are at least as long as its mean.
        longest = max(longest, sum((x.p99 or x.mean or 0.0) for x in came))
        weight = each.share_asked if all(asked) else each.requests
        weights += weight
        total += weight * sum((x.mean or 0.0) for x in (asked if all(asked) else came) if x)
    return longest * weights / total if total else None


def node_loss(losses: Sequence[NodeLoss]) -> Check:
    """Return the check on whether, while a replica was lost, the others could carry the load of all.

    Judged by the worst loss that has enough requests; not measured where no replica was lost or none has.
    """
    known = [loss for loss in losses if loss.headroom_held is not None]
    if not known:
        why = "the others had too few requests while it was missing: hold that level for longer"
        if not losses:
            why = "no replica was lost: give several --url, and --stop-replica COMMAND"
        return _unmeasured("node_loss", f"{why} (docs/definitions.md, Checks)")
    worst = next((loss for loss in known if not loss.headroom_held), known[0])
    figures = {"errors": float(worst.errors)}
    if worst.recovery_s is not None:
        figures["recovery_s"] = worst.recovery_s
    doubt = "" if worst.headroom_held else "the others cannot carry the load of all"
    return _judged("node_loss", doubt, worst.at, figures, "what all replicas gave before")
