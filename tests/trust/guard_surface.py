"""Hostile text on its way to a terminal: each case makes `knee` print it and says what was wrong with what came out.

The same cases are run by pytest (test_guard_surface.py) and by `scripts/trust`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.builders.servers import Request, serving

ROOT = Path(__file__).parents[2]
MOST = 4_000  # characters that one mistake may take on a terminal
MOST_REPORT = 60_000  # that a whole report may take
# Sets the title, clears the screen, rings; C1's CSI; turns text round; hides it; ends a line; a tag.
HOSTILE = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\u202eder\u2066\u200bx\u2028y\u0085z\x7f\r\U000e0041\ufe0f"
OURS = re.compile(r"\x1b\[[0-9;?]*[mAKhl]|\r(?=\n)")  # what rich writes on a terminal: colours and the cursor's moves


class Said(NamedTuple):
    """What a command ended with."""

    status: int
    out: str
    err: str


def knee(*arguments: str, cwd: Path, code: str = "") -> Said:
    """`knee` in a process of its own; `code` is run in its place, as Python."""
    command = [sys.executable, *(("-c", code) if code else ("-m", "harness", *arguments))]
    environ = os.environ | {"PYTHONUTF8": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, cwd=cwd, env=environ, timeout=120, check=False)
    return Said(done.returncode, *(bytes_.decode("utf-8", "surrogateescape") for bytes_ in (done.stdout, done.stderr)))


def on_a_terminal(*arguments: str, cwd: Path) -> Said:
    """`knee` on a terminal of its own; all that it wrote is `out`."""
    leader, follower = pty.openpty()
    environ = os.environ | {"PYTHONUTF8": "1", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, cwd=cwd, env=environ,
    )  # fmt: skip
    os.close(follower)
    written = bytearray()
    while True:
        try:
            read = os.read(leader, 65_536)
        except OSError:  # the last one at the terminal has gone
            break
        if not read:
            break
        written += read
    os.close(leader)
    return Said(process.wait(timeout=60), written.decode("utf-8", "surrogateescape"), "")


def steering(text: str) -> list[str]:
    """The characters of a text that steer a terminal or cannot be seen, line ends and tabs apart."""
    found = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set("\n\t")
    found |= {char for char in text if char in "\ufe0f"}
    return sorted(f"U+{ord(char):04X}" for char in found)


def wrong(said: Said, *, status: int, most: int = MOST, lines: int | None = None, shown: str = "evil") -> list[str]:
    """What does not hold of a mistake's line or a report; `shown` is in it."""
    out = [f"{where} holds {', '.join(found)}" for where, text in zip(("stdout", "stderr"), said[1:], strict=True)
           if (found := steering(OURS.sub("", text)))]  # fmt: skip
    if said.status != status:
        out.append(f"status {said.status}: {(said.err or said.out)[-200:]!r}")
    if (length := len(said.out) + len(said.err)) > most:
        out.append(f"{length:,} characters")
    if shown not in said.out + said.err:
        out.append(f"{shown!r} is not in it: {(said.err or said.out)[-200:]!r}")
    if lines is not None and said.err.count("\n") != lines:
        out.append(f"{said.err.count(chr(10))} lines")
    return out


def served(models: Callable[[Request], None], shown: str = "evil") -> Callable[[Path], list[str]]:
    """`knee run` against a server that answers everything so: one line and status 1."""

    def case(place: Path) -> list[str]:
        with serving(models) as port:
            said = knee("run", "--url", f"http://127.0.0.1:{port}", "--levels", "1", "--out", "out", cwd=place)
        return wrong(said, status=1, lines=1, shown=shown)

    return case


def listing(*names: str, shown: str = "evil") -> Callable[[Path], list[str]]:
    body = json.dumps({"data": [{"id": name} for name in names]}).encode()
    return served(lambda r: r.answer(200, body), shown)


def config(**fields: Any) -> Callable[[Path], list[str]]:
    """`knee predict` of a config.json with such fields."""

    def case(place: Path) -> list[str]:
        (place / "config.json").write_text(json.dumps(fields))
        said = knee("predict", "--model-config", "config.json", "--gpu", "h100-sxm", cwd=place)
        return wrong(said, status=1, lines=1)

    return case


