"""The steady window: its start, what is in flight in it, and Little's check."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.table import Table
from harness.analysis.window import (
    Truncation,
    bin_width,
    even_rate,
    failing_since,
    in_flight,
    little,
    silence,
    silent,
    truncation,
    whole_requests,
)
from harness.data.record import Level
from tests.builders.records import WINDOW, request, steady


def test_a_bin_is_five_gaps_and_at_least_50_ms() -> None:
    assert (bin_width(0.002), bin_width(0.01), bin_width(0.02)) == (0.05, 0.05, 0.1)


def test_the_transient_is_cut_off_where_the_level_is_flat_behind_it() -> None:
    assert truncation([0, 0, 3, 6] + [10, 11, 9, 10] * 9) == Truncation(4, settled=True, checked=True)


def test_a_flat_level_loses_nothing() -> None:
    assert truncation([10.0] * 40).cut == 0


def test_a_level_that_never_stops_rising_is_not_settled() -> None:
    assert truncation(1 - 0.9 ** np.arange(40)) == Truncation(20, settled=False, checked=True)


def test_fewer_than_twenty_bins_are_not_checked() -> None:
    assert truncation([0] * 10 + [10] * 9) == Truncation(0, settled=True, checked=False)
    assert truncation([0] * 5 + [10] * 15).checked


@given(st.lists(st.integers(0, 1000), min_size=20, max_size=60))
def test_the_cut_minimises_the_mser_statistic_over_the_first_half(counts: list[int]) -> None:
    x = np.array(counts, dtype=float)
    z = [float(((x[d:] - x[d:].mean()) ** 2).sum()) / (len(x) - d) ** 2 for d in range(len(x) // 2 + 1)]
    assert z[truncation(counts).cut] == pytest.approx(min(z), abs=1e-9)


def test_in_flight_is_the_time_mean_with_failures_and_cut_requests() -> None:
    table = Table.of(
        [
            request(0.0, done=5.0),  # 4 s of the window from 1 to 11
            request(2.0, done=4.0, error="http_500"),  # 2 s
            request(8.0, error="cancelled"),  # still open: 3 s
            request(2.0, sent_s=None, done=9.0, error="refused"),  # never in flight
            request(20.0, done=30.0),
        ]
    )
    assert in_flight(table, 1.0, 11.0) == pytest.approx(0.9)
    assert in_flight(table, 1.0, 11.0, table.ok) == pytest.approx(0.4)


def test_a_closed_loop_in_steady_state_obeys_little() -> None:
    level = Level(0, 4, 0, 0.0, 2.0, 22.0, 22.0)
    found = little(Table.of(steady(4, 30.0)), level, 2.0, 22.0)
    assert found.counted == pytest.approx(4.0, rel=1e-6)
    assert found.by_law == pytest.approx(4.0, rel=0.01)
    assert not found.mismatch
    assert found.enough


def with_a_long_one(seconds: int) -> Table:
    """A slot with a request a second, and another whose only request takes all the time."""
    short = [request(float(k), [k + 0.1, k + 0.5], done=k + 1.0) for k in range(seconds)]
    return Table.of([*short, request(-1.0, [0.5, seconds + 1.0])])


def test_what_neither_begins_nor_ends_in_the_window_breaks_little() -> None:
    found = little(with_a_long_one(60), Level(0, 1, 0, 0.0, 0.0, 60.0, 60.0), 0.0, 60.0)
    assert found.counted == pytest.approx(2.0)
    # The last short one ends at the window's very end, so outside it: λ = (60 + 59)/120, each of a second.
    assert found.by_law == pytest.approx(119 / 120)
    assert found.mismatch
    assert found.enough


def test_an_answer_that_ends_long_after_its_last_token_is_in_both_numbers() -> None:
    late = Table.of([request(float(k), [k + 0.1, k + 0.5], done=k + 1.0) for k in range(60)])
    assert not little(late, Level(0, 1, 0, 0.0, 0.0, 60.0, 60.0), 0.0, 60.0).mismatch


def test_few_requests_do_not_accuse() -> None:
    found = little(with_a_long_one(10), WINDOW, 0.0, 10.0)
    assert found.mismatch
    assert not found.enough
    nothing = little(Table.of([request(0.0, done=1.0, error="http_500")]), WINDOW, 0.0, 10.0)
    assert (nothing.counted, nothing.mismatch) == (None, False)


# ---- slots in step ---------------------------------------------------------------------------------------------

REQUEST_S, TOKENS = 2.0, 100


def in_step(C: int, seconds: float, jitter_s: float = 0.0) -> Table:
    """C slots that begin together: of each request's 2 s, 0.8 without a token and then 100 tokens, evenly."""
    rng = np.random.default_rng(7)
    records = []
    for _ in range(C):
        at = 0.0
        while at < seconds:
            took = REQUEST_S + jitter_s * rng.standard_normal()
            arrivals = at + 0.4 * took + 0.6 * took * (np.arange(TOKENS) + 1) / TOKENS
            records.append(request(at, arrivals.tolist()))
            at = float(arrivals[-1])
    return Table.of(sorted(records, key=lambda record: record.sent_s or 0.0))


