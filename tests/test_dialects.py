"""What the servers' events mean: tokens, usage and ends, for every dialect, cut at every byte."""

import contextlib
import gc
import itertools
import json
import sys
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import dialects
from harness.load.dialects import Story
from harness.load.http1 import ProtocolError
from harness.load.tokens import Placer
from tests.streams import ALL, DONE, END, delta, event, usage


def feed_all(story: Story, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        story.feed(2, piece)


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


@given(
    st.sampled_from(sorted(ALL)), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 2000), max_size=9)
)
def test_however_the_bytes_are_cut_the_story_is_the_same(name: str, end: bytes, cuts: list[int]) -> None:
    data = (b": ping\n\n" + delta(reasoning="é") + ALL[name]).replace(b"\n", end)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    whole, cut = Story(), Story()
    whole.feed(5, data)
    carried = sum(cut.feed(5, data[a:b]) for a, b in itertools.pairwise(places))
    whole.end(6)
    cut.end(6)
    for field in set(Story.__slots__) - {"merged", "_events"}:
        assert getattr(whole, field) == getattr(cut, field), field
    assert carried == 3


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


LIES = {
    "negative": (-1, None, "malformed_event", "chunks", [1, 1]),
    "beyond any": (2**31, None, "malformed_event", "chunks", [1, 1]),
    "beyond any integer": (10**5000, None, "malformed_event", "chunks", [1, 1]),
    "no whole number": (2.5, None, "malformed_event", "chunks", [1, 1]),
    "a word": ("2", None, "malformed_event", "chunks", [1, 1]),
    "true": (True, None, "malformed_event", "chunks", [1, 1]),
    "absent": (None, 2, "", "chunks", [1, 1]),
    "nought": (0, 2, "", "chunks", [1, 1]),
    "too few": (1, 1, "", "bytes", [1]),
    "huge": (10**9, 10**9, "", "bytes", [3, 1]),  # no more than the bytes that came: the rest shows as unplaced
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_usage_at_the_end_is_recorded_as_far_as_it_can_be_true(lie: str) -> None:
    count, recorded, error, source, tokens = LIES[lie]
    with contextlib.ExitStack() as big:
        big.callback(sys.set_int_max_str_digits, sys.get_int_max_str_digits())
        sys.set_int_max_str_digits(0)
        last = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
    story = told(delta(content="abc"), delta("length", content="d"), last, DONE)
    assert (story.error, story.token_source, list(story.tokens)) == (error, source, tokens)
    assert story.output_tokens == (2 if error else recorded)


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
    story = told(*chunks, delta("length"), DONE)
    assert (story.error, story.token_source, list(story.tokens), story.output_tokens) == ("", source, tokens, total)


A, B, FINISH = delta(content="a"), delta(content="b"), delta("length")
ENDS = {
    "no [DONE]": (A + B + FINISH, "", 2, "length"),
    "[DONE] twice": (A + B + FINISH + DONE + DONE, "", 2, "length"),
    "[DONE] with blanks": (A + B + FINISH + b"data:  [DONE] \n\n", "", 2, "length"),
    "[DONE] without finish": (A + B + DONE, "truncated", 2, ""),
    "a comment after [DONE]": (A + B + FINISH + DONE + b": bye\n\n", "", 2, "length"),
    "usage after [DONE]": (A + B + FINISH + DONE + END, "", 2, "length"),
    "tokens after [DONE]": (A + FINISH + DONE + B, "malformed_event", 2, "length"),
    "garbage after [DONE]": (A + B + FINISH + DONE + b"data: {\n\n", "malformed_event", 2, "length"),
    "an error after [DONE]": (A + B + FINISH + DONE + event({"error": "x"}), "stream_error", 2, "length"),
    "finish twice": (A + B + FINISH + FINISH + DONE, "", 2, "length"),
    "two reasons": (A + B + delta("stop") + FINISH + DONE, "", 2, "length"),
    "tokens after finish": (A + FINISH + B + DONE, "", 2, "length"),
    "a reason without end": (A + B + delta("x" * 100_000), "", 2, "x" * 64),
    "an empty reason": (A + B + delta("") + DONE, "truncated", 2, ""),
    "nothing": (b"", "truncated", 0, ""),
    "nothing but [DONE]": (DONE, "truncated", 0, ""),
    "no tokens": (delta(role="assistant") + FINISH + DONE, "", 0, "length"),
    "empty data": (A + b"data: \n\ndata:\n\n" + B + FINISH, "", 2, "length"),
    "events of nulls": (event({"choices": None, "usage": None, "error": None}) + A + B + FINISH, "", 2, "length"),
    "a choice of nulls": (
        A + event({"choices": [{"delta": None, "text": None, "finish_reason": None}]}) + B + FINISH, "", 2, "length",
    ),
    "a delta of nulls": (
        A + delta(content=None, reasoning=None, reasoning_content=None, refusal=None, tool_calls=None) + B + FINISH,
        "", 2, "length",
    ),
    "no choices": (A + event({"choices": []}) + event({}) + B + FINISH, "", 2, "length"),
    "several choices": (  # of one event the first is heard
        event({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}) + B + FINISH, "", 2, "length",
    ),
    "another index": (event({"choices": [{"index": 1, "delta": {"content": "a"}}]}) + B + FINISH, "", 2, "length"),
    "no errors": (A + b"".join(event({"error": no}) for no in (None, "", {}, [], False)) + B + FINISH, "", 2, "length"),
    "an error object": (A + B + event({"error": {"message": "m"}}), "stream_error", 2, ""),
    "an error in words": (A + B + event({"error": "out of blocks"}) + FINISH, "stream_error", 2, "length"),
    "an error as a number": (A + B + event({"error": 500}), "stream_error", 2, ""),
    "an error that is no UTF-8": (A + B + b'data: {"error": "\xff"}\n\n', "stream_error", 2, ""),
    "an error by name": (A + B + b"event: error\ndata: boom\n\n", "stream_error", 2, ""),
    "an error in a field": (A + B + b'error: {"code": 500}\n\n', "stream_error", 2, ""),
    "an error that is cut": (A + B + b'event: error\ndata: {"mes', "stream_error", 2, ""),
    "calls that are none": (delta(tool_calls=[None]) + delta(tool_calls=[3]) + FINISH, "", 2, "length"),
    "a call that is no UTF-8": (
        A + b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"name": "\xff"}}]}}]}\n\n' + FINISH,
        "", 2, "length",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_how_a_stream_may_go_wrong_and_what_its_record_says(end: str) -> None:
    data, error, chunks, reason = ENDS[end]
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        story = told(*pieces)
        assert (story.error, len(story.arrivals), story.finish_reason) == (error, chunks, reason)


