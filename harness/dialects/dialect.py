"""What one API is: where it stands, what its work is counted in, and how each side of it speaks."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harness.dialects.body import Body, Encoder, Tools
from harness.dialects.decoder import StreamDecoder
from harness.dialects.placer import TokenPlacer
from harness.workload.request import Message


class Unit(enum.Enum):
    """What an API's work is counted in."""

    OUTPUT_TOKENS = "output tokens"


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """How a server words its answers; OpenAI's API reference, as vLLM writes it."""

    id: str  # before the request's own
    event: str  # `object` of each event
    whole: str  # `object` of an answer that is not streamed
    opening: bytes | None  # of an event before the first token; None: there is none
    token: bytes  # of the event that brings a token, which stands for %s
    reasoning: bytes | None  # the same for a token of reasoning; None: there is none
    choice: Callable[[str, str], dict[str, Any]]  # what holds text and reasoning of an answer that is not streamed


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API, the client's half and the server's."""

    path: str  # below the API's root, which is most often /v1
    unit: Unit
    prompt: Callable[[Sequence[Message], Tools], dict[str, Any]]  # the fields of a request that hold messages and tools
    texts: Callable[[Body], list[str]]  # of a request's prompt; ValueError where it has none
    output_tokens: int | None  # of an answer where the request does not say; None: as many as there is room for
    wording: Wording

    def encoder(
        self,
        model: str,
        *,
        drop: frozenset[str] = frozenset(),
        extra: dict[str, Any] | None = None,
        classes: Mapping[str, dict[str, Any]] | None = None,
    ) -> Encoder:
        """What makes the bodies of requests to this model."""
        return Encoder(self.prompt, model, drop=drop, extra=extra, classes=classes)

    def decoder(self, placer: TokenPlacer | None = None, *, keep_text: bool = False) -> StreamDecoder:
        """What reads one streamed answer."""
        return StreamDecoder(placer, keep_text=keep_text)
