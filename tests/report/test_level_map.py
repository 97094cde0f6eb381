"""What the map draws and its texts; its looks are for the eye."""

from __future__ import annotations

import struct

import msgspec
import pytest

from harness.data.prediction import Prediction
from harness.data.views import Value
from harness.predict import catalog, deployment, model, roofline
from harness.predict.question import predicted_hinge
from harness.report import document, level_map, map_png, markdown, page
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


def test_the_predicted_hinge_between_the_cells_is_kv_blocks_over_a_request_s_blocks() -> None:
    hinge = predicted_hinge(predicted(512, 64))
    assert hinge is not None
    assert hinge(960, 128) == 64  # context 960 + 64 = 1,024 tokens: 64 of the 4,096 blocks
    assert hinge(1920, 256) == 32  # twice the context, half the batch
    assert hinge(896, 256) == hinge(640, 768) == 64  # P + G/2 is 1,024 in both: one contour
    assert hinge(70_000, 128) is None  # does not fit


def test_max_num_seqs_caps_the_predicted_hinge_between_the_cells_too() -> None:
    hinge = predicted_hinge(predicted(512, 64, max_num_seqs=48))
    assert hinge is not None
    assert (hinge(960, 128), hinge(1920, 256)) == (48, 32)


def test_a_prediction_that_cannot_be_made_again_gives_no_contour_of_its_own() -> None:
    made = predicted(512, 64)
    assert predicted_hinge(msgspec.structs.replace(made, model="/gone/config.json")) is None
    assert predicted_hinge(msgspec.structs.replace(made, hinge_concurrency=17.0)) is None


@pytest.mark.slow
def test_the_grid_reaches_half_a_cell_beyond_the_cells_and_doubles_along_with_them() -> None:
    grid = level_map.predicted_grid(plane(), P_AXIS, G_AXIS, {})
    assert grid is not None
    assert (grid.x[0], grid.x[-1], grid.y[0], grid.y[-1]) == (-0.5, 2.5, -0.5, 1.5)
    middle, low = grid.hinge[0][15], grid.hinge[0][5]  # x = 1 and 0, y = -0.5: P of 2048 and 1024, G of 90.5
    assert grid.x[15] == 1
    assert grid.x[5] == pytest.approx(0)
    assert low == 4096 // -(-(1024 + 45.25) // 16) == 61
    assert middle == 4096 // -(-(2048 + 45.25) // 16) == 31
    turned = level_map.predicted_grid(plane(), G_AXIS, P_AXIS, {})
    assert turned is not None
    assert turned.hinge[5][0] == low  # the same place with the axes exchanged


def test_without_the_model_the_contours_are_of_the_cells_own_predictions() -> None:
    made = plane()
    gone = [
        msgspec.structs.replace(each, prediction=msgspec.structs.replace(each.prediction, model="/gone/config.json"))
        if each.prediction
        else each
        for each in made.cells
    ]
    grid = level_map.predicted_grid(msgspec.structs.replace(made, cells=gone), P_AXIS, G_AXIS, {})
    assert grid is not None
    assert (grid.x, grid.y) == ([0.0, 1.0, 2.0], [0.0, 1.0])
    assert [row[2] for row in grid.hinge] == [15, 15]  # contexts of 4,160 and 4,224 tokens: 260 and 264 blocks
    assert grid.hinge[1][0] != grid.hinge[1][0]  # the cell that failed has no prediction


def test_between_settings_of_a_server_there_is_nothing_to_predict() -> None:
    seqs = Axis(SEQS, [8, 16])
    made = over([P_AXIS, seqs], [cell(P, 128, seqs=s) for P in (1024, 2048, 4096) for s in (8, 16)])
    assert level_map.predicted_grid(made, P_AXIS, seqs, {}) is None


def test_no_prediction_no_grid() -> None:
    bare = [msgspec.structs.replace(each, prediction=None) for each in plane().cells]
    assert level_map.predicted_grid(over([P_AXIS, G_AXIS], bare), P_AXIS, G_AXIS, {}) is None


