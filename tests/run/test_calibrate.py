"""The calibration of the load generator: its sums by hand, how it is kept, and one that is really made."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data.machines import Ceiling, ClientCalibration, Timing
from harness.load import receive
from harness.run import trial
from harness.run.calibrate import Effort, calibrate, here, load, path, rows, save, stale
from harness.run.trial import errors
from harness.sim.connection import Entry
from tests.builders.records import request


def ceiling(per_s: float, limited_by: str = "client") -> Ceiling:
    return Ceiling(per_s=per_s, limited_by=limited_by, client_cpu=1.0, server_cpu=0.5, server_processes=1)


def timing(p99: float, **changes: Any) -> Timing:
    row = Timing(
        streams=512,
        groups=64,
        tokens_per_s=20_480.0,
        tokens=30_000,
        error_p50_s=3e-6,
        error_p99_s=p99,
        error_max_s=9e-5,
        merged_fraction=0.001,
        cpu_s_per_million=9.5,
    )
    return msgspec.structs.replace(row, **changes)


def calibration(**changes: Any) -> ClientCalibration:
    """One of this machine, made up."""
    plain = ClientCalibration(
        format=1,
        created=datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC),
        **here(),
        transport="socket",
        timestamp_source="kernel",
        workers=1,
        load_average=0.1,
        single=ceiling(70_000.0),
        bulk=ceiling(500_000.0),
        requests=ceiling(9_000.0, "server"),
        streams=4000,
        streams_asked=4000,
        timing=(timing(12e-6), timing(8e-6, groups=1)),
        ttft_error_p99_s=15e-6,
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calibrations go to a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "knee"


# ---- the sums --------------------------------------------------------------------------------------------


def written(id: str, *writes_s: float) -> Entry:
    return Entry(id, 0, array("q", [round(t * 1e9) for t in writes_s]), len(writes_s), True, 0)


def test_each_arrival_is_held_against_the_write_of_the_same_token() -> None:
    # The run began at 100 s of the clock; the arrivals are 10, 20, 30 and 5 µs after their writes.
    records = [
        request(0.0, [1.00001, 2.00002, 3.00003], request_id="a"),
        request(0.0, [1.500005], request_id="b"),
    ]
    log = [written("b", 101.5), written("a", 101.0, 102.0, 103.0)]
    every, first = errors(records, log, 100_000_000_000)
    assert every == pytest.approx([10e-6, 20e-6, 30e-6, 5e-6], abs=1e-9)
    assert first == pytest.approx([10e-6, 5e-6], abs=1e-9)


@pytest.mark.parametrize(
    ("arrivals", "log"),
    [
        ([1.0, 2.0], [written("r", 1.0, 2.0, 3.0, 4.0)]),  # cut: what was written last never arrived
        ([1.0, 2.0], [written("r", 1.0, 2.0), written("another", 0.5)]),
    ],
)
def test_writes_that_did_not_arrive_are_not_compared(arrivals: Sequence[float], log: Sequence[Entry]) -> None:
    every, first = errors([request(0.0, arrivals)], log, 0)
    assert (list(every), list(first)) == ([0.0, 0.0], [0.0])


def test_requests_without_a_token_or_unknown_to_the_log_are_left_out() -> None:
    records = [request(0.0, [], request_id="none"), request(0.0, [1.0], request_id="unknown")]
    every, first = errors(records, [written("none", 1.0)], 0)
    assert (len(every), len(first)) == (0, 0)


# ---- kept ------------------------------------------------------------------------------------------------


def test_a_calibration_is_kept_by_host_and_version(kept: Path) -> None:
    assert load() is None
    made = calibration()
    where = save(made)
    assert (where, where.parent) == (path(), kept)
    assert made.host in where.name
    assert made.harness_version in where.name
    assert load() == made


def test_without_xdg_state_home_it_is_kept_below_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path().parent == tmp_path / ".local" / "state" / "knee"


def test_the_calibration_of_another_version_is_found_so_that_it_can_be_called_stale(kept: Path) -> None:
    older, newer = calibration(harness_version="0.0.1"), calibration()
    save(older).rename(kept / path().name.replace(newer.harness_version, "0.0.1"))
    assert load() == older
    save(newer)
    assert load() == newer


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]", '"\xff"'])
def test_what_cannot_be_read_is_no_calibration(kept: Path, text: str) -> None:
    kept.mkdir()
    path().write_bytes(text.encode("latin-1"))
    assert load() is None


def test_a_calibration_of_another_format_is_no_calibration(kept: Path) -> None:
    save(calibration(format=2))
    assert load() is None


def test_a_folder_that_cannot_be_made_is_an_operators_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(HarnessError, match="Not a directory; set XDG_STATE_HOME"):
        save(calibration())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"harness_version": "0.0.1"}, "another knee: 0.0.1 then"),
        ({"host": "elsewhere"}, "another host: elsewhere then"),
        ({"cpu": "Z80"}, "another processor: Z80 then"),
        ({"cpus": 1024}, "another number of processors: 1024 then"),
        ({"python": "2.7.18"}, "another Python: 2.7.18 then"),
    ],
)
def test_a_calibration_of_something_else_is_stale(changes: dict[str, Any], says: str) -> None:
    made = calibration(**changes)
    assert (stale(made, made.created) or "").startswith(says)


def test_another_load_or_fewer_processors_make_no_calibration_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    made = calibration(load_average=7.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})  # as taskset does, now or then
    assert stale(made, made.created) is None
    less = calibration()
    monkeypatch.undo()
    assert less.cpus == 1
    assert stale(less, less.created) is None


def test_a_calibration_is_stale_after_thirty_days() -> None:
    made = calibration()
    assert stale(made, made.created + timedelta(days=30)) is None
    assert stale(made, made.created + timedelta(days=31)) == "31 days old"


# ---- shown -----------------------------------------------------------------------------------------------


def test_a_ceiling_that_the_client_did_not_reach_is_shown_as_a_lower_bound() -> None:
    shown = {what: (figure, remark) for what, figure, remark in rows(calibration())}
    assert shown["tokens, one a write"] == ("70,000 tok/s", "")
    assert shown["requests of one token"] == ("9,000 req/s", "at least; the server was the limit")
    assert shown["streams at once"] == ("4,000", "as many as requested")
    assert shown["TTFT error p99"] == ("15 µs", f"stamps by the kernel; {receive.path()} receive path")


def test_every_load_has_its_errors_and_costs() -> None:
    smooth, burst = [row for row in rows(calibration()) if row[0].startswith("arrival error")]
    assert smooth[0].endswith("512 streams smooth")
    assert smooth[1:] == ("3 / 12 / 90 µs", "9.50 CPU s per million tokens, 0.1% merged")
    assert burst[0].endswith("512 streams in one step")


def test_the_error_of_a_calibration_is_that_of_its_worst_load() -> None:
    assert calibration().error_p99_s == 12e-6


# ---- a real one ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_calibration_finds_every_ceiling_and_error(kept: Path) -> None:
    reported: list[str] = []
    made = calibrate(Effort(seconds=1.0, loads=(16,), streams=100), report=reported.append)
    assert len(reported) == 6
    for found in (made.single, made.bulk, made.requests):
        assert found.per_s > 0
        assert found.limited_by in ("client", "server", "host")
    assert made.streams == made.streams_asked == 100
    assert [(row.streams, row.groups) for row in made.timing] == [(16, 64), (16, 1)]
    for row in made.timing:
        # A token arrives after it is written, never before.
        assert 0 < row.error_p50_s <= row.error_p99_s <= row.error_max_s
        assert row.cpu_s_per_million > 0
        assert 0 <= row.merged_fraction <= 1
    assert made.ttft_error_p99_s is None  # of 32 requests
    assert stale(made) is None
    save(made)
    assert load() == made


def test_an_endpoint_that_is_starved_of_its_processor_ends_a_trial_in_one_line(monkeypatch):
    monkeypatch.setattr(trial, "_METRICS_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HarnessError) as error:
        trial._running(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "did not give its metrics" in error.value.fact
