"""Servers that compute nothing: streams at a fixed pace, or as fast as their sockets take them.

A load generator is measured against something cheaper and more exact than itself. `Pacer` and `Flood` stand where
the endpoint else has predict.batching's `Machine`: no model, no limit of sequences, no KV cache to run out of.
"""

from __future__ import annotations

import math
from collections import deque

from harness.predict.batching import Step, Token
from harness.predict.sequence import SimulatedRequest


class _Stream:
    """A request and how many of its tokens are planned."""

    __slots__ = ("group", "id", "planned", "start", "total")

    def __init__(self, request: SimulatedRequest, group: int = 0, start: int = 0) -> None:
        self.id, self.total = request.id, request.output_tokens
        self.group = group
        self.start = start  # the step of its first token
        self.planned = 0


class _Unlimited:
    """The figures that /metrics needs of a machine, of one with room for all."""

    waiting = 0
    kv_usage = 0.0
    preemptions = 0
    block_size = 16  # tokens
    num_blocks = 2**32

    def cached_tokens(self, request_id: int) -> None:
        """There is no prefix cache."""


class Pacer(_Unlimited):
    """Streams at one ITL, spread over its phases: step k gives `lump` tokens to every stream of group k mod groups.

    A step lasts itl_s · lump / groups. A new stream goes to the smallest group; its first token leaves in the first
    step of that group that ends `ttft_s` or more after the stream came, so at most one lump's ITL and one step later.
    """

    def __init__(self, ttft_s: float, itl_s: float, groups: int, lump: int = 1) -> None:
        self._ttft, self._duration, self._lump = ttft_s, itl_s * lump / groups, lump
        self._next = 0  # the step to plan
        self._coming: list[deque[_Stream]] = [deque() for _ in range(groups)]  # by group, the first to start first
        self._going: list[dict[int, _Stream]] = [{} for _ in range(groups)]
        self._sizes = [0] * groups
        self._streams: dict[int, _Stream] = {}
        self._finished: list[int] = []

    @property
    def running(self) -> int:
        return len(self._streams)

    def submit(self, request: SimulatedRequest, late_s: float = 0.0) -> None:
        """Take a stream that came while the last planned step ran, or `late_s` after its end."""
        delay = math.ceil((self._ttft + late_s) / self._duration - 1e-9)  # steps
        first, groups = max(self._next - 1 + delay, self._next), len(self._sizes)
        least = min(self._sizes)
        start = next(step for step in range(first, first + groups) if self._sizes[step % groups] == least)
        stream = _Stream(request, start % groups, start)
        self._streams[request.id] = stream
        self._sizes[stream.group] += 1
        self._coming[stream.group].append(stream)

    def cancel(self, request_id: int) -> bool:
        """Forget a stream; False when it is not here (any more)."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            return False
        self._sizes[stream.group] -= 1
        if self._going[stream.group].pop(request_id, None) is None:
            self._coming[stream.group].remove(stream)
        return True

    def step(self) -> Step | None:
        """Plan the next step, an empty one while all streams wait for their turn; None without streams."""
        for request_id in self._finished:
            self.cancel(request_id)
        self._finished.clear()
        if not self._streams:
            return None
        group = self._next % len(self._sizes)
        coming, going = self._coming[group], self._going[group]
        while coming and coming[0].start <= self._next:
            stream = coming.popleft()
            going[stream.id] = stream
        self._next += 1
        return Step(self._duration, [_advance(stream, self._lump, self._finished) for stream in going.values()], 0)


class Flood(_Unlimited):
    """Streams without a pace: each step lasts no time and gives every stream that is not paused `burst` tokens.

    A token of such a step stands for `burst` of them from its position on, or for what is left. The endpoint pauses a
    stream whose socket is full, and releases it later; all others get equal shares.
    """

    def __init__(self, burst: int) -> None:
        self._burst = burst
        self._ready: dict[int, _Stream] = {}
        self._paused: dict[int, _Stream] = {}
        self._finished: list[int] = []

    @property
    def running(self) -> int:
        return len(self._ready) + len(self._paused)

    def submit(self, request: SimulatedRequest) -> None:
        self._ready[request.id] = _Stream(request)

    def cancel(self, request_id: int) -> bool:
        """Forget a stream; False when it is not here (any more)."""
        return (self._ready.pop(request_id, None) or self._paused.pop(request_id, None)) is not None

    def pause(self, request_id: int) -> None:
        """Give a stream nothing until it is released; one that is not here is left alone."""
        if (stream := self._ready.pop(request_id, None)) is not None:
            self._paused[request_id] = stream

    def release(self, request_id: int) -> None:
        if (stream := self._paused.pop(request_id, None)) is not None:
            self._ready[request_id] = stream

    def step(self) -> Step | None:
        """Plan the next round; None when no stream is ready."""
        for request_id in self._finished:
            self.cancel(request_id)
        self._finished.clear()
        if not self._ready:
            return None
        return Step(0.0, [_advance(stream, self._burst, self._finished) for stream in self._ready.values()], 0)


def _advance(stream: _Stream, tokens: int, finished: list[int]) -> Token:
    """The stream's next token; an id that is through goes to `finished`."""
    position = stream.planned
    stream.planned = position + tokens
    if stream.planned < stream.total:
        return Token(stream.id, position, False)
    finished.append(stream.id)
    return Token(stream.id, position, True)
