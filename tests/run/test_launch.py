"""Every mistake about a target is one line with fact, place and way out, before any load."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.run.launch import checks, reach
from harness.run.launch.endpoint import Endpoint, address
from harness.spec import reading, scenario
from harness.workload.text import COMMON
from tests.builders.servers import Request, reached, serving, tunnel
from tests.builders.streams import delta, event, usage

SHORT = {"input_tokens": 20, "output_tokens": 4}
CHAT = {"name": "chat", "input": 20, "output": 4}
MODELS = json.dumps({"object": "list", "data": [{"id": "toy", "max_model_len": 512}]}).encode()


def spec(**target: Any) -> scenario.Scenario:
    return reading.read({"workload": SHORT, "target": target}, place="test")


def check(script: Callable[[Request], None], *, path: str = "", wanted: scenario.Scenario | None = None) -> Endpoint:
    with serving(script) as port:
        return asyncio.run(checks.check(wanted or spec(), [f"http://127.0.0.1:{port}{path}"]))


def endpoint(r: Request, overhead: int = 8) -> None:
    """A well-behaved server: adds a chat overhead, counts words, answers with the tokens requested."""
    if r.path == "/v1/models":
        r.answer(200, MODELS)
    elif r.path == "/v1/chat/completions":
        sent = json.loads(r.body)
        prompt = len(sent["messages"][0]["content"].split()) + overhead
        n = sent["max_tokens"]
        chunks = [delta("length" if i == n - 1 else None, content=" x") for i in range(n)]
        r.stream(*chunks, event({"choices": [], "usage": usage(prompt, n)}), b"data: [DONE]\n\n")
    else:
        r.answer(404, b'{"detail":"Not Found"}')


def test_a_good_server_tells_its_model_and_the_prompt_is_made_exact() -> None:
    got = check(endpoint)
    assert (got.model.name, got.prompts.count, got.prompts.tokens) == ("toy", 12, 20)
    assert (got.wire.target.path, got.wire.codec.drop, got.notes) == ("/v1/chat/completions", frozenset(), ())
    assert got.alone.e2e_s > 0


def test_what_a_probe_needs_to_make_other_lengths_is_known() -> None:
    got = check(endpoint)
    assert (got.model.max_context, got.prompts.added_tokens, got.prompts.words_for(100)) == (512, 8, 92)
    assert not got.prompts.exact


def probing(kind: str, **workload: int) -> scenario.Scenario:
    return reading.read({"workload": workload, "ramp": {"probe": kind}}, place="test")


def test_a_prefill_probe_is_checked_with_answers_of_one_token() -> None:
    sent: list[int] = []

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            sent.append(json.loads(r.body)["max_tokens"])
        endpoint(r)

    got = check(script, wanted=probing("prefill", input_tokens=500, output_tokens=100))
    assert (got.prompts.tokens, got.alone.itl_s, got.notes) == (500, None, ())
    assert sent == [1, 1]


def test_a_decode_probe_takes_the_shortest_prompts_that_never_repeat() -> None:
    wanted = probing("decode", input_tokens=500, output_tokens=400)
    exact = check(endpoint, wanted=wanted)
    assert (exact.prompts.count, exact.prompts.tokens, exact.notes) == (24, 32, ())

    long_template = check(lambda r: endpoint(r, overhead=40), wanted=wanted)
    assert (long_template.prompts.count, long_template.prompts.tokens) == (16, 56)
    assert long_template.prompts.used == 2
    assert long_template.notes == ("prompts come to 56 tokens by the server's count, not 32",)


def test_a_url_with_v1_at_its_end_is_understood() -> None:
    assert check(endpoint, path="/v1").wire.target.path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("tables", "field", "message", "way_out"),
    [
        (
            {"workload": SHORT | {"tools": [{"type": "function", "function": {"name": "search"}}]}},
            "tools",
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "let the server call tools (vLLM: --enable-auto-tool-choice, --tool-call-parser), or leave tools out",
        ),
        (
            {
                "class": [
                    CHAT,
                    CHAT | {"name": "urgent", "priority": 7, "model": "own"},
                    CHAT | {"name": "later", "priority": 9},
                ]
            },
            "priority",
            "Got priority 7 but Priority scheduling is not enabled.",
            "change class 'urgent', which sends priority, or how the server is started",
        ),
        (
            {"class": [CHAT | {"name": "json", "structured": True}]},
            "response_format",
            "no grammar backend",
            "change class 'json', which sends response_format, or how the server is started",
        ),
    ],
)
def test_what_only_some_requests_of_the_load_have_is_tried_before_it(
    tables: dict[str, Any], field: str, message: str, way_out: str
) -> None:
    """All such requests would fail, after checks that passed."""
    sent: list[Any] = []

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions" and field in (body := json.loads(r.body)):
            assert body["model"] == "toy"  # what the first use of another costs is the load's to measure
            sent.append(body[field])
            if refuses:
                r.answer(400, json.dumps({"error": {"message": message}}).encode())
                return
        if r.path == "/v1/models":
            r.answer(200, json.dumps({"data": [{"id": "toy"}, {"id": "own"}]}).encode())
        else:
            endpoint(r)

    refuses = True
    wanted = reading.read(tables | {"target": {"model": "toy"}}, place="test")
    with pytest.raises(HarnessError) as error:
        check(script, wanted=wanted)
    assert message in error.value.fact
    assert error.value.way_out == way_out
    refuses = False
    got, plain = check(script, wanted=wanted), check(endpoint)
    assert len(sent) == 2  # one of each kind and check
    assert got.prompts.added_tokens == plain.prompts.added_tokens


def test_a_prompt_of_0_tokens_is_no_count() -> None:
    def script(r: Request) -> None:
        if r.path != "/v1/chat/completions":
            endpoint(r)
            return
        n = json.loads(r.body)["max_tokens"]
        r.stream(*[delta("length" if i == n - 1 else None, content=" x") for i in range(n)],
                 event({"choices": [], "usage": usage(0, n)}), b"data: [DONE]\n\n")  # fmt: skip

    got = check(script)
    assert (got.prompts.count, got.prompts.tokens) == (20, None)


def test_a_refused_optional_field_is_dropped_and_noted() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions" and "ignore_eos" in json.loads(r.body):
            r.answer(422, b'{"detail":"Unexpected fields in the request: {\'ignore_eos\'}"}')
        else:
            endpoint(r)

    got = check(script)
    assert got.wire.codec.drop == {"ignore_eos"}
    assert got.notes == ("the server refuses ignore_eos: left out",)


def test_the_simulated_endpoint_is_known_wherever_it_runs() -> None:
    def script(r: Request) -> None:
        if r.path == "/version":
            r.answer(404, b"{}", extra="Server: knee-sim/9.9\r\n")
        else:
            endpoint(r)

    assert check(script).published.facts == {"name": "knee-sim", "version": "9.9"}
    assert check(endpoint).published.facts == {}


def test_a_server_without_usage_is_measured_and_noted() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        else:
            r.stream(delta(content=" x"), delta("stop", content=" y"))

    got = check(script)
    assert got.prompts.tokens is None
    assert got.notes[0] == "the server gives no usage: input tokens are words, output tokens are chunks"


def test_an_itl_limit_that_chunks_cannot_show_is_noted_before_the_load() -> None:
    def chunked(r: Request) -> None:
        chunks = [delta("length" if last else None, content=" x y z") for last in (False, False, True)]
        r.stream(*chunks, event({"choices": [], "usage": usage(20, 9)}), b"data: [DONE]\n\n")

    limited = reading.read({"workload": SHORT, "slo": {"itl_p99": "50ms", "ttft_p99": "1s"}}, place="test")
    note = "9 tokens came in 3 chunks, so itl_p99 cannot be judged; limit tpot or icl"
    assert check(on_chat(chunked), wanted=limited).notes[-1] == note
    assert note not in check(endpoint, wanted=limited).notes
    assert note not in check(on_chat(chunked)).notes


def test_a_tokenizer_counts_the_output_of_a_server_without_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def words(tokenizer: str, *, trust_remote_code: bool) -> tuple[tuple[str, ...], str]:
        return COMMON, "{}"

    monkeypatch.setattr(checks.words, "of_tokenizer", words)
    wanted = reading.read({"workload": SHORT | {"tokenizer": "here"}}, place="test")
    got = check(on_chat(lambda r: r.stream(delta(content=" x"), delta("stop", content=" y"))), wanted=wanted)
    assert got.notes[0] == "the server gives no usage: input tokens are words, output tokens are the tokenizer's"


def says(line: str, script: Callable[[Request], None], wanted: scenario.Scenario | None = None) -> None:
    with pytest.raises(HarnessError) as caught:
        check(script, wanted=wanted)
    text = str(caught.value)
    assert line in text
    assert "\n" not in text
    assert caught.value.place
    assert caught.value.way_out


def on_chat(answer: Callable[[Request], None]) -> Callable[[Request], None]:
    return lambda r: r.answer(200, MODELS) if r.path == "/v1/models" else answer(r)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("404: The model", on_chat(lambda r: r.answer(404, b'{"error":{"message":"The model `x` does not exist."}}'))),
        ("422: bad field", on_chat(lambda r: r.answer(422, b'{"detail":"bad field"}'))),
        ("401: no key", on_chat(lambda r: r.answer(401, b'{"error":"no key"}'))),
        ("429: slow down", on_chat(lambda r: r.answer(429, b'{"message":"slow down"}'))),
        ("500: boom", on_chat(lambda r: r.answer(500, b"boom"))),
        ("500 without a word", on_chat(lambda r: r.answer(500, b""))),
        (
            "307: it redirects to http://x/v1/chat/completions; give the address",
            on_chat(lambda r: r.answer(307, b"", extra="Location: http://x/v1/chat/completions?a=1\r\n")),
        ),
        (
            "/v1/models: 301: it redirects to https://x/v1/models; give the address",
            lambda r: r.answer(301, b"<html>", "text/html", extra="Location: https://x/v1/models\r\n"),
        ),
        (
            "one JSON body, not a stream; --no-stream measures",
            on_chat(lambda r: r.answer(200, b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}')),
        ),
        ("answers with HTML, not a stream", on_chat(lambda r: r.answer(200, b"<html>", "text/html"))),
        ("first request failed: truncated", on_chat(lambda r: r.stream(delta(content="x")))),
        ("first request failed: stream_error", on_chat(lambda r: r.stream(event({"error": {"message": "x"}})))),
        ("the connection broke", on_chat(lambda r: r.reset())),
        ("it answers with HTML, not JSON", lambda r: r.answer(200, b"<html>", "text/html")),
        ("it asks for a key (401)", lambda r: r.answer(401, b"{}")),
        ("it does not say what it serves (404); check the address, or give --model", lambda r: r.answer(404, b"{}")),
        ("it does not say what it serves (500)", lambda r: r.answer(500, b"{}")),
        ("it serves 2 models", lambda r: r.answer(200, b'{"data":[{"id":"a"},{"id":"b"}]}')),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_line(line: str, script: Callable[[Request], None]) -> None:
    says(line, script)


def test_a_model_that_is_named_needs_no_list_of_all() -> None:
    """A key may not be allowed to list the models, and a list may go on."""

    def forbids(r: Request) -> None:
        r.answer(403, b"{}") if r.path == "/v1/models" else endpoint(r)

    def goes_on(r: Request) -> None:
        r.answer(200, b'{"data":[{"id":"a"}],"has_more":true}') if r.path == "/v1/models" else endpoint(r)

    assert check(goes_on, wanted=spec(model="toy")).model.name == "toy"
    assert check(forbids, wanted=spec(model="toy")).model.name == "toy"


def test_a_wrong_model_is_answered_with_the_nearest() -> None:
    refuses = on_chat(lambda r: r.answer(404, b'{"error":{"message":"The model `toyy` does not exist."}}'))
    says("it does not serve 'toyy'; did you mean 'toy'?", refuses, spec(model="toyy"))


def test_lengths_that_the_server_cannot_hold_are_refused_before_load() -> None:
    wanted = reading.read({"workload": {"input_tokens": 500, "output_tokens": 100}}, place="test")
    says("500 tokens in and 100 out do not fit into 512", endpoint, wanted)


def test_a_prompt_shorter_than_what_the_server_adds_is_one_word_and_noted() -> None:
    wanted = reading.read({"workload": {"input_tokens": 5, "output_tokens": 4}}, place="test")
    got = check(endpoint, wanted=wanted)
    assert (got.prompts.count, got.prompts.tokens) == (1, 9)
    assert got.notes == ("prompts come to 9 tokens by the server's count, not 5",)


def test_a_server_that_generates_text_is_no_endpoint_of_embeddings() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, MODELS)
        else:
            r.answer(400, b'{"error":{"message":"The model does not support the Embeddings API"}}')

    says("Embeddings API; serve a model for --api embeddings there", script, spec(api="embeddings"))
    says("--extra-body", script)


def test_nobody_there_and_no_such_host_say_so() -> None:
    for url, fact in (
        ("http://127.0.0.1:1", "nothing answers"),
        ("http://no-such-host.invalid", "no host of that name"),
    ):
        with pytest.raises(HarnessError, match=fact):
            asyncio.run(checks.check(spec(), [url]))


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("ftp://h", "not an http address"),
        ("h:8000", "not an http"),
        ("http://h:x", "http"),
        ("unix://h/s", "not an http"),
        ("unix:s", "not an http"),
        ("http://a..b", "not a host name"),
        ("http://xn--a", "not a host name"),
        ("http://h/v1/chat/completion", r"path /v1/chat/completion; did you mean '/v1/chat/completions'\?"),
        ("http://h/a/v1/emebddings", "did you mean '/v1/embeddings'"),
        ("http://h/v4/chat/completoins", "path /chat/completoins; did you mean '/chat/completions'"),
    ],
)
def test_addresses_that_cannot_be_measured_are_refused(url: str, fact: str) -> None:
    with pytest.raises(HarnessError, match=fact):
        address(url)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://h", ("https://h:443", "h", 443, "", "https", "", "/v1", "", "", "")),
        ("https://h:8443/api/v1/", ("https://h:8443", "h", 8443, "/api", "https", "", "/v1", "", "", "")),
        ("http://[::1]:8000", ("http://[::1]:8000", "::1", 8000, "", "http", "", "/v1", "", "", "")),
        ("unix:/run/s.sock", ("unix:/run/s.sock", "localhost", 80, "", "http", "/run/s.sock", "/v1", "", "", "")),
        ("unix:///run/s.sock", ("unix:/run/s.sock", "localhost", 80, "", "http", "/run/s.sock", "/v1", "", "", "")),
        ("http://h/a/v1/completions", ("http://h:80", "h", 80, "/a", "http", "", "/v1", "", "completions", "")),
        ("http://h/v4/chat/completions/", ("http://h:80", "h", 80, "/v4", "http", "", "", "", "chat", "")),
        ("http://h/generate_stream", ("http://h:80", "h", 80, "", "http", "", "/v1", "", "tgi", "")),
        (
            "http://h/v2/models/a%20b/generate_stream",
            ("http://h:80", "h", 80, "", "http", "", "/v1", "", "triton", "a b"),
        ),
        ("http://h/completion", ("http://h:80", "h", 80, "", "http", "", "/v1", "", "llama-cpp", "")),
        ("http://h/embedding", ("http://h:80", "h", 80, "/embedding", "http", "", "/v1", "", "", "")),
        ("http://h/v2/rerank", ("http://h:80", "h", 80, "/v2", "http", "", "", "", "rerank", "")),
        ("http://h/a/v1/messages", ("http://h:80", "h", 80, "/a", "http", "", "/v1", "", "anthropic", "")),
        (
            "https://h/openai/deployments/d?api-version=1",
            ("https://h:443", "h", 443, "/openai/deployments/d", "https", "", "", "?api-version=1", "", ""),
        ),
    ],
)
def test_an_address_is_taken_apart(url: str, where: tuple[object, ...]) -> None:
    assert msgspec.structs.astuple(address(url)) == where


@pytest.mark.parametrize("wire", ["tcp", "ipv6", "unix", "tls", "httpx", "httpx tls"])
def test_the_checks_reach_whatever_the_load_will(wire: str) -> None:
    with reached(wire, endpoint) as there:
        host = f"[{there.host}]" if ":" in there.host else there.host
        url = f"unix:{there.uds}" if there.uds else f"{there.scheme}://{host}:{there.port}"
        got = asyncio.run(checks.check(spec(ca_file=there.ca_file or None, transport=there.transport), [url]))
    assert (got.model.name, got.prompts.tokens) == ("toy", 20)
    assert (got.wire.target.uds or got.wire.target.port) == (there.uds or there.port)
    assert [note.split(":")[0] for note in got.notes] == (
        ["--transport httpx (HTTP/1.1)"] if there.transport == "httpx" else []
    )


def test_a_certificate_that_is_not_trusted_is_one_line_and_insecure_is_noted() -> None:
    with reached("tls", endpoint) as there:
        url = f"https://127.0.0.1:{there.port}"
        with pytest.raises(HarnessError) as caught:
            asyncio.run(checks.check(spec(), [url]))
        got = asyncio.run(checks.check(spec(insecure=True), [url]))
        with pytest.raises(HarnessError, match="is not valid for 'localhost'; give the host"):
            asyncio.run(checks.check(spec(ca_file=there.ca_file), [url.replace("127.0.0.1", "localhost")]))
    assert str(caught.value) == (
        f"{url}: its certificate comes from an authority that is not trusted here; give --ca-file PEM"
    )
    assert got.notes == ("--insecure: the server's certificate was not verified",)


def test_plain_http_where_tls_was_asked_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def plain() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=plain, daemon=True).start()
        with pytest.raises(HarnessError, match="it does not speak TLS; is it http://"):
            asyncio.run(checks.check(spec(insecure=True), [f"https://127.0.0.1:{listener.getsockname()[1]}"]))


def test_a_server_that_waits_for_more_where_tls_was_asked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CONNECT_S", 0.1)
    monkeypatch.setattr(reach, "_HANDSHAKE_S", 0.1)
    monkeypatch.setattr(reach, "_LATE_S", 0.02)
    with serving(endpoint) as port, pytest.raises(HarnessError, match=r"it does not speak TLS; is it http://\?"):
        asyncio.run(checks.check(spec(insecure=True), [f"https://127.0.0.1:{port}"]))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(HarnessError, match=r"no connection within 0.1 s.*does it speak TLS"),
    ):
        asyncio.run(checks.check(spec(insecure=True), [f"https://127.0.0.1:{silent.getsockname()[1]}"]))


def test_plain_http_where_tls_was_asked_is_found_long_before_connecting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for the rest of what it takes for a request, so no handshake fails.

    When connecting ends, the error is another: no connection within 10 s.
    """
    monkeypatch.setattr(reach, "_LATE_S", 0.05)
    monkeypatch.setattr(reach, "_HANDSHAKE_S", 0.1)
    with serving(endpoint) as port, pytest.raises(HarnessError, match=r"it does not speak TLS; is it http://\?"):
        asyncio.run(checks.check(spec(insecure=True), [f"https://127.0.0.1:{port}"]))


