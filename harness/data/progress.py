"""What a person sees of a run while its levels are measured; `report.live` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from harness.data.levels import LevelSummary


class LevelProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a level runs at one moment. What is None is not known yet."""

    phase: str  # warm-up, window or cooldown
    elapsed_s: float  # seconds since the phase began
    expected_s: float | None = None  # seconds that the phase takes
    in_flight: float | None = None  # requests
    output_tokens_per_s: float | None = None
    errors: int = 0
    ttft_s: float | None = None  # median of the last requests
    left_s: float | None = None  # seconds until the run ends


class RunProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run goes at one moment, for who watches it from another process."""

    folder: str = ""  # result folder
    level: str = ""  # the running one's load
    place: str = ""  # among the levels
    reason: str = ""  # why it is next
    now: LevelProgress | None = None
    unit: str = "tok/s"  # unit of throughput
    note: str = ""  # the last one
    report: str = ""  # the file of the whole report, once the run is over


class View(Protocol):
    """Shows the progress of the levels, and notes."""

    unit: str  # unit of throughput

    def measuring(self, folder: Path) -> None: ...

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None: ...

    def update(self, now: LevelProgress) -> None: ...

    def level_finished(self, level: LevelSummary) -> None: ...

    def note(self, text: str) -> None: ...
