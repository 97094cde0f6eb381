"""Imports point down the rooms and in no circle, and the command line starts without the heavy packages.

Read from the sources (`ast`), so that an import inside a function or under TYPE_CHECKING counts as well.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent.parent / "harness"

# A room may import itself and the rooms to its right.
ROOMS = (
    "cli", "library", "run", "report", "decide", "sim", "predict", "search", "analysis", "observe", "load",
    "dialects", "workload", "results", "data", "spec", "base",
)  # fmt: skip
# What measures and reads: it stands without predictions, simulations, decisions, reports, servers and commands.
CORE = {"base", "spec", "data", "dialects", "workload", "load", "observe", "results", "analysis", "search"}
READERS = {"results", "predict", "analysis", "search", "decide", "report"}
MEASURING = {
    "workload",
    "dialects",
    "load",
    "observe",
    "run",
}  # what reads its results never comes to it
PURE_ROOMS = {"predict", "decide", "analysis", "search"}
SEEDED_ROOMS = {"dialects", "workload"}  # pure, but for random numbers from a seed
PURE_LOAD = {"http1", "schedule"}
IMPURE = {"socket", "asyncio", "time"}
MEDIA = {  # of report: who shows something by which library; what is shown is described without any
    "rich": {"harness.report.terminal", "harness.report.live"},
    "matplotlib": {"harness.report.png"},
    "jinja2": {"harness.report.page"},
}
HEAVY = {"httpx", "pandas", "pyarrow", "matplotlib", "jinja2", "transformers", "torch"}


def imports(module: str, source: str) -> Iterator[tuple[str, bool]]:
    """Every dotted name that a module imports, and whether it does so as soon as it is imported itself."""
    tree = ast.parse(source)
    later = {id(inner) for outer in ast.walk(tree) if waits(outer) for inner in ast.walk(outer)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((name, id(node) not in later) for name in names)


def waits(node: ast.AST) -> bool:
    """Whether what stands inside is run later than the module, or only ever read by a type checker."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def room_of(module: str) -> str | None:
    """The room of a dotted name inside harness; None where it has none."""
    name = (*module.split("."), "")[1]
    if name in ("", "__version__"):
        return "base"
    if name in ("__init__", "__main__"):  # the first names what the library has
        return {"__init__": "library", "__main__": "cli"}[name]
    return name if name in ROOMS else None


def faults(module: str, source: str) -> list[str]:
    """What a module's imports break, a line each; a module is named like 'harness.load.http1'."""
    room = room_of(module)
    if room is None:
        return [f"{module} stands in no room"]
    found = []
    for name, at_once in imports(module, source):
        top = name.split(".")[0]
        if top == "harness":
            target = room_of(name)
            if target is None:
                found.append(f"{module} imports {name}, which stands in no room")
            elif ROOMS.index(target) < ROOMS.index(room):
                found.append(f"{module} imports {name}: up from {room} to {target}")
        elif (room in PURE_ROOMS and top in IMPURE | {"random"}) or (room in SEEDED_ROOMS and top in IMPURE):
            found.append(f"{module} imports {name}: {room} is pure")
        elif room == "load" and module.split(".")[2] in PURE_LOAD and top in IMPURE:
            found.append(f"{module} imports {name}: it is one of load's pure modules")
        elif room == "report" and module not in MEDIA.get(top, {module}):
            found.append(f"{module} imports {name}: {top} is for {', '.join(sorted(MEDIA[top]))}")
        elif top in HEAVY and at_once:
            found.append(f"{module} imports {name} at its top; import it where it is used")
    return found


def modules() -> dict[str, str]:
    """Every module of harness by dotted name, with its source."""
    paths = sorted(HARNESS.rglob("*.py"))
    names = [".".join(("harness", *path.relative_to(HARNESS).with_suffix("").parts)) for path in paths]
    return {name: path.read_text() for name, path in zip(names, paths, strict=True)}


