"""A headless Chromium over its pipe: one page that is opened, resized, coloured, printed and asked."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from io import FileIO
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync", "--remote-debugging-pipe")  # fmt: skip
_PATIENCE_S = 180.0  # until a page is as it should be


class Tab:
    """One page; every request that it makes and every line of its console are kept."""

    def __init__(self, commands: FileIO, answers: FileIO) -> None:
        self.requested: list[str] = []
        self.console: list[str] = []
        self._commands, self._answers = commands, answers
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self._send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def look(self, *, width: int = 1200, dark: bool = False, paper: bool = False, scripts: bool = True) -> None:
        """Give the page a width and a medium, from now on."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=[scheme])
        self._send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression is; an exception in it is one of the test's."""
        found = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        self._commands.write(json.dumps({"id": number, "method": method, "params": params} | session).encode() + b"\0")
        while (message := self._message()).get("id") != number:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        found: dict[str, Any] = message["result"]
        return found

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._answers.read(1 << 16)
            assert more, "the browser is gone"
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.console.append(json.dumps(params))
            case "Log.entryAdded":
                self.console.append(params["entry"]["text"])


@contextlib.contextmanager
def tab() -> Iterator[Tab]:
    """A page in a browser of its own, which ends with the context."""
    assert CHROMIUM is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root with one
    wired = f'exec {CHROMIUM} "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = (*_FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank")
        browser = subprocess.Popen(
            ["bash", "-c", wired, "chromium", *flags], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            with os.fdopen(ours_in, "rb", buffering=0) as answers, os.fdopen(ours_out, "wb", buffering=0) as commands:
                yield Tab(commands, answers)
        finally:
            browser.terminate()
            browser.wait()
