"""Prefill and decode on GPUs of their own: what each pool takes, what they reach within limits, and the best split.

A prefill replica computes one prompt after the other; a decode replica has the rest of the answers in its batch, and no
prompt ever interrupts them. Between them a request's KV goes over the links. A request goes through all of it, so the
slowest sets the rate. How many prompts meet is that of `predict.steady`, so that pools and replicas that do both are
judged alike. Left out: queues that chance makes before a pool is full.

Letters as in predict.roofline; λ requests/s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import Band, PredictedLevel, batch_cap
from harness.predict.deployment import Deployment, fast, in_a_node, kv_per_gpu, slow
from harness.predict.model import Model
from harness.predict.roofline import predict as of_both
from harness.predict.steady import Latencies, least, meets, met, stops_of, tokens_a_step
from harness.predict.step import StepCost, decode_time, prefill_time, step_cost, taking_in
from harness.spec.work import MeanLengths

_NIC = 50e9  # bytes/s in one direction beyond a node: 400 Gb/s for each GPU, NVIDIA DGX H100 and H200 data sheets
_CLOSE = 1e-6  # relative, of a rate that is searched


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
    ttft_p99_s: float
    itl_s: float
    bound_by: str  # prefill | decode | link | users
    meets_slo: bool | None = None  # at the slow end; None without limits


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How the GPUs are shared out, and the most that they serve within the limits; 0 of prefill: all do both."""

    prefill_gpus: int
    decode_gpus: int
    requests_per_s_slow: float = 0.0  # at the most, at the slow end; 0: the limits are missed by one request
    concurrency: int | None = None  # at the rate that is asked, else at the most, as are those below; None: not served
    output_tokens_per_s: float | None = None
    itl_s: float | None = None
    ttft_s: float | None = None
    ttft_p99_s: float | None = None


