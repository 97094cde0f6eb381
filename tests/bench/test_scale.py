"""What 1 M tok/s takes is worked out from the recorded ceilings, and the page has what is printed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

BENCH = Path(__file__).parents[2] / "bench/research"
sys.path.append(str(BENCH))

import scale  # noqa: E402
import scale_paper  # noqa: E402
from scale_paper import LIMITS, Ceilings, Load, Node, breaks_at, need  # noqa: E402

NOTHING = Ceilings(**dict.fromkeys(Ceilings.__struct_fields__, 0.0))


def ceilings(**figures: float) -> Ceilings:
    return msgspec.structs.replace(NOTHING, **figures)


def test_the_page_has_the_tables_as_they_are_printed_of_the_recorded_ceilings() -> None:
    _, between, _ = scale.in_page(scale.PAGE.read_text())
    assert between == scale.text(scale.recorded())


def test_workers_are_what_their_tokens_requests_and_words_take_by_hand() -> None:
    spent = ceilings(worker_s_token=10e-6, worker_s_request=200e-6, worker_s_word=1e-6)
    found = need(spent, Load(tokens_per_s=1e6, answer_tokens=100, prompt_words=300))
    assert found.processors == pytest.approx(10 + 10_000 * (200e-6 + 300e-6))
    assert found.workers == 19, "15 processors, each 80 % busy"
    assert found.nodes == 2, "15 workers on a node, and a processor to spare"
    assert found.usd == pytest.approx(3 * 16 * 0.0425 * 0.5), "with the parent's node, for half an hour"


def test_the_parent_is_busy_with_tokens_requests_and_twenty_reports_a_second_of_each_worker() -> None:
    spent = ceilings(worker_s_token=8e-6, parent_s_token=1e-8, parent_s_request=1e-5, parent_s_report=1e-4)
    found = need(spent, Load(tokens_per_s=1e6, answer_tokens=1000))
    assert found.workers == 10
    assert found.parent_busy == pytest.approx(0.01 + 0.01 + 10 * 20 * 1e-4)


def test_a_level_in_memory_is_its_records_and_its_summary() -> None:
    spent = ceilings(parent_bytes_token=8, parent_bytes_request=1000, summary_bytes_token=16)
    found = need(spent, Load(tokens_per_s=1e6, answer_tokens=100, window_s=10))
    assert found.level_bytes == pytest.approx(30e6 * (8 + 10 + 16))
    assert found.summary_bytes == pytest.approx(300e6 * 16)


def test_a_limit_is_used_up_where_a_load_takes_all_of_it() -> None:
    disk = next(limit for limit in LIMITS if "disk" in limit.name)
    assert breaks_at(ceilings(spool_bytes_token=8), disk, Load(tokens_per_s=1)) == pytest.approx(125e6 / 8)
    assert math.isinf(breaks_at(NOTHING, disk, Load(tokens_per_s=1)))


def test_what_is_used_up_first_stands_first() -> None:
    spent = ceilings(worker_s_token=2e-5, spool_bytes_token=8, summary_s_token=1e-6)
    rows = scale_paper.limits_table(spent, Load(tokens_per_s=1), Node()).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows[:3]] == ["1 M", "16 M", "156 M"]


@pytest.mark.slow
def test_the_parent_takes_every_batch_and_every_report_that_is_sent() -> None:
    def took(*arguments: str) -> dict[str, float]:
        command = [sys.executable, str(BENCH / "scale_parent.py"), *arguments]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout))

    few, many = (took("--requests", str(count), "--tokens", "100") for count in (256, 2560))
    assert many["bytes"] - few["bytes"] == pytest.approx(2304 * 100 * 8, rel=0.5)
    assert took("--workers", "4", "--turns", "5")["cpu_s"] > 0
    assert took("--clock")["error_s"] > 0