def test_a_tls_server_that_is_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_LATE_S", 0.02)

    def slow(r: Request) -> None:
        if r.path == "/v1/models":
            time.sleep(0.2)
        endpoint(r)

    with reached("tls", slow) as there:
        got = asyncio.run(checks.check(spec(ca_file=there.ca_file), [f"https://127.0.0.1:{there.port}"]))
    assert got.model.name == "toy"


@pytest.mark.parametrize("model", [None, "toy"])
def test_an_api_without_v1_is_named_by_its_whole_address(model: str | None) -> None:
    def bare(r: Request) -> None:
        if r.path in ("/models", "/chat/completions"):
            r.answer(200, MODELS) if r.path == "/models" else r.answer(400, b'{"error":"no messages"}')
        else:
            r.answer(404, b'{"detail":"Not Found"}')

    with serving(bare) as port, pytest.raises(HarnessError) as caught:
        asyncio.run(checks.check(spec(model=model), [f"http://127.0.0.1:{port}"]))
    assert caught.value.way_out == f"give http://127.0.0.1:{port}/chat/completions"


def test_a_name_with_several_addresses_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two(_: Any) -> list[str]:
        return ["10.0.0.1", "10.0.0.2", "fd00::1"]

    async def one_of_each(_: Any) -> list[str]:
        return ["127.0.0.1", "::1"]

    monkeypatch.setattr(checks, "addresses", two)
    assert check(endpoint).notes == ("127.0.0.1 has 2 addresses: connections are spread over them",)
    assert "--transport httpx takes one of them" in check(endpoint, wanted=spec(transport="httpx")).notes[-1]
    monkeypatch.setattr(checks, "addresses", one_of_each)
    assert check(endpoint).notes == ()


