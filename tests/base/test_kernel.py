"""What stands in for Linux's own calls where a system lacks them (harness.base.kernel)."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from harness.base import kernel
from harness.base.kernel import IN, OUT, Poller


@pytest.fixture(params=["epoll", "selector"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Poller]:
    if request.param == "selector":
        monkeypatch.delattr(select, "epoll")
        monkeypatch.setattr(kernel.selectors, "DefaultSelector", kernel.selectors.PollSelector)
    return kernel.poller


def test_a_poller_says_who_can_be_read_and_written(make: Callable[[], Poller]) -> None:
    poller = make()
    near, far = socket.socketpair()
    with near, far:
        poller.register(near.fileno(), IN)
        assert poller.poll(0, 8) == []
        kernel.wait(poller, 0.001)
        far.send(b"x")
        kernel.wait(poller, None)
        assert poller.poll(0, 8) == [(near.fileno(), IN)]
        poller.modify(near.fileno(), IN | OUT)
        assert poller.poll(0, 8) == [(near.fileno(), IN | OUT)]
        poller.unregister(near.fileno())
        assert poller.poll(0, 8) == []
        with pytest.raises(FileNotFoundError):
            poller.unregister(near.fileno())
    poller.close()


def test_a_process_that_cannot_be_bound_may_use_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    assert kernel.cpus() == list(range(os.cpu_count() or 1))
    kernel.bind({0})


def test_the_ends_of_a_pipe_neither_block_nor_are_inherited() -> None:
    ends = kernel.pipe()
    try:
        assert not any(os.get_blocking(end) or os.get_inheritable(end) for end in ends)
    finally:
        for end in ends:
            os.close(end)


def test_shorter_turns_leave_the_priority_as_it_was() -> None:
    code = (
        "import os; from harness.base import kernel; n = os.nice(3); kernel.shorten_turns(9**6); print(os.nice(0) - n)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"
