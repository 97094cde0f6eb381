"""What a scenario or a result folder of somebody else's may try, and what must come of it: nothing unasked.

A case is a function: it gets a place to work in, and says what it saw and what was wrong. The tests hold that nothing
was; `scripts/trust` prints the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness.results.folder import MANIFEST, SPOOL
from harness.results.result import Result
from tests.builders.servers import Request, serving
from tests.run.test_safety import endpoint

ROOT = Path(__file__).parents[2]
KNEE = [sys.executable, "-m", "harness"]
SECRET = "wJalrXUtnFEMIK7MDENG"
NAME = "AWS_SECRET_ACCESS_KEY"
LOAD = ["--input-tokens", "20", "--output-tokens", "4", "--levels", "1", "--level-seconds", "0.5", "--no-plots"]
TOML = "\n[workload]\ninput_tokens = 20\noutput_tokens = 4\n[ramp]\nlevels = [1]\nlevel_seconds = 0.5\n"
SOON_S = 1.0  # that Ctrl-C may take
AT_ONCE_S = 8.0  # that a refusal may take, Python's start included, on a busy machine
MEASURED = (0, 3)


class Seen(NamedTuple):
    """What came of a case."""

    what: str
    wrong: list[str]


Case = Callable[[Path], Seen]


class Server:
    """An endpoint that keeps what it is sent."""

    def __init__(self, answer: Callable[[Request], None] = endpoint) -> None:
        self.requests: list[bytes] = []
        self._answer = answer

    def __call__(self, r: Request) -> None:
        self.requests.append(r.head + r.body)
        self._answer(r)

    @property
    def with_secret(self) -> int:
        return sum(SECRET.encode() in each for each in self.requests)


def environ(place: Path, **more: str) -> dict[str, str]:
    home = place / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT), NAME: SECRET}
    return {**os.environ, **own, **more}


def knee(place: Path, *arguments: str, said: str = "", within_s: float = 100.0, **more: str) -> tuple[int, str, float]:
    """Exit status, stderr and seconds of a `knee`, without a terminal."""
    began = time.monotonic()
    done = subprocess.run(
        [*KNEE, *arguments], cwd=place, env=environ(place, **more), input=said, capture_output=True, text=True,
        timeout=within_s, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr, time.monotonic() - began


def refused(status: int, said: str, *parts: str) -> list[str]:
    """What is wrong with a refusal: it is one line with these parts, and status 1."""
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    wrong = [] if status == 1 else [f"exit status {status}"]
    wrong += [] if len(lines) == 1 and "Traceback" not in said else [f"not one line: {said[-200:]}"]
    return wrong + [f"does not say {part!r}: {' '.join(lines)[:300]}" for part in parts if part not in "".join(lines)]


# Item 2: variables and addresses


def _named_by_a_scenario(field: str, at: str) -> Case:
    def case(place: Path) -> Seen:
        server = Server()
        with serving(server) as port:
            url = f"http://127.0.0.1:{port}"
            (place / "s.toml").write_text(f'[target]\nurl = "{url}"\n{field}\n{TOML}')
            status, said, _ = knee(place, "run", "s.toml", "--yes")
        wrong = refused(status, said, NAME, at, "s.toml", f"--allow-env {NAME}", url)
        wrong += [f"{len(server.requests)} requests were sent"] if server.requests else []
        return Seen(f"exit status {status}, {len(server.requests)} requests", wrong)

    return case


def allowed_by_name(place: Path) -> Seen:
    server = Server()
    with serving(server) as port:
        url = f"http://127.0.0.1:{port}"
        (place / "s.toml").write_text(f'[target]\nurl = "{url}"\nheaders = {{ X-Key = "env:{NAME}" }}\n{TOML}')
        more = ["--allow-env", NAME, "--out", "r", "--no-plots"]
        unasked = knee(place, "run", "s.toml", *more)
        before = len(server.requests)
        status, said, _ = knee(place, "run", "s.toml", *more, "--yes")
    wrong = refused(unasked[0], unasked[1], "only s.toml names it", NAME, url, "--yes")
    wrong += [f"{before} requests before it was agreed to"] if before else []
    wrong += [] if status in MEASURED and server.with_secret == len(server.requests) else [f"{status}: {said[-300:]}"]
    wrong += [] if NAME in said and SECRET not in said else ["the variable's name is not shown, or its value is"]
    return Seen(f"exit status {unasked[0]}, then {status} with --yes", wrong)


def typed(place: Path) -> Seen:
    """What is typed needs no more: the variable in a header, the address."""
    server = Server()
    with serving(server) as port:
        url = f"http://127.0.0.1:{port}"
        header = ["--header", f"Authorization: Bearer env:{NAME}"]
        status, said, _ = knee(place, "run", "--url", url, *header, *LOAD, "--out", "r")
    wrong = (
        [] if status in MEASURED and server.with_secret == len(server.requests) > 0 else [f"{status}: {said[-300:]}"]
    )
    wrong += [] if f"{url} is sent {NAME}" in said else ["host and name are not shown"]
    return Seen(f"exit status {status}, {len(server.requests)} requests", wrong)


def a_key_for_an_address_of_a_file(place: Path) -> Seen:
    """The key's variable is typed, the address is the file's alone."""
    server = Server()
    with serving(server) as port:
        (place / "s.toml").write_text(f'[target]\nurl = "http://127.0.0.1:{port}"\n{TOML}')
        status, said, _ = knee(place, "run", "s.toml", "--api-key-env", NAME)
    wrong = refused(status, said, "only s.toml names it", NAME, "--yes", "--url")
    wrong += [f"{len(server.requests)} requests were sent"] if server.requests else []
    return Seen(f"exit status {status}, {len(server.requests)} requests", wrong)


def a_key_for_a_map_s_servers(place: Path) -> Seen:
    """A [sweep] has addresses of its own, whatever --url says."""
    server = Server()
    with serving(server) as port:
        (place / "s.toml").write_text(f'[sweep.urls]\na = "http://127.0.0.1:{port}"\n{TOML}')
        status, said, _ = knee(place, "run", "s.toml", "--url", "http://127.0.0.1:9", "--api-key-env", NAME)
    wrong = refused(status, said, "only s.toml names it", NAME)
    wrong += [f"{len(server.requests)} requests were sent"] if server.requests else []
    return Seen(f"exit status {status}, {len(server.requests)} requests", wrong)


class Terminal:
    """A `knee` on a terminal."""

    def __init__(self, place: Path, *arguments: str, **more: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*KNEE, *arguments], cwd=place, env=environ(place, **more),
            stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        self.said = b""

    def until(self, text: bytes, within_s: float = 60.0) -> bool:
        """Read on until it has said this once more."""
        wanted, until = self.said.count(text) + 1, time.monotonic() + within_s
        while self.said.count(text) < wanted and time.monotonic() < until:
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                self.said += os.read(self._ours, 4096)
            except OSError:  # its end
                return self.said.count(text) >= wanted
        return self.said.count(text) >= wanted

    def answer(self, text: bytes) -> None:
        os.write(self._ours, text)

    def end(self) -> int:
        self.until(b"\0", 60.0)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            os.close(self._ours)


def _public(answer: bytes) -> Case:
    """A public host and a key: asked before the first byte, and again with the plan."""

    def case(place: Path) -> Seen:
        server, wrong = Server(), []
        with serving(server) as port:
            terminal = Terminal(
                place, "run", "--url", "http://endpoint.invalid", "--transport", "httpx", "--api-key-env", NAME, *LOAD,
                "--quiet", "--out", "r", HTTP_PROXY=f"http://127.0.0.1:{port}",
            )  # fmt: skip
            asked = terminal.until(b"Send it? [y/N]")
            before = len(server.requests)
            shown = terminal.said
            terminal.answer(answer)
            if answer == b"y\n":
                wrong += [] if terminal.until(b"Send it? [y/N]") else ["the plan is not asked for"]
                wrong += [] if b"this is the plan" in terminal.said else ["no plan is shown"]
                terminal.answer(b"n\n")
            status = terminal.end()
        wrong += [] if asked else ["nothing is asked"]
        wrong += [f"{before} requests before the answer, {server.with_secret} with the key"] if before else []
        wrong += [] if b"endpoint.invalid" in shown and NAME.encode() in shown else ["host and name are not shown"]
        wrong += [] if status == 1 else [f"exit status {status}"]
        wrong += [f"{len(server.requests)} requests after a no"] if answer != b"y\n" and server.requests else []
        return Seen(f"{before} requests before the answer, {len(server.requests)} after it", wrong)

    return case


def public_and_nobody_there(place: Path) -> Seen:
    """A name that only a proxy knows is public: nothing goes out before it is said that nobody can be asked."""
    server = Server()
    with serving(server) as port:
        more = ["--transport", "httpx", "--header", f"X-Key: env:{NAME}"]
        proxy = f"http://127.0.0.1:{port}"
        status, said, _ = knee(place, "run", "--url", "http://endpoint.invalid", *more, *LOAD, HTTP_PROXY=proxy)
    wrong = refused(status, said, "it is a public host, and there is no terminal to ask on", "--yes")
    wrong += [f"{len(server.requests)} requests were sent"] if server.requests else []
    return Seen(f"exit status {status}, {len(server.requests)} requests", wrong)


def begun(place: Path, url: str, **target: Any) -> Path:
    """A folder of a run that ended early, as it may come from somebody else: its server is another."""
    from harness.spec import reading
    from harness.spec import scenario as scenarios

    server = Server()
    with serving(server) as port:
        out = place / "theirs"
        run = subprocess.Popen(
            [*KNEE, "run", "--url", f"http://127.0.0.1:{port}", *LOAD, "--levels", "1,2,3", "--level-seconds", "1",
             "--out", str(out), "--quiet"], cwd=place, env=environ(place),
        )  # fmt: skip
        until = time.monotonic() + 60
        while time.monotonic() < until and not (out / SPOOL).exists():
            time.sleep(0.02)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["scenario"]["target"] |= {"url": url, **target}
    manifest["scenario_digest"] = scenarios.digest(reading.build(manifest["scenario"], place="crafted"))
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


def resumed(place: Path) -> Seen:
    """A folder names a variable and its own address: both are agreed to before anything is sent."""
    server = Server()
    with serving(server) as port:
        url = f"http://127.0.0.1:{port}"
        out = str(begun(place, url, headers={"X-Key": f"env:{NAME}"}))
        named = knee(place, "run", "--resume", out, "--yes")
        unasked = knee(place, "run", "--resume", out, "--allow-env", NAME)
        other = knee(place, "run", "--resume", out, "--allow-env", NAME, "--url", "http://127.0.0.1:9")
        before = len(server.requests)
        status, said, _ = knee(place, "run", "--resume", out, "--allow-env", NAME, "--yes", "--no-plots")
    wrong = refused(named[0], named[1], NAME, f"--allow-env {NAME}", url)
    wrong += refused(unasked[0], unasked[1], url, "names it", NAME)
    wrong += refused(other[0], other[1], f"the run was begun with {url}")
    wrong += [f"{before} requests before it was agreed to"] if before else []
    wrong += [] if status in MEASURED and server.with_secret > 0 else [f"{status}: {said[-300:]}"]
    wrong += [] if url in said else ["its address is not shown"]
    return Seen(f"exit status {named[0]}, {unasked[0]}, then {status} with both", wrong)


def resumed_elsewhere(place: Path) -> Seen:
    """A folder that loads another machine is asked about, also without a secret. Nobody has this address."""
    out = str(begun(place, "http://10.255.255.1:9"))
    status, said, took = knee(place, "run", "--resume", out)
    wrong = refused(status, said, "http://10.255.255.1:9", "names it", "--yes", "--url http://10.255.255.1:9")
    wrong += [] if took < AT_ONCE_S else [f"{took:.1f} s: it was tried"]
    return Seen(f"exit status {status} after {took:.1f} s", wrong)


def resumed_here(place: Path) -> Seen:
    """Without a secret a folder's server on this machine needs no question."""
    with serving(Server()) as port:
        out = str(begun(place, f"http://127.0.0.1:{port}"))
        status, said, _ = knee(place, "run", "--resume", out, "--no-plots")
    return Seen(f"exit status {status}", [] if status in MEASURED else [said[-300:]])


