"""Damaged files: a spool reads up to its damage, everything else is one line, and nothing measured is lost."""

from __future__ import annotations

import io
import itertools
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.analysis.summarise import summarise
from harness.base import decoding
from harness.base.errors import HarnessError
from harness.cli import report
from harness.results import frames, levelmap
from harness.results.folder import MANIFEST, SPOOL
from harness.results.result import Result
from harness.results.spool import Spool
from tests.trust import guard_readers
from tests.trust.guard_readers import (
    FILES,
    FOLDERS,
    READING,
    SOUND,
    Knee,
    read_file,
    read_folder,
    sound,
    spooled,
    wrong,
)

RESULTS = sorted(path.parent for path in (SOUND.parent).glob("*/requests.parquet"))


def starts(data: bytes) -> list[int]:
    """Where each frame of a spool begins, and where the last one ends."""
    return [0, *itertools.accumulate(frames.HEAD.size + len(payload) for payload in frames.payloads(data))]


def read_up_to(folder: Path, data: bytes, damage: int, places: list[int]) -> frames.Spooled:
    """The spool of these bytes, of which every frame that ends before the damage must have been read."""
    (folder / SPOOL).write_bytes(data)
    found = frames.read(folder / SPOOL)
    assert found.end == max(place for place in places if place <= damage)
    assert (found.damage is None) == (found.end == len(data))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.name for path in RESULTS])
def test_a_committed_run_s_spool_reads_up_to_any_damage(name: str, tmp_path: Path) -> None:
    shutil.copytree(SOUND.parent / name, tmp_path, dirs_exist_ok=True)
    Spool(tmp_path).close()
    data = (tmp_path / SPOOL).read_bytes()
    places, whole = starts(data), Result.open(tmp_path)
    assert (places[-1], whole.damage) == (len(data), "")
    choose = random.Random(name)
    at = choose.randrange(len(data))
    cut = read_up_to(tmp_path, data[:at], at, places)
    zeros = read_up_to(tmp_path, data[:at] + bytes(len(data) - at), len(data[:at].rstrip(b"\0")), places)
    flipped = data[:at] + bytes((data[at] ^ 1 << choose.randrange(8),)) + data[at + 1 :]
    for found in (cut, zeros, read_up_to(tmp_path, flipped, at, places)):
        assert found.records == whole.records[: len(found.records)]
    padded = read_up_to(tmp_path, data + bytes(10_000), len(data), places)
    assert (len(padded.records), str(padded.damage)) == (
        len(whole.records),
        f"requests.spool holds only zeros from byte {len(data):,} on: its last 10,000 bytes are not read",
    )


def test_a_spool_that_ends_in_zeros_reads_and_its_run_says_what_was_lost(tmp_path: Path) -> None:
    spooled(tmp_path)
    before = Result.open(tmp_path)
    with (tmp_path / SPOOL).open("ab") as file:
        file.write(bytes(4096))
    run = Result.open(tmp_path)
    assert (run.records, run.levels, run.samples) == (before.records, before.levels, before.samples)
    said = [verdict for verdict in summarise(run).verdicts if verdict.code == "spool_damaged"]
    assert [(verdict.level, "its last 4,096 bytes are not read" in verdict.message) for verdict in said] == [
        ("doubt", True)
    ]
    assert not [verdict for verdict in summarise(before).verdicts if verdict.code == "spool_damaged"]


def test_what_is_behind_the_damage_is_kept_where_a_run_goes_on(tmp_path: Path) -> None:
    spooled(tmp_path)
    data = (tmp_path / SPOOL).read_bytes()
    (tmp_path / SPOOL).write_bytes(guard_readers.flipped(data))
    end = frames.read(tmp_path / SPOOL).end
    Spool(tmp_path).close()
    assert (tmp_path / SPOOL).read_bytes() == data[:end]
    assert (tmp_path / f"{SPOOL}.damaged-1").read_bytes() == guard_readers.flipped(data)[end:]
    (tmp_path / SPOOL).write_bytes(data + bytes(4096))
    Spool(tmp_path).close()
    assert (tmp_path / SPOOL).read_bytes() == data
    assert not (tmp_path / f"{SPOOL}.damaged-2").exists(), "zeros are nothing to keep"


def test_without_its_damaged_manifest_a_run_is_read_whole(tmp_path: Path) -> None:
    sound(tmp_path)
    before = Result.open(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(HarnessError, match="move it away and `knee report` reads without it"):
        Result.open(tmp_path)
    (tmp_path / MANIFEST).unlink()
    run = Result.open(tmp_path)
    assert (run.records, run.levels) == (before.records, before.levels)
    assert len(summarise(run).levels) == len(summarise(before).levels)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_folder_is_one_line_or_says_what_is_lost(name: str, tmp_path: Path) -> None:
    make, words = FOLDERS[name]
    make(tmp_path)
    said, place, way_out = "", str(tmp_path), "see the verdict"
    try:
        if levelmap.is_map(tmp_path):
            levelmap.read(tmp_path)
        said = Result.open(tmp_path).damage
    except HarnessError as error:
        said, place, way_out = error.fact + error.place, error.place, error.way_out
    assert str(tmp_path) in place
    assert way_out
    later = ("manifest: an unknown limit", "manifest: a roof of nothing")  # seen where the summary is made
    assert name in later or (said and all(word in f"{place}: {said}" for word in words.split(": ")))


def test_a_long_csv_from_stdin_is_refused_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b"concurrency,output_tokens_per_s\n" + b"".join(b"%d,%d\n" % (C, 100 * min(C, 4)) for C in range(1, 9))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows + b"\n" * decoding.LARGEST)))
    with pytest.raises(HarnessError, match=f"longer than {decoding.LARGEST:,} bytes"):
        report._of_stdin("")


@pytest.fixture(scope="module")
def knee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Knee]:
    with Knee(tmp_path_factory.mktemp("knee")) as run:
        yield run


def some(name: str) -> list[str]:
    """`report`, and three of the other commands in turn; `scripts/trust` tries all of them on every folder."""
    others, place = list(READING)[1:], 3 * list(FOLDERS).index(name)
    return ["report", *(others[(place + i) % len(others)] for i in range(3))]


def test_every_reading_command_has_its_turn_with_many_damaged_folders() -> None:
    turns = Counter(command for name in FOLDERS for command in some(name))
    assert turns.keys() == READING.keys()
    assert min(turns.values()) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_a_reading_command_ends_a_damaged_folder_in_a_line(name: str, knee: Knee, tmp_path: Path) -> None:
    tried = read_folder(knee, name, tmp_path, some(name))
    assert [(command, problems) for command, _, problems in tried if problems] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_one_line(name: str, knee: Knee, tmp_path: Path) -> None:
    assert read_file(knee, name, tmp_path)[2] == []


@pytest.mark.slow
def test_a_traceback_a_second_line_and_a_status_of_its_own_are_seen(knee: Knee, tmp_path: Path) -> None:
    good = knee(["report", "nowhere"], tmp_path)
    assert wrong(good, "nowhere: no such result folder") == []
    assert good.memory > 30 << 20
    for bad in (
        good._replace(status=70),
        good._replace(err=good.err + "Traceback (most recent call last):\n"),
        good._replace(err="error: a: b\n" + good.err),
        good._replace(memory=400 << 20),
        good._replace(seconds=100.0),
        good._replace(err=re.sub("nowhere", "", good.err)),
    ):
        assert wrong(bad, "nowhere") != []
