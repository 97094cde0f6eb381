"""GPUs by the pages of an exporter; tests/data/metrics has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.telemetry import gpu_view
from harness.data.record import Sample
from harness.observe import server

PAGES = Path(__file__).parents[1] / "data" / "metrics"


def test_dcgm_s_figures_are_in_base_units_and_those_that_it_lacks_are_left_out() -> None:
    page = (PAGES / "dcgm-exporter-4.8.2.txt").read_text()
    found = {(s.source, s.metric): s.value for s in server.exporter_samples(1, 5.0, page)}
    assert found == {
        ("gpu", "1:0/sm_clock_hz"): 1.755e9,
        ("gpu", "1:0/utilization"): pytest.approx(0.98),
        ("gpu", "1:0/temperature_c"): 61.0,
        ("gpu", "1:0/power_w"): 650.5,
        ("gpu", "1:0/energy_j"): 5000.0,
        ("gpu", "1:0/memory_used_bytes"): 70000 * 2**20,
        ("gpu", "1:0/throttle_reasons"): 64.0,
        ("gpu", "1:1.2/power_w"): 120.0,
    }


def test_the_gpus_of_an_exporter_stand_for_this_machine_s() -> None:
    page = (PAGES / "dcgm-exporter-4.8.2.txt").read_text()
    local = [Sample(t, "gpu", "0/power_w", 300.0) for t in (0.0, 10.0)]
    later = page.replace(" 5000000", " 11000000")
    got = gpu_view(
        [*local, *server.exporter_samples(0, 0.0, page), *server.exporter_samples(0, 10.0, later)], (0.0, 10.0)
    )
    assert got is not None
    assert (got.gpus, got.power_w) == (2, 650.5 + 120.0)
    assert got.energy_j == pytest.approx((11000 - 5000) + 120.0 * 10), "by the counter, and by power over time"
    assert (got.throttle, got.throttled_fraction) == ({"hw_thermal": 1.0}, 1.0)


def test_a_page_of_ill_will_has_no_samples() -> None:
    many = "\n".join(f'DCGM_FI_DEV_POWER_USAGE{{gpu="{i}"}} 1' for i in range(3_000))
    assert server.exporter_samples(0, 0.0, many) == []
    for page in ("", "<html>", 'DCGM_FI_DEV_POWER_USAGE{gpu="0/../1"} 1', 'DCGM_FI_DEV_POWER_USAGE{gpu="\x1b"} 1'):
        assert server.exporter_samples(0, 0.0, page) == []
