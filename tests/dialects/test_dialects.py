"""Both halves of every dialect: a server reads what a client wrote, and a client decodes what a server words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from harness.dialects import DIALECTS, refusals
from harness.dialects.body import read_body
from harness.dialects.dialect import Server, Unit
from harness.workload.request import Message, Request

SERVED = [name for name, dialect in DIALECTS.items() if dialect.server is not None]
ASKED = Request(number=0, prompt='a "quoted" word, ü', output_tokens=9)


def server(api: str) -> Server:
    found = DIALECTS[api].server
    assert found is not None
    return found


@pytest.mark.parametrize("api", SERVED)
def test_a_server_reads_the_prompt_and_the_length_that_a_client_wrote(api: str) -> None:
    dialect, reads = DIALECTS[api], server(api)
    body = read_body(dialect.encoder("m").encode(ASKED))
    assert reads.texts(body) == [ASKED.prompt]
    assert (body.model, body.max_tokens, body.ignore_eos, body.stream) == ("m", 9, True, True)
    assert not read_body(dialect.encoder("m", stream=False).encode(ASKED)).stream


@pytest.mark.parametrize(
    ("api", "prompt", "rest"),
    [
        ("responses", ("input", 0, "content"), {"model": "m", "max_output_tokens": 9, "stream": True}),
        ("anthropic", ("messages", 0, "content"), {"model": "m", "max_tokens": 9, "stream": True}),
        ("ollama", ("messages", 0, "content"), {"model": "m", "stream": True,
                                                "options": {"num_predict": 9, "temperature": 0.0}}),
        ("llama-cpp", ("prompt",), {"n_predict": 9, "stream": True, "ignore_eos": True}),
        ("tgi", ("inputs",), {"parameters": {"max_new_tokens": 9, "do_sample": False, "details": True}}),
    ],
)  # fmt: skip
def test_every_api_has_its_own_place_for_the_prompt_and_the_length(
    api: str, prompt: tuple[str | int, ...], rest: dict[str, Any]
) -> None:
    body = json.loads(DIALECTS[api].encoder("m").encode(ASKED))
    found = body
    for step in prompt:
        found = found[step]
    assert found == ASKED.prompt
    assert {name: body[name] for name in rest} == rest


@pytest.mark.parametrize("api", SERVED)
def test_a_client_decodes_the_events_that_a_server_words(api: str) -> None:
    dialect, wording = DIALECTS[api], server(api).wording
    decoder = dialect.decoder(keep_text=True)
    for i, text in enumerate((" a", " b")):
        token, finish = wording.token % text.encode(), b'"length"' if i else b"null"
        decoder.feed(b'data: {"choices":[{"index":0,%s,"finish_reason":%s}]}\n\n' % (token, finish), i + 1)
    response = decoder.end(3)
    assert (response.error, response.text, list(response.arrivals)) == ("", " a b", [1, 2])
    assert (response.output_tokens, dialect.unit) == (2, Unit.OUTPUT_TOKENS)


@pytest.mark.parametrize("api", SERVED)
def test_a_client_reads_an_answer_that_did_not_stream(api: str) -> None:
    whole = DIALECTS[api].whole
    assert whole is not None
    choice = server(api).wording.choice(" a b", "") | {"finish_reason": "length"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    decoder = whole(keep_text=True)
    decoder.feed(msgspec.json.encode(body), 1)
    response = decoder.end(2)
    assert (response.text, response.error, response.output_tokens, response.input_tokens) == (" a b", "", 2, 7)
    assert (list(response.arrivals), list(response.tokens)) == ([2], [2]), "all of it comes at once"


def test_requests_of_several_lengths_come_from_one_encoder() -> None:
    encoder = DIALECTS["chat"].encoder("m")
    bodies = [encoder.encode(msgspec.structs.replace(ASKED, output_tokens=n)) for n in (9, 70, 9)]
    assert [json.loads(body)["max_tokens"] for body in bodies] == [9, 70, 9]
    assert bodies[0] == bodies[2]


def test_a_class_has_fields_of_its_own_and_the_operator_s_come_last() -> None:
    classes: dict[str, dict[str, Any]] = {
        "a": {"model": "adapter", "priority": 2},
        "b": {"response_format": {"type": "json_object"}},
    }
    encoder = DIALECTS["chat"].encoder("m", extra={"priority": 0}, classes=classes)
    plain, a, b = (
        json.loads(encoder.encode(msgspec.structs.replace(ASKED, class_=name))) for name in ("other", "a", "b")
    )
    assert (plain["model"], a["model"], a["priority"]) == ("m", "adapter", 0)
    assert b["response_format"] == {"type": "json_object"}
    assert plain | b == b


def test_the_bytes_of_a_request_are_these() -> None:
    """A server's cache, and a run that is resumed, go by them."""
    request, extra = Request(number=0, prompt=" time year", output_tokens=4), {"top_p": 0.5, "é": [1]}
    assert DIALECTS["chat"].encoder("toy").encode(request) == (
        b'{"model": "toy", "max_tokens": 4, "stream": true, "temperature": 0.0, "ignore_eos": true, '
        b'"stream_options": {"include_usage": true, "continuous_usage_stats": true}, '
        b'"messages": [{"role": "user", "content": " time year"}]}'
    )
    drop = frozenset({"max_tokens", "temperature", "ignore_eos", "stream_options"})
    assert DIALECTS["completions"].encoder("toy", drop=drop, extra=extra).encode(request) == (
        b'{"model": "toy", "max_completion_tokens": 4, "stream": true, "top_p": 0.5, "\\u00e9": [1], '
        b'"prompt": " time year"}'
    )


