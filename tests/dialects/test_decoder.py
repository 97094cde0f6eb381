"""What the servers' events mean: tokens, usage and ends, for every dialect, cut at every byte."""

import contextlib
import gc
import itertools
import sys
import tracemalloc
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import ProtocolError
from harness.dialects import DIALECTS, decoder
from harness.dialects.decoder import DecodedResponse, StreamDecoder
from harness.dialects.tokens import TokenPlacer
from tests.builders.streams import ALL, DONE, END, delta, event, usage


def feed_all(decoder: StreamDecoder, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        decoder.feed(piece, 2)


def decoded(*pieces: bytes, placer: TokenPlacer | None = None, keep_text: bool = False) -> DecodedResponse:
    """The response whose i-th piece arrives at time i + 1."""
    decoder = StreamDecoder(placer, keep_text=keep_text)
    for i, piece in enumerate(pieces):
        decoder.feed(piece, i + 1)
    return decoder.end(len(pieces) + 1)


@pytest.mark.parametrize("name", ALL)
def test_every_server_s_two_tokens_are_two_wherever_the_bytes_are_cut(name: str) -> None:
    data = ALL[name]
    for cut in range(len(data) + 1):
        response = decoded(data[:cut], data[cut:])
        assert (response.error, response.output_tokens, sum(response.tokens), len(response.arrivals)) == ("", 2, 2, 2)
        assert (response.input_tokens, response.finish_reason in ("length", "stop")) == (7, True)
    crlf = decoded(data.replace(b"\n", b"\r\n"))
    assert (crlf.error, list(crlf.tokens)) == ("", [1, 1])


@given(
    st.sampled_from(sorted(ALL)), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 2000), max_size=9)
)
def test_however_the_bytes_are_cut_the_response_is_the_same(name: str, end: bytes, cuts: list[int]) -> None:
    data = (b": ping\n\n" + delta(reasoning="é") + ALL[name]).replace(b"\n", end)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    whole, cut = StreamDecoder(), StreamDecoder()
    whole.feed(data, 5)
    carried = sum(cut.feed(data[a:b], 5) for a, b in itertools.pairwise(places))
    one, other = whole.end(6), cut.end(6)
    assert msgspec.structs.replace(one, merged=0) == msgspec.structs.replace(other, merged=0)
    for field in set(StreamDecoder.__slots__) - {"_merged", "_events"}:
        assert getattr(whole, field) == getattr(cut, field), field
    assert carried == 3


def test_the_role_chunk_is_no_token() -> None:
    response = decoded(delta(role="assistant", content=""), delta(content="a"), delta("stop", content="b"), END)
    assert list(response.arrivals) == [2, 3]


def test_a_reasoning_delta_is_a_token_and_the_answer_begins_later() -> None:
    for name in ("reasoning_content", "reasoning"):
        response = decoded(delta(**{name: "hm"}), delta(**{name: "so"}), delta("stop", content="b"))
        assert (list(response.arrivals), response.first_content) == ([1, 2, 3], 3)


MISTRAL = (
    delta(role="assistant", content=""),
    delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Okay"}], "closed": False}]),
    delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": ", so"}]}]),
    delta(content=[{"type": "reference", "reference_ids": [1]}]),
    delta(content=" b"),
    delta("stop", content=[{"type": "text", "text": " c"}, {"type": "text", "text": "d"}]),
)
DATABRICKS = (
    delta(role="assistant", content=[{"type": "reasoning", "summary": [{"type": "summary_text", "text": ""}]}]),
    delta(content=[{"type": "reasoning", "summary": [{"type": "summary_text", "text": "The"}]}]),
    delta(content=[{"type": "reasoning", "summary": [{"type": "summary_text", "text": " user"}, {"type": "x"}]}]),
    delta(content=[]),
    delta(content=[{"type": "text", "text": " b"}]),
    delta("stop", content=[{"type": "text", "text": " cd"}]),
)


@pytest.mark.parametrize("pieces", [MISTRAL, DATABRICKS])
def test_an_answer_in_parts_is_read_with_its_reasoning(pieces: tuple[bytes, ...]) -> None:
    response = decoded(*pieces, DONE, keep_text=True)
    assert (response.error, list(response.arrivals), response.first_content) == ("", [2, 3, 5, 6], 5)
    assert response.text == " b cd"


