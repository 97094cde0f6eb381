"""The peers in one table: how each is installed, given the same load, and read.

Every command sets the same load by the tool's own options: so many requests, so many at a time, prompts of
PROMPT_TOKENS, answers of ANSWER_TOKENS, streamed from /v1/completions. Where a tool has an option that makes it
cheaper or more exact, it has it: see docs/peers.md. A reader returns what the tool itself reports, in seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.results import readers
from harness.results.readers.level import number

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".live" / "peers"
PROMPT_TOKENS, ANSWER_TOKENS = 64, 100
MODEL = "reference"
MS = 1e-3  # seconds


class ToolLoad(NamedTuple):
    """The load of a tool, and where it may write."""

    url: str
    streams: int
    requests: int  # for the tools that count requests
    seconds: float  # for those that count time
    tokenizer: Path
    out: Path  # an empty folder, where it also runs


class Reported(NamedTuple):
    """What a tool reports; seconds, None where it reports nothing."""

    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None


class Tool(NamedTuple):
    name: str
    package: str  # whose version is the tool's
    home: Path  # its environment
    command: Callable[[Path, ToolLoad], list[str]]  # from the environment's bin and the load
    read: Callable[[ToolLoad], Reported]
    install: Callable[[Tool], None]
    settings: Callable[[ToolLoad], Mapping[str, str]] = lambda load: {}  # of its process environment


class InstallError(Exception):
    """A tool that cannot be had here; its text is the reason."""


# ---- installing -------------------------------------------------------------------------------------------------


def constraints(tool: Tool) -> Path:
    """Return the frozen list of all that belongs into a tool's environment."""
    return ROOT / "bench/research" / f"peers-constraints-{tool.home.name}.txt"


