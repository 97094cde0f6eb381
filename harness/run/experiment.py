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
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from harness.base import files
from harness.base.errors import HarnessError
from harness.base.version import __version__
from harness.data import manifest as manifests
from harness.data.manifest import Manifest, Session, StackStart
from harness.load.workers import Workers
from harness.observe import cards, clock, host
from harness.observe.cards import Cards
from harness.results import folder as folders
from harness.results import result, spool
from harness.results.result import Result
from harness.run import datasets
from harness.run.executor import DaemonExecutor
from harness.run.launch import checks, consent, limits, reach
from harness.run.launch.consent import Agreed
from harness.run.launch.endpoint import Address, Endpoint, address, probe_lengths
from harness.run.resume import as_before, origin
from harness.run.session import Ended, RunEnd, load
from harness.run.signals import Signals
from harness.spec import fleet, shard
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario
from harness.spec.shard import Shard
from harness.workload import probe

if TYPE_CHECKING:
    from harness.data.summary import Summary
    from harness.run.earlier import Earlier
    from harness.run.view import View
    from harness.sim.profile import Profile

_LATER = (  # in small parts: an interrupt waits for the one that is being imported
    "numpy.linalg", "numpy.random", "harness.predict.roofline", "harness.analysis.table", "harness.analysis.curve",
    "harness.analysis.summarise", "harness.run.earlier", "harness.run.estimate",
    "harness.run.levels", "harness.run.manifest",
)  # fmt: skip
_PROMPTS = 1 << 32  # numbers of one session; the next one goes on behind them, so that no prompt is sent twice


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run, and the exit status that it asks for."""

    folder: Path
    summary: Summary
    manifest: Manifest
    status: int


class _Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What one session of a run is to do."""

    scenario: Scenario
    folder: Path
    view: View
    command: str
    agreed: Agreed
    rows: str = ""  # path of the table of the dataset's rows; "": there is none
    manifest: Manifest | None = None  # of a resumed run, with this session as its last
    stack: StackStart | None = None  # how the server was started, where knee did it
    shard: Shard | None = None  # of a run on several machines


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
    """Measure; HarnessError if nothing could be measured, else the outcome, however the run ended.

    A public host is loaded if its plan is confirmed on a terminal or `agreed` to beforehand. In another thread than the
    main one `signals` are not the process's. `share` is this machine's of a run on several.
    """
    url = scenario.target.url
    if url is None:
        raise HarnessError("no endpoint", place="--url", way_out="give --url http://host:8000, or --url sim:")
    if scenario.workload.seed is None:
        # A new one for each run: a server that is still warm must not know the prompts of the last run.
        seed = secrets.randbelow(2**31) if share is None else share.seed
        scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=seed))
    if url != "sim:":
        scenario = checks.with_api(scenario, address(url))
    limits.check(scenario, share.of if share else 1)
    if share is not None:
        shard.must_lie_ahead(share.start_s, time.time())
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = folders.create(out or folders.default(f"{scenario.name}-{stamp}"))
    try:
        with folders.claimed(folder):
            setup = _Setup(
                scenario=scenario, folder=folder, view=view, command=command, agreed=agreed, stack=stack, shard=share
            )  # fmt: skip
            return _run_session(setup, signals or Signals())
    except BaseException:
        if not (folder / folders.SPOOL).exists() and not (folder / folders.REQUESTS).exists():
            with contextlib.suppress(HarnessError):
                files.remove(folder, (folders.MANIFEST,))  # nothing was measured: leave nothing behind
            files.remove_folder(folder)
        raise


