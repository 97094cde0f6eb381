"""The tables of `scripts/trust` and its parts: Markdown, with `holds` as the last column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = Sequence[str]


def show(title: str, header: Row, rows: Iterable[Row]) -> bool:
    """Print a table row by row as it comes; whether every row holds."""
    print(f"\n## {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    holds = True
    for row in rows:
        holds = holds and row[-1] == "yes"
        print(f"| {' | '.join(cell.replace('|', '¦').replace(chr(10), ' ') for cell in row)} |", flush=True)
    return holds
