"""A plan as a document: the answer in three lines, a small table, then a section for each thing that was asked."""

from __future__ import annotations

import math

from harness.analysis import slo
from harness.base import units
from harness.base.units import span
from harness.data.judgement import Outcome
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.costs import FOLLOWING, Costs
from harness.decide.plan.plan import Plan
from harness.decide.plan.replicas import TrafficFleet
from harness.report.answer import count
from harness.report.document import SIMULATED, Column, Document, Fact, Section, shown
from harness.report.format import MISSING, confidence, joined, listed, ms, number, percent, plain
from harness.spec.work import Unit

_MARK = "planned"


def report(plan: Plan) -> Document:
    """Return the whole plan."""
    sections = [Section(facts=answer(plan), answer=True)]
    if plan.operating_point.at is None:
        sections.append(Section("Measured", columns=_loads(plan.capacity)))
    else:
        sections += [_sizes(plan), _money(plan), _traffic(plan), _long(plan), _growth(plan), _energy(plan)]
        sections += [_scaling(plan), _tables(plan)]
        sections.append(Section("This rests on", lines=[_sentence(plain(note)) for note in plan.notes]))
    return Document(
        title="Plan",
        subtitle=f"from {plain(plan.capacity.source)}",
        answer=answer(plan)[0].text,
        simulated=SIMULATED if plan.capacity.simulated else "",
        sections=sections,
    )


def answer(plan: Plan) -> list[Fact]:
    """Return the replicas, where each of them runs, and the cost."""
    at = plan.operating_point.at
    limits = listed([plain(each) for each in plan.capacity.slo])
    if at is None:
        why = {99: f"no measured load meets {limits}", 3: f"too few requests to decide {limits}"}[plan.exit_status]
        longer = f"measure longer{_how_long(plan.capacity)}"
        way_out = {99: "measure a lower load, or ask for a looser SLO", 3: longer}[plan.exit_status]
        return [Fact("Replicas", why, way_out)]
    return [_replicas(plan), Fact("Each at", _running(plan.capacity, at), _why(plan, limits)), *_cost(plan)]


def _how_long(capacity: Capacity) -> str:
    """Return the shortest window that may decide the limits at the highest load that is unresolved."""
    of_all = ",".join(limit for limit in capacity.slo if " " not in limit)  # those of a class have its name behind
    needed = slo.samples_needed(slo.limits(units.slo(of_all))) if of_all else 0
    unsure = [each for each in capacity.loads if each.slo == Outcome.UNRESOLVED and each.requests_per_s]
    if not needed or not unsure:
        return ""
    seconds = math.ceil(needed / unsure[-1].requests_per_s)
    return f": {needed} requests a level or more, --level-seconds {seconds} at {number(unsure[-1].load)}"


def _replicas(plan: Plan) -> Fact:
    if plan.batch is not None:
        batch, unit = plan.batch, plan.capacity.unit
        takes = f"{span(batch.seconds)} for {number(batch.work)} {unit}"
        return Fact("Replicas", f"{batch.replicas}{_spread(batch.ci95)}", f"{takes}, deadline {span(batch.deadline_s)}")
    assert plan.fleet is not None
    found, documents = plan.fleet, plan.capacity.documents_per_request
    rate = f"{number(found.requests_per_s)} requests/s"
    if documents:
        rate = f"{number(found.requests_per_s * documents)} documents/s in {rate}"
    users = f" from {number(plan.users)} users" if plan.users is not None else ""
    utilization = next(each.utilization for each in found.options if each.replicas == found.replicas)
    share = f"{percent(round(utilization, 3))} of what they carry"
    return Fact("Replicas", f"{found.replicas}{_spread(found.ci95)}", f"{rate}{users} at the peak, {share}")


def _spread(ends: tuple[int, int]) -> str:
    """Return the interval of a count; "" where both ends are alike."""
    return f" (95 % interval {ends[0]}–{ends[1]})" if ends[0] != ends[1] else ""


def _running(capacity: Capacity, at: MeasuredLoad) -> str:
    X, unit = at.work_per_s, capacity.counts.per_s
    load = f"{number(at.load)} requests/s" if capacity.open_loop else count(at.load, capacity.load_unit)
    first = f"TTFT p99 {ms(at.ttft_s.p99)} ms" if at.ttft_s.p99 is not None else f"TTFT p50 {ms(at.ttft_s.p50)} ms"
    first = first if capacity.counts.decodes else first.replace("TTFT", "E2E")
    return f"{load}: {number(X.value)} {unit} ({confidence(X.ci95)}), {number(at.requests_per_s)} requests/s, {first}"


