"""What is a token and when it came: fields that nobody listed, announcements, hidden tokens, counts that nobody gives.

Each event arrives 20 ms after the one before, as far as the decoder knows.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.dialects import DIALECTS
from harness.dialects.decoder import DecodedResponse
from tests.builders.streams import DONE, delta, event, usage

pytestmark = pytest.mark.usefixtures("receive_path")

FINISH, ANSWER = delta("length"), delta(content=" tok")


def total(completion: int, **more: object) -> bytes:
    return event({"choices": [], "usage": usage(7, completion) | more})


def decoded(*events: bytes, asked: int | None = None, api: str = "chat", stream: bool = True) -> DecodedResponse:
    """The response whose i-th event arrives at i + 1."""
    decoder = DIALECTS[api].decoders(stream=stream)(keep_text=True, asked=asked)
    for i, each in enumerate(events):
        decoder.feed(each, i + 1)
    return decoder.end(len(events) + 1)


# Text in fields that nobody listed

UNLISTED: dict[str, Any] = {
    "reasoning_details": [{"type": "reasoning.text", "text": " hm", "index": 0, "format": "x", "signature": None}],
    "thinking": " hm",
    "reasoning_text": " hm",
    "thought": {"content": [{"text": " hm"}]},
}


@pytest.mark.parametrize("field", UNLISTED)
@pytest.mark.parametrize("content", ["", None])
def test_reasoning_in_a_field_that_nobody_listed_is_seen(field: str, content: str | None) -> None:
    hidden = delta(role="assistant", content=content, **{field: UNLISTED[field]})
    found = decoded(*[hidden] * 10, *[ANSWER] * 6, FINISH, total(16), DONE)
    assert (found.error, found.noted, found.token_source) == ("", (f"unlisted:{field}",), "chunks")
    assert list(found.arrivals) == list(range(1, 17)), "in the order in which they came"
    assert (found.first_content, found.text) == (11, " tok" * 6)


def test_it_counts_as_it_comes() -> None:
    decoder = DIALECTS["chat"].decoder()
    assert decoder.feed(delta(content="", thinking=" hm"), 1) == 1
    assert decoder.feed(delta(role="assistant", content=""), 2) == 0


def test_several_tokens_an_event_are_shared_over_all_of_them() -> None:
    found = decoded(delta(thinking="abcd"), delta(thinking="abcd"), delta(content="abcdefgh"), FINISH, total(8))
    assert (list(found.tokens), list(found.arrivals), found.first_content) == ([2, 2, 4], [1, 2, 3], 3)


def test_running_usage_places_it() -> None:
    found = decoded(
        delta(usage=usage(7, 2), thinking="a b"), delta(usage=usage(7, 3), thinking="c"),
        delta(usage=usage(7, 4), content="d"), FINISH, total(4), DONE,
    )  # fmt: skip
    assert (found.token_source, list(found.tokens), found.first_content) == ("continuous", [2, 1, 1], 3)
    assert found.noted == ("unlisted:thinking",)


@pytest.mark.parametrize("counts", [(total(16),), ()])
def test_an_older_api_s_function_call_is_an_answer(counts: tuple[bytes, ...]) -> None:
    calls = [delta(function_call={"name": "f", "arguments": ""})]
    calls += [delta(function_call={"arguments": "tok "}) for _ in range(15)]
    found = decoded(*calls, delta("function_call"), *counts, DONE)
    assert (found.error, found.output_tokens, list(found.arrivals)) == ("", 16, list(range(1, 17)))
    assert (found.first_content, found.noted) == (1, ("unlisted:function_call",))


def test_what_usage_does_not_count_is_none() -> None:
    """A gateway's remarks, in an answer whose known fields have all tokens that usage counts."""
    remark = delta(provider="somebody", role="assistant", content="")
    for counts in ((total(4),), ()):
        found = decoded(remark, *[ANSWER] * 4, FINISH, *counts, DONE)
        assert (list(found.arrivals), found.noted, found.first_content) == ([2, 3, 4, 5], (), 2)
    empty = decoded(delta(role="assistant", content="", id="c1", model="m"), delta("stop"), DONE)
    assert (empty.error, empty.noted) == ("empty_response", ())


def test_a_field_s_name_is_kept_short_and_without_what_parts_notes() -> None:
    fields: dict[str, Any] = {"a,b\n" + "c" * 99: "x"}
    found = decoded(delta(**fields), FINISH, DONE)
    assert found.noted == ("unlisted:a_b_" + "c" * 36,)


def test_other_apis_have_such_fields_too() -> None:
    odd = event({"type": "content_block_delta", "delta": {"type": "planning_delta", "planning": " hm"}})
    known = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": " a"}})
    end = event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}})
    found = decoded(odd, odd, known, end, api="anthropic")
    assert (list(found.arrivals), found.first_content, found.noted) == ([1, 2, 3], 3, ("unlisted:planning",))


# Announcements


