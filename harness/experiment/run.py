"""One run: checks, prediction, levels, result folder.

The parent process decides and writes; worker processes measure. What they send goes to the spool as it came.
Whatever ends the run (the ramp, a budget, Ctrl-C, a dead worker), what was measured is turned into the
folder's files and summarised. A run that ended early can be resumed: a sitting more, in the same folder, that holds
the levels which are not finished.

To ask the endpoint takes few modules; the many that measuring takes (`_LATER`) are imported while it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

import harness
from harness import files
from harness import manifest as manifests
from harness import scenario as scenarios
from harness.errors import HarnessError
from harness.experiment import aside, consent, limits
from harness.experiment import launch as launching
from harness.experiment.consent import Agreed
from harness.experiment.endpoint import Launch, address, probe_lengths
from harness.experiment.resume import as_before, origin
from harness.experiment.session import Ended, RunEnd, load
from harness.experiment.signals import Signals
from harness.load.local import LocalWorker
from harness.load.workers import Workers
from harness.manifest import Manifest, Session
from harness.observe import host
from harness.observe.gpu import Gpus
from harness.results import folder as folders
from harness.results import result, spool
from harness.results.result import Result
from harness.scenario import Scenario
from harness.workload import probe

if TYPE_CHECKING:
    from harness.experiment.levels import View
    from harness.sim.profile import Profile
    from harness.summary import Summary

_LATER = (  # in small parts: an interrupt waits for the one that is being imported
    "numpy.linalg", "numpy.random", "harness.predict.roofline", "harness.analysis.table", "harness.analysis.curve",
    "harness.analysis.summarise", "harness.experiment.earlier", "harness.experiment.estimate",
    "harness.experiment.levels", "harness.experiment.manifest",
)  # fmt: skip
_PROMPTS = 1 << 32  # of one sitting: the next one's begin behind them, and none is ever asked twice


class Outcome(msgspec.Struct, frozen=True):
    folder: Path
    summary: Summary
    manifest: Manifest
    status: int


class _Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """What one go at a run is given."""

    scenario: Scenario
    folder: Path
    view: View
    command: str
    agreed: Agreed
    manifest: Manifest | None = None  # of the run that is resumed, this sitting the last of its sessions


def run(scenario: Scenario, out: str | None, view: View, command: str, *, agreed: Agreed = Agreed()) -> Outcome:
    """Measure; HarnessError when nothing could be, else an outcome, however the run ended.

    A public host is loaded when its plan is confirmed on a terminal, or is `agreed` to beforehand.
    """
    if scenario.target.url is None:
        raise HarnessError("no endpoint", place="--url", way_out="give --url http://host:8000, or --url sim:")
    if scenario.workload.seed is None:
        # Another one each time: a server that is still warm must not know the prompts from the run before.
        seed = secrets.randbelow(2**31)
        scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=seed))
    limits.check(scenario)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = folders.create(out or folders.default(f"{scenario.name}-{stamp}"))
    try:
        with folders.claimed(folder):
            return _sit(_Sitting(scenario=scenario, folder=folder, view=view, command=command, agreed=agreed))
    except BaseException:
        if not (folder / folders.SPOOL).exists() and not (folder / folders.REQUESTS).exists():
            with contextlib.suppress(HarnessError):
                files.remove(folder, (folders.MANIFEST,))  # nothing was measured: leave nothing behind
            files.remove_folder(folder)
        raise


def resume(path: str, scenario: Scenario, view: View, command: str, *, agreed: Agreed = Agreed()) -> Outcome:
    """Go on with a run that ended early, by the scenario that it was begun with (`resume.begun_with`)."""
    from harness.analysis.summarise import exit_status, summarise
    from harness.experiment import manifest as describing
    from harness.experiment.earlier import Earlier
    from harness.experiment.levels import Asked

    folder = Path(path)
    with folders.claimed(folder):
        run = Result.open(folder)
        result.must_go_on(folder, run.manifest)
        limits.check(scenario)
        files.must_be_files(folder, folders.WRITTEN)  # said now, not after the load
        files.remove(folder, (folders.SUMMARY, *folders.FOR_PEOPLE))  # of the part that there was
        manifest = run.manifest
        if manifest.loaded[-1].ended_s is UNSET:  # it died
            ended = msgspec.structs.replace(manifest.loaded[-1], ended_s=run.last_s)
            sessions = [ended if each is manifest.loaded[-1] else each for each in manifest.sessions]
            manifest = msgspec.structs.replace(manifest, sessions=sessions)
        earlier, asked = Earlier.of(run, 0.0), Asked.of(manifest)
        steps = earlier.all_steps(scenario, asked.predicted_hinge, asked.probes)
        if steps is not None:  # it died after its last level
            view.note("every level is held: only the folder was left to finish")
            spool.Spool(folder).close()
            manifest = msgspec.structs.replace(manifest, complete=True, ramp=steps)
            summary = summarise(_finish(folder, manifest))
            return Outcome(folder, summary, manifest, exit_status(summary, slo_fail=scenario.ramp.slo_fail))
        sessions = [*manifest.sessions, Session(created=describing.now_iso(), command=command)]
        manifest = msgspec.structs.replace(manifest, sessions=sessions)
        files.write_json(folder / folders.MANIFEST, manifest)
        del run, earlier, asked
        return _sit(
            _Sitting(scenario=scenario, folder=folder, view=view, command=command, agreed=agreed, manifest=manifest)
        )


def _sit(sitting: _Sitting) -> Outcome:
    """Start the simulated endpoint if it is asked for, and the loop."""
    scenario, signals = sitting.scenario, Signals()
    server_cpu, placed = limits.placement(scenario)
    url = scenario.target.url
    assert url is not None
    with signals.outside(), contextlib.ExitStack() as stack:
        profile = None
        if url == "sim:":
            from harness.sim import profile as profiles
            from harness.sim.process import running

            sim = scenario.sim
            profile = profiles.profile(sim.profile, max_num_seqs=sim.max_num_seqs, speed=sim.speed)
            url = stack.enter_context(running(profile, cpu=server_cpu))
        try:
            return asyncio.run(_run(sitting, url, profile, placed, signals))
        except asyncio.CancelledError:
            if signals.number is None:
                raise
            sys.exit(128 + signals.number)  # before anything was measured


async def _run(
    sitting: _Sitting,
    url: str,
    profile: Profile | None,
    placed: list[tuple[int, ...]],
    signals: Signals,
) -> Outcome:
    signals.inside()
    asyncio.get_running_loop().set_default_executor(aside.Abandoned())
    sessions_before = len(sitting.manifest.sessions) - 1 if sitting.manifest else 0
    where = address(url)
    found, ours = await consent.addresses(where), profile is not None
    said = await consent.before_the_first_byte(sitting.scenario, where, found, ours=ours, agreed=sitting.agreed)
    for line in said:
        sitting.view.note(line)
    async with Workers([LocalWorker() for _ in placed]) as workers:  # they start while the endpoint is asked
        # Where the server is on this machine, its GPUs are; opening them may take the driver a second.
        here = asyncio.to_thread(Gpus.open) if profile is None and consent.is_here(url) else None
        opening = asyncio.create_task(here) if here is not None else None
        first_prompt = sessions_before * _PROMPTS
        # Not a thread of the loop's, which is left behind: one that is amid an import may not be.
        over = threading.Event()
        importing = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), _import_the_rest, over)
        try:
            launch = await launching.check(
                sitting.scenario, url, first_prompt, trust_remote_code=sitting.agreed.trust_remote_code, busy=importing
            )
        finally:
            over.set()
        gpus = await opening if opening is not None else None
        try:
            await _planned(sitting, launch, public=consent.is_foreign(where, found))
            return await _measure(sitting, launch, profile, workers, placed, gpus, signals)
        finally:
            if gpus is not None:
                gpus.close()


def _import_the_rest(over: threading.Event) -> None:
    """What measuring takes, until the checks are over: they wait for its end, unless they end the run."""
    for name in _LATER:
        if over.is_set():
            return
        importlib.import_module(name)


async def _planned(sitting: _Sitting, launch: Launch, *, public: bool) -> None:
    """Show what the load will come to, and of a public host see that it is meant."""
    from harness.experiment import estimate

    asked = probe.scenario_for(sitting.scenario, launch.max_context, launch.input_tokens)
    made = await asyncio.to_thread(estimate.estimate, asked, launch.e2e_s, probe_lengths(asked, launch))
    if not public:
        sitting.view.note(estimate.outlook(made, asked, launch.e2e_s))
        return
    plan = estimate.plan(made, asked, launch)
    if not sitting.agreed.yes:
        await consent.ask(plan, launch.address.base)
        return
    for line in plan:
        sitting.view.note(line)


async def _measure(
    sitting: _Sitting,
    launch: Launch,
    profile: Profile | None,
    workers: Workers,
    placed: list[tuple[int, ...]],
    gpus: Gpus | None,
    signals: Signals,
) -> Outcome:
    from harness.experiment import manifest as describing
    from harness.experiment.earlier import Earlier
    from harness.experiment.levels import Asked, Levels

    scenario, folder, view = sitting.scenario, sitting.folder, sitting.view
    scenario = probe.scenario_for(scenario, launch.max_context, launch.input_tokens)
    sitting = msgspec.structs.replace(sitting, scenario=scenario)
    for note in launch.notes:
        view.note(note)
    if sitting.manifest is None:
        manifest = await describing.first(scenario, launch, profile, gpus, sitting.command, view.note)
        origin_ns, unix_origin = time.monotonic_ns(), time.time()
        records, earlier = spool.Spool(folder, spool.header(origin_ns, unix_origin)), Earlier()
        clock = manifests.Clock(monotonic_ns_origin=origin_ns, unix_origin=unix_origin)
        manifest = msgspec.structs.replace(manifest, clock=clock)
        began_s = 0.0
    else:
        launch, manifest = as_before(launch, sitting.manifest)
        run = await asyncio.to_thread(Result.open, folder)
        origin_ns, unix_origin = origin(manifest, run.last_s)
        began_s = (time.monotonic_ns() - origin_ns) * 1e-9
        loaded_s = sum(session.seconds for session in manifest.loaded)
        earlier = await asyncio.to_thread(Earlier.of, run, loaded_s)
        records = spool.Spool(folder)
        del run
    # The client's ceiling is that of all its workers.
    client = msgspec.structs.replace(manifest.client, workers=len(workers))
    manifest = msgspec.structs.replace(manifest, client=client)
    levels = signals.levels = Levels(scenario, launch, records, view, origin_ns, earlier, Asked.of(manifest))
    manifest = describing.with_session(
        manifest,
        run_id=levels.run_id,
        began_s=began_s,
        monotonic_ns_origin=origin_ns,
        unix_origin=unix_origin,
        boot=host.boot(),
        workers=len(workers),
        harness_version=harness.__version__,
        server=launch.server | scenarios.shown(scenario, launch.secrets).target.server_meta,
    )
    files.write_json(folder / folders.MANIFEST, manifest)  # before any load
    try:
        ended = await load(levels, workers, placed, gpus, signals)
    finally:
        levels.over = True
        records.close()
    if ended.why is RunEnd.SIGNAL:
        view.note(f"interrupted: what was measured is being written; once more leaves it to `knee report {folder}`")
    transport = scenario.target.transport
    manifest = describing.ended(manifest, levels, workers.done, placed, ended, transport=transport)
    with signals.finishing():
        return _summarised(sitting, manifest, ended, signals)


def _summarised(sitting: _Sitting, manifest: Manifest, ended: Ended, signals: Signals) -> Outcome:
    """The folder's files and the outcome; the failure that ended the load, once these are written."""
    from harness.analysis.summarise import exit_status, lost, summarise

    folder = sitting.folder
    if ended.failure is not None:
        missing = 0
        with contextlib.suppress(HarnessError):  # a full disk: the spool stays as it is and reads as it is
            missing = lost(_finish(folder, manifest))
        lacking = f", {missing} requests are lost" if missing else ""
        sitting.view.note(f"what was measured is in {folder}{lacking}")
        raise ended.failure
    summary = summarise(_finish(folder, manifest))
    missed = exit_status(summary, slo_fail=sitting.scenario.ramp.slo_fail)
    return Outcome(folder, summary, manifest, missed if signals.number is None else 128 + signals.number)


def _finish(folder: Path, manifest: Manifest) -> Result:
    """Make the folder's files of the spool; where that cannot be done the spool stays, and reads."""
    try:
        run = spool.finish(folder)
    except HarnessError as error:
        way_out = f"{error.way_out}, then `knee report {folder}` reads what was measured"
        raise HarnessError(error.fact, place=error.place, way_out=way_out) from None
    files.write_json(folder / folders.MANIFEST, manifest)
    return msgspec.structs.replace(run, manifest=manifest)
