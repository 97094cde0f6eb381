"""The progress line."""

from __future__ import annotations

import io

from rich.console import Console
from summaries import full, level

from harness.report.live import Progress


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100), out


def run(console: Console, *, quiet: bool = False) -> None:
    """Two levels, each with one update a phase; the second finishes without a summary."""
    with Progress(console, quiet=quiet) as progress:
        progress.level_started("C = 1", 0, 2)
        for phase in ("warm-up", "window", "cooldown"):
            progress.update(phase, 1.5, 3.0, 1.0, 120.0, 0)
        progress.level_finished(full().levels[0])
        progress.note("the server answers slowly")
        progress.level_started("C = 1,024", 1, 2)
        progress.update("window", 4.0, None, 1023.2, 12345.0, 2)
        progress.level_finished()


def test_a_file_gets_one_finished_line_a_level_and_the_notes() -> None:
    console, out = plain()
    run(console)
    assert out.getvalue().splitlines() == [
        "  1/2  C = 1      in flight     1.0     140 tok/s ±1.1    TTFT p50     30 ms  ITL  7.24 ms  ? doubt",
        "the server answers slowly",
        "  2/2  C = 1,024  in flight 1,023.2  12,345 tok/s  2 errors",
    ]


def test_a_terminal_shows_phase_time_and_load_while_the_level_runs() -> None:
    out = io.StringIO()
    run(Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False))
    text = out.getvalue()
    for part in ("warm-up", "window", "cooldown", "1.5/3 s", "in flight     1.0", "tok/s    120", "2 errors"):
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
        with Progress(console) as progress:
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
    with Progress(console) as progress:
        progress.level_started("C = 4", 2)
        progress.update("warm-up", 0.1, None, None, None, 0)
        progress.level_finished()
        progress.level_started("C = 8", 3)
        progress.level_finished(level(8), errors=0)
    first, second = out.getvalue().splitlines()
    assert first.split() == ["3", "C", "=", "4", "in", "flight", "–", "–", "tok/s"]
    assert second.split()[:7] == ["4", "C", "=", "8", "in", "flight", "7.9"]