def _netrc(transport: str) -> Case:
    """The credentials that lie in ~/.netrc for a host are sent to it by nobody; and a redirect is not followed."""

    def case(place: Path) -> Seen:
        other = Server()
        with serving(other, host="127.0.0.2") as away:

            def moves(r: Request) -> None:
                if r.path.endswith("/metrics") or r.path.endswith("/version"):
                    r.answer(307, b"", extra=f"Location: http://127.0.0.2:{away}{r.path}\r\n")
                elif r.header("X-Request-Id") not in (None, "knee-check") and r.number % 5 == 4:
                    r.answer(308, b"", extra=f"Location: http://127.0.0.2:{away}{r.path}\r\n")
                else:
                    endpoint(r)

            server = Server(moves)
            environ(place)
            netrc = place / "home" / ".netrc"
            netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\ndefault login me password {SECRET}\n")
            netrc.chmod(0o600)
            with serving(server) as port:
                more = ["--transport", transport, "--header", f"X-Key: env:{NAME}"]
                status, said, _ = knee(place, "run", "--url", f"http://127.0.0.1:{port}", *more, *LOAD)
        sent = [each for each in server.requests if b"authorization" in each.lower()]
        wrong = [f"{len(sent)} requests carry credentials"] if sent else []
        wrong += [f"{len(other.requests)} requests followed a redirect"] if other.requests else []
        wrong += [] if len(server.requests) > 5 else [f"{status}: {said[-300:]}"]
        return Seen(f"{len(server.requests)} requests, {len(sent)} with credentials", wrong)

    return case


