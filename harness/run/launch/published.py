"""What a server publishes about itself before any load: models, limits, version, and where its figures are.

Servers differ, and most publish little: the rest stays unknown. Only a page that the operator named (`--metrics-url`)
must be there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from harness.base.errors import HarnessError
from harness.load import control
from harness.load.control import Client, Page
from harness.load.transport import Target
from harness.observe import exporters, server
from harness.run.launch.endpoint import Address

SIMULATED = "knee-sim"  # how the simulated endpoint names itself, wherever it is
_LLAMA = "llamacpp"  # how llama-server names itself as the owner of its models
_LONGEST_FACT = 200  # characters of a version
_LONGEST_NAME = 512  # characters of a model's name
_FACTS_S = 10.0  # for a page that need not be there
_MOST = 2**31  # a limit of tokens or slots beyond this is none
_ELSEWHERE = ("/metrics", "/prometheus/metrics")  # trtllm-serve has statistics in JSON at the first


class Published(msgspec.Struct, frozen=True):
    """Name, version and limits; vLLM's cache configuration; whether there are figures to read over time."""

    facts: dict[str, Any]
    cache_config: dict[str, str]
    metrics: bool
    path: str = ""  # where the figures are
    notes: tuple[str, ...] = ()


def entries(answer: Page) -> list[dict[str, Any]]:
    """The entries of a list of models; empty where the answer is anything else."""
    data = answer.json()
    found = data.get("data") if isinstance(data, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def goes_on(answer: Page) -> bool:
    """Whether a list of models is one page of several, as Anthropic's is."""
    data = answer.json()
    return isinstance(data, dict) and data.get("has_more") is True


def is_name(name: object) -> bool:
    """Whether it can name a model: printable text on one line, of at most 512 characters."""
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()


async def limits(client: Client, where: Address, entry: dict[str, Any], within_s: float = _FACTS_S) -> dict[str, Any]:
    """Limits from a model's entry and from llama-server's pages: `slots`, and the tokens of one slot as `n_ctx`.

    No other server has such pages; vLLM's `max_model_len`, in the entry, is `n_ctx` too.
    """
    facts: dict[str, Any] = {}
    if longest := _count(entry.get("max_model_len")):
        facts["n_ctx"] = longest
    if entry.get("owned_by") != _LLAMA:
        return facts
    facts["name"] = _LLAMA
    meta = entry.get("meta")
    if isinstance(meta, dict) and (trained := _count(meta.get("n_ctx_train"))):
        facts["n_ctx_train"] = trained
    props = await _data(client, where.path("/props"), within_s)
    if isinstance(props, dict):
        settings = props.get("default_generation_settings")
        facts |= _some(slots=_count(props.get("total_slots")), version=_text(props.get("build_info")))
        facts |= _some(n_ctx=_count(settings.get("n_ctx")) if isinstance(settings, dict) else None)
    if "slots" not in facts or "n_ctx" not in facts:  # some builds show one page and not the other
        slots = await _data(client, where.path("/slots"), within_s)
        if isinstance(slots, list) and slots and isinstance(slots[0], dict):
            facts = _some(slots=len(slots), n_ctx=_count(slots[0].get("n_ctx"))) | facts
    return facts


async def read(
    client: Client,
    version_path: str,
    figures: Client,
    target: Target,
    named: str | None,
    within_s: float = _FACTS_S,
) -> Published:
    """Version and figures; `target` is where the figures are, `named` the value of --metrics-url."""
    version, metrics = await asyncio.gather(page(client, version_path, within_s), page(figures, target.path, within_s))
    path = target.path
    facts: dict[str, Any] = {}
    if version is not None:
        name, _, number = version.headers.get("server", "").partition("/")
        if name == SIMULATED:
            return Published({"name": name, "version": number[:_LONGEST_FACT]}, {}, True, path)
        data = version.json()
        if isinstance(data, dict):
            facts |= _some(version=_text(data.get("version")))
    if metrics is None or metrics.status != 200:
        if named is not None:
            fact = "nothing answers there" if metrics is None else f"it answers {metrics.status}"
            raise HarnessError(fact, place=f"--metrics-url {named}", way_out="give the server's page, or leave it out")
        return Published(facts, {}, False)
    figures_page = metrics.text
    names = server.published(figures_page)
    if not names and named is None:
        elsewhere = target.path.replace(*_ELSEWHERE, 1)
        other = await page(figures, elsewhere, within_s)
        if other is not None and other.status == 200 and (names := server.published(other.text)):
            figures_page, path = other.text, elsewhere
    if engine := server.engine(figures_page):
        facts["name"] = engine
    notes = () if names or named is None else ("--metrics-url: none of its figures is known",)
    return Published(facts, server.cache_config(figures_page), bool(names), path, notes)


async def exporter(figures: Client, target: Target, named: str, within_s: float = _FACTS_S) -> None:
    """HarnessError unless an exporter's page is there and has figures that are known."""
    found = await page(figures, target.path, within_s)
    fact = "nothing answers there" if found is None else "" if found.status == 200 else f"it answers {found.status}"
    if not fact and found is not None and not exporters.samples(0, 0.0, found.text):
        fact = "none of its figures is known"
    if fact:
        way_out = "give the page of a DCGM exporter or a node exporter"
        raise HarnessError(fact, place=f"--exporter {named}", way_out=way_out)


async def page(client: Client, path: str, within_s: float = _FACTS_S) -> Page | None:
    """A page that need not be there, in at most ten seconds."""
    try:
        return await control.page(client, path, min(within_s, _FACTS_S))
    except control.TransportError:  # what is not published stays unknown
        return None


async def _data(client: Client, path: str, within_s: float) -> Any:
    """The data of a page that need not be there; None where there is none."""
    found = await page(client, path, within_s)
    return None if found is None else found.json()


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else None


def _text(value: Any) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) and value else None


def _some(**facts: Any) -> dict[str, Any]:
    """The facts that are known."""
    return {name: value for name, value in facts.items() if value is not None}
