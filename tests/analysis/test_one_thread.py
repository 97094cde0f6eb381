"""A fit beside a load generator takes one processor, and says nothing about that to the processes that it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SHOW = """
import harness.analysis.curve, os
print(os.environ.get("OPENBLAS_NUM_THREADS"), len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("chosen", [None, "1"])
def test_numpy_starts_no_threads_and_the_environment_stays_as_it_was(chosen: str | None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if chosen is not None:
        env["OPENBLAS_NUM_THREADS"] = chosen
    shown = subprocess.run([sys.executable, "-c", _SHOW], env=env, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [str(chosen), "1"]
