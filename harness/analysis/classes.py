"""The parts of a level's requests, its classes and its replicas: the figures of each, by a level's own formulas. Pure.

Of a class also whether it meets its SLO, and the lengths of its prompts and answers as they
were asked and as the server counted them. What is asked is a law (`distribution`), what came is counted from the
requests that succeeded and began in a window, so that neither a warm-up nor what was cut has a part in it. Left out:
prompts of sessions and of an agent's tasks, whose lengths follow from the answers before them, and of a dataset: they
are counted, and no law is known; and when a replica is lost (`patterns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis import slo
from harness.analysis.figures import part_summary
from harness.analysis.rules.requests import Conditions
from harness.analysis.slo import SloLimit
from harness.analysis.stats import SAMPLES
from harness.analysis.table import Bools, Floats, Table
from harness.analysis.window import began_in
from harness.data.levels import Attainment, ClassSummary, LevelSummary, ReplicaSummary
from harness.data.record import Level
from harness.data.summary import ClassWorkload, Lengths, LengthSpread, WorkloadSummary
from harness.data.views import ServerView
from harness.spec import distribution
from harness.spec.classes import ClassSpec
from harness.spec.distribution import Distribution
from harness.spec.scenario import Scenario

_PERCENTILES = (10, 50, 90, 99)
_PLACE = "manifest.json: $.scenario"


def rows(table: Table, names: Iterable[str] = ()) -> dict[str, Bools]:
    """Return a mask of the requests of each class, shape [requests], the `names` first; "" (no class) only if named."""
    wanted = list(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(wanted)}
    code_of = np.fromiter((codes.setdefault(name, len(codes)) for name in table.class_), np.int64, len(table.class_))
    return {name: code_of == code for name, code in codes.items() if name or name in wanted}


def with_classes(
    whole: LevelSummary, table: Table, level: Level, conditions: Conditions, limits: Mapping[str, Sequence[SloLimit]]
) -> LevelSummary:
    """Return the level's summary with a summary of each class; if any class has limits, goodput is the classes' sum.

    `limits` are each class's own limits, by its name; a class without any has the run's, which are in `conditions`.
    """
    views = {}
    for name, of_class in rows(table, limits).items():
        own = slo.per_request(limits.get(name, ())) or conditions.slo
        made = part_summary(table.only(of_class), level, msgspec.structs.replace(conditions, slo=own), whole)
        made = msgspec.structs.replace(made, abandoned=made.abandoned or 0)
        views[name] = ClassSummary(**_figures(made, ClassSummary))
    if not views:
        return whole
    whole = msgspec.structs.replace(whole, classes=views)
    return _with_goodput(whole, list(views.values())) if any(limits.values()) else whole


def with_replicas(
    whole: LevelSummary, table: Table, level: Level, conditions: Conditions, servers: Mapping[str, ServerView | None]
) -> LevelSummary:
    """Return the level's summary with a summary of each replica, by URL; `servers` has what each replica publishes."""
    made = {url: part_summary(table.only(table.to(url)), level, conditions, whole) for url in servers}
    in_flight = sum(each.in_flight or 0.0 for each in made.values())
    views = {}
    for url, each in made.items():
        share = (each.in_flight or 0.0) / in_flight if in_flight else None
        views[url] = ReplicaSummary(
            in_flight_share=share, **(_figures(each, ReplicaSummary) | {"server": servers[url]})
        )
    return msgspec.structs.replace(whole, replicas=views)


def _figures(made: LevelSummary, of: type[ClassSummary] | type[ReplicaSummary]) -> dict[str, Any]:
    """Return, by name, those figures of a level's summary that a class or a replica has as well."""
    return {name: getattr(made, name) for name in of.__struct_fields__ if name in LevelSummary.__struct_fields__}


def _with_goodput(whole: LevelSummary, classes: Sequence[ClassSummary]) -> LevelSummary:
    """Return the level's summary with the goodput of all classes that have limits, added up."""
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
    """Return the attainments of the run's limits, over the classes without limits, then of each class's own limits."""
    own = {name: each for name, each in limits.items() if each}
    if not own:
        return slo.attainments(run, table, level, replicas=replicas)
    attainments: list[Attainment] = []
    of_class = rows(table, limits)
    if run and len(own) < len(limits):
        others = ~np.logical_or.reduce([of_class[name] for name in own])
        attainments += slo.attainments(run, table.only(others), level, replicas=replicas)
    for name, each in own.items():
        of_own = slo.attainments(each, table.only(of_class[name]), level, replicas=replicas)
        attainments += [msgspec.structs.replace(attainment, class_=name) for attainment in of_own]
    return attainments


