"""Damaged files and what their readers make of them: small real files, their mutations, and the property.

The property: a reader gives its value or raises one HarnessError of one line; nothing else leaves it, however the file
is damaged. A folder is read as far as `knee report` reads it: to the summary. Used by tests/trust/test_fuzz.py and
scripts/fuzz.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.analysis import summarise
from harness.analysis.level import Facts, summarise_level
from harness.analysis.table import Table
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest
from harness.data.record import Level, Sample
from harness.predict import calibration, question
from harness.predict.catalog import model_config, models
from harness.results import columns, frames, levelmap, readers
from harness.results.folder import MANIFEST, REQUESTS, SPOOL, TELEMETRY
from harness.results.readers import table
from harness.results.result import Result, must_go_on, read_manifest
from harness.results.spool import Spool, finish, header
from harness.run import prediction
from harness.run.resume import RampInputs
from harness.spec import reading, scenario
from harness.workload import shape
from tests.builders.records import request

_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63, -(2**63), 10**18, 0.5, -0.0, 1e-308, 1e300, 1e308, "", "x",
    "env:X", "9" * 400, "é\u2028", "a" * 3000, [], [[]], [0], [None], [1, "x"], {}, {"a": 1}, {"": {}}, [{}],
    "nan", "1e999", "sim:", "*" * 50, "re:(a+)+$", "re:(", [1e308] * 3,
]  # fmt: skip
_RAW = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b'"\\ud800"', b"[" * 3000, b'{"a":' * 3000,
    b'"\xff"', b"", b"-", b"1979-05-27T07:32:00Z", b"07:32:00", b"0x1F", b"inf", b"nan", b"'", b'"""', b"1_000", b"[[",
    b"\x00", b"0e0", b'"\\u0000"', b"= 1\n", b"a.b.c.d = 1\n", b"[target]\n", b"{ a = 1 }",
]  # fmt: skip
_TOKEN = re.compile(rb'"[^"\\]*"|-?\d[\d.e+-]*|true|false|null|[\[\]{}=,:\n]')


SHARES = {  # of the inputs, by reader
    "scenario": 5, "config": 4, "manifest": 3, "spool": 3, "requests": 2, "telemetry": 1, "calibration": 1, "map": 1,
    "csv": 1, "foreign": 2,
}  # fmt: skip
_WHOLE_EVERY = 25  # whole summaries among the readings of a folder


class Reader(NamedTuple):
    """One kind of file: small real ones, whether they hold JSON, and what reads one."""

    files: list[bytes]
    as_json: bool
    read: Callable[[bytes], Any]
    packed: bool = False  # binary: only bytes are damaged


def damaged(data: bytes, choose: random.Random) -> bytes:
    """Any bytes after one to three accidents: flipped bits, zeros, cuts, repetitions."""
    for _ in range(choose.choice((1, 1, 2, 3))):
        at = int(choose.random() * (len(data) + 1))
        upto = min(len(data), at + int(choose.random() * choose.choice((4, 40, 400))))
        kind = choose.random()
        if kind < 0.35 and at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << choose.randrange(8)),)) + data[at + 1 :]
        elif kind < 0.5:
            data = data[:at] + bytes(upto - at) + data[upto:]
        elif kind < 0.6:
            data = data[:at] + bytes(choose.choice((1, 8, 4096)))
        elif kind < 0.75:
            data = data[:at]
        elif kind < 0.9:
            data = data[:at] + data[upto:]
        else:
            data = data[:upto] + data[at:]
    return data


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) in plain data."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(pairs):
        found.append((value, key))
        _places(each, found)
    return found


def _changed(value: Any, choose: random.Random) -> Any:
    """Plain data with one to three of its fields another value, another's value, another name or none."""
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        places = _places(value, [])
        if not places or choose.random() < 0.01:
            return copy.deepcopy(choose.choice(_VALUES))
        where, key = choose.choice(places)
        kind = choose.random()
        if kind < 0.6:
            where[key] = copy.deepcopy(choose.choice(_VALUES))
        elif kind < 0.7 and isinstance(where[key], int | float):
            where[key] = where[key] * choose.choice((-1, 0, 1e9, 1e-9, 1e300, 10**30))
        elif kind < 0.8:
            other, its = choose.choice(places)
            where[key] = json.loads(json.dumps(other[its])) if its in other or isinstance(other, list) else None
        elif kind < 0.9 and isinstance(where, dict):
            where[choose.choice(("x", "", key + "s", "`a` - at `$.b`"))] = where.pop(key)
        else:
            del where[key]
    return value


