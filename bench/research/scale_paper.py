"""What it takes to drive so many tokens a second, worked out from measured ceilings. Pure.

Everything is linear in tokens, requests, words of prompts and workers, but that workers and nodes come whole.
`Ceilings` are what `bench/research/scale` measures on one machine; `Load` and `Node` are assumptions, printed beside
the tables. Left out: what a network card's interrupts cost, which loopback does not have, and the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from harness.analysis.rules.requests import CPU
from harness.load.messages import BATCH_EVERY_S, PROGRESS_EVERY_S

FRAME_BYTES = 38 + 20 + 32  # Ethernet with its gap, IPv4, and TCP with time stamps; of each segment
PORTS = 28_232  # that Linux opens connections from to one address: 32,768 to 60,999
_MOST = 1e12  # tokens/s, beyond all that is looked for


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine was measured to spend; seconds are of one processor."""

    worker_s_token: float
    worker_s_request: float
    worker_s_word: float  # of a prompt
    parent_s_token: float
    parent_s_request: float
    parent_s_report: float  # of a worker
    pack_s_token: float  # at a run's end
    summary_s_token: float
    in_bytes_token: float  # from the server, without the frames of the network
    in_bytes_request: float
    out_bytes_request: float
    out_bytes_word: float
    spool_bytes_token: float
    spool_bytes_request: float
    parquet_bytes_token: float
    parquet_bytes_request: float
    worker_bytes_token: float  # of memory, while the request is in flight
    parent_bytes_token: float  # of memory, while the level runs
    parent_bytes_request: float  # likewise
    summary_bytes_token: float  # of memory, while it is summarised
    clock_error_s: float  # of an estimate by round trips; of the wall clock, unlike all seconds above


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent."""

    tokens_per_s: float
    prompt_words: int = 512
    answer_tokens: int = 256
    itl_s: float = 0.025
    window_s: float = 60.0
    windows: int = 3  # that a level takes: warm-up, window, end
    levels: int = 10

    @property
    def requests_per_s(self) -> float:
        return self.tokens_per_s / self.answer_tokens

    @property
    def streams(self) -> float:
        """Requests in flight, the time to their first token left out."""
        return self.tokens_per_s * self.itl_s

    @property
    def level_s(self) -> float:
        return self.window_s * self.windows

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.level_s * self.levels


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the load; what it has is assumed, and only its price is a published one."""

    processors: int = 16
    spare: int = 1  # for interrupts, and for what passes a worker's messages on
    memory_bytes: float = 32 * 2**30
    network_bytes_s: float = 10e9 / 8
    disk_bytes_s: float = 125e6
    usd_processor_hour: float = 0.0425  # 0.68 USD an hour for 16; scale.md has the source


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a load takes."""

    load: Load
    node: Node
    processors: float  # that are busy for all workers
    workers: int
    nodes: int
    in_bytes_s: float  # from the server, with frames
    out_bytes_s: float
    parent_busy: float  # of one processor
    spool_bytes_s: float  # through the parent's network and on to its disk
    level_bytes: float  # of the parent's memory at a level's end
    summary_bytes: float  # of memory, for all levels together
    level_summary_s: float
    clock_share: float  # of a window, at both of its ends

    @property
    def usd(self) -> float:
        """Of the whole run, the parent's node with it."""
        hours = self.load.seconds / 3600
        return (self.nodes + 1) * self.node.processors * self.node.usd_processor_hour * hours


def need(c: Ceilings, load: Load, node: Node = Node()) -> Need:
    """Return what a load takes of nodes of one kind, by one machine's ceilings."""
    X, R = load.tokens_per_s, load.requests_per_s
    processors = X * c.worker_s_token + R * (c.worker_s_request + load.prompt_words * c.worker_s_word)
    workers = math.ceil(processors / CPU)
    reports = workers / PROGRESS_EVERY_S
    level_tokens = X * load.level_s
    spool = X * c.spool_bytes_token + R * c.spool_bytes_request
    acknowledged = X * FRAME_BYTES  # at most: an answer's segments may share an acknowledgement
    asked = R * (c.out_bytes_request + load.prompt_words * c.out_bytes_word)
    return Need(
        load=load,
        node=node,
        processors=processors,
        workers=workers,
        nodes=math.ceil(workers / (node.processors - node.spare)),
        in_bytes_s=X * (c.in_bytes_token + FRAME_BYTES) + R * c.in_bytes_request,
        out_bytes_s=asked + acknowledged,
        parent_busy=X * c.parent_s_token + R * c.parent_s_request + reports * c.parent_s_report,
        spool_bytes_s=spool,
        level_bytes=level_tokens
        * (c.parent_bytes_token + c.parent_bytes_request / load.answer_tokens + c.summary_bytes_token),
        summary_bytes=level_tokens * load.levels * c.summary_bytes_token,
        level_summary_s=level_tokens * c.summary_s_token,
        clock_share=2 * c.clock_error_s / load.window_s,
    )


# ---- what breaks first ------------------------------------------------------------------------------------


class Limit(msgspec.Struct, frozen=True):
    """Something that there is once, however many nodes load."""

    name: str
    share: Callable[[Need], float]  # of it that a load takes
    instead: str  # what goes on beyond it