def scenario(text: str) -> Callable[[Path], list[str]]:
    def case(place: Path) -> list[str]:
        (place / "s.toml").write_text(text)
        return wrong(knee("run", "s.toml", "--url", "http://127.0.0.1:1", cwd=place), status=1, lines=1)

    return case


def running(code: str, status: int) -> Callable[[Path], list[str]]:
    """`harness.cli.main` where some library writes."""
    start = f"import sys, warnings\nTEXT = {HOSTILE!r}\nimport harness.cli as command\n"
    return lambda place: wrong(knee(cwd=place, code=f"{start}{code}\ncommand.main()"), status=status, most=2 * MOST)


def usage(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda place: wrong(knee(*arguments, cwd=place), status=2)


def hostile(value: Any, text: str) -> Any:
    """JSON data with `text` after every string of it, names apart."""
    if isinstance(value, dict):
        return {name: hostile(each, text) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, text) for each in value]
    return value + text if isinstance(value, str) else value


def folder(place: Path, text: str = HOSTILE) -> Path:
    """A result folder whose manifest holds hostile text wherever a server or a scenario's author wrote."""
    made = place / "run"
    shutil.copytree(ROOT / "results" / "live-vllm", made)
    manifest = json.loads((made / "manifest.json").read_text())
    for name in ("created", "model", "server", "gpu", "url", "host", "notes", "prediction", "name", "command"):
        if name in manifest:
            manifest[name] = hostile(manifest[name], text)
    manifest["model"] = text
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made


def reported(place: Path) -> list[str]:
    return wrong(knee("report", str(folder(place)), "--verbose", cwd=place), status=0, most=MOST_REPORT)


def reported_on_a_terminal(place: Path) -> list[str]:
    said = on_a_terminal("report", str(folder(place)), "--verbose", "--no-plots", cwd=place)
    out = wrong(said, status=0, most=MOST_REPORT)
    return out if "\x1b[1m" in said.out else [*out, "our own colours are gone"]


def reported_long(place: Path) -> list[str]:
    made = folder(place, "evil" + "x" * 20_000)
    return wrong(knee("report", str(made), "--no-plots", cwd=place), status=0, most=MOST_REPORT)


def as_json(place: Path) -> list[str]:
    made = folder(place)
    said = knee("report", str(made), "--json", "--quiet", "--no-plots", cwd=place)
    out = wrong(said, status=0, most=1_000_000)
    try:
        kept = json.loads((made / "summary.json").read_text())
        return out if json.loads(said.out) == kept else [*out, "stdout is not summary.json"]
    except ValueError as error:
        return [*out, f"stdout is no JSON: {error}"]


def printed(place: Path) -> list[str]:
    name = HOSTILE.replace("\u2028", "")
    said = knee("run", "--url", "http://127.0.0.1:1", "--model", name, "--print-scenario", cwd=place)
    out = wrong(said, status=0)
    try:
        return out if tomllib.loads(said.out)["target"]["model"] == name else [*out, "it reads back as another"]
    except (ValueError, KeyError) as error:
        return [*out, f"stdout is no TOML: {error}"]


def progress(place: Path) -> list[str]:
    """The live progress, on a terminal and where there is none: notes, reasons, names."""
    out = []
    for terminal in (True, False):
        code = (
            "import io\nfrom tests.builders.summaries import full\n"
            "from harness.report.live import LiveView\nfrom harness.base.terminal import console as console_of\n"
            f"TEXT = {HOSTILE!r}\nconsole = console_of(stderr=True)\nconsole._force_terminal = {terminal}\n"
            "from harness.data.progress import LevelProgress\nwith LiveView(console) as view:\n"
            "    view.note(TEXT)\n    view.level_started('C = ' + TEXT, 0, 2, 'evil because ' + TEXT)\n"
            "    view.update(LevelProgress(phase=TEXT, elapsed_s=1.0, in_flight=3.0, output_tokens_per_s=4.0))\n"
            "    view.level_finished(full().levels[0])\n"
        )
        out += wrong(knee(cwd=place, code=code), status=0)
    return out


