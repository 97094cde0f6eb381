"""Damaged folders and files, and every command that reads them: `scripts/trust` prints the table."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import guard_readers

TITLE = "Damaged folders, configs and scenarios"
HEADER = ("what is read", "commands", "exit status", "memory, MiB", "longest, s", "holds")
INPUTS = 200_000  # damaged files of the fuzz


def rows() -> Iterator[trust_table.Row]:
    """Yield a row for each folder and each file; a row for the fuzz of all readers."""
    with tempfile.TemporaryDirectory() as place, guard_readers.Knee(Path(place)) as knee:
        for name in guard_readers.FOLDERS:
            yield _row(name, guard_readers.read_folder(knee, name, Path(place)))
        for name in guard_readers.FILES:
            yield _row(name, [guard_readers.read_file(knee, name, Path(place))])
    yield fuzzed(INPUTS)


def _row(name: str, tried: list[tuple[str, guard_readers.Outcome, list[str]]]) -> trust_table.Row:
    statuses = ", ".join(sorted({str(found.status) for _, found, _ in tried}))
    memory = max(found.memory for _, found, _ in tried) >> 20
    wrong = [f"{command}: {'; '.join(problems)}" for command, _, problems in tried if problems]
    longest = max(found.seconds for _, found, _ in tried)
    return name, str(len(tried)), statuses, str(memory), f"{longest:.1f}", "; ".join(wrong) or "yes"


def fuzzed(inputs: int) -> trust_table.Row:
    """Return what the readers made of damaged files."""
    command = [str(Path(__file__).parent / "fuzz"), "--readers", "--inputs", str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()
    holds = "yes" if done.returncode == 0 else "; ".join(output)
    return f"{inputs:,} damaged files: {output[0]}", "readers in process", str(done.returncode), "", "", holds


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
