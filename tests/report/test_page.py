"""The page is whole, offline and safe; the Markdown has the same content."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.judgement import Verdict
from harness.data.machines import Host
from harness.data.manifest import Manifest, Simulated
from harness.data.summary import Summary
from harness.report import document, markdown, page, run_report
from harness.report.answer import answer, figures
from harness.report.format import plain as plain_text
from harness.spec.scenario import Scenario, Target
from tests.builders.browser import CHROMIUM, tab
from tests.builders.screens import shown_facts
from tests.builders.summaries import MANIFEST, SIMULATED_MANIFEST, SITUATIONS, full, hollow, interrupted, simulated


class Seen(HTMLParser):
    """Tags, attributes, and the text outside of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data: dict[str, list[str]] = {}
        self.text = ""
        self._inside = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data.setdefault(self._inside, []).append(data)
        else:
            self.text += data


def page_of(summary: Summary, manifest: Manifest) -> str:
    return page.render(run_report.report(summary, manifest))


def markdown_of(summary: Summary, manifest: Manifest) -> str:
    return markdown.render(run_report.report(summary, manifest))


@cache
def seen(name: str) -> Seen:
    return Seen(page_of(SITUATIONS[name](), SIMULATED_MANIFEST if name == "simulated" else MANIFEST))


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_page_loads_nothing_from_anywhere(name: str) -> None:
    found = seen(name)
    loading = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href", "formaction"}
    assert [pair for pair in found.attributes if pair[0] in loading and not (pair[1] or "").startswith("#")] == []
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(found.tags)
    assert not re.search(r"url\(|@import", "".join(found.data["style"]))
    policy = next(value for key, value in found.attributes if key == "content" and value and "default-src" in value)
    assert "default-src 'none'" in policy
    assert "http" not in policy


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_answer_stands_on_the_page_before_all_else(name: str) -> None:
    text, summary = flat(seen(name).text), SITUATIONS[name]()
    places = [text.find(part) for fact in shown_facts(summary) for part in (fact.value, fact.detail)]
    assert min(places) >= 0
    first = [text.find(part) for fact in figures(summary) for part in (fact.value, fact.detail)]
    later = [text.find(head) for head in ("Throughput against load", "Levels", "Verdicts", "What was run")]
    order = [text.find(answer(summary).sentence), *first, *(place for place in later if place >= 0)]
    assert order[0] >= 0
    assert max(order[: 1 + len(first)]) < order[1 + len(first)]
    assert later == sorted(later)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("full", ["Knee: 16.2 requests in flight (95 % interval 15.4–17.1)"]),
        (
            "provisional",
            [
                "Knee: about 16.1 requests in flight (provisional; 95 % interval 11–28)",
                "Why provisional: 1 level past the knee, 2 are needed",
                "To settle it: repeat 16 and measure 23 and 32 in flight, about 40 s",
            ],
        ),
        (
            "simulated",
            [
                "Knee: above 8 requests in flight: throughput still rises there; the prediction puts it near 15.7",
                "To settle it: measure 16 and 32 in flight, about 48 s",
            ],
        ),
        ("hollow", ["Knee: not measurable: every level is invalid"]),
    ],
)
def test_every_state_has_its_sentence_in_markdown_page_chart_and_title(name: str, lines: list[str]) -> None:
    summary = SITUATIONS[name]()
    text = markdown_of(summary, MANIFEST)
    places = [text.find(f"- {line}\n") for line in lines]
    assert min(places) >= 0
    assert places == sorted(places)
    value = lines[0].removeprefix("Knee: ").partition("; the ")[0]
    source = page_of(summary, MANIFEST)
    assert f'<p class="sentence">{lines[0]}</p>' in source
    assert f": {value}</title>" in source
    body = Seen(source[source.index("<main>") :]).text
    assert body.count(lines[0].removeprefix("Knee: ")) == 1, "it is said once"
    assert msgspec.json.decode(seen(name).data["script"][0])["curve"]["answer"] == lines[0]


@pytest.mark.parametrize("name", SITUATIONS)
def test_neither_page_nor_markdown_says_none_or_nan(name: str) -> None:
    summary = SITUATIONS[name]()
    manifest = msgspec.structs.replace(MANIFEST, scenario=Scenario())  # it is shown as JSON, with its nulls
    text = Seen(page_of(summary, manifest)).text + markdown_of(summary, manifest)
    assert not re.search(r"\b(None|nan|NaN|null)\b", text)


