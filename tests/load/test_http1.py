"""HTTP/1.1 framing: the same bytes cut anywhere give the same pieces and end at the same byte."""

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import ProtocolError
from harness.dialects.sse import EVENTS, JSON, NDJSON
from harness.load.http1 import ResponseParser, decompressed, is_readable, request, request_head

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n \r\n6\r\nwor\r\nd\r\n0\r\n\r\n"
)
LENGTH = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"
# A body whose bytes look like an end of chunks, three times, before the end comes.
TRICKY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: 0\r\n\r\n" + b"a\r\nx\r\n0\r\n\r\ny\n\r\n" + b"0\r\n\r\n"


def fed(cuts: list[bytes]) -> tuple[bytes, ResponseParser]:
    response, body = ResponseParser(), b""
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
    response = ResponseParser()
    assert response.feed(b"HTTP/1.1 200 OK\r\n\r\nab") == [b"ab"]
    assert response.feed(b"c") == [b"c"]
    assert not response.over
    assert response.eof()
    assert response.over


def test_a_close_inside_chunks_is_no_end() -> None:
    response = ResponseParser()
    response.feed(CHUNKED[:-3])
    assert not response.eof()


OK = b"HTTP/1.1 200 OK\r\n"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def refused(data: bytes) -> str:
    """The error of a response that is none; the same whole and byte by byte."""
    names = []
    for reads in ([data], [data[i : i + 1] for i in range(len(data))]):
        response = ResponseParser()
        with pytest.raises(ProtocolError) as caught:
            list(map(response.feed, reads))
        assert not response.over
        names.append(caught.value.error)
    assert names[0] == names[1]
    return names[0]


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50",  # a TLS alert
        b"HTTP/2 200\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2600,
        OK + b"no colon here\r\n\r\n",
        OK + b"X : blank before the colon\r\n\r\n",
        OK + b": no name\r\n\r\n",
        OK + b"X: a\0b\r\n\r\n",
        OK + b"X: a\nY: b\r\n\r\n",
        OK + b"X: a\rY: b\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: y\n\n",
        OK + b"X: y\r\n" * 257 + b"\r\n",
        OK + b"X: " + b"y" * 65_536 + b"\r\n\r\n",
        OK + b"X: " + b"y" * 70_000,
    ],
)
def test_what_is_no_http_head_is_refused_wherever_it_is_cut(data: bytes) -> None:
    assert refused(data) == "protocol"


@pytest.mark.parametrize(
    "value",
    [b"-5", b"+5", b"", b"5 5", b"5, 6", b"5\r\nContent-Length: 6", b"0x5", b"1_0", b"\xb2", b"9" * 19, b"9" * 5000],
)
def test_a_content_length_is_one_number_or_none(value: bytes) -> None:
    assert refused(OK + b"Content-Length: " + value + b"\r\n\r\n") == "protocol"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"zz", b"-1", b"+5", b" 5", b"0x5", b"1_0", b"5 5", b"5;\0", b"5\n", b";a=b", b"\xb2",
        b"f" * 17, b"f" * 900, b"0" * 2000, b"5;" + b"x" * 1023,
    ],
)  # fmt: skip
def test_a_chunk_length_is_hexadecimal_digits_and_no_more_than_16(line: bytes) -> None:
    assert refused(IN_CHUNKS + line + b"\r\nhello\r\n0\r\n\r\n") == "protocol"


def test_a_line_that_never_ends_is_no_chunk_length_and_no_trailer() -> None:
    assert refused(IN_CHUNKS + b"5;" + b"x" * 1025) == "protocol"
    assert refused(IN_CHUNKS + b"0\r\n" + b"X: y\r\n" * 11_000) == "protocol"


@pytest.mark.parametrize("after", [b"abcd\r\n", b"abX\r\n", b"ab\rX", b"ab\n"])
def test_a_chunk_ends_where_its_length_says(after: bytes) -> None:
    assert refused(IN_CHUNKS + b"2\r\n" + after) == "protocol"


