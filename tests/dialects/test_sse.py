"""Server-sent events: recorded and invented streams, cut at every byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.dialects.sse import EventParser

STREAMS = {
    "plain": (b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n', [b'{"a":1}', b'{"b":2}', b"[DONE]"]),
    "crlf": (b"data: x\r\n\r\ndata: y\r\n\r\n", [b"x", b"y"]),
    "bare cr": (b"data: x\r\rdata: y\r\r", [b"x", b"y"]),
    "comments": (b": ping\n\ndata: x\n\n: ping\n\n:\n\ndata: y\n\n", [b"x", b"y"]),
    "no space": (b"data:x\n\n", [b"x"]),
    "several lines": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "other fields": (b"event: message\nid: 7\nretry: 10\ndata: x\n\n", [b"x"]),
    "an event of no data": (b"event: ping\n\ndata: x\n\n", [b"x"]),
    "a named error": (b'event: error\ndata: {"a":1}\n\n', [b'error: {"a":1}']),
    "an error of no words": (b"event: error\n\ndata: x\n\n", [b"error: ", b"x"]),
    "an error in a field of its own": (b'error: {"code":500}\n\n', [b'error: {"code":500}']),
    "another name": (b"event: error\nevent: message\ndata: x\n\n", [b"x"]),
    "data without a colon": (b"data\ndata: x\n\n", [b"\nx"]),
    "a NUL and bytes that are no UTF-8": (b"data: \0\xff\n\n", [b"\0\xff"]),
    "mixed line ends": (b"data: a\r\ndata: b\r\r\ndata: c\n\n", [b"a\nb", b"c"]),
    "many blank lines": (b"\n\n\ndata: x\n\n\n\ndata: y\n\n", [b"x", b"y"]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_cut_gives_the_same_events(name: str) -> None:
    data, events = STREAMS[name]
    for cut in range(len(data) + 1):
        stream = EventParser()
        got = stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.end()
        assert got == events, f"cut at {cut}"
    stream = EventParser()
    got = [event for i in range(len(data)) for event in stream.feed(data[i : i + 1])]
    assert got + stream.end() == events


@given(st.lists(st.binary(min_size=1).filter(lambda b: not set(b) & set(b"\r\n")), max_size=6), st.data())
def test_any_payloads_come_out_as_they_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    wire = b"".join(b"data: " + p + end + end for p in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=5)))
    stream, got, at = EventParser(), [], 0
    for cut in [*cuts, len(wire)]:
        got += stream.feed(wire[at:cut])
        at = cut
    assert got + stream.end() == payloads


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    stream = EventParser()
    assert stream.feed(b"data: x\n\ndata: last\n") == [b"x"]
    assert stream.end() == [b"last"]
    assert stream.end() == []


def test_an_event_comes_with_the_byte_that_completes_it_whatever_its_line_ends() -> None:
    for data in (b"data: x\n\n", b"data: x\r\r", b"data: x\r\n\r"):
        stream = EventParser()
        assert stream.feed(data[:-1]) == []
        assert stream.feed(data[-1:]) == [b"x"]


def test_a_blank_line_too_many_changes_no_words_wherever_the_stream_is_cut() -> None:
    stream = b"da\n\n\nta: words\n\ndata: 1\n\n\n"
    for at in range(1, len(stream)):
        parser = EventParser()
        assert parser.feed(stream[:at]) + parser.feed(stream[at:]) == [b"da", b"ta: words", b"1"], at
