"""Whether answers under load are those of an unloaded server: by the canaries, each answer against the first one. Pure.

Four things can change in an answer: its words, whether it is one at all (`workload.answers`), why it ended, and whether
it is right where the first one was. A server that answers otherwise from time to time, loaded or not, is no sign of
load. So the share of changed answers at a level is tested against that of the unloaded server and of all lower levels
that were like it, by Fisher's exact test; the levels and the four things share an error of 5 % (Bonferroni). The text
of an answer is not known here. Left out: how far apart in meaning two answers are.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from harness.analysis.stats import wilson
from harness.data.levels import AnswerQuality, LevelSummary
from harness.data.manifest import CanaryAnswer, UnloadedAnswers
from harness.data.record import Level, Record
from harness.data.views import Estimate, Value

Answer: TypeAlias = CanaryAnswer | Record  # to a canary: unloaded, or of the load
ALPHA = 0.05  # level of significance of all tests of a run together
_CHANGES = ("words", "flaws", "ends", "scores")  # fields of Changes
PHRASES = {
    "words": "are not those of the unloaded server",
    "flaws": "are no text, or repeat themselves, and the first ones are not so",
    "ends": "ended for another reason than the first ones",
    "scores": "are wrong where the first ones are right",
}


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Of n answers to canaries, how many changed in what, from the first answer to the same prompt."""

    n: int = 0
    words: int = 0
    flaws: int = 0
    ends: int = 0
    scores: int = 0

    def plus(self, other: Changes) -> Changes:
        return Changes(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Finding(msgspec.Struct, frozen=True):
    """A load at which answers changed: how many changed there, and how many of those it was tested against."""

    load: float
    what: str  # one of the fields of Changes
    changed: int
    n: int
    before: int
    of: int


def changes(answers: Iterable[Answer], first: Mapping[int, CanaryAnswer]) -> Changes:
    """Count the answers whose words or finish reason differ from the same canary's first answer, or which are worse.

    Worse is a flaw that the first one has not, or a wrong answer after a right one. Failed requests do not count.
    """
    pairs = [
        (answer, first[answer.canary])
        for answer in answers
        if not answer.error and answer.canary is not None and answer.canary in first
    ]
    return Changes(
        n=len(pairs),
        words=sum(each.differs_at is not None for each, _ in pairs),
        flaws=sum(bool(each.flaw) and not before.flaw for each, before in pairs),
        ends=sum(each.finish_reason != before.finish_reason for each, before in pairs),
        scores=sum(each.score == 0 and before.score == 1 for each, before in pairs),
    )


def found(unloaded: Changes, levels: Sequence[tuple[float, Changes]]) -> list[Finding]:
    """Return the loads at which more answers changed than unloaded and at lower loads (Fisher's test), and how."""
    out: list[Finding] = []
    tested = [(load, each) for load, each in sorted(levels, key=lambda level: level[0]) if each.n]
    for what in _CHANGES:
        before, of = getattr(unloaded, what), unloaded.n
        for load, each in tested:
            changed = getattr(each, what)
            if fisher(changed, each.n, before, of) < _threshold(len(tested)):
                out.append(Finding(load, what, changed, each.n, before, of))
            else:
                before, of = before + changed, of + each.n
    return sorted(out, key=lambda each: (each.load, _CHANGES.index(each.what)))


def _threshold(levels: int) -> float:
    return ALPHA / (len(_CHANGES) * levels)


def fisher(k: int, n: int, before: int, of: int) -> float:
    """Return the chance that k or more of the k + before changed answers fall among these n, of n + of in all.

    Fisher's exact test, one-sided; 1 where `n` or `of` is 0.

    >>> round(fisher(2, 2, 0, 2), 6), round(fisher(3, 4, 1, 4), 6)  # 1/C(4, 2); (C(4, 3)·C(4, 1) + C(4, 4))/C(8, 4)
    (0.166667, 0.242857)
    """
    if not n or not of:
        return 1.0
    K, N = k + before, n + of
    ways = (_log_choices(n, i) + _log_choices(of, K - i) for i in range(k, min(n, K) + 1))
    return min(1.0, math.fsum(math.exp(way - _log_choices(N, K)) for way in ways))


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def detectable(n: int, unloaded: Changes, levels: int) -> float | None:
    """Return the smallest share of changed words among n answers that would be found against the unloaded server alone.

    None if not even all of them would be.

    >>> detectable(20, Changes(n=20), 1)  # C(20, 6)/C(40, 6) = 0.0101 is below 0.05/4, C(20, 5)/C(40, 5) = 0.0236 not
    0.3
    >>> detectable(2, Changes(n=2), 1)
    """
    shares = range(1, n + 1)
    at = bisect_left(shares, True, key=lambda k: fisher(k, n, unloaded.words, unloaded.n) < _threshold(levels))
    return shares[at] / n if at < n else None


class Quality(msgspec.Struct, frozen=True):
    """The canaries of a run: unloaded, by level, and the loads at which answers changed."""

    unloaded: AnswerQuality
    levels: list[AnswerQuality]  # in the order of the run's
    found: list[Finding]

    @property
    def changed_at(self) -> float | None:
        """Return the smallest load at which answers changed."""
        return min((each.load for each in self.found), default=None)


def of_run(unloaded: UnloadedAnswers, records: Iterable[Record], levels: Sequence[Level]) -> Quality:
    """Return how the canaries' answers changed: unloaded, in each level's window, and the loads with a change."""
    first: dict[int, CanaryAnswer] = {}
    later: list[CanaryAnswer] = []
    for answer in unloaded.answers:
        if answer.canary in first:
            later.append(answer)
        else:
            first[answer.canary] = answer
    first = {canary: each for canary, each in first.items() if not each.error}
    places = {level.index: place for place, level in enumerate(levels)}
    answers: list[list[Answer]] = [[] for _ in levels]
    for record in records:
        if record.canary is not None and (place := places.get(record.level)) is not None:
            start, end = levels[place].window
            began = record.scheduled_s if levels[place].rate is not None else record.sent_s
            if began is not None and start <= began < end:
                answers[place].append(record)
    counted = [changes(answer, first) for answer in answers]
    alone = changes(later, first)
    loads: dict[float, Changes] = {}
    for level, own in zip(levels, counted, strict=True):
        load = float(level.concurrency or level.rate or 0)
        loads[load] = loads.get(load, Changes()).plus(own)
    tested = max(1, sum(each.n > 0 for each in loads.values()))
    views = [_view(own, each, detectable(each.n, alone, tested)) for own, each in zip(answers, counted, strict=True)]
    return Quality(_view(unloaded.answers, alone, None), views, found(alone, list(loads.items())))


def _view(answers: Sequence[Answer], changed: Changes, least: float | None) -> AnswerQuality:
    """Return the quality of some answers: agreement with the first answers, flaws, finish reasons, accuracy."""
    good = [answer for answer in answers if not answer.error]
    places = [answer.differs_at for answer in good if answer.differs_at is not None]
    alike = changed.n - changed.words
    return AnswerQuality(
        answers=len(good),
        compared=changed.n,
        agreement=Estimate(alike / changed.n if changed.n else None, wilson(alike, changed.n)),
        differs_at=statistics.median(places) if places else None,
        flaws=dict(sorted(Counter(answer.flaw for answer in good if answer.flaw).items())),
        finish_reasons=dict(sorted(Counter(answer.finish_reason for answer in good).items())),
        accuracy=accuracy(good) or UNSET,
        detectable=least,
    )


def accuracy(answers: Iterable[Answer]) -> Estimate | None:
    """Return the mean over questions of the share of right answers, with Wilson's interval; None without questions.

    Answers to one prompt at temperature 0 are no independent samples: the interval's n is that of the questions.
    """
    scores: dict[int, list[float]] = {}
    for answer in answers:
        if answer.score is not None and answer.canary is not None:
            scores.setdefault(answer.canary, []).append(answer.score)
    if not scores:
        return None
    right = math.fsum(math.fsum(own) / len(own) for own in scores.values())
    return Estimate(right / len(scores), wilson(right, len(scores)))


def knee(unqualified: float | None, levels: Sequence[LevelSummary], changed_at: float | None) -> Value | None:
    """Return the knee, lowered to the largest load with canaries below the lowest load at which answers changed.

    Requests in flight; None if there is no knee or no such load.
    """
    if unqualified is None:
        return None
    if changed_at is None:
        return Value(unqualified)
    below = [
        level.in_flight
        for level in levels
        if level.quality and level.quality.compared and level.in_flight and (level.load or 0) < changed_at
    ]
    return Value(min(unqualified, max(below))) if below else None
