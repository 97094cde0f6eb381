"""What a person sees while the levels run: one line a level, updated in place on a terminal.

It draws only when it is told something: no thread and no timer beside the measurement. Where stderr is no
terminal each level leaves one finished line. It decides nothing and measures nothing.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.report.format import MISSING, half_width, ms, number, plain
from harness.report.tables import MARKS
from harness.report.words import worst
from harness.summary import LevelSummary

_BAR = 16


class Progress:
    """A progress line per level on a console (default stderr); quiet says nothing at all.

    Used as a context manager around the ramp: `level_started`, any number of `update`, `level_finished`,
    and `note` at any time for what must be said between.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        self._live: Live | None = None
        self._level = ""
        self._last: tuple[float | None, float | None, int] = (None, None, 0)

    def __enter__(self) -> Progress:
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

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None:
        """Begin the line of level `index` (from 0) of `total`, where that is known, below the reason why it is next."""
        if reason and not self._quiet:
            self._say(Text(f"       {plain(reason)}", "dim"))
        place = f"{index + 1}/{total}" if total else f"{index + 1}"
        self._level = f"{place:>5}  {level:<9}"
        self._last = (None, None, 0)
        self._draw(Text.assemble((self._level, "bold"), ("  starting", "dim")))

    def update(
        self,
        phase: str,
        elapsed_s: float,
        expected_s: float | None,
        in_flight: float | None,
        output_tokens_per_s: float | None,
        errors: int,
        ttft_s: float | None = None,
        left_s: float | None = None,
    ) -> None:
        """Redraw the line: the phase (warm-up, window, cooldown), its time, and how the level runs."""
        self._last = (in_flight, output_tokens_per_s, errors)
        if not self._live:
            return
        share = min(1.0, elapsed_s / expected_s) if expected_s else 0.0
        done = round(_BAR * share)
        time = f"{elapsed_s:.1f}/{expected_s:.0f} s" if expected_s else f"{elapsed_s:.1f} s"
        text = Text.assemble(
            (self._level, "bold"), f"  {phase:<8} ", ("━" * done, "cyan"), ("━" * (_BAR - done), "bright_black"),
            f" {time:>10}", ("  in flight ", "dim"), f"{_load(in_flight):>7}",
            ("  tok/s ", "dim"), f"{number(output_tokens_per_s):>6}",
        )  # fmt: skip
        if errors:
            text.append(f"  {_errors(errors)}", "red")
        self._draw(text)

    def level_finished(
        self,
        level: LevelSummary | None = None,
        *,
        in_flight: float | None = None,
        output_tokens_per_s: float | None = None,
        errors: int | None = None,
    ) -> None:
        """Leave the level's finished line: from its summary, else from these figures or the last update's."""
        if self._quiet:
            return
        details, mark = "", ""
        if level is not None:
            in_flight, errors = level.in_flight, level.errors
            output_tokens_per_s = level.output_tokens_per_s.mean
            half = half_width(level.output_tokens_per_s.ci95)
            spread = "" if half is None else f" ±{number(half, 2)}"
            details = f"{spread:<7}  TTFT p50 {_ms(level.ttft_s.p50):>9}  ITL {_ms(level.itl_s.mean):>8}"
            mark = worst(level)
        seen = self._last
        in_flight = seen[0] if in_flight is None else in_flight
        tokens = seen[1] if output_tokens_per_s is None else output_tokens_per_s
        failed = seen[2] if errors is None else errors
        text = Text.assemble(
            (self._level, "bold"), f"  in flight {_load(in_flight):>7}  {number(tokens):>6} tok/s{details}"
        )
        if failed:
            text.append(f"  {_errors(failed)}", "red")
        if mark in ("invalid", "doubt"):
            text.append(f"  {MARKS[mark]} {mark}", "red" if mark == "invalid" else "yellow")
        self._say(text)

    def note(self, text: str) -> None:
        """Say one line between the levels."""
        if not self._quiet:
            self._say(Text(plain(text)))

    def _say(self, text: Text) -> None:
        text.rstrip()
        with contextlib.suppress(OSError):  # a terminal that is gone ends no measurement
            if self._live:
                self._live.update(Text(""), refresh=True)  # or the old line would follow the new one
            self._console.print(text, soft_wrap=True, highlight=False)

    def _draw(self, text: Text) -> None:
        if self._live:
            text.no_wrap, text.overflow = True, "ellipsis"
            with contextlib.suppress(OSError):
                self._live.update(text, refresh=True)


def _errors(count: int) -> str:
    return f"{count:,} error{'' if count == 1 else 's'}"


def _load(in_flight: float | None) -> str:
    return MISSING if in_flight is None else f"{in_flight:,.1f}"


def _ms(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{ms(seconds)} ms"
