"""A result folder in a program: summary, tables with nulls, figure and HTML; and the names of the package."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import harness as knee
from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.base.files import write_json
from harness.data.manifest import Manifest
from harness.data.record import ABANDONED, FORMAT, Header, Level, Record, Sample
from harness.library import notebook
from harness.results.exporters import csv as rows
from harness.results.result import Result
from tests.builders.records import WINDOW, request
from tests.builders.summaries import MANIFEST, SIMULATED_MANIFEST, full, hollow, simulated

DEMO = Path(__file__).parents[1] / "data" / "demo"
OPEN = msgspec.structs.replace(WINDOW, index=1, concurrency=None, rate=2.0, begin_s=20.0)
OPEN = msgspec.structs.replace(OPEN, window_start_s=20.0, window_end_s=30.0, end_s=30.0)


def result(records: list[Record], *levels: Level) -> Result:
    header = Header(FORMAT, Record.__struct_fields__, 0, 0.0)
    return Result(
        path=Path("x"), manifest=Manifest(), header=header, levels=list(levels), records=records, samples=[],
        finished=True,
    )  # fmt: skip


@pytest.mark.slow
def test_the_summary_is_that_of_the_report_and_made_once() -> None:
    measured = knee.load(DEMO)
    assert measured.summary == summarise(Result.open(DEMO))
    assert measured.summary is measured.summary


def test_a_request_s_latencies_are_in_seconds_by_the_definitions() -> None:
    """Sent at 1.0 s and due at 0.9; tokens at 1.5, 1.6 and 1.8; over at 1.9."""
    whole = request(1.0, [1.5, 1.6, 1.8], done=1.9, scheduled_s=0.9)
    (row,) = notebook.requests(result([whole], WINDOW)).to_dict("records")
    assert row["ttft_s"] == pytest.approx(0.5)
    assert row["tpot_s"] == pytest.approx(0.15)  # (1.8 - 1.5) / 2
    assert row["icl_max_s"] == pytest.approx(0.2)
    assert row["e2e_s"] == pytest.approx(0.9)
    assert row["lag_s"] == pytest.approx(0.1)
    assert row["in_window"] is True
    assert np.isnan(row["rate"])


def test_in_an_open_loop_latencies_start_at_the_schedule() -> None:
    late = request(21.25, [21.5], done=21.75, scheduled_s=21.0, level=1, concurrency=None)
    (row,) = notebook.requests(result([late], WINDOW, OPEN)).to_dict("records")
    assert (row["ttft_s"], row["e2e_s"], row["lag_s"], row["rate"]) == (0.5, 0.75, 0.25, 2.0)
    assert pd.isna(row["concurrency"])
    assert np.isnan(row["tpot_s"]), "one token has no time per token after the first"


def test_what_a_request_lacks_is_null_and_success_is_no_error() -> None:
    good = request(1.0, [1.5])
    refused = request(2.0, error="reset", sent_s=None, done=None, status=None, finish_reason="", token_source="")
    given_up = request(11.0, [11.5], error=ABANDONED)
    frame = notebook.requests(result([good, refused, given_up], WINDOW))
    assert frame["error"].isna().tolist() == [True, False, False]
    unsent = frame[frame["error"] == "reset"].iloc[0]
    for name in ("sent_s", "ttft_s", "tpot_s", "e2e_s", "lag_s", "status", "output_tokens", "finish_reason", "class"):
        assert pd.isna(unsent[name]), name
    assert frame["in_window"].tolist() == [True, False, True]
    assert frame["error"].tolist()[1:] == [ABANDONED, "reset"], "those that never were sent stand last"


@pytest.mark.slow
def test_a_level_s_row_has_the_summary_s_figures_and_nulls_where_it_has_none() -> None:
    whole, empty = full(), hollow()
    frame = notebook.levels(whole)
    assert frame["concurrency"].tolist() == [level.concurrency for level in whole.levels]
    assert frame["output_tokens_per_s"].tolist() == [level.output_tokens_per_s.mean for level in whole.levels]
    assert frame["ttft_p99_s"].dropna().tolist() == [s.ttft_s.p99 for s in whole.levels if s.ttft_s.p99 is not None]
    assert notebook.levels(empty)["goodput_requests_per_s"].isna().all()
    kinds = {str(kind) for kind in frame.dtypes}
    assert kinds == {str(kind) for kind in notebook.levels(empty).dtypes} == {"Int64", "float64", "str", "bool"}


def test_an_error_of_throughput_that_was_assumed_is_no_measured_one() -> None:
    (level, *_) = full().levels
    assert rows.row(level)["output_tokens_per_s_se"] == level.output_tokens_per_s_se
    assumed = msgspec.structs.replace(level, output_tokens_per_s_se_assumed=True)
    assert rows.row(assumed)["output_tokens_per_s_se"] is None


def test_telemetry_is_a_row_a_figure() -> None:
    frame = notebook.telemetry([Sample(0.5, "gpu 0", "power_w", 310.0)])
    assert frame.to_dict("records") == [{"time_s": 0.5, "source": "gpu 0", "metric": "power_w", "value": 310.0}]
    assert list(notebook.telemetry([])) == ["time_s", "source", "metric", "value"]


class Texts(HTMLParser):
    """The texts and the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_the_answer_and_the_levels_in_little_html() -> None:
    page = notebook.html(full(), MANIFEST)
    shown = Texts(page)
    assert shown.tags == {"div", "p", "b", "table", "tr", "th", "td"}
    assert any("Knee: 16" in text for text in shown.texts)
    assert "SIMULATED" not in page
    assert page.count("<tr>") == 1 + len(full().levels)
    assert len(page) < 4_000


