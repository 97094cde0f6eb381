"""A result folder: frames cut anywhere read whole, parquet gives back what the spool held."""

from __future__ import annotations

import random
import resource
from array import array
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.record import Level, Record, Sample, arrivals_of, phase_of
from harness.library import notebook
from harness.results import columns, frames
from harness.results.folder import MANIFEST, REQUESTS, SPOOL, TELEMETRY, claimed, create, default
from harness.results.result import Result
from harness.results.spool import Spool, finish, header
from tests.builders.records import request


def record(
    i: int, *, level: int = 0, error: str = "", tokens: list[int] | None = None, sent: float | None = None
) -> Record:
    counts = tokens if tokens is not None else [1, 1, 1]
    arrivals = array("q", [1_000_000_007 * (i + 1) + 13_579_111 * k for k in range(len(counts))])
    return Record(
        request_id=f"r-{i}", level=level, repeat=0, concurrency=2, worker=0, url="http://h:1",
        scheduled_s=float(i), sent_s=float(i) if sent is None else sent, connect_s=None,
        first_token_s=arrivals[0] * 1e-9 if counts else None, first_content_s=None, last_token_s=None,
        done_s=i + 0.9, input_tokens=None if i % 2 else 7, cached_tokens=None, output_tokens=sum(counts),
        reasoning_tokens=None, token_source="chunks", status=200, error=error, finish_reason="length",
        bytes_received=99, arrivals=arrivals.tobytes(),
        tokens=b"" if set(counts) <= {1} else array("i", counts).tobytes(),
    )  # fmt: skip


LEVEL = Level(0, 2, 0, 0.0, 2.0, 6.0, 8.0, ("transient_unchecked",))


def spooled(folder: Path, records: list[Record]) -> None:
    spool = Spool(folder, header(5, 6.5))
    spool.level(LEVEL)
    for i in range(0, len(records), 3):
        spool.write(frames.batch(records[i : i + 3]))
    spool.telemetry([Sample(1.0, "server", "running", 2.0)])
    spool.close()


def test_parquet_gives_back_every_record_the_spool_held(tmp_path: Path) -> None:
    records = [
        record(i, tokens=[1, 3] if i == 4 else [] if i == 5 else None, error="reset" if i == 5 else "")
        for i in range(10)
    ]
    spooled(tmp_path, records)
    before = Result.open(tmp_path)
    assert before.records == records
    after = finish(tmp_path)
    for got, was in zip(after.records, records, strict=True):
        assert msgspec.structs.replace(got, arrivals=b"") == msgspec.structs.replace(was, arrivals=b"")
        for a, b in zip(arrivals_of(got), arrivals_of(was), strict=True):
            assert abs(a - b) <= 8, "kept to 15 ns"
    assert (after.levels, after.samples, after.header) == (before.levels, before.samples, before.header)
    assert (before.finished, after.finished) == (False, True)
    assert not (tmp_path / SPOOL).exists()


def test_notes_are_kept_and_a_run_from_before_them_has_none(tmp_path: Path) -> None:
    noted = [msgspec.structs.replace(record(i), noted="think,unlisted:thinking" if i else "") for i in range(4)]
    spooled(tmp_path, noted)
    assert [r.noted for r in finish(tmp_path).records] == [r.noted for r in noted]
    older = pq.read_table(tmp_path / REQUESTS).drop_columns(["noted"])
    pq.write_table(older, tmp_path / REQUESTS)
    assert [r.noted for r in Result.open(tmp_path).records] == [""] * 4
    before = msgspec.msgpack.encode([each[:-1] for each in msgspec.msgpack.decode(frames.batch(noted))])
    (tmp_path / REQUESTS).unlink()
    spool = Spool(tmp_path, header(5, 6.5))
    spool.level(LEVEL)
    spool.write(before)
    spool.close()
    assert [(r.request_id, r.noted) for r in Result.open(tmp_path).records] == [(f"r-{i}", "") for i in range(4)]


def test_more_requests_than_are_written_at_once_come_back_in_order(tmp_path: Path) -> None:
    records = [record(i, tokens=[1, 2] if i % 3 else []) for i in range(8200)]
    spooled(tmp_path, records)
    after = finish(tmp_path)
    assert pq.ParquetFile(tmp_path / REQUESTS).num_row_groups == 2
    assert [r.request_id for r in after.records] == [r.request_id for r in records]
    assert [(len(r.arrivals), r.tokens) for r in after.records] == [(len(r.arrivals), r.tokens) for r in records]


def test_a_run_without_requests_is_packed_and_read(tmp_path: Path) -> None:
    spooled(tmp_path, [])
    assert finish(tmp_path).records == []
    assert len(notebook.requests(Result.open(tmp_path))) == 0


