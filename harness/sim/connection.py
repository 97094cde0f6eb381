"""What the simulated endpoint keeps of a client: its socket, the bytes that wait, and the request that is answered.

HTTP/1.1 as bytes is here, too: the head of a request, and that of a response. So are the texts and vectors of an
encoder, whose tokens are words with the special ones of BERT's tokenizer; and the log of what was written and when, the
truth that a client's records are compared with. Left out: reading and writing (`endpoint`), and what a request for an
answer asks (`api`).
"""

from __future__ import annotations

import socket
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from harness.base import __version__, files
from harness.dialects.sse import EVENTS
from harness.results import frames
from harness.sim.api import EventWriter, Generation, RefusalError, bad_request
from harness.sim.profile import Profile, Reference

HEAD_LIMIT, BODY_LIMIT = 65_536, 64_000_000
_SERVER = b"server: knee-sim/%s\r\n" % __version__.encode()
_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    411: b"Length Required",
    413: b"Content Too Large",
    431: b"Request Header Fields Too Large",
}


class Job:
    """A request that is being answered."""

    __slots__ = ("connection", "generation", "id", "name", "received", "stream", "tokens", "writer", "writes")
    stream: EventWriter  # the writer of an answer that is generated

    def __init__(
        self,
        id: int,
        name: str,
        generation: Generation | Encoding,
        writer: EventWriter | AnswerWriter,
        connection: ClientConnection,
    ) -> None:
        self.id = id  # in the machine
        self.name = name  # the client's X-Request-Id
        self.generation = generation
        self.writer = writer
        if not isinstance(writer, AnswerWriter):
            self.stream = writer
        self.connection = connection
        self.received = connection.received
        self.writes = array("q")
        self.tokens = 0


class Piece:
    """Bytes of an answer on their way out; `tokens` until the first of them has left."""

    __slots__ = ("data", "job", "last", "tokens")

    def __init__(self, data: bytes | memoryview, job: Job | None, tokens: int, last: bool) -> None:
        self.data, self.job, self.tokens, self.last = data, job, tokens, last


class ClientConnection:
    """One client's socket: one request at a time, what came early waits in `inbox`."""

    __slots__ = ("closing", "inbox", "job", "need", "outbox", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.need = 0  # bytes of inbox below which it cannot contain a whole request
        self.outbox: deque[Piece] = deque()
        self.job: Job | None = None
        self.closing = False  # once the answer is out
        self.received = 0


class RequestHead:
    """The head of one HTTP request."""

    __slots__ = ("fields", "method", "path", "version")

    def __init__(self, raw: bytes) -> None:
        first, *rest = raw.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise RefusalError(400, "BadRequestError", "this is not HTTP/1.1")
        self.method, target, self.version = parts
        self.path = target.partition("?")[0]
        self.fields = {}
        for line in rest:
            name, _, value = line.partition(":")
            self.fields[name.strip().lower()] = value.strip()

    @property
    def closes(self) -> bool:
        return self.version == "HTTP/1.0" or self.fields.get("connection", "").lower() == "close"

    def body_length(self) -> int:
        if "transfer-encoding" in self.fields:
            raise RefusalError(411, "BadRequestError", "send the body with a Content-Length")
        length = self.fields.get("content-length", "0")
        if not length.isdecimal():
            raise RefusalError(400, "BadRequestError", f"Content-Length {length!r} is no number")
        if int(length) > BODY_LIMIT:
            raise RefusalError(413, "BadRequestError", f"a body of {length} bytes is too large")
        return int(length)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\n%scontent-type: %s; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n" % (
    _SERVER,
    EVENTS.encode(),
)


def response_head(status: int, kind: bytes, length: int, *, closes: bool) -> bytes:
    """Return the head of a response with a body of so many bytes; `kind` is its media type."""
    return b"HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n" % (
        status,
        _REASONS[status],
        _SERVER,
        kind,
        length,
        b"connection: close\r\n" if closes else b"",
    )


ENCODE = ("/v1/embeddings", "/v1/rerank", "/v1/score")
_AROUND_ONE, _AROUND_TWO = 2, 3  # special tokens: [CLS] text [SEP], [CLS] query [SEP] document [SEP]
_NUMBER = b"0.0123456789"


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[str] | None = None
    query: str | None = None
    documents: list[str] | None = None
    text_1: str | None = None
    text_2: str | list[str] | None = None


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the engine needs it."""

    path: str
    texts: tuple[int, ...]  # tokens of each
    output_tokens: int = 0
    finish_reason: str = "stop"
    priority: int = 0
    hashes: tuple[int, ...] = ()
    stream: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Return of all its texts."""
        return sum(self.texts)


