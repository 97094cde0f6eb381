"""`knee report DIR --follow`: the table of a run that goes on, printed again whenever one of its levels ends.

Only the frames that are new are read while nothing ends; a level that has ended is summarised from the whole spool, as
any other reading of the folder does. Nothing is written. The run's lock on its folder says whether it goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import HarnessError

if TYPE_CHECKING:
    from harness.data.summary import Summary

_EVERY_S = 0.5


def follow(folder: Path, *, verbose: bool = False) -> None:
    """Print the table after each level, and the answer when the run has ended, with all its details if `verbose`."""
    from harness.analysis.summarise import summarise
    from harness.base.terminal import console
    from harness.report import document, level_table, run_report, terminal
    from harness.results.result import Result, run_manifest

    run_manifest(folder)  # an error where it is no run's folder
    talk = console(stderr=False)
    for summary in summaries(folder, lambda: time.sleep(_EVERY_S)):
        terminal.show(document.Document(sections=[level_table.by_load(summary)]), talk)
        talk.print()
    run = Result.open(folder)
    terminal.show(run_report.screen(summarise(run), run.manifest, verbose=verbose), talk)


def summaries(folder: Path, wait: Callable[[], None]) -> Iterator[Summary]:
    """The summary of a run whenever a level of it has ended, until the run has."""
    from harness.analysis.summarise import summarise
    from harness.results import folder as folders
    from harness.results import frames
    from harness.results.result import Result

    at, spool = frames.START, folder / folders.SPOOL
    ended: set[int] = set()  # a segment repeats the levels before it
    while folders.is_claimed(folder):
        found: Summary | None = None
        with contextlib.suppress(FileNotFoundError, HarnessError):  # there is none yet, or it is being packed
            levels, at = frames.levels_since(spool, at)
            new = {level.index for level in levels if level.finished} - ended
            ended |= new
            if new:
                found = summarise(Result.open(folder))
        if found is not None:
            yield found
        wait()


def must_be_alone(folders: tuple[str, ...], others: Mapping[str, object]) -> None:
    """HarnessError where --follow stands with what a run that goes on has not."""
    if len(folders) > 1:
        raise HarnessError("--follow with several folders", way_out="name one folder at a time")
    for name, value in others.items():
        if value:
            raise HarnessError(f"--follow with {name}", way_out=f"leave {name} out: nothing is written")
