"""What follows from results: how many replicas a demand needs, and whether thresholds are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base import units
from harness.base.errors import HarnessError, nearest
from harness.decide.check import decision, expression, figures, sides
from harness.decide.check.decision import Report
from harness.decide.compare.runs import each_once
from harness.decide.plan import capacity, replicas
from harness.decide.plan import plan as plans
from harness.decide.plan.plan import Plan
from harness.decide.plan.question import Demand, Forecast, Prices, Question, Reserve
from harness.library.measurement import Measurement

_TABLES = {"demand": Demand, "reserve": Reserve, "prices": Prices, "outlook": Forecast}
_OF = {field: name for name, table in _TABLES.items() for field in table.__struct_fields__}
_SHORT = {"rps": "requests_per_s", "price": "gpu_hour", "think_time": "think_s"}
Source = str | Path | Measurement


def plan(source: Source, *, slo: str | Mapping[str, float] | None = None, by: str | None = None, **asked: Any) -> Plan:
    """Return how many replicas a demand needs and what they cost, as in plan.json.

    `source` is a run on one replica. What is asked has its name in `question` of plan.json: `requests_per_s` or `users`
    with `think_s`, `gpu_hour` in USD, `utilization`, `growth`; `rps` and `price` are short for the first two amounts.
    `slo` takes the place of the run's limits. HarnessError for what is not known or contradicts itself.
    """
    tables: dict[str, dict[str, Any]] = {name: {} for name in _TABLES}
    for name, value in asked.items():
        field = _SHORT.get(name, name)
        if field not in _OF:
            raise HarnessError(f"no field of a plan: {name}", place="plan", way_out=nearest(name, [*_OF, *_SHORT]))
        tables[_OF[field]][field] = value
    made = {name: _TABLES[name](**fields) for name, fields in tables.items()}
    traffic = tables["demand"].get("traffic")
    shape = replicas.read_traffic(traffic) if traffic is not None else None
    limits = units.slo(slo, "slo") if isinstance(slo, str) else slo
    return plans.make(capacity.read(_place(source), limits), Question(by=by, **made), shape)  # type: ignore[arg-type]


def check(*sources: Source, thresholds: str | Sequence[str], baseline: Source | Sequence[Source] = ()) -> Report:
    """Return whether results meet thresholds, like "plateau >= 1500": `.outcome` is met, missed or unresolved.

    Several sources are repeats of one run, and so are several baselines. HarnessError for a threshold that no result
    can meet or miss.
    """
    wanted = [expression.parse(text) for text in ([thresholds] if isinstance(thresholds, str) else thresholds)]
    baselines = [baseline] if isinstance(baseline, str | Path | Measurement) else baseline
    if not wanted:
        raise HarnessError("no threshold is given", place="check", way_out="give thresholds='plateau >= 1500'")
    figures.must_be_decidable([(each, "thresholds") for each in wanted], baseline=bool(baselines))
    read = [
        [run for place in each_once([_place(each) for each in some]) for run in sides.read(place)]
        for some in (sources, baselines)
    ]
    return decision.decide(wanted, *read)


def _place(source: Source) -> str:
    return str(source.path if isinstance(source, Measurement) else source)