def interpreter(version: str) -> str:
    """Return a Python of this version or, failing that, a newer one; found by running it.

    pyenv's commands refuse the versions that are not selected, so those are run by their paths.
    """
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    script = f"import sys; print(sys.executable); sys.exit(sys.version_info < ({version.replace('.', ', ')}))"
    selected = [str(each) for each in versions.glob(f"{version}.*/bin/python3")]
    for name in [f"python{version}", *selected, "python3.12", "python3.13", "python3"]:
        try:
            answer = subprocess.run([name, "-c", script], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0:
            return answer.stdout.strip()
    raise InstallError(f"needs Python ≥ {version}; none is here")


def in_venv(tool: Tool, version: str = "3.11") -> None:
    """Make the tool's environment from its frozen list, once for each state of the list."""
    frozen = constraints(tool)
    stamp, want = tool.home / ".knee-installed", hashlib.sha256(frozen.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == want:
        return
    _call([interpreter(version), "-m", "venv", "--clear", str(tool.home)])
    # The list is complete, so nothing is resolved, and nothing for GPUs comes along. PIP_FIND_LINKS or
    # PIP_EXTRA_INDEX_URL say where torch's CPU build lies.
    pip = [str(tool.home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    _call([*pip, "-r", str(frozen)])
    stamp.write_text(want)


def in_newer_venv(tool: Tool) -> None:
    in_venv(tool, "3.12")


def sglang(tool: Tool) -> None:
    """Its clients import torchvision and never call it; its operators for GPUs are unknown to torch's CPU build."""
    in_venv(tool)
    for registrations in tool.home.glob("lib/python3*/site-packages/torchvision/_meta_registrations.py"):
        registrations.write_text("")


def as_live_server(_: Tool) -> None:
    """The vLLM that scripts/live/vllm serves is also the one that benchmarks."""
    _call([str(ROOT / "scripts" / "live" / "vllm"), "--build-only"])


def already_here(_: Tool) -> None:
    """knee is installed in the environment that runs this."""


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise InstallError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise InstallError(last_line(done.stderr + done.stdout))


def last_line(text: str) -> str:
    """Return the last line that speaks of an error or, without one, the last that is not empty.

    >>> last_line("Traceback\\nValueError: no\\nlog: a.log\\n\\n")
    'ValueError: no'
    """
    lines = [line.strip("│| \t") for line in text.splitlines() if any(map(str.isalnum, line))]
    errors = [line for line in lines if "error:" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1][:300]


def version(tool: Tool) -> str:
    script = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    python = str(tool.home / "bin" / "python")
    done = subprocess.run([python, "-c", script, tool.package], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


# ---- asking -----------------------------------------------------------------------------------------------------


def knee_command(bin: Path, load: ToolLoad) -> list[str]:
    return [
        *(str(bin / "knee"), "run", "--url", load.url, "--api", "completions"),
        *("--levels", str(load.streams), "--level-seconds", f"{load.seconds:g}"),
        *("--input-tokens", str(PROMPT_TOKENS), "--output-tokens", str(ANSWER_TOKENS)),
        *("--out", str(load.out / "result"), "--quiet", "--no-plots", "--json"),
    ]


def knee_burst_command(bin: Path, load: ToolLoad) -> list[str]:
    """Return the command that begins all streams at once, as the others do, not spread over a request's time."""
    return [*knee_command(bin, load), "--start", "burst"]


def vllm_command(bin: Path, load: ToolLoad) -> list[str]:
    return [
        *(str(bin / "vllm"), "bench", "serve", "--base-url", load.url, "--backend", "openai", "--model", MODEL),
        *("--endpoint", "/v1/completions", "--tokenizer", str(load.tokenizer), "--ignore-eos"),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(ANSWER_TOKENS), "--num-prompts", str(load.requests)),
        *("--max-concurrency", str(load.streams), "--percentile-metrics", "ttft,itl"),
        *("--metric-percentiles", "50,99", "--disable-tqdm"),
        *("--save-result", "--result-dir", str(load.out), "--result-filename", "result.json"),
    ]


def aiperf_command(bin: Path, load: ToolLoad) -> list[str]:
    return [
        *(str(bin / "aiperf"), "profile", "--url", load.url, "--model", MODEL, "--endpoint-type", "completions"),
        *("--streaming", "--tokenizer", str(load.tokenizer), "--use-server-token-count", "--prompt-corpus", "random"),
        *("--prompt-input-tokens-mean", str(PROMPT_TOKENS), "--prompt-output-tokens-mean", str(ANSWER_TOKENS)),
        *("--use-legacy-max-tokens", "--extra-inputs", "ignore_eos:true", "--export-level", "summary"),
        *("--concurrency", str(load.streams), "--request-count", str(load.requests), "--ui", "none"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(load.out)),
    ]


def guidellm_command(bin: Path, load: ToolLoad) -> list[str]:
    endpoint = f"target={load.url},model={MODEL},request_format=/v1/completions,http2=false"
    return [
        *(str(bin / "guidellm"), "run", "--backend", f"kind=openai_http,{endpoint}"),
        *("--profile", f"kind=concurrent,streams={load.streams}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={load.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS}"),
        *("--output", f"kind=json,path={load.out / 'result.json'}", "--disable-console"),
    ]


def inference_perf_command(bin: Path, load: ToolLoad) -> list[str]:
    def always(tokens: int) -> dict[str, Any]:
        return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0}

    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": {**always(PROMPT_TOKENS), "total_count": load.requests},
            "output_distribution": {**always(ANSWER_TOKENS), "total_count": load.requests},
        },
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": load.requests, "concurrency_level": load.streams}],
            "num_workers": 1,
            "worker_max_concurrency": load.streams,
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "storage": {"local_storage": {"path": str(load.out)}},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
    }
    path = load.out / "config.json"  # every JSON file is a YAML file
    path.write_text(json.dumps(config, indent=1))
    return [str(bin / "inference-perf"), "-c", str(path), "--log-level", "WARNING"]


def evalscope_command(bin: Path, load: ToolLoad) -> list[str]:
    return [
        *(str(bin / "evalscope"), "perf", "--url", f"{load.url}/v1/completions", "--model", MODEL, "--api", "openai"),
        *("--tokenizer-path", str(load.tokenizer), "--dataset", "random", "--no-apply-chat-template"),
        *("--min-prompt-length", str(PROMPT_TOKENS), "--max-prompt-length", str(PROMPT_TOKENS)),
        *("--prefix-length", "0", "--max-tokens", str(ANSWER_TOKENS), "--min-tokens", str(ANSWER_TOKENS)),
        *("--extra-args", '{"ignore_eos": true}', "--stream", "--no-test-connection", "--num-workers", "1"),
        *("--parallel", str(load.streams), "--number", str(load.requests), "--log-every-n-query", "1000000"),
        *("--outputs-dir", str(load.out), "--no-timestamp"),
    ]


def sglang_options(load: ToolLoad) -> list[str]:
    return [
        *("--base-url", load.url, "--backend", "vllm", "--model", MODEL, "--tokenizer", str(load.tokenizer)),
        *("--dataset-name", "random-ids", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(ANSWER_TOKENS), "--random-range-ratio", "1"),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)),
        *("--warmup-requests", "0", "--disable-tqdm", "--output-file", str(load.out / "result.json")),
    ]