def test_what_came_from_outside_stays_text() -> None:
    attack = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    summary = full()
    levels = [
        msgspec.structs.replace(
            level, errors_by_type={attack: 1}, verdicts=[Verdict(attack, "invalid", attack, attack)]
        )
        for level in summary.levels
    ]
    prediction = msgspec.structs.replace(
        summary.prediction, model=attack, gpu=attack, binding_cap=attack, caps={attack: 16.0}
    )
    texts: dict[str, Any] = dict.fromkeys(("name", "url", "model", "gpu", "created", "command"), attack)
    hostile = Manifest(
        **texts,
        server={"name": attack, "version": attack},
        scenario=Scenario(name=attack, target=Target(model=attack, headers={attack: attack})),
        notes=[attack],
        harness_version=attack,
        simulated=Simulated(profile=attack),
        host=Host(system=attack),
    )
    loaded: Summary = msgspec.structs.replace(summary, simulated=True, levels=levels, prediction=prediction)
    found, plain = Seen(page_of(loaded, hostile)), seen("full")
    assert "img" not in found.tags
    assert found.tags.count("script") == plain.tags.count("script") == 4
    assert not any(key.startswith("on") for key, _ in found.attributes)
    assert found.text.count("alert(1)") >= 10
    assert attack in json_texts(msgspec.json.decode(found.data["script"][0]))  # shown by textContent, as it is
    assert "<" not in found.data["script"][0]
    assert not re.search(r"(?<!\\)<", markdown_of(loaded, hostile).replace(plain_text(attack), ""))


def json_texts(value: Any) -> str:
    if isinstance(value, dict | list):
        return " ".join(map(json_texts, value.values() if isinstance(value, dict) else value))
    return str(value)


def test_no_script_of_ours_makes_elements_of_text() -> None:
    source = page.asset("page.js")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", source)


def test_no_template_turns_escaping_off() -> None:
    templates = sorted(Path(page.__file__).with_name("assets").glob("*.j2"))
    assert len(templates) == 3
    assert not re.search(r"\|\s*safe|autoescape|Markup", "".join(path.read_text() for path in templates))


def test_the_figures_travel_as_json_that_no_text_can_end() -> None:
    source = seen("full").data["script"][0]
    assert "<" not in source
    assert set(msgspec.json.decode(source)) == {"curve", "ttft", "itl", "e2e", "frontier"}


def test_the_page_is_small() -> None:
    assert len(page_of(full(), MANIFEST).encode()) < 600_000


def test_a_run_without_levels_is_a_page_without_charts_and_without_scripts() -> None:
    source = page_of(msgspec.structs.replace(interrupted(), levels=[]), Manifest())
    assert "<script" not in source
    assert "no level was finished" in source


def test_plots_without_data_are_left_out() -> None:
    assert set(msgspec.json.decode(seen("hollow").data["script"][0])) == {"curve"}
    assert "Latency against load" not in seen("hollow").text


def test_a_simulated_page_is_branded_in_banner_title_plot_and_markdown() -> None:
    source = page_of(simulated(), SIMULATED_MANIFEST)
    assert "<title>SIMULATED " in source
    assert '<p class="banner"><b>SIMULATED</b>' in source
    assert '"simulated":"' in source
    assert markdown_of(simulated(), SIMULATED_MANIFEST).splitlines()[4].startswith("> **SIMULATED**: ")
    assert "SIMULATED" not in seen("full").text


def test_the_command_that_repeats_the_run_is_on_the_page_as_it_must_be_typed() -> None:
    listed = page_of(hollow(), Manifest(command="knee run --model 'a b'"))
    assert "knee run --model &#39;a b&#39;</pre>" in listed


def test_the_markdown_has_the_same_in_order() -> None:
    text = markdown_of(full(), MANIFEST)
    parts = ["# meta-llama/Llama-3.1-8B-Instruct", "- Knee: 16.2 requests in flight", "![", "](curve.png)", "## Levels",
             "| 64 | 63.5 | 1,857 | ±15 | 1,972 | 0.94 |", "## Verdicts", "- **invalid** client\\_limited at C = 64",
             "## What was run"]  # fmt: skip
    places = [text.find(part) for part in parts]
    assert min(places) >= 0
    assert places == sorted(places)


def test_the_last_line_names_what_the_page_was_made_from() -> None:
    footer = flat(seen("full").text)
    assert footer.rstrip().endswith(
        "Made by knee 0.1.0 from summary.json and manifest.json. knee report DIR makes it again."
    )
    assert "Made by knee.</footer>" in page.render(document.Document(sections=[]))


