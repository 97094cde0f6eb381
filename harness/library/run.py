"""A run out of a program, a notebook or an event loop.

The run has a thread and an event loop of its own, so it may be started where a loop runs already; its load comes from
worker processes. Signals stay the program's: Ctrl-C, or cancelling the task that waits, ends the load in order, and
what was measured is written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from harness.base import files, units
from harness.base.errors import HarnessError, nearest
from harness.library.measurement import Measurement, load
from harness.spec import reading
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario

if TYPE_CHECKING:
    from harness.run.ending import Signals
    from harness.run.experiment import Outcome

_SAME = {"concurrency": "levels", "rate": "rates"}  # what people guess for a field of a scenario
_SECTIONS = ("target", "workload", "ramp", "hardware", "sim")  # sections of a scenario whose fields are options


def run(
    url: str | None = None,
    *,
    scenario: str | Path | Scenario | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    yes: bool = False,
    **options: Any,
) -> Measurement:
    """Measure an endpoint, write a result folder, and return it; "sim:" is the simulated one.

    `scenario` is a file, a ready scenario's name, or a Scenario. The options are its fields by their names, like
    `model`, `levels`, `rates`, `input_tokens`, `slo` or `max_seconds`, and are laid over it; a value may be a text as
    `knee run` takes it ("1,4", "10s"). `out` is the new folder, by default one in results/. `progress` shows the levels
    on stderr. `yes` agrees to load a public host. Raise HarnessError if nothing can be measured, KeyboardInterrupt
    after Ctrl-C, with everything measured so far in the folder.
    """
    waiting, signals = _begun(url, scenario, out, options, progress=progress, yes=yes)
    try:
        outcome = waiting.result()
    except KeyboardInterrupt:
        signals.interrupt()
        waiting.exception()  # until the run has ended in order
        raise
    return load(outcome.folder)


async def run_async(
    url: str | None = None,
    *,
    scenario: str | Path | Scenario | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    yes: bool = False,
    **options: Any,
) -> Measurement:
    """Measure as `run` does, for `await`; other tasks go on meanwhile. Cancelled, it ends the load in order first."""
    begun, signals = _begun(url, scenario, out, options, progress=progress, yes=yes)
    waiting = asyncio.wrap_future(begun)
    try:
        outcome = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        signals.interrupt()
        await asyncio.wait([waiting])
        waiting.exception()
        raise
    return load(outcome.folder)


def _begun(
    url: str | None,
    scenario: str | Path | Scenario | None,
    out: str | Path | None,
    options: dict[str, Any],
    *,
    progress: bool,
    yes: bool,
) -> tuple[Future[Outcome], Signals]:
    """Begin the run in a thread of its own; return it, and what interrupts it. Raise HarnessError if it cannot be."""
    from harness.report.live import LiveView
    from harness.results.folder import SUMMARY
    from harness.run import experiment
    from harness.run.ending import Signals
    from harness.run.launch import consent

    resolved = laid_over(scenario, url, options)
    if resolved.many:
        fact = "a level map or a comparison is many runs"
        raise HarnessError(fact, place="scenario", way_out="measure each by itself, or use `knee run`")
    source = str(scenario) if isinstance(scenario, str | Path) else ""
    if source:
        given = ("api_key_env", "headers", "extra_body")
        own = scenarios.Target(**{name: options[name] for name in given if name in options})
        named = {name for name, _ in scenarios.variables(Scenario(target=own))}
        commands = {options.get(name, "") for name in ("before_level", "stop_replica")}
        consent.must_be_allowed(resolved, named | commands, os.environ, source)
    agreed = consent.Agreed(yes=yes, named_by="" if url else source)
    signals = Signals(handled=False)
    ended: Future[Outcome] = Future()

    def work() -> None:
        """Measure in this thread; the outcome, or whatever was raised, becomes the result of `ended`."""
        try:
            with LiveView(quiet=not progress) as view:
                folder = None if out is None else str(out)
                outcome = experiment.run(resolved, folder, view, "harness.run", agreed=agreed, signals=signals)
            files.write_json(outcome.folder / SUMMARY, outcome.summary)
            ended.set_result(outcome)
        except SystemExit:  # interrupted before anything was measured
            ended.set_exception(KeyboardInterrupt())
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            ended.set_exception(error)

    # A daemon, so that nothing waits for it at the interpreter's end.
    Thread(target=work, name="knee run", daemon=True).start()
    return ended, signals


def laid_over(scenario: str | Path | Scenario | None, url: str | None, options: Mapping[str, Any]) -> Scenario:
    """Return a scenario with options laid over it, each in the section that has a field of its name.

    >>> laid_over(None, "sim:", {"levels": [1, 2], "level_seconds": "2s", "slo": "ttft_p99=1s"}).ramp.levels
    [1, 2]
    """
    from harness.spec import ready

    base = reading.load(str(ready.path(str(scenario)))) if isinstance(scenario, str | Path) else scenario
    sections = {field: name for name in reversed(_SECTIONS) for field in getattr(Scenario(), name).__struct_fields__}
    fields: dict[str, Any] = {} if url is None else {"target": {"url": url}}
    for option, value in options.items():
        name = _SAME.get(option, option)
        if name in ("name", "slo"):
            fields[name] = _value(name, value)
        elif name not in sections:
            way_out = nearest(name, [*sections, *_SAME])
            raise HarnessError(f"no field of a scenario: {name}", place="run", way_out=way_out)
        else:
            fields.setdefault(sections[name], {})[name] = _value(name, value)
    return reading.laid_over(base, fields, place="run")


_TEXTS: dict[str, Callable[..., Any]] = {
    "levels": units.levels, "rates": units.rates, "slo": units.slo, "price_per_mtok": units.prices,
    "host_cpus": units.cpus,
}  # fmt: skip


def _value(name: str, value: Any) -> Any:
    """Return a field's value; a text is read as `knee run` reads it.

    >>> _value("levels", "1,4"), _value("levels", 4), _value("dataset", "prompts.jsonl")
    ([1, 4], [4], {'path': 'prompts.jsonl'})
    """
    if name == "dataset" and isinstance(value, str | Path):
        return {"path": str(value)}
    if name in ("levels", "rates") and isinstance(value, int | float):
        return [value]
    return _TEXTS[name](value, name) if name in _TEXTS and isinstance(value, str) else value
