"""A request that the endpoint answers by an error, worded as vLLM words it."""

from __future__ import annotations

import msgspec


class RefusalError(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def bad_request(message: str) -> RefusalError:
    return RefusalError(400, "BadRequestError", message)
