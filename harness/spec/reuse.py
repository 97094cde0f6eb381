"""The tables of a workload: [workload.prefix], [workload.session], [[workload.node]], [workload.dataset]; and images.

A prefix is what several prompts begin with. A session is a user's turns, each with all that came before it. Nodes are
the requests of an agent's task, each with those that it waits for. What is sent of them `workload` makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

import msgspec

from harness.base import units
from harness.base.errors import HarnessError, nearest
from harness.spec.bounds import Must, Read, above_0, bound

IMAGE_SIZE = "512x512"  # default size
LARGEST_SIDE = 4096  # pixels of a side


MOST_REQUESTS = 1_000  # most requests of a session or a graph
MOST_PREFIXES = 1_000_000

_SHARE = bound("a share of requests is above 0, at most 1", "write 0.8 for 80 %", gt=0, le=1)
_DURATION = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:us|µs|ms|s|min|m|h)?")
_ZIPF = bound("an exponent is from 0 to 10", "0 draws all alike often, 1 is usual", ge=0, le=10)
_PAUSE = bound("a pause is not negative", "write it like '2s'", ge=0)


def _or_law(read: Callable[[str], float]) -> Read:
    """Return a reader that turns a text into a number by `read`, and returns a text that `read` refuses unchanged."""

    def number(text: str, place: str) -> float | str:
        try:
            return read(text)
        except HarnessError:
            return text

    return number


def _number(most: int, least: int = 1, read: Read = units.count) -> msgspec.Meta:
    return bound(f"a number from {least} to {most:,} is expected", "give one", read, ge=least, le=most)


# A number, or the text of a distribution.
Length = Annotated[int, _number(units.MOST_TOKENS, read=_or_law(units.count))] | str
Turns = Annotated[int, _number(MOST_REQUESTS, read=_or_law(units.count))] | str
Pause = Annotated[float, _PAUSE] | str  # seconds
Think = Annotated[float, bound("a pause is not negative", "write it like '2s'", _or_law(units.seconds), ge=0)] | str
Tokens = Annotated[int, _number(units.MOST_TOKENS)]


class PrefixSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts begin with, in front of their own tokens."""

    tokens: Tokens  # length of each prefix
    pool: Annotated[int, _number(MOST_PREFIXES)] = 1  # number of different prefixes
    share: Annotated[float, _SHARE] = 1.0  # share of the requests that begin with a prefix
    zipf: Annotated[float, _ZIPF] = 0.0  # the k-th of the pool is drawn in proportion to 1/k^zipf


class SubAgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Agents that a turn of a session sends out, side by side; its next turn waits for them and has their answers."""

    share: Annotated[float, _SHARE]  # share of the turns that send sub-agents out
    count: Turns = 1  # how many at once
    turns: Turns = 1  # turns of each, in a conversation of its own that begins with the session's system prompt


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A user's turns, or an agent's; the answers' length is the workload's."""

    turns: Turns  # turns of each session
    user_tokens: Length  # tokens of each message
    think: Think = 0.0  # from the end of an answer to the next message
    history: Literal["live", "scripted"] = "live"  # answers in the history: the server's own, or texts of their length
    system_tokens: Annotated[int, _number(units.MOST_TOKENS, 0)] = 0  # the same for all sessions
    # UNSET, not None: so the digest of a scenario without them stays what it was before there were any.
    sub_agents: SubAgentSpec | msgspec.UnsetType = msgspec.UNSET  # then a level counts agents


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of request of a task; its lengths replace the workload's."""

    name: str  # name by which `after` of other requests refers to it
    after: list[str] = []  # the requests that it waits for; it goes on with the conversation of the first
    input_tokens: Length | None = None  # tokens of its own message
    output_tokens: Length | None = None  # tokens of its answer
    pause: Think = 0.0  # from the end of the last that it waits for: a tool's time
    fan_out: Annotated[int, _number(MOST_REQUESTS)] = 1  # how many of it are sent at once
    fresh: bool = False  # begins a conversation of its own, as a sub-agent does


def pauses(pause: float | str, place: str = "") -> dict[str, Any] | None:
    """Return a pause as the plain data of a distribution of whole milliseconds (units.lengths); None for no pause.

    >>> pauses(1.5), pauses("500ms..2s"), pauses(0)
    ({'kind': 'fixed', 'tokens': 1500}, {'kind': 'range', 'low': 500, 'high': 2000}, None)
    """
    if isinstance(pause, str):
        try:
            return units.lengths(_DURATION.sub(lambda found: f"{units.seconds(found[0]) * 1000:.12g}", pause), place)
        except HarnessError:
            way_out = "write it like '2s', '500ms..5s' or 'lognormal(8s,4s)'"
            raise HarnessError(f"{pause!r} is no pause", place=place, way_out=way_out) from None
    return {"kind": "fixed", "tokens": max(1, round(pause * 1000))} if pause else None