def test_a_server_of_one_thread_is_checked_without_a_connection_that_stays() -> None:
    """It reads from one connection until that is closed, so a second one that we hold would wait for ever."""
    one = threading.Lock()
    held: list[int] = []

    def script(r: Request) -> None:
        if id(r.sock) not in held:
            assert one.acquire(timeout=5)
            held.append(id(r.sock))
        endpoint(r)
        if r.header("connection") == "close":
            held.remove(id(r.sock))
            one.release()

    assert check(script).prompts.tokens == 20
    assert not held


def test_only_httpx_goes_through_the_environment_s_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    tunnels: list[str] = []

    def proxy(r: Request) -> None:
        tunnels.append(r.path)
        tunnel(r)

    with serving(proxy) as port, reached("tls", endpoint) as there:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        url = f"https://127.0.0.1:{there.port}"
        asyncio.run(checks.check(spec(ca_file=there.ca_file), [url]))
        assert tunnels == []
        asyncio.run(checks.check(spec(ca_file=there.ca_file, transport="httpx"), [url]))
    assert set(tunnels) == {f"127.0.0.1:{there.port}"}


def test_a_socket_that_is_not_there_says_how_to_look() -> None:
    with pytest.raises(HarnessError, match=r"nothing answers there .*curl --unix-socket /no/such"):
        asyncio.run(checks.check(spec(), ["unix:/no/such"]))


