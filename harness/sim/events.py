"""The bytes of an answer in a dialect that is not OpenAI's chat or completions: each event as the dialect words it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.dialects.dialect import Answer, Events


class PlainWriter:
    """The bytes of one answer, token by token or whole; `word` gives the text of its token at a position."""

    def __init__(self, events: Events, answer: Answer, word: Callable[[int], str]) -> None:
        self._events, self._answer, self._word = events, answer, word

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt, once it is known."""
        return self._answer.cached_tokens

    @cached_tokens.setter
    def cached_tokens(self, tokens: int | None) -> None:
        self._answer.cached_tokens = tokens

    def run(self, position: int, tokens: int, finished: bool) -> bytes:
        """What leaves with several tokens at once, the last of which may end the answer: an HTTP chunk an event."""
        return b"".join(map(framed, self._token_events(position, tokens, finished))) + self._end(finished)

    def middle(self, position: int) -> bytes:
        """What leaves with a token that is neither the first nor the last."""
        return self.run(position, 1, False)

    def lump(self, position: int, tokens: int, finished: bool) -> bytes:
        """The same in one HTTP chunk; what ends the answer has its own."""
        return framed(b"".join(self._token_events(position, tokens, finished))) + self._end(finished)

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        assert self._events.whole is not None, "its requests always stream"
        answer = self._answer
        reasoning = "".join(map(self._word, range(answer.reasoning_tokens)))
        text = "".join(map(self._word, range(answer.reasoning_tokens, answer.output_tokens)))
        return msgspec.json.encode(self._events.whole(answer, text, reasoning))

    def _token_events(self, position: int, tokens: int, finished: bool) -> list[bytes]:
        """The events of some tokens, behind those that open the answer."""
        last = position + tokens - 1
        opening = [] if position else self._events.opening(self._answer)
        return opening + [
            self._events.token(self._answer, at, self._word(at), finished and at == last)
            for at in range(position, last + 1)
        ]

    def _end(self, finished: bool) -> bytes:
        return b"".join(map(framed, self._events.closing(self._answer))) + b"0\r\n\r\n" if finished else b""


def framed(event: bytes) -> bytes:
    """An HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(event), event)
