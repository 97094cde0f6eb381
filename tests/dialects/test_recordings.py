"""Every dialect's answers, in the shapes that its servers document, are read the same wherever the bytes are cut."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import ProtocolError
from harness.dialects import DIALECTS
from harness.dialects.decoder import DecodedResponse
from harness.dialects.dialect import Decoder
from harness.dialects.sse import LONGEST, DocumentParser, EventParser

FOLDER = Path(__file__).parents[1] / "data" / "dialects"


class Expected(NamedTuple):
    """What a recording says."""

    file: str
    text: str  # without the reasoning
    output_tokens: int | None
    finish_reason: str
    tokens: list[int]  # of each chunk
    source: str = "chunks"
    error: str = ""
    answer_at: int = 0  # the chunk with which the answer begins
    input_tokens: int | None = 7
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


RECORDED = [
    Expected("responses.sse", " a é", 2, "max_output_tokens", [1, 1], cached_tokens=4, reasoning_tokens=0),
    Expected("responses-reasoning-and-call.sse", 'look{"at":1}', 3, "completed", [1, 1, 1], answer_at=1,
             cached_tokens=4, reasoning_tokens=1),
    Expected("responses-error.sse", " a", 1, "", [1], error="stream_error", input_tokens=None),
    Expected("anthropic.sse", " a é", 2, "max_tokens", [1, 1], cached_tokens=4),
    Expected("anthropic-thinking-and-tool.sse", 'look{"at":1}', 3, "tool_use", [1, 1, 1], answer_at=1,
             cached_tokens=4),
    Expected("anthropic-error.sse", " a", 1, "", [1], error="stream_error", cached_tokens=4),
    Expected("tgi.sse", " a é", 2, "length", [1, 1], "continuous"),
    Expected("tgi-part-of-a-character.sse", " a é</s>", 4, "eos_token", [1, 1, 1, 1], "continuous"),
    Expected("tgi-error.sse", " a", 1, "", [1], "continuous", error="stream_error", input_tokens=None),
    Expected("triton-tensorrtllm.sse", " a é", 2, "", [1, 1], input_tokens=None),
    Expected("triton-vllm.sse", " a é", 2, "length", [1, 1], "continuous"),
    Expected("triton-error.sse", " a", 1, "", [1], error="stream_error", input_tokens=None),
    Expected("llama-cpp.sse", " a é", 2, "limit", [1, 1], "continuous", cached_tokens=4),
    Expected("llama-cpp-error.sse", " a", 1, "", [1], "continuous", error="stream_error"),
    Expected("ollama.ndjson", " a é", 2, "length", [1, 1]),
    Expected("ollama-thinking-and-tool.ndjson", '{"function":{"index":0,"name":"look","arguments":{"at":1}}}'.replace(
        '":', '": ').replace(',"', ', "'), 2, "stop", [1, 1], answer_at=1),
    Expected("ollama-error.ndjson", " a", 1, "", [1], error="stream_error", input_tokens=None),
]  # fmt: skip
WHOLE = [
    Expected("responses.json", " a é", 3, "max_output_tokens", [3], "bytes", cached_tokens=4, reasoning_tokens=1),
    Expected("chat.json", " a é", 3, "length", [3], "bytes", cached_tokens=4, reasoning_tokens=1),
    Expected("chat-parts.json", " a é", 3, "length", [3], "bytes"),
    Expected("completions.json", " a é", 3, "length", [3], "bytes", cached_tokens=4),
]


def decoder(file: str) -> Decoder:
    """The decoder of a recording's dialect, which its name begins with."""
    api = max((name for name in DIALECTS if file.startswith(name)), key=len)
    make = DIALECTS[api].decoder
    if file.endswith(".json"):
        whole = DIALECTS[api].whole
        assert whole is not None
        make = whole
    return make(keep_text=True)


def shown(response: DecodedResponse, expected: Expected) -> Expected:
    arrivals = list(response.arrivals)
    return Expected(
        file=expected.file,
        text=response.text,
        output_tokens=response.output_tokens,
        finish_reason=response.finish_reason,
        tokens=list(response.tokens),
        source=response.token_source,
        error=response.error,
        answer_at=arrivals.index(response.first_content),
        input_tokens=response.input_tokens,
        cached_tokens=response.cached_tokens,
        reasoning_tokens=response.reasoning_tokens,
    )


@pytest.mark.parametrize("expected", [*RECORDED, *WHOLE], ids=lambda expected: expected.file)
def test_a_recording_says_the_same_wherever_it_is_cut(expected: Expected) -> None:
    data = (FOLDER / expected.file).read_bytes()
    bytewise = decoder(expected.file)
    for at in range(len(data)):
        bytewise.feed(data[at : at + 1], at + 1)
    assert shown(bytewise.end(len(data) + 1), expected) == expected
    for cut in range(len(data) + 1):
        cut_once = decoder(expected.file)
        cut_once.feed(data[:cut], 1)
        cut_once.feed(data[cut:], 2)
        response = cut_once.end(3)
        assert (response.text, response.output_tokens, response.error) == (
            expected.text, expected.output_tokens, expected.error,
        )  # fmt: skip
    assert (EventParser.buffered, DocumentParser.buffered) == (0, 0)


