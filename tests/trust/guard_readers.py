"""Damaged and crafted folders, configs and scenarios, and every command that reads them.

Each case makes a folder of its own out of a small sound one. A command that reads it must end with status 1 and one
line that names the file, or with 0 or 3 and the answer that still stands there: no traceback, little memory, soon.
Used by tests/trust/test_guard_readers.py and scripts/trust.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.data.record import Level
from harness.predict.catalog import model_config
from harness.results import frames
from harness.results.folder import MANIFEST, REQUESTS, SPOOL, TELEMETRY
from harness.results.result import Result
from harness.results.spool import Spool

ROOT = Path(__file__).parents[2]
SOUND = ROOT / "results" / "live-vllm-ramp-1"
MOST_MEMORY = 300 << 20  # bytes of one command
_LONGEST_LINE = 1000  # characters
MOST_SECONDS = 30.0  # of one command, on a busy machine

Make = Callable[[Path], None]


def sound(folder: Path) -> None:
    """A finished run."""
    shutil.copytree(SOUND, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.png", "*.md", "live.json"))


def spooled(folder: Path) -> None:
    """The same run as its spool, as if it had died at its end."""
    sound(folder)
    Spool(folder).close()
    change(folder, lambda manifest: manifest | {"complete": False})


def change(folder: Path, to: Callable[[dict[str, Any]], Any]) -> None:
    """The folder with another manifest."""
    path = folder / MANIFEST
    document = to(json.loads(path.read_text()))
    path.write_text(json.dumps(document))


def manifest(text: str | bytes) -> Make:
    def make(folder: Path) -> None:
        sound(folder)
        (folder / MANIFEST).write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


def field(name: str, value: Any, of: Make = sound) -> Make:
    """One field of the manifest, by its dotted path, that is something else."""

    def make(folder: Path) -> None:
        of(folder)

        def to(manifest: dict[str, Any]) -> dict[str, Any]:
            *above, last = name.split(".")
            where = manifest
            for each in above:
                where = where[each]
            where[last] = value
            return manifest

        change(folder, to)

    return make


def damaged(how: Callable[[bytes], bytes]) -> Make:
    """The spool with other bytes."""

    def make(folder: Path) -> None:
        spooled(folder)
        path = folder / SPOOL
        path.write_bytes(how(path.read_bytes()))

    return make


def behind(payload: bytes) -> Make:
    """The spool with one more frame, whose checksum holds."""
    return damaged(lambda data: data + frames.frame(payload))


def table(name: str, to: Callable[[pa.Table], pa.Table]) -> Make:
    """A parquet file of the folder with another table."""

    def make(folder: Path) -> None:
        sound(folder)
        pq.write_table(to(pq.read_table(folder / name)), folder / name, compression="zstd")

    return make


def about(to: Callable[[dict[str, Any]], Any]) -> Make:
    """The parquet with something else in its metadata."""

    def other(table: pa.Table) -> pa.Table:
        document = to(json.loads(table.schema.metadata[b"knee"]))
        return table.replace_schema_metadata({b"knee": json.dumps(document).encode()})

    return table(REQUESTS, other)


def column(name: str, to: Callable[[Any], Any], of: str = REQUESTS) -> Make:
    return table(of, lambda t: t.set_column(t.column_names.index(name), name, to(t.column(name))))


@functools.cache
def _many(name: str, columns: tuple[str, ...]) -> bytes:
    """A parquet file of ten million rows, all alike: a few kilobytes."""
    table = pq.read_table(SOUND / name)
    block = table.select(columns).take(pa.repeat(0, 1_000_000))
    out = io.BytesIO()
    with pq.ParquetWriter(out, block.schema, compression="zstd") as file:
        for _ in range(10):
            file.write_table(block)
    return out.getvalue()


def many_rows(folder: Path) -> None:
    sound(folder)
    (folder / REQUESTS).write_bytes(_many(REQUESTS, ("request_id", "sent_s")))


def many_samples(folder: Path) -> None:
    sound(folder)
    (folder / TELEMETRY).write_bytes(_many(TELEMETRY, ("time_s", "source", "metric", "value")))


def many_arrivals(folder: Path) -> None:
    """One request with ten million arrivals, all alike."""
    sound(folder)
    one = pq.read_table(folder / REQUESTS).slice(0, 1)
    for name, value in (
        ("arrivals_s", pa.repeat(1.0, 10_000_000)),
        ("arrival_tokens", pa.repeat(pa.scalar(1, "int32"), 10_000_000)),
    ):
        cells = pa.ListArray.from_arrays(pa.array([0, 10_000_000], "int32"), value)
        one = one.set_column(one.column_names.index(name), name, cells)
    pq.write_table(one, folder / REQUESTS, compression="zstd")


def pipe(name: str) -> Make:
    """A pipe, which nobody writes into, in a file's place."""

    def make(folder: Path) -> None:
        spooled(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def sparse(folder: Path) -> None:
    """A spool that says it is 8 GiB long, zeros all of them."""
    spooled(folder)
    os.truncate(folder / SPOOL, 8 << 30)


def long_frame(folder: Path) -> None:
    """A frame that says it is a GiB long, in a file that is."""
    spooled(folder)
    with (folder / SPOOL).open("ab") as file:
        file.write(struct.pack("<II", 1 << 30, 7))
        file.truncate(file.tell() + (1 << 30) + 100)


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes((data[at] ^ 0x10,)) + data[at + 1 :]


def beyond(**changes: Any) -> bytes:
    """A batch of one request whose figures no run has."""
    run = Result.open(SOUND)
    return frames.batch([msgspec.structs.replace(run.records[0], **changes)])


def level(**changes: Any) -> bytes:
    fields = {"index": 99, "concurrency": 4, "repeat": 0, "begin_s": 1.0, "window_start_s": 2.0, "window_end_s": 9.0}
    made = Level(**{**fields, "end_s": 10.0, **changes})
    return msgspec.msgpack.encode({"kind": "level", "level": msgspec.to_builtins(made)})


def bytes_of(name: str, data: bytes) -> Make:
    """A file of the folder that is none of its sort."""

    def make(folder: Path) -> None:
        sound(folder)
        (folder / name).write_bytes(data)

    return make


def map_of(text: str) -> Make:
    def make(folder: Path) -> None:
        sound(folder)
        (folder / "map.json").write_text(text)

    return make


def deep(n: int) -> str:
    return "[" * n + "]" * n


NAN, INF = float("nan"), float("inf")
# What lies in the folder, by name: how it is made, and what `knee report` must come to: the words of its one line,
# or of the verdict where what is left still has an answer.
FOLDERS: dict[str, tuple[Make, str]] = {
    "manifest: empty": (manifest(""), "manifest.json: not a manifest"),
    "manifest: a list": (manifest("[]"), "manifest.json: not a manifest"),
    "manifest: null": (manifest("null"), "manifest.json: not a manifest"),
    "manifest: nested 100,000 deep": (manifest('{"a": ' + deep(100_000) + "}"), "nested too deep"),
    "manifest: nested 500 deep": (manifest('{"a": ' + deep(500) + "}"), "nested too deep"),
    "manifest: bytes that are no text": (manifest(b'{"a": "\xff\xfe"}'), "manifest.json: not a manifest"),
    "manifest: half a character": (manifest('{"model": "\\ud800"}'), "manifest.json: not a manifest"),
    "manifest: a number of 5,000 digits": (manifest('{"gpus": ' + "9" * 5000 + "}"), "manifest.json: not a manifest"),
    "manifest: 8 MB": (manifest('{"a": "' + "x" * (8 << 20) + '"}'), "longer than"),
    "manifest: a pipe": (pipe(MANIFEST), "manifest.json: is a FIFO, not a file"),
    "manifest: scenario is a list": (field("scenario", []), "$.scenario"),
    "manifest: notes is a number": (field("notes", 7), "$.notes"),
    "manifest: client is null": (field("client", None), "$.client"),
    "manifest: gpus is a text": (field("gpus", "many"), "$.gpus"),
    "manifest: a price of 1e308": (field("price", 1e308), "beyond reason"),
    "manifest: a negative price": (field("price", -1.0), "$.price"),
    "manifest: sittings hold numbers": (field("sittings", [1]), "$.sittings"),
    "manifest: an unknown limit": (field("scenario.slo", {"ttft_p9999": 1.0}), "unknown limit"),
    "manifest: simulated is true": (field("simulated", True), "a level map, not a run"),
    "manifest: a prediction of nothing": (field("prediction", {"model": "x"}), "$.prediction"),
    "manifest: a roof of nothing": (field("roof", {"prompt": "x"}), ""),
    "manifest: format 9": (field("format", 9), "format 9"),
    "spool: empty": (damaged(lambda data: b""), "requests.spool: it ends before its first frame"),
    "spool: only zeros": (damaged(lambda data: bytes(4096)), "requests.spool: "),
    "spool: ends in zeros": (damaged(lambda data: data + bytes(4096)), "holds only zeros"),
    "spool: 8 GiB of zeros behind it": (sparse, "requests.spool"),
    "spool: cut in the middle of a frame": (damaged(lambda data: data[:-5]), "holds no whole frame"),
    "spool: a bit flipped": (damaged(flipped), "is damaged"),
    "spool: a frame of 1 GiB": (long_frame, "is damaged"),
    "spool: a frame that is no msgpack": (behind(b"\xc1\xc1"), "not of this program"),
    "spool: a frame of other fields": (behind(b"\x81\xa1x\x01"), "not of this program"),
    "spool: a batch of numbers": (behind(b"\x93\x01\x02\x03"), "not of this program"),
    "spool: a frame nested deep": (behind(b"\x91" * 100_000 + b"\x01"), "not of this program"),
    "spool: a request of another level": (behind(beyond(level=77)), "requests beyond reason"),
    "spool: a request at no time": (behind(beyond(sent_s=NAN)), "requests beyond reason"),
    "spool: a request with 2^62 tokens": (behind(beyond(output_tokens=2**62)), "requests beyond reason"),
    "spool: half an arrival": (behind(beyond(arrivals=b"12345")), "requests beyond reason"),
    "spool: a level without an end before its window": (behind(level(end_s=0.0)), "times that do not follow"),
    "spool: a level of 1e300 s": (behind(level(end_s=1e300)), "times that do not follow"),
    "spool: a level of no load": (behind(level(concurrency=None)), "no load"),
    "spool: not a file": (pipe(SPOOL), "requests.spool: is a FIFO, not a file"),
    "requests: not parquet": (bytes_of(REQUESTS, b"PAR1" * 9), "requests.parquet"),
    "requests: without a column": (table(REQUESTS, lambda t: t.drop_columns(["error"])), "no column error"),
    "requests: without arrivals": (table(REQUESTS, lambda t: t.drop_columns(["arrivals_s"])), "no column"),
    "requests: times are texts": (column("sent_s", lambda c: c.cast("string")), "column sent_s is of type"),
    "requests: levels are missing": (column("level", lambda c: pa.nulls(len(c), "int32")), "column level has gaps"),
    "requests: times at no time": (column("sent_s", lambda c: pa.repeat(NAN, len(c))), "beyond reason"),
    "requests: of other levels": (column("level", lambda c: pc.add(c, pa.scalar(50, "int32"))), "beyond reason"),
    "requests: nothing of its run": (table(REQUESTS, lambda t: t.replace_schema_metadata(None)), "of which run"),
    "requests: its run is a list": (about(lambda document: []), "requests.parquet"),
    "requests: levels at no time": (
        about(lambda document: document | {"levels": [level_fields(window_end_s=1e300)]}), "beyond reason"
    ),
    "requests: 10 million rows": (many_rows, "rows"),
    "requests: 10 million arrivals": (many_arrivals, "bytes hold"),
    "telemetry: not parquet": (bytes_of(TELEMETRY, b"garbage"), "telemetry.parquet: "),
    "telemetry: without a column": (table(TELEMETRY, lambda t: t.drop_columns(["value"])), "no column value"),
    "telemetry: values are texts": (column("value", lambda c: c.cast("string"), TELEMETRY), "column value is of"),
    "telemetry: 10 million rows": (many_samples, "rows"),
    "telemetry: sent without end": (
        column("value", lambda c: pa.repeat(INF, len(c)), TELEMETRY), "beyond reason"
    ),
    "map: empty": (map_of(""), "map.json"),
    "map: nested deep": (map_of(deep(100_000)), "nested too deep"),
    "map: cells are numbers": (map_of('{"name": "x", "axes": [], "cells": [1]}'), "$.cells"),
    "map: an axis without values": (
        map_of('{"name": "x", "axes": [{"name": "a", "values": []}], "cells": []}'), "map.json"
    ),
}  # fmt: skip


def level_fields(**changes: Any) -> dict[str, Any]:
    """A level as the metadata of requests.parquet has it."""
    return msgspec.msgpack.decode(level(**changes))["level"] if changes else {}


# Commands that read a folder, in the place of DIR.
READING: dict[str, list[str]] = {
    "report": ["report", "--no-plots", "DIR"],
    "report --json, with its page": ["report", "--json", "--quiet", "DIR"],
    "fit": ["fit", "DIR"],
    "plan": ["plan", "DIR", "--rps", "5", "--price", "2"],
    "export": ["export", "DIR", "--to", "vllm"],
    "check": ["check", "DIR", "-t", "plateau >= 1", "-t", "ttft_p90@1 < 1h", "--format", "github"],
    "check --baseline": ["check", "DIR", "--baseline", str(SOUND), "-t", "single_stream >= 0.01*baseline"],
    "list": ["list", "DIR"],
    "run --resume": ["run", "--resume", "DIR", "--yes"],
    "calibrate model": ["calibrate", "model", "DIR", "--model-config", "llama-3.1-8b", "--gpu", "h100-sxm"],
    "predict --measured": [
        "predict", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--measured", "DIR",
        "--input-tokens", "128", "--output-tokens", "64",
    ],
    "predict --gpu all": ["predict", "--model", "llama-3.1-8b", "--gpu", "all", "--measured", "DIR"],
}  # fmt: skip


def text(content: str | bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def config(**fields: Any) -> Callable[[Path], None]:
    """A model's config with other fields; a text that begins with # stands there without its quotes."""
    document = json.dumps(dict(model_config("llama-3.1-8b")) | fields)
    return text(re.sub(r'"#([^"]*)"', r"\1", document))


def quantised(**fields: Any) -> Callable[[Path], None]:
    return config(quantization_config={"quant_method": "fp8", **fields})


def stretched(factor: Any) -> Callable[[Path], None]:
    return config(rope_scaling={"rope_type": "yarn", "factor": factor})


# A file that a flag or an argument names: what reads it, in the place of FILE, how it is made, and the line's words.
PREDICT = ["predict", "--gpu", "h100-sxm", "--model", "FILE"]
FIT, POINTS = ["fit", "FILE"], "concurrency,output_tokens_per_s\n"
PRINT = ["run", "FILE", "--print-scenario"]
CHECK = ["check", str(SOUND), "--thresholds", "FILE"]
CALIBRATED = ["predict", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--calibration", "FILE"]
TRAFFIC, RATES = ["plan", str(SOUND), "--traffic", "FILE"], "time,requests_per_s\n"
FILES: dict[str, tuple[list[str], Callable[[Path], None], str]] = {
    "config: empty": (PREDICT, text(""), "not a model config"),
    "config: null": (PREDICT, text("null"), "not a model config"),
    "config: nested deep": (PREDICT, text('{"a": ' + deep(100_000) + "}"), "nested too deep"),
    "config: no text": (PREDICT, text(b"\xff\xfe\x00"), "not a model config"),
    "config: 8 MB": (PREDICT, text("[" + "1," * (4 << 20) + "1]"), "longer than"),
    "config: a pipe": (PREDICT, lambda path: os.mkfifo(path), "unknown model"),
    "config: hidden_size of 10^400": (PREDICT, config(hidden_size="#1" + "0" * 400), "hidden_size"),
    "config: hidden_size of 5,000 digits": (PREDICT, config(hidden_size="#" + "9" * 5000), "not a model config"),
    "config: hidden_size of 1e308": (PREDICT, config(hidden_size=1e308), "hidden_size"),
    "config: hidden_size is negative": (PREDICT, config(hidden_size=-4096), "hidden_size"),
    "config: hidden_size is NaN": (PREDICT, config(hidden_size="#NaN"), "hidden_size"),
    "config: hidden_size is Infinity": (PREDICT, config(hidden_size="#Infinity"), "hidden_size"),
    "config: 10^9 layers": (PREDICT, config(num_hidden_layers=10**9), "num_hidden_layers"),
    "config: positions stretched by 1e308": (PREDICT, stretched(1e308), ""),
    "config: positions stretched by 10^400": (PREDICT, stretched("#1" + "0" * 400), ""),
    "config: a pattern that takes for ever": (
        PREDICT, quantised(ignore=["re:" + "(l|la|lay|a|y|e|r|s|.)*" * 3 + "!"]), "modules_to_not_convert"
    ),
    "config: a million modules": (PREDICT, quantised(ignore=["lm_head"] * 300_000), ""),  # names are looked up
    "scenario: no text": (PRINT, text(b"\xff\xfe"), "not TOML"),
    "scenario: nested deep": (PRINT, text("a = " + deep(100_000)), "not TOML"),
    "scenario: tables nested deep": (PRINT, text("[" + ".".join("a" * 900) + "]\nb = 1"), "nested too deep"),
    "scenario: a number of 5,000 digits": (PRINT, text("[ramp]\nrepeat = " + "9" * 5000), "not TOML"),
    "scenario: 10^400 tokens": (PRINT, text("[workload]\ninput_tokens = 1" + "0" * 400), "beyond reason at $.workload"),
    "scenario: a text of 400 digits": (PRINT, text(f"[workload]\ninput_tokens = '{'9' * 400}'"), "10,000,000 tokens"),
    "scenario: a time without end": (PRINT, text("[ramp]\nmax_seconds = inf"), "beyond reason at $.ramp.max_seconds"),
    "scenario: a price that is no number": (PRINT, text("[hardware]\nprice = nan"), "beyond reason at $.hardware"),
    "scenario: a price of 1e308": (PRINT, text("[hardware]\nprice = 1e308"), "beyond reason at $.hardware.price"),
    "scenario: a date in the body": (PRINT, text("[target.extra_body]\nx = 1979-05-27"), "neither text nor number"),
    "scenario: a pipe": (PRINT, lambda path: os.mkfifo(path), "is a FIFO, not a file"),
    "scenario: 8 MB": (PRINT, text("# " + "x" * (8 << 20)), "longer than"),
    "traffic: no text": (TRAFFIC, text(b"\xff\xfe"), "not a traffic file"),
    "traffic: a pipe": (TRAFFIC, lambda path: os.mkfifo(path), "is a FIFO, not a file"),
    "traffic: 8 MB": (TRAFFIC, text("x" * (8 << 20)), "longer than"),
    "traffic: 100,000 rates": (
        TRAFFIC, text(RATES + "".join(f"{i},1\n" for i in range(100_000))), "more than 10,000 rates"
    ),
    "traffic: a rate of 400 digits": (TRAFFIC, text(RATES + "0," + "9" * 400 + "\n5,1\n"), "beyond reason"),
    "traffic: brackets": (TRAFFIC, text(RATES + "0,wave(\x1b[2J\n5,1\n"), "traffic"),
    "calibration: null": (CALIBRATED, text("null"), "not a calibration"),
    "calibration: nested deep": (CALIBRATED, text(deep(100_000)), "nested too deep"),
    "thresholds: empty": (CHECK, text("# none\n"), "no threshold is given"),
    "thresholds: no text": (CHECK, text(b"knee >= \xff"), "not a file of thresholds"),
    "thresholds: a line of 1 MB": (CHECK, text("knee >= " + "9" * (1 << 20)), "at most 200 characters"),
    "thresholds: 400,000 of them": (CHECK, text("knee>=1\n" * 400_000), "400,000 thresholds"),
    "thresholds: 8 MB": (CHECK, text("# " + "x" * (8 << 20)), "longer than"),
    "thresholds: a pipe": (CHECK, lambda path: os.mkfifo(path), "is a FIFO, not a file"),
    "thresholds: code": (CHECK, text("knee >= __import__('os').system('x')"), "is not a number"),
    "thresholds: steers a terminal": (CHECK, text("kn\x1b[2Jee >= 1"), "unknown figure 'kn\\x1b[2Jee'"),
    "points: a field of 1 MB": (FIT, text(POINTS + "1" * (1 << 20)), "not a CSV"),
    "points: 10^400": (FIT, text(f"{POINTS}1{'0' * 400},5"), "is 1e+12 or more"),
    "points: 1e308": (FIT, text(POINTS + "1e308,1e308\n" * 8), "is 1e+12 or more"),
    "points: a zero byte": (FIT, text(POINTS + "1,\0"), "line"),
    "points: no text": (FIT, text(b"\xff"), "not text in UTF-8"),
}  # fmt: skip


class Outcome(NamedTuple):
    """What came of one command."""

    status: int
    out: str
    err: str
    seconds: float
    memory: int  # bytes, at most


_SERVE = """
import os, resource, sys, time, json
sys.argv[0] = "knee"
import numpy, pyarrow.parquet, msgspec, click
from harness import cli
from harness.results import frames
from harness.cli import calibrate, decide, predict, report, run
from harness.analysis import summarise
from harness.decide import calibration, choice, listing
from harness.decide.check import decision
from harness.run import experiment as _
from harness.library import answers, measurement
from harness.report import check, level_map, listing, live, page, prediction, run_report, terminal
from harness.predict import question, fitting
import matplotlib.pyplot
for line in sys.stdin:
    asked = json.loads(line)
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        for number, name in ((1, asked["out"]), (2, asked["err"])):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(fd, number)
        os.chdir(asked["cwd"])
        sys.argv[1:] = asked["arguments"]
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 71
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(code)
    deadline = began + asked["seconds"]
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            done, status, usage = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_maxrss * 1024]), flush=True)
"""


class Knee:
    """The command, its packages imported once: each call is a process of its own all the same."""

    def __init__(self, place: Path, root: Path = ROOT) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root), "XDG_STATE_HOME": str(place), "MPLBACKEND": "agg"}
        self._place = place
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            cwd=root,
        )  # fmt: skip

    def __enter__(self) -> Knee:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __call__(self, arguments: list[str], cwd: Path) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = self._place / "out", self._place / "err"
        job = {"arguments": arguments, "out": str(out), "err": str(err), "cwd": str(cwd), "seconds": MOST_SECONDS}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        status, seconds, memory = json.loads(self._process.stdout.readline())
        return Outcome(status, out.read_text(errors="replace"), err.read_text(errors="replace"), seconds, memory)


