"""A run over time: rates in equal bins, means in flight, gauges as they were read."""

from __future__ import annotations

import pytest

from harness.analysis.table import Table
from harness.analysis.timeline import timeline
from harness.data.record import Sample
from tests.builders.records import request


def two() -> Table:
    """One answer of 4 tokens from 1 s to 3 s, and a failure from 2 s to 4 s."""
    whole = request(1.0, arrivals=[1.5, 2.0, 2.5, 3.0], done=3.0)
    failed = request(2.0, arrivals=[], done=4.0, error="reset")
    return Table.of([whole, failed])


def test_tokens_and_failures_are_counted_in_the_bin_in_which_they_came() -> None:
    found = timeline(two(), [], 60.0)
    assert found.seconds == 0.25
    rate = dict(found.throughput)
    assert rate[1.625] == pytest.approx(4.0)  # one token in a quarter of a second
    assert sum(value for _, value in found.throughput) * found.seconds == pytest.approx(4)
    assert [(at, value) for at, value in found.errors if value] == [(4.125, 4.0)]


def test_in_flight_is_the_mean_over_each_bin_failures_included() -> None:
    at = dict(timeline(two(), [], 60.0).in_flight)
    assert (at[0.875], at[1.125], at[2.125], at[3.125], at[4.125]) == pytest.approx((0, 1, 2, 1, 0))


def test_a_long_run_has_wide_bins() -> None:
    found = timeline(two(), [], 3600.0)
    assert found.seconds == 30
    assert len(found.throughput) <= 242


def test_gauges_are_of_each_server_and_watts_of_each_gpu() -> None:
    samples = [
        Sample(1.0, "server http://a", "running", 2.0),
        Sample(2.0, "server http://a", "running", 3.0),
        Sample(1.0, "server http://b", "running", 5.0),
        Sample(1.0, "server http://b", "kv_usage", 0.5),
        Sample(1.0, "gpu", "0/power_w", 300.0),
        Sample(1.0, "gpu", "0/utilization", 1.0),
    ]
    found = timeline(None, samples, 10.0)
    assert found.running == {"http://a": [(1.0, 2.0), (2.0, 3.0)], "http://b": [(1.0, 5.0)]}
    assert (found.kv_usage, found.power) == ({"http://b": [(1.0, 0.5)]}, {"0": [(1.0, 300.0)]})
    assert (found.waiting, found.throughput, found.in_flight, found.errors) == ({}, [], [], [])
