"""A shard's name, its start, and what cannot be measured in shards."""

from __future__ import annotations

import itertools

import pytest

from harness.base.errors import HarnessError
from harness.run.requests import planned
from harness.spec import shard
from harness.spec.scenario import Ramp, Scenario, Target, WorkloadSpec
from harness.spec.shard import Shard

FIXED = Ramp(levels=[4, 8], level_seconds=2.0, workers=2)
START = "2030-01-31T12:00:00Z"


def fixed(**ramp: object) -> Scenario:
    fields = {"levels": [4, 8], "level_seconds": 2.0, "workers": 2} | ramp
    return Scenario(target=Target(url="http://127.0.0.1:1"), ramp=Ramp(**fields))  # type: ignore[arg-type]


def test_machines_come_to_the_same_run_by_themselves() -> None:
    one, two = (shard.of_run(fixed(), text, START, None) for text in ("1/2", "2/2"))
    assert (one.number, two.number, one.of, one.start_s) == (1, 2, 2, 1896091200.0)
    assert (one.run_id, one.seed) == (two.run_id, two.seed)
    assert len(one.run_id) == 12
    later = shard.of_run(fixed(), "1/2", "1896091201", None)
    other = shard.of_run(fixed(levels=[4]), "1/2", START, None)
    assert len({one.run_id, later.run_id, other.run_id}) == 3
    assert shard.of_run(fixed(), "1/2", START, "night-7").run_id == "night-7"


@pytest.mark.parametrize(
    ("text", "start", "run_id", "fact"),
    [
        ("2", START, None, "--shard: not a shard"),
        ("0/4", START, None, "--shard: no shard 0 of 4"),
        ("5/4", START, None, "--shard: no shard 5 of 4"),
        ("1/99999", START, None, "--shard: not a shard"),
        ("1/4", None, None, "--shard: shards begin at one moment"),
        ("1/4", "noon", None, "--start-at: not a time"),
        ("1/4", "nan", None, "--start-at: not a time"),
        ("1/4", "2030-01-31T12:00:00", None, "--start-at: it has no time zone"),
        ("1/4", START, "a b\n", "--run-id: an id has letters"),
        ("1/4", START, "x" * 65, "--run-id: an id has letters"),
    ],
)
def test_what_is_no_shard_is_refused(text: str, start: str | None, run_id: str | None, fact: str) -> None:
    with pytest.raises(HarnessError) as refused:
        shard.of_run(fixed(), text, start, run_id)
    assert str(refused.value).startswith(fact)


@pytest.mark.parametrize(
    ("ramp", "fact"),
    [
        ({"levels": None}, "searched for"),
        ({"levels": None, "search_rate": True}, "searched for"),
        ({"level_seconds": None}, "until they are precise"),
        ({"max_seconds": 60.0}, "--max-seconds would end"),
        ({"max_requests": 60}, "--max-requests would end"),
        ({"max_disk": 10**9}, "--max-disk would end"),
        ({"precision": 0.02}, "--precision"),
        ({"probe": "decode"}, "probe"),
        ({"start": "batch"}, "batches"),
    ],
)
def test_what_one_machine_would_decide_is_refused(ramp: dict[str, object], fact: str) -> None:
    with pytest.raises(HarnessError, match=fact):
        shard.check(fixed(**ramp))
    shard.check(fixed())
    shard.check(fixed(levels=None, rates=[5.0]))


def test_a_simulated_endpoint_of_its_own_is_refused() -> None:
    with pytest.raises(HarnessError, match="a sim: of its own"):
        shard.check(Scenario(target=Target(url="sim:"), ramp=FIXED))


def test_the_start_lies_ahead_and_not_too_far() -> None:
    shard.must_lie_ahead(1060.0, 1000.0)
    with pytest.raises(HarnessError, match=r"is past by 2\.5 s"):
        shard.must_lie_ahead(1000.0, 1002.5)
    with pytest.raises(HarnessError, match="more than a week ahead"):
        shard.must_lie_ahead(1000.0 + 8 * 86_400, 1000.0)


@pytest.mark.parametrize("rates", [None, [50.0]])
@pytest.mark.parametrize("of", [1, 2, 3])
def test_the_shards_requests_together_are_those_of_one_machine(of: int, rates: list[float] | None) -> None:
    spec = fixed(levels=None, rates=rates) if rates else fixed()
    spec = Scenario(target=spec.target, workload=WorkloadSpec(input_tokens=16, seed=3), ramp=spec.ramp)
    dealt = [Shard(number=number, of=of, start_s=0.0, run_id="r") for number in range(1, of + 1)]
    shares = [list(itertools.islice(planned(spec, share=each), 60 // of)) for each in dealt]
    together = sorted((request for share in shares for request in share), key=lambda request: request.number)
    first = shard.FIRST_REQUEST  # as in a shard's run, however many numbers its checks used
    assert [request.number for request in together] == list(range(first, first + 60))
    alone = [request.prompt_sha256 for request in itertools.islice(planned(spec), first + 60)]
    assert [request.prompt_sha256 for request in together] == alone[first:]
    due = [request.due_s for request in itertools.islice(planned(spec), 60)]
    assert [request.due_s for request in together] == due
    assert [request.number - first for request in shares[0][:4]] == [n for n in range(12) if n % (2 * of) < 2][:4]
