"""What must agree before two stacks are compared, a row a fact: equal, allowed, unknown or fatal.

Work, model, hardware and method must be the same. What a comparison may be about (engine, precision, …) is fatal too,
until `vary` names it. What is unknown may differ, and weakens every answer.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from harness.base.errors import HarnessError
from harness.data.views import Estimate
from harness.decide.compare.runs import Answers, Run

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


_SAME = {  # rows, and the fact of each
    "workload": "workload", "unit": "unit", "GPU": "gpu", "GPU count": "gpus", "power limit": "power_limit",
    "measured by": "measured_by", "transport": "transport",
}  # fmt: skip
VARIED = ("engine", "precision", "kv-dtype", "tp", "max-num-seqs", "start")  # rows, named like their facts


def varied(text: str | None) -> frozenset[str]:
    """Return the names of --vary; HarnessError for one that cannot vary.

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


def rows(stacks: Sequence[Sequence[Run]], vary: Collection[str] = (), *, answers: bool = False) -> list[Row]:
    """Return the fairness table of stacks, each with its runs; with `answers` these must be unchanged and as right."""
    found = [_row(name, fact, stacks) for name, fact in _SAME.items()]
    found[1:1] = [_lengths(stacks), _model(stacks)]
    found += [_answers(stacks)] if answers else []
    found += [_row(name, name.replace("-", "_"), stacks, allowed=name in vary) for name in VARIED]
    return [_with_seats(row, stacks) if row.name == "max-num-seqs" else row for row in found]


def fatal(table: Sequence[Row]) -> list[str]:
    """Return the names of the rows that refuse a ranking."""
    return [row.name for row in table if row.state == FATAL]


def _row(name: str, fact: str, stacks: Sequence[Sequence[Run]], *, allowed: bool = False) -> Row:
    each: list[list[str | None]] = [[getattr(run.facts, fact) for run in runs] for runs in stacks]
    values = [_joined(found) for found in each]
    known = {value for found in each for value in found if value is not None}
    if any(len({value for value in found if value is not None}) > 1 for found in each):
        return Row(name=name, values=values, state=FATAL, why="repeats of one stack differ")
    if len(known) > 1:
        way = f"--vary {name} allows it" if name in VARIED else ""
        return Row(name=name, values=values, state=ALLOWED if allowed else FATAL, why="" if allowed else way)
    state: State = UNKNOWN if any(value is None for found in each for value in found) else EQUAL
    return Row(name=name, values=values, state=state)


def _with_seats(row: Row, stacks: Sequence[Sequence[Run]]) -> Row:
    """Return the row with measured seats where the setting is unknown; they decide nothing, for they may be KV's."""
    measured = [_joined([run.facts.seats for run in runs]) for runs in stacks]
    return msgspec.structs.replace(row, values=[a or b for a, b in zip(row.values, measured, strict=True)])


def _joined(values: Sequence[str | None]) -> str | None:
    return " / ".join(dict.fromkeys(value for value in values if value is not None)) or None


def _lengths(stacks: Sequence[Sequence[Run]]) -> Row:
    """Compare the mean tokens of the requests that were answered."""
    every = [run for runs in stacks for run in runs]
    inputs, outputs = [run.input_tokens for run in every], [run.output_tokens for run in every]
    apart = max(_apart(inputs), _apart(outputs))
    values = [_words(runs) for runs in stacks]
    if apart > LENGTHS:
        why = f"they differ by {apart:.1%}, more than {LENGTHS:.0%}"
        return Row(name="realised lengths", values=values, state=FATAL, why=why)
    state: State = UNKNOWN if None in (*inputs, *outputs) else EQUAL
    return Row(name="realised lengths", values=values, state=state)


def lost_loads(stacks: Sequence[Sequence[Run]]) -> Row | None:
    """Compare the loads that a stack failed at, without which it would look good; None where nothing failed."""
    if not any(run.lost for runs in stacks for run in runs):
        return None
    each = [{load: how for run in runs for load, how in run.lost.items()} for runs in stacks]
    values = ["; ".join(f"{load:g}: {how}" for load, how in sorted(lost.items())) or "none" for lost in each]
    held = [{each.load for run in runs for each in run.loads} for runs in stacks]
    unlike = any(load in other for lost in each for load in lost for other in held)
    why = "a load that one stack held is lost to another" if unlike else ""
    return Row(name="lost loads", values=list(values), state=FATAL if unlike else EQUAL, why=why)