def test_what_is_not_the_answer_is_folded_away() -> None:
    source = page_of(full(), MANIFEST)
    folded = re.findall(r'<details class="folded"[^>]*><summary><h2>([^<]*)</h2>', source)
    assert folded == ["Details", "All knees", "What was run"]


def test_a_server_that_died_or_changed_is_a_banner_before_the_answer() -> None:
    gone = Verdict("server_changed", "doubt", "the server was vLLM 0.31 before and is 0.32 now", "measure all anew")
    source = page_of(msgspec.structs.replace(full(), verdicts=[gone]), MANIFEST)
    banner = '<p class="banner warning" role="alert">The server was vLLM 0.31 before and is 0.32 now</p>'
    assert 0 < source.index(banner) < source.index('<p class="sentence">')
    assert 'role="alert"' not in page_of(full(), MANIFEST)


def test_a_bar_in_a_name_does_not_break_the_markdown() -> None:
    assert "# a\\|b\\_c" in markdown_of(full(), msgspec.structs.replace(MANIFEST, model="a|b_c"))


def opened(source: str, folder: Path, *, dark: bool = False) -> str:
    """The page as a Chromium has it once its scripts ran; nothing may have been written to its console."""
    folder.mkdir(exist_ok=True)
    file = folder / "report.html"
    file.write_text(source, encoding="utf-8")
    assert CHROMIUM is not None
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root with one
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}"]  # fmt: skip
    command = [CHROMIUM, "--headless", *sandbox, *quiet, f"--user-data-dir={folder / 'profile'}",
               "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout[done.stdout.index("<main>") : done.stdout.index("</main>")]


browser = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no headless Chromium (chromium in PATH)"),
]


@pytest.mark.parametrize("name", [pytest.param(name, marks=browser) for name in ("full", "simulated")])
def test_a_browser_draws_every_plot(name: str, tmp_path: Path) -> None:
    body = opened(page_of(SITUATIONS[name](), MANIFEST), tmp_path)
    plots = re.split(r'<figure class="chart[^"]*" id="', body)[1:]
    assert [plot[: plot.index('"')] for plot in plots] == ["curve", "ttft", "itl", "e2e", "frontier"]
    assert all("<svg" in plot and 'aria-label="dot"' in plot for plot in plots)
    assert "knee 16.2" in plots[0] or name != "full"


@pytest.mark.parametrize("name", [pytest.param("full", marks=browser)])
def test_without_scripts_every_chart_is_the_picture_that_matplotlib_draws_of_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of(SITUATIONS[name](), MANIFEST))
    shown = "Array.from(document.querySelectorAll('.plot'), each => Array.from(each.querySelectorAll('svg.drawn text'),"
    shown += " text => text.getBoundingClientRect().width > 0).filter(Boolean).length)"
    with tab() as page:
        for look in ({}, {"width": 390}, {"dark": True}, {"paper": True}):
            page.look(scripts=False, **look)
            page.open(file.as_uri())
            assert [count > 5 for count in page.value(shown)] == [True] * 5, look
            assert page.value("document.documentElement.scrollWidth <= innerWidth"), look
        page.look()
        page.open(file.as_uri())
        assert page.value(shown) == [0] * 5, "a script draws them"
        assert set(page.requested) == {file.as_uri()}


_USED = """<script>
const press = (selector, words) =>
  [...document.querySelectorAll(selector)].find(each => each.textContent === words).click();
const before = document.querySelector("#curve .plot svg").outerHTML;
press(".switch button", "linear");
if (document.querySelector("#curve .plot svg").outerHTML === before) throw new Error("the axes did not change");
press(".levels th button", "TTFT ms\\np50"); press(".levels th button", "TTFT ms\\np50");
document.querySelector("#ttft .plot").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
</script></body>"""


@pytest.mark.parametrize("name", [pytest.param("full", marks=browser)])
def test_tables_sort_axes_switch_and_arrow_keys_read_points_out(name: str, tmp_path: Path) -> None:
    source = re.sub(r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", page_of(SITUATIONS[name](), MANIFEST))
    body = opened(source.replace("</body>", _USED), tmp_path)
    assert 'aria-pressed="true">linear' in body
    rows = re.findall(r"<tr[^>]*><td>(\d+)</td>", body[body.index('<table class="levels">') :])
    assert rows[:10] == ["64", "48", "32", "24", "1", "2", "4", "8", "12", "16"]
    assert re.search(r'<p class="tip" role="status"[^>]*><b>C = 1: p50 30 ms</b>', body)
