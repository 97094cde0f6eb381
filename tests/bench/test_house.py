"""The budget of harness/ is counted as it says, and what a request crosses is what a trace has seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import house  # noqa: E402
from house_trace import Trace, TraceEntry  # noqa: E402

SOURCE = '''
class Thing:
    def method(self, a, /, b, *rest, c=1, **more):
        """Six lines, and five parameters."""

        def inner(): ...

        return inner
'''


def test_a_function_counts_its_lines_and_its_parameters_without_self() -> None:
    found = {each.name: (each.lines, each.parameters) for each in house.functions("room/thing.py", SOURCE)}
    assert found == {"method": (6, 5), "inner": (1, 0)}


@pytest.mark.slow
def test_the_rooms_are_the_folders_and_their_lines_are_all_there_are() -> None:
    rooms, rows = house.counted()
    folders = {path.parent.name for path in house.HARNESS.glob("*/*.py")}
    assert set(rooms) == folders | {"top"}
    assert sum(rooms.values()) == rows[0].figure


def test_a_request_is_read_from_the_folder_s_first_file_to_its_level_s_figures(tmp_path: Path) -> None:
    entries = [
        TraceEntry(at, file, ()) for at, file in enumerate(["cli/a.py", "b.py", "cli/c.py", "room/d.py", "e.py"])
    ]
    opened = [(0, "/elsewhere/thing", ["x.py"]), (1, str(tmp_path / "manifest.json"), ["cli/a.py", "store.py"])]
    trace = Trace(1, entries, opened, {(0.0, 1.0): 2, (1.0, 2.0): 4})
    assert house.reading(tmp_path, trace) == ["b.py", "room/d.py", "store.py"]


def test_an_id_is_found_in_text_and_in_bytes() -> None:
    assert house.mentions(b"..run-0-7..", ["run-0-7", b"run-0-7"])
    assert house.mentions("run-0-7", ["run-0-7", b"run-0-7"])
    assert not house.mentions(b"..run-0-8..", ["run-0-7", b"run-0-7"])


@pytest.mark.slow
def test_every_figure_of_the_budget_is_printed_with_its_limit() -> None:
    run = subprocess.run([sys.executable, BENCH / "house.py"], capture_output=True, text=True, check=True, timeout=120)
    lines = [line.split(" | ") for line in run.stdout.splitlines() if line.endswith(("| yes |", "| no |"))]
    assert len(lines) == 9
    measured, read = (int(line[1]) for line in lines[-2:])
    assert 5 < measured < 40
    assert 5 < read < 40
