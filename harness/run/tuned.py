"""The best setting of a server, found by starting it with one setting after the other (`harness.decide.tuning`).

Every trial is a run in a folder of its own (`series`), on a server that was started for it: caches are cold and no
prompt is sent twice. `tune.json` is written again after every trial. A setting with which the server does not start
costs one start and a line.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from harness.analysis.answer import of_ramp, throughput
from harness.analysis.rules import Purpose, usable
from harness.analysis.stats import Z95
from harness.base import ExitStatus, __version__, decoding, files, units
from harness.base.errors import HarnessError
from harness.data.levels import LevelSummary
from harness.data.manifest import StackStart
from harness.data.progress import View
from harness.data.summary import Summary
from harness.data.views import Value
from harness.decide import tuning
from harness.decide.tuning import Goal, Setting, Trial
from harness.predict import question, roofline, steady
from harness.results import folder as folders
from harness.run import experiment, prediction, series, stacked
from harness.run.experiment import Outcome
from harness.run.launch.consent import Agreed
from harness.run.resume import rebuilt
from harness.run.series import Planned
from harness.run.stacks import command as commands
from harness.run.stacks import endpoint
from harness.run.stacks.endpoint import RefusedError
from harness.spec import scenario as scenarios
from harness.spec.recipe import Stack
from harness.spec.scenario import Ramp, Scenario
from harness.spec.work import means
from harness.workload import shape

FORMAT = 1
FILE = "tune.json"
FOR_PEOPLE = ("tune.md", "tune.html", "tune.png")
_BEYOND = 1.25  # requests in flight where plateaus are compared, over the most that a setting runs at once
_LARGEST = 16 << 20  # bytes
_UNMEASURED = 0.03  # relative error of a window that was too short to measure its own
_OPEN = 0.35  # the same of a search that found no load that misses the limits: twice as much may be within them


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What is in `tune.json`: what was asked for, and what was measured so far."""

    format: int = FORMAT
    created: str
    harness_version: str = __version__
    command: str
    scenario: Scenario  # secrets are removed
    scenario_digest: str
    stack: Stack
    goal: Goal
    in_flight: int | None = None  # at which plateaus are compared; None: each run has its own load
    max_seconds: float | None = None
    unit_s: float | None = None  # seconds of a round's unit; None: no server has started yet
    settings: list[Setting]
    trials: list[Trial] = []
    simulated: bool = False  # the simulated endpoint answered
    complete: bool = False

    @property
    def per(self) -> str:
        """Return what the figures are."""
        return "output tokens per dollar" if self.goal == "cost" else "output tok/s"


def begun(scenario: Scenario, stack: Stack, tries: Sequence[str], goal: Goal, command: str) -> Tuning:
    """Return a new comparison of settings, each with its prediction; raise HarnessError if it cannot be measured."""
    scenario = experiment.seeded(scenario)
    if not stacked.model(stack, scenario):
        raise HarnessError("no model to serve", place=stack.spec.name, way_out="give --model DIR")
    if stack.recipe.pools:
        way_out = "compare settings of it by `knee stacks run`"
        raise HarnessError("its recipe has pools, of which one command says nothing", place="--stack", way_out=way_out)
    if scenario.target.url is not None:
        raise HarnessError("the server is started here", place="$.target.url", way_out="leave url out")
    price, limited = scenario.hardware.price, bool(scenario.slo)
    if goal == "cost" and price is None:
        raise HarnessError("no price of a GPU-hour", place="--for cost", way_out="give --price DOLLARS")
    if goal == "slo" and not limited:
        raise HarnessError("no limits to meet", place="--for slo", way_out="give --slo like ttft_p99=2s")
    grid = tuning.grid(tries)
    in_flight = None if limited and goal != "plateau" else _common_load(scenario, stack, grid)
    settings = [_predicted(each, scenario, stack, goal, in_flight) for each in grid]
    for setting in settings:
        tried = with_setting(stack, setting, scenario)
        commands.processes(tried, stacked.model(stack, scenario), itertools.repeat(0))
    if not tuning.ordered(settings):
        raise HarnessError(f"no setting is possible: {settings[0].left_out}", place="--try", way_out="try others")
    hidden = scenarios.secrets(scenario, os.environ)
    shown = scenarios.shown(scenario, hidden)
    return Tuning(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        scenario=shown,
        scenario_digest=scenarios.digest(shown),
        stack=commands.stored(stack),
        goal=goal,
        in_flight=in_flight,
        max_seconds=scenario.ramp.max_seconds,
        settings=settings,
    )


