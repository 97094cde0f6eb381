"""Files that are damaged, hostile or huge: what is whole is given, what is not has one line that names its place."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.workload.dataset import files
from harness.workload.dataset.dataset import Skipped, open_dataset
from harness.workload.dataset.files import LONGEST
from tests.builders.datasets import (
    AZURE_2023,
    CONVERSATIONS,
    MOONCAKE,
    file,
    json_lines,
    place,
    rows_of,
    sound_and_broken,
)

# What breaks off


def test_a_conversation_file_that_breaks_off_gives_its_whole_conversations_and_the_place(tmp_path: Path) -> None:
    whole = json.dumps(CONVERSATIONS[:1] * 3, indent=2)
    cut = whole.rindex('"Two?') + 3
    path = file(tmp_path, "x.json", whole[:cut])
    begins = whole.rindex('  {\n    "id"') + 2
    rows = open_dataset(path).rows()
    assert [next(rows).answer for _ in range(4)] == ["1", "2", "1", "2"]
    with pytest.raises(HarnessError) as found:
        next(rows)
    assert str(found.value) == (
        f"{path}, {place(whole, cut)}: not a conversation of ShareGPT: the file ends in the middle of a string, in the "
        f"object from {place(whole, begins)} on; mend it, or leave it out with --skip-broken"
    )


@given(st.data())
def test_an_array_cut_anywhere_gives_what_is_whole_and_at_most_one_error(data: st.DataObject) -> None:
    values = [{"a": 'x"]}', "b": [1, {"c": "\\"}]}, {}, {"d": "{"}, {"e": "ü"}]
    text = json.dumps(values, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=False).encode()
    cut = data.draw(st.integers(0, len(text)))
    found = cut_array(text[:cut])
    sound = [record for _, record in found if not isinstance(record, Exception)]
    assert sound == values[: len(sound)]
    errors = [str(record) for _, record in found if isinstance(record, Exception)]
    assert len(errors) == (0 < cut < len(text))
    if errors:
        assert found[-1][0] == place(text, cut)


def cut_array(text: bytes) -> list[tuple[str, object]]:
    """All that is found in an array, read a few bytes at a time."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PIECE", 5)
        return list(files.json_array(file(Path(folder), "x", text), dict[str, object]))


@pytest.mark.parametrize(
    ("text", "sound", "wrong_at"),
    [
        ('[{"a": 1} {"a": 2}]', [1, 2], []),
        ('[1, {"a": 1}, "x {", {"a": 2}, null]', [1, 2], [1, 12, 29]),
        ('[{"a": 1}]]', [1], [10]),
        ('[{"a": 1}], {"a": 2}', [1, 2], [10]),
        ('[{"a": 1}] x', [1], [10]),
        ('}{"a": 1}', [1], [0]),
        ('[[{"a": 1}]', [1], [1]),
        ('[{"a": 1}, {"a" 2}, {"a": 3}]', [1, 3], [16]),
        ('[{"a": 1}, {"a": ], {"a": 2}]', [1, 2], [17]),
    ],
)
def test_what_is_no_object_hides_no_other(text: str, sound: list[int], wrong_at: list[int]) -> None:
    found = cut_array(text.encode())
    assert [record["a"] for _, record in found if isinstance(record, dict)] == sound
    assert [where for where, record in found if isinstance(record, Exception)] == [place(text, at) for at in wrong_at]


def test_the_rows_around_a_broken_one_are_given_and_it_is_counted(tmp_path: Path) -> None:
    first, second, third = MOONCAKE.splitlines(keepends=True)
    path = file(tmp_path, "x.jsonl", first + second.replace("490", "x") + second[:40] + "\n" + third)
    skipped = Skipped()
    assert [row.at_s for row in open_dataset(path).rows(skipped)] == [0.0, 3.052]
    assert skipped.count == 2
    at = len(first) + second.index("490")
    assert str(skipped.first[0]).startswith(
        f"{path}, line 2, byte {at}: not a request of a Mooncake trace: JSON is malf"
    )
    with pytest.raises(HarnessError, match=f"line 2, byte {at}"):
        list(open_dataset(path).rows())