def graph_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, at once or later."""
    known = {name.removesuffix(".__init__") for name in sources}
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = [name for name, _ in imports(module, source)]
        # A name is a module, or stands in one: harness.load.http1.ResponseParser in harness.load.http1.
        needs = {name if name in known else name.rpartition(".")[0] for name in names} & known
        graph[module.removesuffix(".__init__")] = needs
    return graph


def reached(sources: dict[str, str]) -> list[str]:
    """How each room that reads comes to one that measures, through whatever lies between, a line a pair of modules."""
    graph, found = graph_of(sources), []
    for start in graph:
        if room_of(start) not in READERS:
            continue
        ways = {start: start}
        pending = [start]
        while pending:
            module = pending.pop()
            for needed in sorted(graph[module] - ways.keys()):
                ways[needed] = f"{ways[module]} → {needed}"
                pending.append(needed)
        found += [way for module, way in ways.items() if room_of(module) in MEASURING]
    return found


def circle(sources: dict[str, str]) -> list[str]:
    """Modules that import each the next, the first again at the end; empty where there is no such circle."""
    try:
        TopologicalSorter(graph_of(sources)).prepare()
    except CycleError as error:
        imported_first: list[str] = error.args[1]
        return imported_first[::-1]
    return []


def imported_by(*command: str, statuses: tuple[int, ...] = (0,)) -> set[str]:
    """Top-level packages that a Python command imports, as the interpreter itself reports them."""
    run = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=False)
    assert run.returncode in statuses, run.stderr[-2000:]
    lines = [line.split("|") for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line[2].strip().split(".")[0] for line in lines}


def test_imports_point_down_the_rooms() -> None:
    sources = modules()
    assert len(sources) > 10
    assert [fault for name, source in sources.items() for fault in faults(name, source)] == []


def test_the_core_imports_no_other_room() -> None:
    """A room that comes between them one day passes the order of the rooms, but not this."""
    found = [
        f"{module} imports {name}"
        for module, source in modules().items()
        if room_of(module) in CORE
        for name, _ in imports(module, source)
        if name.startswith("harness.") and room_of(name) not in CORE
    ]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("harness.predict.model", "from harness.report import page", "up from predict to report"),
        ("harness.base.errors", "import harness.cli", "up from base to cli"),
        ("harness.__init__", "from harness import cli", "up from library to cli"),
        ("harness.run.experiment", "from harness.library.run import run", "up from run to library"),
        ("harness.load.driver", "from harness.analysis.window import steady", "up from load to analysis"),
        ("harness.load.driver", "from ..analysis import window", "up from load to analysis"),
        ("harness.results.frames", "from harness.dialects import sse", "up from results to dialects"),
        ("harness.load.schedule", "import time", "pure modules"),
        ("harness.dialects.sse", "import time", "dialects is pure"),
        ("harness.workload.uniform", "async def f():\n    import socket", "workload is pure"),
        ("harness.workload.request", "from harness.dialects import chat", "up from workload to dialects"),
        ("harness.dialects.decoder", "from harness.load.http1 import ResponseParser", "up from dialects to load"),
        ("harness.load.http1", "from asyncio import sleep", "pure modules"),
        ("harness.predict.batching", "import random", "predict is pure"),
        ("harness.decide.choice", "from time import monotonic", "decide is pure"),
        ("harness.search.ramp", "import asyncio", "search is pure"),
        ("harness.workload.shape", "from harness.predict.steady import caps", "up from workload to predict"),
        ("harness.analysis.gap", "def f():\n    from harness.predict import roofline", "up from analysis to predict"),
        ("harness.search.ramp", "from harness.sim import api", "up from search to sim"),
        ("harness.analysis.metrics", "from harness.search import precision", "up from analysis to search"),
        ("harness.analysis.stats", "if TYPE_CHECKING:\n    import socket", "analysis is pure"),
        ("harness.results.columns", "import pyarrow.parquet as pq", "at its top"),
        ("harness.report.page", "try:\n    import jinja2\nexcept ImportError: ...", "at its top"),
        ("harness.helpers", "", "stands in no room"),
        ("harness.report.page", "from harness import helpers", "stands in no room"),
        ("harness.report.charts", "def f():\n    import matplotlib", "matplotlib is for harness.report.png"),
        ("harness.report.page", "import jinja2", "at its top"),
        ("harness.report.markdown", "def f():\n    import jinja2", "jinja2 is for harness.report.page"),
        ("harness.report.markdown", "from rich.table import Table", "rich is for harness.report.live"),
    ],
)
def test_an_import_that_breaks_a_rule_is_found(module: str, source: str, fault: str) -> None:
    assert [fault in found for found in faults(module, source)] == [True]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("harness.cli", "from harness.base import __version__\nfrom harness.run import experiment"),
        ("harness.__init__", "from harness.library.run import run"),
        ("harness.run.experiment", "from harness.load import driver\nfrom harness.analysis import window"),
        ("harness.sim.server", "import asyncio, socket, time\nfrom harness.predict import batching"),
        ("harness.load.transport", "import asyncio, socket, time"),
        ("harness.workload.uniform", "import random"),
        ("harness.sim.api", "from harness.dialects.chat import CHAT"),
        ("harness.results.columns", "def read():\n    import pyarrow.parquet"),
        ("harness.observe.server", "if TYPE_CHECKING:\n    import httpx"),
        ("harness.analysis.curve", "import numpy as np\nfrom . import stats\nfrom harness.data.summary import Value"),
    ],
)
def test_an_import_that_keeps_the_rules_is_none(module: str, source: str) -> None:
    assert faults(module, source) == []


def test_what_reads_never_comes_to_what_measures() -> None:
    assert reached(modules()) == []


@pytest.mark.parametrize(
    ("reader", "between"),
    [
        ("from harness.load import b", ""),
        ("def f():\n    import harness.load.b", ""),
        ("from harness.sim import a", "from harness.load.b import thing"),
        ("from harness.sim.a import thing", "if TYPE_CHECKING:\n    from harness.load import b"),
    ],
)
def test_a_reader_that_comes_to_what_measures_is_found(reader: str, between: str) -> None:
    found = reached({"harness.report.r": reader, "harness.sim.a": between, "harness.load.b": ""})
    assert [way.split(" → ")[0::99] for way in found] == [["harness.report.r"]]
    assert found[0].endswith("→ harness.load.b")


_WITHOUT_EPOLL = """
import importlib, select, sys
del select.epoll
sys.modules["termios"] = None  # to import it is an ImportError
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_results_are_read_where_there_is_neither_epoll_nor_termios() -> None:
    names = [
        name.removesuffix(".__init__") for name in modules() if room_of(name) in READERS | {"data", "spec", "base"}
    ]
    assert {"harness.results", "harness.analysis", "harness.report"} <= set(names)
    without = [sys.executable, "-c", _WITHOUT_EPOLL]
    subprocess.run([*without, *names], capture_output=True, check=True)
    loading = subprocess.run([*without, "harness.load.sockets"], capture_output=True, text=True, check=False)
    assert "termios" in loading.stderr, "what loads needs it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert " → ".join(circle(modules())) == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from harness.load import b", "from harness.load.a import thing"),
        ("import harness.load.b", "from . import a"),
        ("def f():\n    from harness.load.b import thing", "from harness.load import a"),
        ("from harness.load import b", "if TYPE_CHECKING:\n    from harness.load.a import Thing"),
        ("from harness.load import b", "from harness.load.c import thing"),
    ],
)
def test_a_circle_of_imports_is_found(first: str, second: str) -> None:
    package = {"harness.load.__init__": "", "harness.load.c": "import harness.load.a"}
    found = circle({"harness.load.a": first, "harness.load.b": second, **package})
    assert found[0] == found[-1]
    assert {"harness.load.a", "harness.load.b", "harness.load.c"} >= set(found)


