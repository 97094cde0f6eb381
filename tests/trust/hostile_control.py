"""Servers that mean harm where a run asks single questions: `/v1/models`, `/version`, `/metrics`, the first requests.

A mode is what the server does with such a question, a place is when: MODELS at launch; FIRST, the first request and
`/metrics` at launch; LOAD, `/version` at launch and `/metrics` under load, whose requests are answered well. `tried`
runs `knee run` against a mode at a place and says what did not hold: the time that it took, the memory of its
largest process, the secret, the terminal, the exit status. `interrupted` sends it Ctrl-C in the midst of it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tests.builders.servers import Request, serving
from tests.builders.stacks import models
from tests.builders.streams import DONE, delta, event, usage

ROOT = Path(__file__).parents[2]
KEY = "sk-7Tq2Zx9LmVw4RbY8cN"
MODELS, FIRST, LOAD = "models", "first", "load"
PLACES = (MODELS, FIRST, LOAD)

TIMEOUT_S = 3.0  # of one request, as the runs are told
# From the first hostile byte to the end of the run: the request's own time, the load where there is any, and a margin
# for a machine that is shared.
DEADLINES_S = {MODELS: TIMEOUT_S + 3, FIRST: TIMEOUT_S + 5, LOAD: TIMEOUT_S + 13}
MOST_MB = 300.0
FATAL_MB = 800.0  # killed here: the machine is not to be harmed by the proof
INTERRUPT_S = 1.0  # from Ctrl-C to the end; under load beyond what a run needs that is measured well
_LONGEST_LINE = 600  # characters on the terminal
_AFTER_S = 0.7  # from the first hostile byte to Ctrl-C
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 5\n"

Script = Callable[[Request], None]


class Mode(NamedTuple):
    """What the server does, where it is tried, and whether it goes on until somebody ends it."""

    name: str
    script: Script
    places: tuple[str, ...] = PLACES
    lasts: bool = False
    harmless: tuple[str, ...] = (LOAD,)  # places where the run measures all the same


def head(status: int = 200, *headers: bytes, kind: bytes = b"application/json") -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Type: " + kind, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


CHUNKED = b"Transfer-Encoding: chunked"


def said(data: bytes, *headers: bytes, status: int = 200, kind: bytes = b"application/json") -> Script:
    """An answer of this body, with these headers."""

    def script(r: Request) -> None:
        r.send(head(status, b"Content-Length: %d" % len(data), *headers, kind=kind) + data)

    return script


def raw(data: bytes) -> Script:
    """These bytes and the connection's end."""

    def script(r: Request) -> None:
        r.send(data)
        r.close()

    return script


def for_ever(begin: bytes, each: bytes, every_s: float = 0.0) -> Script:
    """A beginning, and then the same again and again."""

    def script(r: Request) -> None:
        r.send(begin)
        while True:
            r.send(each)
            time.sleep(every_s)

    return script


def dripping(data: bytes, every_s: float = 0.2) -> Script:
    """A byte now and then: each read is answered in time, the whole never is."""

    def script(r: Request) -> None:
        for byte in itertools.chain(data, itertools.repeat(ord("x"))):
            r.send(bytes([byte]))
            time.sleep(every_s)

    return script


def silent(begin: bytes = b"") -> Script:
    def script(r: Request) -> None:
        r.send(begin)
        r.sock.settimeout(60)
        r.sock.recv(1)

    return script


def reset_amid(r: Request) -> None:
    r.send(head(200, CHUNKED) + b'5\r\n{"dat\r\n')
    r.reset()


