"""What a run's summary is on a screen, for the tests of the report."""

from __future__ import annotations

from harness.data.summary import Summary
from harness.report import run_report
from harness.report.document import Fact
from tests.builders.summaries import MANIFEST


def shown_facts(summary: Summary) -> list[Fact]:
    """The answer and its details, as a terminal has them with --verbose."""
    sections = run_report.screen(summary, MANIFEST, verbose=True).sections
    return [fact for section in sections if section.answer and section.title != "All knees" for fact in section.facts]