def run(
    found: Tuning, scenario: Scenario, out: str | None, view: View, *, resumed: bool = False, agreed: Agreed = Agreed()
) -> tuple[Path, Tuning]:
    """Measure the settings of a comparison in rounds; return its folder and the comparison with all trials.

    `scenario` is the one that it was begun with: the one in `found` lacks the secrets. `resumed`: the comparison in the
    folder `out` goes on.
    """
    if resumed:
        folder = Path(out or "")
        with folders.claimed(folder):  # until now another process may have gone on with it
            return folder, _whole(_Settings(folder, scenario, _to_go_on(folder)), view, agreed)
    name, created = f"tune-{found.stack.spec.name}", datetime.fromisoformat(found.created)
    with folders.new(out, name, created, series.has_folders, (folders.MANIFEST, FILE)) as folder:
        files.remove(folder, (folders.MANIFEST,))  # it claimed the folder, and a comparison has tune.json in its place
        return folder, _whole(_Settings(folder, scenario, found), view, agreed)


def interrupted(path: str) -> tuple[Tuning, Scenario]:
    """Return the comparison in a folder, which is to go on, and its scenario; raise HarnessError if it cannot."""
    found = _to_go_on(Path(path))
    commands.must_be_whole(found.stack, path)
    return found, rebuilt(found.scenario, found.scenario_digest, {}, place=path, file=FILE)


def _to_go_on(folder: Path) -> Tuning:
    """Return the comparison in a folder; raise HarnessError if it is complete."""
    found = read(folder)
    if found.complete:
        raise HarnessError("this comparison is complete", place=str(folder), way_out=f"see {FOR_PEOPLE[0]} in it")
    return found


def read(folder: Path) -> Tuning:
    file = folder / FILE
    with decoding.reading(str(file), "a tune.json of this project", "give the --out of knee tune"):
        found = decoding.typed(decoding.json(decoding.content(file, _LARGEST)), Tuning)
        if found.format != FORMAT:
            raise ValueError(f"it has format {found.format}, this program reads {FORMAT}")
    return found


def command_of(found: Tuning, scenario: Scenario, setting: str) -> commands.Command:
    """Return the command that starts the server with a setting, on port 8000."""
    stack = with_setting(found.stack, next(each for each in found.settings if each.name == setting), scenario)
    return commands.processes(stack, stacked.model(stack, scenario), itertools.count(8000))[-1]


def _whole(settings: _Settings, view: View, agreed: Agreed) -> Tuning:
    """Measure trial after trial until one setting is left, the time is over or a signal comes; return all trials.

    Raise HarnessError if no setting could be measured.
    """
    settings.write()
    if not settings.found.trials:
        view.note(_plan(settings.found))
    if series.measure(settings, view, settings.found.command, agreed):
        return settings.found
    if not settings.has_measured():
        errors = [trial.error for trial in settings.found.trials if trial.error]
        fact = f"no setting could be measured: {(errors or ['no time'])[0]}"
        raise HarnessError(fact, place="--try", way_out="mend what the server says, or try other values")
    settings.found = msgspec.structs.replace(settings.found, complete=True)
    settings.write()
    return settings.found


def _plan(found: Tuning) -> str:
    """Return what the first round takes at least, which is known before a server has started."""
    tried = len(tuning.ordered(found.settings))
    unit_s = tuning.unit_s(tried, math.inf, found.max_seconds, searched=found.in_flight is None)
    short = found.max_seconds is not None and found.max_seconds < tried * unit_s
    few = "; --max-seconds allows fewer" if short else ""
    return f"plan: {tried} settings, each started and measured once in {units.span(tried * unit_s)} or more{few}"


