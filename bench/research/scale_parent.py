"""What the parent of a run spends on its workers' messages: records as fast as it takes them, reports at their pace.

The parent is that of `knee run`: its link's reader, its workers, its live state and its spool on the disk. The workers
are another process that writes what theirs would: batches of sixteen requests, or a report each every 50 ms. Left out:
what the parent decides by a report, once for all workers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

from harness.data.record import Level, Record
from harness.load import schedule
from harness.load.link import received
from harness.load.loop import LATE_BINS
from harness.load.messages import PROGRESS_EVERY_S, Codec, Command, Done, Plan, Progress, Replica, encode
from harness.load.schedule import Offset
from harness.load.transport import Target
from harness.load.workers import Workers
from harness.results import frames
from harness.results.spool import Spool, header
from harness.run.live_state import LiveState
from harness.workload.source import Uniform

BATCH = 16  # requests in a worker's message


# ---- the workers' side ------------------------------------------------------------------------------------


def request(i: int, tokens: int) -> Record:
    """Return a request as a worker has it."""
    sent = i * 1e-3
    stamps = ((sent + 0.2 + 0.025 * np.arange(tokens)) * 1e9).astype(np.int64)
    last = sent + 0.2 + 0.025 * tokens
    return Record(
        request_id=f"0123456789ab-0-{i}", level=0, repeat=0, concurrency=512, worker=0, url="http://127.0.0.1:8000",
        scheduled_s=sent, sent_s=sent, connect_s=None, first_token_s=sent + 0.2, first_content_s=sent + 0.2,
        last_token_s=last, done_s=last, input_tokens=512, cached_tokens=None, output_tokens=tokens,
        reasoning_tokens=None, token_source="continuous", status=200, error="", finish_reason="length",
        bytes_received=300 * tokens, arrivals=stamps.tobytes(),
    )  # fmt: skip


def report(worker: int, turn: int) -> Progress:
    late = tuple([turn % 7] * LATE_BINS) if turn % 4 == 0 else ()  # as each fourth report has
    return Progress(
        time_s=turn * PROGRESS_EVERY_S, level=0, in_flight=512, ended=turn, failed=0, waiting=0, tokens=1000 * turn,
        oldest_sent_s=0.0, begun_in_run=turn + 512, cpu_s=0.01 * turn, reads=1000 * turn, unstamped=0, late=late,
        worker=worker, prepared=1, waited_s=0.0 if late else None,
    )  # fmt: skip


def feed(sockets: list[socket.socket], requests: int, tokens: int, turns: int) -> None:
    """Write the workers' messages: all of their records, or a report each at every turn."""
    if requests:
        some = [encode([request(i + j, tokens) for j in range(BATCH)]) for i in range(0, 16 * BATCH, BATCH)]
        data = b"".join(map(frames.frame, some))
        for _ in range(requests // (len(some) * BATCH)):
            sockets[0].sendall(data)
    began = time.monotonic()
    for turn in range(turns):
        for worker, sock in enumerate(sockets):  # spread over the turn, as theirs are
            due = began + (turn + worker / len(sockets)) * PROGRESS_EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))
            sock.sendall(frames.frame(encode(report(worker, turn))))
    for sock in sockets:
        sock.sendall(frames.frame(encode(Done("kernel"))))
        sock.shutdown(socket.SHUT_WR)


def tell_time(sock: socket.socket) -> None:
    """Answer each byte with this process's clock."""
    while sock.recv(1):
        sock.sendall(time.monotonic_ns().to_bytes(8, "little"))


# ---- the parent's side ------------------------------------------------------------------------------------


