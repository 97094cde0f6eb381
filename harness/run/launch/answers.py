"""The server's answers to the checks: read as the load will read them, or the error with its way out.

A body is known by its first bytes, whatever it is called. A stream that came whole has to end soon. Where there is no
such route, single requests without work find the API that the server does speak.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.base.secrecy import plain
from harness.dialects import DIALECTS
from harness.dialects.decoder import DecodedResponse
from harness.dialects.dialect import Decoder, Dialect
from harness.dialects.sse import EVENTS, JSON, LONGEST_DOCUMENT, NDJSON
from harness.load import control
from harness.load.http1 import ResponseParser, is_readable, media_type
from harness.run.launch.endpoint import Address, Endpoint
from harness.spec import scenario

LONGEST_BODY = 65_536  # bytes of an error's body that are searched
_LONGEST = 2 * LONGEST_DOCUMENT  # bytes of a document, which is bounded by its own reader
_QUIET_S = 3.0  # an answer that came whole ends within so long, or has no end
_UNENDED = "it closes the connection in place of ending its response; what came is whole"
_LONGEST_MESSAGE = 4096  # characters of a server's message
_LONGEST_REASON = 200  # characters of an address that it redirects to
_NO_UPSTREAM = re.compile(r"connection error|cannot connect|connection refused|upstream connect|no healthy", re.I)
# The APIs to look for, in this order: a handful, since each is a request.
_LIKELY = ("chat", "completions", "ollama", "tgi", "llama-cpp", "anthropic")
_THERE = (200, 400, 415, 422, 500)  # statuses of a route that takes requests, but not an empty one
_WITHIN_S = 10.0


class NotSpokenError(HarnessError):
    """An answer that the API to be measured does not give: there may be no such route."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What one request came to."""

    status: int
    headers: Mapping[str, str]
    http_version: str
    response: DecodedResponse | None = None  # None: the status is not 200
    message: str = ""  # the start of the body then
    notes: tuple[str, ...] = ()
    began_ns: int  # when the request was sent


async def ask(
    api: control.Client,
    path: str,
    content: bytes,
    target: scenario.Target,
    asked: int,
    place: str,
    *,
    request_id: str = "knee-check",
    keep_text: bool = False,
) -> Reply:
    """Send one request for `asked` tokens, within the endpoint's quota, and return its reply, decoded as in the load.

    Raise HarnessError if a 200 is no answer of this API, or does not end; else what `control` and decoders raise.
    """
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    if target.max_rps:
        await asyncio.sleep(1.0 / target.max_rps)
    began_ns = time.monotonic_ns()
    async with control.response(api, "POST", path, target.request_timeout, content, headers) as answer:
        response, notes, message = None, list[str](), ""
        if answer.status == 200:
            decoding = DIALECTS[target.api].decoders(stream=target.streams)(keep_text=keep_text, asked=asked)
            try:
                notes = await _fed(decoding, answer, target, place)
            finally:  # what it keeps counts against the bound of all unfinished responses of this process
                response = decoding.end(time.monotonic_ns())
        else:
            message = (await control.whole(answer))[:LONGEST_BODY].decode("utf-8", "replace")
        return Reply(
            status=answer.status,
            headers=dict(answer.headers),
            http_version=answer.http_version,
            response=response,
            message=message,
            notes=tuple(notes),
            began_ns=began_ns,
        )


async def _fed(decoding: Decoder, answer: control.Reply, target: scenario.Target, place: str) -> list[str]:
    """Read an answer to its end and feed it to the decoder; return notes on what is odd about it, raise on errors."""
    media, notes = decoding.media, list[str]()
    quiet_s = min(_QUIET_S, target.request_timeout / 2)
    came, readable = bytearray(), None
    _must_be_plain(media, answer.headers, place)
    ResponseParser().take_head(answer.status, answer.headers)  # the load will read it in the same way
    try:
        async with asyncio.timeout(None) as ending:
            async for piece in control.pieces(answer, _LONGEST if media == JSON else control.LONGEST):
                came += piece
                if readable is None:
                    readable = is_readable(media, answer.headers, bytes(came))
                    piece = bytes(came) if readable else b""
                if readable:
                    decoding.feed(piece, time.monotonic_ns())
                if decoding.came_whole:
                    ending.reschedule(asyncio.get_running_loop().time() + quiet_s)
    except control.TransportError:
        if readable is not False and not decoding.came_whole:
            raise
        notes.append(_UNENDED)
    except TimeoutError:
        if not ending.expired():
            raise
        fact = f"its answer came whole, but {quiet_s:g} s later the response has not ended"
        way_out = "let the server, or the proxy before it, end its responses"
        raise HarnessError(fact, place=place, way_out=way_out) from None
    if came.strip() and not readable:
        raise _no_answer(DIALECTS[target.api], media, answer.headers, bytes(came), place)
    if (kind := media_type(answer.headers.get("content-type", ""))) != media:
        notes.append(f"its answers are called {plain(kind[:60]) or 'nothing'}, and read as {media}")
    return notes