# Item 9: limits, and Ctrl-C


def _too_much(flags: list[str], *parts: str) -> Case:
    def case(place: Path) -> Seen:
        status, said, took = knee(place, "run", "--url", "http://127.0.0.1:9", *flags)
        wrong = refused(status, said, *parts) + ([] if took < AT_ONCE_S else [f"{took:.1f} s"])
        return Seen(f"exit status {status} after {took:.1f} s", wrong)

    return case


def _too_much_in_a_file(toml: str, *parts: str) -> Case:
    def case(place: Path) -> Seen:
        (place / "s.toml").write_text(f'[target]\nurl = "http://127.0.0.1:9"\n{toml}')
        status, said, took = knee(place, "run", "s.toml")
        wrong = refused(status, said, *parts) + ([] if took < AT_ONCE_S else [f"{took:.1f} s"])
        return Seen(f"exit status {status} after {took:.1f} s", wrong)

    return case


def predicted_too_much(place: Path) -> Seen:
    more = ["--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--simulate", "--levels", "1000000000"]
    try:
        status, said, took = knee(place, "predict", *more, within_s=30.0)
    except subprocess.TimeoutExpired:
        return Seen("it had not ended after 30 s", ["it goes on"])
    return Seen(f"exit status {status} after {took:.1f} s", refused(status, said, "1,000,000", "machine"))


