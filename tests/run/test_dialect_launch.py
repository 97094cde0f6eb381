"""What the checks do for each dialect: its path, its headers, and the one that a server speaks instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from harness.base.errors import HarnessError
from harness.data.manifest import Sampling
from harness.dialects import DIALECTS
from harness.load.messages import Codec
from harness.run.launch import checks
from harness.run.launch.endpoint import Endpoint
from harness.run.manifest import sampling
from harness.sim.process import serving as simulated
from harness.sim.profile import Reference
from harness.spec import reading, scenario
from tests.builders.servers import Request, serving
from tests.builders.streams import DONE, END, delta, event, usage

SERVED = [name for name, dialect in DIALECTS.items() if dialect.server is not None]
MODELS = json.dumps({"object": "list", "data": [{"id": "toy"}]}).encode()


def spec(**target: object) -> scenario.Scenario:
    return reading.build({"workload": {"input_tokens": 20, "output_tokens": 4}, "target": target}, place="test")


def check(script: Callable[[Request], None], wanted: scenario.Scenario, path: str = "") -> Endpoint:
    with serving(script) as port:
        return asyncio.run(checks.check(wanted, [f"http://127.0.0.1:{port}{path}"]))


def refusal(script: Callable[[Request], None], wanted: scenario.Scenario, path: str = "") -> str:
    with pytest.raises(HarnessError) as caught:
        check(script, wanted, path)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("api", SERVED)
def test_the_simulated_endpoint_is_checked_in_every_dialect_that_it_speaks(api: str) -> None:
    with simulated(Reference()) as served:
        found = asyncio.run(checks.check(spec(api=api), [served.url]))
    assert (found.api, found.prompts.tokens, found.wire.codec.drop) == (api, 20, frozenset())
    assert found.wire.target.path == DIALECTS[api].root + DIALECTS[api].path


@pytest.mark.slow
@pytest.mark.parametrize("api", [name for name in SERVED if DIALECTS[name].whole is not None])
def test_an_answer_need_not_stream(api: str) -> None:
    with simulated(Reference()) as served:
        found = asyncio.run(checks.check(spec(api=api, stream=False), [served.url]))
    assert (found.prompts.tokens, found.wire.codec.stream, found.wire.target.media) == (20, False, "application/json")
    assert "--no-stream" in found.notes[0]


def only(*paths: str, missing: int = 404) -> Callable[[Request], None]:
    """A server with these routes alone, none of which likes an empty object."""

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        elif r.path in paths:
            r.answer(422, b'{"error":"missing field"}')
        else:
            r.answer(missing, b'{"detail":"Not Found"}')

    return script


@pytest.mark.parametrize(
    ("api", "route", "spoken"),
    [
        ("tgi", "/v1/chat/completions", "chat"), ("chat", "/api/chat", "ollama"),
        ("responses", "/completion", "llama-cpp"),
        ("ollama", "/v1/messages", "anthropic"), ("anthropic", "/generate_stream", "tgi"),
    ],
)  # fmt: skip
def test_a_dialect_that_the_server_does_not_speak_is_named_with_the_one_that_it_does(
    api: str, route: str, spoken: str
) -> None:
    for missing in (404, 405):
        line = refusal(only(route, missing=missing), spec(api=api))
        assert f"it does not speak {api}; give --api {spoken}" in line


def test_a_server_that_speaks_none_is_asked_a_handful_of_times() -> None:
    asked: list[str] = []

    def script(r: Request) -> None:
        asked.append(r.path)
        only()(r)

    assert "404: Not Found; check --url, --model and --api" in refusal(script, spec(api="tgi"))
    assert len([path for path in asked if path != "/v1/models"]) <= 10
    assert len(set(asked)) == len(asked) - 1, "its own route once more, and no other twice"


def test_a_route_that_is_there_keeps_its_own_error() -> None:
    """A model that does not exist is a 404 too."""

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, b'{"data":[]}')
        elif r.body == b"{}":
            r.answer(400, b'{"error":"no messages"}')
        else:
            r.answer(404, b'{"error":{"message":"the model does not exist"}}')

    assert "404: the model does not exist" in refusal(script, spec(model="toy"))


def test_an_answer_of_another_kind_is_named() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        else:
            r.answer(200, b"{}", "application/x-ndjson")

    assert "it answers with lines of JSON, not a stream" in refusal(script, spec())


def test_a_model_stands_in_the_path_where_the_api_has_it_there() -> None:
    seen: list[str] = []

    def script(r: Request) -> None:
        seen.append(r.path)
        if r.body:
            n = json.loads(r.body)["parameters"]["max_tokens"]
            r.stream(*[b'data: {"text_output": " a"}\n\n'] * n)
        else:
            r.answer(404, b"{}")

    found = check(script, spec(api="triton", model="a/b c"))
    assert (found.wire.target.path, found.prompts.tokens) == ("/v2/models/a/b%20c/generate_stream", None)
    assert found.wire.target.path in seen
    named = check(script, spec(), "/v2/models/ensemble/generate_stream")
    assert (named.api, named.model.name) == ("triton", "ensemble")
    assert named.wire.target.path == "/v2/models/ensemble/generate_stream"
    assert "its path names the model; give --model" in refusal(script, spec(api="triton"))
    other = refusal(script, spec(model="toy"), "/v2/models/ensemble/generate_stream")
    assert "the address names ensemble; leave one of them out" in other


def test_an_api_s_own_headers_are_sent_and_the_key_stands_where_it_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    seen: list[Request] = []

    def script(r: Request) -> None:
        seen.append(r)
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        elif r.path == "/v1/chat/completions":
            r.stream(delta(content=" a"), delta("length", content=" b"), END, DONE)
        else:
            r.answer(429, b"{}")

    assert "429" in refusal(script, spec(api="anthropic", api_key_env="KEY"))
    sent = {name: seen[-1].header(name) for name in ("x-api-key", "authorization", "anthropic-version")}
    assert sent == {"x-api-key": "s3cret", "authorization": None, "anthropic-version": "2023-06-01"}
    check(script, spec(api_key_env="KEY"))
    assert (seen[-1].header("authorization"), seen[-1].header("x-api-key")) == ("Bearer s3cret", None)


def test_what_always_streams_cannot_be_measured_whole() -> None:
    assert "its answers always stream; leave --no-stream out" in refusal(only(), spec(api="tgi", stream=False))


@pytest.mark.slow
def test_images_are_sent_before_load_too_and_their_tokens_count_as_the_server_s() -> None:
    seen: list[Request] = []

    def script(r: Request) -> None:
        seen.append(r)
        if r.path == "/v1/models":
            r.answer(200, MODELS)
            return
        if not r.path.endswith("/completions"):
            r.answer(404, b"{}")
            return
        sent = json.loads(r.body)
        text, *pictures = sent["messages"][0]["content"]
        prompt = len(text["text"].split()) + 5 * len(pictures)
        last = event({"choices": [], "usage": usage(prompt, sent["max_tokens"])})
        r.stream(*[delta(content=" x")] * sent["max_tokens"], delta("length"), last, DONE)

    wanted = reading.build({"workload": {"input_tokens": 20, "output_tokens": 4, "images": 2}}, place="test")
    found = check(script, wanted)
    assert (found.prompts.tokens, found.prompts.count) == (20, 10)
    wanted = reading.read({"workload": {"images": 2}, "target": {"api": "tgi"}}, place="test")
    assert "images are for chat" in refusal(script, wanted)


def test_the_manifest_says_what_the_bodies_ask_for() -> None:
    expected = {"chat": (0.0, True), "tgi": (None, False), "ollama": (0.0, False), "llama-cpp": (0.0, True)}
    for api, (temperature, ignore_eos) in expected.items():
        found = check_sampling(api, frozenset())
        assert (found.temperature, found.ignore_eos) == (temperature, ignore_eos), api
    assert check_sampling("chat", frozenset({"temperature", "ignore_eos"})).ignore_eos is False


def check_sampling(api: str, drop: frozenset[str]) -> Sampling:
    return sampling(Codec(api=api, model="m", drop=drop))
