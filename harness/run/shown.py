"""What a person is shown of the running level: its progress, and a client at its limit."""

from __future__ import annotations

from harness.analysis.level import Facts
from harness.analysis.rules.requests import CPU
from harness.data.progress import LevelProgress, View
from harness.load.messages import Progress
from harness.run.launch.endpoint import Endpoint
from harness.run.live_state import LiveState
from harness.search.timing import LevelTiming
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import shape


class Shown:
    """Shows the reports of the workers, and notes what is wrong once."""

    def __init__(self, scenario: Scenario, endpoint: Endpoint, facts: Facts, live: LiveState, view: View) -> None:
        self._live, self._view = live, view
        self._warned: set[int] = set()  # levels in which it was noted that the client limits
        prompts, unit, texts = endpoint.prompts, facts.unit, facts.inputs
        answer = 1 if scenario.target.streams else shape.of(scenario).mean().output_tokens or 1
        amounts = {
            Unit.OUTPUT_TOKENS: answer,
            Unit.INPUT_TOKENS: texts * (prompts.tokens or prompts.count or 1),
            Unit.DOCUMENTS: texts,
        }
        self._amount = amounts.get(unit, 1)  # of work in one event
        if not unit.decodes:
            view.unit = unit.per_s

    def report(self, progress: Progress) -> None:
        """Take one worker's report; note once a level that the client is short of processor time."""
        self._live.progress(progress)
        busy = self._live.cpu.get(progress.worker, 0.0)
        if busy > CPU and progress.level not in self._warned:
            self._warned.add(progress.level)
            self._view.note(f"worker {progress.worker} is {busy:.0%} busy (limit {CPU:.0%}): the client is the limit")

    def level(self, progress: Progress, timing: LevelTiming, left_s: float | None) -> None:
        """Show the level as it was when the report came."""
        now = LevelProgress(
            phase=timing.phase,
            elapsed_s=progress.time_s - timing.since_s,
            expected_s=timing.expected_s,
            in_flight=float(progress.in_flight),
            output_tokens_per_s=timing.tokens_per_s(1.0) * self._amount,
            errors=progress.failed,
            ttft_s=self._live.ttft_s,
            left_s=left_s,
        )
        self._view.update(now)
