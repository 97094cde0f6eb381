"""What servers of ill will cost a run where it asks single questions: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests import expressions, hostile_control
from tests.hostile_control import MODES, PLACES, Mode, Tried

TITLE = "Servers of ill will"
HEADER = (
    "what the server does", "to `/v1/models`", "to the first request", "to `/version` and `/metrics` under load",
    "Ctrl-C amid it, s", "MB", "holds",
)  # fmt: skip
AT_ONCE = 3  # runs; most of them wait
COMPRESSED = "compressed answers are bounded before they are inflated: "
DEADLINE = "one deadline around every request: "
NO_TRACEBACK = "no traceback from a server's bytes: "
NAMED = {  # the faults that these modes were found by
    "a gzip bomb of 3 GiB": COMPRESSED, "a deflate bomb of 3 GiB": COMPRESSED, "gzip in gzip, ten times": COMPRESSED,
    "dripping headers": DEADLINE, "a dripping body": DEADLINE, "a storm of 1xx": DEADLINE, "1xx now and then": DEADLINE,
    "corrupt gzip": NO_TRACEBACK, "half a surrogate": NO_TRACEBACK, "a charset of zlib": NO_TRACEBACK,
    "a name of 15 MB": "names are cut: ", "metrics that cost a square": "a page of figures is read in one go: ",
}  # fmt: skip


def rows() -> Iterator[trust_table.Row]:
    """The expressions, and a row for each mode."""
    yield searched()
    hostile_control.ending_s()  # alone, before anything else keeps the machine busy
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = [(mode, *_begun(pool, mode)) for mode in MODES]
        for mode, runs, interrupts in begun:
            yield _row(mode, {p: f.result() for p, f in runs.items()}, [f.result() for f in interrupts])


def _begun(pool: ThreadPoolExecutor, mode: Mode) -> tuple[dict[str, Future[Tried]], list[Future[Tried]]]:
    """Every run of a mode, by its place, and those that are interrupted."""
    runs = {place: pool.submit(hostile_control.held, mode, place) for place in mode.places}
    places = mode.places if mode.lasts else ()
    return runs, [pool.submit(hostile_control.held, mode, place, interrupt=True) for place in places]


def _row(mode: Mode, runs: dict[str, Tried], interrupts: list[Tried]) -> trust_table.Row:
    cells = [f"{runs[p].status} after {runs[p].seconds:.1f} s" if p in runs else "–" for p in PLACES]
    amid = ", ".join(f"{each.seconds:.1f}" for each in interrupts) or "–"
    every = [*runs.values(), *interrupts]
    wrong = [f"{each.place}: {problem}" for each in every for problem in each.problems]
    memory = f"{max(each.memory_mb for each in every):.0f}"
    return NAMED.get(mode.name, "") + mode.name, *cells, amid, memory, "; ".join(wrong) or "yes"


def searched() -> trust_table.Row:
    """Every expression of the harness on its worst text."""
    found = {f"{each.file}: {each.source}": expressions.ratio(each) for each in expressions.TABLE}
    wrong = [f"{name} takes {ratio:.0f} times as long" for name, ratio in found.items() if ratio > expressions.WORST]
    what = f"texts of {expressions.LENGTH:,} characters for each of {len(found)} expressions"
    worst = f"at most {max(found.values()):.0f} times a benign text's time"
    return what, worst, "–", "–", "–", "–", "; ".join([*wrong, *expressions.missing()]) or "yes"


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
