"""Which replica a request goes to, and which replicas are left out because they fail. Pure: outcomes in, a replica out.

Each worker balances the requests of its own, and begins the turn at another replica than the workers before it.

A replica whose last three requests failed is out: no request goes to it. Once it answers a probe it is on trial: it
gets one request at a time, and is in again when one of them succeeds, out again when it fails. A failure is a
connection that is refused, reset or cut off, a deadline that passes, or a status of 5xx; what the server refuses (4xx)
is none. Where all replicas are out, requests go to all of them in turn.
"""

from __future__ import annotations

import enum
import hashlib

from harness.spec.choices import LEAST_IN_FLIGHT, SESSION, Balance

FAILURES = 3  # in a row, which take a replica out


class State(enum.Enum):
    IN = "in"
    OUT = "out"
    TRIAL = "trial"


class Balancer:
    """A worker's choice among its replicas, by their numbers."""

    def __init__(self, policy: Balance, replicas: int, worker: int = 0) -> None:
        self._policy = policy
        self._turn = worker % replicas
        self.states = [State.IN] * replicas
        self.in_flight = [0] * replicas
        self._failures = [0] * replicas  # in a row

    def begin(self, session: str = "") -> int:
        """The replica of the next request, which counts as in flight there until `end`."""
        at = self._pick(session)
        self.in_flight[at] += 1
        return at

    def end(self, at: int, *, failed: bool, cut: bool = False) -> None:
        """A request is over; one that was `cut` by us says nothing of its replica."""
        self.in_flight[at] -= 1
        if cut:
            return
        self._failures[at] = self._failures[at] + 1 if failed else 0
        if not failed:
            self.states[at] = State.IN
        elif self._failures[at] >= FAILURES:
            self.states[at] = State.OUT

    def answered(self, at: int) -> None:
        """A replica that is out has answered a probe."""
        if self.states[at] is State.OUT:
            self.states[at] = State.TRIAL

    def _pick(self, session: str) -> int:
        on_trial = [i for i, state in enumerate(self.states) if state is State.TRIAL and not self.in_flight[i]]
        if on_trial:
            return on_trial[0]
        usable = [i for i, state in enumerate(self.states) if state is State.IN] or list(range(len(self.states)))
        if self._policy == SESSION and session:
            return max(usable, key=lambda i: _weight(session, i))
        if self._policy == LEAST_IN_FLIGHT:
            fewest = min(self.in_flight[i] for i in usable)
            usable = [i for i in usable if self.in_flight[i] == fewest]
        at = min(usable, key=lambda i: (i - self._turn) % len(self.states))
        self._turn = (at + 1) % len(self.states)
        return at


def _weight(session: str, replica: int) -> bytes:
    """Of a session at a replica: the heaviest has it, and without that one the next (rendezvous hashing).

    Every worker finds the same one, and the sessions of a replica that is lost are spread over all that are left.
    """
    return hashlib.blake2b(f"{replica}/{session}".encode("utf-8", "replace"), digest_size=8).digest()
