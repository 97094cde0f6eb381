"""scripts/test runs two parts, which together are all tests, and fails where one of them does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, Clone


@pytest.mark.parametrize(
    ("together", "alone", "status"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (2, 1, 1), (0, 5, 0), (5, 0, 0), (5, 1, 1), (5, 5, 5)],  # 5: no test was chosen
)
def test_both_parts_run_and_the_status_is_that_of_a_part_that_fails(
    tmp_path: Path, together: int, alone: int, status: int
) -> None:
    clone = Clone(tmp_path, "3.12.1")
    for name in ("test", "_help"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    seen, python = tmp_path / "seen", tmp_path / "pytest-s-python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{seen}\ncase "$*" in *"--part alone"*) exit {alone} ;; *) exit {together} ;; esac\n'
    )
    python.chmod(0o755)
    environ = {"PATH": f"{clone.root / 'bin'}:{os.defpath}", "TEST_PYTHON": str(python)}
    run = subprocess.run(["bash", tmp_path / "scripts/test", "-m", "a or b", "-q"], env=environ, check=False)
    first, second = seen.read_text().splitlines()
    assert "--part together -n 4" in first
    assert "--part alone" in second
    assert "-n" not in second.split()
    assert all(line.endswith("-m a or b -q") for line in (first, second))
    assert run.returncode == status
