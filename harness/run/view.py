"""What a person sees of a run while its levels are measured; `report.live` has one."""

from __future__ import annotations

from typing import Protocol

from harness.data.progress import LevelProgress
from harness.data.summary import LevelSummary


class View(Protocol):
    """Progress of the levels, and notes."""

    unit: str  # of throughput

    def level_started(self, level: str, index: int, total: int | None = None, reason: str = "") -> None: ...

    def update(self, now: LevelProgress) -> None: ...

    def level_finished(self, level: LevelSummary) -> None: ...

    def note(self, text: str) -> None: ...