def test_a_part_of_an_answer_may_come_with_a_call() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": " a"}]
    response = decoded(
        delta("tool_calls", content=thinking, tool_calls=[{"index": 0, "function": {"name": "look"}}]), keep_text=True
    )
    assert (response.error, response.text, len(response.arrivals)) == ("", " alook", 1)


def test_a_tool_call_delta_is_a_token() -> None:
    response = decoded(delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), delta("tool_calls"))
    assert (list(response.arrivals), response.error) == ([1], "")


def test_a_tool_call_delta_without_text_is_no_token() -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": None, "arguments": ""}}
    response = decoded(delta(tool_calls=[call]), delta(content="a"), delta("stop", content="b"))
    assert list(response.arrivals) == [2, 3]


def test_chunks_of_several_tokens_are_counted_by_continuous_usage() -> None:
    response = decoded(
        delta(usage=usage(7, 0), role="assistant", content=""),
        delta(usage=usage(7, 3), content="abc"),
        delta(usage=usage(7, 3), content="?"),  # the count did not rise: held-back text, no token
        delta(usage=usage(7, 5), content=""),  # no whole character yet, but two tokens
        delta("length", usage=usage(7, 6), content="d"),
        event({"choices": [], "usage": usage(7, 6)}),
        DONE,
    )
    assert (response.token_source, list(response.tokens), list(response.arrivals)) == (
        "continuous",
        [3, 2, 1],
        [2, 4, 5],
    )


def test_a_count_that_does_not_run_is_not_believed() -> None:
    """Usage of 0 in every chunk until the total comes with the finish: each chunk is a token then."""
    response = decoded(
        delta(usage=usage(7, 0), role="assistant", content=""),
        *(delta(usage=usage(7, 0), content=" x") for _ in range(5)),
        delta("length", usage=usage(7, 5)),
        DONE,
    )
    assert (response.token_source, list(response.arrivals), response.output_tokens) == ("chunks", [2, 3, 4, 5, 6], 5)


@pytest.mark.parametrize(
    "last",
    [
        (delta("length"), event({"choices": [], "usage": usage(7, 24)})),
        (delta("length", usage=usage(7, 24)),),
        (delta("length", usage=usage(7, 24), content=""), event({"choices": [], "usage": usage(7, 24)})),
    ],
)
def test_usage_in_the_first_and_the_last_chunk_only_does_not_run(last: tuple[bytes, ...]) -> None:
    """Chunks of several tokens: the total is shared out by bytes, as without the first count."""
    first, chunks = delta(usage=usage(7, 0), role="assistant", content=""), [delta(content="abcd") for _ in range(6)]
    response = decoded(first, *chunks, *last, DONE)
    assert (response.token_source, list(response.tokens)) == ("bytes", [4] * 6)
    assert list(response.arrivals) == [2, 3, 4, 5, 6, 7]
    cut = decoded(first, *chunks)
    assert (cut.error, len(cut.arrivals), sum(cut.tokens)) == ("truncated", 6, 6)


def test_an_end_of_text_that_running_usage_counts_last_does_not_stop_it() -> None:
    response = decoded(
        *(delta(usage=usage(7, i), content="x") for i in (1, 2, 3)),
        delta("stop", usage=usage(7, 4), content=""),
        event({"choices": [], "usage": usage(7, 5)}),
    )
    assert (response.token_source, list(response.tokens)) == ("continuous", [1, 1, 1, 1])