# Values that cannot be


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("44", "-44"), "Expected 'int' >= 0 - at '$.GeneratedTokens'"),
        (("374", "0"), "Expected 'int' >= 1 - at '$.ContextTokens'"),
        (("374", "1000000000000"), "Expected 'int' <= 100000000 - at '$.ContextTokens'"),
        (("374", "9" * 5000), "$.ContextTokens"),
        (("374", "nan"), "Expected 'int | null', got 'str'"),
        (("374", ""), "missing required field 'ContextTokens'"),
        ((",374", ""), "it has 2 cells, its header 3"),
        (("374", "374,1"), "it has 4 cells, its header 3"),
        (("46.68", "61.68"), "Invalid RFC3339"),
        (("2023-11-16 18:15:46.6805900", "soon"), "Invalid RFC3339"),
        (("374", '"374" 5'), "',' expected after '\"'"),
        (("374", "\udcff"), "it is not text in UTF-8"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_field(change: tuple[str, str], why: str, tmp_path: Path) -> None:
    content = AZURE_2023.replace(*change, 1).encode("utf-8", "surrogateescape")
    rows, error = sound_and_broken(tmp_path, "x.csv", content, "azure")
    assert len(rows) == 2
    assert error.startswith("x.csv, line 2, byte 40: not a request of an Azure trace: ")
    assert why in error


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a", "x": ' + "[" * 100_000 + "}",
        '{"prompt": ' + '{"a":' * 100_000 + "}",
        '{"prompt": "\\ud800"}',
        '{"prompt": "a", "at_s": NaN}',
        '{"prompt": "a", "at_s": 1e999}',
        '{"prompt": "a", "at_s": -1}',
        '{"prompt": "a", "output_tokens": true}',
        '{"prompt": "a", "output_tokens": 1.5}',
        '{"prompt": "a", "output_tokens": ' + "9" * 10_000 + "}",
        '{"prompt": [["a"]]}',
        '["prompt"]',
        "null",
        '{"prompt": "a"} {"prompt": "b"}',
        '{"prompt": "a',
        "\0",
        '{"prompt": "\udcff"}',
    ],
)
def test_a_hostile_line_is_one_error(line: str, tmp_path: Path) -> None:
    content = '{"prompt": "first"}\n' + line + '\n{"prompt": "last"}\n'
    rows, error = sound_and_broken(tmp_path, "x.jsonl", content.encode("utf-8", "surrogateescape"))
    assert [row.prompt for row in rows] == ["first", "last"]
    assert error.startswith("x.jsonl, line 2, byte ")
    assert len(error) < 400


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x", "hunter2-is-the-password\n"),
        ("x.csv", "sk-live-1,prompt_len\nsk-live-2,3\n"),
        ("x.csv", '"sk-live-1" x\n'),
        ("x.csv", "prompt,sk-live-1\na\n"),
        ("x.json", '{"key": "sk-live-1",\n'),
        ("x.jsonl", '{"key": "sk-live-1" "a"}\n'),
        ("x.jsonl", '{"key": "sk-live-1"}\n'),
        ("x.jsonl", '{"prompt": 5, "key": "sk-live-1"}\n'),
        ("x.jsonl", '{"messages": [{"role": "sk-live-1", "content": "a"}]}\n'),
        ("x.jsonl", '{"messages": [{"role": "user", "content": [{"sk-live-1": "a"}]}]}\n'),
        ("x.jsonl", '{"conversations": "sk-live-1"}\n'),
    ],
)
def test_an_error_never_holds_what_a_line_of_the_file_holds(name: str, content: str, tmp_path: Path) -> None:
    with pytest.raises(HarnessError) as found:
        rows_of(tmp_path, name, content)
    assert not [secret for secret in ("hunter2", "sk-live") if secret in str(found.value)]


def test_a_row_without_a_time_among_others_is_refused(tmp_path: Path) -> None:
    rows, error = sound_and_broken(tmp_path, "x.jsonl", json_lines([{"prompt": "a", "at_s": 3}, {"prompt": "b"}]))
    assert [row.prompt for row in rows] == ["a"]
    assert "it has a time, or none, unlike the rows before it" in error