def _must_be_plain(media: str, headers: Mapping[str, str], place: str) -> None:
    """Raise HarnessError if a response is compressed."""
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
    words = plain(own_words(body)[:_LONGEST_MESSAGE])[:240].strip()
    return f"{status}: {words}" if words else f"{status} without a word"


def own_words(body: str) -> str:
    """Return the message in the JSON of an error; else all of it.

    >>> own_words('{"error": {"message": "out of memory", "code": 500}}'), own_words("Not Found")
    ('out of memory', 'Not Found')
    """
    try:
        data = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        data = None
    message: Any = data
    for key in ("error", "message", "detail"):
        if isinstance(message, dict) and key in message:
            message = message[key]
    return message if isinstance(message, str) else body


def redirected(status: int, headers: Mapping[str, str], place: str) -> HarnessError | None:
    """Return an error that names the new address if an answer is a redirect, which is not followed; else None.

    Each request would take it again, and its headers would go to a host nobody named.
    """
    location = plain(headers.get("location", "").partition("?")[0][:_LONGEST_REASON])
    if not 300 <= status < 400 or not location:
        return None
    return HarnessError(f"{status}: it redirects to {location}", place=place, way_out="give the address of that server")


def not_served(status: int, body: str, place: str) -> HarnessError | None:
    """Return an error if a proxy answers for a missing server (502, 504) or a model is not loaded (503); else None."""
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
    """Return the advice for an HTTP error status: on the key, the address, the quota, or the server's log."""
    if status in (401, 403):
        return _way_out_of_key(status, target)
    if status == 404:
        return "check --url, --model and --api"
    if status == 429:
        return "give --max-rps, the endpoint's quota"
    return "see the server's log; nothing was loaded"


def _way_out_of_key(status: int, target: scenario.Target) -> str:
    """Return what to do if a server refuses the key, or its absence."""
    if any(".azure." in url for url in target.every_url) and "api-key" not in map(str.lower, target.headers):
        return f"Azure takes the key as --header 'api-key: env:{target.api_key_env or 'VARIABLE'}'"
    if not target.api_key_env:
        return "see --header and --api-key-env" if target.headers else "give --api-key-env VARIABLE"
    if status == 401 and DIALECTS[target.api].key != "Authorization":  # some servers of this API want it there
        return f"check the key, or give --header 'Authorization: Bearer env:{target.api_key_env}' in its place"
    return "check the key"


async def instead(error: NotSpokenError, api: control.Client, endpoint: Endpoint, within_s: float) -> HarnessError:
    """Return an error that names the address or the API that the server does speak, if one is found; else `error`.

    An empty object is sent to the route of each API, so nothing is generated. Where the API's own route takes
    requests, `error` stays.
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
    """Return the API's whole address where the server has it without `/v1`; "" if it has not."""
    bare = msgspec.structs.replace(where, root="")
    is_there = where.root and DIALECTS[api].root and await _there(client, bare, api, model, within_s)
    return bare.base + bare.api_path(api, model) if is_there else ""


async def _there(client: control.Client, where: Address, name: str, model: str, within_s: float) -> bool:
    """Return whether the server has the API's route: it answers an empty object with a status that shows it."""
    path, headers = where.api_path(name, model), {"Content-Type": "application/json", **DIALECTS[name].headers}
    try:
        async with control.response(client, "POST", path, min(within_s, _WITHIN_S), b"{}", headers) as reply:
            return reply.status in _THERE
    except control.TransportError:
        return False