def test_a_run_begins_after_two_requests() -> None:
    sent: list[int] = []

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            sent.append(json.loads(r.body)["max_tokens"])
        endpoint(r)

    assert check(script).prompts.used == 2
    assert sent == [4, 4]


def test_a_request_is_timed_when_nothing_else_is_done_here() -> None:
    sent: list[tuple[int, bool]] = []
    over = False

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            sent.append((json.loads(r.body)["max_tokens"], over))
        endpoint(r)

    async def busy() -> None:
        nonlocal over
        await asyncio.sleep(0.3)
        over = True

    with serving(script) as port:
        asyncio.run(checks.check(spec(), [f"http://127.0.0.1:{port}"], checks.How(busy=busy())))
    assert sent == [(4, False), (4, True)]


def test_a_tokenizer_that_counts_otherwise_takes_a_request_more() -> None:
    """Every tenth word has two tokens: the first correction is not exact, and the timed request tells."""

    def script(r: Request) -> None:
        if r.path != "/v1/chat/completions":
            endpoint(r)
            return
        sent = json.loads(r.body)
        words = len(sent["messages"][0]["content"].split())
        counted = 8 + words + words // 10
        r.stream(delta("length", content=" x"), event({"choices": [], "usage": usage(counted, 1)}))

    got = check(script)
    assert (got.prompts.used, got.prompts.count, got.prompts.tokens, got.notes) == (3, 11, 20, ())