def test_parquet_cells_that_cannot_be_are_refused_by_their_row(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b", "c", None], "at_s": [0.0, math.nan, 1.0, 2.0]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    skipped = Skipped()
    assert [row.prompt for row in open_dataset(tmp_path / "x.parquet").rows(skipped)] == ["a", "c"]
    assert "x.parquet, row 2: not a row of prompts: Expected 'float' >= 0.0" in str(skipped.first[0])
    assert "x.parquet, row 4: not a row of prompts: it has neither" in str(skipped.first[1])


def test_a_parquet_file_with_a_broken_page_gives_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = [f"{i:09}" for i in range(20_000)]
    pq.write_table(pa.table({"prompt": texts}), path, row_group_size=5_000, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)
    path.write_bytes(data)
    skipped = Skipped()
    rows = [row.prompt for row in open_dataset(path).rows(skipped)]
    assert rows == texts[: len(rows)]
    assert len(rows) >= 5_000
    assert skipped.count == 1
    assert str(skipped.first[0]).startswith(f"{path}, row {len(rows) + 1}: not a row of prompts: ")


def test_a_parquet_file_that_says_it_holds_more_than_it_can_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a" * (16 << 20)]}), tmp_path / "x", compression="zstd", use_dictionary=False)
    with pytest.raises(HarnessError, match=r"not a Parquet file: it says that [\d,]+ bytes hold 16,777,2"):
        open_dataset(tmp_path / "x")


# What is too long


def sparse(path: Path, before: bytes, after: bytes, size: int = 40 << 20) -> Path:
    """A file with that many zeros between the two, which take no room."""
    with path.open("wb") as made:
        made.write(before)
        made.seek(size, 1)
        made.write(after)
    return path


@pytest.mark.parametrize(
    ("name", "before", "after", "left"),
    [
        ("x.jsonl", b'{"prompt": "first"}\n{"prompt": "', b'"}\n{"prompt": "last"}\n', ["first", "last"]),
        ("x.csv", b'prompt,n\nfirst,1\n"', b'",1\nlast,1\n', ["first", "last"]),
        ("x.json", b'[{"prompt": "first"},\n{"prompt": "', b'"}, {"prompt": "last"}]', ["first"]),
        ("y.json", b'[{"prompt": "first"},\n{"prompt":' + b"[" * 64, b"]}", ["first"]),
    ],
)
def test_a_row_that_is_too_long_is_refused_by_name_and_not_read(
    name: str, before: bytes, after: bytes, left: list[str], tmp_path: Path
) -> None:
    path = sparse(tmp_path / name, before, after)
    skipped = Skipped()
    rows = [row.prompt for row in open_dataset(path, "plain").rows(skipped)]
    assert rows == left
    assert str(skipped.first[0]).startswith(f"{path}, {place(before, before.rindex(bytes((10,))) + 1)}: not a row of")
    assert f"it is longer than {LONGEST:,} bytes" in str(skipped.first[0])


def test_a_quote_that_never_closes_is_refused(tmp_path: Path) -> None:
    skipped = Skipped()
    path = file(tmp_path, "x.csv", 'prompt\n"first"\n"open' + ("x" * (1 << 20) + "\n") * 20)
    assert [row.prompt for row in open_dataset(path).rows(skipped)][:1] == ["first"]
    assert str(skipped.first[0]).startswith(f"{path}, line 3, byte 15: not a row of prompts: it is longer than")


def test_a_header_or_a_first_line_that_never_ends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="not delimited text: it is longer than"):
        open_dataset(sparse(tmp_path / "x", b"a", b"b"))
    with pytest.raises(HarnessError, match="not an object: it is longer than"):
        open_dataset(sparse(tmp_path / "y", b"{", b"}"))


def measured(path: Path) -> tuple[int, int]:
    """The rows that a process of its own reads of a file, and the most memory that it takes, MiB."""
    code = """if 1:
        import pathlib, sys
        from harness.workload.dataset.dataset import Skipped, open_dataset
        print(sum(1 for _ in open_dataset(pathlib.Path(sys.argv[1]), sys.argv[2]).rows(Skipped())))
        print(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    """
    format = "sharegpt" if path.suffix == ".json" else "plain"
    rows, kib = subprocess.check_output([sys.executable, "-c", code, path, format], text=True).split()
    return int(rows), int(kib) >> 10


@pytest.mark.slow
def test_a_long_array_takes_little_memory(tmp_path: Path) -> None:
    conversation = json.dumps(CONVERSATIONS[0])
    path = file(tmp_path, "x.json", "[" + ",\n".join([conversation] * 200_000) + "]")
    assert path.stat().st_size > 40 << 20
    rows, most = measured(path)
    assert (rows, most < 50) == (400_000, True)


@pytest.mark.slow
def test_a_line_or_a_string_of_a_hundred_megabytes_takes_no_such_memory(tmp_path: Path) -> None:
    line = sparse(tmp_path / "x.jsonl", b'{"prompt": "', b'"}\n{"prompt": "last"}\n', 100 << 20)
    string = sparse(tmp_path / "x.json", b'[{"conversations": [{"value": "', b'"}]}]', 100 << 20)
    assert [(rows, most < 130) for rows, most in (measured(line), measured(string))] == [(1, True), (0, True)]


def test_rows_of_any_damaged_file_are_rows_or_one_line(tmp_path: Path) -> None:
    """Every seventh byte of small files is another one, once."""
    for name, content in (("x.csv", AZURE_2023), ("x.jsonl", MOONCAKE), ("x.json", json.dumps(CONVERSATIONS))):
        data = bytearray(content.encode())
        for i in range(0, len(data), 7):
            kept, data[i] = data[i], (data[i] * 7 + 31) % 256
            with contextlib.suppress(HarnessError):
                rows_of(tmp_path, name, bytes(data))
            data[i] = kept
