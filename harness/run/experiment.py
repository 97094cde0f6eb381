"""One run: checks, prediction, levels, result folder.

The parent process decides and writes; worker processes measure. Their messages go to the spool byte for byte.
Whatever ends the run (the ramp, a budget, Ctrl-C, a dead worker), what was measured becomes the folder's files and is
summarised. A run that ended early can be resumed: one more session in the same folder measures the unfinished levels.

The checks need few modules. The many that measuring needs (`_LATER`) are imported while the endpoint answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from harness.base import ExitStatus, __version__, files
from harness.base.errors import HarnessError
from harness.data import manifest as manifests
from harness.data.manifest import Manifest, Session, StackStart
from harness.load.workers import Workers
from harness.observe import gpu, host
from harness.observe.gpu import Gpus
from harness.results import folder as folders
from harness.results import result, spool
from harness.results.result import Result
from harness.run import requests
from harness.run.ending import DaemonExecutor, Ended, RunEnd, Signals, load
from harness.run.launch import checks, consent, limits, published, reach
from harness.run.launch.consent import Agreed
from harness.run.launch.endpoint import Address, Endpoint, address, probe_lengths
from harness.spec import scenario as scenarios
from harness.spec import shard
from harness.spec.scenario import Hooks, Scenario
from harness.spec.shard import Shard
from harness.workload import probe

if TYPE_CHECKING:
    from harness.data.progress import View
    from harness.data.summary import Summary
    from harness.run.resume import Earlier
    from harness.sim.profile import Profile

_LATER = (  # in small parts: an interrupt waits for the one that is being imported
    "harness.analysis", "numpy.linalg", "numpy.random", "harness.predict.roofline", "harness.analysis.table",
    "harness.analysis.curve", "harness.analysis.summarise", "harness.run.resume", "harness.run.estimate",
    "harness.run.levels", "harness.run.manifest",
)  # fmt: skip
_PROMPTS = 1 << 32  # numbers of one session; the next one goes on behind them, so that no prompt is sent twice


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run, and the exit status that it asks for."""

    folder: Path
    summary: Summary
    manifest: Manifest
    status: int


class _Session(msgspec.Struct, frozen=True, kw_only=True):
    """What one session of a run is to do, and where."""

    scenario: Scenario
    folder: Path
    view: View
    command: str
    agreed: Agreed
    signals: Signals
    resumed: Manifest | None = None  # the folder's manifest, with this session as its last; None in a new run
    stack: StackStart | None = None  # how the server was started, where knee did it
    shard: Shard | None = None  # one machine's share of a run on several
    # Known once the session begins:
    urls: Sequence[str] = ()  # URLs of the endpoint, or of several replicas
    placed: Sequence[tuple[int, ...]] = ()  # the processors of each worker; none: wherever the system likes
    profile: Profile | None = None  # profile of the simulated endpoint, if that is the target
    rows: str = ""  # path of the table of the dataset's rows; "": there is none


def run(
    scenario: Scenario,
    out: str | None,
    view: View,
    command: str,
    *,
    agreed: Agreed = Agreed(),
    stack: StackStart | None = None,
    signals: Signals | None = None,
    share: Shard | None = None,
) -> Outcome:
    """Measure a scenario's endpoint; return the outcome, however the run ended; HarnessError: nothing was measured.

    A public host is loaded if its plan is confirmed on a terminal or `agreed` to beforehand. In another thread than the
    main one `signals` are not the process's. `share` is this machine's of a run on several.
    """
    url = scenario.target.url
    if url is None:
        raise HarnessError("no endpoint", place="--url", way_out="give --url http://host:8000, or --url sim:")
    scenario = seeded(scenario, None if share is None else share.seed)
    if url != "sim:":
        scenario = checks.with_api(scenario, address(url))
    limits.check(scenario, share.of if share else 1)
    if share is not None:
        shard.must_lie_ahead(share.start_s, time.time())
    with folders.new(out, scenario.name, datetime.now(UTC), folders.has_requests, (folders.MANIFEST,)) as folder:
        session = _Session(
            scenario=scenario, folder=folder, view=view, command=command, agreed=agreed,
            signals=signals or Signals(), stack=stack, shard=share,
        )  # fmt: skip
        return _carried_out(session)


def seeded(scenario: Scenario, seed: int | None = None) -> Scenario:
    """Return the scenario with `seed` if it has none; if that is None, with a new one for each run.

    A server that is still warm must not know the prompts of the last run.
    """
    if scenario.workload.seed is not None:
        return scenario
    drawn = secrets.randbelow(2**31) if seed is None else seed
    return msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=drawn))