# ---- lengths ------------------------------------------------------------------------------------------------


def asked(own: Distribution, prefix: int, share: float) -> tuple[str, LengthSpread]:
    """Return what lengths are asked for, a `share` of them behind a prefix: as a text, and their mean and percentiles.

    Percentiles are None if only some requests have the prefix.

    >>> text, found = asked(distribution.parse("100..102"), 50, 1.0)
    >>> text, found.mean, found.p50
    ('100..102, after a prefix of 50', 151.0, 151)
    """
    often = f"{share * 100:.3g} % of them " if share < 1 else ""
    text = f"{own}, {often}after a prefix of {prefix}" if prefix else str(own)
    known = not prefix or share == 1
    at = [own.quantile(q / 100) + prefix if known else None for q in _PERCENTILES]
    return text, LengthSpread(own.mean() + share * prefix, *at)


def compared(scenario: Scenario, table: Table, levels: Sequence[Level]) -> WorkloadSummary | None:
    """Return each class's lengths, asked for and measured in the levels' windows; None if all requests are alike."""
    workload = scenario.workload
    conversation = bool(workload.session or workload.node)
    dataset = bool(workload.dataset)
    if scenario.one_length and not conversation and not workload.prefix:
        return None
    one = ClassSpec(name="", input=workload.input_tokens, output=workload.output_tokens)
    specs = scenario.class_ or (one,)
    of_class = rows(table, [spec.name for spec in specs])
    began = np.zeros(len(table.ok), dtype=np.bool_)
    for level in levels:
        began |= began_in(table, level)
    began &= ~table.canary
    prefix = (workload.prefix.tokens, workload.prefix.share) if workload.prefix else (0, 0.0)
    # A dataset's rows that were sent to a model without a class are in none.
    total = sum(int((began & of_class[spec.name]).sum()) for spec in specs)
    shares = sum(spec.share for spec in specs)

    def row(spec: ClassSpec) -> ClassWorkload:
        """Return a class's lengths, asked and measured, and its share of the requests; None if none was asked."""
        sent: Bools = began & of_class[spec.name]
        answered = sent & table.ok
        prompt = answer = None
        if not (conversation or dataset or workload.tools):
            prompt = asked(distribution.parse(spec.input, _PLACE), *prefix)
        if not (dataset or workload.node):
            answer = asked(distribution.parse(spec.output, _PLACE), 0, 0.0)
        return ClassWorkload(
            class_=spec.name,
            requests=int(answered.sum()),
            share_asked=spec.share / shares if shares else 0.0,
            share=int(sent.sum()) / total if total else None,
            input_tokens=lengths(prompt, table.input_tokens[answered]),
            output_tokens=lengths(answer, table.output_tokens[answered]),
        )

    return WorkloadSummary(classes=[row(spec) for spec in specs])


def lengths(asked: tuple[str, LengthSpread] | None, counted: Floats) -> Lengths:
    """Return the lengths asked for beside the figures of the measured lengths, shape [requests], nans left out."""
    counted = counted[~np.isnan(counted)]
    n = len(counted)
    law, spread = asked or (None, None)
    return Lengths(
        law=law,
        asked=spread,
        realised=_length_spread(counted),
        mean_se=float(counted.std(ddof=1)) / n**0.5 if n > 1 else None,
    )


def _length_spread(counted: Floats) -> LengthSpread:
    """Return the mean and the percentiles of lengths; a percentile is a length that occurred, None with too few."""
    if not len(counted):
        return LengthSpread(None, None, None, None, None)
    carried = [len(counted) >= SAMPLES[max(q, 100 - q)] for q in _PERCENTILES]
    at = np.percentile(counted, _PERCENTILES, method="inverted_cdf").tolist()
    return LengthSpread(float(counted.mean()), *(x if known else None for x, known in zip(at, carried, strict=True)))
