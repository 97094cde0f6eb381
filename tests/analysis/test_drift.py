"""Drift over one window: slopes and changes of hand-made series, their intervals, and who is never accused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from harness.analysis import timeline
from harness.analysis.level import Facts
from harness.analysis.rules import findings
from harness.analysis.rules.observed import Observed
from harness.analysis.stats import correlation
from harness.analysis.table import Floats
from harness.analysis.timeline import means, trend
from harness.data.judgement import Verdict
from harness.data.levels import Drift, Trend
from harness.data.record import SERVER, Level, Sample
from harness.data.views import Value
from tests.builders import summaries
from tests.builders.records import request

MINUTES = np.arange(40.0) + 0.5


def noise(seed: int, rho: float = 0.0, n: int = 40) -> Floats:
    """An autoregressive series with a standard deviation of 1."""
    made = np.random.default_rng(seed).normal(size=n)
    for i in range(1, n):
        made[i] = rho * made[i - 1] + (1 - rho**2) ** 0.5 * made[i]
    return made


def test_a_line_has_its_slope_exactly() -> None:
    found = trend(200.0 - 2.0 * MINUTES, 0.0, 60.0)
    assert found is not None
    assert found.start == pytest.approx(200.0)
    assert found.per_hour.value == pytest.approx(-120.0)
    assert found.share_per_hour is not None
    assert found.share_per_hour.value == pytest.approx(-0.6)
    assert found.sure


def test_what_never_changes_has_a_slope_of_0_and_is_not_accused() -> None:
    found = trend(np.full(30, 7.0), 0.0, 10.0)
    assert found is not None
    assert (found.per_hour.value, found.sure) == (0.0, False)


def test_too_few_bins_have_no_trend_and_bins_that_were_not_read_are_left_out() -> None:
    assert trend(np.arange(19.0), 0.0, 1.0) is None
    gaps = 100.0 - MINUTES
    gaps[3:9] = np.nan
    found = trend(gaps, 0.0, 60.0)
    assert found is not None
    assert (found.bins, found.per_hour.value) == (34, pytest.approx(-60.0))
    assert trend(np.full(40, np.nan), 0.0, 1.0) is None


def test_correlated_bins_widen_the_interval() -> None:
    """ρ = 0.6 makes 40 bins count as 10, so the interval is about twice as wide as that of uncorrelated ones."""
    width = {}
    for rho in (0.0, 0.6):
        ends = [found.per_hour.ci95 for seed in range(30) if (found := trend(100 + noise(seed, rho), 0.0, 60.0))]
        width[rho] = np.mean([high - low for low, high in filter(None, ends) if high is not None and low is not None])
    assert 1.4 < width[0.6] / width[0.0] < 3.0
    assert correlation(noise(1, 0.6, 4000), fitted=2) == pytest.approx(0.6, abs=0.05)


def test_a_planted_decay_is_found_with_its_interval() -> None:
    """1 % a minute under 2 % of noise: the 95 % interval has it in 18 of 20, and all of them are sure."""
    shares = []
    for seed in range(20):
        found = trend((100.0 - MINUTES) * (1 + 0.02 * noise(seed)), 0.0, 60.0)
        assert found is not None
        assert found.sure
        shares.append(found.share_per_hour)
    inside = [each.ci95[0] <= -0.6 <= each.ci95[1] for each in shares if each and each.ci95]  # type: ignore[operator]
    assert sum(inside) >= 18


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("n", [20, 40])
def test_a_calm_series_is_never_accused(rho: float, n: int) -> None:
    calm = [trend(100 + 5 * noise(seed, rho, n), 0.0, 30.0) for seed in range(20)]
    assert not any(found.sure for found in calm if found)


def test_gauges_are_means_of_their_part() -> None:
    np.testing.assert_array_equal(means([(10.0, 2.0), (11.0, 4.0), (12.5, 1.0)], 10.0, 16.0, 3), [3.0, 1.0, np.nan])
    assert len(means([], 0.0, 1.0, 3)) == 0


def scrape(time_s: float, **values: float) -> list[Sample]:
    return [Sample(time_s, SERVER, name, value) for name, value in values.items()]


def level(seconds: float) -> Level:
    return Level(0, 1, 0, 0.0, window_start_s=0.0, window_end_s=seconds, end_s=seconds)


def decaying(seconds: float, *, samples: list[Sample] | None = None) -> Drift | None:
    """One request a second; each has ten tokens."""
    records, at = [], 0.0
    while at < seconds:
        records.append(request(at, [at + (i + 1) / 10 for i in range(10)]))
        at += 1.0
    return timeline.drift(Facts().table(records), samples or [], level(seconds))


def test_a_level_has_its_throughput_and_the_server_its_memory() -> None:
    memory = [
        sample for t in range(0, 400, 2) for sample in scrape(float(t), process_resident_memory_bytes=1e9 + 1e6 * t)
    ]
    found = decaying(400.0, samples=memory)
    assert found is not None
    assert found.throughput is not None
    assert found.throughput.mean == pytest.approx(10.0, rel=0.01)
    assert found.memory_bytes is not None
    assert found.memory_bytes.per_hour.value == pytest.approx(3.6e9, rel=0.01)
    assert found.ttft_p99_s is None, "20 parts of 100 requests need 2,000"
    assert decaying(299.0) is None


def moving(share_per_hour: float, *, sure: bool = True) -> Trend:
    per_hour = Value(share_per_hour, (share_per_hour - 0.01, share_per_hour + 0.01))
    return Trend(mean=1.0, start=1.0, per_hour=per_hour, share_per_hour=per_hour, sure=sure, bins=40)


def verdicts(drift: Drift, window: tuple[float, float], at: int) -> list[Verdict]:
    s = msgspec.structs.replace(summaries.level(at), window=window, window_s=window[1] - window[0])
    return findings(Observed(s=s, drift=drift))


def codes(found: Drift, hours: float = 1.0) -> list[str]:
    return [verdict.code for verdict in verdicts(found, (0.0, 3600 * hours), 8)]


def test_verdicts_are_on_what_gets_worse_for_sure_and_by_enough() -> None:
    assert codes(Drift(throughput=moving(-0.03))) == ["throughput_decays"]
    assert codes(Drift(throughput=moving(-0.01))) == []
    assert codes(Drift(throughput=moving(-0.01)), hours=4.0) == ["throughput_decays"]
    assert codes(Drift(throughput=moving(-0.03, sure=False))) == []
    assert codes(Drift(throughput=moving(+0.2), ttft_p99_s=moving(-0.2), memory_bytes=moving(-0.2))) == []
    assert codes(Drift(ttft_p99_s=moving(0.12))) == ["latency_creeps"]
    assert codes(Drift(memory_bytes=moving(0.05), gpu_memory_bytes=moving(0.05))) == ["memory_grows"] * 2
    assert codes(Drift(kv_usage=moving(0.5))) == []


def test_a_decay_says_how_fast_it_is() -> None:
    (verdict,) = verdicts(Drift(throughput=moving(-0.6)), (0.0, 1200.0), 8)
    assert "throughput falls by 60.0 % an hour (95 % interval 59.0–61.0), 20.0% in this window" in verdict.message


def test_a_step_in_the_middle_of_a_window_is_sure() -> None:
    """From 100 to 80 after 25 of 40 minutes, under 1 % of noise."""
    found = [trend(np.where(MINUTES < 25, 100.0, 80.0) + noise(seed), 0.0, 60.0) for seed in range(20)]
    assert sum(each.sure for each in found if each) >= 16
