"""The servers that people run are checked as they are: what they say of themselves, refuse, count and close."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data import manifest
from harness.data.summary import Summary
from harness.results.folder import SUMMARY
from harness.results.result import Result
from harness.run import resume
from harness.run.launch import checks
from harness.run.launch.endpoint import Endpoint
from harness.spec import reading, scenario
from harness.workload import text
from tests.builders import stacks
from tests.builders.servers import Request, certified, serving


def spec(tokens: int = 20, **tables: dict[str, Any]) -> scenario.Scenario:
    return reading.build({"workload": {"input_tokens": tokens, "output_tokens": 4}, **tables}, place="test")


def check(script: stacks.Script, wanted: scenario.Scenario | None = None, path: str = "") -> Endpoint:
    with serving(script) as port:
        return asyncio.run(checks.check(wanted or spec(), [f"http://127.0.0.1:{port}{path}"]))


def refusal(script: stacks.Script, wanted: scenario.Scenario | None = None, path: str = "") -> str:
    with pytest.raises(HarnessError) as caught:
        check(script, wanted, path)
    assert caught.value.place
    assert caught.value.way_out
    assert "\n" not in str(caught.value)
    return str(caught.value)


# llama-server


def test_the_slots_and_contexts_of_llama_server_are_read() -> None:
    got = check(stacks.llama)
    facts = {"name": "llamacpp", "version": "b7000-abc", "slots": 4, "n_ctx": 512, "n_ctx_train": 8192}
    assert (got.published.facts, got.model.max_context) == (facts, 512)
    assert (got.prompts.count, got.prompts.tokens, got.notes) == (12, 20, ())


def test_a_length_that_no_slot_holds_is_refused() -> None:
    assert "600 tokens in and 4 out do not fit into 512" in refusal(stacks.llama, spec(600))


def test_slots_are_a_hint_for_the_ramp_where_nothing_is_predicted() -> None:
    def hint(data: dict[str, Any]) -> float | None:
        found = manifest.read(data)
        assert isinstance(found, manifest.Manifest)
        return resume.RampInputs.of(found).predicted_hinge

    recorded = json.loads(Path("tests/data/demo/manifest.json").read_text())
    predicted = recorded["prediction"] | {"hinge_concurrency": 7.0}
    assert hint(recorded | {"server": {"slots": 4}, "prediction": None}) == 4
    assert hint(recorded | {"server": {"slots": "4"}, "prediction": None}) is None
    assert hint(recorded | {"server": {"slots": 4}, "prediction": predicted}) == 7.0


# transformers serve, which closes after a 500


def test_a_connection_that_broke_after_a_500_is_not_the_end() -> None:
    got = check(stacks.transformers, spec(target={"model": "toy"}))
    assert (got.prompts.tokens, got.wire.codec.drop) == (20, {"ignore_eos"})


def test_a_500_without_a_model_s_name_is_one_line() -> None:
    assert "it does not say what it serves (500); give --model" in refusal(stacks.transformers)


def test_a_connection_that_breaks_when_it_is_fresh_is_an_error() -> None:
    requests: list[str] = []

    def script(r: Request) -> None:
        requests.append(r.path)
        r.reset() if r.path == "/v1/chat/completions" else r.answer(200, stacks.models(), extra="Connection: close\r\n")

    assert "the connection broke" in refusal(script)
    assert requests.count("/v1/chat/completions") == 1


# How long a prompt comes out


@pytest.mark.parametrize("per_word", [1, 2, 3])
@pytest.mark.parametrize("added", [0, 9])
@pytest.mark.parametrize("tokens", [64, 128, 1000])
def test_a_word_may_cost_any_number_of_tokens(per_word: int, added: int, tokens: int) -> None:
    got = check(stacks.counting(lambda words: added + per_word * words), spec(tokens))
    assert got.prompts.count
    assert got.prompts.tokens == added + per_word * got.prompts.count
    assert abs(got.prompts.tokens - tokens) <= max(per_word / 2, 0.005 * tokens)
    assert got.prompts.used <= 3 + (per_word > 1)
    assert got.prompts.tokens_per_word == pytest.approx(per_word)
    assert abs(got.prompts.words_for(4 * tokens) - (4 * tokens - added) / per_word) <= 1


def test_words_of_mixed_cost_come_within_two_percent() -> None:
    got = check(stacks.counting(lambda words: 11 + words + words // 3), spec(700))
    assert got.prompts.tokens == pytest.approx(700, rel=0.02)


def test_words_of_different_cost_come_out_exactly_for_every_prompt() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            words = json.loads(r.body)["messages"][0]["content"].split()
            stacks.chat(r, 6 + sum(1 + len(word) // 5 for word in words))
        else:
            stacks.llama(r, n_ctx=4096)

    for tokens in (64, 300, 1500):
        got = check(script, spec(tokens))
        assert got.prompts.tokens == pytest.approx(tokens, abs=max(2, 0.005 * tokens))


def test_a_prompt_that_overflows_the_context_is_tried_shorter() -> None:
    got = check(stacks.counting(lambda words: 5 + 3 * words, context=2048), spec(1900))
    assert got.prompts.tokens == pytest.approx(1900, abs=3)


def test_a_template_longer_than_the_prompt_leaves_it_one_word() -> None:
    got = check(stacks.counting(lambda words: 30 + 2 * words), spec(20))
    assert (got.prompts.tokens, got.prompts.count) == (32, 1)
    assert "prompts come to 32 tokens by the server's count, not 20" in got.notes
    got = check(stacks.counting(lambda words: 18 + 5 * words), spec(20))
    assert (got.prompts.tokens, got.prompts.count) == (23, 1)


def test_the_slope_is_neither_below_a_token_nor_more_than_the_prompt_shows() -> None:
    noisy = [text.Counted(20, 28), text.Counted(19, 20)]
    assert text.tokens_per_word(noisy) == pytest.approx(20 / 19)
    assert text.tokens_per_word([text.Counted(20, 28), text.Counted(12, 28)]) == 1.0


# Fields, addresses, keys


AZURE = "/openai/deployments/gpt/chat/completions?api-version=2024-10-21"


@pytest.mark.parametrize("path", [AZURE, AZURE.replace("/chat/completions", "")])
def test_azure_is_asked_by_its_version_and_its_own_fields(path: str) -> None:
    seen: list[str] = []

    def script(r: Request) -> None:
        seen.append(r.path)
        stacks.azure(r)

    got = check(script, spec(target={"model": "gpt"}), path)
    assert got.prompts.tokens == 20
    assert got.wire.target.path == AZURE
    assert got.wire.codec.drop == {"max_tokens", "temperature", "ignore_eos", "stream_options.continuous_usage_stats"}
    assert "the server refuses max_tokens: max_completion_tokens is sent" in got.notes
    assert "the server refuses temperature: left out; the server samples by its default" in got.notes
    assert all(path.endswith("?api-version=2024-10-21") for path in seen)


def test_a_value_of_the_operator_s_own_is_not_left_out() -> None:
    wanted = spec(target={"model": "gpt", "extra_body": {"temperature": 0.5}})
    assert "'temperature' does not support" in refusal(stacks.azure, wanted, AZURE)


@pytest.mark.parametrize(("path", "api"), [("/v1/chat/completions", "chat"), ("/a/v1/completions", "completions")])
def test_the_api_s_whole_address_is_taken(path: str, api: str) -> None:
    def script(r: Request) -> None:
        if r.path.endswith("/v1/models"):
            r.answer(200, stacks.models())
        elif r.path == path:
            assert ("messages" in json.loads(r.body)) == (api == "chat")
            stacks.chat(r, stacks.prompt_words(r) + 8)
        else:
            r.answer(404, b"{}")

    got = check(script, path=path)
    assert (got.api, got.wire.target.path, got.notes) == (api, path, (f"the address names the API: {api}",))


def test_an_address_and_a_flag_that_contradict_each_other_are_a_mistake() -> None:
    line = refusal(stacks.llama, spec(target={"api": "completions"}), "/v1/chat/completions")
    assert line == "--api completions: the address names chat; leave one of them out"


def test_only_a_version_may_stand_in_an_address_s_query() -> None:
    assert spec(target={"url": "https://h/openai/deployments/d?api-version=2024-10-21"}).target.url
    with pytest.raises(HarnessError, match="an address with a key in it"):
        spec(target={"url": "https://h?api-version=1&key=s3cret"})
    with pytest.raises(HarnessError, match=r"at \$.target.metrics_url"):
        spec(target={"metrics_url": "http://me:s3cret@h/metrics"})
    with pytest.raises(HarnessError, match=r"at \$.target.exporters"):
        spec(target={"exporters": ["http://me:s3cret@h/metrics"]})


# Proxies and wrong schemes


@pytest.mark.parametrize("model", [None, "toy"])
def test_a_proxy_with_nobody_behind_it_says_so(model: str | None) -> None:
    line = refusal(stacks.dead_upstream, spec(target={"model": model} if model else {}))
    assert line.endswith("/v1/models: 502 from a proxy: its upstream does not answer; start the model server behind it")


def test_a_gateway_that_says_in_words_that_nobody_is_behind_it_is_understood() -> None:
    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, stacks.models())
        else:
            stacks.refuse(r, 500, "litellm.InternalServerError: OpenAIException - Connection error..")

    assert "500 from a proxy: its upstream does not answer" in refusal(script)


def test_a_server_that_still_loads_says_so() -> None:
    line = refusal(lambda r: stacks.refuse(r, 503, "Loading model"))
    assert line.endswith("503: Loading model; wait until the model is loaded")


def test_a_server_that_always_compresses_is_refused_by_the_coding_s_name() -> None:
    line = refusal(stacks.gzips)
    assert "it compresses its streams (gzip), though no compression was requested; switch compression off" in line


def test_http_to_a_port_that_speaks_tls_is_one_line() -> None:
    with serving(stacks.llama, tls=certified("127.0.0.1")) as port, pytest.raises(HarnessError) as caught:
        asyncio.run(checks.check(spec(), [f"http://127.0.0.1:{port}"]))
    assert str(caught.value) == f"http://127.0.0.1:{port}: it speaks TLS; give the address as https://"


# Figures apart


def test_figures_are_read_where_they_are_and_the_key_is_not_sent_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "s3cret-s3cret")
    heads: list[bytes] = []

    def page(r: Request) -> None:
        heads.append(r.head)
        r.answer(200, b"vllm:num_requests_running 1\n", "text/plain")

    with serving(page) as apart:
        target = {"api_key_env": "A_KEY", "metrics_url": f"http://127.0.0.1:{apart}/some/metrics"}
        got = check(stacks.llama, spec(target=target))
    assert got.published.facts["name"] == "vllm"
    assert got.wire.figures is not None
    assert (got.wire.figures.port, got.wire.figures.path, got.wire.figures.headers) == (apart, "/some/metrics", {})
    assert heads
    assert all(head.startswith(b"GET /some/metrics ") and b"s3cret" not in head for head in heads)


def test_figures_that_are_not_where_they_were_said_to_be_are_a_mistake() -> None:
    there = "http://127.0.0.1:1/metrics"
    assert refusal(stacks.llama, spec(target={"metrics_url": there})).startswith(
        f"--metrics-url {there}: nothing answers there"
    )
    with serving(stacks.dead_upstream) as port:
        line = refusal(stacks.llama, spec(target={"metrics_url": f"http://127.0.0.1:{port}"}))
    assert "it answers 502" in line


def test_figures_of_the_simulated_endpoint_are_read_where_they_were_said_to_be_as_those_of_others_are() -> None:
    def simulated(r: Request) -> None:
        if r.path == "/version":
            r.answer(404, b"{}", extra="Server: knee-sim/9.9\r\n")
        else:
            stacks.llama(r)

    there = "http://127.0.0.1:1/metrics"
    line = refusal(simulated, spec(target={"metrics_url": there}))
    assert line == f"--metrics-url {there}: nothing answers there; give the server's page, or leave it out"
    with serving(lambda r: r.answer(200, b"other_figures 1\n", "text/plain")) as port:
        got = check(simulated, spec(target={"metrics_url": f"http://127.0.0.1:{port}"}))
    assert "--metrics-url: none of its figures is known" in got.notes
    assert got.published.facts["name"] == "knee-sim"


def test_the_pages_of_exporters_are_found_before_any_load_and_the_key_is_not_sent_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", "s3cret-s3cret")
    heads: list[bytes] = []

    def page(r: Request) -> None:
        heads.append(r.head)
        r.answer(200, b'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300\n', "text/plain")

    with serving(page) as apart:
        there = f"http://127.0.0.1:{apart}/metrics"
        got = check(stacks.llama, spec(target={"api_key_env": "A_KEY", "exporters": [there]}))
    assert [(each.port, each.path, each.headers) for each in got.wire.exporters] == [(apart, "/metrics", {})]
    assert heads
    assert not any(b"s3cret" in head for head in heads)
    assert refusal(stacks.llama, spec(target={"exporters": [there]})).startswith(
        f"--exporter {there}: nothing answers there"
    )
    with serving(lambda r: r.answer(200, b"<html>", "text/html")) as port:
        line = refusal(stacks.llama, spec(target={"exporters": [f"http://127.0.0.1:{port}"]}))
    assert "none of its figures is known" in line


def test_trtllm_serve_has_its_figures_at_another_path() -> None:
    def trtllm(r: Request) -> None:
        if r.path == "/prometheus/metrics":
            r.answer(200, b"trtllm_num_requests_running 1\n", "text/plain")
        elif r.path == "/metrics":
            r.answer(200, b"[]")
        else:
            stacks.llama(r)

    got = check(trtllm, spec())
    assert got.published.facts["name"] == "trtllm"
    assert got.wire.figures is not None
    assert got.wire.figures.path == "/prometheus/metrics"


# Whole runs


KNEE = [sys.executable, "-m", "harness", "run", "--quiet", "--no-plots", "--input-tokens", "20", "--output-tokens", "4"]


def measured(script: stacks.Script, out: Path, *arguments: str, path: str = "") -> tuple[Summary, dict[str, Any]]:
    """A run's summary and manifest; these servers write a whole answer at once, so nothing is claimed of its pace."""
    with serving(script) as port:
        command = [*KNEE, "--url", f"http://127.0.0.1:{port}{path}", "--out", str(out), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (out / SUMMARY).exists(), done.stderr
    summary = msgspec.json.decode((out / SUMMARY).read_bytes(), type=Summary)
    return summary, Result.open(out).manifest


@pytest.mark.slow
def test_a_server_that_closes_after_each_stream_is_loaded_past_its_slots(tmp_path: Path) -> None:
    at_once = threading.Semaphore(4)

    def script(r: Request) -> None:
        if r.path != "/v1/chat/completions":
            stacks.llama(r)
            return
        with at_once:
            time.sleep(0.02)
            stacks.llama(r)

    summary, manifest = measured(script, tmp_path / "out", "--levels", "2,4,8", "--level-seconds", "1")
    assert [s.errors for s in summary.levels] == [0, 0, 0]
    assert (summary.levels[-1].in_flight or 0) > 4, (
        "more than it serves at once, although each answer ends its connection"
    )
    assert (manifest.server["slots"], manifest.workload.prompt_tokens) == (4, 20)
    assert all(s.cached_input_fraction == pytest.approx(5 / 20) for s in summary.levels)


@pytest.mark.slow
def test_azure_is_measured_from_its_whole_address(tmp_path: Path) -> None:
    summary, manifest = measured(
        stacks.azure, tmp_path / "out", "--model", "gpt", "--levels", "1,2", "--level-seconds", "1", path=AZURE
    )
    assert [s.errors for s in summary.levels] == [0, 0]
    assert (manifest.api, manifest.workload.sampling.temperature) == ("chat", None)


@pytest.mark.slow
@pytest.mark.parametrize("keep_going", [False, True])
def test_a_run_goes_on_past_a_level_that_fails_where_that_is_asked(tmp_path: Path, keep_going: bool) -> None:
    at_once = threading.Semaphore(2)

    def script(r: Request) -> None:
        if r.path != "/v1/chat/completions":
            stacks.llama(r)
        elif at_once.acquire(blocking=False):
            time.sleep(0.02)
            stacks.llama(r)
            at_once.release()
        else:
            stacks.refuse(r, 429, "too many")

    flags = ["--keep-going"] if keep_going else []
    summary, manifest = measured(script, tmp_path / "out", "--levels", "8,1", "--level-seconds", "1", *flags)
    assert [s.concurrency for s in summary.levels] == ([8, 1] if keep_going else [8])
    assert manifest.scenario.ramp.keep_going == keep_going