def test_a_body_asks_for_length_usage_and_stream_and_leaves_out_what_is_dropped() -> None:
    request = Request(number=0, prompt="hi", output_tokens=9)
    full = json.loads(DIALECTS["chat"].encoder("m").encode(request))
    assert full["messages"] == [{"role": "user", "content": "hi"}]
    assert (full["max_tokens"], full["ignore_eos"], full["stream"]) == (9, True, True)
    assert full["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    drop = frozenset({"ignore_eos", "stream_options.continuous_usage_stats"})
    less = json.loads(DIALECTS["completions"].encoder("m", drop=drop, extra={"top_p": 1}).encode(request))
    assert (less["prompt"], less["top_p"], less["stream_options"]) == ("hi", 1, {"include_usage": True})
    assert "ignore_eos" not in less


SAID = Request(
    number=0,
    prompt=(
        Message("system", 'be "short"'),
        Message("user", " time"),
        Message("assistant", "ü"),
        Message("user", " b"),
    ),
    output_tokens=4,
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_a_chat_s_messages_and_tools_go_as_they_are() -> None:
    encoder = DIALECTS["chat"].encoder("m", drop=frozenset({"ignore_eos"}), extra={"top_p": 0.5})
    plain = json.loads(encoder.encode(msgspec.structs.replace(SAID, prompt=" time")))
    body = json.loads(encoder.encode(msgspec.structs.replace(SAID, tools=(TOOL,))))
    assert body.pop("messages") == [
        {"role": "system", "content": 'be "short"'}, {"role": "user", "content": " time"},
        {"role": "assistant", "content": "ü"}, {"role": "user", "content": " b"},
    ]  # fmt: skip
    assert body.pop("tools") == [TOOL]
    assert plain.pop("messages") == [{"role": "user", "content": " time"}]
    assert body == plain
    assert "tools" not in json.loads(encoder.encode(SAID))


def test_a_completion_s_messages_are_one_text_behind_the_tools() -> None:
    encoder = DIALECTS["completions"].encoder("m")
    assert json.loads(encoder.encode(SAID))["prompt"] == 'be "short"\n\n time\n\nü\n\n b'
    prompt = json.loads(encoder.encode(msgspec.structs.replace(SAID, tools=(TOOL,))))["prompt"]
    tools, _, rest = prompt.partition("\n\n")
    assert (json.loads(tools), rest) == ([TOOL], 'be "short"\n\n time\n\nü\n\n b')


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "anthropic", "ollama", "llama-cpp", "tgi"])
def test_one_message_of_a_user_asks_what_a_plain_prompt_asks(api: str) -> None:
    encoder = DIALECTS[api].encoder("m", extra={"top_p": 0.5})
    one = msgspec.structs.replace(ASKED, prompt=(Message("user", str(ASKED.prompt)),))
    assert json.loads(encoder.encode(one)) == json.loads(encoder.encode(ASKED))


