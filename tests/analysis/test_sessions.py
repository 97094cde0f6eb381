"""Sessions by hand: when they begin, how long they take, and which of them are whole."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis import patterns
from harness.analysis.table import Table
from harness.data.record import Level, Record
from tests.builders.records import WINDOW, request


def turns(session: str, *times: tuple[float, float], error: str = "") -> list[Record]:
    """Requests of one session: (sent, last token), the last byte 0.1 s later; `error` is the last one's."""
    errors = [*[""] * (len(times) - 1), error]
    return [
        request(sent, [last], done=last + 0.1, session_id=session, turn=turn, error=each)
        for turn, ((sent, last), each) in enumerate(zip(times, errors, strict=True))
    ]


GOING_ON = turns("z", (12.0, 13.0))  # behind the window: so long after the others no tool goes on


def test_a_session_lasts_from_its_first_send_to_its_last_byte_pauses_included() -> None:
    # Two turns from 1 s to 4.1 s with a pause of a second, and one turn from 5 s to 6.1 s.
    found = patterns.sessions(Table.of(turns("a", (1.0, 2.0), (3.1, 4.0)) + turns("b", (5.0, 6.0)) + GOING_ON), WINDOW)
    assert found is not None
    assert (found.sessions, found.completed, found.failed, found.requests_mean) == (2, 2, 0, 1.5)
    assert found.latency_s.mean == pytest.approx((3.1 + 1.1) / 2)
    assert found.last_token_s.mean == pytest.approx((3.0 + 1.0) / 2)
    assert found.latency_s.max == pytest.approx(3.1)
    assert found.in_flight == pytest.approx((3.1 + 1.1) / 10)
    assert found.sessions_per_s == pytest.approx(0.2)


def test_a_tasks_last_token_is_the_last_of_all_its_branches() -> None:
    # A root, two branches at once of which the first sent ends last, no join.
    found = patterns.sessions(Table.of(turns("t", (0.0, 1.0), (1.1, 6.0), (1.2, 3.0))), WINDOW, requests=3)
    assert found is not None
    assert (found.latency_s.mean, found.last_token_s.mean) == (pytest.approx(6.1), pytest.approx(6.0))


def test_a_session_that_failed_or_was_cut_has_no_latency() -> None:
    records = [
        *turns("whole", (1.0, 2.0), (3.0, 4.0)),
        *turns("failed", (1.0, 2.0), (3.0, 9.0), error="http_5xx"),
        *turns("cut", (1.0, 2.0), (3.0, 9.0), error="cancelled"),
        *GOING_ON,
    ]
    found = patterns.sessions(Table.of(records), WINDOW)
    assert found is not None
    assert (found.sessions, found.completed, found.failed) == (3, 1, 1)
    assert found.latency_s.mean == pytest.approx(3.1)


def test_a_session_with_fewer_requests_than_it_should_have_is_not_whole() -> None:
    table = Table.of(turns("two", (1.0, 2.0), (3.0, 4.0)) + turns("one", (1.0, 2.0)))
    found = patterns.sessions(table, WINDOW, requests=2)
    assert found is not None
    assert (found.sessions, found.completed, found.requests_mean) == (2, 1, 2.0)


def test_a_session_is_of_the_window_that_it_began_in_and_may_end_after_it() -> None:
    records = turns("before", (-1.0, 2.0), (3.0, 4.0)) + turns("after", (9.0, 9.5), (11.0, 12.0))
    found = patterns.sessions(Table.of(records), WINDOW, requests=2)
    assert found is not None
    assert (found.sessions, found.latency_s.mean) == (1, pytest.approx(3.1))
    assert found.in_flight == pytest.approx((4.1 + 1.0) / 10)
    assert found.sessions_per_s == pytest.approx(0.1), "the one that began before it ended in it"