LIMITS = [
    Limit("summary of the whole run in memory", lambda n: n.summary_bytes / n.node.memory_bytes,
          "fewer or shorter levels a run"),
    Limit("a level in memory while it is summarised", lambda n: n.level_bytes / n.node.memory_bytes,
          "shorter windows; shards merge in the same memory"),
    Limit("summary of a level takes as long as the level", lambda n: n.level_summary_s / n.load.level_s,
          "shards, which are summarised after the load"),
    Limit("the parent's disk", lambda n: n.spool_bytes_s / n.node.disk_bytes_s, "a faster disk, or shards"),
    Limit("the parent's processor", lambda n: n.parent_busy / CPU, "shards, each with a parent"),
    Limit("the parent's network", lambda n: n.spool_bytes_s / n.node.network_bytes_s, "shards"),
    Limit("a node's network", lambda n: n.in_bytes_s / n.nodes / n.node.network_bytes_s, "more, smaller nodes"),
    Limit("a node's ports to one address", lambda n: n.load.streams / n.nodes / PORTS, "more addresses or nodes"),
]  # fmt: skip


def breaks_at(c: Ceilings, limit: Limit, load: Load, node: Node = Node()) -> float:
    """Tokens a second at which a load like this one takes all of it; inf where none does.

    What a node takes is the same on all of them, so that it depends on the rate by rounding alone.
    """

    def over(rate: float) -> bool:
        return limit.share(need(c, msgspec.structs.replace(load, tokens_per_s=rate), node)) >= 1

    if not over(_MOST):
        return math.inf
    low, high = 0.0, _MOST
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if over(middle) else (middle, high)
    return high


# ---- tables -----------------------------------------------------------------------------------------------


def assumptions(load: Load, node: Node) -> str:
    """Return what the tables assume, in sentences."""
    memory, network = node.memory_bytes / 2**30, node.network_bytes_s * 8e-9
    return (
        f"Assumed: prompts of {load.prompt_words} words, answers of {load.answer_tokens} tokens, a token every "
        f"{load.itl_s * 1e3:g} ms, each in a segment of its own; {load.levels} levels of {load.windows} × "
        f"{load.window_s:g} s. A node has {node.processors} processors, of which {node.spare} is left free, "
        f"{memory:g} GiB, {network:g} Gbit/s and a disk of {node.disk_bytes_s / 1e6:g} MB/s. A worker is at most "
        f"{CPU:.0%} busy. A processor's hour is {node.usd_processor_hour:g} USD."
    )


def needs_table(needs: Sequence[Need]) -> str:
    """Return a column a load."""
    rows: list[tuple[str, Callable[[Need], str]]] = [
        ("requests/s", lambda n: f"{n.load.requests_per_s:,.0f}"),
        ("in flight", lambda n: f"{n.load.streams:,.0f}"),
        ("processors busy with workers", lambda n: f"{n.processors:,.1f}"),
        ("workers", lambda n: f"{n.workers:,}"),
        ("nodes", lambda n: f"{n.nodes:,}"),
        ("in flight on a node", lambda n: f"{n.load.streams / n.nodes:,.0f}"),
        ("network in, all nodes, Gbit/s", lambda n: f"{n.in_bytes_s * 8e-9:,.1f}"),
        ("network in, a node, Gbit/s", lambda n: f"{n.in_bytes_s * 8e-9 / n.nodes:,.2f}"),
        ("network out, all nodes, Gbit/s", lambda n: f"{n.out_bytes_s * 8e-9:,.1f}"),
        ("segments in on a node, 1/s", lambda n: f"{n.load.tokens_per_s / n.nodes:,.0f}"),
        ("messages to the parent, 1/s", lambda n: f"{messages(n):,.0f}"),
        ("the parent's processor", lambda n: f"{n.parent_busy:.0%}"),
        ("records to the parent's disk, MB/s", lambda n: f"{n.spool_bytes_s / 1e6:,.0f}"),
        ("records of the run, GB", lambda n: f"{n.spool_bytes_s * n.load.seconds / 1e9:,.0f}"),
        ("parent's memory at a level's end, GB", lambda n: f"{n.level_bytes / 1e9:,.1f}"),
        ("a level's summary, s", lambda n: f"{n.level_summary_s:,.0f}"),
        ("summary of the run, memory, GB", lambda n: f"{n.summary_bytes / 1e9:,.0f}"),
        ("clocks, of a window, ppm", lambda n: f"{n.clock_share * 1e6:.2g}"),
        ("the run, h", lambda n: f"{n.load.seconds / 3600:.1f}"),
        ("its processors, USD", lambda n: f"{n.usd:,.2f}"),
    ]
    heads = [f"{n.load.tokens_per_s / 1e6:g} M tok/s" for n in needs]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(needs)]
    return "\n".join(lines + [f"| {name} | " + " | ".join(map(cell, needs)) + " |" for name, cell in rows])


def messages(n: Need) -> float:
    """Reports and batches that reach the parent a second; a batch has up to 16 records."""
    return n.workers / PROGRESS_EVERY_S + max(n.workers / BATCH_EVERY_S, n.load.requests_per_s / 16)


def limits_table(c: Ceilings, load: Load, node: Node = Node()) -> str:
    """Return what there is once, by the rate at which it is used up."""
    found = sorted(((breaks_at(c, limit, load, node), limit) for limit in LIMITS), key=lambda each: each[0])
    lines = ["| what | used up at, tok/s | beyond it |", "|---|--:|---|"]
    return "\n".join(lines + [f"| {limit.name} | {rate(at)} | {limit.instead} |" for at, limit in found])


def rate(at: float) -> str:
    """
    >>> rate(1_234_000), rate(math.inf)
    ('1.2 M', 'never')
    """
    return "never" if math.isinf(at) else f"{at / 1e6:,.2g} M" if at < 1e8 else f"{at / 1e6:,.0f} M"
