"""The simulated or the reference endpoint in a process of its own, by a profile as JSON on stdin (`process.serving`).

It ends with stdin, or by a signal. `knee sim` serves a model in the operator's terminal.
"""

from __future__ import annotations

import argparse
import gc
import sys

import msgspec

from harness.base import interpreter, kernel
from harness.base.errors import HarnessError
from harness.base.terminal import guard
from harness.sim.process import serve
from harness.sim.profile import Profile, Reference


def main() -> int:
    """Serve the profile that the first line of stdin holds, until stdin ends; return the exit status.

    Where stdin ends before that line, whoever started this process is gone, and so is the reason to serve.
    """
    guard()
    parser = argparse.ArgumentParser(prog="python -m harness.sim", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", help="write log, a frame a request")
    parser.add_argument("--cpu", type=int, help="core to stay on")
    parser.add_argument("--share-port", action="store_true", help="let other processes serve on this port too")
    arguments = parser.parse_args()
    line = interpreter.next_line()
    if not line:
        return 0
    profile: Profile | Reference = msgspec.json.decode(line, type=Profile | Reference)  # mypy sees no type in a union
    try:
        if arguments.cpu is not None:
            kernel.bind({arguments.cpu})
        kernel.allow_files()
        gc.freeze()
        gc.disable()  # a collection would stretch a step; every answer cuts its own cycles when it ends
        serve(
            profile,
            port=arguments.port,
            log=arguments.log,
            ready=lambda url: print(f"ready {url}", flush=True),  # noqa: T201
            lifeline=sys.stdin.fileno(),
            share_port=arguments.share_port,
        )
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
