"""What must agree before two stacks are compared, a row a fact: equal, allowed, unknown or fatal.

Work, model, hardware and method must be the same. What a comparison may be about (engine, precision, …) is fatal too,
until `vary` names it. What is unknown may differ, and weakens every answer.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from harness.decide.compare.runs import Facts, Run
from harness.errors import HarnessError

State: TypeAlias = Literal["equal", "allowed", "unknown", "fatal"]
EQUAL: Final = "equal"
ALLOWED: Final = "allowed"
UNKNOWN: Final = "unknown"
FATAL: Final = "fatal"
LENGTHS = 0.02  # relative, by which realised lengths may differ


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of all stacks; a value is None where it is unknown."""

    name: str
    values: list[str | None]  # in the order of the stacks; of repeats that differ all of them
    state: State
    why: str = ""


_SAME: tuple[tuple[str, Callable[[Facts], str | None]], ...] = (
    ("workload", lambda facts: facts.workload),
    ("GPU", lambda facts: facts.gpu),
    ("GPU count", lambda facts: facts.gpus),
    ("power limit", lambda facts: facts.power_limit),
    ("measured by", lambda facts: facts.measured_by),
)
VARIED: Mapping[str, Callable[[Facts], str | None]] = {
    "engine": lambda facts: facts.engine,
    "precision": lambda facts: facts.precision,
    "kv-dtype": lambda facts: facts.kv_dtype,
    "tp": lambda facts: facts.tp,
    "max-num-seqs": lambda facts: facts.max_num_seqs,
    "start": lambda facts: facts.start,
}


def varied(text: str | None) -> frozenset[str]:
    """The names of --vary; HarnessError for one that cannot vary.

    >>> sorted(varied("engine, kv_dtype"))
    ['engine', 'kv-dtype']
    """
    names = [name.strip().lower().replace("_", "-") for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in VARIED:
            near = difflib.get_close_matches(name, VARIED, 1)
            way_out = f"did you mean '{near[0]}'?" if near else f"name some of {', '.join(VARIED)}"
            raise HarnessError(f"'{name[:40]}' cannot vary", place="--vary", way_out=way_out)
    return frozenset(names)


def rows(stacks: Sequence[Sequence[Run]], vary: Collection[str] = ()) -> list[Row]:
    """The fairness table of stacks, each with its runs."""
    found = [_row(name, stacks, of) for name, of in _SAME]
    found[1:1] = [_lengths(stacks), _model(stacks)]
    return found + [_row(name, stacks, of, allowed=name in vary) for name, of in VARIED.items()]


def fatal(table: Sequence[Row]) -> list[str]:
    """The names of the rows that refuse a ranking."""
    return [row.name for row in table if row.state == FATAL]


def _row(
    name: str, stacks: Sequence[Sequence[Run]], of: Callable[[Facts], str | None], *, allowed: bool = False
) -> Row:
    each = [[of(run.facts) for run in runs] for runs in stacks]
    values = [_joined(found) for found in each]
    known = {value for found in each for value in found if value is not None}
    if any(len({value for value in found if value is not None}) > 1 for found in each):
        return Row(name=name, values=values, state=FATAL, why="repeats of one stack differ")
    if len(known) > 1:
        way = f"--vary {name} allows it" if name in VARIED else ""
        return Row(name=name, values=values, state=ALLOWED if allowed else FATAL, why="" if allowed else way)
    state: State = UNKNOWN if any(value is None for found in each for value in found) else EQUAL
    return Row(name=name, values=values, state=state)


def _joined(values: Sequence[str | None]) -> str | None:
    return " / ".join(dict.fromkeys(value for value in values if value is not None)) or None


def _lengths(stacks: Sequence[Sequence[Run]]) -> Row:
    """Mean tokens of the requests that were answered."""
    every = [run for runs in stacks for run in runs]
    inputs, outputs = [run.input_tokens for run in every], [run.output_tokens for run in every]
    apart = max(_apart(inputs), _apart(outputs))
    values = [_words(runs) for runs in stacks]
    if apart > LENGTHS:
        why = f"they differ by {apart:.1%}, more than {LENGTHS:.0%}"
        return Row(name="realised lengths", values=values, state=FATAL, why=why)
    state: State = UNKNOWN if None in (*inputs, *outputs) else EQUAL
    return Row(name="realised lengths", values=values, state=state)


def _words(runs: Sequence[Run]) -> str | None:
    """Tokens in and out of a stack, the mean of its runs.

    >>> _words([])
    """
    known = [
        (run.input_tokens, run.output_tokens)
        for run in runs
        if run.input_tokens is not None and run.output_tokens is not None
    ]
    if not known:
        return None
    P, G = (math.fsum(values) / len(known) for values in zip(*known, strict=True))
    return f"{P:,.1f} in, {G:,.1f} out".replace(".0 ", " ")


def _apart(values: Sequence[float | None]) -> float:
    """Largest relative difference of the known ones."""
    known = [value for value in values if value]
    return max(known) / min(known) - 1 if known else 0.0


def _model(stacks: Sequence[Sequence[Run]]) -> Row:
    """The model by its parameters; by its name where they are not known, which then weakens."""
    counts = [{run.facts.parameters for run in runs} for runs in stacks]
    names = [_joined([run.facts.model for run in runs]) for runs in stacks]
    values = [_model_words(found, name) for found, name in zip(counts, names, strict=True)]
    every = set().union(*counts)
    if None not in every:
        return Row(name="model", values=values, state=EQUAL if len(every) == 1 else FATAL)
    if len(every - {None}) > 1:
        return Row(name="model", values=values, state=FATAL)
    if len({name for name in names if name}) > 1:
        return Row(name="model", values=values, state=FATAL, why="other names, and no parameters to tell by")
    return Row(name="model", values=values, state=UNKNOWN, why="by its name alone" if None not in names else "")


def _model_words(counts: Collection[float | None], name: str | None) -> str | None:
    known = sorted({count for count in counts if count is not None})
    words = " / ".join(f"{count / 1e9:.3g}e9 parameters" for count in known)
    return ", ".join(part for part in (name, words) if part) or None