class Interrupted(NamedTuple):
    status: int
    took_s: float  # from the signal to the end
    said: str
    slowness: float = 1.0


@contextlib.contextmanager
def process(place: Path, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*KNEE, *arguments], cwd=place, env=environ(place, **more), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def interrupt(running: subprocess.Popen[str], times: int = 1) -> Interrupted:
    """Send Ctrl-C and wait for the end."""
    began = time.monotonic()
    for i in range(times):
        if i:
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        running.kill()
        return Interrupted(-9, 20.0, running.communicate()[1])
    took_s = time.monotonic() - began
    return Interrupted(running.returncode, took_s, said, 1.0 if took_s < SOON_S else max(slowness(), slowness()))


def slowness() -> float:
    """How much longer than on a processor of its own this machine takes for what only computes; at least 1."""
    began, spent = time.monotonic(), time.process_time()
    while time.process_time() - spent < 0.1:
        pass
    return max(1.0, (time.monotonic() - began) / 0.1)


def ended(got: Interrupted) -> Seen:
    """What is wrong with the end; on a machine that others use as well it may take as much longer as they make it."""
    wrong = [] if got.status == 130 else [f"exit status {got.status}: {got.said[-200:]}"]
    wrong += [] if got.took_s < SOON_S * got.slowness else [f"{got.took_s:.1f} s, at a slowness of {got.slowness:.1f}"]
    wrong += [f"a traceback: {got.said[-300:]}"] if "Traceback" in got.said else []
    return Seen(f"exit status {got.status} after {got.took_s:.2f} s", wrong)