def test_the_parquet_has_the_contract_s_columns_and_phases(tmp_path: Path) -> None:
    spooled(tmp_path, [record(i) for i in range(10)])
    finish(tmp_path)
    table = pq.read_table(tmp_path / REQUESTS)
    promised = """
        request_id level repeat concurrency phase worker url class session_id turn scheduled_s sent_s connect_s
        first_token_s first_content_s last_token_s done_s input_tokens cached_tokens output_tokens
        reasoning_tokens token_source status error finish_reason bytes_received arrivals_s arrival_tokens""".split()
    assert set(promised) <= set(table.column_names)
    assert table.column("phase").to_pylist() == ["warmup"] * 2 + ["measure"] * 4 + ["cooldown"] * 4
    assert table.schema.field("arrivals_s").type.value_type == "double"
    assert table.schema.field("arrival_tokens").type.value_type == "int32"


def test_the_requests_of_a_finished_and_a_dead_run_are_the_same_data_frame(tmp_path: Path) -> None:
    spooled(tmp_path, [record(i) for i in range(10)])
    dead = notebook.requests(Result.open(tmp_path))
    finish(tmp_path)
    finished = notebook.requests(Result.open(tmp_path))
    assert dead["request_id"].tolist() == finished["request_id"].tolist()
    assert finished.groupby("phase").size().to_dict() == {"cooldown": 4, "measure": 4, "warmup": 2}
    assert [len(a) for a in finished["arrivals_s"]] == [3] * 10


def test_a_spool_cut_at_any_byte_gives_every_whole_frame(tmp_path: Path) -> None:
    records = [record(i) for i in range(9)]
    spooled(tmp_path, records)
    data = (tmp_path / SPOOL).read_bytes()
    whole = len(list(frames.payloads(data)))
    seen = set()
    for cut in random.Random(0).sample(range(len(data)), 150):
        payloads = list(frames.payloads(data[:cut]))
        assert payloads == list(frames.payloads(data))[: len(payloads)]
        seen.add(len(payloads))
    assert max(seen) == whole - 1
    (tmp_path / SPOOL).write_bytes(data[:-1])
    cut_short = Result.open(tmp_path)
    assert cut_short.records == records
    assert cut_short.samples == []


def test_long_answers_that_came_at_once_are_read_back(tmp_path: Path) -> None:
    """A proxy that buffers: all tokens of an answer have one time, which compresses to almost nothing."""
    records = []
    for i in range(300):
        one = record(i, tokens=[1] * 1000)
        records.append(msgspec.structs.replace(one, arrivals=array("q", [1_000_000_000 * (i + 1)] * 1000).tobytes()))
    spooled(tmp_path, records)
    finish(tmp_path)
    assert not (tmp_path / SPOOL).exists()
    assert [len(arrivals_of(r)) for r in Result.open(tmp_path).records] == [1000] * 300


def test_a_damaged_frame_ends_the_reading_and_keeps_what_stood_before(tmp_path: Path) -> None:
    spooled(tmp_path, [record(i) for i in range(9)])
    data = bytearray((tmp_path / SPOOL).read_bytes())
    data[-200] ^= 0xFF
    (tmp_path / SPOOL).write_bytes(bytes(data))
    assert 3 <= len(Result.open(tmp_path).records) < 9


def test_the_last_frame_of_a_level_counts(tmp_path: Path) -> None:
    spool = Spool(tmp_path, header(0, 0.0))
    for level in (Level(0, 2, 0, 0.0), Level(0, 2, 0, 0.0, 1.0), LEVEL):
        spool.level(level)
    spool.close()
    assert Result.open(tmp_path).levels == [LEVEL]


def test_a_record_of_a_level_that_never_got_its_window_is_warm_up() -> None:
    assert phase_of(3.0, Level(0, 2, 0, 0.0)) == "warmup"
    assert phase_of(3.0, Level(0, 2, 0, 0.0, 2.0)) == "measure"
    assert phase_of(None, LEVEL) == "warmup"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(HarnessError, match="not empty"):
        create(tmp_path)


