"""A prediction as a curve whose figures can be replaced: seconds a token over the number of requests that run.

X = B / y(B) with y = decoding + prefilling; both come from the prediction's own levels. Left out: what is measured in
their place (`gap`).
"""

from __future__ import annotations

import math

import msgspec

from harness.data.summary import Prediction
from harness.predict.roofline import batch_cap


def complete(prediction: Prediction) -> bool:
    """Whether every figure that is divided by is above 0, which one read from a folder need not be."""
    assumed = prediction.assumptions
    rooms = [assumed.kv_tokens or 0.0] if assumed.kv_tokens_by_memory is not None else []
    least = [prediction.output_tokens, prediction.single_stream_tokens_per_s.mid, assumed.dp, *rooms]
    return min(least) > 0 and (assumed.api_overhead_s or 0.0) >= 0


class PredictedCurve(msgspec.Struct, frozen=True):
    """Seconds a token of one request, by the prediction, over the number that run in all replicas."""

    running: tuple[float, ...]  # where it is known, ascending
    seconds: tuple[float, ...]  # of decoding, there
    cap: float
    prefill: float  # seconds of one prompt alone
    prefill_mixed: float  # likewise, where others decode, whose steps read the weights anyway
    share: float  # prefills in a step per running request of a replica: 1/G
    replicas: float

    def decoding(self, B: float) -> float:
        """The step without its prefills: linear between what is known, and on as between the last two."""
        if len(self.running) == 1:
            return self.seconds[0]
        i = next((i for i, known in enumerate(self.running[1:-1]) if known >= B), len(self.running) - 2)
        (a, b), (y, z) = self.running[i : i + 2], self.seconds[i : i + 2]
        return y + (z - y) * (B - a) / (b - a)

    def prefilling(self, B: float, wait: float = 1.0) -> float:
        """A step's prefills, where a prompt alone takes `wait` times as long."""
        running = max(1.0, B / self.replicas)
        others = min(1.0, running - 1)
        prompt = (1 - others) * wait * self.prefill + others * self.prefill_mixed
        return running * self.share * prompt

    def weights_wait(self, decode: float) -> float:
        """How many times as long a prompt alone takes where decoding takes `decode` times as long.

        Above 1 only for one so short that it waits for the weights instead of the arithmetic: no longer than a decode
        step. Each step reads them once, so that it is later by as much as a decode step is.
        """
        alone = self.decoding(1)
        if not 0 < self.prefill < alone:
            return 1.0
        return max(decode, 1 + (decode - 1) * alone / self.prefill)

    def throughput(self, B: float, decode: float = 1.0, prefill: float = 1.0) -> float:
        """Output tokens/s of B running, where decoding and computing prompts take so many times as long.

        nan where that would be no time at all: a prediction that comes from outside need not be one.
        """
        seconds = decode * self.decoding(B) + prefill * self.prefilling(B, self.weights_wait(decode))
        return B / seconds if seconds > 0 else math.nan


def predicted_curve(prediction: Prediction) -> PredictedCurve:
    """From the prediction's own points: below the cap the levels', and its ends."""
    cap, assumed = batch_cap(prediction.caps), prediction.assumptions
    known = {1.0: prediction.single_stream_tokens_per_s.mid}
    for level in prediction.levels:
        known.setdefault(min(float(level.concurrency), cap), level.output_tokens_per_s.mid)
    if cap < math.inf:
        known[cap] = prediction.plateau_tokens_per_s.mid
    share, replicas = 1 / prediction.output_tokens, assumed.dp
    prefill = assumed.prefill_s or 0.0
    mixed = prefill if assumed.prefill_beside_s is None else assumed.prefill_beside_s
    bare = PredictedCurve((), (), cap, prefill, mixed, share, replicas)
    points = sorted((B, B / X - bare.prefilling(B)) for B, X in known.items() if X > 0)
    return msgspec.structs.replace(bare, running=tuple(B for B, _ in points), seconds=tuple(y for _, y in points))