@pytest.mark.parametrize("function", [{}, {"function": None}, {"function": {}}, {"function": {"name": None}}])
def test_a_call_that_is_only_announced_is_no_token(function: dict[str, object]) -> None:
    announced = delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function"} | function])
    part = delta(tool_calls=[{"index": 0, "function": {"arguments": "tok "}}])
    found = decoded(announced, *[part] * 4, delta("tool_calls"), total(4), DONE)
    assert (list(found.arrivals), found.token_source, found.noted) == ([2, 3, 4, 5], "chunks", ())


def test_a_role_is_no_token_though_running_usage_counts_one() -> None:
    chunks = [delta(usage=usage(7, i + 1), content=" tok") for i in range(4)]
    found = decoded(delta(usage=usage(7, 1), role="assistant", content=""), *chunks, FINISH, total(4), DONE)
    assert (list(found.arrivals), list(found.tokens), found.token_source) == ([2, 3, 4, 5], [1] * 4, "continuous")
    started = [delta(usage=usage(7, i + 2), content=" tok") for i in range(3)]
    found = decoded(delta(usage=usage(7, 1), role="assistant"), *started, FINISH, total(4), DONE)
    assert (list(found.arrivals), sum(found.tokens)) == ([2, 3, 4], 4)


# Reasoning in the answer's own text


@pytest.mark.parametrize(
    "words",
    [
        ("<think>", " hm"), ("\n", "<think>\n", "hm"), ("<", "th", "ink", "> hm"), ("<thinking> hm", " so"),
        ("[THINK]", " hm"), ("◁think▷", " hm"), ("<Thought>", " hm"),
    ],
)  # fmt: skip
def test_where_a_reasoning_is_in_the_text_nobody_knows_when_the_answer_begins(words: tuple[str, ...]) -> None:
    found = decoded(*(delta(content=each) for each in words), delta(content="</think>"), ANSWER, FINISH, DONE)
    assert (found.error, found.first_content, found.noted, found.arrivals[0]) == ("", 0, ("think",), 1)


@pytest.mark.parametrize("words", [("<", "b>"), ("<thin ice",), (" a <think>",), ("I <think> so", " a"), ("[", "1]")])
def test_an_answer_that_begins_otherwise_begins_with_its_first_token(words: tuple[str, ...]) -> None:
    found = decoded(*(delta(content=each) for each in words), FINISH, DONE)
    assert (found.first_content, found.noted) == (1, ())


# Counts


def test_without_usage_an_answer_of_the_full_length_has_the_tokens_that_were_asked_for() -> None:
    found = decoded(delta(content="abcd"), delta(content="ab"), FINISH, DONE, asked=6)
    assert (found.output_tokens, list(found.tokens), found.token_source) == (6, [4, 2], "bytes")
    assert found.noted == ("asked",)
    stopped = decoded(delta(content="abcd"), delta(content="ab"), delta("stop"), DONE, asked=6)
    assert (stopped.output_tokens, list(stopped.tokens), stopped.noted) == (2, [1, 1], ())
    fewer = decoded(*[ANSWER] * 4, FINISH, DONE, asked=3)
    assert (fewer.output_tokens, fewer.noted) == (4, ()), "no chunk has less than a token"
    counted = decoded(*[ANSWER] * 4, FINISH, total(4), DONE, asked=9)
    assert (counted.output_tokens, counted.noted) == (4, ())
    cut = decoded(*[ANSWER] * 4, asked=9)
    assert (cut.error, cut.output_tokens, cut.noted) == ("truncated", 4, ())


def test_a_total_with_tokens_that_are_counted_nowhere_is_noted() -> None:
    hidden = decoded(*[ANSWER] * 16, FINISH, total(16, total_tokens=623), DONE)
    assert (hidden.error, hidden.output_tokens, hidden.noted) == ("", 16, ("uncounted:600",))
    with_the_end = decoded(*[ANSWER] * 16, delta("stop", usage=usage(7, 16) | {"total_tokens": 623}), DONE)
    assert with_the_end.noted == ("uncounted:600",)
    for other in (23, 24, 0, None, 10):
        assert decoded(*[ANSWER] * 16, FINISH, total(16, total_tokens=other), DONE).noted == ()


