"""The table that a page plans by: the loads, the latencies that decide, and stops that hold what is known exactly."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.data.levels import LevelSummary
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.data.views import Spread
from harness.decide.plan import capacity, what_if
from harness.spec.classes import ClassSpec
from harness.spec.scenario import Ramp, Scenario, Target
from tests.builders.summaries import LEVELS, MANIFEST, full

PRICED = msgspec.structs.replace(MANIFEST, price=2.0)


def made(manifest: Manifest = PRICED, summary: Summary | None = None) -> what_if.WhatIf:
    found = what_if.of_run(manifest, summary or full())
    assert found is not None
    return found


def with_slo(**limits: float) -> Manifest:
    return msgspec.structs.replace(PRICED, scenario=Scenario(target=Target(), ramp=Ramp(), slo=limits))


def of_levels(change: Any) -> Summary:
    summary = full()
    return msgspec.structs.replace(summary, levels=[change(level) for level in summary.levels])


def test_the_loads_are_those_of_a_plan_and_the_invalid_one_is_none() -> None:
    found = made()
    assert [each.load for each in found.loads] == [float(C) for C in LEVELS[:-1]]
    planned = capacity.of_summary("", PRICED, full(), {}, by="percentiles")
    assert [each.work_per_s for each in found.loads] == [each.work_per_s.value for each in planned.loads]


def test_a_latency_is_that_of_the_slowest_repeat_and_none_where_one_repeat_has_none() -> None:
    def spread(p99: float | None, largest: float | None) -> Spread:
        return Spread(0.1, 0.1, 0.1, 0.1, p99, largest, 1000)

    def with_ttft(level: LevelSummary, p99: float | None, largest: float | None) -> LevelSummary:
        return msgspec.structs.replace(level, ttft_s=spread(p99, largest))

    summary = full()
    one, two, three = summary.levels[2:5]
    again = [msgspec.structs.replace(each, repeat=1) for each in (one, two, three)]
    first = [with_ttft(one, 0.2, 0.9), with_ttft(two, 0.2, 0.9), with_ttft(three, 0.2, 0.9)]
    second = [with_ttft(again[0], 0.3, 0.9), with_ttft(again[1], None, 0.5), with_ttft(again[2], None, None)]
    found = made(summary=msgspec.structs.replace(summary, levels=[*first, *second]))
    assert [each.latency_s["ttft_p99"] for each in found.loads] == [0.3, 0.5, None]
    assert [("ttft_p99" in each.by_largest) for each in found.loads] == [False, True, True]


def test_sliders_begin_with_what_the_run_had() -> None:
    controls = {each.name: each for each in made(with_slo(ttft_p99=0.321)).controls}
    assert list(controls) == ["ttft_p99", "itl_p99", "rps", "price"]
    begun = {name: each.stops[each.start] for name, each in controls.items()}
    # 16 in flight have 95 % of the most, 1,808 tok/s: 10 replicas at 70 % of it make 63.3 requests/s of 200 tokens.
    assert begun == {"ttft_p99": 0.321, "itl_p99": None, "rps": 63.0, "price": 2.0}
    for each in controls.values():
        known = [stop for stop in each.stops if stop is not None]
        assert known == sorted(set(known))


def test_limits_of_a_class_are_the_run_s_own() -> None:
    limited = ClassSpec(name="chat", slo={"ttft_p95": 1.0})
    spec = msgspec.structs.replace(PRICED.scenario, class_=[limited])
    assert made(msgspec.structs.replace(PRICED, scenario=spec)).own_slo
    assert not made().own_slo


def test_what_cannot_be_planned_has_none() -> None:
    summary = full()
    assert what_if.of_run(MANIFEST, summary) is None, "no price"
    assert what_if.of_run(PRICED, msgspec.structs.replace(summary, curve=None)) is None
    assert what_if.of_run(msgspec.structs.replace(PRICED, gpus=None), summary) is None
    assert what_if.of_run(PRICED, msgspec.structs.replace(summary, levels=[])) is None


def test_a_latency_that_was_never_measured_has_no_slider() -> None:
    nothing = Spread(None, None, None, None, None, None, 0)
    found = made(summary=of_levels(lambda level: msgspec.structs.replace(level, itl_s=nothing)))
    assert [each.name for each in found.controls] == ["ttft_p99", "rps", "price"]
