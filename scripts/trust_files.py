"""Commands on result folders made of links, pipes and folders: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import guard_files as guard

TITLE = "Hostile result folders"
HEADER = ("what", "tried", "holds")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each command, with every name that it writes as each kind of thing, and for the rest."""
    with tempfile.TemporaryDirectory() as folder, guard.ready(Path(folder)) as (base, runner):
        for number, command in enumerate(guard.COMMANDS):
            place = Path(folder) / f"command-{number}"
            place.mkdir()
            count = sum(case.command == command for case in guard.cases())
            wrong = guard.of_command(command, base, runner, place)
            yield f"{command}: nothing outside is changed", f"{count} folders", "; ".join(wrong) or "yes"
        for number, (name, tried) in enumerate(guard.OTHERS.items()):
            place = Path(folder) / f"other-{number}"
            place.mkdir()
            yield name, "", "; ".join(tried(base, place, runner)) or "yes"


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
