"""The machine's own floor: what receiving streams costs where nothing is made of them.

    python bench/engine_floor.py --url http://127.0.0.1:PORT --streams 512 --answer 120 --seconds 6 --cpu 1

It compiles bench/engine_floor.c, which needs a C compiler, and starts it with a request as `knee run` would send it:
the endpoint then writes the same bytes to both. It prints the CPU seconds that were spent and the tokens that the
endpoint wrote meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from harness.dialects import DIALECTS
from harness.load.http1 import request, request_head
from harness.load.schedule import tick_ns
from harness.workload.request import Request
from harness.workload.text import COMMON

SOURCE = Path(__file__).with_suffix(".c")


def one_request(host: str, answer: int, *, running_usage: bool) -> bytes:
    """Return the bytes of one request for a stream of so many tokens."""
    drop = frozenset() if running_usage else frozenset({"stream_options.continuous_usage_stats"})
    encoder = DIALECTS["chat"].encoder("reference", drop=drop)
    head = request_head("POST", "/v1/chat/completions", [("Host", host)])
    return request(head, "floor", encoder.encode(Request(number=0, prompt=" ".join(COMMON[:16]), output_tokens=answer)))


def cost(
    url: str, streams: int, answer: int, *, spread_s: float, itl_s: float, cpu: int, running_usage: bool = False
) -> float:
    """Return what receiving alone costs on this machine now, in CPU seconds per million tokens, by 6 s of load."""
    command = [
        sys.executable, __file__, "--url", url, "--streams", str(streams), "--answer", str(answer), "--seconds", "6",
        "--spread", str(spread_s), "--itl", str(itl_s), "--cpu", str(cpu),
        *(["--running-usage"] if running_usage else []),
    ]  # fmt: skip
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return float(found["cpu_s"] / found["tokens"] * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the reference endpoint")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--answer", type=int, required=True, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, required=True, help="that are counted")
    parser.add_argument("--spread", type=float, default=3.2, help="seconds over which the streams begin")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds after that, before counting")
    parser.add_argument("--itl", type=float, default=0.025, help="seconds between two tokens: the tick follows from it")
    parser.add_argument("--running-usage", action="store_true", help="ask for a count in every chunk")
    parser.add_argument("--cpu", type=int, required=True, help="the processor to run on")
    options = parser.parse_args()
    where = urlsplit(options.url)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "floor"))
        try:
            subprocess.run([*compiler, "-O2", "-o", program, str(SOURCE)], check=True)
        except (OSError, subprocess.CalledProcessError):
            sys.exit(f"error: {SOURCE} cannot be compiled with '{compiler[0]}'; install a C compiler")
        tick = tick_ns(options.itl or None, options.spread)
        arguments = [where.hostname, where.port, options.streams, options.spread, options.settle, options.seconds, tick]
        data = one_request(where.netloc, options.answer, running_usage=options.running_usage)
        command = [program, *map(str, arguments), str(options.cpu)]
        sys.exit(subprocess.run(command, input=data, check=False).returncode)


if __name__ == "__main__":
    main()