def resume(path: str, scenario: Scenario, view: View, command: str, *, agreed: Agreed = Agreed()) -> Outcome:
    """Continue a run that ended early, with the scenario that it was begun with (`resume.begun_with`)."""
    from harness.run import manifest as describing
    from harness.run.resume import ended_at

    folder = Path(path)
    with folders.claimed(folder):
        run = Result.open(folder)
        result.must_go_on(folder, run.manifest)  # another process may have ended it since its scenario was read
        limits.check(scenario)
        files.must_be_files(folder, folders.WRITTEN)  # before the load, not after it
        files.remove(folder, (folders.SUMMARY, *folders.FOR_PEOPLE))  # they are of the levels so far
        manifest = ended_at(run.manifest, run.last_s)
        sessions = [*manifest.sessions, Session(created=describing.now_iso(), command=command)]
        manifest = msgspec.structs.replace(manifest, sessions=sessions)
        files.write_json(folder / folders.MANIFEST, manifest)
        del run
        session = _Session(
            scenario=scenario, folder=folder, view=view, command=command, agreed=agreed, signals=Signals(),
            resumed=manifest,
        )  # fmt: skip
        return _carried_out(session)


def _carried_out(session: _Session) -> Outcome:
    """Read the session's dataset, start the simulated endpoint if it is the target, and run the rest in a loop."""
    signals, view = session.signals, session.view
    server_cpu, placed = limits.placement(session.scenario, session.shard.of if session.shard else None)
    urls = session.scenario.target.every_url
    with signals.outside(), contextlib.ExitStack() as exits:
        scenario, rows = exits.enter_context(requests.read(session.scenario, view.note))
        profile = None
        if urls == ["sim:"]:
            from harness.sim import profile as profiles
            from harness.sim.process import running

            # As engines do by default; prompts that are all new need no cache.
            profile = profiles.embedded(scenario.sim, prefix_caching=scenario.reuses_prompts)
            urls = [exits.enter_context(running(profile, cpu=server_cpu))]
        session = msgspec.structs.replace(
            session, scenario=scenario, rows=rows, urls=urls, placed=placed, profile=profile
        )
        try:
            return asyncio.run(_checked_and_loaded(session))
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            more = "further " if session.resumed is not None else ""
            view.note(f"interrupted before the load began: no {more}level was measured")
            sys.exit(ExitStatus.SIGNALLED + signals.number)


async def _checked_and_loaded(session: _Session) -> Outcome:
    """Run a session: get consent, check the endpoint, show the plan, load it; return the outcome."""
    session.signals.inside()
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    servers = [address(url) for url in session.urls]
    ips = await _consented(session, servers)
    foreign = [where for where, found in zip(servers, ips, strict=True) if consent.is_foreign(where, found)]
    apart = [] if session.profile is not None else [ip for found in ips for ip in found]  # no worker is on them
    with limits.links(session.scenario, len(session.placed), servers, apart, rows=session.rows) as linked:
        async with Workers(linked) as workers:  # they start while the endpoint is checked
            for note in limits.described_clocks(workers.clocks):
                session.view.note(note)
            # A server on this machine has its GPUs here; opening them may take the driver a second.
            is_here = session.profile is None and any(map(consent.is_here, servers, ips))
            opening = asyncio.create_task(asyncio.to_thread(gpu.opened)) if is_here else None
            endpoint = await _checked(session, servers, dict(zip(session.urls, ips, strict=True)))
            gpus = await opening if opening is not None else None
            try:
                await _planned(session, endpoint, foreign)
                return await _levels_measured(session, await _unloaded(session, endpoint), workers, gpus)
            finally:
                if gpus is not None:
                    gpus.close()


async def _consented(session: _Session, servers: Sequence[Address]) -> list[list[str]]:
    """Get consent, before the first byte, to what is sent to each server; return the IP addresses of each."""
    ips, view = list[list[str]](), session.view
    for where in servers:
        with reach.noted(view.note, f"the addresses of {where.host}"):
            places = await consent.addresses(where)
        ours = session.profile is not None
        notes = await consent.before_the_first_byte(session.scenario, where, places, ours=ours, agreed=session.agreed)
        for line in notes:
            view.note(line)
        ips.append(places)
    return ips


