"""The runs of a comparison of stacks: one for each stack and repeat, each on a server that is started for it.

The stacks take turns (A B C A B C), so that a machine that drifts does so under all of them. In one repeat all stacks
get the same requests. What a stack sets differently (`tp`, `dtype`, …) is in its run's scenario as well, so that
the prediction is that stack's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from harness.base.errors import HarnessError
from harness.data.manifest import StackStart
from harness.data.progress import View
from harness.results.levelmap import REPEAT, SERVER, Axis
from harness.run.campaign import Cell, Plan
from harness.run.stacks import command as commands
from harness.run.stacks import endpoint
from harness.run.stacks.command import Command
from harness.spec import reading
from harness.spec.recipe import Settings, Stack
from harness.spec.scenario import Ramp, Scenario, Sweep

_HARDWARE = ("tp", "gpus", "dtype", "kv_dtype", "max_num_seqs")  # settings that a scenario has too
_BROWSING = "config.json"  # file that a model's folder has; a GGUF file or a hub's name is no folder to read


def plan(scenario: Scenario, stacks: Sequence[Stack]) -> Plan:
    """Return the plan that measures each stack in turn, by repeat; raise HarnessError if one cannot be started."""
    _check(scenario, stacks)
    whole = [set_alike(stack, scenario) for stack in stacks]
    for stack in whole:  # now, not after the runs before it
        commands.processes(stack, model(stack, scenario), itertools.repeat(0))
    repeats = list(range(1, scenario.ramp.repeat + 1))
    by_name = {stack.spec.name: stack for stack in whole}

    @contextlib.contextmanager
    def serving(cell: Cell, wanted: Scenario, view: View) -> Iterator[tuple[Scenario, StackStart | None]]:
        stack = by_name[str(cell.at[SERVER])]
        served_model, cpus = model(stack, scenario), scenario.hardware.host_cpus or ()
        api = scenario.target.api
        with endpoint.running(stack, served_model, api, view.note, cpus=cpus) as served:
            pools = {pool.name: pool.url for pool in served.start.pools or ()}
            target = msgspec.structs.replace(
                wanted.target, url=served.url, model=served.model, pool_metrics=pools or UNSET
            )
            yield msgspec.structs.replace(wanted, target=target), served.start

    return Plan(
        axes=[Axis(REPEAT, [*repeats]), Axis(SERVER, list(by_name))],
        cells=[_cell(scenario, stack, repeat) for repeat in repeats for stack in whole],
        serving=serving,
        each_alone=True,
        described={"stacks": [*map(commands.stored, stacks)]},
    )


def printed(scenario: Scenario, stacks: Sequence[Stack]) -> list[tuple[str, Command]]:
    """Return (stack's name, command) for every process of every stack, with ports from 8000 on, for printing."""
    whole = [set_alike(stack, scenario) for stack in stacks]
    return [
        (each.spec.name, made)
        for each in whole
        for made in commands.processes(each, model(each, scenario), itertools.count(8000))
    ]


def model(stack: Stack, scenario: Scenario) -> str:
    """Return the folder, file or name of the model that the stack loads."""
    return stack.spec.model or scenario.target.model or ""


def set_alike(stack: Stack, scenario: Scenario) -> Stack:
    """Return the stack with the scenario's value for each setting that it does not have itself.

    Prefix caching is on where prompts begin alike on purpose, and off elsewhere, on every stack that has a flag for it.
    """
    spec, hardware = stack.spec, scenario.hardware
    settings: dict[str, Any] = {name: getattr(hardware, name) for name in _HARDWARE if name != "gpus"}
    caching = "on" if scenario.reuses_prompts else "off"
    if f"prefix_caching={caching}" in stack.recipe.flags:
        settings["prefix_caching"] = caching
    own = {field.name: getattr(spec, field.name) for field in msgspec.structs.fields(Settings)}
    return msgspec.structs.replace(
        stack, spec=msgspec.structs.replace(spec, **{**own, **{k: v for k, v in settings.items() if own[k] is None}})
    )


def _cell(scenario: Scenario, stack: Stack, repeat: int) -> Cell:
    """Return the run of a stack in one repeat, still without its URL."""
    name = f"{stack.spec.name}-{repeat}"
    ramp = msgspec.structs.replace(scenario.ramp, repeat=1, start=stack.spec.start or scenario.ramp.start)
    return Cell(name, {REPEAT: repeat, SERVER: stack.spec.name}, of_stack(scenario, stack, ramp, name, repeat - 1))


def of_stack(scenario: Scenario, stack: Stack, ramp: Ramp, name: str, nth: int) -> Scenario:
    """Return the scenario of a run of one stack, with its hardware, `ramp` and a seed of its own (`nth`), no URL."""
    spec, workload, hardware = stack.spec, scenario.workload, scenario.hardware
    own = {name: value for name in _HARDWARE if (value := getattr(spec, name)) is not None}
    if spec.gpus is None and stack.recipe.pools:
        own["gpus"] = (spec.tp or 1) * len([*commands.servers(stack)])
    elif spec.gpus is None and spec.tp is not None and hardware.gpus % spec.tp:
        own["gpus"] = spec.tp  # its own flags start it on so many
    folder = Path(model(stack, scenario))
    if hardware.gpu is not None and hardware.model_config is None and (folder / _BROWSING).is_file():
        own["model_config"] = str(folder)
    seed = None if workload.seed is None else workload.seed + nth
    made = msgspec.structs.replace(
        scenario,
        name=f"{scenario.name}-{name}",
        workload=msgspec.structs.replace(workload, seed=seed),
        hardware=msgspec.structs.replace(hardware, **own),
        ramp=ramp,
    )
    reading.check(made, place=name)
    return made


def _check(scenario: Scenario, stacks: Sequence[Stack]) -> None:
    """Raise HarnessError if the scenario does not fit a comparison: it has a url or a sweep, or a stack no model."""
    if scenario.target.url is not None:
        fact = "the stacks have addresses of their own"
        raise HarnessError(fact, place="$.target.url", way_out="leave url out, or use `knee run`")
    if scenario.sweep != Sweep():
        raise HarnessError("stacks are compared on one workload", place="$.sweep", way_out="leave [sweep] out")
    for stack in stacks:
        if not model(stack, scenario):
            raise HarnessError("no model to serve", place=stack.spec.name, way_out="give --model DIR")
        if model(stack, scenario).startswith("-"):  # a server would take it for one of its flags
            raise HarnessError(
                "its model is no folder, file or name", place=stack.spec.name, way_out="give --model DIR"
            )