def test_folders_that_are_none_say_so(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no such result folder"):
        Result.open(tmp_path / "none")
    with pytest.raises(HarnessError, match=r"neither requests\.parquet nor requests\.spool"):
        Result.open(tmp_path)
    (tmp_path / REQUESTS).write_bytes(b"not parquet at all")
    with pytest.raises(HarnessError, match=r"not a requests\.parquet"):
        Result.open(tmp_path)


def test_an_arrival_costs_about_eight_bytes_in_a_batch() -> None:
    long = record(0, tokens=[1] * 10_000)
    assert len(frames.batch([long])) < 8.1 * 10_000
    assert msgspec.msgpack.decode(frames.batch([long]), type=list[Record]) == [long]


def test_a_spool_that_is_gone_on_with_drops_its_torn_end_and_keeps_every_whole_frame(tmp_path: Path) -> None:
    records = [record(i) for i in range(9)]
    spooled(tmp_path, records)
    data = (tmp_path / SPOOL).read_bytes()
    for cut in random.Random(1).sample(range(len(data)), 40):
        (tmp_path / SPOOL).write_bytes(data[:cut] + b"\x05\x00")
        whole = list(frames.payloads(data[:cut]))
        spool = Spool(tmp_path)
        spool.write(frames.batch([record(99)]))
        spool.close()
        assert list(frames.payloads((tmp_path / SPOOL).read_bytes())) == [*whole, frames.batch([record(99)])]


def test_a_finished_folder_is_gone_on_with_and_finished_again_to_the_same_records(tmp_path: Path) -> None:
    records = [record(i, tokens=[1, 3] if i % 3 else []) for i in range(2100)]
    spooled(tmp_path, records)
    first = finish(tmp_path)
    spool = Spool(tmp_path)
    assert not (tmp_path / REQUESTS).exists()
    assert not (tmp_path / TELEMETRY).exists()
    spool.write(frames.batch([record(9999)]))
    spool.close()
    assert Result.open(tmp_path).finished is False
    second = finish(tmp_path)
    assert second.records == [*first.records, *second.records[-1:]], "to the nanosecond"
    assert second.records[-1].request_id == "r-9999"
    assert (second.header, second.levels, second.samples) == (first.header, first.levels, first.samples)


def test_a_folder_with_both_files_is_one_run_whichever_way_it_was_cut_off(tmp_path: Path) -> None:
    """Killed while the spool became parquet, or while parquet became the spool: the spool is whole in both."""
    records = [record(i) for i in range(9)]
    spooled(tmp_path, records)
    data = (tmp_path / SPOOL).read_bytes()
    finish(tmp_path)
    (tmp_path / SPOOL).write_bytes(data)
    (tmp_path / TELEMETRY).unlink()  # it had not come to this one
    for _ in range(2):
        found = Result.open(tmp_path)
        assert (found.records, len(found.samples), found.finished) == (records, 1, False)
        Spool(tmp_path).close()
        assert not (tmp_path / REQUESTS).exists()


def test_a_disk_that_fills_up_while_parquet_is_written_is_one_line_and_the_spool_stays(tmp_path: Path) -> None:
    """The writer of parquet fails once more when it is closed, which hid why."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    draws = random.Random(1)
    stamps = [array("q", [draws.randrange(10**10) for _ in range(3)]).tobytes() for _ in range(2000)]
    spooled(tmp_path, [msgspec.structs.replace(record(i), arrivals=each) for i, each in enumerate(stamps)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        with pytest.raises(HarnessError, match=r"requests\.parquet: cannot be written: File too large; make room"):
            finish(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == [SPOOL], "no half of a file"
    assert len(Result.open(tmp_path).records) == 2000


def test_two_runs_begun_in_one_second_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(create(default("run-1"))) for _ in range(3)] == ["results/run-1", "results/run-1-2", "results/run-1-3"]


def test_what_does_not_fit_is_taken_back_and_what_fits_after_it_reads(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spooled(tmp_path, [record(0)])
    size = (tmp_path / SPOOL).stat().st_size
    spool = Spool(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, hard))  # Python ignores SIGXFSZ: a write fails instead
    try:
        with pytest.raises(HarnessError, match="cannot write what is measured: File too large"):
            spool.write(frames.batch([record(i) for i in range(1, 9)]))
        assert (tmp_path / SPOOL).stat().st_size == size
        spool.write(frames.batch([record(9)]))
        with pytest.raises(HarnessError, match=r"manifest\.json: cannot be written: File too large; make room"):
            files.write_json(tmp_path / MANIFEST, {"long": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    spool.close()
    assert [r.request_id for r in Result.open(tmp_path).records] == ["r-0", "r-9"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [SPOOL], "no half of a file stays behind"


def test_a_folder_is_one_process_s_at_a_time(tmp_path: Path) -> None:
    with (
        claimed(tmp_path),
        pytest.raises(HarnessError, match="another process is still writing into it"),
        claimed(tmp_path),
    ):
        pass
    with claimed(tmp_path):
        pass
    with pytest.raises(HarnessError, match="No such file or directory"), claimed(tmp_path / "none"):
        pass


def test_the_last_moment_of_a_run_is_that_of_anything_in_it(tmp_path: Path) -> None:
    spooled(tmp_path, [])
    assert Result.open(tmp_path).last_s == 8.0, "the level's end"
    (tmp_path / "b").mkdir()
    spooled(tmp_path / "b", [record(i) for i in range(10)])
    assert Result.open(tmp_path / "b").last_s == pytest.approx(9.9)


def test_the_telemetry_of_an_idle_server_is_read_back(tmp_path: Path) -> None:
    """Figures that never change compress to less than a byte each, which a reader takes for no telemetry at all."""
    metrics = [f"vllm:figure_{i}" for i in range(32)]
    samples = [Sample(float(second), "server", metric, 8.0) for second in range(900) for metric in metrics]
    columns.write_telemetry(tmp_path / TELEMETRY, samples)
    assert columns.telemetry(tmp_path / TELEMETRY) == samples


def test_many_short_answers_at_the_same_times_are_read_back(tmp_path: Path) -> None:
    """On a virtual clock times repeat, so that a request takes few bytes of the file."""
    one = request(1.0, [1.1], tokens=[1], done=1.1)
    records = [msgspec.structs.replace(one, request_id=f"0123456789ab-{i}") for i in range(10_000)]
    path = tmp_path / REQUESTS
    columns.write_requests(path, header(0, 0.0), [Level(0, 16, 0, 0.0)], records)
    assert path.stat().st_size < 8 * len(records)
    assert len(columns.requests(path)[2]) == len(records)
