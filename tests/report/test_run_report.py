"""The answer in words: every fact, knee and verdict, and the sentence where there is none."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest

from harness.analysis.slo import attained, limits
from harness.data.judgement import Verdict
from harness.data.levels import Attainment
from harness.data.manifest import Manifest
from harness.data.record import Role
from harness.data.summary import (
    FOUND,
    PROVISIONAL,
    Curve,
    DecodePhase,
    Headline,
    Knees,
    Phases,
    PrefillPhase,
    RampStep,
    Summary,
)
from harness.data.views import Estimate, GpuView, Value
from harness.report import answer as answers
from harness.report import facts, level_table, remarks, run_report
from harness.report.document import Fact
from tests.builders.screens import shown_facts
from tests.builders.summaries import (
    MANIFEST,
    SITUATIONS,
    constant,
    full,
    hollow,
    interrupted,
    level,
    provisional,
    simulated,
)


def answer(summary: Summary) -> list[str]:
    """The answer as report.md has it, a line each."""
    return [f"{fact.label}: {fact.text}" for fact in shown_facts(summary)]


CLIENT = "Client: 1 worker, kernel stamps; arrival error p99 40 µs"


def watched(gpus: int = 1, **figures: Any) -> Summary:
    """The whole run with its GPUs watched at C = 24 (1,864 tok/s, the highest) and C = 32."""
    summary = full()
    view = GpuView(gpus=gpus, power_w=652.3, **figures)
    levels = [msgspec.structs.replace(x, gpu=view) if x.concurrency in (24, 32) else x for x in summary.levels]
    return msgspec.structs.replace(summary, levels=levels)


def test_a_whole_run_answers_with_knee_plateau_prediction_and_price() -> None:
    assert answer(full()) == [
        "Knee: 16.2 requests in flight (95 % interval 15.4–17.1)",
        "Plateau: 1,853 output tok/s (95 % interval 1,839–1,868); 95 % of it from 14.1 in flight on "
        "(95 % interval 13.5–14.8); single stream 140; $0.300 per million output tokens",
        "At the knee: TTFT p50 30 ms, p95 36 ms; ITL 8.76 ms; E2E p50 1.74 s (C = 16)",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; knee at 16; "
        "bound by max_num_seqs at 16 in flight",
        "Measured / predicted: 0.94 at the plateau; single stream 0.94; 0.75–1.15 counts as agreement",
        "Cost: $0.300 per million output tokens; at 16.2 in flight; $2.00 per GPU-hour",
        CLIENT,
    ]


def test_a_simulated_run_below_its_plateau_says_so_and_claims_no_agreement() -> None:
    assert answer(simulated()) == [
        "Knee: above 8 requests in flight: throughput still rises there; the prediction puts it near 15.7",
        "Plateau: at least 1,018 output tok/s, served at C = 8; single stream 140",
        "At C = 8: TTFT p50 30 ms, p95 36 ms; ITL 7.95 ms; E2E p50 1.58 s",
        "To settle it: measure 16 and 32 in flight, about 48 s",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; knee at 16; "
        "bound by max_num_seqs at 16 in flight",
        "Measured / predicted: 0.94 at C = 8; single stream 0.94; "
        "results agree with the prediction by construction (simulated)",
        CLIENT,
    ]


def test_an_interrupted_run_answers_with_what_stands() -> None:
    assert answer(interrupted()) == [
        "Knee: not measurable: 2 levels measured, too few for a curve",
        "Plateau: at least 276 output tok/s, served at C = 2; single stream 140",
        "At C = 2: TTFT p50 30 ms; ITL 7.34 ms; E2E p50 1.46 s",
        "Interrupted: the run ended early; 2 levels were finished",
        "Prediction: not made; it needs a GPU (--gpu) and a model config (--model-config)",
        CLIENT,
    ]


def test_a_run_that_measured_nothing_answers_without_numbers_of_its_own() -> None:
    assert answer(hollow()) == [
        "Knee: not measurable: every level is invalid",
        "Plateau: not measurable: no level has output",
        "Prediction: plateau 1,972 output tok/s; band 1,538–2,406; single stream 149; no knee; no cap binds",
    ]


def test_a_provisional_answer_has_its_figures_the_reason_and_what_settles_it() -> None:
    assert answer(provisional())[:5] == [
        "Knee: about 16.1 requests in flight (provisional; 95 % interval 11–28)",
        "Plateau: about 1,841 output tok/s (95 % interval 1,702 or more); single stream 140",
        "At the knee: TTFT p50 30 ms, p95 36 ms; ITL 8.76 ms; E2E p50 1.74 s (C = 16)",
        "Why provisional: 1 level past the knee, 2 are needed",
        "To settle it: repeat 16 and measure 23 and 32 in flight, about 40 s",
    ]


def test_a_curve_that_does_not_rise_is_an_answer_about_the_server() -> None:
    assert answer(constant())[:3] == [
        "Knee: 1.01 requests in flight (95 % interval 0.970–1.04); "
        "throughput does not rise with load: the server handles 1 at a time",
        "Plateau: 150 output tok/s (95 % interval 149–151); single stream 151",
        "At the knee: TTFT p50 30 ms; ITL 7.24 ms; E2E p50 1.44 s (C = 1)",
    ]
    curve = curve_of(constant(), dip=Value(0.12, (0.1, 0.14)))
    falls = msgspec.structs.replace(constant(), curve=curve)
    assert "throughput falls with load: the server is fastest at the lowest level" in answer(falls)[0]
    hinge = Value(8.1, (7.8, 8.3))
    above = msgspec.structs.replace(
        constant(), levels=constant().levels[3:], curve=curve_of(constant(), hinge_concurrency=hinge), knees=Knees()
    )
    assert answer(above)[0] == (
        "Knee: at most 8.10 requests in flight (95 % interval 7.80–8.30); "
        "throughput does not rise with load: 8 in flight, the lowest level, saturate the server"
    )


def curve_of(summary: Summary, **changes: Any) -> Curve:
    assert summary.curve is not None
    return msgspec.structs.replace(summary.curve, **changes)


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_headline_is_none_and_a_doubt_takes_no_answer_away(name: str) -> None:
    summary = SITUATIONS[name]()
    first = answers.answer(summary).sentence
    assert not re.search(r"\bnone\b", "\n".join(answer(summary)))
    if summary.knee_concurrency is not None:
        assert f"{summary.knee_concurrency:.3g}" in first
    gravest = Verdict("errors_above_1_percent", "invalid", "x")
    assert answers.answer(msgspec.structs.replace(summary, verdicts=[gravest])).sentence == first


def seated(**changes: Any) -> Summary:
    """The whole run, of which the records show 16.2 seats."""
    summary = full()
    own, knees = Value(16.2, (15.9, 16.5)), msgspec.structs.replace(summary.knees, hinge=Value(13.1, (11.2, 14.9)))
    return msgspec.structs.replace(
        summary,
        knee=Headline("seats", FOUND, own.value, own.ci95),
        knees=msgspec.structs.replace(knees, seats=own),
        **changes,
    )


def test_known_seats_are_the_knee_and_the_curve_s_own_is_a_detail() -> None:
    lines = answer(seated())
    assert lines[0] == (
        "Knee: 16.2 requests in flight (95 % interval 15.9–16.5): the server serves so many at once, more wait"
    )
    assert "Hinge: 13.1 requests in flight (95 % interval 11.2–14.9)" in lines
    rises = curve_of(simulated())
    assert answer(seated(curve=rises))[0] == lines[0]


def test_seats_that_were_counted_are_said_to_be() -> None:
    found = answers.of_seats(Headline("seats", FOUND, 8.0, (8.0, 8.0)))
    assert found.text == "8 requests in flight (counted): the server serves so many at once, more wait"
    unsure = answers.of_seats(Headline("seats", PROVISIONAL, 20.0, (14.0, 29.0)), label="Seats")
    assert unsure.text.startswith("about 20 requests in flight (provisional; 95 % interval 14–29)")


def test_with_limits_the_knee_is_said_to_be_theirs_and_the_seats_follow_by_their_name() -> None:
    lines = answer(msgspec.structs.replace(seated(), knees=msgspec.structs.replace(seated().knees, slo=Value(32.0))))
    assert lines[0] == "Knee: about 32 requests in flight within the limits (provisional: too few requests to decide)"
    assert [line for line in lines if line.startswith("Seats")] == [
        "Seats: 16.2 requests in flight (95 % interval 15.9–16.5): the server serves so many at once, more wait"
    ]


def test_a_level_that_is_void_is_no_part_of_the_headline() -> None:
    void = Verdict("errors_above_1_percent", "invalid", "x")
    first = msgspec.structs.replace(level(1, output_tokens_per_s=Estimate(9_999.0)), verdicts=[void])
    summary = msgspec.structs.replace(interrupted(), levels=[first])
    assert answer(summary)[:2] == ["Knee: not measurable: no valid level", "Plateau: not measurable: no valid level"]
    lines = answer(msgspec.structs.replace(simulated(), levels=[first, *simulated().levels[1:]]))
    assert lines[1] == "Plateau: at least 1,018 output tok/s, served at C = 8; single stream 141"


def test_limits_make_the_knee_and_the_curve_s_own_stands_as_the_hinge() -> None:
    def knee(summary: Summary) -> list[str]:
        return [line for line in answer(summary) if line.startswith(("Knee", "Limit", "Hinge"))]

    hinge = "Hinge: 16.2 requests in flight (95 % interval 15.4–17.1)"
    assert knee(judged({}, knee=Value(16.0, (16.0, 24.0)))) == [
        "Knee: 16 requests in flight meet the limits, 24 miss them", "Limit: ttft_p99=2s", hinge
    ]  # fmt: skip
    assert knee(judged({}, knee=Value(64.0, (64.0, None)))) == [
        "Knee: at least 64 requests in flight within the limits: no level misses them", "Limit: ttft_p99=2s", hinge
    ]  # fmt: skip
    assert knee(judged({1: "missed"}, knee=None))[0] == (
        "Knee: below 1 request in flight: the lowest level misses the limits"
    )
    everywhere = {level.concurrency or 0: "unresolved" for level in full().levels}
    assert knee(judged(everywhere, knee=None))[0] == (
        "Knee: not measurable: no level has enough requests to decide the limits"
    )


def test_the_lengths_that_were_sent_stand_before_those_requested_where_they_differ() -> None:
    summary = full()
    other = [msgspec.structs.replace(x, input_tokens_mean=1063.0, output_tokens_mean=199.0) for x in summary.levels]
    _, below = facts.subject(msgspec.structs.replace(summary, levels=other), MANIFEST)
    assert "1,063 tokens in (1,000 requested), 200 out · " in below
    assert "1,000 tokens in, 200 out · " in facts.subject(summary, MANIFEST)[1]


def test_an_unbounded_interval_is_said_in_words() -> None:
    open_ended = Value(16.2, (15.4, None))
    summary = msgspec.structs.replace(full(), knees=Knees(hinge=open_ended))
    assert answer(summary)[0] == "Knee: 16.2 requests in flight (95 % interval 15.4 or more)"


def test_a_knee_that_comes_from_the_limits_is_named_so() -> None:
    limit = Value(12.4, (11.9, 12.8))
    summary = msgspec.structs.replace(full(), knee_concurrency=12.4, knees=Knees(hinge=Value(16.2), slo=limit))
    assert answer(summary)[0] == "Knee: 12.4 requests in flight meet the limits, 12.8 miss them"
    assert "Hinge: 16.2 requests in flight (no interval)" in answer(summary)


def test_a_knee_and_the_limit_of_an_slo_stand_apart_in_the_prediction() -> None:
    def detail(most: float) -> str:
        sheet = full().prediction
        assert sheet is not None
        sheet = msgspec.structs.replace(sheet, binding_cap="slo", caps=sheet.caps | {"slo": most})
        found = shown_facts(msgspec.structs.replace(full(), prediction=sheet))
        return next(fact.detail for fact in found if fact.label == "Prediction")

    assert detail(5.0).endswith("knee at 16; the SLO is met up to 5 in flight")
    assert detail(0.0).endswith("knee at 16; the SLO is missed at any load")


def test_verdicts_come_gravest_first_and_alike_ones_together() -> None:
    found = remarks.remarks(full())
    assert [(r.gravity, r.code, r.where) for r in found] == [
        ("invalid", "client_limited", "C = 64"),
        ("doubt", "window_short", "C = 1, 2"),
        ("note", "server_version_unknown", ""),
    ]
    assert found[0].advice == "give it more workers: --workers"


def test_a_level_verdict_that_the_run_repeats_is_shown_once() -> None:
    summary = full()
    again = summary.levels[-1].verdicts[0]
    assert remarks.remarks(msgspec.structs.replace(summary, verdicts=[again])) == remarks.remarks(
        msgspec.structs.replace(summary, verdicts=[])
    )


def test_gpus_are_shown_where_they_were_watched_and_nowhere_else() -> None:
    seen = watched(joules_per_output_token=0.35, sm_clock_hz=1.755e9, sm_clock_min_hz=1.41e9, memory_used_bytes=75.5e9)
    assert answer(seen)[-2] == (
        "GPU: 652 W at C = 24; 0.350 J per output token; SM clock 1,755 MHz, lowest 1,410; 75.5 GB in use"
    )
    assert answer(watched(gpus=8))[-2] == "GPU: 652 W on 8 GPUs at C = 24"
    assert not any(line.startswith("GPU") for line in answer(full()))


def test_a_bare_manifest_is_enough() -> None:
    assert facts.subject(interrupted(), Manifest()) == ("unnamed model", "")
    assert facts.subject(full(), Manifest()) == ("llama-3.1-8b", "1 × h100-sxm · 1,000 tokens in, 200 out")


def test_the_client_s_ceiling_and_how_near_it_came_are_shown() -> None:
    summary = full()
    known = msgspec.structs.replace(
        summary.client, events_per_s_ceiling=120_000.0, ceiling_is_lower_bound=True, workers=2, transport="socket"
    )
    used = [
        msgspec.structs.replace(x, client=msgspec.structs.replace(x.client, ceiling_fraction=0.25))
        for x in summary.levels
    ]
    summary = msgspec.structs.replace(summary, client=known, levels=used)
    assert answer(summary)[-1] == (
        "Client: 2 workers, kernel stamps; ceiling at least 120,000 tok/s; 25 % of it used; arrival error p99 40 µs"
    )


def judged(outcomes: dict[int, str], *, knee: Value | None) -> Summary:
    """The full summary, whose levels have these outcomes of an SLO by concurrency."""
    summary = full()
    levels = [
        msgspec.structs.replace(
            level,
            slo=[Attainment("ttft_p99=2s", 0.99, 10, 10, 1.0, (0.7, 1.0), outcomes.get(level.concurrency or 0, "met"))],
        )
        for level in summary.levels
    ]
    knees = msgspec.structs.replace(summary.knees, slo=knee)
    return msgspec.structs.replace(summary, levels=levels, knees=knees)


def test_a_level_that_is_overloaded_does_not_miss_limits_that_nobody_could_judge_there() -> None:
    failing = Verdict("errors_above_1_percent", "invalid", "3 of 60 requests failed")
    pile = Verdict("unstable", "invalid", "requests in flight rose")

    def knee(outcome: str, verdict: Verdict, value: Value | None, *, rates: bool) -> str:
        summary = judged({}, knee=value)
        lowest = summary.levels[0]
        share = Attainment("ttft_p99=2s", 0.99, 10, 10, 1.0, (0.7, 1.0), outcome)
        over = msgspec.structs.replace(lowest, slo=[share], verdicts=[verdict])
        levels, knees = [over, *summary.levels[1:]], summary.knees
        if rates:
            levels = [msgspec.structs.replace(x, rate=float(x.concurrency or 0), concurrency=None) for x in levels]
            knees = msgspec.structs.replace(knees, slo=None, slo_rate=value)
        return answer(msgspec.structs.replace(summary, levels=levels, knees=knees))[0]

    assert knee("unresolved", failing, None, rates=False) == (
        "Knee: below 1 request in flight: more than 1 % of the requests fail at the lowest level"
    )
    assert knee("missed", failing, None, rates=False).endswith("the lowest level misses the limits")
    assert knee("unresolved", pile, None, rates=True) == (
        "Knee: below 1 request per second: requests pile up at the lowest level"
    )
    met = knee("unresolved", pile, Value(0.5, (0.5, 1.0)), rates=True)
    assert met == "Knee: 0.500 requests per second meet the limits, requests pile up at 1"


def test_what_decides_a_limit_is_longer_than_what_did_not() -> None:
    """16 of 16 are within it, and come in pairs: 299 of 99 % are 598, where a window of 20 s had 16."""
    found = judged({16: "unresolved"}, knee=Value(16.0, (None, 24.0)))
    share = attained(*limits({"ttft_p99": 2.0}), 16, 16, 2.0)
    levels = [msgspec.structs.replace(x, slo=[share]) if x.concurrency == 16 else x for x in found.levels]
    window_s = next(x.window_s for x in levels if x.concurrency == 16)
    (said,) = facts.in_short(msgspec.structs.replace(found, levels=levels), quick=False)
    seconds = math.ceil(598 / 16 * window_s)
    assert said.value == f"more requests may move the knee; longer levels settle it: --level-seconds {seconds}"


def test_of_several_limits_the_answer_names_those_that_are_missed() -> None:
    both = judged({24: "missed"}, knee=Value(16.0, (16.0, 24.0)))
    slow = Attainment("itl=50ms", 1.0, 9, 10, 0.9, (0.6, 0.98), "met")
    levels = [
        msgspec.structs.replace(
            level,
            slo=[*level.slo, msgspec.structs.replace(slow, outcome="missed") if level.concurrency == 24 else slow],
        )
        for level in both.levels
    ]
    assert answer(msgspec.structs.replace(both, levels=levels))[:3] == [
        "Knee: 16 requests in flight meet the limits, 24 miss them",
        "Limits: ttft_p99=2s, itl=50ms",
        "Missed: ttft_p99=2s (100 % within it), itl=50ms (90 % within it) at C = 24",
    ]


def test_the_slo_is_answered_by_the_last_level_that_keeps_it_and_the_first_that_misses_it() -> None:
    met = answer(judged({}, knee=Value(16.0, (16.0, 24.0))))
    assert met[:2] == ["Knee: 16 requests in flight meet the limits, 24 miss them", "Limit: ttft_p99=2s"]
    assert "no level misses them" in answer(judged({}, knee=Value(24.0, (24.0, None))))[0]


def test_an_slo_without_a_knee_says_which_of_the_three_it_is() -> None:
    lowest = full().levels[0].concurrency or 0
    missed = answer(judged({lowest: "missed"}, knee=None))[0]
    assert missed == f"Knee: below {lowest} request in flight: the lowest level misses the limits"
    everywhere = {level.concurrency or 0: "unresolved" for level in full().levels}
    assert "no level has enough requests to decide" in answer(judged(everywhere, knee=None))[0]


def test_a_run_of_one_level_answers_with_its_figures_and_no_knee() -> None:
    alone = msgspec.structs.replace(full(), levels=[level(16)], curve=None, knees=Knees(), knee_concurrency=None)
    assert answer(alone)[:3] == [
        "Throughput: 1,848 output tok/s (95 % interval 1,834–1,863) at C = 16; 9.24 requests/s; "
        "$0.300 per million output tokens",
        "First token: TTFT p50 30 ms, p95 36 ms",
        "Pace: ITL 8.76 ms; E2E p50 1.74 s, p95 2.09 s",
    ]
    limits = msgspec.structs.replace(alone, knees=Knees(slo=Value(16.0, (16.0, None))))
    assert answer(limits)[0] == "Knee: at least 16 requests in flight within the limits: no level misses them"


def test_the_phases_are_quoted_apart_each_with_its_utilisation() -> None:
    prefill = PrefillPhase(
        tokens_per_s=Value(21000.0, (20500.0, 21500.0)), seconds_per_token=Value(45e-6), ttft_base_s=Value(0.01),
        mfu=Value(0.41, (0.39, 0.43)), lengths=[],
    )  # fmt: skip
    decode = DecodePhase(tokens_per_s=Value(5200.0), itl_s=0.0072, mbu=None)
    assert answer(msgspec.structs.replace(full(), phases=Phases(prefill=prefill)))[2] == (
        "Prefill: 21,000 prompt tok/s; 95 % interval 20,500–21,500; 45 µs a prompt token; MFU 0.41 (0.390–0.430)"
    )
    slope = msgspec.structs.replace(prefill, tokens_per_s=Value(None))
    lengths = [msgspec.structs.replace(level(1), input_tokens_asked=tokens) for tokens in (512, 1024)]
    alone = msgspec.structs.replace(full(), levels=lengths, curve=None, knees=Knees(), phases=Phases(prefill=slope))
    assert answer(alone)[:2] == [
        "Prefill: 45 µs a prompt token; MFU 0.41 (0.390–0.430)",
        "Knee: not measurable: no valid level",
    ]
    assert list(level_table.by_load(alone).columns[1].cells) == ["512", "1,024"]
    assert answer(msgspec.structs.replace(full(), phases=Phases(decode=decode)))[2] == (
        "Decode: 5,200 output tok/s; no interval; ITL 7.20 ms with one request"
    )


def test_every_decision_of_the_ramp_is_shown_in_order_with_its_end() -> None:
    ramp = [RampStep(1, "a single stream"), RampStep(17, "tells most"), RampStep(None, "stopped: known")]
    rows = run_report.ramp_facts(msgspec.structs.replace(full(), ramp=ramp))
    assert rows == [Fact("C = 1", "a single stream"), Fact("C = 17", "tells most"), Fact("end", "stopped: known")]
    chosen = [RampStep(C, "given", role=Role.FIXED) for C in (1, 2)] + [RampStep(None, "all given levels are held")]
    assert run_report.ramp_facts(msgspec.structs.replace(full(), ramp=chosen)) == []


def test_every_knee_stands_under_its_own_name() -> None:
    curve = full().curve
    assert curve is not None
    names = [fact.label for fact in facts.knee_facts(curve, full().knees)]
    assert names[0] == "hinge"
    assert len(set(names)) == len(names)


def test_a_fit_says_the_answer_first_in_the_words_of_the_report() -> None:
    for made in (full, provisional, simulated, constant, hollow):
        summary = made()
        assert summary.curve is not None
        loads = [level.concurrency or 0 for level in summary.levels]
        found = facts.fit(summary.curve, summary.knees, loads).sections[0].facts
        head = answers.answer(summary).first
        assert found[0] == Fact("knee", head.value, head.detail)
    provisional_knees = facts.knee_facts(curve_of(provisional()), provisional().knees)
    assert provisional_knees[0] == Fact(
        "hinge", "16.1 in flight", "95 % interval 11–28; provisional; where the rising branch meets the plateau"
    )  # fmt: skip
