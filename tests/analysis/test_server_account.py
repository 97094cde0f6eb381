"""The server's own account of a window, of engines whose pages are recorded in tests/data/metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis import server_account
from harness.analysis.server_account import server_view
from harness.analysis.table import Table
from harness.data.record import Sample
from harness.data.views import EngineView, ServerView
from harness.observe import server
from tests.builders.records import request

PAGES = Path(__file__).parents[1] / "data" / "metrics"
COUNTED = ("_total", "_sum", "_count", "_bucket", "_success", "_duration_us")  # names of what only grows


def first_page(page: str) -> str:
    """The same page as it was when nothing had been counted."""
    lines = []
    for line in page.splitlines():
        series, _, _ = line.rpartition(" ")
        name = series.partition("{")[0]
        counts = name.endswith(COUNTED) and "pending" not in name and not line.startswith("#")
        lines.append(f"{series} 0" if counts else line)
    return "\n".join(lines)


def window_of(name: str, **more: Any) -> ServerView:
    """Ten seconds, at whose start nothing was counted and at whose end the server shows this page."""
    return window_of_page((PAGES / name).read_text(), **more)


def window_of_page(page: str, **more: Any) -> ServerView:
    pages = server.Pages()
    samples = pages.samples(0.0, first_page(page)) + pages.samples(10.0, page)
    found = server_view(samples, (0.0, 10.0), **more)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("vllm-0.32.0.txt", {
            "running": 8 + 4, "waiting": 2, "kv_usage": 0.65, "prefix_hit_fraction": 1000 / 4000, "preemptions": 3,
            "generation_tokens_per_s": 200, "prompt_tokens_per_s": 400, "prefill_time_fraction": 3 / (3 + 9),
            "acceptance": 900 / 1500, "tokens_per_step": 1 + 900 / 500,
        }),
        ("sglang-2026.txt", {
            "running": 6 + 2, "waiting": 1, "kv_usage": 0.375, "prefix_hit_fraction": 0.4, "preemptions": 2,
            "generation_tokens_per_s": 250, "prompt_tokens_per_s": 500, "prefill_time_fraction": None,
            "acceptance": None, "tokens_per_step": 2.5,
        }),
        ("tgi-3.3.6.txt", {
            "running": 7, "waiting": 3, "kv_usage": None, "prefix_hit_fraction": None, "preemptions": None,
            "generation_tokens_per_s": 128, "prompt_tokens_per_s": 200, "acceptance": None,
            "tokens_per_step": 1 + 480 / 800,
        }),
        ("trtllm-serve-2026.txt", {
            "running": 12, "waiting": 4, "kv_usage": 0.8, "prefix_hit_fraction": 30 / 120, "batch_limit": 16,
            "batch_utilization": 12 / 16, "generation_tokens_per_s": 300, "prompt_tokens_per_s": 400,
            "prefill_time_fraction": 6 / 60, "acceptance": 0.5, "tokens_per_step": 2.0,
        }),
        ("triton-trtllm-2026-07.txt", {
            "running": 24, "waiting": 5 + 1, "kv_usage": 0.4875, "batch_limit": 32, "batch_utilization": 0.75,
            "generation_tokens_per_s": None, "engines": {},  # 24 at both readings
        }),
        ("llama-server-0.5.0.txt", {
            "running": 3, "waiting": 1, "kv_usage": None, "prefix_hit_fraction": 500 / 2000,
            "generation_tokens_per_s": 64, "prompt_tokens_per_s": 150, "prefill_time_fraction": 6 / 24,
            "acceptance": 120 / 300, "tokens_per_step": 1 + 120 / 100,
        }),
    ],
)  # fmt: skip
def test_an_engine_s_page_has_these_figures(name: str, figures: dict[str, Any]) -> None:
    found = window_of(name)
    for figure, value in figures.items():
        wanted = value if value is None or isinstance(value, list) else pytest.approx(value)
        assert getattr(found, figure) == wanted, figure


@pytest.mark.parametrize(
    ("name", "figure", "mean", "p50", "n"),
    [
        # 12 waited: 4 up to .3, 6 up to .5, 2 up to .8. The median has rank 6: .3 + .2 · 2/6.
        ("vllm-0.32.0.txt", "queue_s", 4.2 / 12, 0.3 + 0.2 * 2 / 6, 12),
        ("vllm-0.32.0.txt", "step_tokens", 10.0, 8 + 8 * 5 / 20, 30),
        ("vllm-0.32.0.txt", "prefill_s", 0.25, None, 12),
        ("sglang-2026.txt", "queue_s", 0.1, 0.1, 20),
        ("sglang-2026.txt", "prefill_s", 0.25, None, 20),
        ("tgi-3.3.6.txt", "queue_s", 0.125, 0.1 + 0.1 * 5 / 15, 20),
        ("tgi-3.3.6.txt", "prefill_s", 0.2, None, 9),
        ("tgi-3.3.6.txt", "batch_size", 19 / 9, None, 9),
        ("trtllm-serve-2026.txt", "queue_s", 0.1, 0.15, 30),
        ("triton-trtllm-2026-07.txt", "queue_s", 10 / 100, None, 100),
        ("triton-trtllm-2026-07.txt", "ttft_s", 7.5 / 50, 0.1 + 0.4 * 5 / 30, 50),
    ],
)
def test_a_distribution_comes_from_buckets_or_from_two_counters(
    name: str, figure: str, mean: float, p50: float | None, n: int
) -> None:
    found = getattr(window_of(name), figure)
    assert (found.mean, found.n, found.max) == (pytest.approx(mean), n, None)
    assert found.p50 == (p50 if p50 is None else pytest.approx(p50))


def test_a_batch_of_triton_s_is_the_engine_s_where_the_engine_tells_it() -> None:
    """The engine has 24 in its batch, while Triton hands its models 2 requests at a time."""
    page = (PAGES / "triton-trtllm-2026-07.txt").read_text()
    told = window_of_page(page).batch_size
    without = "\n".join(line for line in page.splitlines() if "nv_trt_llm_" not in line)
    counted = window_of_page(without).batch_size
    assert told is not None
    assert counted is not None
    assert (told.mean, told.max) == (24.0, 24.0)
    assert (counted.mean, counted.p50, counted.n) == (100 / 50, None, 50)


def test_two_engines_at_kv_6_and_7_read_65() -> None:
    found = window_of("vllm-0.32.0.txt", batch_limit=16)
    assert found.engines == {
        "0": EngineView(running=8.0, waiting=2.0, kv_usage=0.6, generation_tokens_per_s=150.0),
        "1": EngineView(running=4.0, waiting=0.0, kv_usage=0.7, generation_tokens_per_s=50.0),
    }
    assert found.kv_usage == pytest.approx(0.65)
    assert (found.batch_limit, found.batch_utilization) == (32, 12 / 32), "16 of each engine"


def test_a_window_has_what_a_histogram_took_inside_it_alone() -> None:
    pages = server.Pages()
    queue = "vllm:request_queue_time_seconds"

    def page(low: int, high: int) -> str:
        ends = {"0.3": low, "0.5": low, "0.8": low + high, "+Inf": low + high}
        lines = [f'{queue}_bucket{{engine="0",le="{end}"}} {count}' for end, count in ends.items()]
        return "\n".join([*lines, f"{queue}_count {low + high}", f"{queue}_sum {0.2 * low + 0.6 * high}"])

    counts = [(90, 10), (95, 10), (95, 30), (95, 90)]
    samples = [each for i, count in enumerate(counts) for each in pages.samples(float(i), page(*count))]
    found = server_view(samples, (1.0, 2.0))
    assert found is not None
    assert found.queue_s is not None
    assert (found.queue_s.n, found.queue_s.mean) == (20, pytest.approx(0.6))
    assert found.queue_s.p50 == pytest.approx(0.65), "the bucket begins at .5, though none of .5 was taken"


def test_a_server_that_began_anew_inside_the_window_has_no_growth() -> None:
    pages = server.Pages()
    values = [(0.0, 100), (1.0, 200), (2.0, 50)]
    samples = [s for t, n in values for s in pages.samples(t, f'vllm:generation_tokens_total{{engine="0"}} {n}')]
    found = server_view(samples, (0.0, 2.0))
    assert found is not None
    assert found.generation_tokens_per_s is None


def test_a_series_that_comes_with_its_first_event_began_at_0() -> None:
    name = "sglang:cached_tokens_total"
    prompts = [Sample(t, "server", "sglang:prompt_tokens_total", n) for t, n in ((0.0, 0.0), (10.0, 1000.0))]
    hits = [Sample(t, "server", f'{name}{{cache_source="device"}}', n) for t, n in ((0.0, 50.0), (10.0, 350.0))]
    later = [Sample(10.0, "server", f'{name}{{cache_source="host"}}', 100.0)]
    found = server_view([*prompts, *hits], (0.0, 10.0))
    assert found is not None
    assert found.prefix_hit_fraction == pytest.approx(0.3)
    both = server_view([*prompts, *hits, *later], (0.0, 10.0))
    assert both is not None
    assert both.prefix_hit_fraction == pytest.approx(0.4), "a tier that comes later began at 0"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_its_rank(counts: list[int], q: float) -> None:
    buckets = {float(i + 1): float(count) for i, count in enumerate(counts)}
    found, rank = server_account.quantile(buckets, q), q * sum(counts)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    up_to = sum(count for end, count in buckets.items() if end <= math.ceil(found - 1e-9))
    before = sum(count for end, count in buckets.items() if end < found - 1e-9 and end <= math.floor(found + 1e-9))
    assert before <= rank + 1e-6
    assert up_to >= rank - 1e-6


def series(metric: str, *points: tuple[float, float], source: str = "server") -> list[Sample]:
    return [Sample(t, source, metric, v) for t, v in points]


def test_the_server_s_counters_are_compared_with_ours_between_the_same_scrapes() -> None:
    samples = series("generation_tokens", (0.0, 0.0), (1.0, 100.0), (9.0, 900.0), (11.0, 1100.0))
    table = Table.of([request(0.0, [i * 0.01 for i in range(1100)])])
    got = server_view(samples, (0.5, 10.0), table, 0.02)
    assert got is not None
    assert got.generation_tokens_per_s == pytest.approx(100.0)
    assert got.generation_tokens_ratio == pytest.approx(1.0)
    short = server_view(samples, (0.5, 10.0), table, 0.1)
    assert short is not None
    assert short.generation_tokens_ratio is None, "80 steps cannot tell 1 %"


def test_llama_server_counts_computed_prompts_and_ended_answers() -> None:
    page = "llamacpp:prompt_tokens_total 700\nllamacpp:tokens_predicted_total 64\nllamacpp:requests_processing 4\n"
    page += "llamacpp:requests_deferred 2\n"
    names = {"computed_prompt_tokens": 700.0, "ended_generation_tokens": 64.0, "running": 4.0, "waiting": 2.0}
    names["prefix_misses"] = 700.0
    assert server.figures(page) == names
    samples = series("computed_prompt_tokens", (0.0, 0.0), (10.0, 300 * 90.0))
    samples += series("ended_generation_tokens", (0.0, 0.0), (10.0, 300 * 64.0))
    answered = [request(0.0, [i / 30], input_tokens=100, cached_tokens=10, output_tokens=64) for i in range(300)]
    got = server_view(samples, (0.0, 10.0), Table.of(answered))
    assert got is not None
    assert got.prompt_tokens_ratio == pytest.approx(1.0)
    assert got.generation_tokens_ratio == pytest.approx(1.0)
    assert (got.prompt_tokens_per_s, got.generation_tokens_per_s) == (2700.0, 1920.0)


def test_a_counter_that_was_reset_or_seen_once_is_left_out() -> None:
    once = server_view(series("generation_tokens", (1.0, 5.0)), (0.0, 2.0))
    reset = server_view(series("generation_tokens", (0.5, 5.0), (1.0, 1.0)), (0.0, 2.0))
    assert once is not None
    assert reset is not None
    assert once.generation_tokens_per_s is reset.generation_tokens_per_s is None


def test_gauges_are_means_over_the_window_and_nothing_is_none() -> None:
    got = server_view(series("running", (0.0, 99.0), (1.0, 2.0), (2.0, 4.0)), (0.5, 2.5))
    assert got is not None
    assert (got.running, got.waiting, got.prefix_hit_fraction) == (3.0, None, None)
    assert server_view([], (0.0, 1.0)) is None


def test_prefix_hits_are_a_share_of_the_queries_in_the_window() -> None:
    samples = series("prefix_queries", (0.0, 100.0), (1.0, 300.0)) + series("prefix_hits", (0.0, 0.0), (1.0, 50.0))
    got = server_view(samples, (0.0, 1.0))
    assert got is not None
    assert got.prefix_hit_fraction == pytest.approx(0.25)