LIES = {
    "negative": (-1, 2, True, "chunks", [1, 1]),
    "beyond any": (2**31, 2, True, "chunks", [1, 1]),
    "beyond any integer": (10**5000, 2, True, "chunks", [1, 1]),
    "no whole number": (2.5, 2, True, "chunks", [1, 1]),
    "no number": ("two", 2, True, "chunks", [1, 1]),
    "true": (True, 2, True, "chunks", [1, 1]),
    "a list": ([1], 2, True, "chunks", [1, 1]),
    "a word": ("4", 4, False, "bytes", [3, 1]),
    "whole": (4.0, 4, False, "bytes", [3, 1]),
    "absent": (None, 2, False, "chunks", [1, 1]),
    "nought": (0, 2, False, "chunks", [1, 1]),
    "too few": (1, 1, False, "bytes", [1]),
    "huge": (10**9, 10**9, False, "chunks", [1, 1]),  # more than the bytes that came: how many came is not known
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_usage_at_the_end_is_recorded_as_far_as_it_can_be_true(lie: str) -> None:
    count, recorded, left_out, source, tokens = LIES[lie]
    with contextlib.ExitStack() as big:
        big.callback(sys.set_int_max_str_digits, sys.get_int_max_str_digits())
        sys.set_int_max_str_digits(0)
        last = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
    response = decoded(delta(content="abc"), delta("length", content="d"), last, DONE)
    assert (response.error, response.token_source, list(response.tokens)) == ("", source, tokens)
    assert (response.output_tokens, response.input_tokens) == (recorded, 7)
    assert response.noted == (("left_out:usage.completion_tokens",) if left_out else ())


RUNNING_LIES = {
    "falling": ([1, 2, 1, 4], "continuous", [1, 1, 2], 4),
    "falling to the end": ([5, 4, 3, 2], "bytes", [1, 1], 2),
    "standing still": ([0, 0, 0, 4], "chunks", [1, 1, 1, 1], 4),
    "each chunk's own": ([1, 1, 1, 1], "bytes", [1], 1),
    "leaping": ([1, 2, 3, 2**31 - 1], "continuous", [1, 1, 1, 2**31 - 4], 2**31 - 1),
}


@pytest.mark.parametrize("lie", RUNNING_LIES)
def test_a_lie_about_running_usage_is_believed_while_it_runs(lie: str) -> None:
    counts, source, tokens, total = RUNNING_LIES[lie]
    chunks = [delta(usage=usage(7, count), content="x") for count in counts]
    response = decoded(*chunks, delta("length"), DONE)
    assert (response.error, response.token_source, list(response.tokens), response.output_tokens) == (
        "",
        source,
        tokens,
        total,
    )


A, B, FINISH = delta(content="a"), delta(content="b"), delta("length")
ENDS = {
    "no [DONE]": (A + B + FINISH, "", 2, "length"),
    "[DONE] twice": (A + B + FINISH + DONE + DONE, "", 2, "length"),
    "[DONE] with blanks": (A + B + FINISH + b"data:  [DONE] \n\n", "", 2, "length"),
    "[DONE] without finish": (A + B + DONE, "", 2, ""),
    "[DONE] in quotes": (A + B + FINISH + b'data: "[DONE]"\n\n', "", 2, "length"),
    "usage without finish": (A + B + END, "", 2, ""),
    "running usage alone": (
        delta(usage=usage(7, 1), content="a") + delta(usage=usage(7, 2), content="b"), "truncated", 2, "",
    ),
    "no end at all": (A + B, "truncated", 2, ""),
    "a reason that is the word null": (delta("null", content="a") + delta("null", content="b"), "truncated", 2, ""),
    "the word null before the reason": (
        delta("null", content="a") + delta("null", content="b") + FINISH, "", 2, "length",
    ),
    "a comment after [DONE]": (A + B + FINISH + DONE + b": bye\n\n", "", 2, "length"),
    "usage after [DONE]": (A + B + FINISH + DONE + END, "", 2, "length"),
    "tokens after [DONE]": (A + FINISH + DONE + B, "malformed_event", 2, "length"),
    "garbage after [DONE]": (A + B + FINISH + DONE + b"data: {\n\n", "malformed_event", 2, "length"),
    "an error after [DONE]": (A + B + FINISH + DONE + event({"error": "x"}), "stream_error", 2, "length"),
    "finish twice": (A + B + FINISH + FINISH + DONE, "", 2, "length"),
    "two reasons": (A + B + delta("stop") + FINISH + DONE, "", 2, "length"),
    "tokens after finish": (A + FINISH + B + DONE, "", 2, "length"),
    "a reason without end": (A + B + delta("x" * 100_000), "", 2, "x" * 64),
    "an empty reason": (A + B + delta("") + DONE, "", 2, ""),
    "nothing": (b"", "truncated", 0, ""),
    "nothing but [DONE]": (DONE, "empty_response", 0, ""),
    "no tokens": (delta(role="assistant") + FINISH + DONE, "empty_response", 0, "length"),
    "no tokens, whatever usage says": (delta(role="assistant") + FINISH + END + DONE, "empty_response", 0, "length"),
    "an end in a moment": (delta("stop", role="assistant", content="") + DONE, "empty_response", 0, "stop"),
    "empty data": (A + b"data: \n\ndata:\n\n" + B + FINISH, "", 2, "length"),
    "comments as data": (
        b"data: : keepalive\n\n" + A + b"data:  : OPENROUTER PROCESSING\r\n\r\n" + B + FINISH + b"data: :\n\n",
        "", 2, "length",
    ),
    "a token behind a comment in one event": (A + b"data: : ping\n" + B + FINISH, "malformed_event", 1, "length"),
    "events of nulls": (event({"choices": None, "usage": None, "error": None}) + A + B + FINISH, "", 2, "length"),
    "a choice of nulls": (
        A + event({"choices": [{"delta": None, "text": None, "finish_reason": None}]}) + B + FINISH, "", 2, "length",
    ),
    "a delta of nulls": (
        A + delta(content=None, reasoning=None, reasoning_content=None, refusal=None, tool_calls=None) + B + FINISH,
        "", 2, "length",
    ),
    "no choices": (A + event({"choices": []}) + event({}) + B + FINISH, "", 2, "length"),
    "several choices in an event": (
        event({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}) + B
        + event({"choices": [{"finish_reason": "length"}, {"finish_reason": "length"}]}),
        "several_choices", 2, "length",
    ),
    "several choices, an event each": (
        A + event({"choices": [{"index": 1, "delta": {"content": "a"}}]}) + FINISH
        + event({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}), "several_choices", 2, "length",
    ),
    "no errors": (A + b"".join(event({"error": no}) for no in (None, "", {}, [], False)) + B + FINISH, "", 2, "length"),
    "an error object": (A + B + event({"error": {"message": "m"}}), "stream_error", 2, ""),
    "an error in words": (A + B + event({"error": "out of blocks"}) + FINISH, "stream_error", 2, "length"),
    "an error as a number": (A + B + event({"error": 500}), "stream_error", 2, ""),
    "an error that is no UTF-8": (A + B + b'data: {"error": "\xff"}\n\n', "stream_error", 2, ""),
    "an error by name": (A + B + b"event: error\ndata: boom\n\n", "stream_error", 2, ""),
    "an error in a field": (A + B + b'error: {"code": 500}\n\n', "stream_error", 2, ""),
    "an error that is cut": (A + B + b'event: error\ndata: {"mes', "stream_error", 2, ""),
    "an abort by the server": (A + B + delta("abort", content="") + END + DONE, "stream_error", 2, "abort"),
    "an abort with the last token": (A + delta("abort", content="b") + END + DONE, "stream_error", 2, "abort"),
    "an error as the reason": (A + B + delta("error"), "stream_error", 2, "error"),
    "cancelled by the server": (A + B + delta("cancelled") + DONE, "stream_error", 2, "cancelled"),
    "timed out by the server": (A + B + delta("timeout") + DONE, "stream_error", 2, "timeout"),
    "no resources": (
        A + B + delta("insufficient_system_resource") + DONE, "stream_error", 2, "insufficient_system_resource",
    ),
    "calls that are none": (delta(tool_calls=[None]) + delta(tool_calls=[3]) + FINISH, "empty_response", 0, "length"),
    "a call that is no UTF-8": (
        A + b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"name": "\xff"}}]}}]}\n\n' + FINISH,
        "", 2, "length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_how_a_stream_may_go_wrong_and_what_its_record_says(end: str) -> None:
    data, error, chunks, reason = ENDS[end]
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        response = decoded(*pieces)
        assert (response.error, len(response.arrivals), response.finish_reason) == (error, chunks, reason)


