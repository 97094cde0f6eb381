"""What was observed of a level besides its figures: pauses, uneven replicas, a quota, drift; and what answers said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from harness.analysis.rules import Finding, Place, Purpose, rule
from harness.analysis.rules.requests import too_many_fail
from harness.analysis.stats import BY_CHANCE
from harness.data.judgement import DOUBT, INVALID, NOTE
from harness.data.levels import Drift, LevelSummary, Trend
from harness.data.record import NOT_FAILED, Level, Record
from harness.data.views import Value
from harness.spec.choices import LEAST_IN_FLIGHT

PAUSED = 0.01  # share of a window, above which a worker that stood still voids it if that did harm
UNEVEN = 0.25  # the busiest replica's share may exceed an equal share by this part of it
# Shares by which a figure has to move over the window before it counts; a slope that is smaller may be as sure.
DECAYS, CREEPS, GROWS = 0.02, 0.10, 0.02


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of a level besides its figures."""

    s: LevelSummary
    pauses: Mapping[str, float] = {}  # seconds of the window that a process stood still, by the metric's name
    balance: str = ""  # policy over the replicas
    drift: Drift | None = None

    @property
    def at(self) -> float | None:
        return self.s.load


# ---- pauses -------------------------------------------------------------------------------------------------


@rule(
    Observed, DOUBT, INVALID, brief="the load generator stood still{}: what else runs here?", excused_for=(Purpose.TOP,)
)
def worker_paused(seen: Observed) -> Iterator[Finding]:
    """A worker stood still in the window; invalid where that made requests late, or moved the clock's stamps."""
    client, window = seen.s.client, seen.s.window_s
    harm = client.limited or client.timestamp_source == "user"
    for metric, seconds in sorted(seen.pauses.items()):
        worker, _, process = metric.rpartition("/")
        if process == "paused_s":
            yield Finding(
                f"worker {worker} stood still for {seconds:.3g} s of the window of {window:.3g} s",
                "give it a processor of its own, hold the level again",
                INVALID if harm and seconds > PAUSED * window else DOUBT,
            )


@rule(Observed, NOTE, brief="Knee's main process stood still{}")
def parent_paused(seen: Observed) -> Finding | None:
    """Knee's main process stood still in the window; load went on."""
    if "parent_paused_s" not in seen.pauses:
        return None
    return Finding(
        f"the main process stood still for {seen.pauses['parent_paused_s']:.3g} s of the window; load went on",
        "the figures of server and GPU have a gap there",
    )


@rule(Observed, INVALID)
def machine_slept(seen: Observed) -> Finding | None:
    """This machine slept in the window, and the server did not."""
    if "slept_s" not in seen.pauses:
        return None
    return Finding(
        f"the machine slept for {seen.pauses['slept_s']:.3g} s in the window, and the server did not",
        "keep it awake, hold the level again",
    )


# ---- replicas and quota -------------------------------------------------------------------------------------


@rule(Observed, DOUBT, brief="one replica had more than its share{}")
def replicas_uneven(seen: Observed) -> Finding | None:
    """One replica had a quarter more than an equal share of the requests, with `least-in-flight` of what was in flight.

    A share may be larger by chance, up to three standard deviations.
    """
    s = seen.s
    if not s.replicas or len(s.replicas) < 2 or not s.requests:
        return None
    requests = sum(replica.requests for replica in s.replicas.values())
    shares = {url: each.requests / requests for url, each in s.replicas.items()} if requests else {}
    what = "the requests"
    if seen.balance == LEAST_IN_FLIGHT:
        shares, what = {url: each.in_flight_share or 0.0 for url, each in s.replicas.items()}, "what was in flight"
    equal = 1 / len(s.replicas)
    url = max(shares, key=lambda url: shares[url], default="")
    chance = BY_CHANCE * (equal * (1 - equal) / max(1, requests)) ** 0.5
    if not url or shares[url] <= equal + max(UNEVEN * equal, chance):
        return None
    return Finding(
        f"{url} had {shares[url]:.0%} of {what}; an equal share is {equal:.0%}, and {seen.balance} balances them",
        "see whether a replica was lost, and the replicas' own figures",
    )


@rule(Observed, DOUBT, brief="a quota, not the server, sets the throughput{}")
def quota_limited(seen: Observed) -> Finding | None:
    """The server refused more than 1 % of the requests with 429: its quota, not its speed, sets the throughput."""
    s = seen.s
    refused = s.errors_by_type.get("http_429", 0)
    requests = max(refused, s.requests)
    if s.taken_at_once or not refused or not too_many_fail(refused / requests, requests):
        return None
    return Finding(
        f"{refused} of {s.requests} requests were refused with 429: the quota sets what was measured, not the server",
        "stay below the quota with --max-rps or fewer levels, or ask for a higher one",
    )


@rule(Observed, DOUBT)
def refused_above(seen: Observed) -> Finding | None:
    """The server takes so many requests at once and refuses every other, where servers usually let them wait."""
    taken = seen.s.taken_at_once
    if not taken:
        return None
    kinds = ", ".join(f"{kind} {n}" for kind, n in seen.s.errors_by_type.items())
    return Finding(
        f"the server takes {taken} {'request' if taken == 1 else 'requests'} at once and refuses more ({kinds})",
        f"--max-concurrency {taken}, or raise the limit of the server or of the proxy before it",
    )


# ---- drift within a window ----------------------------------------------------------------------------------


@rule(Observed, DOUBT, brief="throughput falls over the window{}: --verbose")
def throughput_decays(seen: Observed) -> Finding | None:
    """Throughput falls by 2 % or more over a window of five minutes or more."""
    return _moved(
        seen,
        "throughput",
        seen.drift.throughput if seen.drift else None,
        -DECAYS,
        "a leak, a cache that fills up or a hot GPU does this",
        "compare with KV use, memory and GPU clock over time; restart the server, and see whether it is back",
    )


