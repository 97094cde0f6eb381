"""What the endpoint reads and writes where it plays an encoder: texts in, vectors or scores out. No sockets.

Tokens are words here too, with the special ones that BERT's tokenizer puts around a text or between two. The vectors
have the model's width, so that an answer is as long as a real one; their numbers mean nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.sim.api import RefusalError, bad_request
from harness.sim.profile import Profile, Reference

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


def read(path: str, data: bytes, profile: Profile | Reference) -> Encoding:
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