@pytest.mark.slow
def test_a_simulated_measurement_says_so_wherever_it_shows() -> None:
    assert "SIMULATED" in notebook.html(simulated(), SIMULATED_MANIFEST)
    measured = knee.load(DEMO)
    assert "SIMULATED" in repr(measured)
    assert "SIMULATED" in [text.get_text() for text in measured.plot().texts]


def test_names_from_outside_are_escaped_and_many_levels_are_cut() -> None:
    evil = msgspec.structs.replace(MANIFEST, model="<script>alert(1)</script>", server={"name": "<b onclick=x>"})
    many = msgspec.structs.replace(full(), levels=full().levels * 20)
    page = notebook.html(many, evil)
    assert "script" not in Texts(page).tags
    assert "onclick" not in page.replace("&lt;b onclick=x&gt;", "")
    assert page.count("<tr>") == 41
    assert "The first 40 of 200 levels" in page
    assert len(page) < 10_000


def test_a_folder_without_its_requests_has_the_stored_summary(tmp_path: Path) -> None:
    shutil.copy(DEMO / "manifest.json", tmp_path)
    with pytest.raises(HarnessError, match="neither requests nor summary"):
        knee.load(tmp_path)
    write_json(tmp_path / "summary.json", full())
    assert knee.load(tmp_path).summary == full()
    with pytest.raises(HarnessError, match="neither requests"):
        _ = knee.load(tmp_path).requests


def test_a_folder_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no such result folder"):
        knee.load(tmp_path / "nothing")


@pytest.mark.slow
def test_every_public_name_is_documented_and_has_a_signature() -> None:
    for name in knee.__all__:
        found = getattr(knee, name)
        assert found.__doc__, name
        if name not in ("__version__", "HarnessError", "Measurement"):
            assert inspect.signature(found).return_annotation is not inspect.Signature.empty, name
    assert set(knee.__all__) <= set(dir(knee))
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        _ = knee.plans  # type: ignore[attr-defined]


ORDERS = """
import sys
for name in sys.argv[1:]:
    __import__(name)
import harness as knee
from harness.load import http1
import harness.predict.step as step
assert knee.load("tests/data/demo").manifest.model
assert knee.predict("llama-3.1-8b", "h100-sxm").plateau_tokens_per_s.mid > 0
assert knee.load is sys.modules["harness.load"] and http1 and step
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [[], ["harness.load.http1"], ["harness.predict.question", "harness.load"]])
def test_load_and_predict_can_be_called_whatever_was_imported_first(first: list[str]) -> None:
    """Both are packages of the program too."""
    command = [sys.executable, "-W", "error", "-c", ORDERS, *first]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
