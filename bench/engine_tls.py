"""What receiving costs over TLS: CPU seconds of the client per million tokens, beside the same without TLS.

    python bench/engine_tls.py --streams 512 --seconds 6

The reference endpoint speaks no TLS, so a small server writes the events here: 40 tokens a second a stream, each in a
record and a segment of its own. The client is a worker's transport and loop without its tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import resource
import socket
import ssl
import time

import trustme

from harness.load.loop import HotSelector, Stamping, new_loop, sharpen_timers
from harness.load.schedule import tick_ns
from harness.load.transport import Exchange, Target
from harness.load.worker import transport_for

ITL_S, GROUPS = 0.025, 64
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"0-1","object":"chat.completion.chunk","created":1763000000,"model":"reference","choices":[{"index":0'
    b',"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":16,'
    b'"completion_tokens":%d,"total_tokens":%d}}\n\n'
)


def serve(listener: socket.socket, streams: int, secure: bool, cpu: int) -> None:
    """Answer each connection's request with an answer that never ends, until the client is gone."""
    os.sched_setaffinity(0, {cpu})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    sockets: list[socket.socket] = []
    for _ in range(streams):
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.append(context.wrap_socket(sock, server_side=True) if secure else sock)
    for sock in sockets:
        sock.recv(65_536)
        sock.sendall(HEAD)
    due, token = time.monotonic(), 0
    with contextlib.suppress(OSError):
        while True:
            token += 1
            event = EVENT % (token, token + 16)
            chunk = b"%x\r\n%b\r\n" % (len(event), event)
            for group in range(GROUPS):
                due += ITL_S / GROUPS
                time.sleep(max(0.0, due - time.monotonic()))
                for sock in sockets[group::GROUPS]:
                    sock.sendall(chunk)


async def received(selector: HotSelector, target: Target, streams: int, seconds: float) -> float:
    """Return the CPU seconds per million tokens, once all streams have begun."""
    transport = transport_for(target, selector)
    await transport.prepare(streams)
    exchanges = [Exchange(str(i)) for i in range(streams)]
    tasks = [
        asyncio.create_task(transport.send(each, transport.request(each.request_id, b"{}"), 600.0))
        for each in exchanges
    ]
    await asyncio.sleep(1.0)
    cpu, tokens = time.process_time(), selector.events
    await asyncio.sleep(seconds)
    cpu, tokens = time.process_time() - cpu, selector.events - tokens
    assert not any(each.error for each in exchanges)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.aclose()
    return cpu / tokens * 1e6


def cost(streams: int, seconds: float, secure: bool) -> float:
    """Serve and receive so many streams."""
    cpus = sorted(os.sched_getaffinity(0))
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        server = multiprocessing.get_context("fork").Process(target=serve, args=(listener, streams, secure, cpus[0]))
        server.start()
        port = listener.getsockname()[1]
    os.sched_setaffinity(0, cpus[-1:])
    scheme = "https" if secure else "http"
    target = Target(scheme=scheme, host="127.0.0.1", port=port, path="/", headers={}, insecure=True)
    selector = HotSelector(tick_ns(ITL_S, None))
    with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        found = runner.run(received(selector, target, streams, seconds))
    os.sched_setaffinity(0, cpus)
    server.join(10.0)
    server.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=6.0, help="that are counted")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sharpen_timers()
    stamping = Stamping()
    gc.disable()
    found = {name: cost(options.streams, options.seconds, name == "tls") for name in ("plain", "tls")}
    stamping.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
