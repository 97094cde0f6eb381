"""Figures that are widely quoted without a source, next to the measured ones: of a run, and ratios of two stacks.

The measured ratio is that of the plateaus, repeat by repeat; its mean and its ends are shown. An interval, and whether
a difference is shown at all, is for `knee compare`.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import answer
from harness.data.manifest import Manifest
from harness.data.summary import Summary
from harness.predict import claims
from harness.report.answer import fastest, unit_of
from harness.report.document import Column, Section
from harness.report.format import MISSING, interval, load_of, number, plain
from harness.results.levelmap import REPEAT, SERVER, Map, MeasuredCell
from harness.spec.recipe import Claim


def section(summary: Summary, manifest: Manifest) -> Section:
    """Return a table of the claims about such a setup; empty, and not shown, where none holds."""
    rows, heads = of_run(summary, manifest), ("claim", "claimed", "measured")
    return Section(
        claims.TITLE,
        columns=[Column(head, [row[i] for row in rows], words=True) for i, head in enumerate(heads) if rows],
    )


def of_run(summary: Summary, manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return unsourced claims that apply to what was measured: (quote, low–high, what was measured).

    The last is "–" where a run has no such figure, like a ratio of two servers. Empty without a prediction, which
    knows the model and the card, for a simulated run, which measured no card, and where nothing is decoded.
    """
    prediction, top = summary.prediction, fastest(summary)
    if prediction is None or summary.simulated or prediction.simulated or top is None:
        return []
    if not unit_of(summary).decodes:
        return []
    curve, phases = summary.curve, summary.phases
    plateau = curve.plateau_tokens_per_s.value if curve and curve.plateau_reached else None
    single = curve.single_stream_tokens_per_s.value if curve else None
    price = summary.cost.usd_per_million_output_tokens if summary.cost else None
    reached = prediction.gap.mbu if prediction.gap else None
    probed = phases.decode.mbu if phases and phases.decode else None
    mbu = probed.value if probed else reached.value if reached else None
    highest = f"{number(answer.throughput(curve, [top]).value)} tok/s at {load_of(top)}"
    figures = {
        "throughput": highest if plateau is None else f"{number(plateau)} tok/s at the plateau",
        "single_stream": "" if single is None else f"{number(single)} tok/s",
        "utilization": "" if mbu is None else f"MBU {mbu:.2f}",
        "usd_per_million": "" if price is None else f"${number(price)}",
    }
    stack, dtype = str(manifest.server.get("name") or ""), manifest.scenario.hardware.dtype
    return [
        (claim.quote, _range(claim.low, claim.high), figures.get(claim.figure) or MISSING)
        for claim in claims.holding(claims.facts_of_run(prediction, stack, dtype))
    ]


def ratios(map_: Map, of: str, over: str) -> list[float]:
    """Return the plateau of one stack over that of another, in every repeat that has both."""
    found = []
    for repeat in dict.fromkeys(cell.at[REPEAT] for cell in map_.cells if REPEAT in cell.at):
        above, below = (_plateau(map_.cell({REPEAT: repeat, SERVER: name})) for name in (of, over))
        if above is not None and below:
            found.append(above / below)
    return found


def _plateau(cell: MeasuredCell | None) -> float | None:
    found = cell.plateau_tokens_per_s if cell else None
    return found.value if found else None


def lines(map_: Map) -> list[str]:
    """Return a line for each claim."""
    quoted = {each.id: each for each in claims.claims()}
    known = [(claim, quoted[claim.id]) for claim in map_.claims if claim.id in quoted]
    return [
        f"“{quote.quote}” ({quote.status}). {_claimed(claim, quote)}; {_measured(map_, claim)}."
        for claim, quote in known
    ]


def _claimed(claim: Claim, quote: claims.Claim) -> str:
    """Return the quoted ratio.

    >>> quote = claims.Claim("", "", "", 0.65, 0.9, "unsourced", "")
    >>> _claimed(Claim(id="", of="tp8", over="tp1", times=8), quote)
    'tp8 / tp1: claimed 5.2–7.2'
    """
    ends = [f"{claim.times * end:.3g}" for end in (quote.low, quote.high) if end is not None]
    return f"{plain(claim.of)} / {plain(claim.over)}: claimed {'–'.join(dict.fromkeys(ends)) or 'without a figure'}"


def _measured(map_: Map, claim: Claim) -> str:
    found = ratios(map_, claim.of, claim.over)
    return f"measured {_spread(found)}" if found else "not measured"


def _spread(found: Sequence[float]) -> str:
    """Return the mean with its ends.

    >>> _spread([1.3, 1.4]), _spread([1.25])
    ('1.35 (1.3–1.4, 2 repeats)', '1.25')
    """
    ends = f" ({min(found):.3g}–{max(found):.3g}, {len(found)} repeats)" if len(found) > 1 else ""
    return f"{sum(found) / len(found):.3g}{ends}"


def _range(low: float | None, high: float | None) -> str:
    return number(low) if low == high else interval((low, high))
