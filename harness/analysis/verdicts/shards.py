"""A run on several machines: whose requests are here, and how far the machines' clocks may differ."""

from __future__ import annotations

from collections.abc import Sequence

from harness.base.terminal import few
from harness.data.judgement import Code, Verdict, doubt
from harness.data.manifest import Shard
from harness.data.record import Level

APART = 0.01  # of the shortest window, above which a clock's error moves its edges too far


def missing(shards: Sequence[Shard]) -> Verdict | None:
    """Names the shards of the run that are not here."""
    there = {shard.number for shard in shards}
    absent = [str(number) for number in range(1, shards[0].of + 1) if number not in there]
    if not absent:
        return None
    noun, verb = ("shard", "is") if len(absent) == 1 else ("shards", "are")
    fact = f"{noun} {few(absent)} of {shards[0].of} {verb} missing: the load of the others alone is in the figures"
    return doubt(Code.SHARD_MISSING, fact, "merge all of them: knee report DIR DIR … --out DIR")


def clocks(shards: Sequence[Shard], levels: Sequence[Level]) -> Verdict | None:
    """Names the shards whose levels may lie elsewhere than the others'; one machine agrees with itself."""
    windows = [level.window[1] - level.window[0] for level in levels]
    if shards[0].of == 1 or not windows:
        return None
    limit = APART * min(windows)
    off = [f"shard {shard.number} {why}" for shard in shards if (why := _off(shard, limit))]
    if not off:
        return None
    fact = f"the levels of the machines may not lie at one time: {few(off)}"
    advice = "keep every machine's clock by NTP or PTP; latencies are of one machine's clock each and stand"
    return doubt(Code.CLOCKS_APART, fact, advice)


def _off(shard: Shard, limit_s: float) -> str:
    """Why a machine's clock may be off by more than that; empty where it is not."""
    clock = shard.clock
    if clock.stepped_s and abs(clock.stepped_s) > limit_s:
        return f"set its clock by {clock.stepped_s:.3g} s during the run"
    if clock.synchronised is False:
        return "has a clock that nothing keeps right"
    if clock.error_s is None:
        return "does not know its clock's error"
    return f"has a clock that is off by up to {clock.error_s:.3g} s" if clock.error_s > limit_s else ""