async def _checked(session: _Session, servers: Sequence[Address], ips: Mapping[str, Sequence[str]]) -> Endpoint:
    """Wait for the server if asked to, check it, and return what the load needs to know of it.

    Modules for measuring are imported meanwhile.
    """
    scenario, view = session.scenario, session.view
    # Not on the loop's executor, whose threads are not waited for: an import must not be cut off.
    over = threading.Event()
    importing = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), _import_the_rest, over)
    if (wait := scenario.target.wait) is not UNSET:
        await reach.until_ready(servers, scenario.target, wait, view.note)
    how = checks.How(
        first_prompt=_PROMPTS * (len(session.resumed.sessions) - 1 if session.resumed else 0),
        trust_remote_code=session.agreed.trust_remote_code,
        busy=importing,
        ips=ips,
        note=view.note,
    )
    try:
        endpoint = await checks.check(scenario, session.urls, how)
    finally:
        over.set()
    if note := requests.must_fit(scenario, session.rows, endpoint.model.max_context):
        view.note(note)
    used = endpoint.prompts.used if session.shard is None else shard.FIRST_REQUEST
    prompts = msgspec.structs.replace(endpoint.prompts, rows=session.rows, used=used)
    return msgspec.structs.replace(endpoint, prompts=prompts)


def _import_the_rest(over: threading.Event) -> None:
    """Import the modules that measuring needs; stop when `over` is set, as the run then ends with its checks."""
    for name in _LATER:
        if over.is_set():
            return
        importlib.import_module(name)


async def _planned(session: _Session, endpoint: Endpoint, foreign: Sequence[Address]) -> None:
    """Show the estimate of the load; if there are `foreign` hosts (public ones), ask the operator to confirm it."""
    from harness.run import estimate

    scenario = probe.scenario_for(session.scenario, endpoint.model.max_context, endpoint.prompts.tokens)
    probes = probe_lengths(scenario, endpoint)
    made = await asyncio.to_thread(estimate.estimate, scenario, endpoint.alone.e2e_s, probes, endpoint.prompts.rows)
    if not foreign:
        session.view.note(estimate.outlook(made, scenario, endpoint.alone.e2e_s, endpoint.prompts.rows))
        return
    hosts = ", ".join(dict.fromkeys(each.base for each in foreign))
    plan = estimate.plan(made, scenario, endpoint.alone.e2e_s, hosts)
    if not session.agreed.yes:
        await consent.ask(plan, hosts)
        return
    for line in plan:
        session.view.note(line)