def test_the_first_error_of_a_stream_is_the_one_that_is_told_with_its_words() -> None:
    story = told(A, event({"error": {"message": "engine died"}}), b"data: {\n\n", event({"error": "later"}))
    assert (story.error, story.message) == ("stream_error", '{"message": "engine died"}')
    assert told(A, b"event: error\ndata: boom\n\n").message == "boom"


def test_an_event_too_long_ends_the_story_at_once() -> None:
    story = Story()
    story.feed(1, A)
    with pytest.raises(ProtocolError) as caught:
        feed_all(story, [b"x" * 65_536] * 80)
    assert caught.value.error == "line_too_long"
    story.feed(3, b"\n\n" + B + FINISH)
    story.end(4)
    assert (story.error, list(story.arrivals), story.finish_reason) == ("line_too_long", [1], "")


def test_chunks_of_several_tokens_without_running_counts_share_the_usage_by_length() -> None:
    story = told(
        delta(content="aaaa"), delta(content="bb"), delta("length"), event({"choices": [], "usage": usage(7, 6)})
    )
    assert (story.token_source, list(story.tokens), story.output_tokens) == ("bytes", [4, 2], 6)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 200))
def test_a_shared_total_is_kept_and_every_chunk_that_stays_has_some_of_it(lengths: list[int], total: int) -> None:
    data = [delta("length" if i == len(lengths) - 1 else None, content="x" * n) for i, n in enumerate(lengths)]
    story = told(*data, event({"choices": [], "usage": usage(1, total)}))
    assert (story.output_tokens, sum(story.tokens)) == (total, min(total, max(sum(lengths), len(lengths))))
    assert len(story.arrivals) == len(story.tokens)
    assert (story.arrivals[0], min(story.tokens) >= 1) == (1, True)
    assert len(story.arrivals) == len(lengths) or total < len(lengths) or story.token_source == "chunks"


def test_length_is_counted_in_bytes() -> None:
    story = told(
        delta(content="éééé"), delta(content="bb"), delta("length"), event({"choices": [], "usage": usage(7, 5)})
    )
    assert (story.token_source, list(story.tokens)) == ("bytes", [4, 1])


def test_a_usage_of_0_for_a_text_that_came_is_a_placeholder() -> None:
    story = told(delta(content="a"), delta("stop", content="b"), event({"choices": [], "usage": usage(7, 0)}))
    assert (story.token_source, story.output_tokens, list(story.tokens)) == ("chunks", 2, [1, 1])


def test_tokens_of_chunks_that_show_none_stay_unplaced_where_no_count_runs() -> None:
    """Parts of a character and the end of text: counted in usage, but nobody saw them arrive."""
    story = told(
        delta(role="assistant", content=""),
        delta(content="a"),
        delta(content=""),
        delta(content="é"),
        delta("stop", content=""),
        event({"choices": [], "usage": usage(7, 4)}),
    )
    assert (story.token_source, list(story.arrivals), list(story.tokens)) == ("chunks", [2, 4], [1, 1])
    assert story.output_tokens == 4


def test_an_answer_begins_with_its_first_token_even_if_that_is_part_of_a_character() -> None:
    story = told(
        delta(usage=usage(7, 0), role="assistant", content=""),
        delta(usage=usage(7, 1), content=""),
        delta("length", usage=usage(7, 2), content="é"),
    )
    assert (list(story.arrivals), story.first_content) == ([2, 3], 2)


