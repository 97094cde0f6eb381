"""The dataset of a run: read once before any load, into a table that the workers map; what it holds is found here."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError
from harness.base.terminal import few
from harness.dialects import DIALECTS
from harness.spec import traffic
from harness.spec.dataset import DatasetSpec
from harness.spec.distribution import parse
from harness.spec.scenario import Ramp, Scenario
from harness.workload import tasks
from harness.workload.arrivals import trace_rate
from harness.workload.dataset import Row
from harness.workload.dataset import table as tables
from harness.workload.dataset.dataset import Skipped, open_dataset
from harness.workload.dataset.table import Table
from harness.workload.rows import answer_tokens, prompt_tokens


@contextlib.contextmanager
def read(scenario: Scenario, note: Callable[[str], None]) -> Iterator[tuple[Scenario, str]]:
    """(the scenario with what its dataset holds, path of the table of its rows); ("" where there is no dataset).

    A trace that is replayed without a rate of the operator's comes at its own rate, by its speed. The table goes away
    at the end.
    """
    spec = scenario.workload.dataset
    if not spec:
        yield scenario, ""
        return
    with tempfile.TemporaryDirectory(prefix="knee-") as folder:
        path = Path(folder) / "rows"
        found, table = _read(spec, path, scenario, note)
        if spec.sessions:
            found = _of_sessions(scenario, found, table, str(path))
        if found.skipped:
            note(f"{spec.path}: {found.skipped:,} broken rows are left out, {found.requests:,} are sent")
        workload = msgspec.structs.replace(scenario.workload, dataset=found)
        yield msgspec.structs.replace(scenario, workload=workload, ramp=_with_rate(scenario, table)), str(path)


def _read(spec: DatasetSpec, path: Path, scenario: Scenario, note: Callable[[str], None]) -> tuple[DatasetSpec, Table]:
    """The dataset with what it holds, and its table."""
    skipped, prompts, answers = Skipped() if spec.skip_broken else None, 0.0, 0.0
    usual = parse(scenario.workload.output_tokens).mean()
    notes: Counter[str] = Counter()  # what is left out, by how many rows
    images = DIALECTS[scenario.target.api].images

    def counted(rows: Iterator[Row]) -> Iterator[Row]:
        nonlocal prompts, answers
        session, before = "", 0.0  # of the row before; tokens of its session so far
        latest = -math.inf
        for row in rows:
            notes.update(row.notes)
            if not images and isinstance(row.prompt, tuple) and any(each.parts for each in row.prompt):
                notes["images are left out, as they are for chat"] += 1
            if row.at_s is not None:
                notes["rows behind a later one are sorted by their times"] += row.at_s < latest
                latest = max(latest, row.at_s)
            before = before if row.session and row.session == session and not row.whole else 0.0
            own = msgspec.structs.replace(row, tools=None) if before else row  # tools stand once before a session
            prompt = prompt_tokens(own) + (before if row.input_tokens is None else 0.0)
            answer = answer_tokens(row) or usual
            session, before = row.session, prompt + answer
            prompts, answers = prompts + prompt, answers + answer
            yield row

    dataset = open_dataset(Path(spec.path), spec.format)
    table = tables.write(counted(dataset.rows(skipped)), path)
    parts = [f"{each} ({count:,} of {len(table):,} rows)" for each, count in notes.items() if count]
    if dataset.unread:
        parts.append(f"no reader knows the fields {few(dataset.unread)}: rename what is to be sent, or leave it out")
    if parts:
        note(f"{spec.path}: {'; '.join(parts)}")
    if spec.requests not in (None, len(table)):
        fact = f"it holds {len(table):,} requests now, and the run began with {spec.requests:,}"
        raise HarnessError(fact, place=spec.path, way_out="start a new run")
    found = msgspec.structs.replace(
        spec,
        requests=len(table),
        skipped=skipped.count if skipped else 0,
        input_tokens=prompts / len(table),
        output_tokens=answers / len(table),
    )
    return found, table


def _of_sessions(scenario: Scenario, found: DatasetSpec, table: Table, path: str) -> DatasetSpec:
    """The dataset with the means of its sessions' requests, whose prompts hold their history."""
    if table.sessions == len(table):
        fact = "no two of its rows belong to one session"
        raise HarnessError(fact, place=found.path, way_out="leave $.workload.dataset.sessions out")
    lengths = tasks.lengths(scenario, path)
    prompts, answers = (sum(each[i] for each in lengths) / len(lengths) for i in (0, 1))
    return msgspec.structs.replace(found, input_tokens=prompts, output_tokens=answers)


def _with_rate(scenario: Scenario, table: Table) -> Ramp:
    """The ramp at the trace's own rate, where nobody says another."""
    ramp = scenario.ramp
    speed = traffic.parse(ramp.arrivals).speed
    if speed is None:
        return ramp
    if math.isnan(table.at_s[0]):
        fact, way_out = "its rows have no times to replay", "leave --arrivals out, or give a trace"
        raise HarnessError(fact, place="--arrivals trace", way_out=way_out)
    if ramp.rates is not None or ramp.search_rate:
        return ramp
    return msgspec.structs.replace(ramp, rates=[speed * trace_rate(table.at_s)])
