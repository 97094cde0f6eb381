"""`python -m harness.sim`: the reference endpoint in this process, until a signal; `knee sim` serves a model."""

from __future__ import annotations

import argparse
import gc
import sys

import msgspec

from harness.base import kernel
from harness.base.errors import HarnessError
from harness.base.terminal import guard
from harness.sim.process import serve
from harness.sim.profile import Profile, Reference, StreamPace, reference

_PACE = (
    ("--pace-ttft", "ttft_s", float, "first token after S seconds (default 0.2)"),
    ("--pace-itl", "itl_s", float, "then one every S seconds (default 0.025)"),
    ("--pace-groups", "groups", int, "streams in N phases of that (default 64)"),
    ("--flood", "flood", int, "no pace: N tokens a write, as fast as they are taken"),
    ("--lump", "lump", int, "N tokens at once, in one chunk, as a proxy that buffers"),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.sim", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", help="write log, a frame a request")
    for option, field, kind, words in _PACE:
        parser.add_argument(option, dest=field, type=kind, metavar="S" if kind is float else "N", help=words)
    parser.add_argument("--cpu", type=int, help="core to stay on")
    parser.add_argument("--share-port", action="store_true", help="let other processes serve on this port too")
    parser.add_argument(
        "--stdin", action="store_true", help="read a profile as JSON from stdin, and end when that does"
    )
    return parser.parse_args()


def _profile(arguments: argparse.Namespace) -> Profile | Reference:
    if arguments.stdin:
        # mypy sees no type in a union
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=Profile | Reference)
    stated = {field: getattr(arguments, field) for field in StreamPace.__struct_fields__}
    return reference(StreamPace(**{field: value for field, value in stated.items() if value is not None}))


def main() -> int:
    guard()
    arguments = _arguments()
    try:
        served = _profile(arguments)
        if arguments.cpu is not None:
            kernel.bind({arguments.cpu})
        kernel.allow_files()
        gc.freeze()
        gc.disable()  # a collection would stretch a step; every answer cuts its own cycles when it ends
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
