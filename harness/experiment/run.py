"""One run: checks, prediction, levels, result folder.

The parent process decides and writes; worker processes measure. What they send goes to the spool as it came.
Whatever ends the run (the ramp, a budget, Ctrl-C, a dead worker), what was measured is turned into the
folder's files and summarised. A run that ended early can be resumed: a sitting more, in the same folder, that holds
the levels which are not finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import harness
from harness import files, store
from harness import scenario as scenarios
from harness.analysis import phases
from harness.errors import HarnessError
from harness.experiment import aside, calibrate, consent, estimate, hardware, limits, probe, published
from harness.experiment import launch as launching
from harness.experiment.calibrate import Calibration
from harness.experiment.consent import Agreed
from harness.experiment.earlier import Earlier
from harness.experiment.endpoint import Launch, address
from harness.experiment.levels import Asked, Levels, View
from harness.experiment.prediction import predict
from harness.experiment.resume import as_before, loaded, origin
from harness.experiment.session import Ended, RunEnd, load, timestamp_source
from harness.experiment.signals import Signals
from harness.experiment.summarise import exit_status, lost, summarise
from harness.load import workers as crew
from harness.load.driver import Done
from harness.observe import host
from harness.observe.gpu import Gpus
from harness.predict import model, roofline
from harness.record import FORMAT
from harness.scenario import Scenario
from harness.sim import profile as profiles
from harness.sim.process import running
from harness.summary import Summary

_PROMPTS = 1 << 32  # of one sitting: the next one's begin behind them, and none is ever asked twice


class Outcome(msgspec.Struct, frozen=True):
    folder: Path
    summary: Summary
    manifest: dict[str, Any]
    status: int


class _Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """What one go at a run is given."""

    scenario: Scenario
    folder: Path
    view: View
    command: str
    agreed: Agreed
    manifest: dict[str, Any] | None = None  # of the run that is resumed, this sitting the last of its sittings


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
    folder = store.create(out or store.fresh(f"{scenario.name}-{stamp}"))
    try:
        with store.claimed(folder):
            return _sit(_Sitting(scenario=scenario, folder=folder, view=view, command=command, agreed=agreed))
    except BaseException:
        if not (folder / store.SPOOL).exists() and not (folder / store.REQUESTS).exists():
            with contextlib.suppress(HarnessError):
                files.remove(folder, (store.MANIFEST,))  # nothing was measured: leave nothing behind
            files.remove_folder(folder)
        raise


def resume(path: str, scenario: Scenario, view: View, command: str, *, agreed: Agreed = Agreed()) -> Outcome:
    """Go on with a run that ended early, by the scenario that it was begun with (`resume.begun_with`)."""
    folder = Path(path)
    with store.claimed(folder):
        run = store.read(folder)
        store.must_go_on(folder, run.manifest)
        limits.check(scenario)
        files.must_be_files(folder, store.WRITTEN)  # said now, not after the load
        files.remove(folder, (store.SUMMARY, *store.FOR_PEOPLE))  # of the part that there was
        manifest = run.manifest
        loaded(manifest)[-1].setdefault("ended_s", run.last_s)
        earlier, asked = Earlier.of(run, 0.0), Asked.of(manifest)
        steps = earlier.all_steps(scenario, asked.predicted_hinge, asked.probes)
        if steps is not None:  # it died after its last level
            view.note("every level is held: only the folder was left to finish")
            store.Spool(folder).close()
            manifest |= {"complete": True, "ramp": steps}
            summary = summarise(_finish(folder, manifest))
            return Outcome(folder, summary, manifest, exit_status(summary, slo_fail=scenario.ramp.slo_fail))
        manifest["sittings"].append({"created": _now_iso(), "command": command})
        store.write_json(folder / store.MANIFEST, manifest)
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
    profile: profiles.Profile | None,
    placed: list[tuple[int, ...]],
    signals: Signals,
) -> Outcome:
    signals.inside()
    asyncio.get_running_loop().set_default_executor(aside.Abandoned())
    sittings = sitting.manifest["sittings"] if sitting.manifest else [None]
    where = address(url)
    found, ours = await consent.addresses(where), profile is not None
    said = await consent.before_the_first_byte(sitting.scenario, where, found, ours=ours, agreed=sitting.agreed)
    for line in said:
        sitting.view.note(line)
    async with crew.Workers(len(placed)) as workers:  # they start while the endpoint is asked
        # Where the server is on this machine, its GPUs are; opening them may take the driver a second.
        here = asyncio.to_thread(Gpus.open) if profile is None and consent.is_here(url) else None
        opening = asyncio.create_task(here) if here is not None else None
        first_prompt = (len(sittings) - 1) * _PROMPTS
        trust = sitting.agreed.trust_remote_code
        launch = await launching.check(sitting.scenario, url, first_prompt, trust_remote_code=trust)
        gpus = await opening if opening is not None else None
        try:
            await _planned(sitting, launch, public=consent.is_foreign(where, found))
            return await _measure(sitting, launch, profile, workers, placed, gpus, signals)
        finally:
            if gpus is not None:
                gpus.close()


async def _planned(sitting: _Sitting, launch: Launch, *, public: bool) -> None:
    """Show what the load will come to, and of a public host see that it is meant."""
    asked = probe.scenario_for(sitting.scenario, launch.max_context, launch.input_tokens)
    made = await asyncio.to_thread(estimate.estimate, asked, launch.e2e_s, probe.lengths(asked, launch))
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
    profile: profiles.Profile | None,
    workers: crew.Workers,
    placed: list[tuple[int, ...]],
    gpus: Gpus | None,
    signals: Signals,
) -> Outcome:
    scenario, folder, view = sitting.scenario, sitting.folder, sitting.view
    scenario = probe.scenario_for(scenario, launch.max_context, launch.input_tokens)
    sitting = msgspec.structs.replace(sitting, scenario=scenario)
    for note in launch.notes:
        view.note(note)
    if sitting.manifest is None:
        manifest = await _first_manifest(sitting, launch, profile, gpus)
        origin_ns, unix_origin = time.monotonic_ns(), time.time()
        spool, earlier = store.Spool(folder, store.header(origin_ns, unix_origin)), Earlier()
        manifest["clock"] = {"monotonic_ns_origin": origin_ns, "unix_origin": unix_origin}
        began_s = 0.0
    else:
        manifest = sitting.manifest
        launch = as_before(launch, manifest)
        run = await asyncio.to_thread(store.read, folder)
        origin_ns, unix_origin = origin(manifest, run.last_s)
        began_s = (time.monotonic_ns() - origin_ns) * 1e-9
        loaded_s = sum(each["ended_s"] - each["began_s"] for each in loaded(manifest))
        earlier = await asyncio.to_thread(Earlier.of, run, loaded_s)
        spool = store.Spool(folder)
        del run
    manifest["client"]["workers"] = len(workers)  # whose ceiling is that of all of them
    levels = signals.levels = Levels(scenario, launch, spool, view, origin_ns, earlier, Asked.of(manifest))
    manifest["sittings"][-1] |= {
        "run_id": levels.run_id,
        "began_s": began_s,
        "monotonic_ns_origin": origin_ns,
        "unix_origin": unix_origin,
        "boot": host.boot(),
        "workers": len(workers),
        "harness_version": harness.__version__,
        "server": launch.server | scenarios.shown(scenario, launch.secrets).target.server_meta,
    }
    store.write_json(folder / store.MANIFEST, manifest)  # before any load
    try:
        ended = await load(levels, workers, placed, gpus, signals)
    finally:
        levels.over = True
        spool.close()
    if ended.why is RunEnd.SIGNAL:
        view.note(f"interrupted: what was measured is being written; once more leaves it to `knee report {folder}`")
    _note_end(manifest, levels, workers.done, placed, ended, transport=scenario.target.transport)
    with signals.finishing():
        return _summarised(sitting, manifest, ended, signals)


def _note_end(
    manifest: dict[str, Any],
    levels: Levels,
    done: list[Done],
    placed: list[tuple[int, ...]],
    ended: Ended,
    *,
    transport: str,
) -> None:
    """Put into the manifest what only the end of the load tells."""
    manifest["complete"] = ended.why is RunEnd.COMPLETE
    manifest["sittings"][-1] |= {"ended": str(ended), "ended_s": levels.live.now(), "sent": levels.live.sent}
    resent = sum(each.resent for each in done) + manifest["client"].get("resent", 0)
    manifest["client"] |= {
        "timestamp_source": timestamp_source(done),
        "transport": transport,
        "workers": len(placed),
        "cpus": [list(cpus) for cpus in placed],
        "resent": resent,
    }
    if resent:
        manifest["notes"].append(
            f"{resent} requests were sent again: the server closed connections that it had promised to keep; "
            "since then each request opens its own"
        )
    manifest["ramp"] = levels.steps
    manifest["host"]["load_average_end"] = list(os.getloadavg())


def _summarised(sitting: _Sitting, manifest: dict[str, Any], ended: Ended, signals: Signals) -> Outcome:
    """The folder's files and the outcome; the failure that ended the load, once these are written."""
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


