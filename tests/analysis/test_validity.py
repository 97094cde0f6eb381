"""Which invalid levels may still be used, and for what."""

from __future__ import annotations

import pytest

from harness.analysis.rules import Purpose, invalid_by, usable
from harness.data.judgement import Verdict
from tests.builders.summaries import level

CLIENT = ["client_limited", "held_back", "worker_paused"]
OVERLOAD = ["errors_above_1_percent", "unstable"]
OTHERS = ["little_mismatch", "schedule_not_kept", "stalled", "machine_slept"]


@pytest.mark.parametrize(
    ("codes", "purposes"),
    [
        ([], {Purpose.ANSWER, Purpose.POINT, Purpose.TOP, Purpose.MISS}),
        (["in_flight_low"], {Purpose.POINT, Purpose.TOP, Purpose.MISS}),
        *(([code], {Purpose.TOP}) for code in CLIENT),
        *(([code], {Purpose.MISS}) for code in OVERLOAD),
        *(([code], set()) for code in OTHERS),
        (["client_limited", "in_flight_low"], {Purpose.TOP}),
        (["client_limited", "unstable"], set()),
    ],
)
def test_a_level_may_be_used_where_every_verdict_that_voids_it_is_excused(
    codes: list[str], purposes: set[Purpose]
) -> None:
    made = level(4, verdicts=[Verdict(code, "invalid", "") for code in codes])
    assert {purpose for purpose in Purpose if usable(made, purpose)} == purposes
    assert invalid_by(made) == set(codes)


def test_doubts_and_notes_keep_a_level_from_nothing() -> None:
    made = level(4, verdicts=[Verdict("client_busy", "doubt", ""), Verdict("window_too_short", "note", "")])
    assert all(usable(made, purpose) for purpose in Purpose)
    assert invalid_by(made) == set()
