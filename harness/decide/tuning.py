"""Search for a server's best setting: short runs of all settings, longer ones of those that may still be the best.

Every setting is measured in the first round, for one unit of time. Those that are shown to be worse than the best are
dropped, and so are all but the better half; the rest is measured for two units, and at most three of them for six. A
server that is started again gives something else, by about 1.5 %, however long it is measured: no interval is narrower
than that. What the next round measures follows from the trials alone, so that an interrupted comparison goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from harness.analysis.stats import Z95
from harness.base.errors import HarnessError
from harness.data.views import Value

Goal = Literal["plateau", "slo", "cost"]
# Open settings are not shown to be worse than the best; the time did not allow the untried ones.
State = Literal["best", "open", "worse", "failed", "left out", "untried"]
ROUNDS = (1, 2, 6)  # units of time that a setting is measured for, by round
KEPT = (0.5, 3)  # share of the settings kept after the first round, number kept after the second
BETWEEN = 0.015  # relative σ between two starts of one server: on live servers repeats differ by 1 to 2 %
_MOST = 512  # settings
_SHORTEST, _USUAL, _LONGEST = 5.0, 20.0, 120.0  # seconds of a unit that is one window
_SEARCH = 3  # times as long a unit takes if it is a search for limits, which measures several loads


class Setting(msgspec.Struct, frozen=True):
    """One combination of the values to try."""

    values: dict[str, str]  # by option, as typed
    predicted: float | None = None  # in the goal's unit; None: there is no prediction
    left_out: str = ""  # why it is not tried

    @property
    def name(self) -> str:
        """Return the setting in one line, like 'max-num-seqs=64 kv-cache-dtype=fp8'."""
        return " ".join(f"{option}={value}" for option, value in self.values.items())


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one setting."""

    setting: str
    round: int  # from 0
    folder: str = ""  # folder of its records, within the comparison's
    value: float | None = None  # in the goal's unit, the higher the better; None: it could not be measured
    se: float = 0.0  # relative, one standard error of this run alone
    seconds: float = 0.0  # the start of the server included
    error: str = ""  # why there is no value
    refused: bool = False  # the server ended at once, for its command line has what it does not know


class Estimate(NamedTuple):
    """The mean of a setting's trials, in logarithms."""

    mean: float
    se: float

    @property
    def value(self) -> Value:
        """Return the mean with its 95 % interval, in the goal's unit."""
        half = Z95 * self.se
        return Value(math.exp(self.mean), (math.exp(self.mean - half), math.exp(self.mean + half)))


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in the result."""

    setting: str
    state: State
    value: Value | None = None  # in the goal's unit
    of_best: Value | None = None  # share of the best setting's figure
    predicted: float | None = None
    trials: int = 0
    why: str = ""  # it failed or was left out


def grid(tries: Sequence[str]) -> list[Setting]:
    """Return all combinations of the values to try, the last option changing fastest.

    >>> [setting.name for setting in grid(["max-num-seqs=64,128", "kv-dtype=auto"])]
    ['max-num-seqs=64 kv-dtype=auto', 'max-num-seqs=128 kv-dtype=auto']
    """
    options: dict[str, list[str]] = {}
    for text in tries:
        option, equals, values = text.partition("=")
        option = option.strip().lstrip("-")
        choices = [value.strip() for value in values.split(",")]
        if not equals or not option or not all(choices) or len(set(choices)) < len(choices) or option in options:
            raise HarnessError(
                f"{text!r} names no values to try", place="--try", way_out="write it like max-num-seqs=64,128,256"
            )
        options[option] = choices
    if not options:
        raise HarnessError("nothing to try", place="--try", way_out="write it like max-num-seqs=64,128,256")
    if math.prod(map(len, options.values())) > _MOST:
        raise HarnessError(f"more than {_MOST} settings", place="--try", way_out="try fewer values")
    return [Setting(dict(zip(options, each, strict=True))) for each in itertools.product(*options.values())]


def ordered(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that are tried, the one that is predicted to be best first."""
    return sorted((setting for setting in settings if not setting.left_out), key=lambda each: -(each.predicted or 0.0))


def unit_s(settings: int, start_s: float, max_seconds: float | None, *, searched: bool = False) -> float:
    """Return the seconds of a trial's unit of time with which all rounds end within `max_seconds`, starts included.

    A server takes `start_s` to start. `searched`: each run searches for the load that meets the limits.

    >>> unit_s(6, 10.0, 420.0), unit_s(18, 20.0, None)
    (10.0, 20.0)
    """
    factor = _SEARCH if searched else 1
    if max_seconds is None:
        return factor * _USUAL
    starts = 1 + KEPT[0] + KEPT[1] / settings
    units = ROUNDS[0] + KEPT[0] * ROUNDS[1] + KEPT[1] / settings * ROUNDS[2]
    return min(max((max_seconds / settings - starts * start_s) / units, factor * _SHORTEST), factor * _LONGEST)


# ---- what is measured next ---------------------------------------------------------------------------------


