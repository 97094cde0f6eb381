"""What is searched for secrets after runs against a server that repeats them: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import leaks

HEADER = ("searched for secrets", "load by", "amount", "hits", "holds")


def rows() -> list[tuple[str, ...]]:
    """A row for each place and transport."""
    out: list[tuple[str, ...]] = []
    for transport in ("socket", "httpx"):
        with tempfile.TemporaryDirectory() as place:
            found = leaks.traces(Path(place), transport=transport)
        for trace in found:
            where = (trace.where, transport, trace.amount, f"{len(trace.hits)}")
            out.append((*where, "; ".join(trace.hits) or "yes"))
    return out


if __name__ == "__main__":
    table = [HEADER, *rows()]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.exit(any(row[-1] != "yes" for row in table[1:]))
