"""A continuous-batching server as one step machine, without a clock.

Each step admits waiting requests first come, first served, while a sequence slot and the KV blocks of their prompt are
free; prefills those; decodes for every other running request; and takes the time that predict.step gives that work.
When a running request finds no free block, the youngest one loses its own and later prefills all it had so far again
(recomputation, as in vLLM); an engine that reserves takes the blocks of the whole answer at the start instead. With a
token budget a step's prompts are cut into chunks: decoding goes first, prompts share the rest. With a prefix cache
prompts that begin alike share blocks, and what is found there is not computed; with priorities the lowest number goes
first and the highest yields. The caller keeps the clock: predict.simulate jumps from step to step, the simulated
endpoint waits each of them out.

Speculation is not random: every request gains (1 - α^(γ+1)) / (1 - α) tokens a step, and a fraction is carried on to
the next step. So the rate is exact in the mean, its scatter is missing, and what an answer's last burst drafts beyond
its end is lost, as it is in a server.

A step costs what changes in it, not what runs: all running requests share one count of tokens, and for its end and
its next block a request only notes at which count they come.

Left out: draft tokens' own KV.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.predict.deployment import Deployment, kv_capacity
from harness.predict.model import Model, kv_bytes_per_token
from harness.predict.sequence import PrefixCache, SequenceState, SimulatedRequest
from harness.predict.step import decode_time, mixed_time, series, step_cost, taking_in, times_alike

_PRIORITY = operator.attrgetter("request.priority")
_UNLIMITED = 2**53
_WORTHWHILE = 4  # steps: fewer are as quick one by one


class Token(NamedTuple):
    """One token leaving at the end of a step; position counts from 0."""

    request: int
    position: int
    finished: bool


class Step(msgspec.Struct, frozen=True):
    """One engine step: its duration in seconds, and what leaves at its end."""

    duration: float
    tokens: list[Token]
    computed: int = 0  # prompt tokens


class Stride(NamedTuple):
    """Steps among which only the first admits, computes prompts or preempts, and only the last finishes a request.

    Requests by id; a step is `growth` seconds longer than the one before it.
    """

    steps: int
    first: float  # seconds of the first step
    growth: float
    batch: int  # requests that get tokens in each step
    tokens: int
    computed: int  # prompt tokens
    started: Sequence[int] = ()  # their first token leaves
    resumed: Sequence[int] = ()  # they were preempted, and their next token leaves
    finished: Sequence[int] = ()
    preempted: Sequence[int] = ()

    @property
    def duration(self) -> float:
        return series(self.first, self.growth, self.steps)


class StepMachine:
    """The state of one replica: what waits, what runs, and which KV blocks are free.

    `step` plans a step and counts it as done; requests that it finishes keep their slot and blocks until the
    next call, as they would while the step runs. `stride` does the same for several steps in which nothing else
    happens. `context` is the mean context of a request, which a model with windows keeps only part of.
    """

    def __init__(self, model: Model, deployment: Deployment, context: float | None = None) -> None:
        self.cost = step_cost(model, deployment)
        self.block_size = deployment.block_size
        self.num_blocks = kv_capacity(model, deployment, context) // deployment.block_size
        if not self.num_blocks and not kv_bytes_per_token(model):
            self.num_blocks = _UNLIMITED
        self.free_blocks = self.num_blocks
        self.budget = deployment.max_num_batched_tokens or _UNLIMITED  # tokens of one step
        if self.budget < self.cost.verified:
            fact = f"a step of {self.budget} tokens cannot verify the {self.cost.verified} of one request"
            raise HarnessError(fact, place="--max-num-batched-tokens", way_out="give more, or draft fewer")
        self.max_num_seqs = min(deployment.max_num_seqs, self.budget // self.cost.verified)
        self.preemptions = 0
        self._reserve = deployment.reserve
        self._cache = PrefixCache() if deployment.prefix_caching else None
        self._by_priority = deployment.scheduling_policy == "priority"
        self._waiting: OrderedDict[int, SequenceState] = OrderedDict()
        self._running: OrderedDict[int, SequenceState] = OrderedDict()  # oldest first
        self._partial: SequenceState | None = None  # the youngest, while its prompt is computed in chunks
        self._finished: list[SequenceState] = []
        self._preempted: list[int] = []  # in the last step, of those that decoded
        self._steps = 0
        self._count = 0  # tokens that a request would have that had decoded in every step
        self._granted = 0  # the count up to which blocks are assigned
        self._decoding = 0
        self._offsets = 0  # sum over those that decode
        self._phases = [0] * self.block_size  # how many need their next block at a count, modulo the block size
        self._ends: dict[int, dict[int, SequenceState]] = {}  # requests that end at each count
        self._end_counts: list[int] = []  # heap of its keys

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Return the share of the KV blocks in use."""
        return 1 - self.free_blocks / self.num_blocks

    def taking_in(self, request: SimulatedRequest) -> float:
        """Return what the first token of a request waits for besides its steps, were it to leave now; seconds."""
        B = self._decoding
        decoding = decode_time(self.cost, B, B * self._count + self._offsets)
        return taking_in(self.cost, request.prompt_tokens, self._cached(request), decoding)

    def cached_tokens(self, request_id: int) -> int | None:
        """Return the tokens of a running request's prompt that the prefix cache had; None without one."""
        return None if self._cache is None else self._running[request_id].cached

    def reset_cache(self) -> None:
        """Forget every prefix that no request uses."""
        if self._cache is not None:
            self._cache.shrink(0)

    def fits(self, request: SimulatedRequest) -> bool:
        """Return whether the request could ever finish, with the whole cache to itself."""
        return self._blocks(request.prompt_tokens + request.output_tokens) <= self.num_blocks

    def submit(self, request: SimulatedRequest) -> None:
        """Put a request at the end of the queue; raise ValueError if it is here already, or could never finish."""
        if request.id in self._waiting or request.id in self._running:
            raise ValueError(f"request {request.id} is here already")
        if not self.fits(request) or request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"{request} can never finish")
        self._waiting[request.id] = sequence = SequenceState(request)
        sequence.computed = self._cached(request)

    def cancel(self, request_id: int) -> bool:
        """Forget a request and free its blocks; False when it is not here (any more)."""
        if self._waiting.pop(request_id, None) is not None:
            return True
        sequence = self._running.pop(request_id, None)
        if sequence is None:
            return False
        self._release(sequence)
        return True

    def step(self) -> Step | None:
        """Plan the next step; None when there is nothing to do."""
        before = self._count
        stride = self.stride(most=1)
        if stride is None:
            return None
        tokens = [
            Token(each.request.id, at - each.base, at + 1 == each.end)
            for each in self._running.values()
            if each.decoding
            for at in range(before, min(self._count, each.end))
        ]
        return Step(stride.first, tokens, stride.computed)

    def stride(self, until: float = math.inf, most: int | None = None) -> Stride | None:
        """Plan at most `most` steps that differ only in their context; None when there is nothing to do.

        It ends with the step that finishes a request, before one that would preempt, or with the first that ends
        `until` seconds after its begin or later: a request that comes then may change the next one.
        """
        self._retire()
        preemptions = self.preemptions
        self._preempted = []
        self._make_room()
        chunks: list[tuple[int, int]] = []
        joined: list[SequenceState] = []
        calm = self.preemptions == preemptions  # also of one whose prompt was being computed
        if calm:
            chunks, joined = self._prefill()
            calm = not chunks and self.preemptions == preemptions
        if not self._running:
            return None
        B, count = self._decoding, self._count
        context = B * count + self._offsets
        steps = self._steps_alike(until, most, context) if calm and most != 1 else None
        if steps is None:
            first, growth, n = mixed_time(self.cost, B, context, chunks, len(joined), len(self._running)), 0.0, 1
        else:
            n, first, growth = steps
            self._take(self._crossings(count + n - 1))
            self._granted = count + n - 1
        self._steps += n
        self._count = math.floor(self._steps * self.cost.accepted + 1e-9)
        tokens = B * (self._count - count) - self._finish()
        return Stride(
            n,
            first,
            growth,
            B,
            tokens,
            sum(end - start for start, end in chunks),
            [each.request.id for each in joined if not each.done],
            [each.request.id for each in joined if each.done],
            [each.request.id for each in self._finished],
            self._preempted,
        )

    # ---- one step ---------------------------------------------------------------------------------------

    def _retire(self) -> None:
        for sequence in self._finished:
            if self._running.get(sequence.request.id) is sequence:
                self.cancel(sequence.request.id)
        self._finished.clear()

    def _make_room(self) -> None:
        """Take the KV blocks that every decoding request's next token needs; preempt requests until they are free."""
        while (need := self._crossings(self._count)) > self.free_blocks:
            self._preempt()
        self._take(need)
        self._granted = self._count

    def _next(self) -> SequenceState | None:
        """Return the waiting request to start next, the first or by priority, its cached tokens counted as computed.

        None: none waits, no slot is free, or a preempted one has to come back first.
        """
        if not self._waiting or self._preempted or len(self._running) >= self.max_num_seqs:
            return None
        waiting = self._waiting.values()
        sequence = min(waiting, key=_PRIORITY) if self._by_priority else next(iter(waiting))
        if self._cache is not None:
            whole = (sequence.known - 1) // self.block_size  # the last token is computed, for its logits
            sequence.computed = self._cache.found(sequence.request.hashes[:whole]) * self.block_size
        return sequence

    def _prefill(self) -> tuple[list[tuple[int, int]], list[SequenceState]]:
        """Schedule this step's prefills within token budget and blocks; return prompt parts, and who then decodes."""
        chunks: list[tuple[int, int]] = []
        joined: list[SequenceState] = []
        left = self.budget - self._decoding * self.cost.verified
        while left > 0:
            sequence = self._partial or self._next()
            if sequence is None:
                break
            request, known, start = sequence.request, sequence.known, sequence.computed
            end = min(known, start + left)
            blocks = self._blocks(request.prompt_tokens + request.output_tokens if self._reserve else end)
            hashed = request.hashes[sequence.hashed : end // self.block_size]
            need = blocks - sequence.blocks
            if self._cache is not None:
                need -= self._cache.shared(hashed)
            if need > self.free_blocks:
                if sequence is self._partial and self._preempt() is not sequence:
                    continue
                break  # a smaller one behind it waits too
            if sequence is not self._partial:
                self._running[request.id] = self._waiting.pop(request.id)
                sequence.cached = start if sequence.cached is None else sequence.cached
            if self._cache is not None:
                self._cache.use(hashed)
                sequence.hashed += len(hashed)
            self._take(need)
            sequence.blocks, sequence.computed = blocks, end
            chunks.append((start, end))
            left -= end - start
            self._partial = sequence if end < known else None
            if end == known:
                joined.append(sequence)
                self._join(sequence)
        return chunks, joined

    def _steps_alike(self, until: float, most: int | None, context: int) -> tuple[int, float, float] | None:
        """Return (number of decode-only steps to take at once, seconds of the first, their growth); None: too few."""
        n = self._end_counts[0] - self._count
        if most is not None:
            n = min(n, most)
        if n < _WORTHWHILE or self.cost.verified > 1:
            return None
        n = self._steps_with_blocks(n)
        n, first, growth = times_alike(self.cost, self._decoding, context, n)
        if series(first, growth, n) >= until:
            low = 0  # the fewest that last as long
            while n - low > 1:
                middle = (low + n) // 2
                low, n = (low, middle) if series(first, growth, middle) >= until else (middle, n)
        return n, first, growth

    def _steps_with_blocks(self, n: int) -> int:
        """Return for how many of the next n decode steps there are enough free KV blocks, at least 1."""
        if self._reserve or -(-n // self.block_size) * self._decoding <= self.free_blocks:
            return n
        free, steps = self.free_blocks, 1
        while steps < n and (free := free - self._phases[(self._count + steps) % self.block_size]) >= 0:
            steps += 1
        return steps

    def _finish(self) -> int:
        """Move requests with all their tokens to the finished ones; return the tokens counted beyond their ends."""
        lost = 0
        while self._end_counts and self._end_counts[0] <= self._count:
            end = heapq.heappop(self._end_counts)
            ended = self._ends.pop(end)
            self._finished += ended.values()
            lost += (self._count - end) * len(ended)
        return lost

    # ---- who decodes, and in which blocks ---------------------------------------------------------------

    def _join(self, sequence: SequenceState) -> None:
        """Add a request to those that decode from this step on, and note at which count it ends."""
        sequence.decoding = True
        sequence.base = self._count - sequence.done
        sequence.end = sequence.base + sequence.request.output_tokens
        self._decoding += 1
        self._offsets += sequence.offset
        self._phases[(1 - sequence.offset) % self.block_size] += 1
        if sequence.end not in self._ends:
            self._ends[sequence.end] = {}
            heapq.heappush(self._end_counts, sequence.end)
        self._ends[sequence.end][sequence.request.id] = sequence

    def _release(self, sequence: SequenceState) -> None:
        """Free a request's KV blocks and take it out of the counts of decoding requests."""
        if sequence is self._partial:
            self._partial = None
        blocks, computed = sequence.blocks, sequence.computed
        if sequence.decoding:
            if not self._reserve:
                blocks = self._blocks(sequence.offset + self._granted)
            computed = sequence.offset + min(self._count, sequence.end) - 1  # the last token's KV is not there
            self._decoding -= 1
            self._offsets -= sequence.offset
            self._phases[(1 - sequence.offset) % self.block_size] -= 1
            self._ends.get(sequence.end, {}).pop(sequence.request.id, None)
        if self._cache is not None:
            hashes, hashed = sequence.request.hashes, sequence.hashed
            self._cache.keep(hashes[hashed : computed // self.block_size])
            blocks += self._cache.leave(hashes[:hashed]) - hashed
        self.free_blocks += blocks

    def _preempt(self) -> SequenceState:
        """Free the youngest request (by priority: the one with the highest number) and put it first in the queue."""
        self.preemptions += 1
        youngest = reversed(self._running.values())
        sequence = max(youngest, key=_PRIORITY) if self._by_priority else next(youngest)
        request = self._running.pop(sequence.request.id).request
        self._release(sequence)
        if sequence.decoding:
            self._preempted.append(request.id)
            sequence.done, sequence.decoding = self._count - sequence.base, False
        sequence.blocks, sequence.hashed, sequence.computed = 0, 0, self._cached(request)
        self._waiting[request.id] = sequence
        self._waiting.move_to_end(request.id, last=False)
        return sequence

    def _take(self, blocks: int) -> None:
        """Use free blocks, in which a prefix may have been kept."""
        self.free_blocks -= blocks
        if self._cache is not None:
            self._cache.shrink(self.free_blocks)

    def _crossings(self, count: int) -> int:
        """Return how many more KV blocks the decoding requests need until each has decoded up to `count`."""
        if self._reserve:
            return 0
        rounds, rest = divmod(count - self._granted, self.block_size)
        need = rounds * self._decoding
        for each in range(count - rest + 1, count + 1):
            need += self._phases[each % self.block_size]
        return need

    def _cached(self, request: SimulatedRequest) -> int:
        """Return how many of a request's prompt tokens are cached and need no prefill; the last token always does."""
        cached = request.cached_tokens
        if cached is None:
            cached = math.floor(self.cost.cached * request.prompt_tokens + 1e-9)
        return min(cached, request.prompt_tokens - 1)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
