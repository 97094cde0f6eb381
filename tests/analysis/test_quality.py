"""Changed answers, held against counts and chances worked by hand; clean and corrupted runs by chance."""

from __future__ import annotations

import random

import msgspec
import pytest

from harness.analysis import quality
from harness.analysis.quality import Changes, Finding, accuracy, changes, detectable, fisher, found, of_run
from harness.analysis.rules.levels import Concluded, answers_changed
from harness.analysis.stats import wilson
from harness.data.manifest import CanaryAnswer, UnloadedAnswers
from harness.data.record import Level, Record
from harness.data.views import Estimate, Value
from tests.builders import summaries
from tests.builders.records import request

GOOD = CanaryAnswer(canary=0, finish_reason="stop", score=1.0)
LEVELS = [Level(i, C, 0, 100.0 * i, 100.0 * i, 100.0 * i + 50, 100.0 * i + 60) for i, C in enumerate((8, 16, 32))]


def changed(**fields: object) -> CanaryAnswer:
    return msgspec.structs.replace(GOOD, **fields)


def canary(level: Level, at: float = 1.0, **fields: object) -> Record:
    """The answer to the first prompt, sent so many seconds into the level."""
    start = level.begin_s + at
    given = {"canary": 0, "finish_reason": "stop", "score": 1.0} | fields
    return request(start, [start + 0.1], level=level.index, concurrency=level.concurrency, **given)


@pytest.mark.parametrize(
    ("counts", "chance"),
    [
        ((1, 1, 0, 1), 1 / 2),
        ((2, 2, 0, 4), 1 / 15),  # 1/C(6, 2)
        ((6, 20, 0, 20), 38_760 / 3_838_380),  # C(20, 6)/C(40, 6)
        ((0, 20, 3, 20), 1.0),
        ((5, 0, 0, 20), 1.0),
        ((5, 20, 0, 0), 1.0),
        ((3, 300, 0, 2700), 0.000991),  # 300·299·298/(3000·2999·2998)
    ],
)
def test_the_chance_of_so_many_changes_is_that_of_a_draw_without_replacement(
    counts: tuple[int, int, int, int], chance: float
) -> None:
    assert fisher(*counts) == pytest.approx(chance, rel=1e-3)


def test_each_thing_changes_by_itself() -> None:
    answers = [
        GOOD,
        changed(differs_at=3),
        changed(differs_at=0, flaw="empty", finish_reason="length", score=0.0),
        changed(error="timeout", differs_at=1),
        changed(canary=9, differs_at=1),  # its first answer failed
    ]
    assert changes(answers, {0: GOOD}) == Changes(n=3, words=2, flaws=1, ends=1, scores=1)


def test_what_was_so_already_is_no_change() -> None:
    """A first answer with a flaw, or a wrong one, cannot become worse by being so again."""
    first = changed(flaw="repetition", score=0.0)
    assert changes([first, changed(flaw="empty", score=0.0), GOOD], {0: first}) == Changes(n=3)


def test_the_level_where_answers_change_is_found_and_no_other() -> None:
    levels = [(16.0, Changes(n=100)), (8.0, Changes(n=100)), (32.0, Changes(n=100, words=6))]
    assert found(Changes(n=32), levels) == [Finding(32.0, "words", 6, 100, 0, 232)]  # (100/332)^6 = 0.0007 < 0.05/12


def test_levels_above_are_not_compared_with_one_where_answers_change() -> None:
    levels = [(8.0, Changes(n=50, words=40)), (16.0, Changes(n=50, words=40)), (32.0, Changes(n=50))]
    assert [(each.load, each.before, each.of) for each in found(Changes(n=50), levels)] == [(8.0, 0, 50), (16.0, 0, 50)]


def test_a_server_that_differs_from_itself_without_load_is_no_sign_of_load() -> None:
    assert found(Changes(n=100, words=30), [(8.0, Changes(n=100, words=34))]) == []
    assert found(Changes(n=100), [(8.0, Changes(n=100, words=34))]) != []


