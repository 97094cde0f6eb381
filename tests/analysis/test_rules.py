"""Every rule says what was seen, and only where its docstring says so; another package may add rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis import classes
from harness.analysis import rules as registry
from harness.analysis.change import Again, Shift
from harness.analysis.figures import level_summary
from harness.analysis.points import Point, pool
from harness.analysis.rules import Finding, Purpose, Rule, figures, findings, requests, usable
from harness.analysis.rules import levels as of_levels
from harness.analysis.rules import run as of_run
from harness.analysis.rules.levels import Concluded, Fitted
from harness.analysis.rules.requests import Conditions, Measured
from harness.analysis.rules.run import Recorded
from harness.analysis.table import Table
from harness.analysis.window import Little
from harness.base import plugins
from harness.base.errors import HarnessError
from harness.data.judgement import Gravity, Verdict
from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.record import Level
from harness.data.summary import ClassWorkload, WorkloadSummary
from harness.data.views import ClientView, Estimate, GpuView, ServerView, Value
from harness.report.remarks import remarks
from harness.results.readers import level as foreign
from harness.spec.distribution import parse
from tests.builders import summaries
from tests.builders.outside import install
from tests.builders.records import steady as steady_records

# Four slots, one request of nine tokens a second each: 36 tok/s, 40 requests' times long.
GOOD = level_summary(Table.of(steady_records(4, 60.0)), Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0))


def with_(**changes: Any) -> LevelSummary:
    return msgspec.structs.replace(GOOD, **changes)


def measured(s: LevelSummary = GOOD, **changes: Any) -> Measured:
    level = Level(0, 4, 0, 0.0, 5.0, 45.0, 46.0, tuple(changes.pop("notes", ())))
    nothing = Little(None, None, None, mismatch=False, enough=False)
    return Measured(**({"s": s, "level": level, "conditions": Conditions(), "little": nothing} | changes))


def one(rule: Rule[Measured], s: LevelSummary = GOOD, **changes: Any) -> Verdict | None:
    """What a rule says of a level."""
    return next(iter(rule.findings(measured(s, **changes))), None)


def of_client(rule: Rule[Measured], client: ClientView, **changes: Any) -> Verdict | None:
    return one(rule, with_(client=client), **changes)


def expect(verdict: Verdict | None, code: str, level: str, *words: str) -> None:
    assert verdict is not None
    assert (verdict.code, verdict.level, verdict.at) == (code, level, 4)
    assert verdict.advice
    for word in words:
        assert word in verdict.message


def test_a_sound_level_has_nothing_but_its_sample_counts_to_say() -> None:
    assert [v.code for v in GOOD.verdicts] == ["too_few_samples"]


def test_a_window_without_an_interval_says_which_of_three_causes_it_has() -> None:
    none = Estimate(36.0, None)
    short = one(figures.window_too_short, with_(output_tokens_per_s=none, window_s=5.0))
    expect(short, "window_too_short", "note", "5 s is 5.0 times as long as a request of 1 s", "20 times")
    part = one(figures.window_too_short, with_(output_tokens_per_s=none, window_s=0.5))  # of responses of 0.8 s
    expect(part, "window_too_short", "doubt", "0.5 s is 0.5 times as long as a request of 1 s", "20 times")
    correlated = one(figures.window_too_short, with_(output_tokens_per_s=none))
    expect(correlated, "window_too_short", "doubt", "varies too slowly for an interval")
    e2e = msgspec.structs.replace(GOOD.e2e_s, mean=None)
    expect(
        one(figures.window_too_short, with_(output_tokens_per_s=none, e2e_s=e2e)),
        "window_too_short",
        "doubt",
        "succeeded",
    )
    assert one(figures.window_too_short, GOOD) is None


@pytest.mark.parametrize(
    ("notes", "what", "advice"),
    [
        (("cut_short",), "a budget ended the window after 40 s", "more time"),
        (("cut_short", "cooldown_cut"), "the level ended before the last request", "more time"),
        (("stalled", "cooldown_stalled"), "the level ended before the last request", "errors"),
        (("cut_short", "interrupted"), "an interrupt ended the level after 40 s", "--resume"),
    ],
)
def test_a_level_that_was_cut_short_says_by_what(notes: tuple[str, ...], what: str, advice: str) -> None:
    verdict = one(figures.cut_short, notes=notes)
    expect(verdict, "cut_short", "doubt", what)
    assert verdict is not None
    assert advice in verdict.advice


def test_a_window_that_the_requests_asked_for_ended_is_not_cut_short() -> None:
    asked = Conditions(counted=True)
    assert one(figures.cut_short, notes=("cut_short",), conditions=asked) is None
    assert one(figures.cut_short, notes=("cut_short", "cooldown_cut"), conditions=asked) is not None


@pytest.mark.parametrize("notes", [(), ("failing",), ("stalled",), ("not_precise",)])
def test_a_level_whose_last_requests_were_waited_for_is_not_cut_short(notes: tuple[str, ...]) -> None:
    assert one(figures.cut_short, notes=notes) is None


def test_errors_are_invalid_above_one_percent() -> None:
    bad = with_(error_rate=0.05, errors=10, requests=200, errors_by_type={"http_429": 10})
    expect(one(requests.errors_above_1_percent, bad), "errors_above_1_percent", "invalid", "10 of 200", "http_429 10")
    assert one(requests.errors_above_1_percent, with_(error_rate=0.01)) is None
    assert one(requests.errors_above_1_percent, with_(error_rate=None)) is None


@pytest.mark.parametrize(("failed", "of", "voids"), [(1, 8, False), (2, 8, True), (2, 48, False), (3, 48, True)])
def test_failures_void_a_level_if_1_percent_would_hardly_make_so_many(failed: int, of: int, voids: bool) -> None:
    found = one(requests.errors_above_1_percent, with_(error_rate=failed / of, errors=failed, requests=of))
    assert (found is not None) == voids


def test_in_flight_is_low_below_95_percent_of_what_was_asked() -> None:
    expect(one(requests.in_flight_low, with_(in_flight=3.79)), "in_flight_low", "invalid", "3.8 of 4", "95%")
    assert one(requests.in_flight_low, with_(in_flight=3.81)) is None


def test_slots_that_rest_by_request_are_not_counted_on() -> None:
    """A level of test records has one request in flight of 4; think time, batches and tasks make that no fault."""
    little = Little(1.0, 1.0, 0.0, mismatch=False, enough=True)
    codes = [
        {v.code for v in findings(measured(with_(in_flight=1.0), little=little, conditions=Conditions(pauses=pauses)))}
        for pauses in (False, True)
    ]
    assert codes[0] - codes[1] == {"in_flight_low"}


def test_little_accuses_only_with_twenty_requests_a_slot() -> None:
    apart = Little(4.0, 3.0, 0.25, mismatch=True, enough=True)
    expect(one(requests.little_mismatch, little=apart), "little_mismatch", "invalid", "4.00", "3.00", "25%")
    few = msgspec.structs.replace(apart, enough=False)
    expect(one(requests.little_mismatch, little=few), "little_mismatch", "note")
    assert one(requests.little_mismatch, little=msgspec.structs.replace(apart, mismatch=False)) is None


def test_a_quota_of_the_client_is_named_where_as_many_requests_began_as_it_allows() -> None:
    s = with_(client=ClientView(late_fraction=0.35), requests=200, window_s=40.0)
    held = one(requests.held_back, s, conditions=Conditions(max_rps=5.0))
    expect(held, "held_back", "invalid", "--max-rps 5 held requests back", "35.0%")
    assert one(requests.client_limited, s, conditions=Conditions(max_rps=5.0)) is None
    for quota in (None, 8.0):
        assert one(requests.held_back, s, conditions=Conditions(max_rps=quota)) is None
        assert one(requests.client_limited, s, conditions=Conditions(max_rps=quota)) is not None


def test_a_window_in_which_no_request_was_due_says_nothing() -> None:
    empty = with_(concurrency=None, rate=4.0, requests=0, window_s=20.0)
    expect(one(requests.nothing_due, empty), "nothing_due", "invalid", "no request was due in the window of 20 s")
    assert one(requests.nothing_due, msgspec.structs.replace(empty, requests=1)) is None
    assert one(requests.nothing_due, with_(requests=0)) is None, "a closed loop may have one long request"


def test_throughput_is_void_where_requests_were_sent_late_and_only_there() -> None:
    late = of_client(requests.client_limited, ClientView(late_fraction=0.031))
    expect(late, "client_limited", "invalid", "without a request for 3.1% of the time", "limit 2%")
    assert of_client(requests.client_limited, ClientView(late_fraction=0.02)) is None
    busy = ClientView(cpu_fraction=1.0, merged_fraction=0.5, read_delay_p99_s=1.0, ceiling_fraction=0.99)
    assert of_client(requests.client_limited, busy) is None


def test_a_busy_client_names_every_reason_and_leaves_throughput_alone() -> None:
    view = ClientView(cpu_fraction=0.9, merged_fraction=0.06, read_delay_p99_s=0.06, late_fraction=0.001)
    found = of_client(requests.client_busy, view)
    expect(found, "client_busy", "doubt", "90% of its processor", "6.0% of the events", "60 ms", "throughput stands")
    assert (
        of_client(requests.client_busy, ClientView(cpu_fraction=0.8, merged_fraction=0.05, read_delay_p99_s=0.049))
        is None
    )
    assert (
        of_client(
            requests.client_busy, ClientView(ceiling_fraction=0.79), conditions=Conditions(ceiling_is_lower_bound=True)
        )
        is None
    )
    expect(
        of_client(requests.client_busy, ClientView(ceiling_fraction=0.51)), "client_busy", "doubt", "51% of its ceiling"
    )


@pytest.mark.parametrize(
    ("figures", "cause", "remedy"),
    [
        ({"throttled_fraction": 0.3, "waited_fraction": 0.3}, "30% of its processor's time was held at", "CPU limit"),
        ({"steal_fraction": 0.2, "waited_fraction": 0.3}, "20% of its processor's time was given to others", "own"),
        (
            {"waited_fraction": 0.3, "idle_processors": 1.0},
            "30% of its processor's time was taken by another",
            "taskset",
        ),
        ({"cpu_fraction": 0.95, "idle_processors": 3.0}, "too few workers", "--workers"),
        ({"cpu_fraction": 0.95, "idle_processors": 0.2}, "all processors of this machine were busy", "larger machine"),
        ({}, "", "what else runs"),
    ],
)
def test_the_remedy_follows_the_cause(figures: dict[str, float], cause: str, remedy: str) -> None:
    for found in (
        of_client(requests.client_busy, ClientView(**({"merged_fraction": 0.2, "late_fraction": 0.0} | figures))),
        of_client(requests.client_limited, ClientView(**({"late_fraction": 0.1} | figures))),
    ):
        assert found is not None
        assert remedy in found.advice
        assert cause in found.message


def test_events_that_the_server_sends_together_are_a_note_on_the_server() -> None:
    expect(
        one(figures.server_lumps, events_at_once=4.0),
        "server_lumps",
        "note",
        "sends 4 events at a time",
        "throughput stands",
    )
    assert one(figures.server_lumps, events_at_once=None) is None


def test_chunks_of_several_tokens_are_a_note() -> None:
    expect(one(figures.itl_chunked, with_(tokens_per_chunk=1.06)), "itl_chunked", "note", "1.06")
    assert one(figures.itl_chunked, with_(tokens_per_chunk=1.05)) is None


@pytest.mark.parametrize(("unplaced", "doubted"), [(10, False), (11, True), (-11, True)])
def test_unplaced_tokens_are_a_doubt_above_one_percent_of_usage(unplaced: int, doubted: bool) -> None:
    s = with_(unplaced_tokens=unplaced, requests=8, errors=0)
    assert (one(figures.unplaced_tokens, s, usage_tokens=1000.0) is not None) is doubted


@pytest.mark.parametrize(("unplaced", "doubted"), [(38, False), (39, True), (-2, True)])
def test_an_end_of_text_that_is_counted_with_each_answer_has_no_arrival(unplaced: int, doubted: bool) -> None:
    s = with_(unplaced_tokens=unplaced, requests=40, errors=2)
    assert (one(figures.unplaced_tokens, s, usage_tokens=38.0) is not None) is doubted


@pytest.mark.parametrize(
    ("at_once", "a_chunk", "length", "streams", "doubted"),
    [
        (16.0, 1.0, 16.0, True, True),
        (4.0, 4.0, 16.0, True, True),
        (None, 16.0, 16.0, True, True),
        (8.0, 1.0, 16.0, True, False),
        (None, None, 16.0, True, False),
        (None, 2.0, 2.0, True, False),
        (None, 16.0, 16.0, False, False),
    ],
)
def test_answers_that_come_whole_though_they_were_to_stream_are_a_doubt(
    at_once: float | None, a_chunk: float | None, length: float, streams: bool, doubted: bool
) -> None:
    s = with_(tokens_per_chunk=a_chunk, output_tokens_mean=length)
    found = one(figures.whole_answers, s, events_at_once=at_once, conditions=Conditions(streams=streams))
    assert (found is not None) is doubted
    if doubted:
        expect(found, "whole_answers", "doubt", "TTFT is the time of a whole answer")


@pytest.mark.parametrize(("requested", "off"), [(9, False), (10, False), (10.1, True), (8.1, True), (None, False)])
def test_output_lengths_may_be_ten_percent_off(requested: float | None, off: bool) -> None:
    found = one(figures.output_length_off, conditions=Conditions(output_tokens=requested))  # 9 tokens a request
    assert (found is not None) is off
    if found is not None:
        assert found.level == "doubt"


def test_input_lengths_that_are_off_are_only_a_note() -> None:
    expect(
        one(figures.input_length_off, conditions=Conditions(input_tokens=8.0)),
        "input_length_off",
        "note",
        "10.0",
        "8.0",
    )
    assert one(figures.input_length_off, conditions=Conditions(input_tokens=10.0)) is None


def test_prefix_cache_hits_are_a_doubt_from_one_percent_on() -> None:
    def hits(s: LevelSummary, **asked: float) -> Verdict | None:
        return one(figures.prefix_cache_hits, s, conditions=msgspec.structs.replace(Conditions(), **asked))

    expect(hits(with_(cached_input_fraction=0.01)), "prefix_cache_hits", "doubt", "1.0%")
    assert hits(with_(cached_input_fraction=0.009)) is None
    template = with_(cached_input_fraction=0.05, input_tokens_mean=100.0)
    assert hits(template, template_tokens=5.0) is None, "the chat template's tokens are the same in all"
    assert hits(template, template_tokens=3.0) is not None
    assert hits(with_(cached_input_fraction=None)) is None
    asked = with_(cached_input_fraction=0.85, input_tokens_mean=100.0, requests=1000)
    assert hits(asked, expected_hit_rate=0.85) is None, "hits that were asked for"
    expect(hits(asked, expected_hit_rate=0.80), "prefix_cache_hits", "doubt", "85.0%", "80.0%")


def test_few_requests_may_hit_more_than_the_workload_repeats() -> None:
    """Of 17 requests of agents 97.6 % of the tokens were cached, where 95.9 % repeat: up to 9.5 % more by chance."""

    def hits(expected: float, **figures: float) -> Verdict | None:
        return one(figures_of, with_(**figures), conditions=Conditions(expected_hit_rate=expected))

    figures_of = figures.prefix_cache_hits
    assert hits(0.959, cached_input_fraction=0.976, requests=17) is None
    assert hits(0.959, cached_input_fraction=0.985, requests=10_000) is not None
    assert hits(0.0, cached_input_fraction=0.02, requests=17) is not None, "what repeats nothing hits nothing"


def test_token_counters_may_differ_by_one_percent() -> None:
    off = with_(in_flight=4.0, requests=200, server=ServerView(generation_tokens_ratio=1.011, prompt_tokens_ratio=0.96))
    expect(one(figures.token_counts_disagree, off), "token_counts_disagree", "doubt", "output 1.011", "input 0.960")
    transit = with_(in_flight=4.0, requests=200, server=ServerView(prompt_tokens_ratio=0.975))
    assert one(figures.token_counts_disagree, transit) is None, "four prompts of 200 are counted there and not here yet"
    near = with_(server=ServerView(generation_tokens_ratio=1.009, prompt_tokens_ratio=None))
    assert one(figures.token_counts_disagree, near) is None
    assert one(figures.token_counts_disagree, with_(server=None)) is None
    assert one(figures.token_counts_disagree, msgspec.structs.replace(off, abandoned=3)) is None, (
        "their prompts have no count"
    )


def throttled(share: float, **reasons: float) -> LevelSummary:
    view = GpuView(gpus=1, throttle=reasons, throttled_fraction=share, sm_clock_hz=1.2e9, sm_clock_min_hz=9e8)
    return with_(gpu=view)


def test_a_gpu_slowed_by_heat_or_a_power_brake_is_a_doubt_above_a_tenth_of_the_window() -> None:
    hot = throttled(0.4, sw_power_cap=0.9, hw_slowdown=0.3, hw_thermal=0.4)
    found = one(figures.gpu_throttled, hot)
    expect(found, "gpu_throttled", "doubt", "40% of the window", "hw_slowdown 30%, hw_thermal 40%", "1200 MHz", "900")
    assert found is not None
    assert "sw_power_cap" not in found.message
    assert one(figures.gpu_throttled, throttled(0.1, hw_thermal=0.1)) is None
    assert one(figures.gpu_throttled, with_(gpu=GpuView(gpus=1))) is None
    assert one(figures.gpu_throttled, with_(gpu=None)) is None


def test_a_gpu_at_its_power_limit_is_only_a_note() -> None:
    capped = throttled(0.0, sw_power_cap=0.8)
    assert one(figures.gpu_throttled, capped) is None
    expect(one(figures.gpu_power_capped, capped), "gpu_power_capped", "note", "80% of the window", "1200 MHz")
    assert one(figures.gpu_power_capped, throttled(0.4, hw_thermal=0.4)) is None
    assert one(figures.gpu_power_capped, throttled(0.0, sw_power_cap=0.1)) is None
    bare = one(figures.gpu_power_capped, with_(gpu=GpuView(gpus=1, throttle={"sw_power_cap": 1.0})))
    assert bare is not None
    assert "MHz" not in bare.message
    assert one(figures.gpu_power_capped, with_(gpu=None)) is None


def test_too_few_samples_says_how_far_the_percentiles_go() -> None:
    expect(one(figures.too_few_samples, GOOD), "too_few_samples", "note", "160 requests", "p95", "662")
    few = with_(ttft_s=msgspec.structs.replace(GOOD.ttft_s, n=10))
    expect(one(figures.too_few_samples, few), "too_few_samples", "note", "no percentile")
    assert one(figures.too_few_samples, with_(ttft_s=msgspec.structs.replace(GOOD.ttft_s, n=662))) is None


def test_what_the_ramp_noted_becomes_a_verdict() -> None:
    expect(one(figures.not_settled, notes=["not_settled"]), "not_settled", "doubt")
    assert one(figures.not_settled, notes=[]) is None


def test_the_gravest_verdict_comes_first() -> None:
    records = steady_records(4, 60.0)
    notes = ("not_settled",)
    level = Level(0, 5, 0, 0.0, 5.0, 45.0, 46.0, notes)
    found = level_summary(Table.of(records), level).verdicts
    assert [v.level for v in found] == ["invalid", "doubt", "note"]


def changed(shift: Shift) -> Verdict:
    (found,) = of_levels.drift.findings(Concluded(shift=shift))
    return found


def test_a_change_of_the_server_is_said_with_its_time_and_size() -> None:
    shift = Shift(47.0, 53.4, 1, Value(0.6, (0.55, 0.66)), 24.0, 5, (5, 14))
    found = changed(shift)
    assert (found.code, found.level) == ("drift", "doubt")
    for words in ("47 to 53 s into the run", "0.60 times", "0.55–0.66", "24 in flight", "the 9 levels since then"):
        assert words in found.message
    early = changed(msgspec.structs.replace(shift, steady=(0, 5)))
    assert "the 5 levels before it, as few came after" in early.message
    few = changed(msgspec.structs.replace(shift, times=2, steady=None, served=16.0))
    assert "changed 2 times" in few.message
    assert "another number of requests at once than the 16 before" in few.message
    assert "all levels, since no stretch is long enough" in few.message


def test_a_server_that_changes_all_along_is_said_with_what_came_of_the_same_loads() -> None:
    again = Again(Value(0.92, (0.9, 0.94)), 180.0)
    (found,) = of_levels.drift.findings(Concluded(again=again))
    assert (found.code, found.level) == ("drift", "doubt")
    for words in ("all along", "180 s later the same loads", "0.92 times", "0.90–0.94", "those of all levels"):
        assert words in found.message
    shift = Shift(47.0, 53.4, 1, Value(0.6, (0.55, 0.66)), 24.0, 5, (5, 14))
    (moment,) = of_levels.drift.findings(Concluded(shift=shift, again=again))
    assert "all along" not in moment.message, "one that has a moment is said by that"


def filled(*shares: float | None) -> list[Verdict]:
    levels = [with_(concurrency=2**i, cached_input_fraction=share) for i, share in enumerate(shares)]
    return of_levels.cache_filled.findings(Concluded(levels=levels))


def test_a_prefix_cache_that_fills_up_from_level_to_level_is_named() -> None:
    (found,) = filled(0.05, 0.3, 0.6, 0.8)
    assert found.level == "doubt"
    assert "served 5% of the prompt tokens at the first level and 80% at the last" in found.message
    assert not filled(0.5, 0.52, 0.49, 0.51), "as many all the time"
    assert not filled(0.8, 0.5, 0.2), "it is too small for the load"
    assert not filled(0.1, 0.5), "two levels are no course"
    assert not filled(None, None, None)


def fitted(levels: int, *reasons: str) -> Fitted:
    doubled = [Point(2**i, 2.0**i, 10.0 * 2**i) for i in range(levels)]
    return Fitted(levels=pool(doubled), upright=levels, reasons=reasons)


def test_a_plateau_that_was_not_reached_gives_its_reasons() -> None:
    (found,) = findings(fitted(7, "one thing", "another"))
    assert (found.code, found.level) == ("plateau_not_reached", "note")
    assert "64" in found.message
    assert "one thing; another" in found.message
    assert "--" not in found.advice, "they may be of a file, which no option made"


# The workload


def lengths_off(*classes: ClassWorkload) -> Verdict | None:
    made = Recorded(manifest=summaries.MANIFEST, workload=WorkloadSummary(classes=list(classes)))
    return next(iter(of_run.lengths_off.findings(made)), None)


def synthetic_text(manifest: Manifest, *, drafts: bool) -> Verdict | None:
    return next(iter(of_run.synthetic_text.findings(Recorded(manifest=manifest, drafts=drafts))), None)


def came(asked: str, mean: float, se: float, name: str = "") -> ClassWorkload:
    """A class whose prompts and answers came to the same mean length."""
    made = classes.lengths(classes.asked(parse(asked), 0, 0.0), np.array([mean, mean]))
    made = msgspec.structs.replace(made, mean_se=se)
    return ClassWorkload(class_=name, requests=2, share_asked=1.0, share=1.0, input_tokens=made, output_tokens=made)


@pytest.mark.parametrize(("mean", "se", "off"), [(102.0, 0.0, False), (103.0, 0.0, True), (103.0, 1.01, False)])
def test_lengths_are_off_beyond_2_percent_and_beyond_chance(mean: float, se: float, off: bool) -> None:
    found = lengths_off(came("100", mean, se))
    assert (found is not None) == off


def test_lengths_that_are_off_are_named_with_their_class() -> None:
    found = lengths_off(came("100", 100.0, 0.0, "chat"), came("100", 50.0, 1.0, "long"))
    assert found is not None
    assert (found.code, found.level, found.at) == ("lengths_off", "doubt", None)
    assert "prompts of long 50.0 tokens, 100.0 asked; answers of long 50.0 tokens" in found.message
    assert "chat" not in found.message
    unknown = classes.lengths(None, np.array([5.0]))
    alone = msgspec.structs.replace(came("5", 5.0, 0.0), input_tokens=unknown)
    assert lengths_off(alone) is None


def test_random_text_is_a_doubt_where_the_servers_speed_depends_on_it() -> None:
    plain = msgspec.structs.replace(summaries.MANIFEST, prediction=summaries.prediction((1,), {}))
    assert plain.prediction is not None
    assert synthetic_text(plain, drafts=False) is None
    drafting = synthetic_text(plain, drafts=True)
    assert drafting is not None
    assert (drafting.code, drafting.level) == ("synthetic_text", "doubt")
    assert "drafted tokens" in drafting.message
    routed = [msgspec.structs.replace(each, experts_hit=3.5) for each in plain.prediction.levels]
    experts = msgspec.structs.replace(plain, prediction=msgspec.structs.replace(plain.prediction, levels=routed))
    found = synthetic_text(experts, drafts=False)
    assert found is not None
    assert "experts" in found.message
    simulated = msgspec.structs.replace(experts, simulated=summaries.SIMULATED_MANIFEST.simulated)
    assert synthetic_text(simulated, drafts=True) is None


# The registry


def test_every_rule_has_what_docs_and_the_first_screen_need() -> None:
    made = registry.registered()
    assert len(made) > 50
    assert [each.code for each in made if not re.match(r"[A-Z`].*\.$", each.description)] == []
    assert [each.code for each in made if not each.severities or each.brief.count("{}") > 1] == []
    assert len({(each.code, each.of) for each in made}) == len(made), "a kind of context has one rule of a code"


def test_the_rooms_below_know_the_codes_that_they_decide_by() -> None:
    assert requests.in_flight_low.code == foreign.IN_FLIGHT_LOW


def test_a_severity_that_a_rule_does_not_declare_is_a_bug() -> None:
    grave = msgspec.structs.replace(figures.by_count, judge=lambda _: Finding("m", severity=Gravity.INVALID))
    with pytest.raises(AssertionError, match="by_count may not be invalid"):
        grave.findings(measured())


PLUGIN = '''
from harness.analysis.rules import Finding, Purpose, rule
from harness.analysis.rules.requests import Measured
from harness.data.judgement import Gravity

@rule(Measured, Gravity.INVALID, brief="too many{}: send fewer", excused_for=(Purpose.POINT,))
def too_many(level: Measured) -> Finding | None:
    """There are too many requests."""
    return Finding(f"{level.s.requests} requests", "send fewer") if level.s.requests > 100 else None
'''


@pytest.fixture
def _a_package_with_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    added = {plugins.RULES: {"house": "house_rules"}}
    monkeypatch.syspath_prepend(install(tmp_path, "house", {"house_rules.py": PLUGIN}, added))
    yield
    registry._registered.pop("house_rules", None)
    registry._by_code.cache_clear()
    sys.modules.pop("house_rules", None)


@pytest.mark.usefixtures("_a_package_with_a_rule")
def test_a_rule_of_another_package_counts_as_soon_as_it_is_asked_for() -> None:
    assert "too_many" not in [v.code for v in findings(measured())]
    registry.load("house")
    found = findings(measured())[-1]
    expect(found, "too_many", "invalid", "160 requests")
    void = with_(verdicts=[found])
    assert [purpose for purpose in Purpose if usable(void, purpose)] == [Purpose.POINT]
    (line,) = remarks(msgspec.structs.replace(summaries.full(), levels=[void], verdicts=[], curve=None))
    assert line.brief == "too many at C = 4: send fewer"


@pytest.mark.usefixtures("_a_package_with_a_rule")
def test_rules_that_no_package_has_are_a_mistake_that_names_those_there_are() -> None:
    with pytest.raises(HarnessError, match="no rules are called 'hose'; installed: house"):
        registry.load("hose")


def test_a_verdict_of_another_version_is_its_own_line_and_excuses_nothing() -> None:
    void = with_(verdicts=[Verdict("of_tomorrow", "invalid", "something is off", at=4)])
    assert not any(usable(void, purpose) for purpose in Purpose)
    (line,) = remarks(msgspec.structs.replace(summaries.full(), levels=[void], verdicts=[], curve=None))
    assert "something is off" in line.brief
