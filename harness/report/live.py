"""The progress of a run: a line or two for each level, updated in place on a terminal.

It is drawn only when it is updated: no thread and no timer disturb the measurement. Where stderr is no terminal, a line
is printed when a level is finished, and each minute of one that lasts longer. Nothing is decided or measured here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.base.terminal import console as to_terminal
from harness.base.units import span
from harness.data.judgement import Gravity
from harness.data.levels import LevelSummary
from harness.data.progress import LevelProgress, RunProgress
from harness.report.document import Fact
from harness.report.format import MISSING, half_width, ms, number, plain

_BAR = 16
_BAR_FROM = 80  # columns; a narrower terminal has no room for one
_EVERY_S = 60.0  # between two lines of a level if they cannot be redrawn
_INDENT = " " * 7


class LiveView:
    """The progress of every level on a console (default stderr); nothing at all if `quiet`.

    Used as a context manager around the ramp: `level_started`, any number of `update`, `level_finished`, and `note`
    at any time, before the first level too. `clock` is in seconds. `saved` is called with the folder of a run that
    begins and after each of its levels; the remark that it returns is noted.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        saved: Callable[[Path], str] | None = None,
    ) -> None:
        self._console = console or to_terminal(stderr=True)
        self._quiet = quiet
        self._clock = clock
        self._saved = saved
        self._folder: Path | None = None  # folder of the run
        self._live: Live | None = None
        self.unit = "tok/s"  # unit of throughput
        self.noted: set[str] = set()  # every note that was printed
        self._level = ""
        self._last: LevelProgress | None = None  # progress of the level
        self._printed_s = clock()

    def __enter__(self) -> LiveView:
        if not self._quiet and self._console.is_terminal and not self._console.is_dumb_terminal:
            # stdout is data, so it is not redirected; drawn by hand, so nothing runs in between.
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with contextlib.suppress(OSError):
                self._live.stop()
            self._live = None

    def measuring(self, folder: Path) -> None:
        """Begin a run; its results are in the folder."""
        self._folder = folder
        self._save()

    def _save(self) -> None:
        remark = self._saved(self._folder) if self._saved and self._folder else ""
        if remark and remark not in self.noted:
            self.note(remark)

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None:
        """Show that level `index` (from 0) of `total` (None: unknown) starts; `reason` says why it is next."""
        if reason and self._live:
            self._print(Text(f"{_INDENT}{plain(reason)}", "dim"))
        place = f"{index + 1}/{total}" if total else f"{index + 1}"
        self._level = f"{place:>5}  {level:<9}"
        self._last = None
        self._printed_s = self._clock()
        self._draw(Text.assemble((self._level, "bold"), ("  starting", "dim")))

    def update(self, now: LevelProgress) -> None:
        """Show the level's phase, time, throughput, latency and errors, and the time left of the run.

        On a terminal the lines are redrawn; elsewhere a new one is printed each minute.
        """
        self._last = now
        if self._quiet or not (self._live or self._clock() - self._printed_s >= _EVERY_S):
            return
        expected_s = now.expected_s
        elapsed = f"{now.elapsed_s:.1f}/{expected_s:.0f} s" if expected_s else f"{now.elapsed_s:.1f} s"
        bar: list[str | tuple[str, str]] = []
        if self._live and self._console.width >= _BAR_FROM:
            done = round(_BAR * min(1.0, now.elapsed_s / expected_s)) if expected_s else 0
            bar = [("━" * done, "cyan"), ("━" * (_BAR - done), "bright_black"), " "]
        left = _left(now)
        when = Text.assemble((self._level, "bold"), f"  {now.phase:<8} ", *bar, f"{elapsed}{left}")
        first = f"TTFT {_ms(now.ttft_s)}" if now.ttft_s is not None else ""
        how = _figures(now.output_tokens_per_s, now.in_flight, first, now.errors, unit=self.unit)
        text = self._joined(when, how)
        if self._live:
            self._draw(text)
        else:
            self._print(text)

    def level_finished(self, level: LevelSummary) -> None:
        """Print the finished level's line, with figures of the last update where its summary lacks them."""
        from harness.report.remarks import SIGNS, worst  # not before the first request

        self._save()
        if self._quiet:
            return
        in_flight, tokens, half = level.in_flight, level.throughput.mean, half_width(level.throughput.ci95)
        ttft = level.ttft_s
        first = f"p50 {_ms(ttft.p50)}" if ttft.p50 is not None or ttft.mean is None else f"mean {_ms(ttft.mean)}"
        latency = f"TTFT {first}  ITL {_ms(level.itl_s.mean)}"
        if not level.decodes:
            latency = f"latency p50 {_ms(level.e2e_s.p50)}"
        if self._last is not None:
            in_flight = self._last.in_flight if in_flight is None else in_flight
            tokens = self._last.output_tokens_per_s if tokens is None else tokens
        how = _figures(tokens, in_flight, latency, level.errors, half, unit=self.unit)
        if self._last is not None and not self._live:
            how.append(_left(self._last))
        mark = worst(level)
        if mark in (Gravity.INVALID, Gravity.DOUBT):
            how.append(f"  {SIGNS[mark]} {mark}", "red" if mark == Gravity.INVALID else "yellow")
        self._print(self._joined(Text(self._level, "bold"), how))

    def over(self, report: Path) -> None:
        """End, once the report is written."""

    def note(self, text: str) -> None:
        """Print a note that stays: before the levels, between them or while one runs."""
        if not self._quiet:
            for line in text.splitlines():
                self.noted.add(plain(line))
                self._print(Text(plain(line)))

    def _joined(self, when: Text, how: Text) -> Text:
        """Return one line, or two on a terminal too narrow for it."""
        if self._live and when.cell_len + 2 + how.cell_len > self._console.width:
            return Text.assemble(when, "\n    ", how)
        return Text.assemble(when, "  ", how)

    def _print(self, text: Text) -> None:
        text.rstrip()
        self._printed_s = self._clock()
        with contextlib.suppress(OSError):  # a terminal that is gone ends no measurement
            if self._live:
                self._live.update(Text(""), refresh=True)  # or the old line would follow the new one
            self._console.print(text, soft_wrap=True, highlight=False)

    def _draw(self, text: Text) -> None:
        if self._live:
            text.no_wrap, text.overflow = True, "ellipsis"
            with contextlib.suppress(OSError):
                self._live.update(text, refresh=True)