class _Settings:
    """The trials of a comparison, the next one by those before it."""

    slo_fail = False

    def __init__(self, folder: Path, scenario: Scenario, found: Tuning) -> None:
        self.folder, self.scenario, self.found = folder, scenario, found
        self.hidden = scenarios.secrets(scenario, os.environ)
        self._spent_s = sum(trial.seconds for trial in found.trials)

    def due(self) -> Planned | None:
        """Return the next trial to measure; None if the rounds are over or the time left is too short for one."""
        waiting = tuning.due(self.found.settings, self.found.trials)
        if not waiting:
            return None
        setting, number = waiting[0]
        longest = max((trial.seconds for trial in self.found.trials if trial.round == number), default=0.0)
        if self.found.max_seconds is not None and self._spent_s + longest > self.found.max_seconds:
            return None
        nth = len(self.found.trials) + 1
        note = f"trial {nth}, round {number + 1}: {setting.name}"
        return Planned(f"{nth:03}-round{number + 1}", note, partial(self._serving, setting, number))

    def ended(self, run: Planned, result: Outcome | HarnessError, seconds: float) -> None:
        """Add the trial that ended, with its figure or why it has none, and write the file; not if a signal cut it."""
        setting, number = tuning.due(self.found.settings, self.found.trials)[0]
        self._spent_s += seconds
        if isinstance(result, Outcome) and result.status >= ExitStatus.SIGNALLED:
            return  # it is resumed
        value, se = None, 0.0
        failure = result if isinstance(result, HarnessError) else None
        if isinstance(result, Outcome):
            self.found = msgspec.structs.replace(self.found, simulated=result.summary.simulated)
            try:
                value, se = figure(result.summary, self.found, result.manifest.scenario.hardware.gpus)
            except HarnessError as error:
                failure = error
        trial = Trial(
            setting=setting.name,
            round=number,
            folder=run.name,
            value=value,
            se=se,
            seconds=round(seconds, 3),
            error=series.reason_of(failure, self.hidden) if failure else "",
            refused=isinstance(failure, RefusedError),
        )
        self.found = msgspec.structs.replace(self.found, trials=[*self.found.trials, trial])
        self.write()

    def has_measured(self) -> bool:
        return any(trial.value for trial in self.found.trials)

    def write(self) -> None:
        files.write_json(self.folder / FILE, self.found)

    @contextlib.contextmanager
    def _serving(self, setting: Setting, number: int, view: View) -> Iterator[tuple[Scenario, StackStart]]:
        """Start the server with a setting while the block runs; yield the trial's scenario and the server's start."""
        scenario, began = self.scenario, time.monotonic()
        stack = with_setting(self.found.stack, setting, scenario)
        cpus, model = scenario.hardware.host_cpus or (), stacked.model(stack, scenario)
        with endpoint.running(stack, model, scenario.target.api, view.note, cpus=cpus) as up:
            if self.found.unit_s is None:
                tried, start_s = len(tuning.ordered(self.found.settings)), time.monotonic() - began
                unit_s = tuning.unit_s(tried, start_s, self.found.max_seconds, searched=self.found.in_flight is None)
                self.found = msgspec.structs.replace(self.found, unit_s=unit_s)
                least_s = tried * (start_s + unit_s)
                if self.found.max_seconds is not None and least_s > self.found.max_seconds:
                    view.note(f"one short run of each of the {tried} settings takes about {units.span(least_s)}")
            ramp = self._ramp(tuning.ROUNDS[number] * (self.found.unit_s or 0.0))
            nth = len(self.found.trials)
            wanted = stacked.of_stack(scenario, stack, ramp, f"{nth + 1:03}-round{number + 1}", nth)
            target = msgspec.structs.replace(wanted.target, url=up.url, model=up.model)
            start = msgspec.structs.replace(up.start, name=f"{up.start.name} {setting.name}")
            yield msgspec.structs.replace(wanted, target=target), start

    def _ramp(self, seconds: float) -> Ramp:
        """Return the ramp of a trial of `seconds`: one level at all trials' load, or a search for the SLO knee."""
        ramp = self.scenario.ramp
        if self.found.in_flight is None:
            return msgspec.structs.replace(ramp, max_seconds=seconds, repeat=1)
        one = {"levels": [self.found.in_flight], "level_seconds": seconds, "max_seconds": None, "repeat": 1}
        return msgspec.structs.replace(ramp, **one)


# ---- a setting ---------------------------------------------------------------------------------------------


def with_setting(stack: Stack, setting: Setting, scenario: Scenario) -> Stack:
    """Return the stack with a setting, and with the scenario's value for each that it does not have."""
    return stacked.set_alike(commands.with_options(stack, setting.values, "--try"), scenario)