class Disaggregated(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of two pools, of other splits of as many GPUs, and of as many that do both."""

    model: str
    gpu: str
    tp: int  # GPUs of a decode replica
    prefill_tp: int
    input_tokens: float
    output_tokens: float
    slo: Mapping[str, float]
    rate: float | None  # requests/s that are asked
    prefill: Pool
    decode: Pool
    decode_batch: int  # requests of one decode replica, at most
    transfer_s: float  # time to move one prompt's KV from one pool to the other
    transfer_bytes: float
    transfer_by: str
    asked: Share
    best: Share  # the split with the shortest answers at the rate, else with the most requests/s at the slow end
    together: Share
    enough: tuple[int, int] | None  # the fewest GPUs of prefill and decode that serve the rate
    levels: list[DisaggregatedLevel]
    notes: list[str]


class _Pools(msgspec.Struct, frozen=True):
    """One end of the band: the cost of a step in each pool, the batch of a decode replica, and the replicas."""

    prompts: StepCost
    cost: StepCost
    workload: MeanLengths
    cap: float
    transfer_s: float
    prefill: int
    decode: int

    @property
    def prompt_s(self) -> float:
        """Return a pass of one prompt, from its launch on."""
        return self.prompts.step + self.prompts.request + self._prefill_s + self.prompts.api

    @property
    def _prefill_s(self) -> float:
        P = self.workload.input_tokens
        return prefill_time(self.prompts, P, self.prompts.cached * P)

    def step_s(self, B: float) -> float:
        """Return the time of a step of decode with a batch of B."""
        return decode_time(self.cost, B, B * self.workload.context)

    def steps(self) -> float:
        """Return the steps that an answer takes after its first token."""
        return (self.workload.output_tokens - 1) / tokens_a_step(self.cost, self.workload)

    def most(self) -> dict[str, float]:
        """Return the most requests/s that each part of the way takes."""
        link = min(self.prefill, self.decode) / self.transfer_s if self.transfer_s else math.inf
        decode = self.decode * self.cap / (self.steps() * self.step_s(self.cap))
        return {"prefill": self.prefill / self.prompt_s, "decode": decode, "link": link}

    def batch(self, rate: float) -> float:
        """Return the batch of a decode replica at a rate of all: B = λ (G-1)/gain · t_dec(B)/replicas, or what fits."""
        per_step = rate * self.steps() / self.decode
        return least(lambda B: per_step * self.step_s(max(1.0, B)) <= B, 0.0, self.cap, close=_CLOSE)

    def inside(self, rate: float) -> float:
        """Return the requests in both pools and between them at a rate that no part is full at."""
        return rate * (self.prompt_s + self.transfer_s) + self.decode * self.batch(rate)

    def rate(self, C: float) -> float:
        """Return λ with C in flight: inside(λ) = C, or a part is full and the rest wait."""
        most = min(self.most().values())
        return most if self.inside(most) <= C else least(lambda rate: self.inside(rate) >= C, 0.0, most, close=_CLOSE)

    def latencies(self, rate: float, C: float) -> Latencies:
        """Return the latencies of both pools at a rate with C in flight, if prompts meet in batches as usual."""
        P, more = self.workload.input_tokens, self.workload.output_tokens - 1
        B = self.batch(rate)
        itl = self.step_s(max(1.0, B)) * self.steps() / more
        others = max(0.0, self.decode * B / self.prefill - 1) * self._prefill_s
        alone = decode_time(self.prompts, 1, self.workload.context)
        mean, last = met(self.prompts, "usual")
        first = C / rate - more * itl + taking_in(self.prompts, P, self.prompts.cached * P, alone)
        ttft, p99 = first + mean * others, first + last * others
        return Latencies(ttft, p99, itl, itl, ttft + more * itl, p99 + more * itl)

    def within(self, slo: Mapping[str, float]) -> float:
        """Return the most requests/s whose latencies keep the limits; without limits, the most that the pools take.

        It is 0 if one request alone misses them.
        """
        most = min(self.most().values())

        def kept(rate: float) -> bool:
            return meets(self.latencies(rate, max(1.0, self.inside(rate))), slo)

        if not slo or kept(most):
            return most
        alone = self.rate(1.0)
        return least(lambda rate: not kept(rate), alone, most, close=_CLOSE) if kept(alone) else 0.0


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What every split is judged by: the model, the load, three ends of the band, the limits and the rate."""

    model: Model
    prefill: Deployment
    decode: Deployment
    workload: MeanLengths
    ends: Sequence[_Pools]
    slo: Mapping[str, float]
    rate: float | None

    def of(self, prefill: int, decode: int) -> list[_Pools]:
        """Return the ends with so many replicas."""
        return [msgspec.structs.replace(end, prefill=prefill, decode=decode) for end in self.ends]


def predict(
    model: Model,
    prefill: Deployment,
    decode: Deployment,
    workload: MeanLengths,
    levels: Sequence[int],
    *,
    gpus: tuple[int, int],
    slo: Mapping[str, float] | None = None,
    rate: float | None = None,
) -> Disaggregated:
    """Predict a prefill and a decode pool, the best split of as many GPUs, and as many that do both.

    `gpus` are those of the prefill pool and those of the decode pool; raise HarnessError unless each is a multiple of
    its replica's tp · pp GPUs, or for answers below 2 tokens. The deployments are those of one replica of each; dp is
    not used. `slo` limits are seconds.
    """
    if workload.output_tokens < 2:
        fact = "an answer of one token has nothing to decode"
        raise HarnessError(fact, place="--output-tokens", way_out="give at least 2")
    each = (prefill.tp * prefill.pp, decode.tp * decode.pp)
    for place, size, n in zip(("--prefill-gpus", "--decode-gpus"), gpus, each, strict=True):
        if size < 1 or size % n:
            raise HarnessError(f"{size} GPUs are no whole replicas of {n}", place=place, way_out="give a multiple")
    counts, total = (gpus[0] // each[0], gpus[1] // each[1]), sum(gpus)
    prefill = msgspec.structs.replace(prefill, dp=1, gpus=each[0])
    decode = msgspec.structs.replace(decode, dp=1, gpus=each[1])
    sent, seconds, by = _transfer(model, prefill, decode, workload, total)
    ends = _ends(model, prefill, decode, workload, seconds, counts)
    terms = _Terms(model=model, prefill=prefill, decode=decode, workload=workload, ends=ends, slo=slo or {}, rate=rate)
    splits = {
        (n, (total - n * each[0]) // each[1]) for n in range(1, total // each[0] + 1) if total - n * each[0] >= each[1]
    }
    shares = {split: _share(terms, *split) for split in sorted(splits | {counts})}
    rates = {name: Band(*(end.most()[name] for end in ends)) for name in ("prefill", "decode")}
    return Disaggregated(
        model=model.name, gpu=decode.gpu.key, tp=decode.tp, prefill_tp=prefill.tp,
        input_tokens=workload.input_tokens, output_tokens=workload.output_tokens, slo=terms.slo, rate=rate,
        prefill=Pool(gpus=gpus[0], replicas=counts[0], requests_per_s=rates["prefill"]),
        decode=Pool(gpus=gpus[1], replicas=counts[1], requests_per_s=rates["decode"]),
        decode_batch=int(ends[1].cap), transfer_s=seconds, transfer_bytes=sent, transfer_by=by,
        asked=shares[counts],
        best=min(shares.values(), key=lambda share: _order(share, rate, workload.output_tokens)),
        together=_together(terms, total // each[1]),
        enough=None if rate is None else _enough(terms, rate),
        levels=[_level(C, ends, terms.slo) for C in levels],
        notes=list(model.notes),
    )  # fmt: skip


def _ends(
    model: Model,
    prefill: Deployment,
    decode: Deployment,
    workload: MeanLengths,
    transfer_s: float,
    counts: tuple[int, int],
) -> list[_Pools]:
    """Return the two pools, prefill and decode, as predicted at the band's slow end, middle and fast end."""
    cap = batch_cap(stops_of(model, decode, workload))
    if cap == math.inf:
        raise HarnessError("nothing limits the batch", place="--max-num-seqs", way_out="give the server's")
    stops_of(model, prefill, workload)  # refuses what does not fit there
    costs = [
        [step_cost(model, end(model, where)) for end in (slow, lambda _, middle: middle, fast)]
        for where in (prefill, decode)
    ]
    return [_Pools(a, b, workload, max(1.0, cap), transfer_s, *counts) for a, b in zip(*costs, strict=True)]


def _transfer(
    model: Model, prefill: Deployment, decode: Deployment, workload: MeanLengths, gpus: int
) -> tuple[float, float, str]:
    """Return (bytes of a prompt's KV on all ranks of a decode replica, seconds to send it, the link in words).

    The GPUs of the smaller replica send or receive at once. Inside a node that is at the share of the link that
    collectives reach.
    """
    ranks = decode.tp * decode.pp
    size = ranks * kv_per_gpu(model, decode, workload.input_tokens)
    near = decode.gpu.link is not None and gpus <= in_a_node(decode.gpu)
    link = decode.gpu.link or _NIC
    link = link if near else min(link, _NIC)
    rate = link * decode.link_share * min(ranks, prefill.tp * prefill.pp)
    by = f"{link / 1e9:.3g} GB/s a GPU {'inside a node' if near else 'between nodes'}"
    return size, size / rate, by


def _level(C: int, ends: Sequence[_Pools], slo: Mapping[str, float]) -> DisaggregatedLevel:
    """Return what the pools give at C in flight: throughput over the band, latencies, and which pool limits it."""
    G, rates = ends[1].workload.output_tokens, [end.rate(C) for end in ends]
    latencies = ends[1].latencies(rates[1], C)
    full, most = min(ends[1].most().items(), key=lambda each: each[1])
    return DisaggregatedLevel(
        concurrency=C,
        output_tokens_per_s=Band(*(rate * G for rate in rates)),
        requests_per_s=Band(*rates),
        ttft_s=latencies.ttft,
        ttft_p99_s=latencies.ttft_p99,
        itl_s=latencies.itl,
        bound_by=full if math.isclose(rates[1], most, rel_tol=10 * _CLOSE) else "users",
        meets_slo=meets(ends[0].latencies(rates[0], C), slo) if slo else None,
    )


def _share(terms: _Terms, prefill: int, decode: int) -> Share:
    """Return what a split into `prefill` and `decode` replicas serves: the rate within the limits, a level there."""
    ends = terms.of(prefill, decode)
    share = Share(
        prefill_gpus=prefill * terms.prefill.gpus,
        decode_gpus=decode * terms.decode.gpus,
        requests_per_s_slow=ends[0].within(terms.slo),
    )
    most = share.requests_per_s_slow
    if not most or (terms.rate or 0.0) > most:
        return share
    C = max(1, math.floor(ends[0].inside(terms.rate or most)))
    return _at(share, _level(C, ends, {}))


def _at(share: Share, level: DisaggregatedLevel | PredictedLevel) -> Share:
    """Return a split of the GPUs with throughput and latencies of a level filled in."""
    last = level.ttft_p99_s
    return msgspec.structs.replace(
        share, concurrency=level.concurrency, output_tokens_per_s=level.output_tokens_per_s.mid,
        itl_s=level.itl_s, ttft_s=level.ttft_s, ttft_p99_s=last.mid if isinstance(last, Band) else last or None,
    )  # fmt: skip


def _order(share: Share, rate: float | None, G: float) -> tuple[bool, float]:
    """Return a key by which the best split sorts first: the shortest answer at a rate it serves, else the most rate."""
    if rate is None or share.ttft_s is None:
        return True, -share.requests_per_s_slow
    return False, share.ttft_s + (G - 1) * (share.itl_s or 0.0)


def _together(terms: _Terms, replicas: int) -> Share:
    """Return what as many GPUs serve without a split, each of `replicas` doing prefill and decode; closed form.

    The load is the least that serves the asked rate, else the highest within the SLO; no figures where there is none.
    """
    where = msgspec.structs.replace(terms.decode, dp=replicas, gpus=replicas * terms.decode.gpus)
    share = Share(prefill_gpus=0, decode_gpus=where.gpus)

    def at(C: int) -> PredictedLevel:
        return of_both(terms.model, where, terms.workload, [C], slo=terms.slo).levels[0]

    caps = of_both(terms.model, where, terms.workload, [1], slo=terms.slo).caps
    within = caps.get("slo", math.inf)
    most = int(min(batch_cap(caps), math.inf if within is None else within))
    if not most:
        return share
    C, share = most, msgspec.structs.replace(share, requests_per_s_slow=_slow(at(most)))
    if terms.rate is not None:
        C = 1 + bisect_left(range(1, most + 1), terms.rate, key=lambda C: _slow(at(C)))
    return _at(share, at(C)) if most >= C else share


def _slow(level: PredictedLevel) -> float:
    return level.requests_per_s.low if level.requests_per_s else 0.0


def _enough(terms: _Terms, rate: float) -> tuple[int, int] | None:
    """Return the fewest GPUs of each pool that serve a rate within the limits at the slow end; None if none do."""
    one = terms.of(1, 1)[0]
    alone = one.most()
    n, m = (max(1, math.ceil(rate / alone[name] - _CLOSE)) for name in ("prefill", "decode"))
    for _ in range(1000):
        end = terms.of(n, m)[0]
        if end.within(terms.slo) >= rate * (1 - _CLOSE):
            return n * terms.prefill.gpus, m * terms.decode.gpus
        more = (terms.of(each, other)[0].within(terms.slo) for each, other in ((n + 1, m), (n, m + 1)))
        by_prefill, by_decode = more
        n, m = (n + 1, m) if by_prefill > by_decode else (n, m + 1)
    return None