def throughput(table: Table, level: Level) -> float:
    start, end = level.window_start_s, level.window_end_s
    assert start is not None
    assert end is not None
    return float(table.tokens[(table.arrival >= start) & (table.arrival < end)].sum()) / (end - start)


@pytest.mark.parametrize("jitter_s", [0.0, 0.03])
@pytest.mark.parametrize("times", [1.0, 1.5, 2.7, 6.4])
def test_a_window_of_slots_in_step_is_cut_to_whole_requests(times: float, jitter_s: float) -> None:
    C, table = 8, in_step(8, 40.0, jitter_s)
    true, plain, cut = C * TOKENS / REQUEST_S, [], []
    for start in np.linspace(6.0, 8.0, 9):
        level = Level(0, C, 0, 0.0, float(start), float(start + times * REQUEST_S), 30.0)
        plain.append(throughput(table, level) / true - 1)
        cut.append(throughput(table, whole_requests(table, level)) / true - 1)
    assert np.abs(cut).max() < 0.05
    if times % 1 > 0.2:
        assert np.abs(plain).max() > 3 * np.abs(cut).max(), "else there was nothing to mend"


def test_a_window_is_left_as_it_is_where_it_holds_many_requests_or_none_or_runs_on_schedule() -> None:
    table = in_step(4, 60.0)
    long = Level(0, 4, 0, 0.0, 5.0, 46.0, 50.0)
    short = Level(0, 4, 0, 0.0, 5.0, 6.5, 10.0)
    empty = Level(1, 4, 0, 0.0, 5.0, 8.0, 10.0)
    on_schedule = Level(0, None, 0, 0.0, 5.0, 8.0, 10.0, rate=2.0)
    for level in (long, short, empty, on_schedule):
        assert whole_requests(table, level) == level


@pytest.mark.parametrize("begin", [10.0, 10.3, 10.9, 11.4])
def test_within_a_part_of_a_request_tokens_count_evenly_over_each_request(begin: float) -> None:
    C, table = 8, in_step(8, 20.0)
    level = Level(0, C, 0, 0.0, begin, begin + 0.4, 14.0)
    assert even_rate(table, level, table.output_tokens) == pytest.approx(C * TOKENS / REQUEST_S)
    assert even_rate(table, level, np.ones(len(table.sent))) == pytest.approx(C / REQUEST_S)


def test_an_even_rate_is_only_for_windows_within_a_request_of_a_closed_loop() -> None:
    table = in_step(8, 20.0)
    assert even_rate(table, Level(0, 8, 0, 0.0, 10.0, 12.0, 14.0), table.output_tokens) is None
    assert even_rate(table, Level(0, None, 0, 0.0, 10.0, 10.4, 14.0, rate=4.0), table.output_tokens) is None
    assert even_rate(table, Level(1, 8, 0, 0.0, 90.0, 90.4, 91.0), table.output_tokens) is None, "nothing was in flight"


def test_an_even_rate_is_not_known_where_most_requests_were_cut() -> None:
    level = Level(0, 2, 0, 0.0, 10.0, 11.0, 12.0)
    whole, cut = request(9.0, [13.0]), request(9.5, [11.5], error="cancelled")
    table = Table.of([whole, cut])
    assert even_rate(table, level, table.output_tokens) == pytest.approx(2 * 1 / 4.0), (
        "the other is taken to be like it"
    )
    table = Table.of([whole, cut, cut])
    assert math.isnan(even_rate(table, level, table.output_tokens) or 0.0)


@pytest.mark.parametrize("given_up", [3, 7, 8])
def test_a_window_of_many_requests_is_counted_however_many_users_give_up(given_up: int) -> None:
    """Each second eight requests of a second begin, and so many of them are given up shortly before their end."""
    records = [
        request(second, [second + 0.5], done=second + 0.9, error="abandoned" if slot < given_up else "")
        for second in range(10)
        for slot in range(8)
    ]
    table = Table.of(records)
    assert even_rate(table, Level(0, 8, 0, 0.0, 2.0, 9.0, 10.0), table.output_tokens) is None


