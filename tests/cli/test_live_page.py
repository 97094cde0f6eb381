"""`knee run --live`: the page of a running measurement, which ends as the report."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from harness.cli import cli, live_page
from harness.data.progress import LevelProgress, RunProgress
from harness.data.summary import Summary
from harness.report import document as doc
from harness.report import live, page
from harness.report.answer import answer, figures
from harness.report.format import MISSING
from harness.report.live import LiveView
from tests.builders.browser import tab
from tests.report.test_page import Seen, browser

MOMENT = LevelProgress(
    phase="window", elapsed_s=3.2, expected_s=10.0, in_flight=4.0, output_tokens_per_s=1853.0, errors=1, ttft_s=0.12,
    left_s=42.0,
)  # fmt: skip


def asked(address: str, path: str, host: str = "") -> tuple[int, bytes]:
    """The status and the body of one request."""
    place = address.removeprefix("http://").strip("/")
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60)) as link:
        link.request("GET", path, headers={"Host": host or place})
        answered = link.getresponse()
        return answered.status, answered.read()


def test_the_page_s_words_are_the_terminal_s_figures() -> None:
    head, facts = live.words(RunProgress(folder="/r", level="C = 4", place="3 of 5", now=MOMENT))
    assert head == "Level 3 of 5: C = 4, window, 3 of 10 s"
    assert [(fact.label, fact.value) for fact in facts] == [
        ("Throughput", "1,853 tok/s"), ("In flight", "4.0"), ("TTFT", "120 ms"), ("Errors", "1"),
        ("Time left", "about 42 s"),
    ]  # fmt: skip
    over = msgspec.structs.replace(MOMENT, left_s=0.3)  # the last level takes longer than was expected
    assert live.words(RunProgress(folder="/r", now=over))[1][-1].value == MISSING
    assert live.words(RunProgress()) == ("The server is checked", [])


def test_a_running_page_asks_its_own_server_alone_and_needs_no_script() -> None:
    head, facts = live.words(RunProgress(folder="/r", level="C = 4", place="3 of 5", now=MOMENT))
    source = page.render(doc.Document(title="x", sections=[]), page.Running("7", head, facts))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', source)
    assert policy is not None
    assert policy[1].startswith("default-src &#39;none&#39;;")
    assert policy[1].endswith("; connect-src &#39;self&#39;")
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in source
    text = " ".join(Seen(source).text.split())
    assert "Level 3 of 5: C = 4, window, 3 of 10 s Throughput1,853 tok/sin the last second In flight4.0" in text


def test_the_server_takes_what_the_run_sends_and_ends_as_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("the whole report")
    with live_page.LivePage(LiveView(quiet=True), live_page.listening(0)) as shown:
        status, first = asked(shown.address, "/")
        assert (status, b'id="live"' in first) == (200, True)
        shown.level_started("C = 4", 2, 5)
        shown.update(MOMENT)
        now: dict[str, Any] = {}
        while "window" not in now.get("head", ""):
            now = json.loads(asked(shown.address, "/now")[1])
        assert now["facts"][0] == ["Throughput", "1,853 tok/s", "in the last second"]
        assert asked(shown.address, "/now", host="evil.example")[0] == 403
        assert asked(shown.address, "/report.html")[0] == 404
        shown.over(report)
        while (served := asked(shown.address, "/")[1]) == first or b'id="live"' in served:
            pass
        assert served == b"the whole report"
    with pytest.raises(OSError, match="refused"):
        asked(shown.address, "/")


def test_a_server_that_reads_nothing_does_not_keep_the_run_waiting() -> None:
    with live_page.LivePage(LiveView(quiet=True), live_page.listening(0)) as shown:
        os.kill(shown._server.pid, 19)  # SIGSTOP
        try:
            for _ in range(5000):  # 1.5 MB, twenty times what a pipe holds
                shown.update(MOMENT)
        finally:
            os.kill(shown._server.pid, 18)  # SIGCONT


def test_a_server_that_died_ends_no_run() -> None:
    with live_page.LivePage(LiveView(quiet=True), live_page.listening(0)) as shown:
        shown._server.kill()
        shown._server.wait()
        shown.update(MOMENT)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--live", "TAKEN", "--url", "sim:"], "error: --live: port TAKEN cannot be had: Address already in use; "
         "give another port, or --live alone for a free one"),
        (["--live", "99999", "--url", "sim:"], "error: --live: '99999' is no port; "
         "give 1 to 65535, or the option alone"),
        (["--live", "sim:", "--no-plots"], "error: --live: its page ends as report.html; leave --no-plots out"),
    ],
)  # fmt: skip
def test_a_port_that_cannot_be_had_is_one_line(words: list[str], line: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        typed = [word.replace("TAKEN", taken) for word in words]
        done = CliRunner().invoke(cli, ["run", *typed, "--out", str(tmp_path / "out")])
        assert done.exit_code != 0
        assert done.stderr.splitlines()[-1] == line.replace("TAKEN", taken)


def seen_on(shown: Any) -> tuple[str, list[str], list[list[str]]]:
    """The sentence, the cards and the first two columns of the table of levels, as the browser has them."""
    text = "each => each.textContent"
    return (
        shown.value("document.querySelector('.sentence')?.textContent ?? ''"),
        shown.value(f"Array.from(document.querySelectorAll('.answer .value'), {text})"),
        shown.value("Array.from(document.querySelectorAll('.levels')[0].tBodies[0].rows,"
                    f" row => Array.from(row.cells, {text}).slice(0, 3))"),
    )  # fmt: skip


@pytest.mark.parametrize("_", [pytest.param("", marks=browser)])
def test_a_browser_follows_a_run_to_its_report(_: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "harness", "run", "--live", "sim:", "--speed", "8", "--level-seconds", "4",
               "--levels", ",".join(map(str, range(1, 33))), "--out", str(folder)]  # fmt: skip
    with (
        tab() as watching,
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run,
    ):
        assert run.stderr is not None
        address = next(found[0] for line in run.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+/", line)))
        watching.look()
        watching.open(address)
        watching.until("document.querySelectorAll('#live .value').length === 5")
        watching.until("!!document.querySelector('#curve .switch')")
        watching.value("document.querySelector('#curve .switch button:last-child').click()")
        watching.until("document.querySelectorAll('.levels tbody tr').length >= 3")
        watching.until("document.querySelector('#curve .switch [aria-pressed=true]')?.textContent === 'linear'")
        for look in ({"width": 390}, {"dark": True}, {"paper": True}):
            watching.look(**look)
            watching.until("document.querySelector('footer') && document.documentElement.scrollWidth <= innerWidth")
        run.send_signal(signal.SIGINT)  # its levels are more than are needed
        watching.until("document.querySelector('footer') && !document.getElementById('live')")
        run.stderr.read()
        assert run.wait() == 128 + signal.SIGINT
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
        sentence, cards, rows = seen_on(watching)
        assert sentence == answer(summary).sentence
        assert cards[: len(figures(summary)) - 1] == [fact.value for fact in figures(summary)[1:]]
        assert [row[0] for row in rows] == [f"{level.concurrency:,}" for level in summary.levels]
        measured = [f"{level.output_tokens_per_s.mean:,.0f}" for level in summary.levels]
        assert [row[2] for row in rows] == measured
        assert {url.partition("/now")[0].rstrip("/") for url in watching.requested} == {address.rstrip("/")}
        assert not watching.console
        assert watching.value("document.documentElement.outerHTML.length") > 500_000
