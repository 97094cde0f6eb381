"""A ratio of two stacks that is widely quoted, beside the measured one.

The measured ratio is that of the plateaus, repeat by repeat; its mean and its ends are shown. An interval, and whether
a difference is shown at all, is for `knee compare`.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.predict import claims
from harness.recipe import Claim
from harness.report.format import plain
from harness.results.levelmap import REPEAT, SERVER, Map, MeasuredCell


def ratios(map_: Map, of: str, over: str) -> list[float]:
    """Plateau of one stack over that of another, in every repeat that has both."""
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
    """A line for each claim."""
    quoted = {each.id: each for each in claims.claims()}
    known = [(claim, quoted[claim.id]) for claim in map_.claims if claim.id in quoted]
    return [
        f"“{quote.quote}” ({quote.status}). {_claimed(claim, quote)}; {_measured(map_, claim)}."
        for claim, quote in known
    ]


def _claimed(claim: Claim, quote: claims.Claim) -> str:
    """The quoted ratio.

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
    """The mean with its ends.

    >>> _spread([1.3, 1.4]), _spread([1.25])
    ('1.35 (1.3–1.4, 2 repeats)', '1.25')
    """
    ends = f" ({min(found):.3g}–{max(found):.3g}, {len(found)} repeats)" if len(found) > 1 else ""
    return f"{sum(found) / len(found):.3g}{ends}"
