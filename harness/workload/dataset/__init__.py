"""Requests that users really made, from files: how a format is declared, and the row that it makes of a record.

How a file holds its records is one question (`files`), what a record means is another: each format is a `Reader`, in
`READERS` of a module of this package, or under its name among the entry points `knee.datasets` of another package.
`dataset` opens a file by them; `table` writes the rows where any worker can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from harness.workload.request import Message

BLOCK = 512  # tokens of one hash if a file says none: Mooncake's, github.com/kvcache-ai/Mooncake, FAST25-release
MOST_TOKENS = 100_000_000  # most tokens of a prompt or answer: ten times the longest context that a model has
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
PromptTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]  # no prompt has none
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


def seconds(moment: datetime) -> float:
    """Return a moment in seconds since 1970; without a zone it is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """One request as the file has it, before anybody decides how it is sent; None is what the file does not say.

    Rows of one session follow each other. Their prompts are what each adds: the whole prompt of a later one is the
    prompts and answers of those before it, and then its own.
    """

    place: str = ""  # in the file: its line and byte, or its row
    prompt: str | tuple[Message, ...] | None = None
    answer: str | None = None  # recorded text; this request's answer should have its length
    input_tokens: int | None = None  # tokens of the whole prompt
    output_tokens: int | None = None
    at_s: float | None = None  # time by any clock; once it is read, since the first row
    session: str = ""  # "": it belongs to none
    after: tuple[int, ...] | None = None  # rows of its session, from 0 on, that ended before; None: the one before
    pause_s: float | None = None  # from the end of the last of those, or its session's start, to its own beginning
    hashes: tuple[int, ...] | None = None  # one for each block of the whole prompt: equal ones are equal texts
    tools: tuple[dict[str, Any], ...] | None = None  # definitions, as OpenAI's chat has them
    whole: bool = False  # the prompt is all that is sent, though it is of a session
    notes: tuple[str, ...] = ()  # what of the row is left out, or is read in one of several ways
    at_ms: float | None = None  # in place of at_s; in seconds if the first row's can only be those since 1970
    block: int = BLOCK  # tokens of each block that has a hash
    scope: str = ""  # a hash means the same within it: a trace, or "" for the whole file
    model: str = ""  # name of the model that it was sent to; "": the file does not say
    cancel_s: float | None = None  # after its send it was given up; None: it was not
    took_s: float | None = None  # seconds until it was over: from then on the next one of its session pauses


Rows = Callable[[Any, str], Iterable[Row]]


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A format: what its records are, how a file of them is recognised, and how a record is read.

    A record is decoded strictly. `rows` raises ValueError for a broken one.
    """

    name: str
    what: str  # one record is, in words
    keys: tuple[frozenset[str], ...] = ()  # a record has one of these sets of fields; (): the format has to be named
    record: type[Any]
    rows: Rows = lambda row, _: (row,)  # the requests of a record at a place
    begin: Callable[[], Rows] | None = None  # in its place: reads a file's records, and remembers those before
    # If given, the records are read together, not one by one; what it yields are rows already.
    gather: Callable[[Iterator[tuple[str, Any]]], Iterator[tuple[str, Any]]] | None = None
    complete: bool = False  # no field that the record does not have can be work
