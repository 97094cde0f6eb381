"""The budget of harness/: each figure is counted from the code itself, with its limit.

Lines are those of the files, blank ones and comments too. A function's lines go from its `def` to its end; its
parameters leave out self and cls.

What one request crosses is traced, not read off the code: `knee run` measures a level of one request at a time against
the reference endpoint and another one of two, then `knee report` reads the folder.

- Measured: within the first level's window, every file in which the worker enters a function, since it has nothing
  else to do; and of the run's own process every file in which a function is entered with the id of a request in its
  arguments: in the bytes of a batch, or in a record.
- Read: from the first file of the folder opened to the second level's figures, every file in which a function is
  entered, but for the commands' own: all that the first level's requests go through. What is made of levels after
  that (the curve, the verdicts on the run, words) is no longer about a request.

It prints, and judges nothing: the exit status is 0.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import house_trace
import pyarrow.parquet as pq

from harness.sim.process import running
from harness.sim.profile import Reference, StreamPace
from tests.test_rooms import circle, modules

HARNESS = house_trace.HARNESS
HOT_PATH = ("load", "dialects")
LINES, FILES, NAMES = 45_000, 250, 20  # of Python below harness/, and at its top
FUNCTION_LINES, PARAMETERS, FILE_LINES = 60, 8, 450
MEASURED, READ = 14, 16  # files
LEVEL = "--levels 1,2 --level-seconds 2 --input-tokens 32 --output-tokens 16 --workers 1 --no-plots --quiet".split()


class Row(NamedTuple):
    """One figure of the budget."""

    what: str
    figure: int
    limit: int
    where: list[str] = []  # noqa: RUF012  # what the figure counts, where there is something to name

    @property
    def holds(self) -> bool:
        return self.figure <= self.limit


class Function(NamedTuple):
    """A function of harness/, as far as the budget needs it."""

    file: str
    name: str
    lines: int
    parameters: int

    def __str__(self) -> str:
        return f"{self.file} {self.name}"


def room(file: str) -> str:
    """Return the room of a file below harness/.

    >>> room("load/sse.py"), room("__main__.py")
    ('load', 'top')
    """
    return file.partition("/")[0] if "/" in file else "top"


def functions(file: str, source: str) -> Iterator[Function]:
    """Yield every function of a file, those within classes and functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            signature = node.args
            names = [each.arg for each in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)]
            parameters = len(
                [*filter(None, [signature.vararg, signature.kwarg]), *(n for n in names if n not in ("self", "cls"))]
            )
            yield Function(file, node.name, (node.end_lineno or node.lineno) - node.lineno + 1, parameters)


def counted() -> tuple[Counter[str], list[Row]]:
    """Lines by room, and the figures of the budget that the sources give."""
    sources = {str(path.relative_to(HARNESS)): path.read_text() for path in sorted(HARNESS.rglob("*.py"))}
    lines = {file: len(source.splitlines()) for file, source in sources.items()}
    rooms: Counter[str] = Counter()
    for file, number in lines.items():
        rooms[room(file)] += number
    known = [function for file, source in sources.items() for function in functions(file, source)]
    long = sorted(
        (f for f in known if f.lines > FUNCTION_LINES and room(f.file) not in HOT_PATH), key=lambda f: -f.lines
    )
    most = max(f.parameters for f in known)
    many = sorted((f for f in known if f.parameters > PARAMETERS), key=lambda f: -f.parameters)
    big = sorted((file for file in lines if lines[file] > FILE_LINES), key=lambda file: -lines[file])
    around = circle(modules())
    top = {path.name for path in HARNESS.iterdir()} - {"__pycache__"}
    return rooms, [
        Row("lines of harness/", sum(lines.values()), LINES),
        Row("files of harness/", len(lines), FILES),
        Row("names at the top of harness/", len(top), NAMES),
        Row(f"functions over {FUNCTION_LINES} lines, hot path apart", len(long), 0, [f"{f}: {f.lines}" for f in long]),
        Row("most parameters of a function", most, PARAMETERS, [f"{f}: {f.parameters}" for f in many]),
        Row(f"files over {FILE_LINES} lines", len(big), 0, [f"{file}: {lines[file]}" for file in big]),
        Row("circles of imports", int(bool(around)), 0, [" → ".join(around)] if around else []),
    ]


