"""What the map draws and its texts; its looks are for the eye."""

from __future__ import annotations

import msgspec
import pytest

from harness.data.prediction import Prediction
from harness.data.views import Value
from harness.predict import catalog, deployment, model, roofline
from harness.report import document, level_map, markdown, page
from harness.results.levelmap import INPUT, OUTPUT, SEQS, SERVER, Axis, Map, MeasuredCell
from harness.spec import work


def table(map_: Map) -> str:
    return markdown.render(level_map.report(map_))


KV_TOKENS = 65_536  # 4,096 blocks of 16


def predicted(P: int, G: int, max_num_seqs: int = 1024) -> Prediction:
    """Llama-3.1-8B on an H100 whose KV cache holds 65,536 tokens."""
    served = model.model(catalog.model_config("llama-3.1-8b"), "llama-3.1-8b")
    where = deployment.deployment(catalog.gpu("h100-sxm"), kv_tokens=KV_TOKENS, max_num_seqs=max_num_seqs)
    return roofline.predict(served, where, work.MeanLengths(P, G), [1])


def cell(P: int, G: int, knee: float | None = 20.0, seqs: int | None = None, status: int = 0) -> MeasuredCell:
    value = None if knee is None else Value(knee, (0.9 * knee, 1.1 * knee))
    at: dict[str, int | str] = {INPUT: P, OUTPUT: G}
    return MeasuredCell(
        name=f"in{P}-out{G}" + (f"-seqs{seqs}" if seqs else ""),
        at=at | ({SEQS: seqs} if seqs else {}),
        status=status,
        knee=value,
        hinge=value,
        plateau_tokens_per_s=Value(1234.4, (1200.0, 1300.0)),
        plateau_reached=knee is not None,
        prediction=predicted(P, G, seqs or 1024),
    )


def over(axes: list[Axis], cells: list[MeasuredCell], simulated: bool = False) -> Map:
    return Map(name="map", model="llama-3.1-8b", gpu="h100-sxm", simulated=simulated, axes=axes, cells=cells)


P_AXIS, G_AXIS = Axis(INPUT, [1024, 2048, 4096]), Axis(OUTPUT, [128, 256])


def plane() -> Map:
    made = [cell(P, G) for P in (1024, 2048, 4096) for G in (128, 256)]
    made[0] = msgspec.structs.replace(made[0], knee=None, plateau_reached=False)
    made[1] = MeasuredCell(name=made[1].name, at=made[1].at, error="http://x|y: no answer")
    made[2] = MeasuredCell(name=made[2].name, at=made[2].at, left_out="--max-seconds 60 is used up by the cells before")
    made[3] = msgspec.structs.replace(made[3], status=3)
    return over([P_AXIS, G_AXIS], made, simulated=True)


def test_a_plateau_that_was_not_reached_is_never_a_number() -> None:
    made = msgspec.structs.replace(
        cell(1024, 128), knee=None, plateau_reached=False
    )  # its fit has a hinge and a plateau
    assert level_map.knee(made) == level_map.Figure(None, "not reached")
    assert level_map.plateau(made) == level_map.Figure(None, "not reached")


def test_an_slo_knee_stands_where_the_plateau_was_not_reached() -> None:
    made = msgspec.structs.replace(cell(1024, 128), plateau_reached=False, hinge=Value(31.0, (24.0, None)))
    assert level_map.knee(made) == level_map.Figure(20.0, "20", (18.0, 22.0))
    assert level_map.plateau(made).value is None


def test_a_provisional_knee_is_shown_as_one_with_its_plateau() -> None:
    made = msgspec.structs.replace(cell(1024, 128), plateau_reached=False)
    assert level_map.knee(made) == level_map.Figure(20.0, "≈20", (18.0, 22.0))
    assert level_map.plateau(made) == level_map.Figure(1234.4, "≈1,234", (1200.0, 1300.0))


def test_what_failed_and_what_was_left_out_are_told_apart() -> None:
    made = plane()
    assert [level_map.knee(each).words for each in made.cells[:3]] == ["not reached", "failed", "not measured"]
    assert level_map.knee(None).words == "not measured"
    assert level_map.knee(made.cells[3]).words == "20 ✗"


def test_the_table_has_a_line_a_cell_and_says_what_is_missing() -> None:
    text = table(plane())
    assert text.startswith("# map: knee by input tokens P and output tokens G\n")
    assert "**SIMULATED**" in text
    rows = [line for line in text.partition("## Cells")[2].splitlines() if line.startswith("|")][2:]
    assert len(rows) == 6
    assert rows[5].startswith("| 4,096 | 256 | 20 | 18–22 | 1,234 | 1,200–1,300 | 15 |")
    assert rows[5].endswith(r"| kv\_memory | 0 | [in4096-out256](in4096-out256/report.md) |")
    assert "not reached" in rows[0]
    assert r"- in1024-out256: http://x\|y: no answer" in text
    assert all(line.replace("\\|", "").count("|") == 12 for line in rows)