def test_a_session_of_unknown_length_is_over_when_it_sends_nothing_for_longer_than_any_pause() -> None:
    """The longest pause is 2 s. At the last send, 9 s, `a` has sent nothing for 3.9 s, `b` for 1.9 s; `c` began before.

    Three of the sessions began in the window, of which one failed: two begin, and so end, in 10 s.
    """
    records = [
        *turns("a", (1.0, 2.0), (4.1, 5.0)),
        *turns("b", (6.0, 7.0)),
        *turns("f", (8.0, 8.5), (9.0, 9.5), error="http_5xx"),
        *turns("c", (-9.0, -8.0), (0.5, 0.9))[1:],
    ]
    found = patterns.sessions(Table.of(records), WINDOW)
    assert found is not None
    assert (found.sessions, found.completed, found.failed, found.requests_mean) == (3, 1, 1, 2.0)
    assert found.sessions_per_s == pytest.approx(0.2)


def test_agents_idle_in_tools_hold_their_conversations_in_the_cache() -> None:
    """Of two agents one is busy from 0 to 2 s and from 4 to 5 s, the other from 7 to 8 s: 4 s of 10, so 1.6 are idle.

    Pauses of 2 s with 150 + 5 tokens, of the request that ended last, and of 4 s with 95 + 5: 710 / 6 on average.
    """
    records = [
        request(0.0, [0.9], tokens=[5], done=1.0, session_id="a", input_tokens=50),
        request(0.5, [1.9], tokens=[5], done=2.0, session_id="a", turn=1, input_tokens=150),
        request(4.0, [4.9], tokens=[5], done=5.0, session_id="a", turn=2, input_tokens=200),
        request(7.0, [7.9], tokens=[5], done=8.0, session_id="b", input_tokens=95),
        request(12.0, [12.9], tokens=[5], done=13.0, session_id="b", turn=1, input_tokens=120),
    ]
    found = patterns.sessions(Table.of(records), msgspec.structs.replace(WINDOW, concurrency=2))
    assert found is not None
    assert found.idle == pytest.approx(1.6)
    assert found.idle_tokens == pytest.approx(1.6 * 710 / 6)


def test_in_open_loop_a_session_begins_when_it_was_due() -> None:
    late = [request(1.5, [2.0], scheduled_s=1.0, session_id="a")]
    found = patterns.sessions(Table.of(late), Level(0, None, 0, 0.0, 0.0, 10.0, 10.0, rate=1.0), requests=1)
    assert found is not None
    assert found.latency_s.mean == pytest.approx(1.0)


def test_requests_without_a_session_or_of_another_level_make_none() -> None:
    records = [request(1.0, [2.0]), request(1.0, [2.0], session_id="x", level=1)]
    assert patterns.sessions(Table.of(records), WINDOW) is None


def test_times_to_the_first_token_are_told_by_turn_and_by_what_was_cached() -> None:
    """Two sessions of two turns: TTFTs of 1 s with nothing cached, then .2 s and .4 s with 60 and 95 of 100 tokens.

    Each turn has 10 tokens of answer; in 10 s the two sessions are there for 2 × 4 s: 40 tokens in 8 s are 300/min.
    """
    records = [
        request(
            sent, [sent + ttft, done - 0.1], tokens=[5, 5], done=done, session_id=name, turn=turn,
            input_tokens=100, cached_tokens=cached,
        )
        for name, cached_later, later in (("a", 60, 0.2), ("b", 95, 0.4))
        for sent, ttft, done, turn, cached in ((1.0, 1.0, 3.0, 0, 0), (4.0, later, 5.0, 1, cached_later))
    ]  # fmt: skip
    found = patterns.sessions(Table.of(records), WINDOW)
    assert found is not None
    assert found.ttft_by_turn_s == pytest.approx([1.0, 0.3])
    assert found.ttft_by_cached_s == pytest.approx([1.0, 0.2, 0.4])
    assert found.tokens_per_minute == pytest.approx(300)
