"""The audit of the prefix cache: by hand, against simulated servers with and without one; and what empties it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.analysis.rules import findings
from harness.analysis.rules.run import Recorded
from harness.base.errors import HarnessError
from harness.data.manifest import CacheAudit, Manifest
from harness.run import hooks
from harness.run.launch import answers, consent, unloaded
from harness.run.launch.endpoint import Endpoint, address
from harness.run.launch.unloaded import ROUNDS, Reply
from harness.sim import profile as profiles
from harness.sim.process import running
from harness.spec.scenario import Hooks, Scenario, Sim, Target, WorkloadSpec
from tests.builders import virtual_run
from tests.builders.endpoints import PATH

SLOW, SOON = Reply(first_s=0.050, tokens=500), Reply(first_s=0.010, tokens=500)


def judged(new: Sequence[Reply], again: Sequence[Reply], own: Sequence[Reply] = ()) -> CacheAudit:
    return unloaded.judged(new, again, own)


def test_times_decide_where_the_server_counts_no_cached_tokens() -> None:
    new, one_late = [SLOW] * ROUNDS, [SLOW, *[SOON] * (ROUNDS - 1)]
    found = judged(new, one_late, one_late)
    assert (found.outcome, found.warm, found.new.first_s, found.again.first_s) == ("on", True, 0.050, 0.010)
    assert "10 ms to the first token of a repeated prompt, 50 ms of a new one" in found.sentence
    assert "already" in found.sentence
    assert judged(new, [SLOW, SLOW, *[SOON] * (ROUNDS - 2)]).outcome == "unclear"  # two late ones
    assert judged(new, new, new) == judged(new, new, new)
    assert (judged(new, new, new).outcome, judged(new, new, new).warm) == ("off", False)
    # A load's prompt that is half as long takes half the time, and is no sign of a cache.
    short = [Reply(first_s=0.025, tokens=250)] * ROUNDS
    assert judged(new, [SOON] * ROUNDS, short).warm is False
    # Prompts of the load whose times are nearer to those of repeated ones are cached, though some come late.
    assert judged(new, [SOON] * ROUNDS, [SLOW] * 3 + [SOON] * 5).warm is True
    assert judged(new, [SOON] * ROUNDS, [SLOW] * 5 + [SOON] * 3).warm is False


@pytest.mark.parametrize(
    ("again_s", "later_s", "outcome", "rounds"),
    [(0.010, 0.010, "on", 8), (0.043, 0.050, "off", 16), (0.043, 0.010, "unclear", 24)],
)
def test_an_audit_that_stays_unclear_asks_up_to_three_times_as_often(
    again_s: float, later_s: float, outcome: str, rounds: int
) -> None:
    """A repeated prompt takes 86 % of a new one's 50 ms in the first 8 rounds: neither sooner nor as late."""
    spec, asked_for = asked(1, audit_cache=True), list[object]()

    async def ask(request: object) -> Reply:
        asked_for.append(request)
        done, kind = divmod(len(asked_for) - 1, 3)
        return Reply(first_s=(again_s if done < ROUNDS else later_s) if kind == 1 else 0.050, tokens=500)

    found, number = asyncio.run(unloaded.audit(spec, virtual_run.launch(spec, profiles.embedded(Sim())), 7, ask))
    assert (found.outcome, number, len(asked_for)) == (outcome, rounds, 3 * rounds)


def test_the_servers_count_decides_before_times() -> None:
    new, counted = (
        [Reply(first_s=0.05, tokens=500, cached=16)] * ROUNDS,
        [Reply(first_s=0.05, tokens=500, cached=496)] * ROUNDS,
    )
    found = judged(new, counted, new)
    assert (found.outcome, found.warm) == ("on", False)
    assert found.again.cached == pytest.approx(0.992)
    assert judged(new, [Reply(first_s=0.01, tokens=500, cached=16)] * ROUNDS).outcome == "off"
    assert judged(new, [Reply(first_s=0.01, tokens=500, cached=150)] * ROUNDS).outcome == "unclear"


def at(url: str, spec: Scenario, profile: profiles.Profile) -> Endpoint:
    """What the checks would find of a simulated server."""
    found = virtual_run.launch(spec, profile)
    where = address(url)
    target = msgspec.structs.replace(found.wire.target, host=where.host, port=where.port, path=PATH)
    return msgspec.structs.replace(found, address=where, wire=msgspec.structs.replace(found.wire, target=target))


def asked(seed: int, **hooks: bool) -> Scenario:
    return Scenario(target=Target(url="sim:"), workload=WorkloadSpec(seed=seed), hooks=Hooks(**hooks))


