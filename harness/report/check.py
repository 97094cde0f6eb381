"""Thresholds and what came of them, as a document, as JUnit XML and as annotations of GitHub's job log."""

from __future__ import annotations

from xml.etree import ElementTree

from harness.data.judgement import Outcome
from harness.decide.check import expression
from harness.decide.check.decision import Decision, Report
from harness.report.comparison import interval_of, odd_run
from harness.report.document import SIMULATED, Column, Document, Section, shown
from harness.report.format import MISSING, confidence, joined, load, number, percent, plain

_WORDS = {Outcome.MISSED: "MISSED", Outcome.UNRESOLVED: "unresolved", Outcome.MET: "met"}


def report(checked: Report) -> Document:
    """Return the answer in a line, and a row for each threshold."""
    rows = checked.decisions
    against = f" against {_places(checked.baseline)}" if checked.baseline else ""
    columns = [
        Column("outcome", [_WORDS[Outcome(row.outcome)] for row in rows], words=True),
        Column("threshold", [plain(row.threshold) for row in rows], words=True),
        Column("measured", [measured(row) for row in rows], words=True),
        *shown([Column("why", [_why(row) for row in rows], words=True)], ("",)),
    ]
    missed = frozenset(i for i, each in enumerate(rows) if each.outcome == Outcome.MISSED)
    return Document(
        title=sentence(checked),
        subtitle=_places(checked.runs) + against,
        answer=sentence(checked),
        simulated=SIMULATED if checked.simulated else "",
        sections=[Section(columns=columns, void=missed), Section(facts=[*map(odd_run, checked.odd)], answer=True)],
    )


def sentence(checked: Report) -> str:
    """Return how many thresholds are met, missed and unresolved."""
    outcomes = [decision.outcome for decision in checked.decisions]
    many = f"{len(outcomes)} threshold{'s' * (len(outcomes) != 1)}"
    counts = [
        f"{outcomes.count(outcome)} {outcome}" for outcome in (Outcome.MET, Outcome.MISSED, Outcome.UNRESOLVED)
        if outcome in outcomes
    ]  # fmt: skip
    return f"{many}: {', '.join(counts)}"


def _places(places: list[str]) -> str:
    """Return the folders as words, each once, with its number of repeats if it comes several times."""
    return ", ".join(
        plain(place) + (f" ({places.count(place)} repeats)" if places.count(place) > 1 else "")
        for place in dict.fromkeys(places)
    )


def measured(each: Decision) -> str:
    """Return in words the figure that a threshold was compared with, its interval and its level."""
    where = f" at {load(each.open_loop, each.at)}" if each.at is not None else ""
    value = amount(each, each.value) + where
    if each.ratio is not None:
        how = f"{each.ratio.value:.3f} × the baseline ({interval_of(each.ratio)})"
        usual = "" if each.ratio.known else ", by how much runs usually differ"
        return f"{how}: {amount(each, each.value)} against {amount(each, each.baseline)}{where}{usual}"
    if each.attainment is not None and each.attainment.fraction is not None:
        low, high = each.attainment.ci95 or (0.0, 1.0)
        within = f"{percent(each.attainment.fraction)} within {amount(each, each.bound)}{where * (each.value is None)}"
        ends = f"95 % interval {percent(low)} to {percent(high)}"
        known = value if each.value is not None else ""
        return joined(known, f"{within} ({ends}), {percent(each.attainment.needed)} needed")
    if each.ci95 is None:
        return value
    scale, unit = _shown(each, each.value if each.value is not None else each.ci95[0] or 0.0)
    low_end, high_end = (None if end is None else end * scale for end in each.ci95)
    ends = confidence((low_end, high_end)) + (f" {unit}" if each.unit == expression.SHARE else "")
    return f"{amount(each, each.value)} ({ends}){where}"


def amount(each: Decision, value: float | None) -> str:
    """Return as words a value of the threshold's figure with its unit; times below a second in milliseconds."""
    if value is None:
        return MISSING
    scale, unit = _shown(each, value)
    return f"{number(value * scale)} {unit}".rstrip()


def _shown(each: Decision, value: float) -> tuple[float, str]:
    """Return (scale, unit) to show a threshold's value in: seconds as ms below 1 s, shares as percent."""
    match each.unit:
        case expression.SECONDS:
            return (1e3, "ms") if value < 1 else (1.0, "s")
        case expression.SHARE:
            return 100.0, "%"
        case expression.PER_SECOND:
            return 1.0, each.per_s or unit_words(each.figure)
        case _:
            return 1.0, ""


def unit_words(figure: str) -> str:
    """Return the unit of a rate.

    >>> unit_words("plateau"), unit_words("goodput_requests_per_s"), unit_words("images_per_s")
    ('tok/s', 'req/s', '/s')
    """
    if "tokens" in figure or figure in ("plateau", "single_stream"):
        return "tok/s"
    return "req/s" if "requests" in figure or figure == "slo_rate" else expression.PER_SECOND


def _why(each: Decision) -> str:
    return joined(plain(each.why), plain(each.way_out))


# ---- for other programs ----------------------------------------------------------------------------------------------


def junit(checked: Report) -> str:
    """Return JUnit XML, a test case a threshold: one that is missed is a failure, one that is unresolved an error."""
    root = ElementTree.Element("testsuites", name="knee check", time="0")
    suite = ElementTree.SubElement(root, "testsuite", name="knee check", skipped="0", time="0")
    outcomes = [decision.outcome for decision in checked.decisions]
    for element in (root, suite):
        element.set("tests", str(len(outcomes)))
        element.set("failures", str(outcomes.count(Outcome.MISSED)))
        element.set("errors", str(outcomes.count(Outcome.UNRESOLVED)))
    for decision in checked.decisions:
        case = ElementTree.SubElement(
            suite, "testcase", classname=plain(_places(checked.runs)), name=plain(decision.threshold), time="0"
        )
        text = joined(measured(decision), _why(decision))
        if decision.outcome == Outcome.MET:
            ElementTree.SubElement(case, "system-out").text = text
        else:
            kind = "failure" if decision.outcome == Outcome.MISSED else "error"
            ElementTree.SubElement(case, kind, type=decision.outcome, message=text).text = text
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def github(checked: Report) -> str:
    """Return workflow commands: an error a missed threshold, a warning an unresolved one, else one notice."""
    lines = []
    for decision in checked.decisions:
        if decision.outcome != Outcome.MET:
            level = "error" if decision.outcome == Outcome.MISSED else "warning"
            title = f"{decision.outcome}: {plain(decision.threshold)}"
            lines.append(f"::{level} title={_property(title)}::{_data(joined(measured(decision), _why(decision)))}")
    return "\n".join(lines or [f"::notice title=knee check::{_data(sentence(checked))}"]) + "\n"


def _data(text: str) -> str:
    r"""Return text escaped for a GitHub workflow command, which a line break would end.

    >>> print(_data("100 %\nnext"), _property("a: b, c"))
    100 %25%0Anext a%3A b%2C c
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
