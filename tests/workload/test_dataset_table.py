"""The table of a dataset's rows: written once, mapped by anybody, the same rows by their numbers."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.workload.dataset import Row, table
from harness.workload.dataset.dataset import open_dataset
from harness.workload.dataset.table import Table
from harness.workload.request import Message
from tests.builders.datasets import BURSTGPT_SESSIONS, CONVERSATIONS, file

ROWS = [
    Row(place="line 1, byte 0", prompt="a\nü", answer="1", at_s=0.0, session="s", output_tokens=3),
    Row(place="row 2", prompt=(Message("system", ""), Message("user", "b")), at_s=0.25, input_tokens=7),
    Row(place="row 3", at_s=0.25, session="s", hashes=(1, 2**62), input_tokens=9, output_tokens=100_000_000),
    Row(place="row 4", at_s=8.0, session="t", after=(0, 2), pause_s=0.5),
]


def test_every_row_comes_back_whole(tmp_path: Path) -> None:
    made = table.write(ROWS, tmp_path / "t")
    assert [made.row(i) for i in range(len(made))] == ROWS
    assert [Table(tmp_path / "t").row(i) for i in (3, 0)] == [ROWS[3], ROWS[0]]


def test_columns_hold_what_is_known_of_all(tmp_path: Path) -> None:
    made = table.write(ROWS, tmp_path / "t")
    assert list(made.at_s) == [0.0, 0.25, 0.25, 8.0]
    assert list(made.input_tokens) == [-1, 7, 9, -1]
    assert list(made.output_tokens) == [3, -1, 100_000_000, -1]
    assert math.isnan(table.write([Row(prompt="a")], tmp_path / "u").at_s[0])


def test_rows_of_a_session_are_found_and_one_of_none_is_its_own(tmp_path: Path) -> None:
    made = table.write(ROWS, tmp_path / "t")
    assert list(made.session) == [0, 1, 0, 2]
    assert [made.of_session(i) for i in range(made.sessions)] == [[0, 2], [1], [3]]


def test_sessions_are_numbered_as_they_come(tmp_path: Path) -> None:
    rows = [Row(session=f"s{i * 7 % 50}") for i in range(500)]
    made = table.write(rows, tmp_path / "t")
    assert made.sessions == 50
    assert made.of_session(1) == [i for i in range(500) if i * 7 % 50 == 7]


def test_rows_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    """Of a session too; equal times stay in the order of their file."""
    times = [(2.0, "a"), (0.5, ""), (1.0, "a"), (0.5, "b")]
    made = table.write([Row(prompt=str(i), at_s=at, session=of) for i, (at, of) in enumerate(times)], tmp_path / "t")
    assert list(made.at_s) == [0.0, 0.0, 0.5, 1.5]
    assert [made.row(i).prompt for i in range(4)] == ["1", "3", "2", "0"]
    assert [made.of_session(i) for i in range(made.sessions)] == [[0], [1], [2, 3]]


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    table.write(ROWS, tmp_path / "t")
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600


def test_files_become_tables(tmp_path: Path) -> None:
    path = file(tmp_path, "x.csv", BURSTGPT_SESSIONS)
    made = table.write(open_dataset(path).rows(), tmp_path / "t")
    assert (list(made.at_s), made.of_session(0)) == ([0.0, 51.0, 82.0], [0, 2])
    path = file(tmp_path, "x.json", json.dumps(CONVERSATIONS))
    made = table.write(open_dataset(path).rows(), tmp_path / "t")
    assert [made.of_session(i) for i in range(made.sessions)] == [[0, 1], [2], [3]]
    assert made.row(1) == list(open_dataset(path).rows())[1]


def test_another_process_maps_it_without_numpy(tmp_path: Path) -> None:
    table.write(ROWS, tmp_path / "t")
    code = "import pathlib, sys; from harness.workload.dataset.table import Table\n"
    code += (
        "t = Table(pathlib.Path(sys.argv[1])); print(len(t), t.row(2).hashes, t.of_session(0), 'numpy' in sys.modules)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, tmp_path / "t"], text=True)
    assert printed.split("\n")[0] == "4 (1, 4611686018427387904) [0, 2] False"


def test_no_rows_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="the dataset holds no requests"):
        table.write([], tmp_path / "t")
    with pytest.raises(HarnessError, match="line 2, byte 93: not a request of a BurstGPT trace"):
        table.write(open_dataset(file(tmp_path, "x", BURSTGPT_SESSIONS.replace("906", "-1"))).rows(), tmp_path / "t")
    assert not list(tmp_path.glob("*t*"))


def test_more_rows_than_a_run_can_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_ROWS", 3)
    with pytest.raises(HarnessError, match="row 4: it is row 4, and no more are read; cut the dataset"):
        table.write(ROWS, tmp_path / "t")


def test_another_file_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="is not a table of requests"):
        Table(file(tmp_path, "x", BURSTGPT_SESSIONS))
