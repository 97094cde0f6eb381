"""A continuous-batching server as one step machine, without a clock.

Each step admits waiting requests first come, first served, while a sequence slot and the KV blocks of their
prompt are free; prefills those; decodes one token of every other running request; and takes the time that
predict.roofline gives that work. When a running request finds no free block, the youngest one loses its own
and later prefills all it had so far again (recomputation, as in vLLM). Whoever owns the machine owns the
clock: `closed_loop` jumps from step to step for predictions, the simulated endpoint waits each of them out.

Left out: chunked prefill and its token budget, prefix caching, priorities.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from harness.predict.model import Model
from harness.predict.roofline import (
    Deployment,
    Workload,
    decode_time,
    kv_capacity,
    prefill_time,
    step_cost,
)


class Request(msgspec.Struct, frozen=True):
    """What a server has to know: how long the prompt is and how many tokens to generate."""

    id: int
    prompt_tokens: int
    output_tokens: int


class Token(NamedTuple):
    """One token leaving at the end of a step; position counts from 0."""

    request: int
    position: int
    finished: bool


class Step(msgspec.Struct, frozen=True):
    """One engine step: its duration in seconds, and what leaves at its end."""

    duration: float
    tokens: list[Token]
    prefilled: int  # requests whose prompt it computed, recomputations included


class _Sequence:
    """A request inside the machine."""

    __slots__ = ("blocks", "done", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = 0  # tokens generated
        self.blocks = 0  # KV blocks held

    @property
    def known(self) -> int:
        """Tokens whose KV the next step needs: the prompt and everything generated."""
        return self.request.prompt_tokens + self.done


class Machine:
    """The state of one replica: who waits, who runs, and which KV blocks are free.

    `step` plans a step and counts it as done; requests that it finishes hold their slot and blocks until the
    next call, as they would while the step runs.
    """

    def __init__(self, model: Model, deployment: Deployment) -> None:
        self.max_num_seqs = deployment.max_num_seqs
        self.block_size = deployment.block_size
        self.num_blocks = kv_capacity(model, deployment) // deployment.block_size
        self.free_blocks = self.num_blocks
        self.preemptions = 0
        self._cost = step_cost(model, deployment)
        self._waiting: OrderedDict[int, _Sequence] = OrderedDict()
        self._running: OrderedDict[int, _Sequence] = OrderedDict()  # oldest first
        self._finished: list[int] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return 1 - self.free_blocks / self.num_blocks

    def fits(self, request: Request) -> bool:
        """Whether the request could ever finish, with the whole cache to itself."""
        return self._blocks(request.prompt_tokens + request.output_tokens) <= self.num_blocks

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        if request.id in self._waiting or request.id in self._running:
            raise ValueError(f"request {request.id} is here already")
        if not self.fits(request) or request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"{request} can never finish")
        self._waiting[request.id] = _Sequence(request)

    def cancel(self, request_id: int) -> bool:
        """Forget a request and free what it holds; False when it is not here (any more)."""
        if self._waiting.pop(request_id, None) is not None:
            return True
        sequence = self._running.pop(request_id, None)
        if sequence is None:
            return False
        self._release(sequence)
        return True

    def step(self) -> Step | None:
        """Plan the next step; None when there is nothing to do."""
        self._retire()
        preempted = self._make_room()
        admitted = [] if preempted else self._admit()
        if not self._running:
            return None
        running = self._running.values()
        duration = decode_time(self._cost, len(running), sum(sequence.known for sequence in running))
        duration += sum(prefill_time(self._cost, sequence.known) for sequence in admitted)
        return Step(duration, [self._token(sequence) for sequence in running], len(admitted))

    def _retire(self) -> None:
        for request_id in self._finished:
            self.cancel(request_id)
        self._finished.clear()

    def _make_room(self) -> bool:
        """Give every running request the blocks of its next token, the oldest first; True if one had to go."""
        before = self.preemptions
        for sequence in list(self._running.values()):
            need = self._blocks(sequence.known) - sequence.blocks
            while need > self.free_blocks and sequence.request.id in self._running:
                self._preempt()
            if sequence.request.id not in self._running:
                break  # it was itself the youngest, so nobody is left behind it
            self.free_blocks -= need
            sequence.blocks += need
        return self.preemptions > before

    def _preempt(self) -> None:
        request_id, youngest = self._running.popitem()
        self._release(youngest)
        self._waiting[request_id] = youngest
        self._waiting.move_to_end(request_id, last=False)
        self.preemptions += 1

    def _admit(self) -> list[_Sequence]:
        admitted = []
        while self._waiting and len(self._running) < self.max_num_seqs:
            request_id, sequence = next(iter(self._waiting.items()))
            need = self._blocks(sequence.known)
            if need > self.free_blocks:
                break  # first come, first served: a smaller one behind it waits too
            del self._waiting[request_id]
            self.free_blocks -= need
            sequence.blocks = need
            self._running[request_id] = sequence
            admitted.append(sequence)
        return admitted

    def _token(self, sequence: _Sequence) -> Token:
        position = sequence.done
        sequence.done += 1
        finished = sequence.done == sequence.request.output_tokens
        if finished:
            self._finished.append(sequence.request.id)
        return Token(sequence.request.id, position, finished)

    def _release(self, sequence: _Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


class ClosedLoop(msgspec.Struct, frozen=True):
    """Means over the window of a simulated closed loop; seconds and tokens/s."""

    throughput: float
    requests_per_s: float
    in_flight: float
    ttft: float
    itl: float
    preemptions: int


def closed_loop(
    machine: Machine,
    workload: Workload,
    C: int,
    *,
    requests: int,
    stagger: float = 0.0,
    turnaround: float = 0.0,
) -> ClosedLoop:
    """C users who each ask again as soon as they are answered, on a clock that jumps from step to step.

    They begin spread over `stagger` seconds; the first 2 C answers are warm-up, the `requests` after them the
    window. A user needs `turnaround` seconds for the next request, which may cost it the step that has just
    begun.
    """
    P, G = round(workload.input_tokens), round(workload.output_tokens)
    due = [(stagger * user / C, user) for user in range(C)]  # (when, next request id)
    sent: dict[int, float] = {}
    first: dict[int, float] = {}
    ttfts: list[float] = []
    itls: list[float] = []
    now, start, busy, warming = 0.0, 0.0, 0.0, True
    answered, issued, tokens, preempted = 0, C, 0, 0
    while answered < 2 * C + requests:
        while due and due[0][0] <= now:
            when, request_id = heapq.heappop(due)
            machine.submit(Request(request_id, P, G))
            sent[request_id] = when
        step = machine.step()
        if step is None:
            now = due[0][0]
            continue
        now += step.duration
        tokens += len(step.tokens)
        for request_id, position, finished in step.tokens:
            if position == 0:
                first[request_id] = now
            if finished:
                answered += 1
                begun, began_to_answer = sent.pop(request_id), first.pop(request_id)
                busy += now - max(begun, start)
                ttfts.append(began_to_answer - begun)
                itls.append((now - began_to_answer) / (G - 1) if G > 1 else 0.0)
                heapq.heappush(due, (now + turnaround, issued))
                issued += 1
        if warming and answered >= 2 * C:  # the window begins here
            warming, start, tokens, busy, preempted = False, now, 0, 0.0, machine.preemptions
            ttfts.clear()
            itls.clear()
    seconds = now - start
    busy += sum(now - max(begun, start) for begun in sent.values())
    return ClosedLoop(
        throughput=tokens / seconds,
        requests_per_s=len(ttfts) / seconds,
        in_flight=busy / seconds,
        ttft=sum(ttfts) / len(ttfts),
        itl=sum(itls) / len(itls),
        preemptions=machine.preemptions - preempted,
    )
