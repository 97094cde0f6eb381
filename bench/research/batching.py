"""How fast the discrete-event predictor is, and how far it is from the closed form at fixed lengths.

Speed: a closed loop on the clock that jumps, simulated seconds per second of wall time, with steps taken together
and one by one. Agreement: throughput, ITL and TTFT of the simulation over those of predict.roofline, below and above
the cap; the last rows with a KV cache too small for max-num-seqs, in an engine that reserves (where they have to
agree) and in one that preempts (where the closed form leaves out what is computed again). Exit status 1 where the
predictor is less than 100 times as fast as real time.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import NamedTuple
from unittest import mock

import msgspec

from harness.data.prediction import SteppedLevel, batch_cap
from harness.predict import batching
from harness.predict.batching import StepMachine
from harness.predict.catalog import gpu, model_config
from harness.predict.deployment import Deployment, deployment
from harness.predict.model import Model, model
from harness.predict.simulate import closed_loop
from harness.predict.steady import SteadyState, caps, steady_state
from harness.predict.step import step_cost
from harness.spec.work import MeanLengths

FASTER = 100.0  # times real time, at least
IN_FLIGHT = (1, 16, 64, 256)
SERVERS = [
    ("qwen2.5-0.5b", "rtx4090", {}),
    ("llama-3.1-8b", "h100-sxm", {}),
    ("llama-3.1-8b", "a100-80-sxm", {}),
    ("gemma-3-27b", "h200-sxm", {}),
    ("qwen3-30b-a3b", "h200-sxm", {}),
    ("llama-3.1-70b", "h100-sxm", {"tp": 4}),
]
WORKLOAD = MeanLengths(1000, 200)


class Row(NamedTuple):
    """One simulation and its closed form."""

    seen: SteppedLevel
    point: SteadyState
    cap: float
    wall_s: float


def simulate(served: Model, there: Deployment, workload: MeanLengths, C: int, requests: int) -> Row:
    """Return a closed loop staggered over one request time, as a level is."""
    cap = batch_cap(caps(served, there, workload))
    point = steady_state(step_cost(served, there), workload, C, cap)
    over = point.ttft + workload.output_tokens * point.itl
    machine = StepMachine(served, there, workload.context)
    began = time.perf_counter()
    seen = closed_loop(machine, workload, C, requests=requests, stagger=over)
    return Row(seen, point, cap, time.perf_counter() - began)


def speed(requests: int, repeats: int) -> bool:
    """Print the speed table; whether all of it is fast enough."""
    served, there = model(model_config("llama-3.1-8b"), "llama-3.1-8b"), deployment(gpu("h100-sxm"))
    P, G = WORKLOAD.input_tokens, WORKLOAD.output_tokens
    print(f"llama-3.1-8b on h100-sxm, {P:.0f} tokens in and {G:.0f} out, at least {requests} requests in the window")
    print(f"{'in flight':>9}  {'tok/s':>7}  {'× real time':>11}  {'one by one':>10}  {'µs a step':>9}")
    enough = True
    for C in IN_FLIGHT:
        times: list[float] = []
        for stepwise in (False, True):
            with mock.patch.object(batching, "_WORTHWHILE", math.inf if stepwise else batching._WORTHWHILE):
                rows = [simulate(served, there, WORKLOAD, C, max(requests, 4 * C)) for _ in range(repeats)]
            best = min(rows, key=lambda row: row.wall_s)
            share = best.seen.requests / (best.seen.requests + 2 * C)  # of the work that the window is
            times.append(best.seen.window_s / (best.wall_s * share))
            if not stepwise:
                assert best.seen.itl_s is not None
                steps, tokens = best.seen.itl_s.n, best.seen.output_tokens_per_s
                micro = best.wall_s * share / steps * 1e6
        print(f"{C:>9}  {tokens:>7.0f}  {times[0]:>11.0f}  {times[1]:>10.0f}  {micro:>9.1f}")
        enough &= times[0] >= FASTER
    return enough


def agreement() -> None:
    """Print simulated over closed form."""
    print("\nsimulated over closed form: throughput, ITL, TTFT")
    print(
        f"{'server':<46}  {'cap':>5}  {'C':>5}  {'tok/s':>6}  {'ITL':>6}  {'TTFT':>6}  {'running':>7}  {'preempted':>9}"
    )

    def line(name: str, served: Model, there: Deployment, C: int) -> None:
        seen, point, cap, _ = simulate(served, there, WORKLOAD, C, 8 * C)
        assert seen.ttft_s is not None
        assert seen.itl_s is not None
        ratios = (
            seen.output_tokens_per_s / point.throughput,
            (seen.itl_s.mean or 0.0) / point.itl,
            (seen.ttft_s.mean or 0.0) / point.ttft,
        )
        columns = "  ".join(f"{ratio:>6.3f}" for ratio in ratios)
        again = seen.preemptions / seen.requests
        print(f"{name:<46}  {cap:>5.0f}  {C:>5}  {columns}  {seen.running:>7.1f}  {again:>9.3f}")

    for which, card, figures in SERVERS:
        served = model(model_config(which), which)
        there = deployment(gpu(card), max_num_seqs=48, **figures)
        for C in (1, 12, 48, 96):
            line(f"{which} on {there.gpus} × {card}", served, there, C)
    served = model(model_config("llama-3.1-8b"), "llama-3.1-8b")
    for reserve in (True, False):
        for batch in (16, 64):
            ctx = WORKLOAD.input_tokens + WORKLOAD.output_tokens / (1 if reserve else 2)
            there = deployment(gpu("h100-sxm"), max_num_seqs=1024, reserve=reserve)
            size = there.block_size
            there = msgspec.structs.replace(there, kv_tokens=batch * size * -(-int(ctx) // size))
            line(f"llama-3.1-8b, KV for {batch}, {'reserves' if reserve else 'preempts'}", served, there, 2 * batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="in the window, at least 4 a user (default 400)")
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts (default 3)")
    options = parser.parse_args()
    enough = speed(options.requests, options.repeats)
    agreement()
    if not enough:
        sys.exit(f"error: less than {FASTER:.0f} times as fast as real time")


if __name__ == "__main__":
    main()
