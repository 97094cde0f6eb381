"""What two stacks have alike and what not, a row a fact: equal, allowed, unknown or fatal.

Work and hardware must be the same. How a server is set up (engine, precision, a flag, …) may differ: that is what a
comparison is about. With `vary` only what it names may. What is unknown may differ, and weakens every answer; seats
that were measured replace a setting that is not known. The other rows say what a reader must know of a side: its
errors, lost loads, transport, cache hits, and how it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Final, Literal, NamedTuple, Self, TypeAlias

import msgspec

from harness.analysis.stats import BY_CHANCE, known_mean, wilson
from harness.base.errors import HarnessError, nearest
from harness.base.terminal import cut
from harness.decide.compare.runs import ONE, TOGETHER, Run

State: TypeAlias = Literal["equal", "allowed", "unknown", "fatal"]
EQUAL: Final = "equal"
ALLOWED: Final = "allowed"
UNKNOWN: Final = "unknown"
FATAL: Final = "fatal"
LENGTHS = 0.02  # relative, by which realised lengths of two stacks may differ
_OF_REPEATS = 0.1  # and those of one stack's runs, which may have few requests each


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of all stacks; a value is None if it is unknown."""

    name: str
    values: list[str | None]  # in the order of the stacks; of repeats that differ all of them
    state: State
    why: str = ""


_SAME = {  # rows, and the fact of each
    "workload": "workload", "unit": "unit", "GPU": "gpu", "GPU count": "gpus", "power limit": "power_limit",
}  # fmt: skip
_METHOD = {  # rows of how it was measured, that may differ
    "measured by": ("measured_by", "another tool divides by its whole run, so its throughput is lower"),
    "transport": ("transport", "they cost the client unlike"),
}
_KEYS, _LETTERS = 4, 40  # keys, and letters of a value, that a row shows of a workload that differs
_CACHED, _CHUNKED = 0.05, 0.05  # from which on two shares of cached prompts, and two numbers of tokens a chunk, differ
# Rows, named like their facts.
VARIED = ("engine", "precision", "kv-dtype", "tp", "pools", "balance", "max-num-seqs", "start")