def _why(plan: Plan, limits: str) -> str:
    point = plan.operating_point
    if point.by == "slo":
        missed = f", {number(point.missed_at)} misses it" if point.missed_at is not None else ""
        return f"the highest measured load that meets {limits}{missed}"
    within = f" of those that meet {limits}" if point.outcome else ""
    if point.by == "cost":
        return f"the lowest measured load with 99 % of the highest throughput{within}"
    return f"the lowest measured load with 95 % of the highest throughput{within}"


def _cost(plan: Plan) -> list[Fact]:
    if plan.batch is not None and plan.batch.usd is not None:
        per = f"${number(plan.batch.usd_per_million)} per 1M {plan.capacity.unit}"
        return [Fact("Cost", f"${number(plan.batch.usd)}", per)]
    if plan.costs is None:
        return []
    found = plan.costs
    following = any(bill.name == FOLLOWING for bill in found.bills)
    month = f"${_usd(found.usd_per_month)} a month{' that follows the traffic' * following}"
    thousand = f"${number(1000 * found.usd_per_request)} per 1,000 requests"
    per = f"${number(found.usd_per_million)} per 1M {plan.capacity.unit}, {thousand}"
    return [Fact("Cost", f"${number(found.usd_per_hour)} an hour at the peak, {month}", per)]


def _sizes(plan: Plan) -> Section:
    """Return one replica fewer, the plan, one more."""
    if plan.fleet is None:
        return Section()
    rows, n = plan.fleet.options, plan.fleet.replicas
    names = {-1: "one fewer", 0: _MARK, 1: "one more"}
    columns = [
        Column("", [names[each.replicas - n] for each in rows], words=True),
        Column("replicas", [number(each.replicas) for each in rows]),
        Column("utilisation", [percent(round(each.utilization, 3)) for each in rows]),
        Column("one lost", [MISSING if each.one_lost is None else percent(round(each.one_lost, 3)) for each in rows]),
        Column("$/month", [_usd(each.usd_per_month) for each in rows]),
    ]
    return Section(columns=shown(columns), note="utilisation of the operating point's throughput, at the peak")


def _loads(capacity: Capacity) -> list[Column]:
    rows, first = capacity.loads, "TTFT" if capacity.counts.decodes else "E2E"
    return shown(
        [
            Column("load", [number(each.load) for each in rows]),
            Column(capacity.counts.per_s, [number(each.work_per_s.value) for each in rows]),
            Column(f"{first} p50 ms", [ms(each.ttft_s.p50) for each in rows]),
            Column(f"{first} p99 ms", [ms(each.ttft_s.p99) for each in rows]),
            Column("ITL ms", [ms(each.itl_s.mean) for each in rows]),
            Column("SLO", [each.slo or MISSING for each in rows], words=True),
        ]
    )


def _money(plan: Plan) -> Section:
    """Return ways to pay and what the money buys; only what needs more than the answer's line."""
    found = plan.costs
    if found is None:
        return Section()
    columns = []
    if len(found.bills) > 1:
        columns = [
            Column("a month", [each.name for each in found.bills], words=True),
            Column("replicas", [number(each.replicas) for each in found.bills]),
            Column("replica-hours", [number(round(each.replica_hours)) for each in found.bills]),
            Column("$", [_usd(each.usd_per_month) for each in found.bills]),
        ]
    return Section("Cost", facts=_figures(found, plan.capacity), columns=columns)


def _figures(found: Costs, capacity: Capacity) -> list[Fact]:
    at_point = found.usd_per_million_at_point
    out = [
        Fact(
            f"$ per 1M {capacity.unit}", number(at_point.value), f"at the operating point, {confidence(at_point.ci95)}"
        )
    ]
    if capacity.unit == Unit.OUTPUT_TOKENS and found.usd_per_million_blended is not None:
        out.append(Fact("blended", number(found.usd_per_million_blended), "per 1M input and output tokens, as planned"))
    if found.usd_per_million_split is not None:
        low, high = map(number, found.usd_per_million_split)
        out.append(Fact("split", f"{low} in, {high} out", "per 1M, by the server's time for prefill and decode"))
    if found.usd_per_user_month is not None:
        out.append(Fact("per user", number(found.usd_per_user_month), "a month"))
    if found.egress_gb_per_month is not None and found.egress_usd_per_month is not None:
        gb = f"{number(found.egress_gb_per_month)} GB of answers a month"
        out.append(Fact("egress", _usd(found.egress_usd_per_month), gb))
    if found.tco_usd_per_month is not None:
        out.append(Fact("total cost of ownership", _usd(found.tco_usd_per_month), "a month"))
    return out


