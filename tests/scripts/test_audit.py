"""The audit of the pinned packages says what it found, or that it could not look; it never takes one for the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.builders.servers import Request, serving
from tests.test_packaging import constraints, script

audit: Any = script("audit")


def audited(answer: Callable[[Request], None], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with serving(answer) as port:
        status = audit.main(f"http://127.0.0.1:{port}")
    return status, capsys.readouterr().out


EVERYTHING = {*constraints().items(), *constraints("-tools").items(), *constraints("-docs").items()}


def test_every_pin_is_asked_for_and_none_is_vulnerable(capsys: pytest.CaptureFixture[str]) -> None:
    queried: list[Any] = []

    def database(r: Request) -> None:
        queried.extend(json.loads(r.body)["queries"])
        r.answer(200, json.dumps({"results": [{}] * len(queried)}).encode())

    assert audited(database, capsys) == (0, f"{len(EVERYTHING)} pinned packages audited, 0 of them vulnerable\n")
    assert {"package": {"name": "httpx", "ecosystem": "PyPI"}, "version": constraints()["httpx"]} in queried
    assert len(queried) == len(EVERYTHING)


def test_a_vulnerable_one_is_named_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def database(r: Request) -> None:
        queries = json.loads(r.body)["queries"]
        ids = [
            {"vulns": [{"id": "GHSA-1"}, {"id": "CVE-2"}]} if q["package"]["name"] == "httpx" else {} for q in queries
        ]
        r.answer(200, json.dumps({"results": ids}).encode())

    status, output = audited(database, capsys)
    assert status == 1
    assert output.splitlines()[0] == f"httpx {constraints()['httpx']}: GHSA-1, CVE-2"


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"{}"), (200, b"<html>"), (200, b"{}"), (200, b'{"results": []}'), (200, b"[]")]
)
def test_a_database_that_does_not_answer_is_no_success(
    status: int, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = audited(lambda r: r.answer(status, body), capsys)
    assert code == 0
    assert output.startswith("not audited: ")
    assert output.count("\n") == 1
