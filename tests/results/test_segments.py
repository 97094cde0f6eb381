"""A spool of several files reads as one, whichever of them is damaged, and goes away as one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.base.errors import HarnessError
from harness.cli import report
from harness.data.record import Level, Sample
from harness.results import folder as folders
from harness.results import frames, spool
from harness.results.folder import REQUESTS, SPOOL, TELEMETRY, segments
from harness.results.result import Result
from harness.results.spool import Spool, finish, header
from tests.builders.records import request

FULL = 2_000
ENDED, RUNNING = Level(0, 2, 0, 0.0, 1.0, 2.0, 3.0), Level(1, 4, 0, 4.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", FULL)


def written(folder: Path, requests: int = 60) -> Spool:
    """A spool with two levels and so many requests of the second, a frame each."""
    made = Spool(folder, header(5, 6.5))
    made.level(ENDED)
    made.level(RUNNING)
    for i in range(requests):
        add(made, i)
    made.telemetry([Sample(1.0, "server", "running", 2.0)])
    return made


def add(made: Spool, i: int) -> None:
    made.write(frames.batch([request(5.0 + i, [5.5 + i, 5.9 + i], level=1, request_id=f"r-{i}")]))


def ids(folder: Path) -> list[int]:
    return [int(record.request_id[2:]) for record in Result.open(folder).records]


def test_a_full_segment_is_followed_by_the_next_and_all_read_as_one(tmp_path: Path) -> None:
    made = written(tmp_path)
    made.close()
    names = list(segments(tmp_path).values())
    assert names[:2] == ["requests.spool", "requests.spool.0001"]
    assert len(names) > 4
    sizes = [(tmp_path / name).stat().st_size for name in names]
    assert all(FULL <= size < 1.2 * FULL for size in sizes[:-1])
    assert made.size == sum(sizes)
    found = Result.open(tmp_path)
    assert ids(tmp_path) == list(range(60))
    assert (found.levels, len(found.samples), found.header, found.damage) == ([ENDED, RUNNING], 1, header(5, 6.5), "")


def test_what_a_crash_tears_is_the_end_of_the_last_segment(tmp_path: Path) -> None:
    written(tmp_path).close()
    *_, last = segments(tmp_path).values()
    os.truncate(tmp_path / last, (tmp_path / last).stat().st_size - 3)
    assert ids(tmp_path) == list(range(60))
    assert Result.open(tmp_path).samples == []
    assert Result.open(tmp_path).damage.startswith(f"{last} holds no whole frame from byte ")


def test_damage_in_one_segment_costs_no_other(tmp_path: Path) -> None:
    written(tmp_path).close()
    hurt = tmp_path / segments(tmp_path)[1]
    data = bytearray(hurt.read_bytes())
    data[len(data) // 2] ^= 0xFF
    hurt.write_bytes(data)
    found = ids(tmp_path)
    lost = sorted(set(range(60)) - set(found))
    assert lost
    assert lost == list(range(lost[0], lost[-1] + 1))
    assert found == sorted(found)
    assert {0, 59} <= set(found)
    assert "requests.spool.0001 is damaged from byte" in Result.open(tmp_path).damage
    (tmp_path / SPOOL).write_bytes(b"no frame at all")
    assert Result.open(tmp_path).levels == [ENDED, RUNNING], "a later segment repeats them, and the header"


def test_a_segment_that_is_gone_is_named(tmp_path: Path) -> None:
    written(tmp_path).close()
    (tmp_path / segments(tmp_path)[2]).unlink()
    assert Result.open(tmp_path).damage == "requests.spool.0002 is missing"
    assert {0, 59} <= set(ids(tmp_path))


def test_a_run_goes_on_in_the_last_segment_and_keeps_what_is_damaged_apart(tmp_path: Path) -> None:
    written(tmp_path).close()
    names = segments(tmp_path)
    data = bytearray((tmp_path / names[1]).read_bytes())
    data[-5] ^= 0xFF
    (tmp_path / names[1]).write_bytes(data)
    with (tmp_path / names[max(names)]).open("ab") as file:
        file.write(b"half a frame")
    known = ids(tmp_path)
    made = Spool(tmp_path)
    assert made.size == sum((tmp_path / name).stat().st_size for name in names.values())
    for i in range(60, 100):
        add(made, i)
    made.close()
    assert len(segments(tmp_path)) > len(names)
    assert ids(tmp_path) == [*known, *range(60, 100)]
    assert Result.open(tmp_path).damage == ""
    apart = sorted(path.name for path in tmp_path.glob("*.damaged-*"))
    assert apart == [f"{names[1]}.damaged-1", f"{names[max(names)]}.damaged-1"]


def test_all_of_it_becomes_parquet_and_goes_away_and_comes_back(tmp_path: Path) -> None:
    written(tmp_path).close()
    finish(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [REQUESTS, TELEMETRY]
    assert ids(tmp_path) == list(range(60))
    made = Spool(tmp_path)
    add(made, 60)
    made.close()
    assert ids(tmp_path) == list(range(61))


def test_later_segments_without_the_first_are_left_of_one_that_became_parquet(tmp_path: Path) -> None:
    """Killed while they were taken away: the first goes first."""
    written(tmp_path).close()
    kept = {name: (tmp_path / name).read_bytes() for name in segments(tmp_path).values()}
    finish(tmp_path)
    for name in list(kept)[1:]:
        (tmp_path / name).write_bytes(kept[name])
    assert ids(tmp_path) == list(range(60))
    Spool(tmp_path).close()
    assert ids(tmp_path) == list(range(60)), "none twice"


def test_a_part_is_read_back_over_segments_while_more_is_written(tmp_path: Path) -> None:
    made = Spool(tmp_path, header(5, 6.5))
    made.level(RUNNING)
    at = []
    for i in range(60):
        at.append(made.position)
        add(made, i)
    for since, until in ((0, 60), (3, 50), (10, 11), (7, 7)):
        found = made.between(at[since], at[until] if until < 60 else made.position)
        assert [int(record.request_id[2:]) for record in found.records] == list(range(since, until))
    (tmp_path / segments(tmp_path)[1]).write_bytes(bytes(FULL))
    with pytest.raises(HarnessError, match=r"requests\.spool\.0001 holds only zeros"):
        made.between(at[0], at[59])
    made.close()


def test_what_cannot_begin_leaves_no_half_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = written(tmp_path, 1)
    while made.size < FULL:
        add(made, 1)
    before = segments(tmp_path)

    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool, "_write", full)
        with pytest.raises(HarnessError, match="cannot write what is measured: No space left on device"):
            add(made, 2)
    assert segments(tmp_path) == before
    add(made, 3)
    made.close()
    assert ids(tmp_path)[-1] == 3


def test_a_disk_that_did_not_take_a_segment_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(fd: int) -> None:
        os.close(fd)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(spool, "_sync", bad)
    with pytest.raises(HarnessError, match="cannot write what is measured: Input/output error"):
        written(tmp_path, 2000)
    assert len(Result.open(tmp_path).records) > 2


def test_who_follows_sees_each_level_once_over_all_segments(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    seen, turns = [], iter(range(100))
    with folders.claimed(tmp_path):
        made = written(tmp_path)

        def wait() -> None:
            if next(turns) == 2:
                made.level(Level(1, 4, 0, 4.0, 5.0, 60.0, 70.0))
                for i in range(60, 90):
                    add(made, i)

        for summary in report.summaries(tmp_path, wait):
            seen.append(len(summary.levels))
            if len(seen) == 2:
                break
        assert next(turns) == 3
        made.close()
    assert seen == [1, 2]
