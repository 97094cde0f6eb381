"""A shard: one machine's share of a run that several machines load together, each by itself.

It is a share of the run's workers, so requests, due times and slots are dealt out as among the workers of one machine,
and the same requests result whatever the number of shards. No machine waits for another: levels begin at moments that
follow from the scenario and the start alone (`search.pace`), by each machine's own clock. So nothing that a
machine finds out by itself may decide what is measured, and what would is refused here.
"""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime

import msgspec

from harness.base.errors import HarnessError
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario

MOST = 1024  # shards of a run
FIRST_REQUEST = 1024  # numbers below are the launch checks', which no machine needs as many of
_AHEAD_S = 7 * 86_400.0  # a start that lies further ahead is a mistake
_LONGEST_ID = 64  # it begins the id of every request
_SHARD, _START = "--shard", "--start-at"
_ZONED = "write it like 2030-01-31T12:00:00Z, or as Unix time"


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Which share of a run this machine has, and which run that is."""

    number: int  # from 1
    of: int
    start_s: float  # Unix time at which the first level begins, the run's t = 0
    run_id: str  # begins the id of every request, and is the same on all machines

    @property
    def seed(self) -> int:
        """Return the seed of the prompts, where the scenario has none; it is the same on all machines."""
        return int.from_bytes(hashlib.sha256(f"{self.run_id}:{self.start_s!r}".encode()).digest()[:4]) >> 1

    def has(self, number: int, workers: int) -> bool:
        """Return whether a request of this number is this shard's, which has so many workers."""
        return number % (self.of * workers) // workers == self.number - 1


def parse(text: str) -> tuple[int, int]:
    """Return (number, how many in all) of a shard that is written like 2/8; HarnessError otherwise.

    >>> parse("2/8")
    (2, 8)
    """
    number, slash, of = text.partition("/")
    if not (slash and all(part.isascii() and part.isdigit() and len(part) < 5 for part in (number, of))):
        raise HarnessError("not a shard", place=_SHARD, way_out="write 2/8 for the second of eight")
    if not 1 <= int(number) <= int(of) <= MOST:
        raise HarnessError(f"no shard {int(number)} of {int(of)}", place=_SHARD, way_out=f"give 1/1 to {MOST}/{MOST}")
    return int(number), int(of)


def unix_time(text: str) -> float:
    """Return the Unix time that a text names.

    >>> unix_time("1970-01-01T00:01:00+00:00"), unix_time("1700000000")
    (60.0, 1700000000.0)
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise HarnessError("not a time", place=_START, way_out=_ZONED) from None
        if moment.tzinfo is None:
            raise HarnessError("it has no time zone", place=_START, way_out=_ZONED) from None
        seconds = moment.timestamp()
    if not (math.isfinite(seconds) and abs(seconds) < 1e10):
        raise HarnessError("not a time", place=_START, way_out=_ZONED)
    return seconds


def shown(unix_s: float) -> str:
    """Return a moment as a person writes it.

    >>> shown(60.0)
    '1970-01-01T00:01:00Z'
    """
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_run(scenario: Scenario, text: str, start_at: str | None, run_id: str | None) -> Shard:
    """Return the shard that --shard, --start-at and --run-id describe; raise HarnessError if it cannot be one."""
    number, of = parse(text)
    if start_at is None:
        fact = "shards begin at one moment, and none is given"
        raise HarnessError(fact, place=_SHARD, way_out="give --start-at, the same on all machines")
    start_s = unix_time(start_at)
    if run_id is None:
        run_id = hashlib.sha256(f"{scenarios.digest(scenario)}:{start_s!r}".encode()).hexdigest()[:12]
    words = run_id.replace("-", "").replace("_", "")
    if not (words.isascii() and words.isalnum() and len(run_id) <= _LONGEST_ID):
        fact = f"an id has letters, digits, '-' and '_', at most {_LONGEST_ID}"
        raise HarnessError(fact, place="--run-id", way_out="leave it out")
    check(scenario)
    return Shard(number=number, of=of, start_s=start_s, run_id=run_id)


def check(scenario: Scenario) -> None:
    """Raise HarnessError for a scenario that cannot run as shards, as each machine would decide by itself."""
    ramp, target = scenario.ramp, scenario.target
    bounds = {
        "--max-seconds": ramp.max_seconds, "--max-requests": ramp.max_requests, "--max-dollars": ramp.max_dollars,
        "--max-ttft": ramp.max_ttft, "--max-disk": ramp.max_disk or None,
    }  # fmt: skip
    bound = next((name for name, value in bounds.items() if value is not None), "")
    for holds, fact, way_out in (
        (scenario.load.is_given, "levels that are searched for need all machines' figures", "give --levels or --rate"),
        (ramp.level_seconds is not None, "levels that last until they are precise differ", "give --level-seconds"),
        (not bound, f"{bound} would end one machine's levels before another's", f"leave {bound} out"),
        (ramp.precision is None, "--precision would make the machines' levels differ", "leave --precision out"),
        (ramp.probe is None, "a phase probe is of one machine", "leave --probe out"),
        (ramp.start != "batch", "static batches come from one worker", "leave --start batch out"),
        (not scenario.many, "a level map or a comparison is many runs", "leave [sweep] and --versus out"),
        (not scenario.quality, "canaries need a server without load, and others ask at once", "leave canaries out"),
        (target.url != "sim:", "each machine would have a sim: of its own", "start `knee sim`, give its address"),
    ):
        if not holds:
            raise HarnessError(fact, place=_SHARD, way_out=way_out)


def must_lie_ahead(start_s: float, now_s: float) -> None:
    """Raise HarnessError if the start time is past, or more than a week ahead."""
    if start_s <= now_s:
        fact = f"{shown(start_s)} is past by {now_s - start_s:.3g} s"
        raise HarnessError(fact, place=_START, way_out="start all shards anew, a minute ahead")
    if start_s > now_s + _AHEAD_S:
        fact = f"{shown(start_s)} is more than a week ahead"
        raise HarnessError(fact, place=_START, way_out="give an earlier time")
