"""What long prompts cost the answers of others, by records worked out by hand."""

from __future__ import annotations

import pytest

from harness.analysis import patterns
from harness.analysis.table import Table
from harness.data.levels import Interference
from harness.data.record import Level, Record
from tests.builders.records import request

LEVEL = Level(0, 2, 0, 0.0, 0.0, 10.0, 10.0)


def found(records: list[Record]) -> Interference | None:
    return patterns.interference(Table.of(records), LEVEL)


def victim(stall_s: float = 0.0, tokens: int = 100) -> Record:
    """A token each tenth of a second from 0.1 s on; the one that is due at 5.1 s comes late by `stall_s`."""
    arrivals = [0.1 + 0.1 * k + (stall_s if 0.1 + 0.1 * k > 5.05 else 0.0) for k in range(80)]
    return request(0.0, arrivals, class_="victim", input_tokens=tokens)


def long(sent: float = 5.0, first: float = 6.0, tokens: int = 16_000) -> Record:
    return request(sent, [first, first + 0.1], class_="long", input_tokens=tokens)


def test_the_gap_in_which_a_long_prompt_is_read_is_apart_from_those_before_and_after() -> None:
    cost = found([victim(stall_s=0.9), long()])
    assert cost is not None
    assert (cost.class_, cost.prompts) == ("long", 1)
    assert (cost.during_s.n, cost.during_s.max) == (1, pytest.approx(1.0))
    assert (cost.before_s.n, cost.before_s.max) == (10, pytest.approx(0.1))
    assert (cost.after_s.n, cost.after_s.max) == (10, pytest.approx(0.1))


def test_answers_that_do_not_stop_have_ten_gaps_a_second_all_along() -> None:
    cost = found([victim(), long()])
    assert cost is not None
    assert [each.max for each in (cost.before_s, cost.during_s, cost.after_s)] == pytest.approx([0.1] * 3)


def test_a_prompt_that_is_read_across_the_beginning_of_the_window_is_no_calm() -> None:
    """Of the nine gaps before the prompt at 1 s, three lie in the reading of the one before the window."""
    level = Level(0, 2, 0, 0.0, 0.05, 10.0, 10.0)
    cost = patterns.interference(Table.of([victim(), long(0.0, 0.35), long(1.0, 2.0)]), level)
    assert cost is not None
    assert (cost.prompts, cost.before_s.n, cost.during_s.n) == (2, 6, 13)


@pytest.mark.parametrize(
    "records",
    [[victim()], [victim(), long(tokens=700)], [victim(), long(10.5, 11.0)], [long(), long(6.5, 7.0)]],
    ids=["one class", "prompts that are not much longer", "none read in the window", "nobody else"],
)
def test_there_is_none_without_a_class_of_much_longer_prompts(records: list[Record]) -> None:
    assert found(records) is None
