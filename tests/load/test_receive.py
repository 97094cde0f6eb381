"""The compiled receive path on real sockets: its stamps, its counts, and what it leaves to Python.

That it makes the same records as the pure one is in tests/trust/test_fuzz.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from harness.dialects.decoder import StreamDecoder
from harness.load import receive
from harness.load.loop import LATE_SHIFT, HotSelector, Stamping, enable_stamps, now
from harness.load.sockets import Connection, SocketTransport
from harness.load.transport import Exchange, Target
from tests.builders.streams import delta, event, usage

pytestmark = pytest.mark.skipif(receive.poller is None, reason="the receive path is not compiled here")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Over:
    """As much of a future as an answer asks for without a loop."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, _: None) -> None:
        self.is_done = True


class Wire:
    """A connection of the transport over a real socket, with an exchange on it, and the server's end."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        if family == socket.AF_UNIX:
            near, self.far = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                near = socket.create_connection(listener.getsockname())
                self.far, _ = listener.accept()
            self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_stamps(near)
        near.setblocking(False)
        self.selector = HotSelector(250_000)
        self.selector.select(0)  # learns the clocks' offset
        target = Target(scheme="http", host="127.0.0.1", port=1, path="/", headers={})
        self.connection = Connection(near, SocketTransport(target, self.selector))
        self.selector.add(self.connection)
        self.exchange = Exchange("id")
        self.exchange.over = Over()  # type: ignore[assignment]
        self.connection.begin(self.exchange, b"?")
        self.far.recv(1)  # a connection that closes with unread bytes resets

    def receive(self, data: bytes) -> None:
        """Send and read it, and decode what is queued."""
        self.far.send(data)
        self.selector.select(0)
        self.selector.decode_all()

    def end(self) -> Any:
        """Return what was decoded."""
        self.selector.select(0)
        self.selector.decode_all()
        self.exchange.take(self.exchange.done_ns, None)
        return self.exchange.decoded

    def close(self) -> None:
        self.connection.close()
        self.far.close()
        self.selector.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    stamping, made = Stamping(), Wire()
    yield made
    made.close()
    stamping.close()


def test_usual_events_never_reach_python_and_all_others_do(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    feed = StreamDecoder.feed

    def spied(self: StreamDecoder, data: bytes | None, stamp_ns: int) -> int:
        seen.append(data or b"")
        return feed(self, data, stamp_ns)

    monkeypatch.setattr(StreamDecoder, "feed", spied)
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    tool = event({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}]})
    first, last = delta(content="a", usage=usage(7, 1)), delta("stop", content="", usage=usage(7, 23))
    usual = [delta(content="\u00e9\\n\U0001f600", usage=usage(7, count)) for count in range(2, 22)]
    wire.receive(HEAD + chunk(role))
    for each in (first, *usual, tool, delta(content="z", usage=usage(7, 23)), last, b"data: [DONE]\n\n"):
        wire.receive(chunk(each))
    wire.receive(b"0\r\n\r\n")
    decoded = wire.end()
    assert wire.exchange.error == ""
    assert seen == [role, first, tool, last, b"data: [DONE]\n\n", b""]
    assert list(decoded.tokens) == [1] * 21 + [1, 1]
    assert (decoded.output_tokens, decoded.input_tokens, decoded.token_source) == (23, 7, "continuous")
    assert wire.selector.events == 23


def test_a_stamp_is_the_kernel_s_and_lateness_is_counted_by_its_bin(wire: Wire) -> None:
    wire.receive(HEAD + chunk(delta(content="a")))
    before = now()
    wire.far.send(chunk(delta(content="b")))
    sent = now()
    time.sleep(0.03)
    wire.selector.take_late()
    wire.selector.select(0)
    late = wire.selector.take_late()
    assert len(late) - 1 >= 25_000_000 >> LATE_SHIFT
    assert sum(late) == 1
    assert wire.selector.take_late() == ()
    arrivals = wire.end().arrivals
    assert before <= arrivals[1] <= sent + 5_000_000, "when it came, not when it was read"
    assert wire.selector.unstamped == 0


@pytest.mark.parametrize("step_s", [0.002, -0.002, 3600.0, -3600.0])
def test_a_stamp_of_the_poll_in_which_the_wall_clock_was_set_is_ours(wire: Wire, step_s: float) -> None:
    wire.receive(HEAD + chunk(delta(content="a")))
    wire.far.send(chunk(delta(content="b")))
    time.sleep(0.01)
    wire.selector._offset -= round(step_s * 1e9)  # what it was before the step
    before = now()
    wire.selector.select(0)
    wire.receive(chunk(delta(content="c")))
    arrivals = wire.end().arrivals
    assert before <= arrivals[1] <= arrivals[2] <= now()


def test_a_unix_socket_has_the_clock_s_stamps_and_they_are_counted() -> None:
    wire = Wire(socket.AF_UNIX)
    before = now()
    wire.receive(HEAD + chunk(delta(content="a")))
    assert before <= wire.end().arrivals[0] <= now()
    assert (wire.selector.unstamped, wire.selector.reads) == (1, 1)
    wire.close()


@pytest.mark.parametrize("reset", [False, True])
def test_the_end_of_a_connection_is_the_failure_that_it_is(wire: Wire, reset: bool) -> None:
    wire.receive(HEAD + chunk(delta(content="a")) + b"5\r\nda")
    if reset:
        wire.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wire.far.close()
    wire.end()
    assert wire.exchange.error == ("reset" if reset else "truncated")
    assert ("[Errno 104]" in wire.exchange.message) is reset


def test_bytes_that_nobody_requested_close_the_connection(wire: Wire) -> None:
    wire.receive(HEAD + chunk(delta("stop", content="a")) + b"0\r\n\r\n")
    assert wire.connection.open
    wire.receive(b"HTTP/1.1 200 OK\r\n\r\n")
    assert not wire.connection.open


def test_one_call_goes_on_from_tick_to_tick_and_ends_when_a_timer_is_due(wire: Wire) -> None:
    wire.selector.busy = 1
    began = now()
    wire.selector.select(0.02)
    assert (now() - began) * 1e-9 >= 0.02
    wire.far.send(HEAD)
    began = now()
    wire.selector.select(5.0)
    assert (now() - began) * 1e-9 < 4, "Python has something to do"


def test_an_error_in_python_comes_out_of_the_call(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Connection, data: bytes, stamp: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Connection, "arrived", wrong)
    wire.far.send(b"x")
    with pytest.raises(ZeroDivisionError):
        wire.selector.select(0)


def test_stamps_are_moved_to_the_origin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = array("q", [5, -7, 1 << 62])
    compiled = receive.shifted(stamps, -3)
    monkeypatch.setattr(receive, "poller", None)
    assert compiled == receive.shifted(stamps, -3) == array("q", [2, -10, (1 << 62) - 3]).tobytes()


@pytest.mark.parametrize("path", ["compiled", "pure"])
def test_the_version_says_which_path_receives(path: str) -> None:
    command = [sys.executable, "-m", "harness", "--version"]
    done = subprocess.run(command, env=os.environ | {"KNEE_RECEIVE": path}, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f", {path} receive path\n")
