"""The step machine at the levels of a prediction, or at rates: all replicas of a deployment together.

dp replicas are as many simulations, each with its share of the users or of the rate. Requests are all alike, or are
those of a mixture, which come over and over again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import PredictedLevel, SteppedLevel, batch_cap
from harness.predict.batching import StepMachine
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.simulate import CARRIED, Lengths, closed_loop, open_loop
from harness.predict.steady import caps, steady_state
from harness.predict.step import step_cost
from harness.spec.work import MeanLengths, Mixture, means

_ROUNDS = 4  # rounds of all users in the window of a closed loop
_WARM_UP, _WINDOW = 5, 20  # in an open loop, in times of a request in a full batch
_ARRIVALS = 2000  # in its window, at least
_FLOOD = 20.0  # times what is sustained: beyond it there is only the queue to simulate


def at_levels(
    model: Model, where: Deployment, lengths: MeanLengths | Mixture, levels: Sequence[PredictedLevel]
) -> list[SteppedLevel]:
    """Return the closed form's levels in a closed loop, begun spread over one request time.

    The window has a whole number of rounds of a mixture, so that each of its requests counts alike.
    """
    mean = means(lengths)
    found = []
    for level in levels:
        over = level.ttft_s + mean.output_tokens * (level.itl_s or 0.0)
        each, more = divmod(level.concurrency, where.dp)
        shares = [(each + 1, more), (each, where.dp - more)]  # users of a replica, and how many replicas have so many
        parts = []
        for C, replicas in shares:
            if C and replicas:
                machine, requests = _machine(model, where, mean), max(CARRIED[0.99], _ROUNDS * C)
                if not isinstance(lengths, MeanLengths):
                    requests = math.ceil(requests / len(lengths)) * len(lengths)
                seen = closed_loop(machine, _endless(lengths), C, requests=requests, stagger=over)
                parts.append((replicas, seen))
        stepped = msgspec.structs.replace(_together(parts), concurrency=level.concurrency)
        ratio = stepped.output_tokens_per_s / level.output_tokens_per_s.mid
        found.append(msgspec.structs.replace(stepped, over_closed_form=ratio))
    return found


def at_rates(
    model: Model,
    where: Deployment,
    lengths: MeanLengths | Mixture,
    rates: Sequence[float],
    arrivals: Callable[[int, float], Iterable[float]],
    period_s: float | None = None,
) -> list[SteppedLevel]:
    """Return a level simulated as open loop for each of `rates`, requests/s; arrivals(n, rate) are its request times.

    `period_s`: after which a rate that varies begins anew; the window is of whole periods then. Replicas share the
    requests evenly. A rate far beyond what is sustained is refused.
    """
    mean = means(lengths)
    cap = batch_cap(caps(model, where, mean))
    full = steady_state(step_cost(model, where), mean, cap, cap)
    request = full.ttft + mean.output_tokens * full.itl
    stepped = []
    for level, rate in enumerate(rates):
        if rate > _FLOOD * where.dp * full.requests_per_s:
            fact = f"{rate:g} requests/s are far above the {where.dp * full.requests_per_s:.3g} that can be served"
            raise HarnessError(fact, place="--rate", way_out=f"give at most {_FLOOD:g} times that")
        share = rate / where.dp
        seconds = max(_WINDOW * request, _ARRIVALS / share)
        if period_s is not None:
            seconds = math.ceil(seconds / period_s) * period_s
        machine, each = _machine(model, where, mean), _endless(lengths)
        seen = open_loop(machine, each, arrivals(level, share), warm_up=_WARM_UP * request, seconds=seconds)
        stepped.append(msgspec.structs.replace(_together([(where.dp, seen)]), rate=rate))
    return stepped


def _endless(lengths: MeanLengths | Mixture) -> Lengths:
    return lengths if isinstance(lengths, MeanLengths) else itertools.cycle(lengths)


def _machine(model: Model, where: Deployment, mean: MeanLengths) -> StepMachine:
    if not mean.output_tokens:
        way_out = "leave it out: a batch of prompts is one pass, which the closed form has"
        raise HarnessError("the workload has no output tokens", place="--simulate", way_out=way_out)
    return StepMachine(model, where, mean.context)


def _together(parts: Sequence[tuple[int, SteppedLevel]]) -> SteppedLevel:
    """Return a level of all replicas from (how many, the level of each), the fullest first: rates and counts added."""
    fullest = parts[0][1]
    added = ["requests", "output_tokens_per_s", "requests_per_s", "in_flight", "running", "preemptions"]
    added += [] if fullest.offered_requests_per_s is None else ["offered_requests_per_s"]
    sums = {name: sum(replicas * getattr(seen, name) for replicas, seen in parts) for name in added}
    return msgspec.structs.replace(fullest, **sums)
