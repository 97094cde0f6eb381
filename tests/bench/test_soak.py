"""bench/soak: a rise is told from noise, and a short soak of the client shows that it stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import soak  # noqa: E402

MINUTE = (0.0, 60.0)


def points(values: np.ndarray) -> list[tuple[float, float]]:
    return [(60.0 * i / len(values), float(value)) for i, value in enumerate(values)]


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_in_steps_is_seen_and_a_heap_that_varies_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    varies = 100e6 + 1e5 * rng.standard_normal(120)
    assert soak.grown("heap", "B", points(varies), MINUTE).verdict == "within noise"
    leaks = varies + 1e6 * np.floor(np.arange(120) / 4)
    found = soak.grown("leak", "B", points(leaks), MINUTE)
    assert found.verdict == "rises"
    assert found.rise == pytest.approx(29e6, rel=0.05)


def test_what_never_changes_is_within_noise_and_too_few_readings_say_so() -> None:
    assert soak.grown("descriptors", "", points(np.full(120, 522.0)), MINUTE).verdict == "within noise"
    assert soak.grown("descriptors", "", points(np.full(8, 522.0)), MINUTE).verdict == "too few independent readings"


def test_the_stamps_error_may_change_by_less_than_5_microseconds() -> None:
    noise = 1e-7 * np.random.default_rng(1).standard_normal(soak.BINS)
    line = np.linspace(0, 1, soak.BINS)
    drifts = [soak.of_bins("stamps", "s", 4e-6 + noise + d * line, 60.0, most=soak.MOST_DRIFT_S) for d in (1e-6, 8e-6)]
    assert [each.verdict for each in drifts] == ["below 5.00 µs", "not surely below 5.00 µs"]
    assert [each.ok for each in drifts] == [True, False]
    found = soak.Found(command="run", window_s=60.0, tokens=6000, errors=0, rises=drifts)
    assert "| stamps | 4.5" in soak.text(found)
    assert not found.ok


@pytest.mark.slow
def test_a_short_soak_of_the_client_keeps_its_memory_its_descriptors_and_its_stamps() -> None:
    """A minute of the half hour: what a heap still takes at first is far below what is received."""
    command = [sys.executable, str(BENCH / "soak.py"), "--minutes", "0.7", "--streams", "512", "--itl", "0.1", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=300, cwd=BENCH.parent)
    found = json.loads(done.stdout)
    assert found["errors"] == 0
    rises = {each["name"]: each for each in found["rises"]}
    assert found["tokens"] > 50_000
    for name, each in rises.items():
        if name.endswith("memory"):
            assert each["rise"] < 8 * found["tokens"], (
                f"{name}: of {found['tokens']} tokens, 8 bytes are the stamps alone"
            )
        if name.endswith("descriptors"):
            assert each["rise"] <= 1
    assert {"main process, memory", "worker 0, memory", "worker 0, descriptors"} <= set(rises)
    assert abs(rises["stamp error, median"]["rise"]) < soak.MOST_DRIFT_S
