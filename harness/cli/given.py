"""Option texts as values, and the command as it may be kept: without what may be secret."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError


def json_object(text: str, flag: str, example: str) -> dict[str, Any]:
    from harness import decoding

    with decoding.reading(flag, "JSON", f"write it like '{example}'"):
        value = decoding.json(text.encode())
    if not isinstance(value, dict):
        raise HarnessError("not a JSON object", place=flag, way_out=f"write it like '{example}'")
    return value


def facts(given: tuple[str, ...]) -> dict[str, str]:
    """Facts given one by one, or as the path of a JSON file that holds an object of them."""
    from harness import decoding

    facts: dict[str, str] = {}
    for each in given:
        if "=" in each or not Path(each).is_file():
            facts.update([pair(each, "=", "--server-meta")])
            continue
        example = '{"version": "1.0"}'
        with decoding.reading(f"--server-meta {each}", "a JSON file", f"write it like '{example}'"):
            text = decoding.content(Path(each)).decode()
        read = json_object(text, "--server-meta", example)
        facts.update({key: str(value) for key, value in read.items()})
    return facts


def pair(text: str, mark: str, flag: str) -> tuple[str, str]:
    key, found, value = text.partition(mark)
    if not found or not key.strip():
        raise HarnessError(f"{text!r} has no '{mark}'", place=flag, way_out=f"write it like name{mark}value")
    return key.strip(), value.strip()


def header(text: str) -> tuple[str, str]:
    """A header's name and value; what is no header is not repeated, it may be a key."""
    name, found, value = text.partition(":")
    if not found or not name.strip() or not value.strip():
        raise HarnessError("not a name and a value", place="--header", way_out="write it like 'Name: value', in quotes")
    return name.strip(), value.strip()


def shown(arguments: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """The command for the manifest, without the values of headers and of fields that may be secret."""
    from harness import secrecy

    plain = [secret for secret in secrets if len(secret) >= 8]  # a shorter one may be any number here
    out: list[str] = []
    flag = ""
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not flag and found and name in ("--header", "--extra-body"):
            out, flag, argument = [*out, name], name, value
        if flag == "--header":
            argument = f"{argument.partition(':')[0]}: {secrecy.HIDDEN}"
        elif flag == "--extra-body":
            argument = json.dumps(secrecy.shown(json_object(argument, flag, "")))
        flag = argument if not flag and argument in ("--header", "--extra-body") else ""
        out.append(secrecy.redact(argument, plain))
    return out
