"""From a folder's records to its summary and exit status."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.analysis.rules import findings
from harness.analysis.rules.observed import Observed
from harness.analysis.summarise import exit_status, summarise
from harness.base import files
from harness.data.judgement import Verdict
from harness.data.levels import Attainment, LevelSummary
from harness.data.record import Level, Record, Role, Sample
from harness.data.summary import Headline, Knees, RampStep, Summary
from harness.data.views import ClientView, Value
from harness.results import frames
from harness.results.folder import MANIFEST
from harness.results.result import Result
from harness.results.spool import Spool, header
from tests.builders import summaries
from tests.builders.records import request, steady
from tests.results.test_store import record

BAD = Verdict("client_limited", "invalid", "it was")
FAILING = Verdict("errors_above_1_percent", "invalid", "they did")


def judged(*found: list[Verdict], run: list[Verdict] | None = None) -> int:
    levels: list[LevelSummary] = [
        msgspec.structs.replace(summaries.level(2**i), verdicts=verdicts) for i, verdicts in enumerate(found)
    ]
    return exit_status(msgspec.structs.replace(summaries.full(), levels=levels, verdicts=run or []))


def test_notes_and_doubts_are_status_0_and_an_invalid_level_is_3() -> None:
    assert judged([], [Verdict("x", "doubt", ""), Verdict("y", "note", "")]) == 0
    assert judged([BAD], []) == 3
    assert judged([], [], run=[BAD]) == 3


def test_the_level_whose_errors_ended_the_ramp_voids_nothing() -> None:
    assert judged([], [FAILING]) == 0
    assert judged([FAILING], []) == 3
    assert judged([FAILING]) == 3, "nothing else was measured"


UNSTABLE = Verdict("unstable", "invalid", "it queued up")


def status(*levels: LevelSummary, slo_fail: bool = False, knees: Knees = Knees()) -> int:
    summary = msgspec.structs.replace(summaries.full(), levels=list(levels), verdicts=[], knees=knees)
    return exit_status(summary, slo_fail=slo_fail)


def test_where_a_ramp_chose_its_levels_those_that_told_it_to_turn_back_void_nothing() -> None:
    chosen = summaries.level(8, role=Role.FIRST_PASS)
    failing, back = summaries.level(16, role=Role.FIRST_PASS, verdicts=[FAILING]), summaries.level(12, role=Role.SLO)
    assert status(chosen, failing, back) == 0
    assert status(chosen, summaries.level(16, role=Role.FIXED, verdicts=[FAILING]), back) == 3
    assert status(chosen, msgspec.structs.replace(back, verdicts=[UNSTABLE])) == 0
    assert status(failing) == 3, "there is nothing else"


def test_a_search_without_a_knee_but_for_its_invalid_levels_is_no_answer() -> None:
    one, failing = summaries.level(1), summaries.level(2, role=Role.FIRST_PASS, verdicts=[FAILING])
    none = msgspec.structs.replace(summaries.full(), levels=[one, failing], verdicts=[], knee=Headline("hinge", "none"))
    assert exit_status(none) == 3
    assert exit_status(msgspec.structs.replace(none, levels=[one])) == 0, "one level was all that was asked for"
    assert exit_status(msgspec.structs.replace(none, knee=Headline("slo", "found", 1.0))) == 0
    assert exit_status(msgspec.structs.replace(none, curve=None)) == 0, "rates have no curve"


def test_an_invalid_level_that_the_ramp_chose_is_left_out_and_voids_no_other() -> None:
    limited = summaries.level(8, role=Role.FIRST_PASS, verdicts=[BAD])
    assert status(limited, summaries.level(8, role=Role.REPEAT)) == 0
    assert status(limited, summaries.level(16, role=Role.FIRST_PASS)) == 0
    assert status(limited, msgspec.structs.replace(limited, role=Role.REPEAT)) == 3, "there is nothing else"


def test_a_missed_slo_is_status_99_where_that_is_asked_for_and_3_wins() -> None:
    missed = summaries.level(1, slo=[Attainment("ttft_p99=2s", 0.99, 0, 100, 0.0, (0.0, 0.04), "missed")])
    assert status(missed, slo_fail=True) == 99
    assert status(missed) == 0
    assert status(missed, slo_fail=True, knees=Knees(slo=Value(1.0, (1.0, 2.0)))) == 0
    assert status(missed, slo_fail=True, knees=Knees(slo_rate=Value(2.0, (2.0, None)))) == 0
    assert status(summaries.level(1, verdicts=[BAD]), slo_fail=True) == 3


def test_an_slo_that_the_requests_do_not_decide_is_not_missed() -> None:
    open_ = summaries.level(1, slo=[Attainment("ttft_p99=2s", 0.99, 22, 22, 1.0, (0.85, 1.0), "unresolved")])
    missed = summaries.level(8, slo=[Attainment("ttft_p99=2s", 0.99, 0, 100, 0.0, (0.0, 0.04), "missed")])
    assert status(open_, slo_fail=True, knees=Knees(slo=Value(1.0, (None, None)))) == 3
    assert status(open_, missed, slo_fail=True, knees=Knees(slo=Value(1.0, (None, 8.0)))) == 3


def test_a_level_that_lost_a_replica_decides_no_status() -> None:
    limit = "ttft_p99=2s"
    open_ = summaries.level(4, slo=[Attainment(limit, 0.99, 22, 22, 1.0, (0.85, 1.0), "unresolved")])
    lost = summaries.level(4, role=Role.LOSS, slo=[Attainment(limit, 0.99, 0, 100, 0.0, (0.0, 0.04), "missed")])
    assert status(open_, lost, slo_fail=True) == 3
    failing = summaries.level(8, role=Role.FIXED, verdicts=[FAILING])
    assert status(open_, failing, lost) == 0, "its errors ended the levels, whatever came after them"


def folder(
    tmp_path: Path,
    levels: list[Level],
    samples: list[Sample] | None = None,
    records: list[Record] | None = None,
    **manifest: object,
) -> Summary:
    spool = Spool(tmp_path, header(0, 0.0))
    spool.telemetry(samples or [])
    for level in levels:
        spool.level(level)
    spool.write(frames.batch(records or [record(i, level=levels[0].index) for i in range(40)]))
    spool.close()
    files.write_json(tmp_path / MANIFEST, {"complete": False, "price": 3.6, "gpus": 2, **manifest})
    return summarise(Result.open(tmp_path))


def test_only_finished_levels_are_summarised_and_the_rest_is_said(tmp_path: Path) -> None:
    whole = Level(0, 2, 0, 0.0, 5.0, 25.0, 26.0)
    got = folder(tmp_path, [whole, Level(1, 4, 0, 26.0, 27.0)])
    assert [level.concurrency for level in got.levels] == [2]
    assert got.complete is False
    (verdict,) = [v for v in got.verdicts if v.code == "incomplete"]
    assert "1 of the 2 levels begun are finished" in verdict.message
    # 3 tokens a request, one request a second: 20 s hold 60 tokens, but for the two edges.
    assert got.levels[0].output_tokens_per_s.mean == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(("fails", "settles"), [(16, [8]), (8, [8]), (6, [6])])
def test_where_requests_fail_above_the_last_level_one_between_or_that_one_again_settles_it(
    tmp_path: Path, fails: int, settles: list[int]
) -> None:
    """Throughput rises in proportion up to 4 in flight, and a quota refuses requests at 16."""
    levels, records = [], []
    for index, C in enumerate((1, 2, 4, fails)):
        levels.append(Level(index, C, 0, 40.0 * index, 40.0 * index + 5, 40.0 * index + 35, 40.0 * index + 39))
        starts = [40.0 * index + slot / C + k for slot in range(C) for k in range(38)]
        for i, start in enumerate(starts):
            error = "http_429" if fails == C and i % 4 == 0 else ""
            arrivals = [] if error else [start + 0.2 + 0.1 * k for k in range(9)]
            named = {"request_id": f"{C}-{i}", "level": index, "concurrency": C}
            records.append(request(start, arrivals, done=start + 1.0, error=error, **named))
    curve = folder(tmp_path, levels, records=records).curve
    assert curve is not None
    assert (curve.state, curve.at_least_concurrency) == ("beyond", 4)
    assert curve.settle is not None
    assert curve.settle.levels == settles
    assert curve.expected_concurrency is None


def test_cost_is_the_price_of_all_gpus_over_the_best_rate(tmp_path: Path) -> None:
    got = folder(tmp_path, [Level(0, 2, 0, 0.0, 5.0, 25.0, 26.0)])
    rate = got.levels[0].output_tokens_per_s.mean
    assert rate is not None
    assert got.cost is not None
    # 3.60 USD an hour on each of two GPUs is 0.002 USD a second.
    assert got.cost.usd_per_million_output_tokens == pytest.approx(0.002 / rate * 1e6)


def test_engines_side_by_side_have_gaps_of_their_own(tmp_path: Path) -> None:
    level = Level(0, 8, 0, 0.0, 5.0, 45.0, 46.0)

    def gaps(name: str, **hardware: int) -> int:
        (tmp_path / name).mkdir()
        made = folder(tmp_path / name, [level], records=steady(8, 50.0), scenario={"hardware": hardware})
        return made.levels[0].icl_s.n

    one = gaps("one", gpus=4, tp=4)
    assert gaps("alone", gpus=4) == one
    assert gaps("four", gpus=4, tp=1) == pytest.approx(4 * one, rel=0.01)


def test_limits_on_gaps_count_the_steps_of_all_engines(tmp_path: Path) -> None:
    level = Level(0, 8, 0, 0.0, 5.0, 45.0, 46.0)

    def width(name: str, **hardware: int) -> float:
        (tmp_path / name).mkdir()
        sections = {"hardware": hardware, "slo": {"itl_p99": 0.15}}
        made = folder(tmp_path / name, [level], records=steady(8, 50.0), scenario=sections)
        (limit,) = made.levels[0].slo
        assert limit.ci95 is not None
        return limit.ci95[1] - limit.ci95[0]

    assert width("four", gpus=4, tp=1) < 0.3 * width("one", gpus=4, tp=4)


def test_a_folder_without_a_finished_level_says_that_nothing_was_measured(tmp_path: Path) -> None:
    got = folder(tmp_path, [Level(0, 2, 0, 0.0)])
    assert (got.levels, got.knee_concurrency, got.cost) == ([], None, None)
    assert got.curve is not None
    assert (got.curve.state, got.curve.reasons) == ("none", ["no valid level of concurrency was measured"])


WHOLE = Level(0, 2, 0, 0.0, 5.0, 25.0, 26.0)


def verdicts_of(summary: Summary, code: str) -> list[tuple[str, str]]:
    return [(v.level, v.message) for s in [summary, *summary.levels] for v in s.verdicts if v.code == code]


def test_requests_that_were_sent_and_have_no_record_are_lost_and_counted_for_each_worker(tmp_path: Path) -> None:
    # The folder's 40 ids are r-0 to r-39: all of a worker called "r"; of "q-1" there is none.
    sent = [Sample(1.0, "client", "r/sent", 20.0), Sample(2.0, "client", "r/sent", 43.0)]
    got = folder(tmp_path, [WHOLE], [*sent, Sample(2.0, "client", "q-1/sent", 4.0)])
    assert verdicts_of(got, "requests_lost") == [("doubt", "at least 7 requests that were sent have no record")]
    (tmp_path / "b").mkdir()
    got = folder(tmp_path / "b", [WHOLE], [Sample(2.0, "client", "r/sent", 40.0)])
    assert verdicts_of(got, "requests_lost") == []


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (Sample(7.0, "client", "1/paused_s", 1.5), ("worker_paused", "doubt", "worker 1 stood still for 1.5 s")),
        (Sample(6.0, "client", "0/paused_s", 1.15), ("worker_paused", "doubt", "for 1 s of the window of 20 s")),
        (Sample(25.9, "client", "0/paused_s", 1.0), ("worker_paused", "doubt", "for 0.1 s of the window of 20 s")),
        (Sample(4.9, "client", "0/paused_s", 3.0), None),
        (Sample(30.0, "client", "0/paused_s", 3.0), None),
        (Sample(9.0, "client", "parent_paused_s", 3.0), ("parent_paused", "note", "main process stood still for 3 s")),
        (Sample(9.0, "client", "slept_s", 600.0), ("machine_slept", "invalid", "slept for 600 s")),
        (Sample(4.0, "client", "slept_s", 600.0), None),
        (Sample(26.0, "client", "slept_s", 600.0), None),
    ],
)
def test_a_pause_is_said_of_the_window_that_it_lies_in(
    sample: Sample, expected: tuple[str, str, str] | None, tmp_path: Path
) -> None:
    got = folder(tmp_path, [WHOLE], [sample])
    codes = ("worker_paused", "parent_paused", "machine_slept")
    found = [(v.code, v.level, v.message) for v in got.levels[0].verdicts if v.code in codes]
    if expected is None:
        assert found == []
        return
    (one,) = found
    assert one[:2] == expected[:2]
    assert expected[2] in one[2]


def test_a_worker_that_stood_still_voids_its_level_where_that_did_harm(tmp_path: Path) -> None:
    pause = Sample(7.0, "client", "1/paused_s", 1.5)
    clock = Sample(25.0, "client", "1/unstamped_fraction", 1.0)
    for name, samples, level in (("a", [pause], "doubt"), ("b", [pause, clock], "invalid")):
        (tmp_path / name).mkdir()
        got = folder(tmp_path / name, [WHOLE], samples)
        assert [v.level for v in got.levels[0].verdicts if v.code == "worker_paused"] == [level]
    paused = summaries.level(4, client=ClientView(limited=True), window_s=20.0)
    (found,) = findings(Observed(s=paused, pauses={pause.metric: pause.value}))
    assert found.level == "invalid", "requests were sent late"


def test_a_resumed_run_names_its_void_levels_and_another_server(tmp_path: Path) -> None:
    sittings = [{"server": {"version": "1", "name": "x"}, "ended": "SIGINT"}, {"server": {"version": "2", "name": "x"}}]
    broken_off = Level(1, 4, 0, 26.0, notes=("void",))
    got = folder(tmp_path, [WHOLE, broken_off], sittings=sittings)
    ((level, message),) = verdicts_of(got, "resumed")
    assert level == "note"
    assert message.endswith("void: 4")
    ((level, message),) = verdicts_of(got, "server_changed")
    assert (level, message) == ("doubt", "the server was another one in a later session: version")
    ((_, message),) = verdicts_of(got, "incomplete")
    assert message == "the run ended early"


def test_a_folder_without_its_manifest_says_that_and_nothing_of_an_early_end(tmp_path: Path) -> None:
    folder(tmp_path, [WHOLE])
    (tmp_path / MANIFEST).unlink()
    (verdict,) = [v for v in summarise(Result.open(tmp_path)).verdicts if v.code == "incomplete"]
    assert verdict.message.startswith("manifest.json is missing: ")


def test_what_the_ramp_decided_is_told_even_if_the_run_died(tmp_path: Path) -> None:
    levels = [msgspec.structs.replace(WHOLE, reason="doubling"), Level(1, 4, 0, 26.0, notes=("void",))]
    assert folder(tmp_path, levels).ramp == [RampStep(2, "doubling")]
    (tmp_path / "b").mkdir()
    steps = [
        {"concurrency": 2, "reason": "doubling", "rate": None},
        {"concurrency": None, "reason": "done", "rate": None},
    ]
    assert folder(tmp_path / "b", levels, ramp=steps).ramp == [RampStep(2, "doubling"), RampStep(None, "done")]


def test_an_slo_is_judged_at_each_level_and_its_knee_is_the_knee(tmp_path: Path) -> None:
    # 40 requests, each with its first token after 0.2 s.
    met = {"slo": {"ttft_p50": 0.3, "e2e_p50": 100.0}, "ramp": {}}
    got = folder(tmp_path, [WHOLE], records=steady(2, 30.0), scenario=met)
    assert [(a.limit, a.outcome) for a in got.levels[0].slo] == [("ttft_p50=300ms", "met"), ("e2e_p50=100s", "met")]
    assert got.levels[0].slo_met_fraction == 1.0
    assert got.knees.slo == Value(2.0, (2.0, None))
    assert got.knee_concurrency == 2.0
    (tmp_path / "b").mkdir()
    got = folder(tmp_path / "b", [WHOLE], records=steady(2, 30.0), scenario={"slo": {"ttft_p50": 0.1}, "ramp": {}})
    assert (got.levels[0].slo[0].outcome, got.knees.slo, got.knee_concurrency) == ("missed", None, None)


def test_a_probe_s_levels_are_no_points_of_the_curve(tmp_path: Path) -> None:
    probes = [Level(i, 1, 0, 0.0, 5.0, 25.0, 26.0, input_tokens=64 * 2**i) for i in range(6)]
    scenario = {"ramp": {"probe": "prefill"}}
    got = folder(tmp_path, probes, scenario=scenario, workload={"input_tokens": 64, "output_tokens": 1})
    assert [s.input_tokens_asked for s in got.levels] == [64, 128, 256, 512, 1024, 2048]
    assert got.curve is not None
    assert got.curve.reasons == ["no valid level of concurrency was measured"]
    assert got.phases is not None
    assert got.phases.decode is None
