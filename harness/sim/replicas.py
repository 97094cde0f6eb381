"""Replicas side by side behind one endpoint: each has its own queue, batch and KV cache, and takes its own steps.

A request goes to the replica that has the fewest. Left out: a router that looks for prefixes. A replica without work
begins a step only when another's ends, so a request may wait for part of a step there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from harness.predict.batching import Step, StepMachine
from harness.predict.passes import Passes
from harness.predict.sequence import SimulatedRequest


class Replicas:
    """Several step machines that are used like one."""

    def __init__(self, machines: Sequence[StepMachine | Passes]) -> None:
        self._machines = machines
        self._of: dict[int, StepMachine | Passes] = {}  # by request
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
        """Share of all KV blocks in use."""
        return sum(machine.kv_usage for machine in self._machines) / len(self._machines)

    @property
    def preemptions(self) -> int:
        return sum(machine.preemptions for machine in self._machines)

    def cached_tokens(self, request_id: int) -> int | None:
        """Tokens of a running request's prompt that its replica's cache had; None without one."""
        return self._of[request_id].cached_tokens(request_id)

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
        """The step that ends next, of whichever replica; it lasts from the end of the one before. None without work."""
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