class FedLink:
    """The link to a worker that only sends."""

    node = ""
    clock_offset_ns = 0

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def start(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._sock)

    async def estimate_clock(self) -> Offset | None:
        return None

    def send(self, order: Plan | Command) -> None:
        pass

    def frames(self) -> AsyncIterator[bytes]:
        return received(self._reader)

    async def exit_reason(self) -> str:
        return "closed its link"

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def fed(count: int, *arguments: str) -> Iterator[list[socket.socket]]:
    """Sockets to so many workers, all in one process of this script."""
    pairs = [socket.socketpair() for _ in range(count)]
    theirs = [theirs for _, theirs in pairs]
    command = [sys.executable, __file__, *arguments, "--fds", *(str(each.fileno()) for each in theirs)]
    with subprocess.Popen(command, pass_fds=[each.fileno() for each in theirs]) as process:
        for each in theirs:
            each.close()
        try:
            yield [ours for ours, _ in pairs]
        finally:
            process.terminate()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plan(worker: int, workers: int) -> Plan:
    where = Target(scheme="http", host="127.0.0.1", port=1, path="/", headers={}, transport="socket")
    source = Uniform(words=("a",), prompt_words=1, output_tokens=1, seed=0)
    return Plan(
        worker=worker, workers=workers, run_id="0123456789ab", replicas=(Replica("", where),),
        codec=Codec(model=""), source=source,
        first_request=0, request_timeout_s=1.0, max_rps=None, start="staggered", max_in_flight=1, tick_ns=1,
        origin_ns=0,
    )  # fmt: skip


async def took(sockets: list[socket.socket], folder: Path) -> dict[str, float]:
    """Processor seconds for all messages, the memory that their level then takes, and the bytes that were written."""
    spool = Spool(folder, header(0, 0.0))
    live = LiveState(spool, time.monotonic_ns(), "0123456789ab", e2e_s=1.0, itl_s=0.025)
    live.begin(Level(0, 512, 0, 0.0), 512)
    count = len(sockets)
    async with Workers([FedLink(sock) for sock in sockets]) as workers:
        cpu, memory, written = time.process_time(), resident(), spool.size
        await workers.begin([plan(i, count) for i in range(count)], live.batch, live.progress)

        async def reports() -> None:
            with contextlib.suppress(Exception):  # they have ended
                while True:
                    await workers.next_progress()

        adding = asyncio.create_task(reports())
        while len(workers.done) < count:
            await asyncio.sleep(0.05)
        spent = time.process_time() - cpu
        level = spool.between(*live.part)  # as it is summarised
        found = {"cpu_s": spent, "memory": resident() - memory, "bytes": spool.size - written}
        del level
        adding.cancel()
    spool.close()
    return found


async def clock_error_s(sock: socket.socket) -> float:
    """Half of the width to which round trips bound another process's clock, seconds."""
    reader, writer = await asyncio.open_connection(sock=sock)

    async def theirs() -> int:
        writer.write(b"?")
        return int.from_bytes(await reader.readexactly(8), "little")

    found = await schedule.estimated(theirs, time.monotonic_ns)
    writer.close()
    return found.error_ns * 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--requests", type=int, default=0, help="that the first worker sends, as fast as they are read")
    parser.add_argument("--tokens", type=int, default=256, help="of a request")
    parser.add_argument("--turns", type=int, default=0, help="of reports, 50 ms each")
    parser.add_argument("--clock", action="store_true", help="estimate a clock by round trips instead")
    parser.add_argument("--fds", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fds:
        sockets = [socket.socket(fileno=fd) for fd in options.fds]
        with contextlib.suppress(ConnectionError):
            if options.clock:
                tell_time(sockets[0])
            else:
                feed(sockets, options.requests, options.tokens, options.turns)
        return
    if options.clock:
        with fed(1, "--clock") as sockets:
            print(json.dumps({"error_s": asyncio.run(clock_error_s(sockets[0]))}))
        return
    arguments = ["--requests", str(options.requests), "--tokens", str(options.tokens), "--turns", str(options.turns)]
    with tempfile.TemporaryDirectory(prefix="knee-bench-") as folder, fed(options.workers, *arguments) as sockets:
        print(json.dumps(asyncio.run(took(sockets, Path(folder)))))


if __name__ == "__main__":
    main()
