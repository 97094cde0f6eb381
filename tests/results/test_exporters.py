"""A level in another tool's format has the summary's figures, and reads back to the same values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.requests import in_flight_low
from harness.base.errors import HarnessError
from harness.data.judgement import Verdict
from harness.data.levels import LevelSummary
from harness.data.record import ABANDONED
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.results import readers
from harness.results.exporters import csv as rows
from harness.results.exporters import csv as table
from harness.results.exporters import vllm
from harness.results.readers.level import WHOLE_RUN, ForeignLevel, ForeignResult, Latency
from tests.builders.summaries import MANIFEST, full, hollow, simulated

Export = Callable[[Summary], bytes]


def as_csv(summary: Summary) -> bytes:
    return table.levels(summary).encode()


def lines(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in documents)


def as_vllm(summary: Summary) -> bytes:
    return lines([vllm.of_level(level, MANIFEST, simulated=summary.simulated) for level in summary.levels])


def open_loop() -> Summary:
    """As if each concurrency had been a rate."""
    levels = [msgspec.structs.replace(s, concurrency=None, rate=(s.concurrency or 0) / 4) for s in full().levels]
    return msgspec.structs.replace(full(), levels=levels)


def latency(spread: Spread) -> Latency:
    return Latency(mean=spread.mean, p50=spread.p50, p90=spread.p90, p95=spread.p95, p99=spread.p99)


def answered(level: LevelSummary) -> int | None:
    return level.requests - level.errors - level.cancelled - (level.abandoned or 0) or None


def wanted(level: LevelSummary, **changes: Any) -> ForeignLevel:
    """What a reader has to find of a level."""
    common = ForeignLevel(
        concurrency=level.concurrency,
        rate=level.rate,
        output_tokens_per_s=level.output_tokens_per_s.mean,
        requests_per_s=level.requests_per_s.mean,
        requests=answered(level),
        valid=usable(level, Purpose.POINT),
        in_flight_ok=not in_flight_low.voids(level),
        failed=level.errors,
        input_tokens_mean=level.input_tokens_mean,
        output_tokens_mean=level.output_tokens_mean,
        ttft_s=latency(level.ttft_s),
        itl_s=latency(level.icl_s),
        tpot_s=latency(level.tpot_s),
        e2e_s=latency(level.e2e_s),
    )
    return msgspec.structs.replace(common, **changes)


def alike(found: object, expected: object) -> None:
    """Equal but for the rounding of a unit and back."""
    flat_found, flat_expected = (leaves(msgspec.to_builtins(each)) for each in (found, expected))
    assert flat_found.keys() == flat_expected.keys()
    for path, value in flat_expected.items():
        same = value if not isinstance(value, float) else pytest.approx(value, rel=1e-12)
        assert flat_found[path] == same, path


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: leaf for key, value in tree.items() for name, leaf in leaves(value, f"{path}.{key}").items()}


def read(data: bytes) -> ForeignResult:
    return readers.of_bytes(data, "an export")


@pytest.mark.parametrize("summary", [full(), simulated(), open_loop()], ids=["closed", "simulated", "open"])
@pytest.mark.parametrize("export", [as_csv, as_vllm])
def test_what_is_exported_reads_back_to_the_same_values(export: Export, summary: Summary) -> None:
    found = read(export(summary))
    assert len(found.levels) == len(summary.levels) > 3
    assert found.simulated == summary.simulated
    for back, level in zip(found.levels, summary.levels, strict=True):
        own: dict[str, Any] = {"in_flight": level.in_flight, "se": level.output_tokens_per_s_se}
        own |= {
            "se_assumed": level.output_tokens_per_s_se_assumed,
            "window_s": level.window_s,
            "service": level.service or None,
        }
        own |= {"running": level.server and level.server.running, "waiting": level.server and level.server.waiting}
        if export is as_csv:
            own["itl_mean_s"] = level.itl_s.mean
        alike(back, wanted(level, **own))


def test_the_tool_and_the_model_read_back() -> None:
    sources = [read(export(full())) for export in (as_csv, as_vllm)]
    assert [found.source for found in sources] == ["knee", "knee"]
    assert not any(WHOLE_RUN in found.lacks for found in sources)
    assert [found.model for found in sources] == [None, MANIFEST.model]


def test_requests_that_failed_were_cut_or_given_up_are_not_completed() -> None:
    level = msgspec.structs.replace(full().levels[3], requests=100, errors=5, cancelled=3, abandoned=2)
    found = vllm.of_level(level, MANIFEST, simulated=False)
    assert (found["num_prompts"], found["completed"], found["failed"]) == (100, 90, 5)
    assert read(as_csv(msgspec.structs.replace(full(), levels=[level]))).levels[0].requests == 90


def test_vllm_s_file_is_in_milliseconds_and_in_its_own_words() -> None:
    level = full().levels[2]
    found = vllm.of_level(level, MANIFEST, simulated=False)
    assert found["max_concurrency"] == 4
    assert found["request_rate"] == "inf"
    assert found["mean_ttft_ms"] == (level.ttft_s.mean or 0) * 1e3
    assert found["total_output_tokens"] == pytest.approx((level.output_tokens_mean or 0) * found["completed"])
    rated = vllm.of_level(open_loop().levels[0], MANIFEST, simulated=False)
    assert (rated["max_concurrency"], rated["burstiness"]) == (None, 1.0)


def test_a_simulated_level_says_so_in_every_format() -> None:
    summary = simulated()
    assert vllm.of_level(summary.levels[0], MANIFEST, simulated=True)["simulated"] is True
    assert {row["simulated"] for row in rows.rows(summary)} == {True}


def test_what_was_not_measured_is_an_empty_cell_and_never_0() -> None:
    level = hollow().levels[0]
    (row,) = csv.DictReader(io.StringIO(table.levels(msgspec.structs.replace(hollow(), levels=[level]))))
    for name, value in rows.row(level).items():
        if value is None and name in row:
            assert row[name] == "", name
    assert row["ttft_p99_s"] == ""


def test_a_spreadsheet_takes_no_text_for_a_formula() -> None:
    made = table.text(["error", "n"], [{"error": "=cmd()", "n": -1}, {"error": ABANDONED, "n": None}])
    assert made.splitlines() == ["error,n", "'=cmd(),-1", "abandoned,"]


@pytest.mark.parametrize("export", [as_csv, as_vllm])
@pytest.mark.parametrize(
    ("code", "valid", "held"), [("stalled", False, True), ("in_flight_low", True, False), (None, True, True)]
)
def test_the_verdicts_of_a_level_read_back(export: Export, code: str | None, valid: bool, held: bool) -> None:
    verdicts = [Verdict("server_lumps", "note", "x", "y"), *([Verdict(code, "invalid", "x", "y")] if code else [])]
    level = msgspec.structs.replace(full().levels[3], verdicts=verdicts)
    (found,) = read(export(msgspec.structs.replace(full(), levels=[level]))).levels
    assert (found.valid, found.in_flight_ok) == (valid, held)


def test_lines_of_a_simulation_and_of_a_measurement_are_no_one_run() -> None:
    with pytest.raises(HarnessError, match="levels of a simulated server and of a real one"):
        read(as_vllm(simulated()) + as_vllm(full()))


def test_a_level_in_whose_window_few_requests_began_was_in_flight_all_the_same() -> None:
    level = msgspec.structs.replace(full().levels[-2], requests=20)
    (found,) = read(as_vllm(msgspec.structs.replace(full(), levels=[level]))).levels
    assert (found.concurrency, found.in_flight, found.in_flight_ok) == (48.0, level.in_flight, True)


def test_a_quote_that_is_never_closed_swallows_no_levels() -> None:
    first, second, *others = as_csv(full()).decode().splitlines()
    torn = "\n".join((first, f'"{second}', *others)).encode()
    with pytest.raises(HarnessError, match="not a CSV: unexpected end of data"):
        read(torn)


def test_a_spreadsheet_s_decimal_commas_are_refused() -> None:
    first, *others = csv.reader(io.StringIO(table.levels(full())))
    out = io.StringIO()
    csv.writer(out, delimiter=";").writerows([first, *([cell.replace(".", ",") for cell in row] for row in others)])
    with pytest.raises(HarnessError, match=r"line 2: '140,2.*' is not a number") as refused:
        read(out.getvalue().encode())
    assert refused.value.way_out == "write numbers like 1234.5"
