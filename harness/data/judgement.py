"""How results are judged: verdicts on a level or a run, how sure the answer is, which limits are met.

Code decides by these names, never by a message. On disk they are in lower case, and plain text, so that a summary of a
later version is read too. What each means stands in docs/definitions.md, The answer. Left out: when a verdict is
passed (`analysis.verdicts`), and what an invalid level may still be used for (`analysis.validity`).
"""

from __future__ import annotations

import enum

import msgspec


class Gravity(enum.StrEnum):
    """How serious a verdict is, the gravest first."""

    INVALID = enum.auto()  # voids it: the level, or the run
    DOUBT = enum.auto()  # its figures are to be read with care
    NOTE = enum.auto()  # information about the figures


class Code(enum.StrEnum):
    """What a verdict is about (docs/definitions.md, Verdicts)."""

    # of a level, by the load generator
    CLIENT_LIMITED = enum.auto()
    CLIENT_BUSY = enum.auto()
    WORKER_PAUSED = enum.auto()
    PARENT_PAUSED = enum.auto()
    MACHINE_SLEPT = enum.auto()
    IN_FLIGHT_LOW = enum.auto()
    SCHEDULE_NOT_KEPT = enum.auto()
    LATE_READS = enum.auto()
    # by the server and its GPUs
    ERRORS_ABOVE_1_PERCENT = enum.auto()
    ERROR_MESSAGE = "said"  # with the kind of error behind it, as in `said_timeout`: the first message of that kind
    STALLED = enum.auto()
    HUNG = enum.auto()
    SILENCE = enum.auto()
    UNSTABLE = enum.auto()
    SERVER_LUMPS = enum.auto()
    REPLICAS_UNEVEN = enum.auto()
    QUOTA_LIMITED = enum.auto()
    GPU_THROTTLED = enum.auto()
    ENGINES_IMBALANCED = enum.auto()
    GPU_POWER_CAPPED = enum.auto()
    HOST_BOUND = enum.auto()
    # by the tokens that were sent and came
    ITL_CHUNKED = enum.auto()
    UNPLACED_TOKENS = enum.auto()
    LATE_END = enum.auto()
    READ_WITH_CARE = "read"  # with a code of Record.noted behind it, as in `read_think`
    OUTPUT_LENGTH_OFF = enum.auto()
    INPUT_LENGTH_OFF = enum.auto()
    PREFIX_CACHE_HITS = enum.auto()
    TOKEN_COUNTS_DISAGREE = enum.auto()
    LENGTHS_OFF = enum.auto()
    SYNTHETIC_TEXT = enum.auto()
    ANSWERS_CHANGED = enum.auto()
    # by the length and the steadiness of its window
    WINDOW_TOO_SHORT = enum.auto()
    FIT_ERROR_ASSUMED = enum.auto()
    LITTLE_MISMATCH = enum.auto()
    NOT_SETTLED = enum.auto()
    NOT_PRECISE = enum.auto()
    CUT_SHORT = enum.auto()
    TRANSIENT_UNCHECKED = enum.auto()
    BY_COUNT = enum.auto()
    TOO_FEW_SAMPLES = enum.auto()
    TOO_FEW_STEPS = enum.auto()
    THROUGHPUT_DECAYS = enum.auto()
    LATENCY_CREEPS = enum.auto()
    MEMORY_GROWS = enum.auto()
    CHANGEPOINT = enum.auto()
    # of the levels together
    PLATEAU_NOT_REACHED = enum.auto()
    KNEE_NOT_IDENTIFIABLE = enum.auto()
    DRIFT = enum.auto()
    DIP_CONFIRMED = enum.auto()
    THROUGHPUT_COLLAPSES = enum.auto()
    ABOVE_PEAK = enum.auto()
    PREFILL_SLOPE_UNKNOWN = enum.auto()
    PREFILL_FLAT = enum.auto()
    PHASE_PLATEAU_NOT_REACHED = enum.auto()
    # of the run
    NODE_LOSS = enum.auto()
    NOTHING_MEASURED = enum.auto()
    INCOMPLETE = enum.auto()
    SPOOL_DAMAGED = enum.auto()
    SERVER_CHANGED = enum.auto()
    REQUESTS_LOST = enum.auto()
    SHARD_MISSING = enum.auto()
    CLOCKS_APART = enum.auto()
    RESUMED = enum.auto()
    RUN_NOTE = enum.auto()


class Verdict(msgspec.Struct, frozen=True):
    """A note, a doubt or an invalid: what was seen, where, and what to do about it."""

    code: str  # a Code
    level: str  # a Gravity
    message: str
    advice: str = ""
    at: int | float | None = None  # concurrency, or in open loop rate, of the level it touches; None: the whole run


def invalid(code: Code, message: str, advice: str = "", at: float | None = None) -> Verdict:
    return Verdict(code, Gravity.INVALID, message, advice, at)


def doubt(code: Code, message: str, advice: str = "", at: float | None = None) -> Verdict:
    return Verdict(code, Gravity.DOUBT, message, advice, at)


def note(code: Code, message: str, advice: str = "", at: float | None = None) -> Verdict:
    return Verdict(code, Gravity.NOTE, message, advice, at)


def rank(verdict: Verdict) -> int:
    """For sorting, the gravest first."""
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
