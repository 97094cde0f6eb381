"""What is searched for secrets after runs against a server that repeats them: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import leaks

TITLE = "Secrets"
HEADER = ("searched for secrets", "load by", "amount", "hits", "holds")


def rows() -> list[tuple[str, ...]]:
    """Return a row for each place and transport."""
    out: list[tuple[str, ...]] = []
    for transport in ("socket", "httpx"):
        with tempfile.TemporaryDirectory() as place:
            found = leaks.traces(Path(place), transport=transport)
        for trace in found:
            where = (trace.where, transport, trace.amount, f"{len(trace.hits)}")
            out.append((*where, "; ".join(trace.hits) or "yes"))
    return out


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
