"""The shards of a run as one result: their folders merged into another, which reads as that of one machine does.

Their times count from one moment, the run's start by each machine's wall clock, and their workers have numbers of their
own, so that records and the load generators' figures are put together as they are. Servers, GPUs and nodes were watched
by every machine; the figures of the first that has any are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from harness.base import files
from harness.base.errors import HarnessError
from harness.data.machines import Client
from harness.data.manifest import Manifest, Shard
from harness.data.record import SERVER, Level, Sample
from harness.results import columns
from harness.results.folder import MANIFEST, REQUESTS, TELEMETRY
from harness.results.result import Result

_WATCHED = (SERVER, "gpu")  # what every machine may see alike
_ALIKE: dict[str, Callable[[Result], object]] = {
    "version of knee": lambda run: run.manifest.harness_version,
    "scenario": lambda run: run.manifest.scenario_digest,
    "run": lambda run: _shards(run)[0].run_id,
    "start": lambda run: _shards(run)[0].start_s,
    "number of shards": lambda run: _shards(run)[0].of,
    "model": lambda run: run.manifest.model,
    "number of words in a prompt": lambda run: run.manifest.workload.prompt_words,
}


def merge(paths: Iterable[str | Path]) -> Result:
    """Return the shards in these folders merged into one result, in memory; raise HarnessError if of several runs."""
    runs = sorted(map(_opened, paths), key=lambda run: _shards(run)[0].number)
    for run in runs[1:]:
        _must_be_alike(runs[0], run)
    shards = sorted((shard for run in runs for shard in _shards(run)), key=lambda shard: shard.number)
    _must_not_repeat(runs)
    levels = _levels(runs)
    samples = [sample for run in runs for sample in run.samples if _kind(sample) not in _WATCHED]
    for kind in _WATCHED:
        samples += next(filter(None, ([s for s in run.samples if _kind(s) == kind] for run in runs)), [])
    return Result(
        path=runs[0].path,
        manifest=_manifest(runs, shards),
        header=runs[0].header,
        levels=levels,
        records=columns.ordered([record for run in runs for record in run.records]),
        samples=sorted(samples, key=lambda sample: sample.time_s),
        finished=True,
    )


def write(run: Result, folder: Path) -> Result:
    """Write a merged run as a result folder; return the result with its place."""
    columns.write_requests(folder / REQUESTS, run.header, run.levels, run.records)
    columns.write_telemetry(folder / TELEMETRY, run.samples)
    files.write_json(folder / MANIFEST, run.manifest)
    return msgspec.structs.replace(run, path=folder)


def _opened(path: str | Path) -> Result:
    run = Result.open(path)
    if not run.manifest.shards:
        raise HarnessError("not a shard of a run", place=str(path), way_out="give folders of `knee run --shard`")
    return run


def _shards(run: Result) -> list[Shard]:
    """Return the shards that a folder's run consists of (several after a merge), each with its host and client."""
    manifest = run.manifest
    return [
        msgspec.structs.replace(shard, host=shard.host or manifest.host, client=shard.client or manifest.client)
        for shard in manifest.shards or ()
    ]


def _must_be_alike(first: Result, other: Result) -> None:
    for what, fact_of in _ALIKE.items():
        theirs, ours = fact_of(first), fact_of(other)
        if ours != theirs:
            fact = f"another {what} than that of {first.path}: {ours}, there {theirs}"
            raise HarnessError(fact, place=str(other.path), way_out="give the shards of one run")


def _must_not_repeat(runs: Sequence[Result]) -> None:
    """Raise HarnessError if a shard is given twice; a missing one is only doubted, by the rule shard_missing."""
    places: dict[int, Path] = {}
    for run in runs:
        for shard in _shards(run):
            if shard.number in places:
                fact = f"shard {shard.number} is in {places[shard.number]} already"
                raise HarnessError(fact, place=str(run.path), way_out="give each shard once")
            places[shard.number] = run.path


def _kind(sample: Sample) -> str:
    """Return the source of a figure; of one of several replicas without its address."""
    return sample.source.partition(" ")[0]


def _levels(runs: Sequence[Result]) -> list[Level]:
    """Return the levels of all shards together; one that a shard has not finished has no window."""
    of_runs = [{level.index: level for level in run.levels} for run in runs]
    indices = sorted(set().union(*of_runs))
    return [_joined([levels.get(index) for levels in of_runs]) for index in indices]


def _joined(parts: Sequence[Level | None]) -> Level:
    """Return a level merged from its shards' parts: the window is what all windows share; none if a part lacks one."""
    there = [part for part in parts if part is not None]
    whole = msgspec.structs.replace(
        there[0],
        begin_s=min(part.begin_s for part in there),
        notes=tuple(dict.fromkeys(note for part in there for note in part.notes)),
    )
    windows = [(p.window_start_s, p.window_end_s, p.end_s) for p in parts if p is not None and p.finished]
    known = [(start, end, over) for start, end, over in windows if start is not None and end is not None and over]
    start_s = max((start for start, _, _ in known), default=0.0)
    end_s = min((end for _, end, _ in known), default=0.0)
    if len(known) < len(parts) or end_s <= start_s:
        return msgspec.structs.replace(whole, window_start_s=None, window_end_s=None, end_s=None)
    over_s = max(over for _, _, over in known)
    return msgspec.structs.replace(whole, window_start_s=start_s, window_end_s=end_s, end_s=over_s)


def _manifest(runs: Sequence[Result], shards: list[Shard]) -> Manifest:
    """Return the first machine's manifest with clients, sessions, notes and shards of all machines."""
    all_of = [run.manifest for run in runs]
    notes = [note for run in runs for note in (*run.manifest.notes, *filter(None, [run.damage]))]
    return msgspec.structs.replace(
        all_of[0],
        complete=all(run.complete for run in runs),
        client=_client([shard.client for shard in shards if shard.client]),
        sessions=[session for manifest in all_of for session in manifest.sessions],
        ramp=next((manifest.ramp for manifest in all_of if manifest.ramp), msgspec.UNSET),
        notes=list(dict.fromkeys(notes)),
        shards=shards,
    )


def _client(clients: Sequence[Client]) -> Client:
    """Return the load generators of all machines as one: workers, processors and resent requests added up."""
    sources = {client.timestamp_source for client in clients}
    return Client(
        workers=sum(map(operator.attrgetter("workers"), clients)),
        timestamp_source="user" if "user" in sources else clients[0].timestamp_source,
        receive="pure" if "pure" in {client.receive for client in clients} else clients[0].receive,
        transport=clients[0].transport,
        cpus=[cpus for client in clients for cpus in client.cpus or ()],
        resent=sum(client.resent or 0 for client in clients),
    )
