"""Where an answer ends: two of reason, usage, [DONE] and the body's own end; over real sockets, by both transports."""

from __future__ import annotations

import time

import pytest

from harness.dialects import DIALECTS
from tests.builders.streams import DONE, delta, event
from tests.trust.cases.server import OUT, Answer, Call, exchanges

pytestmark = pytest.mark.usefixtures("receive_path")

both = pytest.mark.parametrize("transport", ["socket", "httpx"])


def no_reason(call: Call) -> None:
    call.head()
    call.tokens()
    call.last(None)
    call.end()


def no_last_chunk(call: Call) -> None:
    call.head()
    call.tokens()
    call.last()
    call.request.close()


def reset_behind_the_end(call: Call) -> None:
    call.head(chunked=False)
    call.tokens()
    call.last()
    time.sleep(0.05)
    call.request.reset()


def reset_behind_the_reason(call: Call) -> None:
    """One mark of an end is none."""
    call.head(chunked=False)
    call.tokens()
    call.write(delta("length"))
    time.sleep(0.05)
    call.request.reset()


def null_in_words(call: Call) -> None:
    """The reason is the word null in every chunk, and the stream is cut with a clean end of the body."""
    call.head()
    call.tokens(lambda _: delta("null", content=" tok"), OUT // 2)
    call.end()


@both
@pytest.mark.parametrize(
    ("answer", "error", "noted"),
    [
        (no_reason, "", ["no_finish"]),
        (no_last_chunk, "", ["cut_after_end"]),
        (reset_behind_the_end, "", ["cut_after_end"]),
        (reset_behind_the_reason, "reset", []),
        (null_in_words, "truncated", []),
        (Call.good, "", []),
    ],
)
def test_an_answer_is_whole_where_two_marks_of_its_end_came(
    answer: Answer, error: str, noted: list[str], transport: str
) -> None:
    (exchange,) = exchanges(answer, transport=transport)
    assert (exchange.error, [*exchange.noted, *exchange.decoded.noted]) == (error, noted), exchange.message
    assert len(exchange.decoded.arrivals) == (OUT // 2 if answer is null_in_words else OUT)


@both
def test_an_answer_whose_body_never_ends_is_whole_and_said(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.load.sockets._NO_END_S", 0.2)

    def never_ends(call: Call) -> None:
        call.head()
        call.tokens()
        call.last()
        time.sleep(3.0)

    (exchange,) = exchanges(never_ends, transport=transport, timeout_s=0.5 if transport == "httpx" else 5.0)
    assert (exchange.error, exchange.noted, len(exchange.decoded.arrivals)) == ("", ["no_end"], OUT)
    assert (exchange.done_ns - exchange.sent_ns) * 1e-9 < 2.5, "it is not waited for until the server closes"


def test_an_api_without_reasons_ends_with_its_body_alone() -> None:
    def end(*, ended: bool) -> str:
        decoder = DIALECTS["triton"].decoder()
        decoder.feed(event({"text_output": " tok"}), 1)
        return decoder.end(2, ended=ended).error

    assert (end(ended=True), end(ended=False)) == ("", "truncated")


@both
def test_one_chunk_of_any_length_does_not_change_how_the_others_are_read(transport: str) -> None:
    def long(call: Call) -> None:
        call.head()
        call.tokens(lambda i: delta(content="x" * 70_000 if i == 2 else " tok"), 4 * OUT)
        call.last(count=4 * OUT)
        call.end()

    (exchange,) = exchanges(long, transport=transport)
    assert (exchange.error, len(exchange.decoded.arrivals)) == ("", 4 * OUT), exchange.message
    assert list(exchange.decoded.tokens) == [1] * 4 * OUT


def test_the_end_of_a_body_may_come_late() -> None:
    def late(call: Call) -> None:
        call.head()
        call.tokens()
        call.last(done=False)
        call.write(DONE)
        time.sleep(0.1)
        call.end()

    first, second = exchanges(late, times=2)
    assert [first.error, first.noted, second.error] == ["", [], ""]
    assert (first.done_ns - first.decoded.arrivals[-1]) * 1e-9 > 0.1
    assert second.connect_ns == 0, "the connection was kept"
