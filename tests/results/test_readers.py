"""Other tools' files, each read to figures worked out from the file by hand; what is none is refused in one line."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.rules.requests import ERROR_RATE
from harness.base.errors import HarnessError
from harness.results import readers
from harness.results.readers.level import ForeignLevel, ForeignResult, number

DATA = Path(__file__).parents[1] / "data" / "foreign"


def read(name: str) -> ForeignResult:
    return readers.read(DATA / name)


def only(name: str) -> ForeignLevel:
    (level,) = read(name).levels
    return level


def test_vllm_s_milliseconds_are_seconds_and_its_lengths_means_of_totals() -> None:
    level = only("vllm.json")
    assert (level.concurrency, level.rate, level.in_flight) == (16.0, None, None)
    assert (level.output_tokens_per_s, level.requests_per_s, level.requests) == (640.0, 5.0, 200)
    assert (level.input_tokens_mean, level.output_tokens_mean) == (102_400 / 200, 25_600 / 200)
    assert (level.ttft_s.p50, level.ttft_s.p99) == pytest.approx((0.060, 0.118))
    assert (level.itl_s.p50, level.tpot_s.mean, level.e2e_s.mean) == pytest.approx((0.0235, 0.024, 3.1105))
    assert read("vllm.json").model == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_finite_rate_of_vllm_is_an_open_loop_whatever_bounds_it() -> None:
    stored = json.loads((DATA / "vllm.json").read_text()) | {"request_rate": 4.0}
    (level,) = readers.of_bytes(json.dumps(stored).encode(), "x").levels
    assert (level.concurrency, level.rate) == (None, 4.0)


def test_sglang_s_lines_are_levels_and_an_infinite_rate_is_none() -> None:
    first, second = read("sglang.jsonl").levels
    assert (first.concurrency, first.in_flight, first.output_tokens_per_s) == (8.0, 7.75, 400.0)
    assert (second.concurrency, second.in_flight, second.output_tokens_per_s) == (16.0, 15.5, 640.0)
    assert (first.requests_per_s, first.output_tokens_mean) == (125 / 40, 128.0)
    assert (first.itl_s.p95, first.e2e_s.p50) == pytest.approx((0.025, 2.475))


def test_guidellm_s_benchmarks_are_levels_of_its_successful_requests() -> None:
    rated, streams = read("guidellm.json").levels
    assert (rated.concurrency, rated.rate) == (None, 2.0)
    assert (streams.concurrency, streams.rate) == (8.0, None)
    assert streams.output_tokens_per_s == pytest.approx(3.19507, rel=1e-5)
    assert (streams.input_tokens_mean, streams.output_tokens_mean, streams.requests) == (71.5, 8.0, 2)
    assert (streams.ttft_s.mean, streams.ttft_s.p99) == pytest.approx((0.01148117, 0.01168633), rel=1e-6)
    assert streams.e2e_s.p50 == pytest.approx(0.01926923, rel=1e-6)
    # Its "time per output token" of 2.44 ms has the wait for the first token in it.
    assert (streams.tpot_s.mean, streams.itl_s.mean) == (pytest.approx(0.00115085, rel=1e-5), None)


def test_aiperf_s_gaps_are_itl_and_its_means_of_requests_tpot() -> None:
    level = only("aiperf.json")
    assert (level.concurrency, level.output_tokens_per_s, level.requests) == (4.0, 185.6, 20)
    assert (level.itl_s.p99, level.tpot_s.p99) == pytest.approx((0.030, 0.0206))
    assert level.e2e_s.p50 == pytest.approx(2.56873)


def test_a_warm_up_of_aiperf_s_is_not_its_load() -> None:
    phases = [{"name": "warmup", "concurrency": 8, "rate": 3.0}, {"name": "profiling", "concurrency": 32}]
    stored = json.loads((DATA / "aiperf.json").read_text()) | {"input_config": {"phases": phases}}
    (level,) = readers.of_bytes(json.dumps(stored).encode(), "x").levels
    assert (level.concurrency, level.rate) == (32.0, None)


def test_aiperf_s_csv_says_the_same_without_load_and_gaps() -> None:
    wanted, level = only("aiperf.json"), only("aiperf.csv")
    assert (level.concurrency, level.itl_s.p50) == (None, None)
    assert (level.ttft_s, level.tpot_s, level.e2e_s) == (wanted.ttft_s, wanted.tpot_s, wanted.e2e_s)
    assert level.output_tokens_per_s == wanted.output_tokens_per_s


def test_a_stage_of_inference_perf_by_rate_is_an_open_loop() -> None:
    level = only("inference_perf.json")
    assert (level.concurrency, level.rate, level.requests) == (None, 40.19, 2411)
    assert (level.output_tokens_per_s, level.output_tokens_mean) == (2498.71, 62.7482)
    assert (level.ttft_s.p50, level.ttft_s.p99, level.itl_s.mean) == (0.0378616, 0.0900359, 0.00811208)


def test_llm_d_s_replicas_count_each_card_and_times_have_the_file_s_unit() -> None:
    found, old = read("llm_d.json"), read("llm_d_0.1.json")
    assert (found.engine, found.gpu, found.gpus) == ("vllm", "NVIDIA-H100-80GB-HBM3", 16)
    assert (found.levels[0].concurrency, found.levels[0].output_tokens_per_s) == (32.0, 1005.0)
    assert found.levels[0].ttft_s.p99 == 0.0503
    assert (old.engine, old.gpu, old.gpus, old.model) == ("vllm", "H100", 2, "deepseek-ai/DeepSeek-R1-0528")
    assert (old.levels[0].concurrency, old.levels[0].output_tokens_per_s) == (8.0, 62.0)
    assert old.levels[0].e2e_s.p50 == pytest.approx(2.11)


@pytest.mark.parametrize(
    ("file", "load", "found"),
    [
        ("llm_d.json", {"standardized": {"tool": "vllm-benchmark", "rate_qps": 10, "concurrency": 200}}, (None, 10.0)),
        ("llm_d.json", {"standardized": {"tool": "vllm-benchmark", "concurrency": 200}}, (200.0, None)),
        ("llm_d.json", {"standardized": {"tool": "inference-perf", "rate_qps": 10}}, (None, 10.0)),
        ("llm_d_0.1.json", {"name": "vllm-benchmark", "args": {"request_rate": 4, "max_concurrency": 8}}, (None, 4.0)),
        (
            "llm_d_0.1.json",
            {"name": "vllm-benchmark", "args": {"request_rate": "inf", "max_concurrency": 8}},
            (8.0, None),
        ),
    ],
)
def test_a_finite_rate_of_vllm_s_tool_is_an_open_loop_in_llm_d_s_report_too(
    file: str, load: dict[str, Any], found: tuple[float | None, float | None]
) -> None:
    stored = json.loads((DATA / file).read_text())
    stored["scenario"]["load"] = load
    (level,) = readers.of_bytes(json.dumps(stored).encode(), "x").levels
    assert (level.concurrency, level.rate) == found


def test_a_plain_table_keeps_its_errors() -> None:
    levels = read("table.csv").levels
    assert [(level.concurrency, level.output_tokens_per_s, level.se) for level in levels[-2:]] == [
        (32.0, 405.0, 4.0),
        (64.0, 398.0, 4.0),
    ]


def test_a_table_may_begin_with_comments() -> None:
    text = b"# a sweep\n# of an H100\n\nconcurrency,output_tokens_per_s\n1,40\n2,78\n"
    assert [level.concurrency for level in readers.of_bytes(text, "x.csv").levels] == [1, 2]


def test_every_file_says_its_source_and_what_it_lacks() -> None:
    files = [path for path in sorted(DATA.iterdir()) if path.suffix != ".md"]
    found = {path.name: readers.read(path) for path in files}
    assert len({each.source for each in found.values()}) == 7
    assert all(each.lacks for each in found.values())


def test_a_curve_needs_requests_in_flight() -> None:
    assert [load for load, _, _ in readers.closed_loop(read("sglang.jsonl"), "x")] == [8.0, 16.0]
    with pytest.raises(HarnessError, match="measured at fixed rates"):
        readers.closed_loop(read("inference_perf.json"), "x")
    with pytest.raises(HarnessError, match="names no requests in flight"):
        readers.closed_loop(read("aiperf.csv"), "x")


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"{}", "a file of no known tool"),
        (b'{"output_throughput": "x", "total_token_throughput": 1}', "no output tokens per second"),
        (b'{"output_throughput": 1e400, "total_token_throughput": 1}', "no output tokens per second"),
        (b'{"output_throughput": -5, "total_token_throughput": 1}', "no output tokens per second"),
        (b'{"benchmarks": [{"metrics": {"time_to_first_token_ms": 1}}, 7]}', "no output tokens per second"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b"\xff", "not text in UTF-8"),
        (b"Metric,avg\nTime to First Token (ms)\n", "no output tokens per second"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(data: bytes, fact: str) -> None:
    with pytest.raises(HarnessError, match=fact) as caught:
        readers.of_bytes(data, "x.json")
    assert "\n" not in str(caught.value)


def changed(name: str, *path: str, to: Any) -> ForeignResult:
    """A stored file with one field changed."""
    stored = json.loads((DATA / name).read_text())
    tree = stored
    for key in path[:-1]:
        tree = tree.setdefault(key, {}) if isinstance(tree, dict) else tree[int(key)]
    tree[path[-1]] = to
    return readers.of_bytes(json.dumps(stored).encode(), "x")


@pytest.mark.parametrize(
    ("name", "path", "allowed", "load"),
    [  # 1 % of all requests is 2.02 of vLLM's, 5.05 of llm-d's, 24.35 of inference-perf's
        ("vllm.json", ("failed",), 2, "16 in flight"),
        ("inference_perf.json", ("failures", "count"), 24, "40.19 requests per second"),
        ("llm_d.json", ("results", "request_performance", "aggregate", "requests", "failures"), 5, "32 in flight"),
        ("llm_d_0.1.json", ("metrics", "requests", "failures"), 0, "8 in flight"),
        ("aiperf.json", ("error_request_count", "avg"), 0, "4 in flight"),
        ("guidellm.json", ("benchmarks", "1", "metrics", "request_totals", "errored"), 0, "8 in flight"),
    ],
)
def test_a_level_at_which_more_than_1_percent_failed_is_no_point(
    name: str, path: tuple[str, ...], allowed: int, load: str
) -> None:
    good, bad = (changed(name, *path, to=n) for n in (allowed, allowed + 1))
    assert (good.levels[-1].valid, bad.levels[-1].valid) == (True, False)
    assert good.lacks == readers.read(DATA / name).lacks
    assert bad.lacks[-1] == f"more than 1% of the requests failed at {load}: not counted"


def test_what_vllm_did_not_complete_has_failed_where_it_counts_no_failures() -> None:
    stored = json.loads((DATA / "vllm.json").read_text()) | {"completed": 150}
    del stored["failed"]
    (level,) = readers.of_bytes(json.dumps(stored).encode(), "x").levels
    assert (level.requests, level.failed, level.valid) == (150, 50, False)


def test_llm_d_s_requests_are_those_that_were_answered() -> None:
    counts = {"total": 500, "failures": 3, "incomplete": 7}
    (level,) = changed("llm_d.json", "results", "request_performance", "aggregate", "requests", to=counts).levels
    assert (level.requests, level.failed) == (490, 3)


def test_many_levels_that_failed_are_named_by_the_first() -> None:
    line = json.loads((DATA / "vllm.json").read_text()) | {"failed": 100}
    lines = "\n".join(json.dumps(line | {"max_concurrency": C}) for C in range(1, 12))
    assert readers.of_bytes(lines.encode(), "x").lacks[-1] == (
        "more than 1% of the requests failed at 1 in flight, 2 in flight, 3 in flight, 4 in flight, 5 in flight, "
        "6 in flight, 7 in flight, 8 in flight and 3 more: not counted"
    )


def test_the_limits_and_the_examples_are_those_of_knee_s_own_levels() -> None:
    assert readers.FAILED == ERROR_RATE
    assert doctest.testmod(readers).failed == 0


def test_no_more_of_vllm_s_requests_were_in_flight_than_it_has_prompts() -> None:
    """500 prompts at 512, 1024 and 2048 are one load, and no plateau."""
    line = json.loads((DATA / "vllm.json").read_text()) | {"num_prompts": 500, "completed": 500}
    lines = "\n".join(json.dumps(line | {"max_concurrency": C}) for C in (256, 500, 512, 2048))
    found = readers.of_bytes(lines.encode(), "x")
    assert [level.in_flight_ok for level in found.levels] == [True, True, False, False]
    assert [level.in_flight for level in found.levels] == [None, None, 500.0, 500.0]
    assert found.lacks[-1] == "fewer requests were in flight than asked for at 512 in flight, 2048 in flight"


def test_a_rate_that_vllm_ramps_up_is_an_open_loop() -> None:
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 50}
    stored = json.loads((DATA / "vllm.json").read_text()) | ramp
    found = readers.of_bytes(json.dumps(stored).encode(), "x")
    assert found.levels[0].concurrency is None
    with pytest.raises(HarnessError, match="names no requests in flight"):
        readers.closed_loop(found, "x")


@pytest.mark.parametrize(("in_flight", "ok"), [(512.0, True), (410.0, True), (409.0, False), (150.0, False)])
def test_a_load_that_sglang_did_not_keep_in_flight_is_not_that_load(in_flight: float, ok: bool) -> None:
    first = json.loads((DATA / "sglang.jsonl").read_text().partition("\n")[0])
    stored = first | {"max_concurrency": 512, "concurrency": in_flight}
    (level,) = readers.of_bytes(json.dumps(stored).encode(), "x").levels
    assert (level.in_flight, level.in_flight_ok) == (in_flight, ok)


@pytest.mark.parametrize(
    ("name", "path", "other", "fact"),
    [
        (
            "vllm.json",
            ("model_id",),
            "Qwen/Qwen3-8B",
            "levels of meta-llama/Llama-3.1-8B-Instruct and of Qwen/Qwen3-8B",
        ),
        ("sglang.jsonl", ("server_info",), {"model_path": "other"}, "levels of one and of other"),
        ("llm_d_0.1.json", ("scenario", "platform", "engine"), [{"name": "sglang"}], "levels of vllm and of sglang"),
        ("llm_d_0.1.json", ("scenario", "host", "accelerator"), [{"model": "A100"}], "levels of H100 and of A100"),
        (
            "llm_d_0.1.json",
            ("scenario", "host", "accelerator"),
            [{"model": "H100", "count": 1}],
            "levels of 2 GPUs and of 1 GPU",
        ),
    ],
)
def test_lines_of_two_models_or_machines_are_no_one_run(
    name: str, path: tuple[str, ...], other: Any, fact: str
) -> None:
    first = json.loads((DATA / name).read_text().partition("\n{")[0])
    if name == "sglang.jsonl":
        first["server_info"] = {"model_path": "one"}
    second = json.loads(json.dumps(first))
    tree = second
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = other
    with pytest.raises(HarnessError, match=fact) as refused:
        readers.of_bytes(f"{json.dumps(first)}\n{json.dumps(second)}".encode(), "x.jsonl")
    assert (refused.value.place, refused.value.way_out) == ("x.jsonl", "give each a file of its own")


def test_of_lines_of_which_one_names_no_model_the_others_do() -> None:
    named = json.loads((DATA / "vllm.json").read_text())
    found = readers.of_bytes(f"{json.dumps(named | {'model_id': None})}\n{json.dumps(named)}".encode(), "x")
    assert found.model == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("cell", "value"), [("2,620.71", 2620.71), ("1,234,567", 1234567.0), ("412,75", None), ("1,23,4", None)]
)
def test_commas_are_left_out_of_a_number_where_they_separate_thousands(cell: str, value: float | None) -> None:
    assert number({"a": cell}, "a") == value


# ---- the same levels in other spellings ----------------------------------------------------------------------------

LEVELS = [json.loads((DATA / "vllm.json").read_text()) | {"max_concurrency": n, "request_rate": "inf"} for n in (1, 2)]
LEVELS = [level | {"output_throughput": 1234.5 * level["max_concurrency"]} for level in LEVELS]
LINES = "\n".join(map(json.dumps, LEVELS))


SPELLINGS: dict[str, bytes] = {
    "a mark of the encoding, line ends of Windows": ("\ufeff" + LINES.replace("\n", "\r\n")).encode(),
    "appended twice": f"{LINES}\n{LINES}".encode(),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_levels_are_the_same_however_they_are_spelt(kind: str) -> None:
    found, plain = readers.of_bytes(SPELLINGS[kind], "x"), readers.of_bytes(LINES.encode(), "x")
    assert [level.output_tokens_per_s for level in found.levels] == [1234.5, 2469.0]
    assert found.levels == plain.levels


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        ("ms", 1e-3), ("milliseconds", 1e-3), ("us", 1e-6), ("microseconds", 1e-6), ("ns", 1e-9), ("nanosecond", 1e-9),
        ("sec", 1.0), ("Seconds", 1.0),
    ],
)  # fmt: skip
def test_a_time_has_the_unit_that_the_file_names(unit: str, seconds: float) -> None:
    document = json.loads((DATA / "aiperf.json").read_text())
    document["time_to_first_token"] = {"unit": unit, "avg": 0.25 / seconds}
    (level,) = readers.of_bytes(json.dumps(document).encode(), "x").levels
    assert level.ttft_s.mean == pytest.approx(0.25)


def test_a_level_without_throughput_is_named() -> None:
    nothing = LEVELS[0] | {"max_concurrency": 8, "output_throughput": None}
    found = readers.of_bytes(json.dumps([*LEVELS, nothing]).encode(), "x")
    assert found.lacks[-1] == "no output tokens per second at 8 in flight: not counted"


def test_a_run_of_aiperf_that_was_cancelled_says_so() -> None:
    document = json.loads((DATA / "aiperf.json").read_text())
    for cancelled in (False, True):
        found = readers.of_bytes(json.dumps(document | {"was_cancelled": cancelled}).encode(), "x")
        assert ("its run was cancelled" in found.lacks) is cancelled