@pytest.mark.parametrize("api", SERVED)
def test_a_server_reads_every_message_that_a_client_wrote(api: str) -> None:
    body = read_body(DIALECTS[api].encoder("m").encode(SAID))
    assert "\n\n".join(server(api).texts(body)) == 'be "short"\n\n time\n\nü\n\n b'


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_answer_is_not_sent_to_anthropic_s_api_which_refuses_it(blank: str) -> None:
    said = (Message("user", "a"), Message("assistant", blank), Message("user", "b"))
    encode = DIALECTS["anthropic"].encoder("m").encode
    messages = json.loads(encode(msgspec.structs.replace(SAID, prompt=said)))["messages"]
    assert [(each["role"], each["content"]) for each in messages] == [("user", "a"), ("user", "b")]


def test_images_stand_behind_the_text_of_the_last_message() -> None:
    encoder = DIALECTS["chat"].encoder("m")
    body = json.loads(encoder.encode(msgspec.structs.replace(SAID, images=("QQ==", "Qg=="))))
    url = "data:image/png;base64,"
    assert body["messages"][:-1] == json.loads(encoder.encode(SAID))["messages"][:-1]
    assert body["messages"][-1] == {
        "role": "user",
        "content": [
            {"type": "text", "text": " b"},
            {"type": "image_url", "image_url": {"url": url + "QQ=="}},
            {"type": "image_url", "image_url": {"url": url + "Qg=="}},
        ],
    }
    read = server("chat")
    assert " ".join(read.texts(read_body(msgspec.json.encode(body)))).split() == ["be", '"short"', "time", "ü", "b"]


def test_tools_may_stand_before_a_plain_prompt() -> None:
    body = json.loads(DIALECTS["chat"].encoder("m").encode(msgspec.structs.replace(ASKED, tools=(TOOL,))))
    assert (body["tools"], body["messages"]) == ([TOOL], [{"role": "user", "content": ASKED.prompt}])


def test_a_refused_field_is_named_once() -> None:
    refusal, sent = "Unexpected fields in the request: {'ignore_eos', 'stream_options'}", list(refusals.OPTIONAL)
    assert refusals.refused_field(refusal, sent) == "ignore_eos"
    assert refusals.refused_field(refusal, sent[1:]) == "stream_options"
    assert refusals.refused_field("the prompt is too long", sent) is None
    assert refusals.refused_field("bad request: " + ", ".join(sent), sent) is None, "it repeats the request"


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (("stream_options.continuous_usage_stats",), {"stream_options": {"include_usage": True}}),
        (("stream_options.continuous_usage_stats", "stream_options.include_usage"), {}),
        (("max_tokens", "max_completion_tokens", "stream_options"), {}),
        (("max_tokens",), {"max_completion_tokens": 9}),
        (("no_such.field", "other"), {"max_tokens": 9}),
    ],
)
def test_fields_are_left_out_by_their_paths(drop: tuple[str, ...], left: dict[str, Any]) -> None:
    made = DIALECTS["chat"].encoder("m", drop=frozenset(drop))
    body = json.loads(made.encode(Request(number=0, prompt="hi", output_tokens=9)))
    names = ("max_tokens", "max_completion_tokens", "stream_options")
    whole = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_tokens": 9}
    expected = left | {name: each for name, each in whole.items() if not any(name in path for path in drop)}
    assert {name: body[name] for name in names if name in body} == expected


@pytest.mark.parametrize(
    ("api", "drop", "table"), [("ollama", "temperature", "options"), ("tgi", "details", "parameters")]
)
def test_a_setting_is_left_out_where_the_api_has_its_settings(api: str, drop: str, table: str) -> None:
    for name in (drop, f"{table}.{drop}"):
        made = DIALECTS[api].encoder("m", drop=frozenset({name}))
        assert drop not in json.loads(made.encode(Request(number=0, prompt="hi", output_tokens=9)))[table]


def test_an_api_that_decodes_nothing_leaves_fields_out_too() -> None:
    made = DIALECTS["rerank"].encoder("m", drop=frozenset({"model"}))
    assert "model" not in json.loads(made.encode(Request(number=0, prompt="hi", output_tokens=0)))


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
    assert refusals.http_error(status, message) == name
