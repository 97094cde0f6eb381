"""Five operational checks by the figures of levels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.analysis import checks, slo
from harness.data.judgement import Verdict
from harness.data.levels import Attainment, LevelSummary, ReplicaSummary, Service
from harness.data.summary import ClassWorkload, Lengths, LengthSpread, WorkloadSummary
from harness.data.views import Estimate, ServerView, Spread
from harness.report import document as doc
from harness.report import run_tables as shown
from harness.spec.work import Unit
from tests.builders import summaries


def level(concurrency: int, *, p99: float | None = 1.5, server: ServerView | None = None, **more: Any) -> LevelSummary:
    ttft, e2e = Spread(0.3, 0.25, 0.5, 0.8, p99, 2.0, 1000), Spread(1.2, 1.1, 1.5, 1.8, 2.0, 3.0, 1000)
    changes = {"ttft_s": ttft, "e2e_s": e2e, "server": server, "in_flight": float(concurrency), "verdicts": []}
    return msgspec.structs.replace(summaries.level(concurrency), **(changes | more))


def lengths(mean: float, p99: float) -> Lengths:
    return Lengths(law=None, asked=None, realised=LengthSpread(mean, 1, mean, p99, p99), mean_se=None)


def workload(*classes: tuple[int, float, float]) -> WorkloadSummary:
    """Classes of (requests, mean prompt, p99 of the prompt), all with answers of 100 tokens."""
    return WorkloadSummary(
        classes=[
            ClassWorkload(
                class_=str(i), requests=n, share_asked=0.5, share=0.5,
                input_tokens=lengths(mean, p99), output_tokens=lengths(100, 100),
            )
            for i, (n, mean, p99) in enumerate(classes)
        ]
    )  # fmt: skip


BUSY = ServerView(kv_usage=0.7, preemptions=0, prefix_hit_fraction=0.6, prefill_time_fraction=0.2)
ONE_LONG = workload((99, 900, 1900), (1, 15_900, 15_900))


class Lost(msgspec.Struct, frozen=True):
    """As `analysis.checks.Loss` has it."""

    headroom_held: bool | None
    kind: str = "stopped"
    recovery_s: float | None = 2.0
    errors: int = 3
    at: float | None = 8


def outcomes(
    *levels: LevelSummary, knee: float | None = 16, slo: dict[str, float] | None = None, **more: Any
) -> dict[str, str]:
    return {each.name: each.outcome for each in checks.of_run(levels, knee, slo or {}, **more)}


def test_a_run_in_which_all_is_well_passes_all_five() -> None:
    found = checks.of_run(
        [level(1), level(16, server=BUSY)], 16, {}, expected_hits=0.65, workload=ONE_LONG, losses=[Lost(True)]
    )
    assert [(each.name, each.outcome) for each in found] == [
        ("phases", "pass"), ("p99_ttft", "pass"), ("kv_cache", "pass"), ("long_context_tail", "pass"),
        ("node_loss", "pass"),
    ]  # fmt: skip
    phases, ttft, kv, tail, loss = found
    assert (phases.figures, phases.threshold, phases.at) == ({"prefill_fraction": 0.2}, 0.5, 16)
    assert (ttft.figures["ttft_p99_s"], ttft.threshold, "MLPerf" in ttft.source) == (1.5, 2.0, True)
    assert kv.figures == {"kv_usage": 0.7, "preemptions": 0, "hit_fraction": 0.6}
    # 99 of 1,000 tokens and one of 16,000 are 1,150 on average; the long class's p99 is 16,000.
    assert tail.figures["p99_over_mean"] == pytest.approx(16_000 / 1_150)
    assert loss.figures == {"errors": 3.0, "recovery_s": 2.0}


def test_a_loss_that_the_others_cannot_carry_is_a_doubt() -> None:
    assert outcomes(level(16), losses=[Lost(True)])["node_loss"] == "pass"
    assert outcomes(level(16), losses=[Lost(True), Lost(False)])["node_loss"] == "doubt"


def test_the_fullest_replica_is_judged() -> None:
    nothing, rate = summaries.EMPTY, Estimate(1.0)
    of = {
        url: ReplicaSummary(
            requests=9, errors=0, error_rate=0.0, cancelled=0, in_flight=8.0, in_flight_share=0.5,
            input_tokens_per_s=rate, output_tokens_per_s=rate, requests_per_s=rate, ttft_s=nothing, itl_s=nothing,
            e2e_s=nothing, server=msgspec.structs.replace(BUSY, kv_usage=usage),
        )
        for url, usage in (("a", 0.4), ("b", 0.97))
    }  # fmt: skip
    assert outcomes(level(16, replicas=of))["kv_cache"] == "doubt"


def test_kv_use_of_a_server_with_slots_is_what_its_streaming_requests_hold_of_them() -> None:
    """Six stream, each with 900 tokens of prompt and half of 200 of answer: 6,000 of the 8,192 tokens of four slots."""
    service = Service(streaming=Estimate(6.0), most=8, most_fraction=0.5)
    at = level(16, service=service, input_tokens_mean=900.0, output_tokens_mean=200.0)
    kv, tail = checks.of_run([at], 16, {}, workload=ONE_LONG, room=4 * 2048.0)[2:4]
    assert (kv.outcome, kv.figures) == ("pass", {"kv_usage": pytest.approx(6000 / 8192)})
    assert tail.outcome == "pass"
    assert outcomes(at, room=6000.0)["kv_cache"] == "doubt"
    assert (
        outcomes(level(16, server=BUSY, service=service), room=1.0)["kv_cache"] == "pass"
    )  # its own figure goes first


def test_a_p99_is_judged_by_the_share_within_it_where_that_is_decided() -> None:
    """300 requests carry no p99, and all of them within 2 s decide it."""
    few = level(16, p99=None)
    for met, outcome in ((300, "pass"), (200, "doubt"), (298, "not measured")):
        share = Attainment("ttft_p99=2s", 0.99, met, 300, met / 300, (0.9, 1.0), slo.decided(met, 300, 0.99))
        judged = msgspec.structs.replace(few, slo=[share])
        assert outcomes(judged, slo={"ttft_p99": 2.0})["p99_ttft"] == outcome


def test_a_bare_run_measures_what_it_can_and_says_what_would_measure_the_rest() -> None:
    found = checks.of_run([level(16)], 16, {})
    assert [each.outcome for each in found] == ["not measured", "pass", "not measured", "not measured", "not measured"]
    assert all(each.message for each in found if each.outcome == "not measured")
    assert outcomes(level(16, p99=None))["p99_ttft"] == "not measured"
    assert checks.of_run([], None, {}) == []


def test_a_limit_that_less_load_misses_is_missed_by_more_however_few_requests_there_are() -> None:
    def at(load: int, met: int, n: int) -> LevelSummary:
        (limit,) = slo.limits({"ttft_p99": 2.0})
        return msgspec.structs.replace(level(load, p99=None), slo=[slo.attained(limit, met, n, 1.0)])

    def judged(*levels: LevelSummary) -> tuple[str, float | None]:
        found = checks.of_run(levels, None, {"ttft_p99": 2.0})[1]
        return found.outcome, found.at

    assert judged(at(1, 13, 16), at(4, 12, 16), at(8, 8, 9)) == ("doubt", 4)
    assert judged(at(1, 300, 300), at(4, 16, 16), at(8, 9, 9)) == ("not measured", 8)  # more load may miss it
    assert judged(at(4, 150, 150), at(4, 150, 150)) == ("pass", 4)  # both together are enough


@pytest.mark.parametrize("unit", [Unit.INPUT_TOKENS, Unit.DOCUMENTS])
def test_where_nothing_is_decoded_there_are_no_phases_and_no_first_token(unit: Unit) -> None:
    empty = Spread(None, None, None, None, None, None, 0)
    levels = [level(C, server=BUSY, unit=unit, ttft_s=empty) for C in (1, 16)]
    phases, ttft, kv, *_ = checks.of_run(levels, 16, {})
    for each in (phases, ttft):
        assert (each.outcome, each.figures, each.at) == ("not measured", {}, 16)
        assert each.message.startswith("it does not apply: nothing is decoded")
    assert kv.outcome == "pass"


def test_the_phases_are_apart_by_the_server_or_by_one_request_alone() -> None:
    (alone, *_) = checks.of_run([level(1), level(16)], 16, {})
    assert (alone.figures, alone.at) == ({"ttft_over_e2e": 0.3 / 1.2}, 1)
    long = msgspec.structs.replace(BUSY, prefill_time_fraction=0.51)
    assert outcomes(level(16, server=long))["phases"] == "doubt"


@pytest.mark.parametrize(("slo", "outcome"), [({}, "pass"), ({"ttft_p99": 1.4}, "doubt"), ({"ttft": 1.5}, "pass")])
def test_p99_ttft_has_the_run_s_own_limit_first(slo: dict[str, float], outcome: str) -> None:
    assert outcomes(level(16), slo=slo)["p99_ttft"] == outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "pass"),
        ({"kv_usage": 0.95}, "doubt"),
        ({"preemptions": 1}, "doubt"),
        ({"prefix_hit_fraction": 0.5}, "doubt"),
        ({"preemptions": None}, "pass"),
        ({"kv_usage": None}, "not measured"),
    ],
)
def test_the_kv_cache_is_neither_full_nor_short_of_hits(changes: dict[str, Any], outcome: str) -> None:
    server = msgspec.structs.replace(BUSY, **changes)
    assert outcomes(level(16, server=server), expected_hits=0.65)["kv_cache"] == outcome


def test_a_tail_is_measured_only_where_there_is_one() -> None:
    even, full = workload((100, 900, 1700)), msgspec.structs.replace(BUSY, preemptions=2)
    assert outcomes(level(16, server=BUSY), workload=even)["long_context_tail"] == "not measured"
    assert outcomes(level(16, server=full), workload=ONE_LONG)["long_context_tail"] == "doubt"
    assert outcomes(level(16, server=BUSY, errors=1), workload=ONE_LONG)["long_context_tail"] == "doubt"
    assert outcomes(level(16), workload=ONE_LONG)["long_context_tail"] == "not measured"


@pytest.mark.parametrize(
    ("losses", "outcome"),
    [
        ([], "not measured"),
        ([Lost(None)], "not measured"),
        ([Lost(True), Lost(False)], "doubt"),
        ([Lost(True)], "pass"),
    ],
)
def test_the_replicas_that_are_left_carry_the_load(losses: list[Lost], outcome: str) -> None:
    assert outcomes(level(16), losses=losses)["node_loss"] == outcome


def test_the_level_is_the_largest_valid_one_up_to_the_knee() -> None:
    void = Verdict("errors_above_1_percent", "invalid", "", "", 32)
    levels = [level(1), level(16), level(24), level(32, verdicts=[void])]
    assert [checks.of_run(levels, knee, {})[1].at for knee in (16, 20, 64, None)] == [16, 16, 24, 24]


def test_of_a_load_that_was_measured_twice_the_longer_level_is_judged() -> None:
    few, many = level(16, p99=None, window_s=5.0), level(16, window_s=60.0)
    first = level(1, e2e_s=msgspec.structs.replace(few.e2e_s, mean=0.4), window_s=5.0)  # 0.3 s to the first token
    phases, ttft, *_ = checks.of_run([first, few, level(1, window_s=30.0), many], 16, {})
    assert (phases.figures, ttft.outcome) == ({"ttft_over_e2e": 0.3 / 1.2}, "pass")


def test_the_report_has_a_row_for_each_check() -> None:
    found = checks.of_run([level(1), level(16, server=BUSY)], 16, {}, workload=ONE_LONG)
    section = shown.operational(msgspec.structs.replace(summaries.full(), checks=found))
    rows = doc.rows(section.columns)
    assert rows[0][:4] == (
        "prefill and decode apart",
        "pass",
        "prefill fraction 20%",
        "50% (half of a request's time)",
    )
    assert rows[1][:4] == (
        "p99 TTFT",
        "pass",
        "TTFT p99 1.50 s, TTFT p50 250 ms",
        "2s (MLPerf Inference, Llama 2 70B, server)",
    )
    assert (rows[4][1], rows[4][2]) == ("not measured", "–")
    assert shown.operational(summaries.full()) == doc.Section()
