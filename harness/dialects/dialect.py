"""What one API is: where it lies, what its work is counted in, and how each side of it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from harness.dialects.body import Body
from harness.dialects.decoder import DecodedResponse
from harness.spec.work import Unit
from harness.workload.request import Request


class Encoder(Protocol):
    """Makes the bodies of one run's requests."""

    def encode(self, request: Request) -> bytes: ...


class Decoder(Protocol):
    """Reads one response, whose body is of the media type `media`.

    `feed` takes a piece of the body with the stamp of its read, nanoseconds, and returns the chunks in it that carried
    tokens; it raises ProtocolError if the rest cannot be read, and nothing else. `end` may follow at any time;
    `ended`: the body came to its own end, not to that of its connection. `came_whole`: only that is still to come.
    """

    @property
    def media(self) -> str: ...

    @property
    def came_whole(self) -> bool: ...

    def feed(self, data: bytes, stamp_ns: int) -> int: ...

    def end(self, stamp_ns: int, *, ended: bool = True) -> DecodedResponse: ...


# Make the encoder of a run by the model's name, and what reads one answer: as `body.PromptEncoder` and
# `decoder.StreamDecoder` are made.
Encoders = Callable[..., Encoder]
Decoders = Callable[..., Decoder]


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """How a server words its answers; OpenAI's API reference, as vLLM writes it."""

    id: str  # what stands before the request's own id
    event: str  # `object` of each event
    whole: str  # `object` of an answer that is not streamed
    opening: bytes | None  # event before the first token; None: there is none
    token: bytes  # event that brings a token, which replaces %s
    reasoning: bytes | None  # the same for a token of reasoning; None: there is none
    choice: Callable[[str, str], dict[str, Any]]  # what holds text and reasoning of an answer that is not streamed


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The server's half of an API: how the simulated endpoint reads a request and words the answer."""

    texts: Callable[[Body], list[str]]  # texts of a request's prompt; raises ValueError if it has none
    template: bool = False  # whether a chat template adds to the prompt
    output_tokens: int | None = None  # default length of an answer; None: as many as there is room for
    wording: Wording


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API, the client's half and, where the simulated endpoint speaks it, the server's."""

    name: str = ""  # name for `--api`; another package's dialect has its entry point's name
    path: str  # below the root; {model} is the model's name
    root: str = "/v1"
    unit: Unit = Unit.OUTPUT_TOKENS
    encoder: Encoders
    decoder: Decoders
    whole: Decoders | None = None  # decoders of an answer that does not stream; None: it always does
    images: bool = False  # whether requests can have image parts
    headers: dict[str, str] = {}  # headers of every request
    key: str = "Authorization"  # the header that has the API key
    server: Server | None = None

    def decoders(self, *, stream: bool) -> Decoders:
        """Return what reads the answers."""
        return self.decoder if stream or self.whole is None else self.whole
