"""Nothing of the operator's is sent, run or used up because a file of somebody else's says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trust import guard_consent


@pytest.mark.slow
@pytest.mark.parametrize("name", guard_consent.CASES)
def test_nothing_is_done_unasked(name: str, tmp_path: Path) -> None:
    seen = guard_consent.CASES[name](tmp_path)
    assert seen.wrong == [], seen.what
