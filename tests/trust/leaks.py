"""Where secrets might be left: runs against a server that repeats all that it is sent, and a search of what they leave.

The server writes keys, headers and body back into its model's name, its version, its metrics, its response headers,
the bodies of errors, and the streams. The tests hold that the search finds none; `scripts/trust` prints it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness.results.folder import REQUESTS, SPOOL, TELEMETRY
from tests.builders.servers import Request, serving
from tests.builders.streams import delta, event, usage

KEY, HEADER, NAMED = "sk-9fQ2xR7vLm3TzW8a", "h7Qk/+dZ3pv\\Xw'Jr5&uY8e", "n4Lw2GsVb9KxPq6T"
BODY, PROXY = "b0DyJ5mFt7ZcR3nE", "pr0XyU8hWq2SdM6k"
SECRETS = {
    "the API key": KEY,
    "a header's value in the scenario": HEADER,
    "a header's value by env:NAME": NAMED,
    "a field of extra_body": BODY,
    "the proxy's password": PROXY,
}
_PIECE = 8
_KNEE = [sys.executable, "-m", "harness"]
_SCENARIO = f"""
[target]
api_key_env = "THE_KEY"
headers = {{ "X-Literal" = {json.dumps(HEADER)}, "X-Named" = "env:THE_NAMED" }}
extra_body = {{ api_key = "{BODY}" }}
server_meta = {{ flags = "--api-key {KEY}" }}
[workload]
input_tokens = 20
output_tokens = 4
[ramp]
levels = [2, 4]
level_seconds = 1
"""


class Trace(NamedTuple):
    """One place that was searched."""

    where: str
    amount: str  # that was searched
    hits: tuple[str, ...]  # which secret, and where exactly


def echo(r: Request) -> None:
    """Answers well in six of ten, and always with what it was sent."""
    sent = [r.header(name) or "" for name in ("Authorization", "X-Literal", "X-Named", "Proxy-Authorization")]
    sent += [PROXY, json.loads(r.body)["api_key"] if r.body else ""]
    turned = sent[r.number % len(sent) :] + sent[: r.number % len(sent)]
    said = "." * (r.number % 150) + " ".join(turned) * 3  # so that it is cut off anywhere
    headers = f"X-Echo: {said}\r\nServer: {said}\r\nRetry-After: {sent[0]}\r\n"
    quoted = json.dumps(said).encode()
    checks = r.header("X-Request-Id") == "knee-check"
    if r.path.endswith("/models"):
        r.answer(200, b'{"data": [{"id": "%b"}]}' % sent[0].encode(), extra=headers)
    elif r.path.endswith("/version"):
        r.answer(200, b'{"version": %b}' % quoted, extra=headers)
    elif r.path.endswith("/metrics"):
        key = json.dumps(sent[0])
        page = f"vllm:cache_config_info{{key={key}}} 1\nvllm:num_requests_running{{key={key}}} 2\n"
        r.answer(200, page.encode(), extra=headers)
    elif checks or r.number % 10 > 3:
        r.stream(delta(content=" x"), *[delta(content=" x")] * 2, delta("length", content=" x"), DONE_)
    elif r.number % 10 == 0:
        r.answer(400, b'{"error": {"message": %b}}' % quoted, extra=headers)
    elif r.number % 10 == 1:
        r.stream(delta(content=" x"), event({"error": {"message": said}}))
    elif r.number % 10 == 2:
        r.stream(delta(content=" x"), b"data: {" + said.encode() + b"\n\n")
    else:
        r.answer(200, said.encode(), kind=f"text/{sent[0].replace(' ', '')}")


DONE_ = event({"choices": [], "usage": usage(20, 4)}) + b"data: [DONE]\n\n"


def refuses(r: Request) -> None:
    """Gives no model and no answer, only what it was sent."""
    r.answer(401 if r.path.endswith("/completions") else 404, r.head + r.body)


def traces(place: Path, *, transport: str = "socket") -> list[Trace]:
    """Run, report, print and be refused, with secrets in every way that there is; then search all of it."""
    (place / "s.toml").write_text(_SCENARIO)
    left = place / "left"
    for name in ("state", "tmp", "here"):
        (left / name).mkdir(parents=True)
    environ = {
        **os.environ, "THE_KEY": KEY, "THE_NAMED": NAMED, "XDG_STATE_HOME": str(left / "state"),
        "TMPDIR": str(left / "tmp"), "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    talk: list[tuple[str, str]] = []
    seen: set[str] = set()
    alive: list[bytes] = []

    def knee(*arguments: str) -> int:
        with subprocess.Popen(
            [*_KNEE, *arguments], cwd=left / "here", env=environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            while process.poll() is None:
                seen.update(_command_lines(process.pid))
                with contextlib.suppress(OSError):
                    alive[:] = [(left / "here" / "out" / SPOOL).read_bytes()]
                time.sleep(0.02)
            out, err = process.communicate()
        talk.extend([(f"stdout of {arguments[0]}", out), (f"stderr of {arguments[0]}", err)])
        return process.returncode

    scenario = str(place / "s.toml")
    more = ["--transport", transport, "--url"]
    allowed = ["--yes", "--allow-env", "THE_KEY", "--allow-env", "THE_NAMED"]
    with serving(echo) as port:
        environ |= {"HTTP_PROXY": f"http://me:{PROXY}@127.0.0.1:{port}"}  # which sockets do not ask
        url = "http://endpoint.invalid" if transport == "httpx" else f"http://127.0.0.1:{port}"
        assert knee("run", scenario, *more, url, *allowed, "--out", "out", "--json") in (0, 3), talk
    assert knee("report", "out", "--json") == 0, talk
    assert knee("run", scenario, "--url", url, "--print-scenario") == 0, talk
    with serving(refuses) as port:
        environ |= {"HTTP_PROXY": f"http://me:{PROXY}@127.0.0.1:{port}"}  # which sockets do not ask
        url = "http://endpoint.invalid" if transport == "httpx" else f"http://127.0.0.1:{port}"
        assert knee("run", scenario, *more, url, *allowed, "--out", "refused", "--model", "m") == 1, talk
    assert any("(hidden)" in text for name, text in talk if name == "stderr of run"), talk

    folder = left / "here" / "out"
    files = [path for path in left.rglob("*") if path.is_file()]
    values = [value for name in (REQUESTS, TELEMETRY) for value in _values(folder / name)]
    said = " ".join(value for where, value in values if where.endswith("error_message"))
    assert said.count("(hidden)") > 3, f"the server repeated nothing: {said[:1000]}"
    by_path = [(str(path.relative_to(left)), path.read_bytes()) for path in files]
    return [
        Trace("the result, state and temporary folders", f"{len(files)} files", _hits(by_path)),
        Trace("both parquet files, value by value", f"{len(values):,} values", _hits(_bytes(values))),
        Trace("the spool of the run while it lives", f"{len(alive[0]):,} bytes", _hits([("spool", alive[0])])),
        Trace("stdout and stderr", f"{sum(len(text) for _, text in talk):,} characters", _hits(_bytes(talk))),
        Trace("command lines of its processes", f"{len(seen)} of them", _hits(_bytes((line, line) for line in seen))),
    ]


def _command_lines(pid: int) -> Iterator[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                yield " ".join(each.cmdline())


def _bytes(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, bytes]]:
    return ((where, text.encode()) for where, text in texts)


def _values(path: Path) -> Iterator[tuple[str, str]]:
    """Every text in a parquet file, its schema's included, with its column."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    yield "schema", str(table.schema.metadata)
    for name in table.column_names:
        column: list[Any] = table[name].to_pylist()
        yield from ((f"{path.name}: {name}", value) for value in column if isinstance(value, str))


def _hits(found: Iterable[tuple[str, bytes]]) -> tuple[str, ...]:
    """Where a piece of a secret stands, plain or in base64."""
    pieces = {
        form[i : i + _PIECE].encode(): name
        for name, secret in SECRETS.items()
        for form in (secret, base64.b64encode(secret.encode()).decode())
        for i in range(len(form) - _PIECE + 1)
    }
    return tuple(
        sorted({f"{name} in {where[:200]}" for where, data in found for piece, name in pieces.items() if piece in data})
    )