Tried = tuple[str, Outcome, list[str]]  # a command, what came of it, and what is wrong with that


def read_folder(knee: Knee, name: str, place: Path, commands: Iterable[str] = READING) -> list[Tried]:
    """Reading commands on a damaged folder, each time a new one."""
    make, words = FOLDERS[name]
    tried = []
    for command in commands:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            make(Path(folder))
            found = knee([each.replace("DIR", folder) for each in READING[command]], place)
        tried.append((command, found, wrong(found, words if command == "report" else "")))
    return tried


def read_file(knee: Knee, name: str, place: Path) -> Tried:
    """The command that reads a damaged file."""
    arguments, make, words = FILES[name]
    with tempfile.TemporaryDirectory(dir=place) as folder:
        make(Path(folder) / "file.json")
        found = knee([each.replace("FILE", f"{folder}/file.json") for each in arguments], place)
    return arguments[0], found, wrong(found, words)


def wrong(found: Outcome, words: str = "") -> list[str]:
    """What is wrong with the outcome of a command on something damaged; `words` must be in what it says."""
    problems = []
    if found.status not in (0, 1, 3):
        problems.append(f"status {found.status}")
    if "Traceback" in found.err:
        problems.append("a traceback: " + found.err.strip().splitlines()[-1][:200])
    lines = [line for line in found.err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if found.status == 1 and (len(errors) != 1 or lines[-1:] != errors or len(errors[0]) > _LONGEST_LINE):
        problems.append(f"{len(lines)} lines, the last one is {lines[-1:]}"[:300])
    if "Warning" in found.err:
        problems.append("a warning: " + re.sub(r"\s+", " ", found.err)[:200])
    flat = re.sub(r"[\s│|]+", " ", found.err + found.out)
    if words and words not in flat:
        problems.append(f"no {words!r} in {flat[:300]!r}")
    if found.memory > MOST_MEMORY:
        problems.append(f"{found.memory >> 20} MiB")
    if found.seconds > MOST_SECONDS:
        problems.append(f"{found.seconds:.0f} s")
    return problems