def _traffic(plan: Plan) -> Section:
    day = plan.day
    if day is None:
        return Section()
    facts = [
        Fact("requests/s", f"{number(day.mean)} on average", f"{number(day.peak)} at the peak"),
        Fact(
            "replicas",
            f"{day.replicas_least}–{day.replicas_peak}",
            f"{number(day.hours_at_peak)} replica-hours at the peak's",
        ),
    ]
    if day.hours_following is not None and day.cold_start_s is not None:
        saved = 1 - day.hours_following / day.hours_at_peak
        facts.append(
            Fact(
                "following it",
                f"{number(day.hours_following)} replica-hours",
                f"{percent(round(saved, 3))} less, each started {span(day.cold_start_s)} ahead",
            )
        )
    return Section(f"Traffic of {span(day.period_s)}", facts=facts, lines=_autoscaler(day))


def _autoscaler(day: TrafficFleet) -> list[str]:
    """Return whether a fleet can follow without a forecast."""
    if day.cold_start_s is None:
        return []
    within = f"within one cold start of {span(day.cold_start_s)}"
    if day.growth is None:
        return [f"Traffic begins from nothing {within}: start replicas ahead of time."]
    then = "the headroom lasts until a new replica serves" if day.follows else "start replicas ahead of time"
    return [f"Traffic grows up to × {day.growth:.2f} {within}: {then}."]


def _long(plan: Plan) -> Section:
    rows = plan.long_requests
    if not rows:
        return Section()
    columns = [
        Column("", [plain(each.percentile) for each in rows], words=True),
        Column("tokens in", [number(each.input_tokens) for each in rows]),
        Column("out", [number(each.output_tokens) for each in rows]),
        Column("about s", [number(each.seconds) for each in rows]),
        Column("replicas if all were so", [number(each.replicas) for each in rows]),
    ]
    return Section(
        "Long requests", columns=columns, note="not measured: TTFT in proportion to the prompt, ITL as it was"
    )


def _growth(plan: Plan) -> Section:
    rows = plan.growth
    facts = []
    if plan.break_even is not None:
        found = plan.break_even
        months = "never pays" if found.months is None else f"pays after {number(found.months)} months"
        replicas = f"{found.replicas} replica{'s' * (found.replicas != 1)}"
        saved = f"{replicas}, ${number(round(found.usd_saved_per_month))} a month less"
        facts.append(Fact(f"× {number(found.speedup)} for ${number(found.effort_usd)}", months, saved))
    columns = [
        Column("month", [number(each.month) for each in rows]),
        Column("requests/s", [number(each.requests_per_s) for each in rows]),
        Column("replicas", [number(each.replicas) for each in rows]),
        Column("$/month", [_usd(each.usd_per_month) for each in rows]),
    ]
    return Section("Outlook", facts=facts, columns=shown(columns) if rows else [])


def _energy(plan: Plan) -> Section:
    found, prices = plan.energy, plan.question.prices
    if found is None or (prices.kwh is None and prices.carbon_g_kwh is None):
        return Section()
    unit = Unit(plan.capacity.unit).singular
    money = f"${number(round(found.usd_per_month))} a month" if found.usd_per_month is not None else ""
    each = f"{number(found.joules_per_unit)} J per {unit}, {number(found.kwh_per_million)} kWh per 1M"
    kwh = f"{number(found.kwh_per_month)} kWh a month" if found.kwh_per_month is not None else ""
    facts = [Fact("GPU power", f"{number(found.watts / 1000)} kW", joined(kwh, money)), Fact("energy", each)]
    if found.carbon_g_per_million is not None:
        month = f"{number(found.carbon_kg_per_month)} kg a month" if found.carbon_kg_per_month is not None else ""
        carbon = f"{number(found.carbon_g_per_million)} g per 1M {plan.capacity.unit}"
        facts.append(Fact("CO2", month or carbon, carbon if month else ""))
    return Section("Energy", facts=facts, note="of the GPUs alone, all of them at the operating point")


def _scaling(plan: Plan) -> Section:
    found, unit = plan.thresholds, plan.capacity.counts.per_s
    if found is None:
        return Section()
    lines = [
        f"scale out above {number(found.scale_out_above)} {unit} a replica",
        f"warn below {number(found.low_below)} {unit} a replica for 5 minutes while requests wait (70 %)",
        f"critical below {number(found.critical_below)} (50 %)",
    ]
    if found.in_flight_above is not None:
        lines.append(f"{number(found.in_flight_above)} requests in flight a replica: the operating point")
    return Section("Thresholds", lines=[_sentence(line) for line in lines])


def _tables(plan: Plan) -> Section:
    rows = plan.reference
    if not plan.question.reference:
        return Section()
    if not rows:
        return Section("Widely quoted tables", lines=["No row is about such a model and card."])
    columns = [
        Column("table", [each.table for each in rows], words=True),
        Column("here", [number(each.value) for each in rows]),
        Column("lies", [each.lies for each in rows], words=True),
    ]
    return Section("Widely quoted tables", columns=columns, note="they name no source; nothing rests on them")


def _usd(value: float | None) -> str:
    return MISSING if value is None else number(round(value) if value >= 100 else value)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