def a_scenario_that_never_comes(place: Path) -> Seen:
    """A named pipe that nobody writes into."""
    os.mkfifo(place / "s.toml")
    status, said, took_s = knee(place, "run", "s.toml")
    wrong = refused(status, said, "is a FIFO") + (["it took long"] if took_s > AT_ONCE_S else [])
    return Seen(f"exit status {status} after {took_s:.1f} s", wrong)


def while_a_tokenizer_is_loaded(place: Path) -> Seen:
    """A tokenizer of a million words, which takes seconds to load."""
    folder, server = tokenizer(place), Server()
    made = json.loads((folder / "tokenizer.json").read_text())
    known = len(made["model"]["vocab"])
    made["model"]["vocab"] |= {f"Ġ{i:x}z": known + i for i in range(1_000_000)}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    more = ["--tokenizer", str(folder), *LOAD]
    with serving(server) as port, process(place, "run", "--url", f"http://127.0.0.1:{port}", *more) as running:
        _until(lambda: bool(server.requests), running)
        time.sleep(2.5)
        seen = ended(interrupt(running))
    seen.wrong.extend(["it was loaded already"] if any(b"POST" in each for each in server.requests) else [])
    return seen


def while_a_server_is_silent(place: Path) -> Seen:
    asked: list[float] = []

    def silent(r: Request) -> None:
        asked.append(time.monotonic())
        time.sleep(30)

    with serving(silent) as port, process(place, "run", "--url", f"http://127.0.0.1:{port}", *LOAD) as running:
        _until(lambda: bool(asked), running)
        return ended(interrupt(running))


def while_prompts_are_made(place: Path) -> Seen:
    """Prompts of ten million tokens, which take seconds to make."""
    server = Server()
    more = ["--input-tokens", "10000000", "--output-tokens", "1", "--levels", "1", "--level-seconds", "1"]
    with serving(server) as port, process(place, "run", "--url", f"http://127.0.0.1:{port}", *more) as running:
        _until(lambda: bool(server.requests), running)
        time.sleep(0.3)
        return ended(interrupt(running))


def while_a_run_is_planned(place: Path) -> Seen:
    """Ten thousand levels, whose plan and prediction are worked out before load."""
    server = Server()
    levels = ",".join(str(i) for i in range(1, 5001))
    more = ["--input-tokens", "20", "--output-tokens", "4", "--levels", levels, "--repeat", "2"]
    more += ["--gpu", "h100-sxm", "--model-config", "llama-3.1-8b"]
    with serving(server) as port, process(place, "run", "--url", f"http://127.0.0.1:{port}", *more) as running:
        _until(lambda: len(server.requests) > 4, running)
        time.sleep(0.1)
        return ended(interrupt(running))


def _after(seconds: float) -> Case:
    """So long after its start, wherever it is: imports, the simulated endpoint's start, checks, the first levels."""

    def case(place: Path) -> Seen:
        with process(place, "run", "--url", "sim:", "--out", "r", "--quick", "--no-plots") as running:
            time.sleep(seconds)
            got = ended(interrupt(running))
        if (place / "r").exists() and not list((place / "r").glob("requests.*")):
            got.wrong.append("a folder without anything measured is left")
        return got

    return case


_SLOW = """
import time
from harness.results.folder import MANIFEST, SPOOL
from harness.results.result import Result
from harness.analysis import summarise
def slow(of):
    open({mark!r}, "w").close()
    while True:
        time.sleep(0.001)  # long calls that a signal does not find in the loop
summarise.summarise = slow
"""


def while_a_run_is_summarised(place: Path) -> Seen:
    """A summary that would take for ever is left to `knee report`, and what was measured is all there."""
    mark, hooks = place / "slow", place / "hooks"
    hooks.mkdir()
    (hooks / "knee_slow.py").write_text(_SLOW.format(mark=str(mark)))
    code = "import knee_slow; from harness.cli import main; main()"
    server = Server()
    with serving(server) as port:
        env = environ(place, PYTHONPATH=f"{hooks}:{ROOT}")
        with subprocess.Popen(
            [sys.executable, "-c", code, "run", "--url", f"http://127.0.0.1:{port}", *LOAD, "--out", "r"],
            cwd=place, env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        ) as running:  # fmt: skip
            try:
                _until(mark.exists, running)
                got = interrupt(running)
            finally:
                running.kill()
    seen = ended(got)
    logged = sum(b"POST" in each and b"knee-check" not in each for each in server.requests)
    kept = len(Result.open(place / "r").records) if (place / "r").exists() else 0
    seen.wrong.extend([] if kept == logged > 0 else [f"{kept} of {logged} requests are in the folder"])
    return seen


