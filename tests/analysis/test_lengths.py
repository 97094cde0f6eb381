"""Lengths asked and lengths that came: each figure by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from harness.analysis import classes
from harness.analysis.table import Table
from harness.base.errors import HarnessError
from harness.data import manifest
from harness.data.record import Record
from harness.data.summary import ClassWorkload, LengthSpread, WorkloadSummary
from harness.spec import distribution
from tests.builders.records import WINDOW, request


def law(text: str, more: int = 0, share: float = 0.0) -> tuple[str, LengthSpread]:
    return classes.asked(distribution.parse(text), more, share)


def compared(records: list[Record], **scenario: Any) -> WorkloadSummary | None:
    stated = msgspec.convert(scenario, manifest.Scenario)
    return classes.compared(stated, Table.of(records), [WINDOW])


def rows(records: list[Record], **scenario: Any) -> list[ClassWorkload]:
    found = compared(records, **scenario)
    assert found is not None
    return found.classes


def test_a_law_stands_beside_what_came() -> None:
    found = classes.lengths(law("1..100"), np.repeat(np.arange(1.0, 101.0), 10))
    assert found.law == "1..100"
    assert found.asked is not None
    assert (found.asked.mean, found.asked.p10, found.asked.p50, found.asked.p90, found.asked.p99) == (
        50.5,
        10,
        50,
        90,
        99,
    )
    assert found.realised == found.asked
    # Variance of 1..100 is (100² - 1)/12 = 833.25, of the 1,000 seen 1000/999 of it.
    assert found.mean_se == pytest.approx(math.sqrt(833.25 / 999))


def test_a_percentile_that_too_few_carry_is_missing_and_what_was_not_counted_is_out() -> None:
    found = classes.lengths(law("7"), np.array([7.0] * 11 + [math.nan]))
    assert (found.realised.mean, found.realised.p10, found.realised.p50, found.realised.p90) == (7.0, None, 7.0, None)
    none = classes.lengths(law("7"), np.array([math.nan]))
    assert (none.realised.mean, none.mean_se) == (None, None)


def test_a_prefix_is_added_to_the_share_that_has_one() -> None:
    text, mixed = law("1..10", 100, 0.75)
    assert (mixed.mean, mixed.p50) == (pytest.approx(5.5 + 75), None)
    assert text == "1..10, 75 % of them after a prefix of 100"


def test_requests_count_that_succeeded_and_began_in_a_window() -> None:
    inside = [request(at, [at + 0.1], input_tokens=100, output_tokens=5) for at in (1.0, 2.0)]
    others = [
        request(-1.0, [0.5], input_tokens=900),
        request(3.0, [3.1], input_tokens=900, error="http_5xx"),
        request(4.0, [4.1], input_tokens=900, error="abandoned"),
    ]
    [only] = rows(inside + others, workload={"input_tokens": "50..150", "output_tokens": 5})
    assert (only.class_, only.requests, only.share_asked, only.share) == ("", 2, 1.0, 1.0)
    assert (only.input_tokens.realised.mean, only.output_tokens.realised.mean) == (100.0, 5.0)
    assert only.input_tokens.asked is not None
    assert only.input_tokens.asked.mean == 100.0


def test_each_class_has_its_law_and_its_share() -> None:
    records = [request(0.1 * i, [0.1 * i + 0.05], class_="long" if i % 10 == 0 else "chat") for i in range(50)]
    classes = [{"name": "chat", "share": 3, "input": 10}, {"name": "long", "input": "20..40"}]
    chat, long = rows(records, **{"class": classes})
    assert (chat.share_asked, chat.share, long.share_asked, long.share) == (0.75, 0.9, 0.25, 0.1)
    assert (chat.input_tokens.law, long.input_tokens.law) == ("10", "20..40")


def test_of_sessions_and_tasks_no_law_of_the_prompts_is_known() -> None:
    session = {"turns": 2, "user_tokens": 10}
    [turns] = rows([request(1.0, [2.0])], workload={"session": session, "output_tokens": 1})
    assert (turns.input_tokens.law, turns.input_tokens.realised.mean) == (None, 10.0)
    assert turns.output_tokens.law == "1"
    [task] = rows([request(1.0, [2.0])], workload={"node": [{"name": "root"}]})
    assert task.output_tokens.asked is None


def test_where_all_requests_are_alike_there_is_nothing_to_compare() -> None:
    assert compared([request(1.0, [2.0])], workload={"input_tokens": 512, "output_tokens": 128}) is None
    assert compared([request(1.0, [2.0])]) is None
    [prefixed] = rows([request(1.0, [2.0])], workload={"input_tokens": 4, "prefix": {"tokens": 6}})
    assert prefixed.input_tokens.law == "4, after a prefix of 6"


def test_a_manifest_with_a_law_that_is_none_is_one_line_with_its_place() -> None:
    with pytest.raises(HarnessError, match=r"manifest\.json: \$\.scenario"):
        compared([request(1.0, [2.0])], workload={"input_tokens": "about 500"})


def test_of_a_dataset_no_law_is_asked() -> None:
    [read] = rows([request(1.0, [2.0])], workload={"dataset": {"path": "chats.jsonl"}})
    assert (read.requests, read.input_tokens.law, read.output_tokens.law) == (1, None, None)
    assert (read.input_tokens.realised.mean, read.output_tokens.realised.mean) == (10.0, 1.0)


def test_a_dataset_s_rows_without_a_class_are_in_no_share() -> None:
    """Of four rows two were sent to `big`, one to `small`: their classes have 2/3 and 1/3."""
    records = [request(float(i), [i + 0.5], class_=name) for i, name in enumerate(("big", "big", "small", ""))]
    kinds = [{"name": "big", "share": 2.0}, {"name": "small", "share": 1.0}]
    found = rows(records, workload={"dataset": {"path": "x"}}, **{"class": kinds})
    assert [(each.share_asked, each.share) for each in found] == [
        (pytest.approx(2 / 3),) * 2,
        (pytest.approx(1 / 3),) * 2,
    ]