def queued(C: int, seats: int, cut_s: float = math.inf) -> Table:
    """C slots that begin together at so many seats, first come first served: 4 s a request, 100 tokens evenly in it.

    What is not over at `cut_s` was cut then.
    """
    free, sent, records = [0.0] * seats, [0.0] * C, []
    while min(sent) < 40.0:
        at = sent.pop(0)
        begun = max(at, free.pop(0))
        arrivals = [begun + 4.0 * (i + 1) / TOKENS for i in range(TOKENS)]
        free.append(begun + 4.0)
        sent.append(begun + 4.0)
        cut = begun + 4.0 > cut_s
        kept = [each for each in arrivals if each <= cut_s] if cut else arrivals
        records.append(request(at, kept, done=cut_s if cut else arrivals[-1], error="cancelled" if cut else ""))
    return Table.of(sorted(records, key=lambda record: record.sent_s or 0.0))


def test_a_full_server_is_no_faster_by_those_that_came_before_its_queue() -> None:
    """Two seats make 50 tok/s. Of eight slots the first two wait for nobody, and the next requests for all others."""
    level, table = Level(0, 8, 0, 0.0, 3.5, 5.5, 24.0), queued(8, 2)
    assert even_rate(table, level, table.output_tokens) == pytest.approx(50.0)


def test_a_rate_is_not_known_where_what_began_in_the_window_was_cut() -> None:
    level, table = Level(0, 8, 0, 0.0, 3.5, 5.5, 17.0), queued(8, 2, cut_s=17.0)
    assert math.isnan(even_rate(table, level, table.output_tokens) or 0.0)


def test_seconds_without_a_token_are_silence_where_an_answer_streams() -> None:
    """Ten answers one after the other, a token every 50 ms; the server stops for 4 s within the fourth."""

    def stopped(t: float) -> float:
        return t if t < 3.5 else t + 4.0

    answers = [request(stopped(float(i)), [stopped(i + 0.05 * k) for k in range(1, 20)]) for i in range(10)]
    assert silence(Table.of(answers), 0.0, 14.0) == pytest.approx(4.05)
    assert silence(Table.of(answers), 8.0, 14.0) is None


def test_a_server_that_computes_prompts_while_the_others_wait_is_not_silent() -> None:
    """Four slots; every second or so a prompt of 2 s stops all of them."""
    starts = [10.0 * i for i in range(8)]
    stream = [request(0.0, [t + 2.0 + 0.05 * k for t in starts for k in range(160)], done=80.0)]
    others = [request(t, [t + 2.0 + 0.05 * k for k in range(160)]) for t in starts]
    assert silence(Table.of([*stream, *others]), 0.0, 80.0) is None


def test_a_prompt_that_takes_long_and_an_answer_that_does_not_stream_are_no_silence() -> None:
    prompt = [request(10.0 * i, [10 * i + 8 + 0.05 * k for k in range(20)]) for i in range(5)]
    assert silence(Table.of(prompt), 0.0, 50.0) is None
    whole = [request(6.0 * i, [6.0 * i + 6.0]) for i in range(10)]
    assert silence(Table.of(whole), 0.0, 60.0) is None


@pytest.mark.parametrize("error", ["http_5xx", "http_4xx", "reset"])
def test_a_level_whose_last_requests_all_fail_does_so_since_the_first_of_them(error: str) -> None:
    good = [request(2.0 + i, [2.2 + i, 2.9 + i]) for i in range(5)]
    bad = [request(7.0 + i / 2, [], done=7.1 + i / 2, error=error) for i in range(4)]
    level = Level(0, 1, 0, 1.0, 2.0, 10.0, 10.0)
    assert failing_since(Table.of([*good, *bad]), level) == 6.0
    assert failing_since(Table.of([*good, *bad, request(9.0, [9.2])]), level) is None, "one succeeds again"
    assert failing_since(Table.of([*good, bad[0]]), level) is None, "one in seven fails by chance"
    refused = [msgspec.structs.replace(each, error="http_429") for each in bad]
    assert failing_since(Table.of([*good, *refused]), level) is None, "a quota ends with its time"
    mixed = [each for pair in zip(good, bad, strict=False) for each in pair]
    busy = [request(2.0, [9.0], done=9.9), *mixed]  # in flight behind the refused ones: it is full, and not dead
    assert failing_since(Table.of(busy), level) is None


def test_of_the_requests_that_fail_those_hang_that_got_nothing_for_most_of_a_window() -> None:
    rows = [
        request(0.0, [], done=30.0, error="client_deadline"),
        request(0.0, [1.0], done=30.0, error="client_deadline"),
        request(0.0, [12.0], done=30.0, error="client_deadline"),
        request(14.0, [], done=16.0, error="reset"),
        request(0.0, [], done=30.0, error="cancelled"),
        request(0.0, [29.0], done=30.0),
    ]
    assert silent(Table.of(rows), Level(0, 4, 0, 0.0, 10.0, 20.0, 25.0)).tolist() == [True, True] + 4 * [False]
    left = silent(Table.of(rows), Level(0, 4, 0, 0.0, 10.0, 20.0, 25.0, hung=4))
    assert left.tolist() == [True, True, False, False, True, False], "the third has a token in the window"