def test_a_token_in_a_chunk_that_running_usage_leaves_out_is_counted_once() -> None:
    story = told(
        delta(usage=usage(7, 1), content="a"),
        delta(content="b"),
        delta(usage=usage(7, 3), content="c"),
        delta("length", usage=usage(7, 5), content="de"),
    )
    assert (story.token_source, list(story.tokens)) == ("continuous", [1, 1, 1, 2])


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
    "data",
    [
        b"{",
        b"[]",
        b"null",
        b"DONE",
        b"[done]",
        b"\xff\xfe",
        b'{"choices": 3}',
        b'{"choices": [null]}',
        b'{"choices": [{"delta": "x"}]}',
        b'{"choices": [{"delta": {"content": ["x"]}}]}',
        b'{"choices": [{"delta": {"content": "\xff"}}]}',
        b'{"choices": [{"delta": {"content": "\\ud800"}}]}',
        b'{"usage": 7}',
        b'{"usage": {"completion_tokens": "x"}}',
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"error": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_an_event_that_is_no_chunk_is_an_error_that_keeps_its_start(data: bytes) -> None:
    story = told(delta(content="a"), b"data: " + data + b"\n\n", delta("stop", content="b"))
    assert (story.error, len(story.arrivals)) == ("malformed_event", 2)


def test_several_token_events_of_one_read_are_merged_and_counted() -> None:
    story = told(delta(content="a") + delta(content="b"), delta("stop", content="c"))
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


def toy(*, room: int | None = None) -> Placer:
    """A tokenizer of words: each run of letters, of blanks and of other signs is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if room is not None:
        tokenizer.enable_truncation(room)
    return Placer(tokenizer.to_str())


def with_placer(*pieces: bytes, room: int | None = None) -> Story:
    story = Story(toy(room=room))
    for i, piece in enumerate(pieces):
        story.feed(i + 1, piece)
    story.end(len(pieces) + 1)
    return story


def test_where_no_count_serves_the_tokenizer_places_what_each_chunk_completes() -> None:
    story = with_placer(
        delta(content="one two thr"),
        delta(content="ee four"),
        delta("length"),
        event({"choices": [], "usage": usage(7, 4)}),
        room=2,  # a model's own limit of length is no limit of an answer
    )
    assert (story.token_source, list(story.tokens), list(story.arrivals)) == ("tokenizer", [2, 2], [1, 2])


def test_the_tokenizer_sees_reasoning_and_calls_in_order_of_arrival_and_marks_stay_unplaced() -> None:
    call = {"index": 0, "function": {"name": "look", "arguments": '{"at": "me"}'}}
    story = with_placer(
        delta(reasoning="é è"),
        delta(content=" so be it."),
        delta("tool_calls", tool_calls=[call]),
        event({"choices": [], "usage": usage(7, 14)}),
    )
    # é è; so be it .; look {" at ": " me "}; one marker that no text shows.
    assert (story.token_source, list(story.tokens), story.output_tokens) == ("tokenizer", [2, 4, 7], 14)
    assert story.first_content == 2


def test_a_tokenizer_that_finds_more_than_the_server_counts_is_another_model_s() -> None:
    story = with_placer(
        delta(content="a b c d e f"), delta("stop", content="g"), event({"choices": [], "usage": usage(7, 3)})
    )
    assert (story.token_source, sum(story.tokens)) == ("bytes", 3)


@pytest.mark.parametrize("count", [3, None])
def test_the_tokenizer_is_not_asked_where_usage_runs_or_equals_the_chunks(count: int | None) -> None:
    story = with_placer(
        *(delta(usage=usage(7, i + 1) if count else None, content="a b") for i in range(3)),
        delta("stop"),
        event({"choices": [], "usage": usage(7, 3)}),
    )
    assert (story.token_source, list(story.tokens)) == ("continuous" if count else "chunks", [1, 1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("placer", [True, False])
def test_a_token_costs_no_more_than_16_bytes_while_an_answer_grows(running: bool, placer: bool) -> None:
    tokens, placing = 32_768, toy() if placer else None
    pieces = [delta(usage=usage(7, i + 1) if running else None, content=" the") for i in range(tokens)]
    gc.collect()
    tracemalloc.start()
    story = Story(placing)
    for i, piece in enumerate(pieces):
        story.feed(10**15 + i, piece)
    (grown, _), pieces = tracemalloc.get_traced_memory(), []
    story.feed(10**15 + tokens, delta("length") + event({"choices": [], "usage": usage(7, tokens)}))
    story.end(10**15 + tokens)
    settled, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (story.token_source, sum(story.tokens)) == ("continuous" if running else "chunks", tokens)
    assert grown < 16 * tokens
    assert settled < 9 * tokens


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
    [
        (429, "slow down", "http_429"),
        (404, "", "http_4xx"),
        (503, "", "http_5xx"),
        (999, "", "http_5xx"),
        (500, "CUDA out of memory", "oom"),
    ],
)
def test_refusals_have_names(status: int, message: str, name: str) -> None:
    assert dialects.http_error(status, message) == name
