"""`knee report --follow`: a run that goes on is shown level by level, and its end ends it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base import files
from harness.cli import cli, report
from harness.data.record import Level
from harness.results import folder as folders
from harness.results import frames
from harness.results.spool import Spool, finish, header
from tests.builders.records import request


def level(index: int) -> Level:
    begin = 10.0 * index
    return Level(index, index + 1, 0, begin, begin, begin + 8.0, begin + 9.0)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Spool]:
    files.write_json(folder / folders.MANIFEST, {})
    with folders.claimed(folder):
        spool = Spool(folder, header(0, 0.0))
        yield spool
        spool.close()


def measure(spool: Spool, index: int) -> None:
    """Write a level as a run does: its beginning, its records, its end."""
    whole = level(index)
    spool.level(Level(index, whole.concurrency, 0, whole.begin_s))
    sent = [whole.begin_s + i for i in range(8)]
    spool.write(frames.batch([request(t, [t + 0.2, t + 0.5], level=index, request_id=f"r-{t}") for t in sent]))
    spool.level(whole)


def test_a_table_comes_with_each_level_and_none_after_the_end(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(running(tmp_path))
        turns = itertools.count()

        def wait() -> None:
            turn = next(turns)
            if turn in (1, 3):
                measure(spool, turn // 2)
            if turn == 5:
                stack.close()

        seen = [len(summary.levels) for summary in report.summaries(tmp_path, wait)]
    assert seen == [1, 2]
    assert next(turns) == 6, "it ends with the run"


def test_a_run_that_has_ended_is_shown_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as spool:
        measure(spool, 0)
    finish(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    done = CliRunner().invoke(cli, ["report", str(tmp_path), "--follow"])
    assert done.exit_code == 0, done.output
    assert "errors" in done.output
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing is written"


def test_verbose_is_of_the_answer_at_the_end(tmp_path: Path) -> None:
    with running(tmp_path) as spool:
        measure(spool, 0)
    finish(tmp_path)
    short, whole = (
        CliRunner().invoke(cli, ["report", str(tmp_path), "--follow", *more]) for more in ([], ["--verbose"])
    )
    assert (short.exit_code, whole.exit_code) == (0, 0), whole.output
    assert len(whole.output.splitlines()) > len(short.output.splitlines())


def test_a_frame_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    with running(tmp_path) as spool:
        measure(spool, 0)
    data = (tmp_path / folders.SPOOL).read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(data[:-3])
    levels: dict[int, Level] = {}
    at = frames.read_since(cut, frames.START, levels)
    assert [each.finished for each in levels.values()] == [False]
    cut.write_bytes(data)
    assert frames.read_since(cut, at, levels) == frames.Position(0, len(data))
    assert levels == {0: level(0)}


@pytest.mark.parametrize("more", [["--json"], ["--out", "all"], ["other"]])
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, more: list[str]) -> None:
    done = CliRunner().invoke(cli, ["report", str(tmp_path), "--follow", *more])
    assert done.exit_code == 1
    assert "--follow with" in done.output
