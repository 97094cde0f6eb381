"""A server that is killed with -9 ends the run soon, with status 3: one of the search, and one of given levels."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import killed  # its folder is a line above


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("load", killed.LOADS)
def test_a_run_whose_server_is_killed_ends_within_seconds_with_status_3(load):
    ended = killed.killed(killed.LOADS[load], 3.0)
    assert ended.status == 3, ended.last_line
    assert ended.seconds < killed.WITHIN_S
