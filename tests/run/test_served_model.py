"""Which model is measured, by which name, and what a server says that does not show its list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.data.manifest import Manifest
from harness.results.result import Result
from harness.run.launch import answers
from harness.run.resume import as_before
from harness.spec import reading
from tests.builders.servers import Request, serving
from tests.run.test_launch import CHAT, check, endpoint, on_chat, says, spec

Script = Callable[[Request], None]


def listing(*names: str, then: Script = endpoint, seen: list[str] | None = None) -> Script:
    """A server with a list of these models, which notes the one of each request."""
    models = json.dumps({"data": [{"id": name} for name in names]}).encode()

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, models)
            return
        if seen is not None and r.path == "/v1/chat/completions":
            seen.append(json.loads(r.body)["model"])
        then(r)

    return script


def refusing(status: int, message: str) -> Script:
    return lambda r: r.answer(status, json.dumps({"error": {"message": message}}).encode())


# Its name


@pytest.mark.parametrize(
    ("header", "model", "shown"),
    [
        ({"Host": "llama-3-8b.default.example.com"}, "llama-3-8b", "(hidden)"),
        ({"X-Model": "Qwen3-8B"}, "Qwen/Qwen3-8B", "Qwen/(hidden)"),
    ],
)
def test_a_name_that_a_header_holds_is_hidden_and_sent(header: dict[str, str], model: str, shown: str) -> None:
    seen: list[str] = []
    got = check(listing(model, seen=seen), wanted=spec(headers=header))
    assert set(seen) == {model}
    assert (got.model.name, got.wire.codec.model) == (shown, model)
    named = check(listing(model), wanted=spec(headers=header, model=model))
    assert (named.model.name, named.wire.codec.model, named.notes) == (model, model, ())


@pytest.mark.slow
def test_the_load_is_sent_the_name_that_a_header_holds_and_no_file_has_it(tmp_path: Path) -> None:
    seen: list[str] = []
    options = ["--input-tokens", "20", "--output-tokens", "4", "--levels", "1", "--level-seconds", "0.5", "--no-plots"]
    with serving(listing("Qwen3-8B", seen=seen)) as port:
        url = f"http://127.0.0.1:{port}"
        arguments = ["run", "--url", url, "--header", "X-Model: Qwen3-8B", "--out", str(tmp_path / "r"), *options]
        got = CliRunner().invoke(cli, arguments)
    assert got.exit_code in (0, 3), got.output  # a server that answers at once is more than a busy machine can measure
    run = Result.open(tmp_path / "r")
    assert len(seen) > len(run.records) > 3
    assert set(seen) == {"Qwen3-8B"}
    assert run.manifest.model == "(hidden)"
    assert not [path for path in (tmp_path / "r").rglob("*.*") if b"Qwen3-8B" in path.read_bytes()]


# A name that is not listed


def test_a_named_model_that_the_list_lacks_is_tried() -> None:
    """Gateways take names that they do not list: wildcards, variants, deployments."""
    seen: list[str] = []
    got = check(listing("toy", "tiny", seen=seen), wanted=spec(model="toy:nitro"))
    assert set(seen) == {"toy:nitro"}
    assert (got.model.name, got.model.listed) == ("toy:nitro", False)
    assert got.notes == ("its list of models does not have 'toy:nitro'",)
    assert check(listing("toy"), wanted=spec(model="toy")).model.listed


@pytest.mark.parametrize(
    ("status", "message", "line"),
    [
        (404, "no such route or model", "it does not serve 'toyy'; did you mean 'toy'? (404: no such route or model)"),
        (400, "Invalid model name", "it does not serve 'toyy'; did you mean 'toy'? (400: Invalid model name)"),
        (400, "temperature: out of range", "400: temperature: out of range; change it"),
        (
            400,
            "This model's maximum length is 8 tokens",
            "400: This model's maximum length is 8 tokens",
        ),
        (401, "no key", "401: no key; give --api-key-env VARIABLE"),
        (500, "boom", "500: boom"),
    ],
)
def test_a_server_that_refuses_a_name_that_it_does_not_list_is_one_line(status: int, message: str, line: str) -> None:
    says(line, listing("toy", then=refusing(status, message)), spec(model="toyy"))


def test_a_server_of_one_model_has_its_limits_whatever_its_name() -> None:
    """SGLang and llama-server answer to any name."""
    entry = {"id": "toy", "owned_by": "sglang", "max_model_len": 4096}

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, json.dumps({"data": [entry]}).encode())
        else:
            endpoint(r)

    assert check(script, wanted=spec(model="any")).model.max_context == 4096
    entry["owned_by"] = "gateway"  # which may serve others, too
    assert check(script, wanted=spec(model="any")).model.max_context is None


def test_a_run_is_not_resumed_once_the_list_lacks_its_model() -> None:
    """The server was started with another model, and answers to any name."""
    began = Manifest(model="toy", notes=["another note"])
    with pytest.raises(HarnessError, match="its list of models no longer has 'toy'; start a new run"):
        as_before(check(listing("other"), wanted=spec(model="toy")), began)
    listed, _ = as_before(check(listing("toy"), wanted=spec(model="toy")), began)
    assert listed.model.name == "toy"
    unlisted = check(listing("toy"), wanted=spec(model="any"))
    assert as_before(unlisted, Manifest(model="any", model_listed=False))[0].model.name == "any"


def test_a_name_is_compared_with_all_of_a_long_list() -> None:
    names = [f"vendor/{i}" for i in range(300)]
    says("did you mean 'toy'?", listing(*names, "toy", then=refusing(404, "no")), spec(model="toyy"))


def test_a_name_that_is_not_listed_does_not_hide_that_the_api_is_another() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            r.answer(422, b"{}")
        else:
            r.answer(404, b"{}")

    says("it does not speak tgi; give --api chat", listing("toy", then=script), spec(model="toyy", api="tgi"))


def test_the_model_of_a_class_has_to_be_listed_since_nothing_tries_it() -> None:
    tables = {"class": [CHAT, CHAT | {"name": "other", "model": "own"}], "target": {"model": "any"}}
    wanted = reading.build(tables, place="test")
    says("it does not serve 'own'; did you mean 'owl'?", listing("toy", "owl"), wanted)
    assert check(listing("toy", "own"), wanted=wanted).model.name == "any"


# Keys


def test_a_key_that_is_refused_is_told_in_the_server_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-0123456789abcdef")
    closed, of_header = refusing(401, "the key has expired"), spec(headers={"X-Tenant": "me"})
    says("401: the key has expired; check the key; --model skips this list", closed, spec(api_key_env="A_KEY"))
    says("401: the key has expired; see --header and --api-key-env; --model skips this list", closed, of_header)
    says("401: the key has expired; check the key", on_chat(closed), spec(api_key_env="A_KEY"))
    says("401: the key has expired; see --header and --api-key-env", on_chat(closed), of_header)
    bearer = "check the key, or give --header 'Authorization: Bearer env:A_KEY' in its place"
    says(bearer, on_chat(closed), spec(api="anthropic", api_key_env="A_KEY"))
    says("it asks for a key (401); give --api-key-env VARIABLE", closed, spec(model="toy"))


def test_a_gateway_that_forbids_its_list_is_asked_for_the_named_model() -> None:
    def forbids(r: Request) -> None:
        r.answer(403, b"{}") if r.path == "/v1/models" else refusing(403, "not for you")(r)

    says("403: not for you; give --api-key-env VARIABLE", forbids, spec(model="toy"))
    says("it asks for a key (403); give --api-key-env VARIABLE", forbids)


# Addresses that lead elsewhere


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://x/v1/models", "https://x/v1/models"),
        ("https://x/api/v1/models/?a=1", "https://x/api/v1/models/"),
        ("/api/v1/models", "/api/v1/models"),
        ("http://[", "http://["),
    ],
)
def test_a_redirect_says_where_it_leads(location: str, shown: str) -> None:
    moved = answers.redirected(301, {"location": location}, "http://h:80/v1/models")
    assert str(moved) == f"http://h:80/v1/models: 301: it redirects to {shown}; give the address of that server"


def test_azure_takes_its_key_in_a_header_of_its_own() -> None:
    azure = spec(url="https://me.openai.azure.com", api_key_env="A_KEY").target
    assert answers.way_out_of(401, azure) == "Azure takes the key as --header 'api-key: env:A_KEY'"
    with_key = spec(url="https://me.openai.azure.com", headers={"api-key": "env:A_KEY"}).target
    assert answers.way_out_of(401, with_key) == "see --header and --api-key-env"
