"""The measurement beside the prediction."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis import gap
from harness.summary import Estimate, Verdict
from tests import summaries

PREDICTION = summaries.prediction((1, 2, 4), {})


def at(concurrency: int, rate: float | None, *, invalid: bool = False) -> summaries.LevelSummary:
    verdicts = [Verdict("client_limited", "invalid", "")] if invalid else []
    return msgspec.structs.replace(summaries.level(concurrency), output_tokens_per_s=Estimate(rate), verdicts=verdicts)


def ratios(*levels: summaries.LevelSummary) -> list[float | None]:
    return [level.measured_over_predicted for level in gap.beside(PREDICTION, levels).levels]


def test_each_level_stands_over_its_own_prediction_and_repeats_are_averaged() -> None:
    mid = [level.output_tokens_per_s.mid for level in PREDICTION.levels]
    got = ratios(at(1, mid[0]), at(4, 0.5 * mid[2]), at(4, 0.7 * mid[2]))
    assert got == [pytest.approx(1.0), None, pytest.approx(0.6)]


def test_an_invalid_level_is_beside_nothing() -> None:
    assert ratios(at(1, 5.0, invalid=True), at(2, None)) == [None, None, None]


@pytest.mark.parametrize(("ratio", "word"), [(0.74, "below"), (0.75, "agrees"), (1.15, "agrees"), (1.16, "above")])
def test_what_a_ratio_says(ratio: float, word: str) -> None:
    assert gap.agreement(ratio).startswith(word)
