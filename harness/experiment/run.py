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
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import msgspec

import harness
from harness import files, store
from harness import scenario as scenarios
from harness.errors import HarnessError
from harness.experiment import aside, consent, limits, probe, published
from harness.experiment import launch as launching
from harness.experiment.consent import Agreed
from harness.experiment.endpoint import Launch, address
from harness.load import workers as worker_set
from harness.load.local import LocalWorker
from harness.load.messages import Done
from harness.load.workers import Workers
from harness.observe import host
from harness.observe.gpu import Gpus
from harness.record import FORMAT
from harness.scenario import Scenario
from harness.secrecy import HIDDEN

if TYPE_CHECKING:
    from harness.experiment.calibrate import Calibration
    from harness.experiment.levels import Levels, View
    from harness.predict import model, roofline
    from harness.sim import profile as profiles
    from harness.summary import Prediction, Summary

_LATER = (
    "harness.analysis.phases", "harness.experiment.calibrate", "harness.experiment.estimate",
    "harness.experiment.hardware", "harness.experiment.levels", "harness.experiment.summarise",
    "harness.predict.calibrated",
)  # fmt: skip
_MOMENT_S = 0.5  # that a run may still take to finish after a signal
_ONE_PRESS_S = 1.0  # between two signals that are meant as one
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


class _Signals:
    """The first of them ends the run in order; one that comes when load is over cuts what is left to do short."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the first
        self.at_s = 0.0  # when that was
        self.levels: Levels | None = None  # once there are any
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: a terminal may go away
        self._numbers = [signal.SIGINT, signal.SIGTERM] + ([] if ignored else [signal.SIGHUP])

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Nothing is loaded any more, and what is left are long calls: a signal ends them within a second.

        It leaves them a moment, in which most runs are finished. What was measured is on the disk already. Of the
        signal that ended the load they are finished all the same, unless another comes that is not of the same press.
        """
        loop = asyncio.get_running_loop()

        def leave(*_: object) -> NoReturn:
            sys.exit(128 + (self.number or signal.SIGINT))

        def cut(number: int, _: object) -> None:
            if self.number is not None and time.monotonic() - self.at_s < _ONE_PRESS_S:
                return
            if self.number is None:
                self.number, self.at_s = number, time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, _MOMENT_S)

        before = signal.signal(signal.SIGALRM, leave)
        for number in self._numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, cut)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in self._numbers[1:]:
                signal.signal(number, _leave)

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Before there is a loop: a signal ends the process with its status, and what is open is closed."""
        before = {number: signal.signal(number, _leave) for number in self._numbers[1:]}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def inside(self) -> None:
        """On the running loop: a signal cancels the current task, unless there is nothing left to cut."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(number: int) -> None:
            if self.number is None:
                self.number, self.at_s = number, time.monotonic()
                if self.levels is None or not self.levels.over:
                    task.cancel()

        for number in self._numbers:
            loop.add_signal_handler(number, interrupt, number)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


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
    """Go on with a run that ended early, by the scenario that it was `begun_with`."""
    from harness.experiment.levels import Asked, Before
    from harness.experiment.summarise import exit_status, summarise

    folder = Path(path)
    with store.claimed(folder):
        run = store.read(folder)
        store.must_go_on(folder, run.manifest)
        limits.check(scenario)
        files.must_be_files(folder, store.WRITTEN)  # said now, not after the load
        files.remove(folder, (store.SUMMARY, *store.FOR_PEOPLE))  # of the part that there was
        manifest = run.manifest
        _loaded(manifest)[-1].setdefault("ended_s", run.last_s)
        before = Before.of(run, 0.0)
        if (steps := before.all_steps(scenario, Asked.of(manifest))) is not None:  # it died after its last level
            view.note("every level is held: only the folder was left to finish")
            store.Spool(folder).close()
            manifest |= {"complete": True, "ramp": steps}
            summary = summarise(_finish(folder, manifest))
            return Outcome(folder, summary, manifest, exit_status(summary, slo_fail=scenario.ramp.slo_fail))
        manifest["sittings"].append({"created": _now_iso(), "command": command})
        store.write_json(folder / store.MANIFEST, manifest)
        del run, before
        return _sit(
            _Sitting(scenario=scenario, folder=folder, view=view, command=command, agreed=agreed, manifest=manifest)
        )


