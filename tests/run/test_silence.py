"""What is waited for at launch is said once it takes long."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from harness.run.launch import checks, reach
from harness.spec import reading
from harness.workload.text import COMMON
from tests.builders.servers import Request, serving
from tests.run.test_launch import SHORT, endpoint


def noted(slow: str, monkeypatch: pytest.MonkeyPatch, **workload: Any) -> list[str]:
    """The notes of a launch whose server is slow with one page; on a busy machine other pages may be slow, too."""
    monkeypatch.setattr(reach, "AFTER_S", 0.1)
    notes: list[str] = []

    def script(r: Request) -> None:
        if r.path == slow:
            time.sleep(0.25)
        endpoint(r)

    wanted = reading.build({"workload": SHORT | workload}, place="test")
    with serving(script) as port:
        place = f"http://127.0.0.1:{port}"
        asyncio.run(checks.check(wanted, [place], checks.How(note=notes.append)))
    return [each.replace(place, "PLACE") for each in notes]


@pytest.mark.parametrize(
    ("slow", "line"),
    [
        ("/v1/models", "waiting for the list of models of PLACE"),
        ("/v1/chat/completions", "waiting for the answers of PLACE to the first requests"),
        ("/metrics", "waiting for the pages of PLACE"),
    ],
)
def test_a_server_that_is_slow_is_named_with_what_is_waited_for(
    slow: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line in noted(slow, monkeypatch)


def test_a_tokenizer_whose_hub_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def words(tokenizer: str, *, trust_remote_code: bool) -> tuple[tuple[str, ...], str]:
        await asyncio.sleep(0.25)
        return COMMON, "{}"

    monkeypatch.setattr(checks.words, "of_tokenizer", words)
    waited = noted("", monkeypatch, tokenizer="org/model")
    assert "waiting for the tokenizer org/model, or the hub that has it" in waited


def test_a_launch_that_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> list[str]:
        notes: list[str] = []
        with reach.noted(notes.append, "nothing"):
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        return notes

    monkeypatch.setattr(reach, "AFTER_S", 0.01)
    assert asyncio.run(go()) == []