def audited(url: str, spec: Scenario, profile: profiles.Profile) -> CacheAudit:
    notes: list[str] = []
    found = asyncio.run(unloaded.audited(spec, at(url, spec, profile), notes.append))
    assert found.alone.cache
    assert notes[-1] == found.alone.cache.sentence
    assert found.prompts.used in (ROUNDS, 2 * ROUNDS, 3 * ROUNDS)  # more where a busy machine keeps it unclear
    return found.alone.cache


@pytest.mark.slow
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param(True, id="by the server's count"),
        pytest.param(False, id="by times", marks=pytest.mark.alone),  # which on a busy machine are no sign of a cache
    ],
)
def test_a_cold_and_a_warm_cache_are_named_in_ten_of_ten(counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five servers with a cache, each audited with new prompts and again with the same; five without one."""
    if not counts:
        sent = answers.ask

        async def without_counts(*arguments: Any, **options: Any) -> answers.Reply:
            found = await sent(*arguments, **options)
            assert found.response is not None
            return msgspec.structs.replace(found, response=msgspec.structs.replace(found.response, cached_tokens=None))

        monkeypatch.setattr(answers, "ask", without_counts)
    for seed in range(5):
        spec = asked(seed, audit_cache=True)
        for caching in (True, False):
            profile = profiles.embedded(Sim(prefix_caching=caching))
            with running(profile) as url:
                cold, warm = audited(url, spec, profile), audited(url, spec, profile)
                assert (cold.outcome, cold.warm) == ("on" if caching else "off", False), (seed, cold)
                assert (warm.outcome, warm.warm) == ("on" if caching else "off", caching), (seed, warm)


@pytest.mark.slow
def test_an_emptied_cache_is_cold_again() -> None:
    profile, spec = profiles.embedded(Sim(prefix_caching=True, speed=8)), asked(3, audit_cache=True)
    with running(profile) as url:
        assert audited(url, spec, profile).warm is False
        assert audited(url, spec, profile).warm is True
        asyncio.run(hooks.reset_cache(at(url, spec, profile)))
        assert audited(url, spec, profile).warm is False


@pytest.mark.slow
def test_a_server_that_cannot_empty_its_cache_is_named_before_the_load() -> None:
    profile, spec = profiles.embedded(Sim(speed=8)), asked(3, reset_cache=True)
    with running(profile) as url:
        endpoint = at(url + "/elsewhere", spec, profile)
        with pytest.raises(HarnessError, match="neither /reset_prefix_cache nor /flush_cache") as raised:
            asyncio.run(hooks.reset_cache(endpoint))
    assert "VLLM_SERVER_DEV_MODE=1" in raised.value.way_out


def test_a_command_runs_without_a_shell_and_its_failure_ends_the_run(tmp_path: Path) -> None:
    made = tmp_path / "a b;c"
    asyncio.run(hooks.command(f"{sys.executable} -c 'import sys; open(sys.argv[1], \"w\")' '{made}'", "--before-level"))
    assert made.exists()
    with pytest.raises(HarnessError, match=r"status 3: no cache"):
        asyncio.run(
            hooks.command(
                f"{sys.executable} -c 'import sys; print(\"no cache\", file=sys.stderr); sys.exit(3)'", "--before-level"
            )
        )
    with pytest.raises(HarnessError, match="No such file"):
        asyncio.run(hooks.command("/no/such/command", "--before-level"))


def test_a_command_of_a_file_runs_only_where_it_was_typed_too() -> None:
    spec = Scenario(hooks=Hooks(before_level="rm -rf cache"))
    with pytest.raises(HarnessError, match="rm -rf cache") as raised:
        consent.must_be_allowed(spec, set(), {}, "theirs.toml")
    assert raised.value.way_out == "add --before-level 'rm -rf cache' if it may"
    consent.must_be_allowed(spec, {"rm -rf cache"}, {}, "theirs.toml")


def test_a_load_whose_prompts_are_cached_already_is_in_doubt_unless_the_cache_is_emptied() -> None:
    warm = judged([SLOW] * ROUNDS, [SOON] * ROUNDS, [SOON] * ROUNDS)
    run = Recorded(manifest=Manifest(cache=warm))
    assert "cache_warm" in [each.code for each in findings(run)]
    hooks = msgspec.convert({"hooks": {"reset_cache": True}}, type(run.manifest.scenario))
    emptied = Recorded(manifest=msgspec.structs.replace(run.manifest, scenario=hooks))
    assert "cache_warm" not in [each.code for each in findings(emptied)]
