"""One server told three ways: the closed form, the step machine on a clock that jumps, and the simulated endpoint live.

Agreement is there by construction (one step model); so this checks the plumbing, and nothing about any hardware.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.predict import roofline, simulate
from harness.predict.batching import StepMachine
from harness.sim import profile as profiles
from harness.spec.work import MeanLengths
from tests.run.test_experiment import knee

P, G, SEATS = 256, 96, 24
LEVELS = (1, 6, 16, 32, 48)
LIVE = (1, 16, 48)  # alone, with seats to spare, and with twice as many requests as seats
CLOSE = 0.03


@pytest.mark.alone
@pytest.mark.slow
def test_closed_form_step_machine_and_live_endpoint_give_the_same_curve(tmp_path: Path) -> None:
    done = knee(
        "run", "--url", "sim:", "--max-num-seqs", str(SEATS), "--speed", "2", "--input-tokens", str(P),
        "--output-tokens", str(G), "--levels", ",".join(map(str, LIVE)), "--level-seconds", "4",
        "--out", str(tmp_path / "out"), "--json", "--quiet", "--no-plots",
    )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr
    summary = json.loads(done.stdout)
    live = {s["concurrency"]: s["output_tokens_per_s"]["mean"] for s in summary["levels"]}

    served = profiles.profile(max_num_seqs=SEATS, speed=2.0)
    workload = MeanLengths(P, G)
    closed = {
        level.concurrency: level.output_tokens_per_s.mid
        for level in roofline.predict(served.model, served.deployment, workload, list(LEVELS)).levels
    }
    for C in LEVELS:
        machine = StepMachine(served.model, served.deployment, workload.context)
        jumped = simulate.closed_loop(machine, workload, C, requests=max(100, 6 * C), stagger=0.3).output_tokens_per_s
        assert jumped == pytest.approx(closed[C], rel=CLOSE), C
    for C in LIVE:
        assert live[C] == pytest.approx(closed[C], rel=CLOSE), C
