"""The server's answers to the checks: read as the load will read them, or the error with its way out.

A body is known by its first bytes, whatever it is called. One that is whole has to end soon. Where an API's route is
not there, single requests without work find the API that the server does speak.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

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
from harness.run.launch.endpoint import Address, Endpoint
from harness.spec import scenario

LONGEST_BODY = 65_536  # bytes of an error's body that are searched
_LONGEST = 2 * document.LONGEST  # bytes of a document, which is bounded by its own reader
_QUIET_S = 3.0  # after which an answer that came whole has no end
_UNENDED = "it closes the connection in place of ending its response; what came is whole"
_LONGEST_MESSAGE = 4096  # characters of a server's message
_LONGEST_REASON = 200  # characters of an address that it redirects to
_NO_UPSTREAM = re.compile(r"connection error|cannot connect|connection refused|upstream connect|no healthy", re.I)
# The APIs to look for, in this order: a handful, since each is a request.
_LIKELY = ("chat", "completions", "ollama", "tgi", "llama-cpp", "anthropic")
_THERE = (200, 400, 415, 422, 500)  # of a route that takes requests, but not an empty one
_WITHIN_S = 10.0


class NotSpokenError(HarnessError):
    """An answer that the API to be measured does not give: there may be no such route."""


async def read(
    answer: control.Reply, target: scenario.Target, asked: int, place: str
) -> tuple[DecodedResponse, list[str]]:
    """Return an answer of so many tokens, decoded, and notes on it.

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
    """Return whether it is one whole JSON value."""
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):  # of any depth
        return False
    return True


async def _until_quiet(pieces: AsyncIterator[bytes], quiet_s: float, over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer; TimeoutError where it is over and no end comes for so many seconds."""
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
    """Raise HarnessError where a response is compressed."""
    if (coding := headers.get("content-encoding", "identity")) != "identity":
        raise HarnessError(
            f"it compresses its {'answers' if media == JSON else 'streams'} ({coding[:40]}), though no compression was "
            "requested",
            place=place,
            way_out=f"switch compression off for {media} there",
        )


def _no_answer(dialect: Dialect, media: str, headers: Mapping[str, str], body: bytes, place: str) -> NotSpokenError:
    """Return the error of a 200 whose body is not of this media type: what it is, and its first words."""
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


def server_words(status: int, body: str) -> str:
    """Return the server's own words of an error, on one line."""
    try:
        data = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        data = None
    message: Any = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    text = message if isinstance(message, str) else body
    words = plain(text[:_LONGEST_MESSAGE])[:240].strip()
    return f"{status}: {words}" if words else f"{status} without a word"


def redirected(
    status: int, headers: Mapping[str, str], base: str, path: str, *, cut: str = "", instead: str = ""
) -> HarnessError | None:
    """Return the error of an address whose server is elsewhere; None for other answers.

    A redirect is not followed: each request would take it again, and its headers would go to a host nobody named. `cut`
    is what was put at the end of the address that was given, `instead` what that has there.
    """
    location = plain(headers.get("location", "").partition("?")[0][:_LONGEST_REASON])
    if not 300 <= status < 400 or not location:
        return None
    place, path = base + path, path.partition("?")[0]
    try:
        to = urljoin(base + path, location)
        same_host = urlsplit(to).hostname == urlsplit(base).hostname
        slash = same_host and urlsplit(to).path == path + "/"
    except ValueError:  # no address
        to, slash = location, False
    if slash:
        fact = f"{status}: it wants a slash at the end of {path}, which Knee does not send"
        return HarnessError(fact, place=place, way_out="let the server take the path without it")
    if cut and to.rstrip("/").endswith(cut):
        to = to.rstrip("/").removesuffix(cut) + instead
    return HarnessError(f"{status}: it redirects to {to}", place=place, way_out="give the address that it leads to")


def not_served(status: int, body: str, place: str) -> HarnessError | None:
    """Return the error of a proxy without a server, or of a server without a loaded model; None for other answers."""
    if status in (502, 504) or (status >= 500 and _NO_UPSTREAM.search(body)):
        return HarnessError(
            f"{status} from a proxy: its upstream does not answer",
            place=place,
            way_out="start the model server behind it",
        )
    if status == 503:
        return HarnessError(server_words(status, body), place=place, way_out="wait until the model is loaded")
    return None


def way_out_of(status: int, target: scenario.Target) -> str:
    """Return what there is to do about an error of this status, by what the requests to the target carry."""
    if status in (401, 403):
        return _way_out_of_key(status, target)
    if status == 404:
        return "check --url, --model and --api"
    if status == 429:
        return "give --max-rps, the endpoint's quota"
    return "see the server's log; nothing was loaded"


def _way_out_of_key(status: int, target: scenario.Target) -> str:
    if any(".azure." in url for url in target.every_url) and "api-key" not in map(str.lower, target.headers):
        return f"Azure takes the key as --header 'api-key: env:{target.api_key_env or 'VARIABLE'}'"
    if not target.api_key_env:
        return "see --header and --api-key-env" if target.headers else "give --api-key-env VARIABLE"
    if status == 401 and DIALECTS[target.api].key != "Authorization":  # some servers of this API want it there
        return f"see the key, or give --header 'Authorization: Bearer env:{target.api_key_env}' in its place"
    return "see the key"


async def instead(error: NotSpokenError, api: control.Client, endpoint: Endpoint, within_s: float) -> HarnessError:
    """Return the error with the API that the server does speak, where one can be seen; else as it is.

    An empty object is sent to the route of each API, so nothing is generated. Where the API's own route takes
    requests, its error stays.
    """
    where, own, model = endpoint.address, endpoint.api, endpoint.wire.codec.model
    if not await _there(api, where, own, model, within_s):
        if bare := await without_root(api, where, own, model, within_s):
            return HarnessError(f"it has no {where.root}", place=error.place, way_out=f"give {bare}")
        for name in _LIKELY:
            if name != own and await _there(api, where, name, model, within_s):
                return HarnessError(f"it does not speak {own}", place=error.place, way_out=f"give --api {name}")
    return error


async def without_root(client: control.Client, where: Address, api: str, model: str, within_s: float) -> str:
    """Return the API's whole address where the server has it without `/v1`; "" where it has not."""
    bare = msgspec.structs.replace(where, root="")
    is_there = where.root and DIALECTS[api].root and await _there(client, bare, api, model, within_s)
    return bare.base + bare.api_path(api, model) if is_there else ""


async def _there(client: control.Client, where: Address, name: str, model: str, within_s: float) -> bool:
    """Return whether an API's route takes requests, by an empty one."""
    path, headers = where.api_path(name, model), {"Content-Type": "application/json", **DIALECTS[name].headers}
    try:
        async with control.response(client, "POST", path, min(within_s, _WITHIN_S), b"{}", headers) as reply:
            return reply.status in _THERE
    except control.TransportError:
        return False
