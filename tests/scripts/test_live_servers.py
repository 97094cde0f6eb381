"""The table of the live servers: what is judged, and how; no server is started here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.summary import BEYOND, FOUND, NONE, PROVISIONAL, Curve, Estimate, Summary, Value
from tests.builders.summaries import full, level

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import live_servers  # noqa: E402  # its folder is a line above
from live_servers import Live, bend, faults, interval, meets, nginx_conf, report, sweep_seconds, verdict  # noqa: E402


def live(**changes: Any) -> Live:
    usual = Live(name="llama-8", server="llama-server", version="1", limit=8, max_seconds=240, seconds=238, status=0)
    return msgspec.structs.replace(usual, **changes)


def curve(state: str = FOUND, knee: float | None = 8.2, **changes: Any) -> Curve:
    return Curve(
        state=state,
        family="capped_hyperbola",
        single_stream_tokens_per_s=Value(10.0),
        hinge_concurrency=Value(knee, (7.0, 9.1) if knee else None),
        plateau_tokens_per_s=Value(60.0, (58.0, None)),
        plateau_reached=state == FOUND,
        dip=None,
        weights={},
        parameters={},
        verdicts=[],
        **changes,
    )


def summary(fitted: Curve | None, rates: dict[int, float] | None = None) -> Summary:
    rates = rates or {1: 10.0}
    levels = [
        msgspec.structs.replace(level(concurrency), output_tokens_per_s=Estimate(rate))
        for concurrency, rate in rates.items()
    ]
    return msgspec.structs.replace(full(), curve=fitted, levels=levels)


def folder(path: Path, about: Live, found: Summary | None) -> live_servers.Run:
    live_servers.write(path, about)
    if found is not None:
        (path / "summary.json").write_bytes(msgspec.json.encode(found))
    return live_servers.read(path)


def test_a_found_knee_at_the_servers_limit_is_as_it_should_be() -> None:
    assert verdict(live(), curve()) == "yes"
    assert verdict(live(limit=None), curve(knee=3.0)) == "yes"


@pytest.mark.parametrize(("knee", "right"), [(6.1, True), (5.9, False), (9.9, True), (10.1, False)])
def test_a_found_knee_lies_within_a_quarter_of_the_limit(knee: float, right: bool) -> None:
    assert (faults(live(), curve(knee=knee)) == []) == right


def test_a_provisional_answer_is_one_with_its_reason() -> None:
    reasons = ["no level above the knee"]
    assert verdict(live(), curve(PROVISIONAL, 12.0, reasons=reasons)) == "yes, provisional: no level above the knee"


@pytest.mark.parametrize(
    ("about", "fitted", "why"),
    [
        (live(status=3), curve(), "no: exit status 3"),
        (live(status=1, error="error: no model"), None, "no: exit status 1: error: no model; no answer"),
        (live(seconds=300.0), curve(), "no: 300 s, more than 240"),
        (live(), curve(BEYOND, None), "no: throughput still rises at the last level"),
        (live(), curve(NONE, None, reasons=["two levels"]), "no: no answer: two levels"),
        (live(status=None, error="did not start"), None, "no: did not start"),
    ],
    ids=["status", "refused", "late", "beyond", "none", "not started"],
)
def test_what_is_wrong_is_named(about: Live, fitted: Curve | None, why: str) -> None:
    assert verdict(about, fitted) == why


def test_levels_of_its_own_have_no_answer_to_give() -> None:
    assert verdict(live(max_seconds=None, seconds=20.0), None) == "yes"


@pytest.mark.parametrize(
    ("rates", "between"),
    [
        ({1: 10.0, 2: 20.0, 4: 40.0, 8: 41.0}, (2, 4)),
        ({1: 10.0, 2: 20.0, 4: 30.0, 8: 60.0, 16: 58.0, 32: 20.0}, (4, 8)),  # a dip above it changes nothing
        ({1: 10.0, 2: 20.0, 4: 40.0}, None),
        ({1: 10.0, 2: 10.0}, (1, 1)),
        ({4: 10.0}, None),
    ],
)
def test_the_bend_lies_where_throughput_stops_rising(rates: dict[int, float], between: tuple[int, int] | None) -> None:
    assert bend(rates) == between


def test_an_interval_meets_a_bend_that_it_touches() -> None:
    assert meets(Value(9.0, (8.0, 10.0)), (4, 8)) is True
    assert meets(Value(9.0, (8.1, 10.0)), (4, 8)) is False
    assert meets(Value(3.0, (2.0, None)), (4, 8)) is True
    assert meets(Value(None), (4, 8)) is None
    assert meets(Value(3.0, (2.0, 4.0)), None) is None


def test_an_interval_says_which_end_is_open() -> None:
    assert interval(Value(8.0, (None, None))) == "8.0 [0, ∞]"
    assert interval(Value(8.0)) == "8.0"
    assert interval(Value(None)) == interval(None) == "–"


def test_a_sweep_lasts_as_long_as_the_ramp_before_it() -> None:
    rates = {1: 64.0, 16: 512.0}  # of a server whose requests of 64 tokens take 1 s alone and 2 s at 16
    window = sweep_seconds(240.0, rates, [1, 16, 32])
    assert 3 * window + 3 * (1.0 + 2.0 + 4.0) == pytest.approx(240.0)
    assert sweep_seconds(1.0, rates, [1, 16, 32]) == 2.0
    assert sweep_seconds(70.0, {}, [1, 2]) == 17.5


def test_the_table_is_made_from_the_folders(tmp_path: Path) -> None:
    found = folder(tmp_path / "live-llama-8", live(), summary(curve()))
    failed = folder(tmp_path / "live-litellm", live(status=None, seconds=None, error="did not start"), None)
    text = report([found, failed])
    assert "| live-llama-8 | llama-server 1 | found | 8.2 [7.0, 9.1] | 8 | 60 [58, ∞] | 238 | 0 | yes |" in text
    assert "| live-litellm | llama-server 1 | – | – | 8 | – | – | – | no: did not start |" in text
    assert text.endswith("1 of 2 runs are as they should be.")
    assert "sweep" not in text


def test_a_sweep_stands_in_the_row_of_its_ramp_and_is_no_run_of_its_own(tmp_path: Path) -> None:
    ramp = folder(tmp_path / "ramp-1", live(), summary(curve()))
    about = live(max_seconds=None, seconds=231.0, ramp="ramp-1")
    sweep = folder(tmp_path / "sweep-1", about, summary(curve(PROVISIONAL), {1: 10.0, 8: 60.0, 16: 61.0}))
    text = report([ramp, sweep])
    row = "| ramp-1 | found | 8.2 [7.0, 9.1] | provisional | 8.2 [7.0, 9.1] | 1–8 | yes | 238 / 231 |"
    assert row in text
    assert text.endswith("1 of 1 runs are as they should be.")


def test_each_nginx_differs_in_one_thing() -> None:
    conf = {kind: nginx_conf(81, "http://127.0.0.1:82", kind, Path("/pem")) for kind in live_servers.NGINX}
    assert "proxy_buffering off" not in conf["buffered"]
    assert all("proxy_buffering off" in text for kind, text in conf.items() if kind != "buffered")
    assert [kind for kind, text in conf.items() if "gzip on" in text] == ["gzip"]
    assert [kind for kind, text in conf.items() if "listen 127.0.0.1:81 ssl;" in text] == ["tls"]
    assert [kind for kind, text in conf.items() if "location /llm/ { proxy_pass http://127.0.0.1:82/; }" in text] == [
        "prefix"
    ]
    assert all(text.count("{") == text.count("}") for text in conf.values())


def test_help_names_every_server() -> None:
    run = subprocess.run([ROOT / "scripts/live-servers", "--help"], capture_output=True, text=True, check=True)
    assert [name for name in live_servers.SERVERS if name not in run.stdout] == []


def test_every_server_has_its_version_from_the_pins() -> None:
    versions = {name: server.version() for name, server in live_servers.SERVERS.items()}
    assert versions["vllm"] == "0.32.0"
    assert versions["transformers"].startswith("5.23")
    assert all(versions.values())
