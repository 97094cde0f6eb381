"""Agents at a server, before any load: what its prefix cache serves them, and how many of them it holds.

Sessions and tasks run on the step machine of predict.batching, on a clock that jumps from step to step: each slot has
one task after the other, whose requests wait for each other and for their tools. The cache is the machine's: blocks of
what was sent and answered, of which those used longest ago go first. An agent that waits for its tool has its blocks in
it as long as the others leave room, and where they do not, its next prompt is computed anew.

Left out: replicas that agents change between (each has its share of them here), answers of other lengths than asked.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from harness.base.errors import HarnessError
from harness.data.prediction import HELD, AgentLevel, Agents
from harness.predict.batching import StepMachine
from harness.predict.deployment import Deployment
from harness.predict.model import Model
from harness.predict.sequence import SimulatedRequest
from harness.workload.hit_rate import Prompts
from harness.workload.task import Task, TaskProgress
from harness.workload.tasks import Tasks

TURNS = 8  # turns that count by themselves; the last also counts all later ones
_EACH, _FEWEST = 4, 400  # requests that count, of each agent and of all; one of each before them, which finds nothing
_CLOSE = 0.05  # relative error to which the number that the cache holds is found
_LAST = 0.5  # share of the hits that a keep-all cache has, below which no higher level is of interest
_BLOCKS = 256  # most blocks of a mean prompt: the server's own, or several of them as one
MOST = 256  # agents: the time before the load is short


class Served(NamedTuple):
    """A request and what came of it; seconds and tokens."""

    task: int
    node: int
    sent_s: float
    first_s: float
    done_s: float
    prompt: int
    cached: int
    output: int


class _Slots:
    """Slots with one task after the other, and the requests of these that are on their way to the server."""

    def __init__(self, source: Tasks, block: int, template: int) -> None:
        self.due: list[tuple[float, int, int, int]] = []  # a heap: when, in which order, of which slot, which node
        self._source, self._block, self._template = source, block, template
        self._numbers, self._order = itertools.count(), itertools.count()
        self._running: dict[int, tuple[Task, TaskProgress, Prompts]] = {}

    def begin(self, slot: int, at_s: float, early: random.Random | None = None) -> None:
        """Begin the next task in a slot at `at_s`; with `early`, at a random request of it, those before as ended."""
        task = self._source.task(next(self._numbers))
        progress = TaskProgress(task, at_s)
        self._running[slot] = task, progress, Prompts(self._source, task, block=self._block, template=self._template)
        skipped = early.randrange(len(task.nodes)) if early is not None else 0
        self._send(slot)
        while skipped and (before := [each for each in self.due if each[2] == slot and each[3] < skipped]):
            self.due = [each for each in self.due if each not in before]
            for _, _, _, node in before:
                progress.ended(node, at_s, "")
            self._send(slot)
        heapq.heapify(self.due)

    def _send(self, slot: int) -> None:
        """Send what of a slot's task may be sent; each when its tool is done."""
        for node, due_s in self._running[slot][1].ready(math.inf):
            heapq.heappush(self.due, (due_s, next(self._order), slot, node))

    def request(self, number: int, slot: int, node: int) -> SimulatedRequest:
        """Return a request as the machine takes it."""
        task, _, prompts = self._running[slot]
        prompt = prompts.of(node)
        return SimulatedRequest(number, prompt.tokens, task.nodes[node].output_tokens, hashes=prompt.hashes)

    def ended(self, slot: int, node: int, at_s: float) -> int:
        """Note that a request is answered, queue those that waited for it or begin the next task; return its task."""
        task, progress, _ = self._running[slot]
        progress.ended(node, at_s, "")
        if progress.over:
            self.begin(slot, at_s)
        else:
            self._send(slot)
        return task.number


def served(
    machine: StepMachine, source: Tasks, agents: int, *, template: int = 0, early: random.Random | None = None
) -> Iterator[Served]:
    """Simulate `agents` agents on a step machine; yield each request as it is answered, without end.

    Tasks come in order. With `early` each agent begins anywhere within its first task, as it is later on.
    Raise HarnessError if a request does not fit into the KV cache.
    """
    slots, now, api = _Slots(source, machine.block_size, template), 0.0, machine.cost.api
    for slot in range(agents):
        slots.begin(slot, 0.0, early)
    sent: dict[int, tuple[SimulatedRequest, int, int, float]] = {}
    first: dict[int, tuple[float, float, int]] = {}  # when, how much later it is seen, tokens from the cache
    while slots.due or sent:
        while slots.due and slots.due[0][0] + api <= now:
            due_s, number, slot, node = heapq.heappop(slots.due)
            request = slots.request(number, slot, node)
            sent[number] = request, slot, node, due_s
            if not machine.fits(request):
                fact = f"a request of {request.prompt_tokens + request.output_tokens:,} tokens does not fit into "
                fact += f"a KV cache of {machine.num_blocks * machine.block_size:,}"
                raise HarnessError(fact, place="--dataset", way_out="send shorter ones")
            machine.submit(request)
        ahead = slots.due[0][0] + api if slots.due else math.inf
        stride = machine.stride(ahead - now)
        if stride is None:
            now = max(now, ahead)
            continue
        now += stride.duration
        for number in stride.started:
            first[number] = now, machine.taking_in(sent[number][0]), machine.cached_tokens(number) or 0
        for number in stride.finished:
            (request, slot, node, due_s), (first_s, later_s, cached) = sent.pop(number), first.pop(number)
            task = slots.ended(slot, node, now + later_s)
            tokens = (request.prompt_tokens, cached, request.output_tokens)
            yield Served(task, node, due_s, first_s + later_s, now + later_s, *tokens)