def _figures(
    tokens: float | None, in_flight: float | None, latency: str, errors: int, half: float | None = None, *, unit: str
) -> Text:
    """Return how a level runs: 1,853 tok/s ±15  16.0 in flight  TTFT 120 ms  2 errors."""
    spread = "" if half is None else f" ±{number(half, 2)}"
    text = Text(f"{number(tokens):>6} {unit}{spread}  {_load(in_flight):>5} in flight")
    if latency:
        text.append(f"  {latency}")
    if errors:
        text.append(f"  {errors:,} error{'' if errors == 1 else 's'}", "red")
    return text


def words(run: RunProgress) -> tuple[str, list[Fact]]:
    """Return (headline: level, phase and time; facts of the last second) of a run for the live page."""
    now = run.now
    if now is None:
        idle = "The next level is chosen" if run.folder else "The server is checked"
        return (f"Level {run.place}: {run.level} starts" if run.level else idle), []
    elapsed = f"{now.elapsed_s:.0f} of {now.expected_s:.0f} s" if now.expected_s else f"{now.elapsed_s:.0f} s"
    facts = [
        Fact("Throughput", f"{number(now.output_tokens_per_s)} {run.unit}", "in the last second"),
        Fact("In flight", _load(now.in_flight), "requests"),
        Fact("TTFT", _ms(now.ttft_s), "median of the last requests"),
        Fact("Errors", f"{now.errors:,}", "of this level"),
        Fact("Time left", f"about {left}" if (left := _time_left(now)) else MISSING, "of the run"),
    ]
    return f"Level {run.place}: {run.level}, {now.phase}, {elapsed}", facts


def _load(in_flight: float | None) -> str:
    if in_flight is None:
        return MISSING
    return f"{in_flight:,.1f}" if in_flight < 100 else f"{in_flight:,.0f}"


def _time_left(now: LevelProgress) -> str:
    """Return the time left of the run as text; "" if it is unknown, or less than a second."""
    return "" if now.left_s is None or now.left_s < 1 else span(now.left_s)


def _left(now: LevelProgress) -> str:
    """Return what a line of progress ends with: the time left of the run, if it is known."""
    return f"  {left} left" if (left := _time_left(now)) else ""


def _ms(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{ms(seconds)} ms"
