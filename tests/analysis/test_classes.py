"""The figures of classes, each held against a count by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis import classes, slo
from harness.analysis.figures import level_summary
from harness.analysis.rules.requests import Conditions
from harness.analysis.table import Table
from harness.data.judgement import Verdict
from harness.data.levels import ClassSummary, LevelSummary
from harness.data.record import Level, Record
from tests.analysis.test_summarise import folder
from tests.builders.records import WINDOW, request, steady


def chat(n: int, ttft: float = 0.1, **changes: Any) -> list[Record]:
    """n requests of the class "chat", evenly over the ten seconds of WINDOW: two tokens 0.1 s apart."""
    starts = [10 * i / n for i in range(n)]
    return [request(at, [at + ttft, at + ttft + 0.1], **({"class_": "chat"} | changes)) for at in starts]


def long(n: int, ttft: float = 1.0, **changes: Any) -> list[Record]:
    return chat(n, ttft, **({"class_": "long", "input_tokens": 1000} | changes))


def of(records: list[Record], limits: dict[str, Any] | None = None, level: Level = WINDOW) -> LevelSummary:
    table, conditions = Table.of(records), Conditions(slo={"ttft": 0.5})
    own = {name: slo.limits(each) for name, each in (limits or {}).items()}
    return classes.with_classes(level_summary(table, level, conditions), table, level, conditions, own)


def parts(s: LevelSummary) -> dict[str, ClassSummary]:
    assert s.classes
    return s.classes


def test_rows_are_by_class_those_that_are_named_first() -> None:
    table = Table.of([request(0.0, class_="chat"), request(1.0), request(2.0, class_="long")])
    found = {name: of_class.tolist() for name, of_class in classes.rows(table, ["long"]).items()}
    assert found == {"long": [False, False, True], "chat": [True, False, False]}
    assert list(found) == ["long", "chat"]
    assert classes.rows(table, [""])[""].tolist() == [False, True, False]


def test_each_class_has_the_figures_of_its_own_requests() -> None:
    found = parts(of(chat(40) + long(10)))
    assert list(found) == ["chat", "long"]
    assert (found["chat"].requests, found["long"].requests) == (40, 10)
    assert (found["chat"].input_tokens_mean, found["long"].input_tokens_mean) == (10.0, 1000.0)
    assert found["chat"].ttft_s.mean == pytest.approx(0.1)
    assert found["long"].ttft_s.mean == pytest.approx(1.0)
    assert found["long"].e2e_s.mean == pytest.approx(1.1)
    # 40 and 10 requests of two tokens in 10 s, of which the last of the long ones (sent at 9 s) ends at 10.1 s.
    assert found["chat"].output_tokens_per_s.mean == pytest.approx(8.0)
    assert found["long"].output_tokens_per_s.mean == pytest.approx(1.8)
    assert found["chat"].in_flight == pytest.approx(40 * 0.2 / 10)


def test_a_class_has_the_runs_limits_or_its_own_and_the_level_the_goodput_of_all() -> None:
    # The run's TTFT of 0.5 s is met by all of chat and none of long, whose own of 2 s is met by all.
    shared = of(chat(40) + long(10))
    assert (parts(shared)["chat"].slo_met_fraction, parts(shared)["long"].slo_met_fraction) == (1.0, 0.0)
    assert (shared.goodput_requests_per_s, shared.slo_met_fraction) == (4.0, 0.8)
    own = of(chat(40) + long(10), {"chat": {}, "long": {"ttft": 2.0}})
    assert parts(own)["long"].slo_met_fraction == 1.0
    assert own.goodput_requests_per_s == pytest.approx(5.0)
    assert own.goodput_tokens_per_s == pytest.approx(10.0)
    assert own.slo_met_fraction == pytest.approx(1.0)


def test_a_limit_of_a_class_is_judged_by_its_requests_alone() -> None:
    table, own = Table.of(chat(40) + long(10)), {"chat": [], "long": slo.limits({"e2e": 1.0})}
    run, of_long = classes.attainments(slo.limits({"ttft": 0.5}), own, table, WINDOW)
    assert (run.limit, run.met, run.n) == ("ttft=500ms", 40, 40)
    assert (of_long.limit, of_long.class_, of_long.met, of_long.n) == ("e2e=1s", "long", 0, 10)
    [alone] = classes.attainments(slo.limits({"ttft": 0.5}), {}, table, WINDOW)
    assert (alone.met, alone.n) == (40, 50)


def test_where_every_class_has_its_own_limits_the_runs_apply_to_nobody() -> None:
    own = {name: slo.limits({"e2e": 1.0}) for name in ("chat", "long")}
    found = classes.attainments(slo.limits({"ttft": 0.5}), own, Table.of(chat(4) + long(4)), WINDOW)
    assert [each.class_ for each in found] == ["chat", "long"]


def test_requests_that_were_given_up_are_counted_apart_and_are_no_errors() -> None:
    given_up = chat(5, error="abandoned", output_tokens=None)
    whole = of(chat(40) + given_up + chat(4, error="http_5xx") + chat(1, error="cancelled"))
    assert (whole.requests, whole.errors, whole.cancelled, whole.abandoned) == (50, 4, 1, 5)
    assert whole.error_rate == pytest.approx(4 / 44)
    assert whole.errors_by_type == {"http_5xx": 4}
    [each] = parts(whole).values()
    assert (each.requests, each.errors, each.cancelled, each.abandoned) == (50, 4, 1, 5)
    assert (each.ttft_s.n, each.slo_met_fraction) == (40, pytest.approx(40 / 44))
    # Their tokens came, and count: 40 + 5 + 1 requests of two; those that failed are discarded.
    assert whole.output_tokens_per_s.mean == pytest.approx(9.2)
    [attained] = slo.attainments(slo.limits({"ttft": 0.5}), Table.of(chat(40) + given_up), WINDOW)
    assert (attained.met, attained.n) == (40, 40)


def test_in_open_loop_a_request_that_was_given_up_had_come() -> None:
    records = chat(50, concurrency=None) + chat(10, concurrency=None, error="abandoned")
    opened = Level(0, None, 0, 0.0, 0.0, 10.0, 10.0, rate=6.0)
    assert of(records, level=opened).offered_requests_per_s == pytest.approx(6.0)


def test_what_an_unsteady_rate_spoils_is_spoilt_in_its_classes_too() -> None:
    table = Table.of(chat(40))
    whole = level_summary(table, WINDOW)
    unstable = msgspec.structs.replace(whole, verdicts=[Verdict("unstable", "invalid", "it queues up")])
    [kept] = parts(classes.with_classes(whole, table, WINDOW, Conditions(), {})).values()
    [spoilt] = parts(classes.with_classes(unstable, table, WINDOW, Conditions(), {})).values()
    assert (kept.ttft_s.n, spoilt.ttft_s.n) == (40, 0)
    assert spoilt.output_tokens_per_s == kept.output_tokens_per_s


def test_a_class_of_which_no_request_began_is_there_with_nothing() -> None:
    found = parts(of(chat(4), {"rare": {}, "chat": {}}))
    assert list(found) == ["rare", "chat"]
    assert (found["rare"].requests, found["rare"].error_rate, found["rare"].ttft_s.mean) == (0, None, None)


def test_without_classes_nothing_is_added() -> None:
    plain = msgspec.to_builtins(of(steady(1, 10.0)))
    assert {"classes", "sessions", "abandoned"}.isdisjoint(plain)


# Slowdown


# A whole folder


def test_a_folder_with_classes_has_their_figures_limits_and_knee(tmp_path: Path) -> None:
    records = [msgspec.structs.replace(each, class_=("chat", "long")[i % 2]) for i, each in enumerate(steady(8, 50.0))]
    scenario = {"class": [{"name": "chat", "slo": {"ttft": 0.3}}, {"name": "long", "slo": {"ttft": 0.1}}]}
    level = Level(0, 8, 0, 0.0, 5.0, 45.0, 46.0)
    made = folder(tmp_path, [level], records=records, scenario=scenario)
    [only] = made.levels
    assert {name: (each.requests, each.slo_met_fraction) for name, each in parts(only).items()} == {
        "chat": (160, 1.0),
        "long": (160, 0.0),
    }
    assert [(each.class_, each.outcome) for each in only.slo] == [("chat", "unresolved"), ("long", "missed")]
    assert only.slo_met_fraction == pytest.approx(0.5)
    assert (made.knees.slo, made.knee_concurrency) == (None, None), "one class misses its limit"
    assert made.workload
    assert [(each.class_, each.requests, each.share) for each in made.workload.classes] == [
        ("chat", 160, 0.5), ("long", 160, 0.5),
    ]  # fmt: skip
    [off] = [verdict for verdict in made.verdicts if verdict.code == "lengths_off"]
    assert "answers of long 9.0 tokens, 128.0 asked" in off.message


def test_a_folder_with_sessions_has_them_beside_its_requests(tmp_path: Path) -> None:
    # One slot, a session each 2 s: a turn of a second (steady), and a pause as long.
    turns = [msgspec.structs.replace(each, session_id=f"s{i // 2}") for i, each in enumerate(steady(1, 50.0)[::2])]
    scenario = {"workload": {"session": {"turns": 2, "user_tokens": 10, "think": 1.0}, "output_tokens": 9}}
    made = folder(tmp_path, [Level(0, 1, 0, 0.0, 4.0, 44.0, 46.0)], records=turns, scenario=scenario)
    [only] = made.levels
    assert only.sessions
    assert (only.sessions.sessions, only.sessions.completed, only.sessions.requests_mean) == (10, 10, 2.0)
    assert only.sessions.latency_s.mean == pytest.approx(3.0)
    assert (only.in_flight, only.sessions.in_flight) == (pytest.approx(0.5), pytest.approx(0.75))


def test_a_table_of_some_requests_has_their_chunks_and_no_others() -> None:
    table = Table.of([request(0.0, [1.0, 2.0]), request(0.5), request(1.0, [1.5, 1.75], tokens=[3, 1], class_="x")])
    some = table.only(np.array([False, True, True]))
    assert some.sent.tolist() == [0.5, 1.0]
    assert (some.arrival.tolist(), some.tokens.tolist(), some.chunks.tolist()) == ([1.5, 1.75], [3, 1], [0, 2])
    assert some.class_ == ("", "x")
