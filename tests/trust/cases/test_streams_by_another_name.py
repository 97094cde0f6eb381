"""A stream is told by its first bytes, not by its content type; an error in place of one is the server's words."""

from __future__ import annotations

import gzip
import json

import msgspec
import pytest

from tests.builders.streams import delta, event, usage
from tests.trust.cases.server import OUT, Answer, Call, exchanges

every_transport = pytest.mark.parametrize("transport", ["socket", "httpx"])


def named(kind: str | None) -> Answer:
    def answer(call: Call) -> None:
        call.head(kind)
        call.tokens()
        call.last()
        call.end()

    return answer


def data_twice(call: Call) -> None:
    call.head()
    call.tokens(lambda _: b"data: " + delta(content=" tok"))
    call.write(b"data: " + delta("length", usage=usage(7, OUT)))
    call.write(b"data: data: [DONE]\n\n")
    call.end()


def lines_alone(call: Call) -> None:
    """No blank line parts the events."""
    call.head()
    call.tokens(lambda _: delta(content=" tok")[:-1])
    call.write(delta("length", usage=usage(7, OUT))[:-1] + b"data: [DONE]\n")
    call.end()


def line_by_line(call: Call) -> None:
    """The blank line behind an event is a piece of its own."""

    def line(_: int) -> bytes:
        call.write(delta(content=" tok")[:-1])
        return b"\n"

    call.head()
    call.tokens(line)
    call.last()
    call.end()


def marked(call: Call) -> None:
    """A byte order mark begins the stream."""
    call.head()
    call.write(b"\xef\xbb\xbf")
    call.tokens()
    call.last()
    call.end()


@every_transport
@pytest.mark.parametrize(
    ("answer", "noted"),
    [
        (lines_alone, ["unparted"]),
        (line_by_line, []),
        (marked, []),
        (named("application/json"), ["content_type:application/json"]),
        (named(None), ["content_type:none"]),
        (named("text/html; charset=utf-8"), ["content_type:text/html"]),
        (named("text/event-stream; charset=utf-8"), []),
        (data_twice, ["data_twice"]),
    ],
)
def test_a_stream_is_measured_whatever_it_is_called(answer: Answer, noted: list[str], transport: str) -> None:
    (exchange,) = exchanges(answer, transport=transport)
    assert (exchange.error, [*exchange.noted, *exchange.decoded.noted]) == ("", noted), exchange.message
    assert (len(exchange.decoded.arrivals), exchange.decoded.output_tokens) == (OUT, OUT)
    arrivals = exchange.decoded.arrivals
    assert arrivals[0] < arrivals[-1], "tokens are stamped as they come, not all with the end"


def document(body: object, kind: str = "application/json") -> Answer:
    return lambda call: call.request.answer(200, json.dumps(body).encode(), kind)


def held(*events: bytes) -> Answer:
    def answer(call: Call) -> None:
        call.head()
        for each in events:
            call.write(each)
        call.end()

    return answer


QUOTA = {"error": {"message": "the quota is used up", "code": 429}}
LINES = json.dumps({"choices": [{"delta": {"content": "a"}}]}).encode() + b"\n\n"
ERRORS = {
    "an error in place of a stream": (document(QUOTA), "stream_error", "the quota is used up"),
    "an error called a stream": (document(QUOTA, "text/event-stream"), "stream_error", "the quota is used up"),
    "a gateway's own": (document({"success": False, "code": 1004, "msg": "old key"}), "stream_error", "old key"),
    "a list of details": (document({"detail": [{"loc": ["body"], "msg": "no such field"}]}), "stream_error", "no such"),
    "a page": (lambda call: call.request.answer(200, b"<html>hi", "text/html"), "content_type", "text/html"),
    "a whole answer": (document({"choices": [{"message": {"content": "a"}}]}), "content_type", "no event in it"),
    "lines of JSON": (held(LINES, LINES), "content_type", "no event in it"),
    "an event of details": (held(event({"detail": "not ready"}), b"data: [DONE]\n\n"), "stream_error", "not ready"),
    "an event that is an error": (
        held(event({"object": "error", "message": "the cache is full", "code": 503}), b"data: [DONE]\n\n"),
        "stream_error", "the cache is full",
    ),
    "words behind a token": (
        held(delta(content="a"), b"upstream connect error\n\n"), "truncated", "finish_reason: upstream connect error"
    ),
    "an error behind a token, in no event": (
        held(delta(content="a"), json.dumps(QUOTA).encode() + b"\n"), "stream_error", "the quota is used up",
    ),
    "events of an unknown form": (held(event({"base": {"code": 1002, "text": "too fast"}})), "truncated", "too fast"),
    "an event in words": (held(b"data: Internal Server Error\n\n"), "truncated", "Internal Server Error"),
    "nothing but the end": (held(b"data: [DONE]\n\n"), "empty_response", "the stream held no event but [DONE]"),
    "nothing": (held(), "truncated", "the stream held no event"),
}  # fmt: skip


@every_transport
@pytest.mark.parametrize("kind", ERRORS)
def test_an_answer_of_200_without_a_stream_has_the_server_s_words(kind: str, transport: str) -> None:
    answer, error, words = ERRORS[kind]
    (exchange,) = exchanges(answer, transport=transport)
    assert (exchange.error, exchange.response.status) == (error, 200), exchange.message
    assert words in exchange.message


@every_transport
def test_the_words_of_a_refusal_are_read_behind_its_coding(transport: str) -> None:
    body = gzip.compress(msgspec.json.encode({"error": {"message": "slow down please"}}))
    coding = "Content-Encoding: gzip\r\nRetry-After: 2\r\n"
    (exchange,) = exchanges(lambda call: call.request.answer(429, body, extra=coding), transport=transport)
    assert (exchange.error, exchange.retry_after_s) == ("http_429", 2.0)
    assert "slow down please" in exchange.message
