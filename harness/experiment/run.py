"""One run: checks, prediction, levels, result folder.

The parent process decides and writes; worker processes measure. What they send goes to the spool as it came.
Whatever ends the run (the ramp, a budget, Ctrl-C, a dead worker), what was measured is turned into the
folder's files and summarised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

import harness
from harness import scenario as scenarios
from harness import store
from harness.errors import HarnessError
from harness.experiment import launch as launching
from harness.experiment.launch import Launch
from harness.experiment.levels import Levels, View
from harness.experiment.summarise import exit_status, summarise
from harness.load import workers as crew
from harness.load.driver import Done
from harness.observe import host
from harness.observe.gpu import Gpus
from harness.predict import catalog, model, roofline
from harness.record import FORMAT
from harness.scenario import Scenario
from harness.sim import profile as profiles
from harness.sim.process import running
from harness.summary import Prediction, Summary

_OTHER_FILES = 64  # that a worker needs beside its connections
_HEADERS_SHOWN = {"user-agent", "content-type", "accept"}  # every other header may be a secret


class Outcome(msgspec.Struct, frozen=True):
    folder: Path
    summary: Summary
    manifest: dict[str, Any]
    status: int


def run(scenario: Scenario, out: str | None, view: View, command: str) -> Outcome:
    """Measure; HarnessError when nothing could be, else an outcome, however the run ended."""
    url = scenario.target.url
    if url is None:
        raise HarnessError("no endpoint", place="--url", way_out="give --url http://host:8000, or --url sim:")
    if scenario.workload.seed is None:
        # Another one each time: a server that is still warm must not know the prompts from the run before.
        seed = secrets.randbelow(2**31)
        scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, seed=seed))
    _check_open_files(scenario)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = store.create(out or f"results/{scenario.name}-{stamp}")
    server_cpu, placed = placement(scenario)
    try:
        with contextlib.ExitStack() as stack:
            profile = None
            if url == "sim:":
                profile = profiles.profile(
                    scenario.sim.profile, max_num_seqs=scenario.sim.max_num_seqs, speed=scenario.sim.speed
                )
                url = stack.enter_context(running(profile, cpu=server_cpu))
            return asyncio.run(_run(scenario, url, profile, folder, view, command, placed))
    except BaseException:
        if not (folder / store.SPOOL).exists() and not (folder / store.REQUESTS).exists():
            (folder / store.MANIFEST).unlink(missing_ok=True)  # nothing was measured: leave nothing behind
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def placement(scenario: Scenario) -> tuple[int | None, list[tuple[int, ...]]]:
    """(the simulated endpoint's processor, each worker's): one of their own for all, where there are enough.

    Empty means wherever the system likes; the parent, which only listens, is never bound.
    """
    allowed = sorted(os.sched_getaffinity(0))
    server = scenario.target.url == "sim:" and len(allowed) >= 2
    free = allowed[1:] if server else allowed
    count = scenario.ramp.workers or crew.auto(max(1, len(allowed) - 1), _most_streams(scenario))
    bound = count <= (len(free) if server else len(free) - 1)
    return allowed[0] if server else None, [(free[-1 - i],) if bound else () for i in range(count)]


def _most_streams(scenario: Scenario) -> int:
    """The highest concurrency that the run can come to; an open loop is led by its limit."""
    ramp = scenario.ramp
    return max(ramp.levels or [ramp.max_concurrency])


def _check_open_files(scenario: Scenario) -> None:
    """A connection is an open file: a level that cannot be opened is said before anything is measured."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _most_streams(scenario)
    if most != resource.RLIM_INFINITY and highest > most - _OTHER_FILES:
        raise HarnessError(
            f"{highest} connections do not fit into {most} open files",
            place="--levels" if scenario.ramp.levels else "--max-concurrency",
            way_out=f"stay at or below {most - _OTHER_FILES}, or raise `ulimit -Hn`",
        )


async def _run(
    scenario: Scenario,
    url: str,
    profile: profiles.Profile | None,
    folder: Path,
    view: View,
    command: str,
    placed: list[tuple[int, ...]],
) -> Outcome:
    async with crew.Workers(len(placed)) as workers:  # they start while the endpoint is asked
        # Where the server is on this machine, its GPUs are; opening them may take the driver a second.
        here = asyncio.to_thread(Gpus.open) if profile is None and _is_here(url) else None
        opening = asyncio.create_task(here) if here is not None else None
        launch = await launching.check(scenario, url)
        gpus = await opening if opening is not None else None
        try:
            return await _measure(scenario, launch, profile, folder, view, command, workers, placed, gpus)
        finally:
            if gpus is not None:
                gpus.close()


def _is_here(url: str) -> bool:
    """Whether the endpoint is on this machine, as far as its address says."""
    if url.startswith("unix:"):
        return True
    host_name = urlsplit(url).hostname or ""
    return host_name in ("localhost", "::1") or host_name.startswith("127.")