def test_a_package_and_what_stands_in_it_are_a_circle_where_each_names_the_other() -> None:
    inner = {"harness.load.a": "from harness.load import thing"}
    assert circle({"harness.load.__init__": "", **inner}) == []
    assert circle({"harness.load.__init__": "from harness.load import a", **inner}) != []


@pytest.mark.slow
def test_knee_help_imports_no_heavy_package() -> None:
    assert imported_by("-m", "harness", "--help") & (HEAVY | {"numpy"}) == set()


@pytest.mark.slow
def test_to_import_the_library_takes_no_heavy_package_and_none_of_the_rooms() -> None:
    assert imported_by("-c", "import harness as knee; dir(knee)") & (HEAVY | {"numpy", "msgspec", "click"}) == set()


@pytest.mark.slow
def test_to_ask_the_endpoint_takes_no_heavy_package() -> None:
    """The rest is imported while it answers."""
    needed = "harness.cli.run", "harness.run.launch.consent", "harness.run.experiment", "harness.report.live"
    assert imported_by("-c", f"import {', '.join(needed)}") & (HEAVY | {"numpy", "scipy"}) == set()


def demo(tmp_path: Path) -> str:
    """A result folder of one's own."""
    folder = tmp_path / "demo"
    shutil.copytree(Path(__file__).parent / "data" / "demo", folder)
    return str(folder)


@pytest.mark.slow
def test_a_report_is_made_without_pandas(tmp_path: Path) -> None:
    imported = imported_by("-m", "harness", "report", demo(tmp_path), "--no-plots")
    assert "pyarrow" in imported
    assert imported & {"pandas", "matplotlib", "jinja2"} == set()


@pytest.mark.slow
def test_a_run_ends_without_pandas(tmp_path: Path) -> None:
    load = ["--input-tokens", "64", "--output-tokens", "16", "--levels", "1,2", "--level-seconds", "0.5"]
    command = [
        "-m",
        "harness",
        "run",
        "--url",
        "sim:",
        "--speed",
        "8",
        *load,
        "--no-plots",
        "--out",
        str(tmp_path / "o"),
    ]
    imported = imported_by(*command, statuses=(0, 3))  # 3: this machine was too busy for the client
    assert "pyarrow" in imported
    assert (tmp_path / "o" / "requests.parquet").exists()
    assert imported & {"pandas", "matplotlib", "jinja2"} == set()


@pytest.mark.slow
def test_the_answer_is_printed_before_what_draws_is_imported(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "harness", "report", demo(tmp_path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    assert run.stdout.index("report.html") < run.stdout.index("jinja2") < run.stdout.index("matplotlib")
    assert "pandas" not in run.stdout


@pytest.mark.slow
def test_a_heavy_import_would_be_seen() -> None:
    assert {"numpy", "msgspec"} <= imported_by("-c", "import msgspec, numpy.linalg")
