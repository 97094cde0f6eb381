"""Points from a CSV: any order of columns, errors where there are some, and mistakes by their line."""

from __future__ import annotations

import pytest

from harness.base.errors import HarnessError
from harness.results.readers.level import ForeignLevel
from harness.results.readers.table import read


def level(concurrency: float, output_tokens_per_s: float, se: float | None = None) -> ForeignLevel:
    return ForeignLevel(concurrency=concurrency, output_tokens_per_s=output_tokens_per_s, se=se)


def test_columns_are_found_by_name_whatever_stands_beside_them() -> None:
    text = "engine, output_tokens_per_s, error ,concurrency\r\nvLLM, 95.5, 1.5, 1\r\nvLLM, 180, , 2\r\n"
    assert read(text, "x.csv") == [level(1.0, 95.5, 1.5), level(2.0, 180.0, None)]


@pytest.mark.parametrize(
    "text",
    [
        "concurrency;output_tokens_per_s\n1;100\n2;190\n",
        "concurrency\toutput_tokens_per_s\n1\t100\n2\t190\n",
        "# by hand\n\nConcurrency, Output_Tokens_Per_S\n1, 100\n# again\n2, 190\r\n",
        "Max_Concurrency,request_throughput,Output_Throughput\n1,3,100\n2,4,190\n",
        "users,tok/s\n1,100\n2,190\n",
        "Concurrency,TTFT (ms),Output tokens/s\n1,50,100\n2,60,190\n",
        "In flight;Tokens per second\n1;100\n2;190\n",
        "users,in_flight,tok/s\n1,1,100\n2,2,190\n",
        "streams,output_throughput,concurrency,output_tokens_per_s\n9,9,1,100\n9,9,2,190\n",
    ],
)
def test_semicolons_tabs_comments_capitals_and_usual_names_are_read(text: str) -> None:
    assert read(text, "x.csv") == [level(1.0, 100.0), level(2.0, 190.0)]


def test_a_mistake_below_a_comment_has_its_own_line() -> None:
    with pytest.raises(HarnessError, match=r"x\.csv, line 4: output_tokens_per_s 'ten'"):
        read("# by hand\nconcurrency,output_tokens_per_s\n# again\n1,ten\n", "x.csv")


def test_a_byte_order_mark_is_no_part_of_a_name() -> None:
    assert read("\ufeffconcurrency,output_tokens_per_s\n4,2\n", "x.csv") == [level(4.0, 2.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv: no column 'concurrency'"),
        ("concurrency,tok_s\n1,2\n", "x.csv: no column 'output_tokens_per_s' among 'concurrency', 'tok_s'; begin"),
        ("concurrency,output_tokens_per_s\n", "x.csv: no points below its header"),
        (
            "concurrency,output_tokens_per_s\n1,2\n2\n",
            "x.csv, line 3: no output_tokens_per_s",
        ),
        ("concurrency,output_tokens_per_s\n1,2\n0,2\n", "x.csv, line 3: concurrency '0' is not a number above 0"),
        (
            "concurrency,output_tokens_per_s\n1,nan\n",
            "x.csv, line 2: output_tokens_per_s 'nan' is not a",
        ),
        ("concurrency,output_tokens_per_s\n1,900\n2,1,700\n", "x.csv, line 3: 3 values, and 2 columns in the header"),
        ("concurrency;output_tokens_per_s\n1;90,5\n", "x.csv, line 2: '90,5' is not a number"),
        ("concurrency,output_tokens_per_s\n1,1e14\n", "x.csv, line 2: output_tokens_per_s '1e14' is 1e+12 or more"),
        ("concurrency,error,concurrency,output_tokens_per_s\n1,1,1,2\n", "x.csv: two columns 'concurrency'"),
        ("concurrency,output_tokens_per_s,error\n1,2,-1\n", "x.csv, line 2: error '-1' is not a number above 0"),
        (
            "model,concurrency,output_tokens_per_s\na,1,2\nb,1,4\n",
            "x.csv: it has levels of a and of b; give each",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(HarnessError) as caught:
        read(text, "x.csv")
    assert str(caught.value).startswith(message)
    assert caught.value.way_out


def test_a_separator_at_the_end_of_a_line_is_no_value() -> None:
    assert read("concurrency,output_tokens_per_s\n1,2,\n4,7, ,\n", "x.csv") == [level(1.0, 2.0), level(4.0, 7.0)]


def test_rows_of_separators_alone_are_no_rows() -> None:
    text = "concurrency;output_tokens_per_s\n1;2\n;\n4;7\n;;\n"
    assert read(text, "x.csv") == [level(1.0, 2.0), level(4.0, 7.0)]


def test_a_quote_that_is_never_closed_swallows_no_lines() -> None:
    with pytest.raises(HarnessError, match=r"x\.csv: not a CSV: unexpected end of data"):
        read('concurrency,output_tokens_per_s,engine\n1,95,vLLM\n2,180,"vLLM\n4,350,vLLM\n8,600,vLLM\n', "x.csv")


def test_where_commas_separate_columns_points_are_decimal_points() -> None:
    text = "concurrency,output_tokens_per_s\n8,690\n32,1.250\n"
    assert read(text, "x.csv")[1] == level(32.0, 1.25)
