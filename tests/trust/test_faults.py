"""Every fault of the matrix, at 1 and at 256 in flight and in whole runs: one test a row, measured together.

The rows are `tests.faults`, how they are measured is `tests.matrix`; `scripts/trust` prints the same as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trust import matrix
from tests.trust.faults import ROWS, RUNS, Row, Run
from tests.trust.matrix import EVERYTHING, Chosen, Line
from tests.trust.misbehaving import EVERY, NUMBER, Served, Wrote, marked

pytestmark = pytest.mark.alone
Lines = dict[tuple[str, int | str], Line]


def each(rows: Any, *, slow: Callable[[Any], bool] = lambda row: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.fault, marks=pytest.mark.slow if slow(row) else ()) for row in rows]
    )


def wanted(request: pytest.FixtureRequest, test: str) -> list[Any]:
    """The rows of a test that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    return [item.callspec.params["row"] for item in items if item.originalname == test and item.path == request.path]


def lines(chosen: Chosen, folder: Path) -> Lines:
    return {(line.fault, line.in_flight): line for line in matrix.measured(chosen, folder)}


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The rows at 1 in flight."""
    rows = wanted(request, "test_a_fault_is_recorded_and_spoils_nothing_else")
    return lines(Chosen(alone=rows), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def others(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """All the rest."""
    chosen = Chosen(
        by_httpx=wanted(request, "test_httpx_tells_the_same"),
        crowds=wanted(request, "test_a_fault_at_256_in_flight_is_recorded_and_spoils_nothing_else"),
        runs=wanted(request, "test_a_run_that_meets_a_fault_ends_as_it_must"),
        gone=wanted(request, "test_a_server_that_is_gone_and_comes_back_is_met_again"),
    )
    return lines(chosen, tmp_path_factory.mktemp("others"))


@each(EVERYTHING.alone, slow=lambda row: row.lasts)
def test_a_fault_is_recorded_and_spoils_nothing_else(row: Row, alone: Lines) -> None:
    assert alone[row.fault, 1].problems == []


@each(EVERYTHING.crowds)
def test_a_fault_at_256_in_flight_is_recorded_and_spoils_nothing_else(row: Row, others: Lines) -> None:
    assert others[row.fault, matrix.CROWD].problems == []


@each(EVERYTHING.by_httpx)
def test_httpx_tells_the_same(row: Row, others: Lines) -> None:
    assert others[row.fault, "1, httpx"].problems == []


@each(EVERYTHING.runs)
def test_a_run_that_meets_a_fault_ends_as_it_must(row: Run, others: Lines) -> None:
    assert others[row.fault, "run"].problems == []


@pytest.mark.slow
@pytest.mark.parametrize("row", EVERYTHING.gone)
def test_a_server_that_is_gone_and_comes_back_is_met_again(row: tuple[int, float], others: Lines) -> None:
    in_flight, seconds = row
    assert others[f"gone for {seconds:g} s and back", in_flight].problems == []


def test_every_row_has_a_name_of_its_own() -> None:
    for rows in (ROWS, RUNS):
        names = [row.fault for row in rows]
        assert len(set(names)) == len(names)


def test_every_eighth_request_is_marked() -> None:
    assert [n for n in range(3 * EVERY) if marked(f"run-0-{n}")] == [NUMBER + i * EVERY for i in range(3)]
    assert not marked("knee-check")


def test_a_line_of_the_log_that_is_half_written_is_not_read_yet(tmp_path: Path) -> None:
    log = tmp_path / "log"
    served = Served(0, str(log))
    log.write_text("")
    assert served.written() == {}
    log.write_text('["run-0-3", 5, 9]\n["run-0-11", 6, 1')
    assert served.written() == {"run-0-3": Wrote("run-0-3", 5, 9)}
