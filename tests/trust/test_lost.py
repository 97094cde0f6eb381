"""Nothing lost, nothing counted twice: kills, signals, full disks and resumed runs, compared with the server's log."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.base.errors import HarnessError
from harness.data.manifest import Manifest, Session
from harness.library import notebook
from harness.load import worker as worker_process
from harness.load import workers as worker_set
from harness.load.link import LocalWorker
from harness.load.loop import HotSelector, new_loop
from harness.load.messages import BeginLevel, Codec, Done, Message, Plan, Prepare, Replica
from harness.load.transport import Target
from harness.results import frames
from harness.results.folder import MANIFEST
from harness.results.result import Result
from harness.run import experiment, resume
from harness.sim.process import running
from harness.sim.profile import profile
from harness.workload.source import Uniform
from tests.builders.servers import serving
from tests.builders.streams import VLLM
from tests.trust import lost
from tests.trust.lost import KNEE, Account

pytestmark = pytest.mark.slow
TIMED = {
    "kill -9 of the main process", "a worker stands still for 0.8 s", "the main process stands still for 2 s",
    "disk full", "disk full, --resume with room",  # a level has to come as far as the limit
}  # fmt: skip
FIVE = ["--input-tokens", "64", "--output-tokens", "16", "--levels", "1,2", "--level-seconds", "0.5", "--no-plots"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.alone if name in TIMED else ()) for name in lost.CASES]
)
def test_a_run_that_is_hurt_keeps_what_was_written_and_counts_nothing_twice(name: str, tmp_path: Path) -> None:
    account = lost.tried(name, tmp_path)
    assert lost.wrong(name, account) == [], account.talk
    CLAIMS.get(name, lambda a: None)(account)


def _says_which_worker_and_how(a: Account) -> None:
    (line,) = [line for line in a.talk.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: worker 1: a load-generating process ended in the middle of the run")
    assert "killed by SIGKILL" in line
    (early,) = [v for v in a.summary.verdicts if v.code == "incomplete"]
    assert "2 of the 3 levels begun are finished" in early.message
    assert "SIGKILL" in early.message
    assert 1 <= a.reported <= a.logged - a.kept


def _keeps_every_request(a: Account) -> None:
    assert a.logged == a.kept, "what was in flight is cut, and has its record"


def _voids_the_window_of(code: str, level: str) -> Any:
    def claim(a: Account) -> None:
        found = {(v.code, v.level) for s in a.summary.levels if s.concurrency == 2 for v in s.verdicts}
        assert (code, level) in found
        others = {v.code for s in a.summary.levels if s.concurrency != 2 for v in s.verdicts}
        assert code not in others
        assert a.logged == a.kept

    return claim


def _says_what_did_not_fit(a: Account) -> None:
    (line,) = [line for line in a.talk.splitlines() if line.startswith("error: ")]
    assert "cannot write what is measured: File too large" in line
    assert "--resume" in line
    assert 0 < a.reported <= a.logged - a.kept


def _says_that_it_is_gone(a: Account) -> None:
    (line,) = [line for line in a.talk.splitlines() if line.startswith("error: ")]
    assert "No such file or directory" in line


def _ends_its_load_at_once(a: Account) -> None:
    assert a.loaded_s is not None
    assert a.loaded_s < 1.0, "the workers see that nobody measures any more"
    assert "incomplete" in a.verdicts()


CLAIMS = {
    "kill -9 of the main process": _ends_its_load_at_once,
    "kill -9 of one of two workers": _says_which_worker_and_how,
    "Ctrl-C": _keeps_every_request,
    "Ctrl-C twice": _keeps_every_request,
    "SIGTERM in the window": _keeps_every_request,
    "SIGTERM in the warm-up": _keeps_every_request,
    "SIGTERM in the cooldown": _keeps_every_request,
    "SIGHUP": _keeps_every_request,
    "disk full": _says_what_did_not_fit,
    "a worker stands still for 0.8 s": _voids_the_window_of("worker_paused", "invalid"),
    "the main process stands still for 2 s": _voids_the_window_of("parent_paused", "note"),
    "result folder removed": _says_that_it_is_gone,
}


def knee(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KNEE, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


def test_a_resumed_run_asks_every_prompt_once_and_its_times_go_on(tmp_path: Path) -> None:
    with lost.scene(tmp_path) as s:
        lost.interrupted_and_resumed(s)
    run = Result.open(s.out)
    ids = [r.request_id.split("-") for r in run.records]
    numbers = [int(number) for _, _, number in ids]
    assert len(set(numbers)) == len(numbers)
    assert len({session for session, _, _ in ids}) == 2
    first, second = run.manifest.sessions
    assert first.ended == "SIGINT"
    assert second.ended == "complete"
    assert isinstance(first.ended_s, float)
    assert isinstance(second.began_s, float)
    assert first.ended_s < second.began_s, "the machine was not started anew: one clock"
    assert first.monotonic_ns_origin == second.monotonic_ns_origin == run.header.monotonic_ns_origin
    for r in run.records:
        sent = r.sent_s or r.scheduled_s
        assert (sent < first.ended_s) is (r.request_id.split("-")[0] == first.run_id)
    void = [level for level in run.levels if not level.finished]
    assert [level.notes[-1] for level in void] == ["void"]
    frame = notebook.requests(Result.open(s.out))
    measured = frame[frame["phase"] == "measure"]
    assert not measured["level"].isin([level.index for level in void]).any()
    assert [step.concurrency for step in run.manifest.ramp or ()] == [1, 2, 4, 8, None]


def test_two_processes_do_not_run_into_one_folder(tmp_path: Path) -> None:
    with lost.scene(tmp_path) as s:
        run = s.begin()
        run.reached(1)
        run.signal(signal.SIGSTOP)  # or it may be complete before the second process looks
        second = knee("run", "--resume", str(s.out))
        run.signal(signal.SIGCONT)
        assert second.returncode == 1
        assert second.stderr == f"error: {s.out}: another process is still writing into it; wait for its end\n"
        assert s.ended() in lost.MEASURED


def test_a_complete_run_is_not_resumed_and_takes_no_other_option(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert knee("run", "--url", "sim:", "--speed", "4", *FIVE, "--out", out).returncode in lost.MEASURED
    done = knee("run", "--resume", out)
    assert (done.returncode, done.stderr) == (1, f"error: {out}: this run is complete; see it by `knee report {out}`\n")
    done = knee("run", "--resume", out, "--levels", "1,2,4")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --resume: not allowed with --levels")
    # Killed after the last level, before the manifest said so: no level is left to measure, and no endpoint is needed.
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({**manifest, "complete": False}))
    before = Result.open(out)
    done = knee("run", "--resume", out, "--no-plots")
    assert done.returncode in lost.MEASURED, done.stderr
    after = Result.open(out)
    assert after.manifest.complete is True
    assert (after.records, after.levels, after.samples) == (before.records, before.levels, before.samples)


def test_a_secret_header_is_asked_for_again_and_must_be_the_same(tmp_path: Path) -> None:
    with lost.scene(tmp_path) as s:
        run = s.begin("--header", "X-Key: sesame")
        run.reached(1)
        run.signal(signal.SIGINT)
        assert s.ended() == 130
        none = knee("run", "--resume", str(s.out))
        assert none.returncode == 1
        assert "the value of its header 'X-Key' is not stored; add --header 'X-Key: …'" in none.stderr
        other = knee("run", "--resume", str(s.out), "--header", "X-Other: 1", "--header", "X-Key: sesame")
        assert other.returncode == 1
        assert "the run has no header 'X-Other'" in other.stderr
        right = knee("run", "--resume", str(s.out), "--header", "X-Key: sesame", "--no-plots", "--yes")
        assert right.returncode in lost.MEASURED, right.stderr


def test_a_server_that_is_away_or_serves_another_model_is_said_and_leaves_the_folder_to_be_resumed(
    tmp_path: Path,
) -> None:
    with lost.scene(tmp_path) as s:
        lost._signalled(signal.SIGINT)(s)
    before = Result.open(s.out)
    away = knee("run", "--resume", str(s.out))
    assert away.returncode == 1
    assert "nothing answers there" in away.stderr
    assert Result.open(s.out).records == before.records
    port = s.url.rsplit(":", 1)[1]
    other = profile("mistral-7b/h100-sxm", max_num_seqs=8, speed=2.0)
    command = [KNEE[0], "-m", "harness.sim", "--port", port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(msgspec.json.encode(other) + b"\n")
        server.stdin.flush()
        server.stdout.readline()
        changed = knee("run", "--resume", str(s.out))
        server.terminate()
    assert changed.returncode == 1
    assert "the run began with 'llama-3.1-8b'" in changed.stderr
    assert len(Result.open(s.out).manifest.sessions) == 3, "each try has prompts of its own"
    assert Result.open(s.out).records == before.records


def test_another_boot_shifts_the_clock_behind_the_folder_s_last_moment() -> None:
    origin = (time.monotonic_ns() - 10**11, time.time() - 100.0)

    def of_boot(boot: str | None) -> Manifest:
        session = Session(began_s=0.0, monotonic_ns_origin=origin[0], unix_origin=origin[1], boot=boot)
        return Manifest(sessions=[session])

    same = of_boot(experiment.host.boot())
    assert resume.origin(same, 50.0) == origin
    for manifest, last_s in (
        (of_boot("another"), 50.0),
        (of_boot(None), 50.0),
        (same, 1000.0),  # ahead of the clock: the folder is not of this machine
    ):
        origin_ns, unix_origin = resume.origin(manifest, last_s)
        now_s = (time.monotonic_ns() - origin_ns) * 1e-9
        assert now_s == pytest.approx(max(last_s + 1.0, 100.0), abs=1.0)
        assert time.time() - unix_origin == pytest.approx(now_s, abs=1.0)


def test_a_signal_before_the_first_level_is_said_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The endpoint takes the first question and is silent."""
    out = tmp_path / "out"
    requested = threading.Event()

    def script(r: Any) -> None:
        requested.set()
        time.sleep(20)

    with serving(script) as port:
        for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
            requested.clear()
            process = subprocess.Popen(
                [*KNEE, "run", "--url", f"http://127.0.0.1:{port}", *FIVE, "--out", str(out)], stderr=subprocess.PIPE
            )
            assert requested.wait(30)
            process.send_signal(number)
            _, talk = process.communicate(timeout=30)
            assert process.returncode == status
            assert talk == b"interrupted before the load began: no level was measured\n"
            assert not out.exists()