async def _measure(
    scenario: Scenario,
    launch: Launch,
    profile: profiles.Profile | None,
    folder: Path,
    view: View,
    command: str,
    workers: crew.Workers,
    placed: list[tuple[int, ...]],
    gpus: Gpus | None,
) -> Outcome:
    for note in launch.notes:
        view.note(note)
    origin_ns, unix_origin = time.monotonic_ns(), time.time()
    manifest = _manifest(scenario, launch, profile, command, origin_ns, unix_origin)
    manifest["gpu_facts"] = gpus.facts() if gpus is not None else None
    prediction, why_not = _predict(scenario, launch, profile)
    manifest["prediction"] = msgspec.to_builtins(prediction) if prediction else None
    if why_not:
        manifest["notes"].append(why_not)
    store.write_json(folder / store.MANIFEST, manifest)  # before any load
    spool = store.Spool(folder, store.header(origin_ns, unix_origin))
    levels = Levels(scenario, launch, spool, view, origin_ns)
    caught: list[int] = []
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def interrupt(number: int) -> None:
        if not caught:  # the second one changes nothing: ending takes a moment
            caught.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    failure: HarnessError | None = None
    try:
        await levels.go(workers, placed, gpus)
    except asyncio.CancelledError:
        if not caught:
            raise
        task.uncancel()
        view.note("interrupted: what was measured is being written")
    except HarnessError as error:
        failure = error
    finally:
        spool.close()
    manifest["complete"] = not caught and failure is None
    resent = sum(done.resent for done in workers.done)
    manifest["client"] = {
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
    manifest["ramp"] = levels.reasons
    manifest["host"]["load_average_end"] = list(os.getloadavg())
    if failure is not None:
        view.note(f"what was measured is in {folder}")
        with contextlib.suppress(OSError):  # a full disk: the spool stays as it is and reads as it is
            store.write_json(folder / store.MANIFEST, manifest)
            store.finish(folder)
        raise failure
    store.write_json(folder / store.MANIFEST, manifest)
    summary = summarise(store.finish(folder))
    status = 128 + caught[0] if caught else exit_status(summary)
    return Outcome(folder, summary, manifest, status)


def _source(done: list[Done]) -> str | None:
    """Whose stamps the arrivals carry: the kernel's, if every worker had them."""
    sources = {each.timestamp_source for each in done}
    return None if not sources else "kernel" if sources == {"kernel"} else "user"


def _manifest(
    scenario: Scenario,
    launch: Launch,
    profile: profiles.Profile | None,
    command: str,
    origin_ns: int,
    unix_origin: float,
) -> dict[str, Any]:
    hidden = {
        name: value if name.lower() in _HEADERS_SHOWN else "(not stored)"
        for name, value in scenario.target.headers.items()
    }
    shown = msgspec.structs.replace(scenario, target=msgspec.structs.replace(scenario.target, headers=hidden))
    hardware = scenario.hardware
    return {
        "format": FORMAT,
        "name": scenario.name,
        "created": datetime.fromtimestamp(unix_origin, UTC).isoformat(timespec="seconds"),
        "complete": False,
        "command": command,
        "harness_version": harness.__version__,
        "scenario": msgspec.to_builtins(shown),
        "scenario_digest": scenarios.digest(scenario),
        "workload": {
            "input_tokens": scenario.workload.input_tokens,
            "output_tokens": scenario.workload.output_tokens,
            "seed": scenario.workload.seed,
            "prompt_words": launch.prompt_words,
            "sampling": {"temperature": 0.0, "ignore_eos": "ignore_eos" not in launch.drop},
        },
        "url": "sim:" if profile else launch.address.base + launch.address.prefix,
        "model": launch.model,
        "api": scenario.target.api,
        "server": launch.server | scenario.target.server_meta,
        "cache_config": launch.cache_config,
        "dropped_fields": sorted(launch.drop),
        "simulated": _simulated(scenario, launch, profile),
        "gpu": hardware.gpu or (profile.deployment.gpu.key if profile else None),
        "gpus": hardware.gpus if hardware.gpu or profile else None,
        "price": hardware.price,
        "host": host.facts(),
        "clock": {"monotonic_ns_origin": origin_ns, "unix_origin": unix_origin},
        "client": {},
        "notes": list(launch.notes),
    }


def _simulated(scenario: Scenario, launch: Launch, profile: profiles.Profile | None) -> dict[str, Any] | None:
    """What makes a result SIMULATED: the simulated endpoint, or any server that says it is one."""
    if profile is not None:
        return {"profile": scenario.sim.profile, "speed": scenario.sim.speed}
    return {"profile": launch.model} if launch.server.get("name") == launching.SIMULATED else None


def _predict(
    scenario: Scenario, launch: Launch, profile: profiles.Profile | None
) -> tuple[Prediction | None, str | None]:
    """The prediction before load, or why there is none."""
    levels = scenario.ramp.levels or _doubling(scenario.ramp.max_concurrency)
    tokens = launch.input_tokens or scenario.workload.input_tokens
    workload = roofline.Workload(tokens, scenario.workload.output_tokens)
    if profile is not None:
        return roofline.predict(profile.model, profile.deployment, workload, levels, simulated=True), None
    hardware = scenario.hardware
    if hardware.gpu is None or hardware.model_config is None:
        return None, "no prediction: it needs --gpu and --model-config"
    figures: dict[str, Any] = {"gpus": hardware.gpus}
    if hardware.max_num_seqs is not None:
        figures["max_num_seqs"] = hardware.max_num_seqs
    with contextlib.suppress(KeyError, ValueError):  # the engine's own block count beats the estimate
        cache = launch.cache_config
        figures["kv_tokens"] = int(cache["num_gpu_blocks"]) * int(cache["block_size"])
    made = model.model(catalog.model_config(hardware.model_config), hardware.model_config)
    where = roofline.deployment(catalog.gpu(hardware.gpu), **figures)
    return roofline.predict(made, where, workload, levels), None


def _doubling(highest: int) -> list[int]:
    """1, 2, 4, … up to the highest level."""
    out = [1]
    while out[-1] < highest:
        out.append(min(2 * out[-1], highest))
    return out
