"""Every ready scenario finds what was planted in the simulated endpoint; on the clock that jumps, and shortened."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.levels import LevelSummary
from harness.data.prediction import SteppedLevel
from harness.predict.batching import StepMachine
from harness.predict.simulate import closed_loop, open_loop
from harness.run import campaign
from harness.sim.profile import Profile, profile
from harness.spec import traffic
from harness.spec.scenario import Scenario
from harness.workload import shape
from harness.workload.arrivals import due_times
from tests.builders import virtual_run
from tests.builders.virtual_run import Run, asked, lengths_kept, log_agrees

pytestmark = pytest.mark.slow


def measured(folder: Path, spec: Scenario, served: Profile, **options: Any) -> Run:
    """A run, none of whose requests failed, whose lengths are those asked and whose times are the server's own."""
    run = virtual_run.run(spec, served, folder, **options)
    assert {r.error for r in run.result.records} <= {"", "cancelled", "abandoned"}
    log_agrees(run)
    lengths_kept(run)
    return run


def levels(*loads: int, seconds: float) -> dict[str, Any]:
    """Fields of a ramp with these levels in place of its own."""
    return {"levels": list(loads), "level_seconds": seconds, "max_concurrency": None}


def drawn(spec: Scenario) -> Iterator[tuple[int, int]]:
    """Prompt and answer lengths of a run's requests, without end."""
    mix = shape.of(spec)
    shapes = map(mix.shape, itertools.count())
    return ((each.input_tokens + round(mix.prefix_tokens), each.output_tokens) for each in shapes)


def served_alone(spec: Scenario, served: Profile, C: int, requests: int = 300) -> SteppedLevel:
    """What the step machine does with that load, without a client."""
    machine = StepMachine(served.model, served.deployment)
    return closed_loop(machine, drawn(spec), C, requests=requests, stagger=1.0)


def throughput(level: LevelSummary) -> float:
    assert level.output_tokens_per_s.mean is not None
    return level.output_tokens_per_s.mean


@pytest.mark.parametrize(("name", "seconds"), [("chat", 26.0), ("voice", 16.0)])
def test_the_slo_knee_is_the_number_of_seats(tmp_path: Path, name: str, seconds: float) -> None:
    """Of 16 in flight on four seats 12 wait: three request times, longer than the limit."""
    run = measured(tmp_path, asked(name, ramp=levels(4, 16, seconds=seconds)), profile(max_num_seqs=4))
    found = run.summary.knees.slo
    assert found is not None
    assert (found.value, found.ci95) == (4.0, (4.0, 16.0))


def test_summarise_counts_the_documents_of_an_hour(tmp_path: Path) -> None:
    spec, served = asked("summarise", ramp=levels(4, seconds=8.0)), profile(max_num_seqs=4, speed=8.0)
    (level,) = measured(tmp_path, spec, served).summary.levels
    assert level.requests_per_s.mean == pytest.approx(served_alone(spec, served, 4).requests_per_s, rel=0.06)
    assert level.slo_met_fraction == 1.0


def test_batch_offline_finds_the_plateau_and_how_many_to_send_at_once(tmp_path: Path) -> None:
    spec, served = asked("batch-offline", ramp=levels(1, 2, 3, 4, 6, 8, seconds=5.0)), profile(max_num_seqs=4)
    curve = measured(tmp_path, spec, served).summary.curve
    assert curve is not None
    assert curve.hinge_concurrency.value == pytest.approx(4.2, rel=0.1)
    alone = served_alone(spec, served, 8).output_tokens_per_s
    assert curve.plateau_tokens_per_s.value == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize(
    ("name", "rates", "limit", "seats", "speed", "seconds"),
    [("moderation", [40.0, 200.0], "e2e_p99", 1, 4.0, 25.0), ("code-completion", [5.0, 25.0], "e2e_p95", 4, 1.0, 40.0)],
)
def test_the_rate_that_keeps_the_limit_is_told_from_the_one_that_misses_it(
    tmp_path: Path, name: str, rates: list[float], limit: str, seats: int, speed: float, seconds: float
) -> None:
    """So does the step machine alone, at requests that come likewise."""
    spec = asked(name, ramp={"rates": rates, "search_rate": None, "level_seconds": seconds, "max_concurrency": 4096})
    served = profile(max_num_seqs=seats, speed=speed)

    def latency_s(rate: float) -> float:
        due = due_times(traffic.parse("poisson"), rate, seed=9, level=0)
        machine = StepMachine(served.model, served.deployment)
        seen = open_loop(machine, drawn(spec), due, warm_up=5.0, seconds=60.0)
        if seen.unstable or seen.e2e_s is None:
            return float("inf")
        return float(getattr(seen.e2e_s, limit.rpartition("_")[2]))

    assert latency_s(rates[0]) < spec.slo[limit] < latency_s(rates[1])
    found = measured(tmp_path, spec, served).summary.knees.slo_rate
    assert found is not None
    assert (found.value, found.ci95) == (rates[0], tuple(rates))


