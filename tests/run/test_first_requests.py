"""What the first requests find that the load would meet: answers that are too short, and long documents."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.dialects import decoder
from harness.run.launch import answers, first_requests
from harness.spec import reading, scenario
from tests.builders.servers import Request
from tests.builders.streams import delta, event, usage
from tests.run.test_launch import MODELS, check, endpoint, says

Script = Callable[[Request], None]
CHAT = {"name": "chat", "input": 20}
OPENAI = b"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got less instead."
UNFINISHED = (
    b"Could not finish the message because max_tokens or model output limit was reached. Please try again with higher "
    b"max_tokens."
)


def refusing(fewer_than: int, words: bytes = OPENAI, sent: list[int] | None = None) -> Callable[[Request], None]:
    """A server that refuses answers of fewer tokens."""

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            body = json.loads(r.body)
            tokens = body.get("max_tokens") or body["max_completion_tokens"]
            if sent is not None:
                sent.append(tokens)
            if tokens < fewer_than:
                r.answer(400, b'{"error":{"message":"%b"}}' % words)
                return
        endpoint(r)

    return script


def asking(output: int | str = 24, **tables: Any) -> scenario.Scenario:
    return reading.read({"workload": {"input_tokens": 20, "output_tokens": output}} | tables, place="test")


@pytest.mark.parametrize("words", [OPENAI, UNFINISHED])
def test_no_check_asks_for_a_shorter_answer_than_servers_take(words: bytes) -> None:
    sent: list[int] = []
    got = check(refusing(16, words, sent), wanted=asking(24))
    assert (got.prompts.count, got.prompts.tokens, got.notes) == (12, 20, ())
    assert sent == [16, 16]


def test_a_load_whose_answers_the_server_refuses_is_not_begun() -> None:
    line = "400: Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16"
    classes = [CHAT | {"output": 200}, CHAT | {"name": "yes or no", "output": 1}]
    says(line, refusing(16), asking(8))
    says(line, refusing(16), asking("2..200"))
    says(line, refusing(16), reading.read({"class": classes}, place="test"))
    says(line, refusing(16), asking(100, ramp={"probe": "prefill"}))


def taking(refuses: Callable[[dict[str, Any]], tuple[int, str] | None], sent: list[Any] | None = None) -> Script:
    """A server that refuses some bodies, with a status and words of its own."""

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            body = json.loads(r.body)
            if sent is not None:
                sent.append(body)
            if (refusal := refuses(body)) is not None:
                r.answer(refusal[0], refusal[1].encode())
                return
            if "max_tokens" not in body:
                r.body = json.dumps(body | {"max_tokens": body.get("max_completion_tokens", 40)}).encode()
        endpoint(r)

    return script


def without(*fields: str, status: int = 400, words: str = "Request contains an invalid argument.") -> Script:
    """A server that refuses some fields in these words; a dot leads to a part of one."""

    def has(body: dict[str, Any], path: str) -> bool:
        outer, _, inner = path.rpartition(".")
        return inner in (body.get(outer, {}) if outer else body)

    return taking(lambda body: (status, words) if any(has(body, each) for each in fields) else None)


@pytest.mark.parametrize(
    ("status", "words", "field"),
    [
        (403, "stream_options is not allowed by policy", "stream_options"),
        (409, "Streaming options may not be given (streamOptions)", "stream_options"),
        (413, "body field stream_options.include_usage: 1 too many", "stream_options.include_usage"),
        (422, "continuous_usage_stats: extra fields", "stream_options.continuous_usage_stats"),
        (500, "got an unexpected keyword argument 'ignore_eos'", "ignore_eos"),
        (501, "ignore eos: not implemented", "ignore_eos"),
        (400, "invalid temperature: only 1 is allowed for this model", "temperature"),
        (400, "Please use max_completion_tokens instead of max_tokens for this model.", "max_tokens"),
    ],
)
def test_a_field_is_left_out_by_whatever_words_and_status_name_it(status: int, words: str, field: str) -> None:
    got = check(without(field, status=status, words=words), wanted=asking(4))
    assert (got.wire.codec.drop, got.prompts.tokens) == ({field}, 20)
    assert [note.split(":")[0] for note in got.notes] == [f"the server refuses {field}"]


@pytest.mark.parametrize(
    "fields",
    [
        {"ignore_eos"},
        {"temperature"},
        {"max_tokens"},
        {"ignore_eos", "stream_options.continuous_usage_stats"},
        {"ignore_eos", "temperature", "max_tokens"},
        {"stream_options.continuous_usage_stats", "stream_options.include_usage"},
    ],
)
def test_where_no_field_is_named_as_few_are_left_out_as_the_server_allows(fields: set[str]) -> None:
    got = check(without(*fields), wanted=asking(4))
    assert got.wire.codec.drop == fields
    assert len(got.notes) == len(fields)  # once noted each, though each was tried several times


def test_what_is_refused_whatever_is_left_out_is_the_server_s_own_word() -> None:
    sent: list[Any] = []
    says("400: no such thing", taking(lambda _: (400, "no such thing"), sent), asking(24))
    assert len(sent) <= 7  # as it is, and without the optional fields


def test_fields_that_are_to_be_left_out_are_in_no_request_and_no_refusal_is_noted() -> None:
    sent: list[Any] = []
    wanted = asking(4, target={"omit": ["ignore_eos", "stream_options.continuous_usage_stats"]})
    got = check(taking(lambda _: None, sent), wanted=wanted)
    assert (got.wire.codec.drop, got.notes) == ({"ignore_eos", "stream_options.continuous_usage_stats"}, ())
    assert all("ignore_eos" not in body for body in sent)
    assert all(body["stream_options"] == {"include_usage": True} for body in sent)


@pytest.mark.parametrize(("omit", "fact"), [("a b", "names no field"), ("top_p", "extra_body has top_p")])
def test_what_cannot_be_left_out_is_refused(omit: str, fact: str) -> None:
    with pytest.raises(HarnessError, match=rf"{fact} at \$\.target\.omit"):
        asking(4, target={"omit": [omit], "extra_body": {"top_p": 0.5}})


def test_the_shortest_answer_that_the_load_allows_is_kept_by_the_checks() -> None:
    """As vLLM: min_tokens above max_tokens is refused."""
    sent: list[Any] = []

    def refuses(body: dict[str, Any]) -> tuple[int, str] | None:
        words = "min_tokens must be less than or equal to max_tokens"
        return (400, words) if body.get("min_tokens", 0) > body.get("max_tokens", 8) else None

    got = check(taking(refuses, sent), wanted=asking(24, target={"extra_body": {"min_tokens": 20}}))
    assert (got.wire.codec.drop, got.notes) == (frozenset(), ())
    assert [body["max_tokens"] for body in sent] == [20, 20]
    says("400: min_tokens must be", taking(refuses), asking(8, target={"extra_body": {"min_tokens": 12}}))


def answering(*events: bytes, end: bool = True, after: Callable[[Request], None] | None = None) -> Script:
    """A server that answers every request with these events."""

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            r.stream(*events, end=end)
            if after is not None:
                after(r)
        else:
            endpoint(r)

    return script


WHOLE = (
    delta(content=" x"), delta("length", content=" y"), event({"choices": [], "usage": usage(20, 2)}),
    b"data: [DONE]\n\n",
)  # fmt: skip


def test_an_answer_that_came_whole_and_does_not_end_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_QUIET_S", 0.05)
    silent = answering(*WHOLE, end=False, after=lambda r: r.sock.recv(1))
    says("its answer came whole, but 0.05 s later the response has not ended; let the server", silent)


def test_a_long_prefill_is_no_response_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_QUIET_S", 0.02)

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            r.stream(end=False)
            for each in (*WHOLE, b""):
                time.sleep(0.05 if each in WHOLE[:2] else 0.0)
                r.send(b"%x\r\n%b\r\n" % (len(each), each))
        else:
            endpoint(r)

    assert check(script).prompts.tokens == 20


def test_a_connection_that_closes_behind_a_whole_answer_is_noted() -> None:
    got = check(answering(*WHOLE, end=False, after=Request.close))
    assert "it closes the connection in place of ending its response; what came is whole" in got.notes
    says("the connection broke", answering(WHOLE[0], end=False, after=Request.close))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"daily quota of 500 requests is used up","code":429}}', "daily quota of 500 requests"),
        (b'{"success":false,"code":1004,"msg":"the key has expired"}', "the key has expired"),
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", ""])
def test_an_error_in_place_of_a_stream_is_in_the_server_s_words(body: bytes, words: str, kind: str) -> None:
    says(words, lambda r: r.answer(200, MODELS) if r.path == "/v1/models" else r.answer(200, body, kind))


@pytest.mark.parametrize("kind", ["application/json", ""])
def test_a_stream_is_told_by_its_bytes_and_what_it_is_called_is_noted(kind: str) -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            r.answer(200, b"".join(WHOLE), kind)
        else:
            endpoint(r)

    assert f"its answers are called {kind or 'nothing'}, and read as text/event-stream" in check(script).notes


def embedding(bytes_: int) -> Callable[[Request], None]:
    """A server whose answers are so many bytes long."""

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        elif r.path == "/v1/embeddings":
            counted = {"prompt_tokens": len(json.loads(r.body)["input"].split())}
            answer = json.dumps({"data": [{"embedding": [0.5]}], "usage": counted}).encode()
            r.answer(200, answer + b" " * (bytes_ - len(answer)))
        else:
            r.answer(404, b"{}")

    return script


EMBEDDINGS = {"workload": {"input_tokens": 20}, "target": {"api": "embeddings"}}


def test_a_document_may_be_as_long_as_in_the_load() -> None:
    """64 vectors of 4,096 numbers are more than the pages of a server may be."""
    wanted = reading.read(EMBEDDINGS, place="test")
    assert check(embedding(5 << 20), wanted=wanted).prompts.tokens == 20


@pytest.mark.slow
def test_a_document_that_the_load_would_not_take_ends_the_checks() -> None:
    line = "the first request failed: line_too_long (an answer longer than 32 MiB"
    says(line, embedding((32 << 20) + 1), reading.read(EMBEDDINGS, place="test"))


@pytest.mark.parametrize(
    "words", ["Streaming is not supported", "This model does not support streaming", "stream=true is unsupported here"]
)
def test_a_server_that_does_not_stream_is_asked_to_be_measured_without(words: str) -> None:
    with pytest.raises(HarnessError, match="--no-stream measures such answers"):
        check(taking(lambda body: (400, words) if body.get("stream") else None), wanted=asking(4))


def test_of_an_answer_that_came_whole_each_token_takes_its_share_of_the_time() -> None:
    """As behind a proxy that buffers: without gaps between tokens the rest of the answer would seem to take no time."""
    stream = decoder.DecodedResponse(arrivals=array("q", [2_000_000_000 + 20_000_000 * i for i in range(16)]))
    whole = decoder.DecodedResponse(arrivals=array("q", [2_000_000_000 + i for i in range(16)]))
    counted = [msgspec.structs.replace(each, output_tokens=16) for each in (stream, whole)]
    assert first_requests._rest(counted[0], 116, 2.3) == (pytest.approx(2.0), pytest.approx(0.02))
    assert first_requests._rest(counted[1], 116, 2.4) == (pytest.approx(15.0), None)