def test_the_first_error_of_a_stream_is_the_one_that_is_recorded_with_its_text() -> None:
    response = decoded(A, event({"error": {"message": "engine died"}}), b"data: {\n\n", event({"error": "later"}))
    assert (response.error, response.message) == ("stream_error", '{"message": "engine died"}')
    assert decoded(A, b"event: error\ndata: boom\n\n").message == "boom"


def test_an_answer_that_the_server_ended_says_why_as_far_as_the_server_does() -> None:
    words = "internal error happened, status code ResponseType.INPUT_LENGTH_ERROR"
    lmdeploy = decoded(delta("error", role="assistant", content=words))
    assert (lmdeploy.error, lmdeploy.message) == ("stream_error", f"the server ended it: error: {words}")
    assert decoded(A, delta("abort", content="b"), DONE).message == "the server ended it: abort"
    assert decoded(A, event({"error": "died"}), delta("abort")).message == '"died"', "the first error is kept"


def test_an_event_too_long_ends_the_response_at_once() -> None:
    decoder = StreamDecoder()
    decoder.feed(A, 1)
    with pytest.raises(ProtocolError) as caught:
        feed_all(decoder, [b"x" * 65_536] * 80)
    assert caught.value.error == "line_too_long"
    decoder.feed(b"\n\n" + B + FINISH, 3)
    response = decoder.end(4)
    assert (response.error, list(response.arrivals), response.finish_reason) == ("line_too_long", [1], "")


