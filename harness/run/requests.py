"""The requests of a run, as far as they are known before any server is asked: its dataset, and what it will send.

A dataset is read once, into a table that the workers map; what it holds is found here.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import UnsetType

from harness.base.errors import HarnessError, nearest
from harness.base.terminal import few
from harness.dialects import DIALECTS
from harness.run.launch import limits
from harness.spec import traffic
from harness.spec.classes import ClassSpec
from harness.spec.distribution import parse
from harness.spec.load import Rates
from harness.spec.reuse import DatasetSpec
from harness.spec.scenario import Ramp, Scenario
from harness.spec.shard import FIRST_REQUEST, Shard
from harness.workload import canaries, probe, shape, tasks
from harness.workload import source as sources
from harness.workload.arrivals import due_times, trace_rate
from harness.workload.dataset import Row
from harness.workload.dataset import table as tables
from harness.workload.dataset.dataset import Dataset, Named, Skipped, named, open_dataset
from harness.workload.dataset.table import Table
from harness.workload.request import Request
from harness.workload.rows import answer_tokens, prompt_tokens, text_tokens
from harness.workload.source import Source
from harness.workload.task import MOST_NODES
from harness.workload.text import PromptWords

_MOST_MODELS = 100  # most models of a dataset, whose column of this name may hold anything


@contextlib.contextmanager
def read(scenario: Scenario, note: Callable[[str], None]) -> Iterator[tuple[Scenario, str]]:
    """Read the dataset; yield (the scenario with its lengths and rate, path of the table of its rows or "").

    A trace that is replayed without a rate of the operator's comes at its own rate, by its speed. The table is deleted
    at the end.
    """
    spec = scenario.workload.dataset
    if not spec:
        yield scenario, ""
        return
    with tempfile.TemporaryDirectory(prefix="knee-") as folder:
        path = Path(folder) / "rows"
        models: Counter[str] = Counter()  # rows of each that a request was sent to
        dataset, table = _read(spec, path, scenario, note, models)
        if spec.sessions:
            dataset = _of_sessions(scenario, dataset, table, str(path))
            if cut := table.longer_than(MOST_NODES):
                note(f"{spec.path}: the end of {cut:,} sessions with more than {MOST_NODES:,} requests is left out")
        if dataset.skipped:
            note(f"{spec.path}: {dataset.skipped:,} broken rows are left out, {dataset.requests:,} are sent")
        workload = msgspec.structs.replace(scenario.workload, dataset=dataset)
        classes = _of_models(scenario, spec.path, models)
        yield (
            msgspec.structs.replace(scenario, workload=workload, ramp=_with_rate(scenario, table), class_=classes),
            str(path),
        )


def _of_models(scenario: Scenario, place: str, models: Mapping[str, int]) -> Sequence[ClassSpec] | UnsetType:
    """Return classes named after models, with each one's rows as share; raise HarnessError if one has no row."""
    for spec in scenario.class_ or ():
        if spec.name not in models:
            fact = f"no row was sent to a model {spec.name!r}, which has a class"
            raise HarnessError(fact, place=place, way_out=nearest(spec.name, list(models)))
    return scenario.class_ and [
        msgspec.structs.replace(each, share=float(models[each.name])) for each in scenario.class_
    ]


