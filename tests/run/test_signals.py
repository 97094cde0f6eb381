"""What ends a run: `interrupt` stands in for a signal where the run is in a thread of a program."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.report.live import LiveView
from harness.run.ending import Signals
from harness.run.experiment import run
from harness.spec.scenario import Scenario, Target


async def waiting(signals: Signals, begun: asyncio.Event | None = None) -> None:
    signals.inside()
    if begun is not None:
        begun.set()
    await asyncio.sleep(60)


def test_an_interrupt_from_another_thread_cancels_the_run_once() -> None:
    signals = Signals(handled=False)

    async def main() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(waiting(signals, begun))
        await begun.wait()
        for _ in range(2):
            await asyncio.to_thread(signals.interrupt)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1

    asyncio.run(main())
    assert signals.number == signal.SIGINT
    signals.interrupt()  # after the loop is closed it does nothing


def test_an_interrupt_before_there_is_a_loop_ends_the_run_at_its_beginning() -> None:
    signals = Signals(handled=False)
    signals.interrupt()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(waiting(signals))


def test_a_run_that_is_interrupted_before_its_load_says_so_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signals, folder = Signals(handled=False), tmp_path / "run"
    signals.interrupt()
    with pytest.raises(SystemExit) as ended, LiveView() as view:
        run(Scenario(target=Target(url="http://127.0.0.1:9")), str(folder), view, "knee run", signals=signals)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted before the load began: no level was measured\n"
    assert not folder.exists()


def test_signals_that_are_not_handled_stay_the_program_s_in_any_thread() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def run() -> None:
        signals = Signals(handled=False)

        async def main() -> None:
            signals.inside()
            with signals.finishing():
                pass

        with signals.outside():
            asyncio.run(main())

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
