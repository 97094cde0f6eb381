"""The programs beside which bench/engine measures: the bare receive loop, and the streams over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sim.process import running
from harness.sim.profile import Reference, StreamPace

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.alone
@pytest.mark.slow
def test_as_many_tokens_come_as_the_streams_are_paced_to_send() -> None:
    streams, pace = 8, StreamPace(ttft_s=0.02, itl_s=0.02, groups=8)
    arguments = ["--streams", str(streams), "--answer", "25", "--spread", "0.3", "--settle", "0.3", "--seconds", "1"]
    arguments += ["--cpu", str(max(os.sched_getaffinity(0)))]
    with running(Reference(pace=pace)) as url:
        command = [sys.executable, str(BENCH / "engine_floor.py"), "--url", url, *arguments]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=30).stdout)
    paced = streams * 25 / (0.02 + 24 * 0.02)  # of answers that follow each other at once
    assert 0.5 * paced < found["tokens"] < 1.2 * paced
    assert 0 < found["cpu_s"] < 1


@pytest.mark.slow
def test_a_token_over_tls_has_its_cost() -> None:
    command = [sys.executable, str(BENCH / "engine_tls.py"), "--streams", "8", "--seconds", "1"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert sorted(found) == ["plain", "tls"]
    assert min(found.values()) > 0
