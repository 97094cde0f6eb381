"""Planted outages: how they are written, when they change what, and that a run over two replicas finds one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.analysis.patterns import STOPPED
from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.summary import Summary
from harness.results.result import Result
from harness.sim.process import running
from harness.sim.profile import Outage, Outages, StreamPace, outage, reference


def test_outages_change_the_pace_at_their_moments() -> None:
    outages = Outages([Outage(5.0, 7.0), Outage(10.0, 12.0, 4.0)], began_ns=1_000_000_000)
    seen = []
    while outages.due is not None:
        at = outages.due
        outages.change()
        seen.append((at // 1_000_000_000, outages.slowdown))
    assert seen == [(6, 0.0), (8, 1.0), (11, 4.0), (13, 1.0)]


@pytest.mark.parametrize("text", ["10s", "12s..10s", "10s..12s,0.5", "a..b", "10s..12s,x"])
def test_what_is_no_outage_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(HarnessError) as refused:
        outage(text)
    assert "--outage" in str(refused.value)


@pytest.mark.alone
@pytest.mark.slow
def test_a_replica_that_is_gone_for_two_seconds_is_found_with_its_recovery(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pace = StreamPace(ttft_s=0.05, itl_s=0.01)
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(running(reference(pace)))
        lost = msgspec.structs.replace(reference(pace), outages=(Outage(8.0, 10.0),))
        urls = ["--url", whole, "--url", stack.enter_context(running(lost))]
        options = ["--levels", "8", "--level-seconds", "12", "--input-tokens", "16", "--output-tokens", "16"]
        run = CliRunner().invoke(cli, ["run", *urls, *options, "--out", str(out), "--quiet", "--no-plots"])
    assert run.exit_code in (0, 3), run.output  # 3: its failures are above 1 % of the requests
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    result = Result.open(out)
    assert result.manifest.urls == [urls[1], urls[3]]
    assert {f"server {url}" for url in (urls[1], urls[3])} <= {sample.source for sample in result.samples}
    (loss,) = summary.node_losses or []
    assert (loss.url, loss.kind) == (urls[3], STOPPED)
    assert loss.recovery_s == pytest.approx(2.0, abs=0.2)
    assert 3 <= loss.errors <= 8
    assert loss.before is not None
    assert loss.during is not None
    assert loss.during.survivors_output_tokens_per_s > loss.before.survivors_output_tokens_per_s
