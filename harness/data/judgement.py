"""How results are judged: verdicts on a level or a run, how sure the answer is, which limits are met.

Code decides by these names, never by a message. On disk they are in lower case, and plain text, so that a summary of a
later version is read too. What each means is in docs/definitions.md, The answer. Left out: the rules that make
verdicts, and what an invalid level is still good for (`analysis.rules`).
"""

from __future__ import annotations

import enum

import msgspec


class Gravity(enum.StrEnum):
    """How serious a verdict is, the gravest first."""

    INVALID = enum.auto()  # voids it: the level, or the run
    DOUBT = enum.auto()  # its figures are to be read with care
    NOTE = enum.auto()  # information about the figures


INVALID, DOUBT, NOTE = Gravity


class Verdict(msgspec.Struct, frozen=True):
    """A note, a doubt or an invalid: what was seen, where, and what to do about it."""

    code: str  # code of a rule, perhaps one of another version
    level: str  # a Gravity
    message: str
    advice: str = ""
    at: int | float | None = None  # concurrency, or in open loop rate, of the level it touches; None: the whole run


def rank(verdict: Verdict) -> int:
    """Return where a verdict is in an order, the gravest first."""
    return list(Gravity).index(Gravity(verdict.level))


class CurveState(enum.StrEnum):
    """What a fitted curve shows of its knee."""

    FOUND = enum.auto()
    PROVISIONAL = enum.auto()
    BEYOND = enum.auto()
    NONE = enum.auto()


class Outcome(enum.StrEnum):
    """Of one limit of an SLO; of all together the first of these that occurs."""

    MISSED = enum.auto()
    UNRESOLVED = enum.auto()
    MET = enum.auto()


AGREES = (0.75, 1.15)  # measured over predicted, from where to where they agree


class Cause(enum.StrEnum):
    """Why a measurement leaves the prediction."""

    BANDWIDTH = "bandwidth"
    COMPUTE = "compute (prefill)"
    SEQUENCES = "max_num_seqs"
    KV_MEMORY = "KV memory"
    CLIENT = "client"
    SOFTWARE = "software or host"
    NONE = "none"
