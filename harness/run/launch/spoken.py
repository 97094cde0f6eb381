"""Which API a server speaks, where it is not the one that was to be measured: found by single requests without work."""

from __future__ import annotations

import msgspec

from harness.base.errors import HarnessError
from harness.dialects import DIALECTS
from harness.load import control
from harness.run.launch.endpoint import Address

# The APIs to look for, in this order: a handful, since each is a request.
_LIKELY = ("chat", "completions", "ollama", "tgi", "llama-cpp", "anthropic")
_THERE = (200, 400, 415, 422, 500)  # of a route that takes requests, but not an empty one
_WITHIN_S = 10.0


class NotSpokenError(HarnessError):
    """An answer that the API to be measured does not give: there may be no such route."""


async def instead(
    error: NotSpokenError, client: control.Client, where: Address, api: str, model: str, within_s: float
) -> HarnessError:
    """The error with the API that the server does speak, where one can be seen; else as it is.

    An empty object is sent to the route of each API, so nothing is generated. Where the API's own route takes
    requests, its error stands.
    """

    if not await _there(client, where, api, model, within_s):
        if bare := await without_root(client, where, api, model, within_s):
            return HarnessError(f"it has no {where.root}", place=error.place, way_out=f"give {bare}")
        for name in _LIKELY:
            if name != api and await _there(client, where, name, model, within_s):
                return HarnessError(f"it does not speak {api}", place=error.place, way_out=f"give --api {name}")
    return error


async def without_root(client: control.Client, where: Address, api: str, model: str, within_s: float) -> str:
    """The API's whole address where the server has it without `/v1`; "" where it has not."""
    bare = msgspec.structs.replace(where, root="")
    is_there = where.root and DIALECTS[api].root and await _there(client, bare, api, model, within_s)
    return bare.base + bare.api_path(api, model) if is_there else ""


async def _there(client: control.Client, where: Address, name: str, model: str, within_s: float) -> bool:
    """Whether an API's route takes requests, by an empty one."""
    path, headers = where.api_path(name, model), {"Content-Type": "application/json", **DIALECTS[name].headers}
    try:
        async with control.response(client, "POST", path, min(within_s, _WITHIN_S), b"{}", headers) as reply:
            return reply.status in _THERE
    except control.TransportError:
        return False