def test_requests_that_are_given_up_are_the_share_that_takes_too_long(tmp_path: Path) -> None:
    """At 7 ms a token more than 300 ms are answers of 40 tokens and more: 30 % of those are given up."""
    spec = asked("code-completion", ramp={"rates": [4.0], "level_seconds": 120.0, "search_rate": None})
    run = measured(tmp_path, spec, profile(max_num_seqs=16, speed=1.0))
    mix, given_up = shape.of(spec), [r for r in run.result.records if r.error == "abandoned"]
    wanted = [mix.shape(int(r.request_id.rpartition("-")[2])) for r in run.result.records]
    slow = [each for each in wanted if each.cancel and each.output_tokens > 45]
    assert len(slow) <= len(given_up) < sum(each.cancel is not None for each in wanted) / 2
    assert all(r.done_s - r.sent_s == pytest.approx(0.3) for r in given_up if r.done_s and r.sent_s)
    assert "lengths_off" not in {verdict.code for verdict in run.summary.verdicts}


def test_a_long_prompt_stops_the_answers_of_others_for_as_long_as_it_is_read(tmp_path: Path) -> None:
    """The victims' longest gap is as long as the machine reads such a prompt; half of their gaps are as without it."""
    spec, served = asked("prefill-interference", ramp=levels(8, seconds=20.0)), profile(max_num_seqs=8, speed=4.0)
    run = measured(tmp_path, spec, served)
    prompt = closed_loop(StepMachine(served.model, served.deployment), iter([(16_000, 20)] * 9), 1, requests=3)
    assert prompt.ttft_s is not None
    (level,) = run.summary.levels
    assert level.classes
    victims = level.classes["victim"]
    assert victims.itl_s.max == pytest.approx(prompt.ttft_s.mean, rel=0.1)
    assert victims.itl_s.p50 is not None
    assert victims.itl_s.p50 < prompt.ttft_s.mean / 20


def test_a_long_prompt_among_chats_stops_all_of_them(tmp_path: Path) -> None:
    """One in 500 is of 32k tokens; the share is raised to one in 60, so that fewer requests show it."""
    spec = asked("long-context-tail", ramp=levels(8, seconds=15.0))
    chat, long = spec.class_ or ()
    spec = msgspec.structs.replace(spec, class_=[msgspec.structs.replace(chat, share=60), long])
    served = profile(max_num_seqs=8, speed=8.0)
    (level,) = measured(tmp_path, spec, served).summary.levels
    prompt = closed_loop(StepMachine(served.model, served.deployment), iter([(32_000, 20)] * 9), 1, requests=3)
    assert level.classes
    assert prompt.ttft_s is not None
    assert level.classes["chat"].itl_s.max == pytest.approx(prompt.ttft_s.mean, rel=0.1)


def test_overload_tells_what_is_sustained_from_what_queues(tmp_path: Path) -> None:
    served = profile(max_num_seqs=8, speed=8.0)
    mu = served_alone(asked("overload"), served, 64).requests_per_s
    rates = [0.5 * mu, 1.5 * mu]
    first, second = measured(
        tmp_path, asked("overload", ramp={"rates": rates, "level_seconds": 6.0}), served
    ).summary.levels
    assert "unstable" not in {verdict.code for verdict in first.verdicts}
    assert "unstable" in {verdict.code for verdict in second.verdicts}
    assert second.requests_per_s.mean == pytest.approx(mu, rel=0.1)


def test_a_day_has_its_busy_hours(tmp_path: Path) -> None:
    """An hour a minute, from 0.7 to 7.5; each minute's requests are within four Poisson deviations."""
    spec = asked("day-profile", ramp={"rates": [0.8]}, workload={"output_tokens": 8})
    run = measured(tmp_path, spec, profile(speed=8.0))
    hours = traffic.parse(spec.ramp.arrivals).profile
    assert isinstance(hours, traffic.Series)
    first = min(r.scheduled_s for r in run.result.records)
    for hour, rate in enumerate(hours.rates):
        came = sum(60 * hour <= r.scheduled_s - first < 60 * (hour + 1) for r in run.result.records)
        wanted = 60 * rate * 0.8 / hours.mean
        assert abs(came - wanted) <= 4 * wanted**0.5 + 1
    assert run.summary.knees.slo_rate is not None
    assert run.summary.knees.slo_rate.value == 0.8


