"""HTTP/1.1 framing: the same bytes cut anywhere give the same pieces and end at the same byte."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.http1 import ProtocolError, Response, request, request_head

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n \r\n6\r\nwor\r\nd\r\n0\r\n\r\n"
)
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"
# A body whose bytes look like an end of chunks, three times, before the end comes.
TRICKY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: 0\r\n\r\n" + b"a\r\nx\r\n0\r\n\r\ny\n\r\n" + b"0\r\n\r\n"


def fed(cuts: list[bytes]) -> tuple[bytes, Response]:
    response, body = Response(), b""
    for i, piece in enumerate(cuts):
        assert not response.over, f"over before its last byte, at cut {i}"
        body += b"".join(response.feed(piece))
    return body, response


@pytest.mark.parametrize(
    ("data", "body"),
    [(CHUNKED, b"hello wor\r\nd"), (LENGTH, b"hello"), (TRAILERS, b"ab"), (TRICKY, b"x\r\n0\r\n\r\ny\n")],
)
def test_every_cut_in_two_gives_the_same_body_and_end(data: bytes, body: bytes) -> None:
    for cut in range(1, len(data)):
        got, response = fed([data[:cut], data[cut:]])
        assert got == body
        assert response.over
    got, response = fed([data[i : i + 1] for i in range(len(data))])
    assert (got, response.over) == (body, True)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=6))
def test_chunks_of_any_bytes_cut_anywhere_come_out_whole(chunks: list[bytes], cuts: list[int]) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    edges = sorted({0, len(data), *(c % len(data) for c in cuts)})
    got, response = fed([data[a:b] for a, b in itertools.pairwise(edges)])
    assert got == b"".join(chunks)
    assert response.over


def test_status_headers_and_keep_alive_are_read() -> None:
    _, response = fed([LENGTH])
    assert (response.status, response.headers["content-length"], response.keep_alive) == (404, "5", False)
    _, response = fed([CHUNKED])
    assert response.keep_alive


def test_an_interim_answer_is_read_over() -> None:
    body, response = fed([b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH])
    assert (response.status, body) == (404, b"hello")


def test_a_body_without_length_ends_with_the_connection() -> None:
    response = Response()
    assert response.feed(b"HTTP/1.1 200 OK\r\n\r\nab") == [b"ab"]
    assert response.feed(b"c") == [b"c"]
    assert not response.over
    assert response.eof()
    assert response.over


def test_a_close_inside_chunks_is_no_end() -> None:
    response = Response()
    response.feed(CHUNKED[:-3])
    assert not response.eof()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000,
    ],
)
def test_what_is_not_http_says_so(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Response().feed(data)


def test_a_request_carries_its_id_and_length() -> None:
    head = request_head("POST", "/v1/x", "h:1", {"Authorization": "Bearer k"})
    data = request(head, "id-1", b"{}")
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.split(b"\r\n")
    assert lines[0] == b"POST /v1/x HTTP/1.1"
    assert {b"Host: h:1", b"X-Request-Id: id-1", b"Content-Length: 2", b"Authorization: Bearer k"} <= set(lines)
    assert body == b"{}"


@given(st.lists(st.binary(min_size=0, max_size=300), min_size=1, max_size=8), st.integers(1, 400))
def test_a_lone_chunk_is_what_feed_would_have_said_and_nothing_else_is_taken(parts: list[bytes], size: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    quick, plain = Response(), Response()
    for response in (quick, plain):
        response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(wire), size):
        read = wire[at : at + size]
        piece = quick.lone(read)
        assert (quick.feed(read) if piece is None else [piece]) == plain.feed(read)
    assert quick.over
    assert plain.over


def test_only_a_whole_chunk_by_itself_is_lone() -> None:
    response = Response()
    assert response.lone(b"2\r\nhi\r\n") is None, "no head has come yet"
    response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert response.lone(b"2\r\nhi\r\n") == b"hi"
    for other in (
        b"0\r\n\r\n",
        b"2\r\nhi\r\n0\r\n\r\n",
        b"2\r\nhi",
        b"1\r\na\r\n1\r\nb\r\n",
        b"02\r\nhi\r\n",
        b"2\r\nhiXX",
    ):
        assert response.lone(other) is None
    response.feed(b"2\r\nh")
    assert response.lone(b"2\r\nhi\r\n") is None, "in the middle of a chunk"
