"""Run scripts/fuzz.py with a receive path that was compiled for it: scripts/fuzz --sanitize calls this.

scripts/sanitized.py --compile MODULE      AddressSanitizer and UBSan, by the compiler that made Python
scripts/sanitized.py MODULE [OPTIONS]      fuzz with it; an error of memory ends the process
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path

NAME = "harness.load._receive"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g"


def main(arguments: list[str]) -> None:
    if arguments[0] == "--compile":
        import hatch_build

        os.environ["CFLAGS"] = FLAGS
        sys.exit(hatch_build.compiled(Path(arguments[1])) or 0)
    spec = importlib.util.spec_from_file_location(NAME, arguments[0])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.argv = ["scripts/fuzz.py", *arguments[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
