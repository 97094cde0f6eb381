"""Compose files against the Compose specification: each is parsed whole, with its variables filled in.

    python scripts/check_docker.py docker/compose.yaml

Needs the package compose-spec. Left out: whether an image exists, and what runs in it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import compose_spec  # type: ignore[import-not-found, unused-ignore]  # no part of the development environment

_VARIABLE = re.compile(r"\$(\$)|\$\{(\w+)(?::([-?])([^}]*))?\}|\$(\w+)")


def filled(text: str) -> str:
    """Return the text with each variable's default in its place, or a word where it has none; `$$` is a dollar sign.

    >>> filled("${TAG:?name one} ${PORT:-8000} ${A:-$HOME/x} $$FLAGS")
    'given 8000 /given/x $FLAGS'
    """

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return "$"
        if match[5]:  # a place, like $HOME
            return "/given"
        return filled(match[4]) if match[3] == "-" else "given"

    return _VARIABLE.sub(value, text)


def main(paths: list[str]) -> int:
    wrong = 0
    for path in paths:
        try:
            found = compose_spec.PyCompose.from_yaml(filled(Path(path).read_text()))
        except ValueError as error:
            print(f"{path}: {error}")
            wrong += 1
        else:
            print(f"{path}: {', '.join(sorted(found.service_names()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
