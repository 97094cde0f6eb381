"""What server and client say of themselves, over a window."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.analysis import telemetry
from harness.data.record import Sample
from harness.load.loop import LATE_BINS
from harness.load.messages import Progress
from harness.observe import host, server
from harness.run.telemetry import ReadDelays, samples

PAGE = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="toy"} 3.0
vllm:num_requests_waiting{engine="0",model_name="toy"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="toy"} 0.25
vllm:generation_tokens_total{engine="0",model_name="toy"} 1000.0
vllm:request_success_total{finished_reason="stop"} 2
vllm:request_success_total{finished_reason="length"} 5
vllm:cache_config_info{block_size="16",num_gpu_blocks="2048",note="a \\"b\\", c"} 1.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} 9
"""


def test_a_page_is_read_by_our_names_and_summed_over_labels() -> None:
    assert server.figures(PAGE) == {
        "running": 3.0, "waiting": 1.0, "kv_usage": 0.25, "generation_tokens": 1000.0, "requests_succeeded": 7.0,
    }  # fmt: skip
    assert server.figures("<html>not metrics</html>\n{}") == {}


def test_of_sglang_the_total_counts_and_not_its_parts_and_one_stage_of_a_pipeline() -> None:
    """Priority scheduling publishes a total under an empty priority; each stage of a pipeline sees all requests."""
    page = """
sglang:num_running_reqs{dp_rank="0",pp_rank="0",priority=""} 32
sglang:num_running_reqs{dp_rank="0",pp_rank="0",priority="1"} 12
sglang:num_running_reqs{dp_rank="0",pp_rank="0",priority="2"} 20
sglang:num_running_reqs{dp_rank="0",pp_rank="1",priority=""} 32
sglang:num_running_reqs{dp_rank="1",pp_rank="0",priority=""} 8
sglang:num_queue_reqs{dp_rank="0"} 5
sglang:num_requests_total{priority="1"} 3
sglang:num_requests_total{priority="2"} 4
"""
    assert server.figures(page) == {"running": 40.0, "waiting": 5.0, "requests_succeeded": 7.0}


def test_of_several_engines_counts_are_added_and_shares_averaged() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {3 + i}\nvllm:kv_cache_usage_perc{{engine="{i}"}} {0.6 + 0.1 * i}\n'
        for i in range(2)
    )
    assert server.figures(page) == {"running": 7.0, "kv_usage": pytest.approx(0.65)}


def test_the_cache_configuration_is_read_from_its_labels() -> None:
    assert server.cache_config(PAGE)["num_gpu_blocks"] == "2048"
    assert server.cache_config("") == {}


def report(time_s: float, *, cpu: float = 0.0, late: dict[int, int] | None = None) -> Progress:
    histogram = tuple((late or {}).get(i, 0) for i in range(LATE_BINS)) if late is not None else ()
    return Progress(time_s, 0, 4, 0, 0, 0, 0, None, 0, cpu, 0, 0, histogram)


def read_delay(reports: list[Progress], end_s: float) -> list[Sample]:
    delays = ReadDelays()
    for each in reports:
        delays.add(each)
    return delays.between(0.0, end_s, tick_s=0.001)


def test_the_client_s_cpu_share_is_its_time_over_the_span() -> None:
    got = {s.metric: s.value for s in samples(report(1.0, cpu=0.5), report(3.0, cpu=1.5))}
    assert got["0/cpu_fraction"] == pytest.approx(0.5)


def test_the_client_is_as_short_of_time_as_its_busiest_worker() -> None:
    samples = [
        Sample(1.0, "client", "0/cpu_fraction", 0.9),
        Sample(2.0, "client", "0/cpu_fraction", 0.7),
        Sample(1.0, "client", "1/cpu_fraction", 0.2),
        Sample(1.5, "client", "0/read_delay_p99_s", 0.001),
        Sample(1.5, "client", "1/read_delay_p99_s", 0.003),
        Sample(9.0, "client", "1/cpu_fraction", 1.0),
    ]
    got = telemetry.client_view(samples, (0.0, 3.0))
    assert (got.cpu_fraction, got.read_delay_p99_s) == (pytest.approx(0.8), 0.003)
    old = telemetry.client_view([Sample(1.0, "client", "cpu_fraction", 0.4)], (0.0, 3.0))
    assert old.cpu_fraction == 0.4, "folders of one worker before there were several"


def test_a_worker_without_a_processor_and_a_host_without_time_are_sampled() -> None:
    reports = [msgspec.structs.replace(report(t, late={0: 10}), waited_s=w) for t, w in ((1.0, 0.2), (3.0, 0.8))]
    samples = {s.metric: s.value for s in read_delay(reports, 3.0)}
    assert samples["0/waited_fraction"] == pytest.approx(0.3)
    figures = {"cpu0_fraction": 0.9, "cpu1_fraction": 0.2, "steal_fraction": 0.1, "load1": 3.0}
    host = [Sample(2.0, "host", name, value) for name, value in figures.items()]
    got = telemetry.client_view([*read_delay(reports, 3.0), *host], (1.0, 3.0))
    assert (got.waited_fraction, got.steal_fraction) == (pytest.approx(0.3), 0.1)
    assert (got.idle_processors, got.throttled_fraction) == (pytest.approx(0.9), None)


def test_stamps_of_the_clock_have_the_mean_delay_of_their_reads() -> None:
    half = {0: 50, 100: 50}
    reports = [msgspec.structs.replace(report(t, late=half), reads=n, unstamped=n) for t, n in ((1.0, 0), (2.0, 200))]
    samples = read_delay(reports, 2.0)
    assert telemetry.client_view(samples, (1.0, 2.0)).timestamp_source == "user"
    assert telemetry.stamp_delay(samples, (1.0, 2.0)) == pytest.approx((100.5 * 131.072e-6 - 0.001) / 2)
    stamped = read_delay([msgspec.structs.replace(r, unstamped=0) for r in reports], 2.0)
    assert telemetry.client_view(stamped, (1.0, 2.0)).timestamp_source == "kernel"
    assert telemetry.stamp_delay(stamped, (1.0, 2.0)) == 0.0


@pytest.mark.parametrize(
    ("file", "text", "seconds"),
    [
        ("cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),
        ("cpu/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n", 2.5),
        ("cpu.stat", "usage_usec 5\n", None),
        ("none", "", None),
    ],
)
def test_a_container_knows_how_long_it_was_throttled_by_its_limit(
    file: str, text: str, seconds: float | None, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert host.throttled_s(tmp_path) == seconds


def test_read_delay_is_the_99th_percentile_beyond_the_planned_wait() -> None:
    # 1,000 reads at once (bin 0: up to 131 µs), 20 of them 100 bins late: p99 lies there.
    reports = [report(1.0, late={0: 980}), report(1.2), report(1.4, late={100: 20})]
    (sample,) = read_delay(reports, 1.4)
    assert sample.value == pytest.approx(101 * 131.072e-6 - 0.001)
    (on_time,) = read_delay([report(1.0, late={0: 1000})], 1.0)
    assert on_time.value == 0.0
    assert read_delay([report(1.0)], 1.0) == []
