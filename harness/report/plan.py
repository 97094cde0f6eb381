"""A plan as a document: the answer in three lines, a small table, then a section for each thing that was asked."""

from __future__ import annotations

from harness.base import ExitStatus
from harness.base.units import span
from harness.decide.plan.capacity import Capacity, MeasuredLoad
from harness.decide.plan.plan import Plan
from harness.report.answer import count
from harness.report.document import SIMULATED, Column, Document, Fact, Section, shown
from harness.report.format import MISSING, confidence, listed, ms, number, percent, plain
from harness.spec.work import Unit

_MARK = "planned"


def report(plan: Plan) -> Document:
    """Return the plan as a document: answer, sizes, cost, traffic, thresholds, notes; if no load fits, the levels."""
    sections = [Section(facts=answer(plan), answer=True)]
    if plan.operating_point.at is None:
        sections.append(Section("Measured", columns=_loads(plan.capacity)))
    else:
        sections += [_sizes(plan), _money(plan), _traffic(plan), _scaling(plan)]
        sections.append(Section("This rests on", lines=[_sentence(plain(note)) for note in plan.notes]))
    return Document(
        title="Plan",
        subtitle=f"from {plain(plan.capacity.source)}",
        answer=answer(plan)[0].text,
        simulated=SIMULATED if plan.capacity.simulated else "",
        sections=sections,
    )


def answer(plan: Plan) -> list[Fact]:
    """Return the replicas, where each of them runs, and the cost; where no load meets the SLO, that and what helps."""
    at = plan.operating_point.at
    limits = listed([plain(limit) for limit in plan.capacity.slo])
    if at is None:
        if plan.exit_status == ExitStatus.MISSED:
            why, way_out = f"no measured load meets {limits}", "measure a lower load, or ask for a looser SLO"
        else:
            why, way_out = f"too few requests to decide {limits}", "measure longer: --level-seconds"
        return [Fact("Replicas", why, way_out)]
    return [_replicas(plan), Fact("Each at", _running(plan.capacity, at), _why(plan, limits)), *_cost(plan)]


def _replicas(plan: Plan) -> Fact:
    if plan.batch is not None:
        batch, unit = plan.batch, plan.capacity.unit
        takes = f"{span(batch.seconds)} for {number(batch.work)} {unit}"
        return Fact("Replicas", f"{batch.replicas}{_spread(batch.ci95)}", f"{takes}, deadline {span(batch.deadline_s)}")
    assert plan.fleet is not None
    fleet, documents = plan.fleet, plan.capacity.documents_per_request
    rate = f"{number(fleet.requests_per_s)} requests/s"
    if documents:
        rate = f"{number(fleet.requests_per_s * documents)} documents/s in {rate}"
    users = f" from {number(plan.users)} users" if plan.users is not None else ""
    utilization = next(option.utilization for option in fleet.options if option.replicas == fleet.replicas)
    share = f"{percent(round(utilization, 3))} of what they carry"
    return Fact("Replicas", f"{fleet.replicas}{_spread(fleet.ci95)}", f"{rate}{users} at the peak, {share}")


def _spread(ends: tuple[int, int]) -> str:
    """Return the interval of a count; "" if both ends are alike."""
    return f" (95 % interval {ends[0]}–{ends[1]})" if ends[0] != ends[1] else ""


def _running(capacity: Capacity, at: MeasuredLoad) -> str:
    X, unit = at.work_per_s, capacity.counts.per_s
    load = f"{number(at.load)} requests/s" if capacity.open_loop else count(at.load, capacity.load_unit)
    figure = "TTFT" if capacity.counts.decodes else "E2E"
    known = [f", {figure} {q} {ms(x)} ms" for q in ("p99", "p50") if (x := getattr(at.ttft_s, q)) is not None]
    rate = f"{number(X.value)} {unit} ({confidence(X.ci95)}), {number(at.requests_per_s)} requests/s"
    return f"{load}: {rate}{''.join(known[:1])}"


def _why(plan: Plan, limits: str) -> str:
    """Return why the operating point is what it is, as words: by the SLO, the cost, or the knee."""
    point = plan.operating_point
    if point.by == "slo":
        missed = f", {number(point.missed_at)} misses it" if point.missed_at is not None else ""
        return f"the highest measured load that meets {limits}{missed}"
    within = f" of those that meet {limits}" if point.outcome else ""
    if point.by == "cost":
        return f"the lowest measured load with 99 % of the highest throughput{within}"
    return f"the lowest measured load with 95 % of the highest throughput{within}"


