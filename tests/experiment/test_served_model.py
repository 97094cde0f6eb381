"""Which model is measured, by which name, and what a server says that does not show its list."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.results.result import Result
from tests.builders.servers import Request, serving
from tests.experiment.test_launch import check, endpoint, spec

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
    assert (got.model, got.wire_model) == (shown, model)
    assert "--model shows it" in got.notes[0]
    named = check(listing(model), wanted=spec(headers=header, model=model))
    assert (named.model, named.wire_model, named.notes) == (model, model, ())


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
