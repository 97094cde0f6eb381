"""Which invalid levels may still be used, and for what."""

from __future__ import annotations

import pytest

from harness.analysis.validity import Purpose, invalid_by, usable
from harness.data.judgement import Code, doubt, invalid, note
from tests.builders.summaries import level

CLIENT = [Code.CLIENT_LIMITED, Code.WORKER_PAUSED]
OVERLOAD = [Code.ERRORS_ABOVE_1_PERCENT, Code.UNSTABLE]
OTHERS = [Code.LITTLE_MISMATCH, Code.SCHEDULE_NOT_KEPT, Code.STALLED, Code.MACHINE_SLEPT]


@pytest.mark.parametrize(
    ("codes", "purposes"),
    [
        ([], {Purpose.ANSWER, Purpose.POINT, Purpose.TOP, Purpose.MISS}),
        ([Code.IN_FLIGHT_LOW], {Purpose.POINT, Purpose.TOP, Purpose.MISS}),
        *(([code], {Purpose.TOP}) for code in CLIENT),
        *(([code], {Purpose.MISS}) for code in OVERLOAD),
        *(([code], set()) for code in OTHERS),
        ([Code.CLIENT_LIMITED, Code.IN_FLIGHT_LOW], {Purpose.TOP}),
        ([Code.CLIENT_LIMITED, Code.UNSTABLE], set()),
        ([Code.SCHEDULE_NOT_KEPT, Code.UNSTABLE], {Purpose.MISS}),
    ],
)
def test_a_level_may_be_used_where_every_verdict_that_voids_it_is_excused(
    codes: list[Code], purposes: set[Purpose]
) -> None:
    made = level(4, verdicts=[invalid(code, "") for code in codes])
    assert {purpose for purpose in Purpose if usable(made, purpose)} == purposes
    assert invalid_by(made) == set(codes)


def test_doubts_and_notes_keep_a_level_from_nothing() -> None:
    made = level(4, verdicts=[doubt(Code.CLIENT_BUSY, ""), note(Code.WINDOW_TOO_SHORT, "")])
    assert all(usable(made, purpose) for purpose in Purpose)
    assert invalid_by(made) == set()