def resume(path: str, scenario: Scenario, view: View, command: str, *, agreed: Agreed = Agreed()) -> Outcome:
    """Continue a run that ended early, with the scenario that it was begun with (`resume.begun_with`)."""
    from harness.analysis.summarise import exit_status, summarise
    from harness.run import manifest as describing
    from harness.run.earlier import Earlier
    from harness.run.levels import RampInputs
    from harness.workload import tasks

    folder = Path(path)
    with folders.claimed(folder):
        run = Result.open(folder)
        result.must_go_on(folder, run.manifest)
        limits.check(scenario)
        files.must_be_files(folder, folders.WRITTEN)  # before the load, not after it
        files.remove(folder, (folders.SUMMARY, *folders.FOR_PEOPLE))  # they are of the levels so far
        manifest = run.manifest
        if manifest.loaded[-1].ended_s is UNSET:  # it died
            ended = msgspec.structs.replace(manifest.loaded[-1], ended_s=run.last_s)
            sessions = [ended if each is manifest.loaded[-1] else each for each in manifest.sessions]
            manifest = msgspec.structs.replace(manifest, sessions=sessions)
        earlier, inputs = Earlier.of(run, 0.0), RampInputs.of(manifest)
        dataset = scenario.workload.dataset  # the pauses of its sessions are in a file that is not read yet
        rest_s = 0.0 if dataset and dataset.sessions else tasks.rest_s(scenario)
        steps = earlier.all_steps(scenario, inputs.predicted_hinge, inputs.probes, rest_s)
        if steps is not None:  # it died after its last level
            view.note("all levels are measured: only the result files were missing")
            spool.Spool(folder).close()
            manifest = msgspec.structs.replace(manifest, complete=True, ramp=steps)
            summary = summarise(_finish(folder, manifest))
            return Outcome(folder, summary, manifest, exit_status(summary, slo_fail=scenario.ramp.slo_fail))
        sessions = [*manifest.sessions, Session(created=describing.now_iso(), command=command)]
        manifest = msgspec.structs.replace(manifest, sessions=sessions)
        files.write_json(folder / folders.MANIFEST, manifest)
        del run, earlier, inputs
        setup = _Setup(scenario=scenario, folder=folder, view=view, command=command, agreed=agreed, manifest=manifest)
        return _run_session(setup, Signals())


def _run_session(setup: _Setup, signals: Signals) -> Outcome:
    """Start the simulated endpoint, if that is the target, and the event loop."""
    server_cpu, placed = limits.placement(setup.scenario, setup.shard.of if setup.shard else None)
    urls = fleet.urls(setup.scenario.target)
    with signals.outside(), contextlib.ExitStack() as stack:
        scenario, rows = stack.enter_context(datasets.read(setup.scenario, setup.view.note))
        setup = msgspec.structs.replace(setup, scenario=scenario, rows=rows)
        profile = None
        if urls == ["sim:"]:
            from harness.sim import profile as profiles
            from harness.sim.process import running

            # As engines do by default; prompts that are all new need no cache.
            profile = profiles.embedded(scenario.sim, prefix_caching=scenario.reuses_prompts)
            urls = [stack.enter_context(running(profile, cpu=server_cpu))]
        try:
            return asyncio.run(_run(setup, urls, profile, placed, signals))
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            more = "further " if setup.manifest is not None else ""
            setup.view.note(f"interrupted before the load began: no {more}level was measured")
            sys.exit(128 + signals.number)


async def _run(
    setup: _Setup,
    urls: Sequence[str],
    profile: Profile | None,
    placed: list[tuple[int, ...]],
    signals: Signals,
) -> Outcome:
    """Consent, checks, plan and load, on the event loop."""
    signals.inside()
    asyncio.get_running_loop().set_default_executor(DaemonExecutor())
    sessions_before = len(setup.manifest.sessions) - 1 if setup.manifest else 0
    servers = [address(url) for url in urls]
    ips: dict[str, list[str]] = {}  # of each URL's host
    foreign = []  # addresses that are not the operator's own
    for url, where in zip(urls, servers, strict=True):
        with reach.noted(setup.view.note, f"the addresses of {where.host}"):
            found = ips[url] = await consent.addresses(where)
        notes = await consent.before_the_first_byte(
            setup.scenario, where, found, ours=profile is not None, agreed=setup.agreed
        )
        for line in notes:
            setup.view.note(line)
        foreign += [where] * consent.is_foreign(where, found)
    apart = [] if profile is not None else [ip for found in ips.values() for ip in found]  # no worker is on them
    async with contextlib.AsyncExitStack() as stack:
        linked = stack.enter_context(limits.links(setup.scenario, len(placed), servers, apart, rows=setup.rows))
        if setup.scenario.ramp.ray:
            placed = [()] * len(linked)
        workers = await stack.enter_async_context(Workers(linked))  # they start while the endpoint is checked
        for note in limits.described_clocks(workers.clocks):
            setup.view.note(note)
        # A server on this machine has its GPUs here; opening them may take the driver a second.
        here = asyncio.to_thread(cards.opened) if profile is None and any(map(consent.is_here, urls)) else None
        opening = asyncio.create_task(here) if here is not None else None
        # Not on the loop's executor, whose threads are not waited for: an import must not be cut off.
        over = threading.Event()
        importing = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), _import_the_rest, over)
        if (wait := setup.scenario.target.wait) is not UNSET:
            await reach.until_ready(servers, setup.scenario.target, wait, setup.view.note)
        try:
            how = checks.How(
                first_prompt=sessions_before * _PROMPTS,
                trust_remote_code=setup.agreed.trust_remote_code,
                busy=importing,
                ips=ips,
                note=setup.view.note,
            )
            endpoint = await checks.check(setup.scenario, urls, how)
            first = endpoint.prompts.used if setup.shard is None else shard.FIRST_REQUEST
            prompts = msgspec.structs.replace(endpoint.prompts, rows=setup.rows, used=first)
            endpoint = msgspec.structs.replace(endpoint, prompts=prompts)
        finally:
            over.set()
        gpus = await opening if opening is not None else None
        try:
            await _planned(setup, endpoint, foreign)
            endpoint = await _with_canaries(setup, endpoint)
            return await _measure(setup, endpoint, profile, workers, placed, gpus, signals)
        finally:
            if gpus is not None:
                gpus.close()