def _answers(stacks: Sequence[Sequence[Run]]) -> Row:
    """Compare answers under load and without it, by the canaries; other questions cannot be compared."""
    values = [_answer_words([run.answers for run in runs if run.answers]) or None for runs in stacks]
    found = [[run.answers for run in runs if run.answers] for runs in stacks]
    every = [each for runs in found for each in runs]
    why = ""
    if any(each.changed_at is not None for each in every):
        why = "answers of a stack changed under load"
    elif len({each.questions for each in every}) > 1:
        why = "the stacks were asked other questions"
    elif _less_right(found):
        why = "one stack is right less often than another"
    if why:
        return Row(name="answers", values=values, state=FATAL, why=why)
    unknown = any(run.answers is None for runs in stacks for run in runs)
    return Row(name="answers", values=values, state=UNKNOWN if unknown else EQUAL)


def _answer_words(found: Sequence[Answers]) -> str:
    """Return what a stack's runs say of their answers, each once.

    >>> _answer_words([Answers(changed_at=32.0, agreement=1.0, accuracy=None)])
    'changed at 32'
    """
    words = []
    for each in found:
        right = [f"{each.accuracy.mean:.1%} right"] if each.accuracy and each.accuracy.mean is not None else []
        words.append(", ".join([*right, "unchanged" if each.changed_at is None else f"changed at {each.changed_at:g}"]))
    return " / ".join(dict.fromkeys(words))


def _less_right(stacks: Sequence[Sequence[Answers]]) -> bool:
    """Return whether one stack's accuracies lie outside the intervals of all of another, and theirs outside its."""
    intervals = [
        [each.accuracy for each in runs if each.accuracy and each.accuracy.mean is not None and each.accuracy.ci95]
        for runs in stacks
    ]
    return any(
        one and other and all(_apart_beyond(a, b) for a in one for b in other)
        for one, other in itertools.combinations(intervals, 2)
    )


def _apart_beyond(a: Estimate, b: Estimate) -> bool:
    """Return whether two accuracies differ by more than their half intervals together (Newcombe 1998, method 10).

    >>> _apart_beyond(Estimate(0.9, (0.82, 0.95)), Estimate(0.7, (0.6, 0.78)))
    True
    """
    high, low = (a, b) if (a.mean or 0) >= (b.mean or 0) else (b, a)
    if high.mean is None or low.mean is None or high.ci95 is None or low.ci95 is None:
        return False
    return high.mean - low.mean > math.hypot(high.mean - high.ci95[0], low.ci95[1] - low.mean)


def _words(runs: Sequence[Run]) -> str | None:
    """Return the tokens in and out of a stack, the mean of its runs.

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
    """Return the largest relative difference of the known ones."""
    known = [value for value in values if value]
    return max(known) / min(known) - 1 if known else 0.0


def _model(stacks: Sequence[Sequence[Run]]) -> Row:
    """Compare the models by their parameters; by their names where these are not known, which then weakens."""
    counts = [{run.facts.parameters for run in runs} for runs in stacks]
    names = [_joined([run.facts.model for run in runs]) for runs in stacks]
    values = [_model_words(found, name) for found, name in zip(counts, names, strict=True)]
    every = set().union(*counts)
    if None not in every:
        return Row(name="model", values=values, state=EQUAL if len(every) == 1 else FATAL)
    if len(every - {None}) > 1:
        return Row(name="model", values=values, state=FATAL)
    if any(len({run.facts.model for run in runs} - {None}) > 1 for runs in stacks):
        return Row(name="model", values=values, state=FATAL, why="the repeats of one stack differ")
    if len({name for name in names if name}) > 1:
        return Row(name="model", values=values, state=FATAL, why="other names, and no parameters to tell by")
    return Row(name="model", values=values, state=UNKNOWN, why="by its name alone" if None not in names else "")


def _model_words(counts: Collection[float | None], name: str | None) -> str | None:
    known = sorted({count for count in counts if count is not None})
    words = " / ".join(f"{count / 1e9:.3g}e9 parameters" for count in known)
    return ", ".join(part for part in (name, words) if part) or None