def _read(
    spec: DatasetSpec, path: Path, scenario: Scenario, note: Callable[[str], None], models: Counter[str]
) -> tuple[DatasetSpec, Table]:
    """Write a dataset's rows to a table at `path`; return the spec with counts and means, and it; count `models`."""
    skipped, prompts, answers = Skipped() if spec.skip_broken else None, 0.0, 0.0
    usual, cut, left_out = parse(scenario.workload.output_tokens).mean(), set[str](), 0  # sessions; rows
    notes: Counter[str] = Counter()  # what is left out, by how many rows
    images = DIALECTS[scenario.target.api].images

    def counted(rows: Iterator[Row]) -> Iterator[Row]:
        """Yield the rows that are kept, and count them: a session ends before its first row above skip_longer."""
        nonlocal prompts, answers, left_out
        session, before, latest = "", 0.0, -math.inf  # the last row's session, its tokens so far; the latest time
        for row in rows:
            notes.update(row.notes)
            if not images and isinstance(row.prompt, tuple) and any(message.parts for message in row.prompt):
                notes["images are left out, as they are for chat"] += 1
            if row.at_s is not None:
                notes["rows behind a later one are sorted by their times"] += row.at_s < latest
                latest = max(latest, row.at_s)
            before = before if row.session and row.session == session and not row.whole else 0.0
            own = msgspec.structs.replace(row, tools=None) if before else row  # a session has its tools once, before it
            prompt = prompt_tokens(own) + (before if row.input_tokens is None else 0.0)
            answer = answer_tokens(row) or usual
            session, before = row.session, prompt + answer
            if spec.skip_longer and (prompt + answer > spec.skip_longer or (row.session and row.session in cut)):
                cut.add(row.session)
                left_out += 1
                continue
            prompts, answers = prompts + prompt, answers + answer
            if row.model and (row.model in models or len(models) < _MOST_MODELS):
                models[row.model] += 1
            yield row

    opened, known = _opened(spec)
    if known:
        licence = f", licence {known.licence}" if known.licence else ""
        note(f"{spec.path}: {known.path.name} of revision {known.revision[:12]}{licence}")
        spec = msgspec.structs.replace(spec, revision=known.revision, licence=known.licence)
    table = tables.write(counted(opened.rows(skipped)), path)
    parts = [f"{each} ({count:,} of {len(table):,} rows)" for each, count in notes.items() if count]
    if left_out:
        parts.append(f"{left_out:,} requests longer than {spec.skip_longer:,} tokens, or behind one, are left out")
    if len(models) > 1 and not scenario.class_:
        parts.append(f"its models are one here ({few(list(models))}): a [[class]] of a model's name sends it elsewhere")
    if opened.unread:
        parts.append(f"no reader knows the fields {few(opened.unread)}: rename what is to be sent, or leave it out")
    if parts:
        note(f"{spec.path}: {'; '.join(parts)}")
    if spec.requests not in (None, len(table)):
        fact = f"it holds {len(table):,} requests now, and the run began with {spec.requests:,}"
        raise HarnessError(fact, place=spec.path, way_out="start a new run")
    dataset = msgspec.structs.replace(
        spec,
        requests=len(table),
        skipped=skipped.count if skipped else 0,
        input_tokens=prompts / len(table),
        output_tokens=answers / len(table),
    )
    return dataset, table


def has_texts(spec: DatasetSpec) -> bool:
    """Return whether a dataset has prompts of its own, by its first request; raise HarnessError if it has none."""
    return any(row.prompt is not None for row in itertools.islice(_opened(spec)[0].rows(), 1))


def _opened(spec: DatasetSpec) -> tuple[Dataset, Named | None]:
    """Return the dataset, and what its name means."""
    known = named(spec.path, spec.revision)
    return open_dataset(known.path if known else Path(spec.path), spec.format, spec.fields), known


def must_fit(scenario: Scenario, rows: str, longest: int | None) -> str:
    """Return a note on how many requests of a dataset are longer than the server's context; "" if none is.

    Raise HarnessError if they are more than one in a hundred, or of sessions, which they would end.
    """
    spec = scenario.workload.dataset
    if not spec or not rows or longest is None:
        return ""
    table = Table(Path(rows))
    usual = round(parse(scenario.workload.output_tokens).mean())
    pairs = zip(table.input_tokens, table.output_tokens, strict=True)
    longer = sum(prompt + (usual if answer < 0 else answer) > longest for prompt, answer in pairs if prompt >= 0)
    if not longer:
        return ""
    fact = f"{longer:,} of {len(table):,} requests are longer than the {longest:,} tokens that the server takes"
    if spec.sessions or longer > 0.01 * len(table):
        raise HarnessError(fact, place=spec.path, way_out=f"leave them out with --skip-longer {longest}")
    return f"{spec.path}: {fact}: it will refuse them"


def _of_sessions(scenario: Scenario, dataset: DatasetSpec, table: Table, path: str) -> DatasetSpec:
    """Return the dataset spec with mean lengths of its sessions' requests, whose prompts contain their history.

    Raise HarnessError if every session has one row.
    """
    if table.sessions == len(table):
        fact = "no two of its rows belong to one session"
        raise HarnessError(fact, place=dataset.path, way_out="leave $.workload.dataset.sessions out")
    lengths = tasks.lengths(scenario, path)
    prompts, answers = (sum(length[i] for length in lengths) / len(lengths) for i in (0, 1))
    agents = table.row(0).after is not None  # formats of agents' traces have this
    return msgspec.structs.replace(dataset, input_tokens=prompts, output_tokens=answers, agents=agents)


