"""How a run went as a whole: what is missing of it, whether its requests were those asked for, and lost replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
from msgspec import UNSET

from harness.analysis.rules import Finding, Place, rule
from harness.analysis.stats import BY_CHANCE
from harness.base.terminal import few
from harness.data.judgement import DOUBT, INVALID, NOTE
from harness.data.manifest import Manifest, Shard
from harness.data.record import Level, LevelNote
from harness.data.summary import ClassWorkload, Lengths, NodeLoss, WorkloadSummary
from harness.spec.work import Unit

LENGTHS_OFF = 0.02  # share of the requested mean by which the measured one may differ from it
APART = 0.01  # share of the shortest window, above which a clock's error moves its edges too far


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest and the records say of how a run went."""

    at: ClassVar[None] = None  # the whole run
    manifest: Manifest
    levels: Sequence[Level] = ()
    complete: bool = True
    damage: str = ""
    lost: int = 0  # requests that were sent and have no record
    drafts: bool = False  # the server's own metrics count drafted tokens
    workload: WorkloadSummary | None = None
    losses: Sequence[NodeLoss] = ()
    unit: Unit = Unit.OUTPUT_TOKENS  # what throughput counts


# ---- its records --------------------------------------------------------------------------------------------


@rule(Recorded, DOUBT)
def incomplete(run: Recorded) -> Finding | None:
    """The run ended early."""
    if run.complete:
        return None
    if run.manifest == Manifest():
        fact = "manifest.json is missing: what was measured, and whether it was simulated, is not known"
        return Finding(fact, "restore manifest.json")
    begun = sum(LevelNote.VOID not in level.notes for level in run.levels)
    finished = sum(level.finished and LevelNote.INTERRUPTED not in level.notes for level in run.levels)
    why = run.manifest.sessions[-1].ended if run.manifest.sessions else None
    message = "the run ended early"
    if finished < begun:
        message += f": {finished} of the {begun} levels begun are finished"
    on = "`knee run --resume` goes on with the rest" if not run.manifest.shards else "the rest needs another run"
    return Finding(f"{message} ({why})" if why else message, f"the finished levels stand; {on}")


@rule(Recorded, DOUBT)
def spool_damaged(run: Recorded) -> Finding | None:
    """The file of the run is damaged."""
    if not run.damage:
        return None
    return Finding(
        run.damage, "every level that is finished before it stands; `knee run --resume` holds the others again"
    )


@rule(Recorded, NOTE)
def resumed(run: Recorded) -> Finding | None:
    """The run was measured in several sessions; levels that an earlier one did not finish are void."""
    void = [level for level in run.levels if LevelNote.VOID in level.notes]
    if not void:
        return None
    at, sessions = ", ".join(str(level.concurrency or f"{level.rate:g} req/s") for level in void), run.manifest.sessions
    return Finding(
        f"measured in {max(1, len(sessions))} sessions; levels that an earlier one did not finish are void: {at}"
    )


@rule(Recorded, DOUBT)
def server_changed(run: Recorded) -> Finding | None:
    """The server was another one in a later session."""
    servers = [session.server for session in run.manifest.sessions if session.server is not UNSET]
    changed = sorted({key for server in servers for key in server if server[key] != servers[0].get(key)})
    if not changed:
        return None
    return Finding(
        f"the server was another one in a later session: {', '.join(changed)}", "measure all levels anew on one of them"
    )


@rule(Recorded, DOUBT, NOTE)
def requests_lost(run: Recorded) -> Finding | None:
    """Requests that were sent have no record, by the last counts of the workers; a note where the run is complete."""
    if not run.lost:
        return None
    return Finding(
        f"at least {run.lost} requests that were sent have no record",
        "they were in flight, or not yet written, when a process was lost; no finished level counts on them",
        NOTE if run.complete else DOUBT,
    )


@rule(Recorded, DOUBT)
def cache_warm(run: Recorded) -> Finding | None:
    """The load's own prompts were in the prefix cache before the load, by --audit-cache."""
    audit, scenario = run.manifest.cache, run.manifest.scenario
    if not audit or not audit.warm or (scenario.hooks and scenario.hooks.reset_cache):
        return None
    return Finding(audit.sentence, "leave --seed out, empty the cache with --reset-cache, or ask for these hits")


@rule(Recorded, INVALID)
def model_replaced(run: Recorded) -> Finding | None:
    """A server listed another model after the load than before it."""
    after = run.manifest.models_after
    if not after:
        return None
    return Finding(
        f"after the load a server listed {few(after)}, not '{run.manifest.model}': it was started with another model",
        "measure again; the levels before that are of the first model",
    )


@rule(Recorded, DOUBT)
def shard_missing(run: Recorded) -> Finding | None:
    """Not all machines' shares of a run are here ([scale.md](scale.md))."""
    shards = run.manifest.shards
    if not shards:
        return None
    there = {shard.number for shard in shards}
    absent = [str(number) for number in range(1, shards[0].of + 1) if number not in there]
    if not absent:
        return None
    noun, verb = ("shard", "is") if len(absent) == 1 else ("shards", "are")
    return Finding(
        f"{noun} {few(absent)} of {shards[0].of} {verb} missing: the load of the others alone is in the figures",
        "merge all of them: knee report DIR DIR … --out DIR",
    )


