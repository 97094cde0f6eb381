"""From a folder's records to its summary and exit status."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness import store
from harness.experiment.summarise import exit_status, summarise
from harness.record import Level
from harness.summary import LevelSummary, Summary, Verdict
from tests import summaries
from tests.test_store import record

BAD = Verdict("client_limited", "invalid", "it was")
FAILING = Verdict("errors_above_1_percent", "invalid", "they did")


def judged(*found: list[Verdict], run: list[Verdict] | None = None) -> int:
    levels: list[LevelSummary] = [
        msgspec.structs.replace(summaries.level(2**i), verdicts=verdicts) for i, verdicts in enumerate(found)
    ]
    return exit_status(msgspec.structs.replace(summaries.full(), levels=levels, verdicts=run or []))


def test_notes_and_doubts_are_status_0_and_an_invalid_level_is_3() -> None:
    assert judged([], [Verdict("x", "doubt", ""), Verdict("y", "note", "")]) == 0
    assert judged([BAD], []) == 3
    assert judged([], [], run=[BAD]) == 3


def test_the_level_whose_errors_ended_the_ramp_voids_nothing() -> None:
    assert judged([], [FAILING]) == 0
    assert judged([FAILING], []) == 3
    assert judged([FAILING]) == 3, "nothing else was measured"


def folder(tmp_path: Path, levels: list[Level]) -> Summary:
    spool = store.Spool(tmp_path, store.header(0, 0.0))
    for level in levels:
        spool.level(level)
    spool.write(store.batch([record(i, level=levels[0].index) for i in range(40)]))
    spool.close()
    store.write_json(tmp_path / store.MANIFEST, {"complete": False, "price": 3.6, "gpus": 2})
    return summarise(store.read(tmp_path))


def test_only_finished_levels_are_summarised_and_the_rest_is_said(tmp_path: Path) -> None:
    whole = Level(0, 2, 0, 0.0, 5.0, 25.0, 26.0)
    got = folder(tmp_path, [whole, Level(1, 4, 0, 26.0, 27.0)])
    assert [level.concurrency for level in got.levels] == [2]
    assert got.complete is False
    (said,) = [v for v in got.verdicts if v.code == "incomplete"]
    assert "1 of the 2 levels begun are finished" in said.message
    # 3 tokens a request, one request a second: 20 s hold 60 tokens, but for the two edges.
    assert got.levels[0].output_tokens_per_s.mean == pytest.approx(3.0, rel=0.05)


def test_cost_is_the_price_of_all_gpus_over_the_best_rate(tmp_path: Path) -> None:
    got = folder(tmp_path, [Level(0, 2, 0, 0.0, 5.0, 25.0, 26.0)])
    rate = got.levels[0].output_tokens_per_s.mean
    assert rate is not None
    assert got.cost is not None
    # 3.60 USD an hour on each of two GPUs is 0.002 USD a second.
    assert got.cost.usd_per_million_output_tokens == pytest.approx(0.002 / rate * 1e6)


def test_a_folder_without_a_finished_level_has_no_answer_and_no_curve(tmp_path: Path) -> None:
    got = folder(tmp_path, [Level(0, 2, 0, 0.0)])
    assert (got.levels, got.curve, got.knee_concurrency, got.cost) == ([], None, None, None)