def bomb(form: int) -> bytes:
    """3 GiB of zeros in 3 MB: one block of a compressed stream, repeated. `form`: as zlib's wbits."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(64 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    begin = b"\x1f\x8b\x08\0\0\0\0\0\0\x03" if form > 15 else b"\x78\x9c"
    return begin + block * 48


def bombed(coding: bytes, form: int) -> Script:
    made: list[bytes] = []

    def script(r: Request) -> None:
        made[:] = made or [bomb(form)]
        said(made[0], b"Content-Encoding: " + coding)(r)

    return script


def nested(times: int) -> Script:
    data = models()
    for _ in range(times):
        data = gzip.compress(data)
    return said(data, b"Content-Encoding: " + b", ".join([b"gzip"] * times))


def echoes(status: int, *forms: Callable[[str], bytes]) -> Script:
    """An error that repeats the key, as each of the forms writes it."""

    def script(r: Request) -> None:
        key = (r.header("Authorization") or "").removeprefix("Bearer ")
        said(b" ".join(form(key) for form in forms), status=status, kind=b"text/plain")(r)

    return script


def redirects(where: Callable[[Request], bytes]) -> Script:
    def script(r: Request) -> None:
        said(b"", b"Location: " + where(r), status=307)(r)

    return script


def cookies(r: Request) -> None:
    many = [b"Set-Cookie: a%d=%b; expires=Wed, 99 Foo 99999 99:99:99 GMT; path=/" % (n, b"x" * 500) for n in range(100)]
    if r.header("Cookie"):
        r.send(head(500, b"Content-Length: 0"))
    said(models(), *many)(r)


def error_body(r: Request) -> None:
    """An error of as many bytes as somebody takes."""
    r.send(head(400, CHUNKED, kind=b"text/plain"))
    piece = b"%x\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20))
    while True:
        r.send(piece)


def counted(**counts: object) -> Script:
    """A good stream whose usage is beyond reason."""

    def script(r: Request) -> None:
        last = event({"choices": [], "usage": counts})
        r.stream(delta(content=" x"), delta("length", content=" x"), last, DONE)

    return script


def named(*names: str) -> bytes:
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


QUADRATIC = b"vllm:cache_config_info{" + b'a="' * 20_000 + b"\n"
QUADRATIC += b"vllm:num_requests_running" + b"{} " * 20_000 + b"}" + b" " * 40_000 + b"\n"
_ODD = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2066\x00"
_LONG = 15 << 20
_STREAM = b"text/event-stream"

MODES = (
    Mode("an endless body", for_ever(head(200, CHUNKED), b"1000\r\n" + b"x" * 4096 + b"\r\n"), lasts=True),
    Mode("a body of 10^15 bytes", for_ever(head(200, b"Content-Length: 1" + b"0" * 15), b" " * 65_536), lasts=True),
    Mode("a gzip bomb of 3 GiB", bombed(b"gzip", 31)),
    Mode("a deflate bomb of 3 GiB", bombed(b"deflate", 15)),
    Mode("a coding that it is not", said(models(), b"Content-Encoding: br")),
    Mode("corrupt gzip", said(gzip.compress(models())[:10] + b"\xff" * 40, b"Content-Encoding: gzip")),
    Mode("half of a gzip", said(gzip.compress(models())[:30], b"Content-Encoding: gzip")),
    Mode("gzip in gzip, ten times", nested(10)),
    Mode("dripping headers", dripping(b"HTTP/1.1 200 OK\r\nX-Slow: "), lasts=True),
    Mode("a dripping body", dripping(head(200, b"Content-Length: 100000")[:-1] + b"\n{", 0.1), lasts=True),
    Mode("a storm of 1xx", for_ever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000), lasts=True),
    Mode("1xx now and then", for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.3), lasts=True),
    Mode("endless headers", for_ever(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 1000)),
    Mode("100,000 headers", raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n")),
    Mode("a header of 15 MB", raw(head(200, b"X-Long: " + b"x" * _LONG))),
    Mode("silence", silent(), lasts=True),
    Mode("a head and then silence", silent(head(200, CHUNKED)), lasts=True),
    Mode("a body shorter than it says", raw(head(200, b"Content-Length: 5000") + models())),
    Mode("a negative length", raw(head(200, b"Content-Length: -5") + models())),
    Mode("two lengths", raw(head(200, b"Content-Length: 5", b"Content-Length: 50") + models())),
    Mode("a chunk of no length", raw(head(200, CHUNKED) + b"xyz\r\n" + models())),
    Mode("a chunk of 2^64 bytes", for_ever(head(200, CHUNKED) + b"f" * 16 + b"\r\n", b" " * 65_536), lasts=True),
    Mode("a reset in the midst", reset_amid),
    Mode("an end without an answer", lambda r: r.close()),
    Mode("a TLS alert", raw(b"\x15\x03\x01\x00\x02\x02\x46")),
    Mode("HTTP/0.9", raw(b"<html>hello</html>\n")),
    Mode("HTTP/2", raw(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18)),
    Mode("101", raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc")),
    Mode("a redirect to another host", redirects(lambda r: b"http://127.0.0.3:%d/" % r.sock.getsockname()[1])),
    Mode("a redirect to itself", redirects(lambda r: r.path.encode())),
    Mode("a redirect to nowhere", redirects(lambda r: b"http://[::1:\xff%zz:99999999/\x01")),
    Mode("a hundred cookies", cookies, harmless=(MODELS, LOAD)),
    Mode("401 with the key in it", echoes(401, str.encode)),
    Mode("500 with the key in odd forms", echoes(
        500, str.encode, lambda key: json.dumps({"error": key}).encode(), lambda key: quote(key, safe="").encode(),
        lambda key: key.encode("utf-16-le"),
        lambda key: "\x00".join(key).encode(), lambda key: "\x1b".join(key).encode(),
        lambda key: "\u202e".join(key).encode(),
    )),
    Mode("control characters in headers", raw(head(200, b"X-Odd: \x1b[2J\x07\x00", b"Server: \x9b31m/\x1b[1m"))),
    Mode("bytes that are no UTF-8", said(b'{"data": [{"id": "\xff\xfe\x80"}], "version": "\xc0\xaf"}')),
    Mode("UTF-16", said(models().decode().encode("utf-16"), kind=b"application/json; charset=utf-16")),
    Mode("a charset of zlib", said(zlib.compress(bytes(1 << 20)), kind=b"application/json; charset=zlib")),
    Mode("an unknown charset", said(models(), kind=b"application/json; charset=\xffx\x1b"), harmless=(MODELS, LOAD)),
    Mode("half a surrogate", said(b'{"data": [{"id": "a\\ud800b"}], "version": "\\udc00"}')),
    Mode("JSON as deep as it goes", said(b"[" * 1_000_000)),
    Mode("a number of 10^6 digits", said(
        b'{"data": [{"id": "toy", "max_model_len": %b}], "version": %b}' % ((b"9" * 1_000_000,) * 2)
    )),
    Mode("a limit of 10^18", said(
        b'{"data": [{"id": "toy", "max_model_len": 1%b, "owned_by": "llamacpp"}], "version": 1%b}' % ((b"0" * 18,) * 2)
    ), harmless=(MODELS, LOAD)),
    Mode("a list", said(b"[1, 2]")),
    Mode("null", said(b"null")),
    Mode("nothing", said(b"")),
    Mode("100,000 models", said(named(*map(str, range(100_000))))),
    Mode("a million empty models", said(b'{"data": [' + b"{}," * 1_000_000 + b"{}]}")),
    Mode("a name of 15 MB", said(named("x" * _LONG))),
    Mode("escapes in every name", said(json.dumps(
        {"data": [{"id": _ODD + "a"}, {"id": _ODD + "b"}], "version": _ODD, "error": {"message": _ODD}}
    ).encode())),
    Mode("one name with escapes", said(json.dumps({"data": [{"id": _ODD}]}).encode())),
    Mode("metrics that cost a square", said(_PAGE + QUADRATIC, kind=b"text/plain"), (FIRST, LOAD)),
    Mode("metrics that are no numbers", said(
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:generation_tokens_total 1e400\n"
        b"vllm:prompt_tokens_total 1e308\nvllm:prompt_tokens_total{a=\"b\"} 1e308\nvllm:num_preemptions_total -7\n",
        kind=b"text/plain",
    ), (FIRST, LOAD)),
    Mode("metrics of 16 MiB", said(b"vllm:num_requests_running 1\n" * 600_000, kind=b"text/plain"), (FIRST, LOAD)),
    Mode("metrics of 4 million lines", said(_PAGE + b"\n" * (4 << 20), kind=b"text/plain"), (FIRST, LOAD)),
    Mode("a stream of comments", for_ever(head(200, CHUNKED, kind=_STREAM), b"8\r\n: ping\n\n\r\n", 0.01), lasts=True),
    Mode("an error without end", error_body, lasts=True),
    Mode("usage of 1e30", counted(prompt_tokens=1e30, completion_tokens=10**30), (FIRST,)),
    Mode("usage below nothing", counted(prompt_tokens=-5, completion_tokens=-1), (FIRST,)),
    Mode("usage in words", counted(prompt_tokens="many", completion_tokens=[2]), (FIRST,)),
    Mode("a billion tokens of usage", counted(prompt_tokens=10**9, completion_tokens=10**9), (FIRST,)),
)  # fmt: skip


class _Streaming(Request):
    """A request whose answer calls itself a stream, so that it is read as one."""

    def __init__(self, r: Request) -> None:
        super().__init__(r.sock, r.head, r.body, r.number, r._connections)

    def send(self, data: bytes) -> None:
        super().send(data.replace(b"Content-Type: application/json", b"Content-Type: " + _STREAM))


class Scene:
    """One server with a mode at a place; when it was first hostile, and who asked of hosts that nobody named."""

    def __init__(self, mode: Mode, place: str) -> None:
        self._mode, self._place = mode, place
        self._pages, self._lock = 0, threading.Lock()
        self.hostile = threading.Event()  # it has begun
        self.amid = threading.Event()  # it is where it is to be interrupted
        self.hostile_s = 0.0

    def script(self, r: Request) -> None:
        if self._hostile(r.path):
            if not self.hostile.is_set():
                self.hostile_s = time.monotonic()
                self.hostile.set()
            if self._place != LOAD or r.path == "/metrics":
                self.amid.set()
            self._mode.script(_Streaming(r) if r.path.endswith("/completions") else r)
        elif r.path == "/v1/models":
            r.answer(200, models())
        elif r.path == "/version":
            r.answer(200, b'{"version": "1"}')
        elif r.path == "/metrics":
            r.answer(200, _PAGE, "text/plain")
        elif r.body:
            _good(r)
        else:
            r.answer(404, b"{}")

    def _hostile(self, path: str) -> bool:
        with self._lock:
            self._pages += path == "/metrics"
        return {
            MODELS: path == "/v1/models",
            FIRST: path == "/metrics" or path.endswith("/completions"),
            LOAD: path == "/version" or (path == "/metrics" and self._pages > 1),
        }[self._place]


def _good(r: Request) -> None:
    asked = json.loads(r.body)
    words, n = len(asked["messages"][0]["content"].split()), asked["max_tokens"]
    r.stream(end=False)
    for i in range(n):
        time.sleep(0.02)
        chunk = delta("length" if i == n - 1 else None, content=" x")
        chunk += event({"choices": [], "usage": usage(words, n)}) + DONE if i == n - 1 else b""
        r.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    r.send(b"0\r\n\r\n")


class Tried(NamedTuple):
    """What came of one run."""

    mode: str
    place: str
    status: int
    seconds: float  # from the first hostile byte, or Ctrl-C, to its end
    memory_mb: float  # of its largest process
    said: str  # its last line
    problems: tuple[str, ...]


def tried(mode: Mode, place: str, *, transport: str = "socket") -> Tried:
    """`knee run` against this mode at this place, and what did not hold."""
    with tempfile.TemporaryDirectory() as folder:
        status, seconds, memory_mb, talk = _run(Scene(mode, place), Path(folder), transport)
        wrong = [*_told(talk), *_left(Path(folder) / "out")]
    good = (0, 3) if place in mode.harmless else (1, 3)
    if status not in good:
        wrong.append(f"exit status {status}")
    if seconds > DEADLINES_S[LOAD if place in mode.harmless else place]:
        wrong.append(f"{seconds:.1f} s")
    return _row(mode, place, status, seconds, memory_mb, talk, wrong)


def interrupted(mode: Mode, place: str) -> Tried:
    """The same, with Ctrl-C in the midst of what the server does."""
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(mode, place)
        status, seconds, memory_mb, talk = _run(scene, Path(folder), "socket", interrupt=True)
        wrong = [*_told(talk), *_left(Path(folder) / "out")]
    if status != 130:
        wrong.append(f"exit status {status}")
    if seconds > INTERRUPT_S + (ending_s() if place == LOAD else 0.0):
        wrong.append(f"{seconds:.1f} s")
    return _row(mode, place, status, seconds, memory_mb, talk, wrong)


def held(mode: Mode, place: str, *, interrupt: bool = False) -> Tried:
    """One of the two; where it does not hold once more, since the machine may have been too busy for it."""
    for _ in range(2):
        found = (interrupted if interrupt else tried)(mode, place)
        if not found.problems:
            break
    return found


@functools.cache
def ending_s() -> float:
    """Seconds from Ctrl-C under load to the end, summary and pages written, where the server behaves."""
    good, took = Mode("good", said(_PAGE, kind=b"text/plain")), []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            took.append(_run(Scene(good, LOAD), Path(folder), "socket", interrupt=True)[1])
    return min(took)


def _row(mode: Mode, place: str, status: int, seconds: float, memory_mb: float, talk: str, wrong: list[str]) -> Tried:
    if memory_mb > MOST_MB:
        wrong.append(f"{memory_mb:.0f} MB")
    last = (talk.strip().splitlines() or [""])[-1]
    return Tried(mode.name, place, status, seconds, memory_mb, last[:200], tuple(wrong))


def _told(talk: str) -> Iterator[str]:
    if KEY in talk or any(KEY[i : i + 8] in talk for i in range(len(KEY) - 7)):
        yield "the key on the terminal"
    if found := _CONTROL.search(talk):
        yield f"{found[0]!r} on the terminal"
    if "Traceback" in talk:
        yield "a traceback"
    if (longest := max(map(len, talk.splitlines()), default=0)) > _LONGEST_LINE:
        yield f"a line of {longest} characters"


def _left(folder: Path) -> Iterator[str]:
    """The key in any file, plain or in a column of a table."""
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            data += str(pq.read_table(path).to_pydict()).encode()
        for form in (KEY, quote(KEY, safe="")):
            if form.encode() in data or form.encode("utf-16-le") in data:
                yield f"the key in {path.name}"


def _run(scene: Scene, folder: Path, transport: str, *, interrupt: bool = False) -> tuple[int, float, float, str]:
    """Exit status, seconds since the first hostile byte or Ctrl-C, MB of its largest process, all that it printed."""
    load = "--levels 2 --level-seconds 1 --input-tokens 20 --output-tokens 4 --workers 1 --no-plots".split()
    environ = {**os.environ, "THE_KEY": KEY, "XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    with serving(scene.script) as port, (folder / "talk").open("wb") as talk:
        command = [sys.executable, "-m", "harness", "run", "--url", f"http://127.0.0.1:{port}", *load]
        command += ["--api-key-env", "THE_KEY", "--request-timeout", f"{TIMEOUT_S:g}s", "--transport", transport]
        process = subprocess.Popen(
            [*command, "--out", "out"], cwd=folder, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=talk, stderr=talk,
        )  # fmt: skip
        began = time.monotonic()
        if interrupt and scene.amid.wait(30):
            time.sleep(_AFTER_S)
            scene.hostile_s = time.monotonic()
            process.send_signal(signal.SIGINT)
        status, memory_mb = _waited(process, began + 25)
        ended = time.monotonic()
    return (
        status,
        ended - (scene.hostile_s or began),
        memory_mb,
        (folder / "talk").read_text("utf-8", "surrogateescape"),
    )


def _waited(process: subprocess.Popen[bytes], until: float) -> tuple[int, float]:
    """Exit status and MB of the largest process; one that takes too much of either is killed with all of its own."""
    highest = 0.0
    while process.poll() is None:
        highest = max(highest, *map(_highest_mb, _family(process.pid)))
        if highest > FATAL_MB or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    return process.returncode, highest


def _family(pid: int) -> list[int]:
    """A process and its children."""
    with contextlib.suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]


def _highest_mb(pid: int) -> float:
    """A process's resident memory at its highest so far; rusage would count what its parent had when it forked."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def cases() -> list[tuple[Mode, str]]:
    return [(mode, place) for mode in MODES for place in mode.places]


def lasting() -> Iterable[tuple[Mode, str]]:
    return [(mode, place) for mode, place in cases() if mode.lasts]