def test_how_small_a_change_a_level_would_show() -> None:
    assert detectable(40, Changes(n=32), 6) == 0.25  # docs/quality.md
    assert detectable(200, Changes(n=304), 6) == 0.035
    assert detectable(20, Changes(n=20, words=10), 1) == 0.9
    assert detectable(3, Changes(n=3), 1) is None


def test_a_question_asked_again_is_no_new_sample() -> None:
    asked = [changed(canary=k, score=float(k < 6)) for k in range(8) for _ in range(50)]
    assert accuracy(asked) == Estimate(0.75, wilson(6, 8))
    assert accuracy([changed(score=None)]) is None


def test_a_run_is_read_from_its_canaries_in_the_windows() -> None:
    first = [changed(canary=k) for k in (0, 1)] + [changed(canary=2, error="timeout")]
    unloaded = UnloadedAnswers(digests=["a", "b", ""], answers=[*first, *first])
    records = [
        request(1.0, [1.1], level=0),  # of the load
        canary(LEVELS[0]),
        canary(LEVELS[0], differs_at=4, score=0.0, finish_reason="length"),
        canary(LEVELS[0], at=55.0, differs_at=1),  # after the window
        canary(LEVELS[1], error="http_5xx"),
        canary(LEVELS[2], canary=2),
    ]
    read = of_run(unloaded, records, LEVELS)
    assert (read.unloaded.answers, read.unloaded.compared, read.unloaded.agreement.mean) == (4, 2, 1.0)
    assert [(each.answers, each.compared) for each in read.levels] == [(2, 2), (0, 0), (1, 0)]
    level = read.levels[0]
    assert (level.agreement, level.differs_at) == (Estimate(0.5, wilson(1, 2)), 4)
    assert level.finish_reasons == {"length": 1, "stop": 1}
    assert level.accuracy
    assert level.accuracy.mean == 0.5
    assert read.found == []


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.02, 19, 20)])
def test_two_per_cent_of_corrupted_answers_are_found_and_clean_runs_are_silent(
    share: float, least: int, most: int
) -> None:
    """20 runs of 600 canaries a level, with 16 prompts that were asked 20 times before; above C = 16 answers change."""
    unloaded = UnloadedAnswers(digests=["a"] * 16, answers=[changed(canary=k % 16) for k in range(16 * 20)])
    named = []
    for seed in range(20):
        rng = random.Random(seed)
        records = [
            canary(level, k * 0.08, canary=k % 16, differs_at=0 if rng.random() < share * (level.index == 2) else None)
            for level in LEVELS
            for k in range(600)
        ]
        named.append(
            [each.at for each in answers_changed.findings(Concluded(quality=of_run(unloaded, records, LEVELS)))]
        )
    assert least <= named.count([32]) <= most
    assert named.count([]) == 20 - named.count([32])


def test_the_verdict_names_the_level_and_the_numbers() -> None:
    read = msgspec.structs.replace(
        of_run(UnloadedAnswers(digests=[], answers=[]), [], LEVELS),
        found=[Finding(32.0, "words", 6, 300, 0, 620), Finding(32.0, "scores", 3, 300, 0, 620)],
    )
    (verdict,) = answers_changed.findings(Concluded(quality=read))
    assert (verdict.code, verdict.level, verdict.at) == ("answers_changed", "doubt", 32)
    assert verdict.message == (
        "6 of 300 canaries' answers are not those of the unloaded server (2.0%; before 0 of 620); "
        "3 of 300 canaries' answers are wrong where the first ones are right (1.0%; before 0 of 620)"
    )


def test_the_knee_with_unchanged_answers() -> None:
    view = of_run(UnloadedAnswers(digests=["a"], answers=[GOOD, GOOD]), [canary(LEVELS[0])], LEVELS).levels[0]
    levels = [msgspec.structs.replace(summaries.level(C), in_flight=C - 0.5, quality=view) for C in (8, 16, 32)]
    assert quality.knee(20.0, levels, None) == Value(20.0)
    assert quality.knee(20.0, levels, 32.0) == Value(15.5)  # between the two levels nobody looked
    assert quality.knee(9.0, levels, 32.0) == Value(9.0)
    assert quality.knee(20.0, levels, 8.0) is None
    assert quality.knee(None, levels, 32.0) is None
