"""The loss of a real server: what its log says, how the two are compared, and the committed measurement."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.data.summary import NodeLoss
from harness.results.result import Result

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "live-node-loss"
sys.path.append(str(ROOT / "scripts/live"))

from fleet import _LEVEL_ENDED, WITHIN_S, Live, first_request, judged  # noqa: E402  # its folder is a line above

LIVE = Live(
    server="llama-server", version="1", url="http://b", killed_s=5.0, started_s=7.0, first_request_s=8.0, status=3
)


def loss(**changes: Any) -> NodeLoss:
    plain = NodeLoss(
        url="http://b", kind="stopped", at=3, start_s=5.0, end_s=8.0, recovery_s=3.0, errors=3, errors_s=0.1,
        before=None, during=None, after=None, survivors_plateau_tokens_per_s=None, headroom_held=None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([loss()], "yes"),
        ([loss(recovery_s=3.19)], "yes"),
        ([loss(recovery_s=3.3)], "no: +0.30 s apart"),
        ([loss(recovery_s=None)], "no: it did not come back"),
        ([loss(url="http://a")], "no: 0 losses of it found"),
        ([loss(), loss()], "no: 2 losses of it found"),
    ],
)
def test_the_records_recovery_agrees_with_the_log_or_the_table_says_how_far_it_is_off(
    losses: list[NodeLoss], words: str
) -> None:
    assert judged(LIVE, losses) == words


def test_a_log_without_a_request_has_no_first_one() -> None:
    assert first_request("0.00.128.771 I cmn init: llama threadpool init\nnoise") is None
    assert first_request("1.02.003.004 I slot launch_slot_: id  1 | task 0") == pytest.approx(62.003004)


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        ("  2/4  C = 4      warm-up  5.0 s  1 min left    66.8 tok/s    4.0 in flight", False),
        ("  4/4  C = 3      window   8.7/20 s  16 s left    32.1 tok/s", False),
        ("  1/1  C = 3        82.9 tok/s    3.0 in flight  TTFT p50 352 ms", True),
    ],
)
def test_the_line_of_a_level_that_has_ended_is_told_from_those_while_it_runs(line: str, ended: bool) -> None:
    assert bool(_LEVEL_ENDED.match(line)) is ended


@pytest.mark.slow
def test_the_committed_loss_follows_from_its_records_and_agrees_with_the_servers_log() -> None:
    live = msgspec.json.decode((RESULT / "live.json").read_bytes(), type=Live)
    again = summarise(Result.open(RESULT)).node_losses or []
    assert judged(live, list(again)) == "yes"
    assert [each.url for each in again] == [live.url]
    assert again[0].start_s == pytest.approx(live.killed_s, abs=WITHIN_S)
    assert max(path.stat().st_size for path in RESULT.iterdir() if path.suffix != ".html") < 1_000_000
