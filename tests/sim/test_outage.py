"""A run over two replicas finds that one of them is gone for a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.analysis.patterns import STOPPED
from harness.base import interpreter
from harness.cli import cli
from harness.data.summary import Summary
from harness.results.result import Result
from harness.sim import process
from harness.sim.process import running
from harness.sim.profile import Reference, StreamPace


class Outage:
    """A server's URL, and how long nothing was served there, in seconds: a busy machine is slow to serve again."""

    url: str
    seconds: float = 0.0


@contextlib.contextmanager
def gone_meanwhile(begin_s: float, end_s: float) -> Iterator[Outage]:
    """Serve an endpoint whose process ends at one time, and that is served at the same port again from another on."""
    outage = Outage()
    pace = Reference(pace=StreamPace(ttft_s=0.05, itl_s=0.01))
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        outage.url = first.enter_context(running(pace))
        command = interpreter.module("harness.sim", "--port", outage.url.rsplit(":", 1)[1])

        def gone() -> None:
            outage.seconds -= time.monotonic()
            first.close()

        def back() -> None:
            stack.enter_context(process._process(command, pace))
            outage.seconds += time.monotonic()

        timers = [threading.Timer(begin_s, gone), threading.Timer(end_s, back)]
        for timer in timers:
            timer.start()
        yield outage
        for timer in timers:
            timer.join()


@pytest.mark.alone
@pytest.mark.slow
def test_a_replica_that_is_gone_for_two_seconds_is_found_with_its_recovery(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pace = StreamPace(ttft_s=0.05, itl_s=0.01)
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(running(Reference(pace=pace)))
        outage = stack.enter_context(gone_meanwhile(8.0, 10.0))
        urls = ["--url", whole, "--url", outage.url]
        options = ["--levels", "8", "--level-seconds", "12", "--input-tokens", "16", "--output-tokens", "16"]
        run = CliRunner().invoke(cli, ["run", *urls, *options, "--out", str(out), "--quiet", "--no-plots"])
    assert run.exit_code in (0, 3), run.output  # 3: its failures are above 1 % of the requests
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    result = Result.open(out)
    assert result.manifest.urls == [urls[1], urls[3]]
    assert {f"server {url}" for url in (urls[1], urls[3])} <= {sample.source for sample in result.samples}
    (loss,) = summary.node_losses or []
    assert (loss.url, loss.kind) == (urls[3], STOPPED)
    assert loss.recovery_s == pytest.approx(outage.seconds, abs=0.6)
    assert 3 <= loss.errors <= 8
    assert loss.before is not None
    assert loss.during is not None
    assert loss.during.survivors_output_tokens_per_s > loss.before.survivors_output_tokens_per_s
