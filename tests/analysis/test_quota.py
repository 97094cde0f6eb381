"""Where a quota, and not the server, sets what is measured."""

from __future__ import annotations

import msgspec

from harness.analysis.rules.observed import Observed, quota_limited
from harness.data.levels import LevelSummary
from tests.builders.summaries import level


def failed(**errors: int) -> LevelSummary:
    return msgspec.structs.replace(level(8), requests=100, errors_by_type=errors)


def test_refusals_are_named() -> None:
    (said,) = quota_limited.findings(Observed(s=failed(http_429=3)))
    assert said.at == 8
    assert "3 of 100 requests were refused with 429: the quota sets" in said.message
    assert quota_limited.findings(Observed(s=failed(http_5xx=3))) == []