def _import_the_rest(over: threading.Event) -> None:
    """Import what measuring needs, until `over` is set: the checks wait for its end unless they end the run."""
    for name in _LATER:
        if over.is_set():
            return
        importlib.import_module(name)


async def _planned(setup: _Setup, endpoint: Endpoint, foreign: Sequence[Address]) -> None:
    """Show the estimate of the load; on hosts that are `foreign` it has to be confirmed."""
    from harness.run import estimate

    scenario = probe.scenario_for(setup.scenario, endpoint.model.max_context, endpoint.prompts.tokens)
    probes = probe_lengths(scenario, endpoint)
    made = await asyncio.to_thread(estimate.estimate, scenario, endpoint.alone.e2e_s, probes, endpoint.prompts.rows)
    if not foreign:
        setup.view.note(estimate.outlook(made, scenario, endpoint.alone.e2e_s, endpoint.prompts.rows))
        return
    hosts = ", ".join(dict.fromkeys(each.base for each in foreign))
    plan = estimate.plan(made, scenario, endpoint.alone.e2e_s, hosts)
    if not setup.agreed.yes:
        await consent.ask(plan, hosts)
        return
    for line in plan:
        setup.view.note(line)


async def _with_canaries(setup: _Setup, endpoint: Endpoint) -> Endpoint:
    """The endpoint with the canaries' answers before the load: measured now, or by the session before."""
    spec = setup.scenario.quality
    if not spec:
        return endpoint
    from harness.run.launch import canaries

    if setup.manifest is not None and setup.manifest.quality:
        return canaries.resumed(spec, endpoint, setup.manifest.quality)
    return await canaries.measured(spec, setup.scenario.target, endpoint, setup.view.note)


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session begins: what is known by then, its spool and its clock."""

    endpoint: Endpoint
    manifest: Manifest
    earlier: Earlier
    records: spool.Spool
    origin_ns: int  # CLOCK_MONOTONIC at the run's t = 0
    unix_origin: float  # the wall clock then
    began_s: float = 0.0  # of this session, since then


async def _first_start(setup: _Setup, endpoint: Endpoint, profile: Profile | None, gpus: Cards | None) -> _Start:
    """The first session: a manifest, a spool and a clock of its own."""
    from harness.run import manifest as describing
    from harness.run.earlier import Earlier

    manifest = await describing.first(setup.scenario, endpoint, profile, gpus, setup.command, setup.view.note)
    origin_ns, unix_origin = time.monotonic_ns(), time.time()
    if (share := setup.shard) is not None:
        shard.must_lie_ahead(share.start_s, unix_origin)
        setup.view.note(f"shard {share.number} of {share.of} begins at {shard.shown(share.start_s)}")
        origin_ns, unix_origin = round(share.start_s * 1e9) - clock.ahead_ns(), share.start_s
        manifest = msgspec.structs.replace(manifest, shards=[describing.shard(share)])
    origin = manifests.Clock(monotonic_ns_origin=origin_ns, unix_origin=unix_origin)
    return _Start(
        endpoint=endpoint,
        manifest=msgspec.structs.replace(manifest, clock=origin, stack=setup.stack or UNSET),
        earlier=Earlier(),
        records=spool.Spool(setup.folder, spool.header(origin_ns, unix_origin)),
        origin_ns=origin_ns,
        unix_origin=unix_origin,
    )


async def _resumed_start(setup: _Setup, endpoint: Endpoint, manifest: Manifest) -> _Start:
    """A later session: the folder's manifest, spool and clock go on."""
    from harness.run.earlier import Earlier

    endpoint, manifest = as_before(endpoint, manifest)
    run = await asyncio.to_thread(Result.open, setup.folder)
    origin_ns, unix_origin = origin(manifest, run.last_s)
    began_s = (time.monotonic_ns() - origin_ns) * 1e-9
    loaded_s = sum(session.seconds for session in manifest.loaded)
    return _Start(
        endpoint=endpoint,
        manifest=manifest,
        earlier=await asyncio.to_thread(Earlier.of, run, loaded_s),
        records=spool.Spool(setup.folder),
        origin_ns=origin_ns,
        unix_origin=unix_origin,
        began_s=began_s,
    )