def mutated(reader: Reader, choose: random.Random) -> bytes:
    """One damaged file of a reader."""
    data = choose.choice(reader.files)
    kind = choose.random()
    if reader.packed:
        return damaged(data, choose)
    if reader.as_json and kind < 0.7:
        return json.dumps(_changed(json.loads(data), choose)).encode()
    if kind < 0.85:
        spans = [match.span() for match in _TOKEN.finditer(data)] or [(0, 0)]
        a, b = choose.choice(spans)
        value = choose.choice(_RAW) if choose.random() < 0.5 else json.dumps(choose.choice(_VALUES)).encode()
        return data[:a] + value + data[b:]
    return damaged(data, choose)


# ---- the small real files -----------------------------------------------------------------------------------


def _records() -> list[Any]:
    found: list[Any] = []
    for index, C in enumerate((1, 2, 4)):
        for k in range(2 * C):
            at = 10.0 * index + (k // C) * 3.0 + 0.1 * (k % C)
            tokens = (1, 2, 1) if k % 3 else ()
            made = request(at, [at + 0.2, at + 0.4, at + 0.6], tokens=tokens, error="reset" if k == 3 else "")
            found.append(msgspec.structs.replace(made, request_id=f"r-0-{len(found)}", level=index, concurrency=C))
    return found


def _levels() -> list[Level]:
    return [Level(i, C, 0, 10.0 * i, 10.0 * i + 1, 10.0 * i + 8, 10.0 * i + 9) for i, C in enumerate((1, 2, 4))]


def _samples() -> list[Sample]:
    figures = [("client", "0/cpu_fraction", 0.3), ("client", "r-0/sent", 3.0), ("host", "cpu0_fraction", 0.5)]
    figures += [("server", "running", 2.0), ("server", "generation_tokens", 50.0), ("gpu", "0/utilization", 0.9)]
    figures += [("gpu", "0/throttle_reasons", 0.0), ("gpu", "0/energy_j", 5.0), ("client", "0/paused_s", 0.6)]
    return [Sample(2.0 + 2 * k, *each) for k in range(14) for each in figures]


def manifest() -> dict[str, Any]:
    """A manifest with every field that anything reads."""
    path = Path(__file__).parents[2] / "results" / "live-vllm" / MANIFEST
    fields: dict[str, Any] = json.loads(path.read_text())
    fields["prediction"]["levels"] = fields["prediction"]["levels"][:2]
    fields["gpu"] = fields["scenario"]["hardware"]["gpu"] = "h100-sxm"  # the host would be measured
    fields["scenario"]["hardware"]["host_cpus"] = None
    fields["ramp"], fields["price"] = fields["ramp"][:3], 2.5
    fields["gpu_facts"] = [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 8e10}]
    calibrated = Path(__file__).parents[2] / "results" / "live-h100-decode" / MANIFEST
    fields["client"]["calibration"] = json.loads(calibrated.read_text())["client"]["calibration"]
    fields["scenario"]["slo"] = {"ttft_p99": 2.0}
    fields["complete"] = False  # one that is complete could not go on
    return fields


def _folder(place: Path) -> Path:
    """A finished run of three short levels."""
    folder = place / "run"
    folder.mkdir()
    spool = Spool(folder, header(5, 6.5))
    for level in _levels():
        spool.level(level)
    records = _records()
    for i in range(0, len(records), 4):
        spool.write(frames.batch(records[i : i + 4]))
    spool.telemetry(_samples())
    spool.close()
    return folder


def _payload(choose: random.Random, payload: bytes) -> bytes:
    """A frame's payload with other values, whose checksum will hold."""
    try:
        value = _changed(msgspec.msgpack.decode(payload), choose)
        return msgspec.msgpack.encode(value)
    except (OverflowError, TypeError, ValueError, msgspec.MsgspecError):
        return damaged(payload, choose)


def spool_mutated(reader: Reader, choose: random.Random) -> bytes:
    """A damaged spool: its bytes, or what its frames hold."""
    data = choose.choice(reader.files)
    if choose.random() < 0.4:
        return damaged(data, choose)
    parts = list(frames.payloads(data))
    at = choose.randrange(len(parts))
    parts[at] = _payload(choose, parts[at])
    return b"".join(map(frames.frame, parts))


