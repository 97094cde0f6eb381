"""Which card, as a document: the pick in a sentence, every card that serves, and those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.report.document import Column, Section, shown
from harness.report.format import MISSING, limit_name, ms, number, percent, plain

if TYPE_CHECKING:
    from harness.decide.choice import Choice

_GUESSED = "Cards whose MBU, MFU and overheads are a guess come last."
_UNPRICED = "Cards without a price come after the others, whatever they cost."
_CLOSE = 0.01  # relative difference below which two cards rank the same


def pick(choices: Sequence[Choice], rank: str, G: float, requests_per_s: float | None) -> str:
    """Return sentences that recommend the first choice, say why, and name the next card; "" if none is ranked.

    `choices` are the best sizes in their order, G the tokens of an answer, and the rate that of a demand.
    """
    from harness.decide.choice import guessed, ranked_by

    ranked = [(choice, figure) for choice in choices if not choice.why_not and (figure := ranked_by(choice, rank, G))]
    if not ranked or ranked[0][0] is not choices[0]:
        return ""
    (first, least), *others = ranked
    peers = [each for each in others if guessed(each[0]) == guessed(first)]
    best = {"cost": "cheapest", "speed": "fastest", "latency": "shortest", "power": "least"}[rank]
    why = f", the {best} of {len(peers) + 1} cards" if peers else ""
    cap = f"; {limit_name(first.binding_cap)} ends its batch" if first.binding_cap and rank in ("cost", "speed") else ""
    demand = f" for {number(requests_per_s)} request{'s' * (requests_per_s != 1)}/s" if requests_per_s else ""
    fleet = f" in {first.fleet.replicas} replica{'s' * (first.fleet.replicas > 1)}{demand}" if first.fleet else ""
    text = f"Pick {_cards(first)}{fleet}: {_figure(first, rank, least)}{why}{cap}"
    if peers:
        after, figure = peers[0]
        more = abs(figure / least - 1)
        by = "the same" if more < _CLOSE else f"{percent(more)} {'less' if rank == 'speed' else 'more'}"
        text += f". Next is {_cards(after)}: {_figure(after, rank, figure)}, {by}"
    lower = next((each for each in others if guessed(each[0]) and each[1] < least), None)
    if lower:
        better = _figure(lower[0], rank, lower[1])
        text += f". {_cards(lower[0])} might be better at {better}, but its constants are a guess"
    return text + "."


def gains(found: tuple[float, float] | None) -> list[str]:
    """Return a line on the pick's throughput offline and with prompts alone, as multiples; [] if not known."""
    if found is None:
        return []
    offline, prompts = found
    batch = f"Offline, without limits, it does × {offline:.2g} as many tokens/s. " if offline > 1 + _CLOSE else ""
    return [f"{batch}Prompts alone, as of embeddings, are × {prompts:.2g} as many tokens/s as it decodes."]


def _figure(choice: Choice, rank: str, figure: float) -> str:
    """Return as words the figure that a choice is ranked by (cost, power, latency or rate), with its unit."""
    tokens = "output tokens" if _decodes([choice]) else "input tokens"
    if rank == "cost":
        return f"${figure:,.0f} a month" if choice.fleet else f"${number(figure)} per 1M {tokens}"
    if rank == "power":
        return f"{number(figure)} W as rated" if choice.fleet else f"{number(figure)} kWh per 1M {tokens}"
    return f"{ms(figure)} ms a request" if rank == "latency" else f"{number(-figure)} requests/s"


def sections(choices: Sequence[Choice], rank: str, *, whole: bool = True) -> list[Section]:
    """Return every card that fits, the best first, and the others with the reason why not.

    Where not `whole`, as many columns as fit on a terminal.
    """
    from harness.decide.choice import guessed

    fit = [choice for choice in choices if not choice.why_not]
    out = [choice for choice in choices if choice.why_not]
    most = "tokens" if _decodes(fit) else "requests"
    demand = any(each.fleet for each in fit)
    by = {
        "cost": "the cheapest first, by the slow end" if demand else "the cheapest tokens first, by the slow end",
        "speed": f"the most {most} first, by the slow end",
        "power": "the fewest watts first, by the slow end",
        "latency": "the shortest answers first" if demand else "the shortest answers first, one user in flight",
    }
    reasons = [
        Column("GPU", [_cards(each) for each in out], words=True),
        Column("why not", [plain(each.why_not) for each in out], words=True),
    ]
    columns = _fleets(fit) if demand else _choices(fit, rank, whole=whole)
    doubts, notes = _doubts(fit), [_GUESSED] if any(map(guessed, fit)) else []
    if rank == "cost" and len({each.usd_per_hour is None for each in fit}) > 1:
        notes.append(_UNPRICED)
    serve = Section(f"Cards that serve it, {by[rank]}", columns=columns, note=" ".join(notes))
    return [
        *([serve] if fit else []),
        *([Section("Cards that do not", columns=reasons)] if out else []),
        *([Section("Doubts about cards marked ?", lines=doubts)] if doubts else []),
    ]


