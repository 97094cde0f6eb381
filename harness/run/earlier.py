"""What the earlier sessions of a resumed run measured, spent and decided."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from harness.analysis.level import Facts, summarise_level
from harness.data.record import Level, LevelNote
from harness.data.roles import Role, role_of
from harness.data.summary import RampStep
from harness.results.result import Result
from harness.search import ramp
from harness.search.budget import Budget, Spent, Usage
from harness.search.decision import Decision
from harness.search.measured import MeasuredLevel, measured
from harness.search.state import Search
from harness.spec.scenario import Scenario


class Earlier(msgspec.Struct, frozen=True):
    """The earlier sessions of a run; empty for a run that is not resumed."""

    levels: tuple[tuple[Level, MeasuredLevel | None], ...] = ()  # None: void, to be measured again
    seconds: float = 0.0
    requests: int = 0
    usage: Usage = Usage()
    resumed: bool = False  # whether there were any, if only one that began no level

    @classmethod
    def of(cls, run: Result, seconds: float) -> Earlier:
        """A level counts if it is finished; the search's figures are made again from the records."""
        facts = Facts.of(run.manifest)
        table = facts.table(run.records)

        def found(level: Level) -> MeasuredLevel | None:
            if not level.finished or level.window_end_s is None or LevelNote.INTERRUPTED in level.notes:
                return None
            return measured(summarise_level(run.records, table, run.samples, level, facts), level)

        usage = sum(map(Usage.of, run.records), Usage())
        return cls(tuple((level, found(level)) for level in run.levels), seconds, len(run.records), usage, True)

    @property
    def next_index(self) -> int:
        """The index of the next level."""
        return max((level.index + 1 for level, _ in self.levels), default=0)

    @property
    def last_repeat(self) -> int:
        """The last repeat that was begun."""
        return max((level.repeat for level, _ in self.levels), default=0)

    @property
    def took(self) -> list[float]:
        """Seconds of each level that counts, a probe's included."""
        return [m.seconds for _, m in self.levels if m is not None]

    def measured(self, repeat: int) -> list[MeasuredLevel]:
        """The ramp's levels that count in a repeat, in their order.

        Those at its end are left out that nobody answered, and given ones that failed: they are measured again.
        """
        found = [(level, m) for level, m in self._counting(repeat) if level.input_tokens is None]
        while found and (found[-1][1].stalled or (found[-1][1].fails and role_of(found[-1][0].reason) is Role.FIXED)):
            found.pop()
        return [m for _, m in found]

    def probed(self, repeat: int) -> set[int]:
        """Prompt lengths of a repeat that a probe need not measure again."""
        return {level.input_tokens or 0 for level, _ in self._counting(repeat)} - {0}

    def steps(self, repeat: int) -> list[RampStep]:
        """The decisions of a repeat, as far as its levels count."""
        return [level_step(level) for level, _ in self._counting(repeat)]

    def all_steps(
        self,
        scenario: Scenario,
        predicted_hinge: float | None = None,
        probes: Collection[int] = (),
        rest_s: float = 0.0,
    ) -> list[RampStep] | None:
        """All decisions of the ramp, ends included, if every repeat is at its end by the ramp alone; else None."""
        budget = Budget(scenario.ramp, Spent())
        search = Search.of(scenario, budget, predicted_hinge=predicted_hinge, rest_s=rest_s)
        out = []
        for repeat in range(scenario.ramp.repeat):
            end = ramp.next_level(self.measured(repeat), search)
            if not end.over or set(probes) - self.probed(repeat):
                return None
            out += [*self.steps(repeat), end_step(end, repeat)]
        return out

    def _counting(self, repeat: int) -> list[tuple[Level, MeasuredLevel]]:
        return [(level, m) for level, m in self.levels if m is not None and level.repeat == repeat]


def level_step(level: Level) -> RampStep:
    """The decision to measure a level, as the manifest has it."""
    return RampStep(level.concurrency, level.reason, level.rate, level.repeat)


def end_step(end: Decision, repeat: int) -> RampStep:
    """The decision to end a ramp, as the manifest has it."""
    return RampStep(None, end.reason, None, repeat)


def void(level: Level) -> Level:
    """The level without a window, for it was not finished."""
    notes = (*level.notes, LevelNote.VOID)
    return msgspec.structs.replace(level, window_start_s=None, window_end_s=None, end_s=None, notes=notes)
