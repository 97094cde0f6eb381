"""`python -m harness.sim`: one simulated endpoint in this process, until it is told to end."""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys

import msgspec

from harness.errors import HarnessError
from harness.sim.endpoint import serve
from harness.sim.profile import DEFAULT, Profile, profile


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.sim", description=__doc__)
    parser.add_argument("--profile", default=DEFAULT, help="MODEL/GPU (default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", help="write log, one JSON line a request")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--kv-tokens", type=int, help="KV cache in tokens (default: what the GPU holds)")
    parser.add_argument("--speed", type=float, default=4.0, help="times faster than the real one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--api-key-env", help="environment variable that holds the key to ask for")
    parser.add_argument("--cpu", type=int, help="core to stay on")
    parser.add_argument(
        "--stdin", action="store_true", help="read the profile as JSON from stdin, and end when stdin does"
    )
    return parser.parse_args()


def _profile(arguments: argparse.Namespace) -> Profile:
    if arguments.stdin:
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=Profile)
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key:
            fact = f"the environment variable {arguments.api_key_env} is not set"
            raise HarnessError(fact, place="--api-key-env", way_out="export it first")
    return profile(
        arguments.profile,
        max_num_seqs=arguments.max_num_seqs,
        kv_tokens=arguments.kv_tokens,
        speed=arguments.speed,
        seed=arguments.seed,
        api_key=key,
    )


def _prepare(cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    gc.disable()  # a collection would stretch a step; every answer cuts its own cycles when it ends


def main() -> int:
    arguments = _arguments()
    try:
        served = _profile(arguments)
        _prepare(arguments.cpu)
        serve(
            served,
            arguments.host,
            arguments.port,
            log=arguments.log,
            ready=lambda url: print(f"ready {url}", flush=True),  # noqa: T201
            lifeline=0 if arguments.stdin else None,
        )
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