def _loaded(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The sittings so far that came to load anything."""
    return [sitting for sitting in manifest["sittings"] if "began_s" in sitting]


def begun_with(place: str, headers: Mapping[str, str]) -> Scenario:
    """The scenario that a folder was begun with; `headers` are those whose values are not stored."""
    manifest = store.manifest(place)
    if manifest.get("complete"):
        raise HarnessError("this run is complete", place=place, way_out=f"see it by `knee report {place}`")
    if not manifest.get("sittings"):
        raise HarnessError("nothing was measured in it that could go on", place=place, way_out="run anew")
    store.must_go_on(Path(place), manifest)
    tree = {**manifest["scenario"], "target": dict(manifest["scenario"]["target"])}
    stored = tree["target"]["headers"]
    hidden = [name for name, value in stored.items() if value == HIDDEN]
    for name in headers:
        if name not in hidden:
            raise HarnessError(
                f"the run has no header '{name}' to give again", place="--header", way_out="leave it out"
            )
    for name in hidden:
        if name not in headers:
            raise HarnessError(
                f"the value of its header '{name}' is not stored", place=place, way_out=f"add --header '{name}: …'"
            )
    tree["target"]["headers"] = {**stored, **headers}
    scenario = scenarios.build(tree, place=f"{place}/{store.MANIFEST}")
    if scenarios.digest(scenario) != manifest["scenario_digest"]:
        fact = "the scenario in its manifest is not the one that it was begun with"
        raise HarnessError(fact, place=place, way_out="undo the change, or run anew")
    return scenario


def _sit(sitting: _Sitting) -> Outcome:
    """Start the simulated endpoint if it is asked for, and the loop."""
    scenario, signals = sitting.scenario, _Signals()
    server_cpu, placed = placement(scenario)
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


def placement(scenario: Scenario) -> tuple[int | None, list[tuple[int, ...]]]:
    """(the simulated endpoint's processor, each worker's): one of their own for all, where there are enough.

    Empty means wherever the system likes; the parent, which only listens, is never bound.
    """
    allowed = sorted(os.sched_getaffinity(0))
    server = scenario.target.url == "sim:" and len(allowed) >= 2
    free = allowed[1:] if server else allowed
    count = scenario.ramp.workers or worker_set.wanted(max(1, len(allowed) - 1), limits.most_streams(scenario))
    bound = count <= (len(free) if server else len(free) - 1)
    return allowed[0] if server else None, [(free[-1 - i],) if bound else () for i in range(count)]


async def _run(
    sitting: _Sitting,
    url: str,
    profile: profiles.Profile | None,
    placed: list[tuple[int, ...]],
    signals: _Signals,
) -> Outcome:
    signals.inside()
    asyncio.get_running_loop().set_default_executor(aside.Abandoned())
    sittings = sitting.manifest["sittings"] if sitting.manifest else [None]
    where = address(url)
    found, ours = await consent.addresses(where), profile is not None
    said = await consent.before_the_first_byte(sitting.scenario, where, found, ours=ours, agreed=sitting.agreed)
    for line in said:
        sitting.view.note(line)
    async with Workers([LocalWorker() for _ in placed]) as workers:  # they start while the endpoint is asked
        # Where the server is on this machine, its GPUs are; opening them may take the driver a second.
        here = asyncio.to_thread(Gpus.open) if profile is None and _is_here(url) else None
        opening = asyncio.create_task(here) if here is not None else None
        first_prompt = (len(sittings) - 1) * _PROMPTS
        # Not a thread of the loop's, which is left behind: one that is amid an import may not be.
        importing = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), _import_the_rest)
        launch = await launching.check(
            sitting.scenario, url, first_prompt, trust_remote_code=sitting.agreed.trust_remote_code, busy=importing
        )
        gpus = await opening if opening is not None else None
        try:
            await _planned(sitting, launch, public=consent.is_foreign(where, found))
            return await _measure(sitting, launch, profile, workers, placed, gpus, signals)
        finally:
            if gpus is not None:
                gpus.close()


def _import_the_rest() -> None:
    for name in _LATER:
        importlib.import_module(name)


async def _planned(sitting: _Sitting, launch: Launch, *, public: bool) -> None:
    """Show what the load will come to, and of a public host see that it is meant."""
    from harness.experiment import estimate

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


def _is_here(url: str) -> bool:
    """Whether the endpoint is on this machine, as far as its address says."""
    if url.startswith("unix:"):
        return True
    host_name = urlsplit(url).hostname or ""
    return host_name in ("localhost", "::1") or host_name.startswith("127.")


async def _measure(
    sitting: _Sitting,
    launch: Launch,
    profile: profiles.Profile | None,
    workers: Workers,
    placed: list[tuple[int, ...]],
    gpus: Gpus | None,
    signals: _Signals,
) -> Outcome:
    from harness.experiment.levels import Asked, Before, Levels
    from harness.experiment.summarise import exit_status, lost, summarise

    scenario, folder, view = sitting.scenario, sitting.folder, sitting.view
    scenario = probe.scenario_for(scenario, launch.max_context, launch.input_tokens)
    sitting = msgspec.structs.replace(sitting, scenario=scenario)
    for note in launch.notes:
        view.note(note)
    if sitting.manifest is None:
        manifest = await _first_manifest(sitting, launch, profile, gpus)
        origin_ns, unix_origin = time.monotonic_ns(), time.time()
        spool, before = store.Spool(folder, store.header(origin_ns, unix_origin)), Before()
        manifest["clock"] = {"monotonic_ns_origin": origin_ns, "unix_origin": unix_origin}
        began_s = 0.0
    else:
        manifest = sitting.manifest
        launch = _as_before(launch, manifest)
        run = await asyncio.to_thread(store.read, folder)
        origin_ns, unix_origin = _origin(manifest, run.last_s)
        began_s = (time.monotonic_ns() - origin_ns) * 1e-9
        loaded_s = sum(each["ended_s"] - each["began_s"] for each in _loaded(manifest))
        before = await asyncio.to_thread(Before.of, run, loaded_s)
        spool = store.Spool(folder)
        del run
    manifest["client"]["workers"] = len(workers)  # whose ceiling is that of all of them
    levels = signals.levels = Levels(scenario, launch, spool, view, origin_ns, before, Asked.of(manifest))
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
    task = asyncio.current_task()
    assert task is not None
    failure: HarnessError | None = None
    ended = "complete"
    try:
        await levels.go(workers, placed, gpus)
    except asyncio.CancelledError:
        if signals.number is None:
            raise
        task.uncancel()
        ended = signal.Signals(signals.number).name
        view.note(f"interrupted: what was measured is being written; once more leaves it to `knee report {folder}`")
    except HarnessError as error:
        failure, ended = error, str(error)
    finally:
        levels.over = True
        spool.close()
    manifest["complete"] = ended == "complete"
    ended_s = (time.monotonic_ns() - origin_ns) * 1e-9
    manifest["sittings"][-1] |= {"ended": ended, "ended_s": ended_s, "sent": levels.heard.sent}
    resent = sum(done.resent for done in workers.done) + manifest["client"].get("resent", 0)
    manifest["client"] |= {
        "timestamp_source": _source(workers.done),
        "transport": scenario.target.transport,
        "workers": len(workers),
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
    with signals.finishing():
        if failure is not None:
            missing = 0
            with contextlib.suppress(HarnessError):  # a full disk: the spool stays as it is and reads as it is
                missing = lost(_finish(folder, manifest))
            view.note(f"what was measured is in {folder}" + (f", {missing} requests are lost" if missing else ""))
            raise failure
        summary = summarise(_finish(folder, manifest))
    missed = exit_status(summary, slo_fail=scenario.ramp.slo_fail)
    status = missed if signals.number is None else 128 + signals.number
    return Outcome(folder, summary, manifest, status)


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


def _origin(manifest: dict[str, Any], last_s: float) -> tuple[int, float]:
    """CLOCK_MONOTONIC and the wall clock at a resumed folder's t = 0.

    Its own origin as long as the machine has not been started anew; then the wall clock says how long ago that was,
    and the times go on behind the folder's last one in any case.
    """
    before = _loaded(manifest)[-1]
    origin_ns: int = before["monotonic_ns_origin"]
    unix_origin: float = before["unix_origin"]
    now_ns = time.monotonic_ns()
    if before["boot"] is not None and before["boot"] == host.boot() and now_ns > origin_ns + last_s * 1e9:
        return origin_ns, unix_origin
    now_s = max(last_s + 1.0, time.time() - unix_origin)
    return now_ns - round(now_s * 1e9), time.time() - now_s


def _as_before(launch: Launch, manifest: dict[str, Any]) -> Launch:
    """What the checks found, with the prompts' length of the first sitting; another model is another run."""
    if launch.model != manifest["model"]:
        raise HarnessError(
            f"it serves '{launch.model}' now, the run began with '{manifest['model']}'",
            place=launch.address.base,
            way_out="run anew",
        )
    manifest["notes"] += [note for note in launch.notes if note not in manifest["notes"]]
    return msgspec.structs.replace(launch, prompt_words=manifest["workload"]["prompt_words"])


def _now_iso() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _calibration(scenario: Scenario) -> tuple[Calibration | None, str | None]:
    """What this host's load generator can follow, or why that is not known."""
    from harness.experiment import calibrate

    if scenario.target.transport != "socket":
        return None, "the client's ceiling is not known: calibration measures the socket transport only"
    found = calibrate.load()
    if found is None:
        return None, "the client's ceiling and error are not known here: run `knee calibrate client` once"
    why = calibrate.stale(found)
    if why is not None:
        return None, f"the client's calibration is stale ({why}): run `knee calibrate client` again"
    return found, None


def _source(done: list[Done]) -> str | None:
    """Whose stamps the arrivals carry: the kernel's, if every worker had them."""
    sources = {each.timestamp_source for each in done}
    return None if not sources else "kernel" if sources == {"kernel"} else "user"


async def _first_manifest(
    sitting: _Sitting, launch: Launch, profile: profiles.Profile | None, gpus: Gpus | None
) -> dict[str, Any]:
    """All that could explain a difference, and the prediction, before any load."""
    from harness.analysis import phases
    from harness.experiment import hardware

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
        made = await asyncio.to_thread(_predict, scenario, launch, *deployed, simulated=bool(profile))
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


def _predict(
    scenario: Scenario, launch: Launch, of: model.Model, where: roofline.Deployment, *, simulated: bool
) -> Prediction:
    """The prediction before load."""
    from harness.experiment import hardware
    from harness.predict import claims, roofline
    from harness.predict.calibrated import calibrated

    levels = scenario.ramp.levels or _doubling(scenario.ramp.max_concurrency)
    tokens = launch.input_tokens or scenario.workload.input_tokens
    workload = roofline.Workload(tokens, scenario.workload.output_tokens)
    slo, price, path = scenario.slo or None, scenario.hardware.price, scenario.hardware.calibration
    notes = claims.notes(of, where, workload, levels)
    made = roofline.predict(of, where, workload, levels, simulated=simulated, slo=slo, price=price, notes=notes)
    if path is None:
        return made
    both = calibrated(of, where, workload, levels, hardware.calibration(path), slo=slo, price=price)
    return msgspec.structs.replace(made, calibrated=both)


def _doubling(highest: int) -> list[int]:
    """1, 2, 4, … up to the highest level."""
    out = [1]
    while out[-1] < highest:
        out.append(min(2 * out[-1], highest))
    return out
