"""APIs that decode nothing: vectors for texts, scores of documents for a query. One JSON document answers a request.

Embeddings are OpenAI's; `/rerank` is Jina's and Cohere's as vLLM and llama-server have it, and TEI's, which has a field
of another name and counts no tokens; `/score` is vLLM's. What an answer says of itself is its usage, whose names are
the same wherever there is one. The numbers are not read: they cost time, and say nothing about the load.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from harness.dialects.body import PromptEncoder, Settings, Tools
from harness.dialects.chunk import ABSENT, Count
from harness.dialects.decoder import NO_ERROR, DecodedResponse
from harness.dialects.dialect import Dialect
from harness.dialects.sse import JSON, DocumentParser
from harness.dialects.tokens import TokenPlacer
from harness.dialects.unlisted import UNREADABLE
from harness.spec.work import Unit
from harness.workload.request import Message

_LONGEST_MESSAGE = 200  # bytes of an error in an answer

Fields = Callable[[str, Sequence[str]], dict[str, Any]]  # of a body, by the query ("" without one) and the texts


def _prompt(fields: Fields, messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    """Return the fields that hold the texts, and the query where one message is that."""
    query = "".join(message.content for message in messages if message.role == "query")
    return fields(query, [message.content for message in messages if message.role != "query"])


def _model(settings: Settings) -> dict[str, Any]:
    """Return all other fields: there is nothing to generate."""
    return {"model": settings.model}


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    total_tokens: Count | None = None


class _Item(msgspec.Struct, gc=False):
    """A vector, a result or a score; what is in it is not read."""


class _Answer(msgspec.Struct, gc=False):
    data: list[_Item] | None = None
    results: list[_Item] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = ABSENT


_answer = msgspec.json.Decoder(_Answer | list[_Item]).decode


class AnswerDecoder:
    """Decodes one answer when it is whole. No token arrives in it: an event is its first byte."""

    media: ClassVar[str] = JSON
    came_whole: ClassVar[bool] = False

    __slots__ = ("_begun", "_document")

    def __init__(self, placer: TokenPlacer | None = None, *, keep_text: bool = False, asked: int | None = None) -> None:
        self._document = DocumentParser()
        self._begun = False

    def feed(self, data: bytes, stamp_ns: int) -> int:
        """Keep one body piece; 1 for the first of an answer."""
        self._document.feed(data)
        first = not self._begun and bool(data)
        self._begun = self._begun or first
        return int(first)

    def end(self, stamp_ns: int, *, ended: bool = True) -> DecodedResponse:
        """Return what the answer says of its request."""
        found, error, message = _read(b"".join(self._document.end()))
        usage = found.usage or _Usage()
        input_tokens = usage.prompt_tokens or usage.total_tokens or None  # 0 is a server's that does not count
        return DecodedResponse(arrivals=array("q"), input_tokens=input_tokens, error=error, message=message)


def _read(data: bytes) -> tuple[_Answer, str, str]:
    """Return (the answer, its error's name, its message)."""
    try:
        answer = _answer(data)
    except UNREADABLE as error:
        name = "truncated" if "truncated" in str(error) or not data else "malformed_event"
        return _Answer(), name, f"{error}: {data[:120]!r}"
    if isinstance(answer, list):
        answer = _Answer(results=answer)
    if answer.error is not ABSENT and (error_text := bytes(answer.error)) not in NO_ERROR:
        return answer, "stream_error", error_text[:_LONGEST_MESSAGE].decode("utf-8", "replace")
    if not (answer.data or answer.results):
        return answer, "malformed_event", f"neither vectors nor scores: {data[:120]!r}"
    return answer, "", ""


def _dialect(name: str, path: str, fields: Fields, root: str = "/v1") -> Dialect:
    encoder = partial(PromptEncoder, partial(_prompt, fields), _model)
    return Dialect(name=name, path=path, root=root, unit=Unit.INPUT_TOKENS, encoder=encoder, decoder=AnswerDecoder)


EMBEDDINGS = _dialect("embeddings", "/embeddings", lambda _, texts: {"input": texts[0] if len(texts) == 1 else texts})
RERANK = _dialect("rerank", "/rerank", lambda query, texts: {"query": query, "documents": texts})
SCORE = _dialect("score", "/score", lambda query, texts: {"text_1": query, "text_2": texts})
TEI_RERANK = _dialect("tei-rerank", "/rerank", lambda query, texts: {"query": query, "texts": texts}, root="")
