"""The shards of a run, merged: the same as their records in one folder, and nothing that is not of that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.base import files
from harness.base.errors import HarnessError
from harness.data.machines import Client
from harness.data.manifest import Shard, WallClock
from harness.results import shards
from harness.results.folder import MANIFEST
from harness.results.result import Result

DEMO = Path(__file__).parent.parent / "data" / "demo"
KEPT = WallClock(synchronised=True, error_s=1e-4, stepped_s=0.0)


def share(number: int, of: int = 3, **changes: Any) -> Shard:
    plain = Shard(number=number, of=of, start_s=1e9, run_id="r", clock=KEPT)
    return msgspec.structs.replace(plain, **changes)


def whole() -> Result:
    """The demo, as three workers of as many machines measured it, in one folder."""
    run = Result.open(DEMO)
    client = Client(workers=3, timestamp_source="kernel", transport="socket", cpus=[[0], [0], [0]], resent=0)
    manifest = msgspec.structs.replace(run.manifest, client=client, shards=[share(n) for n in (1, 2, 3)])
    records = [msgspec.structs.replace(r, worker=i % 3) for i, r in enumerate(run.records)]
    return msgspec.structs.replace(run, manifest=manifest, records=records)


def part(folder: Path, number: int, **changes: Any) -> Path:
    """The folder of one shard of it; `changes` are fields of its manifest."""
    run = whole()
    client = Client(timestamp_source="kernel", transport="socket", cpus=[[0]], resent=0)
    fields = {"client": client, "shards": [share(number)]} | changes
    samples = [each for each in run.samples if number == 1 or each.source == "server"]
    mine = msgspec.structs.replace(
        run,
        manifest=msgspec.structs.replace(run.manifest, **fields),
        records=[record for record in run.records if record.worker == number - 1],
        samples=samples,
    )
    folder.mkdir()
    shards.write(mine, folder)
    return folder


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [part(tmp_path / f"shard-{n}", n) for n in (1, 2, 3)]


def codes(run: Result) -> dict[str, str]:
    return {verdict.code: verdict.message for verdict in summarise(run).verdicts}


@pytest.mark.slow
def test_merged_shards_are_the_same_records_in_one_folder(three: list[Path], tmp_path: Path) -> None:
    merged = shards.merge(reversed(three))
    (tmp_path / "all").mkdir()
    shards.write(merged, tmp_path / "all")
    read, one = Result.open(tmp_path / "all"), whole()
    assert read.records == one.records
    assert read.levels == one.levels
    assert sorted(read.samples, key=repr) == sorted(one.samples, key=repr)
    assert read.manifest.client == one.manifest.client
    assert [each.number for each in read.manifest.shards or ()] == [1, 2, 3]
    assert [each.host for each in read.manifest.shards or ()] == [one.manifest.host] * 3
    assert msgspec.json.encode(summarise(read)) == msgspec.json.encode(summarise(one))


@pytest.mark.slow
def test_a_shard_that_is_missing_is_named(three: list[Path]) -> None:
    assert "shard_missing" not in codes(shards.merge(three))
    assert codes(shards.merge(three[::2]))["shard_missing"].startswith("shard 2 of 3 is missing")
    assert codes(Result.open(three[1]))["shard_missing"].startswith("shards 1, 3 of 3 are missing")


@pytest.mark.slow
def test_a_clock_that_may_be_off_is_named(tmp_path: Path) -> None:
    clocks = WallClock(synchronised=True, error_s=0.5), WallClock(synchronised=False), WallClock()
    three = [part(tmp_path / str(n), n, shards=[share(n, clock=clock)]) for n, clock in enumerate(clocks, 1)]
    message = codes(shards.merge(three))["clocks_apart"]
    assert "the clocks of shard 1, shard 2, shard 3 are not known to " in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"harness_version": "9.9"}, "another version of knee than that of"),
        ({"scenario_digest": "0" * 16}, "another scenario than that of"),
        ({"shards": [share(2, run_id="other")]}, "another run than that of"),
        ({"shards": [share(2, start_s=1e9 + 1)]}, "another start than that of"),
        ({"shards": [share(2, of=4)]}, "another number of shards than that of"),
        ({"model": "other"}, "another model than that of"),
        ({"shards": [share(1)]}, "shard 1 is in "),
        ({"shards": msgspec.UNSET}, "not a shard of a run"),
    ],
)
def test_what_is_not_of_the_run_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], fact: str) -> None:
    first, other = part(tmp_path / "a", 1), part(tmp_path / "b", 2, **changes)
    with pytest.raises(HarnessError, match=fact) as refused:
        shards.merge([first, other])
    assert str(refused.value).startswith(str(other))


@pytest.mark.slow
def test_a_level_that_one_shard_did_not_finish_has_no_window(three: list[Path]) -> None:
    runs = [Result.open(each) for each in three]
    last = runs[1].levels[-1]
    begun = msgspec.structs.replace(last, window_start_s=None, window_end_s=None, end_s=None)
    cut = msgspec.structs.replace(runs[1], levels=[*runs[1].levels[:-1], begun])
    shards.write(cut, three[1])
    files.write_json(three[1] / MANIFEST, msgspec.structs.replace(cut.manifest, complete=False))
    merged = shards.merge(three)
    assert [level.finished for level in merged.levels] == [True] * (len(merged.levels) - 1) + [False]
    assert merged.manifest.complete is False
    assert codes(merged)["incomplete"].startswith(f"the run ended early: {len(merged.levels) - 1} of the")
