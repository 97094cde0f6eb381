"""The fault matrix: every way in which a server fails a load generator, and what must come of it. Data, no runs.

A row's script commits the fault on the requests that are marked, `tests.misbehaving` runs it, `tests.matrix` holds
what was measured against the row and the server's own log; `scripts/trust` prints the same rows as a table.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from typing import NamedTuple

from tests.builders.streams import DONE, delta, usage
from tests.builders.wordings import counted as usage_of
from tests.trust.misbehaving import PROMPT, TOKENS, Exchange, Script

LINE = b"x" * 65_536
ERROR = json.dumps({"error": {"message": "the engine died", "code": 500}}).encode()


class Row(NamedTuple):
    """A fault, and what must stand in the records of the requests that meet it."""

    fault: str
    script: Script
    error: str  # the record's; "" where it is no failure
    status: int | None = 200
    tokens: int = 0  # that were kept
    said: str = ""  # that the record's message holds
    deadline_s: float = 5.0
    resent: bool | None = False  # requests went into connections that had been closed before; None: that is chance
    which: str = "marked"  # requests that meet it; none are good where that is all of the load
    tls: str = ""  # the server's certificate
    port: int = 0  # in place of the server's
    host: str = ""  # likewise
    output_tokens: int | None = TOKENS  # of a request that is no failure
    clock_is_set: bool = False
    floods: bool = False
    rest_s: float = 0.0  # that a slot takes after it
    httpx_error: str = ""  # what it is called there, where that is something else
    api: str = "chat"

    @property
    def lasts(self) -> bool:
        """Whether it takes long, alone."""
        return self.floods or self.clock_is_set or self.which == "load" or self.deadline_s < 1.0 or self.rest_s >= 1.0


def refusal(status: int, headers: bytes = b"") -> Script:
    async def script(x: Exchange) -> None:
        await x.answer(status, ERROR, headers)

    return script


async def refused_before_it_was_read(x: Exchange) -> None:
    await x.answer(503, ERROR, b"Connection: close\r\n")
    x.close()


async def refused_with_a_stream(x: Exchange) -> None:
    await x.write(x.stream_head(status=b"500 X"))
    await x.tokens(2)
    await x.end()


async def closed_before(x: Exchange) -> None:
    x.close()


_seen: set[str] = set()


async def closed_before_once(x: Exchange) -> None:
    """Good when it is asked again: whoever asks again hides a failure."""
    if x.request_id in _seen:
        await x.good()
    _seen.add(x.request_id)
    x.close()


async def reset_before(x: Exchange) -> None:
    x.reset()


async def closed_after_the_head(x: Exchange) -> None:
    await x.head()
    x.close()


async def closed_in_the_stream(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    x.close()


async def reset_in_the_stream(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await asyncio.sleep(x.pace.gap_s)  # a reset may outrun what was written right before it
    x.reset()


async def reset_after_the_stream(x: Exchange) -> None:
    await x.good()
    x.reset()


async def closed_after_the_stream(x: Exchange) -> None:
    """Kept alive, it says, and brings the connection's end with the last bytes."""
    await x.good_and_end()
    x.close()


async def half_closed_before(x: Exchange) -> None:
    x.end_writing()
    await x.silence()


