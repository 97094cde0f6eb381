"""Runs commands of knee as forks of a process that has imported it, since a start costs more than most commands.

`bench/same` starts it with the interpreter and the environment of a side. Each line on stdin is a command as JSON: its
words, folder, environment and the files that are its stdin, stdout and stderr. The answer is a line with its status; a
signal's is negative. The fork goes on like `python -m harness`, so a command's end and its tracebacks are Python's own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
from typing import Any


def import_all() -> None:
    """Import every module of harness/; one that cannot be is left to the command that needs it."""
    import harness

    for module in pkgutil.walk_packages(harness.__path__, "harness.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module.name)
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "pyarrow.parquet"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def next_command() -> dict[str, Any]:
    """Wait for commands and fork for each; only a fork returns."""
    commands, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.dup(1)
    while line := commands.readline():
        pid = os.fork()
        if pid == 0:
            commands.close()
            os.close(answers)
            command: dict[str, Any] = json.loads(line)
            return command
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(command: dict[str, Any]) -> None:
    """Take the command's folder, environment, words and files."""
    signal.alarm(round(command["patience_s"]))
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["environ"])
    for number, path in enumerate(command["files"]):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["harness", *command["words"]]


import_all()
gc.freeze()
become(next_command())
runpy.run_module("harness", run_name="__main__", alter_sys=True)