def _finish(folder: Path, manifest: dict[str, Any]) -> store.Run:
    """Make the folder's files of the spool; where that cannot be done the spool stays, and reads."""
    try:
        run = store.finish(folder)
    except HarnessError as error:
        way_out = f"{error.way_out}, then `knee report {folder}` reads what was measured"
        raise HarnessError(error.fact, place=error.place, way_out=way_out) from None
    store.write_json(folder / store.MANIFEST, manifest)
    run.manifest = manifest
    return run


def _now_iso() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _calibration(scenario: Scenario) -> tuple[Calibration | None, str | None]:
    """What this host's load generator can follow, or why that is not known."""
    if scenario.target.transport != "socket":
        return None, "the client's ceiling is not known: calibration measures the socket transport only"
    found = calibrate.load()
    if found is None:
        return None, "the client's ceiling and error are not known here: run `knee calibrate client` once"
    why = calibrate.stale(found)
    if why is not None:
        return None, f"the client's calibration is stale ({why}): run `knee calibrate client` again"
    return found, None


async def _first_manifest(
    sitting: _Sitting, launch: Launch, profile: profiles.Profile | None, gpus: Gpus | None
) -> dict[str, Any]:
    """All that could explain a difference, and the prediction, before any load."""
    scenario = sitting.scenario
    manifest = _manifest(scenario, launch, profile, sitting.command)
    manifest["gpu_facts"] = gpus.facts() if gpus is not None else None
    calibration, why_not = _calibration(scenario)
    manifest["client"] = {"calibration": msgspec.to_builtins(calibration)}
    if why_not:
        manifest["notes"].append(why_not)
        sitting.view.note(why_not)
    # Cores of this machine are measured now, for load has not begun.
    finding = asyncio.to_thread(hardware.find, scenario.hardware, manifest["gpu_facts"]) if profile is None else None
    found = hardware.Found() if finding is None else await finding
    for note in found.notes:
        sitting.view.note(note)
    manifest["notes"] += found.notes
    manifest["machine"] = msgspec.to_builtins(found.machine)
    if found.card is not None:
        manifest |= {"gpu": found.card.key, "gpus": scenario.hardware.gpus}
    if profile is not None:
        deployed: tuple[model.Model, roofline.Deployment] | None = (profile.model, profile.deployment)
    else:
        deployed = hardware.deployed(scenario.hardware, found.card, launch.cache_config)
    manifest["prediction"] = manifest["roof"] = None
    if deployed is None:
        manifest["notes"].append("no prediction: it needs --gpu and --model-config")
    else:
        made = await asyncio.to_thread(predict, scenario, launch, *deployed, simulated=bool(profile))
        manifest["prediction"] = msgspec.to_builtins(made)
        manifest["roof"] = msgspec.to_builtins(phases.roof(*deployed))
    manifest["sittings"] = [{"created": manifest["created"], "command": sitting.command}]
    return manifest


