from array import array
from collections.abc import Callable
from typing import Any, final

from harness.dialects.decoder import Usual

def shifted(numbers: array[int], by: int, /) -> bytes:
    """Return int64 numbers, each plus `by`."""

@final
class Stream:
    """One response in chunks: frames them, decodes usual events, queues the rest for Python."""

    def feed(self, data: bytes, stamp: int, late: bool) -> int:
        """Take one read: 0, nothing of it is taken; 1, all is; 2, all is, and the response is over."""
    def put(self, body: bytes, stamp: int, apart: bool) -> None:
        """Decode or queue a piece of the body. `apart`: its events may have been sent apart."""
    def frame_on(self, left: int, line: bytes) -> None:
        """Frame from this state on, as `ResponseParser.chunk_state` returns it."""
    def leave(self) -> tuple[int, bytes] | None:
        """Frame no more; return the state, None where another has it."""
    def decoded(self) -> bool:
        """Count a queued piece as decoded; return whether usual events may be decoded here from now on."""
    def resume(self, usual: Usual | None) -> None:
        """Decode usual events, None: no more."""
    def end(self) -> tuple[int, int, bytes]:
        """Bring the decoder up to date; return bytes received, events merged by a late read, and the begun event."""

class Poller:
    """A worker's sockets in an epoll that asyncio's are in too."""

    def __init__(self, epoll: int, selector: Any, append: Callable[[Any], None], late_read: Callable[[Any], Any], /):
        """`append`: of the decode queue; `late_read` makes what is queued for a read that came late."""
    def add(self, fd: int, hot: Any) -> None: ...
    def drop(self, fd: int) -> None: ...
    def stream(self, fd: int, exchange: Any) -> Stream:
        """Return the stream of a response, which takes what that socket receives, in plain text."""
    def wait(
        self, until: int, tick_ns: int, busy: bool, once: bool, polled: int, offset: int
    ) -> tuple[list[tuple[int, int]], int, int, int, int, int, int, int, int]:
        """Read at each tick until that time, or until Python has something to do; not `busy`: read at once.

        `once`: at the next tick only. `polled`: when there was nothing to read. `offset`: of the wall clock.

        Returns the events of descriptors that are not hot, and counts since the last call: reads, those without a
        stamp, bytes that were queued, chunks that were decoded; at last the span between the last two polls, when the
        last one was, the next tick, and the wall clock's offset.
        """
    def take_late(self) -> tuple[int, ...]: ...