def _common_load(scenario: Scenario, stack: Stack, settings: list[Setting]) -> int:
    """Return the concurrency at which all plateaus are compared: --levels, else 1.25 times the largest max-num-seqs.

    Raise HarnessError for several --levels, or if a setting's max-num-seqs is not known.
    """
    if scenario.ramp.levels is not None:
        if len(scenario.ramp.levels) != 1:
            fact, way_out = "settings are compared at one load", "give one level, more than any of them serves at once"
            raise HarnessError(fact, place="--levels", way_out=way_out)
        return scenario.ramp.levels[0]
    found = [with_setting(stack, setting, scenario).spec.max_num_seqs for setting in settings]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        fact = "how many requests a setting runs at once is not known"
        raise HarnessError(fact, place="--try", way_out="give --levels N, a load past all knees")
    return max(math.ceil(_BEYOND * each) for each in known)


def _predicted(setting: Setting, scenario: Scenario, stack: Stack, goal: Goal, in_flight: int | None) -> Setting:
    """Return the setting with its predicted figure, if model and card are known; marked left out if it cannot fit."""
    tried = with_setting(stack, setting, scenario)
    hardware = stacked.of_stack(scenario, tried, scenario.ramp, "prediction", 0).hardware
    if hardware.gpu is None or hardware.gpu.lower() == question.HOST:
        return setting
    card = prediction.find(hardware, None).card
    try:
        both = question.deployed(hardware, card, None)
    except HarnessError:  # a precision that the prediction does not know, and the server may
        return setting
    if both is None:
        return setting
    model, where = both
    budget = setting.values.get("max-num-batched-tokens")
    if budget is not None:
        where = msgspec.structs.replace(where, max_num_batched_tokens=units.count(budget, "--try"))
    lengths = means(shape.representative(scenario))
    try:
        caps = steady.caps(model, where, lengths, scenario.slo if in_flight is None else None)
        C = in_flight or max(1, int(min(cap for cap in caps.values() if cap is not None))) * where.dp
        X = roofline.predict(model, where, lengths, [C]).levels[0].output_tokens_per_s.mid
    except HarnessError as error:
        return msgspec.structs.replace(setting, left_out=f"predicted not to fit: {error.fact}")
    return msgspec.structs.replace(setting, predicted=_worth(X, goal, hardware.price, hardware.gpus))


# ---- a figure ----------------------------------------------------------------------------------------------


def figure(summary: Summary, found: Tuning, gpus: int) -> tuple[float, float]:
    """Return a trial's figure (tokens per second, or per dollar, by the goal) and its relative standard error.

    It is that of the last valid level if all trials have one number in flight, else of the highest load within the
    limits. Raise HarnessError without a valid level or throughput.
    """
    levels = [level for level in of_ramp(summary.levels) if usable(level, Purpose.ANSWER)]
    if not levels:
        raise HarnessError("no level is valid", place="the run", way_out="see its report")
    if found.in_flight is not None:
        measured = levels[-1].throughput
        at, apart = Value(measured.mean, measured.ci95), 0.0
    else:
        at, apart = _within_limits(summary, levels)
    if not at.value:
        raise HarnessError("no throughput was measured", place="the run", way_out="see its report")
    low, high = at.ci95 or (None, None)
    own = (high - low) / (2 * Z95 * at.value) if low is not None and high is not None else _UNMEASURED
    return _worth(at.value, found.goal, found.scenario.hardware.price, gpus), math.hypot(own, apart)


def _within_limits(summary: Summary, levels: Sequence[LevelSummary]) -> tuple[Value, float]:
    """Return (throughput at the highest load that meets the limits, its relative error by the gap to the next load).

    The true knee lies between the two: a short search has them far apart, or found no load that misses the limits.
    Raise HarnessError if no valid load is shown to meet them.
    """
    knee = summary.knees.slo
    if knee is None or knee.value is None:
        way_out = "give a longer --max-seconds, or wider limits"
        raise HarnessError("no load is shown to meet the limits", place="--slo", way_out=way_out)
    met = [level for level in levels if level.concurrency == knee.value]
    if not met:
        raise HarnessError("the load that meets the limits is not valid", place="the run", way_out="see its report")
    at, missed = throughput(summary.curve, met), knee.ci95[1] if knee.ci95 else None
    above = [level for level in levels if level.concurrency == missed]
    if not above or not at.value:
        return at, _OPEN
    beyond = throughput(summary.curve, above).value or at.value
    return at, abs(math.log(beyond / at.value)) / Z95


def _worth(X: float, goal: Goal, price: float | None, gpus: int) -> float:
    """Return a throughput in the unit of the goal: tokens per second, or per dollar."""
    return X if goal != "cost" or price is None else X * 3600 / (price * gpus)