def test_an_answer_that_never_ends_is_given_up_and_no_longer_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MOST_CHUNKS", 100)
    endless = StreamDecoder()
    feed_all(endless, [delta(content="x")] * 100)
    with pytest.raises(ProtocolError):
        feed_all(endless, [delta(content="x")])
    feed_all(endless, [delta(content="x")] * 50)  # what was queued
    response = endless.end(4)
    assert (response.error, len(response.arrivals)) == ("endless", 101)
    assert response.message == "more than 100 chunks, and no end"
    feed_all(StreamDecoder(asked=120), [delta(content="x")] * 120)


def test_chunks_of_several_tokens_without_running_counts_share_the_usage_by_length() -> None:
    response = decoded(
        delta(content="aaaa"), delta(content="bb"), delta("length"), event({"choices": [], "usage": usage(7, 6)})
    )
    assert (response.token_source, list(response.tokens), response.output_tokens) == ("bytes", [4, 2], 6)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 200))
def test_a_shared_total_is_kept_and_every_chunk_that_stays_has_some_of_it(lengths: list[int], total: int) -> None:
    data = [delta("length" if i == len(lengths) - 1 else None, content="x" * n) for i, n in enumerate(lengths)]
    response = decoded(*data, event({"choices": [], "usage": usage(1, total)}))
    hidden = total > sum(lengths)  # some tokens are not in the text, and nothing tells how many a chunk has
    assert (response.output_tokens, sum(response.tokens)) == (total, len(lengths) if hidden else total)
    assert len(response.arrivals) == len(response.tokens)
    assert (response.arrivals[0], min(response.tokens) >= 1) == (1, True)
    assert len(response.arrivals) == len(lengths) or total < len(lengths) or response.token_source == "chunks"


def test_tokens_that_no_text_can_hold_leave_each_chunk_one() -> None:
    """200 by usage, of a reasoning that is not shown, and 16 of an answer."""
    data = [delta("length" if i == 15 else None, content=" tok") for i in range(16)]
    response = decoded(*data, event({"choices": [], "usage": usage(7, 200)}))
    assert (response.token_source, sum(response.tokens), response.output_tokens) == ("chunks", 16, 200)


def test_length_is_counted_in_bytes() -> None:
    response = decoded(
        delta(content="éééé"), delta(content="bb"), delta("length"), event({"choices": [], "usage": usage(7, 5)})
    )
    assert (response.token_source, list(response.tokens)) == ("bytes", [4, 1])


def test_a_usage_of_0_for_a_text_that_came_is_a_placeholder() -> None:
    response = decoded(delta(content="a"), delta("stop", content="b"), event({"choices": [], "usage": usage(7, 0)}))
    assert (response.token_source, response.output_tokens, list(response.tokens)) == ("chunks", 2, [1, 1])


def test_tokens_of_chunks_that_show_none_stay_unplaced_where_no_count_runs() -> None:
    """Parts of a character and the end of text: counted in usage, but nobody saw them arrive."""
    response = decoded(
        delta(role="assistant", content=""),
        delta(content="a"),
        delta(content=""),
        delta(content="é"),
        delta("stop", content=""),
        event({"choices": [], "usage": usage(7, 4)}),
    )
    assert (response.token_source, list(response.arrivals), list(response.tokens)) == ("chunks", [2, 4], [1, 1])
    assert response.output_tokens == 4