def traced(folder: Path, *arguments: str | Path) -> tuple[int, dict[int, house_trace.Trace]]:
    """Run knee with every function noted: its process, and the traces of all processes."""
    folder.mkdir()
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    environ = os.environ | house_trace.environment(folder) | {"XDG_STATE_HOME": str(folder)}
    with subprocess.Popen(command, env=environ, cwd=house_trace.HARNESS.parent, stdout=subprocess.DEVNULL) as child:
        status = child.wait()
    if status not in (0, 3):  # 3: the level is void, since a traced client is slow; its requests crossed the same files
        sys.exit(f"error: {' '.join(command)} ended with status {status}")
    return child.pid, house_trace.read(folder)


def measured(result: Path, pid: int, traces: dict[int, house_trace.Trace]) -> list[str]:
    """Return the files that a request crosses while it is measured, from the traces of `knee run`."""
    origin_ns = json.loads((result / "manifest.json").read_text())["clock"]["monotonic_ns_origin"]
    level, _ = json.loads((result / "summary.json").read_text())["levels"]
    low, high = (origin_ns + round(at * 1e9) for at in level["window"])
    names = pq.read_table(result / "requests.parquet", columns=["request_id"])["request_id"].to_pylist()
    ids = [*names, *(name.encode() for name in names)]
    found: set[str] = set()
    for trace in traces.values():
        inside = [entry for entry in trace.entries if low <= entry.time_ns < high]
        if trace.pid == pid:
            inside = [entry for entry in inside if any(mentions(each, ids) for each in entry.arguments)]
        found.update(entry.file for entry in inside)
    return sorted(found)


def mentions(text: str | bytes, ids: list[str | bytes]) -> bool:
    """Return whether one of the ids stands in it."""
    return any(type(each) is type(text) and each in text for each in ids)  # type: ignore[operator]


def reading(result: Path, trace: house_trace.Trace) -> list[str]:
    """Return the files that a request crosses while it is read, from the trace of `knee report`."""
    low, _, stack = next(each for each in trace.opened if Path(each[1]).is_relative_to(result))
    high = max(trace.levels.values())
    found = {*stack, *(entry.file for entry in trace.entries if low <= entry.time_ns < high)}
    return sorted(file for file in found if room(file) != "cli")


def crossed() -> list[Row]:
    """Return what one request crosses, from a run and a report that are traced."""
    with tempfile.TemporaryDirectory() as place:
        result = Path(place) / "result"
        with running(Reference(pace=StreamPace(ttft_s=0.02, itl_s=0.002))) as url:
            one = measured(result, *traced(Path(place) / "run", "run", "--url", url, *LEVEL, "--out", result))
        pid, traces = traced(Path(place) / "report", "report", result, "--no-plots", "--quiet")
        other = reading(result, traces[pid])
    return [
        Row("files that one request crosses while it is measured", len(one), MEASURED, one),
        Row("files that one request crosses while it is read", len(other), READ, other),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", action="store_true", help="without the files that one request crosses")
    options = parser.parse_args()
    rooms, rows = counted()
    if not options.static:
        rows += crossed()
    print("| room | lines |\n|---|--:|")
    for name, lines in rooms.most_common():
        print(f"| {name} | {lines:,} |")
    print("\n| what | figure | limit | holds |\n|---|--:|--:|---|")
    for row in rows:
        print(f"| {row.what} | {row.figure:,} | {row.limit:,} | {'yes' if row.holds else 'no'} |")
    for row in rows:
        if row.where:
            print(f"\n{row.what}:", *row.where, sep="\n- ")


if __name__ == "__main__":
    main()