async def _measure(
    setup: _Setup,
    endpoint: Endpoint,
    profile: Profile | None,
    workers: Workers,
    placed: list[tuple[int, ...]],
    gpus: Cards | None,
    signals: Signals,
) -> Outcome:
    """The levels of the session, the folder's files and the outcome."""
    from harness.run import manifest as describing
    from harness.run.levels import Levels, RampInputs

    folder, view = setup.folder, setup.view
    scenario = probe.scenario_for(setup.scenario, endpoint.model.max_context, endpoint.prompts.tokens)
    setup = msgspec.structs.replace(setup, scenario=scenario)
    for note in endpoint.notes:
        view.note(note)
    if setup.manifest is None:
        start = await _first_start(setup, endpoint, profile, gpus)
    else:
        start = await _resumed_start(setup, endpoint, setup.manifest)
    endpoint, records, origin_ns = start.endpoint, start.records, start.origin_ns
    # The client's ceiling is that of all its workers.
    client = msgspec.structs.replace(start.manifest.client, workers=len(workers), clocks=workers.clocks or UNSET)
    manifest = msgspec.structs.replace(start.manifest, client=client)
    inputs = RampInputs.of(manifest)
    levels = signals.levels = Levels(
        scenario, endpoint, records, view, origin_ns, start.earlier, inputs, setup.shard
    )  # fmt: skip
    manifest = describing.with_session(
        manifest,
        run_id=levels.run_id,
        began_s=start.began_s,
        monotonic_ns_origin=origin_ns,
        unix_origin=start.unix_origin,
        boot=host.boot(),
        workers=len(workers),
        harness_version=__version__,
        server=endpoint.published.facts | scenarios.shown(scenario, endpoint.wire.secrets).target.server_meta,
    )
    files.write_json(folder / folders.MANIFEST, manifest)  # before any load
    try:
        ended = await load(levels, workers, placed, gpus, signals)
    finally:
        levels.over = True
        records.close()
    if ended.why is RunEnd.SIGNAL:
        view.note(f"interrupted: writing the results; a second interrupt leaves that to `knee report {folder}`")
    transport = scenario.target.transport
    manifest = describing.ended(manifest, levels, workers, placed, ended, transport=transport)
    with signals.finishing():
        return _summarised(setup, manifest, ended, signals)


def _summarised(setup: _Setup, manifest: Manifest, ended: Ended, signals: Signals) -> Outcome:
    """Write the folder's files; the outcome, or the failure that ended the load."""
    from harness.analysis.summarise import exit_status, lost, summarise

    folder = setup.folder
    if ended.failure is not None:
        missing = 0
        with contextlib.suppress(HarnessError):  # a full disk: the spool stays and can be read
            missing = lost(_finish(folder, manifest))
        lacking = f", {missing} requests are lost" if missing else ""
        setup.view.note(f"what was measured is in {folder}{lacking}")
        raise ended.failure
    summary = summarise(_finish(folder, manifest))
    # A share of a run has no answer that could be missed.
    missed = 0 if setup.shard else exit_status(summary, slo_fail=setup.scenario.ramp.slo_fail)
    return Outcome(folder, summary, manifest, missed if signals.number is None else 128 + signals.number)


def _finish(folder: Path, manifest: Manifest) -> Result:
    """Turn the spool into the folder's files; if that fails the spool stays and can be read."""
    try:
        run = spool.finish(folder)
    except HarnessError as error:
        way_out = f"{error.way_out}, then `knee report {folder}` reads what was measured"
        raise HarnessError(error.fact, place=error.place, way_out=way_out) from None
    files.write_json(folder / folders.MANIFEST, manifest)
    return msgspec.structs.replace(run, manifest=manifest)