def varied(text: str | None) -> frozenset[str]:
    """Return the names of --vary; raise HarnessError for one that cannot vary.

    >>> sorted(varied("engine, kv_dtype"))
    ['engine', 'kv-dtype']
    """
    names = [name.strip().lower().replace("_", "-") for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in VARIED:
            raise HarnessError(f"'{name[:40]}' cannot vary", place="--vary", way_out=nearest(name, VARIED))
    return frozenset(names)


def rows(stacks: Sequence[Sequence[Run]], vary: Collection[str] = ()) -> list[Row]:
    """Return a row for each fact that should be alike between stacks; facts in `vary` (default VARIED) may differ."""
    workload, *others = [_row(name, fact, stacks) for name, fact in _SAME.items()]
    found = [_with_keys(workload, stacks), _lengths(stacks), _model(stacks), *others]
    found += [_method(name, *each, stacks) for name, each in _METHOD.items()]
    found += [_row(name, name.replace("-", "_"), stacks, allowed=not vary or name in vary) for name in VARIED]
    found = [_with_seats(row, stacks) if row.name == "max-num-seqs" else row for row in found]
    usual = {"pools": {TOGETHER}, "balance": {ONE}}
    found = [row for row in found if {*row.values} != usual.get(row.name)]
    more = [_flags(stacks), *(_on_average(each, stacks) for each in _MEANS), _errors(stacks), lost_loads(stacks)]
    return [*found, *filter(None, more)]


def differing(table: Sequence[Row]) -> list[Row]:
    """Return the rows that a comparison is about: how the servers are set up, if that differs."""
    return [row for row in table if row.state == ALLOWED and row.name in (*VARIED, "flags")]


def fatal(table: Sequence[Row]) -> list[str]:
    """Return the names of the rows that refuse a ranking."""
    return [row.name for row in table if row.state == FATAL]


def _row(name: str, fact: str, stacks: Sequence[Sequence[Run]], *, allowed: bool = False) -> Row:
    """Return one fact of all stacks as a row: equal, unknown, or different and with that allowed or fatal."""
    facts: list[list[str | None]] = [[getattr(run.facts, fact) for run in runs] for runs in stacks]
    values = [_joined(found) for found in facts]
    known = {value for found in facts for value in found if value is not None}
    if any(len({value for value in found if value is not None}) > 1 for found in facts):
        return Row(name=name, values=values, state=FATAL, why="repeats of one stack differ")
    if len(known) > 1:
        way = f"--vary {name} allows it too" if name in VARIED else ""
        return Row(name=name, values=values, state=ALLOWED if allowed else FATAL, why="" if allowed else way)
    state: State = UNKNOWN if any(value is None for found in facts for value in found) else EQUAL
    return Row(name=name, values=values, state=state)


def _with_keys(row: Row, stacks: Sequence[Sequence[Run]]) -> Row:
    """Return the row of the workload; if it differs, with the keys that differ in place of the digests."""
    each = [[run.facts.workload_fields for run in runs] for runs in stacks]
    every = [fields for found in each for fields in found if fields]
    names = _unlike(every)
    if row.state != FATAL or not names:
        return row

    def words(fields: Mapping[str, str]) -> str:
        more = f", and {len(names) - _KEYS} more" if len(names) > _KEYS else ""
        return ", ".join(f"{name} {cut(fields.get(name, 'none'), _LETTERS)}" for name in names[:_KEYS]) + more

    values = [_joined([words(fields) for fields in found if fields]) for found in each]
    why = "levels and rates have no load in common" if names == ["load"] else ""
    return msgspec.structs.replace(row, values=values, why=row.why or why)


def _unlike(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of settings that are not alike in all of them."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({setting.get(name) for setting in settings}) > 1]


def _with_seats(row: Row, stacks: Sequence[Sequence[Run]]) -> Row:
    """Return the row of max-num-seqs with measured seats in place of settings that are not known.

    Where every stack has measured seats the row is equal or not by these; otherwise it stays unknown.
    """
    if row.state != UNKNOWN:
        return row
    measured = [_joined([run.facts.seats for run in runs]) for runs in stacks]
    values = [a or b for a, b in zip(row.values, measured, strict=True)]
    if None in measured:
        return msgspec.structs.replace(row, values=values)
    numbers = {each for each in measured if each}
    return msgspec.structs.replace(row, values=values, state=EQUAL if len(numbers) == 1 else ALLOWED)


def _method(name: str, fact: str, why: str, stacks: Sequence[Sequence[Run]]) -> Row:
    """Return the row of a fact on how stacks were measured, which may differ; FATAL if only some are simulated."""
    row = _row(name, fact, stacks, allowed=True)
    if name == "measured by" and len({run.simulated for runs in stacks for run in runs}) > 1:
        return msgspec.structs.replace(row, state=FATAL, why="a simulation is no measurement")
    return msgspec.structs.replace(row, why=why) if row.state == ALLOWED else row


def _flags(stacks: Sequence[Sequence[Run]]) -> Row | None:
    """Compare the servers' settings, of one engine; None if they are alike or not known."""
    engines = {(run.facts.engine or "").partition(" ")[0] for runs in stacks for run in runs}
    each = [runs[0].facts.flags for runs in stacks]
    if len(engines) > 1 or not all(each):
        return None
    unlike = _unlike(each)
    if not unlike:
        return None
    values = [", ".join(f"{name} {flags.get(name, 'off')}" for name in unlike) for flags in each]
    return Row(name="flags", values=list(values), state=ALLOWED)


class _Mean(NamedTuple):
    """A row of what the runs of each stack have on average."""

    name: str
    of: Callable[[Run], float | None]
    text: str
    apart: Callable[[Sequence[float]], bool]
    why: str = ""  # why a difference matters


_MEANS = (
    _Mean("prompts from cache", lambda run: run.cached, "{:.1%}", lambda x: max(x) - min(x) > _CACHED,
          "cached prompt tokens cost no prefill"),
    _Mean("tokens a chunk", lambda run: run.tokens_per_chunk, "{:.3g}", lambda x: _apart(x) > _CHUNKED,
          "gaps between chunks are not gaps between tokens"),
    _Mean("template", lambda run: run.template_tokens, "{:g} tokens", lambda x: len({*x}) > 1),
)  # fmt: skip


def _on_average(figure: _Mean, stacks: Sequence[Sequence[Run]]) -> Row | None:
    """Return the row of a mean that stacks may differ in (each stack's runs averaged); None if no run has it."""
    each = [known_mean(figure.of(run) for run in runs) for runs in stacks]
    known = [mean for mean in each if mean is not None]
    if not any(known):
        return None
    apart = figure.apart(known)
    values = [None if mean is None else figure.text.format(mean) for mean in each]
    return Row(name=figure.name, values=values, state=ALLOWED if apart else EQUAL, why=figure.why if apart else "")


def _errors(stacks: Sequence[Sequence[Run]]) -> Row | None:
    """Return the row of failed requests, which differ where intervals of error rates do not meet; None: none failed."""
    each = [[run.failed for run in runs if run.failed and 0 <= run.failed[0] <= run.failed[1]] for runs in stacks]
    counts = [(sum(failed for failed, _ in found), sum(n for _, n in found)) for found in each]
    if not any(failed for failed, _ in counts):
        return None
    ends = [wilson(failed, n) for failed, n in counts]
    known = [end for end in ends if end is not None]
    apart = any(a[0] > b[1] for a in known for b in known)
    values = [f"{failed:,} of {n:,} requests" if n else None for failed, n in counts]
    why = "one stack fails more often" if apart else ""
    return Row(name="errors", values=values, state=ALLOWED if apart else EQUAL, why=why)


def _joined(values: Sequence[str | None]) -> str | None:
    return " / ".join(dict.fromkeys(value for value in values if value is not None)) or None


def _lengths(stacks: Sequence[Sequence[Run]]) -> Row:
    """Compare the mean tokens of the requests that were answered, of each stack over its runs.

    Lengths that are drawn at random differ by chance: means of one workload that are more than LENGTHS apart are alike
    within three standard errors, and within what repeats of one stack may differ by.
    """
    means = [_Lengths.of(runs) for runs in stacks]

    def row(state: State, why: str = "") -> Row:
        return Row(name="realised lengths", values=[mean.words() for mean in means], state=state, why=why)

    if (repeats_apart := max(mean.repeats_apart for mean in means)) > _OF_REPEATS:
        return row(FATAL, f"repeats of one stack differ by {repeats_apart:.1%}, more than {_OF_REPEATS:.0%}")
    inputs, outputs = [mean.inputs for mean in means], [mean.outputs for mean in means]
    apart = max(_apart(inputs), _apart(outputs))
    every = [run for runs in stacks for run in runs]
    if apart <= LENGTHS:
        return row(UNKNOWN if any(None in (run.input_tokens, run.output_tokens) for run in every) else EQUAL)
    own = [mean.own_inputs for mean in means]
    if None not in own and max(_apart(own), _apart(outputs)) <= LENGTHS:
        return row(ALLOWED, "they differ by the chat templates alone")
    of_inputs, of_outputs = [mean.inputs_se for mean in means], [mean.outputs_se for mean in means]
    works = {run.facts.workload for run in every}
    if len(works) == 1 and None not in works and _by_chance(inputs, of_inputs) and _by_chance(outputs, of_outputs):
        if apart <= _OF_REPEATS:
            return row(ALLOWED, f"they differ by {apart:.1%}, as means of so few requests do by chance")
        return row(FATAL, f"they differ by {apart:.1%}, which may be chance: measure more requests")
    return row(FATAL, f"they differ by {apart:.1%}, more than {LENGTHS:.0%}")


def _by_chance(means: Sequence[float | None], errors: Sequence[float | None]) -> bool:
    """Return whether every two means are alike, or no further apart than their standard errors explain."""
    for (a, of_a), (b, of_b) in combinations(zip(means, errors, strict=True), 2):
        explained = 0.0 if of_a is None or of_b is None else BY_CHANCE * math.hypot(of_a, of_b)
        if a is not None and b is not None and _apart([a, b]) > LENGTHS and abs(a - b) > explained:
            return False
    return True


class _Lengths(NamedTuple):
    """Mean tokens of a stack's requests, with their standard errors; None if they are not known."""

    inputs: float | None
    outputs: float | None
    inputs_se: float | None
    outputs_se: float | None
    own_inputs: float | None  # prompt tokens without the chat template
    repeats_apart: float  # the largest relative difference between two of its runs

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Self:
        inputs, outputs = [run.input_tokens for run in runs], [run.output_tokens for run in runs]
        own = [
            None if run.input_tokens is None or run.template_tokens is None else run.input_tokens - run.template_tokens
            for run in runs
        ]
        return cls(
            inputs=known_mean(inputs),
            outputs=known_mean(outputs),
            inputs_se=_error_of_mean([(run.place, run.input_tokens_se) for run in runs]),
            outputs_se=_error_of_mean([(run.place, run.output_tokens_se) for run in runs]),
            own_inputs=None if None in own else known_mean(own),
            repeats_apart=max(_apart(inputs), _apart(outputs)),
        )

    def words(self) -> str | None:
        if self.inputs is None or self.outputs is None:
            return None
        return f"{self.inputs:,.1f} in, {self.outputs:,.1f} out".replace(".0 ", " ")


def _error_of_mean(errors: Sequence[tuple[str, float | None]]) -> float | None:
    """Return the standard error of the mean of runs; those of one place share their requests, and so their error."""
    places = [place for place, _ in errors]
    of_place = dict(errors)
    known = [error * places.count(place) / len(places) for place, error in of_place.items() if error is not None]
    return math.hypot(*known) if len(known) == len(of_place) else None


def lost_loads(stacks: Sequence[Sequence[Run]]) -> Row | None:
    """Return the row of loads at which a stack failed, and whether another stack held such a load; None: no failure."""
    if not any(run.lost for runs in stacks for run in runs):
        return None
    each = [{load: how for run in runs for load, how in run.lost.items()} for runs in stacks]
    values = ["; ".join(f"{load:g}: {how}" for load, how in sorted(lost.items())) or "none" for lost in each]
    held = [{load.load for run in runs for load in run.loads} for runs in stacks]
    unlike = any(load in other for lost in each for load in lost for other in held)
    why = "a load that one stack held is lost to another" if unlike else ""
    return Row(name="lost loads", values=list(values), state=ALLOWED if unlike else EQUAL, why=why)


def _apart(values: Sequence[float | None]) -> float:
    """Return by what share the largest of the known values is above the smallest; 0 without any."""
    known = [value for value in values if value]
    return max(known) / min(known) - 1 if known else 0.0


def _model(stacks: Sequence[Sequence[Run]]) -> Row:
    """Return the row of the model, compared by parameter counts, else by names.

    The same names without counts are weak (unknown); other counts, other names and repeats that differ are fatal.
    """
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
