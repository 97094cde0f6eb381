"""The benchmark of checks: its truths, and a short form of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import check
from compare import Noise


@pytest.mark.slow
def test_checks_say_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--trials", "5", "--seed", "7"]) == 0
    assert capsys.readouterr().out.count("met") == 2


def test_without_noise_five_percent_is_missed_and_the_same_again_met() -> None:
    exact = Noise(run=0.0, level=0.001, repeats=3)
    assert check.outcome("slower", exact, np.random.default_rng(0)) == "missed"
    assert check.outcome("equal", exact, np.random.default_rng(0)) == "met"