@rule(Observed, DOUBT, brief="TTFT p99 rises over the window{}: --verbose")
def latency_creeps(seen: Observed) -> Finding | None:
    """TTFT p99 rises by 10 % or more over a window of five minutes or more."""
    return _moved(
        seen,
        "TTFT p99",
        seen.drift.ttft_p99_s if seen.drift else None,
        CREEPS,
        "a queue that builds up, or colder caches, do this",
        "lower the load; see the server's waiting requests and cache hits over time",
    )


@rule(Observed, DOUBT, brief="the server's memory grows over the window{}: --verbose")
def memory_grows(seen: Observed) -> Iterator[Finding]:
    """The memory of the server, or of its GPUs, grows by 2 % or more over a window of five minutes or more."""
    advice = "soak for longer: a cache ends growing, a leak does not"
    if seen.drift is None:
        return
    host = "a leak, or a cache in host memory that is not full yet, does this"
    of_host = _moved(seen, "the server's memory", seen.drift.memory_bytes, GROWS, host, advice)
    of_gpu = _moved(seen, "GPU memory", seen.drift.gpu_memory_bytes, GROWS, "fragments or a leak do this", advice)
    yield from filter(None, [of_host, of_gpu])


def _moved(seen: Observed, name: str, trend: Trend | None, least: float, why: str, advice: str) -> Finding | None:
    """Return the finding that a figure surely moved over the window by `least` or more (below 0: fell); else None."""
    if trend is None or trend.share_per_hour is None or not trend.sure:
        return None
    moved = (trend.share_per_hour.value or 0.0) * seen.s.window_s / 3600
    if moved / least < 1:
        return None
    verb, by = "falls" if least < 0 else "rises", per_hour(trend.share_per_hour)
    return Finding(f"{name} {verb} by {by}, {abs(moved):.1%} in this window; {why}", advice)


def per_hour(share: Value) -> str:
    """Return a slope, a share per hour, as text in percent with its 95 % interval, without its sign.

    >>> per_hour(Value(-0.6, (-0.63, -0.57)))
    '60.0 % an hour (95 % interval 57.0–63.0)'
    """
    return f"{abs(share.value or 0.0) * 100:.1f} % an hour{_interval(share, 100, '.1f')}"


def _interval(value: Value, times: float, form: str) -> str:
    """Return the 95 % interval as text in brackets, its ends multiplied by `times`; "" without an interval."""
    if value.ci95 is None or None in value.ci95:
        return ""
    ends = [(end or 0.0) * times for end in value.ci95]
    low, high = sorted(ends, key=abs) if ends[0] * ends[1] > 0 else ends
    sign = -1 if high < 0 else 1
    return f" (95 % interval {sign * low:{form}}–{sign * high:{form}})"


# ---- answers ------------------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """The requests of a level."""

    level: Level
    records: Sequence[Record]  # records of all levels

    @property
    def at(self) -> float | None:
        return self.level.concurrency or self.level.rate

    @property
    def own(self) -> list[Record]:
        return [record for record in self.records if record.level == self.level.index]


@rule(Answered, NOTE, kinds=True, place=Place.NOWHERE)  # it is printed under the table
def said(answered: Answered) -> Iterator[Finding]:
    """The server or the system said this of the first error of that name."""
    words: dict[str, str] = {}
    for record in answered.own:
        if record.error not in NOT_FAILED and record.error_message:
            words.setdefault(record.error, record.error_message)
    for kind, text in sorted(words.items()):
        yield Finding(f"{kind}: {text}", kind=kind)


_FEW = 3  # details that a note names
# By kind; the detail after its colon is put in.
_WORDS = {
    "unlisted": "tokens came in the field {}, which is no part of the API, and count as others do",
    "asked": "the server counts no tokens: an answer that ended at its length has as many as were asked for",
    "think": "the content begins with the model's thoughts ({}): when the answer begins is not known, nor is TTFAT",
    "no_finish": "answers have no finish_reason; usage, [DONE] or the end of the response show that they are whole",
    "no_end": "answers came whole, and their responses did not end",
    "no_text": "answers have tokens by the server's count, and no text",
    "cut_after_end": "the connection broke behind an answer that was whole",
    "left_out": "an odd value was left out of the answer: {}",
    "content_type": "the content type is {}; the first bytes showed how to read the answer",
    "data_twice": "events have `data:` twice",
    "other_usage": "tokens are counted under other names than the API's ({}), and are taken from there",
    "unparted": "no blank lines part the events; each line of data counts as one",
    "uncounted": "the server's total has {} tokens more than it counts for prompt and answer: they are in no figure",
}
_DETAILS = {"think": "<think>"}


@rule(Answered, NOTE, kinds=True)
def read(answered: Answered) -> Iterator[Finding]:
    """Answers could be read, with something left out or assumed."""
    counts: dict[str, int] = defaultdict(int)
    details: dict[str, dict[str, None]] = defaultdict(dict)
    own = answered.own
    for record in own:
        noted = [note.partition(":") for note in record.noted.split(",") if note]
        for kind in {kind for kind, _, _ in noted}:
            counts[kind] += 1
        for kind, _, detail in noted:
            details[kind][detail or _DETAILS.get(kind, "")] = None
    for kind, count in sorted(counts.items()):
        yield Finding(f"{_words(kind, list(details[kind])[:_FEW])} ({count} of {len(own)} answers)", kind=kind)


def _words(kind: str, details: Sequence[str]) -> str:
    shown = ", ".join(details)
    return _WORDS[kind].format(shown) if kind in _WORDS else f"{kind} {shown}".strip()
