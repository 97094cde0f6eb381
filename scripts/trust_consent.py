"""What files of others may try, and Ctrl-C at many moments: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import guard_consent

TITLE = "Consent and limits"
HEADER = ("tried", "what came of it", "holds")


def rows() -> Iterator[trust_table.Row]:
    """Yield a row for each case, by the number of its fault."""
    for name, case in guard_consent.CASES.items():
        with tempfile.TemporaryDirectory() as place:
            seen = case(Path(place))
        yield name, seen.what, "; ".join(seen.wrong) or "yes"


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