def _cost(plan: Plan) -> list[Fact]:
    """Return the line on a plan's cost: of a batch in all, else an hour and a month; none where no price is known."""
    if plan.batch is not None and plan.batch.usd is not None:
        per = f"${number(plan.batch.usd_per_million)} per 1M {plan.capacity.unit}"
        return [Fact("Cost", f"${number(plan.batch.usd)}", per)]
    if plan.costs is None:
        return []
    costs = plan.costs
    following = " that follows the traffic" if costs.usd_per_month != costs.usd_per_month_at_peak else ""
    month = f"${_usd(costs.usd_per_month)} a month{following}"
    thousand = f"${number(1000 * costs.usd_per_request)} per 1,000 requests"
    per = f"${number(costs.usd_per_million)} per 1M {plan.capacity.unit} as planned, {thousand}"
    return [Fact("Cost", f"${number(costs.usd_per_hour)} an hour at the peak, {month}", per)]


def _sizes(plan: Plan) -> Section:
    """Return the table of utilisation and cost with one replica fewer, as planned, and with one more."""
    if plan.fleet is None:
        return Section()
    rows, n = plan.fleet.options, plan.fleet.replicas
    names = {-1: "one fewer", 0: _MARK, 1: "one more"}
    columns = [
        Column("", [names[row.replicas - n] for row in rows], words=True),
        Column("replicas", [number(row.replicas) for row in rows]),
        Column("utilisation", [percent(round(row.utilization, 3)) for row in rows]),
        Column("one lost", [MISSING if row.one_lost is None else percent(round(row.one_lost, 3)) for row in rows]),
        Column("$/month", [_usd(row.usd_per_month) for row in rows]),
    ]
    return Section(columns=shown(columns), note="utilisation of the operating point's throughput, at the peak")


def _loads(capacity: Capacity) -> list[Column]:
    rows, first = capacity.loads, "TTFT" if capacity.counts.decodes else "E2E"
    return shown(
        [
            Column("load", [number(row.load) for row in rows]),
            Column(capacity.counts.per_s, [number(row.work_per_s.value) for row in rows]),
            Column(f"{first} p50 ms", [ms(row.ttft_s.p50) for row in rows]),
            Column(f"{first} p99 ms", [ms(row.ttft_s.p99) for row in rows]),
            Column("ITL ms", [ms(row.itl_s.mean) for row in rows]),
            Column("SLO", [row.slo or MISSING for row in rows], words=True),
        ]
    )


def _money(plan: Plan) -> Section:
    """Return the section on cost per million tokens or documents, and per month at the peak's number of replicas."""
    costs = plan.costs
    if costs is None:
        return Section()
    point = costs.usd_per_million_at_point
    facts = [
        Fact(
            f"$ per 1M {plan.capacity.unit}",
            number(point.value),
            f"with every replica always at its operating point, {confidence(point.ci95)}",
        )
    ]
    if plan.capacity.unit == Unit.OUTPUT_TOKENS and costs.usd_per_million_blended is not None:
        blended = number(costs.usd_per_million_blended)
        facts.append(Fact("blended", blended, "per 1M input and output tokens, as planned"))
    if costs.usd_per_month != costs.usd_per_month_at_peak:
        facts.append(Fact("a month at the peak's size", f"${_usd(costs.usd_per_month_at_peak)}"))
    return Section("Cost", facts=facts)


def _traffic(plan: Plan) -> Section:
    """Return the section on a day's traffic: rates, replicas, and replica-hours; empty without a day."""
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
    return Section(f"Traffic of {span(day.period_s)}", facts=facts)


def _scaling(plan: Plan) -> Section:
    thresholds, unit = plan.thresholds, plan.capacity.counts.per_s
    if thresholds is None:
        return Section()
    lines = [
        f"scale out above {number(thresholds.scale_out_above)} {unit} a replica",
        f"warn below {number(thresholds.low_below)} {unit} a replica for 5 minutes while requests wait (70 %)",
        f"critical below {number(thresholds.critical_below)} (50 %)",
    ]
    if thresholds.in_flight_above is not None:
        lines.append(f"{number(thresholds.in_flight_above)} requests in flight a replica: the operating point")
    return Section("Thresholds", lines=[_sentence(line) for line in lines])


def _usd(value: float | None) -> str:
    return MISSING if value is None else number(round(value) if value >= 100 else value)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
