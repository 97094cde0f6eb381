"""The classes of a scenario's requests, its [[class]] tables: their fields, how they are read, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from harness.base import units
from harness.spec.bounds import Must, above_0, bound

MOST = 1_000
_LONGEST_NAME = 100  # characters


def length(text: str, place: str) -> int | str:
    """Return a fixed length as a number of tokens, or the text of a distribution unchanged if it is a valid one.

    >>> length("2k", ""), length("100..900", "")
    (2000, '100..900')
    """
    tokens: int | None = units.lengths(text, place).get("tokens")
    return text if tokens is None else tokens


# A number of tokens, or the text of a distribution (units.lengths).
_MOST = f"1 to {units.MOST_TOKENS:,} tokens"
PromptLength = (
    Annotated[int, bound(f"a prompt has {_MOST}", "give a number in that range", length, ge=1, le=units.MOST_TOKENS)]
    | str
)
AnswerLength = (
    Annotated[int, bound(f"an answer has {_MOST}", "give a number in that range", length, ge=1, le=units.MOST_TOKENS)]
    | str
)
Limit = Annotated[float, msgspec.Meta(extra={"read": units.limit})]  # limit of an SLO, seconds


class Cancel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests that their users give up: a share of them, after a time or after some tokens of the answer.

    Of a server that sends several tokens in a chunk these are chunks.
    """

    share: Annotated[float, bound("a share of requests is from 0 to 1", "write 0.05 for 5 %", ge=0, le=1)]  # of them
    after_s: Annotated[float, above_0("write it like '2s'", units.seconds)] | None = None  # from the send
    after_tokens: Annotated[int, bound("it must be 1 or more", "give 1 or more", ge=1)] | None = None  # output tokens


class ClassSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of request among others; its lengths replace the workload's."""

    name: str  # name in reports
    share: Annotated[float, bound("a share is not negative", "give 0 or more", ge=0)] = 1.0  # relative to the others'
    input: PromptLength = 512  # tokens of a prompt
    output: AnswerLength = 128  # tokens of an answer
    fit: bool = False  # its prompts are shortened to the server's context, and then come as much more often
    model: str = ""  # or the name of an adapter; "": the run's
    priority: int | None = None  # number by which the server orders requests; None: not sent
    slo: dict[str, Limit] = {}  # limits as [slo] has them; empty: the run's
    cancel: Cancel | None = None
    structured: bool = False  # whether an answer must be a JSON object: `response_format` is sent


def check(classes: Sequence[ClassSpec], must: Must, place: str) -> None:
    """Call `must` on the classes' number, names, limits, ways to give up and shares; it refuses what cannot be."""
    must(len(classes) <= MOST, "class", f"{len(classes):,} classes are too many", f"give {MOST:,} or less")
    names: dict[str, int] = {}
    for i, each in enumerate(classes):
        path = f"class[{i}]"
        plain = each.name.isprintable() and 0 < len(each.name.strip()) <= _LONGEST_NAME
        must(plain, f"{path}.name", "it is no name", f"one line of at most {_LONGEST_NAME} characters")
        first = names.setdefault(each.name, i)
        must(
            first == i, f"{path}.name", f"'{each.name}' is the name of class[{first}] already", "give each its own name"
        )
        for name, limit in each.slo.items():
            units.known_limit(name, f"{place}: $.{path}.slo")
            must(0 < limit < math.inf, f"{path}.slo.{name}", "a limit is above 0", "write it like '2s' or '50ms'")
        cancel = each.cancel
        must(
            cancel is None or (cancel.after_s is None) != (cancel.after_tokens is None),
            f"{path}.cancel", "a request is given up after a time or after some tokens", "give after_s or after_tokens",
        )  # fmt: skip
    must(
        not classes or sum(each.share for each in classes) > 0,
        "class", "the shares sum to nothing", "give one class a share above 0",
    )  # fmt: skip