def test_every_recording_is_read_and_every_dialect_of_its_own_words_has_one() -> None:
    files = {expected.file for expected in (*RECORDED, *WHOLE)}
    assert files == {path.name for path in FOLDER.iterdir()}
    recorded = {name for name in DIALECTS if any(file.startswith(name) for file in files)}
    generating = {name: dialect for name, dialect in DIALECTS.items() if dialect.unit.decodes}
    assert recorded == {name for name, dialect in generating.items() if dialect.root == "" or dialect.whole} | {
        "anthropic"
    }


@pytest.mark.parametrize(
    "expected", [each for each in RECORDED if each.finish_reason and not each.error], ids=lambda each: each.file
)
def test_a_recording_without_its_last_event_was_truncated(expected: Expected) -> None:
    data = (FOLDER / expected.file).read_bytes()
    blank = b"\n" if expected.file.endswith("ndjson") else b"\n\n"
    events = data.removesuffix(blank).split(blank)
    last = next(at for at, event in enumerate(events) if expected.finish_reason.encode() in event)
    reader = decoder(expected.file)
    reader.feed(blank.join([*events[:last], b""]), 1)
    error = "" if expected.file.startswith("triton") else "truncated"  # its own end is that of the body
    assert reader.end(2).error == error


BAD = [b"{", b"{3}", b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
NO_OBJECT = [b"[]", b"null", b"7", b"\xff", b'"x"', b"2024-04-27 01:35:43", b"[" * 100_000 + b"]" * 100_000]
SOME = pytest.mark.parametrize(
    "expected", [RECORDED[at] for at in (0, 3, 6, 9, 12, 14)], ids=lambda expected: expected.file
)


@SOME
@pytest.mark.parametrize("bad", BAD)
def test_an_event_that_cannot_be_read_is_an_error_and_the_rest_is_read(bad: bytes, expected: Expected) -> None:
    response = after(bad, expected)
    assert (response.error, response.text) == ("malformed_event", expected.text)


@SOME
@pytest.mark.parametrize("odd", NO_OBJECT)
def test_an_event_that_is_no_object_is_left_out(odd: bytes, expected: Expected) -> None:
    response = after(odd, expected)
    assert (response.error, response.text) == (expected.error, expected.text)
    assert response.noted == ("left_out:event",)


def after(first: bytes, expected: Expected) -> DecodedResponse:
    """A recording behind another event."""
    reader, lines = decoder(expected.file), expected.file.endswith("ndjson")
    reader.feed(first + b"\n" if lines else b"data: " + first + b"\n\n", 1)
    reader.feed((FOLDER / expected.file).read_bytes(), 2)
    return reader.end(3)


def test_a_line_without_end_ends_the_response_at_once() -> None:
    reader, line = decoder("ollama.ndjson"), b"x" * 65_536
    for _ in range(LONGEST // len(line)):
        reader.feed(line, 1)
    with pytest.raises(ProtocolError) as caught:
        reader.feed(line, 1)
    assert caught.value.error == "line_too_long"
    reader.feed(b"\n", 2)
    assert (reader.end(3).error, EventParser.buffered) == ("line_too_long", 0)


def test_an_answer_that_never_came_is_no_answer() -> None:
    for file in ("triton-vllm.sse", "responses.json", "ollama.ndjson"):
        assert decoder(file).end(1).error == "truncated"


def test_counts_that_cannot_be_are_left_out() -> None:
    for file, event, left_out in (
        ("tgi.sse", {"index": -1}, "index"), ("ollama.ndjson", {"eval_count": 2**31}, "eval_count"),
        ("llama-cpp.sse", {"tokens_predicted": "two"}, "tokens_predicted"),
        ("anthropic.sse", {"usage": {"output_tokens": 1.5}}, "usage.output_tokens"),
        ("triton-vllm.sse", {"num_output_tokens": -2}, "num_output_tokens"),
        ("responses.sse", {"type": "response.completed", "response": {"usage": {"input_tokens": -1}}},
         "response.usage.input_tokens"),
    ):  # fmt: skip
        reader, lines = decoder(file), file.endswith("ndjson")
        reader.feed(
            msgspec.json.encode(event) + b"\n" if lines else b"data: " + msgspec.json.encode(event) + b"\n\n", 1
        )
        found = reader.end(2)
        assert (found.noted, found.input_tokens) == ((f"left_out:{left_out}",), None), file


def test_counts_that_come_in_parts_stay_within_what_a_record_holds() -> None:
    most, reader = 2**31 - 1, decoder("triton-vllm.sse")
    for at in range(3):
        reader.feed(b'data: {"text_output": " a", "num_output_tokens": %d}\n\n' % most, at + 1)
    assert reader.end(4).output_tokens == most
    reader = decoder("anthropic.sse")
    usage = {"input_tokens": most, "cache_read_input_tokens": most}
    reader.feed(b"data: " + msgspec.json.encode({"message": {"usage": usage}}) + b"\n\n", 1)
    assert reader.end(2).input_tokens == most


FILES = sorted(expected.file for expected in (*RECORDED, *WHOLE))


@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=9)), max_size=6))
def test_no_bytes_raise_anything_and_counts_stay_possible(file: str, changes: list[tuple[int, bytes]]) -> None:
    """A recording with bytes of it replaced: whatever a server sends, a response comes of it."""
    data = (FOLDER / file).read_bytes()
    for at, other in changes:
        data = data[:at] + other + data[at + len(other) :]
    reader = decoder(file)
    with contextlib.suppress(ProtocolError):
        reader.feed(data, 1)
    response = reader.end(2)
    assert len(response.arrivals) == len(response.tokens)
    assert min(response.tokens, default=1) >= 1
    assert 0 <= (response.output_tokens or 0) < 2**31
