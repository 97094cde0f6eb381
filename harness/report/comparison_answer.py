"""The answer of a comparison in words: who is faster and where, what weakens that, and what would settle it."""

from __future__ import annotations

from harness.decide.compare.comparison import Comparison, OddRun
from harness.decide.compare.fairness import ALLOWED, Row
from harness.decide.compare.pairs import Crossover, Pair, Ratio
from harness.decide.compare.spread import ALPHA
from harness.report.document import Fact
from harness.report.format import confidence, joined, listed, load, number, percent, plain

UNCERTAIN = "too uncertain to say"
_ANSWER = "Answer"
_DIFFER = ("faster", "turns_over")  # outcomes of a pair
_AGAIN = "look for what disturbs the machine"
_FAR = 1.2  # between the ratios at two loads, from which on both are named
_SIDES = ("below", "above")
_TOLD = ("realised lengths", "measured by", "prompts from cache", "errors", "lost loads")  # that a ranking is read with


def sentence(found: Comparison) -> str:
    """Return the first answer in a line."""
    fact = answer(found)[0]
    return fact.value if fact.label == _ANSWER else f"{fact.label}: {fact.value}"


def answer(found: Comparison) -> list[Fact]:
    """Return a line for each pair, those that differ before the others, and what weakens all of them."""
    out = []
    if found.fatal:
        unlike = [_unlike(row) for row in found.fairness if row.name in found.fatal]
        out.append(Fact("Forced" if found.forced else "Refused", f"not alike: {listed(unlike)}", _way_out(found)))
    if not found.refused:
        out += [_pair(found, pair) for pair in sorted(found.pairs, key=lambda pair: pair.outcome not in _DIFFER)]
    out += [odd_run(odd, stack.label) for stack in found.stacks for odd in stack.odd]
    if found.refused:
        return out
    out += [Fact("Differ", _unlike(row), "") for row in found.fairness if row.name in found.differ]
    out += [
        Fact(row.name.capitalize(), _unlike(row), row.why)
        for row in found.fairness
        if row.name in _TOLD and row.state == ALLOWED
    ]
    if found.unknown:
        out.append(Fact("Unknown", listed(found.unknown), "they may differ, which weakens every answer"))
    return out


def _unlike(row: Row) -> str:
    """Return a row's name with the stacks' values."""
    return f"{row.name} ({' / '.join(plain(value) if value else 'unknown' for value in row.values)})"


def _way_out(found: Comparison) -> str:
    if found.forced:
        return "ranked all the same, as --force asks"
    hints = [row.why for row in found.fairness if row.name in found.fatal and row.why]
    return joined(*hints, "no ranking; --force ranks all the same")


def _pair(found: Comparison, pair: Pair) -> Fact:
    """Return who is faster, or why nobody is shown to be."""
    a, b, apart = plain(pair.a), plain(pair.b), pair.b_over_a
    if apart is None:
        return Fact(_ANSWER, f"{b} against {a}: not ranked", "their levels do not reach over a common concurrency")
    figures = f"{b} has {apart.value:.3f} × the throughput of {a}"
    ends = interval_of(apart, pair.alpha)
    over = f"geometric mean over {load(False, *(level.concurrency for level in pair.levels))}"
    counts = [f"{stack.runs} of {plain(stack.label)}" for stack in found.stacks if stack.label in (pair.a, pair.b)]
    basis = joined(over, f"runs: {listed(counts)}{', in pairs' if pair.rounds else ''}", _usual(pair))
    if pair.interpolated:
        basis = joined("no load in common: between their levels by straight lines", basis)
    match pair.outcome:
        case "faster":
            return Fact(_ANSWER, f"{plain(pair.faster)} is faster: {figures} ({ends})", joined(_range(pair), basis))
        case "turns_over" if pair.turnover is not None:
            value = joined(_leads(pair.turnover), f"they cross {_where(pair.turnover)}")
            return Fact(_ANSWER, value, joined(f"over all loads {figures} ({ends})", basis))
        case "no_difference":
            least = f"these data could have shown a difference of {percent((pair.detectable or 1) - 1)}"
            return Fact(_ANSWER, f"no difference shown: {figures} ({ends})", joined(least, basis))
        case "too_uncertain":
            return Fact(_ANSWER, f"too uncertain to say: {figures}", joined(_settles(pair), basis))
        case _:
            least = f"these data could have shown a difference of {percent((pair.detectable or 1) - 1)}"
            return Fact(_ANSWER, f"not ranked: {figures} ({ends})", joined(least, _settles(pair), basis))


def interval_of(of: Ratio, alpha: float = ALPHA) -> str:
    """Return the interval of a ratio, or that it says nothing."""
    return UNCERTAIN if of.uncertain else f"{(1 - alpha) * 100:.3g} % interval {ends_of(of.ci95)}"


def _usual(pair: Pair) -> str:
    """Return that no repeats say how runs differ."""
    if pair.b_over_a is None or pair.b_over_a.known:
        return ""
    return f"no stack has repeats: runs are taken to differ by {percent(pair.run_spread)}, as is usual"


def _settles(pair: Pair) -> str:
    """Return how many runs would show a difference of the size that was found."""
    if pair.enough_runs is None:
        return f"for less: more runs of each, in turn, or {_AGAIN}"
    return f"{pair.enough_runs} runs of each, in turn, would show a difference of this size"


def _range(pair: Pair) -> str:
    """Return the smallest and the largest ratio over the loads, where they are far apart."""
    levels = sorted(pair.levels, key=lambda level: level.b_over_a.value)
    if len(levels) < 2 or levels[-1].b_over_a.value < _FAR * levels[0].b_over_a.value:
        return ""
    low, high = (f"{level.b_over_a.value:.2f} at {load(False, level.concurrency)}" for level in (levels[0], levels[-1]))
    return f"from {low} to {high}"


def _leads(turned: Crossover) -> str:
    """Return which stack is ahead by how much on either side of the load at which the order changes."""
    if len(turned.leads) < len(_SIDES):
        return f"{plain(turned.below)} is faster at low load, {plain(turned.above)} at high load"
    low, high = turned.leads
    last, first = f"{low.loads[-1]:g}", f"{high.loads[0]:g}"
    below = last if len(low.loads) == 1 else f"{low.loads[0]:g} to {last}"
    above = first if len(high.loads) == 1 else f"{first} to {high.loads[-1]:g}"
    return (
        f"{plain(low.stack)} has {low.times:.2f} × the throughput of {plain(high.stack)} at {below} in flight, "
        f"{plain(high.stack)} {high.times:.2f} × that of {plain(low.stack)} at {above}"
    )


def _where(turned: Crossover) -> str:
    """Return the load at which the order turns over."""
    return f"at {number(turned.at.value)} ({confidence(turned.at.ci95)})"


def ends_of(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.3f}–{ends[1]:.3f}"


def odd_run(odd: OddRun, stack: str = "") -> Fact:
    """Return the line of a run that is off."""
    of = f" of {plain(stack)}" if stack else ""
    return Fact(
        "Left out" if odd.left_out else "Off",
        f"{plain(odd.place)}{of} has {odd.times:.2f} × the throughput of its other runs from "
        f"{load(False, odd.since)} on",
        "" if odd.left_out else "of two runs it may be either: measure a third",
    )
