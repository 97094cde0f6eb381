"""The progress line."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from harness.data.progress import LevelProgress
from harness.data.views import Estimate
from harness.report.live import LiveView
from tests.builders.summaries import EMPTY, full, level

# Nothing but its counts is known of it: its figures are those of the last update.
BARE: dict[str, Any] = {"in_flight": None, "output_tokens_per_s": Estimate(None), "ttft_s": EMPTY, "itl_s": EMPTY}


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100), out


def at(phase: str, elapsed_s: float, expected_s: float | None, **figures: Any) -> LevelProgress:
    return LevelProgress(phase=phase, elapsed_s=elapsed_s, expected_s=expected_s, **figures)


def run(console: Console, *, quiet: bool = False) -> None:
    """Two levels, each with one update a phase; the second's summary lacks its figures."""
    with LiveView(console, quiet=quiet) as progress:
        progress.level_started("C = 1", 0, 2)
        for phase in ("warm-up", "window", "cooldown"):
            progress.update(at(phase, 1.5, 3.0, in_flight=1.0, output_tokens_per_s=120.0))
        progress.level_finished(full().levels[0])
        progress.note("the server answers slowly")
        progress.level_started("C = 1,024", 1, 2)
        progress.update(at("window", 4.0, None, in_flight=1023.2, output_tokens_per_s=12345.0, errors=2))
        progress.level_finished(level(1024, **BARE, errors=2))


def test_a_file_gets_one_finished_line_a_level_and_the_notes() -> None:
    console, out = plain()
    run(console)
    assert out.getvalue().splitlines() == [
        "  1/2  C = 1         140 tok/s ±1.1    1.0 in flight  TTFT p50 30 ms  ITL 7.24 ms  ? doubt",
        "the server answers slowly",
        "  2/2  C = 1,024  12,345 tok/s  1,023 in flight  TTFT p50 –  ITL –  2 errors",
    ]


def test_a_terminal_shows_phase_time_and_load_while_the_level_runs() -> None:
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False))
    text = out.getvalue()
    for part in ("warm-up", "window", "cooldown", "1.5/3 s", "1.0 in flight", "120 tok/s", "2 errors"):
        assert part in text


def test_a_terminal_is_left_with_the_finished_lines_alone() -> None:
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False))
    kept = [line.split("\x1b[2K")[-1].strip() for line in out.getvalue().split("\n")]
    assert [line[:5] for line in kept if line and "\x1b" not in line] == ["1/2  ", "the s", "2/2  "]
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1  # the cursor comes back


def test_a_finished_line_is_not_followed_by_its_own_running_line() -> None:
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False))
    between = out.getvalue().split("? doubt")[1].split("2/2")[0]
    assert "the server answers slowly" in between
    assert "cooldown" not in between


def test_the_cursor_comes_back_after_an_interrupt() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, legacy_windows=False)
    try:
        with LiveView(console) as progress:
            progress.level_started("C = 1", 0)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_quiet_says_nothing_even_on_a_terminal() -> None:
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True), quiet=True)
    assert out.getvalue() == ""


def test_missing_figures_are_dashes() -> None:
    console, out = plain()
    with LiveView(console) as progress:
        progress.level_started("C = 4", 2)
        progress.update(at("warm-up", 0.1, None))
        progress.level_finished(level(4, **BARE))
        progress.level_started("C = 8", 3)
        progress.level_finished(level(8))
    first, second = out.getvalue().splitlines()
    assert first.split() == ["3", "C", "=", "4", "–", "tok/s", "–", "in", "flight", "TTFT", "p50", "–", "ITL", "–"]
    assert second.split()[:9] == ["4", "C", "=", "8", "1,018", "tok/s", "±8.1", "7.9", "in"]


class Clock:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_file_gets_one_line_a_level_and_one_a_minute_of_a_long_one() -> None:
    console, out = plain()
    clock = Clock()
    with LiveView(console, clock=clock) as progress:
        progress.note("4 levels, about 2 min, about $0.30\nCtrl-C ends the run and keeps what is measured")
        progress.level_started("C = 16", 2, 4, "doubling")
        for tenth in range(701):
            clock.now = tenth / 10
            figures = {"in_flight": 16.0, "output_tokens_per_s": 1853.4, "ttft_s": 0.12}
            progress.update(at("window", clock.now, 80.0, **figures, left_s=95.0 - clock.now))
        progress.note("no answer for 5 s: 16 requests wait")
        progress.level_finished(level(16, **BARE))
    assert out.getvalue().splitlines() == [
        "4 levels, about 2 min, about $0.30",
        "Ctrl-C ends the run and keeps what is measured",
        "  3/4  C = 16     window   60.0/80 s  35 s left   1,853 tok/s   16.0 in flight  TTFT 120 ms",
        "no answer for 5 s: 16 requests wait",
        "  3/4  C = 16      1,853 tok/s   16.0 in flight  TTFT p50 –  ITL –  25 s left",
    ]


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140])
def test_a_terminal_shows_everything_whole_from_60_columns_on(width: int) -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)) as it:
        it.level_started("C = 1,024", 11, 14)
        before = len(out.getvalue())
        figures = {"in_flight": 1024.0, "output_tokens_per_s": 12345.0, "errors": 12, "ttft_s": 1.234, "left_s": 755.0}
        it.update(at("cooldown", 110.2, 120.0, **figures))
        drawn = out.getvalue()[before:]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", drawn).splitlines()
    assert "…" not in drawn
    assert all(len(line) <= width for line in lines), lines
    whole = " ".join(lines)
    for part in ("12/14  C = 1,024", "110.2/120 s", "12 min 35 s left", "12,345 tok/s", "1,024 in flight",
                 "TTFT 1,234 ms", "12 errors"):  # fmt: skip
        assert part in whole
