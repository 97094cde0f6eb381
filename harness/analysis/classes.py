"""The classes of a level's requests: the figures of each, whether it meets its SLO, and what the others cost it. Pure.

A class has the figures of a level, by the same formulas, from its own requests in the level's window. Left out: which
lengths they came to (`lengths`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from harness.analysis import slo
from harness.analysis.conditions import Conditions
from harness.analysis.figures import part_summary
from harness.analysis.rules import Purpose, usable
from harness.analysis.slo import SloLimit
from harness.analysis.table import Bools, Table
from harness.data.levels import Attainment, ClassSummary, LevelSummary
from harness.data.record import Level
from harness.data.summary import FirstUse

_FIGURES = [name for name in ClassSummary.__struct_fields__ if name in LevelSummary.__struct_fields__]


def rows(table: Table, names: Iterable[str] = ()) -> dict[str, Bools]:
    """Return which requests are of each class, shape [requests], the `names` first; of none only if "" is named."""
    wanted = list(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(wanted)}
    of = np.fromiter((codes.setdefault(name, len(codes)) for name in table.class_), np.int64, len(table.class_))
    return {name: of == code for name, code in codes.items() if name or name in wanted}


def with_classes(
    whole: LevelSummary, table: Table, level: Level, conditions: Conditions, limits: Mapping[str, Sequence[SloLimit]]
) -> LevelSummary:
    """Return the level with the figures of its classes; where any has an SLO of its own, its goodput is their sum.

    `limits` are of each class's own; a class without any has those of the conditions.
    """
    found = {}
    for name, of_class in rows(table, limits).items():
        own = slo.per_request(limits.get(name, ())) or conditions.slo
        made = part_summary(table.only(of_class), level, msgspec.structs.replace(conditions, slo=own), whole)
        made = msgspec.structs.replace(made, abandoned=made.abandoned or 0)
        found[name] = ClassSummary(**{figure: getattr(made, figure) for figure in _FIGURES})
    if not found:
        return whole
    whole = msgspec.structs.replace(whole, classes=found, worst_slowdown=None)
    return _with_goodput(whole, list(found.values())) if any(limits.values()) else whole


def _with_goodput(whole: LevelSummary, classes: Sequence[ClassSummary]) -> LevelSummary:
    """Return the goodput of the classes that have limits, together."""
    limited = [each for each in classes if each.goodput_requests_per_s is not None]
    requests_per_s = sum(each.goodput_requests_per_s or 0.0 for each in limited)
    counted = sum(each.requests - each.cancelled - (each.abandoned or 0) for each in limited)
    return msgspec.structs.replace(
        whole,
        goodput_requests_per_s=requests_per_s,
        goodput_tokens_per_s=sum(each.goodput_tokens_per_s or 0.0 for each in limited),
        slo_met_fraction=requests_per_s * whole.window_s / counted if counted else None,
    )


def attainments(
    run: Sequence[SloLimit],
    limits: Mapping[str, Sequence[SloLimit]],
    table: Table,
    level: Level,
    *,
    replicas: int = 1,
) -> list[Attainment]:
    """Return the attainment of the run's limits, by the classes without any of their own, then of each class's own."""
    own = {name: each for name, each in limits.items() if each}
    if not own:
        return slo.attainments(run, table, level, replicas=replicas)
    found: list[Attainment] = []
    of_class = rows(table, limits)
    if run and len(own) < len(limits):
        others = ~np.logical_or.reduce([of_class[name] for name in own])
        found += slo.attainments(run, table.only(others), level, replicas=replicas)
    for name, each in own.items():
        of_own = slo.attainments(each, table.only(of_class[name]), level, replicas=replicas)
        found += [msgspec.structs.replace(attainment, class_=name) for attainment in of_own]
    return found


def first_use(table: Table, rows: Bools) -> FirstUse:
    """Return the TTFT of the first answered request of a class in the run, and of its later ones at that level.

    `table` is the whole run, `rows` are the class's requests. What a server has put away meanwhile nobody says.
    """
    found = np.flatnonzero(rows & table.ok & ~np.isnan(table.first))
    if not len(found):
        return FirstUse(None, None)
    found = found[np.argsort(table.sent[found], kind="stable")]
    ttft, same = (table.first - table.sent)[found], table.level[found] == table.level[found[0]]
    later = ttft[same][1:]
    return FirstUse(float(ttft[0]), float(np.median(later)) if len(later) else None)


def with_slowdowns(levels: Sequence[LevelSummary]) -> list[LevelSummary]:
    """Return the levels with the slowdown of each class, and that of the class which has the worst.

    E2E per output token, Σ E2E / Σ output tokens, over that of the same class at the lowest valid level that has it: at
    a concurrency of 1 no other request was there.
    """
    alone: dict[str, float] = {}
    for level in sorted(levels, key=lambda level: level.load or 0):
        for name, each in (level.classes or {}).items():
            if usable(level, Purpose.ANSWER) and (pace := _pace(each)) is not None:
                alone.setdefault(name, pace)
    return [_with_slowdown(level, alone) for level in levels]


def _with_slowdown(level: LevelSummary, alone: Mapping[str, float]) -> LevelSummary:
    if not level.classes:
        return level
    found = {}
    for name, each in level.classes.items():
        pace, base = _pace(each), alone.get(name)
        slowdown = pace / base if pace is not None and base is not None else None
        found[name] = msgspec.structs.replace(each, slowdown=slowdown)
    worst = max((each.slowdown for each in found.values() if each.slowdown is not None), default=None)
    return msgspec.structs.replace(level, classes=found, worst_slowdown=worst)


def _pace(of_class: ClassSummary) -> float | None:
    """Return the E2E per output token; seconds."""
    e2e_s, tokens = of_class.e2e_s.mean, of_class.output_tokens_mean
    return e2e_s / tokens if e2e_s and tokens else None
