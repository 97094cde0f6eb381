"""What a worker decides: its share of a level, its rests, the replica of each request, and what its clock is. Pure."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from harness.spec.choices import LEAST_IN_FLIGHT, SESSION, Balance


def shares(total: int, workers: int) -> list[int]:
    """Return how many of a level's slots each worker has: evenly, the first ones one more.

    >>> shares(10, 4)
    [3, 3, 2, 2]
    """
    return [total // workers + (i < total % workers) for i in range(workers)]


def pause_after(failures: int, retry_after_s: float = 0.0) -> float:
    """Return the seconds that a slot rests after `failures` failures in a row, at most 1 s.

    A server that refuses at once must not be flooded; the rest is lag in the record. A Retry-After is kept up to the
    longest rest, since by then the errors have voided the level.

    >>> [pause_after(n) for n in (0, 1, 2, 3, 9)]
    [0.0, 0.05, 0.1, 0.2, 1.0]
    >>> pause_after(1, retry_after_s=0.5), pause_after(1, retry_after_s=60)
    (0.5, 1.0)
    """
    return 0.0 if failures == 0 else min(1.0, max(retry_after_s, 0.05 * 2.0 ** min(failures - 1, 5)))


def tick_ns(itl_s: float | None, e2e_s: float | None) -> int:
    """Return how long the loop may sleep, nanoseconds: clamp(min(ITL/8, E2E/256), 0.25 ms, 3 ms).

    Stamps are the kernel's, so the tick costs no accuracy of arrival; it bounds how late the next send is. That is half
    a tick in the mean, 0.2 % of a request: for requests below 64 ms the tick is shorter, E2E/256 down to 0.05 ms.

    >>> tick_ns(0.016, 2.0), tick_ns(None, None), tick_ns(0.002, 0.017)
    (2000000, 1000000, 66406)
    """
    of_itl, of_request = (itl_s or math.inf) / 8, (e2e_s or math.inf) / 256
    if math.isinf(tick := min(of_itl, of_request)):
        return 1_000_000
    least = max(0.00005, min(0.00025, of_request))
    return round(min(0.003, max(least, tick)) * 1e9)


FAILURES = 3  # in a row, which take a replica out


class State(enum.Enum):
    IN = "in"
    OUT = "out"
    TRIAL = "trial"


class Balancer:
    """A worker's choice among its replicas, by their numbers: outcomes in, a replica out.

    Each worker balances the requests of its own, and begins the turn at another replica than the workers before it.

    A replica whose last three requests failed is out: no request goes to it. Once it answers a probe it is on trial: it
    gets one request at a time, and is in again when one of them succeeds, out again when it fails. A failure is a
    connection that is refused, reset or cut off, a deadline that passes, or a status of 5xx; what the server refuses
    (4xx) is none. Where all replicas are out, requests go to all of them in turn.
    """

    def __init__(self, policy: Balance, replicas: int, worker: int = 0) -> None:
        self._policy = policy
        self._turn = worker % replicas
        self.states = [State.IN] * replicas
        self.in_flight = [0] * replicas
        self._failures = [0] * replicas  # in a row

    def begin(self, session: str = "") -> int:
        """Return the replica of the next request, which counts as in flight there until `end`."""
        at = self._pick(session)
        self.in_flight[at] += 1
        return at

    def end(self, at: int, *, failed: bool, cut: bool = False) -> None:
        """Count a request at replica `at` as ended; mark the replica out after several failures, in after a success."""
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
        """Return the replica of the next request: a recovered one on trial, else by the policy among those in use.

        Where none is in use, all are. Ties, and the usual policy, go round in turn.
        """
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
    """Return the hash of a session and a replica; the replica with the highest one serves it (rendezvous hashing).

    Every worker finds the same one, and the sessions of a replica that is lost are spread over all that are left.
    """
    return hashlib.blake2b(f"{replica}/{session}".encode("utf-8", "replace"), digest_size=8).digest()


_TRIPS = 16  # round trips in one estimate; the quickest ways out and back bound it, and most trips are slower
_LONGEST_NS = 1_000_000_000  # longest estimate: a level waits for it


class Offset(msgspec.Struct, frozen=True):
    """A worker's clock minus ours, nanoseconds; the true offset lies within the error.

    CLOCK_MONOTONIC counts from the boot of each machine. A worker reads its own between the moment at which we ask and
    the one at which its answer comes, so each round trip bounds the offset from both sides, however uneven the two ways
    are.
    """

    ns: int
    error_ns: int


def offset(trips: Sequence[tuple[int, int, int]]) -> Offset:
    """Return the offset of a worker's clock to ours, with its error, from the bounds that round trips give it.

    A trip is (sent, answered, theirs), nanoseconds: the first two by our clock, the last by the worker's. It bounds the
    offset to [theirs − answered, theirs − sent]. The bounds of clocks that drift during the trips may miss each other
    by little; then the error is half of what they miss.

    >>> offset([(100, 300, 5_200), (400, 700, 5_420)])
    Offset(ns=4960, error_ns=60)
    """
    least = max(theirs - answered for _, answered, theirs in trips)
    most = min(theirs - sent for sent, _, theirs in trips)
    return Offset((least + most) // 2, (abs(most - least) + 1) // 2)


async def estimated(theirs: Callable[[], Awaitable[int]], ours: Callable[[], int]) -> Offset:
    """Return the offset of a worker's clock, by several round trips; `theirs` reads that clock over its link."""
    began_ns = ours()
    trips: list[tuple[int, int, int]] = []
    while len(trips) < _TRIPS and (not trips or ours() - began_ns < _LONGEST_NS):
        sent_ns = ours()
        theirs_ns = await theirs()
        trips.append((sent_ns, ours(), theirs_ns))
    return offset(trips)