def read_texts(path: str, data: bytes, profile: Profile | Reference) -> Encoding:
    """Return the request in a body posted to one of the paths in ENCODE; raises RefusalError."""
    try:
        body = msgspec.json.decode(data, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(str(error)) from None
    if body.model not in (None, profile.model_name):
        raise RefusalError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
    if not isinstance(profile, Profile) or profile.model.generates:
        raise bad_request(f"The model generates text: it does not support {path}; --profile all-minilm-l6-v2/l4 does")
    texts = tuple(_tokens(path, body))
    if not texts:
        raise bad_request("there is no text")
    if max(texts) > profile.max_model_len:
        fact = f"This model's maximum context length is {profile.max_model_len} tokens; one text has {max(texts)}."
        raise bad_request(fact)
    return Encoding(path=path, texts=texts)


def _tokens(path: str, body: _Body) -> list[int]:
    """Return the tokens of each text, with the query in front of it where there is one."""
    if path == "/v1/embeddings":
        return [len(text.split()) + _AROUND_ONE for text in _list(body.input)]
    query, texts = (body.query, body.documents) if path == "/v1/rerank" else (body.text_1, body.text_2)
    if query is None:
        raise bad_request("there is no query")
    return [len(query.split()) + len(text.split()) + _AROUND_TWO for text in _list(texts)]


def _list(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else texts or []


class AnswerWriter:
    """The body of one answer, as vLLM words it."""

    def __init__(self, encoding: Encoding, request_id: str, profile: Profile | Reference, created: int) -> None:
        self.cached_tokens: int | None = None
        self._encoding, self._profile = encoding, profile
        self._id, self._created = request_id, created

    def whole(self) -> bytes:
        path, texts = self._encoding.path, len(self._encoding.texts)
        usage = {"prompt_tokens": self._encoding.prompt_tokens, "total_tokens": self._encoding.prompt_tokens}
        found: dict[str, Any] = {"id": self._id, "model": self._profile.model_name, "usage": usage}
        if path == "/v1/rerank":
            results = [{"index": i, "relevance_score": 1 / (1 + i)} for i in range(texts)]
            return msgspec.json.encode(found | {"results": results})
        of_each: dict[str, Any] = {"object": "score", "score": 0.5}
        if path == "/v1/embeddings":
            width = self._profile.model.hidden if isinstance(self._profile, Profile) else 1
            of_each = {"object": "embedding", "embedding": msgspec.Raw(b"[%s]" % b",".join([_NUMBER] * width))}
        data = [{"index": i} | of_each for i in range(texts)]
        return msgspec.json.encode(found | {"object": "list", "created": self._created, "data": data})


_DELAY_NS = 20_000_000  # well within the promised tenth of a second


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One request, as the server wrote it."""

    id: str  # the client's X-Request-Id
    received_ns: int
    writes: bytes  # int64, taken right before each write that carried tokens
    tokens: int  # that were really written
    finished: bool  # False: cut by the client, or by the server's end
    end_ns: int

    @property
    def writes_ns(self) -> array[int]:
        return array("q", self.writes)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class WriteLog:
    """Entries on their way to the file; without a path they go nowhere."""

    def __init__(self, path: str | Path | None) -> None:
        self._file: Any = None
        if path is not None:
            file = files.named(Path(path))
            way_out = "name a file in a folder that exists"
            fd = files.appending(file, new=not file.exists(), way_out=way_out)
            self._file = open(fd, "ab", buffering=0)  # noqa: SIM115
        self._pending: list[Entry] = []
        self.due: int | None = None  # when the pending entries have to be on disk

    def append(self, entry: Entry) -> None:
        if self._file is None:
            return
        self._pending.append(entry)
        if self.due is None:
            self.due = entry.end_ns + _DELAY_NS

    def flush(self) -> None:
        if self._pending:
            self._file.write(b"".join(frames.frame(_encode(each)) for each in self._pending))
            self._pending.clear()
        self.due = None

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()


def entries(path: str | Path) -> list[Entry]:
    """Return all requests of a write log, in the order they ended; one that is still being written is not one."""
    return list(map(_decode, frames.payloads(Path(path).read_bytes())))
