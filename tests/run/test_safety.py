"""A target is loaded as far as was agreed: bounds, an end when most requests fail, and a yes for a public host."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.results.folder import REQUESTS
from harness.results.result import Result
from harness.run import estimate
from harness.run.launch import consent
from harness.run.launch.endpoint import address as taken_apart
from harness.search.budget import Usage, dollars
from harness.search.level import failing
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec import reading, scenario
from harness.workload.dataset import Row, table
from tests.builders.servers import Request, serving
from tests.builders.streams import delta, event, usage


def spec(**sections: Any) -> scenario.Scenario:
    return reading.read(sections, place="test")


# Dollars


def test_without_a_price_nothing_is_said_of_dollars() -> None:
    assert dollars(scenario.Hardware(), 3600, Usage(10**9, 0, 10**9)) is None
    assert dollars(scenario.Hardware(price=0.0), 3600, Usage()) == 0.0


def test_cached_tokens_cost_what_input_does_unless_they_have_a_price() -> None:
    used = Usage(1_000_000, 400_000, 100_000)
    assert dollars(scenario.Hardware(price_per_mtok=[2.0, 8.0]), 60, used) == pytest.approx(2.0 + 0.8)
    assert dollars(scenario.Hardware(price_per_mtok=[2.0, 8.0, 1.0]), 60, used) == pytest.approx(1.2 + 0.4 + 0.8)


def test_gpus_and_tokens_are_added_where_both_have_a_price() -> None:
    both = scenario.Hardware(price=2.0, gpus=4, price_per_mtok=[1.0, 1.0])
    assert dollars(both, 900, Usage(1_000_000, 0, 1_000_000)) == pytest.approx(2.0 + 2.0)


# The estimate


def test_the_estimate_adds_up_each_level_s_parts() -> None:
    """C = 2 and 8 at 2 s a request, windows of 10 s: (4 + 10 + 2) + (16 + 40 + 8) requests, 2 · (4 + 10 + 2) s."""
    made = estimate.estimate(
        spec(ramp={"levels": [2, 8], "level_seconds": 10}, workload={"input_tokens": 100, "output_tokens": 10},
             hardware={"price_per_mtok": [1.0, 10.0]}), 2.0,
    )  # fmt: skip
    assert (made.levels, made.requests, made.seconds) == (2, 80, 32.0)
    assert made.usage == Usage(8000, 0, 800)
    assert made.dollars == pytest.approx(0.016)


def test_a_schedule_sends_its_rate_and_every_repeat_counts() -> None:
    """5/s over 2 · 2 + 10 + 2 s, three times."""
    made = estimate.estimate(spec(ramp={"rates": [5.0], "level_seconds": 10, "repeat": 3}), 2.0)
    assert (made.levels, made.requests, made.seconds) == (3, 240, 48.0)


def test_a_trace_sends_its_own_requests_and_not_the_mean_of_its_gaps(tmp_path: Path) -> None:
    """Five within half a second, one 1,000 s later: in 13 s come the five, at 600 times that 41."""
    table.write([Row(input_tokens=9, at_s=at) for at in (0.0, 0.1, 0.2, 0.3, 0.4, 1000.4)], tmp_path / "rows")
    for speed, sent in ((1, 5), (600, 6 * 6 + 5)):
        rate = speed * 5 / 1000.4
        made = estimate.estimate(
            spec(ramp={"rates": [rate], "level_seconds": 10, "arrivals": f"trace(speed={speed})"},
                 workload={"dataset": {"path": "trace.csv"}}), 1.0, rows=str(tmp_path / "rows"),
        )  # fmt: skip
        assert made.requests == sent
    bounded = spec(
        ramp={"rates": [5 / 1000.4], "level_seconds": 100, "arrivals": "trace", "max_seconds": 5},
        workload={"dataset": {"path": "trace.csv"}},
    )
    assert estimate.estimate(bounded, 1.0, rows=str(tmp_path / "rows")).requests == 5


def test_a_ramp_is_taken_to_its_highest_level_with_the_windows_of_its_first_pass() -> None:
    """1, 2 and 4 at 1 s: one request a slot to warm up, windows of 1.5 s and 1 s to end."""
    made = estimate.estimate(spec(ramp={"max_concurrency": 4}), 1.0)
    assert (made.levels, made.requests, made.seconds) == (3, round(3.5 * 7), 3 * 3.5)


def test_think_time_is_part_of_what_a_level_lasts_and_sends_nothing() -> None:
    """C = 2 at 1 s and 3 s of thinking, a window of 20 s: 2 requests a slot to warm up in 8 s, 0.5/s over 29 s."""
    made = estimate.estimate(spec(ramp={"levels": [2], "level_seconds": 20, "think": "3s"}), 1.0)
    assert (made.requests, made.seconds) == (round(0.5 * 29), 29.0)


def test_a_session_s_pauses_are_part_of_what_a_level_lasts() -> None:
    """3 turns of 1 s, 2 pauses of 3 s: 3 requests in 9 s a session, and 2 sessions; slots begin over a whole one."""
    session = {"turns": 3, "user_tokens": 10, "think": "3s"}
    made = estimate.estimate(spec(ramp={"levels": [2], "level_seconds": 20}, workload={"session": session}), 1.0)
    assert (made.requests, made.seconds) == (round(2 / 3 * 30), 9.0 + 20.0 + 1.0)
    adaptive = spec(workload={"session": session})
    line = estimate.outlook(estimate.estimate(adaptive, 1.0), adaptive, 1.0)
    assert "1, 2, 4, … sessions until" in line
    assert "the knee in about 9 min" in line  # 180 times a turn and its pause, 3 s


def test_the_plan_is_one_line_with_what_a_person_wants_to_know() -> None:
    made = estimate.estimate(spec(ramp={"levels": [1, 2, 4], "level_seconds": 10}), 1.0)
    line = estimate.outlook(made, spec(ramp={"levels": [1, 2, 4], "level_seconds": 10}), 1.0)
    assert line.startswith("plan: 3 levels, about 91 requests, 39 s; a request takes 1 s alone.")
    assert "Ctrl-C" in line
    adaptive = spec(ramp={"max_seconds": 60})
    line = estimate.outlook(estimate.estimate(adaptive, 1.0), adaptive, 1.0)
    assert "a first answer in about 35 s, the knee in about 1 min" in line
    few = spec(ramp={"max_requests": 40})
    line = estimate.outlook(estimate.estimate(few, 1.0), few, 1.0)
    assert "the knee in about 3 min, unless --max-requests 40 ends it before; a request takes 1 s alone" in line
    soaked = spec(ramp={"duration": "1h"})
    line = estimate.outlook(estimate.estimate(soaked, 1.0), soaked, 1.0)
    assert "the knee in about 3 min, then 1 h at one load; a request takes 1 s alone" in line
    twice = spec(ramp={"max_seconds": 120, "repeat": 2})
    line = estimate.outlook(estimate.estimate(twice, 1.0), twice, 1.0)
    assert "a first answer in about 35 s, the knee in about 1 min, and that 2 times;" in line


def test_a_plan_says_how_long_levels_may_last_that_end_when_they_are_precise() -> None:
    """50/s and 0.08 s a request: windows of 3 s, at most 3 · 1.5⁵ s, and 3 · 0.08 s around them: 1,151.06."""
    given = spec(ramp={"rates": [50.0]}, workload={"input_tokens": 10, "output_tokens": 2})
    made = estimate.estimate(given, 0.08)
    most = made.most
    assert most is not None
    assert (made.requests, most.requests) == (162, round(50 * (3 * 1.5**5 + 0.24)))
    line = estimate.outlook(made, given, 0.08)
    assert line.startswith("plan: 1 level, about 162 requests, 3 s (up to 1,151 requests, 23 s, if throughput takes")
    said = estimate.plan(made, given, 0.08, "example.com")[1]
    assert said == "up to 1 levels, 1,151 requests, 11,511 tokens in and 2,302 out, 0.4 min"
    bounded = spec(ramp={"rates": [50.0], "max_requests": 100})
    assert estimate.estimate(bounded, 0.08).most is None, "the bound ends it before"
    assert estimate.estimate(spec(ramp={"rates": [50.0], "level_seconds": 3}), 0.08).most is None


def test_a_prefill_probe_s_own_levels_are_in_the_plan() -> None:
    """Prompts of 64 and 512 tokens and then C = 2 of 100, at 1 s and windows of 10 s: 13 requests, 13 and 26."""
    wanted = spec(
        ramp={"levels": [2], "level_seconds": 10, "probe": "prefill"},
        workload={"input_tokens": 100, "output_tokens": 1},
    )
    made = estimate.estimate(wanted, 1.0, [64, 512])
    assert (made.levels, made.requests, made.seconds) == (3, 52, 39.0)
    assert made.usage == Usage(13 * 64 + 13 * 512 + 26 * 100, 0, 52)


def test_a_quota_stretches_the_warm_up_and_lowers_the_requests() -> None:
    """C = 8 at 1 s, 2 requests a second: 16 of them warm up in 8 s, then 10 s and 1 s."""
    made = estimate.estimate(spec(ramp={"levels": [8], "level_seconds": 10}, target={"max_rps": 2.0}), 1.0)
    assert (made.requests, made.seconds) == (38, 19.0)


@pytest.mark.parametrize(
    ("bound", "share"), [({"max_requests": 46}, 0.5), ({"max_seconds": 2.875}, 0.25), ({"max_dollars": 0.0046}, 0.1)]
)
def test_the_estimate_stays_within_the_bounds(bound: dict[str, float], share: float) -> None:
    ramp = {"levels": [4], "level_seconds": 10, **bound}
    made = estimate.estimate(
        spec(ramp=ramp, workload={"input_tokens": 400, "output_tokens": 100}, hardware={"price_per_mtok": [1.0, 1.0]}),
        0.5,
    )  # 92 requests, 11.5 s, 46,000 tokens
    assert made.requests == round(92 * share)
    assert made.seconds == pytest.approx(11.5 * share)
    assert made.dollars == pytest.approx(0.046 * share)


# Whose host it is


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.1.1",
     "fe80::1%2", "fd12::1", "fc00::1", "::ffff:10.0.0.1", "100.64.0.1"],
)  # fmt: skip
def test_a_private_address_passes(address: str) -> None:
    assert not consent.is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "172.32.0.1", "192.169.0.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_a_public_address_does_not(address: str) -> None:
    assert consent.is_public(address)


def test_what_a_name_resolves_to_is_looked_up() -> None:
    assert "127.0.0.1" in asyncio.run(consent.addresses(taken_apart("http://localhost:1")))
    assert asyncio.run(consent.addresses(taken_apart("http://no-such-host.invalid"))) == []


# Runs


def endpoint(r: Request) -> None:
    """A well-behaved server, also as its own proxy."""
    if r.path.endswith("/models"):
        r.answer(200, b'{"data": [{"id": "toy"}]}')
    elif r.path.endswith("/completions"):
        n = json.loads(r.body)["max_tokens"]
        time.sleep(0.005)
        chunks = [delta("length" if i == n - 1 else None, content=" x") for i in range(n)]
        r.stream(*chunks, event({"choices": [], "usage": usage(20, n)}), b"data: [DONE]\n\n")
    else:
        r.answer(404, b"{}")


LOAD = ["--input-tokens", "20", "--output-tokens", "4", "--levels", "1", "--level-seconds", "0.5", "--no-plots"]


def knee_run(url: str, out: Path, *more: str) -> tuple[int, str]:
    got = CliRunner().invoke(cli, ["run", "--url", url, "--out", str(out), *LOAD, *more])
    if got.exception is not None and not isinstance(got.exception, SystemExit):
        raise got.exception
    return got.exit_code, got.output


@pytest.mark.slow
def test_a_level_whose_requests_fail_ends_early_and_ends_the_ramp(tmp_path: Path) -> None:
    def script(r: Request) -> None:
        if r.header("X-Request-Id") not in (None, "knee-check"):
            r.answer(500, b"no")
        else:
            endpoint(r)

    with serving(script) as port:
        status, _ = knee_run(f"http://127.0.0.1:{port}", tmp_path / "r", "--levels", "8,16", "--level-seconds", "60")
    run = Result.open(tmp_path / "r")
    (level,) = run.levels
    assert level.window_end_s is not None
    assert level.window_start_s is not None
    assert level.window_end_s - level.window_start_s < 30
    assert "failing" in level.notes
    assert run.manifest.ramp
    assert run.manifest.ramp[-1].reason == "stopped: 100.0% of the requests failed at 8 in flight"
    assert status == 3, "nothing else was measured"


def test_most_of_the_last_requests_tell_that_a_level_fails() -> None:
    assert not failing([True] * 24 + [False] * 26, 50)
    assert failing([True] * 25 + [False] * 25, 50)
    assert not failing([True] * 50, 512)


@pytest.mark.slow
def test_dollars_bound_a_run_by_what_its_tokens_cost(tmp_path: Path) -> None:
    """A request costs (20 · 1 + 4 · 5)/1e6 = 40 µ$: some 100 fit into 4 m$."""
    with serving(endpoint) as port:
        more = ["--levels", "1,2", "--price-per-mtok", "1,5", "--max-dollars", "0.004", "--level-seconds", "60"]
        knee_run(f"http://127.0.0.1:{port}", tmp_path / "r", *more)
    run = Result.open(tmp_path / "r")
    assert run.manifest.ramp
    assert run.manifest.ramp[-1].reason == "stopped: --max-dollars 0.004 are spent"
    spent = dollars(scenario.Hardware(price_per_mtok=[1.0, 5.0]), 0, sum(map(Usage.of, run.records), Usage()))
    assert spent == pytest.approx(0.004, rel=0.5)  # it is looked at twenty times a second
    assert len(run.records) == pytest.approx(100, rel=0.5)


@pytest.mark.slow
def test_dollars_bound_a_run_by_the_hour(tmp_path: Path) -> None:
    """3,600 $ an hour is 1 $ a second."""
    with running(profile(speed=50.0)) as url:
        more = ["--levels", "1,2", "--price", "1800", "--gpus", "2", "--max-dollars", "1", "--level-seconds", "60"]
        knee_run(url, tmp_path / "r", *more)
    run = Result.open(tmp_path / "r")
    assert run.manifest.ramp
    assert run.manifest.ramp[-1].reason == "stopped: --max-dollars 1 are spent"
    assert run.levels[0].window_end_s == pytest.approx(1.0, abs=0.5)


PUBLIC = "http://endpoint.invalid"  # a name that only a proxy knows is public


def test_a_public_host_is_not_loaded_unasked_where_nobody_can_be_asked(tmp_path: Path) -> None:
    ids: list[str] = []

    def proxy(r: Request) -> None:
        ids.append(r.header("X-Request-Id") or "")
        endpoint(r)

    with serving(proxy) as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        status, output = knee_run(PUBLIC, tmp_path / "r", "--transport", "httpx")
    assert status == 1
    assert output.splitlines()[-1] == (
        "error: http://endpoint.invalid:80: it is a public host, and there is no terminal to ask on; "
        "add --yes; --max-requests, --max-seconds and --max-dollars bound a run"
    )
    assert set(ids) <= {"", "knee-check"}
    assert not (tmp_path / "r").exists()


def test_a_public_address_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """Nothing is sent to it: the refusal comes first, or the test would wait for an address that nobody has."""
    status, output = knee_run("http://192.88.99.1:9", tmp_path / "r")
    assert status == 1
    assert output.startswith("error: http://192.88.99.1:9: it is a public host, and there is no terminal to ask on")


def test_every_replica_is_agreed_to_before_anything_is_sent_to_any(tmp_path: Path) -> None:
    seen: list[str] = []

    def own(r: Request) -> None:
        seen.append(r.path)
        endpoint(r)

    with serving(own) as port:
        status, output = knee_run(f"http://127.0.0.1:{port}", tmp_path / "r", "--url", "http://192.88.99.1:9")
    assert status == 1
    assert output.startswith("error: http://192.88.99.1:9: it is a public host, and there is no terminal to ask on")
    assert seen == []


@pytest.mark.slow
def test_with_yes_the_plan_is_said_and_sent(tmp_path: Path) -> None:
    with serving(endpoint) as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        status, output = knee_run(PUBLIC, tmp_path / "r", "--transport", "httpx", "--yes", "--price-per-mtok", "1,5")
    assert status in (0, 3)
    plan = output[output.index(PUBLIC) :].splitlines()
    assert plan[0] == f"{PUBLIC}:80 is a public host; this is the plan, an estimate:"
    assert plan[1].startswith("up to 1 levels, ")
    assert "tokens in and" in plan[1]
    assert "$0." in plan[1]
    assert "bounded by nothing" in plan[2]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "loaded"), [(b"y\n", True), (b"\n", False), (b"no\n", False), (b"\x04", False)])
def test_on_a_terminal_the_plan_is_shown_and_only_a_yes_loads(tmp_path: Path, answer: bytes, loaded: bool) -> None:
    ours, theirs = pty.openpty()
    with serving(endpoint) as port:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "run", "--url", PUBLIC, "--out", tmp_path / "r", "--transport", "httpx",
             "--quiet", *LOAD],
            stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
            env={**os.environ, "HTTP_PROXY": f"http://127.0.0.1:{port}"},
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"Send it? [y/N]" not in shown:
            shown += os.read(ours, 4096)
        assert b"is a public host; this is the plan" in shown
        os.write(ours, answer)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # its end
                break
        process.communicate(timeout=60)
        os.close(ours)
    assert (process.returncode in (0, 3)) is loaded
    assert (b"not confirmed: nothing was loaded" in shown) is not loaded
    assert (tmp_path / "r" / REQUESTS).exists() is loaded


def test_a_plan_that_is_refused_is_the_operator_s_answer() -> None:
    with pytest.raises(HarnessError, match="no terminal"):
        asyncio.run(consent.ask(["plan"], "http://h"))


def test_a_search_for_a_rate_is_taken_to_the_highest_number_in_flight() -> None:
    """1, 2, 4, … 64 a second of 1 s each, at most 40 in flight; then the edge between 32 and 64."""
    searched = spec(ramp={"search_rate": True, "max_concurrency": 40}, slo={"ttft_p99": "2s"})
    made = estimate.estimate(searched, 1.0)
    assert made.requests > (1 + 2 + 4 + 8 + 16 + 32) * 60
    slow = estimate.outlook(estimate.estimate(searched, 20.0), searched, 20.0)
    assert "in about 1 h 23 min" in slow