@pytest.mark.parametrize("line", [b"A", b"a", b"00a", b"a  ", b"a\t;x", b'a;name="v"', b"a;" + b"x" * 1022])
def test_what_servers_write_around_a_chunk_length_is_read(line: bytes) -> None:
    body, response = fed([IN_CHUNKS + line + b"\r\n0123456789\r\n0\r\n\r\n"])
    assert (body, response.over, response.keep_alive) == (b"0123456789", True, True)


def test_pieces_that_came_before_the_fault_come_with_it() -> None:
    with pytest.raises(ProtocolError) as caught:
        ResponseParser().feed(IN_CHUNKS + b"2\r\nab\r\n3\r\ncde\r\nzz\r\n")
    assert caught.value.pieces == [b"ab", b"cde"]


def test_a_chunk_is_returned_as_it_comes_whatever_its_length() -> None:
    response = ResponseParser()
    assert response.feed(IN_CHUNKS + b"7fffffffffffffff\r\nab") == [b"ab"]
    assert response.feed(b"c\r\n") == [b"c\r\n"]
    assert not response.eof()


def test_the_bytes_kept_of_a_split_end_of_a_chunk_are_checked_in_both_reads() -> None:
    response = ResponseParser()
    assert response.feed(IN_CHUNKS + b"2\r\nab\r") == [b"ab"]
    assert response.lone(b"2\r\ncd\r\n") is None
    with pytest.raises(ProtocolError):
        response.feed(b"2\r\ncd\r\n")


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        (b"Content-Encoding: gzip", "encoding"),
        (b"Content-Encoding: BR", "encoding"),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip", "encoding"),
        (b"Transfer-Encoding: gzip, chunked", "encoding"),
        (b"Transfer-Encoding: chunked, chunked", "encoding"),
        (b"Transfer-Encoding: identity", "encoding"),
        (b"Transfer-Encoding: xchunked", "encoding"),
    ],
)
def test_a_coding_that_was_not_requested_is_refused_by_name(headers: bytes, error: str) -> None:
    assert refused(OK + headers + b"\r\n\r\n") == error


def test_identity_is_no_coding_and_a_refusal_may_be_in_any() -> None:
    for head in (OK + b"Content-Encoding: Identity", b"HTTP/1.1 503 No\r\nContent-Encoding: gzip"):
        body, response = fed([head + b"\r\nContent-Length: 2\r\n\r\nab"])
        assert (body, response.over) == (b"ab", True)


EVENT, OBJECT, PAGE = b"data: {}", b'{"error": "busy"}', b"<html>"
HEADLESS = [b"event: ping", b"id: 1", b"retry: 3000", b": ping", b"error: no"]


@pytest.mark.parametrize(
    ("media", "value", "start", "readable"),
    [
        (EVENTS, "text/event-stream", EVENT, True), (EVENTS, "Text/Event-Stream;charset=utf-8", b"x: y", True),
        (EVENTS, "text/event-stream, text/event-stream", EVENT, True),
        (EVENTS, "text/event-stream", OBJECT, False), (EVENTS, "text/event-stream", PAGE, False),
        (EVENTS, "application/json", EVENT, True), (EVENTS, "", EVENT, True),
        (EVENTS, "text/html", b"\r\n" + EVENT, True),
        *((EVENTS, "", start, True) for start in HEADLESS),
        (EVENTS, "", OBJECT, False), (EVENTS, "text/html", PAGE, False), (EVENTS, "text/plain", b"date: now", False),
        (EVENTS, "text/event-stream", b" \n", None), (EVENTS, "", b"", None), (EVENTS, "", b"even", None),
        (NDJSON, "application/x-ndjson", PAGE, True), (NDJSON, "application/json", OBJECT, True),
        (NDJSON, "text/event-stream", EVENT, False), (JSON, "text/plain", b"[1]", True), (JSON, "", b"busy", False),
    ],
)  # fmt: skip
def test_a_body_is_told_by_its_first_bytes(media: str, value: str, start: bytes, readable: bool | None) -> None:
    headers = {"content-type": value} if value else {}
    assert is_readable(media, headers, start) is readable


