"""Does the demo find its knee every time, also on a busy machine?

Each run has a home and a state folder of its own, so that no calibration is kept. Every second run competes with a
process a core that takes it for half of every second, at a higher priority where that is permitted. The simulated
endpoint runs 16 sequences at once, and a closed loop fills them with 16 to 16.5 requests in flight. Exit status 1 where
fewer than nine of ten knees lie within 5 % of that with an interval that meets it, where one is missing, or where a
status is not 0. At last every command of the README is run with the same processes and ends as the README says, or the
status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TRUE = (16.0, 16.5)
NEAR, SHARE = 0.05, 0.9


class Row(NamedTuple):
    """One demo."""

    disturbed: bool
    status: int
    seconds: float
    state: str
    knee: float | None
    low: float | None
    high: float | None

    @property
    def right(self) -> bool:
        if self.knee is None or self.low is None:
            return False
        near = TRUE[0] * (1 - NEAR) <= self.knee <= TRUE[1] * (1 + NEAR)
        return near and self.low <= TRUE[1] and (self.high is None or self.high >= TRUE[0])


def demo(folder: Path, *, disturbed: bool) -> Row:
    import msgspec

    from harness.data.summary import Summary

    fresh = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
    began = time.monotonic()
    done = subprocess.run(
        ["scripts/demo", "--out", str(folder / "result"), "--no-plots", "--quiet"], env=os.environ | fresh, check=False
    )
    seconds = time.monotonic() - began
    path = folder / "result/summary.json"
    curve = msgspec.json.decode(path.read_bytes(), type=Summary).curve if path.exists() else None
    if curve is None:
        return Row(disturbed, done.returncode, seconds, "none", None, None, None)
    low, high = curve.hinge_concurrency.ci95 or (None, None)
    return Row(disturbed, done.returncode, seconds, curve.state, curve.hinge_concurrency.value, low, high)


def competing(nice: int) -> contextlib.AbstractContextManager[object]:
    """Return a process a core that takes it for half of every second."""
    from disturbed import disturbed

    return disturbed(sorted(os.sched_getaffinity(0)), nice)


def commands_of_the_readme(nice: int) -> bool:
    """Return whether every command of the README ends as it says, while others take the cores."""
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_readme.py"]
    with competing(nice):
        done = subprocess.run(test, capture_output=True, text=True, check=False)
    output = (done.stdout.strip() or done.stderr.strip()).splitlines()
    print("\n".join(["", "the README's commands, disturbed:", *(output[-1:] if done.returncode == 0 else output)]))
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--nice", type=int, default=-5, help="priority of the disturbing processes; default -5")
    parser.add_argument("--skip-readme", action="store_true", help="the demos alone")
    arguments = parser.parse_args()

    rows: list[Row] = []
    print("| run | disturbed | status | s | state | knee [95 %] | right |\n|--:|---|--:|--:|---|---|---|")
    for i in range(arguments.runs):
        other = competing(arguments.nice) if i % 2 else contextlib.nullcontext()
        with tempfile.TemporaryDirectory() as folder, other:
            row = demo(Path(folder), disturbed=bool(i % 2))
        rows.append(row)
        high = "∞" if row.high is None else f"{row.high:.4g}"
        knee = "–" if row.knee is None else f"{row.knee:.4g} [{row.low or 0:.4g}, {high}]"
        words = [
            "yes" if row.disturbed else "no",
            row.status,
            f"{row.seconds:.0f}",
            row.state,
            knee,
            "yes" if row.right else "no",
        ]
        print(f"| {i + 1} | " + " | ".join(map(str, words)) + " |", flush=True)
    readme = arguments.skip_readme or commands_of_the_readme(arguments.nice)
    right, answered = sum(row.right for row in rows), sum(row.knee is not None for row in rows)
    well = right >= SHARE * len(rows) and answered == len(rows) and not any(row.status for row in rows) and readme
    verdict = "as it should" if well else "NOT as it should"
    print(f"\n{right} of {len(rows)} right, {len(rows) - answered} without a knee: {verdict}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