def _manifest(scenario: Scenario, launch: Launch, profile: profiles.Profile | None, command: str) -> dict[str, Any]:
    shown = scenarios.shown(scenario, launch.secrets)
    told = scenario.hardware
    return {
        "format": FORMAT,
        "name": scenario.name,
        "created": _now_iso(),
        "complete": False,
        "command": command,
        "harness_version": harness.__version__,
        "scenario": msgspec.to_builtins(shown),
        "scenario_digest": scenarios.digest(shown),
        "workload": {
            "input_tokens": scenario.workload.input_tokens,
            "output_tokens": scenario.workload.output_tokens,
            "seed": scenario.workload.seed,
            "prompt_words": launch.prompt_words,
            "prompt_tokens": launch.input_tokens,  # that they come to, by the server's count
            "template_tokens": launch.added_tokens,  # of these, that every prompt has in common
            "tokens_per_word": launch.tokens_per_word,
            "probe_lengths": probe.lengths(scenario, launch),
            "sampling": {
                "temperature": None if "temperature" in launch.drop else 0.0,
                "ignore_eos": "ignore_eos" not in launch.drop,
            },
        },
        "url": "sim:" if profile else launch.address.base + launch.address.prefix,
        "model": launch.model,
        "api": launch.api,
        "server": launch.server | shown.target.server_meta,
        "cache_config": launch.cache_config,
        "dropped_fields": sorted(launch.drop),
        "simulated": _simulated(scenario, launch, profile),
        "gpu": told.gpu or (profile.deployment.gpu.key if profile else None),
        "gpus": told.gpus if told.gpu or profile else None,
        "price": told.price,
        "host": host.facts(),
        "client": {},
        "notes": list(launch.notes),
    }


def _simulated(scenario: Scenario, launch: Launch, profile: profiles.Profile | None) -> dict[str, Any] | None:
    """What makes a result SIMULATED: the simulated endpoint, or any server that says it is one."""
    if profile is not None:
        return {"profile": scenario.sim.profile, "speed": scenario.sim.speed}
    return {"profile": launch.model} if launch.server.get("name") == published.SIMULATED else None
