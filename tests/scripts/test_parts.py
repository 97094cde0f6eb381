"""scripts/test runs two parts, which together are all tests, and fails where one of them does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, Clone


def ran(folder: Path, together: int, alone: int, **environ: str) -> tuple[int, list[str]]:
    """The status of scripts/test, whose parts end with these, and what each pytest was called with."""
    clone = Clone(folder, "3.12.1")
    for name in ("test", "_help"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts")
    seen, python = folder / "seen", folder / "pytest-s-python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{seen}\ncase "$*" in *"--part alone"*) exit {alone} ;; *) exit {together} ;; esac\n'
    )
    python.chmod(0o755)
    environ |= {"PATH": f"{clone.root / 'bin'}:{os.defpath}", "TEST_PYTHON": str(python)}
    run = subprocess.run(["bash", folder / "scripts/test", "-m", "a or b", "-q"], env=environ, check=False)
    return run.returncode, seen.read_text().splitlines()


@pytest.mark.parametrize(
    ("together", "alone", "status"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (2, 1, 1), (0, 5, 0), (5, 0, 0), (5, 1, 1), (5, 5, 5)],  # 5: no test was chosen
)
def test_both_parts_run_and_the_status_is_that_of_a_part_that_fails(
    tmp_path: Path, together: int, alone: int, status: int
) -> None:
    found, (first, second) = ran(tmp_path, together, alone)
    assert "--part together -n 4" in first
    assert "--part alone" in second
    assert "-n" not in second.split()
    assert all(line.endswith("-m a or b -q") for line in (first, second))
    assert found == status


@pytest.mark.parametrize(("part", "status"), [("together", 3), ("alone", 4)])
def test_one_part_of_the_two_runs_where_it_is_named(tmp_path: Path, part: str, status: int) -> None:
    found, (only,) = ran(tmp_path, 3, 4, TEST_PART=part)
    assert f"--part {part}" in only
    assert found == status
