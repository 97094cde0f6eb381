"""The answer to one of the first requests: read as the load will read it, or why it cannot be.

A body is told by its first bytes, whatever it is called. One that is whole has to end soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from harness.base.errors import HarnessError
from harness.base.secrecy import plain
from harness.dialects import DIALECTS, document
from harness.dialects.decoder import DecodedResponse
from harness.dialects.dialect import Decoder, Dialect
from harness.dialects.document import JSON
from harness.dialects.sse import EVENTS, NDJSON
from harness.load import control
from harness.load.http1 import ResponseParser, is_readable, media_type
from harness.run.launch.spoken import NotSpokenError
from harness.run.launch.unreachable import server_words
from harness.spec import scenario

LONGEST_BODY = 65_536  # bytes of an error's body that are searched
_LONGEST = 2 * document.LONGEST  # bytes of a document, which is bounded by its own reader
_QUIET_S = 3.0  # after which an answer that came whole has no end
_UNENDED = "it closes the connection in place of ending its response; what came is whole"


async def read(
    answer: control.Reply, target: scenario.Target, asked: int, place: str
) -> tuple[DecodedResponse, list[str]]:
    """An answer of so many tokens, decoded, and notes on it.

    HarnessError where it is none, or where it came whole and the response does not end.
    """
    decoding = DIALECTS[target.api].decoders(stream=target.streams)(asked=asked)
    try:
        notes = await _feed(decoding, answer, target, place)
    except BaseException:
        decoding.end(0)  # What it keeps counts against the bound of all unfinished responses of this process.
        raise
    return decoding.end(time.monotonic_ns()), notes


async def _feed(decoding: Decoder, answer: control.Reply, target: scenario.Target, place: str) -> list[str]:
    """Decode an answer as far as it comes; return notes on it. Raises what `read` raises."""
    dialect, notes = DIALECTS[target.api], list[str]()
    came, readable = bytearray(), None
    media, quiet_s = decoding.media, min(_QUIET_S, target.request_timeout / 2)
    _must_be_plain(media, answer.headers, place)
    ResponseParser().take_head(answer.status, answer.headers)  # as the load will read it

    def over() -> bool:
        return readable is False or decoding.came_whole or (media == JSON and _is_json(bytes(came)))

    try:
        longest = _LONGEST if media == JSON else control.LONGEST
        async for piece in _until_quiet(control.pieces(answer, longest), quiet_s, over):
            came += piece
            if readable is None:
                readable = is_readable(media, answer.headers, bytes(came))
                piece = bytes(came) if readable else b""
            if readable:
                decoding.feed(piece, time.monotonic_ns())
    except control.TransportError:
        if readable is None or (readable and not decoding.came_whole):
            raise
        notes.append(_UNENDED)
    except TimeoutError:
        if readable:
            fact = f"its answer came whole, but {quiet_s:g} s later the response has not ended"
            way_out = "let the server, or the proxy before it, end its responses"
            raise HarnessError(fact, place=place, way_out=way_out) from None
    if came.strip() and not readable:
        raise _no_answer(dialect, media, answer.headers, bytes(came), place)
    if (kind := media_type(answer.headers.get("content-type", ""))) != media:
        notes.append(f"its answers are called {plain(kind[:60]) or 'nothing'}, and read as {media}")
    return notes


def _is_json(body: bytes) -> bool:
    """Whether it is one whole JSON value."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):  # of any depth
        return False
    return True


async def _until_quiet(pieces: AsyncIterator[bytes], quiet_s: float, over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The pieces of an answer; TimeoutError where it is over and no end comes for so many seconds."""
    while True:
        coming = asyncio.ensure_future(anext(pieces, None))
        try:
            if not (await asyncio.wait((coming,), timeout=quiet_s))[0] and over():
                raise TimeoutError
            piece = await coming
        finally:
            coming.cancel()
        if piece is None:
            return
        yield piece


def _must_be_plain(media: str, headers: Mapping[str, str], place: str) -> None:
    """HarnessError where a response is compressed."""
    if (coding := headers.get("content-encoding", "identity")) != "identity":
        raise HarnessError(
            f"it compresses its {'answers' if media == JSON else 'streams'} ({coding[:40]}), though no compression was "
            "requested",
            place=place,
            way_out=f"switch compression off for {media} there",
        )


def _no_answer(dialect: Dialect, media: str, headers: Mapping[str, str], body: bytes, place: str) -> NotSpokenError:
    """The error of a 200 whose body is not of this media type: what it is, and its first words."""
    names = {"text/html": "HTML", JSON: "one JSON body", NDJSON: "lines of JSON", EVENTS: "a stream"}
    kind = media_type(headers.get("content-type", "")) or (JSON if body.lstrip()[:1] == b"{" else "")
    what = names.get(kind) or repr(plain(kind[:60]) or "no content type")
    fact = f"it answers with {what}, not {names[media]}" if kind != media else "its body holds no event"
    if dialect.whole is not None:
        decoding = dialect.whole()
        decoding.feed(body, 0)
        if not decoding.end(0).error:
            return NotSpokenError(fact, place=place, way_out="--no-stream measures such answers")
    if media == JSON:
        return NotSpokenError(fact, place=place, way_out="see --api")
    if kind != "text/html":
        fact += f" ({server_words(200, body[:LONGEST_BODY].decode('utf-8', 'replace'))})"
    way_out = "see the server's log; nothing was loaded" if kind == JSON else "give an endpoint that streams"
    return NotSpokenError(fact, place=place, way_out=way_out)
