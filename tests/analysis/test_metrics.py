"""The figures of a level, each held against a count by hand (docs/definitions.md, levels[])."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from harness.analysis import metrics
from harness.analysis.figures import level_summary
from harness.analysis.metrics import mean_itl, peak_rate, stalls, tpot
from harness.analysis.rules.requests import Conditions
from harness.analysis.table import Table, gaps
from harness.data.levels import LevelSummary
from harness.data.record import Level, Record, arrivals_of
from harness.data.views import ClientView, ServerView
from tests.builders.records import WINDOW, request, steady


def level(records: list[Record], start: float, end: float, C: int = 1, **changes: Any) -> LevelSummary:
    return level_summary(Table.of(records), Level(0, C, 0, 0.0, start, end, end + 1.0), **changes)


def codes(s: LevelSummary) -> set[str]:
    return {v.code for v in s.verdicts}


def test_a_steady_loop_has_the_rates_that_its_times_give() -> None:
    # Four slots, one request a second each (0.2 + 8·0.1), nine tokens a request.
    s = level(steady(4, 60.0), 5.0, 45.0, 4)
    assert s.output_tokens_per_s.mean == pytest.approx(36.0)
    assert s.output_tokens_per_s.ci95 is not None
    assert s.requests_per_s.mean == pytest.approx(4.0)
    assert s.input_tokens_per_s.mean == pytest.approx(40.0)
    assert s.decode_tokens_per_s == pytest.approx(32.0)
    assert (s.in_flight, s.little_in_flight) == (pytest.approx(4.0), pytest.approx(4.0))
    assert s.requests == 160
    assert (s.ttft_s.p50, s.itl_s.mean, s.tpot_s.p50) == tuple(pytest.approx(x) for x in (0.2, 0.1, 0.1))
    assert s.e2e_s.p99 is None, "160 requests do not carry it"
    assert s.tokens_per_s_per_user == pytest.approx(10.0)
    assert (s.error_rate, s.cancelled, s.unplaced_tokens, s.discarded_tokens_per_s) == (0.0, 0, 0, 0.0)
    assert codes(s) == {"too_few_samples"}


def test_tokens_count_by_arrival_and_latencies_by_when_the_request_began() -> None:
    before = request(0.0, [0.5, 1.5, 2.5, 3.5])  # began before the window [1, 3): two of its tokens are inside
    inside = request(1.2, [1.4, 2.0])
    across = request(2.8, [2.9, 4.0])
    s = level([before, inside, across], 1.0, 3.0, 2)
    assert s.output_tokens_per_s.mean == pytest.approx(5 / 2)
    assert s.requests == 2
    assert s.ttft_s.mean == pytest.approx((0.2 + 0.1) / 2)
    assert s.in_flight == pytest.approx((2.0 + 0.8 + 0.2) / 2)


def test_failed_requests_are_out_of_throughput_and_in_the_denominators() -> None:
    good = [request(0.1 * i, [0.1 * i + 0.05]) for i in range(8)]
    bad = [
        request(0.15, [0.2, 0.3], error="truncated"),
        request(0.35, [], done=0.4, error="http_5xx", status=500),
    ]
    s = level(good + bad, 0.0, 1.0)
    assert (s.requests, s.errors, s.error_rate) == (10, 2, pytest.approx(0.2))
    assert s.errors_by_type == {"truncated": 1, "http_5xx": 1}
    assert s.output_tokens_per_s.mean == pytest.approx(8.0)
    assert s.discarded_tokens_per_s == pytest.approx(2.0)
    assert "errors_above_1_percent" in codes(s)


def test_one_failure_of_sixty_is_no_proof_that_more_than_one_percent_fail() -> None:
    good = [request(0.01 * i, [0.01 * i + 0.05]) for i in range(59)]
    bad = [request(0.6, [], done=0.61, error="reset"), *(request(0.6, [], done=0.7, error="reset") for _ in range(3))]
    assert "errors_above_1_percent" not in codes(level([*good, bad[0]], 0.0, 1.0))
    assert "errors_above_1_percent" in codes(level([*good, *bad], 0.0, 1.0))


def test_a_slot_whose_request_hung_is_neither_in_flight_nor_without_a_word() -> None:
    """One request of the warm-up never gets a token; three slots work."""
    work = [each for slot in range(3) for each in steady(1, 30.0)]
    hung = request(0.5, [], done=40.0, error="client_deadline")
    found = level([*work, hung], 5.0, 25.0, 4)
    assert found.in_flight == pytest.approx(3.0)
    assert {"hung", "in_flight_low"} <= set(codes(found))
    assert found.errors == 1
    left = Level(0, 4, 0, 0.0, 5.0, 25.0, 26.0, hung=1)  # the level did not wait for it, and the run's end cut it
    cut = msgspec.structs.replace(hung, error="cancelled")
    assert level_summary(Table.of([*work, cut]), left).in_flight == pytest.approx(3.0)


@pytest.mark.parametrize(("others", "place"), [("http://b", ", all at http://a"), ("http://a", "")])
def test_requests_that_hang_at_one_of_several_replicas_are_said_to_be_there(others: str, place: str) -> None:
    work = [msgspec.structs.replace(each, url=others) for slot in range(3) for each in steady(1, 30.0)]
    hung = request(0.5, [], done=40.0, error="client_deadline", url="http://a")
    (said,) = [each for each in level([*work, hung], 5.0, 25.0, 4).verdicts if each.code == "hung"]
    assert said.message.startswith(f"1 request hung{place}: in flight")


def test_answers_that_end_long_after_their_last_token_have_a_note() -> None:
    late = [request(float(i), [i + 0.1, i + 0.5], done=i + 1.0) for i in range(10)]
    found = level(late, 0.0, 10.0)
    assert found.tail_s
    assert found.tail_s.mean == pytest.approx(0.5)
    assert "late_end" in codes(found)
    prompt = [request(float(i), [i + 0.1, i + 0.96], done=i + 1.0) for i in range(10)]
    assert "late_end" not in codes(level(prompt, 0.0, 10.0))


def test_requests_that_we_cut_are_no_errors_and_their_tokens_count() -> None:
    good = [request(0.1 * i, [0.1 * i + 0.05]) for i in range(8)]
    cut = request(0.5, [0.6, 0.7], done=0.9, error="cancelled", output_tokens=None)
    s = level([*good, cut], 0.0, 1.0)
    assert (s.errors, s.error_rate, s.cancelled) == (0, 0.0, 1)
    assert s.output_tokens_per_s.mean == pytest.approx(10.0)
    assert s.ttft_s.n == 8


def test_a_refused_connection_began_when_it_was_due_and_holds_nothing_in_flight() -> None:
    refused = request(0.5, [], done=0.5, error="refused", sent_s=None, status=None)
    s = level([request(0.0, [0.2, 0.9]), refused], 0.0, 1.0)
    assert (s.requests, s.errors) == (2, 1)
    assert s.in_flight == pytest.approx(0.9)


def test_itl_percentiles_are_given_only_where_a_chunk_is_a_token() -> None:
    chunked = [request(float(i), [i + 0.1, i + 0.3, i + 0.5], tokens=[2, 4, 4]) for i in range(70)]
    s = level(chunked, 0.0, 70.0)
    assert s.tokens_per_chunk == pytest.approx(10 / 3)
    assert (s.itl_s.p50, s.icl_s.p50) == (None, pytest.approx(0.2))
    # 8 tokens after the first chunk in 0.4 s.
    assert s.itl_s.mean == pytest.approx(0.05)
    assert s.tpot_s.p50 == pytest.approx(0.05)
    assert "itl_chunked" in codes(s)


def test_gaps_stay_within_a_request() -> None:
    table = Table.of([request(0.0, [1.0, 2.0]), request(0.0, []), request(0.0, [10.0, 10.5, 12.0])])
    assert gaps(table, np.array([True, True, True])).tolist() == pytest.approx([1.0, 0.5, 1.5])
    assert gaps(table, np.array([True, True, False])).tolist() == pytest.approx([1.0])


def test_the_samples_of_a_gap_are_the_engine_s_steps() -> None:
    # 64 streams share each step of 0.1 s: a window of 40 s has 400 independent gaps, not 64 times as many.
    s = level(steady(64, 60.0), 5.0, 45.0, 64)
    assert s.icl_s.n <= 400
    assert s.icl_s.p99 is None


def test_tpot_leaves_out_the_first_chunk_s_tokens_and_is_missing_below_two() -> None:
    got = tpot(
        np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0]), np.array([11.0, 12.0, 1.0]), np.array([1.0, 2.0, 1.0])
    )
    assert got[:2].tolist() == pytest.approx([0.1, 0.1])
    assert np.isnan(got[2])


def test_the_mean_itl_weighs_by_tokens() -> None:
    # 10 tokens after the first in 1 s, and 1 token in 1 s: 2 s over 11 tokens.
    got = mean_itl(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([11.0, 2.0]), np.array([1.0, 1.0]))
    assert got == pytest.approx(2 / 11)


def test_the_peak_is_of_one_whole_second() -> None:
    arrivals = np.array([0.1, 0.9, 1.1, 1.2, 1.3, 2.9, 3.05])
    assert peak_rate(arrivals, np.ones(7), 0.0, 3.1) == pytest.approx(3.0)
    assert peak_rate(arrivals, np.ones(7), 0.0, 0.5) is None


def test_reasoning_moves_the_first_answer_token_only() -> None:
    records = [request(float(i), [i + 0.1, i + 0.5], first_content_s=i + 0.5) for i in range(12)]
    s = level(records, 0.0, 12.0)
    assert (s.ttft_s.p50, s.ttfat_s.p50) == (pytest.approx(0.1), pytest.approx(0.5))


def test_lag_is_send_minus_schedule() -> None:
    records = [request(float(i), [i + 0.5], scheduled_s=i - 0.25) for i in range(1, 13)]
    assert level(records, 0.5, 13.0).lag_s.p50 == pytest.approx(0.25)


def test_goodput_counts_requests_that_met_every_limit_over_all_that_began() -> None:
    fast = [request(float(i), [i + 0.1, i + 0.2]) for i in range(6)]
    slow = [request(i + 0.5, [i + 0.9, i + 0.95]) for i in range(3)]
    dead = [request(i + 0.6, [], done=i + 0.7, error="reset") for i in range(1)]
    s = level(fast + slow + dead, 0.0, 10.0, conditions=Conditions(slo={"ttft": 0.2}))
    assert s.slo_met_fraction == pytest.approx(0.6)
    assert s.goodput_requests_per_s == pytest.approx(0.6)
    assert s.goodput_tokens_per_s == pytest.approx(1.2)
    assert level(fast, 0.0, 10.0).slo_met_fraction is None


def test_goodput_may_ask_for_no_stall() -> None:
    smooth = [request(float(i), [i + 0.1, i + 0.2, i + 0.3]) for i in range(6)]
    stalled = [request(i + 0.5, [i + 0.6, i + 0.65, i + 0.95]) for i in range(2)]
    short = [request(i + 0.7, [i + 0.9]) for i in range(1)]  # one chunk has no gap, and meets its limit
    s = level(smooth + stalled + short, 0.0, 10.0, conditions=Conditions(slo={"icl": 0.15}))
    assert s.slo_met_fraction == pytest.approx(7 / 9)
    assert np.isnan(stalls(Table.of(short))).all()
    assert stalls(Table.of(stalled)) == pytest.approx([0.3, 0.3])


def test_a_window_that_is_not_precise_says_how_far_it_came() -> None:
    window = Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0, ("not_precise",))
    found = level_summary(Table.of(steady(4, 60.0)), window, Conditions(precision=0.02)).verdicts
    (verdict,) = [each for each in found if each.code == "not_precise"]
    assert verdict.level == "doubt"
    assert "±2.0% was requested: it still varies after 40 s" in verdict.message


def test_precision_is_only_doubted_where_a_window_was_to_be_precise() -> None:
    window = Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0, ("not_precise",))
    assert "not_precise" not in codes(level_summary(Table.of(steady(4, 60.0)), window))
    assert "not_precise" not in codes(level(steady(4, 60.0), 5.0, 45.0, 4, conditions=Conditions(precision=0.02)))


def test_a_level_carries_why_it_was_held_and_the_prompts_that_it_asked_for() -> None:
    window = Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0, reason="doubling", input_tokens=10)
    s = level_summary(Table.of(steady(4, 60.0)), window, Conditions(input_tokens=500))
    assert (s.reason, s.input_tokens_asked) == ("doubling", 10)
    assert "input_length_off" not in codes(s), "by its own length, not by the scenario's"


def test_cached_input_comes_from_usage_else_from_the_server() -> None:
    records = [request(float(i), [i + 0.5], cached_tokens=4) for i in range(12)]
    assert level(records, 0.0, 12.0).cached_input_fraction == pytest.approx(0.4)
    some = [request(float(i), [i + 0.5], cached_tokens=8 if i % 2 else None) for i in range(12)]
    assert level(some, 0.0, 12.0).cached_input_fraction is None  # missing is not known, and no share of the rest
    plain = [request(float(i), [i + 0.5]) for i in range(12)]
    got = level(plain, 0.0, 12.0, server=ServerView(prefix_hit_fraction=0.25))
    assert got.cached_input_fraction == 0.25
    assert "prefix_cache_hits" in codes(got)


def test_tokens_without_an_arrival_are_told() -> None:
    s = level([request(float(i), [i + 0.5], output_tokens=3) for i in range(12)], 0.0, 12.0)
    assert s.unplaced_tokens == 24
    assert "unplaced_tokens" in codes(s)


@pytest.mark.parametrize(
    ("client", "busy", "carried"),
    [
        (ClientView(cpu_fraction=0.81), True, 95),
        (ClientView(cpu_fraction=0.79, read_delay_p99_s=0.049, merged_fraction=0.04), False, 95),
        (ClientView(read_delay_p99_s=0.051), True, None),
        (ClientView(merged_fraction=0.06), True, None),
    ],
)
def test_a_busy_client_costs_percentiles_of_gaps_at_most(client: ClientView, busy: bool, carried: int | None) -> None:
    s = level(steady(4, 60.0), 5.0, 45.0, 4, client=client)
    assert s.client.limited is False
    assert ("client_busy" in codes(s)) is busy
    assert not any(v.level == "invalid" for v in s.verdicts)
    assert ("late_reads" in codes(s)) is (carried is None)
    assert (s.itl_s.p95 is None, s.icl_s.p50 is None, s.icl_s.max is None) == (carried is None,) * 3
    assert s.itl_s.mean == pytest.approx(0.1)
    assert s.ttft_s.p95 == pytest.approx(0.2), "by the kernel's stamps"


def test_a_percentile_of_gaps_is_left_out_where_more_were_merged_than_lie_beyond_it() -> None:
    many = [request(float(i), [i + 0.1 * k for k in range(1, 10)]) for i in range(200)]
    few = level(many, 0.0, 200.0, client=ClientView(merged_fraction=0.02))
    assert few.itl_s.p99 is None
    assert few.itl_s.p95 == pytest.approx(0.1)
    (note,) = [v for v in few.verdicts if v.code == "late_reads"]
    assert "percentiles of ITL, ICL left out" in note.message
    assert "2.0% of the events were read together with others" in note.message
    assert level(many, 0.0, 200.0, client=ClientView(merged_fraction=0.009)).itl_s.p99 is not None


def test_where_the_clock_stamps_late_reads_cost_the_latencies_that_they_are_a_large_share_of() -> None:
    late = ClientView(read_delay_p99_s=0.03, timestamp_source="user")
    s = level(steady(4, 60.0), 5.0, 45.0, 4, client=late)
    assert (s.ttft_s.p50, s.tpot_s.p50) == (None, None)
    assert s.e2e_s.p50 == pytest.approx(1.0), "3 % of it"
    assert "percentiles of TTFT, TTFAT, TPOT left out" in next(v.message for v in s.verdicts if v.code == "late_reads")
    assert level(steady(4, 60.0), 5.0, 45.0, 4, client=late, stamps_late_s=0.03).client.limited, "sent 3 % late"


def looped(lag: float, seconds: float = 40.0) -> list[Record]:
    """One slot with requests of a second, each sent so long after the end of the one before."""
    sent, records, before = 0.0, list[Record](), 0.0
    while sent < seconds:
        records.append(request(sent, [sent + 0.1 * i for i in range(1, 11)], scheduled_s=before))
        before = records[-1].done_s or 0.0
        sent = before + lag
    return records


def test_the_harm_of_sending_late_is_the_share_of_the_slots_time_that_stood_empty() -> None:
    s = level(looped(0.05), 5.0, 35.0)
    assert s.client.late_fraction == pytest.approx(0.05 / 1.05, rel=0.1)
    assert s.client.limited
    assert "client_limited" in codes(s)
    fine = level(looped(0.01), 5.0, 35.0)
    assert fine.client.late_fraction == pytest.approx(0.01, rel=0.1)
    assert not fine.client.limited


def test_connecting_and_the_pause_after_a_failure_are_not_sending_late() -> None:
    dialled = [msgspec.structs.replace(r, connect_s=0.03, tls_s=0.01) for r in looped(0.05)]
    assert level(dialled, 5.0, 35.0).client.late_fraction == pytest.approx(0.01, rel=0.15)
    failed = [
        msgspec.structs.replace(r, error="reset", status=None) if i % 2 else r for i, r in enumerate(looped(0.05))
    ]
    assert level(failed, 5.0, 35.0).client.late_fraction == pytest.approx(0.025, rel=0.15)


@pytest.mark.parametrize(("error", "of_ten"), [("reset", 0.9), ("stream_error", 0.8), ("truncated", 0.8)])
def test_a_pause_that_follows_an_error_inside_the_stream_one_request_later_is_not_sending_late(
    error: str, of_ten: float
) -> None:
    failed = [msgspec.structs.replace(r, error=error) if i % 10 == 0 else r for i, r in enumerate(looped(0.05))]
    assert level(failed, 5.0, 35.0).client.late_fraction == pytest.approx(of_ten * 0.05 / 1.05, rel=0.05)


def test_an_endpoint_that_sends_four_events_at_a_time_keeps_its_throughput_and_has_icl_by_lump() -> None:
    def lumps(start: float) -> Record:
        arrivals = [start + 0.1 + 0.1 * (i // 4) for i in range(40)]
        return request(start, arrivals, merged=40, lumped=40)

    s = level([lumps(float(i)) for i in range(70)], 5.0, 65.0)
    assert (s.client.merged_fraction, s.client.lumped_fraction) == (0.0, 1.0)
    assert not any(v.level in ("invalid",) for v in s.verdicts)
    assert s.client.limited is False
    assert (s.itl_s.p50, s.icl_s.p50) == (None, pytest.approx(0.1))
    assert s.itl_s.mean == pytest.approx(0.9 / 36), "the first four came together"
    assert s.tpot_s.p50 == pytest.approx(0.9 / 36)
    assert "sends 4 events at a time" in next(v.message for v in s.verdicts if v.code == "server_lumps")
    ours = level([msgspec.structs.replace(lumps(float(i)), lumped=0) for i in range(70)], 5.0, 65.0)
    assert (ours.client.merged_fraction, ours.client.lumped_fraction) == (1.0, 0.0)
    assert {"client_busy", "late_reads"} <= codes(ours)
    assert "server_lumps" not in codes(ours)


def test_a_window_shorter_than_twenty_request_times_has_no_interval_and_says_so() -> None:
    s = level(steady(4, 60.0), 5.0, 24.0, 4)
    assert s.output_tokens_per_s.ci95 is None
    assert s.output_tokens_per_s.mean == pytest.approx(36.0, rel=0.02)
    assert "window_too_short" in codes(s)
    assert not s.output_tokens_per_s_se_assumed
    assert level(steady(4, 60.0), 5.0, 8.0, 4).output_tokens_per_s_se_assumed


def test_fewer_in_flight_than_asked_voids_a_plateau() -> None:
    assert "in_flight_low" in codes(level(steady(4, 60.0), 5.0, 45.0, 5))
    assert "in_flight_low" not in codes(level(steady(20, 60.0), 5.0, 45.0, 21))


def test_lengths_and_counts_that_are_off_are_doubts() -> None:
    s = level(
        steady(4, 60.0),
        5.0,
        45.0,
        4,
        conditions=Conditions(output_tokens=12),
        server=ServerView(generation_tokens_ratio=1.02),
    )
    assert {"output_length_off", "token_counts_disagree"} <= codes(s)
    fine = level(
        steady(4, 60.0),
        5.0,
        45.0,
        4,
        conditions=Conditions(output_tokens=9),
        server=ServerView(generation_tokens_ratio=1.005),
    )
    assert not {"output_length_off", "token_counts_disagree"} & codes(fine)


def test_per_gpu_is_all_gpus() -> None:
    s = level(steady(4, 60.0), 5.0, 45.0, 4, conditions=Conditions(gpus=2))
    assert s.output_tokens_per_s_per_gpu == pytest.approx(18.0)
    assert level(steady(4, 60.0), 5.0, 45.0, 4).output_tokens_per_s_per_gpu is None


def test_nothing_at_all_is_nulls_not_zeros() -> None:
    s = level([], 0.0, 10.0)
    assert (s.ttft_s.mean, s.e2e_s.p50, s.error_rate, s.tokens_per_chunk, s.itl_s.mean) == (None,) * 5
    assert s.output_tokens_per_s.mean == 0.0
    assert s.output_tokens_per_s_se is None


def test_a_slot_that_stood_empty_until_after_the_window_counts_as_far_as_it_lies_in_it() -> None:
    first = request(0.0, [1.0, 2.0, 4.0])
    after = request(4.0, [9.0, 9.5], sent_s=8.0)  # due when the one before had ended, sent 4 s later
    s = level_summary(Table.of([first, after]), Level(0, 1, 0, 0.0, 0.0, 6.0, 10.0))
    assert s.client.late_fraction == pytest.approx(2 / 6)


def in_step(C: int) -> list[Record]:
    """Slots in step: nothing for 1 s, then 60 tokens in 1 s, ten times."""
    seen = [[begin + 1 + (i + 1) / 60 for i in range(60)] for begin in range(0, 20, 2)]
    return [request(round(arrivals[-1] - 2, 6), arrivals) for arrivals in seen for _ in range(C)]


def seconds(record: Record) -> list[float]:
    return [stamp * 1e-9 for stamp in arrivals_of(record)]


@pytest.mark.parametrize("start", [6.1, 6.5, 7.1, 7.4])
def test_a_window_within_a_request_of_slots_in_step_has_the_throughput_of_the_whole_request(start: float) -> None:
    s = level(in_step(4), start, start + 0.5, 4)
    assert s.output_tokens_per_s.mean == pytest.approx(4 * 60 / 2, rel=0.01)
    assert s.requests_per_s.mean == pytest.approx(4 / 2, rel=0.01)
    assert s.decode_tokens_per_s == pytest.approx(4 * 59 / 2, rel=0.01)
    assert s.output_tokens_per_s_se_assumed
    assert s.output_tokens_per_s_se == pytest.approx(0.5 * 120, rel=0.01), "four requests"


def test_a_window_within_a_request_of_slots_out_of_step_has_its_own_count() -> None:
    s = level(steady(40, 20.0), 6.0, 6.5, 40)
    counted = sum(6.0 <= t < 6.5 for record in steady(40, 20.0) for t in seconds(record))
    assert s.output_tokens_per_s.mean == counted / 0.5


def test_throughput_is_missing_where_every_request_of_a_short_window_was_cut() -> None:
    cut = [request(0.0, [1.2, 1.3, 1.4], error="cancelled", done=1.5) for _ in range(4)]
    s = level(cut, 0.5, 1.5, 4)
    assert s.output_tokens_per_s.mean is None
    assert s.output_tokens_per_s_se is None
    assert s.requests_per_s.mean is None


def test_images_and_their_bytes_count_with_the_requests_that_have_them() -> None:
    s = level(steady(4, 60.0), 5.0, 45.0, 4, conditions=Conditions(images=2, image_bytes=9000))
    assert s.requests_per_s.mean == pytest.approx(4.0)
    assert (s.images_per_s, s.image_bytes_per_s) == (pytest.approx(8.0), pytest.approx(36_000.0))
    assert level(steady(4, 60.0), 5.0, 45.0, 4).images_per_s is UNSET


def test_tokens_that_were_not_seen_to_arrive_make_no_pace_faster() -> None:
    """Ten tokens shown, one every 0.1 s, of 100 that the server counts."""
    shown = [2.0 + 0.1 * i for i in range(10)]
    for reasoning in (90, None):  # whether it says what the others were or not
        kept_back = Table.of([request(0.0, shown, output_tokens=100, reasoning_tokens=reasoning)])
        assert metrics.figures(kept_back, WINDOW, stalled=False)["tpot"].tolist() == [pytest.approx(0.1)]
    one = Table.of([request(0.0, [1.0], output_tokens=100)])
    assert np.isnan(metrics.figures(one, WINDOW, stalled=False)["tpot"]).all()


def test_a_request_without_a_first_token_misses_every_limit_on_one() -> None:
    figures = {"ttft": np.array([0.1, np.nan]), "ttfat": np.array([np.nan, np.nan]), "tpot": np.array([0.02, np.nan])}
    assert metrics.meets({"ttft": 1.0}, figures, 2).tolist() == [True, False]
    assert metrics.meets({"ttfat": 1.0}, figures, 2).tolist() == [False, False]
    assert metrics.meets({"tpot": 1.0}, figures, 2).tolist() == [True, True], "an answer of one token has no pace"
