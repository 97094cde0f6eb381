"""bench/soak: a rise is told from noise, and a short soak of the client shows that it stays as it is."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import soak  # noqa: E402

HALF_HOUR = (10.0, 1810.0)  # seconds since the load began
SECONDS = np.arange(HALF_HOUR[0], HALF_HOUR[1], 0.5)
PAGE = 4096


def grown(values: np.ndarray) -> soak.Rise:
    return soak.grown("heap", "B", list(zip(SECONDS.tolist(), values.tolist(), strict=True)), HALF_HOUR)


def heap(seed: int) -> np.ndarray:
    """Bytes of a heap of 40 kinds of objects, whose number varies and does not grow: of each the most so far."""
    rng = np.random.default_rng(seed)
    before = round(HALF_HOUR[0] / 0.5)
    total = np.zeros(len(SECONDS))
    for width in rng.uniform(0.2, 1.5, 40):
        most = np.maximum.accumulate(rng.gumbel(0, width, before + len(SECONDS)))
        total += np.ceil(most[before:])
    return 8000 * PAGE + PAGE * total


def test_a_heap_that_only_passes_its_most_is_within_noise_and_one_that_keeps_something_rises() -> None:
    """In 18 of 20; the leak is of a byte a request at 160 a second."""
    heaps = [heap(seed) for seed in range(20)]
    assert all(values[-1] - values[len(values) // 2] > 0 for values in heaps)  # each still rises in its second half
    assert sum(grown(values).verdict == "within noise" for values in heaps) >= 18
    leak = 160 * (SECONDS - SECONDS[0]) // PAGE * PAGE
    found = [grown(values + leak) for values in heaps]
    assert sum(each.verdict == "rises" for each in found) >= 18
    assert np.median([each.rise for each in found]) == pytest.approx(160 * 1800, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_in_steps_is_seen_and_a_heap_that_varies_is_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    varies = 100e6 + 1e5 * rng.standard_normal(len(SECONDS))
    assert grown(varies).verdict == "within noise"
    found = grown(varies + 1e6 * np.floor(np.arange(len(SECONDS)) / 120))
    assert found.verdict == "rises"
    assert found.rise == pytest.approx(30e6, rel=0.05)
    assert found.late == pytest.approx(30e6 * 19 / 40, rel=0.05)  # the last 19 of 40 parts


def test_what_never_changes_is_within_noise_and_too_few_readings_say_so() -> None:
    assert grown(np.full(len(SECONDS), 522.0)).verdict == "within noise"
    few = soak.grown("descriptors", "", [(10.0 + 200 * i, 522.0) for i in range(8)], HALF_HOUR)
    assert few.verdict == "too few independent readings"


def test_the_stamps_error_may_change_by_less_than_5_microseconds() -> None:
    noise = 1e-7 * np.random.default_rng(1).standard_normal(soak.BINS)
    line = np.linspace(0, 1, soak.BINS)
    drifts = [soak.of_bins("stamps", "s", 4e-6 + noise + d * line, 60.0, most=soak.MOST_DRIFT_S) for d in (1e-6, 8e-6)]
    assert [each.verdict.partition(":")[0] for each in drifts] == ["within 5.00 µs", "beyond 5.00 µs"]
    assert [each.varied for each in drifts] == pytest.approx([1e-6, 8e-6], abs=5e-7)
    assert [each.ok for each in drifts] == [True, False]
    found = soak.Found(command="run", window_s=60.0, tokens=6000, errors=0, rises=drifts)
    assert "| stamps | 4.5" in soak.text(found)
    assert not found.ok


def test_an_error_that_varies_slowly_has_no_interval_but_a_range() -> None:
    """A wave over the whole window: neighbouring parts are alike, so that a slope has no interval."""
    wave = np.sin(np.linspace(0, 2 * np.pi, soak.BINS))
    slow, far = (soak.of_bins("stamps", "s", 4e-6 + d * wave, 60.0, most=soak.MOST_DRIFT_S) for d in (0.5e-6, 3e-6))
    assert (slow.low, slow.ok) == (None, True)
    assert (far.low, far.ok) == (None, False)
    nothing = soak.of_bins("stamps", "s", np.full(soak.BINS, np.nan), 60.0, most=soak.MOST_DRIFT_S)
    assert not nothing.ok


@pytest.mark.alone
@pytest.mark.slow
def test_a_short_soak_of_the_client_keeps_its_memory_its_descriptors_and_its_stamps() -> None:
    """A minute of the half hour: what a heap still takes in its second half is far below what is received."""
    load = ["--streams", "256", "--itl", "0.05"]  # answers of 6 s: the level warms up and drains by whole ones
    command = [sys.executable, str(BENCH / "soak.py"), "--minutes", "0.7", *load, "--json"]
    done = subprocess.run(command, capture_output=True, timeout=300, cwd=BENCH.parent)
    found = json.loads(done.stdout)
    assert found["errors"] == 0
    # A slow machine may be given a second worker in the middle of the level, which then has too few readings to judge.
    rises = {each["name"]: each for each in found["rises"] if not math.isnan(each["mean"])}
    assert found["tokens"] > 50_000
    for name, each in rises.items():
        if name.endswith("memory"):
            assert each["late"] < 8 * found["tokens"], (
                f"{name}: of {found['tokens']} tokens, 8 bytes are the stamps alone"
            )
        if name.endswith("descriptors"):
            assert each["whole"] <= 1
    assert {"main process, memory", "worker 0, memory", "worker 0, descriptors"} <= set(rises)
    assert abs(rises["stamp error, median"]["rise"]) < soak.MOST_DRIFT_S