def test_a_server_that_repeats_what_it_was_sent_brings_it_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-0123456789abcdef")

    def echo(r: Request) -> None:
        sent = json.dumps(r.header("Authorization"))
        if r.path == "/v1/models":
            r.answer(200, b'{"data": [{"id": %s}]}' % sent.encode())
        elif r.path == "/version":
            r.answer(200, b'{"version": %s}' % sent.encode(), extra=f"Server: {r.header('Authorization')}\r\n")
        elif r.path == "/metrics":
            r.answer(200, b"vllm:cache_config_info{key=%s} 1" % sent.encode())
        else:
            endpoint(r)

    got = check(echo, wanted=spec(api_key_env="A_KEY"))
    assert got.wire.target.headers["Authorization"] == "Bearer sk-0123456789abcdef"
    assert (got.model.name, got.wire.codec.model) == ("Bearer (hidden)", "Bearer sk-0123456789abcdef")
    assert got.notes == ()
    assert got.published.facts == {"version": "Bearer (hidden)", "name": "vllm"}
    assert got.published.cache_config == {"key": "Bearer (hidden)"}

    def refuses(r: Request) -> None:
        r.answer(200, MODELS) if r.path == "/v1/models" else r.answer(403, r.head)

    with pytest.raises(HarnessError) as caught:
        check(refuses, wanted=spec(api_key_env="A_KEY"))
    assert "authorization: Bearer (hidden)" in str(caught.value).replace("A", "a")
    assert "sk-" not in str(caught.value)


def test_a_variable_in_the_body_is_sent_as_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "s3cret")
    seen: set[str] = set()

    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            seen.add(json.loads(r.body)["api_key"])
        endpoint(r)

    got = check(script, wanted=spec(extra_body={"api_key": "env:A_KEY"}))
    assert (seen, got.wire.codec.extra_body) == ({"s3cret"}, {"api_key": "s3cret"})
