"""The requests that a run will send, as far as they are known before any server is asked.

They are dealt out as the run's workers would have them, and come out in one order: by their numbers. Those of a shard
begin where its run's do; without shards, the server's checks decide how many numbers are used before the load, and they
begin with 0. How many tokens a word and the template come to only the server says, so a prompt here has a word for each
token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import msgspec

from harness.run.launch import limits
from harness.spec import traffic
from harness.spec.load import Rates
from harness.spec.scenario import Scenario
from harness.spec.shard import FIRST_REQUEST, Shard
from harness.workload import canaries, probe, shape, tasks
from harness.workload import source as sources
from harness.workload.arrivals import due_times
from harness.workload.request import Request
from harness.workload.rows import text_tokens
from harness.workload.source import Single
from harness.workload.text import PromptWords


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a run."""

    number: int
    class_: str = msgspec.field(name="class")
    session: str
    turn: int
    after: tuple[int, ...]  # numbers of those that it waits for
    input_tokens: float | None  # as requested; of a text in a dataset that does not say it, by its characters
    output_tokens: int
    due_s: float | None  # since the first level began; None in closed loop
    prompt_sha256: str


def planned(scenario: Scenario, rows: str = "", share: Shard | None = None) -> Iterator[Planned]:
    """The requests of the first level, without end; `rows` is the path of the table of its dataset.

    Of a phase probe those of its ramp, and of a run on several machines those of one's share.
    """
    if share is not None:
        if scenario.workload.seed is None:
            workload = msgspec.structs.replace(scenario.workload, seed=share.seed)
            scenario = msgspec.structs.replace(scenario, workload=workload)
        workers = len(limits.placement(scenario, share.of)[1])
        row = sources.first_row(scenario, FIRST_REQUEST)
        first = FIRST_REQUEST if row is None else row
        for each in _from(first, scenario, rows):
            dealt = int(each.session) if scenario.has_tasks else each.number  # tasks are dealt out whole
            if share.has(dealt - first, workers):
                yield each
        return
    yield from _from(0, scenario, rows)


def _from(first: int, scenario: Scenario, rows: str) -> Iterator[Planned]:
    """The requests of a level, or its tasks, from the number `first` on."""
    scenario = probe.scenario_for(scenario)
    if scenario.has_tasks:
        yield from _of_tasks(first, scenario, rows)
        return
    asked = canaries.read(scenario.quality) if scenario.quality else ()
    source = sources.singles(scenario, PromptWords(), rows, asked)
    mean = shape.of(scenario).mean().input_tokens
    for number, due_s in enumerate(_due(scenario, source), first):
        request = source.request(number)
        tokens: float | None = request.input_tokens
        if tokens is None and request.canary is None:
            tokens = text_tokens(request.prompt, request.tools) if scenario.workload.dataset else mean
        yield _planned(request, tokens, due_s)


def _of_tasks(first: int, scenario: Scenario, rows: str) -> Iterator[Planned]:
    """The requests of the tasks from the number `first` on.

    Texts of their length stand in for answers that only the server gives.
    """
    source = tasks.of(scenario, rows=rows)
    assert source is not None
    script = msgspec.structs.replace(source, history="scripted")
    for number in itertools.count(first):
        task = source.task(number)
        for node, input_tokens in enumerate(script.input_tokens(task)):
            yield _planned(script.request(task, node, {}), input_tokens, None)


def _planned(request: Request, input_tokens: float | None, due_s: float | None) -> Planned:
    return Planned(
        number=request.number,
        class_=request.class_,
        session=request.session,
        turn=request.turn,
        after=request.after,
        input_tokens=input_tokens,
        output_tokens=request.output_tokens,
        due_s=due_s,
        prompt_sha256=_digest(request),
    )


def _due(scenario: Scenario, source: Single) -> Iterator[float | None]:
    """When each request is due, the workers taking turns."""
    ramp = scenario.ramp
    workers = ramp.workers or 1
    if not isinstance(ramp.load, Rates):
        yield from itertools.repeat(None)
        return
    arrivals, rate = traffic.parse(ramp.arrivals), ramp.load.loads[0]
    dealt = [
        due_times(
            arrivals, rate, seed=source.seed, level=0, worker=worker, workers=workers, trace=sources.times(source)
        )
        for worker in range(workers)
    ]
    for times in itertools.cycle(dealt):
        yield next(times)


def _digest(request: Request) -> str:
    prompt = request.prompt
    return hashlib.sha256(prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt)).hexdigest()
