"""Prefill and decode on GPUs of their own: what each pool can take, what they reach together, and which ratio balances.

A prefill replica computes one prompt after the other; a decode replica has the rest of the answers in its batch, and no
prompt ever interrupts them. A request goes through both, so the slower pool sets the rate. Left out: the time that the
KV cache takes from one to the other, which no data sheet says, and queues that chance makes before a pool is full.

Letters as in predict.roofline; λ requests/s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import Band, batch_cap
from harness.predict.deployment import Deployment, fast, slow
from harness.predict.limits import stops_of
from harness.predict.model import Model
from harness.predict.steady import tokens_a_step
from harness.predict.step import StepCost, decode_time, prefill_time, step_cost
from harness.spec.work import MeanLengths

_NOTE = "the time that the KV cache takes from one pool to the other is left out"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one phase, and the most requests that they can take."""

    gpus: int
    replicas: int
    requests_per_s: Band


class DisaggregatedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Both pools with so many requests in flight, queued ones too."""

    concurrency: int
    output_tokens_per_s: Band
    requests_per_s: Band
    ttft_s: float
    itl_s: float
    bound_by: str  # prefill | decode | users


class Disaggregated(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of two pools."""

    model: str
    gpu: str
    tp: int
    input_tokens: float
    output_tokens: float
    prefill: Pool
    decode: Pool
    decode_batch: int  # requests of one decode replica, at most
    balance: float  # prefill GPUs for each decode GPU at which both pools are full
    best_split: tuple[int, int]  # of as many GPUs: prefill and decode
    best_requests_per_s: float
    levels: list[DisaggregatedLevel]
    notes: list[str]


class _Pools(msgspec.Struct, frozen=True):
    """One end of the band: the cost of a step, its batch, and the replicas of each phase."""

    cost: StepCost
    workload: MeanLengths
    cap: float
    prefill: int
    decode: int

    @property
    def prompt_s(self) -> float:
        """Return a pass of one prompt, from its launch on."""
        P = self.workload.input_tokens
        return self.cost.step + self.cost.request + prefill_time(self.cost, P, self.cost.cached * P) + self.cost.api

    def step_s(self, B: float) -> float:
        """Return the time of a step of decode with a batch of B."""
        return decode_time(self.cost, B, B * self.workload.context)

    def steps(self) -> float:
        """Return the steps that an answer takes after its first token."""
        G = self.workload.output_tokens
        return (G - 1) / tokens_a_step(self.cost, self.workload)

    @property
    def prefill_rate(self) -> float:
        return self.prefill / self.prompt_s

    @property
    def decode_rate(self) -> float:
        return self.decode * self.cap / (self.steps() * self.step_s(self.cap))

    def batch(self, rate: float) -> float:
        """Return the batch of a decode replica at a rate of all: B = λ (G-1)/gain · t_dec(B)/replicas, or what fits."""
        low, high = 0.0, self.cap
        while high - low > 1e-9 * high:
            B = (low + high) / 2
            needed = rate * self.steps() * self.step_s(max(1.0, B)) / self.decode
            low, high = (B, high) if needed > B else (low, B)
        return high

    def at(self, C: float) -> tuple[float, float, float]:
        """Return λ, TTFT and ITL with C in flight: C = λ prompt_s + decode · B(λ), or a pool is full and they queue."""
        most = min(self.prefill_rate, self.decode_rate)

        def inside(rate: float) -> float:
            return rate * self.prompt_s + self.decode * self.batch(rate)

        low, high = 0.0, most
        while inside(most) > C and high - low > 1e-9 * high:
            rate = (low + high) / 2
            low, high = (rate, high) if inside(rate) < C else (low, rate)
        itl = self.step_s(max(1.0, self.batch(high))) * self.steps() / (self.workload.output_tokens - 1)
        return high, C / high - (self.workload.output_tokens - 1) * itl, itl


def predict(
    model: Model,
    deployment: Deployment,
    workload: MeanLengths,
    levels: Sequence[int],
    *,
    prefill_gpus: int,
    decode_gpus: int,
) -> Disaggregated:
    """Predict a prefill and a decode pool of these sizes, and the best split of as many GPUs.

    A replica has tp · pp GPUs; dp is not used.
    """
    if workload.output_tokens < 2:
        fact = "an answer of one token has nothing to decode"
        raise HarnessError(fact, place="--output-tokens", way_out="give at least 2")
    per_replica = deployment.tp * deployment.pp
    for place, gpus in (("--prefill-gpus", prefill_gpus), ("--decode-gpus", decode_gpus)):
        if gpus < 1 or gpus % per_replica:
            raise HarnessError(
                f"{gpus} GPUs are no whole replicas of {per_replica}", place=place, way_out="give a multiple"
            )
    one = msgspec.structs.replace(deployment, dp=1, gpus=per_replica)
    cap = batch_cap(stops_of(model, one, workload))
    if cap == math.inf:
        raise HarnessError("nothing limits the batch", place="--max-num-seqs", way_out="give the server's")
    ends = [
        _Pools(
            step_cost(model, where), workload, max(1.0, cap), prefill_gpus // per_replica, decode_gpus // per_replica
        )
        for where in (slow(model, one), one, fast(model, one))
    ]
    mid, replicas = ends[1], (prefill_gpus + decode_gpus) // per_replica
    prefills, decodes = mid.prefill_rate / prefill_gpus, mid.decode_rate / decode_gpus  # requests/s of one GPU
    split = max(range(1, replicas), key=lambda n: min(n * prefills, (replicas - n) * decodes))
    return Disaggregated(
        model=model.name,
        gpu=deployment.gpu.key,
        tp=deployment.tp,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        prefill=Pool(
            gpus=prefill_gpus, replicas=mid.prefill, requests_per_s=Band(*(each.prefill_rate for each in ends))
        ),
        decode=Pool(gpus=decode_gpus, replicas=mid.decode, requests_per_s=Band(*(each.decode_rate for each in ends))),
        decode_batch=int(mid.cap),
        balance=decodes / prefills,
        best_split=(split * per_replica, (replicas - split) * per_replica),
        best_requests_per_s=min(split * prefills, (replicas - split) * decodes) * per_replica,
        levels=[_level(C, ends) for C in levels],
        notes=[*model.notes, _NOTE],
    )


def _level(C: int, ends: Sequence[_Pools]) -> DisaggregatedLevel:
    G = ends[1].workload.output_tokens
    rates = [end.at(C)[0] for end in ends]
    rate, ttft, itl = ends[1].at(C)
    full = min((ends[1].prefill_rate, "prefill"), (ends[1].decode_rate, "decode"))
    return DisaggregatedLevel(
        concurrency=C,
        output_tokens_per_s=Band(*(each * G for each in rates)),
        requests_per_s=Band(*rates),
        ttft_s=ttft,
        itl_s=itl,
        bound_by=full[1] if math.isclose(rate, full[0], rel_tol=1e-6) else "users",
    )
