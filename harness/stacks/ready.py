"""Waiting for a server that was just started: its health, then one real answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from harness.dialects import DIALECTS
from harness.load import control
from harness.load.client import client
from harness.load.control import Client, TransportError
from harness.load.transport import Target

_EVERY_S = 0.2  # between two looks
_LOOK_S = 5.0  # that one may take
_TOKENS = 8  # of the first answer
_QUESTION = "Name ten rivers."
_BODIES: dict[str, dict[str, object]] = {
    "chat": {"messages": [{"role": "user", "content": _QUESTION}]},
    "completions": {"prompt": _QUESTION},
}


class NotReadyError(Exception):
    """The server is not ready in time, or answers what is none."""


class Answered(NamedTuple):
    """How a server began."""

    ready_s: float  # until it was healthy
    answer_s: float | None  # of its first answer; None: that API's answer is left to the checks
    model: str  # the name that requests carry


async def first_answer(
    port: int, health: str, api: str, model: str, over: Callable[[], bool], within_s: float
) -> Answered:
    """Wait for health and for one answer of `model`, of the first that it lists where that is "".

    `over`: whether the server has ended. NotReadyError after `within_s`, or where the answer is no answer.
    """
    began = time.monotonic()
    path = "/v1" + DIALECTS[api].path
    target = Target(scheme="http", host="127.0.0.1", port=port, path=path, headers={})
    async with client(target, connect_s=_LOOK_S) as server:
        seen = "nothing answers there"
        while True:
            if over():
                raise NotReadyError("it ended before it was ready")
            try:
                page = await control.page(server, health, _LOOK_S)
                if page.status == 200:
                    break
                seen = f"{health} answers {page.status}"
            except TransportError as error:
                seen = str(error)
            if time.monotonic() - began > within_s:
                raise NotReadyError(f"it was not ready within {within_s:g} s: {seen}")
            await asyncio.sleep(_EVERY_S)
        ready_s = time.monotonic() - began
        model = model or await _listed(server)
        if api not in _BODIES:
            return Answered(ready_s, None, model)
        body = msgspec.json.encode(_BODIES[api] | {"model": model, "max_tokens": _TOKENS})
        sent = time.monotonic()
        await _answer(server, path, body, max(_LOOK_S, within_s - ready_s))
        return Answered(ready_s, time.monotonic() - sent, model)


async def _listed(server: Client) -> str:
    """The first model that the server lists."""
    try:
        found = (await control.page(server, "/v1/models", _LOOK_S)).json()
    except TransportError as error:
        raise NotReadyError(f"it lists no model: {error}") from None
    try:
        return str(found["data"][0]["id"])
    except (TypeError, KeyError, IndexError):
        raise NotReadyError("it lists no model at /v1/models") from None


async def _answer(server: Client, path: str, body: bytes, within_s: float) -> None:
    """NotReadyError unless the request gets an answer with a choice in it."""
    headers = {"Content-Type": "application/json"}
    try:
        async with control.response(server, "POST", path, within_s, body, headers) as reply:
            page = control.Page(reply.status, dict(reply.headers), await control.whole(reply))
    except TransportError as error:
        raise NotReadyError(f"its first request fails: {error}") from None
    found = page.json()
    if not (isinstance(found, dict) and isinstance(found.get("choices"), list) and found["choices"]):
        raise NotReadyError(f"its first request has no answer: {page.status} {page.text[:200]}")