def of_a_map(place: Path) -> list[str]:
    at = {"input_tokens": 64, "output_tokens": 16, "server": HOSTILE}
    cells = [{"name": HOSTILE, "at": at, "error": HOSTILE}]
    axes = [
        {"name": "input_tokens", "values": [64]},
        {"name": "output_tokens", "values": [16]},
        {"name": "server", "values": [HOSTILE]},
    ]
    made = place / "map"
    made.mkdir()
    written = {"name": HOSTILE, "model": HOSTILE, "gpu": HOSTILE, "created": HOSTILE, "axes": axes, "cells": cells}
    (made / "map.json").write_text(json.dumps(written))
    return wrong(knee("report", str(made), cwd=place), status=0, most=MOST_REPORT)


def listening(place: Path) -> list[str]:
    """`knee sim` on every address of this machine says so; on the loopback it says nothing."""
    out = []
    for host, beyond in (("0.0.0.0", True), ("", True), ("127.0.0.1", False), ("localhost", False)):
        command = [sys.executable, "-m", "harness", "sim", "--port", "0", "--host", host]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=environ
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(0.2)  # the note follows at once
            process.terminate()
            said = process.communicate(timeout=30)[1]
        if not first.startswith("ready ") or ("listens beyond this machine" in said) is not beyond:
            out.append(f"--host {host!r}: {first!r}, {said!r}")
    return out


def _refused(r: Request) -> None:
    if r.path.endswith("/models"):
        r.answer(200, b'{"data": [{"id": "m"}]}')
    else:
        r.answer(400, json.dumps({"error": {"message": HOSTILE * 50}}, ensure_ascii=False).encode())


ITEM = "text from outside steers no terminal: "
CASES: dict[str, Callable[[Path], list[str]]] = {
    "a server's refusal": served(_refused),
    "names of two models": listing(HOSTILE + "a", HOSTILE + "b", shown="give --model"),
    "a list of 100,000 models": listing(*(f"evil-model-{i}" for i in range(100_000))),
    "a model's name of 15 MB": listing("evil" + "x" * 15_000_000, "other", shown="longer than 4 MiB"),
    "a lone surrogate in a model's name": listing("evil\ud800", "b", shown="give --model"),
    "a field's name in TOML": scenario('"evil\\u001b[2J\\u202e\\u0007" = 1\n'),
    "a field's name of 1 MB in TOML": scenario(f'[target]\n"evil{"x" * 1_000_000}" = 1\n'),
    "a value in TOML": scenario('[ramp]\nlevel_seconds = "evil\\u001b[2J\\u009b1m\\u2066"\n'),
    "model_type": config(model_type=HOSTILE, architectures=[HOSTILE]),
    "model_type of 1 MB": config(model_type="evil" + "x" * 1_000_000),
    "a wrong command": usage(HOSTILE),
    "a wrong option": usage("run", "--" + HOSTILE),
    "a wrong choice": usage("run", "--api", HOSTILE),
    "a library's warning": running("sys.argv[1:] = ['--help']\n"
        "old = command.cli\n"
        "command.cli = lambda: (warnings.warn(TEXT), old())", 0),
    "a bug's traceback": running("def bug(): raise RuntimeError(TEXT)\ncommand.cli = bug", 70),
    "a bug's traceback of 5 MB": running(
        "def bug(): raise RuntimeError('evil' + 'x' * 5_000_000)\ncommand.cli = bug", 70),
    "live progress": progress,
    "a report": reported,
    "a report on a terminal": reported_on_a_terminal,
    "a report of long names": reported_long,
    "a map": of_a_map,
    "knee sim beyond this machine": listening,
    "--json stays JSON": as_json,
    "--print-scenario stays TOML": printed,
}  # fmt: skip


def rows(place: Path) -> Iterator[tuple[str, list[str]]]:
    """Every case by name with its problems."""
    for number, (name, case) in enumerate(CASES.items()):
        at = place / str(number)
        at.mkdir(parents=True)
        yield name, case(at)
