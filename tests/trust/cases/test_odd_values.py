"""One odd value in a field that is not needed: the answer counts, the value is left out, and noted once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.dialects.decoder import DecodedResponse, StreamDecoder
from tests.builders.streams import DONE, delta, event, usage

TOKEN, FINISH, TOTAL = delta(content=" tok"), delta("length"), event({"choices": [], "usage": usage(7, 4)})


def decoded(*events: bytes) -> DecodedResponse:
    decoder = StreamDecoder()
    for i, each in enumerate(events):
        decoder.feed(each, i + 1)
    return decoder.end(len(events) + 1)


def counts(**more: Any) -> bytes:
    return delta("length", usage=usage(7, 4) | more)


def raw(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def every(**fields: Any) -> list[bytes]:
    return [delta(content=" tok", **fields)] * 4


def with_usage(value: Any) -> list[bytes]:
    return [event(json.loads(TOKEN[6:]) | {"usage": value})] * 4


HALF = [TOKEN, raw(TOKEN[6:-2].replace(b" tok", b"\xc3")), raw(TOKEN[6:-2].replace(b" tok", b"\xa9")), TOKEN]
EMOJI = [TOKEN, *(raw(TOKEN[6:-2].replace(b" tok", half)) for half in (b"\\ud83d", b"\\ude00")), TOKEN]
LOGPROBS = raw(TOKEN[6:-2].replace(b'"index": 0', b'"logprobs": {"logprob": -Infinity}'))
PING = b"event: ping\ndata: 2024-04-27 01:35:43.686476\n\n"
TOKENS = [TOKEN] * 4

ODD: dict[str, tuple[list[bytes], list[str]]] = {
    "usage as a word, until the end": ([*with_usage(""), counts()], ["left_out:usage"]),
    "usage as a list": ([*with_usage([]), counts()], ["left_out:usage"]),
    "details as a list": (
        [*TOKENS, counts(prompt_tokens_details=[{"n": 7}])],
        ["left_out:usage.prompt_tokens_details"],
    ),
    "a cache of -1": (
        [*TOKENS, counts(prompt_tokens_details={"cached_tokens": -1})],
        ["left_out:usage.prompt_tokens_details.cached_tokens"],
    ),
    "a total in words": ([*TOKENS, counts(total_tokens="many")], ["left_out:usage.total_tokens"]),
    "a total as a string": ([*TOKENS, counts(total_tokens="11")], []),
    "counts as strings": ([*TOKENS, counts(prompt_tokens="7", completion_tokens="4")], []),
    "a count below 0": ([*TOKENS, counts(completion_tokens=-35)], ["left_out:usage.completion_tokens"]),
    "two at once": (
        [*TOKENS, counts(total_tokens={}, completion_tokens_details="none")],
        ["left_out:usage.total_tokens", "left_out:usage.completion_tokens_details"],
    ),
    "reasoning of false": ([*every(reasoning=False), counts()], ["left_out:choices.delta.reasoning"]),
    "reasoning as an object": ([*every(reasoning={"text": "hm"}), counts()], ["left_out:choices.delta.reasoning"]),
    "calls as an object": ([*every(tool_calls={}), counts()], ["left_out:choices.delta.tool_calls"]),
    "a reason as an object": (
        [*TOKENS, delta({"type": "length"}, usage=usage(7, 4))],  # type: ignore[arg-type]
        ["left_out:choices.finish_reason", "no_finish"],
    ),
    "half a character": ([*HALF, FINISH, TOTAL], ["left_out:characters"]),
    "half an emoji": ([*EMOJI, FINISH, TOTAL], ["left_out:characters"]),
    "an infinity": ([LOGPROBS] * 4 + [FINISH, TOTAL], ["left_out:constants"]),
    "an event of null": ([raw(b"null"), *TOKENS, FINISH, TOTAL], ["left_out:event"]),
    "a ping by its name": ([PING, *TOKENS, FINISH, TOTAL], ["left_out:event"]),
    "a date": ([raw(b"2024-04-27 01:35:43.686476"), *TOKENS, FINISH, TOTAL], ["left_out:event"]),
    "the end in quotes": ([*TOKENS, FINISH, TOTAL, raw(b'"[DONE]"')], []),
    "the end in small letters": ([*TOKENS, FINISH, TOTAL, raw(b"[done]")], []),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_value_is_left_out_and_the_answer_counts(kind: str) -> None:
    events, noted = ODD[kind]
    done = [] if "the end" in kind else [DONE]
    found = decoded(*events, *done)
    assert (found.error, list(found.noted)) == ("", noted), found.message
    assert (found.output_tokens, len(found.arrivals), sum(found.tokens)) == (4, 4, 4)
    assert found.input_tokens == 7


def test_text_in_an_odd_form_is_text_all_the_same() -> None:
    for content in (["a", "b"], {"type": "text", "text": "ab"}):
        found = decoded(*[delta(content=content)] * 4, FINISH, TOTAL, DONE)
        assert (found.error, len(found.arrivals), found.noted[-1]) == ("", 4, "unlisted:content")


@pytest.mark.parametrize("data", [b'{"choices": [{"delta": {"con', b'{"choices": 3}', b'{"choices": [{"delta": 4}]}'])
def test_an_event_that_may_have_held_a_token_is_not_left_out(data: bytes) -> None:
    assert decoded(*TOKENS, raw(data), FINISH, TOTAL, DONE).error == "malformed_event"