@pytest.mark.parametrize("shape_of_gaps", [0.25, 4.0])
def test_gaps_scatter_as_they_are_asked_to(tmp_path: Path, shape_of_gaps: float) -> None:
    """Of a gamma distribution of shape K the squared coefficient of variation is 1/K."""
    ramp = {"rates": [200.0], "arrivals": f"gamma({shape_of_gaps:g})", "level_seconds": 40.0}
    workload = {"input_tokens": 20, "output_tokens": 1}
    run = measured(tmp_path, asked("overload", ramp=ramp, workload=workload), profile(max_num_seqs=64, speed=50.0))
    due = sorted(r.scheduled_s for r in run.result.records)
    gaps = [b - a for a, b in itertools.pairwise(due)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
    assert variance / mean**2 == pytest.approx(1 / shape_of_gaps, rel=0.05)


def test_probes_find_the_efficiencies_of_the_machine(tmp_path: Path) -> None:
    """MBU 0.8 and MFU 0.45 are the simulated endpoint's own; its overheads a step take some of either."""
    card = {"gpu": "h100-sxm", "model_config": "llama-3.1-8b"}
    served = profile(max_num_seqs=2, speed=1.0)
    served = msgspec.structs.replace(
        served, deployment=msgspec.structs.replace(served.deployment, o_layer=0.0, o_step=0.0, o_req=0.0)
    )
    for name in ("decode", "prefill"):
        (tmp_path / name).mkdir()
        spec = asked(f"{name}-probe", hardware=card, ramp=levels(1, 2, seconds=4.0))
        phases = measured(tmp_path / name, spec, served).summary.phases
        assert phases is not None
        if phases.decode is not None:
            assert phases.decode.mbu is not None
            assert phases.decode.mbu.value == pytest.approx(0.8, rel=0.02)
        else:
            assert phases.prefill is not None
            assert phases.prefill.mfu is not None
            assert phases.prefill.mfu.value == pytest.approx(0.45, rel=0.02)


def test_the_demo_finds_its_seats(tmp_path: Path) -> None:
    run = measured(tmp_path, asked("demo", ramp={"level_seconds": 3.0, "levels": [1, 8, 16, 20, 28]}), profile())
    assert run.summary.knee_concurrency == pytest.approx(16.25, rel=0.05)


def test_the_map_finds_the_seats_of_each_cell(tmp_path: Path) -> None:
    for cell in campaign.planned(
        asked("map", ramp={"level_seconds": 3.0, "precision": None, "levels": [1, 2, 3, 6, 8, 12]})
    ):
        folder = tmp_path / cell.name
        folder.mkdir()
        seats = cell.scenario.sim.max_num_seqs
        run = measured(folder, cell.scenario, profile(max_num_seqs=seats, speed=cell.scenario.sim.speed))
        assert run.summary.curve is not None
        assert run.summary.curve.hinge_concurrency.value == pytest.approx(seats + 0.2, rel=0.12)


def test_long_answers_fill_the_kv_cache_before_the_seats(tmp_path: Path) -> None:
    """Answers of a tenth of the scenario's: about 700 tokens each in their middle, of which 6,000 are nine or so."""
    workload = {"output_tokens": "lognormal(400,300) in 20..2400"}
    spec = asked("reasoning", workload=workload, ramp=levels(2, 4, 8, 16, 24, seconds=6.0))
    served = profile(max_num_seqs=64, speed=2.0, kv_tokens=6_000)
    run = measured(tmp_path, spec, served)
    assert run.summary.curve is not None
    assert 6 < (run.summary.curve.hinge_concurrency.value or 0) < 14
    assert run.server.machine.preemptions > 0


def test_twice_the_replicas_carry_twice_the_load(tmp_path: Path) -> None:
    """The first level is two thirds of what a replica sustains, the step four thirds; of two it is two thirds each."""
    one = profile(max_num_seqs=4, speed=8.0)
    two = profile(max_num_seqs=4, speed=8.0, dp=2)
    mu = served_alone(asked("scale-out"), one, 64).requests_per_s
    spec = asked("scale-out", ramp={"rates": [0.67 * mu, 1.34 * mu], "level_seconds": 6.0})
    found: dict[int, list[LevelSummary]] = {}
    for replicas, served in ((1, one), (2, two)):
        folder = tmp_path / str(replicas)
        folder.mkdir()
        found[replicas] = measured(folder, spec, served).summary.levels
    assert "unstable" in {verdict.code for verdict in found[1][1].verdicts}
    assert "unstable" not in {verdict.code for verdict in found[2][1].verdicts}
    before, step = found[1][0], found[2][1]
    assert step.slo_met_fraction == 1.0
    assert step.requests_per_s.mean == pytest.approx(2 * (before.requests_per_s.mean or 0.0), rel=0.2)
    assert (step.e2e_s.mean or 0.0) < 1.1 * (before.e2e_s.mean or 0.0), "two replicas share their queue"


def test_drafts_save_as_many_steps_as_are_right(tmp_path: Path) -> None:
    """Three drafts, each right by 0.8: 1 + 0.8 + 0.64 + 0.512 = 2.952 tokens a step; the step machine says how long."""
    spec = asked("speculative", ramp=levels(1, 4, seconds=4.0))
    plain = profile(max_num_seqs=8, speed=2.0)
    drafting = profile(max_num_seqs=8, speed=2.0, acceptance=0.8, draft_tokens=3, draft_s=0.0005)
    found: dict[bool, list[LevelSummary]] = {}
    for drafts, served in ((False, plain), (True, drafting)):
        folder = tmp_path / str(drafts)
        folder.mkdir()
        found[drafts] = measured(folder, spec, served).summary.levels
    for without, with_drafts in zip(found[False], found[True], strict=True):
        C = without.concurrency or 0
        wanted = served_alone(spec, drafting, C).output_tokens_per_s / served_alone(spec, plain, C).output_tokens_per_s
        assert wanted > 1.5
        assert throughput(with_drafts) / throughput(without) == pytest.approx(wanted, rel=0.08)