def test_a_run_that_hangs_up_is_not_ended_under_nohup(tmp_path: Path) -> None:
    with lost.scene(tmp_path) as s:
        run = s.begin(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        run.reached(1)
        run.signal(signal.SIGHUP)
        assert s.ended() in lost.MEASURED


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 100 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this test may not mount a file system: a full one is stood for by a limit on file size above")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_file_system_that_fills_up_leaves_a_folder_that_reads(small_disk: Path, tmp_path: Path) -> None:
    with running(profile(max_num_seqs=8, speed=2.0), log=tmp_path / "log") as url:
        out = small_disk / "out"
        full = knee("run", "--url", url, *lost.LOAD, "--out", str(out))
        assert full.returncode == 1
        assert "No space left on device" in full.stderr.splitlines()[-1]
        assert "Traceback" not in full.stderr
        # Moved to where there is room, it goes on.
        shutil.copytree(out, tmp_path / "moved")
        kept = {r.request_id for r in Result.open(tmp_path / "moved").records}
        assert len(kept) > 20
        done = knee("run", "--resume", str(tmp_path / "moved"), "--no-plots")
        assert done.returncode in lost.MEASURED, done.stderr
    run = Result.open(tmp_path / "moved")
    assert kept <= {r.request_id for r in run.records}
    assert [level.concurrency for level in summarise(run).levels] == lost.LEVELS


def test_a_folder_that_cannot_be_written_is_said_before_any_load(tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = knee("run", "--url", "http://127.0.0.1:9", *FIVE, "--out", str(small_disk / "out"))
    assert done.returncode == 1
    assert (
        done.stderr == f"error: {small_disk / 'out'}: cannot be written: Read-only file system; choose another --out\n"
    )


def plan(target: Target) -> Plan:
    return Plan(
        worker=0, workers=1, run_id="r", replicas=(Replica("", target),), codec=Codec(model="toy"), first_request=0,
        source=Uniform(words=("a",), prompt_words=4, output_tokens=4, seed=0), request_timeout_s=10.0,
        max_rps=None, start="burst", max_in_flight=8, tick_ns=1_000_000, origin_ns=time.monotonic_ns(),
    )  # fmt: skip


def test_a_worker_that_hangs_is_killed_and_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_set, "SILENT_S", 2)

    async def main(port: int) -> str:
        process = LocalWorker()
        async with worker_set.Workers([process]) as workers:
            batches: list[bytes] = []
            target = Target(scheme="http", host="127.0.0.1", port=port, path="/", headers={})
            await workers.begin([plan(target)], batches.append)
            await workers.next_progress()
            os.kill(process.pid, signal.SIGSTOP)
            try:
                while True:
                    await workers.next_progress()
            except HarnessError as error:
                return str(error)

    with serving(lambda r: r.stream(VLLM)) as port:
        message = asyncio.run(asyncio.wait_for(main(port), 60))
    assert "worker 0: a load-generating process ended" in message
    assert "it sent nothing for 2 s" in message


def test_a_worker_whose_messages_nobody_takes_stops_its_load_and_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "UNREAD_S", 0.5)
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(True)
    requested: list[float] = []

    def script(r: Any) -> None:
        requested.append(time.monotonic())
        r.stream(VLLM)
        time.sleep(0.005)

    with serving(script) as port:
        target = Target(scheme="http", host="127.0.0.1", port=port, path="/", headers={})
        selector = HotSelector(1_000_000)

        def work() -> None:
            with asyncio.Runner(loop_factory=lambda: new_loop(selector)) as runner:
                runner.run(worker_process.work(plan(target), theirs, selector, "user"))

        worker = threading.Thread(target=work)
        worker.start()
        level = BeginLevel(0, 0, 4, 4, 0.0, 1_000_000, time.monotonic_ns())
        for command in (Prepare(1, 4), level):
            ours.sendall(frames.frame(msgspec.msgpack.encode(command)))
        until = time.monotonic() + 30
        while time.monotonic() < until and not (requested and time.monotonic() > requested[-1] + 0.5):
            time.sleep(0.05)
        quiet = time.monotonic()
        data = b""
        ours.settimeout(20)
        while more := ours.recv(65_536):
            data += more
            if isinstance(_last(data), Done):
                break
        worker.join(10)
        assert not worker.is_alive()
        for end in (ours, theirs):
            end.close()
    assert requested[-1] < quiet, "no load that nobody measures"
    records = [r for p in frames.payloads(data) if frames.is_batch(p) for r in frames._decode_batch(p)]
    assert len(records) == len({r.request_id for r in records})
    assert sum(r.status == 200 for r in records) <= len(requested) <= len(records)


def _last(data: bytes) -> Message | None:
    last = list(frames.payloads(data))[-1:]
    return None if not last or frames.is_batch(last[0]) else msgspec.msgpack.decode(last[0], type=Message)