def test_only_an_answer_of_200_may_be_a_stream() -> None:
    _, response = fed([OK + b"\r\n"])
    assert response.streams is None, "its first bytes are still to come"
    _, response = fed([b"HTTP/1.1 400 No\r\nContent-Type: text/event-stream\r\n\r\n"])
    assert response.streams is False


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "deflate", "GZIP", "br", ""])
def test_a_refusal_is_read_whatever_its_coding_as_far_as_it_came(name: str) -> None:
    text = b'{"error": "slow down"}' * 9
    kinds = {"": [text], "br": [b"\x8b"], "deflate": [zlib.compress(text)]}
    for body in kinds.get(name, [gzip.compress(text)]):
        found = decompressed(body, {"content-encoding": name} if name else {})
        assert found == (body if name == "br" else text)
    assert decompressed(gzip.compress(text)[:-9], {"content-encoding": "gzip"}).startswith(b'{"error"')
    assert len(decompressed(gzip.compress(b" " * 10**7), {"content-encoding": "gzip"})) == 8192


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x, Close", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: enclosed", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 1", False),  # RFC 9112, 6.3
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive", False),  # RFC 9112, 6.1
    ],
)
def test_who_frames_twice_or_by_what_its_version_does_not_know_is_read_once(head: bytes, keep: bool) -> None:
    body, response = fed([head + b"\r\n\r\n2\r\nab\r\n0\r\n\r\n"])
    assert (body, response.over, response.keep_alive) == (b"ab", True, keep)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2",
        b"HTTP/1.1 200\r\nContent-Length: 2",
        b"HTTP/1.1 200 \r\ncontent-length:2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: \xe9\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nX: folded\r\n\t over\r\n lines\r\nContent-Length:\r\n 2",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2",
    ],
)
def test_what_servers_do_write_is_read(head: bytes) -> None:
    body, response = fed([head + b"\r\n\r\nab"])
    assert (response.status, body, response.over, response.keep_alive) == (200, b"ab", True, True)


def test_a_connection_with_bytes_after_the_end_is_not_used_again() -> None:
    for data in (LENGTH.replace(b"Connection: close\r\n", b""), CHUNKED, b"HTTP/1.1 204 No\r\n\r\n"):
        _, response = fed([data])
        assert response.keep_alive
        _, response = fed([data + b"HTTP/1.1 200 OK"])
        assert (response.over, response.keep_alive) == (True, False)
        assert response.feed(b"more") == []


def test_a_request_carries_its_id_and_length() -> None:
    head = request_head("POST", "/v1/x", [("Host", "h:1"), ("Authorization", "Bearer k")])
    data = request(head, "id-1", b"{}")
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.split(b"\r\n")
    assert lines[0] == b"POST /v1/x HTTP/1.1"
    assert {b"Host: h:1", b"X-Request-Id: id-1", b"Content-Length: 2", b"Authorization: Bearer k"} <= set(lines)
    assert body == b"{}"


@given(st.lists(st.binary(min_size=0, max_size=300), min_size=1, max_size=8), st.integers(1, 400))
def test_a_lone_chunk_is_what_feed_returns_and_nothing_else_is_taken(parts: list[bytes], size: int) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
    quick, plain = ResponseParser(), ResponseParser()
    for response in (quick, plain):
        response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(wire), size):
        read = wire[at : at + size]
        piece = quick.lone(read)
        assert (quick.feed(read) if piece is None else [piece]) == plain.feed(read)
    assert quick.over
    assert plain.over


def test_only_a_whole_chunk_by_itself_is_lone() -> None:
    response = ResponseParser()
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