def test_an_answer_begins_with_its_first_token_even_if_that_is_part_of_a_character() -> None:
    response = decoded(
        delta(usage=usage(7, 0), role="assistant", content=""),
        delta(usage=usage(7, 1), content=""),
        delta("length", usage=usage(7, 2), content="é"),
    )
    assert (list(response.arrivals), response.first_content) == ([2, 3], 2)


def test_a_token_in_a_chunk_that_running_usage_leaves_out_is_counted_once() -> None:
    response = decoded(
        delta(usage=usage(7, 1), content="a"),
        delta(content="b"),
        delta(usage=usage(7, 3), content="c"),
        delta("length", usage=usage(7, 5), content="de"),
    )
    assert (response.token_source, list(response.tokens)) == ("continuous", [1, 1, 1, 2])


def test_without_any_usage_a_chunk_is_a_token() -> None:
    response = decoded(delta(content="a"), delta("stop", content="b"), DONE)
    assert (response.token_source, response.output_tokens, response.input_tokens) == ("chunks", 2, None)


def test_usage_that_comes_only_with_the_finish_is_not_an_arrival() -> None:
    response = decoded(delta(content="a"), delta("length", usage=usage(7, 1)), DONE)
    assert (list(response.arrivals), response.output_tokens) == ([1], 1)
    unseen = decoded(delta(role="assistant"), delta("length", usage=usage(7, 3)), DONE)
    assert (list(unseen.arrivals), unseen.output_tokens, unseen.error) == ([], 3, "empty_response")


def test_a_stream_without_finish_reason_is_truncated() -> None:
    assert decoded(delta(content="a")).error == "truncated"
    assert decoded().error == "truncated"


def test_a_missing_done_is_forgiven() -> None:
    assert decoded(delta("stop", content="a")).error == ""


def test_an_error_inside_the_stream_is_an_error() -> None:
    response = decoded(delta(content="a"), event({"error": {"message": "engine died", "code": 500}}), DONE)
    assert (response.error, "engine died" in response.message) == ("stream_error", True)
    assert response.output_tokens == 1


def test_null_error_and_null_usage_are_nothing() -> None:
    data = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "error": None, "usage": None}
    assert decoded(event(data)).error == ""


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[{}]",
        b'{"choices": 3}',
        b'{"choices": {"delta": {"content": "x"}}}',
        b'{"choices": [{"delta": 3}]}',
        b'{"choices": [{"delta": {"content": 3}}]}',
        b'{"choices": [{"text": 3}]}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_an_event_that_is_no_chunk_is_an_error_that_keeps_its_start(data: bytes) -> None:
    response = decoded(delta(content="a"), b"data: " + data + b"\n\n", delta("stop", content="b"))
    assert (response.error, len(response.arrivals)) == ("malformed_event", 2)


def test_several_token_events_of_one_read_are_merged_and_counted() -> None:
    response = decoded(delta(content="a") + delta(content="b"), delta("stop", content="c"))
    assert (response.merged, list(response.arrivals)) == (2, [1, 1, 2])
    alone = decoded(delta(role="assistant") + delta(content="a"), delta("stop", content="c") + END + DONE)
    assert alone.merged == 0