async def half_closed_in_the_stream(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    x.end_writing()
    await x.silence()


async def silent(x: Exchange) -> None:
    await x.silence()


def stalled(tokens: int) -> Script:
    async def script(x: Exchange) -> None:
        await x.head()
        await x.tokens(tokens)
        await x.silence()

    return script


async def stalled_at_the_end(x: Exchange) -> None:
    await x.head()
    await x.tokens(TOKENS)
    await x.chunk(delta("length"))
    await x.silence()


async def comments_for_ever(x: Exchange) -> None:
    await x.head()
    while True:
        await x.chunk(b": ping\n\n")
        await asyncio.sleep(0.05)


async def byte_by_byte(x: Exchange) -> None:
    await x.head()
    for i in range(TOKENS):
        await asyncio.sleep(x.pace.gap_s if i else x.pace.first_s)
        data = delta(content=" a")
        framed = b"%x\r\n%b\r\n" % (len(data), data)
        for at in range(len(framed) - 3):  # a chunk's event is whole with its last blank line
            await x.write(framed[at : at + 1])
            await asyncio.sleep(0)
        await x.written(framed[-3:-2])
        await x.write(framed[-2:])
    await x.end()


async def chunk_cut_off(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.write(b"64\r\ndata: {")
    x.close()


def badly_framed(data: bytes) -> Script:
    async def script(x: Exchange) -> None:
        await x.head()
        await x.tokens(2)
        await asyncio.sleep(x.pace.gap_s)
        await x.write(data)
        await x.silence()

    return script


async def gigantic_header(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n")


async def header_without_end(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await x.write(LINE)


async def line_without_end(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.chunk(b'data: {"')
    while True:
        await x.chunk(LINE)


async def one_chunk_without_end(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.write(b"ffffffff\r\ndata: ")
    while True:
        await x.write(LINE)


async def refusal_without_end(x: Exchange) -> None:
    await x.write(b"HTTP/1.1 500 X\r\nContent-Length: 99999999999\r\n\r\n")
    while True:
        await x.write(LINE)
        await asyncio.sleep(0.001)


async def compressed(x: Exchange) -> None:
    await x.answer(
        200, gzip.compress(delta("length", content=" a")), b"Content-Encoding: gzip\r\n", b"text/event-stream"
    )


async def html(x: Exchange) -> None:
    await x.answer(200, b"<html>Welcome to the proxy</html>", kind=b"text/html; charset=utf-8")


async def one_json_body(x: Exchange) -> None:
    body = {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}], "usage": usage(PROMPT, 3)}
    await x.answer(200, json.dumps(body).encode())


def one_bad_event(data: bytes) -> Script:
    """Good, but for an event in the middle."""

    async def script(x: Exchange) -> None:
        await x.head()
        await x.tokens(2)
        await x.chunk(data)
        await x.tokens(2)
        await x.end()

    return script


async def error_in_the_stream(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.chunk(x.wording.error)
    await x.end(finish=None)


async def without_done(x: Exchange) -> None:
    await x.head()
    await x.tokens(TOKENS)
    last = x.wording.end(usage(PROMPT, TOKENS), "length").removesuffix(DONE)
    await x.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))


async def without_finish(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.end(finish=None)


async def without_end(x: Exchange) -> None:
    await x.head()
    await x.tokens(2)
    await x.write(b"0\r\n\r\n")


async def finished_twice(x: Exchange) -> None:
    await x.head()
    await x.tokens(TOKENS)
    await x.chunk(delta("length"))
    await x.chunk(delta("stop"))
    await x.end()


def counted(completion: object) -> Script:
    async def script(x: Exchange) -> None:
        await x.head()
        await x.tokens(TOKENS)
        await x.end(counts=usage_of(PROMPT, completion))

    return script


async def without_usage(x: Exchange) -> None:
    await x.head()
    await x.tokens(TOKENS)
    await x.end(counts={})


RETRY = b"Retry-After: 1\r\n"
DEADLINE, DEADLINE_S = "client_deadline", 0.6

ROWS = [
    Row("400 instead of a stream", refusal(400), "http_4xx", 400, said="the engine died"),
    Row("500 instead of a stream", refusal(500), "http_5xx", 500, said="the engine died"),
    Row("503 and closed", refused_before_it_was_read, "http_5xx", 503),
    Row("500 with a stream", refused_with_a_stream, "http_5xx", 500),
    Row("500 without end", refusal_without_end, DEADLINE, 500, deadline_s=DEADLINE_S, floods=True),
    Row("429", refusal(429), "http_429", 429, rest_s=0.05),
    Row("429 with Retry-After", refusal(429, RETRY), "http_429", 429, said="Retry-After: 1", rest_s=1.0),
    Row("redirect", refusal(307, b"Location: /good/marked/quick/v1/chat/completions\r\n"), "http_3xx", 307),
    Row("connection refused", Exchange.good, "refused", None, which="load", port=1),
    Row("no such host", Exchange.good, "connect", None, which="load", host="no-such-host.invalid",
        deadline_s=15.0),  # a resolver that has lost a packet asks again after 5 s
    Row("TLS certificate expired", Exchange.good, "tls", None, which="load", tls="expired"),
    Row("TLS certificate of another host", Exchange.good, "tls", None, which="load", tls="another host's"),
    Row("TLS certificate self-signed", Exchange.good, "tls", None, which="load", tls="self-signed"),
    Row("reset before the answer", reset_before, "reset", None),
    Row("closed before the answer", closed_before, "reset", None),
    Row("closed before the answer, once", closed_before_once, "reset", None),
    Row("half-closed before the answer", half_closed_before, "reset", None),
    Row("closed after the head", closed_after_the_head, "truncated"),
    Row("closed in the stream", closed_in_the_stream, "truncated", tokens=2),
    Row("half-closed in the stream", half_closed_in_the_stream, "truncated", tokens=2),
    Row("reset in the stream", reset_in_the_stream, "reset", tokens=2),
    Row("reset after the stream", reset_after_the_stream, "", tokens=TOKENS, resent=None),
    Row("kept alive, then closed", closed_after_the_stream, "", tokens=TOKENS, resent=None),
    Row("stalls before the head", silent, DEADLINE, None, deadline_s=DEADLINE_S),
    Row("stalls before the first token", stalled(0), DEADLINE, deadline_s=DEADLINE_S),
    Row("stalls in the middle", stalled(2), DEADLINE, tokens=2, deadline_s=DEADLINE_S),
    Row("stalls at the end", stalled_at_the_end, DEADLINE, tokens=TOKENS, deadline_s=DEADLINE_S),
    Row("comments for ever", comments_for_ever, DEADLINE, deadline_s=DEADLINE_S),
    Row("byte by byte", byte_by_byte, "", tokens=TOKENS),
    Row("truncated chunk", chunk_cut_off, "truncated", tokens=2),
    Row("bad chunk length", badly_framed(b"zz\r\nhello\r\n"), "protocol", tokens=2),
    Row("negative chunk length", badly_framed(b"-5\r\nhello\r\n"), "protocol", tokens=2),
    Row("chunk longer than its length", badly_framed(b"2\r\nhello\r\n"), "protocol", tokens=2),
    Row("chunk length without end", badly_framed(b"0" * 5000), "protocol", tokens=2, deadline_s=DEADLINE_S,
        httpx_error=DEADLINE),
    Row("gigantic header", gigantic_header, "protocol", None),
    Row("header without end", header_without_end, "protocol", None, floods=True),
    Row("line without end", line_without_end, "line_too_long", tokens=2, floods=True),
    Row("one chunk without end", one_chunk_without_end, "line_too_long", tokens=2, floods=True),
    Row("lines without end in all answers", line_without_end, "line_too_long", tokens=2, which="load", deadline_s=30.0,
        floods=True),
    Row("gzip", compressed, "encoding", said="gzip"),
    Row("HTML", html, "content_type", said="text/html"),
    Row("JSON in place of a stream", one_json_body, "content_type", said="application/json"),
    Row("invalid UTF-8", one_bad_event(b'data: {"choices": [{"delta": {"content": "\xff\xfe"}}]}\n\n'), "",
        tokens=TOKENS),
    Row("invalid JSON in one event", one_bad_event(b'data: {"choices": [{"del\n\n'), "malformed_event", tokens=TOKENS),
    Row("error object in the stream", error_in_the_stream, "stream_error", tokens=2, said="the engine died"),
    Row("no finish reason", without_finish, "", tokens=2),
    Row("no end in the stream", without_end, "truncated", tokens=2),
    Row("no [DONE]", without_done, "", tokens=TOKENS),
    Row("finished twice", finished_twice, "", tokens=TOKENS),
    Row("negative usage", counted(-3), "", tokens=TOKENS),
    Row("huge usage", counted(10**12), "", tokens=TOKENS),
    Row("usage of text", counted(str(TOKENS)), "", tokens=TOKENS),
    Row("usage of 3.5 tokens", counted(3.5), "", tokens=TOKENS),
    Row("no usage", without_usage, "", tokens=TOKENS),
    Row("the wall clock is set", Exchange.good, "", tokens=TOKENS, clock_is_set=True),
]  # fmt: skip


# What a fault is does not depend on the dialect, but what reads it does: those that come in the stream, once more.
_IN_THE_STREAM = (
    "429", "closed in the stream", "half-closed in the stream", "reset in the stream", "kept alive, then closed",
    "stalls in the middle", "stalls at the end", "truncated chunk", "bad chunk length", "line without end",
    "one chunk without end", "gzip", "HTML", "JSON in place of a stream", "invalid JSON in one event",
    "error object in the stream", "no end in the stream", "negative usage", "usage of text", "no usage",
)  # fmt: skip
ROWS += [
    row._replace(fault=f"{row.fault}, {api}", api=api)
    for api in ("ollama", "anthropic")
    for row in ROWS
    if row.fault in _IN_THE_STREAM and (api, row.script) != ("ollama", one_json_body)  # a line of JSON is its stream
]


def slug(fault: str) -> str:
    """A fault's name as its server's paths have it."""
    return re.sub("[^a-z0-9]+", "-", fault.lower()).strip("-")


SCRIPTS: dict[str, Script] = {slug(row.fault): row.script for row in ROWS} | {"good": Exchange.good}


class Run(NamedTuple):
    """A fault met by a whole `knee run`, and how that must end."""

    fault: str
    path: str  # of the fault's server
    status: int
    said: str  # in the line of an operator's mistake, else in the verdicts
    errors: tuple[str, ...] = ()  # that the levels count
    tls: str = ""
    arguments: tuple[str, ...] = ()
    url: str = ""  # in place of the server's
    proxy: bool = False  # the server is the environment's proxy
    broken_proxy: bool = False  # the environment's proxy is not there
    ca_file: bool = False
    gone_s: float = 0.0  # the server is gone for so long in the middle of the level


def at(fault: str, which: str, pace: str = "steady") -> str:
    return f"/{slug(fault)}/{which}/{pace}"


HTTPX = ("--transport", "httpx")
SHORT = ("--request-timeout", "600ms")
GOOD = at("good", "marked")
RUNS = [
    Run("429 with Retry-After", at("429 with Retry-After", "marked"), 3, "http_429", errors=("http_429",)),
    Run("500 after the checks", at("500 instead of a stream", "load"), 3, "http_5xx", errors=("http_5xx",)),
    Run("stalls for ever after the checks", at("stalls before the head", "load"), 3, "client_deadline",
        errors=("client_deadline",), arguments=SHORT),
    Run("stalls for ever from the start", at("stalls before the head", "all"), 1, "no answer in time", arguments=SHORT),
    Run("gone and back", GOOD, 3, "requests failed", errors=("refused", "reset", "truncated"), gone_s=3.0),
    Run("refuses all", "/", 1, "nothing answers there", url="http://127.0.0.1:1"),
    Run("no host name", "/", 1, "not a host name", url="http://a..b"),
    Run("no such host", "/", 1, "no host of that name", url="http://no-such-host.invalid", arguments=("--yes",)),
    Run("TLS certificate expired", GOOD, 1, "its certificate has expired", tls="expired", ca_file=True),
    Run("TLS certificate of another host", GOOD, 1, "its certificate is not valid for", tls="another host's",
        ca_file=True),
    Run("TLS certificate self-signed", GOOD, 1, "its certificate is self-signed", tls="self-signed"),
    Run("TLS certificate self-signed, --insecure", GOOD, 0, "certificate was not verified", tls="self-signed",
        arguments=("--insecure",)),
    Run("TLS certificate of an authority of its own, --ca-file", GOOD, 0, "", tls="good", ca_file=True),
    Run("redirect", at("redirect", "all"), 1, "307", arguments=("--model", "toy")),
    Run("redirect after the checks", at("redirect", "load"), 3, "http_3xx", errors=("http_3xx",)),
    Run("a proxy in the environment, sockets", GOOD, 0, "", broken_proxy=True),
    Run("a proxy, --transport httpx", GOOD, 0, "", proxy=True, url="http://10.255.255.1", arguments=HTTPX),
    Run("a proxy that opens no tunnel, --transport httpx", GOOD, 1, "the proxy refuses", proxy=True,
        url="https://10.255.255.1", arguments=HTTPX),
    Run("a line without end from the start", at("line without end", "checks"), 1, "longer than 4 MiB"),
    Run("an answer without end from the start", at("500 without end", "all"), 1, "longer than 4 MiB", arguments=SHORT),
    Run("gzip from the start", at("gzip", "checks"), 1, "compresses"),
]  # fmt: skip