def _computing(*arguments: str) -> Case:
    """In the middle of what only computes."""

    def case(place: Path) -> Seen:
        with process(place, *arguments) as running:
            time.sleep(2.0)
            if running.poll() is not None:
                return Seen("it had ended already", ["it is too quick to be interrupted"])
            return ended(interrupt(running))

    return case


def _until(holds: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and running.poll() is None:
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError(f"it never came to that: {running.poll()}")


# Item 10: code of a tokenizer's folder

_CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("it ran")
from transformers import PreTrainedTokenizerFast
class Own(PreTrainedTokenizerFast):
    pass
"""


def tokenizer(place: Path, *, own_code: bool = False) -> Path:
    """A tokenizer's folder that loads; with `own_code` by a class that lies in it and writes a file when it is read."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from harness.workload.text import COMMON

    folder = place / "tokenizer"
    folder.mkdir()
    words = ["?", *(f"Ġ{word}" for word in COMMON), "Ġthe"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "?"}
    if own_code:
        config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}, "unk_token": "?"}
        (folder / "own.py").write_text(_CODE.format(mark=str(place / "mark")))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _tokenizer_code(*flags: str, runs: bool) -> Case:
    def case(place: Path) -> Seen:
        folder = tokenizer(place, own_code=True)
        with serving(Server()) as port:
            url = f"http://127.0.0.1:{port}"
            (place / "s.toml").write_text(f'{TOML}[target]\nurl = "{url}"\n'.replace(
                "[workload]\n", f'[workload]\ntokenizer = "{folder}"\n'))  # fmt: skip
            status, said, _ = knee(place, "run", "s.toml", *flags, "--no-plots", said="y\n" * 20)
        ran = (place / "mark").exists()
        wrong = [] if ran is runs else [f"its code {'ran' if ran else 'did not run'}"]
        if not runs:
            wrong += refused(status, said, "code of its own", "--trust-remote-code")
        else:
            wrong += [] if status in MEASURED else [f"{status}: {said[-300:]}"]
        return Seen(f"exit status {status}, the code {'ran' if ran else 'did not run'}", wrong)

    return case


def tokenizer_without_code(place: Path) -> Seen:
    folder = tokenizer(place)
    with serving(Server()) as port:
        more = ["--tokenizer", str(folder), "--out", "r"]
        status, said, _ = knee(place, "run", "--url", f"http://127.0.0.1:{port}", *more, *LOAD)
    return Seen(f"exit status {status}", [] if status in MEASURED else [said[-300:]])