def test_cached_and_reasoning_tokens_are_taken_from_usage() -> None:
    full = usage(7, 2) | {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    response = decoded(delta(content="a"), delta("stop", content="b"), event({"choices": [], "usage": full}))
    assert (response.cached_tokens, response.reasoning_tokens) == (4, 1)


def test_a_reasoning_that_is_not_streamed_is_in_no_chunk() -> None:
    full = usage(7, 52) | {"completion_tokens_details": {"reasoning_tokens": 50}}
    pieces = [
        delta(content="a long word "),
        delta("stop", content="and another"),
        event({"choices": [], "usage": full}),
    ]
    response = decoded(*pieces)
    assert (response.token_source, response.token_counts, response.output_tokens) == ("chunks", None, 52)


GROK = {
    "prompt_tokens": 12,
    "completion_tokens": 2,
    "completion_tokens_details": {"reasoning_tokens": 317},
    "total_tokens": 331,
}


def test_a_reasoning_that_usage_counts_beside_the_answer_is_output_too() -> None:
    """By the total: xAI's is that of prompt, completion and reasoning, all others' that of prompt and completion."""
    answer = [delta(content="4"), delta("stop", content="2"), event({"choices": [], "usage": GROK}), DONE]
    shown = decoded(*(delta(reasoning_content=" x") for _ in range(317)), *answer)
    assert (shown.token_source, shown.token_counts, len(shown.arrivals)) == ("chunks", None, 319)
    assert (shown.output_tokens, shown.reasoning_tokens, shown.input_tokens) == (319, 317, 12)
    hidden = decoded(*answer)
    assert (hidden.token_source, hidden.token_counts, hidden.output_tokens) == ("chunks", None, 319)


def test_a_reasoning_that_runs_beside_the_answer_is_counted_as_it_comes() -> None:
    def counts(reasoning: int, answer: int) -> dict[str, object]:
        details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
        return usage(7, answer) | {"total_tokens": 7 + answer + reasoning} | details

    response = decoded(
        delta(usage=counts(2, 0), reasoning="a b"),
        delta(usage=counts(5, 0), reasoning="c d e"),
        delta(usage=counts(5, 1), content="f"),
        delta("stop", usage=counts(5, 3), content="g h"),
    )
    assert (response.token_source, list(response.tokens)) == ("continuous", [2, 3, 1, 2])
    assert (response.output_tokens, response.reasoning_tokens) == (8, 5)


@pytest.mark.parametrize("total", [331, 14, 330, None])
def test_a_reasoning_is_added_to_no_other_total(total: int | None) -> None:
    full = GROK | {"completion_tokens": 319, "total_tokens": total}
    response = decoded(*(delta(content=" x") for _ in range(319)), delta("stop"), event({"usage": full}))
    assert response.output_tokens == 319


def test_a_reasoning_beyond_any_count_is_bounded() -> None:
    full = GROK | {"completion_tokens": 2**31 - 1, "total_tokens": 12 + 2**31 - 1 + 317}
    response = decoded(delta(content="a"), delta("stop", content="b"), event({"usage": full}))
    assert (response.error, response.output_tokens) == ("", 2**31 - 1)


def toy(*, room: int | None = None) -> TokenPlacer:
    """A tokenizer of words: each run of letters, of blanks and of other signs is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if room is not None:
        tokenizer.enable_truncation(room)
    return TokenPlacer(tokenizer.to_str())


def with_placer(*pieces: bytes, room: int | None = None) -> DecodedResponse:
    return decoded(*pieces, placer=toy(room=room))


def test_where_no_count_serves_the_tokenizer_places_what_each_chunk_completes() -> None:
    response = with_placer(
        delta(content="one two thr"),
        delta(content="ee four"),
        delta("length"),
        event({"choices": [], "usage": usage(7, 4)}),
        room=2,  # a model's own limit of length is no limit of an answer
    )
    assert (response.token_source, list(response.tokens), list(response.arrivals)) == ("tokenizer", [2, 2], [1, 2])


def test_a_tokenizer_counts_the_answer_of_a_server_that_does_not() -> None:
    answer = delta(content="one two thr"), delta(content="ee four five"), delta("stop")
    response = with_placer(*answer, DONE)
    assert (response.error, response.token_source, response.output_tokens) == ("", "tokenizer", 5)
    assert (list(response.tokens), list(response.arrivals), response.input_tokens) == ([2, 3], [1, 2], None)
    placeholder = with_placer(*answer, event({"choices": [], "usage": usage(7, 0)}), DONE)
    assert (placeholder.token_source, placeholder.output_tokens, placeholder.input_tokens) == ("tokenizer", 5, 7)
    cut = with_placer(*answer[:2])
    assert (cut.error, cut.token_source, cut.output_tokens) == ("truncated", "chunks", 2), "usage was yet to come"


def test_a_tokenizer_counts_what_tensorrt_llm_s_models_behind_triton_do_not() -> None:
    decoder = DIALECTS["triton"].decoder(toy())
    for at in (1, 2):
        decoder.feed(event({"text_output": " one two three"}), at)
    response = decoder.end(3)
    assert (response.token_source, response.output_tokens, list(response.tokens)) == ("tokenizer", 6, [3, 3])


def test_the_tokenizer_sees_reasoning_and_calls_in_order_of_arrival_and_marks_stay_unplaced() -> None:
    call = {"index": 0, "function": {"name": "look", "arguments": '{"at": "me"}'}}
    response = with_placer(
        delta(reasoning="é è"),
        delta(content=" so be it."),
        delta("tool_calls", tool_calls=[call]),
        event({"choices": [], "usage": usage(7, 14)}),
    )
    # é è; so be it .; look {" at ": " me "}; one marker that no text shows.
    assert (response.token_source, list(response.tokens), response.output_tokens) == ("tokenizer", [2, 4, 7], 14)
    assert response.first_content == 2


def test_a_tokenizer_that_finds_more_than_the_server_counts_is_another_model_s() -> None:
    response = with_placer(
        delta(content="a b c d e f"), delta("stop", content="g"), event({"choices": [], "usage": usage(7, 3)})
    )
    assert (response.token_source, sum(response.tokens)) == ("bytes", 3)


@pytest.mark.parametrize("count", [3, None])
def test_the_tokenizer_is_not_used_where_usage_runs_or_equals_the_chunks(count: int | None) -> None:
    response = with_placer(
        *(delta(usage=usage(7, i + 1) if count else None, content="a b") for i in range(3)),
        delta("stop"),
        event({"choices": [], "usage": usage(7, 3)}),
    )
    assert (response.token_source, list(response.tokens)) == ("continuous" if count else "chunks", [1, 1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("placer", [True, False])
def test_a_token_costs_no_more_than_16_bytes_while_an_answer_grows(running: bool, placer: bool) -> None:
    tokens, placing = 32_768, toy() if placer else None
    pieces = [delta(usage=usage(7, i + 1) if running else None, content=" the") for i in range(tokens)]
    gc.collect()
    tracemalloc.start()
    decoder = StreamDecoder(placing)
    for i, piece in enumerate(pieces):
        decoder.feed(piece, 10**15 + i)
    (grown, _), pieces = tracemalloc.get_traced_memory(), []
    decoder.feed(delta("length") + event({"choices": [], "usage": usage(7, tokens)}), 10**15 + tokens)
    response = decoder.end(10**15 + tokens)
    settled, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (response.token_source, sum(response.tokens)) == ("continuous" if running else "chunks", tokens)
    assert grown < 16 * tokens
    assert settled < 9 * tokens


@pytest.mark.parametrize("placer", [True, False])
@pytest.mark.parametrize("running", [True, False])
def test_the_text_of_an_answer_is_kept_on_request_alone(placer: bool, running: bool) -> None:
    pieces = [
        delta(usage=usage(7, 1) if running else None, reasoning_content="hm"),
        delta(usage=usage(7, 2) if running else None, content=" a"),
        delta(usage=usage(7, 3) if running else None, content=" é"),
        delta("stop", usage=usage(7, 4) if running else None, content=" b"),
        END,
    ]
    placing = toy() if placer else None
    assert decoded(*pieces, placer=placing, keep_text=True).text == " a é b"
    assert decoded(*pieces, placer=placing).text == ""
    kept, other = decoded(*pieces, placer=placing, keep_text=True), decoded(*pieces, placer=placing)
    assert msgspec.structs.replace(kept, text="") == other


def test_a_text_that_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_LONGEST_TEXT", 6)
    pieces = [delta(content=" one"), delta(content=" two"), delta("length", content=" three")]
    found = decoded(*pieces, DONE, keep_text=True)
    assert found.text == " one two", "the piece that passes it is the last"
    assert found.output_tokens == 3


def test_labels_of_a_delta_and_a_ping_with_words_are_neither_tokens_nor_errors() -> None:
    label = {"name": "MiniMax AI", "channel": "final"}
    data = [delta(role="assistant", content="", **label), delta(content="aaaa", **label), delta(content="bb", **label)]
    ping = event({"choices": [], "type": "ping", "message": "keepalive"})
    response = decoded(*data, ping, event({"choices": [], "usage": usage(7, 6)}), DONE)
    assert (response.error, list(response.tokens)) == ("", [4, 2])
