"""What a person is shown of the running level: its progress, a server that is silent, a client at its limit."""

from __future__ import annotations

from harness.analysis.level import Facts
from harness.analysis.rules.requests import CPU
from harness.data.progress import LevelProgress, View
from harness.load.messages import Progress
from harness.run.launch.endpoint import Endpoint
from harness.run.live_state import LiveState
from harness.search.level import Phase
from harness.search.timing import LevelTiming
from harness.spec.scenario import Scenario
from harness.spec.work import Unit
from harness.workload import shape

_SILENT_S, _SILENT_REQUESTS = 5.0, 3.0  # seconds and request times without a token, from which it is noted


class Shown:
    """Shows the reports of the workers, and notes what is wrong once."""

    def __init__(self, scenario: Scenario, endpoint: Endpoint, facts: Facts, live: LiveState, view: View) -> None:
        self._scenario, self._live, self._view = scenario, live, view
        self._warned: set[int] = set()  # levels in which it was noted that the client limits
        self._silence_noted_s = 0.0  # how long without a token was last noted
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

    def level(
        self,
        progress: Progress,
        timing: LevelTiming,
        *,
        phase: Phase,
        since_s: float,
        expected_s: float | None,
        left_s: float | None,
    ) -> None:
        """Show the level as it was when the report came."""
        self._note_silence(progress, timing.silent_s)
        now = LevelProgress(
            phase=phase, elapsed_s=progress.time_s - since_s, expected_s=expected_s,
            in_flight=float(progress.in_flight), output_tokens_per_s=timing.tokens_per_s(1.0) * self._amount,
            errors=progress.failed, ttft_s=self._live.ttft_s, left_s=left_s,
        )  # fmt: skip
        self._view.update(now)

    def _note_silence(self, progress: Progress, silent_s: float) -> None:
        """Note that no token comes: after some seconds, and again whenever it has lasted twice as long."""
        if silent_s < self._silence_noted_s:  # a token came
            self._silence_noted_s = 0.0
        least = max(_SILENT_S, _SILENT_REQUESTS * self._live.e2e_s, 2 * self._silence_noted_s)
        if progress.in_flight == 0 or silent_s < least:
            return
        self._silence_noted_s = silent_s
        oldest_s = progress.oldest_sent_s
        waits = f", the longest for {progress.time_s - oldest_s:.0f} s" if oldest_s is not None else ""
        noun = "token" if self._scenario.decodes else "answer"
        self._view.note(f"no {noun} for {silent_s:.0f} s: {progress.in_flight} requests wait{waits}")
