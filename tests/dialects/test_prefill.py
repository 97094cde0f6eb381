"""APIs that decode nothing: what is sent, and what recorded answers say, wherever they are cut."""

from __future__ import annotations

import json

import pytest

from harness.base.errors import ProtocolError
from harness.dialects import DIALECTS
from harness.dialects.prefill import AnswerDecoder
from harness.spec.choices import PREFILL_ONLY
from harness.spec.work import Unit
from harness.workload.request import Message, Request

QUERY, TEXTS = Message("query", "q"), (Message("document", " a b"), Message("document", " c"))
ALONE = Request(number=0, prompt=" a b", output_tokens=0)
TOGETHER = Request(number=0, prompt=TEXTS, output_tokens=0)
RANKED = Request(number=0, prompt=(QUERY, *TEXTS), output_tokens=0)

# As the servers word them, with their vectors cut short: the answer and the input tokens that it counts.
RECORDED: dict[str, tuple[bytes, int | None]] = {
    "llama-server, embeddings": (
        b'{"model":"x","object":"list","usage":{"prompt_tokens":13,"total_tokens":13},"data":[{"embedding":'
        b'[-0.029296,0.0302896],"index":0,"object":"embedding"},{"embedding":[0.0639,-0.1267],"index":1,'
        b'"object":"embedding"}]}',
        13,
    ),
    "vLLM, embeddings": (
        b'{"id":"embd-1","object":"list","created":1764000000,"model":"m","data":[{"index":0,"object":"embedding",'
        b'"embedding":[0.1,1e-3]}],"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0,'
        b'"prompt_tokens_details":null}}',
        7,
    ),
    "vLLM, rerank": (
        b'{"id":"rerank-1","model":"m","usage":{"total_tokens":56},"results":[{"index":1,"document":{"text":'
        b'"Paris \\u00e9 [1]"},"relevance_score":0.99},{"index":0,"document":{"text":"no"},"relevance_score":0.0005}]}',
        56,
    ),
    "vLLM, score": (
        b'{"id":"score-1","object":"list","created":1,"model":"m","data":[{"index":0,"object":"score","score":1},'
        b'{"index":1,"object":"score","score":0.01}],"usage":{"prompt_tokens":0,"total_tokens":34}}',
        34,
    ),
    "Cohere, rerank": (
        b'{"id":"a","results":[{"index":0,"relevance_score":0.9}],"meta":{"api_version":{"version":"2"},'
        b'"billed_units":{"search_units":1}}}',
        None,
    ),
    "TEI, rerank": (b'[{"index":1,"score":0.99},{"index":0,"score":0.01}]', None),
    "a server that counts nothing": (
        b'{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":0,"total_tokens":0}}',
        None,
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_an_answer_is_the_same_wherever_it_is_cut(name: str) -> None:
    body, tokens = RECORDED[name]
    for cut in range(len(body) + 1):
        decoder = AnswerDecoder()
        carried = [decoder.feed(body[:cut], 1), decoder.feed(body[cut:], 2)]
        found = decoder.end(3)
        assert (found.error, found.input_tokens, found.output_tokens) == ("", tokens, None), cut
        assert (sum(carried), len(found.arrivals), found.token_source) == (1, 0, ""), cut


@pytest.mark.parametrize("name", RECORDED)
def test_an_answer_that_breaks_off_is_an_error_at_every_byte(name: str) -> None:
    """Truncated; where a number breaks off behind its sign, its point or its e, malformed."""
    body, _ = RECORDED[name]
    found = []
    for cut in range(len(body)):
        decoder = AnswerDecoder()
        decoder.feed(body[:cut], 1)
        found.append(decoder.end(2).error)
    assert set(found) <= {"truncated", "malformed_event"}
    assert found.count("malformed_event") <= body.count(b".") + body.count(b"-") + body.count(b"1e")


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b"nonsense", "malformed_event", "malformed"),
        (b"3", "malformed_event", "Expected `object | array`, got `int`"),
        (b'{"usage":{"prompt_tokens":-1},"data":[{}]}', "malformed_event", "usage.prompt_tokens"),
        (b'{"data":[]}', "malformed_event", "neither vectors nor scores"),
        (b"[]", "malformed_event", "neither vectors nor scores"),
        (b'{"error":{"message":"no room"}}', "stream_error", "no room"),
        (b"\xff" * 9, "malformed_event", "malformed"),
        (b"[" * 100_000, "malformed_event", ""),
        (b"", "truncated", ""),
    ],
)
def test_what_is_no_answer_is_an_error_by_its_name(body: bytes, error: str, words: str) -> None:
    decoder = AnswerDecoder()
    decoder.feed(body, 1)
    found = decoder.end(2)
    assert found.error == error
    assert words in found.message


def test_no_error_in_an_answer_is_none() -> None:
    decoder = AnswerDecoder()
    decoder.feed(b'{"error":null,"results":[{"index":0}]}', 1)
    assert decoder.end(2).error == ""


def test_an_answer_beyond_the_bound_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.dialects.sse.LONGEST_DOCUMENT", 8)
    with pytest.raises(ProtocolError):
        AnswerDecoder().feed(b'{"data":[1', 1)


@pytest.mark.parametrize(
    ("api", "request_", "fields"),
    [
        ("embeddings", ALONE, {"input": " a b"}),
        ("embeddings", TOGETHER, {"input": [" a b", " c"]}),
        ("rerank", RANKED, {"query": "q", "documents": [" a b", " c"]}),
        ("tei-rerank", RANKED, {"query": "q", "texts": [" a b", " c"]}),
        ("score", RANKED, {"text_1": "q", "text_2": [" a b", " c"]}),
    ],
)
def test_a_body_holds_the_texts_and_nothing_of_an_answer(
    api: str, request_: Request, fields: dict[str, object]
) -> None:
    encoder = DIALECTS[api].encoder("m", extra={"truncate": True})
    assert json.loads(encoder.encode(request_)) == {"model": "m", "truncate": True} | fields


def test_they_are_the_apis_that_count_input_tokens() -> None:
    counted = {name for name, dialect in DIALECTS.items() if dialect.unit is Unit.INPUT_TOKENS}
    assert counted == set(PREFILL_ONLY)
