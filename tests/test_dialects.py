"""What the servers' events mean: tokens, usage and ends, for every dialect, cut at every byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import dialects
from harness.load.dialects import Story
from tests.streams import ALL, DONE, END, delta, event, usage


def told(*pieces: bytes) -> Story:
    """A story whose i-th piece arrives at time i + 1."""
    story = Story()
    for i, piece in enumerate(pieces):
        story.feed(i + 1, piece)
    story.end(len(pieces) + 1)
    return story


@pytest.mark.parametrize("name", ALL)
def test_every_server_s_two_tokens_are_two_wherever_the_bytes_are_cut(name: str) -> None:
    data = ALL[name]
    for cut in range(len(data) + 1):
        story = told(data[:cut], data[cut:])
        assert (story.error, story.output_tokens, sum(story.tokens), len(story.arrivals)) == ("", 2, 2, 2)
        assert (story.input_tokens, story.finish_reason in ("length", "stop")) == (7, True)
    crlf = told(data.replace(b"\n", b"\r\n"))
    assert (crlf.error, list(crlf.tokens)) == ("", [1, 1])


def test_the_role_chunk_is_no_token() -> None:
    story = told(delta(role="assistant", content=""), delta(content="a"), delta("stop", content="b"), END)
    assert list(story.arrivals) == [2, 3]


def test_a_reasoning_delta_is_a_token_and_the_answer_begins_later() -> None:
    for name in ("reasoning_content", "reasoning"):
        story = told(delta(**{name: "hm"}), delta(**{name: "so"}), delta("stop", content="b"))
        assert (list(story.arrivals), story.first_content) == ([1, 2, 3], 3)


def test_a_tool_call_delta_is_a_token() -> None:
    story = told(delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), delta("tool_calls"))
    assert (list(story.arrivals), story.error) == ([1], "")


def test_chunks_of_several_tokens_are_counted_by_continuous_usage() -> None:
    story = told(
        delta(usage=usage(7, 0), role="assistant", content=""),
        delta(usage=usage(7, 3), content="abc"),
        delta(usage=usage(7, 3), content="?"),  # the count did not rise: held-back text, no token
        delta(usage=usage(7, 5), content=""),  # no whole character yet, but two tokens
        delta("length", usage=usage(7, 6), content="d"),
        event({"choices": [], "usage": usage(7, 6)}),
        DONE,
    )
    assert (story.token_source, list(story.tokens), list(story.arrivals)) == ("continuous", [3, 2, 1], [2, 4, 5])


def test_a_count_that_does_not_run_is_not_believed() -> None:
    """Usage of 0 in every chunk until the total comes with the finish: each chunk is a token then."""
    story = told(
        delta(usage=usage(7, 0), role="assistant", content=""),
        *(delta(usage=usage(7, 0), content=" x") for _ in range(5)),
        delta("length", usage=usage(7, 5)),
        DONE,
    )
    assert (story.token_source, list(story.arrivals), story.output_tokens) == ("chunks", [2, 3, 4, 5, 6], 5)


@pytest.mark.parametrize("count", [-1, 2**31, 2**70])
def test_a_usage_that_cannot_be_is_a_malformed_event(count: int) -> None:
    story = told(delta(content="a"), delta("length"), event({"choices": [], "usage": usage(7, count)}))
    assert story.error == "malformed_event"


def test_chunks_of_several_tokens_without_running_counts_share_the_usage_by_length() -> None:
    story = told(
        delta(content="aaaa"), delta(content="bb"), delta("length"), event({"choices": [], "usage": usage(7, 6)})
    )
    assert (story.token_source, list(story.tokens), story.output_tokens) == ("bytes", [4, 2], 6)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(0, 200))
def test_a_shared_total_is_kept(lengths: list[int], total: int) -> None:
    data = [delta(content="x" * n) for n in lengths]
    story = told(*data, delta("length"), event({"choices": [], "usage": usage(1, total)}))
    assert sum(story.tokens) == story.output_tokens == total


def test_without_any_usage_a_chunk_is_a_token() -> None:
    story = told(delta(content="a"), delta("stop", content="b"), DONE)
    assert (story.token_source, story.output_tokens, story.input_tokens) == ("chunks", 2, None)


def test_usage_that_comes_only_with_the_finish_is_not_an_arrival() -> None:
    story = told(delta(content="a"), delta("length", usage=usage(7, 1)), DONE)
    assert (list(story.arrivals), story.output_tokens) == ([1], 1)
    unseen = told(delta(role="assistant"), delta("length", usage=usage(7, 3)), DONE)
    assert (list(unseen.arrivals), unseen.output_tokens) == ([], 3)


def test_a_stream_without_finish_reason_is_truncated() -> None:
    assert told(delta(content="a"), END, DONE).error == "truncated"
    assert told().error == "truncated"


def test_a_missing_done_is_forgiven() -> None:
    assert told(delta("stop", content="a")).error == ""


def test_an_error_inside_the_stream_is_an_error() -> None:
    story = told(delta(content="a"), event({"error": {"message": "engine died", "code": 500}}), DONE)
    assert (story.error, "engine died" in story.message) == ("stream_error", True)
    assert story.output_tokens == 1


def test_null_error_and_null_usage_are_nothing() -> None:
    data = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "error": None, "usage": None}
    assert told(event(data)).error == ""


@pytest.mark.parametrize(
    "data", [b"{", b'{"choices": 3}', b"\xff\xfe", b"[]", b'{"usage": {"completion_tokens": "x"}}']
)
def test_an_event_that_is_no_chunk_is_an_error_that_keeps_its_start(data: bytes) -> None:
    story = told(delta(content="a"), b"data: " + data + b"\n\n", delta("stop", content="b"))
    assert (story.error, len(story.arrivals)) == ("malformed_event", 2)


def test_several_token_events_of_one_read_are_merged_and_counted() -> None:
    story = told(delta(content="a") + delta(content="b"), delta("stop", content="c"), END)
    assert (story.merged, list(story.arrivals)) == (2, [1, 1, 2])
    alone = told(delta(role="assistant") + delta(content="a"), delta("stop", content="c") + END + DONE)
    assert alone.merged == 0


def test_cached_and_reasoning_tokens_are_taken_from_usage() -> None:
    full = usage(7, 2) | {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    story = told(delta(content="a"), delta("stop", content="b"), event({"choices": [], "usage": full}))
    assert (story.cached_tokens, story.reasoning_tokens) == (4, 1)


def test_a_body_asks_for_length_usage_and_stream_and_leaves_out_what_is_dropped() -> None:
    before, after = dialects.body("chat", "m", 9)
    full = json.loads(before + b'"hi"' + after)
    assert full["messages"] == [{"role": "user", "content": "hi"}]
    assert (full["max_tokens"], full["ignore_eos"], full["stream"]) == (9, True, True)
    assert full["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    before, after = dialects.body(
        "completions",
        "m",
        9,
        drop=frozenset({"ignore_eos", "stream_options.continuous_usage_stats"}),
        extra={"top_p": 1},
    )
    less = json.loads(before + b'"hi"' + after)
    assert (less["prompt"], less["top_p"], less["stream_options"]) == ("hi", 1, {"include_usage": True})
    assert "ignore_eos" not in less


def test_a_refused_field_is_named_once() -> None:
    said = "Unexpected fields in the request: {'ignore_eos', 'stream_options'}"
    assert dialects.refused_field(said, frozenset()) == "ignore_eos"
    assert dialects.refused_field(said, frozenset({"ignore_eos"})) == "stream_options"
    assert dialects.refused_field("the prompt is too long", frozenset()) is None


@pytest.mark.parametrize(
    ("status", "message", "name"),
    [(429, "slow down", "http_429"), (404, "", "http_4xx"), (503, "", "http_5xx"), (500, "CUDA out of memory", "oom")],
)
def test_refusals_have_names(status: int, message: str, name: str) -> None:
    assert dialects.http_error(status, message) == name