def parquet_mutated(reader: Reader, choose: random.Random) -> bytes:
    """A damaged parquet file: its bytes, its metadata, or the type or the values of a column."""
    data = choose.choice(reader.files)
    if choose.random() < 0.6:
        tail = len(data) - int.from_bytes(data[-8:-4], "little") - 8
        return damaged(data, choose) if choose.random() < 0.4 else data[:tail] + damaged(data[tail:], choose)
    table = pq.read_table(io.BytesIO(data))
    name = choose.choice(table.column_names)
    kind, at = choose.random(), table.column_names.index(name)
    if kind < 0.4 and b"knee" in (table.schema.metadata or {}):
        about = _changed(json.loads(table.schema.metadata[b"knee"]), choose)
        table = table.replace_schema_metadata({b"knee": json.dumps(about).encode()})
    elif kind < 0.55:
        table = table.drop_columns([name])
    elif kind < 0.7:
        table = table.set_column(at, name, pa.nulls(len(table), table.column(name).type))
    else:
        cells = table.column(name).to_pylist()
        cells[choose.randrange(len(cells))] = choose.choice(
            (None, 0, -1, 2**31 - 1, 1e308, -1e308, np.nan, "x", [], [1])
        )
        try:
            table = table.set_column(at, name, pa.array(cells, type=table.column(name).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            table = table.set_column(at, name, pa.array([repr(each) for each in cells]))
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


class Readers:
    """Every reader of files from outside, each with its files; a folder of its own holds what they read."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory()
        self.refused = False  # the last file, in a line
        self._times = 0  # that a folder was read
        place = Path(self._place.name)
        self._folder = _folder(place)
        spool = (self._folder / SPOOL).read_bytes()
        shutil.copytree(self._folder, place / "done")
        finish(place / "done")
        requests, telemetry = ((place / "done" / name).read_bytes() for name in (REQUESTS, TELEMETRY))
        self._run = Result.open(self._folder)
        scenarios = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))]
        foreign = [path.read_bytes() for path in sorted(_FOREIGN.iterdir()) if path.suffix != ".md"]
        configs = [json.dumps(model_config(name)).encode() for name in models()]
        self.all: dict[str, Reader] = {
            "manifest": Reader([json.dumps(manifest()).encode()], True, self._manifest),
            "spool": Reader([spool], False, self._spool, packed=True),
            "requests": Reader([requests], False, self._requests, packed=True),
            "telemetry": Reader([telemetry], False, self._telemetry, packed=True),
            "scenario": Reader([*scenarios, _EVERY_FIELD, _EVERY_LENGTH, _EVERY_REUSE], False, self._scenario),
            "config": Reader(configs, True, self._config),
            "calibration": Reader([_CALIBRATION], True, self._calibration),
            "map": Reader([_MAP], True, self._map),
            "csv": Reader([_CSV], False, lambda data: table.read(data.decode(errors="replace"), "x.csv")),
            "foreign": Reader(foreign, False, lambda data: readers.of_bytes(data, "x.json")),
        }

    def close(self) -> None:
        self._place.cleanup()

    def mutated(self, name: str, choose: random.Random) -> bytes:
        """One damaged file for the reader of that name."""
        reader = self.all[name]
        if name == "spool":
            return spool_mutated(reader, choose)
        if name in ("requests", "telemetry"):
            return parquet_mutated(reader, choose)
        return mutated(reader, choose)

    def wrong(self, name: str, data: bytes) -> str:
        """What is wrong with what came of these bytes; empty if nothing is."""
        self.refused = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.all[name].read(data)
        except HarnessError as error:
            self.refused = True
            return "" if error.place and error.way_out and error.fact else f"no place or way out: {error}"
        except Exception as error:  # noqa: BLE001  # whatever it is: nothing else may leave
            return f"{type(error).__name__}: {error}"
        return ""

    def _put(self, name: str, data: bytes) -> Path:
        path = Path(self._place.name) / name
        path.write_bytes(data)
        return path

    def _manifest(self, data: bytes) -> None:
        (self._folder / MANIFEST).write_bytes(data)
        about = read_manifest(self._folder)
        if isinstance(about, Manifest):
            self._summed(msgspec.structs.replace(self._run, manifest=about))
        must_go_on(self._folder, about)

    def _summed(self, run: Result) -> None:
        """What `knee report` makes of a run; its fit and its graphs, which cost most, of every so-manieth."""
        if self._times % _WHOLE_EVERY == 0:
            summarise.exit_status(summarise.summarise(run))
        else:
            table, facts = Table.of(run.records), Facts.of(run.manifest)
            for level in run.levels[-2:]:
                if level.finished and level.window_end_s is not None:
                    summarise_level(run.records, table, run.samples, level, facts)
        self._times += 1
        RampInputs.of(run.manifest)
        prediction.find(run.manifest.scenario.hardware, run.manifest.gpu_facts)

    def _spool(self, data: bytes) -> None:
        self._put("x.spool", data)
        found = frames.read(Path(self._place.name) / "x.spool")
        whole = list(frames.payloads(data))
        assert found.end <= sum(map(len, whole)) + 8 * len(whole)
        if found.header is not None:
            levels = [found.levels[index] for index in sorted(found.levels)]
            self._summed(
                msgspec.structs.replace(self._run, levels=levels, records=found.records, samples=found.samples)
            )

    def _requests(self, data: bytes) -> None:
        header, levels, records = columns.requests(self._put(REQUESTS, data))
        self._summed(msgspec.structs.replace(self._run, header=header, levels=levels, records=records))

    def _telemetry(self, data: bytes) -> None:
        samples = columns.telemetry(self._put(TELEMETRY, data))
        self._summed(msgspec.structs.replace(self._run, samples=samples))

    def _scenario(self, data: bytes) -> None:
        found = reading.load(str(self._put("x.toml", data)))
        again = scenario.to_toml(found)
        scenario.digest(found)
        assert reading.load(str(self._put("y.toml", again.encode()))) == found
        mix = shape.of(found)  # what is read can be drawn from
        assert mix.mean().input_tokens >= 1
        assert mix.shape(0).output_tokens >= 1

    def _config(self, data: bytes) -> None:
        path = str(self._put("config.json", data))
        query = question.Question(model=path, gpu="h100-sxm", input_tokens=128, output_tokens=16, levels=(1, 8))
        question.predict(query)

    def _calibration(self, data: bytes) -> None:
        prediction.calibration(str(self._put("calibration.json", data)))

    def _map(self, data: bytes) -> None:
        from harness.report import level_map, markdown

        folder = Path(self._place.name)
        self._put(levelmap.MAP, data)
        markdown.render(level_map.report(levelmap.read(folder)))


_FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
_CSV = b"concurrency,output_tokens_per_s,error\n1,100,2\n2,190,\n4,350,9\n8,400,10\n"
_CALIBRATION = calibration.encode(
    calibration.Calibration(
        model="llama-3.1-8b", weight_bytes=1.6e10, gpu="h100-sxm", mbu=0.8, mfu_prefill=0.4, mfu_decode=0.4,
        o_layer=3e-5, o_step=1e-4, o_req=4e-6, o_api=0.0, fitted=("mbu",), kept={"mfu_decode": "why"},
        fitted_on=(1, 16), input_tokens=128, output_tokens=64, errors_unseen=(), notes=(), source="x",
    )
).encode()  # fmt: skip
_MAP = json.dumps(
    {
        "format": 1, "name": "m", "created": "2026", "model": "x", "gpu": "h100-sxm", "simulated": True,
        "complete": True,
        "axes": [{"name": "input_tokens", "values": [1, 2]}, {"name": "server", "values": ["a", "b"]}],
        "cells": [
            {"name": f"{i}{s}", "at": {"input_tokens": i, "server": s}, "status": 0,
             "knee": {"value": 16.0, "ci95": [15, None]}, "plateau_tokens_per_s": {"value": 900.0},
             "plateau_reached": True, "verdicts": ["doubt"], "seconds": 9.0, "requests": 100}
            for i in (1, 2) for s in "ab"
        ],
    }
).encode()  # fmt: skip
_EVERY_FIELD = b"""
name = "every"
[target]
url = "http://h:1/v1"
headers = { X = "env:KEY" }
extra_body = { top_p = 0.5, stop = ["a"], deep = { a = [1, 2] } }
request_timeout = "60s"
server_meta = { version = "1" }
[workload]
input_tokens = "1k"
output_tokens = 64
seed = 1
[ramp]
levels = [1, 2, 4]
level_seconds = 3
precision = 0.05
max_ttft = "2s"
max_dollars = 3.5
repeat = 2
[hardware]
gpu = "h100-sxm"
gpus = 2
tp = 2
price = 2.5
price_per_mtok = [0.1, 0.2]
[slo]
ttft_p99 = "2s"
e2e = 9.0
[sweep]
input_tokens = [128, 256]
[sweep.urls]
a = "http://a:1"
b = "http://b:1"
"""
_EVERY_LENGTH = """
[[class]]
name = "chat"
share = 0.5
input = "512±64 in 1..1k"
output = "lognormal(128,80)"
model = "m"
priority = 1
structured = true
slo = { ttft_p99 = "2s", e2e = 9.0 }
cancel = { share = 0.1, after_s = "2s" }
[[class]]
name = "long"
input = "100:3,32k:1"
output = "16..64"
cancel = { share = 0.1, after_tokens = 3 }
""".encode()

_EVERY_REUSE = """
[workload]
tools = [{ type = "function", function = { name = "look", parameters = { type = "object" } } }]
[workload.prefix]
tokens = "1k"
pool = 100
share = 0.8
zipf = 1.0
[[workload.node]]
name = "plan"
input_tokens = 200
[[workload.node]]
name = "search"
after = ["plan"]
output_tokens = "512±64"
pause = "500ms"
fan_out = 3
fresh = true
[[workload.node]]
name = "write"
after = ["plan", "search"]
""".encode()