def due(settings: Sequence[Setting], trials: Sequence[Trial]) -> list[tuple[Setting, int]]:
    """Return the (setting, round) trials still to measure in the current round; empty once the answer is there.

    Rounds take turns in their direction, so that a machine that drifts favours nobody.
    """
    left = [each for each in ordered(settings) if not _refused(each, settings, trials)]
    for number in range(len(ROUNDS)):
        done = {trial.setting for trial in trials if trial.round == number}
        waiting = [setting for setting in left if setting.name not in done]
        if waiting:
            return [(setting, number) for setting in (waiting[::-1] if number % 2 else waiting)]
        left = _kept(left, [trial for trial in trials if trial.round <= number], number)
        if len(left) < 2:
            break
    return []


def _refused(setting: Setting, settings: Sequence[Setting], trials: Sequence[Trial]) -> str:
    """Return "option=value" of an untried setting with which the server surely refuses to start; "" without one.

    It is the one value by which a refused setting differs from one that was measured.
    """
    if any(trial.setting == setting.name for trial in trials):
        return ""
    values = {each.name: each.values for each in settings}
    good = [values[trial.setting] for trial in trials if trial.value]
    for bad in (values[trial.setting] for trial in trials if trial.refused):
        for option, value in bad.items():
            alone = any({**each, option: value} == bad for each in good)
            if alone and setting.values[option] == value and not any(each[option] == value for each in good):
                return f"{option}={value}"
    return ""


def _kept(settings: Sequence[Setting], trials: Sequence[Trial], number: int) -> list[Setting]:
    """Return the settings that are tried further: the best of those not surely worse than the best.

    After the first round (`number` 0) at most half of the settings, after later ones three; [] if none has a value.
    """
    found = {setting.name: estimate(trials, setting.name) for setting in settings}
    known = {name: each for name, each in found.items() if each is not None}
    if not known:
        return []
    best = known[max(known, key=lambda name: known[name].mean)]
    open_ = sorted((name for name in known if not _worse(known[name], best)), key=lambda name: -known[name].mean)
    kept = open_[: math.ceil(KEPT[0] * len(settings)) if number == 0 else int(KEPT[1])]
    return [setting for setting in settings if setting.name in kept]


def estimate(trials: Sequence[Trial], setting: str) -> Estimate | None:
    """Return the mean ln figure of a setting's trials, weighted by their errors; None if none worked or one failed."""
    own = [(math.log(trial.value), trial.se) for trial in trials if trial.setting == setting and trial.value]
    if not own or any(trial.setting == setting and trial.error for trial in trials):
        return None
    weights = [1 / (se**2 + BETWEEN**2) for _, se in own]
    mean = sum(w * y for w, (y, _) in zip(weights, own, strict=True)) / sum(weights)
    return Estimate(mean, 1 / math.sqrt(sum(weights)))


def _worse(one: Estimate, best: Estimate) -> bool:
    """Return whether a setting is shown to be worse, in 97.5 of 100 cases."""
    return best.mean - one.mean > Z95 * math.hypot(one.se, best.se)


# ---- the result --------------------------------------------------------------------------------------------


def ranks(settings: Sequence[Setting], trials: Sequence[Trial]) -> list[Rank]:
    """Return all settings with their state (best, open, worse, …): the best, then by figure, untried ones last."""
    found = {setting.name: estimate(trials, setting.name) for setting in settings}
    known = {name: each for name, each in found.items() if each is not None}
    rounds = {name: max(trial.round for trial in trials if trial.setting == name) for name in known}
    last = max(rounds.values(), default=0)
    # One that was left behind is no winner: of many short runs the luckiest is the best.
    winner = max((name for name in known if rounds[name] == last), key=lambda name: known[name].mean, default=None)
    return sorted(
        (_rank(setting, settings, known, winner, trials) for setting in settings),
        key=lambda rank: (rank.state != "best", -(rank.value.value or 0.0) if rank.value else math.inf),
    )


def _rank(
    setting: Setting,
    settings: Sequence[Setting],
    known: dict[str, Estimate],
    winner: str | None,
    trials: Sequence[Trial],
) -> Rank:
    """Return a setting's place among all: best, worse or open by its trials, else left out, untried or failed."""
    name, own = setting.name, [trial for trial in trials if trial.setting == setting.name]
    untried: State = "left out" if setting.left_out else "untried"
    rank = Rank(setting=name, state=untried, predicted=setting.predicted, trials=len(own), why=setting.left_out)
    if name not in known or winner is None:
        refused = _refused(setting, settings, trials)
        failed = next((trial.error for trial in own if trial.error), f"the server refuses {refused}" if refused else "")
        return msgspec.structs.replace(rank, state="failed", why=failed) if failed else rank
    mine, best = known[name], known[winner]
    state: State = "best" if name == winner else "worse" if _worse(mine, best) else "open"
    return msgspec.structs.replace(rank, state=state, value=mine.value, of_best=_over(mine, best))


def _over(one: Estimate, other: Estimate) -> Value:
    """Return the ratio of one setting's figure to another's with its 95 % interval, from their logarithms."""
    if one is other:
        return Value(1.0)
    mean, half = one.mean - other.mean, Z95 * math.hypot(one.se, other.se)
    return Value(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)))