HOSTILE = [
    "<script>alert(1)</script>", "[a](javascript:alert(1))", "![a](http://x/pixel)", "a | b |", "x\n\n# y\n<b>",
    "~~~", "# x", "> x", "`x` **y**", "](x)", "\\", "\x1b[2J\u202e",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_outside_is_text_in_the_table_and_nothing_else(text: str) -> None:
    """Read by a Markdown parser: no markup, link or picture but the table's own."""
    from markdown_it import MarkdownIt

    ran, failed = cell(1024, 128), cell(1024, 256)
    assert ran.prediction is not None
    odd = msgspec.structs.replace(ran.prediction, binding_cap=text)
    ran = msgspec.structs.replace(ran, name=text, at={**ran.at, SERVER: text}, prediction=odd)
    failed = msgspec.structs.replace(failed, name=text, status=None, error=text, at={**failed.at, SERVER: text})
    axes = [Axis(INPUT, [1024]), G_AXIS, Axis(SERVER, [text])]
    made = Map(name=text, model=text, gpu=text, created=text, axes=axes, cells=[ran, failed], complete=True)
    tokens = MarkdownIt("commonmark").enable("table").parse(table(made))
    found = [each for token in tokens for each in (token, *(token.children or []))]
    kinds = {token.type for token in found}
    assert kinds & {"html_block", "html_inline", "fence", "code_block", "code_inline", "em_open", "hr"} == set()
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2"]
    assert [token.attrGet("href") for token in found if token.type == "link_open"] == []
    assert [token.attrGet("src") for token in found if token.type == "image"] == []
    assert table(made).partition("## Cells")[2].count("\n|") == 4
    assert not any(char in table(made) for char in "\x1b\u202e")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["one", "two", "three", "settings", "single", "empty"])
def test_every_shape_of_map_has_its_tables_or_its_charts(shape: str) -> None:
    seqs = Axis(SEQS, [8, 16])
    made = {
        "one": over([P_AXIS], [cell(P, 128, knee) for P, knee in ((1024, 60.0), (2048, None), (4096, 15.0))]),
        "two": plane(),
        "three": over(
            [P_AXIS, G_AXIS, seqs],
            [cell(P, G, seqs=s) for P in (1024, 2048, 4096) for G in (128, 256) for s in (8, 16)][:-1],
        ),
        "settings": over([P_AXIS, seqs], [cell(P, 128, seqs=s) for P in (1024, 2048, 4096) for s in (8, 16)]),
        "single": over([Axis(INPUT, [1024])], [cell(1024, 128)]),
        "empty": over([P_AXIS, G_AXIS], []),
    }[shape]
    found = level_map.report(made)
    charts = [chart for section in found.sections for chart in section.charts]
    assert [chart.name for chart in charts] == (["knee", "plateau"] if shape == "one" else [])
    assert len(found.sections) - 3 == {"one": 1, "two": 2, "three": 4, "settings": 2, "single": 0, "empty": 2}[shape]
    assert "None" not in markdown.render(found)
    assert page.render(found)


def test_a_heat_map_is_a_table_with_the_largest_answers_on_top() -> None:
    cells = [cell(P, G, knee) for P, G, knee in ((1024, 128, 64.0), (1024, 256, 32.0), (2048, 128, 16.0))]
    made = level_map.report(over([Axis(INPUT, [1024, 2048]), G_AXIS], cells))
    assert [section.title for section in made.sections[1:4]] == [
        "Knee, requests in flight",
        "Plateau, output tok/s",
        "Cells",
    ]
    knees = made.sections[1].columns
    assert [column.head for column in knees] == [
        "output tokens G",
        "input tokens P\n1,024",
        "input tokens P\n2,048",
    ]
    assert [[str(one) for one in row] for row in document.rows(knees)] == [
        ["256", "32 (28.8–35.2)", "not measured"],
        ["128", "64 (57.6–70.4)", "16 (14.4–17.6)"],
    ]
    shades = [one.share for column in knees[1:] for one in column.cells if isinstance(one, document.Shaded)]
    assert shades == pytest.approx([0.5, 1.0, None, 0.0])  # 16, 32 and 64 are even in the logarithm


def test_the_page_shades_what_was_measured_and_links_each_cell_to_its_page() -> None:
    source = page.render(level_map.report(plane()))
    assert source.count('class="shaded" style="--share: ') == 3 + 3  # of six cells three failed, or show no plateau
    assert '<a href="in4096-out256/report.html">in4096-out256</a>' in source
    assert "from map.json. <code>knee report DIR</code> makes it again." in source


def test_one_axis_is_a_chart_on_the_page_and_text_from_outside_stays_text() -> None:
    made = level_map.report(
        over([P_AXIS], [cell(P, 128, knee) for P, knee in ((1024, 60.0), (2048, None), (4096, 15.0))])
    )
    assert [[chart.name for chart in section.charts] for section in made.sections[1:2]] == [["knee", "plateau"]]
    evil = '"><script>alert(1)</script>'
    settings = [Axis(INPUT, [1024]), Axis(SERVER, [evil, "b"])]
    ran = [msgspec.structs.replace(cell(1024, 128), name=evil, at={INPUT: 1024, SERVER: at}) for at in (evil, "b")]
    assert "<script>alert" not in page.render(level_map.report(over(settings, ran)))