def a_folder_with_modules(place: Path) -> Seen:
    """An installed `knee`, run in a folder whose files are named like modules that Python loads."""
    mark, folder = place / "mark", tokenizer(place)
    for name in ("json", "msgspec", "numpy", "transformers"):
        (place / f"{name}.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).write_text('it ran')\n")
    safe = [sys.executable, "-P", "-m", "harness"]  # as the installed command: its own folder comes first, not this one
    url = ["--url", "sim:", "--tokenizer", str(folder), "--out", "r"]
    done = subprocess.run(
        [*safe, "run", *url, *LOAD], cwd=place, env=environ(place), capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    wrong = ["a module of the folder ran"] if mark.exists() else []
    wrong += [] if done.returncode in MEASURED else [f"{done.returncode}: {done.stderr[-300:]}"]
    return Seen(f"exit status {done.returncode}", wrong)


CASES: dict[str, Case] = {
    "2: a scenario's header names a variable": _named_by_a_scenario(
        f'headers = {{ X-Key = "env:{NAME}" }}', "$.target.headers.X-Key"
    ),
    "2: a scenario's extra_body names one, deep": _named_by_a_scenario(
        f'extra_body = {{ a = [{{ b = "Bearer env:{NAME}" }}] }}', "$.target.extra_body.a[0].b"
    ),
    "2: a scenario's api_key_env names one": _named_by_a_scenario(f'api_key_env = "{NAME}"', "$.target.api_key_env"),
    "2: --allow-env, and --yes for the file's address": allowed_by_name,
    "2: variable and address are typed": typed,
    "2: a typed key for a file's address": a_key_for_an_address_of_a_file,
    "2: a typed key for the addresses of a [sweep]": a_key_for_a_map_s_servers,
    "2: a key for a public host, answered no": _public(b"n\n"),
    "2: a key for a public host, answered yes, then no": _public(b"y\n"),
    "2: a key for a public host, no terminal": public_and_nobody_there,
    "2: --resume of a folder with a variable and an address": resumed,
    "2: --resume of a folder with another machine's address": resumed_elsewhere,
    "2: --resume of a folder with this machine's": resumed_here,
    "2: ~/.netrc and redirects, by socket": _netrc("socket"),
    "2: ~/.netrc and redirects, by httpx": _netrc("httpx"),
    "9: --workers 100000": _too_much(["--workers", "100000"], "100,000 workers", "processor", "--workers"),
    "9: workers = 100000 in a scenario": _too_much_in_a_file(
        "[ramp]\nworkers = 100000\n", "100,000 workers", "processor"
    ),
    "9: --repeat 1000000000000": _too_much(["--repeat", "1000000000000", "--levels", "1"], "10,000 that a run keeps"),
    "9: --repeat 1000G, adaptive": _too_much(["--repeat", "1000G"], "10,000 that a run keeps"),
    "9: --input-tokens 1000000000": _too_much(["--input-tokens", "1000000000"], "10,000,000", "context"),
    "9: input_tokens = 1000000000 in a scenario": _too_much_in_a_file(
        "[workload]\ninput_tokens = 1000000000\n", "10,000,000", "a number in that range", "s.toml"
    ),
    "9: --output-tokens 1000000000000": _too_much(["--output-tokens", "1000000000000"], "10,000,000", "context"),
    "9: --max-concurrency 1000000000": _too_much(["--max-concurrency", "1000000000"], "1,000,000", "in that range"),
    "9: --levels 1,1000000000": _too_much(["--levels", "1,1000000000"], "1,000,000", "machine"),
    "9: prompts that fill the memory": _too_much(
        ["--input-tokens", "10000000", "--max-concurrency", "4000"], "GB of", "free memory here", "--max-concurrency"
    ),
    "9: --rate 2000000": _too_much(["--rate", "2000000"], "1,000,000 that a machine can send"),
    "9: --host-cpus 0-999999999999": _too_much(["--gpu", "host", "--host-cpus", "0-999999999999"], "--host-cpus"),
    "9: `knee predict --simulate --levels 1000000000`": predicted_too_much,
    "9: a [sweep] of a million cells": _too_much_in_a_file(
        f"[sweep]\ninput_tokens = {list(range(1, 1001))}\noutput_tokens = {list(range(1, 1001))}\n", "1,000,000 cells"
    ),
    "9: a scenario that never comes": a_scenario_that_never_comes,
    "9: Ctrl-C while a tokenizer is loaded": while_a_tokenizer_is_loaded,
    "9: Ctrl-C while the server is silent": while_a_server_is_silent,
    "9: Ctrl-C while prompts are made": while_prompts_are_made,
    "9: Ctrl-C while a run is planned": while_a_run_is_planned,
    "9: Ctrl-C 0.6 s after the start": _after(0.6),
    "9: Ctrl-C 1 s after the start": _after(1.0),
    "9: Ctrl-C 1.5 s after the start": _after(1.5),
    "9: Ctrl-C 2.5 s after the start": _after(2.5),
    "9: Ctrl-C while a run is summarised": while_a_run_is_summarised,
    "9: Ctrl-C in `knee predict --simulate`": _computing(
        "predict", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--simulate", "--input-tokens", "1000",
        "--output-tokens", "50000", "--levels", "64,256,1000,4000",
    ),
    "10: a tokenizer's own code, y piped in": _tokenizer_code(runs=False),
    "10: likewise with --yes": _tokenizer_code("--yes", runs=False),
    "10: with --trust-remote-code": _tokenizer_code("--trust-remote-code", runs=True),
    "10: a tokenizer without code": tokenizer_without_code,
    "10: knee is run in a folder with modules of its own": a_folder_with_modules,
}  # fmt: skip
