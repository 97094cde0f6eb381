"""The simulated endpoint as a process of its own, as long as a `with` block lasts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from harness.errors import HarnessError
from harness.sim.profile import Profile

_READY = "ready "


@contextmanager
def running(profile: Profile, *, log: str | Path | None = None, cpu: int | None = None) -> Iterator[str]:
    """Start the endpoint, give its URL, and end it afterwards.

    `log` is its write log, `cpu` the core that it is pinned to. It also ends by itself when this process
    dies, since it holds the other end of its standard input.
    """
    command = [sys.executable, "-m", "harness.sim", "--stdin"]
    command += [] if log is None else ["--log", str(log)]
    command += [] if cpu is None else ["--cpu", str(cpu)]
    # A session of its own: Ctrl-C is for the run, which still has to end its requests here.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(profile) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline().decode()
            if not line.startswith(_READY):
                fact = f"the simulated endpoint ended with status {process.wait()} before it served"
                raise HarnessError(fact, place="sim:", way_out="its own message stands above this one")
            yield line.removeprefix(_READY).strip()
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
