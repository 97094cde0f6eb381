"""Where the batch stopped against where it was to stop, and what stops it: KV memory or the scheduler's limit.

Left out: what that does to the throughput (`gap`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.data.judgement import Cause
from harness.data.summary import LevelSummary, Prediction, ServerView
from harness.predict.roofline import batch_cap

KV_FULL = 0.95  # from here on the KV cache counts as full
SLACK = 0.02  # of a hinge: a client that misses a step a request moves it by 1/G, and noise by as much
QUEUED = 1.0  # requests that wait, from where the batch is full


class Cap(msgspec.Struct, frozen=True):
    """Where the batch stops, and what stops it."""

    expected: float
    running: float | None  # None: no stop was measured
    cause: Cause
    certain: bool
    inside: list[str]  # predicted caps that the measured hinge may be

    @classmethod
    def of(
        cls,
        hinge: tuple[float, float, float] | None,
        queues: Sequence[LevelSummary],
        prediction: Prediction,
    ) -> Cap:
        """A batch that outgrows the cap which was to bind shows that this one is another.

        A batch that stops before the expected cap is stopped by what the server's counters show while requests wait.
        Without counters the expected cap is named: that supposes the smallest error in the prediction.
        """
        stops = _stops(prediction)
        expected = min(stops.values(), default=math.inf)
        binding = _cause(next((name for name, limit in stops.items() if limit == expected), "max_num_seqs"))
        if hinge is None:
            return cls(expected, None, binding, False, [])
        value, low, high = hinge
        slack = max(SLACK, 1 / prediction.output_tokens)
        inside = [name for name, limit in stops.items() if low * (1 - slack) <= limit <= high * (1 + slack)]
        reported = {cause for s in queues if s.server and (cause := _by_counters(s.server))}
        if value < expected and reported:
            cause = Cause.KV_MEMORY if Cause.KV_MEMORY in reported else Cause.SEQUENCES
            return cls(expected, value, cause, True, inside)
        return cls(expected, value, binding, value >= expected or bool(inside), inside)


def _stops(prediction: Prediction) -> dict[str, float]:
    """The caps that stop the batch; that of the KV memory by the card's memory, not by what the server reports."""
    caps, assumed = prediction.caps, prediction.assumptions
    stops = {name: limit for name, limit in caps.items() if limit and batch_cap({name: limit}) < math.inf}
    if "kv_memory" in stops and assumed.kv_tokens_by_memory is not None and assumed.kv_tokens:
        stops["kv_memory"] *= assumed.kv_tokens_by_memory / assumed.kv_tokens
    return stops


def _cause(cap: str) -> Cause:
    """The cause that a cap stands for; every limit of the scheduler counts as its batch limit."""
    return Cause.KV_MEMORY if cap == "kv_memory" else Cause.SEQUENCES


def _by_counters(server: ServerView) -> Cause | None:
    """What keeps a queue out of the batch: no KV for one more like those that run, or the batch limit."""
    if server.preemptions:
        return Cause.KV_MEMORY
    if server.kv_usage is None or (server.waiting or 0.0) < QUEUED:
        return None
    running = server.running or 0.0
    return Cause.KV_MEMORY if server.kv_usage >= min(KV_FULL, running / (running + 1)) else Cause.SEQUENCES