def whole(message: dict[str, object], *, completion: int | None, finish: str | None = "length") -> DecodedResponse:
    body = {"choices": [{"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}]}
    counted = {} if completion is None else {"usage": usage(7, completion)}
    return decoded(msgspec.json.encode(body | counted), stream=False)


def test_the_tokens_of_an_answer_that_does_not_stream_came_with_it_by_the_server_s_count() -> None:
    hidden = whole({"content": None}, completion=16)
    assert (hidden.error, list(hidden.arrivals), list(hidden.tokens)) == ("", [2], [16])
    assert (hidden.first_content, hidden.noted) == (0, ("no_text",)), "nobody saw an answer"
    short = whole({"content": "yes"}, completion=16)
    assert (short.error, list(short.tokens), short.output_tokens, short.first_content) == ("", [16], 16, 2)
    unlisted = whole({"content": None, "reasoning_details": [{"text": "hm"}]}, completion=16)
    assert (list(unlisted.tokens), unlisted.noted) == ([16], ("unlisted:reasoning_details",))
    for nothing in (whole({"content": None}, completion=0), whole({"content": ""}, completion=None)):
        assert (nothing.error, list(nothing.arrivals)) == ("empty_response", [])


def test_a_count_of_the_prompt_is_not_replaced_by_a_placeholder() -> None:
    start = event({"type": "message_start", "message": {"usage": {"input_tokens": 60, "cache_read_input_tokens": 4}}})
    token = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": " a"}})

    def end(**counts: int) -> bytes:
        return event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts})

    zero = decoded(start, token, end(input_tokens=0, cache_read_input_tokens=0, output_tokens=1), api="anthropic")
    assert (zero.input_tokens, zero.cached_tokens, zero.output_tokens) == (64, 4, 1)
    other = decoded(start, token, end(input_tokens=60, cache_read_input_tokens=8, output_tokens=1), api="anthropic")
    assert (other.input_tokens, other.cached_tokens) == (68, 8)


COUNTED: dict[str, tuple[dict[str, Any], str]] = {
    "Anthropic's names": ({"usage": {"input_tokens": 7, "output_tokens": 16, "total_tokens": 23}}, "usage"),
    "names of Java": ({"usage": {"inputTokens": 7, "outputTokens": 16}}, "usage"),
    "Gemini's": ({"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 16}}, "usageMetadata"),
    "a field of the gateway": ({"x_gateway": {"usage": usage(7, 16) | {"queue_time": 0.1}}}, "usage"),
}


@pytest.mark.parametrize("with_the_end", [True, False])
@pytest.mark.parametrize("kind", COUNTED)
def test_counts_are_found_under_other_names(kind: str, with_the_end: bool) -> None:
    fields, place = COUNTED[kind]
    ends = [event(msgspec.json.decode(FINISH[6:]) | fields)]
    if not with_the_end:
        ends = [FINISH, event(fields)]
    found = decoded(*[delta(content="abcd")] * 8, *ends, DONE)
    assert (found.error, found.noted) == ("", (f"other_usage:{place}",))
    assert (found.input_tokens, found.output_tokens, list(found.tokens)) == (7, 16, [2] * 8)


def test_counts_inside_a_choice_are_found() -> None:
    finish = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length", "usage": usage(7, 16)}]})
    found = decoded(*[ANSWER] * 16, finish, DONE)
    assert (found.input_tokens, found.output_tokens, found.noted) == (7, 16, ("other_usage:usage",))


def test_other_names_count_for_nothing_where_the_api_s_own_are_given() -> None:
    odd = event(msgspec.json.decode(FINISH[6:]) | {"x_gateway": {"input_tokens": 99, "output_tokens": 99}})
    for counted in ((odd, total(16)), (delta(role="assistant", usage=usage(7, 0)), odd, total(16))):
        found = decoded(*[ANSWER] * 16, *counted, DONE)
        assert (found.input_tokens, found.output_tokens, found.noted) == (7, 16, ())


def test_a_last_count_of_nothing_is_a_placeholder() -> None:
    start = delta(role="assistant", content="", usage=usage(7, 0))
    found = decoded(start, *[ANSWER] * 16, delta("length", usage=usage(7, 16)), total(0), DONE)
    assert (found.output_tokens, sum(found.tokens)) == (16, 16)


# Answers without a token

EMPTY = {
    "an end at once": [delta("stop", role="assistant", content=""), DONE],
    "no token by usage": [delta("stop"), total(0), DONE],
    "tokens by usage alone": [delta("length"), total(16), DONE],
    "an empty refusal": [delta(refusal=""), delta("content_filter"), DONE],
    "an announced call": [delta(tool_calls=[{"index": 0, "id": "c", "type": "function"}]), delta("tool_calls"), DONE],
    "the end mark alone": [DONE],
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_answer_without_a_token_is_a_failure_whatever_it_says(kind: str) -> None:
    found = decoded(*EMPTY[kind])
    assert (found.error, list(found.arrivals), found.token_source) == ("empty_response", [], "")


def test_an_answer_of_reasoning_alone_has_tokens_and_no_answer() -> None:
    found = decoded(*[delta(reasoning_content=" hm")] * 4, FINISH, total(4), DONE)
    assert (found.error, len(found.arrivals), found.first_content) == ("", 4, 0)


def test_several_choices_are_not_measured_as_one() -> None:
    def of(index: int, finish: str | None = None, **fields: str) -> bytes:
        return event({"choices": [{"index": index, "delta": fields, "finish_reason": finish}]})

    both = [of(index, content=" tok") for _ in range(4) for index in (0, 1)]
    found = decoded(*both, of(0, "length"), of(1, "length"), total(8), DONE)
    assert (found.error, found.message) == ("several_choices", "several choices are not measured: leave n out")
