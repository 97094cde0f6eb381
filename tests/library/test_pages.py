"""What docs/library.md, docs/exports.md and docs/notebook.ipynb show runs as shown, in a running loop."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib import pyplot

from harness.cli import cli
from harness.data.views import Spread
from harness.library import notebook
from harness.results.columns import PLAIN
from harness.results.exporters.csv import FIGURES, NAMES
from tests.builders import pages

ROOT = Path(__file__).parents[2]
LIBRARY, EXPORTS, NOTEBOOK = (ROOT / "docs" / name for name in ("library.md", "exports.md", "notebook.ipynb"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a result in results/first, as the README leaves it."""
    shutil.copytree(ROOT / "tests" / "data" / "demo", tmp_path / "results" / "first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield tmp_path
    pyplot.close("all")


def test_cells_are_run_in_a_loop_and_give_their_last_value() -> None:
    code = [
        "import asyncio\nx = 20",
        "await asyncio.sleep(0)\nx + 1",
        "y = await asyncio.sleep(0, x)",
        "(await asyncio.sleep(0, y)) + x",
    ]
    assert pages.run(code) == [None, 21, None, 40]


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_library_s_page_runs_from_top_to_bottom() -> None:
    values = pages.run(pages.blocks(LIBRARY.read_text()))
    assert len(values) >= 7
    assert list(values[0].columns) == ["concurrency", "output_tokens_per_s", "ttft_p50_s", "errors"]
    assert values[2] == pytest.approx(16.5, abs=0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_exports_page_runs_with_pandas() -> None:
    first, *others = pages.blocks(EXPORTS.read_text())
    pages.run([first])
    assert all("duckdb" in each for each in others)


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_exports_page_runs_with_duckdb() -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed: its two examples are not run")
    pages.run(pages.blocks(EXPORTS.read_text())[1:])


@pytest.mark.slow
def test_the_exports_commands_run_as_shown(place: Path) -> None:
    commands = re.findall(r"```sh\n(.*?)```", EXPORTS.read_text(), re.DOTALL)[0].splitlines()
    for command in commands:
        done = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
    assert {path.name for path in (place / "results").iterdir()} == {
        "first",
        "tables",
        "as-vllm",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_notebook_runs_from_top_to_bottom() -> None:
    values = pages.run(pages.cells(NOTEBOOK))
    shown = [value for value in values if hasattr(value, "_repr_html_")]
    assert len(shown) >= 4
    assert "SIMULATED" in shown[0]._repr_html_()
    assert any(type(value).__name__ == "Figure" for value in values)


def test_the_notebook_is_committed_without_what_it_printed() -> None:
    found = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert (found["nbformat"], len({cell["id"] for cell in found["cells"]})) == (4, len(found["cells"]))
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_every_column_stands_in_the_library_s_page() -> None:
    page = LIBRARY.read_text()
    for name in notebook.ADDED:
        assert f"| `{name}` |" in page, name
    for name in NAMES:
        stem = re.sub(r"_(mean|p50|p90|p95|p99|max)_s$", "_…_s", name) if _is_spread(name) else name
        assert f"`{re.sub('_(low|high)$', '', stem)}`" in page, name
    definitions = (ROOT / "docs" / "definitions.md").read_text()
    assert [name for name, _ in PLAIN if f"`{name.rstrip('_')}`" not in definitions] == []


def _is_spread(name: str) -> bool:
    spreads = [each.removesuffix("_s") for each, figure in FIGURES.items() if figure.kind is Spread]
    return any(name.startswith(f"{each}_") for each in spreads)
