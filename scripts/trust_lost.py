"""Kills, full disks, signals and --resume, each with what it cost: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import lost

TITLE = "Kills, disks, signals"
HEADER = ("fault", "requests at the server", "in the folder", "lost", "counted twice", "exit status", "holds")


def rows() -> list[tuple[str, ...]]:
    """Return a row for each fault; what was lost was answered in the second before a process died."""
    out = []
    for name in lost.CASES:
        with tempfile.TemporaryDirectory() as place:
            a = lost.tried(name, Path(place))
        wrong = lost.wrong(name, a)
        status = ", ".join(map(str, a.statuses))
        counts = [f"{a.logged:,} ({a.answered:,} answered)", f"{a.kept:,}", f"{a.lost}", f"{a.twice}"]
        out.append((name, *counts, status, "; ".join(wrong) or "yes"))
    return out


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