def sglang_command(bin: Path, load: ToolLoad) -> list[str]:
    return [str(bin / "python"), "-m", "sglang.bench_serving", *sglang_options(load)]


def sglang_rust_command(bin: Path, load: ToolLoad) -> list[str]:
    return [str(bin / "python"), "-m", "sglang.benchmark.rust_client", *sglang_options(load), "--disable-retokenize"]


# ---- reading ----------------------------------------------------------------------------------------------------


def _foreign(load: ToolLoad, name: str) -> Reported:
    """Return the percentiles of the first level in a tool's file."""
    level = readers.read(load.out / name).levels[0]
    return Reported(level.ttft_s.p50, level.ttft_s.p99, level.itl_s.p50, level.itl_s.p99)


def _json(load: ToolLoad, name: str) -> Any:
    return json.loads((load.out / name).read_text())


def read_knee(load: ToolLoad) -> Reported:
    level = _json(load, "result/summary.json")["levels"][0]
    return Reported(*(number(level, figure, name) for figure in ("ttft_s", "itl_s") for name in ("p50", "p99")))


def read_result(load: ToolLoad) -> Reported:
    return _foreign(load, "result.json")


def read_aiperf(load: ToolLoad) -> Reported:
    return _foreign(load, "profile_export_aiperf.json")


def read_inference_perf(load: ToolLoad) -> Reported:
    return _foreign(load, "summary_lifecycle_metrics.json")


def read_evalscope(load: ToolLoad) -> Reported:
    result = _json(load, f"{MODEL}/parallel_{load.streams}_number_{load.requests}/benchmark_percentile.json")
    rows = {row["Percentiles"]: row for row in result}
    return Reported(
        *(number(rows[percent], key, unit=MS) for key in ("TTFT (ms)", "ITL (ms)") for percent in ("50%", "99%"))
    )


# ---- settings ---------------------------------------------------------------------------------------------------


def no_hub(_: ToolLoad) -> dict[str, str]:
    """Told to stay offline (by any text, even "0"), AIPerf takes a path for the name of a repository.

    So it is told nothing but of a hub that does not answer.
    """
    return {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_ENDPOINT": "http://127.0.0.1:9"}


def just_enough_workers(load: ToolLoad) -> dict[str, str]:
    """A process of GuideLLM's keeps 100 connections; the ten that it would start only share the one core."""
    return {"GUIDELLM__MAX_WORKER_PROCESSES": str(math.ceil(load.streams / 100))}


# ---- the table --------------------------------------------------------------------------------------------------

KNEE = Tool("knee", "knee-harness", ROOT / ".venv", knee_command, read_knee, already_here)
TOOLS = (
    Tool("knee-burst", "knee-harness", ROOT / ".venv", knee_burst_command, read_knee, already_here),
    Tool("sglang-rust", "sglang", PEERS / "sglang", sglang_rust_command, read_result, sglang),
    Tool("vllm-bench", "vllm", ROOT / ".live" / "vllm", vllm_command, read_result, as_live_server),
    Tool("sglang-bench", "sglang", PEERS / "sglang", sglang_command, read_result, sglang),
    Tool("evalscope", "evalscope", PEERS / "evalscope", evalscope_command, read_evalscope, in_venv),
    Tool(
        "inference-perf",
        "inference-perf",
        PEERS / "inference-perf",
        inference_perf_command,
        read_inference_perf,
        in_newer_venv,
    ),
    Tool("aiperf", "aiperf", PEERS / "aiperf", aiperf_command, read_aiperf, in_venv, no_hub),
    Tool("guidellm", "guidellm", PEERS / "guidellm", guidellm_command, read_result, in_venv, just_enough_workers),
)


def environment(tool: Tool, load: ToolLoad) -> dict[str, str]:
    """Return the process environment of a tool: offline, silent about its use, and without this one's Python."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return kept | quiet | dict(tool.settings(load))
