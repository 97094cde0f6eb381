"""An endpoint as the checks before a run leave it, without any server."""

from __future__ import annotations

from typing import Any

from harness.load.messages import Codec
from harness.load.transport import Target
from harness.run.launch.endpoint import Endpoint, Model, Wire, address

PATH = "/v1/chat/completions"


def checked(name: str = "toy", *, max_context: int | None = None, **parts: Any) -> Endpoint:
    """An endpoint at http://h:1 that serves a model of that name."""
    target = Target(scheme="http", host="h", port=1, path=PATH, headers={})
    wire = Wire(target=target, codec=Codec(model=name))
    return Endpoint(address=address("http://h:1"), wire=wire, model=Model(name=name, max_context=max_context), **parts)