def test_a_plateau_that_was_not_reached_is_never_a_number() -> None:
    made = msgspec.structs.replace(
        cell(1024, 128), knee=None, plateau_reached=False
    )  # its fit has a hinge and a plateau
    assert level_map.knee_box(made) == level_map.Box(None, "not\nreached", "", True)
    assert level_map.plateau_box(made) == level_map.Box(None, "not\nreached", "", True)


def test_an_slo_knee_stands_where_the_plateau_was_not_reached() -> None:
    made = msgspec.structs.replace(cell(1024, 128), plateau_reached=False, hinge=Value(31.0, (24.0, None)))
    assert level_map.knee_box(made) == level_map.Box(20.0, "20", "18–22", True)
    assert level_map.plateau_box(made).value is None


def test_a_provisional_knee_is_shown_as_one_with_its_plateau() -> None:
    made = msgspec.structs.replace(cell(1024, 128), plateau_reached=False)
    assert level_map.knee_box(made) == level_map.Box(20.0, "≈20", "18–22", True)
    assert level_map.plateau_box(made) == level_map.Box(1234.4, "≈1,234", "1,200–1,300", True)


def test_what_failed_and_what_was_left_out_are_told_apart() -> None:
    made = plane()
    assert [level_map.knee_box(each).words for each in made.cells[:3]] == ["not\nreached", "failed", "not measured"]
    assert level_map.knee_box(None).words == "not measured"
    assert level_map.knee_box(made.cells[3]).words == "20 ✗"


def test_the_table_has_a_line_a_cell_and_says_what_is_missing() -> None:
    text = table(plane())
    assert text.startswith("# map: knee by input tokens P and output tokens G\n")
    assert "**SIMULATED**" in text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
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
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1"]
    assert [token.attrGet("href") for token in found if token.type == "link_open"] == []
    assert [token.attrGet("src") for token in found if token.type == "image"] == ["map.png"]
    assert [token.type for token in tokens].count("tr_open") == 3
    assert not any(char in table(made) for char in "\x1b\u202e")


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["one", "two", "three", "settings", "single", "empty"])
def test_every_shape_of_map_is_drawn_without_a_warning(shape: str) -> None:
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
    data = map_png.draw(level_map.panels(made))
    width, height = struct.unpack(">II", data[16:24])
    assert data[:4] == b"\x89PNG"
    assert 800 < width < 3000
    assert 400 < height < 1500


def heated(map_: Map) -> document.Document:
    return level_map.with_heat(level_map.report(map_), level_map.panels(map_))


def test_a_heat_map_is_a_table_with_the_largest_answers_on_top() -> None:
    cells = [cell(P, G, knee) for P, G, knee in ((1024, 128, 64.0), (1024, 256, 32.0), (2048, 128, 16.0))]
    made = heated(over([Axis(INPUT, [1024, 2048]), G_AXIS], cells))
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
    source = page.render(heated(plane()))
    assert source.count('class="shaded" style="--share: ') == 3 + 3  # of six cells three failed, or show no plateau
    assert '<a href="in4096-out256/report.html">in4096-out256</a>' in source
    assert "from map.json. <code>knee report DIR</code> makes it again." in source


def test_one_axis_is_a_chart_on_the_page_and_text_from_outside_stays_text() -> None:
    made = heated(over([P_AXIS], [cell(P, 128, knee) for P, knee in ((1024, 60.0), (2048, None), (4096, 15.0))]))
    assert [[chart.name for chart in section.charts] for section in made.sections[1:2]] == [["knee", "plateau"]]
    evil = '"><script>alert(1)</script>'
    settings = [Axis(INPUT, [1024]), Axis(SERVER, [evil, "b"])]
    ran = [msgspec.structs.replace(cell(1024, 128), name=evil, at={INPUT: 1024, SERVER: at}) for at in (evil, "b")]
    assert "<script>alert" not in page.render(heated(over(settings, ran)))