def _doubts(choices: Sequence[Choice]) -> list[str]:
    """Return each doubt once, with its cards."""
    every = dict.fromkeys(doubt for choice in choices for doubt in choice.doubts)
    cards = {doubt: dict.fromkeys(choice.gpu for choice in choices if doubt in choice.doubts) for doubt in every}
    return [f"{plain(doubt)}: {', '.join(of)}" for doubt, of in cards.items()]


def _cards(choice: Choice) -> str:
    return f"{choice.tp} × {choice.gpu}"


def _decodes(choices: Sequence[Choice]) -> bool:
    return any(choice.output_tokens_per_s and choice.output_tokens_per_s.mid for choice in choices)


def _known(choices: Sequence[Choice], spare: int = 0) -> list[Column]:
    known = [choice.constants for choice in choices]
    doubted = ["?" if choice.doubts else "" for choice in choices]
    return [Column("constants", known, words=True, spare=spare), Column("", doubted, words=True)]


def _choices(choices: Sequence[Choice], rank: str, *, whole: bool) -> list[Column]:
    """Return the columns of the table of choices; `whole` keeps those that a narrow terminal leaves out."""

    def spare(order: int) -> int:
        return 0 if whole else order

    bands, per = [choice.output_tokens_per_s for choice in choices], "1M" if _decodes(choices) else "1M in"
    columns = [
        Column("GPU", [_cards(choice) for choice in choices], words=True),
        Column(f"$/{per}", [number(choice.usd_per_million) for choice in choices]),
        Column("at most", [number(choice.usd_per_million_slow) for choice in choices]),
        *([Column(f"kWh/{per}", [number(choice.kwh_per_million) for choice in choices])] if rank == "power" else []),
        Column("tok/s", [number(band.mid) if band and band.mid else MISSING for band in bands]),
        Column("at least", [number(band.low) if band and band.low else MISSING for band in bands], spare=spare(3)),
        Column("req/s", [number(choice.requests_per_s) for choice in choices]),
        Column("at C", [number(choice.concurrency) for choice in choices]),
        Column("ITL ms", [ms(choice.itl_s) for choice in choices]),
        Column("TTFT ms", [ms(choice.ttft_s) for choice in choices]),
        Column("$/h", [MISSING if each.usd_per_hour is None else f"{each.usd_per_hour:,.2f}" for each in choices]),
        Column("bound by", [limit_name(each.binding_cap or MISSING) for each in choices], words=True, spare=spare(2)),
        *_known(choices, spare(1)),
    ]
    return shown(columns, empty=(MISSING, ""))


def _fleets(choices: Sequence[Choice]) -> list[Column]:
    """Return the table of each card's replicas for the demand, with cost, power and latencies."""
    rows = [(choice, choice.fleet) for choice in choices if choice.fleet]
    fleets = [fleet for _, fleet in rows]
    columns = [
        Column("GPU", [_cards(each) for each, _ in rows], words=True),
        Column("replicas", [number(fleet.replicas) for fleet in fleets]),
        Column("used", [percent(fleet.utilization) for fleet in fleets]),
        Column("$/month", [number(fleet.usd_per_month) for fleet in fleets]),
        Column("W", [number(fleet.watts) for fleet in fleets]),
        Column("at C", [number(fleet.concurrency) for fleet in fleets]),
        Column("ITL ms", [ms(fleet.itl_s) for fleet in fleets]),
        Column("TTFT ms", [ms(fleet.ttft_s) for fleet in fleets]),
        *_known([each for each, _ in rows], spare=1),
    ]
    return shown(columns, empty=(MISSING, ""))
