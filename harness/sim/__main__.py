"""`python -m harness.sim`: one simulated endpoint in this process, until a signal."""

from __future__ import annotations

import argparse
import gc
import os
import sys

import msgspec

from harness.base import kernel
from harness.base.errors import HarnessError
from harness.base.terminal import guard
from harness.sim.process import serve
from harness.sim.profile import DEFAULT, Profile, Reference, StreamPace, profile, reference


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.sim", description=__doc__)
    parser.add_argument("--profile", default=DEFAULT, help="MODEL/GPU (default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", help="write log, a frame a request")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--kv-tokens", type=int, help="KV cache in tokens (default: what fits on the GPU)")
    parser.add_argument("--speed", type=float, default=4.0, help="times faster than the real one")
    parser.add_argument("--seed", type=int, default=0)
    paced = parser.add_argument_group("the reference endpoint (any of these; --profile and its figures are not used)")
    for option, field, kind, words in (
        ("--pace-ttft", "ttft_s", float, "first token after S seconds (default 0.2)"),
        ("--pace-itl", "itl_s", float, "then one every S seconds (default 0.025)"),
        ("--pace-groups", "groups", int, "streams in N phases of that (default 64)"),
        ("--flood", "flood", int, "no pace: N tokens a write, as fast as they are taken"),
        ("--lump", "lump", int, "N tokens at once, in one chunk, as a proxy that buffers"),
    ):
        paced.add_argument(option, dest=field, type=kind, metavar="S" if kind is float else "N", help=words)
    parser.add_argument("--api-key-env", help="environment variable with the key to require")
    parser.add_argument("--cpu", type=int, help="core to stay on")
    parser.add_argument("--share-port", action="store_true", help="let other processes serve on this port too")
    parser.add_argument(
        "--stdin", action="store_true", help="read the profile as JSON from stdin, and end when stdin does"
    )
    return parser.parse_args()


def _profile(arguments: argparse.Namespace) -> Profile | Reference:
    if arguments.stdin:
        # mypy sees no type in a union
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=Profile | Reference)
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key:
            fact = f"the environment variable {arguments.api_key_env} is not set"
            raise HarnessError(fact, place="--api-key-env", way_out="export it first")
    stated = {field: getattr(arguments, field) for field in StreamPace.__struct_fields__}
    figures = {field: value for field, value in stated.items() if value is not None}
    if figures:
        return reference(StreamPace(**figures), seed=arguments.seed, api_key=key)
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
        kernel.bind({cpu})
    kernel.allow_files()
    gc.freeze()
    gc.disable()  # a collection would stretch a step; every answer cuts its own cycles when it ends


def main() -> int:
    guard()
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
            share_port=arguments.share_port,
        )
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