async def _unloaded(session: _Session, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with its cache audit and the canaries' answers without load, as far as asked for."""
    scenario, earlier, note = session.scenario, session.resumed, session.view.note
    spec, quality = scenario.hooks or Hooks(), scenario.quality
    if not (scenario.hooks or quality):
        return endpoint
    from harness.run import hooks
    from harness.run.launch import unloaded

    if spec.reset_cache:
        await hooks.reset_cache(endpoint)  # a server that cannot is found before the load
    if spec.audit_cache and earlier is None:
        endpoint = await unloaded.audited(scenario, endpoint, note)
    if not quality:
        return endpoint
    if earlier is not None and earlier.quality:
        return unloaded.resumed(quality, endpoint, earlier.quality)
    return await unloaded.with_canaries(quality, scenario.target, endpoint, note)


class _Start(msgspec.Struct, frozen=True):
    """Where a session begins: what is known by then, its spool and its clock."""

    endpoint: Endpoint
    manifest: Manifest
    earlier: Earlier
    records: spool.Spool
    origin_ns: int  # CLOCK_MONOTONIC at the run's t = 0
    unix_origin: float  # the wall clock then


async def _first_start(session: _Session, scenario: Scenario, endpoint: Endpoint, gpus: Gpus | None) -> _Start:
    """Return what a first session starts with: a new manifest, a new spool and the clock's origin."""
    from harness.run import manifest as describing
    from harness.run.resume import Earlier

    manifest = await describing.first(scenario, endpoint, session.profile, gpus, session.command, session.view.note)
    origin_ns, unix_origin = time.monotonic_ns(), time.time()
    if (share := session.shard) is not None:
        shard.must_lie_ahead(share.start_s, unix_origin)
        session.view.note(f"shard {share.number} of {share.of} begins at {shard.shown(share.start_s)}")
        origin_ns, unix_origin = round(share.start_s * 1e9) - host.ahead_ns(), share.start_s
        own = manifests.Shard(**msgspec.structs.asdict(share), clock=host.clock_error())
        manifest = msgspec.structs.replace(manifest, shards=[own])
    origin = manifests.Clock(monotonic_ns_origin=origin_ns, unix_origin=unix_origin)
    manifest = msgspec.structs.replace(manifest, clock=origin, stack=session.stack or UNSET)
    records = spool.Spool(session.folder, spool.header(origin_ns, unix_origin))
    return _Start(endpoint, manifest, Earlier(), records, origin_ns, unix_origin)


async def _resumed_start(session: _Session, endpoint: Endpoint, manifest: Manifest) -> _Start:
    """Return what a resumed session starts with: the folder's manifest, earlier levels, spool and clock's origin."""
    from harness.run.resume import Earlier, as_before, origin

    endpoint, manifest = as_before(endpoint, manifest)
    run = await asyncio.to_thread(Result.open, session.folder)
    earlier = await asyncio.to_thread(Earlier.of, run, sum(each.seconds for each in manifest.loaded))
    return _Start(endpoint, manifest, earlier, spool.Spool(session.folder), *origin(manifest, run.last_s))


async def _levels_measured(session: _Session, endpoint: Endpoint, workers: Workers, gpus: Gpus | None) -> Outcome:
    """Measure the levels of the session and write the folder's files; return the outcome."""
    from harness.run import manifest as describing
    from harness.run.levels import Levels
    from harness.run.resume import RampInputs

    folder, view, signals = session.folder, session.view, session.signals
    scenario = probe.scenario_for(session.scenario, endpoint.model.max_context, endpoint.prompts.tokens)
    placed = [()] * len(workers) if scenario.ramp.ray else session.placed
    for note in endpoint.notes:
        view.note(note)
    if session.resumed is None:
        start = await _first_start(session, scenario, endpoint, gpus)
    else:
        start = await _resumed_start(session, endpoint, session.resumed)
    endpoint, records, origin_ns = start.endpoint, start.records, start.origin_ns
    # The client's ceiling is that of all its workers.
    client = msgspec.structs.replace(start.manifest.client, workers=len(workers), clocks=workers.clocks or UNSET)
    manifest = msgspec.structs.replace(start.manifest, client=client)
    inputs = RampInputs.of(manifest)
    levels = signals.levels = Levels(
        scenario, endpoint, records, view, origin_ns, start.earlier, inputs, session.shard
    )  # fmt: skip
    manifest = describing.with_session(
        manifest,
        run_id=levels.run_id,
        began_s=0.0 if session.resumed is None else (time.monotonic_ns() - origin_ns) * 1e-9,
        monotonic_ns_origin=origin_ns,
        unix_origin=start.unix_origin,
        boot=host.boot(),
        workers=len(workers),
        harness_version=__version__,
        server=endpoint.published.facts | scenarios.shown(scenario, endpoint.wire.secrets).target.server_meta,
    )
    files.write_json(folder / folders.MANIFEST, manifest)  # before any load
    view.measuring(folder)
    try:
        ended = await load(levels, workers, placed, gpus, signals)
    finally:
        levels.over = True
        records.close()
    if ended.why is RunEnd.SIGNAL:
        later = f"`knee report {shlex.quote(str(folder))}`"
        view.note(f"interrupted: writing the results; a second interrupt leaves that to {later}")
    elif after := await published.listed_after(endpoint):
        manifest = msgspec.structs.replace(manifest, models_after=after)
    transport = scenario.target.transport
    manifest = describing.ended(manifest, levels, workers, placed, ended, transport=transport)
    with signals.finishing():
        return _summarised(session, manifest, ended)


def _summarised(session: _Session, manifest: Manifest, ended: Ended) -> Outcome:
    """Write the folder's files and return the outcome; raise the failure that ended the load, if one did."""
    from harness.analysis.summarise import exit_status, lost, summarise

    folder, signals = session.folder, session.signals
    if ended.failure is not None:
        missing = 0
        with contextlib.suppress(HarnessError):  # a full disk: the spool stays and can be read
            missing = lost(_finish(folder, manifest))
        lacking = f", {missing} requests are lost" if missing else ""
        session.view.note(f"what was measured is in {folder}{lacking}")
        raise ended.failure
    summary = summarise(_finish(folder, manifest))
    status: int
    if signals.number is not None:
        status = ExitStatus.SIGNALLED + signals.number
    elif session.shard is None:
        status = exit_status(summary, slo_fail=session.scenario.ramp.slo_fail)
    else:  # a share of a run has no answer that could be missed, but may lack levels
        status = ExitStatus.UNSETTLED if ended.why is RunEnd.SHORT else ExitStatus.DONE
    return Outcome(folder, summary, manifest, status)


def _finish(folder: Path, manifest: Manifest) -> Result:
    """Turn the spool into the folder's files; if that fails the spool stays and can be read."""
    try:
        run = spool.finish(folder)
    except HarnessError as error:
        way_out = f"{error.way_out}, then `knee report {shlex.quote(str(folder))}` reads what was measured"
        raise HarnessError(error.fact, place=error.place, way_out=way_out) from None
    files.write_json(folder / folders.MANIFEST, manifest)
    return msgspec.structs.replace(run, manifest=manifest)
