"""The page's sliders, moved in a browser, come to the figures of `knee plan`."""

from __future__ import annotations

import html
import itertools
import json
import re
from pathlib import Path

import msgspec
import pytest

from harness.decide.plan import capacity, plan, what_if
from harness.decide.plan.question import Demand, Prices, Question
from harness.report import markdown, page, run_report
from tests.builders.summaries import MANIFEST, full
from tests.report.test_page import browser, opened

PRICED = msgspec.structs.replace(MANIFEST, price=2.0)

_MOVED = """<script>
const set = (name, index) => {
  const input = document.querySelector(`.what-if input[name="${name}"]`);
  input.value = index;
  input.dispatchEvent(new Event("input"));
};
const words = selector => document.querySelector(selector).textContent;
const found = MOVES.map(move => {
  for (const [name, index] of Object.entries(move)) set(name, index);
  const cells = [...document.querySelectorAll(".what-if dd")].map(each => each.textContent);
  return {words: cells, command: words(".what-if .command"), curve: words("#curve .plot svg")};
});
const kept = Object.assign(document.createElement("pre"), {id: "found", textContent: JSON.stringify(found)});
document.querySelector("main").append(kept);
</script></body>"""


def test_a_page_without_a_price_has_no_sliders_and_other_media_have_none_at_all() -> None:
    assert "what-if-data" not in page.render(run_report.report(full(), MANIFEST))
    document = run_report.report(full(), PRICED)
    assert "What if" not in markdown.render(document)
    source = page.render(document)
    assert (
        source.index(">Throughput against load<") < source.index(">What if<") < source.index(">Latency against load<")
    )
    assert len(source.encode()) < 620_000, "a tenth of it draws each chart for readers without scripts"


@pytest.mark.parametrize("name", [pytest.param("full", marks=browser)])
def test_moved_sliders_give_the_replicas_and_the_cost_of_a_plan(name: str, tmp_path: Path) -> None:
    made = what_if.of_run(PRICED, full())
    assert made is not None
    stops = {control.name: control.stops for control in made.controls}
    every = [(0, -1), (23, 25, 26, -1), (5, 33), (2,)]
    moves = [
        {each: index % len(stops[each]) for each, index in zip(stops, indices, strict=True)}
        for indices in itertools.product(*every)
    ]
    source = re.sub(
        r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", page.render(run_report.report(full(), PRICED))
    )
    body = opened(source.replace("</body>", _MOVED.replace("MOVES", json.dumps(moves))), tmp_path)
    text = re.search(r'<pre id="found">(.*?)</pre>', body, re.DOTALL)
    assert text is not None
    found = json.loads(html.unescape(text[1]))
    assert len(found) == len(moves) == 16
    loads = set()
    for move, shown in zip(moves, found, strict=True):
        chosen = {each: stops[each][index] for each, index in move.items()}
        planned = planned_for(chosen)
        at = planned.operating_point.at
        loads.add(at.load if at else None)
        if at is None:
            assert shown["words"] == ["none", "no measured load is known to meet the limits"]
            continue
        assert planned.fleet is not None
        assert planned.costs is not None
        load, running, replicas, ends, hour, rest = shown["words"]
        assert load == f"{at.load:g} requests in flight"
        assert int(replicas) == planned.fleet.replicas
        low, high = planned.fleet.ci95
        assert ends == (f"95 % interval {low}–{high}" if low != high else "")
        money = [planned.costs.usd_per_month, planned.costs.usd_per_million, 1000 * planned.costs.usd_per_request]
        numbers = [float(each.replace(",", "")) for each in re.findall(r"\$([\d.,]*\d)", f"{hour} {rest}")]
        assert numbers == pytest.approx([planned.costs.usd_per_hour, *money], rel=5e-3)
        assert "TTFT max" in running, "these levels have no p99"
        assert f"each replica at {at.load:g}" in shown["curve"]
        limits = ",".join(f"{each}={value * 1e3:.6g}ms" for each, value in chosen.items() if "p99" in each and value)
        slo = f" --slo {limits}" * bool(limits)
        assert shown["command"] == f"knee plan DIR{slo} --rps {chosen['rps']:g} --price {chosen['price']:g}"
    assert {None, 12.0, 16.0, 48.0}.issubset(loads)
    assert len(loads) >= 4


def planned_for(chosen: dict[str, float | None]) -> plan.Plan:
    """As `knee plan` has it, from the percentiles of the levels."""
    limits = {each: value for each, value in chosen.items() if each.endswith("_p99") and value is not None}
    question = Question(
        demand=Demand(requests_per_s=chosen["rps"]),
        prices=Prices(gpu_hour=chosen["price"]),
        by=None if limits else "knee",
    )
    return plan.make(capacity.of_summary("", PRICED, full(), limits, by="percentiles"), question)
