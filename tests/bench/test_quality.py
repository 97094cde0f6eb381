"""The benchmark of canaries, in a short form: a gross fault, which few canaries find too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench/research"))

import quality


@pytest.mark.slow
def test_a_planted_fault_is_named_and_a_clean_run_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert quality.main(["--runs", "1", "--seconds", "3", "--share", "0.5"]) == 0
    assert capsys.readouterr().out.count("met") == 3
