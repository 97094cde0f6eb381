"""What hostile servers cost a run while it sends single requests: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests.trust import expressions, hostile_control
from tests.trust.hostile_control import MODES, PLACES, Mode, Tried

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
    """Yield the expressions, and a row for each mode."""
    yield searched()
    hostile_control.ending_s()  # alone, before anything else keeps the machine busy
    cases = [(mode, place, False) for mode, place in hostile_control.cases()]
    cases += [(mode, place, True) for mode, place in hostile_control.lasting()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(cases, pool.map(lambda case: _once(*case), cases), strict=True))
    for case in [case for case, each in found.items() if each.problems]:
        found[case] = hostile_control.held(case[0], case[1], interrupt=case[2])  # alone: they share two processors
    for mode in MODES:
        runs = {place: found[mode, place, False] for place in mode.places}
        yield _row(mode, runs, [found[mode, place, True] for place in mode.places if mode.lasts])


def _once(mode: Mode, place: str, interrupt: bool) -> Tried:
    return (hostile_control.interrupted if interrupt else hostile_control.tried)(mode, place)


def _row(mode: Mode, runs: dict[str, Tried], interrupts: list[Tried]) -> trust_table.Row:
    cells = [f"{runs[p].status} after {runs[p].seconds:.1f} s" if p in runs else "–" for p in PLACES]
    amid = ", ".join(f"{each.seconds:.1f}" for each in interrupts) or "–"
    every = [*runs.values(), *interrupts]
    wrong = [f"{each.place}: {problem}" for each in every for problem in each.problems]
    memory = f"{max(each.memory_mb for each in every):.0f}"
    return NAMED.get(mode.name, "") + mode.name, *cells, amid, memory, "; ".join(wrong) or "yes"


def searched() -> trust_table.Row:
    """Return every expression of the harness on its worst text."""
    found = {f"{each.file}: {each.source}": expressions.growth(each) for each in expressions.TABLE}
    wrong = [
        f"{name} takes {times:.0f} times as long for {expressions.LONGER} times the text"
        for name, times in found.items()
        if times > expressions.WORST
    ]
    what = f"texts of {expressions.LENGTH:,} characters for each of {len(found)} expressions"
    worst = f"at most {max(found.values()):.0f} times the time for {expressions.LONGER} times the text"
    return what, worst, "–", "–", "–", "–", "; ".join([*wrong, *expressions.missing()]) or "yes"


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
