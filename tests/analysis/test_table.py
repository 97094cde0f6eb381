"""A run as columns: every request, every chunk, nothing made up."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.table import Table, gaps, placed_tokens
from harness.analysis.window import in_flight
from tests.builders.records import request


def test_what_is_missing_is_nan_and_never_zero() -> None:
    table = Table.of([request(3.0, sent_s=None, error="refused", input_tokens=None)])
    for column in (table.sent, table.connect, table.first, table.last, table.done, table.input_tokens):
        assert np.isnan(column).all()
    assert np.isnan(table.cached_tokens[0])
    assert np.isnan(table.first_tokens[0])
    assert table.scheduled[0] == 3.0


def test_chunks_lie_flat_beside_the_row_that_owns_them() -> None:
    table = Table.of([request(0.0, [1.0, 2.0]), request(0.5), request(1.0, [1.5, 1.75, 4.0], tokens=[3, 1, 2])])
    assert table.arrival.tolist() == [1.0, 2.0, 1.5, 1.75, 4.0]
    assert table.tokens.tolist() == [1, 1, 3, 1, 2]
    assert table.chunks.tolist() == [2, 0, 3]
    assert table.first_tokens[[0, 2]].tolist() == [1.0, 3.0]
    assert placed_tokens(table).tolist() == [2.0, 0.0, 6.0]


def test_a_request_that_we_cut_is_neither_a_success_nor_a_failure() -> None:
    table = Table.of([request(0.0, [1.0]), request(0.0, error="cancelled"), request(0.0, error="http_500")])
    assert table.ok.tolist() == [True, False, False]
    assert table.cancelled.tolist() == [False, True, False]
    assert table.failed.tolist() == [False, False, True]
    assert table.error == ("", "cancelled", "http_500")


def test_a_request_that_was_never_sent_began_when_it_was_scheduled() -> None:
    table = Table.of([request(2.0, scheduled_s=1.5), request(3.0, sent_s=None, error="refused")])
    assert table.began.tolist() == [2.0, 3.0]


def test_an_empty_run_is_an_empty_table() -> None:
    table = Table.of([])
    assert len(table.sent) == len(table.arrival) == 0
    assert len(gaps(table, table.ok)) == 0


@given(st.lists(st.lists(st.integers(0, 10**6), max_size=6), max_size=6))
def test_gaps_never_cross_from_one_request_to_the_next(stamps: list[list[int]]) -> None:
    runs = [sorted(s) for s in stamps]
    table = Table.of([request(0.0, [t * 1e-3 for t in run]) for run in runs])
    expected = [b - a for run in runs for a, b in itertools.pairwise(run)]
    np.testing.assert_allclose(gaps(table, table.ok), np.array(expected) * 1e-3, atol=1e-9)


def test_gaps_are_those_of_the_marked_rows() -> None:
    table = Table.of([request(0.0, [1.0, 2.0]), request(0.0, [1.0, 4.0])])
    assert gaps(table, np.array([False, True])).tolist() == [3.0]


_times = st.integers(0, 100)


@given(st.lists(st.tuples(_times, st.lists(_times, max_size=4), st.booleans()), max_size=8), _times, _times)
def test_around_a_window_nothing_that_touches_it_is_missing(
    requests: list[tuple[int, list[int], bool]], start: int, length: int
) -> None:
    end = start + length
    table = Table.of(
        [
            request(float(sent), sorted(float(sent + a) for a in after), done=None if is_open else sent + 101.0)
            for sent, after, is_open in requests
        ]
    )
    near = table.around(start, end)

    for name in ("sent", "first", "last", "done", "arrival"):
        here, all_of_them = getattr(near, name), getattr(table, name)
        np.testing.assert_array_equal(
            here[(here >= start) & (here <= end)], all_of_them[(all_of_them >= start) & (all_of_them <= end)]
        )
    if length:
        assert in_flight(near, start, end) == in_flight(table, start, end)
    assert len(near.arrival) == len(near.tokens) == near.chunks.sum()
    assert set(gaps(near, near.ok)) <= set(gaps(table, table.ok))


def test_around_a_window_the_rest_of_the_run_is_left_out() -> None:
    table = Table.of([request(t, [t + 1.0, t + 2.0], tokens=[1, 2]) for t in (0.0, 10.0, 20.0, 30.0)])
    near = table.around(11.5, 21.0)
    assert (near.sent.tolist(), near.arrival.tolist()) == ([10.0, 20.0], [11.0, 12.0, 21.0, 22.0])
    assert placed_tokens(near).tolist() == [3.0, 3.0]
    assert (near.chunks.tolist(), near.error) == ([2, 2], ("", ""))
    assert len(table.around(40.0, 50.0).sent) == 0
