"""The machines whose steps the endpoint waits out, besides the step machine of predict.batching.

`Replicas` puts several machines behind one endpoint. `Pacer` and `Flood` compute nothing, have no model and no KV cache
to run out of: a load generator is measured against something cheaper and more exact than itself. `machine_of` chooses.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence

import msgspec

from harness.predict.batching import Step, StepMachine, Token
from harness.predict.sequence import SimulatedRequest
from harness.sim.profile import Profile, Reference


class _Stream:
    """A request and how many of its tokens are planned."""

    __slots__ = ("group", "id", "planned", "start", "total")

    def __init__(self, request: SimulatedRequest, group: int = 0, start: int = 0) -> None:
        self.id, self.total = request.id, request.output_tokens
        self.group = group
        self.start = start  # the step of its first token
        self.planned = 0


class _Unlimited:
    """A machine without a KV cache to run out of, as /metrics shows it."""

    kv_usage = 0.0
    preemptions = 0
    block_size = 16  # tokens
    num_blocks = 2**32

    def cached_tokens(self, request_id: int) -> None:
        """Return None: there is no prefix cache."""

    def reset_cache(self) -> None:
        """Do nothing: there is no prefix cache."""


class Pacer(_Unlimited):
    """Streams at one ITL, spread over its phases: step k gives `lump` tokens to every stream of group k mod groups.

    A step lasts itl_s · lump / groups. A new stream goes to the smallest group; its first token leaves in the first
    step of that group that ends `ttft_s` or more after the stream came, so at most one lump's ITL and one step later.
    """

    waiting = 0

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
        """Take a stream that came while the last planned step ran, or `late_s` after its end.

        It starts about TTFT later, in the group that has the fewest streams.
        """
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
        return Step(self._duration, [_advance(stream, self._lump, self._finished) for stream in going.values()])


class Flood(_Unlimited):
    """Streams without a pace: each step lasts no time and gives every stream that is not paused `burst` tokens.

    A token of such a step represents `burst` of them from its position on, or for what is left. The endpoint pauses a
    stream whose socket is full, and releases it later; all others get equal shares.
    """

    waiting = 0

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
        return Step(0.0, [_advance(stream, self._burst, self._finished) for stream in self._ready.values()])


def _advance(stream: _Stream, tokens: int, finished: list[int]) -> Token:
    """Return the stream's next token; an id that is through goes to `finished`."""
    position = stream.planned
    stream.planned = position + tokens
    if stream.planned < stream.total:
        return Token(stream.id, position, False)
    finished.append(stream.id)
    return Token(stream.id, position, True)


class Replicas:
    """Several machines that are used like one: each has its own queue, batch and KV cache, and takes its own steps.

    A request goes to the replica that has the fewest. Left out: a router that looks for prefixes. A replica without
    work begins a step only when another's ends, so a request may wait for part of a step there.
    """

    def __init__(self, machines: Sequence[StepMachine]) -> None:
        self._machines = machines
        self._of: dict[int, StepMachine] = {}  # the machine of each request
        self._now = 0.0  # seconds, the end of the last step
        self._steps: list[tuple[float, int, Step]] = []  # heap of those that run: when each ends, whose it is
        self._idle = set(range(len(machines)))  # those that take no step
        self._finished: list[int] = []
        self.block_size, self.num_blocks = machines[0].block_size, machines[0].num_blocks

    @property
    def running(self) -> int:
        return sum(machine.running for machine in self._machines)

    @property
    def waiting(self) -> int:
        return sum(machine.waiting for machine in self._machines)

    @property
    def kv_usage(self) -> float:
        """Return the share of all KV blocks in use."""
        return sum(machine.kv_usage for machine in self._machines) / len(self._machines)

    @property
    def preemptions(self) -> int:
        return sum(machine.preemptions for machine in self._machines)

    def cached_tokens(self, request_id: int) -> int | None:
        """Return the tokens of a running request's prompt that its replica's cache had; None without one."""
        return self._of[request_id].cached_tokens(request_id)

    def reset_cache(self) -> None:
        """Forget every prefix that no request uses."""
        for machine in self._machines:
            machine.reset_cache()

    def submit(self, request: SimulatedRequest) -> None:
        """Put a request at the end of the shortest queue, those that run counted."""
        machine = min(self._machines, key=lambda each: each.running + each.waiting)
        machine.submit(request)
        self._of[request.id] = machine

    def cancel(self, request_id: int) -> bool:
        """Forget a request; False when it is not here (any more)."""
        machine = self._of.pop(request_id, None)
        return machine is not None and machine.cancel(request_id)

    def step(self) -> Step | None:
        """Return the step that ends next, of any replica; it lasts from the end of the one before. None without."""
        for request_id in self._finished:
            self._of.pop(request_id, None)
        for replica in sorted(self._idle):
            if (step := self._machines[replica].step()) is not None:
                heapq.heappush(self._steps, (self._now + step.duration, replica, step))
                self._idle.discard(replica)
        if not self._steps:
            return None
        end, replica, step = heapq.heappop(self._steps)
        duration, self._now = end - self._now, end
        self._idle.add(replica)
        self._finished = [token.request for token in step.tokens if token.finished]
        return msgspec.structs.replace(step, duration=duration)


Machine = StepMachine | Replicas | Pacer | Flood


def machine_of(profile: Profile | Reference) -> Machine:
    """Return the machine that a profile asks for, without any request."""
    if isinstance(profile, Profile):
        machines = [StepMachine(profile.model, profile.deployment) for _ in range(profile.deployment.dp)]
        return machines[0] if len(machines) == 1 else Replicas(machines)
    pace = profile.pace
    return Flood(pace.flood) if pace.flood else Pacer(pace.ttft_s, pace.itl_s, pace.groups, pace.lump)