def predict(
    model: Model,
    where: Deployment,
    source: Tasks,
    levels: Sequence[int],
    kept: float | None,
    *,
    template: int = 0,
) -> Agents:
    """Predict throughput, TTFT and cache hits for each number of agents in `levels`, and how many the cache holds.

    `kept` is the share of the prompt tokens that a cache which keeps all serves; None: no reuse is asked, and the cache
    holds any number. Levels behind one where the cache serves far less than that are left out.
    """
    lengths = [each for number in range(20) for each in source.input_tokens(source.task(number))]
    mean = sum(lengths) / len(lengths)
    times = max(1, round(mean / _BLOCKS / where.block_size))
    block = where.block_size * times
    where = msgspec.structs.replace(where, block_size=block, prefix_caching=True, prefix_hit=0.0)

    def level(agents: int) -> AgentLevel:
        machine = StepMachine(model, where, mean)
        each = math.ceil(agents / where.dp)
        simulation = served(machine, source, each, template=template, early=random.Random(f"{source.seed}:agents"))
        counted = itertools.islice(simulation, each, each + max(_FEWEST, _EACH * each))
        return _level(agents, list(counted), where.dp)

    by_count: dict[int, AgentLevel] = {}
    for agents in levels:
        if kept and any(each.cached_input_fraction < _LAST * kept for each in by_count.values()):
            break
        by_count[agents] = level(agents)
    holds = _most_cached(by_count, level, HELD * kept) if kept else None
    machine = StepMachine(model, where, mean)
    return Agents(
        kv_tokens=machine.num_blocks * machine.block_size * where.dp,
        block_size=block,
        kept_input_fraction=kept,
        holds=holds,
        levels=[by_count[agents] for agents in sorted(by_count)],
    )


def _most_cached(levels: dict[int, AgentLevel], level: Callable[[int], AgentLevel], needed: float) -> int | None:
    """Return the most agents with a share of cached input of at least `needed`, by bisection between the `levels`.

    Levels tried in between are added to them. None if all of them have the share, or none does.
    """
    high = min((n for n, each in levels.items() if each.cached_input_fraction < needed), default=None)
    low = max((n for n in levels if high is None or n < high), default=None)
    if high is None or low is None:
        return None
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        levels[middle] = level(middle)
        low, high = (middle, high) if levels[middle].cached_input_fraction >= needed else (low, middle)
    return low


def _level(agents: int, simulations: Sequence[Served], replicas: int) -> AgentLevel:
    """Return throughput, cached share and TTFT of simulated requests of one replica, for `replicas` of them."""
    seconds = simulations[-1].done_s - simulations[0].done_s
    turns: list[list[Served]] = [[] for _ in range(TURNS)]
    for simulation in simulations:
        turns[min(simulation.node, TURNS - 1)].append(simulation)
    return AgentLevel(
        concurrency=agents,
        cached_input_fraction=sum(each.cached for each in simulations) / sum(each.prompt for each in simulations),
        output_tokens_per_s=replicas * sum(simulation.output for simulation in simulations[1:]) / seconds,
        requests_per_s=replicas * (len(simulations) - 1) / seconds,
        ttft_s=fmean(simulation.first_s - simulation.sent_s for simulation in simulations),
        ttft_by_turn_s=[fmean(each.first_s - each.sent_s for each in turn) if turn else None for turn in turns],
    )


def sentence(agents: Agents, counted: str) -> str:
    """Return a sentence on how many agents (`counted`: the word) the KV cache should hold, and on throughput."""
    cache, (*_, last) = f"prediction: the KV cache of {agents.kv_tokens:,} tokens", agents.levels
    best = max(agents.levels, key=lambda each: each.output_tokens_per_s)
    most = f"at most {best.output_tokens_per_s:,.0f} output tok/s, at {best.concurrency:,} {counted}"
    share = f"{last.cached_input_fraction:.0%} of the prompt tokens come from it at {last.concurrency:,} {counted}"
    if agents.kept_input_fraction is None:
        return f"prediction: {most}"
    if agents.holds is not None:
        return f"{cache} holds about {agents.holds:,} {counted}; {share}; {most}"
    held = last.cached_input_fraction >= agents.needed
    return f"{cache} {'holds all' if held else 'holds none'}: {share}; {most}"
