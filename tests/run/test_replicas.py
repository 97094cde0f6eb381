"""Several replicas before the load: each is checked, and one that serves something else is refused unless asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.base.errors import HarnessError
from harness.run.launch import checks
from harness.run.launch.endpoint import Endpoint
from tests.builders.servers import Request, serving
from tests.run.test_launch import endpoint, spec

Script = Callable[[Request], None]


def check(*scripts: Script, **target: Any) -> tuple[Endpoint, list[str]]:
    """What the checks of replicas that answer by these scripts find, and their urls."""
    with contextlib.ExitStack() as stack:
        urls = [f"http://127.0.0.1:{stack.enter_context(serving(script))}" for script in scripts]
        wanted = spec(urls=urls, **target)
        return asyncio.run(checks.check(wanted, urls)), urls


def refused(*scripts: Script, **target: Any) -> str:
    with pytest.raises(HarnessError) as caught:
        check(*scripts, **target)
    return str(caught.value)


def version(number: str) -> Script:
    def script(r: Request) -> None:
        if r.path == "/version":
            r.answer(200, json.dumps({"version": number}).encode())
        else:
            endpoint(r)

    return script


def without_eos(r: Request) -> None:
    if r.path == "/v1/chat/completions" and "ignore_eos" in json.loads(r.body):
        r.answer(422, b'{"detail":"Unexpected fields in the request: {\'ignore_eos\'}"}')
    else:
        endpoint(r)


def other_model(r: Request) -> None:
    if r.path == "/v1/models":
        r.answer(200, json.dumps({"object": "list", "data": [{"id": "other"}]}).encode())
    else:
        endpoint(r)


def test_every_replica_is_checked_and_no_prompt_is_sent_twice() -> None:
    prompts: list[str] = []

    def counting(r: Request) -> None:
        if r.path == "/v1/chat/completions":
            prompts.append(json.loads(r.body)["messages"][0]["content"])
        endpoint(r)

    found, urls = check(counting, counting, counting)
    assert [each.address.place for each in found.replicas] == urls
    assert found.wire.target == found.replicas[0].wire.target
    assert len(prompts) == len(set(prompts)) == found.prompts.used


def test_a_field_that_one_replica_refuses_is_sent_to_none() -> None:
    found, _ = check(endpoint, without_eos)
    assert found.wire.codec.drop == {"ignore_eos"}


def test_a_replica_of_another_version_is_refused_unless_asked_for() -> None:
    line = refused(version("1.0"), version("1.1"))
    assert "it differs from http://127.0.0.1:" in line
    assert line.endswith("version 1.1, there 1.0; serve the same on all replicas, or add --allow-different-replicas")
    found, urls = check(version("1.0"), version("1.1"), allow_different_replicas=True)
    assert f"{urls[1]}: it differs from {urls[0]}: version 1.1, there 1.0" in found.notes
    found, _ = check(version("1.0"), endpoint)  # one that tells no version is not compared
    assert len(found.replicas) == 2


def test_a_replica_of_another_model_is_refused_unless_asked_for() -> None:
    assert "models other, there toy" in refused(endpoint, other_model)
    found, _ = check(endpoint, other_model, allow_different_replicas=True)
    assert found.model.name == "toy"


def test_a_named_model_that_no_replica_lists_is_loaded_where_all_take_it() -> None:
    found, _ = check(endpoint, endpoint, model="any")
    assert (found.model.name, len(found.replicas)) == ("any", 2)
    assert "its list of models does not have 'any'" in found.notes


def test_replicas_that_take_any_name_and_list_other_models_are_refused_unless_asked_for() -> None:
    assert "models other, there toy" in refused(endpoint, other_model, model="any")
    assert "models other, there toy" in refused(endpoint, other_model, model="other")
    found, _ = check(endpoint, other_model, model="any", allow_different_replicas=True)
    assert len(found.replicas) == 2


def test_every_replica_is_asked_for_the_model_by_its_name_though_a_header_holds_it() -> None:
    sent: list[str] = []

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, b'{"data": [{"id": "Qwen3-8B"}]}')
            return
        if r.path == "/v1/chat/completions":
            sent.append(json.loads(r.body)["model"])
        endpoint(r)

    found, _ = check(script, script, headers={"X-Model": "Qwen3-8B"})
    assert set(sent) == {"Qwen3-8B"}
    assert len(sent) > 2
    assert {each.model.name for each in found.replicas} == {"(hidden)"}
    assert all("Qwen3-8B" not in note for note in found.notes)


def test_a_replica_that_does_not_answer_is_named() -> None:
    def closed(r: Request) -> None:
        r.answer(503, b"{}")

    assert "503" in refused(endpoint, closed)