def check(
    prefix: PrefixSpec | None, session: SessionSpec | None, nodes: Sequence[NodeSpec], must: Must, place: str
) -> None:
    """Refuse a session with a graph of nodes, wrong lengths or pauses in either, and a graph with a circle."""
    one = "leave one of them out"
    must(session is None or not nodes, "workload.node", "a session and a graph exclude each other", one)
    if session is not None:
        path = "workload.session"
        units.lengths(session.turns, f"{place}: $.{path}.turns")
        units.lengths(session.user_tokens, f"{place}: $.{path}.user_tokens")
        pauses(session.think, f"{place}: $.{path}.think")
        if session.sub_agents:
            for name in ("count", "turns"):
                units.lengths(getattr(session.sub_agents, name), f"{place}: $.{path}.sub_agents.{name}")
        twice = prefix is not None and session.system_tokens > 0
        must(not twice, f"{path}.system_tokens", "the prefix is the system prompt already", one)
    for i, node in enumerate(nodes):
        path = f"workload.node[{i}]"
        must(node.name.isprintable() and bool(node.name.strip()), f"{path}.name", "it is no name", "write one line")
        for name, length in (("input_tokens", node.input_tokens), ("output_tokens", node.output_tokens)):
            units.lengths(length or 1, f"{place}: $.{path}.{name}")
        pauses(node.pause, f"{place}: $.{path}.pause")
    requests = sum(node.fan_out for node in nodes)
    fact = f"a task of {requests:,} requests is more than {MOST_REQUESTS:,}"
    must(requests <= MOST_REQUESTS, "workload.node", fact, "lower fan_out")
    names = [node.name for node in nodes]
    order(names, {node.name: node.after for node in nodes}, path="$.workload.node", place=place)


def order(names: Sequence[str], after: Mapping[str, Sequence[str]], *, path: str, place: str = "") -> list[str]:
    """Return the names in an order in which each comes behind those it waits for, after[name]; else HarnessError.

    >>> order(["join", "left", "right", "root"],
    ...     {"join": ["left", "right"], "left": ["root"], "right": ["root"]}, path="$.node")
    ['root', 'left', 'right', 'join']
    """

    def refused(fact: str, way_out: str) -> HarnessError:
        return HarnessError(f"{fact} at {path}", place=place, way_out=way_out)

    for i, name in enumerate(names):
        if name in names[:i]:
            raise refused(f"the name '{name}' is given twice", "give each a name of its own")
        parents = after.get(name, ())
        for j, parent in enumerate(parents):
            if parent not in names:
                raise refused(f"'{name}' waits for '{parent}', which is not there", nearest(parent, names))
            if parent in parents[:j]:
                raise refused(f"'{name}' waits for '{parent}' twice", "name it once")
    try:
        return list(TopologicalSorter({name: after.get(name, ()) for name in names}).static_order())
    except CycleError as error:
        circle: list[str] = error.args[1]
        raise refused(f"{' → '.join(circle)} is a circle", "let one of them wait for none of the others") from None


_IMAGE_SIZE = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})")


def image_size(text: str, place: str) -> tuple[int, int]:
    """Return width and height, pixels; raise HarnessError if the text is no size.

    >>> image_size("640x480", "test")
    (640, 480)
    """
    match = _IMAGE_SIZE.fullmatch(text)
    sides = (int(match[1]), int(match[2])) if match else (LARGEST_SIDE + 1, 0)
    if max(sides) > LARGEST_SIDE:
        raise HarnessError(
            f"not a size of at most {LARGEST_SIDE} pixels a side: {text[:40]!r}",
            place=place,
            way_out="write it like '512x512'",
        )
    return sides


class DatasetSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests from a file, in its order, and again from the first. What is below the line a run fills in."""

    path: str  # a file of one of the formats of `workload.dataset`, a result folder, or a name like hf:org/name
    format: str | None = None  # format of the file; None: recognised by its contents
    fields: dict[str, str] = {}  # names of its columns by what they mean, like prompt = "question"; no format then
    skip_broken: bool = False  # leave broken rows out, and count them
    skip_longer: Annotated[int, above_0("give a number of tokens")] | None = None  # of prompt and answer: left out
    sessions: bool = False  # a session's rows are sent one after the other; else each row by itself
    history: Literal["live", "scripted"] = "live"  # a session's answers: the server's own, or recorded ones
    think: Pause = 0.0  # pause in a session before a row whose file says none
    pauses: Literal["recorded", "drawn"] = "recorded"  # a session's pauses: the file's, or all by `think`
    # ---
    requests: int | None = None
    skipped: int = 0
    input_tokens: float | None = None  # mean of its prompts
    output_tokens: float | None = None  # mean of its answers
    revision: str | None = None  # revision of a data set with a name
    licence: str | None = None  # licence on the data set's card
    agents: bool = False  # its sessions say which request waits for which


def check_dataset(spec: DatasetSpec, must: Must, place: str) -> None:
    """Refuse session fields of a dataset that is not sent as sessions, fields with a format, and pauses without law."""
    usual = DatasetSpec(path="")
    for key in ("history", "think", "pauses"):
        asked = spec.sessions or getattr(spec, key) == getattr(usual, key)
        must(asked, f"workload.dataset.{key}", "rows are sent by themselves", "add sessions = true")
    one = not (spec.format and spec.fields)
    must(one, "workload.dataset.fields", "its format has names of its own", "leave one of them out")
    drawn = pauses(spec.think, f"{place}: $.workload.dataset.think")
    said = spec.pauses == "recorded" or drawn is not None
    must(said, "workload.dataset.pauses", "there is nothing to draw them from", 'add think, like "lognormal(8s,8s)"')
