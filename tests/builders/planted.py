"""Five faults planted in a server or its client, and how each is measured: on a virtual clock, or by a real run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.analysis import curve
from harness.analysis.rules.requests import Conditions, Measured, in_flight_low
from harness.analysis.window import Little
from harness.data.judgement import Cause
from harness.data.levels import LevelSummary
from harness.data.manifest import Roof
from harness.data.prediction import Prediction
from harness.data.record import Level
from harness.data.summary import Curve, Summary
from harness.data.views import Estimate, ServerView, Spread
from harness.predict import roofline
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import model
from harness.predict.roofline import predict
from harness.predict.simulate import closed_loop
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec.work import MeanLengths
from tests.builders import summaries

NAME = "llama-3.1-8b"
MODEL = model(model_config(NAME), NAME)


class Fault(NamedTuple):
    """What is predicted, what is there instead, and what that has to be called."""

    cause: str
    predicted: dict[str, Any]  # of the deployment
    planted: dict[str, Any]  # over those
    tokens: tuple[int, int]  # P, G
    levels: tuple[int, ...]
    brief: tuple[int, ...]  # those of a real run
    card: str = "b200-sxm"  # so fast that requests are short on a clock that nobody speeds up
    window_s: float = 1.2  # of a real run's levels; where prefills bunch, whole rounds of the batch
    pause_s: float = 0.0  # of the client, between a request's end and the next
    quota: float | None = None  # of the client in a real run, requests/s

    @property
    def healthy(self) -> Deployment:
        return deployment(gpu(self.card), **self.predicted)

    @property
    def faulty(self) -> Deployment:
        return msgspec.structs.replace(self.healthy, **self.planted)

    @property
    def workload(self) -> MeanLengths:
        return MeanLengths(*self.tokens)

    def prediction(self) -> Prediction:
        """Made before the load, of the server as it should be: a card that has room for what it is told to hold."""
        made = predict(MODEL, self.healthy, self.workload, list(self.levels))
        known = msgspec.structs.replace(made.assumptions, kv_tokens_by_memory=None)
        return msgspec.structs.replace(made, assumptions=known)

    def roof(self) -> Roof:
        return roofline.data_sheet_roof(MODEL, self.healthy)


_RAMP, _BRIEF = (1, 2, 4, 8, 12, 16, 24, 32), (1, 8, 16, 32)

FAULTS = {
    "MBU × 0.5": Fault(Cause.BANDWIDTH, {"max_num_seqs": 16}, {"mbu": 0.4}, (64, 64), _RAMP, _BRIEF),
    "MFU × 0.5": Fault(  # on a slower card: making such long prompts keeps the client from reading for 2 ms
        Cause.COMPUTE, {"max_num_seqs": 16}, {"mfu_prefill": 0.225, "mfu_decode": 0.225}, (1000, 32), _RAMP, (1, 4, 16),
        card="h100-sxm", window_s=4.1,
    ),
    "max-num-seqs 16": Fault(Cause.SEQUENCES, {"max_num_seqs": 64}, {"max_num_seqs": 16}, (64, 64), _RAMP, _BRIEF),
    "KV memory ÷ 4": Fault(
        Cause.KV_MEMORY, {"max_num_seqs": 64, "kv_tokens": 16_384}, {"kv_tokens": 4_096}, (256, 64), _RAMP, _BRIEF
    ),
    "a throttled client": Fault(
        Cause.CLIENT, {"max_num_seqs": 64}, {}, (64, 64), (1, 2, 4, 8, 16, 32), (1, 4, 16), pause_s=0.3, quota=16.0
    ),
}  # fmt: skip


def measured(fault: Fault, *, counters: bool = True) -> list[LevelSummary]:
    """The levels of a ramp over the faulty server, on the clock that jumps; `counters`: it publishes its own."""
    return [_level(fault, C, counters) for C in fault.levels]


def fitted(levels: list[LevelSummary]) -> Curve:
    return curve.fit(curve.points_of(levels), draws=100).curve


def _level(fault: Fault, C: int, counters: bool) -> LevelSummary:
    machine, (P, G) = StepMachine(MODEL, fault.faulty, fault.workload.context), fault.tokens
    alone = fault.prediction().levels[0]
    one = alone.ttft_s + G * (alone.itl_s or 0.0)
    seen = closed_loop(
        machine, fault.workload, C, requests=max(30, 6 * C), stagger=one + fault.pause_s, turnaround=fault.pause_s
    )
    assert seen.itl_s is not None
    assert seen.ttft_s is not None
    waiting = seen.in_flight - seen.running
    view = ServerView(
        running=seen.running,
        waiting=waiting,
        kv_usage=min(1.0, seen.running * (P + G / 2) / (machine.num_blocks * machine.block_size)),
        preemptions=float(seen.preemptions),
    )
    s = summaries.level(
        C,
        in_flight=seen.in_flight,
        output_tokens_per_s=Estimate(seen.output_tokens_per_s),
        output_tokens_per_s_se=0.005 * seen.output_tokens_per_s,
        ttft_s=seen.ttft_s,
        itl_s=Spread(seen.itl_s.mean, None, None, None, None, None, seen.requests),
        server=view if counters else None,
    )
    little = Little(None, None, None, mismatch=False, enough=False)
    measured = Measured(s=s, level=Level(0, C, 0, 0.0), conditions=Conditions(), little=little)
    return msgspec.structs.replace(s, verdicts=in_flight_low.findings(measured))


# ---- a real run -------------------------------------------------------------------------------------------


def run(fault: Fault, folder: Path) -> Summary:
    """`knee run` against a process that serves as the faulty deployment says, in real time."""
    served = msgspec.structs.replace(profile(f"{NAME}/{fault.card}", speed=1.0), deployment=fault.faulty)
    (P, G), out = fault.tokens, folder / "out"
    options = ["--levels", ",".join(map(str, fault.brief)), "--level-seconds", str(fault.window_s), "--seed", "7"]
    options += ["--input-tokens", str(P), "--output-tokens", str(G), "--out", str(out), "--quiet", "--no-plots"]
    options += ["--gpu", fault.card, "--model-config", NAME, "--max-num-seqs", str(fault.predicted["max_num_seqs"])]
    options += ["--max-rps", str(fault.quota)] if fault.quota else []
    with running(served, cpu=min(os.sched_getaffinity(0))) as url:
        command = [sys.executable, "-m", "harness", "run", "--url", url, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode in (0, 3), done.stderr
    return msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
