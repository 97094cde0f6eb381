"""What a plan promises, served: its replicas keep the SLO on the simulated endpoint, and one fewer misses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.decide.plan import capacity, plan
from harness.decide.plan.question import Demand, Question, Reserve
from harness.sim.profile import profile
from harness.spec.classes import ClassSpec
from harness.spec.scenario import Scenario, WorkloadSpec
from tests.builders import virtual_run

pytestmark = pytest.mark.slow

SEATS = 4  # requests that run at once on one replica


def asked(**ramp: Any) -> Scenario:
    """64 tokens in and out; 90 % of the first tokens within 350 ms; a taken seat is free after 450."""
    fields = {"input_tokens": 64, "output_tokens": 64}
    bare = {"max_concurrency": None} | ramp
    return virtual_run.asked(
        "chat", workload=fields, ramp=bare, slo={"ttft_p95": None, "tpot_p95": None, "ttft_p90": 0.35}
    )


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> capacity.Capacity:
    """One replica, measured."""
    folder = tmp_path_factory.mktemp("one")
    virtual_run.run(asked(levels=[1, 2, SEATS, 8], level_seconds=20.0), profile(max_num_seqs=SEATS, speed=1.0), folder)
    return capacity.read(str(folder))


def test_a_class_meets_its_limits_at_the_operating_point(tmp_path: Path) -> None:
    limits = {"ttft_p90": 0.35}
    chat, rest = ClassSpec(name="chat", input=64, output=64, slo=limits), ClassSpec(name="rest", input=64, output=64)
    spec = asked(levels=[SEATS, 8], level_seconds=30.0)
    spec = msgspec.structs.replace(spec, workload=WorkloadSpec(), class_=[chat, rest], slo={})
    virtual_run.run(spec, profile(max_num_seqs=SEATS, speed=1.0), tmp_path)
    found = capacity.read(str(tmp_path))
    assert (found.slo, found.slo_load, found.slo_missed) == (["ttft_p90=350ms of chat"], SEATS, 8)
    other = capacity.read(str(tmp_path), {"ttft_p90": 100.0})
    assert (other.slo, other.slo_load, other.slo_missed) == (["ttft_p90=100s"], 8, None)


def replayed(replicas: int, rate: float, folder: Path) -> LevelSummary:
    """That rate, in Poisson's way, on so many replicas."""
    folder.mkdir()
    served = profile(max_num_seqs=SEATS, speed=1.0, dp=replicas)
    spec = asked(rates=[rate], level_seconds=60.0)
    (level,) = virtual_run.run(spec, served, folder).summary.levels
    return level


def outcome(level: LevelSummary) -> str:
    return level.slo[0].outcome


@pytest.mark.parametrize(
    ("demand", "utilization", "replicas"),
    [
        (1.25, 0.7, 2),  # of what one replica carries within the SLO: 1.25 / 0.7 = 1.79
        (2.3, 0.8, 3),  # 2.875
    ],
)
def test_the_planned_replicas_keep_the_slo_and_one_fewer_misses_it(
    one: capacity.Capacity, tmp_path: Path, demand: float, utilization: float, replicas: int
) -> None:
    assert (one.slo_load, one.slo_missed) == (SEATS, 8)
    rate = demand * one.loads[2].requests_per_s
    question = Question(demand=Demand(requests_per_s=rate), reserve=Reserve(utilization=utilization))
    made = plan.make(one, question)
    assert made.fleet is not None
    assert made.fleet.replicas == replicas
    kept = replayed(replicas, rate, tmp_path / "planned")
    assert outcome(kept) == Outcome.MET
    assert kept.output_tokens_per_s.mean == pytest.approx(rate * 64, rel=0.06)
    missed = replayed(replicas - 1, rate, tmp_path / "fewer")
    assert outcome(missed) == Outcome.MISSED
