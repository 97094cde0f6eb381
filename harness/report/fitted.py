"""The result of a fit as a document, and every knee of a curve by its own name.

Left out: what a whole run has beside its curve (`run_report`).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.answer import headline
from harness.data.summary import PROVISIONAL, Curve, Knees, Value
from harness.report import document as doc
from harness.report.format import confidence, joined, number, plain
from harness.report.headline import hinge_of, of_curve, of_knee, state, unsettled
from harness.spec.work import Unit

_AT_THE_PLATEAU = ("hinge", "plateau95", "half_point", "peak", "plateau")  # provisional where the plateau is


def fit(
    curve: Curve,
    knees: Knees,
    loads: Sequence[float] = (),
    unit: Unit = Unit.OUTPUT_TOKENS,
    about: str = "",
) -> doc.Document:
    """Return the result of a fit alone: the answer, every knee, the fit's verdicts.

    `loads` are the concurrencies that it was made of; `about` says what they lack.
    """
    own = headline(knees, curve)
    corner = [of_curve(curve, knees, loads, label="Hinge")] if own.kind == "seats" else []
    answer = [of_knee(own, curve, knees, loads), *corner, *unsettled(curve, loads)]
    found = [doc.Fact(fact.label.lower(), fact.value, fact.detail) for fact in answer]
    found += knee_facts(curve, knees, unit)
    found += [
        doc.Fact(verdict.level, verdict.code.replace("_", " "), joined(plain(verdict.message), plain(verdict.advice)))
        for verdict in curve.verdicts
    ]
    return doc.Document(sections=[doc.Section(facts=found, note=plain(about))])


def knee_facts(
    curve: Curve, knees: Knees, unit: Unit = Unit.OUTPUT_TOKENS, load_unit: str = "requests in flight"
) -> list[doc.Fact]:
    """Every knee and figure of the curve by its own name, with interval and meaning; they are different numbers."""
    provisional = state(curve) == PROVISIONAL
    load, one = load_unit.removeprefix("requests "), "session" if load_unit == "sessions" else "request in flight"
    per_s = "tok/s" if unit.decodes else unit.per_s
    named: list[tuple[str, Value | None, str, str]] = [
        ("seats", knees.seats, "requests in flight", "served at once; more wait"),
        ("hinge", knees.hinge or hinge_of(curve, knees), load, "where the rising branch meets the plateau"),
        ("plateau95", knees.plateau95, load, "lowest load with 95 % of the plateau"),
        ("half_point", knees.half_point, load, "half of the plateau"),
        ("slo", knees.slo, load, "highest load that meets the limits, up to the lowest that misses them"),
        ("slo_rate", knees.slo_rate, "requests/s", "the same for requests sent at a fixed rate"),
        ("quality", knees.quality or None, load, "the knee, below every load at which answers changed"),
        ("peak", knees.peak, load, "lowest load with the highest throughput"),
        ("plateau", curve.plateau_tokens_per_s, per_s, f"{'output' if unit.decodes else unit} at and past the hinge"),
        ("single stream", curve.single_stream_tokens_per_s, per_s, f"one {one}"),
        ("dip", curve.dip, "", "share of the plateau lost at the last level"),
    ]
    out = []
    for name, value, counted, meaning in named:
        if value is not None and value.value is not None:
            doubt = "provisional" if provisional and name in _AT_THE_PLATEAU else ""
            figure = f"{number(value.value)} {counted}".strip()
            out.append(doc.Fact(name, figure, joined(confidence(value.ci95), doubt, meaning)))
    return out
