"""Every verdict says what was seen, and only where its rule says so."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis import lengths
from harness.analysis.change import Shift
from harness.analysis.conditions import Conditions
from harness.analysis.figures import level_summary
from harness.analysis.lengths import Law
from harness.analysis.table import Table
from harness.analysis.verdicts import client, curve, server, tokens, window, workload
from harness.analysis.verdicts.level import Evidence, of_level
from harness.analysis.window import Little
from harness.data.record import Level
from harness.data.summary import (
    ClassWorkload,
    ClientView,
    EngineView,
    Estimate,
    GpuView,
    LevelSummary,
    ServerView,
    Value,
    Verdict,
    WorkloadSummary,
)
from harness.spec.distribution import parse
from tests.builders import summaries
from tests.builders.records import steady

# Four slots, one request of nine tokens a second each: 36 tok/s, 40 requests' times long.
GOOD = level_summary(Table.of(steady(4, 60.0)), Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0))


def with_(**changes: Any) -> LevelSummary:
    return msgspec.structs.replace(GOOD, **changes)


def expect(verdict: Verdict | None, code: str, level: str, *words: str) -> None:
    assert verdict is not None
    assert (verdict.code, verdict.level, verdict.at) == (code, level, 4)
    assert verdict.advice
    for word in words:
        assert word in verdict.message


def test_a_sound_level_has_nothing_but_its_sample_counts_to_say() -> None:
    assert [v.code for v in GOOD.verdicts] == ["too_few_steps", "too_few_samples"]


def test_a_window_without_an_interval_says_which_of_three_causes_it_has() -> None:
    none = Estimate(36.0, None)
    short = window.window_too_short(with_(output_tokens_per_s=none, window_s=5.0))
    expect(short, "window_too_short", "note", "5 s is 5.0 times as long as a request of 1 s", "20 times")
    correlated = window.window_too_short(with_(output_tokens_per_s=none))
    expect(correlated, "window_too_short", "doubt", "varies too slowly for an interval")
    e2e = msgspec.structs.replace(GOOD.e2e_s, mean=None)
    expect(
        window.window_too_short(with_(output_tokens_per_s=none, e2e_s=e2e)), "window_too_short", "doubt", "succeeded"
    )
    assert window.window_too_short(GOOD) is None


def test_an_assumed_error_names_its_size() -> None:
    s = with_(output_tokens_per_s_se=0.72, output_tokens_per_s_se_assumed=True)
    expect(window.fit_error_assumed(s), "fit_error_assumed", "note", "2.0%", "scatter of the levels")
    assert window.fit_error_assumed(with_(output_tokens_per_s_se=0.72)) is None


@pytest.mark.parametrize(
    ("notes", "what", "advice"),
    [
        (("cut_short",), "a budget ended the window after 40 s", "more time"),
        (("cooldown_cut",), "a budget ended the level before the last request", "more time"),
        (("cut_short", "cooldown_cut"), "a budget ended the level before the last request", "more time"),
        (("cooldown_failing",), "most requests failed, which ended the level before the last request", "errors"),
        (("failing", "cooldown_failing"), "most requests failed, which ended the level", "errors"),
        (("failing", "cooldown_cut"), "most requests failed, which ended the level", "errors"),
        (("cooldown_stalled",), "the server stalled, which ended the level before the last request", "log"),
        (("stalled", "cooldown_cut"), "the server stalled, which ended the level", "log"),
        (("cooldown_timetable",), "the timetable of the shards ended the level before the last", "two request times"),
    ],
)
def test_a_level_that_was_cut_short_says_by_what(notes: tuple[str, ...], what: str, advice: str) -> None:
    verdict = window.cut_short(GOOD, notes)
    expect(verdict, "cut_short", "doubt", what)
    assert verdict is not None
    assert advice in verdict.advice


@pytest.mark.parametrize("notes", [(), ("failing",), ("stalled",), ("not_precise",)])
def test_a_level_whose_last_requests_were_waited_for_is_not_cut_short(notes: tuple[str, ...]) -> None:
    assert window.cut_short(GOOD, notes) is None


def test_errors_are_invalid_above_one_percent() -> None:
    bad = with_(error_rate=0.05, errors=10, requests=200, errors_by_type={"http_429": 10})
    expect(server.errors_above_1_percent(bad), "errors_above_1_percent", "invalid", "10 of 200", "http_429 10")
    assert server.errors_above_1_percent(with_(error_rate=0.01)) is None
    assert server.errors_above_1_percent(with_(error_rate=None)) is None


def test_in_flight_is_low_below_95_percent_of_what_was_asked() -> None:
    expect(client.in_flight_low(with_(in_flight=3.79)), "in_flight_low", "invalid", "3.8 of 4", "95%")
    assert client.in_flight_low(with_(in_flight=3.81)) is None


def test_slots_that_rest_by_request_are_not_counted_on() -> None:
    """A level of test records has one request in flight of 4; think time, batches and tasks make that no fault."""
    level = Level(0, 4, 0, 0.0, 1.0, 2.0, 3.0)
    little = Little(1.0, 1.0, 0.0, mismatch=False, enough=True)
    seen = Evidence(
        little=little, backlog=None, drift=None, late_reads=None, events_at_once=None, gaps=0, median_lag_s=None,
        hung=0, silence_s=None, usage_tokens=0.0,
    )  # fmt: skip
    codes = [
        {v.code for v in of_level(with_(in_flight=1.0), level, Conditions(pauses=pauses), seen)}
        for pauses in (False, True)
    ]
    assert codes[0] - codes[1] == {"in_flight_low"}


def test_little_accuses_only_with_twenty_requests_a_slot() -> None:
    apart = Little(4.0, 3.0, 0.25, mismatch=True, enough=True)
    expect(window.little_mismatch(GOOD, apart), "little_mismatch", "invalid", "4.00", "3.00", "25%")
    few = msgspec.structs.replace(apart, enough=False)
    expect(window.little_mismatch(GOOD, few), "little_mismatch", "note")
    assert window.little_mismatch(GOOD, msgspec.structs.replace(apart, mismatch=False)) is None


def test_throughput_is_void_where_requests_were_sent_late_and_only_there() -> None:
    late = client.client_limited(GOOD, ClientView(late_fraction=0.031))
    expect(late, "client_limited", "invalid", "without a request for 3.1% of the time", "limit 2%")
    assert client.client_limited(GOOD, ClientView(late_fraction=0.02)) is None
    busy = ClientView(cpu_fraction=1.0, merged_fraction=0.5, read_delay_p99_s=1.0, ceiling_fraction=0.99)
    assert client.client_limited(GOOD, busy) is None


def test_a_busy_client_names_every_reason_and_leaves_throughput_alone() -> None:
    view = ClientView(cpu_fraction=0.9, merged_fraction=0.06, read_delay_p99_s=0.06, late_fraction=0.001)
    found = client.client_busy(GOOD, view)
    expect(found, "client_busy", "doubt", "90% of its processor", "6.0% of the events", "60 ms", "throughput stands")
    assert client.client_busy(GOOD, ClientView(cpu_fraction=0.8, merged_fraction=0.05, read_delay_p99_s=0.049)) is None
    assert client.client_busy(GOOD, ClientView(ceiling_fraction=0.79), lower_bound=True) is None
    expect(client.client_busy(GOOD, ClientView(ceiling_fraction=0.51)), "client_busy", "doubt", "51% of its ceiling")


@pytest.mark.parametrize(
    ("figures", "cause", "remedy"),
    [
        ({"throttled_fraction": 0.3, "waited_fraction": 0.3}, "held at its CPU limit for 30%", "CPU limit"),
        ({"steal_fraction": 0.2, "waited_fraction": 0.3}, "gave 20% of the processors' time to others", "own"),
        ({"waited_fraction": 0.3, "idle_processors": 1.0}, "waited for a processor for 30%", "taskset"),
        ({"cpu_fraction": 0.95, "idle_processors": 3.0}, "too few workers", "--workers"),
        ({"cpu_fraction": 0.95, "idle_processors": 0.2}, "all processors of this machine were busy", "larger machine"),
        ({}, "", "what else runs"),
    ],
)
def test_the_remedy_follows_the_cause(figures: dict[str, float], cause: str, remedy: str) -> None:
    for found in (
        client.client_busy(GOOD, ClientView(**({"merged_fraction": 0.2, "late_fraction": 0.0} | figures))),
        client.client_limited(GOOD, ClientView(**({"late_fraction": 0.1} | figures))),
    ):
        assert found is not None
        assert remedy in found.advice
        assert cause in found.message


def test_events_that_the_server_sends_together_are_a_note_on_the_server() -> None:
    expect(server.server_lumps(GOOD, 4.0), "server_lumps", "note", "sends 4 events at a time", "throughput stands")
    assert server.server_lumps(GOOD, None) is None


def test_a_p99_that_is_left_out_says_which_window_gives_it() -> None:
    few = with_(window_s=8.0, icl_s=msgspec.structs.replace(GOOD.icl_s, n=320))
    found = window.too_few_steps(few, 150_000)
    expect(found, "too_few_steps", "note", "ITL p99 left out", "150,000 gaps", "320 engine steps", "662")
    assert found is not None
    assert found.advice == "hold the level for 16.6 s: --level-seconds 17"
    assert window.too_few_steps(few, 600) is None, "then it is the gaps that are few"
    assert window.too_few_steps(with_(icl_s=msgspec.structs.replace(GOOD.icl_s, n=662)), 150_000) is None


def test_chunks_of_several_tokens_are_a_note() -> None:
    expect(tokens.itl_chunked(with_(tokens_per_chunk=1.06)), "itl_chunked", "note", "1.06")
    assert tokens.itl_chunked(with_(tokens_per_chunk=1.05)) is None


@pytest.mark.parametrize(("unplaced", "doubted"), [(10, False), (11, True), (-11, True)])
def test_unplaced_tokens_are_a_doubt_above_one_percent_of_usage(unplaced: int, doubted: bool) -> None:
    assert (tokens.unplaced_tokens(with_(unplaced_tokens=unplaced), 1000.0) is not None) is doubted


@pytest.mark.parametrize(("requested", "off"), [(9, False), (10, False), (10.1, True), (8.1, True), (None, False)])
def test_output_lengths_may_be_ten_percent_off(requested: float | None, off: bool) -> None:
    found = tokens.output_length_off(GOOD, requested)  # 9 tokens a request
    assert (found is not None) is off
    if found is not None:
        assert found.level == "doubt"


def test_input_lengths_that_are_off_are_only_a_note() -> None:
    expect(tokens.input_length_off(GOOD, 8.0), "input_length_off", "note", "10.0", "8.0")
    assert tokens.input_length_off(GOOD, 10.0) is None


def test_prefix_cache_hits_are_a_doubt_from_one_percent_on() -> None:
    hits = with_(cached_input_fraction=0.01)
    expect(tokens.prefix_cache_hits(hits), "prefix_cache_hits", "doubt", "1.0%")
    assert tokens.prefix_cache_hits(with_(cached_input_fraction=0.009)) is None
    template = with_(cached_input_fraction=0.05, input_tokens_mean=100.0)
    assert tokens.prefix_cache_hits(template, 5.0) is None, "the chat template's tokens are the same in all"
    assert tokens.prefix_cache_hits(template, 3.0) is not None
    assert tokens.prefix_cache_hits(with_(cached_input_fraction=None)) is None
    asked = with_(cached_input_fraction=0.85, input_tokens_mean=100.0)
    assert tokens.prefix_cache_hits(asked, expected=0.85) is None, "hits that were asked for"
    assert tokens.prefix_cache_hits(asked, expected=0.80) is not None


def test_token_counters_may_differ_by_one_percent() -> None:
    off = with_(in_flight=4.0, requests=200, server=ServerView(generation_tokens_ratio=1.011, prompt_tokens_ratio=0.96))
    expect(tokens.token_counts_disagree(off), "token_counts_disagree", "doubt", "output 1.011", "input 0.960")
    transit = with_(in_flight=4.0, requests=200, server=ServerView(prompt_tokens_ratio=0.975))
    assert tokens.token_counts_disagree(transit) is None, "four prompts of 200 are counted there and not here yet"
    near = with_(server=ServerView(generation_tokens_ratio=1.009, prompt_tokens_ratio=None))
    assert tokens.token_counts_disagree(near) is None
    assert tokens.token_counts_disagree(with_(server=None)) is None
    assert tokens.token_counts_disagree(msgspec.structs.replace(off, abandoned=3)) is None, (
        "their prompts have no count"
    )


def throttled(share: float, **reasons: float) -> LevelSummary:
    view = GpuView(gpus=1, throttle=reasons, throttled_fraction=share, sm_clock_hz=1.2e9, sm_clock_min_hz=9e8)
    return with_(gpu=view)


def test_a_gpu_slowed_by_heat_or_a_power_brake_is_a_doubt_above_a_tenth_of_the_window() -> None:
    hot = throttled(0.4, sw_power_cap=0.9, hw_slowdown=0.3, hw_thermal=0.4)
    found = server.gpu_throttled(hot)
    expect(found, "gpu_throttled", "doubt", "40% of the window", "hw_slowdown 30%, hw_thermal 40%", "1200 MHz", "900")
    assert found is not None
    assert "sw_power_cap" not in found.message
    assert server.gpu_throttled(throttled(0.1, hw_thermal=0.1)) is None
    assert server.gpu_throttled(with_(gpu=GpuView(gpus=1))) is None
    assert server.gpu_throttled(with_(gpu=None)) is None


def test_engines_of_which_one_has_clearly_more_to_do_are_a_doubt() -> None:
    def two(a: float, b: float, kv: float) -> LevelSummary:
        engines = {"0": EngineView(running=a), "1": EngineView(running=b)}
        view = ServerView(engines=engines, running_imbalance=2 * abs(a - b) / (a + b), kv_usage_imbalance=kv)
        return with_(server=view)

    found = server.engines_imbalanced(two(16.0, 8.0, 0.1))
    expect(found, "engines_imbalanced", "doubt", "2 engines ran 8 to 16 requests", "0.10 apart")
    expect(server.engines_imbalanced(two(8.0, 8.0, 0.3)), "engines_imbalanced", "doubt", "0.30 apart")
    assert server.engines_imbalanced(two(9.0, 8.0, 0.2)) is None
    assert server.engines_imbalanced(two(1.0, 0.0, 0.0)) is None, "one request has to be on one of them"
    assert server.engines_imbalanced(with_(server=ServerView(running=3.0))) is None
    assert server.engines_imbalanced(with_(server=None)) is None


def test_a_gpu_at_its_power_limit_is_only_a_note() -> None:
    capped = throttled(0.0, sw_power_cap=0.8)
    assert server.gpu_throttled(capped) is None
    expect(server.gpu_power_capped(capped), "gpu_power_capped", "note", "80% of the window", "1200 MHz")
    assert server.gpu_power_capped(throttled(0.4, hw_thermal=0.4)) is None
    assert server.gpu_power_capped(throttled(0.0, sw_power_cap=0.1)) is None
    bare = server.gpu_power_capped(with_(gpu=GpuView(gpus=1, throttle={"sw_power_cap": 1.0})))
    assert bare is not None
    assert "MHz" not in bare.message
    assert server.gpu_power_capped(with_(gpu=None)) is None


def test_too_few_samples_says_how_far_the_percentiles_go() -> None:
    expect(window.too_few_samples(GOOD), "too_few_samples", "note", "160 requests", "p95", "662")
    few = with_(ttft_s=msgspec.structs.replace(GOOD.ttft_s, n=10))
    expect(window.too_few_samples(few), "too_few_samples", "note", "no percentile")
    assert window.too_few_samples(with_(ttft_s=msgspec.structs.replace(GOOD.ttft_s, n=662))) is None


def test_what_the_ramp_noted_becomes_a_verdict() -> None:
    expect(window.not_settled(GOOD, ["not_settled"]), "not_settled", "doubt")
    expect(window.transient_unchecked(GOOD, ["transient_unchecked"]), "transient_unchecked", "note")
    assert window.not_settled(GOOD, ["transient_unchecked"]) is None
    assert window.transient_unchecked(GOOD, []) is None


def test_the_gravest_verdict_comes_first() -> None:
    records = steady(4, 60.0)
    notes = ("not_settled", "transient_unchecked")
    level = Level(0, 5, 0, 0.0, 5.0, 45.0, 46.0, notes)
    found = level_summary(Table.of(records), level).verdicts
    assert [v.level for v in found] == ["invalid", "doubt", "note", "note", "note"]


def test_a_change_of_the_server_is_said_with_its_time_and_size() -> None:
    shift = Shift(47.0, 53.4, 1, Value(0.6, (0.55, 0.66)), 24.0, 5, (5, 14))
    found = curve.changed(shift, 9)
    assert (found.code, found.level) == ("drift", "doubt")
    for words in ("47 to 53 s into the run", "0.60 times", "0.55–0.66", "24 in flight", "the 9 levels since then"):
        assert words in found.message
    early = curve.changed(msgspec.structs.replace(shift, steady=(0, 5)), 5)
    assert "the 5 levels before it, as few came after" in early.message
    few = curve.changed(msgspec.structs.replace(shift, times=2, steady=None, served=16.0), 14)
    assert "changed 2 times" in few.message
    assert "another number of requests at once than the 16 before" in few.message
    assert "all levels, since no stretch is long enough" in few.message


def test_a_plateau_that_was_not_reached_gives_its_reasons() -> None:
    found = curve.plateau_not_reached(["one thing", "another"], 64.0)
    assert (found.code, found.level) == ("plateau_not_reached", "note")
    assert "64" in found.message
    assert "one thing; another" in found.message


def test_a_hinge_needs_six_levels_and_says_how_many_there_were() -> None:
    found = curve.knee_not_identifiable(5, 6)
    assert found.level == "note"
    assert "5 distinct valid levels" in found.message


# The workload


def came(asked: str, mean: float, se: float, name: str = "") -> ClassWorkload:
    """A class whose prompts and answers came to the same mean length."""
    made = lengths.lengths(Law(parse(asked)), np.array([mean, mean]))
    made = msgspec.structs.replace(made, mean_se=se)
    return ClassWorkload(class_=name, requests=2, share_asked=1.0, share=1.0, input_tokens=made, output_tokens=made)


@pytest.mark.parametrize(("mean", "se", "off"), [(102.0, 0.0, False), (103.0, 0.0, True), (103.0, 1.01, False)])
def test_lengths_are_off_beyond_2_percent_and_beyond_chance(mean: float, se: float, off: bool) -> None:
    found = workload.lengths_off(WorkloadSummary(classes=[came("100", mean, se)]))
    assert (found is not None) == off


def test_lengths_that_are_off_are_named_with_their_class() -> None:
    found = workload.lengths_off(
        WorkloadSummary(classes=[came("100", 100.0, 0.0, "chat"), came("100", 50.0, 1.0, "long")])
    )
    assert found is not None
    assert (found.code, found.level, found.at) == ("lengths_off", "doubt", None)
    assert "prompts of long 50.0 tokens, 100.0 asked; answers of long 50.0 tokens" in found.message
    assert "chat" not in found.message
    unknown = lengths.lengths(None, np.array([5.0]))
    alone = msgspec.structs.replace(came("5", 5.0, 0.0), input_tokens=unknown)
    assert workload.lengths_off(WorkloadSummary(classes=[alone])) is None


def test_random_text_is_a_doubt_where_the_servers_speed_depends_on_it() -> None:
    plain = msgspec.structs.replace(summaries.MANIFEST, prediction=summaries.prediction((1,), {}))
    assert plain.prediction is not None
    assert workload.synthetic_text(plain, drafts=False) is None
    drafting = workload.synthetic_text(plain, drafts=True)
    assert drafting is not None
    assert (drafting.code, drafting.level) == ("synthetic_text", "doubt")
    assert "drafted tokens" in drafting.message
    routed = [msgspec.structs.replace(each, experts_hit=3.5) for each in plain.prediction.levels]
    experts = msgspec.structs.replace(plain, prediction=msgspec.structs.replace(plain.prediction, levels=routed))
    found = workload.synthetic_text(experts, drafts=False)
    assert found is not None
    assert "experts" in found.message
    simulated = msgspec.structs.replace(experts, simulated=summaries.SIMULATED_MANIFEST.simulated)
    assert workload.synthetic_text(simulated, drafts=True) is None