@rule(Recorded, DOUBT)
def clocks_apart(run: Recorded) -> Finding | None:
    """A machine's clock may be off by more than 1 % of the shortest window ([scale.md](scale.md)).

    One machine agrees with itself.
    """
    shards = run.manifest.shards
    measured = [level.window for level in run.levels if level.finished and level.window_end_s is not None]
    windows = [end - start for start, end in measured]
    if not shards or shards[0].of == 1 or not windows:
        return None
    limit_s = APART * min(windows)
    off = [f"shard {shard.number}" for shard in shards if not _is_right(shard, limit_s)]
    if not off:
        return None
    return Finding(
        f"the machines' levels may not lie at one time: the clocks of {few(off)} are not known to {limit_s:.3g} s",
        "keep every machine's clock by NTP or PTP; latencies are of one machine's clock each and stand",
    )


def _is_right(shard: Shard, limit_s: float) -> bool:
    """Return whether a machine's clock is known to be off by at most `limit_s` seconds."""
    clock = shard.clock
    if clock.synchronised is False or clock.error_s is None:
        return False
    return max(clock.error_s, abs(clock.stepped_s or 0.0)) <= limit_s


@rule(Recorded, INVALID)
def nothing_measured(run: Recorded) -> Finding | None:
    """No level is finished."""
    if any(level.finished for level in run.levels):
        return None
    return Finding("no level is finished: there is no answer", "give the run more time")


@rule(Recorded, NOTE, place=Place.LAST)
def run_note(run: Recorded) -> Iterator[Finding]:
    """The run has any other remark."""
    stops = [step.reason for step in run.manifest.ramp or () if step.stopped]
    for text in (*run.manifest.notes, *dict.fromkeys(stops)):
        yield Finding(text)


# ---- its workload -------------------------------------------------------------------------------------------


@rule(Recorded, DOUBT, brief="mean lengths are not those asked{}")
def lengths_off(run: Recorded) -> Finding | None:
    """The mean of a class's prompts or answers is 2 % off the one asked, and by more than three standard errors."""
    off = [text for each in (run.workload.classes if run.workload else ()) for text in _lengths_off(each)]
    if not off:
        return None
    return Finding(
        f"mean lengths differ from those asked: {'; '.join(off)}",
        "prompts: name the model's tokenizer; answers: check that the server honours ignore_eos and max_tokens",
    )


def _lengths_off(of_class: ClassWorkload) -> Iterator[str]:
    of = f" of {of_class.class_}" if of_class.class_ else ""
    for noun, each in (("prompts", of_class.input_tokens), ("answers", of_class.output_tokens)):
        if each.asked is not None and _is_off(each, each.asked.mean):
            yield f"{noun}{of} {each.realised.mean:.1f} tokens, {each.asked.mean:.1f} asked"


def _is_off(lengths: Lengths, asked: float | None) -> bool:
    if not asked or lengths.realised.mean is None:
        return False
    return abs(lengths.realised.mean - asked) > max(LENGTHS_OFF * asked, BY_CHANCE * (lengths.mean_se or 0.0))


@rule(Recorded, DOUBT, brief="prompts are random words: use a --dataset of real ones")
def synthetic_text(run: Recorded) -> Finding | None:
    """Prompts are random words, and the server drafts tokens or has experts: acceptance and routing do not carry over.

    The simulated endpoint reads no text.
    """
    manifest = run.manifest
    prediction = manifest.prediction
    if manifest.simulated is not None or manifest.scenario.workload.dataset:
        return None
    reasons = []
    if run.drafts or (prediction is not None and prediction.assumptions.draft_tokens):
        reasons.append("how many drafted tokens are accepted")
    if prediction is not None and any(level.experts_hit is not None for level in prediction.levels):
        reasons.append("which experts are hit")
    if not reasons:
        return None
    return Finding(
        f"prompts are random words: {' and '.join(reasons)} is not as with users' texts",
        "measure with a dataset of real prompts",
    )


# ---- its replicas -------------------------------------------------------------------------------------------


@rule(Recorded, DOUBT, brief="a replica was lost{}: see Lost replicas, --verbose")
def node_loss(run: Recorded) -> Iterator[Finding]:
    """A replica stopped answering."""
    for loss in run.losses:
        advice = "read this level with care: a replica was missing for a part of it"
        yield Finding(_lost(loss, "tok/s" if run.unit.decodes else run.unit.per_s), advice, at=loss.at)


def _lost(loss: NodeLoss, per_s: str) -> str:
    """Return a sentence on a replica that stopped answering: when, for how long, failures, throughput, the others."""
    back = "did not come back" if loss.recovery_s is None else f"was back after {loss.recovery_s:.3g} s"
    failed = f"; {loss.errors} requests failed within {loss.errors_s or 0.0:.3g} s" if loss.errors else ""
    named = (("before", loss.before), ("during", loss.during), ("after it", loss.after))
    rates = " → ".join(f"{phase.output_tokens_per_s:.4g}" for _, phase in named if phase is not None)
    spans = " → ".join(name for name, phase in named if phase is not None)
    headroom, plateau = "", loss.survivors_plateau_tokens_per_s
    if loss.headroom_held is not None:
        headroom = f"; the others {'carry' if loss.headroom_held else 'do not carry'} the load"
        headroom += "" if plateau is None else f": their plateau is {plateau:.4g} {per_s}"
    return (
        f"{loss.url} stopped answering at {loss.start_s:.4g} s and {back}{failed}; {spans}: {rates} {per_s}{headroom}"
    )
