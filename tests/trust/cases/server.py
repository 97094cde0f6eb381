"""A small server of OpenAI's chat over real sockets whose answers a test words as it likes, by kinds of misbehaviour.

It keeps the contract of an endpoint: a list of models, a stream of chunks in a chunked body, keep-alive. A test gives
the one thing that is otherwise: a function that answers a `Call`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.dialects import DIALECTS
from harness.load.loop import HotSelector, new_loop
from harness.load.transport import Exchange, Target
from harness.load.worker import transport_for
from tests.builders.servers import Request, serving
from tests.builders.streams import DONE, delta, event, usage

FIRST_S, GAP_S = 0.01, 0.002  # to the first token, and between two
OUT = 8  # tokens of an answer that asks for no other count


class Call:
    """One request for an answer, and what is written in reply."""

    def __init__(self, request: Request, number: int) -> None:
        self.request, self.number = request, number  # the number counts requests for answers alone
        self.body: dict[str, Any] = json.loads(request.body or b"{}")
        self.is_check = (request.header("x-request-id") or "").startswith("knee-")  # of the launch, not of the load
        self.out = int(self.body.get("max_tokens") or self.body.get("max_completion_tokens") or OUT)
        self.prompt = len(str(self.body.get("messages") or self.body.get("prompt")).split()) + 8
        self._chunked = True

    def head(self, kind: str | None = "text/event-stream", *, chunked: bool = True, extra: str = "") -> None:
        self._chunked = chunked
        lines = ["HTTP/1.1 200 OK", *([f"Content-Type: {kind}"] if kind else []), *([extra] if extra else [])]
        lines += ["Transfer-Encoding: chunked"] if chunked else []
        self.request.send("\r\n".join([*lines, "\r\n"]).encode())

    def write(self, data: bytes) -> None:
        """A piece of the body, at once."""
        self.request.send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def tokens(self, make: Callable[[int], bytes] = lambda _: delta(content=" tok"), count: int | None = None) -> None:
        """Tokens, each in an event of its own, at the server's pace."""
        for i in range(self.out if count is None else count):
            time.sleep(GAP_S if i else FIRST_S)
            self.write(make(i))

    def last(self, reason: str | None = "length", *, count: int | None = None, done: bool = True) -> None:
        """The reason, usage and the end mark: the events behind the last token."""
        if reason:
            self.write(delta(reason))
        self.write(event({"choices": [], "usage": usage(self.prompt, self.out if count is None else count)}))
        if done:
            self.write(DONE)

    def end(self) -> None:
        """The body's own end."""
        if self._chunked:
            self.request.send(b"0\r\n\r\n")
        else:
            self.request.close()

    def good(self) -> None:
        """What every other server does."""
        self.head()
        self.write(delta(role="assistant", content=""))
        self.tokens()
        self.last()
        self.end()


Answer = Callable[[Call], object]


@contextlib.contextmanager
def endpoint(answer: Answer, *, models: bool = True, model: Callable[[], str] = lambda: "toy") -> Iterator[str]:
    """An endpoint that answers so, and lists the model that it has by then; its address."""
    calls = 0

    def script(request: Request) -> None:
        nonlocal calls
        if request.head.startswith(b"POST"):
            calls += 1
            answer(Call(request, calls - 1))
        elif models and request.path.endswith("/models"):
            request.answer(200, json.dumps({"object": "list", "data": [{"id": model(), "object": "model"}]}).encode())
        else:
            request.answer(404, b'{"detail": "Not Found"}')

    with serving(script) as port:
        yield f"http://127.0.0.1:{port}"


def exchanges(answer: Answer, *, times: int = 1, timeout_s: float = 5.0, transport: str = "socket") -> list[Exchange]:
    """What the load makes of some answers, one after the other."""
    selector = HotSelector(250_000)

    async def go(port: int) -> list[Exchange]:
        target = Target(
            scheme="http", host="127.0.0.1", port=port, path="/v1/chat/completions", headers={}, transport=transport
        )
        line, made = transport_for(target, selector), []
        try:
            for number in range(times):
                exchange = Exchange(f"id-{number}", DIALECTS["chat"].decoder(asked=OUT))
                await line.send(exchange, line.request(exchange.request_id, b'{"messages": []}'), timeout_s)
                made.append(exchange)
            selector.decode_all()
        finally:
            await line.aclose()
        return made

    with endpoint(answer) as url, asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
        return runner.run(go(int(url.rpartition(":")[2])))