def _with_rate(scenario: Scenario, table: Table) -> Ramp:
    """Return the ramp, for a replayed trace with the trace's own rate unless another is given; refuse untimed rows."""
    ramp = scenario.ramp
    speed = traffic.parse(ramp.arrivals).speed
    if speed is None:
        return ramp
    if math.isnan(table.at_s[0]):
        fact, way_out = "its rows have no times to replay", "leave --arrivals out, or give a trace"
        raise HarnessError(fact, place="--arrivals trace", way_out=way_out)
    spec = scenario.workload.dataset
    if spec and spec.sessions and table.at_s[table.of_session(table.sessions - 1)[0]] == table.at_s[0]:
        fact = "it does not say when its sessions began: all of them do at one moment"
        raise HarnessError(fact, place=spec.path, way_out="send so many at once by --agents N")
    if ramp.rates is not None or ramp.search_rate:
        return ramp
    return msgspec.structs.replace(ramp, rates=[speed * trace_rate(table.at_s)])


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    class_: str = msgspec.field(name="class")
    session: str
    turn: int
    after: tuple[int, ...]  # numbers of those that it waits for
    input_tokens: float | None  # tokens as requested; for a text of unknown length, by its characters
    output_tokens: int
    due_s: float | None  # since the first level began; None in closed loop, and if it waits for others
    prompt_sha256: str


def planned(scenario: Scenario, rows: str = "", share: Shard | None = None) -> Iterator[Planned]:
    """Yield the requests of the first level, without end; `rows` is the path of the table of its dataset.

    Of a phase probe those of its ramp, and of a run on several machines those of one's share. They are dealt out as the
    run's workers would have them, and come in one order: by their numbers. Those of a shard begin where its run's do;
    without shards the server's checks decide how many numbers are used before the load, and they begin with 0. Only the
    server says how many tokens a word and the template come to, so a prompt here has a word for each token.
    """
    if share is not None:
        if scenario.workload.seed is None:
            workload = msgspec.structs.replace(scenario.workload, seed=share.seed)
            scenario = msgspec.structs.replace(scenario, workload=workload)
        workers = len(limits.placement(scenario, share.of)[1])
        row = sources.first_row(scenario, FIRST_REQUEST, rows)
        first = FIRST_REQUEST if row is None else row
        for each in _from(first, scenario, rows):
            dealt = int(each.session) if scenario.has_tasks else each.number  # tasks are dealt out whole
            if share.has(dealt - first, workers):
                yield each
        return
    yield from _from(0, scenario, rows)


def _from(first: int, scenario: Scenario, rows: str) -> Iterator[Planned]:
    """Yield the planned requests of a level (or of its tasks) without end, from number `first` on."""
    scenario = probe.scenario_for(scenario)
    if scenario.has_tasks:
        yield from _of_tasks(first, scenario, rows)
        return
    prompts = canaries.read(scenario.quality) if scenario.quality else ()
    source = sources.singles(scenario, PromptWords(), rows, prompts)
    mean = shape.of(scenario).mean().input_tokens
    for number, due_s in enumerate(_due(scenario, source), first):
        request = source.request(number)
        tokens: float | None = request.input_tokens
        if tokens is None and request.canary is None:
            tokens = text_tokens(request.prompt, request.tools) if scenario.workload.dataset else mean
        yield _planned(request, tokens, due_s)


def _of_tasks(first: int, scenario: Scenario, rows: str) -> Iterator[Planned]:
    """Yield the requests of the tasks from the number `first` on.

    Texts of their length replace the answers that only the server gives.
    """
    source = tasks.of(scenario, rows=rows)
    assert source is not None
    script = msgspec.structs.replace(source, history="scripted")
    for number, due_s in enumerate(_due(scenario, source), first):
        task = source.task(number)
        for node, input_tokens in enumerate(script.input_tokens(task)):
            request = task.nodes[node]
            at_s = None if due_s is None or request.parents else due_s + request.pause_s
            yield _planned(script.request(task, node, {}), input_tokens, at_s)


def _planned(request: Request, input_tokens: float | None, due_s: float | None) -> Planned:
    """Return what is shown of a planned request: its lengths, due time, and the digest of its prompt."""
    prompt = request.prompt
    sent = prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt)
    return Planned(
        number=request.number,
        class_=request.class_,
        session=request.session,
        turn=request.turn,
        after=request.after,
        input_tokens=input_tokens,
        output_tokens=request.output_tokens,
        due_s=due_s,
        prompt_sha256=hashlib.sha256(sent).hexdigest(),
    )


def _due(scenario: Scenario, source: Source) -> Iterator[float | None]:
    """Yield when each request or task is due, in seconds, as the workers deal them out; None in a closed loop."""
    ramp = scenario.ramp
    workers = ramp.workers or 1
    if not isinstance(ramp.load, Rates):
        yield from itertools.repeat(None)
        return
    arrivals, rate = traffic.parse(ramp.arrivals), ramp.load.loads[0]
    times, starts = sources.times(source), sources.starts(source)
    dealt = [
        due_times(arrivals, rate, seed=source.seed, level=0, worker=k, workers=workers, trace=times, starts=starts)
        for k in range(workers)
    ]
    for each in itertools.cycle(dealt):
        yield next(each)
