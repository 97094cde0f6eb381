"""Quota headers as they come, and how they reach the parent."""

from __future__ import annotations

import pytest

from harness.load.messages import Stop
from harness.load.schedule import quota_figures
from harness.load.transport import Exchange
from tests.load.test_driver import FakeServer, begin_level, drive


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("59", 59.0),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("120ms", 0.12),
        (" 7 ", 7.0),
        ("2026-11-23T12:00:00Z", None),
        ("Mon, 23 Nov 2026 12:00:00 GMT", None),
        ("", None),
        ("-1", None),
        ("1e9", None),
        ("9" * 100, None),
        ("٣", None),
    ],
)
def test_counts_and_durations_are_read_and_all_else_is_left_out(value: str, expected: float | None) -> None:
    assert quota_figures({"retry-after": value}).get("retry_after_s") == expected


def test_two_hosts_names_for_the_same_are_one() -> None:
    openai = {"x-ratelimit-limit-tokens": "1000", "x-ratelimit-remaining-tokens": "10"}
    anthropic = {"anthropic-ratelimit-tokens-limit": "1000", "anthropic-ratelimit-tokens-remaining": "10"}
    assert quota_figures(openai) == quota_figures(anthropic) == {"limit_tokens": 1000.0, "remaining_tokens": 10.0}


class Metered(FakeServer):
    """A server that counts down its quota in the headers of its answers."""

    left = 100

    async def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        self.left -= 1
        exchange.response.headers = {"x-ratelimit-remaining-requests": str(self.left)}
        await super().send(exchange, request, timeout_s)


def test_the_parent_gets_the_latest_figures_a_few_times_a_second_and_none_from_others() -> None:
    _, reports = drive([(0.0, begin_level(0, 2)), (5.0, Stop())], Metered(0.5))
    seen = [report.quota["remaining_requests"] for report in reports if report.quota]
    assert seen == sorted(seen, reverse=True)
    assert 90 > seen[-1] > 75  # two in flight, half a second each, five seconds
    assert len(seen) <= 25  # of a hundred reports
    _, reports = drive([(0.0, begin_level(0, 2)), (1.0, Stop())], FakeServer(0.5))
    assert [report.quota for report in reports if report.quota] == []
